"""How a library's calls and axes hold time, batch and neurons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sparsesnn.errors import DescriptionError


@dataclass(frozen=True)
class Layout:
    """The axes of a module's tensors.

    Args:
        kind: "step": a call for each step, [B, …]; "constant": one call for all steps, [B, …]; "tb": [T, B, …] or [T·B, …]; "bt": the other
            way round.
        flat: whether T and B are one axis.
    """

    kind: str
    flat: bool = False

    def joined(self, calls: Sequence[Tensor], n_steps: int) -> Tensor:
        """[T, B, …] of the tensors of all calls; [B, …] of a constant."""
        if self.kind == "step":
            return torch.stack(list(calls))
        (x,) = calls
        if self.kind == "constant":
            return x
        if self.flat:
            lead = (n_steps, x.shape[0] // n_steps)
            x = x.unflatten(0, lead if self.kind == "tb" else lead[::-1])
        return x if self.kind == "tb" else x.transpose(0, 1)

    def parted(self, x: Tensor) -> list[Tensor]:
        """The tensor of each call, of [T, B, …]."""
        if self.kind == "step":
            return list(x.unbind(0))
        x = x if self.kind == "tb" else x.transpose(0, 1)
        return [x.flatten(0, 1) if self.flat else x]

    @property
    def n_lead(self) -> int:
        """Number of axes in front of those of the neurons."""
        return 1 if self.kind in ("step", "constant") or self.flat else 2


#: of neurons, by the name in their `Spec`
OF_NEURONS = {"step": Layout("step"), "tb": Layout("tb"), "bt": Layout("bt"), "bt flat": Layout("bt", flat=True)}


def found_layout(call: np.ndarray, row: np.ndarray, n_lead: int, where: str, probably: str) -> Layout:
    """The layout of a module in front of all neurons.

    Args:
        call: int[T, B], the number of the call that serves a step of a sample.
        row: int[T, B], its row in that call.
        n_lead: axes of the call's input in front of its features.
        where: the beginning of messages.
        probably: the kind of the neurons' layout, which decides if T or B is 1.
    """
    n_steps, n_samples = call.shape
    t, b = np.indices(call.shape)
    if np.array_equal(call, t) and np.array_equal(row, b):
        return Layout("step")
    if not call.any():
        if np.array_equal(row, b):
            return Layout("constant")
        rows = {"tb": t * n_samples + b, "bt": b * n_steps + t}
        for kind in sorted(rows, key=lambda kind: kind != probably):
            if np.array_equal(row, rows[kind]):
                return Layout(kind, flat=n_lead == 1)
    raise DescriptionError(
        f"{where}: reads its input in an unusual order of steps and samples; allowed: a call for each step, [T, B, …], [B, T, …]; pass steps on "
        "in their order"
    )
