"""The dynamics of the mode "fused" in Triton: host/src/dense/dense_kernels.cpp for CUDA, codelets/neuron.h for the formulas.

One program takes BLOCK elements of [B, N] through all steps of a chunk; states, gradients of the states and sums stay in
registers. `at` is an element's index within a step, `row` its index within [T, B, N]. Currents, spikes and gradients may be
bfloat16 or float16; state is float32 (or float64). Spikes are stored as bytes, or as numbers that a product reads.
Multiply-adds must not be contracted (the caller passes enable_fp_fusion=False), and sums have the order of
codelets/neuron.h, because a spike is a comparison.

The entries of a neuron are a tuple `p`; `AT`, a compile-time constant, has their places in it. An absent entry costs nothing.
States, their gradients and their arrays are tuples, one for each state.

If TRITON_INTERPRET=1 is set before the first import, the kernels run in NumPy on CPU tensors.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl


class Places(NamedTuple):
    """The places of the entries of a shape (codelets/neuron.h) in its table; None for an absent entry.

    Args:
        n: number of entries in the table.
        A, R: S rows of S places.
        u, r, f, B, c: S places. u = r + f; r is that of u in a row without f.
        one: for each row whether B is 1, without an entry.
        threshold: None for a readout, which has no entries of R, u, r and f either.
        in_order: whether rows run in order, and the states after the step are read right of the diagonal.
    """

    n: int
    A: tuple[tuple[int | None, ...], ...]
    R: tuple[tuple[int | None, ...], ...]
    u: tuple[int | None, ...]
    r: tuple[int | None, ...]
    f: tuple[int | None, ...]
    B: tuple[int | None, ...]
    c: tuple[int | None, ...]
    one: tuple[bool, ...]
    threshold: int | None
    in_order: bool


# ---- tuples ------------------------------------------------------------------------------------------------------------


@triton.jit
def _load_all(pointers, at, here):
    """One block of each array."""
    blocks = ()
    for k in tl.static_range(len(pointers)):
        blocks += (tl.load(pointers[k] + at, mask=here, other=0.0),)
    return blocks


@triton.jit
def _store_all(pointers, at, blocks, here):
    for k in tl.static_range(len(pointers)):
        tl.store(pointers[k] + at, blocks[k], mask=here)


@triton.jit
def _load_table(table, k, n, here, N_ENTRIES: tl.constexpr):
    """The entries of the neurons k, from a table [N_ENTRIES, n]."""
    entries = ()
    for q in tl.static_range(N_ENTRIES):
        entries += (tl.load(table + q * n + k, mask=here, other=0.0),)
    return entries


@triton.jit
def _replace(values, r: tl.constexpr, x):
    """`values` with x in the place r."""
    replaced = ()
    for k in tl.static_range(len(values)):
        replaced += ((x if k == r else values[k]),)
    return replaced


@triton.jit
def _add(x, y):
    """x + y, where None is absent; not of both: Triton 3.4 cannot return that."""
    return y if x is None else (x if y is None else x + y)


# ---- a step and its adjoint --------------------------------------------------------------------------------------------


@triton.jit
def _read(before, now, r: tl.constexpr, AT: tl.constexpr):
    """The states as A[r] reads them: right of the diagonal those after the step, if rows run in order."""
    z = ()
    for k in tl.static_range(len(AT.A)):
        z += ((now[k] if AT.in_order and k > r else before[k]),)
    return z


@triton.jit
def _jump(p, z, r: tl.constexpr, AT: tl.constexpr):
    """R[r]·z + u[r]; None if a spike does nothing in row r."""
    x = None
    for k in tl.static_range(len(AT.A)):
        if AT.R[r][k] is not None:
            x = _add(x, p[AT.R[r][k]] * z[k])
    if AT.u[r] is not None:
        x = _add(x, p[AT.u[r]])
    return x


@triton.jit
def _row(p, z, before, fired, i, r: tl.constexpr, AT: tl.constexpr, ONE: tl.constexpr):
    """A[r][r]·z[r] + [fired]·(R[r]·z + u[r]) + A[r][k]·z[k], k ≠ r ascending + B[r]·i + c[r]; ONE: B[r] is 1."""
    x = p[AT.A[r][r]] * z[r]
    jump = _jump(p, before, r, AT)
    if jump is not None:
        x = x + tl.where(fired, jump, 0.0)
    for k in tl.static_range(len(AT.A)):
        if k != r and AT.A[r][k] is not None:
            x = x + p[AT.A[r][k]] * z[k]
    if ONE:
        x = x + i
    if AT.B[r] is not None:
        x = x + p[AT.B[r]] * i
    if AT.c[r] is not None:
        x = x + p[AT.c[r]]
    return x


@triton.jit
def _step(z, p, fired, i, AT: tl.constexpr):
    """The states after a step: rows from last to first. `fired` in the step before."""
    now = z
    for r in tl.static_range(len(AT.A) - 1, -1, -1):
        now = _replace(now, r, _row(p, _read(z, now, r, AT), z, fired, i, r, AT, AT.one[r]))
    return now


@triton.jit
def _through_reset(p, x, sigma, r: tl.constexpr, AT: tl.constexpr):
    """(R[r][0]·x + r[r])·σ', the derivative of row r by x through its reset; None if it has none."""
    by_spike = None
    if AT.R[r][0] is not None:
        by_spike = p[AT.R[r][0]] * x
    if AT.r[r] is not None:
        by_spike = _add(by_spike, p[AT.r[r]])
    if by_spike is not None:
        by_spike = by_spike * sigma
    return by_spike


