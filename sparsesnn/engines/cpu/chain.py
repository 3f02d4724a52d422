"""Chains: layers, and the transforms of lists between them, which the engine runs in one call, forward and back.

A network is a chain; a single `Layer` is a chain of one; a live network is a chain that keeps its state; over ranks the engine gathers the
lists of each layer. Between layers travel spike lists, whose `values` (1 for spikes, 0 for near-spikes) are what autograd sees: the gradient
of a value is ∂L/∂s of that neuron at that step, defined at listed neurons only. The sparse gradient of Finkbeiner et al. 2024 is the ordinary
gradient of this graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules import module as torch_modules
from torch.utils.weak import WeakTensorKeyDictionary

from sparsesnn import _core
from sparsesnn.engines.cpu import transforms
from sparsesnn.engines.cpu.lists import engine_lists, last_of, own_before, spikes_of, states_of, to_array
from sparsesnn.engines.cpu.wiring import Wiring, layer_call, layer_tensors
from sparsesnn.errors import NumericError, ShapeError
from sparsesnn.first_order import first_order
from sparsesnn.layers import LI, Population
from sparsesnn.network import Network
from sparsesnn.output import LayerState, check_history, last_steps
from sparsesnn.parameters import DELAYS
from sparsesnn.rotation import list_seed, next_training_step
from sparsesnn.rounding import BITS
from sparsesnn.spikes import SpikeBatch

if TYPE_CHECKING:
    from sparsesnn.engines.dropout import Heard
    from sparsesnn.engines.ranks.parts import Parts

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOOKS_EVERYWHERE = [vars(torch_modules)[f"_global{name}"] for name in _HOOKS]


def any_hooks(modules: Iterable[Any]) -> bool:
    """Whether any of these modules has a hook or a subclass's own `forward`: then each runs by itself."""
    return any(_HOOKS_EVERYWHERE) or any(
        any(vars(module)[name] for name in _HOOKS) or _has_own_forward(module) for module in modules
    )


def _has_own_forward(module: Any) -> bool:
    ours: Any = next(k for k in type(module).__mro__ if k.__module__.startswith("sparsesnn."))
    return "forward" in vars(module) or type(module).forward is not ours.forward


@dataclass
class Node:
    """A layer or a transform of a chain.

    Args:
        layer: the name of the layer, or of the layer that reads what a transform makes.
        kind: "layer", "dropout", "resume", "delay" or "pool".
        reads: inputs and nodes; the inputs come first.
        sources: the same behind pools: where the gradient of list values goes.
        learnt: by the engine's names, the tensors whose gradients the engine finds, in its order.
        saves: whether a backward pass may come through.
        n: neurons.
        sender: of dropout and resume, the population.
    """

    layer: str
    kind: str
    reads: list[int]
    sources: list[int]
    n: int
    learnt: dict[str, Tensor] = field(default_factory=dict)
    saves: bool = False
    sender: str = ""
    n_before: int = 0


