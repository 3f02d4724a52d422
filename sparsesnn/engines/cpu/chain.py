"""Chains: layers, and the transforms of lists between them, which the engine runs in one call, forward and back.

A network is a chain; a single `Layer` is a chain of one; a live network is a chain that keeps its state; over ranks the engine gathers the
lists of each layer. Between layers travel spike lists, whose `values` (1 for spikes, 0 for near-spikes) are what autograd sees: the gradient
of a value is ∂L/∂s of that neuron at that step, defined at listed neurons only. The sparse gradient of Finkbeiner et al. 2024 is the ordinary
gradient of this graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sparsesnn import _core
from sparsesnn.currents import Currents
from sparsesnn.engines.cpu import transforms
from sparsesnn.engines.cpu.chain_pass import ChainPass
from sparsesnn.engines.cpu.lists import own_before, states_of, to_array
from sparsesnn.engines.cpu.wiring import Wiring, layer_call, layer_tensors
from sparsesnn.engines.dropout import numbers
from sparsesnn.errors import NumericError
from sparsesnn.layers import fires
from sparsesnn.network import Network, gives_currents
from sparsesnn.output import LayerState
from sparsesnn.parameters import DELAYS
from sparsesnn.rotation import list_seed, next_training_step
from sparsesnn.rounding import BITS
from sparsesnn.spikes import SpikeBatch
from sparsesnn.tracers import recorded

if TYPE_CHECKING:
    from sparsesnn.engines.dropout import Heard


@dataclass
class Node:
    """A layer or a transform of a chain.

    Args:
        layer: the name of the layer; of a transform, that of the layer that reads its lists.
        reads: inputs and nodes; the inputs come first.
        sources: the lists that receive the gradient of the values: the same, but in front of pools, whose entries belong to no neuron.
        n: neurons.
        given: the sender of the layer's currents; empty: it has none.
        transform: None for a layer.
        learnt: by the engine's names, the tensors whose gradients the engine finds, in its order.
        saves: whether a backward pass may come through.
    """

    layer: str
    reads: list[int]
    sources: list[int]
    n: int
    given: str = ""
    transform: transforms.Made | None = None
    learnt: dict[str, Tensor] = field(default_factory=dict)
    saves: bool = False

    @property
    def keeps_neurons(self) -> bool:
        """Whether its entries belong to neurons."""
        return self.transform is None or self.transform.core.keeps_neurons


class Chain:
    """Layers and transforms with the tensors that they have now: made once, and rebuilt if a tensor is replaced or moves.

    Args:
        layers: by name, in the order in which they run.
        senders: of every layer, the inputs or layers that it reads.
        inputs: by name, neurons.
        learns: whether gradients of the values of the inputs' lists are wanted.
        given: by name, senders of currents, and whether the gradient of the currents is wanted.
        thinned, continues, resumes: see `transforms.Way`.
        shards: the exchange between ranks that share neurons; None: they share none.

    Attributes:
        nodes: in the order in which they run.
        places: of every input and layer, where nodes read it.
        layer_nodes: the number of each layer's node.
        fires: the layers that put out lists.
        part: this rank's part of a layer, which every layer of the chain has over ranks; None: one process runs the chain.
    """

    def __init__(
        self,
        layers: Mapping[str, Any],
        senders: Mapping[str, Sequence[str]],
        inputs: Mapping[str, int],
        *,
        learns: Sequence[bool],
        given: Mapping[str, bool] | None = None,
        thinned: Mapping[str, int] | None = None,
        continues: bool = False,
        resumes: bool = False,
        shards: Any = None,
    ) -> None:
        self.given = given or {}
        self.layers, self.senders, self.inputs = dict(layers), senders, dict(inputs)
        self.learns, self.thinned, self.continues, self.resumes = list(learns), thinned or {}, continues, resumes
        self.shards = shards
        self.part: Any = next((layer.part for layer in self.layers.values()), None)
        self.reduction = self.part.reduction if self.part else None
        self.nodes: list[Node] = []
        self.places: dict[str, int] = {name: k for k, name in enumerate(self.inputs)}
        self._shared: dict[tuple[int, Hashable], int] = {}
        self.chain = _core.Chain(self.learns, shards)
        self.layer_nodes: dict[str, int] = {}
        in_place = True
        for name, layer in self.layers.items():
            tensors = self._add_layer(name, layer)
            own = {id(x) for x in (*layer._parameters.values(), *layer._buffers.values())}
            in_place = in_place and all(id(x) in own and x.is_contiguous() for x in tensors.values())
        self.fires = [name for name, layer in self.layers.items() if fires(layer.population)]
        self.counts = any(layer.training_steps is not None for layer in self.layers.values())
        self.key = self.key_of(self.layers, [*self.learns, *self.given.values()]) if in_place else None

    @property
    def n_inputs(self) -> int:
        return len(self.inputs)

    @cached_property
    def is_plain(self) -> bool:
        """Whether gradients are wanted only for parameters that the engine reads in place."""
        return not any((*self.learns, *self.given.values())) and learns_as_read(self.layers.values())

    def saves(self, name: str) -> bool:
        """Whether a backward pass may come through a layer."""
        return self.nodes[self.layer_nodes[name]].saves

    @staticmethod
    def key_of(layers: Mapping[str, Any], learns: Sequence[bool]) -> list[Any]:
        """The dependencies of a chain: the tensors, their places in memory, which of them learn, and the neurons' parameters."""
        key: list[Any] = [*learns, torch.is_grad_enabled()]
        for layer in layers.values():
            key += (id(layer), layer.weight_dtype)
            for x in (*layer._parameters.values(), *layer._buffers.values()):
                key.append(
                    None if x is None else (id(x), x.data_ptr(), x.dtype, x.shape, x.is_contiguous(), x.requires_grad)
                )
            key += (layer.tensor(name).detach().numpy().tobytes() for name in Wiring.of(layer).parameters)
        return key

    def holds(self, layers: Mapping[str, Any], learns: Sequence[bool]) -> bool:
        """Whether the chain still fits these layers; `learns`: of the lists of each input, then of given currents."""
        return self.key is not None and self.key == self.key_of(layers, learns)

    # ---- how it is made ----------------------------------------------------------------------------------------

    def _add_layer(self, name: str, layer: Any) -> dict[str, Tensor]:
        """Adds a layer, and the transforms between it and its senders; returns its tensors."""
        with named(name):
            tensors = layer.snapshot.tensors if layer.snapshot else layer.tensors_read or layer_tensors(layer)
        learnt = {key: x for key, x in tensors.items() if x.requires_grad} if torch.is_grad_enabled() else {}
        wiring = Wiring.of(layer)
        reads: list[int] = []
        given = ""
        for c, pre in zip(layer.senders, self.senders[name], strict=True):
            if c.synapses.gives_currents:
                given = pre
                continue
            k, at = len(reads), self.places[pre]
            way = transforms.Way(
                layer,
                c,
                pre,
                wiring.senders[k],
                tensors,
                wiring.pools_before[k],
                self.thinned,
                self.continues,
                self.resumes,
            )
            for made in transforms.between(way):
                at = self.add(made, name, at, learnt)
            reads.append(at)
        order = [*wiring.senders, *wiring.loops, *(loop + DELAYS for loop in wiring.loops), "bias", *wiring.parameters]
        own = {x: learnt[x] for x in order if x in learnt}
        sources = list(map(self._source, reads))
        saves = bool(own) or self.given.get(given, False) or any(map(self._saves, sources))
        with named(name):
            call = layer_call(layer, tensors, saves, own, continues=self.continues)
        self.chain.add_layer(
            name,
            call,
            reads,
            [x in own for x in wiring.senders],
            [x in own for x in wiring.loops],
            [x + DELAYS in own for x in wiring.loops],
            "bias" in own,
        )
        self.nodes.append(Node(name, reads, sources, layer.population.n, given, None, own, saves))
        self.places[name] = self.n_inputs + len(self.nodes) - 1
        self.layer_nodes[name] = len(self.nodes) - 1
        return tensors

    def add(self, made: transforms.Made, layer: str, at: int, learnt: Mapping[str, Tensor] | None = None) -> int:
        """Adds a transform of the lists at `at`, unless there is one that readers share; where its lists are.

        Args:
            learnt: the tensors of the layer that learn.
        """
        if made.shared is not None and (at, made.shared) in self._shared:
            return self._shared[at, made.shared]
        own = {name: learnt[name] for name in made.learns if name in learnt} if learnt else {}
        self.chain.add_transform(f"{layer}: {made.kind}", made.core, at, bool(own))
        saves = bool(own) or self._saves(at)
        self.nodes.append(Node(layer, [at], [self._source(at)], made.core.n_made, "", made, own, saves))
        place = self.n_inputs + len(self.nodes) - 1
        if made.shared is not None:
            self._shared[at, made.shared] = place
        return place

    def _saves(self, at: int) -> bool:
        return self.learns[at] if at < self.n_inputs else self.nodes[at - self.n_inputs].saves

    def _source(self, at: int) -> int:
        """The lists in front of pools."""
        while at >= self.n_inputs and not self.nodes[at - self.n_inputs].keeps_neurons:
            at = self.nodes[at - self.n_inputs].reads[0]
        return at

    # ---- passes ------------------------------------------------------------------------------------------------

    def training_steps(self) -> dict[str, int]:
        """The training step of each layer in a pass that begins a sequence; layers with a capacity count."""
        return {name: next_training_step(layer) if self.counts else 0 for name, layer in self.layers.items()}

    def forward(
        self,
        inputs: Sequence[Any],
        n_steps: int,
        n_samples: int,
        training_steps: Mapping[str, int],
        *,
        given: Mapping[str, Tensor] | None = None,
        past: Mapping[str, LayerState] | None = None,
        heard: Heard | None = None,
        first_sample: int = 0,
        hidden: bool = False,
        potentials: Collection[str] = (),
    ) -> ChainPass:
        """Runs all nodes.

        Args:
            inputs: `_core.Lists`, or the `_core.Run` of another chain.
            given: by sender, currents float32[T, B, N], or [B, N] for all steps.
            past: states of the layers, if the chain continues a sequence.
            heard: the spikes that dropout keeps, if the chain has dropout.
            hidden: nothing writes to the inputs before the backward pass.
            potentials: the layer that fires whose potentials are an output too; empty: none.
        """
        states = past or {}
        currents = {name: to_array(x, "currents") for name, x in (given or {}).items()}
        call = transforms.Call(n_samples, states, heard)
        settings = [
            (*self._setting(node.layer, training_steps, states), currents.get(node.given), node.layer in potentials)
            if node.transform is None
            else node.transform.setting(call)
            for node in self.nodes
        ]
        with recorded("sparsesnn.forward"):
            made = self.chain.forward(list(inputs), n_steps, n_samples, settings, hidden, first_sample)
        if self.shards:
            self.shards.count_traffic()
        constant = [name for name, x in currents.items() if x.ndim == 2]
        return ChainPass(
            self, made, tuple(inputs), n_steps, n_samples, training_steps, states, first_sample, constant, potentials
        )

    def _setting(self, name: str, training_steps: Mapping[str, int], past: Mapping[str, LayerState]) -> tuple[Any, ...]:
        layer, before = self.layers[name], past.get(name)
        seed = list_seed(layer.rotation_seed, training_steps[name])
        if before is not None:
            return seed, before.step, states_of(layer, before), own_before(layer, before), None
        if not layer.part or not layer.part.packed:
            return seed, 0, None, None, None
        wiring = Wiring.of(layer)
        return seed, 0, None, None, [layer.part.packed.get(x) for x in (*wiring.senders, *wiring.loops)]


