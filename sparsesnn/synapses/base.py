"""What every kind of synapses gives."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Dict, Tuple, Type  # noqa: UP035

import numpy as np

from sparsesnn.errors import DescriptionError

#: of the weights of some receivers, in the order in which they are stored: where each receiver's begin, [n + 1], and
#: the sender of each
Columns = Tuple[np.ndarray, np.ndarray]  # noqa: UP006  evaluated under Python 3.8 by sparsesnn.poptorch


@dataclass(frozen=True)
class Synapses:
    """A kind of synapses between `n_pre` sending and `n_post` receiving neurons; see the files beside this one.

    Every kind is a frozen dataclass; a kind is known under its class's name from the moment its class is made. Where a
    method takes `begin` and `end`, it is about the receivers `begin` to `end - 1`: a shard, or all of them.
    """

    #: kinds by name
    kinds: ClassVar[Dict[str, Type[Synapses]]] = {}  # noqa: UP006  evaluated under Python 3.8 by sparsesnn.poptorch
    #: the axis of the weight along which receiving neurons lie: the one that shards cut
    receiver_axis: ClassVar[int] = -1

    def __init_subclass__(cls) -> None:
        Synapses.kinds[cls.__name__] = cls

    def check(self, where: str, n_pre: int, n_post: int) -> None:
        """`DescriptionError`, which begins with `where`, if the kind does not fit populations of these sizes."""

    def weight_shape(self, n_pre: int, n_post: int) -> tuple[int, ...]:
        """Shape of the weight of all receivers; empty where the kind has none."""
        raise NotImplementedError

    def fan_in(self, n_pre: int, n_post: int) -> int:
        """Synapses of one receiving neuron: initial weights are U(±1/√fan-in)."""
        raise NotImplementedError

    def cut(self, n_pre: int, n_post: int, begin: int, end: int) -> tuple[int, int]:
        """First and last + 1 along `receiver_axis` of the weights of some receivers."""
        return begin, end

    def columns(self, n_pre: int, n_post: int, begin: int, end: int) -> Columns | None:
        """The synapses of some receivers, where not every sender has one; None: the weight is [n_pre, n]."""
        return None

    def is_compressed(self, n_pre: int, n_post: int) -> bool:
        """Whether the CPU engine reads compressed rows; else it reads a matrix."""
        return False

    def n_read(self, n_pre: int, n_post: int) -> int:
        """Weights of one receiver that the CPU engine keeps in a tile."""
        return self.fan_in(n_pre, n_post) if self.is_compressed(n_pre, n_post) else n_pre

    def relative_work(self, n_pre: int, n_post: int) -> float:
        """Time that the CPU engine takes for a spike, in that of dense synapses."""
        return 1.0

    def n_weights(self, n_pre: int, n_post: int, begin: int = 0, end: int | None = None) -> int:
        """Weights of some receivers."""
        shape = list(self.weight_shape(n_pre, n_post))
        low, high = self.cut(n_pre, n_post, begin, n_post if end is None else end)
        shape[self.receiver_axis] = high - low
        return math.prod(shape)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; arguments that are None are left out."""
        return {"kind": type(self).__name__, **{k: v for k, v in asdict(self).items() if v is not None}}


def synapses_from_dict(data: Any) -> Synapses:
    """The inverse of `Synapses.to_dict`. Errors: `DescriptionError`."""
    if not isinstance(data, Mapping) or data.get("kind") not in Synapses.kinds:
        raise DescriptionError(
            f"synapses: is {data!r}; give an object whose 'kind' is one of {', '.join(sorted(Synapses.kinds))}"
        )
    kind = Synapses.kinds[data["kind"]]
    arguments = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k != "kind"}
    allowed = [f.name for f in fields(kind)]
    if unknown := sorted(set(arguments) - set(allowed)):
        raise DescriptionError(f"synapses {kind.__name__}: unknown {unknown}; allowed: {allowed}")
    try:
        return kind(**arguments)
    except TypeError as error:
        raise DescriptionError(f"synapses {kind.__name__}: {error}") from None
