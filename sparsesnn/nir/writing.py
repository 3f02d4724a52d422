"""Converts a `Model` to a NIR graph."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsesnn.engines.module import Layer, Model
from sparsesnn.errors import DescriptionError
from sparsesnn.layers import Input, Membrane, Neuron, fires
from sparsesnn.network import Connection, Network
from sparsesnn.nir import maps
from sparsesnn.nir.files import nir_package
from sparsesnn.nir.neurons import KINDS, float32, is_threshold, nodes_of
from sparsesnn.nir.targets import READOUTS, TARGETS, Target, default_readout
from sparsesnn.parameters import Incoming
from sparsesnn.rounding import BITS
from sparsesnn.synapses import Conv1d, Conv2d, Pool, Series, Synapses
from sparsesnn.synapses.maps import OnMaps, sides
from sparsesnn.synapses.one_to_one import check_no_currents
from sparsesnn.wording import count

#: prefix of the setting that a target needs to read a network
_ONLY = "only with "


def to_nir(
    model: Model,
    *,
    target: str = "nir",
    dt: float | None = None,
    keep_reset: bool = False,
    readout: str | None = None,
) -> Any:
    """Makes a `nir.NIRGraph` from a model.

    Synapses become Affine, Linear, convolution and pool nodes, neurons LIF, CubaLIF, IF, LI, CubaLI, I and Threshold nodes; for
    the target "nir", neurons without a reset become a readout and a Threshold. Maps are in NIR's order, [channels, height,
    width]; a Flatten comes before a matrix that reads them. Maps that only `Conv1d` makes are [channels, length], with Conv1d
    nodes, if the target supports these; otherwise they have height 1.

    Args:
        model: its current weights, decays and thresholds.
        target: the reader: "nir" (NIR's equations by Euler's step), "snntorch", "norse", "spikingjelly", "sinabs".
        dt: the reader's step, in the unit of the time constants; None: the reader's default.
        keep_reset: write neurons even if the target lacks their reset; it must be set there separately.
        readout: form of LI and CubaLI populations: "li", a node of that name; "membrane", a LIF or CubaLIF whose threshold is
            never reached, so that its membrane is the readout; "linear", only the weighted sums, which the reader integrates. None: "li" if the target
            supports it, else "membrane".

    A user's own model is written by its method `to_nir`, see `sparsesnn.layers.neuron`, for the target "nir" alone.

    Errors: `DescriptionError` if NIR or the target has no equivalent: another reset, capacities, maximum pooling, axonal
        delays, readouts and loops that the target cannot read.
    """
    if target not in TARGETS:
        raise DescriptionError(
            f"`target` is {target!r}; give the library that will read the graph: {', '.join(TARGETS)}"
        )
    check_no_currents(model.network, "NIR")
    reader = TARGETS[target]
    dt = reader.dt if dt is None else dt
    if dt is None:
        raise DescriptionError(
            f"`dt` is missing: the target {target!r} has no default, and a run has a step only if its data's steps have a width; give the "
            "reader's step in seconds, such as 0.001"
        )
    if not 0 < dt < float("inf"):
        raise DescriptionError(f"`dt` is {dt!r}; give the step of the graph's reader, above 0")
    if readout not in (None, *READOUTS):
        raise DescriptionError(f"`readout` is {readout!r}; give one of {', '.join(READOUTS)}, or None")
    with model.settled():
        return _graph(model, target, reader, dt, keep_reset, readout or default_readout(target))


def _graph(model: Model, target: str, reader: Target, dt: float, keep_reset: bool, readout: str) -> Any:
    nir = nir_package()
    network = model.network
    one_axis = reader.one_axis and _is_one_axis(network)
    nodes: dict[str, Any] = {}
    edges: list[tuple[str, str]] = []
    ends: list[str] = []
    for name, population in network.populations.items():
        if isinstance(population, Input):
            nodes[name] = nir.Input({"input": _type_of(network, name, one_axis)})
            continue
        layer: Layer = model.layers[name]  # type: ignore[assignment]
        if not _is_written(population, target):
            kind = type(population).__name__
            raise DescriptionError(
                f"{name}: its model is {kind}, which {'NIR' if target == 'nir' else target} does not have; it has {', '.join(KINDS)}; only "
                f"networks of these can be exported, and to target 'nir' those of a class with a method to_nir"
            )
        reasons = [
            *_reasons(name, population, network.is_recurrent(name), target, readout),
            *_of_synapses(network, name, target),
        ]
        if reasons and not (keep_reset and all(reason.is_reset for reason in reasons)):
            raise DescriptionError(next(r for r in reasons if not (keep_reset and r.is_reset)).text)
        neuron, threshold, factor = nodes_of(nir, name, layer, target, reader, dt, readout)
        entry = name if threshold is None else f"{name}_membrane"
        bias = None if layer.bias is None else _array(layer.tensor("bias")) * factor
        for c, incoming in zip(network.senders(name), layer.senders, strict=True):
            synapses = f"{c.pre}_to_{name}"
            if synapses in nodes:
                synapses += f"_{c.delay}"
            source = c.pre
            if c.delay:
                source = f"{synapses}_delay"
                nodes[source] = nir.Delay(np.full(_type_of(network, c.pre, one_axis), c.delay * dt))
                edges.append((c.pre, source))
            for suffix, node in _chain(nir, network, c, layer, incoming, factor, bias, one_axis):
                nodes[synapses + suffix] = node
                edges.append((source, synapses + suffix))
                source = synapses + suffix
            bias = None
            if neuron is None:
                ends.append(source)
            else:
                edges.append((source, entry))
        if neuron is None:
            continue
        shape = network.shape(name)
        nodes[entry] = neuron if shape is None else maps.neuron_node(neuron, shape, one_axis)
        if threshold is not None:
            nodes[name] = threshold if shape is None else maps.neuron_node(threshold, shape, one_axis)
            edges.append((entry, name))
        if (loop := layer.loop) is not None:
            weight, scales = _weight(layer, loop, factor)
            nodes[f"{name}_recurrent"] = nir.Linear(np.ascontiguousarray(weight.T), metadata=scales)
            edges += [(name, f"{name}_recurrent"), (f"{name}_recurrent", entry)]
    read = {c.pre for c in network.connections if not c.is_recurrent}
    for name in [k for k in network.populations if k not in read]:
        end = f"{name}_spikes" if fires(network.populations[name]) else f"{name}_potentials"
        nodes[end] = nir.Output({"output": _type_of(network, name, one_axis)})
        edges += [(source, end) for source in ([name] if name in nodes else ends)]
    return nir.NIRGraph(nodes=nodes, edges=edges)


def _members(c: Connection) -> tuple[Synapses, ...]:
    return c.synapses.members if isinstance(c.synapses, Series) else (c.synapses,)


def _is_one_axis(network: Network) -> bool:
    """Whether all maps come from `Conv1d`."""
    kinds = [kind for c in network.connections for kind in _members(c) if isinstance(kind, OnMaps)]
    return bool(kinds) and all(isinstance(kind, Conv1d) for kind in kinds)


def _type_of(network: Network, name: str, one_axis: bool) -> NDArray[Any]:
    """A population's shape in NIR's form."""
    shape = network.shape(name)
    return np.array([network.populations[name].n] if shape is None else maps.theirs(shape, one_axis))


def _chain(
    nir: Any,
    network: Network,
    c: Connection,
    layer: Layer,
    incoming: Incoming,
    factor: NDArray[Any],
    bias: Any,
    one_axis: bool,
) -> list[tuple[str, Any]]:
    """A connection's nodes, each with the suffix of its name, in the order in which spikes pass them."""
    shape, nodes = network.shape(c.pre), []
    channels_first = getattr(network.populations[c.pre], "channels_first", False)
    members = _members(c)
    for k, kind in enumerate(members):
        if isinstance(kind, Pool):
            nodes.append((f"_pool{k}" if len(members) > 1 else "", maps.pool_node(nir, kind)))
            shape, channels_first = kind.post_shape, False
        elif isinstance(kind, Conv2d):
            given, where = network.shape(c.post), f"connection {c.name}"
            assert given is not None, "a convolution makes maps"
            own = np.zeros(kind.channels, np.float32)
            if bias is not None:  # the bias belongs to neurons after the pools; before summing pools it is divided
                sums = [math.prod(sides(m.size)) for m in members[k:] if isinstance(m, Pool) and m.reduction == "sum"]
                own = maps.per_channel(bias, given, where, "the bias") / np.float32(math.prod(sums))
            weight, scales = _weight(layer, incoming, maps.per_channel(factor, given, where, "the gain"))
            nodes.append(("", maps.conv_node(nir, kind, weight, own, scales, one_axis)))
            shape, channels_first = kind.post_shape, False
        else:
            weight, scales = _weight(layer, incoming, factor)
            matrix = np.ascontiguousarray(weight.T)
            if shape is not None:
                nodes.append(("_flatten", maps.flatten_node(nir, shape, one_axis)))
                matrix = matrix if channels_first else maps.to_theirs(matrix, shape)
            node = nir.Linear(matrix, metadata=scales) if bias is None else nir.Affine(matrix, bias, metadata=scales)
            nodes.append(("", node))
    return nodes