@contextlib.contextmanager
def named(population: str) -> Iterator[None]:
    """Adds the name of a population to an error about its numbers."""
    try:
        yield
    except NumericError as error:
        raise NumericError(f"{population}: {error}" if population else str(error)) from None


def learns_as_read(layers: Iterable[Any]) -> bool:
    """Whether the engine reads the trained parameters in place."""
    for layer in layers:
        learnt = {name for name, x in layer._parameters.items() if x is not None and x.requires_grad}
        if layer.weight_dtype in BITS or not learnt <= Wiring.of(layer).read_as_they_are:
            return False
    return True


def learns_values(spikes: SpikeBatch) -> bool:
    """Whether autograd wants the gradient of the values of lists."""
    return torch.is_grad_enabled() and spikes.values is not None and spikes.values.requires_grad


def learns_input(given: SpikeBatch | Currents) -> bool:
    """Whether autograd wants the gradient of an input."""
    if isinstance(given, Currents):
        return torch.is_grad_enabled() and given.values.requires_grad
    return learns_values(given)


def network_chain(
    network: Network,
    layers: Mapping[str, Any],
    *,
    learns: bool = False,
    thins: bool = False,
    continues: bool = False,
    shards: Any = None,
) -> Chain:
    """The chain of a network.

    Args:
        layers: by population.
        learns: whether the gradient of the input is wanted.
        continues, shards: see `Chain`.
        thins: with dropout, see `sparsesnn.engines.dropout`.
    """
    source = network.inputs[0]
    n, are_given = network.populations[source].n, gives_currents(network)
    return Chain(
        layers,
        {name: [c.pre for c in network.senders(name)] for name in layers},
        {} if are_given else {source: n},
        learns=[] if are_given else [learns],
        given={source: learns} if are_given else {},
        thinned=numbers(network) if thins else {},
        continues=continues,
        resumes=continues,
        shards=shards,
    )
