"""Matrix products on the CPU: our own in float32 where the instruction set has one, else PyTorch's.

Ours (`host/src/dense_gemm.cpp`) read spikes as the bytes they are kept in, add to what is there, and take their weights
packed once for many products. Measured beside PyTorch's, see docs/baselines.md.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sparsesnn import _core


class Factor:
    """The right factor of products: a matrix [K, N], or with `transposed` the transpose of [N, K].

    It is packed when first made, so it must not change between products.
    """

    def __init__(self, matrix: Tensor, *, transposed: bool = False) -> None:
        self.packed = _core.PackedMatrix(array(matrix.contiguous()), transposed=transposed) if ours(matrix) else None
        self.plain = matrix.t() if transposed else matrix

    def product(self, a: Tensor, out: Tensor, *, accumulate: bool = False, bias: Tensor | None = None) -> None:
        """out ← a·b, on top of `out` or of a bias [N]; a [.., K] bool or float, out [.., N]."""
        if self.packed is not None:
            _core.dense_multiply(
                _values(rows(a)),
                self.packed,
                array(rows(out)),
                accumulate=accumulate,
                bias=None if bias is None else array(bias),
            )
        elif accumulate:
            rows(out).addmm_(floats(a, out.dtype), self.plain)
        else:
            torch.mm(floats(a, out.dtype), self.plain, out=rows(out))
            if bias is not None:
                out += bias


def add_outer(out: Tensor, a: Tensor, b: Tensor, *, first: bool) -> None:
    """out [M, N] ← aᵀ·b, on top of `out` unless it is the first; over the rows of a [.., M], bool or float, b [.., N]."""
    if first and (not a.numel() or not ours(b)):
        out.zero_()
    if not a.numel():
        return
    if ours(b):
        _core.dense_multiply(
            _values(rows(a)), _core.PackedMatrix(array(rows(b))), array(out), transposed=True, accumulate=not first
        )
    else:
        out.addmm_(floats(a, out.dtype).t(), rows(b))


def products_are_ours() -> bool:
    """Whether the mode "fused" multiplies in float32 without PyTorch, so on the engine's threads."""
    return bool(_core.dense_multiply_runs())


def ours(x: Tensor) -> bool:
    """Whether products with `x` are our own."""
    return x.dtype == torch.float32 and products_are_ours()


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Uninitialised memory of the engine's, kept for the next step: neither page faults nor holes between long-lived
    arrays, which PyTorch's own allocation leaves on the CPU."""
    return torch.from_numpy(_core.empty_bytes(math.prod(shape) * dtype.itemsize)).view(dtype).view(shape)


def floats(spikes: Tensor, dtype: torch.dtype) -> Tensor:
    """Spikes [.., M], bool or float, as float[.., M] with one axis of rows."""
    if spikes.dtype != dtype:
        spikes = empty(tuple(spikes.shape), dtype).copy_(spikes)
    return rows(spikes)


def rows(x: Tensor) -> Tensor:
    """[T, B, N] as [T·B, N], the same memory."""
    return x.view(-1, x.shape[-1])


def array(x: Tensor) -> Any:
    """The tensor's memory."""
    return x.detach().numpy()


def _values(x: Tensor) -> Any:
    """The same, a byte a spike as a number."""
    return array(x.view(torch.uint8) if x.dtype == torch.bool else x)
