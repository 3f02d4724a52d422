"""A wired network as a `Network` and a `Model` whose tensors are functions of the library's parameters."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsesnn.conversion.leaves import Leaf, weights_now
from sparsesnn.conversion.neurons import Leak
from sparsesnn.conversion.wiring import Front, Link, Target, Wiring
from sparsesnn.engines.module import Model
from sparsesnn.errors import DescriptionError
from sparsesnn.layers import Input
from sparsesnn.network import Connection, Network
from sparsesnn.synapses import Conv2d, Dense, Pool, Series, Synapses

#: the name of the input population
INPUT = "input"


@dataclass(eq=False)
class Built:
    """The model, and its inputs from the library's modules before each pass.

    Args:
        model: its layers have no own parameters.
        names: of the populations, by module.
        order: int[n] of each population on maps, by module: the library's neuron of each of ours; others have the same order.
        tensors: by population and tensor, a function that returns its values.
        sources: the modules whose parameters are read.
    """

    model: Model
    names: dict[Leaf, str]
    order: dict[Leaf, Tensor]
    tensors: dict[tuple[str, str], Callable[[], Tensor]]
    sources: list[Leaf]

    def refresh(self) -> None:
        """Gives the model the library's parameters as they are now, in autograd's graph."""
        for leaf in self.sources:
            weights_now(leaf)
        for (population, name), read in self.tensors.items():
            vars(self.model.layers[population])[name] = read()


def build(wiring: Wiring, grad_threshold: float, last: Leaf | None) -> Built:
    """Makes the model.

    Args:
        wiring: of the traced network.
        grad_threshold: of all populations, in the library's potentials.
        last: the module whose potentials are an output; None: none.

    Errors: `DescriptionError` for networks that cannot be described here.
    """
    return _Builder(wiring, grad_threshold, last).build()


class _Builder:
    def __init__(self, wiring: Wiring, grad_threshold: float, last: Leaf | None) -> None:
        self.wiring, self.grad_threshold = wiring, grad_threshold
        targets = wiring.targets
        self.targets = [t for t in targets if t.leaf is not last] + [t for t in targets if t.leaf is last]
        self.names = _names(t.leaf for t in self.targets)
        given = wiring.front.target  # maps of currents, whose shape the network does not know
        self.on_maps = {
            t.leaf for t in self.targets if len(t.shape) == 3 and (t is given or any(_makes_maps(k) for k in t.links))
        }
        self.order = {t.leaf: _channels_last(t.shape) for t in self.targets if t.leaf in self.on_maps}
        self.tensors: dict[tuple[str, str], Callable[[], Tensor]] = {}
        self.sources: list[Leaf] = []

    def build(self) -> Built:
        front = self.wiring.front
        populations: dict[str, Any] = {INPUT: self._input(front)}
        connections: list[Connection] = []
        for target in self.targets:
            name = self.names[target.leaf]
            biases = self._biases(target)
            n = None if any(_makes_maps(link) for link in target.links) else math.prod(target.shape)
            populations[name] = self._population(target, n, bool(biases))
            if biases:
                self.tensors[name, "bias"] = partial(_sum, biases)
            connections += self._connections(target, front)
        try:
            network = Network(populations, tuple(connections))
        except DescriptionError as error:
            raise DescriptionError(f"convert: {error}") from None
        model = Model(network)
        for (population, tensor), read in self.tensors.items():
            layer: Any = model.layers[population]
            shape = read().shape
            before = getattr(layer, tensor)
            if before.shape != shape and before.shape.numel() != 1:
                raise DescriptionError(
                    f"convert: {population}: {tensor} has shape {list(shape)}, needs {list(before.shape)}; give one number, or one per neuron"
                )
            layer._parameters.pop(tensor, None)
            layer._buffers.pop(tensor, None)
        model.watch = None  # its advice names options of our own training
        return Built(model, self.names, self.order, self.tensors, self.sources)

    def _input(self, front: Front) -> Input:
        if not front.is_spikes:
            assert front.target
            return Input(math.prod(front.target.shape), currents=True)
        given = front.leaf.calls[0].given
        if type(front.leaf.module).__name__ == "Linear":
            return Input(given.shape[-1])
        channels, height, width = given.shape[-3:]
        return Input(shape=(height, width, channels), channels_first=True)

    def _population(self, target: Target, n: int | None, bias: bool) -> Any:
        spec = target.leaf.spec
        if spec is None:
            return Leak(n, beta=0.0, alpha=0.0, scale=1.0, bias=bias)  # type: ignore[arg-type]
        n_all, name = math.prod(target.shape), self.names[target.leaf]
        for parameter in spec.tensors():
            self.tensors[name, parameter] = self._numbers(target, parameter)
        try:
            made = spec.population(n_all, self.grad_threshold, bias=bias)
        except DescriptionError as error:
            raise DescriptionError(f"{target.leaf.where}: {error}") from None
        return made

    def _numbers(self, target: Target, parameter: str) -> Callable[[], Tensor]:
        spec, order = target.leaf.spec, self.order.get(target.leaf)
        assert spec

        def read() -> Tensor:
            x = spec.tensors()[parameter]
            if x.ndim == 0:
                return x
            x = x.reshape(-1)
            return x if order is None else x[order]

        return read

    # ---- synapses ----------------------------------------------------------------------------------------------

    def _connections(self, target: Target, front: Front) -> list[Connection]:
        name = self.names[target.leaf]
        merged: dict[tuple[str, int, Synapses], list[Callable[[], Tensor]]] = {}
        if front.target is target:
            merged[INPUT, 0, Dense()] = []
        for link in target.links:
            sender = INPUT if link.sender is None else self.names[link.sender]
            merged.setdefault((sender, link.delay, self._kind(target, link)), []).extend(self._weights(target, link))
        spec = target.leaf.spec
        if spec and spec.loop is not None:
            if not isinstance(spec.loop, nn.Linear):
                raise DescriptionError(
                    f"{target.leaf.where}: its recurrent synapses are {type(spec.loop).__name__}; allowed: Linear; give linear_features"
                )
            merged.setdefault((name, 1, Dense()), []).append(self._matrix(spec.loop, None, target.leaf, target.leaf))
        connections = []
        for (sender, delay, kind), weights in merged.items():
            if sender == name and not delay:
                raise DescriptionError(
                    f"{target.leaf.where}: reads its own spikes of the same step; allowed: those of the step before; read them one step later"
                )
            made = Connection(sender, name, delay, kind)
            connections.append(made)
            if weights:
                tensor = made.name if len([k for k in merged if k[0] == sender]) == 1 else made.name_with_delay
                self.tensors[name, tensor] = partial(_sum, weights)
        return connections

    def _kind(self, target: Target, link: Link) -> Synapses:
        last = link.synapses[-1]
        if len(link.synapses) > 1 and _pools(last):
            raise DescriptionError(
                f"{last.where}: pools the currents of {link.synapses[-2].name}; allowed: pools of spikes, and of currents in front of the first neurons; put "
                "the pool after the neurons"
            )
        for leaf in link.synapses[:-1]:
            if not _pools(leaf):
                raise DescriptionError(
                    f"{link.synapses[-1].where}: reads the output of {leaf.name} without neurons between them; allowed: pools, then one Linear or Conv2d; put "
                    "neurons between them"
                )
        kinds = [_synapses(leaf) for leaf in link.synapses]
        if link.sender is not None and not isinstance(kinds[0], Dense):
            if (
                link.sender not in self.on_maps
                or link.order is None
                or not np.array_equal(link.order, np.arange(len(link.order)))
            ):
                raise DescriptionError(
                    f"{link.synapses[0].where}: reads neurons that are not maps; allowed: the maps of a convolution or pool; put a convolution before them"
                )
            given = self.wiring.front.target
            if given and given.leaf is link.sender and isinstance(kinds[0], (Conv2d, Pool)):
                channels, height, width = given.shape
                kinds[0] = replace(kinds[0], shape=(height, width, channels))
        return kinds[0] if len(kinds) == 1 else Series(tuple(kinds))

    def _weights(self, target: Target, link: Link) -> list[Callable[[], Tensor]]:
        leaf = link.synapses[-1]
        if _pools(leaf):
            return []
        self.sources.append(leaf)
        module: Any = leaf.module
        if not isinstance(module, nn.Linear):
            part = None if link.part is None else torch.from_numpy(link.part)
            return [lambda: (module.weight if part is None else module.weight[:, part]).permute(2, 3, 1, 0)]
        pooled = _synapses(link.synapses[0]) if len(link.synapses) > 1 else None
        return [self._matrix(module, link.order, link.sender, target.leaf, pooled is not None, leaf, link.part)]

    def _matrix(
        self,
        module: Any,
        order: np.ndarray | None,
        sender: Leaf | None,
        receiver: Leaf,
        pooled: bool = False,
        leaf: Leaf | None = None,
        part: np.ndarray | None = None,
    ) -> Callable[[], Tensor]:
        """The weight of a `Linear` as [n_pre, n], in our order of neurons."""
        columns = self.order.get(receiver)
        rows: Tensor | None = None
        if pooled:
            assert leaf
            channels, height, width = leaf_shape_before(leaf)
            rows = _channels_last((channels, height, width))
        elif order is not None:
            place = np.argsort(order)
            if sender in self.order:
                place = place[self.order[sender].numpy()]
            place = place if part is None else part[place]
            whole = len(place) == module.weight.shape[1]
            rows = None if whole and np.array_equal(place, np.arange(len(place))) else torch.from_numpy(place)
        if rows is None and columns is None:
            return lambda: module.weight.t()

        def read() -> Tensor:
            weight: Tensor = module.weight if rows is None else module.weight[:, rows]
            weight = weight if columns is None else weight[columns]
            return weight.t()

        return read

    def _biases(self, target: Target) -> list[Callable[[], Tensor]]:
        found: list[Callable[[], Tensor]] = []
        order = self.order.get(target.leaf)
        modules: list[tuple[int, Any]] = [(link.term, link.synapses[-1].module) for link in target.links]
        if target.leaf.spec and target.leaf.spec.loop is not None:
            modules.append((0, target.leaf.spec.loop))
        for _, module in dict.fromkeys(modules):
            if getattr(module, "bias", None) is None:
                continue
            found.append(partial(_bias, module, order, math.prod(target.shape[1:])))
        return found


def leaf_shape_before(leaf: Leaf) -> tuple[int, int, int]:
    """Channels, height and width of the pooled maps that a flattened `Linear` reads."""
    signal = leaf.calls[-1].signal
    ports = signal.ports if signal else ()
    for port in ports:
        if port.call.leaf.kind == "synapses":
            channels, height, width = port.shape[-3:]
            return channels, height, width
    raise AssertionError("a pool is in front")


def _makes_maps(link: Link) -> bool:
    return type(link.synapses[-1].module).__name__ != "Linear"


def _pools(leaf: Leaf) -> bool:
    return type(leaf.module).__name__.endswith("Pool2d")


def _synapses(leaf: Leaf) -> Synapses:
    module: Any = leaf.module
    kind = type(module).__name__
    if kind == "Linear":
        return Dense()
    if kind == "Conv2d":
        return Conv2d(
            module.out_channels, module.kernel_size, module.stride, module.padding, module.dilation, module.groups
        )
    reduction = {"AvgPool2d": "average", "MaxPool2d": "max", "SumPool2d": "sum"}[kind]
    return Pool(reduction, module.kernel_size, module.stride)


def _channels_last(shape: tuple[int, ...]) -> Tensor:
    """For neurons in the order [height, width, channels], their numbers in the order [channels, height, width]."""
    return torch.arange(math.prod(shape)).view(*shape).permute(1, 2, 0).reshape(-1)


def _sum(tensors: list[Callable[[], Tensor]]) -> Tensor:
    """The sum of the functions' results."""
    total = tensors[0]()
    for read in tensors[1:]:
        total = total + read()
    return total


def _bias(module: Any, order: Tensor | None, places: int) -> Tensor:
    """One number per neuron: of a `Linear` in our order, of a convolution at every place."""
    bias: Tensor = module.bias
    if not isinstance(module, nn.Linear):
        return bias.repeat(places)
    return bias if order is None else bias[order]


def _names(leaves: Iterable[Leaf]) -> dict[Leaf, str]:
    """Names of populations: those of the modules, with letters that a network allows."""
    names: dict[Leaf, str] = {}
    for leaf in leaves:
        name = re.sub(r"[^A-Za-z0-9_]", "_", leaf.name) or "neurons"
        name = f"layer{name}" if name[0].isdigit() else name
        while name in names.values() or name == INPUT:
            name += "_"
        names[leaf] = name
    return names