class Chain:
    """Layers and transforms with the tensors that they have now: made once, and again when a tensor is another one or lies elsewhere.

    Args:
        layers: by name, in the order in which they run.
        senders: of every layer, the inputs or layers that it reads.
        inputs: by name, neurons.
        learns: whether gradients of the values of the inputs' lists are wanted.
        thinned: by population, its number for `Heard`: its readers hear a part of its spikes; empty: without dropout.
        continues: calls continue a sequence.
        resumes: the chain itself puts the steps before in front of lists that arrive later; else the caller did.
        parts: how the network lies on the ranks of a grid.
        shards: what ranks that share neurons exchange; None: none do.
    """

    def __init__(
        self,
        layers: Mapping[str, Any],
        senders: Mapping[str, Sequence[str]],
        inputs: Mapping[str, int],
        *,
        learns: Sequence[bool],
        thinned: Mapping[str, int] | None = None,
        continues: bool = False,
        resumes: bool = False,
        parts: Parts | None = None,
        shards: Any = None,
    ) -> None:
        self.layers, self.senders, self.inputs = dict(layers), senders, dict(inputs)
        self.learns, self.thinned, self.continues, self.resumes = list(learns), thinned or {}, continues, resumes
        self.parts, self.shards = parts, shards
        self.reduction = parts.reduction if parts else None
        self.nodes: list[Node] = []
        self.places: dict[str, int] = {name: k for k, name in enumerate(self.inputs)}
        self.heard_at: dict[str, list[int]] = {}
        self._thin: dict[str, int] = {}
        self._resumed: dict[tuple[int, int], int] = {}
        self.chain = _core.Chain(self.learns, shards)
        self.is_plain, in_place = not any(self.learns), True
        for name, layer in self.layers.items():
            tensors = self._add(name, layer)
            own = {id(x) for x in (*layer._parameters.values(), *layer._buffers.values())}
            in_place = in_place and all(id(x) in own and x.is_contiguous() for x in tensors.values())
            self.is_plain = self.is_plain and _learns_as_read(layer)
        self.counts = any(layer.training_steps is not None for layer in self.layers.values())
        self.key = self.key_of(self.layers, self.learns) if in_place else None

    @property
    def n_inputs(self) -> int:
        return len(self.inputs)

    @staticmethod
    def key_of(layers: Mapping[str, Any], learns: Sequence[bool]) -> list[Any]:
        """What a chain depends on: which tensors there are, where they lie, and which of them learn."""
        key: list[Any] = [*learns, torch.is_grad_enabled()]
        for layer in layers.values():
            key += (id(layer), layer.weight_dtype)
            for x in (*layer._parameters.values(), *layer._buffers.values()):
                key.append(
                    None if x is None else (id(x), x.data_ptr(), x.dtype, x.shape, x.is_contiguous(), x.requires_grad)
                )
        return key

    def holds(self, layers: Mapping[str, Any], learns: Sequence[bool]) -> bool:
        """Whether it is still the chain of these layers."""
        return self.key is not None and self.key == self.key_of(layers, learns)

    # ---- how it is made ----------------------------------------------------------------------------------------

    def _add(self, name: str, layer: Any) -> dict[str, Tensor]:
        """Adds a layer, and the transforms between it and its senders; returns its tensors."""
        try:
            kept = layer.snapshot
            tensors = kept.tensors if kept else layer_tensors(layer)
        except NumericError as error:
            raise NumericError(f"{name}: {error}" if name else str(error)) from None
        learns = torch.is_grad_enabled()
        learnt = {key: x for key, x in tensors.items() if x.requires_grad} if learns else {}
        wiring = Wiring.of(layer)
        arrived: list[int] = []
        reads: list[int] = []
        for k, (c, pre) in enumerate(zip(layer.senders, self.senders[name], strict=True)):
            at = self._hear(name, c, pre)
            if c.axonal:
                key = wiring.senders[k] + DELAYS
                own = {key: learnt[key]} if key in learnt else {}
                first_step = c.axonal.longest if self.continues else 0
                moved = transforms.delay(tensors[key], between=layer.between_steps(c), first_step=first_step)
                at = self.add_transform(Node(name, "delay", [at], [at], c.n_pre, own), moved)
            arrived.append(at)
            for pool in wiring.pools_before[k]:
                made = transforms.pool(pool)
                at = self.add_transform(Node(name, "pool", [at], [arrived[-1]], made.n_made), made)
            reads.append(at)
        self.heard_at[name] = arrived
        order = [*wiring.senders, *wiring.loops, *(loop + DELAYS for loop in wiring.loops), "bias", *wiring.parameters]
        own = {x: learnt[x] for x in order if x in learnt}
        node = Node(name, "layer", reads, arrived, layer.population.n, own, bool(own) or any(map(self._saves, arrived)))
        self.chain.add_layer(
            name,
            layer_call(layer, tensors, node.saves, own, continues=self.continues),
            reads,
            [x in learnt for x in wiring.senders],
            [x in learnt for x in wiring.loops],
            [x + DELAYS in learnt for x in wiring.loops],
            "bias" in learnt,
        )
        self.places[name] = self.n_inputs + len(self.nodes)
        self.nodes.append(node)
        return tensors

    def _hear(self, name: str, c: Any, pre: str) -> int:
        """Where the lists of a sender are, thinned by dropout, with the steps before that the layer still hears."""
        at = self.places[pre]
        if pre in self.thinned:
            if pre not in self._thin:
                thin = Node(name, "dropout", [at], [at], c.n_pre, sender=pre)
                self._thin[pre] = self.add_transform(thin, transforms.dropout(c.n_pre))
            at = self._thin[pre]
        if self.resumes and c.reach:
            if (at, c.reach) not in self._resumed:
                before = Node(name, "resume", [at], [at], c.n_pre, sender=pre, n_before=c.reach)
                self._resumed[at, c.reach] = self.add_transform(before, transforms.resume(c.n_pre))
            at = self._resumed[at, c.reach]
        return at

    def _saves(self, at: int) -> bool:
        return self.learns[at] if at < self.n_inputs else self.nodes[at - self.n_inputs].saves

    def add_transform(self, node: Node, made: _core.Transform) -> int:
        self.chain.add_transform(f"{node.layer}: {node.kind}", made, node.reads[0], bool(node.learnt))
        node.saves = bool(node.learnt) or self._saves(node.reads[0])
        self.nodes.append(node)
        return self.n_inputs + len(self.nodes) - 1

    # ---- passes ------------------------------------------------------------------------------------------------

    def training_steps(self) -> dict[str, int]:
        """By layer, of a pass that begins a sequence; counted on if a layer counts."""
        return {name: next_training_step(layer) if self.counts else 0 for name, layer in self.layers.items()}

    def forward(
        self,
        inputs: Sequence[Any],
        n_steps: int,
        n_samples: int,
        training_steps: Mapping[str, int],
        *,
        past: Mapping[str, LayerState] | None = None,
        heard: Heard | None = None,
        first_sample: int = 0,
        hidden: bool = False,
    ) -> ChainPass:
        """Runs all nodes.

        Args:
            inputs: `_core.Lists`, or the `_core.Run` of another chain.
            past: states of the layers, of a chain that continues a sequence.
            heard: of a chain with dropout.
            hidden: the inputs are not written to before the backward pass.
        """
        states = past or {}
        settings = [self._setting(node, n_samples, training_steps, states, heard) for node in self.nodes]
        made = self.chain.forward(list(inputs), n_steps, n_samples, settings, hidden, first_sample)
        if self.shards:
            self.shards.count_traffic()
        return ChainPass(self, made, tuple(inputs), n_steps, n_samples, training_steps, states, first_sample)

    def _setting(
        self,
        node: Node,
        n_samples: int,
        training_steps: Mapping[str, int],
        past: Mapping[str, LayerState],
        heard: Heard | None,
    ) -> Any:
        if node.kind == "dropout":
            assert heard is not None
            return partial(heard, self.thinned[node.sender])
        if node.kind == "resume":
            history = past[node.sender].history
            if not isinstance(history, SpikeBatch):
                raise ShapeError(f"state: {node.sender!r} has no history; pass the state that this model returned")
            check_history(history, n_samples, node.n)
            return engine_lists(last_of(history, node.n_before))
        if node.kind != "layer":
            return None
        layer, before = self.layers[node.layer], past.get(node.layer)
        seed = list_seed(layer.rotation_seed, training_steps[node.layer])
        if before is not None:
            return seed, before.step, states_of(layer, before), own_before(layer, before), None
        packed = layer.part.packed if layer.part else None
        wiring = Wiring.of(layer)
        return seed, 0, None, None, [packed.get(x) for x in (*wiring.senders, *wiring.loops)] if packed else None


