"""A layer as the engine `cpu` sees it: its tensors, and everything that does not change between calls."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsesnn import _core
from sparsesnn.engines.cpu.lists import to_array
from sparsesnn.engines.entries import as_float32, entries_of, neuron_tensors
from sparsesnn.layers import is_readout
from sparsesnn.layers.shapes import shape_of
from sparsesnn.parameters import DELAYS, Incoming, PopulationModule
from sparsesnn.placement import cpu_tile_width
from sparsesnn.synapses import Synapses
from sparsesnn.synapses.base import InLists


def layer_tensors(layer: PopulationModule) -> dict[str, Tensor]:
    """All tensors that define the layer, under the engine's names; parameters that learn within their range and [n], others as they
    are."""
    wiring = Wiring.of(layer)
    found = {}
    for name, c in wiring.connections.items():
        if name in wiring.pools:
            found[name] = torch.ones(
                c.synapses.weight_shape(c.n_pre, layer.population.n), dtype=torch.float32, device="cpu"
            )
        else:
            found[name] = layer.weight(c) if name in wiring.rows or name in wiring.windows else layer.matrix(c)
        if c.axonal:
            found[name + DELAYS] = layer.axonal_delays(c)
    for name in ("bias", "grad_threshold"):
        value: Tensor | None = layer.tensor(name)
        if value is not None:
            found[name] = value
    return {**found, **neuron_tensors(layer)}


class Wiring:
    """The parts of a layer that do not change between calls.

    Attributes:
        senders, loops: the engine's names of the weights of `layer.senders` and `layer.loops`; a sender of currents has none.
        of_lists: the senders of lists.
        connections: by these names, behind their pools.
        n_pre: neurons in the lists of each sender, likewise.
        pools: names of the connections that only pool: each pooled neuron feeds one neuron of the layer.
        pools_before: of each sender, the pools that its lists go through first.
        windows: convolutions, by the names of their weights.
        parameters: names of the neurons' parameters, in the model's order.
        rows: compressed rows, by the names of the weights that have some.
        matrices: names of the weights that have neither rows nor windows.
        read_as_they_are: names of the parameters that the engine reads in place, unless weights are rounded to integers.
    """

    def __init__(self, layer: PopulationModule) -> None:
        self.of_lists = [c for c in layer.senders if not c.synapses.gives_currents]
        self.senders = [f"weight{k}" for k in range(len(self.of_lists))]
        self.loops = [f"loop{k}" for k in range(len(layer.loops))]
        self.connections = {
            **dict(zip(self.senders, map(behind_pools, self.of_lists), strict=True)),
            **dict(zip(self.loops, layer.loops, strict=True)),
        }
        self.n_pre = [self.connections[name].n_pre for name in self.senders]
        self.pools_before = [in_lists(c.synapses, c.n_pre).pools for c in self.of_lists]
        weightless = {c.name for c in self.of_lists if not layer.has_weights(c) and layer.columns(c) is None}
        self.pools = {name for name, c in self.connections.items() if c.name in weightless}
        shapes = {name: c.synapses.window_shape() for name, c in self.connections.items()}
        self.windows = {name: _core.Windows(**shape) for name, shape in shapes.items() if shape}
        self.parameters = tuple(parameter.name for parameter in layer.population.parameters)
        by_blocks = bool(layer.part and layer.part.ranks)
        self.rows: dict[str, _core.SparseRows] = {}
        for name, c in self.connections.items():
            if c.synapses.is_compressed(c.n_pre, layer.population.n):
                columns = layer.columns(c)
                assert columns is not None
                offsets, senders = columns
                width, first = tile_width(layer), layer.neurons[0]
                self.rows[name] = _core.SparseRows(c.n_pre, offsets, senders, width, first, by_blocks)
        self.matrices = [name for name in self.connections if name not in {**self.rows, **self.windows}]
        read = [c for name, c in self.connections.items() if name not in self.matrices or layer.columns(c) is None]
        self.read_as_they_are = {"bias", *(c.name for c in read)}
        self.by_sample = bool(self.rows) or bool(self.loops) or bool(self.windows)
        self.specs: dict[Any, _core.LayerSpec] = {}

    @staticmethod
    def of(layer: Any) -> Wiring:
        """Made once; a copy of the layer makes its own."""
        if layer.wiring is None:
            layer.wiring = Wiring(layer)
        found: Wiring = layer.wiring
        return found

    def spec(self, layer: PopulationModule, save: bool, learnt: Collection[str]) -> _core.LayerSpec:
        """The layer's numbers that do not change between calls."""
        key = save, layer.weight_dtype, tuple(name in learnt for name in self.parameters)
        if key not in self.specs:
            self.specs[key] = _core.LayerSpec(**spec_arguments(layer, save, learnt))
        return self.specs[key]


