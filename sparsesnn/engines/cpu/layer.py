"""Runs layers on the event-sparse CPU engine and joins them to PyTorch's autograd.

Between layers travel spike lists; their `values` tensor (1 for spikes, 0 for near-spikes) is what autograd sees. The
gradient of a value is ∂L/∂s of that neuron at that step, defined at listed neurons only: the sparse gradient of
Finkbeiner et al. 2024 is the ordinary gradient of this graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsesnn import _core
from sparsesnn.engines.cpu.wiring import Wiring, layer_tensors
from sparsesnn.errors import ShapeError
from sparsesnn.first_order import first_order
from sparsesnn.layers import LI
from sparsesnn.output import LayerState, last_steps
from sparsesnn.parameters import DELAYS, PopulationModule
from sparsesnn.rotation import list_seed
from sparsesnn.spikes import SpikeBatch


def run_layer(
    layer: PopulationModule, sources: Sequence[SpikeBatch], state: LayerState | None, training_step: int = 0
) -> tuple[SpikeBatch | Tensor, LayerState]:
    """One layer over one chunk of a sequence; see `sparsesnn.engines.module.Layer.forward`.

    Args:
        training_step: see `sparsesnn.rotation.list_seed`.
    """
    return Pass(layer, sources, state, training_step).output()


class Pass:
    """One pass of a layer: what the engine is given, and after `run` what it gave back. Here one process runs all neurons.

    Args:
        tensors: those of `layer_tensors`, where they are there already.

    Attributes:
        learnt: the tensors that learn, by the engine's names.
        save: whether a backward pass will follow.
        result: what the engine gave back; None where this process has no neuron of the layer.
    """

    def __init__(
        self,
        layer: Any,
        sources: Sequence[SpikeBatch],
        state: LayerState | None,
        training_step: int,
        tensors: dict[str, Tensor] | None = None,
    ) -> None:
        self.layer, self.sources, self.state = layer, tuple(sources), state
        self.wiring = Wiring.of(layer)
        self.training_step, self.first_sample = training_step, 0
        self.is_readout = isinstance(layer.population, LI)
        none = (0,) * len(self.sources)
        # With a state a source begins as many steps earlier as its delay is long.
        delays: tuple[int, ...] = layer.delays
        self.delays, earlier = (delays, none) if state is None else (none, delays)
        self.n_steps, self.n_samples = self.sources[0].n_steps - earlier[0], self.sources[0].n_samples
        for source, n_pre, more in zip(self.sources, self.wiring.n_pre, earlier, strict=True):
            if (source.n_steps - more, source.n_samples, source.n_neurons) != (self.n_steps, self.n_samples, n_pre):
                raise ShapeError(
                    f"input has T={source.n_steps - more}, B={source.n_samples}, N={source.n_neurons}; "
                    f"this layer needs T={self.n_steps}, B={self.n_samples}, N={n_pre}"
                )
        kept: Snapshot | None = layer.snapshot
        self.packed: Mapping[str, Any] = kept.packed if kept else {}
        self.tensors = tensors or (kept.tensors if kept else layer_tensors(layer))
        learns = torch.is_grad_enabled()
        self.learnt = {name: x for name, x in self.tensors.items() if x.requires_grad} if learns else {}
        self.values = [self.values_of(k) for k in range(len(self.sources))]
        self.save = bool(self.learnt) or (learns and any(x is not None and x.requires_grad for x in self.values))
        self.arrays: dict[str, np.ndarray] = {}
        self.spec: Any = None
        self.result: Any = None

    def output(self) -> tuple[Any, LayerState]:
        """Runs the layer; what it puts out, a node of PyTorch's graph where a backward pass will follow, and its state."""
        result = self.run_in_graph()
        out = None if self.is_readout else self.lists(result if self.save else None)
        after = state_after(self.layer, self.state, self.result, out, self.n_steps, self.training_step)
        return result if out is None else out, after

    def run_in_graph(self) -> Tensor:
        """`run`, as a node of PyTorch's graph where a backward pass will follow."""
        result: Tensor = _RunLayer.apply(self, *self.values, *self.learnt.values()) if self.save else self.run()
        return result

    def run(self) -> Tensor:
        """Runs the engine, unless it did; returns list values (none if nothing is saved), or the potentials of a readout."""
        if self.result is None:
            self.result = _core.forward(self.prepare())
        if self.is_readout:
            return torch.from_numpy(self.result.potentials)
        return torch.from_numpy(self.result.values) if self.save else torch.empty(0, dtype=torch.float32, device="cpu")

    def ran(self, sources: Sequence[SpikeBatch], result: _core.Run) -> None:
        """After the engine ran it among other layers: the lists that it read, and what it gave back."""
        self.sources = tuple(sources)
        self.values = [self.values_of(k) for k in range(len(self.sources))]
        self.result = result

    def prepare(self, lists: Sequence[_core.Lists] | None = None) -> _core.LayerCall:
        """The engine's view of the pass; `lists`: of every source, if not those of `sources`."""
        self.arrays = {name: to_array(x, name) for name, x in self.tensors.items()}
        seed = list_seed(self.layer.rotation_seed, self.training_step)
        first_step = self.state.step if self.state else 0
        self.spec = self.wiring.spec(self.layer, self.save, self.learnt).at(seed, first_step, self.first_sample)
        self.pack()
        return self.make_call(lists or [engine_lists(source) for source in self.sources])

    def lists(self, values: Tensor | None) -> SpikeBatch:
        """The lists of this process's neurons, ids from 0."""
        first, end = self.layer.neurons
        return spikes_of(self.result, self.n_steps, self.n_samples, end - first, values)

    def gradients(self, d_out: np.ndarray, wanted_values: list[bool]) -> tuple[dict[str, Any], list[Any]]:
        """Of the tensors that learn, by name, and of the values of every source's lists."""
        return self.run_backward(d_out, wanted_values)

    # ---- what differs where ranks share the neurons --------------------------------------------------------------

    def values_of(self, source: int) -> Tensor | None:
        """The values of a source's lists that autograd sees."""
        return self.sources[source].values

    def sorted_lists(self, source: int) -> _core.SortedLists | None:
        """A source's lists as their owners have sorted them; the gradient of their values comes in that order then."""
        return None

    def pack(self) -> None:
        """Sets `packed`: weights in the engine's order that are there already."""

    def make_call(self, lists: Sequence[_core.Lists]) -> _core.LayerCall:
        """The engine's view; `lists`: of every source."""
        layer, wiring, rows, arrays, packed = self.layer, self.wiring, self.wiring.rows, self.arrays, self.packed
        are_sorted = map(self.sorted_lists, range(len(lists)))
        read = zip(wiring.senders, lists, wiring.n_pre, self.delays, are_sorted, strict=True)
        return _core.LayerCall(
            self.spec,
            n_steps=self.n_steps,
            n_samples=self.n_samples,
            sources=[
                _core.Source(
                    of, n_pre, delay, arrays[name], packed.get(name), rows.get(name), wiring.windows.get(name), found
                )
                for name, of, n_pre, delay, found in read
            ],
            parameters=[arrays[name] for name in wiring.parameters],
            grad_threshold=arrays.get("grad_threshold"),
            bias=arrays.get("bias"),
            loops=[
                _core.Loop(arrays[name], delay, packed.get(name), rows.get(name), *self.axonal(name))
                for name, delay in zip(wiring.loops, layer.loop_delays, strict=True)
            ],
            state=None if self.state is None else states_of(layer, self.state),
            own_before=own_before(layer, self.state),
            exchange=layer.part.exchange if layer.part else None,
        )

    def axonal(self, loop: str) -> tuple[np.ndarray | None, np.ndarray | None]:
        """The axonal delays of a loop: whole steps, and parts of a step where they lie between two."""
        delays = self.arrays.get(loop + DELAYS)
        if delays is None:
            return None, None
        steps = np.floor(delays)
        between = self.layer.between_steps(self.wiring.connections[loop])
        return steps.astype(np.int32), delays - steps if between else None

    def run_backward(
        self, d_out: np.ndarray, wanted_values: list[bool], n_batch: int = 0, population: _core.Lists | None = None
    ) -> tuple[dict[str, Any], list[Any]]:
        """As `gradients`; n_batch, population: as of `_core.backward`."""
        senders, loops = self.wiring.senders, self.wiring.loops
        grads = _core.backward(
            self.result.call,
            self.result,
            d_out,
            [name in self.learnt for name in senders],
            wanted_values,
            [name in self.learnt for name in loops],
            "bias" in self.learnt,
            n_batch=n_batch,
            wanted_delays=[name + DELAYS in self.learnt for name in loops],
            population=population,
        )
        found = dict(zip(senders, grads["weight"], strict=True))
        found.update(zip(loops, grads["loops"], strict=True), bias=grads["bias"])
        found.update(zip([name + DELAYS for name in loops], grads["delays"], strict=True))
        found.update(zip(self.wiring.parameters, grads["parameters"], strict=True))
        return found, list(grads["value"])


