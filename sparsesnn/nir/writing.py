"""From a `Model` to a NIR graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsesnn.engines.module import Layer, Model
from sparsesnn.errors import DescriptionError
from sparsesnn.layers import LI, CubaLIF, Input, Population
from sparsesnn.layers.declaration import refuse_others
from sparsesnn.nir.files import nir_package


@dataclass(frozen=True)
class Target:
    """What a library makes of a graph.

    Args:
        dt: the step that it will run; None: must be given.
        exponential: β = e^(-dt/τ), else 1 - dt/τ.
        reset: what its neurons do; None: what NIR says, "zero".
        reads_r: it follows `r`; one that does not has a gain of its own, which the weights make up for.
        own_gain: that gain: "share" (1 - β) or "unit" (1).
        neurons: the kinds of nodes that it reads.
        recurrent: it reads loops.
    """

    dt: float | None
    exponential: bool = False
    reset: tuple[str, bool] = ("zero", False)
    reads_r: bool = True
    own_gain: str = "share"
    neurons: tuple[str, ...] = ("LIF", "CubaLIF", "IF", "LI")
    recurrent: bool = True


#: read by: their importers at the versions of `conventions`
TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        "nir": Target(None),
        # its importer sends the input of a recurrent layer through the recurrent weights
        "snntorch": Target(1e-4, neurons=("LIF", "CubaLIF"), recurrent=False),
        "norse": Target(1e-3, reads_r=False, neurons=("LIF", "CubaLIF"), recurrent=False),
        "spikingjelly": Target(1e-4, reads_r=False, neurons=("LIF", "CubaLIF", "IF"), recurrent=False),
        "sinabs": Target(
            1.0, True, ("subtract", True), reads_r=False, own_gain="unit", neurons=("LIF", "LI", "IF"), recurrent=False
        ),
    }
)


def to_nir(model: Model, *, target: str = "nir", dt: float | None = None, keep_reset: bool = False) -> Any:
    """The model as a `nir.NIRGraph`: Affine and Linear nodes for weights, LIF, CubaLIF, IF and LI nodes for neurons.

    Args:
        model: its weights, decays and thresholds as they are now.
        target: who will read it: "nir" (NIR's equations by Euler's step), "snntorch", "norse", "spikingjelly", "sinabs".
        dt: the step that the reader will run, in the unit of the time constants; None: the reader's default.
        keep_reset: write neurons whose reset the target does not have; the reader must be told of it.

    Errors: `DescriptionError` where NIR or the target has no equal: a reset other than theirs, capacities, readouts and
        loops that the target cannot read.
    """
    if target not in TARGETS:
        raise DescriptionError(f"`target` is {target!r}; give who will read the graph: {', '.join(TARGETS)}")
    reader = TARGETS[target]
    dt = reader.dt if dt is None else dt
    if dt is None or not 0 < dt < float("inf"):
        raise DescriptionError(f"`dt` is {dt!r}; give the step that the reader of the graph will run, above 0")
    nir = nir_package()
    network = model.network
    nodes: dict[str, Any] = {}
    edges: list[tuple[str, str]] = []
    for name, population in network.populations.items():
        if isinstance(population, Input):
            nodes[name] = nir.Input({"input": np.array([population.n])})
            continue
        layer: Layer = model.layers[name]  # type: ignore[assignment]
        _check(name, population, network.is_recurrent(name), target, reader, keep_reset)
        neuron, factor = _neuron(nir, name, layer, target, reader, dt)
        bias = None if layer.bias is None else _array(layer.bias) * factor
        for c, matrix in zip(network.senders(name), layer.sender_matrices, strict=True):
            weight = np.ascontiguousarray((_array(matrix) * factor).T)
            synapses = f"{c.pre}_to_{name}"
            if synapses in nodes:
                synapses += f"_{c.delay}"
            nodes[synapses] = nir.Linear(weight) if bias is None else nir.Affine(weight, bias)
            bias = None
            source = c.pre
            if c.delay:
                source = f"{synapses}_delay"
                nodes[source] = nir.Delay(np.full(weight.shape[1], c.delay * dt))
                edges.append((c.pre, source))
            edges += [(source, synapses), (synapses, name)]
        nodes[name] = neuron
        if (loop := layer.loop_matrix) is not None:
            nodes[f"{name}_recurrent"] = nir.Linear(np.ascontiguousarray((_array(loop) * factor).T))
            edges += [(name, f"{name}_recurrent"), (f"{name}_recurrent", name)]
    read = {c.pre for c in network.connections}
    for name in [k for k in network.populations if k not in read]:
        end = f"{name}_spikes" if isinstance(network.populations[name], Population) else f"{name}_potentials"
        nodes[end] = nir.Output({"output": np.array([network.populations[name].n])})
        edges.append((name, end))
    return nir.NIRGraph(nodes=nodes, edges=edges)


def _check(
    name: str, population: LI | Population, recurrent: bool, target: str, reader: Target, keep_reset: bool
) -> None:
    refuse_others(population, ("LIF", "CubaLIF", "LI"), "NIR", name)
    kind = "CubaLIF" if isinstance(population, CubaLIF) else "LI" if isinstance(population, LI) else "LIF"
    if kind not in reader.neurons:
        raise DescriptionError(
            f"{name}: is a {kind}, which {target} does not read; it reads {', '.join(reader.neurons)}"
        )
    if isinstance(population, LI):
        return
    if recurrent and not reader.recurrent:
        raise DescriptionError(
            f"{name}: is recurrent, and {target} reads no loops from NIR as they are; use `target=nir`"
        )
    if population.capacity is not None:
        raise DescriptionError(
            f"{name}: has a capacity of {population.capacity}, which drops candidates; NIR has none: export the network "
            "without it (capacity=None)"
        )
    reset, decays = reader.reset
    same = population.reset == reset and (reset != "subtract" or population.reset_decays == decays)
    if not same and not keep_reset:
        ours = f"{population.reset!r}{' before the decay' if population.reset_decays else ''}"
        theirs = f"{reset!r}{' before the decay' if decays else ''}"
        raise DescriptionError(
            f"{name}: its reset is {ours}, that of {target} is {theirs}, and NIR writes no other: train with that reset, or "
            "give `keep_reset=True` and set the reader's neurons yourself"
        )


def _neuron(nir: Any, name: str, layer: Layer, target: str, reader: Target, dt: float) -> tuple[Any, NDArray[Any]]:
    """The node, and a factor for each neuron's weights where the reader has a gain of its own."""
    population, n = layer.population, layer.population.n
    beta = _each(layer, "beta", n)
    gain = np.full(n, population.gain)
    factor = np.ones(n)
    zeros = np.zeros(n, np.float32)
    if isinstance(population, CubaLIF):
        alpha = _each(layer, "alpha", n)
        if np.any(beta >= 1) or np.any(alpha >= 1):
            raise DescriptionError(f"{name}: a decay of 1 has no time constant, and NIR's CubaLIF needs one; use less")
        return nir.CubaLIF(
            tau_syn=_float(dt / (1 - alpha)),
            tau_mem=_float(dt / (1 - beta)),
            r=_float(1 / (1 - beta)),
            w_in=_float(gain / (1 - alpha) if target != "spikingjelly" else 1 / (1 - alpha)),
            v_leak=zeros,
            v_reset=zeros,
            v_threshold=_float(_each(layer, "threshold", n)),
        ), _float(factor if target != "spikingjelly" else gain)
    if np.all(beta == 1) and isinstance(population, Population) and "IF" in reader.neurons:
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
    if isinstance(population, LI):
        return nir.LI(tau=_float(tau), r=_float(r), v_leak=zeros), _float(factor)
    return nir.LIF(
        tau=_float(tau), r=_float(r), v_leak=zeros, v_reset=zeros, v_threshold=_float(_each(layer, "threshold", n))
    ), _float(factor)


def _each(layer: Layer, name: str, n: int) -> NDArray[np.float64]:
    value = np.asarray(getattr(layer, name).detach().cpu().numpy(), dtype=np.float64)
    if name != "threshold":
        value = np.clip(value, 0.0, 1.0)
    values: NDArray[np.float64] = np.broadcast_to(value.reshape(-1) if value.size > 1 else value, (n,)).copy()
    return values


def _array(tensor: Any) -> NDArray[np.float32]:
    found: NDArray[np.float32] = tensor.detach().cpu().float().numpy()
    return found


def _float(values: NDArray[Any]) -> NDArray[np.float32]:
    return values.astype(np.float32)
