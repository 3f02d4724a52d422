"""The dynamics of the mode "fused" in Triton: host/src/dense/dense_kernels.cpp for CUDA.

One program takes BLOCK elements of [B, N] through all steps of a chunk; potentials, synaptic currents and gradients of
the state stay in registers. `at` is an element's index within a step, `row` its index within [T, B, N]. Currents, spikes
and gradients may be bfloat16 or float16; state is float32 (or float64). Multiply-adds must not be contracted (the caller
passes enable_fp_fusion=False), because a spike is a comparison.

If TRITON_INTERPRET=1 is set before the first import, the kernels run in NumPy on CPU tensors.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Constants of host/src/cpu/layer.h and codelets/surrogate.h, as the kernels' compile-time arguments:
# model  as on_cuda.MODELS numbers them      reset  0 subtract, 1 subtract then decay, 2 zero, 3 none
# kind   0 fast sigmoid, 1 straight-through, 2 sigmoid, 3 atan, 4 triangle, 5 boxcar, 6 exponential


@triton.jit
def _rho(v, beta, theta, RESET: tl.constexpr):
    """The part of v[t] that comes from v[t-1]."""
    if RESET == 0:
        kept = beta * v - tl.where(v > theta, theta, 0.0)
    elif RESET == 1:
        kept = beta * (v - tl.where(v > theta, theta, 0.0))
    elif RESET == 2:
        kept = beta * tl.where(v > theta, 0.0, v)
    else:
        kept = beta * v
    return kept


@triton.jit
def _derivative(x, SLOPE: tl.constexpr, KIND: tl.constexpr):
    """σ'(x)."""
    if KIND == 0:
        z = SLOPE * tl.abs(x) + 1.0
        y = 1.0 / (z * z)
    elif KIND == 2:
        e = tl.exp(-SLOPE * tl.abs(x))  # σ' is even; this side cannot overflow
        y = SLOPE * e / ((1.0 + e) * (1.0 + e))
    elif KIND == 3:
        z = (SLOPE * 1.5707963267948966) * x
        y = (SLOPE * 0.5) / (1.0 + z * z)
    elif KIND == 4:
        y = tl.maximum(1.0 - SLOPE * tl.abs(x), 0.0)
    elif KIND == 5:
        y = tl.where(tl.abs(x) < 0.5 / SLOPE, SLOPE, 0.0 * x)
    elif KIND == 6:
        y = tl.exp(-SLOPE * tl.abs(x))
    else:
        y = 0.0 * x + 1.0
    return y


