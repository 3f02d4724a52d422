"""Dropout: in training, receivers hear a part of the spikes; evaluated weights are smaller for it.

Spikes are left out of the lists and nothing else changes, so lists stay lists of ids. What is evaluated, and saved as best,
are the weights times the share of spikes that was heard, as in Srivastava et al. 2014; initial weights are divided by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from sparsesnn.engines.runner import as_tensor
from sparsesnn.layers import Population
from sparsesnn.network import Network
from sparsesnn.options import option
from sparsesnn.spikes import SpikeBatch

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


def thinned(spikes: Any, population: int, heard: Heard) -> Any:
    """The same spikes without those that are not heard; their gradient flows back to those that are.

    Args:
        spikes: a `SpikeBatch` (also one of a population that several ranks own), `DenseSpikes`, or a tensor [T, B, N].
    """
    if isinstance(spikes, SpikeBatch):
        return _thinned_lists(spikes, population, heard)
    dense = as_tensor(spikes)
    step, sample, neuron = (np.arange(n).reshape(shape) for n, shape in zip(dense.shape, _AXES, strict=True))
    return dense * torch.from_numpy(heard(population, step, sample, neuron)).to(dense.device, dense.dtype)


_AXES = ((-1, 1, 1), (1, -1, 1), (1, 1, -1))


def _thinned_lists(spikes: SpikeBatch, population: int, heard: Heard) -> SpikeBatch:
    offsets, ids = spikes.offsets.numpy(), spikes.ids.numpy().astype(np.int64)
    which = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
    keep = heard(population, which // spikes.n_samples, which % spikes.n_samples, ids)
    before = np.concatenate([[0], np.cumsum(keep)])
    n_spikes = before[offsets[:-1] + spikes.n_spikes.numpy()] - before[offsets[:-1]]
    changes: dict[str, Any] = {
        "offsets": torch.from_numpy(before[offsets].astype(offsets.dtype)),
        "ids": torch.from_numpy(spikes.ids.numpy()[keep]),
        "n_spikes": torch.from_numpy(n_spikes.astype(spikes.n_spikes.numpy().dtype)),
    }
    if spikes.values is not None:
        changes["values"] = spikes.values[torch.from_numpy(np.flatnonzero(keep))]
    if "own_values" in {f.name for f in fields(spikes)} and spikes.own_values is not None:  # type: ignore[attr-defined]
        own = spikes.own_places  # type: ignore[attr-defined]
        changes["own_values"] = spikes.own_values[torch.from_numpy(np.flatnonzero(keep[own]))]  # type: ignore[attr-defined]
    return replace(spikes, **changes)


def heard_by(
    network: Network, name: str, outputs: Mapping[str, Any], cache: dict[str, Any], heard: Heard | None
) -> Callable[[str], Any]:
    """What population `name` reads of another one, in place of `outputs`; `cache` keeps lists that several read."""

    def read(pre: str) -> Any:
        if heard is None or not is_thinned(network, pre, name):
            return outputs[pre]
        if pre not in cache:
            cache[pre] = thinned(outputs[pre], list(network.populations).index(pre), heard)
        return cache[pre]

    return read
