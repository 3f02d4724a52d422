"""Runs layers on the event-sparse CPU engine and joins them to PyTorch's autograd.

Between layers travel spike lists; their `values` tensor (1 for spikes, 0 for near-spikes) is what autograd sees. The
gradient of a value is ∂L/∂s of that neuron at that step, defined at listed neurons only: the sparse gradient of
Finkbeiner et al. 2024 is the ordinary gradient of this graph.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sparsesnn import _core
from sparsesnn.bounds import bounded
from sparsesnn.errors import ShapeError
from sparsesnn.layers import LI
from sparsesnn.output import LayerState, last_steps
from sparsesnn.parameters import Incoming, PopulationModule
from sparsesnn.partition.cpu.tiles import cpu_tile_width
from sparsesnn.rotation import list_seed
from sparsesnn.spikes import SpikeBatch

if TYPE_CHECKING:
    from sparsesnn.engines.module import Layer
    from sparsesnn.layers import Population


def run_layer(
    layer: Layer, sources: Sequence[SpikeBatch], state: LayerState | None, training_step: int = 0
) -> tuple[SpikeBatch | Tensor, LayerState]:
    """One layer over one chunk of a sequence; see `sparsesnn.engines.module.Layer.forward`.

    Args:
        training_step: see `sparsesnn.rotation.list_seed`.
    """
    delays = layer.delays if state is None else (0,) * len(sources)
    extra = (0,) * len(sources) if state is None else layer.delays
    n_steps, n_samples = sources[0].n_steps - extra[0], sources[0].n_samples
    for source, n_pre, more in zip(sources, layer.n_pre, extra, strict=True):
        if (source.n_steps - more, source.n_samples, source.n_neurons) != (n_steps, n_samples, n_pre):
            raise ShapeError(
                f"input has T={source.n_steps - more}, B={source.n_samples}, N={source.n_neurons}; "
                f"this layer needs T={n_steps}, B={n_samples}, N={n_pre}"
            )
    population = layer.population
    kept: Snapshot | None = layer.snapshot
    tensors = kept.tensors if kept else layer_tensors(layer)
    learnt = {name: x for name, x in tensors.items() if x.requires_grad} if torch.is_grad_enabled() else {}
    values = [s.values for s in sources]
    save = bool(learnt) or (torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in values))
    call = _Call(
        spec=_spec(layer, save, frozenset(learnt), 0 if state is None else state.step, training_step),
        n_steps=n_steps,
        n_samples=n_samples,
        sources=tuple(sources),
        delays=delays,
        learnt=tuple(learnt),
        constant={name: _array(x, name) for name, x in tensors.items() if name not in learnt},
        parameters=parameter_names(population),
        loop_delays=layer.loop_delays,
        state=None
        if state is None
        else [_array(z, f"state {x}") for x, z in zip(population.states, state.of(population.states), strict=True)],
        own_before=_own_before(layer, state),
        rows=sparse_rows(layer),
        packed=kept.packed if kept else {},
    )
    result: Tensor = _RunLayer.apply(call, *values, *learnt.values()) if save else call.run(())
    states = {x: torch.from_numpy(a) for x, a in zip(population.states, call.result["state"], strict=True)}
    step = n_steps if state is None else state.step + n_steps
    after = LayerState(states, step=step, training_step=training_step)
    if isinstance(population, LI):
        return result, after
    out = call.lists(result if save else None)
    if layer.n_history:
        before = state.history if state is not None else None
        after = replace(after, history=last_steps(before, out, layer.n_history))
    return out, after


@dataclass
class _Call:
    """One call of a layer: what the engine is given, and after `run` what it gave back."""

    spec: _core.LayerSpec
    n_steps: int
    n_samples: int
    sources: tuple[SpikeBatch, ...]
    delays: tuple[int, ...]
    learnt: tuple[str, ...]
    constant: dict[str, np.ndarray]
    parameters: tuple[str, ...]
    loop_delays: tuple[int, ...]
    state: list[np.ndarray] | None
    own_before: _core.Lists | None
    rows: Mapping[str, _core.SparseRows]
    packed: Mapping[str, np.ndarray]
    engine_call: Any = None
    result: Any = None

    def _engine_call(self, learnt: Sequence[Tensor]) -> _core.LayerCall:
        arrays = {**self.constant, **{name: _array(x, name) for name, x in zip(self.learnt, learnt, strict=True)}}
        sources = [
            _core.Source(
                engine_lists(source),
                source.n_neurons,
                delay,
                arrays[f"weight{k}"],
                packed=self.packed.get(f"weight{k}"),
                rows=self.rows.get(f"weight{k}"),
            )
            for k, (source, delay) in enumerate(zip(self.sources, self.delays, strict=True))
        ]
        return _core.LayerCall(
            self.spec,
            n_steps=self.n_steps,
            n_samples=self.n_samples,
            sources=sources,
            parameters=[arrays[name] for name in self.parameters],
            grad_threshold=arrays.get("grad_threshold"),
            bias=arrays.get("bias"),
            loops=[
                _core.Loop(arrays[f"loop{k}"], delay, self.packed.get(f"loop{k}"), self.rows.get(f"loop{k}"))
                for k, delay in enumerate(self.loop_delays)
            ],
            state=self.state,
            own_before=self.own_before,
        )

    def run(self, learnt: Sequence[Tensor]) -> Tensor:
        """Runs the engine; returns list values (none if nothing is saved), or the potentials of a readout.

        `learnt`: the tensors of these names.
        """
        self.engine_call = self._engine_call(learnt)
        self.result = _core.forward(self.engine_call)
        out = self.result["values"] if self.result["potentials"] is None else self.result["potentials"]
        return torch.empty(0) if out is None else torch.from_numpy(out)

    def lists(self, values: Tensor | None) -> SpikeBatch:
        """The lists the layer put out."""
        dropped = self.result["dropped"]
        return SpikeBatch(
            offsets=torch.from_numpy(self.result["offsets"]),
            ids=torch.from_numpy(self.result["ids"]),
            n_spikes=torch.from_numpy(self.result["n_spikes"]),
            n_steps=self.n_steps,
            n_samples=self.n_samples,
            n_neurons=self.spec.n,
            values=values,
            dropped=None if dropped is None else torch.from_numpy(dropped),
        )


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
    def of(cls, layer: Layer) -> Snapshot:
        with torch.no_grad():
            tensors = {name: x.detach() for name, x in layer_tensors(layer).items()}
        rows, spec = sparse_rows(layer), _spec(layer, False, frozenset(), 0, 0)
        packed = {}
        for name, c in connections_read(layer).items():
            if name not in rows:
                packed[name] = np.empty(_core.packed_bytes(spec, c.n_pre), np.uint8)
                by_sample = bool(rows) or bool(layer.loops)
                _core.pack_rows(spec, by_sample, _array(tensors[name], name), 0, c.n_pre, packed[name], c.name)
        return cls({name: x if name in packed else x.clone() for name, x in tensors.items()}, packed)


class _RunLayer(torch.autograd.Function):
    """forward(call, values of each source…, learnt parameters…) → values of the layer's lists, or readout potentials."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *inputs: Tensor) -> Tensor:
        learnt = inputs[len(call.sources) :]
        ctx.call = call
        ctx.save_for_backward(*learnt)
        return call.run(learnt)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Any, ...]:
        call: _Call = ctx.call
        n_sources = len(call.sources)
        d_array = _array(d_out, "gradient")
        readout = call.result["potentials"] is not None
        _ = ctx.saved_tensors  # PyTorch's look whether one was changed since; the engine reads them where they lie
        grads = _core.backward(
            call.engine_call,
            call.result,
            None if readout else d_array,
            d_array if readout else None,
            [f"weight{k}" in call.learnt for k in range(n_sources)],
            list(ctx.needs_input_grad[1 : 1 + n_sources]),
            [f"loop{k}" in call.learnt for k in range(len(call.loop_delays))],
            "bias" in call.learnt,
        )
        by_name = gradients_by_name(grads, call.parameters)
        found = [by_name[name] for name in call.learnt]
        return (None, *(None if g is None else torch.from_numpy(g) for g in (*grads["value"], *found)))