@triton.jit(do_not_specialize=["n_steps"])
def forward_kernel(
    current,  # [T, B, N]
    alpha,  # [N] each; None if the model has none
    beta,
    theta,
    v_state,  # [B, N], updated
    i_state,  # the same for the synaptic current, else None
    out,  # [T, B, N] or None: spikes as 0 and 1, LI: potentials
    fired,  # uint8[T, B, N] or None
    v_rows,  # [T + 1, B, N] or None: row 0 is the state before the chunk
    i_rows,  # the same for the synaptic current
    n_steps,
    size,  # B·N
    n,
    GAIN: tl.constexpr,
    MODEL: tl.constexpr,
    RESET: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = at < size
    k = at % n
    b = tl.load(beta + k, mask=here, other=0.0)
    v = tl.load(v_state + at, mask=here, other=0.0)
    if MODEL != 2:
        th = tl.load(theta + k, mask=here, other=0.0)
    if MODEL == 1:
        a = tl.load(alpha + k, mask=here, other=0.0)
        i_syn = tl.load(i_state + at, mask=here, other=0.0)
        if i_rows is not None:
            tl.store(i_rows + at, i_syn, mask=here)
    if v_rows is not None:
        tl.store(v_rows + at, v, mask=here)
    row = at
    end = n_steps.to(tl.int64) * size
    i_next = tl.load(current + row, mask=here, other=0.0)
    for _ in range(n_steps):
        i = i_next.to(v.dtype)
        # load the next step's current during this step's work
        i_next = tl.load(current + row + size, mask=here & (row + size < end), other=0.0)
        if MODEL == 1:
            i_syn = a * i_syn + i
            i = i_syn
            if i_rows is not None:
                tl.store(i_rows + row + size, i_syn, mask=here)
        if MODEL == 2:
            v = b * v + GAIN * i
            if out is not None:
                tl.store(out + row, v, mask=here)
        else:
            v = _rho(v, b, th, RESET) + GAIN * i
            if out is not None:
                tl.store(out + row, (v > th).to(v.dtype), mask=here)
            if fired is not None:
                tl.store(fired + row, (v > th).to(tl.uint8), mask=here)
        if v_rows is not None:
            tl.store(v_rows + row + size, v, mask=here)
        row += size
    tl.store(v_state + at, v, mask=here)
    if MODEL == 1:
        tl.store(i_state + at, i_syn, mask=here)


@triton.jit(do_not_specialize=["n_steps"])
def backward_kernel(
    v_rows,  # [T + 1, B, N] as the forward pass wrote them; LI without d_beta: None
    i_rows,  # for d_alpha, else None
    d_out,  # [T, B, N]
    alpha,
    beta,
    theta,
    theta_grad,
    delta_state,  # [B, N], updated: δ
    d_i_state,  # [B, N], updated: d_current of a model with a synaptic current, else None
    d_current,  # [T, B, N]
    d_bias,  # [B, N] each, added to; None if not needed
    d_alpha,
    d_beta,
    d_threshold,
    n_steps,
    size,
    n,
    GAIN: tl.constexpr,
    SLOPE: tl.constexpr,
    MODEL: tl.constexpr,
    RESET: tl.constexpr,
    KIND: tl.constexpr,
    DETACH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = at < size
    k = at % n
    b = tl.load(beta + k, mask=here, other=0.0)
    delta = tl.load(delta_state + at, mask=here, other=0.0)
    by_bias, by_alpha, by_beta, by_theta = 0.0 * delta, 0.0 * delta, 0.0 * delta, 0.0 * delta
    row = at + (n_steps.to(tl.int64) - 1) * size
    if MODEL != 2:
        th = tl.load(theta + k, mask=here, other=0.0)
        th_grad = tl.load(theta_grad + k, mask=here, other=0.0)
        v = tl.load(v_rows + row + size, mask=here, other=0.0)
    if MODEL == 1:
        a = tl.load(alpha + k, mask=here, other=0.0)
        d_i = tl.load(d_i_state + at, mask=here, other=0.0)
    for _ in range(n_steps):
        q = tl.load(d_out + row, mask=here, other=0.0).to(delta.dtype)
        if v_rows is not None:
            before = tl.load(v_rows + row, mask=here, other=0.0)
        if MODEL == 2:
            delta = b * delta + q
            if d_beta is not None:
                by_beta += delta * before
        else:
            spike = v > th
            listed = (v > th_grad) | spike
            sigma = tl.where(listed, _derivative(v - th, SLOPE, KIND), 0.0)
            gamma = b + 0.0 * v  # ∂ρ/∂v and ∂ρ/∂s
            by_spike = 0.0 * v
            if RESET == 2:
                gamma = tl.where(spike, 0.0, b)
                by_spike = -b * v
            elif RESET == 0:
                by_spike = -th
            elif RESET == 1:
                by_spike = -b * th
            q = sigma * q
            if DETACH:
                by_theta -= q
                delta = gamma * delta + q
            else:
                from_reset = by_spike * sigma
                by_theta -= q + from_reset * delta
                delta = (gamma + from_reset) * delta + q
            spike_before = before > th
            if RESET == 0:
                by_theta -= tl.where(spike_before, delta, 0.0)
            elif RESET == 1:
                by_theta -= tl.where(spike_before, b * delta, 0.0)
            if d_beta is not None:
                if RESET == 1:
                    by_beta += delta * (before - tl.where(spike_before, th, 0.0))
                elif RESET == 2:
                    by_beta += delta * tl.where(spike_before, 0.0, before)
                else:
                    by_beta += delta * before
            v = before
        d = GAIN * delta
        if MODEL == 1:
            d_i = a * d_i + d
            d = d_i
            if d_alpha is not None:
                by_alpha += d * tl.load(i_rows + row, mask=here, other=0.0)
        tl.store(d_current + row, d, mask=here)
        by_bias += d
        row -= size
    tl.store(delta_state + at, delta, mask=here)
    if MODEL == 1:
        tl.store(d_i_state + at, d_i, mask=here)
    if d_bias is not None:
        tl.store(d_bias + at, tl.load(d_bias + at, mask=here, other=0.0) + by_bias, mask=here)
    if d_alpha is not None:
        tl.store(d_alpha + at, tl.load(d_alpha + at, mask=here, other=0.0) + by_alpha, mask=here)
    if d_beta is not None:
        tl.store(d_beta + at, tl.load(d_beta + at, mask=here, other=0.0) + by_beta, mask=here)
    if d_threshold is not None:
        tl.store(d_threshold + at, tl.load(d_threshold + at, mask=here, other=0.0) + by_theta, mask=here)
