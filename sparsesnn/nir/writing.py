"""Converts a `Model` to a NIR graph."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsesnn.engines.module import Layer, Model
from sparsesnn.errors import DescriptionError
from sparsesnn.layers import LI, CubaLIF, Input, Membrane, Neuron, fires
from sparsesnn.network import Connection, Network
from sparsesnn.nir import maps
from sparsesnn.nir.files import nir_package
from sparsesnn.parameters import Incoming
from sparsesnn.rounding import BITS
from sparsesnn.synapses import Conv1d, Conv2d, Pool, Series, Synapses
from sparsesnn.synapses.maps import OnMaps, sides
from sparsesnn.synapses.one_to_one import check_no_currents
from sparsesnn.wording import count


@dataclass(frozen=True)
class Target:
    """How a library reads a graph.

    Args:
        dt: its step; None: must be given.
        exponential: β = e^(-dt/τ), else 1 - dt/τ.
        reset: of its neurons; None: NIR's, "zero".
        reads_r: it uses `r`; otherwise it has its own gain, for which the weights compensate.
        own_gain: that gain: "share" (1 - β) or "unit" (1).
        neurons: supported kinds of nodes.
        recurrent: it supports loops.
        delays: it supports Delay nodes.
        pools: supported reductions.
        one_axis: it supports Conv1d.
        groups: it supports grouped convolutions; importers that make a PyTorch module with the weight's second size do not.
        leaky_maps: it supports leaky neurons on maps.
    """

    dt: float | None
    exponential: bool = False
    reset: tuple[str, bool] = ("zero", False)
    reads_r: bool = True
    own_gain: str = "share"
    neurons: tuple[str, ...] = ("LIF", "CubaLIF", "IF", "LI")
    recurrent: bool = True
    delays: bool = False
    pools: tuple[str, ...] = ("sum", "average")
    one_axis: bool = False
    groups: bool = False
    leaky_maps: bool = True


#: from the source of their importers at the versions of `conventions`
TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        "nir": Target(None, delays=True, one_axis=True, groups=True),
        # its importer passes the input of a recurrent layer through the recurrent weights
        "snntorch": Target(1e-4, neurons=("LIF", "CubaLIF"), recurrent=False, pools=("average",)),
        "norse": Target(1e-3, reads_r=False, neurons=("LIF", "CubaLIF"), recurrent=False, pools=("sum",)),
        "spikingjelly": Target(
            1e-4, reads_r=False, neurons=("LIF", "CubaLIF", "IF"), recurrent=False, pools=("average",)
        ),
        "sinabs": Target(
            1.0,
            True,
            ("subtract", True),
            reads_r=False,
            own_gain="unit",
            neurons=("LIF", "LI", "IF"),
            recurrent=False,
            pools=("sum",),
            leaky_maps=False,  # its importer tests whether any row of v_leak is not 0
        ),
    }
)


#: forms of an LI readout
READOUTS = ("li", "membrane", "linear")
#: prefix of the setting that a target needs to read a network
_ONLY = "only with "
#: models in NIR
_KINDS = ("LIF", "CubaLIF", "LI")
#: a threshold that no potential reaches, for a neuron whose membrane is the readout
_NEVER = 1e30


def to_nir(
    model: Model,
    *,
    target: str = "nir",
    dt: float | None = None,
    keep_reset: bool = False,
    readout: str | None = None,
) -> Any:
    """The model as a `nir.NIRGraph`: Affine, Linear, convolution and pool nodes for synapses, LIF, CubaLIF, IF and LI nodes
    for neurons. Maps are NIR's, [channels, height, width]; a matrix reads them after a Flatten. If `Conv1d` makes all maps, they
    are [channels, length] with Conv1d nodes, if the target supports these; else maps of height 1.

    Args:
        model: its current weights, decays and thresholds.
        target: the reader: "nir" (NIR's equations by Euler's step), "snntorch", "norse", "spikingjelly", "sinabs".
        dt: the reader's step, in the unit of the time constants; None: the reader's default.
        keep_reset: write neurons even if the target lacks their reset; it must be set there separately.
        readout: form of LI populations: "li", a node LI; "membrane", a LIF whose threshold is never reached, so that its
            membrane is the readout; "linear", only the weighted sums, which the reader integrates. None: "li" if the target
            supports it, else "membrane".

    A model of a person's own is written by its method `to_nir`, see `sparsesnn.layers.neuron`, for the target "nir" alone.

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
    if dt is None or not 0 < dt < float("inf"):
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
                f"{name}: its model is {kind}, which {'NIR' if target == 'nir' else target} does not have; it has {', '.join(_KINDS)}; only "
                f"networks of these can be exported, and to target 'nir' those of a class with a method to_nir"
            )
        reasons = [
            *_reasons(name, population, network.is_recurrent(name), target, readout),
            *_of_synapses(network, name, target),
        ]
        if reasons and not (keep_reset and all(reason.is_reset for reason in reasons)):
            raise DescriptionError(next(r for r in reasons if not (keep_reset and r.is_reset)).text)
        neuron, factor = _neuron(nir, name, layer, target, reader, dt, readout)
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
                edges.append((source, name))
        if neuron is None:
            continue
        shape = network.shape(name)
        nodes[name] = neuron if shape is None else maps.neuron_node(neuron, shape, one_axis)
        if (loop := layer.loop) is not None:
            weight, scales = _weight(layer, loop, factor)
            nodes[f"{name}_recurrent"] = nir.Linear(np.ascontiguousarray(weight.T), metadata=scales)
            edges += [(name, f"{name}_recurrent"), (f"{name}_recurrent", name)]
    read = {c.pre for c in network.connections}
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


