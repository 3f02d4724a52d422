"""Networks whose layers run one after the other in one call of the engine: a call per layer would cost more time in Python.

`OneCall.run` makes each layer a node of PyTorch's graph, as if it had run by itself; `OneCall.learn` goes back in one call too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules import module as torch_modules

from sparsesnn import _core
from sparsesnn.engines.cpu.layer import NO_LISTS, NOTHING, Pass, engine_lists, spikes_of, state_after
from sparsesnn.engines.cpu.wiring import Wiring, in_lists
from sparsesnn.errors import NumericError
from sparsesnn.host.comm.base import Bytes
from sparsesnn.layers import Population
from sparsesnn.loss import CrossEntropy
from sparsesnn.network import Network
from sparsesnn.output import LayerState, Lazily, Output, last_steps
from sparsesnn.rotation import list_seed, next_training_step
from sparsesnn.rounding import BITS
from sparsesnn.spikes import SpikeBatch

if TYPE_CHECKING:
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


def fits_one_call(network: Network) -> bool:
    """Whether one call runs a network: between populations nothing is pooled, and no neurons have delays of their own."""
    return not any(
        not c.is_recurrent and (c.axonal or in_lists(c.synapses, network.populations[c.pre].n).pools)
        for c in network.connections
    )


class OneCall:
    """A network and its layers as the engine sees them in one call: made once, and again where a tensor is another one or lies
    elsewhere (`of`).

    Args:
        layers: by population.
        learns: whether gradients of the values of the input's lists are wanted.
        parts: how the network lies on the ranks of a grid.

    Attributes:
        fires: the layers that put out lists.
        saves: by population, the input first, whether a backward pass may follow.
        tensors: by layer, what the engine reads.
        learnt: by layer and the engine's name, the parameters whose gradients `chain.backward` finds, in its order.
        is_plain: gradients are wanted of nothing but parameters that the engine reads as they are.
        counts: whether a layer counts training steps.
        shards: what ranks that share neurons tell one another; None: none do.
    """

    def __init__(self, network: Network, layers: Mapping[str, Any], learns: bool, parts: Parts | None = None) -> None:
        self.network, self.layers = network, layers
        self.parts, self.reduction = parts, parts.reduction if parts else None
        self.fires = [name for name in layers if isinstance(network.populations[name], Population)]
        self.senders = {name: [c.pre for c in network.senders(name)] for name in layers}
        self.saves = {network.inputs[0]: learns}
        self.tensors: dict[str, dict[str, Tensor]] = {}
        self.learnt: dict[str, dict[str, Tensor]] = {}
        self.is_plain, in_place = not learns, True
        places, links, wanted = {network.inputs[0]: 0}, [], []
        for name, layer in layers.items():
            senders = self.senders[name]
            try:
                this = Pass(layer, [_unmade(NOTHING, n) for n in layer.n_pre], None, 0)
            except NumericError as error:
                raise NumericError(f"{name}: {error}") from None
            this.save = this.save or any(map(self.saves.__getitem__, senders))
            links.append((name, this.prepare([NO_LISTS] * len(senders)), [places[pre] for pre in senders]))
            names = [*this.wiring.senders, *this.wiring.loops, "bias"]
            self.learnt[name] = {x: this.learnt[x] for x in names if x in this.learnt}
            *weights, bias = (x in this.learnt for x in names)
            wanted.append((weights[: len(senders)], weights[len(senders) :], bias))
            places[name], self.saves[name] = len(places), this.save
            self.tensors[name] = this.tensors
            own = {id(x) for x in (*layer._parameters.values(), *layer._buffers.values())}
            in_place = in_place and all(id(x) in own and x.is_contiguous() for x in this.tensors.values())
            self.is_plain = self.is_plain and _learns_as_read(layer)
        self.counts = any(layer.training_steps is not None for layer in layers.values())
        self.shards = parts.between(layers.values()) if parts else None
        self.chain = _core.Chain(links, wanted, self.shards)
        self.key = _key(layers, learns) if in_place else None

    @staticmethod
    def of(
        kept: OneCall | None, network: Network, layers: Mapping[str, Any], spikes: SpikeBatch, parts: Parts | None
    ) -> OneCall:
        """The one that was kept, if it still holds, or another."""
        learns = torch.is_grad_enabled() and spikes.values is not None and spikes.values.requires_grad
        if kept is not None and kept.key is not None and kept.key == _key(layers, learns):
            return kept
        return OneCall(network, layers, learns, parts)

    def run(self, spikes: SpikeBatch) -> tuple[dict[str, Any], dict[str, LayerState]]:
        """A pass that begins a sequence; by population what it puts out, the input first, and its state.

        Each layer is a node of PyTorch's graph, as if it had run by itself.
        """
        outputs: dict[str, Any] = {self.network.inputs[0]: spikes}
        states: dict[str, LayerState] = {}
        training_steps = self._training_steps()
        passes = {}
        for name, layer in self.layers.items():
            heard = [
                spikes if pre in outputs else _unmade(spikes, n)
                for pre, n in zip(self.senders[name], layer.n_pre, strict=True)
            ]
            passes[name] = Pass(layer, heard, None, training_steps[name], self.tensors[name])
            passes[name].save = self.saves[name]
        for (name, this), run in zip(
            passes.items(), self._forward(engine_lists(spikes), spikes, training_steps), strict=True
        ):
            this.ran([outputs[pre] for pre in self.senders[name]], run)
            outputs[name], states[name] = this.output()
        return outputs, states

    def learns_alone(self) -> bool:
        """Whether `learn` does what autograd would: what learns is not computed of something else, and nobody wants to see gradients
        on their way."""
        return (
            self.is_plain
            and self.saves[self.network.output]
            and not any(
                not x.is_leaf or x._backward_hooks or getattr(x, "_post_accumulate_grad_hooks", None)
                for learnt in self.learnt.values()
                for x in learnt.values()
            )
        )

    def learn(
        self,
        spikes: SpikeBatch,
        loss: Callable[[Output], Tensor],
        depth: int,
        first_sample: int = 0,
    ) -> tuple[Tensor, Output]:
        """A pass that begins a sequence, the loss of what the network puts out, and the way back: gradients are added to the
        parameters. Returns the loss, detached, and the output.

        PyTorch's graph begins at what the layers put out and holds the loss alone; where the engine differentiates the loss, there
        is none, and the output carries no gradient. Same bits as through `run`.

        Args:
            depth: steps of the input that its state keeps.
            first_sample: samples of the batch that other replicas run before these.
        """
        training_steps = self._training_steps()
        lists_read = engine_lists(spikes)
        with self.parts.packed(self.layers) if self.parts else nullcontext():
            runs = self._forward(lists_read, spikes, training_steps, hidden=True, first_sample=first_sample)
        of = dict(zip(self.layers, runs, strict=True))
        last = self.network.output
        leaves: dict[str, Tensor] = {}

        def leaf(name: str, x: Tensor) -> Tensor:
            leaves[name] = x.requires_grad_(self.saves[name])
            return x

        def lists(name: str) -> SpikeBatch:
            learns = self.saves[name] and not in_engine
            values = leaf(name, torch.from_numpy(of[name].values)) if learns else None
            n = self.layers[name].population.n
            return spikes_of(of[name], spikes.n_steps, spikes.n_samples, n, values)

        def state(name: str) -> LayerState:
            if name not in of:
                return LayerState(history=last_steps(None, spikes, depth))
            sent: Any = fired.get(name)
            return state_after(self.layers[name], None, of[name], sent, spikes.n_steps, training_steps[name])

        # no function of an output may hold it: a circle would keep all arrays until Python looks for circles
        fired = Lazily(lists, self.fires)
        potentials: Any = of[last].potentials  # None where the last layer fires
        made = Output(
            potentials=None if potentials is None else torch.from_numpy(potentials),
            spikes=fired,
            state={} if self.parts else Lazily(state, [*of, *([self.network.inputs[0]] if depth else [])]),
            output=last,
        )
        arrived: dict[str, Any]
        in_engine = (
            loss if isinstance(loss, CrossEntropy) and loss.is_whole() and loss.fits_engine(potentials) else None
        )
        if in_engine:
            value, gradient = in_engine.of_potentials(potentials)
            arrived = {last: gradient(1.0)}
        else:
            if made.potentials is not None:
                leaf(last, made.potentials)
            lists_read.show()
            value = loss(made)
            value.backward()
            arrived = {
                name: x.grad.contiguous().numpy()
                for name, x in leaves.items()
                if x.grad is not None and x.requires_grad
            }
        d_out = [arrived.get(name) for name in of]
        n_batch = self.reduction.n_batch(spikes.n_samples, first_sample) if self.reduction else 0
        self.chain.backward(runs, d_out, self._takes_gradients(runs, spikes, lists_read), n_batch)
        if self.shards:
            self.shards.count_traffic()
        return value.detach(), made

    def _takes_gradients(
        self, runs: list[_core.Run], spikes: SpikeBatch, lists_read: _core.Lists
    ) -> Callable[[int, list[np.ndarray]], None]:
        """Called with the number of a layer and its gradients, once they are there; while sums over replicas travel, the layers
        before it run backwards."""
        names = list(self.layers)
        of = dict(zip(names, runs, strict=True))

        def take(k: int, gradients: list[np.ndarray]) -> None:
            name = names[k]
            layer, learnt = self.layers[name], self.learnt[name]
            if self.parts is None:
                _add_gradients(learnt.values(), gradients)
                return
            wiring = Wiring.of(layer)
            senders = {
                **dict(zip(wiring.senders, self.senders[name], strict=True)),
                **dict.fromkeys(wiring.loops, name),
            }

            def listed(weight: str) -> Any:
                sender = senders[weight]
                return np.asarray(
                    of[sender].perhaps_listed() if sender in of else lists_read.perhaps_listed(spikes.n_neurons)
                )

            first, end = layer.neurons
            if first == end:  # of a rank without neurons
                gradients = [np.zeros(x.shape, np.float32) for x in learnt.values()]
            found = dict(zip(learnt, gradients, strict=True))
            if self.reduction and first < end:
                found = self.reduction.add_layer(layer, learnt, found, listed)
            _add_gradients(map(learnt.__getitem__, found), found.values())

        return take

    def _packed(self, layer: Any) -> list[Bytes | None] | None:
        """Weights of a layer's sources and loops that are in the engine's order already."""
        if not layer.part or not layer.part.packed:
            return None
        wiring = Wiring.of(layer)
        return [layer.part.packed.get(name) for name in (*wiring.senders, *wiring.loops)]

    def _training_steps(self) -> Mapping[str, int]:
        """By layer, counted on where a layer counts."""
        return {name: next_training_step(layer) if self.counts else 0 for name, layer in self.layers.items()}

    def _forward(
        self,
        lists: _core.Lists,
        spikes: SpikeBatch,
        training_steps: Mapping[str, int],
        *,
        hidden: bool = False,
        first_sample: int = 0,
    ) -> list[_core.Run]:
        told: list[Any] = [
            (list_seed(layer.rotation_seed, training_steps[name]), 0, None, None, self._packed(layer))
            for name, layer in self.layers.items()
        ]
        runs = self.chain.forward(lists, spikes.n_steps, spikes.n_samples, told, hidden, first_sample)
        if self.shards:
            self.shards.count_traffic()
        return runs


def _add_gradients(parameters: Iterable[Tensor], gradients: Iterable[np.ndarray]) -> None:
    for parameter, array in zip(parameters, gradients, strict=True):
        more = torch.from_numpy(array)
        parameter.grad = more if parameter.grad is None else parameter.grad.add_(more)


def _key(layers: Mapping[str, Any], learns: bool) -> list[Any]:
    """What the engine's view depends on: which tensors there are, where they lie, and which of them learn."""
    key: list[Any] = [learns, torch.is_grad_enabled()]
    for layer in layers.values():
        key += (id(layer), layer.weight_dtype)
        for x in (*layer._parameters.values(), *layer._buffers.values()):
            key.append(
                None if x is None else (id(x), x.data_ptr(), x.dtype, x.shape, x.is_contiguous(), x.requires_grad)
            )
    return key


def _learns_as_read(layer: Any) -> bool:
    learnt = {name for name, x in layer._parameters.items() if x is not None and x.requires_grad}
    return layer.weight_dtype not in BITS and learnt <= Wiring.of(layer).read_as_they_are


def _unmade(like: SpikeBatch, n_neurons: int) -> SpikeBatch:
    """In place of lists that the engine will have made when they are read."""
    none = NOTHING
    return SpikeBatch(none.offsets, none.ids, none.n_spikes, like.n_steps, like.n_samples, n_neurons)