@dataclass(frozen=True)
class Snapshot:
    """A layer's tensors as they were at one time, for passes without gradients.

    Args:
        tensors: those of `layer_tensors`; where a weight is packed, its tensor gives the shape alone.
        packed: matrices in the order in which the engine reads them; without it every call puts them in order.
    """

    tensors: dict[str, Tensor]
    packed: dict[str, np.ndarray]

    @classmethod
    def of(cls, layer: PopulationModule) -> Snapshot:
        with torch.no_grad():
            tensors = {name: x.detach() for name, x in layer_tensors(layer).items()}
        wiring = Wiring.of(layer)
        spec, packed = wiring.spec(layer, False, ()), {}
        for name in wiring.matrices:
            c = wiring.connections[name]
            packed[name] = np.empty(_core.packed_bytes(spec, c.n_pre), np.uint8)
            _core.pack_rows(spec, wiring.by_sample, to_array(tensors[name], name), 0, c.n_pre, packed[name], c.name)
        return cls({name: x if name in packed else x.clone() for name, x in tensors.items()}, packed)


def matrices(layer: Any) -> dict[str, np.ndarray]:
    """The weights [M, n] that the engine reads as they are or packed, by its names."""
    wiring = Wiring.of(layer)
    with torch.no_grad():
        return {
            name: to_array(layer.matrix(wiring.connections[name]), name)
            for name in wiring.matrices
            if name not in wiring.pools
        }