def default_readout(target: str) -> str:
    """The default form of an LI readout for a target."""
    return "li" if "LI" in TARGETS[target].neurons else "membrane"


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
    """One line about `readers`: "read by nir; with net.reset=zero by norse, snntorch", or the reasons that exclude all."""
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
    return f"this network is read through NIR {'; '.join(parts)}"


def _reasons(name: str, population: Neuron, recurrent: bool, target: str, readout: str) -> list[Reason]:
    reader, reasons = TARGETS[target], []
    kind = type(population).__name__
    if not _is_written(population, target):
        return [Reason("", f"NIR has no {kind}")]
    if kind not in _KINDS:
        return _of_lists(name, population)
    written = kind if kind != "LI" or readout == "li" else "LIF"
    if written not in reader.neurons:
        text = f"{name}: is a {kind}, which {target} does not support; it supports {', '.join(reader.neurons)}"
        if kind == "LI":
            text += "; use `readout=membrane` or `readout=linear`"
        reasons.append(Reason(text, f"no {kind}"))
    if not isinstance(population, Membrane):
        return reasons
    if recurrent and not reader.recurrent:
        text = f"{name}: is recurrent, and {target} does not read loops from NIR correctly; use `target=nir`"
        reasons.append(Reason(text, "no recurrence"))
    reasons += _of_lists(name, population)
    reset, decays = reader.reset
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


def _is_written(population: Neuron, target: str) -> bool:
    """Whether there is a node for a model: NIR's, or one that a person's own class makes."""
    return type(population).__name__ in _KINDS or (target == "nir" and hasattr(population, "to_nir"))


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


