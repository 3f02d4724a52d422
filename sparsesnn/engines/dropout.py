"""Dropout: in training, receivers hear a part of the spikes; evaluated weights are smaller for it.

Spikes are left out of the lists and nothing else changes, so lists stay lists of ids. What is evaluated, and saved as best,
are the weights times the share of spikes that was heard, as in Srivastava et al. 2014; initial weights are divided by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sparsesnn.layers import Population
from sparsesnn.network import Network
from sparsesnn.options import option

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Dropout:
    """Which spikes of hidden populations the next population does not hear; recurrent connections hear all of them."""

    neurons: float = option(
        0.0,
        "probability that a hidden neuron is not heard by the next population, for a whole sequence",
        low=0,
        below=1,
    )
    spikes: float = option(
        0.0, "probability that a single spike of a hidden neuron is not heard by the next population", low=0, below=1
    )

    @property
    def heard(self) -> float:
        """The share of spikes that is heard."""
        return (1 - self.neurons) * (1 - self.spikes)

    def factors(self, network: Network) -> dict[str, float]:
        """Parameter → by what it is multiplied where it is evaluated; those that stay as they are have no entry."""
        if self.heard == 1:
            return {}
        return {
            f"layers.{c.post}.{c.name}": self.heard for c in network.connections if is_thinned(network, c.pre, c.post)
        }


def is_thinned(network: Network, pre: str, post: str) -> bool:
    """Whether a connection hears a part of the spikes only."""
    return pre != post and isinstance(network.populations[pre], Population)


class Heard(Protocol):
    """Says which spikes of a batch are heard."""

    def __call__(self, population: int, step: Ints, sample: Ints, neuron: Ints) -> npt.NDArray[np.bool_]:
        """Of neurons of the population with this number in the network; the three arrays broadcast."""


def heard_by(
    network: Network, name: str, outputs: Mapping[str, Any], cache: dict[str, Any], thin: Callable[[str, Any], Any]
) -> Callable[[str], Any]:
    """What population `name` reads of another one, in place of `outputs`.

    Args:
        cache: keeps spikes that several populations read.
        thin: leaves out spikes of a population.
    """

    def read(pre: str) -> Any:
        if not is_thinned(network, pre, name):
            return outputs[pre]
        if pre not in cache:
            cache[pre] = thin(pre, outputs[pre])
        return cache[pre]

    return read
