"""Labels that trace each number of a tensor back to a number of a module's output.

While a user's `forward` is traced, every tensor that a known module has made is accompanied by labels, whole numbers in the same
shape. A view of the tensor is applied to the labels too, so that no view needs to be understood: time and batch axes in any order, maps
that are flattened, steps that are stacked. A sum has the labels of each of its terms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from sparsesnn.conversion.lines import own_line

if TYPE_CHECKING:
    from sparsesnn.conversion.leaves import Call

#: the label of a zero that no module made
ZERO = -1

#: functions that move numbers, and change none
_VIEWS = frozenset(
    [
        "view",
        "reshape",
        "flatten",
        "unflatten",
        "squeeze",
        "unsqueeze",
        "transpose",
        "swapaxes",
        "swapdims",
        "permute",
        "movedim",
        "moveaxis",
        "t",
        "contiguous",
        "clone",
        "__getitem__",
        "select",
        "narrow",
        "index_select",
        "unbind",
        "split",
        "chunk",
        "stack",
        "cat",
        "concat",
        "concatenate",
        "vstack",
        "hstack",
        "T",
        "mT",
        "view_as",
        "reshape_as",
        "expand",
        "expand_as",
    ]
)
#: functions that return the numbers of their first argument
_SAME = frozenset(["to", "float", "type_as", "requires_grad_", "type", "cpu"])
#: functions that keep all numbers in eval mode
_DROPOUTS = frozenset(["dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"])
_SUMS = frozenset(["add", "__add__", "__radd__", "__iadd__", "add_"])
#: properties and methods that read no numbers
_SHAPES = frozenset(
    [
        "shape",
        "size",
        "dim",
        "ndim",
        "numel",
        "nelement",
        "dtype",
        "device",
        "layout",
        "is_sparse",
        "requires_grad",
        "grad_fn",
        "is_leaf",
        "__len__",
        "__hash__",
        "stride",
        "names",
        "is_floating_point",
        "is_contiguous",
        "retain_grad",
        "register_hook",
        "grad",
        "_backward_hooks",
        "is_cuda",
        "is_complex",
        "element_size",
        "new_zeros",
        "new_ones",
        "new_empty",
        "zeros_like",
        "ones_like",
        "empty_like",
        "full_like",
        "new_full",
        "rand_like",
        "randn_like",
        "itemsize",
        "is_meta",
        "is_nested",
        "data_ptr",
    ]
)


@dataclass(eq=False)
class Port:
    """One tensor of a module's output in one call; `first` is the label of its first number."""

    call: Call
    name: str
    shape: torch.Size
    first: int


@dataclass
class Signal:
    """The origin of a tensor's numbers.

    Args:
        terms: labels int64 in the tensor's shape, of each term of a sum; empty if `problem` is set.
        ports: all ports that the tensor depends on.
        problem: the function that made something else than a view or a sum, and its line.
    """

    terms: tuple[Tensor, ...]
    ports: frozenset[Port]
    problem: str = ""