@dataclass(eq=False)
class ChainPass:
    """A forward pass of a chain, with what its backward pass needs. Holds no tensor of autograd's graph: a circle would keep all arrays
    until Python looks for circles."""

    chain: Chain
    made: _core.Pass
    inputs: tuple[Any, ...]
    n_steps: int
    n_samples: int
    training_steps: Mapping[str, int]
    past: Mapping[str, LayerState]
    first_sample: int
    runs: Sequence[_core.Run] = field(init=False)

    def __post_init__(self) -> None:
        self.runs = self.made.runs

    def run(self, name: str) -> _core.Run:
        """What a layer gave back."""
        return self.runs[self.chain.places[name] - self.chain.n_inputs]

    def lists(self, name: str, values: Tensor | None = None) -> SpikeBatch:
        """The lists of a layer."""
        return self._spikes(self.run(name), self.chain.layers[name].population.n, values)

    def _spikes(self, run: _core.Run, n: int, values: Tensor | None) -> SpikeBatch:
        found = spikes_of(run, self.n_samples, n, values)
        if self.chain.shards:
            _made_by[found.offsets] = run
        return found

    def arrived(self, name: str, inputs: Sequence[SpikeBatch]) -> list[SpikeBatch]:
        """The lists that reach a layer from every sender, in front of its pools."""
        nodes, n_inputs = self.chain.nodes, self.chain.n_inputs
        return [
            inputs[at] if at < n_inputs else spikes_of(self.runs[at - n_inputs], self.n_samples, nodes[at - n_inputs].n)
            for at in self.chain.heard_at[name]
        ]

    def state(self, name: str, sent: SpikeBatch | None) -> LayerState:
        """The state that the pass leaves; `sent`: the layer's lists, None of a readout."""
        layer, before = self.chain.layers[name], self.past.get(name)
        if layer.part:
            return LayerState()
        numbers = zip(layer.population.states, self.run(name).state, strict=True)
        after = LayerState(
            {x: torch.from_numpy(a) for x, a in numbers},
            step=self.n_steps + (before.step if before else 0),
            training_step=self.training_steps[name],
        )
        if sent is not None and layer.n_history:
            after.history = last_steps(before.history if before else None, sent, layer.n_history)
        return after

    def outputs(self, values: Sequence[Tensor | None]) -> dict[str, SpikeBatch | Tensor]:
        """By layer its lists or potentials; each node is one of autograd's graph, if a backward pass may come through.

        Args:
            values: of the inputs' lists, as autograd sees them.
        """
        chain, seen = self.chain, list(values)
        found: dict[str, SpikeBatch | Tensor] = {}
        for k, node in enumerate(chain.nodes):
            sent: Tensor | None = None
            if node.saves and node.kind != "pool":
                sent = _RunNode.apply(self, k, *(seen[at] for at in node.sources), *node.learnt.values())
            seen.append(sent)
            if node.kind != "layer":
                continue
            if isinstance(chain.layers[node.layer].population, LI):
                found[node.layer] = torch.from_numpy(self.runs[k].potentials) if sent is None else sent
            else:
                found[node.layer] = self.lists(node.layer, sent)
        return found

    # ---- back --------------------------------------------------------------------------------------------------

    @property
    def n_batch(self) -> int:
        """Samples of the whole batch if other replicas run some of them, else 0."""
        reduction = self.chain.reduction
        return reduction.n_batch(self.n_samples, self.first_sample) if reduction else 0

    def backward_node(self, k: int, d_out: np.ndarray, wanted: list[bool]) -> tuple[dict[str, Any], list[Any]]:
        """Gradients of the tensors that a node learns, by name, and of the values of every list that it read."""
        chain = self.chain
        layer = chain.layers.get(chain.nodes[k].layer)
        n_batch = self.n_batch if layer is None or not layer.part or layer.part.shards.n else 0
        own, d_values = chain.chain.backward_node(self.made, k, d_out, wanted, n_batch)
        if chain.shards:
            chain.shards.count_traffic()
        return self.of_node(k, own), d_values

    def of_node(self, k: int, gradients: Sequence[np.ndarray]) -> dict[str, Any]:
        """The gradients of what a node learns, by name, from what the engine found of it on this rank. Those that replicas add up in the
        background are missing."""
        node = self.chain.nodes[k]
        learnt = node.learnt
        if not learnt:
            return {}
        layer = self.chain.layers[node.layer]
        part = layer.part
        if node.kind == "delay":
            (name,), (groups,) = learnt, gradients
            return {name: part.sum_groups(groups, self._owners(node.reads[0])) if part else _core.add_groups(groups)}
        if part is None:
            return dict(zip(learnt, gradients, strict=True))
        if not part.shards.n:  # empty ones: the other ranks count on this one where they sum over all neurons
            found: dict[str, Any] = {name: np.zeros(x.shape, np.float32) for name, x in learnt.items()}
        else:
            found = dict(zip(learnt, gradients, strict=True))
            if self.chain.reduction:
                found = self.chain.reduction.add_layer(layer, learnt, found, partial(self._listed, k))
        for name in found:
            if name.endswith(DELAYS):  # every rank has the delays of all neurons
                found[name] = part.whole_neurons(torch.from_numpy(found[name][: part.shards.n])).numpy()
        return found

    def _owners(self, at: int) -> Any:
        """Who owns the neurons of an input or a node; None: this rank owns all."""
        chain = self.chain
        while at >= chain.n_inputs and chain.nodes[at - chain.n_inputs].kind != "layer":
            at = chain.nodes[at - chain.n_inputs].reads[0]
        if chain.shards is None:
            return None
        if at < chain.n_inputs:
            return chain.shards.senders[at]
        return chain.layers[chain.nodes[at - chain.n_inputs].layer].part.shards

    def _listed(self, k: int, weight: str) -> Any:
        """Who may stand in the lists of a weight's sender."""
        node = self.chain.nodes[k]
        wiring = Wiring.of(self.chain.layers[node.layer])
        if weight not in wiring.senders:
            return np.asarray(self.runs[k].perhaps_listed())
        which = wiring.senders.index(weight)
        at = node.reads[which]
        read = self.inputs[at] if at < self.chain.n_inputs else self.runs[at - self.chain.n_inputs]
        return np.asarray(
            read.perhaps_listed() if isinstance(read, _core.Run) else read.perhaps_listed(wiring.n_pre[which])
        )


