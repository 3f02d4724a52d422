"""Networks whose layers run one after the other in one call of the engine: `run_layers` and `learn` train, `Chain` runs on and on.

A call per layer would cost more time in Python, and a look through every layer's lists before the next layer reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules import module as torch_modules

from sparsesnn import _core
from sparsesnn.engines.cpu.layer import (
    NO_LISTS,
    NOTHING,
    Pass,
    engine_lists,
    own_before,
    spikes_of,
    state_after,
    states_of,
)
from sparsesnn.engines.cpu.wiring import Wiring, in_lists
from sparsesnn.errors import NumericError
from sparsesnn.loss import CrossEntropy
from sparsesnn.network import Network
from sparsesnn.output import LayerState, Output
from sparsesnn.rotation import list_seed, next_training_step
from sparsesnn.rounding import BITS
from sparsesnn.spikes import SpikeBatch

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOOKS_EVERYWHERE = tuple(f"_global{name}" for name in _HOOKS)


def hooked(layers: Iterable[Any]) -> bool:
    """Whether somebody wants to see single layers run."""
    everywhere = vars(torch_modules)
    if any(everywhere[name] for name in _HOOKS_EVERYWHERE):
        return True
    return any(own[name] for own in map(vars, layers) for name in _HOOKS)


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
    outputs: dict[str, Any] = {network.inputs[0]: spikes}
    states: dict[str, LayerState] = {}
    for name, (this, senders, result) in _passes(network, layers, spikes).items():
        this.ran([outputs[pre] for pre in senders], result)
        outputs[name], states[name] = this.output()
    return outputs, states


def can_learn(layers: Iterable[Any], spikes: SpikeBatch) -> bool:
    """Whether `learn` does what autograd would: gradients are wanted of nothing but weights and biases that the engine reads as
    they are, and nobody wants to see them on their way."""
    return torch.is_grad_enabled() and not _learns(spikes) and all(map(_learns_as_read, layers))


def _learns_as_read(layer: Any) -> bool:
    wiring = Wiring.of(layer)
    learnt = {name: x for name, x in layer._parameters.items() if x is not None and x.requires_grad}
    if layer.weight_dtype in BITS or not learnt.keys() <= wiring.read_as_they_are:
        return False
    return not any(x._backward_hooks or getattr(x, "_post_accumulate_grad_hooks", None) for x in learnt.values())


def learn(
    network: Network,
    layers: Mapping[str, Any],
    spikes: SpikeBatch,
    loss: Callable[[Output], Tensor],
    output: Callable[[dict[str, Any], dict[str, LayerState]], Output],
) -> tuple[Tensor, Output]:
    """A pass of all layers, the loss of what they put out and their states, and the way back: gradients are added to the
    parameters. Returns the loss, detached.

    PyTorch's graph begins at what the layers put out and holds the loss alone. Same bits as through `run_layers`: what comes
    back to a population's lists is added in the order in which PyTorch's graph would, the loss first, then the readers from the
    last one on.
    """
    outputs: dict[str, Any] = {network.inputs[0]: spikes}
    states: dict[str, LayerState] = {}
    passes = _passes(network, layers, spikes)
    leaves: dict[str, Tensor] = {}
    for name, (this, senders, result) in passes.items():
        this.ran([outputs[pre] for pre in senders], result)
        outputs[name], states[name] = this.leaf()
        if this.save:
            leaves[name] = outputs[name] if this.is_readout else outputs[name].values
    made = output(outputs, states)
    arrived: dict[str, Tensor | None]
    if isinstance(loss, CrossEntropy) and loss.in_engine(made):
        assert made.potentials is not None
        whole, differentiated = loss.of_potentials(made.potentials)
        value, arrived = torch.tensor(whole, dtype=torch.float32), {network.output: differentiated(1.0)}
    else:
        value = loss(made)
        value.backward()
        arrived = {name: leaf.grad for name, leaf in leaves.items()}
    for name, (this, senders, _) in reversed(passes.items()):
        d_out = arrived.pop(name, None)
        if d_out is None:
            continue
        wanted = [pre in leaves for pre in senders]
        found, d_values = this.gradients(d_out.contiguous().numpy(), wanted)
        for pre, d in zip(senders, d_values, strict=True):
            if d is not None:
                _add(arrived, pre, torch.from_numpy(d))
        for key, parameter in this.learnt.items():
            gradient = torch.from_numpy(found[key])
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
    return value.detach(), made


def _add(sums: dict[str, Any], key: str, more: Tensor) -> None:
    sums[key] = more if sums.get(key) is None else sums[key].add_(more)


def _passes(network: Network, layers: Mapping[str, Any], spikes: SpikeBatch) -> dict[str, tuple[Pass, list[str], Any]]:
    """By layer its pass, which does not know yet what it read, the populations that it reads, and what the engine gave back."""
    lists, places, learns = engine_lists(spikes), {network.inputs[0]: 0}, [_learns(spikes)]
    passes: list[tuple[Pass, list[str]]] = []
    links, told = [], []
    for name, layer in layers.items():
        senders = [c.pre for c in network.senders(name)]
        reads = [places[pre] for pre in senders]
        heard = [_unmade(spikes, n) if k else spikes for k, n in zip(reads, layer.n_pre, strict=True)]
        training_step = next_training_step(layer)
        try:
            this = Pass(layer, heard, None, training_step)
        except NumericError as error:
            raise NumericError(f"{name}: {error}") from None
        this.save = this.save or any(learns[k] for k in reads)
        places[name] = len(learns)
        learns.append(this.save)
        links.append((name, this.link(), reads))
        told.append((list_seed(layer.rotation_seed, training_step), 0, None, None))
        passes.append((this, senders))
    results = _core.Chain(links).forward(lists, spikes.n_steps, spikes.n_samples, told)
    return {name: (*ran, result) for name, ran, result in zip(layers, passes, results, strict=True)}


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
            nothing = [_unmade(NOTHING, n_pre) for n_pre in layer.n_pre]
            call = Pass(layer, nothing, None, 0).prepare([NO_LISTS] * len(nothing))
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
    none = NOTHING
    return SpikeBatch(none.offsets, none.ids, none.n_spikes, like.n_steps, like.n_samples, n_neurons)


def _learns(spikes: SpikeBatch) -> bool:
    """Whether a gradient of the values of these lists is wanted."""
    return torch.is_grad_enabled() and spikes.values is not None and spikes.values.requires_grad