class Tracing(TorchFunctionMode):
    """Follows the tensors of known modules through a user's `forward`.

    Attributes:
        ports: of all calls, in ascending order of `first`.
        needed: ports whose numbers the user's own lines read.
        joined: the ports of the tensors of each sum and each `torch.cat`.
        skips_dropout: whether spikes passed a dropout in eval mode.
        pool: makes a known module of a function that pools, and labels its output: its name and arguments, the input and the output.
    """

    def __init__(self, pool: Callable[[str, Any, Any, Tensor, Tensor], bool]) -> None:
        super().__init__()
        self.pool = pool
        self.skips_dropout = False
        self.joined: set[frozenset[frozenset[Port]]] = set()
        self.paused = False
        self.ports: list[Port] = []
        self.needed: set[Port] = set()
        self._signals: dict[int, tuple[Tensor, Signal]] = {}
        self._next = 0

    def label(self, call: Call, name: str, made: Tensor) -> Port:
        """Registers a module's output."""
        port = Port(call, name, made.shape, self._next)
        labels = torch.arange(self._next, self._next + made.numel()).view(made.shape)
        self._next += made.numel()
        self.ports.append(port)
        known = self.signal(made)
        if known and any(other.call is call for other in known.ports):  # a potential that is returned as state too
            return next(iter(known.ports))
        self._keep(made, Signal((labels,), frozenset([port])))
        return port

    def signal(self, x: Any) -> Signal | None:
        """The signal of a tensor; None if no known module has a part in it."""
        found = self._signals.get(id(x))
        return found[1] if found else None

    def decode(self, labels: Tensor) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """The index in `ports` and the position in that port of each label; both -1 for `ZERO`."""
        numbers = labels.numpy()
        first = np.array([port.first for port in self.ports])
        index = np.searchsorted(first, numbers, side="right") - 1
        return index, np.where(numbers >= 0, numbers - first[index], -1)

    def need(self, x: Any) -> None:
        """The numbers of these tensors are read: by a caller, or by a user's own line."""
        for tensor in tensors_in(x):
            if found := self.signal(tensor):
                self.needed |= found.ports

    def _keep(self, x: Tensor, signal: Signal) -> None:
        self._signals[id(x)] = x, signal  # holding the tensor keeps its id from being used again

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self.paused or not any(id(x) in self._signals for x in tensors_in((args, kwargs))):
            return result
        name = getattr(func, "__name__", str(func))
        if name == "__get__":
            name = getattr(func.__self__, "__name__", name)  # type: ignore[attr-defined]
        self.paused = True
        try:
            self._follow(name, func, args, kwargs, result)
        finally:
            self.paused = False
        return result

    def _follow(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> None:
        if name in _SHAPES:
            return
        made = list(tensors_in(result))
        given = list(tensors_in((args, kwargs)))
        signals = [found for x in given if (found := self.signal(x))]
        ports = frozenset().union(*(x.ports for x in signals))
        problem = next((x.problem for x in signals if x.problem), "")
        terms: list[tuple[Tensor, ...]] | None = None
        if not problem:
            if len(signals) > 1:
                self.joined.add(frozenset(found.ports for found in signals))
            if name in _SAME or (name in _DROPOUTS and self._does_nothing(args, kwargs)):
                terms = [signals[0].terms] if made and made[0].is_floating_point() else None
            elif name in _SUMS and kwargs.get("alpha", 1) == 1:
                terms = self._sum(given, [x for x in args if not isinstance(x, Tensor)], made[0].shape)
            elif name in _VIEWS:
                terms = self._view(func, args, kwargs)
        if terms is None and all(port.call.is_front for port in ports):
            for port in ports:  # no neuron had a part in it: PyTorch computes it
                port.call.stay()
            return
        if terms is None and not problem and len(made) == 1 and self.pool(name, args, kwargs, given[0], made[0]):
            return
        if terms is None:
            problem = problem or f"{name} at {own_line()}"
            self.needed |= ports
            for x in made:
                self._keep(x, Signal((), ports, problem))
            return
        for x, own in zip(made, terms, strict=True):
            self._keep(x, Signal(own, ports))

    def _does_nothing(self, args: Any, kwargs: Any) -> bool:
        """Whether a dropout keeps all numbers: with p = 0, or in eval mode."""
        if not (args[1] if len(args) > 1 else kwargs.get("p", 0.5)):
            return True
        off = not (args[2] if len(args) > 2 else kwargs.get("training", True))
        self.skips_dropout |= off
        return off

    def _sum(
        self, given: Sequence[Tensor], others: Sequence[Any], shape: torch.Size
    ) -> list[tuple[Tensor, ...]] | None:
        terms: list[Tensor] = []
        for x in given:
            found = self.signal(x)
            if found is None:
                if bool((x != 0).any()):
                    return None
                continue
            terms += [t.expand(shape) for t in found.terms]
        return None if any(x != 0 for x in others) else [tuple(terms)]

    def _view(self, func: Callable[..., Any], args: Any, kwargs: Any) -> list[tuple[Tensor, ...]] | None:
        """Applies the view to the labels of each term."""
        given = list(tensors_in((args, kwargs)))
        n_terms = max(len(found.terms) for x in given if (found := self.signal(x)))
        views: list[list[Tensor]] = []
        for k in range(n_terms):
            labels: dict[int, Tensor] = {}
            for x in given:
                found = self.signal(x)
                if found is not None:
                    labels[id(x)] = found.terms[k] if k < len(found.terms) else torch.full(x.shape, ZERO)
                elif (
                    x.is_floating_point()
                    and bool((x != 0).any())
                    and func.__name__ not in ("view_as", "reshape_as", "expand_as")
                ):
                    return None
                elif x.is_floating_point():
                    labels[id(x)] = torch.full(x.shape, ZERO)
            views.append(list(tensors_in(func(*with_tensors(args, labels), **with_tensors(kwargs, labels)))))
        return [tuple(one) for one in zip(*views, strict=True)]


def tensors_in(x: Any) -> Iterator[Tensor]:
    """All tensors in nested tuples, lists and dicts."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, (tuple, list)):
        for item in x:
            yield from tensors_in(item)
    elif isinstance(x, dict):
        yield from tensors_in(list(x.values()))


def with_tensors(x: Any, by: dict[int, Tensor]) -> Any:
    """The same nesting of tuples, lists and dicts, with other tensors in the place of those whose `id` is in `by`."""
    if isinstance(x, Tensor):
        return by.get(id(x), x)
    if isinstance(x, (tuple, list)):
        items = [with_tensors(item, by) for item in x]
        return type(x)(*items) if hasattr(x, "_fields") else type(x)(items)
    if isinstance(x, dict):
        return {key: with_tensors(item, by) for key, item in x.items()}
    return x


def mapped(x: Any, tensors: Iterator[Any]) -> Any:
    """The same nesting of tuples and lists, with the next value in the place of each tensor."""
    if isinstance(x, Tensor):
        return next(tensors)
    if isinstance(x, (tuple, list)):
        items = [mapped(item, tensors) for item in x]
        return type(x)(*items) if hasattr(x, "_fields") else type(x)(items)
    return x
