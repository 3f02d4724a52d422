"""Outputs of layers and networks, for every engine."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sparsesnn.errors import DescriptionError, ShapeError
from sparsesnn.options import plain
from sparsesnn.spikes import SpikeBatch
from sparsesnn.tensor_like import plain_tensor
from sparsesnn.tracers import untraced
from sparsesnn.traces import Traces

#: output of a layer: lists (cpu), a 0/1 tensor [T, B, N] (dense), or the potentials [T, B, N] of a readout
LayerOutput = SpikeBatch | Tensor


@dataclass(eq=False)  # not frozen, as `SpikeBatch`
class LayerState:
    """A layer's state between two chunks of a sequence; carries no gradient (truncated BPTT).

    Args:
        states: of the neuron model, by name, float32[B, N]: `v`, the potential after the last step, before the reset
            applied by the next step, and others of the model. They are also attributes.
        history: output of the last steps needed by later readers; None if none are needed.
        step: number of steps run so far; the choice among candidates for a full list depends on it.
        training_step: number of the training pass that began the sequence; the choice among candidates for a full list depends
            on it too, see `sparsesnn.rotation`.
    """

    states: Mapping[str, Tensor] = field(default_factory=dict)
    history: LayerOutput | None = None
    step: int = 0
    training_step: int = 0

    def __post_init__(self) -> None:
        if not (type(self.step) is type(self.training_step) is int):
            self.step, self.training_step = int(plain(self.step)), int(plain(self.training_step))
        if not isinstance(self.history, (SpikeBatch, type(None))):
            self.history = plain_tensor(self.history, "state: history")

    def __getattr__(self, name: str) -> Tensor:
        states = self.__dict__.get("states", {})
        if name in states:
            value: Tensor = states[name]
            return value
        raise AttributeError(f"LayerState has no {name!r}; it has the states {list(states)}")

    def of(self, names: Sequence[str]) -> list[Tensor]:
        """The states with these names. Errors: `ShapeError` if one is missing."""
        if missing := [name for name in names if name not in self.states]:
            raise ShapeError(
                f"state: has {list(self.states)}; the neuron model needs {list(names)}: {missing} missing; pass the state "
                "returned by this layer"
            )
        return [plain_tensor(self.states[name], f"state: numbers of {name}") for name in names]


def at_least_float32(x: Tensor) -> Tensor:
    """Narrower types as float32, because their sums would be rounded."""
    return x.float() if x.dtype.itemsize < 4 else x


def check_state(state: object) -> None:
    """`ShapeError` for a type that is not the state of a network."""
    if state is not None and not isinstance(state, Mapping):
        raise ShapeError(f"Model: state is {type(state).__name__}; give the state of an output, output.state, or None")


class CountedSpikes(Mapping[str, Any]):
    """Spikes per population that can be counted without creating autograd's tensors or lists."""

    @abstractmethod
    def activity(self) -> dict[str, float]:
        """Spikes per neuron and time step."""

    @abstractmethod
    def dropped(self) -> dict[str, int]:
        """Number of dropped candidates."""


class KnownCounts(CountedSpikes):
    """Spikes per population, whose numbers a device has reported. Engines whose devices keep the lists derive a class that reads
    them.

    Args:
        counts: of each population its spikes, its dropped candidates, and T·B·N.
    """

    def __init__(self, counts: Mapping[str, tuple[int, int, int]]) -> None:
        self._counts = counts

    def activity(self) -> dict[str, float]:
        return {name: fired / places if places else 0.0 for name, (fired, _, places) in self._counts.items()}

    def dropped(self) -> dict[str, int]:
        return {name: n_dropped for name, (_, n_dropped, _) in self._counts.items()}

    def __getitem__(self, name: str) -> Any:
        raise KeyError(f"{name}: only the number of its spikes has come back from the device")

    def __contains__(self, name: object) -> bool:  # Mapping's would copy the lists
        return name in self._counts

    def __iter__(self) -> Iterator[str]:
        return iter(self._counts)

    def __len__(self) -> int:
        return len(self._counts)


class Lazily(Mapping[str, Any]):
    """Values created on first access, and kept."""

    def __init__(self, make: Callable[[str], Any], names: Iterable[str]) -> None:
        self._make, self._names = make, tuple(names)
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            if name not in self._names:
                raise KeyError(name)
            self._made[name] = self._make(name)
        return self._made[name]

    def __contains__(self, name: object) -> bool:  # Mapping's would create the value
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