class _RunNode(torch.autograd.Function):
    """forward(pass, node, values of each source…, learnt tensors…) → values of the node's lists, or readout potentials."""

    @staticmethod
    def forward(ctx: Any, this: ChainPass, k: int, *inputs: Tensor) -> Tensor:
        n_sources = len(this.chain.nodes[k].sources)
        ctx.this, ctx.k, ctx.read = this, k, inputs[:n_sources]
        ctx.save_for_backward(*inputs[n_sources:])
        run = this.runs[k]
        potentials = run.potentials
        return torch.from_numpy(run.values if potentials is None else potentials)

    @staticmethod
    @first_order("a layer of the backend 'cpu'")
    def backward(ctx: Any, d_out: Tensor) -> tuple[Any, ...]:
        this, k = ctx.this, ctx.k
        _ = ctx.saved_tensors  # PyTorch checks whether one was changed since; the engine reads them where they lie
        node = this.chain.nodes[k]
        wanted = list(ctx.needs_input_grad[2 : 2 + len(node.sources)])
        if d_out.ndim == 3 and d_out.stride(0) == 0:
            d_out = d_out[:1]  # the same at all steps
        found, d_values = this.backward_node(k, to_array(d_out, "gradient"), wanted)
        gradients = (*d_values, *map(found.get, node.learnt))
        return (None, None, *(None if g is None else torch.from_numpy(g) for g in gradients))