@triton.jit
def _pull(d, p, fired, sigma, q, x, AT: tl.constexpr, DETACH: tl.constexpr):
    """d ← (A + s·R + a·σ'·(R·z + r)·e₀ᵀ)ᵀ d + e₀·(q + σ'·f·d) and the part through σ', of which -1 times is the direct part of
    ∂L/∂θ; a is 0 with DETACH, else 1. A readout has q alone."""
    after, by_reset, by_feed = d, None, None
    for r in tl.static_range(len(AT.A)):
        if AT.f[r] is not None:
            by_feed = _add(by_feed, p[AT.f[r]] * after[r])
    if by_feed is not None:
        by_feed = sigma * by_feed
    for k in tl.static_range(len(AT.A)):
        # the term of row k comes first; d has the gradients of this step in the rows before k
        own, others = None, ()
        for r in tl.static_range(len(AT.A)):
            m = None
            if AT.A[r][k] is not None:
                m = p[AT.A[r][k]]
            jump = None
            if AT.R[r][k] is not None:
                jump = tl.where(fired, p[AT.R[r][k]], 0.0)
                if not (AT.in_order and k > r):
                    m = _add(m, jump)
            if k == 0 and AT.threshold is not None and not DETACH:
                from_reset = _through_reset(p, x, sigma, r, AT)
                if from_reset is not None:
                    by_reset = _add(by_reset, from_reset * after[r])
                    m = _add(m, from_reset)
            if m is not None:
                term = m * (d[r] if AT.in_order else after[r])
                if r == k:
                    own = term
                else:
                    others += (term,)
            if jump is not None and AT.in_order and k > r:  # a reset reads the states before the step
                others += (jump * after[r],)
        for j in tl.static_range(len(others)):
            own = own + others[j]
        d = _replace(d, k, own + _add(q, by_feed) if k == 0 else own)
    return d, _add(_add(q, by_reset), by_feed)


@triton.jit
def _d_current(d, p, AT: tl.constexpr):
    """∂L/∂i = Σ B[r]·d[r], of the step whose ∂L/∂z is d."""
    total = None
    for r in tl.static_range(len(AT.A)):
        if AT.one[r]:
            total = _add(total, d[r])
        if AT.B[r] is not None:
            total = _add(total, p[AT.B[r]] * d[r])
    return total


@triton.jit
def _by_parameter(d, by, before, now, fired, i, AT: tl.constexpr):
    """∂L/∂p = Σ d[r]·∂z[r]/∂p of the step whose ∂L/∂z is d, without θ's part in s = [x > θ]; `by`: the entries differentiated by p."""
    total = None
    for r in tl.static_range(len(AT.A)):
        total = _add(total, d[r] * _row(by, _read(before, now, r, AT), before, fired, i, r, AT, False))
    return total


@triton.jit
def _derivative(x, SLOPE: tl.constexpr, KIND: tl.constexpr):
    """σ'(x). KIND: 0 fast sigmoid, 1 straight-through, 2 sigmoid, 3 atan, 4 triangle, 5 boxcar, 6 exponential."""
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


