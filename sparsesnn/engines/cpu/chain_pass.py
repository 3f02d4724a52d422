"""One forward pass of a chain, and its way back: node by node in autograd's graph, or in one call (`learn.py`)."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from sparsesnn import _core
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
    keep all arrays until Python looks for cycles."""

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

    def arrived(self, name: str, inputs: Sequence[SpikeBatch]) -> list[SpikeBatch]:
        """The lists that reach a layer from every sender, in front of its pools."""
        n_inputs, node = self.chain.n_inputs, self.chain.nodes[self.chain.layer_nodes[name]]
        return [inputs[at] if at < n_inputs else self.lists_at(at - n_inputs) for at in node.sources]

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
        """The lists or potentials of each layer.

        Args:
            values: of the inputs' lists, as autograd sees them.
        """
        found: dict[str, SpikeBatch | Tensor] = {}
        for k, (node, made) in enumerate(zip(self.chain.nodes, self.node_outputs(values), strict=True)):
            if node.transform is not None:
                continue
            if not is_readout(self.chain.layers[node.layer].population):
                found[node.layer] = self.lists_at(k, made)
            else:
                found[node.layer] = torch.from_numpy(self.runs[k].potentials) if made is None else made
        return found

    def node_outputs(self, values: Sequence[Tensor | None]) -> list[Tensor | None]:
        """For every node the values of its lists, or its potentials, as a node of autograd's graph. None if no backward pass may come
        through, and for pools: the gradient of a layer's node passes through them to the lists in front."""
        seen = list(values)
        for k, node in enumerate(self.chain.nodes):
            if node.saves and node.keeps_neurons:
                seen.append(SparsesnnLayer.apply(self, k, *(seen[at] for at in node.sources), *node.learnt.values()))
            else:
                seen.append(None)
        return seen[self.chain.n_inputs :]

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
        with recorded(f"sparsesnn.backward {node.layer}"):
            found, d_values = this.backward_node(k, to_array(d_out, "gradient"), wanted)
        gradients = (*d_values, *map(found.get, node.learnt))
        return (None, None, *(None if g is None else torch.from_numpy(g) for g in gradients))


def lists_for(spikes: SpikeBatch) -> Any:
    """The input of a chain: the run of the chain that made these lists, if its arrays are unchanged, else the lists."""
    run = _made_by.get(spikes.offsets)
    if run is None:
        return engine_lists(spikes)
    pairs = ((spikes.offsets, run.offsets), (spikes.ids, run.ids), (spikes.n_spikes, run.n_spikes))
    same = all(x.data_ptr() == (y := torch.from_numpy(a)).data_ptr() and x.shape == y.shape for x, a in pairs)
    return run if same else engine_lists(spikes)