def _neuron(
    nir: Any, name: str, layer: Layer, target: str, reader: Target, dt: float, readout: str
) -> tuple[Any, NDArray[Any]]:
    """The node (None: only weighted sums), and a factor for each neuron's weights if the reader has its own gain."""
    population, n = layer.population, layer.population.n
    if type(population).__name__ not in _KINDS:
        p = {q.name: np.clip(_values(layer, q.name, n), q.low, q.high) for q in population.parameters}
        node = population.to_nir(p, dt)
        if not isinstance(node, nir.NIRNode):
            raise DescriptionError(
                f"{name}: to_nir of {type(population).__name__} returned {node!r}; allowed: a node of NIR"
            )
        return node, np.ones(n, np.float32)
    if isinstance(population, LI) and readout == "linear":
        return None, _float(np.full(n, population.gain))
    beta = _each(layer, "beta", n)
    gain = np.full(n, population.gain)
    factor = np.ones(n)
    zeros = np.zeros(n, np.float32)
    if isinstance(population, CubaLIF):
        alpha = _each(layer, "alpha", n)
        if np.any(beta >= 1) or np.any(alpha >= 1):
            raise DescriptionError(
                f"{name}: a decay of 1 has no time constant, and NIR's CubaLIF needs one; use a lower decay"
            )
        return nir.CubaLIF(
            tau_syn=_float(dt / (1 - alpha)),
            tau_mem=_float(dt / (1 - beta)),
            r=_float(1 / (1 - beta)),
            w_in=_float(gain / (1 - alpha) if target != "spikingjelly" else 1 / (1 - alpha)),
            v_leak=zeros,
            v_reset=zeros,
            v_threshold=_float(_each(layer, "threshold", n)),
        ), _float(factor if target != "spikingjelly" else gain)
    if np.all(beta == 1) and fires(population) and "IF" in reader.neurons:
        own = 1 / dt if reader.own_gain == "share" else 1.0
        r = np.full(n, own) if not reader.reads_r else gain / dt
        factor = factor if reader.reads_r else gain
        return nir.IF(r=_float(r), v_threshold=_float(_each(layer, "threshold", n)), v_reset=zeros), _float(factor)
    if np.any(beta >= 1) or (reader.exponential and np.any(beta <= 0)):
        raise DescriptionError(
            f"{name}: a decay of {beta.max():g} has no time constant in {target}; use one below 1, above 0"
        )
    tau = -dt / np.log(beta) if reader.exponential else dt / (1 - beta)
    if reader.reads_r:
        r = gain / (1 - beta)
    else:
        r = np.ones(n)
        factor = gain / ((1 - beta) if reader.own_gain == "share" else 1.0)
    if isinstance(population, LI) and readout == "li":
        return nir.LI(tau=_float(tau), r=_float(r), v_leak=zeros), _float(factor)
    if isinstance(population, LI):  # a gain in the weights: readers without their own gain keep the potential's scale
        r, factor = (1 / (1 - beta), gain) if reader.reads_r else (r, factor)
        never = np.full(n, _NEVER)
        return nir.LIF(tau=_float(tau), r=_float(r), v_leak=zeros, v_reset=zeros, v_threshold=_float(never)), _float(
            factor
        )
    return nir.LIF(
        tau=_float(tau), r=_float(r), v_leak=zeros, v_reset=zeros, v_threshold=_float(_each(layer, "threshold", n))
    ), _float(factor)


def _weight(layer: Layer, c: Incoming, factor: NDArray[Any]) -> tuple[NDArray[np.float32], dict[str, Any]]:
    """The weight in effect, times a factor per receiver, and metadata; rounded weights are integers times `scale`, float32[n], in the metadata."""
    if layer.weight_dtype not in BITS:
        return _array(layer.matrix(c)) * factor, {}
    rounded = layer.integers(c, layer.weight_dtype)
    scale = _float(_array(rounded.scales) * factor)
    numbers = _array(rounded.numbers)
    if layer.columns(c) is not None:
        spread = np.zeros(c.n_pre * scale.size, np.float32)
        spread[layer.places(c).cpu().numpy()] = numbers
        numbers = spread.reshape(c.n_pre, scale.size)
    return numbers * scale, {"scale": scale, "weight_dtype": layer.weight_dtype}


def _each(layer: Layer, name: str, n: int) -> NDArray[np.float64]:
    values = _values(layer, name, n)
    return values if name == "threshold" else np.clip(values, 0.0, 1.0)


def _values(layer: Layer, name: str, n: int) -> NDArray[np.float64]:
    value = np.asarray(layer.tensor(name).detach().cpu().numpy(), dtype=np.float64)
    values: NDArray[np.float64] = np.broadcast_to(value.reshape(-1) if value.size > 1 else value, (n,)).copy()
    return values


def _array(tensor: Any) -> NDArray[np.float32]:
    array: NDArray[np.float32] = tensor.detach().cpu().float().numpy()
    return array


def _float(values: NDArray[Any]) -> NDArray[np.float32]:
    return values.astype(np.float32)