def layer_call(
    layer: Any, tensors: Mapping[str, Tensor], save: bool, learnt: Collection[str], *, continues: bool = False
) -> _core.LayerCall:
    """The engine's view of a layer in a chain, which fills in lists, sizes and state.

    Args:
        tensors: those of `layer_tensors`.
        save: whether a backward pass may follow.
        learnt: names of the tensors that learn.
        continues: calls continue a sequence, and a sender's lists begin earlier by its delay.
    """
    wiring = Wiring.of(layer)
    arrays = {name: to_array(x, name) for name, x in tensors.items()}
    trained = [name for name in wiring.parameters if save and name in learnt]
    entries = entries_of(layer.population, {name: arrays[name] for name in wiring.parameters}, trained)
    packed: Mapping[str, Any] = layer.snapshot.packed if layer.snapshot else {}

    def axonal(loop: str) -> tuple[np.ndarray | None, np.ndarray | None]:
        delays = arrays.get(loop + DELAYS)
        if delays is None:
            return None, None
        steps = np.floor(delays)
        between = layer.between_steps(wiring.connections[loop])
        return steps.astype(np.int32), delays - steps if between else None

    return _core.LayerCall(
        wiring.spec(layer, save, learnt),
        states=layer.population.states,
        sources=[
            _core.Source(
                c.n_pre,
                0 if continues else c.delay,
                arrays[name],
                packed.get(name),
                wiring.rows.get(name),
                wiring.windows.get(name),
            )
            for name, c in zip(wiring.senders, map(behind_pools, wiring.of_lists), strict=True)
        ],
        entries=[as_float32(x) for x in entries.values],
        derivatives=[[None if x is None else as_float32(x) for x in by] for by in entries.derivatives],
        grad_threshold=arrays.get("grad_threshold"),
        bias=arrays.get("bias"),
        loops=[
            _core.Loop(arrays[name], delay, packed.get(name), wiring.rows.get(name), *axonal(name))
            for name, delay in zip(wiring.loops, layer.loop_delays, strict=True)
        ],
        ranks=layer.part.ranks if layer.part else None,
    )


@dataclass(frozen=True)
class Snapshot:
    """A layer's tensors as they were at one time, for passes without gradients.

    Args:
        tensors: those of `layer_tensors`; the tensor of a packed weight gives only its shape.
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


def behind_pools(c: Incoming) -> Incoming:
    """A connection as the engine delivers it."""
    found = in_lists(c.synapses, c.n_pre)
    return c._replace(n_pre=found.n_pre, synapses=found.kind)


def in_lists(synapses: Synapses, n_pre: int) -> InLists:
    """How lists go through synapses."""
    found = synapses.in_lists(n_pre)
    assert found is not None, "refused when the layer was made"
    return found


def tile_width(layer: PopulationModule) -> int:
    """Neurons of a tile of the layer, from the plan if there is one."""
    if layer.part:
        width: int = layer.part.shards.tile_width
        return width
    n = layer.population.n
    read = [c for c in layer.incoming if not c.synapses.gives_currents]
    return cpu_tile_width(n, max((c.synapses.n_read(c.n_pre, n) for c in map(behind_pools, read)), default=0))


def spec_arguments(layer: Any, save: bool, learnt: Collection[str]) -> dict[str, Any]:
    """The arguments of the layer's `_core.LayerSpec`, the same at every call."""
    population, shape = layer.population, shape_of(layer.population)
    common: dict[str, Any] = {
        "shape": shape.name,
        "fires": shape.fires,
        "n_trained": sum(parameter.name in learnt for parameter in population.parameters),
        "n": layer.neurons[1] - layer.neurons[0],
        "population": population.n if layer.part else 0,
        "first": layer.neurons[0],
        "tile_width": tile_width(layer),
        "bf16": layer.weight_dtype == "bfloat16",
        "save": save,
        "seed": 0,
        "first_step": 0,
    }
    if is_readout(population):
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
