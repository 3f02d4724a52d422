"""Whether hooks watch modules: then each layer of a network runs as a separate chain."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.nn.modules import module as torch_modules

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOOKS_EVERYWHERE = [vars(torch_modules)[f"_global{name}"] for name in _HOOKS]


def any_hooks(modules: Iterable[Any]) -> bool:
    """Whether any of these modules has a hook or a subclass's own `forward`: then each runs by itself."""
    return any(_HOOKS_EVERYWHERE) or any(
        any(vars(module)[name] for name in _HOOKS) or _has_own_forward(module) for module in modules
    )


def _has_own_forward(module: Any) -> bool:
    ours: Any = next(k for k in type(module).__mro__ if k.__module__.startswith("sparsesnn."))
    return "forward" in vars(module) or type(module).forward is not ours.forward
