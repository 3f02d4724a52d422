"""PyTorch's tracers and the engine: the compiler calls it, other tracers are refused, and the profiler shows its passes by name."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
import torch.autograd.profiler as profiler

from sparsesnn.errors import TraceError

P = ParamSpec("P")
T = TypeVar("T")

_NOTHING = contextlib.nullcontext()


def untraced(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator: `torch.compile` does not look inside `function`; the compiled program calls it, a graph break.

    A method is still traced if its object's `is_traceable` is true.
    """

    @functools.wraps(function)
    def called(*values: P.args, **by_name: P.kwargs) -> T:
        if torch.compiler.is_compiling() and not getattr(values[0] if values else None, "is_traceable", False):
            from sparsesnn import uncompiled  # imports PyTorch's compiler, which takes seconds

            result: T = uncompiled.call(function, *values, **by_name)
            return result
        return function(*values, **by_name)

    return called


def check_tracers(who: str) -> None:
    """`TraceError` while `torch.jit.trace` or `torch.export` records PyTorch's operations; the engine's are none."""
    if torch._C._get_tracing_state() is not None:
        raise TraceError(_refusal(who, "torch.jit.trace"))
    if torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling():
        raise TraceError(_refusal(who, "torch.export"))


class Unscriptable:
    """Base of modules that `torch.jit.script` refuses in one sentence."""

    def __prepare_scriptable__(self) -> None:
        raise TraceError(_refusal(type(self).__name__, "torch.jit.script"))


def _refusal(who: str, tracer: str) -> str:
    return (
        f"{who} cannot be recorded by {tracer}: the number of spikes depends on the data, and the engine is not an operation of PyTorch. To run "
        "the network elsewhere, sparsesnn.onnx.export writes one time step as ONNX, and sparsesnn.nir.write a NIR graph; "
        "torch.compile works, and calls the engine"
    )


def recorded(name: str) -> contextlib.AbstractContextManager[Any]:
    """Context that PyTorch's profiler shows under `name`; without a running profiler it does nothing."""
    return profiler.record_function(name) if profiler._is_profiler_enabled else _NOTHING
