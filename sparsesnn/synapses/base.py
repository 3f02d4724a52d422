"""What every kind of synapses gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Dict, Type  # noqa: UP035

from sparsesnn.errors import DescriptionError


@dataclass(frozen=True)
class Synapses:
    """A kind of synapses between `n_pre` sending and `n_post` receiving neurons; see the files beside this one.

    Every kind is a frozen dataclass; a kind is known under its class's name from the moment its class is made.
    """

    #: kinds by name
    kinds: ClassVar[Dict[str, Type[Synapses]]] = {}  # noqa: UP006  evaluated under Python 3.8 by sparsesnn.poptorch
    #: the axis of the weight that counts receiving neurons: the one that shards cut
    receiver_axis: ClassVar[int] = -1

    def __init_subclass__(cls) -> None:
        Synapses.kinds[cls.__name__] = cls

    def weight_shape(self, n_pre: int, n_post: int) -> tuple[int, ...]:
        """Shape of the weight; empty where the kind has none."""
        raise NotImplementedError

    def fan_in(self, n_pre: int, n_post: int) -> int:
        """Synapses of one receiving neuron: initial weights are U(±1/√fan-in)."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"kind": type(self).__name__, **asdict(self)}


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