@dataclass(eq=False)  # not frozen, as `SpikeBatch`
class Output:
    """The output of a network.

    Args:
        potentials: float32[T, B, N] of the LI readout, differentiable. For a last population that fires they are None, unless the
            call asked for them (`potentials=True`); they are then the values that are compared with the threshold: after each
            step, before the reset that the next step applies (snnTorch's `mem`). Their gradient reaches every neuron.
        spikes: per spiking population, its lists (cpu) or 0/1 tensor [T, B, N] (dense), both differentiable.
        state: per population, to pass to the next chunk.
        output: name of the last population.
        traces: of the recorded populations, see `Model.forward`.
    """

    potentials: Tensor | None
    spikes: Mapping[str, LayerOutput]
    state: Mapping[str, LayerState]
    output: str
    traces: Mapping[str, Traces] = field(default_factory=dict)

    def __repr__(self) -> str:
        potentials = "" if self.potentials is None else f"potentials {list(self.potentials.shape)}, "
        activity = ", ".join(f"{name} {100 * share:.3g} %" for name, share in self.activity().items())
        return f"Output({potentials}activity {activity or 'of no population'})"

    def counts(self, name: str | None = None) -> Tensor:
        """float32[B, N], spikes of a population over the sequence (default: the last); differentiable."""
        if (name or self.output) not in self.spikes:
            raise DescriptionError(
                f"counts: {name or self.output!r} is not a spiking population; allowed: {', '.join(self.spikes)}"
            )
        spikes = self.spikes[name or self.output]
        return spikes.counts() if isinstance(spikes, SpikeBatch) else at_least_float32(spikes).sum(0)

    @untraced
    def activity(self) -> dict[str, float]:
        """Spikes per neuron and time step of every spiking population."""
        if isinstance(self.spikes, CountedSpikes):
            return self.spikes.activity()
        return {
            k: s.activity() if isinstance(s, SpikeBatch) else float(at_least_float32(s.detach()).mean())
            for k, s in self.spikes.items()
        }

    def dropped(self) -> dict[str, int]:
        """Number of dropped candidates per spiking population."""
        if isinstance(self.spikes, CountedSpikes):
            return self.spikes.dropped()
        return {k: s.n_dropped() if isinstance(s, SpikeBatch) else 0 for k, s in self.spikes.items()}


def n_steps(x: LayerOutput) -> int:
    return x.n_steps if isinstance(x, SpikeBatch) else x.shape[0]


def join(before: LayerOutput, x: LayerOutput) -> LayerOutput:
    """A state's spikes, followed by `x`. Errors: `ShapeError` if they are of another batch, population or backend."""
    if isinstance(before, SpikeBatch) != isinstance(x, SpikeBatch):
        raise ShapeError("state: its history is from the other backend; pass the state returned by this model")
    check_history(before, *x.shape[1:])
    if isinstance(before, SpikeBatch) and isinstance(x, SpikeBatch):
        return before.then(x)
    assert isinstance(before, Tensor) and isinstance(x, Tensor)  # noqa: PT018 - for the type checker
    return torch.cat([before, x])


def check_history(before: LayerOutput, n_samples: int, n_neurons: int) -> None:
    """`ShapeError` unless the spikes that a state keeps have these numbers of samples and neurons."""
    kept = tuple(before.shape[1:])
    if kept != (n_samples, n_neurons):
        raise ShapeError(
            f"state: its history has B={kept[0]}, N={kept[1]}, but these spikes have B={n_samples}, N={n_neurons}; pass the state "
            "returned by this model for the same samples, or None to begin a new sequence"
        )


def steps_from(x: LayerOutput, start: int) -> LayerOutput:
    return x.steps(start, x.n_steps) if isinstance(x, SpikeBatch) else x[start:]


def last_steps(before: LayerOutput | None, x: LayerOutput, depth: int) -> LayerOutput:
    """The last `depth` steps up to the end of `x`, detached; steps before the sequence are empty."""
    if n_steps(x) < depth:
        if before is None:
            before = x.silence(depth) if isinstance(x, SpikeBatch) else x.new_zeros(depth, *x.shape[1:])
        x = join(before, x)
    return steps_from(x, n_steps(x) - depth).detach()