def parameter_names(population: LI | Population) -> tuple[str, ...]:
    """The parameters of a neuron model in the order of the C++ model."""
    return tuple(parameter.name for parameter in population.parameters)


def gradients_by_name(grads: Mapping[str, Any], parameters: Sequence[str]) -> dict[str, Any]:
    """What `_core.backward` found, under the names of `layer_tensors`; None where there is no gradient."""
    return {
        **{f"weight{k}": weight for k, weight in enumerate(grads["weight"])},
        **{f"loop{k}": weight for k, weight in enumerate(grads["loops"])},
        "bias": grads["bias"],
        **dict(zip(parameters, grads["parameters"], strict=True)),
    }


def layer_tensors(layer: Layer) -> dict[str, Tensor]:
    """All tensors that define the layer, under the engine's names; parameters within their range."""
    found = weights_read(layer)
    for name in ("bias", "grad_threshold"):
        value: Tensor | None = getattr(layer, name, None)
        if value is not None:
            found[name] = value
    for name, low, high in layer.population.parameters:
        value = getattr(layer, name)
        found[name] = bounded(value, low, high)
        if value.requires_grad and value.ndim == 0:
            found[name] = found[name].expand(layer.population.n)
    return found


def connections_read(layer: PopulationModule) -> dict[str, Incoming]:
    """The connections of a layer under the engine's names of their weights."""
    senders = {f"weight{k}": c for k, c in enumerate(layer.senders)}
    return {**senders, **{f"loop{k}": c for k, c in enumerate(layer.loops)}}