# ---- the kernels -------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["n_steps", "fresh"])
def forward_kernel(
    current,  # [T, B, N]
    entries,  # [E, N]
    state,  # [B, N] each, updated
    rows,  # [T + 1, B, N] each, or none: row 0 is the state before the chunk
    out,  # [T, B, N] or None: spikes as 0 and 1, of a readout potentials
    fired_out,  # [T, B, N] or None: spikes as 0 and 1, uint8 or a float
    fresh,  # 1: no neuron has fired before the first step
    n_steps,
    size,  # B·N
    n,
    AT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = at < size
    p = _load_table(entries, at % n, n, here, AT.n)
    z = _load_all(state, at, here)
    _store_all(rows, at, z, here)
    fired = here
    if AT.threshold is not None:
        fired = (z[0] > p[AT.threshold]) & (fresh == 0)
    row = at
    end = n_steps.to(tl.int64) * size
    i_next = tl.load(current + row, mask=here, other=0.0)
    for _ in range(n_steps):
        i = i_next.to(z[0].dtype)
        # load the next step's current during this step's work
        i_next = tl.load(current + row + size, mask=here & (row + size < end), other=0.0)
        z = _step(z, p, fired, i, AT)
        if AT.threshold is not None:
            fired = z[0] > p[AT.threshold]
            if out is not None:
                tl.store(out + row, fired.to(z[0].dtype), mask=here)
            if fired_out is not None:
                tl.store(fired_out + row, fired.to(z[0].dtype).to(fired_out.dtype.element_ty), mask=here)
        elif out is not None:
            tl.store(out + row, z[0], mask=here)
        row += size
        _store_all(rows, row, z, here)
    _store_all(state, at, z, here)


@triton.jit(do_not_specialize=["n_steps", "fresh"])
def backward_kernel(
    rows,  # [T + 1, B, N] each, as the forward pass wrote them: all states, without d_parameters x alone, of a readout none
    current,  # [T, B, N], for d_parameters, else None
    d_out,  # [T, B, N]
    entries,  # [E, N]
    derivatives,  # [Q, E, N], of the entries by each parameter, or None
    grad_threshold,  # [N]; None for a readout
    d_state,  # [B, N] each, updated
    d_current,  # [T, B, N]
    d_bias,  # [B, N] or None, added to
    d_parameters,  # [B, N] each, for each of Q parameters, added to
    fresh,  # 1: no neuron has fired before the first step
    n_steps,
    size,
    n,
    AT: tl.constexpr,
    SLOPE: tl.constexpr,
    KIND: tl.constexpr,
    DETACH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = at < size
    p = _load_table(entries, at % n, n, here, AT.n)
    d = _load_all(d_state, at, here)
    sums = _load_all(d_parameters, at, here)
    by = ()
    for parameter in tl.static_range(len(sums)):
        by += (_load_table(derivatives + parameter * AT.n * n, at % n, n, here, AT.n),)
    if d_bias is not None:
        by_bias = tl.load(d_bias + at, mask=here, other=0.0)
    if grad_threshold is not None:
        listed_above = tl.load(grad_threshold + at % n, mask=here, other=0.0)
    row = at + (n_steps.to(tl.int64) - 1) * size
    now = _load_all(rows, row + size, here)
    for step in range(n_steps):
        q = tl.load(d_out + row, mask=here, other=0.0).to(d[0].dtype)
        before = _load_all(rows, row, here)
        if AT.threshold is None:
            d, by_spike = _pull(d, p, here, None, q, None, AT, DETACH)
            fired_before = here
        else:
            x, theta = now[0], p[AT.threshold]
            fired = x > theta
            sigma = tl.where((x > listed_above) | fired, _derivative(x - theta, SLOPE, KIND), 0.0)
            d, by_spike = _pull(d, p, fired, sigma, sigma * q, x, AT, DETACH)
            fired_before = (before[0] > theta) & ((fresh == 0) | (step + 1 < n_steps))
        i = _d_current(d, p, AT)
        tl.store(d_current + row, i, mask=here)
        if d_bias is not None:
            by_bias += i
        if len(sums) > 0:
            i = tl.load(current + row, mask=here, other=0.0).to(d[0].dtype)
        for parameter in tl.static_range(len(sums)):
            total = sums[parameter] + _by_parameter(d, by[parameter], before, now, fired_before, i, AT)
            if AT.threshold is not None:
                total -= by_spike * by[parameter][AT.threshold]
            sums = _replace(sums, parameter, total)
        now = before
        row -= size
    _store_all(d_state, at, d, here)
    _store_all(d_parameters, at, sums, here)
    if d_bias is not None:
        tl.store(d_bias + at, by_bias, mask=here)
