"""What the mode "fused" is made of on a CUDA device: dynamics in Triton (`triton_kernels.py`), products of PyTorch.

Mixed precision follows `torch.autocast`: products, currents and their gradients in its dtype, state and weights that
learn in float32.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sparsesnn.engines.dense import triton_ops
from sparsesnn.engines.dense.dynamics import Dynamics

#: rows of a chunk: potentials of one chunk are kept besides the currents; a launch costs microseconds
ROWS = 16384
MIN_STEPS = 8


class Factor:
    """The right factor of products: a matrix [K, N], or with `transposed` the transpose of [N, K], in a dtype."""

    def __init__(self, matrix: Tensor, dtype: torch.dtype, *, transposed: bool = False) -> None:
        matrix = matrix.to(dtype)
        self.matrix = matrix.t() if transposed else matrix

    def product(self, a: Tensor, out: Tensor, *, accumulate: bool = False, bias: Tensor | None = None) -> None:
        """out ← a·b, on top of `out` or of a bias [N]; a [.., K] bool or float, out [.., N]."""
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
    """out [M, N] ← aᵀ·b, on top of `out` unless it is the first; over the rows of a [.., M], bool or float, b [.., N]."""
    product = _rows(a).to(b.dtype).t() @ _rows(b)
    if first:
        out.copy_(product)
    else:
        out += product


def forward(dynamics: Dynamics, neuron: Mapping[str, Tensor | None], current: Tensor, **arrays: Tensor | None) -> None:
    """Moves every neuron over the steps of `current` [T, B, N]; see `triton_kernels.forward_kernel`."""
    parameters = {name: neuron[name] for name in ("alpha", "beta", "threshold")}
    torch.ops.sparsesnn.dense_forward(
        current, **parameters, **arrays, model=dynamics.model, reset=dynamics.reset, gain=dynamics.gain
    )


def backward(dynamics: Dynamics, neuron: Mapping[str, Tensor | None], d_out: Tensor, **arrays: Tensor | None) -> None:
    """The gradient of `forward`; see `triton_kernels.backward_kernel`."""
    torch.ops.sparsesnn.dense_backward(
        d_out=d_out,
        **neuron,
        **arrays,
        model=dynamics.model,
        reset=dynamics.reset,
        detach_reset=dynamics.detach_reset,
        surrogate=dynamics.surrogate,
        slope=dynamics.slope,
        gain=dynamics.gain,
    )


def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Uninitialised memory."""
    return torch.empty(shape, dtype=dtype, device=device)


def product_dtype(weight: Tensor) -> torch.dtype:
    """What products with a weight are computed in: autocast's dtype where autocast is on, else its own."""
    kind = weight.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


def _rows(x: Tensor) -> Tensor:
    return x.view(-1, x.shape[-1])


assert triton_ops.BLOCK > 0, "importing it registers the operators"