def weights_read(layer: PopulationModule) -> dict[str, Tensor]:
    """Weights in the form that the engine reads: matrices, or one number for each synapse of compressed rows."""
    n = layer.population.n
    return {
        name: layer.weight(c) if c.synapses.is_compressed(c.n_pre, n) else layer.matrix(c)
        for name, c in connections_read(layer).items()
    }


def sparse_rows(layer: Any) -> dict[str, _core.SparseRows]:
    """The compressed rows that the engine reads, under its names of weights; made once."""
    if layer.rows is None:
        layer.rows = {}
        for name, c in connections_read(layer).items():
            if c.synapses.is_compressed(c.n_pre, layer.population.n):
                offsets, senders = layer.columns(c)
                by_blocks = getattr(layer, "exchange", None) is not None
                layer.rows[name] = _core.SparseRows(
                    c.n_pre, offsets, senders, tile_width(layer), layer.neurons[0], by_blocks
                )
    found: dict[str, _core.SparseRows] = layer.rows
    return found


def tile_width(layer: PopulationModule) -> int:
    """Neurons of a tile of the layer."""
    n = layer.population.n
    return cpu_tile_width(n, sum(c.synapses.n_read(c.n_pre, n) for c in layer.incoming))


def _spec(layer: Layer, save: bool, learnt: frozenset[str], first_step: int, training_step: int) -> _core.LayerSpec:
    return _core.LayerSpec(**spec_arguments(layer, save, learnt, first_step, training_step))


def spec_arguments(
    layer: Layer, save: bool, learnt: Collection[str], first_step: int = 0, training_step: int = 0
) -> dict[str, Any]:
    """What the engine must know of a layer beside its arrays."""
    population = layer.population
    common: dict[str, Any] = {
        "model": population.kernel,
        "constants": population.constants,
        "learns": [name in learnt for name in parameter_names(population)],
        "n": population.n,
        "tile_width": tile_width(layer),
        "bf16": layer.weight_dtype == "bfloat16",
        "save": save,
        "seed": list_seed(layer.rotation_seed, training_step),
        "first_step": first_step,
    }
    if isinstance(population, LI):
        readout = {"detach_reset": True, "surrogate": "straight_through", "slope": 1.0, "capacity": 0}
        return {**common, **readout, "fixed": False}
    return {
        **common,
        "detach_reset": population.detach_reset,
        "surrogate": population.surrogate.kind,
        "slope": population.surrogate.slope,
        "capacity": population.capacity or 0,
        "fixed": population.activity == "fixed",
    }


def _own_before(layer: Layer, state: LayerState | None) -> _core.Lists | None:
    if not layer.loops or state is None or not isinstance(state.history, SpikeBatch):
        return None
    n_steps, longest = state.history.n_steps, max(layer.loop_delays)
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
    values = _array(spikes.values, "values") if spikes.graded and spikes.values is not None else None
    offsets, ids, n_spikes = (x.detach().numpy() for x in (spikes.offsets, spikes.ids, spikes.n_spikes))
    return _core.Lists(offsets, ids, n_spikes, values)


def _array(x: Tensor, name: str) -> np.ndarray:
    """The tensor's memory as a contiguous float32 array; copied only where it is not contiguous."""
    if x.dtype != torch.float32 or x.device.type != "cpu":
        raise ShapeError(f"{name} is {x.dtype} on {x.device}; the cpu engine computes in float32 on the cpu")
    return x.detach().contiguous().numpy()
