"""The operations of the mode "fused" on a CUDA device: dynamics in Triton (`triton_kernels.py`), products by PyTorch.

Mixed precision follows `torch.autocast`: products, currents and their gradients use its dtype, state and trained weights
float32.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from sparsesnn.engines.dense import triton_ops
from sparsesnn.engines.dense.dynamics import Dynamics, Numbers
from sparsesnn.engines.dense.graphs import Graphs
from sparsesnn.surrogate import KINDS

#: rows of a chunk: one chunk's potentials are kept in addition to the currents; each launch costs microseconds
ROWS = 16384
MIN_STEPS = 8
#: most steps in a chunk of a recurrent population: a graph of this many steps is kept, with its tensors
LOOP_STEPS = 32
#: most numbers in the largest maps, read or written by a convolution, of a chunk
MAP_NUMBERS = 1 << 26

_graphs = Graphs()


class Factor:
    """The right factor of products: a matrix [K, N], or with `transposed` the transpose of [N, K], in a dtype."""

    def __init__(self, matrix: Tensor, dtype: torch.dtype, *, transposed: bool = False) -> None:
        matrix = matrix.to(dtype)
        self.matrix = matrix.t() if transposed else matrix

    def product(self, a: Tensor, out: Tensor, *, accumulate: bool = False, bias: Tensor | None = None) -> None:
        """out ← a·b, added to `out` or to a bias [N]; a [.., K] bool or float, out [.., N]."""
        a, flat = _rows(a).to(self.matrix.dtype), _rows(out)
        if flat.dtype != self.matrix.dtype:
            product = a @ self.matrix
            flat.copy_(product if not accumulate else flat + product)
        elif accumulate:
            flat.addmm_(a, self.matrix)
        else:
            torch.mm(a, self.matrix, out=flat)
        if bias is not None:
            out += bias


def add_outer(out: Tensor, a: Tensor, b: Tensor, *, first: bool) -> None:
    """Adds aᵀ·b to `out` [M, N], or sets it if `first`; over the rows of a [.., M], bool or float, and b [.., N]."""
    left, right = _rows(a).to(b.dtype).t(), _rows(b)
    if out.dtype != b.dtype:
        product = left @ right
        out.copy_(product if first else out + product)
    elif first:
        torch.mm(left, right, out=out)
    else:
        out.addmm_(left, right)


def forward(
    dynamics: Dynamics,
    neuron: Numbers,
    current: Tensor,
    *,
    state: Sequence[Tensor],
    rows: Sequence[Tensor] = (),
    fresh: bool = False,
    out: Tensor | None = None,
    fired: Tensor | None = None,
) -> None:
    """Advances every neuron through the steps of `current` [T, B, N]; see `triton_kernels.forward_kernel`."""
    torch.ops.sparsesnn.dense_forward(
        current, neuron.entries, list(state), list(rows), out, fired, fresh, **_layout(dynamics)
    )


def backward(
    dynamics: Dynamics,
    neuron: Numbers,
    d_out: Tensor,
    *,
    rows: Sequence[Tensor],
    d_state: Sequence[Tensor],
    d_current: Tensor,
    d_bias: Tensor | None = None,
    d_parameters: Sequence[Tensor] = (),
    current: Tensor | None = None,
    fresh: bool = False,
) -> None:
    """The gradient of `forward`; see `triton_kernels.backward_kernel`."""
    if not d_parameters:  # their gradients alone read the current, and more states than x
        rows, current = rows[:1] if dynamics.shape.fires else (), None
    torch.ops.sparsesnn.dense_backward(
        list(rows),
        current,
        d_out,
        neuron.entries,
        neuron.derivatives if d_parameters else None,
        neuron.grad_threshold,
        list(d_state),
        d_current,
        d_bias,
        list(d_parameters),
        fresh,
        **_layout(dynamics),
        detach_reset=dynamics.detach_reset,
        surrogate=KINDS.index(dynamics.surrogate),
        slope=dynamics.slope,
    )


def _layout(dynamics: Dynamics) -> dict[str, Any]:
    """The arguments of the operators that describe a shape."""
    shape = dynamics.shape
    return {"names": shape.entries, "ones": shape.ones, "fires": shape.fires, "in_order": shape.in_order}


def loop(
    work: Callable[..., None],
    name: Hashable,
    weight: Factor,
    read: Sequence[Tensor | None],
    written: Sequence[Tensor | None],
) -> None:
    """Runs `work(weight, read, written)`, a loop over steps, as a CUDA graph; `name` distinguishes loops on tensors of equal shapes."""

    def on(read: Sequence[Tensor | None], written: Sequence[Tensor | None]) -> None:
        matrix = read[0]
        assert matrix is not None
        work(Factor(matrix, matrix.dtype), read[1:], written)

    with triton_ops.device_of(weight.matrix):
        _graphs.run(on, name, [weight.matrix, *read], written)


def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Uninitialized memory."""
    return torch.empty(shape, dtype=dtype, device=device)


def product_dtype(weight: Tensor) -> torch.dtype:
    """The dtype of products with a weight: autocast's if autocast is on, else its own."""
    kind = weight.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


def spike_dtype(product_dtype: torch.dtype) -> torch.dtype:
    """The dtype of spikes that products read: their own, so that they are not converted for each product."""
    return product_dtype


def _rows(x: Tensor) -> Tensor:
    return x.view(-1, x.shape[-1])


assert triton_ops.BLOCK > 0, "importing it registers the operators"
