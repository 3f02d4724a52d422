"""The parameters that a layer has, under the names that every backend gives them.

Runs under Python 3.8 and torch 2.0 too, for `sparsesnn.poptorch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn


def add_parameters(layer: Any, population: Any, n_pre: Sequence[int], generator: torch.Generator | None) -> None:
    """Gives a module its `weights`, `recurrent_weight`, `bias`, decays and thresholds.

    Args:
        population: `LIF`, `CubaLIF` or `LI`.
        n_pre: neurons of each source.
        generator: source of the random initial weights, U(±1/√n_pre).
    """
    n = population.n

    def uniform(rows: int) -> nn.Parameter:
        bound = rows**-0.5
        return nn.Parameter((torch.rand(rows, n, generator=generator) * 2 - 1) * bound)

    layer.weights = nn.ParameterList([uniform(rows) for rows in n_pre])
    layer.recurrent_weight = uniform(n) if getattr(population, "recurrent", False) else None
    layer.bias = nn.Parameter(torch.zeros(n)) if population.bias else None
    for name in ("beta", "alpha", "threshold", "grad_threshold"):
        if hasattr(population, name):
            value = torch.tensor(getattr(population, name), dtype=torch.float32)
            if getattr(population, f"learn_{name}", False):
                layer.register_parameter(name, nn.Parameter(value))
            else:
                layer.register_buffer(name, value)
