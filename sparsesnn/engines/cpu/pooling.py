"""Pools of spikes on the event-sparse engine: lists are made of lists, before a layer reads them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsesnn import _core
from sparsesnn.engines.cpu.layer import engine_lists
from sparsesnn.errors import ShapeError
from sparsesnn.first_order import first_order
from sparsesnn.spikes import SpikeBatch
from sparsesnn.synapses import Pool


class Pooled:
    """What a row of pools makes of lists. Sums and averages are graded; a maximum of spikes is a spike.

    Attributes:
        lists: the result, detached; without pools what was given.
    """

    def __init__(self, spikes: SpikeBatch, pools: Sequence[Pool]) -> None:
        self.lists = spikes
        self.done: list[tuple[Pool, dict[str, Any], int]] = []  # with the entries that were pooled
        for pool in pools:
            self._add(pool)

    def _add(self, pool: Pool) -> None:
        spikes = self.lists
        if spikes.n_neurons != pool.n_pre:
            raise ShapeError(f"input has N={spikes.n_neurons}; {pool} needs N={pool.n_pre}")
        result = _core.pooled(engine_lists(spikes), spikes.n_samples, **pool.list_arguments())
        values = result["values"]
        self.done.append((pool, result, spikes.ids.numel()))
        self.lists = SpikeBatch(
            offsets=torch.from_numpy(result["offsets"]),
            ids=torch.from_numpy(result["ids"]),
            n_spikes=torch.from_numpy(result["n_spikes"]),
            n_steps=spikes.n_steps,
            n_samples=spikes.n_samples,
            n_neurons=math.prod(pool.post_shape),
            values=None if values is None else torch.from_numpy(values),
            graded=values is not None,
        )

    def pull(self, d_values: np.ndarray) -> np.ndarray:
        """The gradient of the values of the lists that were given, from that of the result's."""
        for pool, result, n_values in reversed(self.done):
            made = _core.pooled_grad(result["ends"], result["entries"], d_values, pool.share, n_values)
            d_values = np.asarray(made)
        return d_values


def pooled(spikes: SpikeBatch, pools: Sequence[Pool]) -> SpikeBatch:
    """The lists that a row of pools makes, as autograd sees them."""
    if not pools:
        return spikes
    made = Pooled(spikes, pools)
    learns = torch.is_grad_enabled() and spikes.values is not None and spikes.values.requires_grad
    return replace(made.lists, values=_PoolValues.apply(made, spikes.values)) if learns else made.lists


class _PoolValues(torch.autograd.Function):
    """forward(pooled, values before) → values of the pooled lists."""

    @staticmethod
    def forward(ctx: Any, made: Pooled, values: Tensor) -> Tensor:
        ctx.made, ctx.read = made, (values,)
        # a tensor of its own: autograd ties it to ctx, hence to `made`, and a cycle through both would never be freed
        return made.lists.entry_values().detach()

    @staticmethod
    @first_order("a layer of the backend 'cpu'")
    def backward(ctx: Any, d_made: Tensor) -> tuple[None, Tensor]:
        return None, torch.from_numpy(ctx.made.pull(d_made.contiguous().numpy()))
