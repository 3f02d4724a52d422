"""Transforms of lists on the engine `cpu`, between a sender and the layer that reads its spikes.

Each kind is a function here and a class with an adjoint on the values of the entries, `host/src/transforms/<kind>.cpp`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from sparsesnn import _core
from sparsesnn.engines.cpu.lists import engine_lists, last_of, to_array
from sparsesnn.errors import ShapeError
from sparsesnn.output import LayerState, check_history
from sparsesnn.parameters import DELAYS, Incoming
from sparsesnn.spikes import SpikeBatch
from sparsesnn.synapses import Pool

if TYPE_CHECKING:
    from sparsesnn.engines.dropout import Heard


@dataclass(frozen=True)
class Way:
    """The path of spikes from a sender to a layer.

    Args:
        layer: that reads.
        c: the connection.
        pre: the sender's name.
        weight: the engine's name of the weight.
        tensors: of the layer, by the engine's names.
        pools: between the sender and the weight.
        thinned: the populations with dropout, and their numbers for `Heard`.
        continues: calls continue a sequence.
        resumes: the chain puts the steps before a call in front of lists that arrive later; else the caller does.
    """

    layer: Any
    c: Incoming
    pre: str
    weight: str
    tensors: Mapping[str, Tensor]
    pools: Sequence[Pool]
    thinned: Mapping[str, int]
    continues: bool
    resumes: bool


@dataclass(frozen=True)
class Call:
    """The arguments of a pass that transforms may need.

    Args:
        n_samples: B.
        past: states of the populations before the call.
        heard: the spikes that dropout keeps; None: all.
    """

    n_samples: int
    past: Mapping[str, LayerState]
    heard: Heard | None


@dataclass(frozen=True)
class Made:
    """A transform of a chain.

    Args:
        core: the engine's transform.
        kind: its name.
        learns: names of the layer's tensors that are its parameters: one at most.
        setting: makes its setting for a pass.
        shared: transforms of the same lists with the same key are one; None: this one is not shared.
    """

    core: _core.Transform
    kind: str
    learns: Sequence[str] = ()
    setting: Callable[[Call], Any] = field(default=lambda call: None)
    shared: Hashable = None


def dropout(way: Way) -> list[Made]:
    """Leaves out spikes; see `sparsesnn.engines.dropout`."""
    number = way.thinned.get(way.pre)
    return [] if number is None else [thin(way.c.n_pre, number)]


def thin(n: int, population: int) -> Made:
    """`dropout` of a population of n neurons, by its number for `Heard`."""

    def setting(call: Call) -> Any:
        assert call.heard is not None
        return partial(call.heard, population)

    return Made(_core.Dropout(n), "dropout", setting=setting, shared="dropout")


def resume(way: Way) -> list[Made]:
    """Puts the steps before a call in front, if spikes of these steps still arrive."""
    n_steps = way.c.reach
    if not way.resumes or not n_steps:
        return []

    def setting(call: Call) -> Any:
        history = call.past[way.pre].history
        if not isinstance(history, SpikeBatch):
            raise ShapeError(f"state: {way.pre!r} has no history; pass the state returned by this model")
        check_history(history, call.n_samples, way.c.n_pre)
        return engine_lists(last_of(history, n_steps))

    return [Made(_core.Resume(way.c.n_pre), "resume", setting=setting, shared=("resume", n_steps))]


def delay(way: Way) -> list[Made]:
    """Moves entries to later steps, by neuron: axonal delays."""
    if not way.c.axonal:
        return []
    name = way.weight + DELAYS
    first_step = way.c.axonal.longest if way.continues else 0
    return [delays(way.tensors[name], between=way.layer.between_steps(way.c), first_step=first_step, learns=[name])]


def delays(steps: Tensor, *, between: bool, first_step: int = 0, learns: Sequence[str] = ()) -> Made:
    """The transform of `delay`.

    Args:
        steps: float32[M], at least 0.
        between: delays may lie between steps: entries then have values.
        first_step: the result has the steps from here on; those before belong to an earlier call.
        learns: the name of `steps`, if it may learn.
    """
    return Made(_core.Delay(to_array(steps, "axonal delays"), between, first_step), "delay", learns)


def pool(way: Way) -> list[Made]:
    """Makes an entry of each window of maps. Sums and averages are graded; a maximum of spikes is a spike."""
    return [Made(_core.Pool(**synapses.list_arguments()), "pool") for synapses in way.pools]


#: in the order in which spikes go through them
KINDS = (dropout, resume, delay, pool)


def between(way: Way) -> list[Made]:
    """All transforms between a sender and a layer."""
    return [made for kind in KINDS for made in kind(way)]