class _RunLayer(torch.autograd.Function):
    """forward(pass, values of each source…, learnt parameters…) → values of the layer's lists, or readout potentials."""

    @staticmethod
    def forward(ctx: Any, this: Pass, *inputs: Tensor) -> Tensor:
        ctx.this, ctx.read = this, inputs[: len(this.sources)]
        ctx.save_for_backward(*inputs[len(this.sources) :])
        return this.run()

    @staticmethod
    @first_order("a layer of the backend 'cpu'")
    def backward(ctx: Any, d_out: Tensor) -> tuple[Any, ...]:
        this: Pass = ctx.this
        _ = ctx.saved_tensors  # PyTorch's look whether one was changed since; the engine reads them where they lie
        wanted_values = list(ctx.needs_input_grad[1 : 1 + len(this.sources)])
        if this.is_readout and d_out.stride(0) == 0:
            d_out = d_out[:1]  # the same at all steps
        found, d_values = this.gradients(to_array(d_out, "gradient"), wanted_values)
        return (None, *(None if g is None else torch.from_numpy(g) for g in (*d_values, *map(found.get, this.learnt))))


def spikes_of(
    result: _core.Run, n_steps: int, n_samples: int, n_neurons: int, values: Tensor | None = None
) -> SpikeBatch:
    """The lists that the engine gave back."""
    dropped = result.dropped
    return SpikeBatch(
        torch.from_numpy(result.offsets),
        torch.from_numpy(result.ids),
        torch.from_numpy(result.n_spikes),
        n_steps,
        n_samples,
        n_neurons,
        values,
        None if dropped is None else torch.from_numpy(dropped),
    )


def state_after(
    layer: Any,
    before: LayerState | None,
    result: _core.Run,
    sent: SpikeBatch | None,
    n_steps: int,
    training_step: int,
) -> LayerState:
    """The state that a pass leaves; `result`: what the engine gave back, `sent`: the lists in it, None of a readout."""
    states = {x: torch.from_numpy(a) for x, a in zip(layer.population.states, result.state, strict=True)}
    after = LayerState(states, step=n_steps + (before.step if before else 0), training_step=training_step)
    if sent is not None and layer.n_history:
        after.history = last_steps(before.history if before else None, sent, layer.n_history)
    return after


def states_of(layer: PopulationModule, state: LayerState) -> list[np.ndarray]:
    """The states of the neuron model, in its order."""
    names = layer.population.states
    return [to_array(z.detach().float(), f"state {x}") for x, z in zip(names, state.of(names), strict=True)]


def own_before(layer: Any, state: LayerState | None) -> _core.Lists | None:
    """The population's own lists before the pass, which its loops read."""
    if not layer.loops or state is None or not isinstance(state.history, SpikeBatch):
        return None
    n_steps, longest = state.history.n_steps, layer.loop_reach
    if n_steps < longest:
        raise ShapeError(
            f"state: its history has {n_steps} steps; this layer hears itself {longest} steps later; pass the state that "
            "this layer returned"
        )
    return engine_lists(state.history.steps(n_steps - longest, n_steps))


def engine_lists(spikes: SpikeBatch) -> _core.Lists:
    """The engine's view. Detached tensors keep their memory when the batch's own get another (`set_`, `data`)."""
    spikes.check_form()
    if spikes.device.type != "cpu":
        raise ShapeError(
            f"input: spike lists are on {spikes.device}; the cpu engine reads main memory: give spikes.to('cpu')"
        )
    values = to_array(spikes.values, "values") if spikes.graded and spikes.values is not None else None
    offsets, ids, n_spikes = (x.detach().numpy() for x in (spikes.offsets, spikes.ids, spikes.n_spikes))
    return _core.Lists(offsets, ids, n_spikes, values)


def to_array(x: Tensor, name: str) -> np.ndarray:
    """The tensor's memory as a contiguous float32 array; copied only where it is not contiguous."""
    if x.dtype != torch.float32 or not x.is_cpu:
        raise ShapeError(
            f"{name} is {x.dtype} on {x.device}; the cpu engine computes in float32 on the cpu: call model.float().cpu(), or use backend 'dense'"
        )
    return (x if x.is_contiguous() else x.contiguous()).detach().numpy()


#: no steps of no samples, and the engine's view of them
NOTHING = SpikeBatch._from_flat(np.empty(0, np.int64), np.empty(0, np.int32), 0, 0, 1)
NO_LISTS = engine_lists(NOTHING)
