"""PyTorch's operations while some work runs: kept to be counted, or to be run again, as a CUDA graph would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

#: operations that look at numbers, for which the host waits
WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "unique", "equal", "item")
#: operations without work on a device
FREE = ("empty", "new_empty", "empty_like", "empty_strided", "detach", "lift_fresh")


def name_of(operation: Any) -> str:
    return str(operation).split(".")[1]


def is_view(operation: Any) -> bool:
    """Whether its result is another look at the memory of an argument, which it does not change."""
    return any(x.alias_info is not None and not x.alias_info.is_write for x in operation._schema.returns)


def tensors_in(x: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(x) if isinstance(leaf, Tensor)]


class Recording(TorchDispatchMode):
    """A CUDA graph on CPU tensors: runs work once, and keeps its operations; a call runs them again, without Python, on the tensors and numbers of
    the first time. An operation for which the host would wait for a GPU is an error.
    """

    active: Recording | None = None

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, Any]] = []
        self.has_run = False
        Recording.active = self
        try:
            with self:
                work()
        finally:
            Recording.active = None

    @classmethod
    def run(cls, kernel: Callable[[], None]) -> None:
        """Runs a kernel that is not an operation of PyTorch, and keeps it."""
        kernel()
        if cls.active:
            cls.active.operations.append((kernel, (), {}, None))

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        assert name_of(operation) not in WAITS, f"{operation} waits for the device"
        masks = [x for x in tensors_in(args[1:]) if x.dtype in (torch.bool, torch.uint8)]
        assert not (name_of(operation) in ("index", "index_put_") and masks), f"{operation} with a mask waits"
        out = operation(*args, **kwargs)
        if not is_view(operation) and name_of(operation) not in FREE:
            self.operations.append((operation, args, kwargs, out))
        return out

    @torch.no_grad()
    def __call__(self) -> None:
        if not self.has_run:  # a graph does not run while it is recorded; this one has
            self.has_run = True
            return
        for operation, args, kwargs, out in self.operations:
            again = operation(*args, **kwargs)
            for mine, new in zip(tensors_in(out), tensors_in(again), strict=True):
                if mine is not new and mine.data_ptr() != new.data_ptr():
                    mine.copy_(new)


class Operations(TorchDispatchMode):
    """Keeps the operations of some work."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Any, Any, Any]] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = operation(*args, **(kwargs or {}))
        self.seen.append((operation, args, out))
        return out

    def on(self, device: str) -> list[tuple[Any, Any, Any]]:
        """Operations with work on a device."""
        return [
            (operation, args, out)
            for operation, args, out in self.seen
            if device in {x.device.type for x in tensors_in((args, out))}
            and not is_view(operation)
            and name_of(operation) not in FREE
        ]

    @property
    def between(self) -> list[tuple[Any, Any, Any]]:
        """Those with tensors of both devices, except numbers that become arguments of a kernel."""
        return [x for x in self.on("meta") if {t.device.type for t in tensors_in(x[1:]) if t.ndim} == {"cpu", "meta"}]
