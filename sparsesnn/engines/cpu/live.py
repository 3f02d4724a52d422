"""A model as it is now: its layers share the weights, and keep a copy in the order in which the engine reads them."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from sparsesnn.currents import Currents
from sparsesnn.engines.cpu.chain import Chain, network_chain
from sparsesnn.engines.cpu.lists import as_float32, as_read, engine_lists
from sparsesnn.engines.cpu.wiring import Snapshot
from sparsesnn.errors import NumericError
from sparsesnn.output import LayerState, Output, last_steps
from sparsesnn.parameters import computed_by
from sparsesnn.spikes import SpikeBatch

if TYPE_CHECKING:
    from sparsesnn.engines.module import Model


def still(model: Model) -> Model:
    """A copy for evaluation that later changes of the model do not reach. Memory: that of the weights again."""
    layers = nn.ModuleDict()
    with model.settled():
        for name, layer in model.layers.items():
            layers[name] = _still(name, layer)
    found = copy.copy(model)
    found.runner = copy.copy(model.runner)
    found._modules = {**model._modules, "layers": layers}
    return found.eval()


class LiveCall:
    """Calls a model that `still` made: the next steps, and the state that the steps before left."""

    def __init__(self, still: Model) -> None:
        self.network, self.layers = still.network, dict(still.layers)
        self.source, self.depth, self.first_connections = still.source, still.depth, still.first_connections
        self.chains: dict[bool, Chain] = {}

    def __call__(self, spikes: SpikeBatch | Currents, state: Mapping[str, LayerState] | None) -> Output:
        continues = bool(state)
        if isinstance(spikes, SpikeBatch):
            spikes = as_read(spikes, self.first_connections)
        if continues not in self.chains:
            self.chains[continues] = network_chain(self.network, self.layers, continues=continues)
        past: Mapping[str, LayerState] = state or {}
        steps = {name: past[name].training_step if past else 0 for name in self.layers}
        this = self.chains[continues].forward(
            [engine_lists(spikes)] if isinstance(spikes, SpikeBatch) else [],
            spikes.n_steps,
            spikes.n_samples,
            steps,
            given={self.source: as_float32(spikes.values)} if isinstance(spikes, Currents) else {},
            past=past,
        )
        sent: dict[str, SpikeBatch] = {}
        potentials, after = None, {}
        for name, k in this.chain.layer_nodes.items():
            if (found := this.runs[k].potentials) is None:
                sent[name] = this.lists_at(k)
            elif name == self.network.output:
                potentials = torch.from_numpy(found)
            after[name] = this.state(name, sent.get(name))
        if self.depth and isinstance(spikes, SpikeBatch):
            before = past[self.source].history if past else None
            after[self.source] = LayerState(history=last_steps(before, spikes, self.depth))
        return Output(potentials=potentials, spikes=sent, state=after, output=self.network.output)


def _still(name: str, layer: Any) -> Any:
    """A layer as it is now. It shares the weights, but the engine reads only their shapes."""
    still = copy.copy(layer)
    # PyTorch computes nothing here: neither a parametrization, which is a property of the class, nor a hook before the pass
    still.__class__ = parametrize.type_before_parametrizations(layer)
    still._modules = {k: x for k, x in layer._modules.items() if k != "parametrizations"}
    still._forward_pre_hooks = OrderedDict((k, h) for k, h in layer._forward_pre_hooks.items() if not computed_by(h))
    weights = {c.name for c in layer.incoming}
    for kind in ("_parameters", "_buffers"):
        tensors = getattr(layer, kind).items()
        setattr(still, kind, {k: x if x is None or k in weights else x.detach().clone() for k, x in tensors})
    for k in layer.computed:
        still.__dict__.pop(k, None)
        still._buffers[k] = layer.tensor(k).detach()
    training, layer.training = layer.training, False  # its numbers are those of evaluation
    try:
        still.snapshot = Snapshot.of(layer)
    except NumericError as error:
        raise NumericError(f"{name}: {error}") from None
    finally:
        layer.training = training
    return still