@dataclass(frozen=True)
class Reason:
    """The reason why a target does not support a population.

    Args:
        text: a whole message.
        short: the same in a few words.
        is_reset: whether it is the reset, which may be set at the reader separately.
    """

    text: str
    short: str
    is_reset: bool = False


def readers(network: Network) -> dict[str, tuple[str, ...]]:
    """For each target, short reasons why it cannot read the network as it is; empty: none."""
    found = {}
    for target in TARGETS:
        reasons = []
        for name, population in network.receivers().items():
            reasons += _reasons(name, population, network.is_recurrent(name), target, default_readout(target))
            reasons += _of_synapses(network, name, target)
        found[target] = tuple(dict.fromkeys(reason.short for reason in reasons))
    return found


def readers_text(network: Network) -> str:
    """One line about `readers`, such as "… can be read by nir; with net.reset=zero by norse", or the reasons that exclude all."""
    by_change: dict[str, list[str]] = {}
    for target, reasons in readers(network).items():
        if all(reason.startswith(_ONLY) for reason in reasons):
            changes = " and ".join(reason.removeprefix(_ONLY) for reason in reasons)
            by_change.setdefault(changes, []).append(target)
    if not by_change:
        first = dict.fromkeys(reason for reasons in readers(network).values() for reason in reasons)
        return (
            f"no other library reads this network through NIR: {', '.join(r for r in first if not r.startswith(_ONLY))}"
        )
    by_change.setdefault("", ["no other library as it is"])
    parts = [
        f"{f'with {change} ' if change else ''}by {', '.join(targets)}" for change, targets in sorted(by_change.items())
    ]
    return f"through NIR, this network can be read {'; '.join(parts)}"


