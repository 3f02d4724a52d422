"""Networks that run on and on, all layers in one call of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from sparsesnn.engines.cpu.layer import engine_lists, own_before, spikes_of, state_after, states_of
from sparsesnn.engines.cpu.one_call import OneCall, any_hooks
from sparsesnn.network import Network
from sparsesnn.output import LayerState, Output
from sparsesnn.rotation import list_seed
from sparsesnn.spikes import SpikeBatch


class Chain:
    """Runs all layers without gradients, with weights as they were at one time, a few steps at a time.

    Args:
        network: no connection from one population to another has a delay.
        layers: by population, each with its `Snapshot`.
    """

    def __init__(self, network: Network, layers: Mapping[str, Any]) -> None:
        self.layers, source, self.output = dict(layers), network.inputs[0], network.output
        self.n_input = network.populations[source].n
        self.chain = OneCall(network, layers, False).chain

    @staticmethod
    def fits(network: Network, layers: Mapping[str, Any]) -> bool:
        """Whether a network can run so: nothing is delayed between populations, all synapses are matrices, and no hooks want to
        see single layers."""
        plain = all(c.synapses.is_matrix and (c.is_recurrent or not c.reach) for c in network.connections)
        return plain and not any_hooks(layers.values())

    def __call__(self, spikes: SpikeBatch, state: Mapping[str, LayerState] | None) -> Output:
        """The next T steps of B samples, with the state that the steps before left."""
        past: Mapping[str, LayerState] = state or {}
        told: list[Any] = []
        for name, layer in self.layers.items():
            before = past.get(name)
            seed = list_seed(layer.rotation_seed, before.training_step if before else 0)
            if before is None:
                told.append((seed, 0, None, None, None))
            else:
                told.append((seed, before.step, states_of(layer, before), own_before(layer, before), None))
        found = self.chain.forward(engine_lists(spikes), spikes.n_steps, spikes.n_samples, told)
        potentials, sent, after = None, {}, {}
        for (name, layer), result in zip(self.layers.items(), found, strict=True):
            before = past.get(name)
            if result.potentials is None:
                sent[name] = spikes_of(result, spikes.n_steps, spikes.n_samples, layer.population.n)
            elif name == self.output:
                potentials = torch.from_numpy(result.potentials)
            training_step = before.training_step if before else 0
            after[name] = state_after(layer, before, result, sent.get(name), spikes.n_steps, training_step)
        return Output(potentials=potentials, spikes=sent, state=after, output=self.output)
