"""A function call that PyTorch's compiler leaves alone. Imported only while it compiles, because that takes seconds."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

_REASON = "the spike lists and the engine of sparsesnn are not operations of PyTorch; leave fullgraph=True out"
# PyTorch 2.6 takes no reason
_reason = {"reason": _REASON} if "reason" in inspect.signature(torch.compiler.disable).parameters else {}


def _call(function: Callable[..., Any], *values: Any, **by_name: Any) -> Any:
    return function(*values, **by_name)


#: `call(function, *values, **by_name)` calls the function
call: Callable[..., Any] = torch.compiler.disable(_call, **_reason)