def _reasons(name: str, population: Neuron, recurrent: bool, target: str, readout: str) -> list[Reason]:
    reader, reasons = TARGETS[target], []
    kind = type(population).__name__
    if not _is_written(population, target):
        return [Reason("", f"NIR has no {kind}")]
    if kind not in KINDS:
        return _of_lists(name, population)
    written = kind if fires(population) or readout == "li" else f"{kind}F"
    if written not in reader.neurons and (fires(population) or readout != "linear"):
        text = f"{name}: is a {kind}, which {target} does not support; it supports {', '.join(reader.neurons)}"
        if not fires(population):
            text += f"; use {'`readout=membrane` or ' if f'{kind}F' in reader.neurons else ''}`readout=linear`"
        reasons.append(Reason(text, f"no {kind}"))
    if not isinstance(population, Membrane):
        return reasons
    if recurrent and not reader.recurrent:
        text = f"{name}: is recurrent, and {target} does not read loops from NIR correctly; use `target=nir`"
        reasons.append(Reason(text, "no recurrence"))
    reasons += _of_lists(name, population)
    reset, decays = reader.reset
    if "Threshold" in reader.neurons and (population.reset == "none" or _is_memoryless(population, reader)):
        return reasons
    if population.reset != reset or (reset == "subtract" and population.reset_decays != decays):
        ours = f"{population.reset!r}{' before the decay' if population.reset_decays else ''}"
        theirs = f"{reset!r}{' before the decay' if decays else ''}"
        text = (
            f"{name}: its reset is {ours}, that of {target} is {theirs}, and NIR has no other: train with that reset, or "
            "give `keep_reset=True` and set the reader's neurons yourself"
        )
        wanted = f"net.reset={reset}" + (", net.reset_decays=true" if decays else "")
        reasons.append(Reason(text, _ONLY + wanted, is_reset=True))
    return reasons


def _is_memoryless(population: Membrane, reader: Target) -> bool:
    """Whether a population is written as a Threshold alone."""
    return (
        is_threshold(population, reader)
        and not population.learn_beta
        and bool(np.all(np.asarray(population.beta) == 0))
    )


