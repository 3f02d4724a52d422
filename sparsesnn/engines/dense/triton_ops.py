"""The Triton kernels of the mode "fused" as PyTorch operators: `torch.ops.sparsesnn.dense_forward` and `…_backward`.

They write into the given tensors, as `_core.dense_forward` does; `triton_kernels.py` explains each tensor. As operators
they can be traced, profiled by name and captured into CUDA graphs. On CPU tensors they run only in Triton's interpreter
(TRITON_INTERPRET=1 before the first import), which the tests use to check their results.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from sparsesnn.engines.dense import triton_kernels as kernels

#: elements of [B, N] per program: a power of two; small, because a step of a small network has few elements
BLOCK = 128

_library = torch.library.Library("sparsesnn", "DEF")
_library.define(
    "dense_forward(Tensor current, Tensor? alpha, Tensor beta, Tensor? threshold, Tensor(a!) v, Tensor(b!)? i_syn, "
    "Tensor(c!)? out, Tensor(d!)? fired, Tensor(e!)? v_rows, Tensor(f!)? i_syn_rows, int model, int reset, float gain) -> ()"
)
_library.define(
    "dense_backward(Tensor? v_rows, Tensor? i_syn_rows, Tensor d_out, Tensor? alpha, Tensor beta, Tensor? threshold, "
    "Tensor? grad_threshold, Tensor(a!) delta, Tensor(b!)? d_i, Tensor(c!) d_current, Tensor(d!)? d_bias, "
    "Tensor(e!)? d_alpha, Tensor(f!)? d_beta, Tensor(g!)? d_threshold, int model, int reset, bool detach_reset, "
    "int surrogate, float slope, float gain) -> ()"
)


def forward(
    current: Tensor,
    alpha: Tensor | None,
    beta: Tensor,
    threshold: Tensor | None,
    v: Tensor,
    i_syn: Tensor | None,
    out: Tensor | None,
    fired: Tensor | None,
    v_rows: Tensor | None,
    i_syn_rows: Tensor | None,
    model: int,
    reset: int,
    gain: float,
) -> None:
    """Advances every neuron through the steps of `current` [T, B, N]."""
    n_steps, n_samples, n = current.shape
    size = n_samples * n
    if size == 0:
        return
    with device_of(current):
        kernels.forward_kernel[(triton.cdiv(size, BLOCK),)](
            current,
            alpha,
            beta,
            threshold,
            v,
            i_syn,
            out,
            None if fired is None else fired.view(torch.uint8),
            v_rows,
            i_syn_rows,
            n_steps,
            size,
            n,
            GAIN=gain,
            MODEL=model,
            RESET=reset,
            BLOCK=BLOCK,
            enable_fp_fusion=False,
        )


def backward(
    v_rows: Tensor | None,
    i_syn_rows: Tensor | None,
    d_out: Tensor,
    alpha: Tensor | None,
    beta: Tensor,
    threshold: Tensor | None,
    grad_threshold: Tensor | None,
    delta: Tensor,
    d_i: Tensor | None,
    d_current: Tensor,
    d_bias: Tensor | None,
    d_alpha: Tensor | None,
    d_beta: Tensor | None,
    d_threshold: Tensor | None,
    model: int,
    reset: int,
    detach_reset: bool,
    surrogate: int,
    slope: float,
    gain: float,
) -> None:
    """The gradient of `forward`, from `d_out` [T, B, N]; writes d_current, adds to the sums."""
    n_steps, n_samples, n = d_out.shape
    size = n_samples * n
    if size == 0:
        return
    with device_of(d_out):
        kernels.backward_kernel[(triton.cdiv(size, BLOCK),)](
            v_rows,
            i_syn_rows,
            d_out,
            alpha,
            beta,
            threshold,
            grad_threshold,
            delta,
            d_i,
            d_current,
            d_bias,
            d_alpha,
            d_beta,
            d_threshold,
            n_steps,
            size,
            n,
            GAIN=gain,
            SLOPE=slope,
            MODEL=model,
            RESET=reset,
            KIND=surrogate,
            DETACH=detach_reset,
            BLOCK=BLOCK,
            enable_fp_fusion=False,
        )


def _nothing(*args: object) -> None:
    """Does nothing: meta tensors have only shapes, and these do not change."""


for name, function in (("dense_forward", forward), ("dense_backward", backward)):
    _library.impl(name, function, "CUDA")
    _library.impl(name, function, "CPU")
    _library.impl(name, _nothing, "Meta")


def device_of(x: Tensor) -> torch.cuda.device:
    """Context that selects the device of `x`, on which kernels then launch."""
    return torch.cuda.device(x.device if x.is_cuda else -1)  # -1: changes nothing
