"""Optimizers by name, their state, and the clipping of gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sparsesnn.options import option
from sparsesnn.parameters import PopulationModule


@dataclass(frozen=True)
class Updates:
    """What updates the weights; the numbers of `torch.optim.SGD`, `Adam` and `AdamW`."""

    name: str = option("adamw", "the optimizer", choices=("adamw", "adam", "sgd"))
    lr: float = option(1e-3, "learning rate after the warm-up", low=0, flag="lr", metavar="RATE")
    weight_decay: float = option(0.0, "of weights, not of biases, decays and thresholds", low=0)
    momentum: float = option(0.9, "of sgd", low=0, below=1)
    beta1: float = option(0.9, "of adam and adamw", low=0, below=1)
    beta2: float = option(0.999, "of adam and adamw", low=0, below=1)
    eps: float = option(1e-8, "of adam and adamw", low=1e-30, high=1)
    clip_norm: float = option(0.0, "largest norm of all gradients together; 0: no limit", low=0)

    @property
    def state_keys(self) -> frozenset[str]:
        """Names of the tensors that the optimizer keeps for a parameter once it has stepped."""
        if self.name == "sgd":
            return frozenset({"momentum_buffer"}) if self.momentum else frozenset()
        return frozenset({"step", "exp_avg", "exp_avg_sq"})


def make_optimizer(
    model: nn.Module, updates: Updates, adam: Callable[..., torch.optim.Optimizer] = torch.optim.Adam, **more: Any
) -> torch.optim.Optimizer:
    """The optimizer; weight decay acts on weights only, never on biases, decays and thresholds.

    Args:
        adam: the class for adam or adamw.
        more: arguments for it.
    """
    chosen = {
        id(weight) for layer in model.modules() if isinstance(layer, PopulationModule) for weight in layer.weights
    }
    weights = [p for p in model.parameters() if id(p) in chosen]
    others = [p for p in model.parameters() if id(p) not in chosen]
    groups = [{"params": weights, "weight_decay": updates.weight_decay}, {"params": others, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    if updates.name == "sgd":
        return torch.optim.SGD(groups, lr=updates.lr, momentum=updates.momentum, fused=True)
    return adam(groups, lr=updates.lr, betas=(updates.beta1, updates.beta2), eps=updates.eps, **more)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def clip(gradients: Iterable[Tensor], norm: float, clip_norm: float) -> None:
    """Scales gradients whose norm is `norm` down to `clip_norm`, if that is above 0 and smaller."""
    if clip_norm and clip_norm < norm < math.inf:
        for gradient in gradients:
            gradient.mul_(clip_norm / norm)


def gradients_of(model: nn.Module) -> Mapping[str, Tensor]:
    """The gradients by the names of their parameters."""
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
