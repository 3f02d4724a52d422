"""The operations of the mode "fused" on a CPU: dynamics in C++ and matrix products.

The products are our own (`host/src/dense/dense_gemm.cpp`) in float32 on AMD processors, otherwise PyTorch's. Ours read
spikes as bytes, add to the output, and pack their weights once for many products. docs/engines.md compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.profiler import record_function

from sparsesnn import _core
from sparsesnn.engines.dense.dynamics import Dynamics, Numbers
from sparsesnn.engines.dense.pieces import in_pieces

#: rows of a chunk's matrix products: enough for products to run near full speed, few enough to keep a chunk's buffers
#: small compared with the kept currents
ROWS = 768
MIN_STEPS = 8
#: most steps in a chunk of a recurrent population
LOOP_STEPS = 1 << 30
#: most numbers in the largest maps, read or written by a convolution, of a chunk
MAP_NUMBERS = 1 << 20


class Factor:
    """The right factor of products: a matrix [K, N], or with `transposed` the transpose of [N, K].

    The matrix is packed at construction, so it must not change between products.
    """

    def __init__(self, matrix: Tensor, dtype: torch.dtype, *, transposed: bool = False) -> None:
        self.packed = _core.PackedMatrix(array(matrix.contiguous()), transposed=transposed) if ours(matrix) else None
        self.plain = matrix.t() if transposed else matrix

    def product(self, a: Tensor, out: Tensor, *, accumulate: bool = False, bias: Tensor | None = None) -> None:
        """out ← a·b, added to `out` or to a bias [N]; a [.., K] bool or float, out [.., N]."""
        if self.packed is not None:
            with record_function("sparsesnn::dense_multiply"):
                _core.dense_multiply(
                    values(rows(a)),
                    self.packed,
                    array(rows(out)),
                    accumulate=accumulate,
                    bias=None if bias is None else array(bias),
                )
            return
        left, made = floats(a, out.dtype), rows(out)

        def piece(at: slice) -> None:
            if accumulate:
                made[at].addmm_(left[at], self.plain)
            else:
                torch.mm(left[at], self.plain, out=made[at])

        in_pieces(len(made), piece, n_products=self.plain.numel())
        if bias is not None and not accumulate:
            out += bias


def add_outer(out: Tensor, a: Tensor, b: Tensor, *, first: bool) -> None:
    """Adds aᵀ·b to `out` [M, N], or sets it if `first`; over the rows of a [.., M], bool or float, and b [.., N]."""
    if first and (not a.numel() or not ours(b)):
        out.zero_()
    if not a.numel():
        return
    if ours(b):
        with record_function("sparsesnn::dense_multiply"):
            _core.dense_multiply(
                values(rows(a)), _core.PackedMatrix(array(rows(b))), array(out), transposed=True, accumulate=not first
            )
    else:
        left, right = floats(a, out.dtype).t(), rows(b)

        def piece(at: slice) -> None:
            out[at].addmm_(left[at], right)

        in_pieces(len(out), piece, n_products=right.numel())


def forward(
    dynamics: Dynamics,
    neuron: Numbers,
    current: Tensor,
    *,
    state: Sequence[Tensor],
    rows: Sequence[Tensor] = (),
    fresh: bool = False,
    **arrays: Tensor | None,
) -> None:
    """Advances every neuron through the steps of `current` [T, B, N]; see host/src/dense/dense_neurons.h."""
    given = {"out": None, "fired": None, **arrays}
    _core.dense_forward(
        _spec(dynamics),
        array(current),
        **_numbers(neuron),
        state=[array(x) for x in state],
        rows=[array(x) for x in rows],
        fresh=fresh,
        **_arrays(given),
    )


def backward(
    dynamics: Dynamics,
    neuron: Numbers,
    d_out: Tensor,
    *,
    rows: Sequence[Tensor],
    d_state: Sequence[Tensor],
    d_parameters: Sequence[Tensor] = (),
    fresh: bool = False,
    **arrays: Tensor | None,
) -> None:
    """The gradient of `forward`; see host/src/dense/dense_neurons.h."""
    given = {"d_bias": None, **arrays}
    derivatives = neuron.derivatives
    _core.dense_backward(
        _spec(dynamics),
        array(d_out),
        **_numbers(neuron),
        derivatives=None if derivatives is None else array(derivatives),
        rows=[array(x) for x in rows],
        d_state=[array(x) for x in d_state],
        d_parameters=[array(x) for x in d_parameters],
        fresh=fresh,
        **_arrays(given),
    )


def loop(
    work: Callable[..., None],
    name: Hashable,
    weight: Factor,
    read: Sequence[Tensor | None],
    written: Sequence[Tensor | None],
) -> None:
    """Runs `work(weight, read, written)`, a loop over steps; `name` is unused here, see `on_cuda.loop`."""
    work(weight, read, written)


def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Uninitialized memory from the engine's pool, which is reused in the next step. PyTorch's own allocation on the CPU causes
    page faults and leaves holes between long-lived arrays."""
    return torch.from_numpy(_core.empty_bytes(math.prod(shape) * dtype.itemsize)).view(dtype).view(shape)


def product_dtype(weight: Tensor) -> torch.dtype:
    """The dtype of products with a weight: its own."""
    return weight.dtype


def spike_dtype(product_dtype: torch.dtype) -> torch.dtype:
    """The dtype of spikes that products read: bytes, regardless of the precision."""
    return torch.bool


def products_are_ours() -> bool:
    """Whether the mode "fused" multiplies in float32 without PyTorch, on the engine's threads."""
    return bool(_core.dense_multiply_suits())


def ours(x: Tensor) -> bool:
    """Whether products with `x` are our own."""
    return x.dtype == torch.float32 and products_are_ours()


def floats(spikes: Tensor, dtype: torch.dtype) -> Tensor:
    """Spikes [.., M], bool or float, as float[.., M] with one axis of rows."""
    if spikes.dtype != dtype:
        spikes = empty(tuple(spikes.shape), dtype, spikes.device).copy_(spikes)
    return rows(spikes)


def rows(x: Tensor) -> Tensor:
    """[T, B, N] as [T·B, N], in the same memory."""
    return x.view(-1, x.shape[-1])


def array(x: Tensor) -> Any:
    """The tensor's memory."""
    return x.detach().numpy()


def values(x: Tensor) -> Any:
    """The tensor's memory, with bool spikes as uint8."""
    return array(x.view(torch.uint8) if x.dtype == torch.bool else x)


def _spec(dynamics: Dynamics) -> _core.DenseSpec:
    return _core.DenseSpec(
        shape=dynamics.shape.name,
        fires=dynamics.shape.fires,
        detach_reset=dynamics.detach_reset,
        surrogate=dynamics.surrogate,
        slope=dynamics.slope,
    )


def _numbers(neuron: Numbers) -> dict[str, Any]:
    threshold = neuron.grad_threshold
    return {
        "entries": array(neuron.entries),
        "grad_threshold": None if threshold is None else array(threshold),
    }


def _arrays(tensors: Mapping[str, Tensor | None]) -> dict[str, Any]:
    return {name: None if x is None else array(x) for name, x in tensors.items()}