def _is_written(population: Neuron, target: str) -> bool:
    """Whether there is a node for a model: NIR's, or one that a user's own class makes."""
    return type(population).__name__ in KINDS or (target == "nir" and hasattr(population, "to_nir"))


def _of_lists(name: str, population: Neuron) -> list[Reason]:
    """Reasons why a population's lists cannot be written."""
    if not fires(population) or population.capacity is None:
        return []
    text = (
        f"{name}: has a capacity of {population.capacity}, which drops candidates; NIR has none: export the network "
        "without it (capacity=None)"
    )
    return [Reason(text, "no capacity")]


def _of_synapses(network: Network, name: str, target: str) -> list[Reason]:
    """Reasons why a target cannot read a population's inputs and maps."""
    reader, found, population = TARGETS[target], [], network.populations[name]
    on_maps = network.shape(name) is not None
    for c in network.incoming(name):
        where = f"connection {c.name}"
        members = _members(c)
        if c.is_recurrent and not c.synapses.is_matrix:
            text = f"{where}: is a recurrent convolution or pooling, which cannot be written to NIR; leave it out, or use Dense"
            found.append(Reason(text, "no recurrent convolution"))
        if c.delay and not c.is_recurrent and not reader.delays:
            text = f"{where}: has a delay of {count(c.delay, 'step')}, and {target} does not read delays from NIR; use `target=nir`"
            found.append(Reason(text, "no delays"))
        if c.axonal:
            text = f"{where}: has a delay per sender, which cannot be written to NIR; use one delay for the connection"
            found.append(Reason(text, "no axonal delays"))
        if on_maps and members[-1].is_matrix:
            text = f"{where}: a matrix makes the maps of {name}, and NIR's Linear makes no maps; leave convolutions into {name} out"
            found.append(Reason(text, "no matrix that makes maps"))
        for kind in members:
            if not kind.is_matrix and not isinstance(kind, (Pool, Conv2d)):
                text = f"{where}: its synapses are {type(kind).__name__}, which NIR does not have; it has matrices, convolutions and pooling"
                found.append(Reason(text, f"no {type(kind).__name__}"))
            if isinstance(kind, Pool) and kind.reduction not in reader.pools:
                text = (
                    f"{where}: pools by {kind.reduction}, which {'NIR' if target == 'nir' else target} does not have; it has "
                    f"{', '.join(reader.pools)}: train with one of these"
                )
                found.append(Reason(text, f"no {kind.reduction} pooling"))
            if isinstance(kind, Conv2d) and kind.groups > 1 and not reader.groups:
                text = f"{where}: its groups are {kind.groups}, and {target} reads convolutions of one group; use `target=nir`"
                found.append(Reason(text, "no groups"))
        if getattr(population, "bias", False) and all(isinstance(kind, Pool) for kind in members):
            text = f"{where}: pools without weights, and NIR has no place for the bias of {name}; use bias=False"
            found.append(Reason(text, "no bias after pools"))
    if on_maps and not reader.leaky_maps and getattr(population, "beta", 1) != 1:
        text = f"{name}: leaks on maps, which {target} does not support; use beta=1, or `target=nir`"
        found.append(Reason(text, "no leaky neurons on maps"))
    return found


def _weight(layer: Layer, c: Incoming, factor: NDArray[Any]) -> tuple[NDArray[np.float32], dict[str, Any]]:
    """The weight in effect, times a factor per receiver, and metadata; rounded weights are integers times `scale`, float32[n], in the metadata."""
    if layer.weight_dtype not in BITS:
        return _array(layer.matrix(c)) * factor, {}
    rounded = layer.integers(c, layer.weight_dtype)
    scale = float32(_array(rounded.scales) * factor)
    numbers = _array(rounded.numbers)
    if layer.columns(c) is not None:
        spread = np.zeros(c.n_pre * scale.size, np.float32)
        spread[layer.places(c).cpu().numpy()] = numbers
        numbers = spread.reshape(c.n_pre, scale.size)
    return numbers * scale, {"scale": scale, "weight_dtype": layer.weight_dtype}


def _array(tensor: Any) -> NDArray[np.float32]:
    array: NDArray[np.float32] = tensor.detach().cpu().float().numpy()
    return array
