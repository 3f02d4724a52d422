"""The interface of all kinds of synapses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Dict, NamedTuple, Optional, Tuple, Type, Union  # noqa: UP035

import numpy as np

from sparsesnn.errors import DescriptionError
from sparsesnn.subclasses import as_described
from sparsesnn.wording import unknown

#: for the weights of some receivers, in storage order: the start of each receiver's weights, [n + 1], and the sender of
#: each weight
Columns = Tuple[np.ndarray, np.ndarray]  # noqa: UP006  evaluated under Python 3.8 by sparsesnn.poptorch
#: height, width, channels
Shape = Tuple[int, int, int]  # noqa: UP006
#: an accepted shape: (length, channels) means (1, length, channels)
GivenShape = Union[Shape, Tuple[int, int]]  # noqa: UP006, UP007


class InLists(NamedTuple):
    """How a kind processes spike lists: first they are pooled, then the engine delivers the result.

    Args:
        pools: kinds that turn lists into lists, in sequence.
        kind: reader of the last lists: `Dense` or another matrix, or windows.
        n_pre: neurons in those lists.
    """

    pools: Tuple[Any, ...]  # noqa: UP006  evaluated under Python 3.8 by sparsesnn.poptorch
    kind: Any
    n_pre: int


@dataclass(frozen=True)
class Synapses:
    """A kind of synapses between `n_pre` sending and `n_post` receiving neurons; see the files next to this one.

    Every kind is a frozen dataclass; it is registered under its class's name when the class is defined. Arguments `begin` and
    `end` of a method select the receivers `begin` to `end - 1`: a shard, or all of them.

    Kinds other than matrices have their product and its gradients twice: in NumPy for the reference (`add`, `pull`), in PyTorch
    for the dense engine (`product`, `product_grad`).
    """

    #: kinds by name
    kinds: ClassVar[Dict[str, Type[Synapses]]] = {}  # noqa: UP006  evaluated under Python 3.8 by sparsesnn.poptorch
    #: the weight's axis of receiving neurons, along which shards cut it
    receiver_axis: ClassVar[int] = -1
    #: whether the weights, expanded by `columns` if needed, are a matrix [n_pre, n_post]
    is_matrix: ClassVar[bool] = True
    #: whether the sender's numbers are currents, of which every neuron receives its own
    gives_currents: ClassVar[bool] = False

    def __init_subclass__(cls, shared: bool = False) -> None:
        """`shared`: a base of several kinds, not a kind itself."""
        if shared or (not _is_ours(cls) and any(_is_ours(k) for k in Synapses.kinds.values() if issubclass(cls, k))):
            return
        known = Synapses.kinds.get(cls.__name__)
        if known and _is_ours(known) and not _is_ours(cls):
            raise DescriptionError(f"synapses {cls.__name__}: sparsesnn has a kind of this name; choose another name")
        Synapses.kinds[cls.__name__] = cls

    def bound(self, shape: Optional[Shape], channels_first: bool = False) -> Synapses:  # noqa: UP045
        """The same kind for a sender of a shape; most kinds do not depend on it.

        Args:
            shape: of the sender; None if it has none.
            channels_first: neurons of the sender are in the order [channels, height, width].

        Errors: `DescriptionError` for an unsupported shape.
        """
        return self

    @property
    def post_shape(self) -> Optional[Shape]:  # noqa: UP045
        """The shape of the receiver; None if the kind does not define it."""
        return None

    def check(self, where: str, n_pre: int, n_post: int) -> None:
        """`DescriptionError`, which begins with `where`, if the kind does not fit populations of these sizes."""

    def weight_shape(self, n_pre: int, n_post: int) -> tuple[int, ...]:
        """Shape of the weight of all receivers; (0,) if the kind has none."""
        raise NotImplementedError

    def fan_in(self, n_pre: int, n_post: int) -> int:
        """Synapses of one receiving neuron: initial weights are U(±1/√fan-in)."""
        raise NotImplementedError

    def cut(self, n_pre: int, n_post: int, begin: int, end: int) -> tuple[int, int]:
        """Range along `receiver_axis` of the weights of some receivers."""
        return begin, end

    def columns(self, n_pre: int, n_post: int, begin: int, end: int) -> Columns | None:
        """The synapses of some receivers, if not every sender has one; None: the weight is [n_pre, n]."""
        return None

    def is_compressed(self, n_pre: int, n_post: int) -> bool:
        """Whether the CPU engine reads compressed rows instead of a matrix."""
        return False

    def in_lists(self, n_pre: int) -> InLists | None:
        """How the CPU engine processes lists of `n_pre` neurons; None: it does not."""
        return InLists((), self, n_pre) if self.is_matrix else None

    def window_shape(self) -> dict[str, Any] | None:
        """For a convolution, the arguments of `_core.Windows`; None for another kind."""
        return None

    def n_read(self, n_pre: int, n_post: int) -> int:
        """Number of weights per receiver in a tile of the CPU engine."""
        return self.fan_in(n_pre, n_post) if self.is_compressed(n_pre, n_post) else n_pre

    def n_weights(self, n_pre: int, n_post: int, begin: int = 0, end: int | None = None) -> int:
        """Number of weights of some receivers."""
        shape = list(self.weight_shape(n_pre, n_post))
        low, high = self.cut(n_pre, n_post, begin, n_post if end is None else end)
        shape[self.receiver_axis] = high - low
        return math.prod(shape)

    def n_products(self, n_pre: int, n_post: int) -> int:
        """Multiply-adds of a step in which all senders fire."""
        return self.n_weights(n_pre, n_post)

    def widest(self, n_pre: int, n_post: int) -> int:
        """Numbers per sample and step in the largest array of `product`."""
        return max(n_pre, n_post)

    def add(self, i: Any, spikes: Any, weight: Any) -> None:
        """NumPy: adds the contributions of `spikes` [B, n_pre] to the currents `i` [B, n_post]."""
        raise NotImplementedError

    def pull(self, spikes: Any, weight: Any, d: Any) -> tuple[Any, Any]:
        """NumPy: gradients of spikes [T, B, n_pre] and weight, from `d` [T, B, n_post]."""
        raise NotImplementedError

    def product(self, spikes: Any, weight: Any) -> Any:
        """PyTorch: the currents [rows, n_post] from spikes [rows, n_pre]."""
        return spikes @ weight

    def product_grad(self, spikes: Any, weight: Any, d: Any, needs: tuple[bool, bool]) -> tuple[Any, Any]:
        """PyTorch: gradients of `product` for spikes and weight, None for those that `needs` excludes."""
        return d @ weight.t() if needs[0] else None, spikes.t() @ d if needs[1] else None

    def fan_out(self, weight: Any, d: Any) -> Any:
        """PyTorch: the sum of `d` [n_post] over each sender's synapses with nonzero weight; with ones, their number."""
        return (weight != 0).to(d.dtype) @ d

    def to_dict(self) -> dict[str, Any]:
        """Plain data; arguments that are None are left out."""
        return {"kind": type(self).__name__, **{k: v for k, v in asdict(self).items() if v is not None}}


