"""Optimizers by name, their state, and the clipping of gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sparsesnn.errors import ConfigError
from sparsesnn.layers import is_readout
from sparsesnn.options import option
from sparsesnn.parameters import DELAYS, PopulationModule

#: groups of parameters that may have their own learning rate and weight decay
GROUPS = ("weights", "recurrent", "readout", "bias", "neurons", "delays")
#: the default factor of axonal delays: they are numbers of steps, so a learning rate for weights would hardly change them
DELAYS_FACTOR = 100.0

_FUSED_SGD = partial(torch.optim.SGD, fused=True)


@dataclass(frozen=True)
class Updates:
    """The optimizer and its settings, those of `torch.optim.SGD`, `Adam` and `AdamW`."""

    name: str = option("adamw", "the optimizer", choices=("adamw", "adam", "sgd"))
    lr: float = option(1e-3, "learning rate after the warm-up", low=0, flag="lr", metavar="RATE")
    weight_decay: float = option(0.0, "for weights, but not for biases, decays and thresholds", low=0)
    momentum: float = option(0.9, "for sgd", low=0, below=1)
    beta1: float = option(0.9, "for adam and adamw", low=0, below=1)
    beta2: float = option(0.999, "for adam and adamw", low=0, below=1)
    eps: float = option(1e-8, "for adam and adamw", low=1e-30, high=1)
    lr_factors: dict[str, float] = option(
        dict,
        f"factors on the rate of groups of parameters, such as {{ neurons = 0.2 }}; groups: {', '.join(GROUPS)}; neurons: decays, "
        "thresholds and the like; readout: weights into an LI readout; weights: all others except recurrent ones; delays: axonal ones "
        f"({DELAYS_FACTOR:g} if not given)",
        low=0,
    )
    weight_decays: dict[str, float] = option(
        dict, "weight decay of groups, in place of weight_decay (of 0 for bias, neurons and delays)", low=0
    )
    ema: float = option(
        0.0,
        "decay per step of a moving average of all parameters, which is evaluated and saved in their place; 0: none",
        low=0,
        below=1,
    )
    clip_norm: float = option(0.0, "largest norm of all gradients together; 0: no limit", low=0)

    def check_groups(self, where: str = "") -> None:
        """Raises `ConfigError` for an unknown group; `where` is put before the names of options."""
        for name in ("lr_factors", "weight_decays"):
            if unknown := sorted(set(getattr(self, name)) - set(GROUPS)):
                raise ConfigError(f"{where}{name}: {unknown[0]!r} is not a group; allowed: {', '.join(GROUPS)}")

    @property
    def state_keys(self) -> frozenset[str]:
        """Names of the tensors that the optimizer keeps for a parameter after its first step."""
        if self.name == "sgd":
            return frozenset({"momentum_buffer"}) if self.momentum else frozenset()
        return frozenset({"step", "exp_avg", "exp_avg_sq"})


def make_optimizer(
    model: nn.Module,
    updates: Updates,
    adam: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    sgd: Callable[..., torch.optim.Optimizer] = _FUSED_SGD,
    **more: Any,
) -> torch.optim.Optimizer:
    """Makes the optimizer, with one parameter group for each of `GROUPS` that has members.

    Args:
        adam: the class for adam or adamw.
        sgd: the class for sgd.
        more: further arguments for `adam`.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, PopulationModule)]
    names = {id(p): name for layer in layers for name, p in _group_names(layer)}
    groups: list[dict[str, Any]] = [
        {
            "params": members,
            "weight_decay": updates.weight_decays.get(
                name, 0.0 if name in ("bias", "neurons", "delays") else updates.weight_decay
            ),
            "lr_factor": updates.lr_factors.get(name, DELAYS_FACTOR if name == "delays" else 1.0),
        }
        for name in GROUPS
        if (members := [p for p in model.parameters() if names.get(id(p), "neurons") == name])
    ]
    if updates.name == "sgd":
        return sgd(groups, lr=updates.lr, momentum=updates.momentum)
    return adam(groups, lr=updates.lr, betas=(updates.beta1, updates.beta2), eps=updates.eps, **more)


def _group_names(layer: PopulationModule) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters of a layer with their group names, except those in "neurons"."""
    for c, weight in zip(layer.incoming, layer.weights, strict=True):
        yield "recurrent" if c.is_recurrent else "readout" if is_readout(layer.population) else "weights", weight
    if layer.bias is not None:
        yield "bias", layer.bias
    for c in layer.incoming:
        if c.axonal and c.axonal.learn:
            yield "delays", layer.get_parameter(f"{c.name}{DELAYS}")


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_factor"]


def clip(gradients: Iterable[Tensor], norm: float, clip_norm: float) -> float:
    """Scales gradients of norm `norm` down to `clip_norm`, if `clip_norm` is above 0 and smaller; returns the factor, 1 if there is none."""
    if not clip_norm or not clip_norm < norm < math.inf:
        return 1.0
    for gradient in gradients:
        gradient.mul_(clip_norm / norm)
    return clip_norm / norm


def squares_per_neuron(model: Any, name: str, gradient: Tensor) -> npt.NDArray[np.float64]:
    """float64[N], the squares of the gradient of a parameter of a layer, summed for each neuron: the same on any number of ranks."""
    population, _, own = name.partition(".")[2].partition(".")
    found: npt.NDArray[np.float64] = model.layers[population].squares_per_receiver(own, gradient.numpy())
    return found


def norm_of(gradients: Iterable[Tensor]) -> Tensor:
    """The norm of all gradients together, float32[] on their device."""
    norm: Tensor = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients]))
    return norm


def clip_in_place(gradients: list[Tensor], norm: Tensor, clip_norm: float) -> None:
    """`clip` for a norm on a device, without reading it on the host."""
    if clip_norm:
        torch._foreach_mul_(gradients, torch.where((norm > clip_norm) & norm.isfinite(), clip_norm / norm, 1.0))


def gradients_of(model: nn.Module) -> Mapping[str, Tensor]:
    """The gradients by parameter name."""
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
