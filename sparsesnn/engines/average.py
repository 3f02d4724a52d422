"""A moving average of the weights over training steps, which evaluation uses in their place."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from sparsesnn.errors import CheckpointError

#: prefix of its tensor names in a checkpoint
PREFIX = "ema/"
_STEPS = f"{PREFIX}steps"


class Average:
    """a[k] = d·a[k-1] + (1-d)·w[k] of every parameter, d = min(decay, (1 + k) / (10 + k)): early weights fade quickly.

    The update is elementwise, product and sum rounded separately, so its bits depend neither on threads nor on ranks.

    Args:
        model: its parameters on this rank are averaged.
        decay: per training step.

    Attributes:
        last_decay: d of the last step.
        elsewhere: names of parameters whose averages an engine updates itself.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay, self.n_steps = model, decay, 0
        self.last_decay = 0.0
        self.elsewhere: frozenset[str] = frozenset()
        self.values: dict[str, Tensor] = {}

    @torch.no_grad()
    def update(self) -> None:
        """Adds the weights after a training step."""
        self.n_steps += 1
        decay = self.last_decay = min(self.decay, (1 + self.n_steps) / (10 + self.n_steps))
        for name, p in self.model.named_parameters():
            if name in self.elsewhere:
                continue
            if name not in self.values:
                self.values[name] = p.detach().clone()
            else:
                self.values[name].mul_(decay).add_(p * (1 - decay))

    def tensors(self) -> dict[str, Tensor]:
        """The tensors for a checkpoint."""
        return {
            **{f"{PREFIX}{name}": x.clone() for name, x in self.values.items()},
            _STEPS: torch.tensor(self.n_steps, device="cpu"),
        }

    def load(self, tensors: Mapping[str, Tensor], where: str) -> None:
        """The inverse of `tensors`; raises `CheckpointError` if they do not match the model."""
        parameters = dict(self.model.named_parameters())
        given = {name[len(PREFIX) :]: x for name, x in tensors.items() if name.startswith(PREFIX) and name != _STEPS}
        n_steps = int(tensors.get(_STEPS, torch.tensor(-1, device="cpu")))
        shapes = {name: (x.shape, x.dtype) for name, x in given.items()}
        wanted = {name: (p.shape, p.dtype) for name, p in parameters.items()} if n_steps else {}
        if n_steps < 0 or shapes != wanted:
            raise CheckpointError(f"{where}: holds no moving average of this network's weights (optim.ema)")
        self.n_steps = n_steps
        self.values = {name: x.to(parameters[name].device, copy=True) for name, x in given.items()}


def evaluated_tensors(tensors: Mapping[str, Tensor], factors: Mapping[str, float]) -> dict[str, Tensor]:
    """A checkpoint's tensors with the weights used in evaluation: the averages, if there are any, times `factors`.

    Args:
        factors: see `sparsesnn.engines.dropout.Dropout.factors`.
    """
    averages = {f"model/{name[len(PREFIX) :]}": x for name, x in tensors.items() if name.startswith(PREFIX)}
    shown = {name: averages.get(name, x) for name, x in tensors.items()}
    return {**shown, **{f"model/{name}": shown[f"model/{name}"] * factor for name, factor in factors.items()}}