def _learns_as_read(layer: Any) -> bool:
    learnt = {name for name, x in layer._parameters.items() if x is not None and x.requires_grad}
    return layer.weight_dtype not in BITS and learnt <= Wiring.of(layer).read_as_they_are


def learns_values(spikes: SpikeBatch) -> bool:
    """Whether autograd wants the gradient of the values of lists."""
    return torch.is_grad_enabled() and spikes.values is not None and spikes.values.requires_grad


# ---- networks ------------------------------------------------------------------------------------------------------


def network_chain(
    network: Network,
    layers: Mapping[str, Any],
    *,
    learns: Sequence[bool] = (False,),
    thins: bool = False,
    continues: bool = False,
    parts: Parts | None = None,
) -> Chain:
    """The chain of a network.

    Args:
        layers: by population.
        learns, continues, parts: see `Chain`.
        thins: with dropout, see `sparsesnn.engines.dropout`.
    """
    source = network.inputs[0]
    fire = [k for k, x in network.populations.items() if isinstance(x, Population)]
    return Chain(
        layers,
        {name: [c.pre for c in network.senders(name)] for name in layers},
        {source: network.populations[source].n},
        learns=learns,
        thinned={name: list(network.populations).index(name) for name in fire} if thins else {},
        continues=continues,
        resumes=continues,
        parts=parts,
        shards=parts.between(layers.values()) if parts else None,
    )