def _is_ours(kind: Type[Synapses]) -> bool:  # noqa: UP006
    return kind.__module__.startswith("sparsesnn.")


def as_known_kind(synapses: Synapses, where: str) -> Synapses:
    """Synapses with subclasses of our kinds resolved, see `as_described`; a new kind extends `Synapses` itself."""
    if _is_ours(type(synapses)):
        return synapses
    ours = [kind for kind in Synapses.kinds.values() if _is_ours(kind)]
    if not isinstance(synapses, tuple(ours)):
        return synapses
    result: Synapses = as_described(synapses, ours, where, "kind of synapses")
    return result


def described_synapses(synapses: Synapses, where: str) -> Synapses:
    """The synapses of a connection in the form that engines run.

    Errors: `DescriptionError`, which begins with `where`, for a subclass of another kind with its own methods, and for a matrix with its
    own product, because engines multiply by matrices themselves.
    """
    synapses = as_known_kind(synapses, where)
    kind = type(synapses)
    if _is_ours(kind):
        return synapses
    own = [x for x in ("add", "pull", "product", "product_grad") if getattr(kind, x) is not getattr(Synapses, x)]
    if synapses.is_matrix and own:
        raise DescriptionError(
            f"{where} is of the class {kind.__name__}, whose weight is a matrix (is_matrix), with its own {', '.join(own)}; the engines "
            "multiply by the matrix and would ignore that; remove them, or set is_matrix = False"
        )
    return synapses


def synapses_from_dict(data: Any) -> Synapses:
    """The inverse of `Synapses.to_dict`. Errors: `DescriptionError`."""
    if not isinstance(data, Mapping) or data.get("kind") not in list(Synapses.kinds):  # a list: it may be unhashable
        raise DescriptionError(
            f"synapses: is {data!r}; give an object whose 'kind' is one of {', '.join(sorted(Synapses.kinds))}"
        )
    kind = Synapses.kinds[data["kind"]]
    arguments = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k != "kind"}
    allowed = [f.name for f in fields(kind)]
    if others := set(arguments) - set(allowed):
        raise DescriptionError(f"synapses {kind.__name__}: {unknown('argument', min(others), allowed)}")
    try:
        return kind(**arguments)
    except TypeError as error:
        raise DescriptionError(f"synapses {kind.__name__}: {error}") from None


def check_matrices(connections: Iterable[Any], who: str) -> None:
    """`DescriptionError` if a connection's synapses are not a matrix, because `who` does not support them."""
    for c in connections:
        if not c.synapses.is_matrix:
            allowed = ", ".join(sorted(name for name, kind in Synapses.kinds.items() if kind.is_matrix))
            raise DescriptionError(
                f"connection {c.name}: its synapses are {type(c.synapses).__name__}, which {who} does not support; allowed: "
                f"{allowed}; change them; the backend 'dense' supports all kinds between populations"
            )
