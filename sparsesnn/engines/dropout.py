"""Dropout: in training, receivers get only part of the spikes; evaluation scales the weights down to match.

Spikes are removed from the lists and nothing else changes, so lists stay lists of ids. Evaluation, and the checkpoint saved as best,
use the weights times the share of spikes that is kept, as in Srivastava et al. 2014; initial weights are divided by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from sparsesnn.layers import fires
from sparsesnn.network import Network
from sparsesnn.options import option

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Dropout:
    """Which spikes of hidden populations the next population does not receive; recurrent connections receive all."""

    neurons: float = option(
        0.0,
        "probability of dropping a hidden neuron: for a whole sequence the next population receives none of its spikes",
        low=0,
        below=1,
    )
    spikes: float = option(
        0.0, "probability that a single spike of a hidden neuron does not reach the next population", low=0, below=1
    )

    @property
    def heard(self) -> float:
        """The share of spikes that is kept."""
        return (1 - self.neurons) * (1 - self.spikes)

    def factors(self, network: Network) -> dict[str, float]:
        """Parameter → its factor in evaluation; unchanged parameters have no entry."""
        if self.heard == 1:
            return {}
        return {
            f"layers.{c.post}.{c.name}": self.heard for c in network.connections if is_thinned(network, c.pre, c.post)
        }


def is_thinned(network: Network, pre: str, post: str) -> bool:
    """Whether dropout applies to a connection."""
    return pre != post and fires(network.populations[pre])


class Heard(Protocol):
    """Selects the spikes of a batch that dropout keeps."""

    def __call__(self, population: int, step: Ints, sample: Ints, neuron: Ints) -> npt.NDArray[np.bool_]:
        """True for spikes to keep, for neurons of the population with this number in the network; the three arrays broadcast."""


@runtime_checkable
class Drawn(Protocol):
    """A `Heard` whose random numbers a device can draw again."""

    def draws(self, population: int) -> npt.NDArray[np.uint64]:
        """uint64[2, 1 + B], of neurons for a whole sequence and of single spikes: a limit, and the key of each sample's stream.

        A spike stays if the upper 53 bits of two numbers of its sample's streams (datasets/hashing.py) are at least the limits: those
        of number `neuron` and of number step·2^32 + neuron.
        """


def numbers(network: Network) -> dict[str, int]:
    """The populations with dropout, and their numbers for `Heard`."""
    return {name: k for k, (name, x) in enumerate(network.populations.items()) if fires(x)}


def after_dropout(
    network: Network, outputs: Mapping[str, Any], thin: Callable[[str, int, Any], Any]
) -> Callable[[str], Any]:
    """Makes a function that returns a sender's spikes after dropout, which all its readers share.

    Args:
        outputs: spikes by population, filled in while layers run.
        thin: applies dropout to the spikes of a population, given by name and number.
    """
    number, kept = numbers(network), dict[str, Any]()

    def read(pre: str) -> Any:
        if pre not in number:
            return outputs[pre]
        if pre not in kept:
            kept[pre] = thin(pre, number[pre], outputs[pre])
        return kept[pre]

    return read
