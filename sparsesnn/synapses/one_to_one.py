"""Currents given one to one: how an `Input(currents=True)` reaches a population."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from sparsesnn.arguments import named
from sparsesnn.errors import DescriptionError
from sparsesnn.synapses.base import Synapses


@named
@dataclass(frozen=True)
class OneToOne(Synapses):
    """Number n of the sender is a current of neuron n, without a weight: i[n] += x[n].

    A `Network` gives every connection from an `Input(currents=True)` this kind; no other connection has it.
    """

    is_matrix: ClassVar[bool] = False
    gives_currents: ClassVar[bool] = True

    def check(self, where: str, n_pre: int, n_post: int) -> None:
        if n_pre != n_post:
            raise DescriptionError(
                f"{where}: gives {n_pre:,} currents to {n_post:,} neurons; make the two sizes equal, a current for each neuron"
            )

    def weight_shape(self, n_pre: int, n_post: int) -> tuple[int, ...]:
        return (0,)

    def fan_in(self, n_pre: int, n_post: int) -> int:
        return 1

    def cut(self, n_pre: int, n_post: int, begin: int, end: int) -> tuple[int, int]:
        return 0, 0

    def n_read(self, n_pre: int, n_post: int) -> int:
        return 0

    def n_products(self, n_pre: int, n_post: int) -> int:
        return 0

    def add(self, i: Any, spikes: Any, weight: Any) -> None:
        i += spikes

    def pull(self, spikes: Any, weight: Any, d: Any) -> tuple[Any, Any]:
        return d.copy(), weight * 0

    def product(self, spikes: Any, weight: Any) -> Any:
        return spikes

    def product_grad(self, spikes: Any, weight: Any, d: Any, needs: tuple[bool, bool]) -> tuple[Any, Any]:
        return d if needs[0] else None, None

    def fan_out(self, weight: Any, d: Any) -> Any:
        return d * 0


def check_no_currents(network: Any, who: str, engine: str = "the backends 'cpu', 'gpu' and 'dense' run it") -> None:
    """`DescriptionError` if a network's input is currents, which `who` does not support."""
    for name in network.inputs:
        if network.populations[name].currents:
            raise DescriptionError(
                f"population {name!r}: gives currents (Input(currents=True)), which {who} does not support; allowed: an Input of "
                f"spikes; {engine}"
            )