# ---- a single layer ------------------------------------------------------------------------------------------------


def run_layer(
    layer: Any, sources: Sequence[SpikeBatch], state: LayerState | None, training_step: int = 0, first_sample: int = 0
) -> tuple[SpikeBatch | Tensor, LayerState]:
    """One layer over one chunk of a sequence; see `sparsesnn.engines.module.Layer.forward`.

    Args:
        training_step: see `sparsesnn.rotation.list_seed`.
        first_sample: over ranks, samples of the batch that other replicas run before these.
    """
    reach = [c.reach if state is not None else 0 for c in layer.senders]
    n_steps, n_samples = sources[0].n_steps - reach[0], sources[0].n_samples
    for source, c, more in zip(sources, layer.senders, reach, strict=True):
        if (source.n_steps - more, source.n_samples, source.n_neurons) != (n_steps, n_samples, c.n_pre):
            raise ShapeError(
                f"input has T={source.n_steps - more}, B={source.n_samples}, N={source.n_neurons}; "
                f"this layer needs T={n_steps}, B={n_samples}, N={c.n_pre}"
            )
    learns = list(map(learns_values, sources))
    names = [str(k) for k in range(len(sources))]
    part = layer.part
    chain = Chain(
        {"": layer},
        {"": names},
        dict(zip(names, layer.n_pre, strict=True)),
        learns=learns,
        continues=state is not None,
        parts=part,
        shards=part.alone(layer) if part else None,
    )
    past = {} if state is None else {"": state}
    given = [lists_for(x) for x in sources]
    this = chain.forward(given, n_steps, n_samples, {"": training_step}, past=past, first_sample=first_sample)
    out = this.outputs([x.values for x in sources])[""]
    return out, this.state("", out if isinstance(out, SpikeBatch) else None)


#: over ranks, by the offsets of lists, what a chain made them in: it knows how their owners have sorted them
_made_by: MutableMapping[Tensor, _core.Run] = WeakTensorKeyDictionary()


def lists_for(spikes: SpikeBatch) -> Any:
    """What a chain reads of spikes: what another chain made, if these are still its arrays, else their lists."""
    run = _made_by.get(spikes.offsets)
    if run is None:
        return engine_lists(spikes)
    pairs = ((spikes.offsets, run.offsets), (spikes.ids, run.ids), (spikes.n_spikes, run.n_spikes))
    same = all(x.data_ptr() == (y := torch.from_numpy(a)).data_ptr() and x.shape == y.shape for x, a in pairs)
    return run if same else engine_lists(spikes)


def thinned(spikes: SpikeBatch, population: int, heard: Heard, shards: Any = None) -> SpikeBatch:
    """The same spikes without those that dropout leaves out; their gradient flows back to those that stay."""
    learns = learns_values(spikes)
    n = spikes.n_neurons
    chain = Chain({}, {}, {"": n}, learns=[learns], thinned={"": population}, shards=shards)
    chain.add_transform(Node("", "dropout", [0], [0], n), transforms.dropout(n))
    this = chain.forward([lists_for(spikes)], spikes.n_steps, spikes.n_samples, {}, heard=heard)
    run = this.runs[0]
    values = _RunNode.apply(this, 0, spikes.values) if learns else None
    return this._spikes(run, n, values)
