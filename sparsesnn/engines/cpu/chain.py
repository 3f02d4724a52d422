"""Networks whose layers run one after the other in one call of the engine: `run_layers` learns, `Chain` runs on and on.

A call per layer would cost more time in Python, and a look through every layer's lists before the next layer reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch.nn.modules import module as torch_modules

from sparsesnn import _core
from sparsesnn.engines.cpu.layer import (
    Pass,
    engine_lists,
    in_lists,
    own_before,
    spikes_of,
    state_after,
    states_of,
)
from sparsesnn.errors import NumericError
from sparsesnn.network import Network
from sparsesnn.output import LayerState, Output
from sparsesnn.rotation import list_seed, next_training_step
from sparsesnn.spikes import SpikeBatch

#: no steps of no samples
_NOTHING = SpikeBatch._from_flat(np.empty(0, np.int64), np.empty(0, np.int32), 0, 0, 1)
_NO_LISTS = engine_lists(_NOTHING)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def hooked(layers: Iterable[Any]) -> bool:
    """Whether somebody wants to see single layers run."""
    everywhere = any(getattr(torch_modules, f"_global{name}") for name in _HOOKS)
    return everywhere or any(getattr(layer, name) for layer in layers for name in _HOOKS)


def fits_one_call(network: Network) -> bool:
    """Whether `run_layers` runs a network: between populations nothing is pooled, and no neurons have delays of their own."""
    return not any(
        not c.is_recurrent and (c.axonal or in_lists(c.synapses, network.populations[c.pre].n).pools)
        for c in network.connections
    )


def run_layers(
    network: Network, layers: Mapping[str, Any], spikes: SpikeBatch
) -> tuple[dict[str, Any], dict[str, LayerState]]:
    """A pass of all layers that begins a sequence; by population what it puts out, and its state.

    Each layer is a node of PyTorch's graph, as if it had run by itself.
    """
    source = network.inputs[0]
    lists, places, learns = engine_lists(spikes), {source: 0}, [_learns(spikes)]
    passes: dict[str, Pass] = {}
    links, told = [], []
    for name, layer in layers.items():
        reads = [places[c.pre] for c in network.senders(name)]
        heard = [_unmade(spikes, n) if k else spikes for k, n in zip(reads, layer.n_pre, strict=True)]
        training_step = next_training_step(layer)
        try:
            this = Pass(layer, heard, None, training_step)
        except NumericError as error:
            raise NumericError(f"{name}: {error}") from None
        this.save = this.save or any(learns[k] for k in reads)
        places[name] = len(learns)
        learns.append(this.save)
        links.append((name, this.prepare([_NO_LISTS] * len(reads)), reads))
        told.append((list_seed(layer.rotation_seed, training_step), 0, None, None))
        passes[name] = this
    results = _core.Chain(links).forward(lists, spikes.n_steps, spikes.n_samples, told)
    outputs: dict[str, Any] = {source: spikes}
    states: dict[str, LayerState] = {}
    for (name, this), result in zip(passes.items(), results, strict=True):
        this.ran([outputs[c.pre] for c in network.senders(name)], result)
        outputs[name], states[name] = this.output()
    return outputs, states


class Chain:
    """Runs all layers without gradients, with weights as they were at one time, a few steps at a time.

    Args:
        network: no connection from one population to another has a delay.
        layers: by population, each with its `Snapshot`.
    """

    def __init__(self, network: Network, layers: Mapping[str, Any]) -> None:
        self.layers, source, self.output = dict(layers), network.inputs[0], network.output
        self.n_input = network.populations[source].n
        places = {name: k for k, name in enumerate([source, *layers])}
        links = []
        for name, layer in layers.items():
            nothing = [_unmade(_NOTHING, n_pre) for n_pre in layer.n_pre]
            call = Pass(layer, nothing, None, 0).prepare([_NO_LISTS] * len(nothing))
            links.append((name, call, [places[c.pre] for c in network.senders(name)]))
        self.chain = _core.Chain(links)

    @staticmethod
    def fits(network: Network, layers: Mapping[str, Any]) -> bool:
        """Whether a network can run so: nothing is delayed between populations, all synapses are matrices, and no hooks want to
        see single layers."""
        plain = all(c.synapses.is_matrix and (c.is_recurrent or not c.reach) for c in network.connections)
        return plain and not hooked(layers.values())

    def __call__(self, spikes: SpikeBatch, state: Mapping[str, LayerState] | None) -> Output:
        """The next T steps of B samples, with the state that the steps before left."""
        past: Mapping[str, LayerState] = state or {}
        told: list[Any] = []
        for name, layer in self.layers.items():
            before = past.get(name)
            seed = list_seed(layer.rotation_seed, before.training_step if before else 0)
            if before is None:
                told.append((seed, 0, None, None))
            else:
                told.append((seed, before.step, states_of(layer, before), own_before(layer, before)))
        found = self.chain.forward(engine_lists(spikes), spikes.n_steps, spikes.n_samples, told)
        potentials, sent, after = None, {}, {}
        for (name, layer), result in zip(self.layers.items(), found, strict=True):
            before = past.get(name)
            if result["potentials"] is None:
                sent[name] = spikes_of(result, spikes.n_steps, spikes.n_samples, layer.population.n)
            elif name == self.output:
                potentials = torch.from_numpy(result["potentials"])
            training_step = before.training_step if before else 0
            after[name] = state_after(layer, before, result, sent.get(name), spikes.n_steps, training_step)
        return Output(potentials=potentials, spikes=sent, state=after, output=self.output)


def _unmade(like: SpikeBatch, n_neurons: int) -> SpikeBatch:
    """In place of lists that the engine will have made when they are read."""
    none = _NOTHING
    return SpikeBatch(none.offsets, none.ids, none.n_spikes, like.n_steps, like.n_samples, n_neurons)


def _learns(spikes: SpikeBatch) -> bool:
    """Whether a gradient of the values of these lists is wanted."""
    return torch.is_grad_enabled() and spikes.values is not None and spikes.values.requires_grad
