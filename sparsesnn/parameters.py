"""A population's parameters as a module: what the layers of every engine have, under the same names.

Runs under Python 3.8 and torch 2.0 too, for `sparsesnn.poptorch`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Mapping, NamedTuple, Sequence, Union  # noqa: UP035

import torch
from torch import Tensor, nn

from sparsesnn.errors import DescriptionError
from sparsesnn.network import Connection, Network
from sparsesnn.options import plain
from sparsesnn.rotation import population_seed
from sparsesnn.synapses import Dense, Synapses

#: the buffer in which a layer with a capacity counts the forward passes of training
STEP_COUNTER = "training_steps"


def is_step_counter(name: str) -> bool:
    """Whether a parameter's or buffer's full name is that of such a buffer."""
    return name.rpartition(".")[2] == STEP_COUNTER


class Incoming(NamedTuple):
    """A connection as its receiver sees it.

    Args:
        name: of the weight.
        n_pre: neurons of the sender.
        delay: steps between a spike and its arrival.
        is_recurrent: whether the receiver is the sender.
        synapses: their kind.
        n_copies: connections from this sender, this one included; they differ in delay.
    """

    name: str
    n_pre: int
    delay: int = 0
    is_recurrent: bool = False
    synapses: Synapses = Dense()
    n_copies: int = 1


#: neurons of the source or of each source, or the connections themselves
Sources = Union[int, Sequence[int], Sequence[Incoming]]  # noqa: UP007  evaluated under Python 3.8


def incoming_of(network: Network, name: str) -> tuple[Incoming, ...]:
    """What a population of a network receives, in the order in which its currents are summed."""

    connections = network.incoming(name)

    def seen(c: Connection) -> Incoming:
        n_copies = sum(other.pre == c.pre for other in connections)
        return Incoming(c.name, network.populations[c.pre].n, c.delay, c.is_recurrent, c.synapses, n_copies)

    return tuple(seen(c) for c in connections)


def incoming(population: Any, sources: Sources, delays: Sequence[int] | None) -> tuple[Incoming, ...]:
    """The same of a layer that stands alone: its sources are called 0, 1, …, itself `self`.

    Errors: `DescriptionError` for sources without neurons, and delays that are not one for each source or out of range.
    """
    several = tuple(sources) if isinstance(sources, (tuple, list)) else (sources,)
    if all(isinstance(source, Incoming) for source in several):
        return several
    when = (0,) * len(several) if delays is None else tuple(delays)
    if len(when) != len(several):
        raise DescriptionError(
            f"Layer: delays has {len(when)} numbers; n_pre has {len(several)} sources; give one for each"
        )
    found = []
    for k, (given, delay) in enumerate(zip(several, when)):  # noqa: B905  Python 3.8 knows no strict
        n_pre = plain(given)
        if type(n_pre) is not int or n_pre < 1:
            raise DescriptionError(f"Layer: n_pre is {n_pre!r}; allowed: 1 or more neurons for each source")
        found.append(Incoming(f"{k}->self", n_pre, Connection(str(k), "self", delay).delay))
    loop = [Incoming("self->self", population.n, 1, True)] if getattr(population, "recurrent", False) else []
    return (*found, *loop)


class PopulationModule(nn.Module):
    """One population and its incoming connections; subclasses say how it runs.

    Parameters, in this order: the weights of recurrent connections, each under the connection's name; `bias` [n]; decays
    and thresholds ([] or [n]; buffers where they are not trained); the other weights. With a capacity a buffer more:
    `training_steps` int64[], the forward passes of training so far.

    `rotation_seed` and `training_steps` decide which candidates a full list keeps, see `sparsesnn.rotation`.
    """

    bias: nn.Parameter | None
    training_steps: Tensor | None

    def __init__(
        self,
        population: Any,
        incoming: Sequence[Incoming],
        uniform: Callable[[Incoming], Tensor],
        own: Callable[[Tensor], Tensor] = lambda whole: whole,
    ) -> None:
        """`uniform`: draws the initial weight of a connection; `own`: the part of [N] numbers that this process holds."""
        super().__init__()
        self.population = population
        self.incoming = tuple(incoming)
        self.rotation_seed = population_seed(0, 0)
        counts = getattr(population, "capacity", None) is not None
        self.register_buffer(STEP_COUNTER, torch.zeros((), dtype=torch.int64) if counts else None)
        weights = {c.name: nn.Parameter(uniform(c)) for c in self.incoming}
        for c in self.incoming:
            if c.is_recurrent:
                self.register_parameter(c.name, weights[c.name])
        self.bias = nn.Parameter(own(torch.zeros(population.n))) if population.bias else None
        for name in (*(parameter.name for parameter in population.parameters), "grad_threshold"):
            if hasattr(population, name):
                value = torch.tensor(getattr(population, name), dtype=torch.float32)
                value = own(value).clone() if value.ndim else value
                if getattr(population, f"learn_{name}", False):
                    self.register_parameter(name, nn.Parameter(value))
                else:
                    self.register_buffer(name, value)
        for c in self.incoming:
            if not c.is_recurrent:
                self.register_parameter(c.name, weights[c.name])

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        """Reads files from before layers counted: as if training began now."""
        if self.training_steps is not None:
            state_dict.setdefault(prefix + STEP_COUNTER, torch.zeros_like(self.training_steps))
        super()._load_from_state_dict(state_dict, prefix, *args)

    @property
    def weights(self) -> tuple[nn.Parameter, ...]:
        """One for each of `incoming`; dense ones are [n_pre, n], a row per sending neuron."""
        return tuple(getattr(self, c.name) for c in self.incoming)

    @property
    def senders(self) -> tuple[Incoming, ...]:
        """Connections from other populations."""
        return tuple(c for c in self.incoming if not c.is_recurrent)

    @property
    def sender_weights(self) -> tuple[nn.Parameter, ...]:
        """The weights of `senders`."""
        return tuple(getattr(self, c.name) for c in self.senders)

    @property
    def n_pre(self) -> tuple[int, ...]:
        return tuple(c.n_pre for c in self.senders)

    @property
    def delays(self) -> tuple[int, ...]:
        return tuple(c.delay for c in self.senders)

    @property
    def loop_weight(self) -> nn.Parameter | None:
        """The weight [n, n] of the recurrent connection, where there is one.

        Errors: `DescriptionError` for several recurrent connections, or one whose delay is not 1.
        """
        loops = [c for c in self.incoming if c.is_recurrent]
        if not loops:
            return None
        if len(loops) > 1 or loops[0].delay != 1:
            raise DescriptionError(
                f"{', '.join(c.name for c in loops)}: this engine runs one recurrent connection of a population, with delay 1"
            )
        found: nn.Parameter = getattr(self, loops[0].name)
        return found


def uniform(generator: torch.Generator | None, n: int) -> Callable[[Incoming], Tensor]:
    """Draws initial weights for `n` neurons: U(±1/√fan-in), the fan-in that of all copies of a connection together."""

    def draw(c: Incoming) -> Tensor:
        shape = c.synapses.weight_shape(c.n_pre, n)
        fan_in = c.synapses.fan_in(c.n_pre, n) * c.n_copies
        scaled: Tensor = (torch.rand(shape, generator=generator) * 2 - 1) * fan_in**-0.5
        return scaled

    return draw


def stable_names(network: Network) -> dict[str, str]:
    """The names that weights had before they were called after their connections, by the name they have now.

    `layers.<population>.weights.<k>` of the k-th connection from another population, `layers.<population>.recurrent_weight`.
    Digests of weights are taken under these names, so that they outlive a change of names; files that hold them are read.
    """
    found: dict[str, str] = {}
    for name in network.receivers():
        counts: Mapping[bool, list[Connection]] = {False: [], True: []}
        for c in network.incoming(name):
            counts[c.is_recurrent].append(c)
        for k, c in enumerate(counts[False]):
            found[f"layers.{name}.{c.name}"] = f"layers.{name}.weights.{k}"
        for k, c in enumerate(counts[True]):
            found[f"layers.{name}.{c.name}"] = f"layers.{name}.recurrent_weight" + (f".{k}" if k else "")
    return found
