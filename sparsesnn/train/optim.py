"""Optimisers by name, and the learning rate as a function of the step: nothing to save but the step itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsesnn import _core
from sparsesnn.adam import Adam, AdamW
from sparsesnn.host.sharded import ShardedModel
from sparsesnn.parameters import PopulationModule
from sparsesnn.train.config import OptimConfig


def make_optimiser(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """The optimiser; weight decay acts on weights only, never on biases, decays and thresholds."""
    chosen = {
        id(weight) for layer in model.modules() if isinstance(layer, PopulationModule) for weight in layer.weights
    }
    weights = [p for p in model.parameters() if id(p) in chosen]
    others = [p for p in model.parameters() if id(p) not in chosen]
    groups = [{"params": weights, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, fused=True)
    numbers: dict[str, Any] = {"lr": config.lr, "betas": (config.beta1, config.beta2), "eps": config.eps}
    if getattr(model, "backend", None) == "cpu":
        return (AdamW if config.name == "adamw" else Adam)(groups, **numbers)
    return (torch.optim.AdamW if config.name == "adamw" else torch.optim.Adam)(groups, **numbers, fused=True)


def state_keys(config: OptimConfig) -> frozenset[str]:
    """Names of the tensors that the optimiser keeps for a parameter once it has stepped."""
    if config.name == "sgd":
        return frozenset({"momentum_buffer"}) if config.momentum else frozenset()
    return frozenset({"step", "exp_avg", "exp_avg_sq"})


def learning_rate(config: OptimConfig, step: int, steps_per_epoch: int, n_epochs: int) -> float:
    """Learning rate of step 0, 1, 2, …

    Warm-up: rises in a line over the first `warmup_epochs`. Then "constant", or "cosine" from `lr` to
    `final_lr_factor`·`lr` at the last step (Loshchilov & Hutter 2017, without restarts).
    """
    warmup = config.warmup_epochs * steps_per_epoch
    if step < warmup:
        return config.lr * (step + 1) / (warmup + 1)
    if config.schedule == "constant":
        return config.lr
    done = (step - warmup) / max(1.0, n_epochs * steps_per_epoch - 1 - warmup)
    low = config.final_lr_factor
    return config.lr * (low + (1 - low) * (1 + math.cos(math.pi * min(1.0, done))) / 2)


def set_learning_rate(optimiser: torch.optim.Optimizer, lr: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = lr


def gradient_norm(model: nn.Module, clip_norm: float) -> float:
    """The norm of all gradients together; if `clip_norm` is above 0, scales them down to at most that norm."""
    named = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    gradients = list(named.values())
    if not gradients:
        return 0.0
    if getattr(model, "backend", None) == "cpu":
        norm = math.sqrt(sum(_squares(model, named)))
    else:
        norm = float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients])))
    if clip_norm and clip_norm < norm < math.inf:
        for gradient in gradients:
            gradient.mul_(clip_norm / norm)
    return norm


def _squares(model: nn.Module, gradients: Mapping[str, Tensor]) -> list[float]:
    """Sums of squares, float64, neuron by neuron first: the same for any number of ranks that share the neurons."""
    squares = {
        name: np.asarray(_core.column_squares(g.contiguous().view(math.prod(g.shape[:-1]), g.shape[-1]).numpy()))
        for name, g in gradients.items()
        if g.ndim
    }
    whole = model.whole_neurons(squares) if isinstance(model, ShardedModel) else squares
    return [float(whole[name].sum()) if g.ndim else float(g) ** 2 for name, g in gradients.items()]
