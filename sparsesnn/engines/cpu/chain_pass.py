"""One forward pass of a chain, and its way back: node by node in autograd's graph, or in one call (`learn.py`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from sparsesnn import _core
from sparsesnn.currents import Currents
from sparsesnn.engines.cpu.lists import engine_lists, spikes_of, to_array
from sparsesnn.engines.cpu.wiring import Wiring
from sparsesnn.first_order import first_order
from sparsesnn.layers import is_readout
from sparsesnn.output import LayerState, last_steps
from sparsesnn.parameters import DELAYS
from sparsesnn.spikes import SpikeBatch
from sparsesnn.tracers import recorded

if TYPE_CHECKING:
    from sparsesnn.engines.cpu.chain import Chain

#: over ranks, by the offsets of lists, the run of the chain that made them, which knows how their owners sorted them
_made_by: MutableMapping[Tensor, _core.Run] = WeakTensorKeyDictionary()


@dataclass(eq=False)
class ChainPass:
    """A forward pass of a chain, with everything that its backward pass needs. It holds no tensor of autograd's graph: a reference cycle would
    keep all arrays until Python looks for cycles.

    Args:
        constant: the senders whose currents are the same at all steps.
        potentials: the layer that fires whose potentials are an output too; empty: none.
    """

    chain: Chain
    made: _core.Pass
    inputs: tuple[Any, ...]
    n_steps: int
    n_samples: int
    training_steps: Mapping[str, int]
    past: Mapping[str, LayerState]
    first_sample: int
    constant: Collection[str]
    potentials: Collection[str]
    runs: Sequence[_core.Run] = field(init=False)

    def __post_init__(self) -> None:
        self.runs = self.made.runs

    def run(self, name: str) -> _core.Run:
        """The result of a layer."""
        return self.runs[self.chain.layer_nodes[name]]

    def lists(self, name: str, values: Tensor | None = None) -> SpikeBatch:
        """The lists of a layer."""
        return self.lists_at(self.chain.layer_nodes[name], values)

    def lists_at(self, k: int, values: Tensor | None = None) -> SpikeBatch:
        """The lists of a node; `values`: as autograd sees them."""
        lists = spikes_of(self.runs[k], self.n_samples, self.chain.nodes[k].n, values)
        if self.chain.shards:
            _made_by[lists.offsets] = self.runs[k]
        return lists

    def arrived(self, name: str, inputs: Sequence[SpikeBatch], given: Mapping[str, Currents]) -> list[Any]:
        """What reaches a layer from every sender: its currents, and lists in front of its pools."""
        n_inputs, node = self.chain.n_inputs, self.chain.nodes[self.chain.layer_nodes[name]]
        currents = [given[node.given]] if node.given else []
        return currents + [inputs[at] if at < n_inputs else self.lists_at(at - n_inputs) for at in node.sources]

    def state(self, name: str, sent: SpikeBatch | None) -> LayerState:
        """The state that the pass leaves; `sent`: the layer's lists, None for a readout."""
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

    def outputs(
        self, values: Sequence[Tensor | None], given: Mapping[str, Tensor] | None = None
    ) -> tuple[dict[str, SpikeBatch | Tensor], Tensor | None]:
        """The lists or potentials of each layer; and the potentials of the layer that fires and has them as an output.

        Args:
            values: of the inputs' lists, as autograd sees them.
            given: the currents, as autograd sees them.
        """
        found: dict[str, SpikeBatch | Tensor] = {}
        made, potentials = self.node_outputs(values, given)
        for k, (node, x) in enumerate(zip(self.chain.nodes, made, strict=True)):
            if node.transform is not None:
                continue
            if not is_readout(self.chain.layers[node.layer].population):
                found[node.layer] = self.lists_at(k, x)
            else:
                found[node.layer] = torch.from_numpy(self.runs[k].potentials) if x is None else x
        if potentials is None and self.potentials:
            (name,) = self.potentials
            potentials = torch.from_numpy(self.run(name).potentials)
        return found, potentials

    def node_outputs(
        self, values: Sequence[Tensor | None], given: Mapping[str, Tensor] | None = None
    ) -> tuple[list[Tensor | None], Tensor | None]:
        """For every node the values of its lists, or its potentials, as a node of autograd's graph. None if no backward pass may come
        through, and for pools: the gradient of a layer's node passes through them to the lists in front. And the potentials of the layer
        that fires and has them as an output."""
        seen, potentials = list(values), None
        for k, node in enumerate(self.chain.nodes):
            if not (node.saves and node.keeps_neurons):
                seen.append(None)
                continue
            currents = [given[node.given]] if node.given and given else []
            made = SparsesnnLayer.apply(self, k, *(seen[at] for at in node.sources), *currents, *node.learnt.values())
            if isinstance(made, tuple):
                made, potentials = made
            seen.append(made)
        return seen[self.chain.n_inputs :], potentials

    # ---- back --------------------------------------------------------------------------------------------------

    @property
    def n_batch(self) -> int:
        """Samples of the whole batch if other replicas run some of them, else 0."""
        reduction = self.chain.reduction
        return reduction.n_batch(self.n_samples, self.first_sample) if reduction else 0

    def backward_node(
        self,
        k: int,
        d_out: np.ndarray,
        wanted: list[bool],
        wanted_currents: bool = False,
        d_potentials: np.ndarray | None = None,
    ) -> tuple[dict[str, Any], list[Any], Any]:
        """Gradients of the tensors that a node learns, by name; of the values of every list that it read; and of its currents."""
        chain = self.chain
        layer = chain.layers.get(chain.nodes[k].layer)
        n_batch = self.n_batch if layer is None or not layer.part or layer.part.shards.n else 0
        own, d_values, d_currents = chain.chain.backward_node(
            self.made, k, d_out, wanted, n_batch, wanted_currents, d_potentials
        )
        if chain.shards:
            chain.shards.count_traffic()
        found = self.of_node(k, own)
        return found, d_values, self._whole_currents(k, layer, d_currents) if wanted_currents else None

    def _whole_currents(self, k: int, layer: Any, own: np.ndarray | None) -> np.ndarray:
        """The gradient of a node's currents, on every rank for all neurons, from that for its own."""
        if layer.part is None or not layer.part.is_shared:
            assert own is not None
            return own
        if own is None:  # a rank without neurons of this layer
            steps = () if self.chain.nodes[k].given in self.constant else (self.n_steps,)
            own = np.zeros((*steps, self.n_samples, 0), np.float32)
        whole: np.ndarray = layer.part.whole_neurons(torch.from_numpy(own)).numpy()
        return whole

    def of_node(self, k: int, gradients: Sequence[np.ndarray]) -> dict[str, Any]:
        """The gradients of a node's trained tensors, by name, from the engine's results on this rank. Those that replicas add up in the
        background are missing."""
        node = self.chain.nodes[k]
        learnt = node.learnt
        if not learnt:
            return {}
        layer = self.chain.layers[node.layer]
        part = layer.part
        if node.transform is not None:  # groups of samples of its one parameter
            (name,), (groups,) = learnt, gradients
            return {name: part.sum_groups(groups, self._owners(node.reads[0])) if part else _core.add_groups(groups)}
        if part is None:
            return dict(zip(learnt, gradients, strict=True))
        if not part.shards.n:  # empty ones: the other ranks wait for this one when they sum over all neurons
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
        """The owners of the neurons of an input or a node; None: this rank owns all."""
        chain = self.chain
        while at >= chain.n_inputs and chain.nodes[at - chain.n_inputs].transform is not None:
            at = chain.nodes[at - chain.n_inputs].reads[0]
        if chain.shards is None:
            return None
        if at < chain.n_inputs:
            return chain.shards.senders[at]
        return chain.layers[chain.nodes[at - chain.n_inputs].layer].part.shards

    def _listed(self, k: int, weight: str) -> Any:
        """The neurons that may be listed by a weight's sender."""
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


