"""The Triton kernels of the mode "fused" as PyTorch operators: `torch.ops.sparsesnn.dense_forward` and `…_backward`.

They write into the given tensors, as `_core.dense_forward` does; `triton_kernels.py` explains each tensor. As operators
they can be traced, profiled by name and captured into CUDA graphs. On CPU tensors they run only in Triton's interpreter
(TRITON_INTERPRET=1 before the first import), which the tests use to check their results.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from sparsesnn.engines.dense import triton_kernels as kernels

#: elements of [B, N] per program: a power of two; small, because a step of a small network has few elements
BLOCK = 128

_LAYOUT = "str[] names, str[] ones, bool fires, bool in_order"

_library = torch.library.Library("sparsesnn", "DEF")
_library.define(
    "dense_forward(Tensor current, Tensor entries, Tensor(a!)[] state, Tensor(b!)[] rows, Tensor(c!)? out, Tensor(d!)? fired, "
    f"bool fresh, {_LAYOUT}) -> ()"
)
_library.define(
    "dense_backward(Tensor[] rows, Tensor? current, Tensor d_out, Tensor entries, Tensor? derivatives, Tensor? grad_threshold, "
    "Tensor(a!)[] d_state, Tensor(b!) d_current, Tensor(c!)? d_bias, Tensor(d!)[] d_parameters, bool fresh, "
    f"{_LAYOUT}, bool detach_reset, int surrogate, float slope) -> ()"
)


@functools.lru_cache(maxsize=1024)
def places_of(
    names: tuple[str, ...], ones: tuple[str, ...], n_states: int, fires: bool, in_order: bool
) -> kernels.Places:
    """The places of a shape's entries, from `sparsesnn.engines.entries.Shape`."""
    found = {name: place for place, name in enumerate(names) if fires or name[0] not in "Rurf"}
    states = range(n_states)

    def column(name: str) -> tuple[int | None, ...]:
        return tuple(found.get(f"{name}{r}") for r in states)

    def square(name: str) -> tuple[tuple[int | None, ...], ...]:
        return tuple(tuple(found.get(f"{name}{r}{k}") for k in states) for r in states)

    u, f = column("u"), column("f")
    return kernels.Places(
        n=len(names),
        A=square("A"),
        R=square("R"),
        u=u,
        r=tuple(found.get(f"r{r}", u[r]) for r in states),
        f=f,
        B=column("B"),
        c=column("c"),
        one=tuple(f"B{r}" in ones for r in states),
        threshold=found.get("threshold") if fires else None,
        in_order=in_order,
    )


def forward(
    current: Tensor,
    entries: Tensor,
    state: Sequence[Tensor],
    rows: Sequence[Tensor],
    out: Tensor | None,
    fired: Tensor | None,
    fresh: bool,
    names: Sequence[str],
    ones: Sequence[str],
    fires: bool,
    in_order: bool,
) -> None:
    """Advances every neuron through the steps of `current` [T, B, N]."""
    n_steps, n_samples, n = current.shape
    size = n_samples * n
    if size == 0:
        return
    with device_of(current):
        kernels.forward_kernel[(triton.cdiv(size, BLOCK),)](
            current,
            entries,
            tuple(state),
            tuple(rows),
            out,
            fired.view(torch.uint8) if fired is not None and fired.dtype == torch.bool else fired,
            int(fresh),
            n_steps,
            size,
            n,
            AT=places_of(tuple(names), tuple(ones), len(state), fires, in_order),
            BLOCK=BLOCK,
            enable_fp_fusion=False,
        )


def backward(
    rows: Sequence[Tensor],
    current: Tensor | None,
    d_out: Tensor,
    entries: Tensor,
    derivatives: Tensor | None,
    grad_threshold: Tensor | None,
    d_state: Sequence[Tensor],
    d_current: Tensor,
    d_bias: Tensor | None,
    d_parameters: Sequence[Tensor],
    fresh: bool,
    names: Sequence[str],
    ones: Sequence[str],
    fires: bool,
    in_order: bool,
    detach_reset: bool,
    surrogate: int,
    slope: float,
) -> None:
    """The gradient of `forward`, from `d_out` [T, B, N]; writes d_current, adds to the sums."""
    n_steps, n_samples, n = d_out.shape
    size = n_samples * n
    if size == 0:
        return
    with device_of(d_out):
        kernels.backward_kernel[(triton.cdiv(size, BLOCK),)](
            tuple(rows),
            current,
            d_out,
            entries,
            derivatives,
            grad_threshold,
            tuple(d_state),
            d_current,
            d_bias,
            tuple(d_parameters),
            int(fresh),
            n_steps,
            size,
            n,
            AT=places_of(tuple(names), tuple(ones), len(d_state), fires, in_order),
            SLOPE=slope,
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
