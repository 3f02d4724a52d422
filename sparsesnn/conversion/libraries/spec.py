"""A neuron module of a library, described in our terms by the library's file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sparsesnn.errors import DescriptionError
from sparsesnn.layers import Neuron

#: how a module sees time: "step": one step a call, [B, …]; "tb": [T, B, …]; "bt": [B, T, …]; "bt flat": [B·T, …]
LAYOUTS = ("step", "tb", "bt", "bt flat")


@dataclass
class Spec:
    """A neuron module in our terms.

    Args:
        model: the class of neurons here.
        options: its arguments that are not numbers per neuron.
        tensors: returns its parameters by name, [] or one per neuron, differentiable functions of the module's own.
        ports: the meaning of each tensor of the module's output: "spikes"; "v", our potential before the reset; "state": anything else.
        layout: see `LAYOUTS`.
        reset: sets the module's own state to its beginning.
        loop: the module's recurrent `Linear`, inside it.
        scale: our potential over the library's, see `scaled`.
        times: T for the layout "bt flat", from the rows of a call.
    """

    model: type[Neuron]
    options: dict[str, Any]
    tensors: Callable[[], Mapping[str, Tensor]]
    ports: tuple[str, ...]
    layout: str
    reset: Callable[[], Any]
    loop: nn.Module | None = None
    scale: float = 1.0
    times: Callable[[int], int] = field(default=lambda rows: rows)

    @property
    def fires(self) -> bool:
        return self.model.fires

    def population(self, n: int, grad_threshold: float, **more: Any) -> Neuron:
        """The population, with the parameters as they are now."""
        numbers: dict[str, Any] = {name: values_of(x, n, name) for name, x in self.tensors().items()}
        fired: dict[str, Any] = {"grad_threshold": grad_threshold * self.scale} if self.fires else {}
        return self.model(n, **numbers, **self.options, **fired, **more)


def values_of(x: Tensor, n: int, name: str) -> float | tuple[float, ...]:
    """One number, or one per neuron. Errors: `DescriptionError` for another number of them."""
    flat = x.detach().reshape(-1).tolist()
    if len(flat) == 1:
        return float(flat[0])
    if len(flat) != n:
        raise DescriptionError(
            f"{name} has {len(flat)} numbers for {n} neurons; allowed: 1, or one per neuron; give the layer such a tensor"
        )
    return tuple(flat)


def number(x: Any) -> float:
    """A number that the library keeps as a number or as a tensor with one entry."""
    return float(x.detach().reshape(-1)[0]) if isinstance(x, Tensor) else float(x)


def as_tensor(x: Any) -> Tensor:
    """The same as float32[], for numbers; tensors of one entry as [], others as they are."""
    made: Tensor = x if isinstance(x, Tensor) else torch.tensor(float(x))
    return made.float().reshape(()) if made.numel() == 1 else made.float()


def refuse(where: str, asked: str, got: Any, allowed: str, change: str) -> DescriptionError:
    """The four facts of a refusal."""
    return DescriptionError(f"{where}: {asked} is {got}; allowed: {allowed}; {change}")