class SparsesnnLayer(torch.autograd.Function):  # profilers show the name
    """forward(pass, node, values of each source…, given currents, learnt tensors…) → values of the node's lists, or readout
    potentials; or values and potentials."""

    @staticmethod
    def forward(ctx: Any, this: ChainPass, k: int, *inputs: Tensor) -> Any:
        node = this.chain.nodes[k]
        n_read = len(node.sources) + bool(node.given)
        ctx.this, ctx.k, ctx.read = this, k, inputs[:n_read]
        ctx.save_for_backward(*inputs[n_read:])
        run = this.runs[k]
        potentials = run.potentials
        if node.layer in this.potentials:
            return torch.from_numpy(run.values), torch.from_numpy(potentials)
        return torch.from_numpy(run.values if potentials is None else potentials)

    @staticmethod
    @first_order("a layer of the backend 'cpu'")
    def backward(ctx: Any, d_out: Tensor, d_potentials: Tensor | None = None) -> tuple[Any, ...]:
        this, k = ctx.this, ctx.k
        _ = ctx.saved_tensors  # PyTorch checks whether one was changed since; the engine reads them in place
        node = this.chain.nodes[k]
        n_sources, given = len(node.sources), int(bool(node.given))
        wanted = list(ctx.needs_input_grad[2 : 2 + n_sources + given])
        with recorded(f"sparsesnn.backward {node.layer}"):
            found, d_values, d_currents = this.backward_node(
                k,
                _gradient(d_out),
                wanted[:n_sources],
                any(wanted[n_sources:]),
                None if d_potentials is None else _gradient(d_potentials),
            )
        gradients = (*d_values, *[d_currents] * given, *map(found.get, node.learnt))
        return (None, None, *(None if g is None else torch.from_numpy(g) for g in gradients))


def _gradient(d_out: Tensor) -> np.ndarray:
    """A gradient as the engine reads it: of potentials, one step if it is the same at all."""
    return to_array(d_out[:1] if d_out.ndim == 3 and d_out.stride(0) == 0 else d_out, "gradient")


def lists_for(spikes: SpikeBatch) -> Any:
    """The input of a chain: the run of the chain that made these lists, if its arrays are unchanged, else the lists."""
    run = _made_by.get(spikes.offsets)
    if run is None:
        return engine_lists(spikes)
    pairs = ((spikes.offsets, run.offsets), (spikes.ids, run.ids), (spikes.n_spikes, run.n_spikes))
    same = all(x.data_ptr() == (y := torch.from_numpy(a)).data_ptr() and x.shape == y.shape for x, a in pairs)
    return run if same else engine_lists(spikes)
