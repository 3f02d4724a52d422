"""Parameters that have an allowed range, such as decays in [0, 1], and what their gradient is at the ends of it.

An optimizer may move a trainable parameter out of its range. The network then reads the nearest end:

    y = min(max(x, low), high)

    ∂L/∂x = 0          where x >= high and ∂L/∂y < 0: a step against the gradient would move x further up
    ∂L/∂x = 0          where x <= low  and ∂L/∂y > 0: a step against the gradient would move x further down
    ∂L/∂x = ∂L/∂y      elsewhere

So a parameter at an end, or beyond it, does not leave the range further, and returns as soon as the loss asks for it. The
rule is the same on every backend (the IPU program has it in codelets/ipu/update.cpp) and for every version of PyTorch, whose
`clamp` and `minimum` have had other gradients there: all of it, half of it or none.

The rule looks at the sign of a whole gradient, the sum over all neurons, steps and samples of a forward pass. Where ranks add up
the gradients of their samples later, the sum is gated, see `ungated`. Gradients of several forward passes that a loop of your
own adds up, of the chunks of a long sequence for example, are gated one by one.
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
    """x within [low, high]; the gradient as the module says."""
    if (low, high) == (-math.inf, math.inf):
        return x
    if not x.requires_grad:
        return x.clamp(low, high)
    y: Tensor = _Bounded.apply(x, low, high, getattr(_here, "gates", True))
    return y


@contextlib.contextmanager
def ungated() -> Iterator[None]:
    """For a forward pass in this thread: its gradients are parts of a sum, which the caller gives to `gate`."""
    before = getattr(_here, "gates", True)
    _here.gates = False
    try:
        yield
    finally:
        _here.gates = before


def gate(x: Tensor, gradient: Tensor, low: float, high: float) -> Tensor:
    """The gradient of x, from that of the value within [low, high]. NaN stays NaN."""
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
