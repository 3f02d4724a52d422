"""The input and the result of one call of a population, in every mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sparsesnn.engines.dense.neuron import Neuron
from sparsesnn.engines.dense.spikes import DenseSpikes
from sparsesnn.synapses import Synapses


@dataclass(frozen=True)
class Source:
    """A sending population: spikes [T', B, M], a weight in its synapses' form; row t - shift arrives at step t."""

    spikes: Tensor | DenseSpikes  # DenseSpikes: only in the mode "fused"
    weight: Tensor
    shift: int
    synapses: Synapses


class Axonal(NamedTuple):
    """Delays per sender.

    Args:
        groups: the distinct whole delays, each with the ids of its senders.
        order: [N], the position of each sender in the concatenated groups.
        fraction: [N], the fractions of a step beyond the whole delays; None: delays are whole.
    """

    groups: tuple[tuple[int, Tensor], ...]
    order: Tensor
    fraction: Tensor | None

    @staticmethod
    def of(delays: Tensor, *, between: bool) -> Axonal:
        steps = delays.detach().floor()
        groups = tuple((int(d), torch.nonzero(steps == d)[:, 0]) for d in steps.unique())
        return Axonal(groups, torch.cat([ids for _, ids in groups]).argsort(), delays - steps if between else None)

    def arriving(self, own: Sequence[Tensor], delay: int) -> Tensor:
        """The spikes that arrive, [B, N], from the spikes of all steps before this one."""
        parts = [
            torch.cat([own[-(delay + d + part)][:, ids] for d, ids in self.groups], 1)[:, self.order]
            for part in range(1 if self.fraction is None else 2)
        ]
        return parts[0] if self.fraction is None else (1 - self.fraction) * parts[0] + self.fraction * parts[1]


class Loop(NamedTuple):
    """A recurrent connection: a weight in its synapses' form, and its delay in steps."""

    weight: Tensor
    delay: int
    synapses: Synapses
    axonal: Axonal | None = None

    def arriving(self, own: Sequence[Tensor]) -> Tensor:
        """The spikes that arrive, [B, N], from the spikes of all steps before this one."""
        return self.axonal.arriving(own, self.delay) if self.axonal else own[-self.delay]


def arriving(spikes: Tensor, shift: int, start: int, stop: int) -> tuple[Tensor, int]:
    """Rows of `spikes` that arrive in steps `start` to `stop` - 1, and the number of first steps without arrivals."""
    silent = min(max(0, shift - start), stop - start)
    return spikes[max(0, start - shift) : max(0, stop - shift)], silent


@dataclass(frozen=True)
class Call:
    """Everything one call of a population reads.

    Args:
        neuron: the update of one step.
        sources: in the order in which their currents are summed.
        loops: recurrent connections, in the order in which their currents are summed.
        bias: [N] or None.
        n_steps, n_samples, n: T, B, N.
        state: [B, N] each, in the model's order, before the first step.
        own: [B, N] each, the spikes of the last d steps, d the longest delay of a loop; one more with axonal delays.
        fresh: whether a sequence begins.
    """

    neuron: Neuron
    sources: tuple[Source, ...]
    loops: tuple[Loop, ...]
    bias: Tensor | None
    n_steps: int
    n_samples: int
    n: int
    state: tuple[Tensor, ...]
    own: tuple[Tensor, ...]
    fresh: bool

    @property
    def recurrent_weight(self) -> Tensor | None:
        """The weight of a single loop of delay 1, for the mode "fused"."""
        return self.loops[0].weight if self.loops else None

    @property
    def v(self) -> Tensor:
        """The first state."""
        return self.state[0]


#: spikes [T, B, N] (LI: potentials), and the states after the last step
Result = tuple[Tensor, tuple[Tensor, ...]]
