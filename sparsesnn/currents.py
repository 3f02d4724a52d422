"""Currents as the input of a population: numbers with a gradient, such as the output of a `torch.nn.Linear`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sparsesnn.errors import NumericError, ShapeError
from sparsesnn.options import whole
from sparsesnn.tensor_like import plain_tensor


@dataclass(frozen=True, eq=False)
class Currents:
    """The currents of one population over T steps; every module makes them from a tensor.

    Args:
        values: float[T, B, N], or float[B, N], the same at all steps: engines keep one copy, and its gradient is the sum over the steps.
        n_steps: T.
    """

    values: Tensor
    n_steps: int

    @classmethod
    def of(cls, given: Any, n_steps: int | None, who: str, n_neurons: int) -> Currents:
        """Checked currents.

        Args:
            given: float[T, B, N], a tensor or an array; or float[B, N] with `n_steps`. A tensor that is expanded over time (stride 0) is
                kept once.
            n_steps: T of [B, N]; None for [T, B, N].
            who: the beginning of messages.
            n_neurons: N.

        Errors: `ShapeError` for other shapes and for spike lists; `NumericError` for NaN and infinite values.
        """
        if getattr(given, "graded", False):  # numbers in lists, such as those of `encode.direct`
            dense = given.to_dense()
            constant = given.repeats
            return cls.of(
                dense[0] if constant and len(dense) else dense, given.n_steps if constant else None, who, n_neurons
            )
        if isinstance(given, cls):
            return cls.of(given.values, given.n_steps if given.is_constant else None, who, n_neurons)
        if hasattr(given, "n_spikes") or hasattr(given, "fired"):
            raise ShapeError(
                f"{who}: its input is currents but got {type(given).__name__}; give a tensor [T, B, {n_neurons}], or [B, {n_neurons}] with "
                "n_steps; for spikes describe an Input without currents"
            )
        values = plain_tensor(given, f"{who}: currents")
        if not values.is_floating_point():
            values = values.float()
        if (values.ndim, n_steps is None) not in ((3, True), (2, False)) or values.shape[-1] != n_neurons:
            raise ShapeError(
                f"{who}: currents have shape {list(values.shape)} and n_steps is {n_steps}; give [T, B, {n_neurons}] without n_steps, or "
                f"[B, {n_neurons}], the same at all steps, with n_steps"
            )
        if n_steps is None:
            steps = values.shape[0]
            if steps > 1 and values.stride(0) == 0:
                values = values[0]
        else:
            number = whole(n_steps)
            if number is None or not 0 <= number < 2**31:
                raise ShapeError(f"{who}: n_steps is {n_steps!r}; give a whole number from 0 to {2**31 - 1}")
            steps = number
        _check_finite(values, who)
        return cls(values, steps)

    @property
    def is_constant(self) -> bool:
        """Whether they are the same at all steps."""
        return self.values.ndim == 2

    @property
    def n_samples(self) -> int:
        return int(self.values.shape[-2])

    @property
    def n_neurons(self) -> int:
        return int(self.values.shape[-1])

    @property
    def shape(self) -> torch.Size:
        """[T, B, N]."""
        return torch.Size((self.n_steps, self.n_samples, self.n_neurons))

    def to_dense(self) -> Tensor:
        """[T, B, N]; expanded over time if they are constant."""
        return self.values.expand(self.shape) if self.is_constant else self.values


def _check_finite(values: Tensor, who: str) -> None:
    """`NumericError` for NaN and infinite values; one pass over them."""
    if not values.numel() or values.device.type == "meta":
        return
    low, high = torch.aminmax(values.detach())
    if bool(torch.isfinite(low) & torch.isfinite(high)):
        return
    at = (~torch.isfinite(values.detach())).nonzero()[0].tolist()
    raise NumericError(
        f"{who}: currents hold {float(values.detach()[tuple(at)])} at {at}; give finite numbers, by a smaller learning rate or clipped "
        "gradients of the module in front"
    )
