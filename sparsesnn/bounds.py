"""Parameters with an allowed range, such as decays in [0, 1], and their gradient at its ends.

An optimizer may move a trainable parameter out of its range. The network then reads the nearest end:

    y = min(max(x, low), high)

    ∂L/∂x = 0          if x >= high and ∂L/∂y < 0: a step against the gradient would move x further up
    ∂L/∂x = 0          if x <= low  and ∂L/∂y > 0: a step against the gradient would move x further down
    ∂L/∂x = ∂L/∂y      otherwise

So a parameter at an end, or beyond it, does not move further away, and returns when the gradient points back. The rule is
the same on every backend (the IPU program has it in codelets/ipu/update.cpp) and for every version of PyTorch, whose
`clamp` and `minimum` have had other gradients there: all of it, half of it or none.

The rule uses the sign of a whole gradient, the sum over all neurons, steps and samples of a forward pass. If ranks add up
the gradients of their samples later, the sum is gated, see `ungated`. If your own loop adds up gradients of several forward
passes, for example of the chunks of a long sequence, each is gated separately.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

_here = threading.local()


def bounded(x: Tensor, low: float, high: float) -> Tensor:
    """x clamped to [low, high]; for the gradient see the module."""
    if (low, high) == (-math.inf, math.inf):
        return x
    if not x.requires_grad:
        return x.clamp(low, high)
    y: Tensor = _Bounded.apply(x, low, high, getattr(_here, "gates", True))
    return y


@contextlib.contextmanager
def ungated() -> Iterator[None]:
    """Marks the gradients of a forward pass in this thread as parts of a sum, which the caller passes to `gate`."""
    before = getattr(_here, "gates", True)
    _here.gates = False
    try:
        yield
    finally:
        _here.gates = before


def gate(x: Tensor, gradient: Tensor, low: float, high: float) -> Tensor:
    """The gradient of x, from that of the clamped value. NaN stays NaN."""
    outwards = ((x >= high) & (gradient < 0)) | ((x <= low) & (gradient > 0))
    return torch.where(outwards, torch.zeros_like(gradient), gradient)


class _Bounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, low: float, high: float, gates: bool) -> Tensor:
        ctx.save_for_backward(x)
        ctx.range, ctx.gates = (low, high), gates
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, *d: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gate(x, d[0], *ctx.range) if ctx.gates else d[0], None, None, None
