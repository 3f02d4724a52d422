"""Converts populations to NIR's neurons, as a library reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsesnn.engines.module import Layer
from sparsesnn.errors import DescriptionError
from sparsesnn.layers import LI, LIF, CubaLI, CubaLIF, Membrane, fires
from sparsesnn.nir.targets import Target

#: models in NIR
KINDS = ("LIF", "CubaLIF", "LI", "CubaLI")
#: a threshold that no potential reaches, for a neuron whose membrane is the readout
_NEVER = 1e30


def nodes_of(
    nir: Any, name: str, layer: Layer, target: str, reader: Target, dt: float, readout: str
) -> tuple[Any, Any, NDArray[Any]]:
    """The node (None: only weighted sums), a Threshold behind it (None: none), and a factor for each neuron's weights.

    The factor makes up for a gain that the reader has instead of the graph's, or that the node has no place for.
    """
    population = layer.population
    if type(population).__name__ not in KINDS:
        return _of_own(nir, name, layer, dt), None, np.ones(population.n, np.float32)
    if isinstance(population, (LI, CubaLI)) and readout == "linear":
        return None, None, float32(np.full(population.n, population.gain))
    if is_threshold(population, reader) and np.all(_each(layer, "beta", population.n) == 0):
        threshold = nir.Threshold(float32(_each(layer, "threshold", population.n)))
        return threshold, None, np.ones(population.n, np.float32)
    node, factor = _node(nir, name, layer, target, reader, dt, readout)
    if isinstance(population, Membrane) and population.reset == "none" and "Threshold" in reader.neurons:
        return *_parts(nir, node), factor
    return node, None, factor


def is_threshold(population: Any, reader: Target) -> bool:
    """Whether a reader's Threshold has the reset of these neurons if none of them keeps its potential (β = 0)."""
    is_unreset = isinstance(population, LIF) and (population.reset != "subtract" or population.reset_decays)
    return is_unreset and population.gain == 1 and "Threshold" in reader.neurons


def _parts(nir: Any, node: Any) -> tuple[Any, Any]:
    """A readout and a Threshold in place of a LIF, CubaLIF or IF."""
    kind = type(node).__name__.removesuffix("F")
    names = {"LI": ("tau", "r", "v_leak"), "I": ("r",), "CubaLI": ("tau_syn", "tau_mem", "r", "v_leak", "w_in")}[kind]
    return getattr(nir, kind)(**{k: getattr(node, k) for k in names}), nir.Threshold(node.v_threshold)


def _of_own(nir: Any, name: str, layer: Layer, dt: float) -> Any:
    population = layer.population
    p = {q.name: np.clip(_values(layer, q.name, population.n), q.low, q.high) for q in population.parameters}
    node = population.to_nir(p, dt)
    if not isinstance(node, nir.NIRNode):
        raise DescriptionError(
            f"{name}: to_nir of {type(population).__name__} returned {node!r}; allowed: a node of NIR"
        )
    return node


def _node(
    nir: Any, name: str, layer: Layer, target: str, reader: Target, dt: float, readout: str
) -> tuple[Any, NDArray[Any]]:
    population, n = layer.population, layer.population.n
    beta = _each(layer, "beta", n)
    gain = np.full(n, population.gain)
    factor = np.ones(n)
    zeros = np.zeros(n, np.float32)
    if isinstance(population, (CubaLIF, CubaLI)):
        alpha = _each(layer, "alpha", n)
        kind = "CubaLI" if isinstance(population, CubaLI) and readout == "li" else "CubaLIF"
        if np.any(beta >= 1) or np.any(alpha >= 1):
            raise DescriptionError(
                f"{name}: a decay of 1 has no time constant, and NIR's {kind} needs one; use a lower decay"
            )
        fires_at = _each(layer, "threshold", n) if fires(population) else np.full(n, _NEVER)
        return getattr(nir, kind)(
            tau_syn=float32(dt / (1 - alpha)),
            tau_mem=float32(dt / (1 - beta)),
            r=float32(1 / (1 - beta)),
            w_in=float32(gain / (1 - alpha) if target != "spikingjelly" else 1 / (1 - alpha)),
            v_leak=zeros,
            **({"v_reset": zeros, "v_threshold": float32(fires_at)} if kind == "CubaLIF" else {}),
        ), float32(factor if target != "spikingjelly" else gain)
    if np.all(beta == 1) and not fires(population) and readout == "li" and "I" in reader.neurons:
        return nir.I(r=float32(gain / dt)), float32(factor)
    if np.all(beta == 1) and fires(population) and "IF" in reader.neurons:
        own = 1 / dt if reader.own_gain == "share" else 1.0
        r = np.full(n, own) if not reader.reads_r else gain / dt
        factor = factor if reader.reads_r else gain
        return nir.IF(r=float32(r), v_threshold=float32(_each(layer, "threshold", n)), v_reset=zeros), float32(factor)
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
        return nir.LI(tau=float32(tau), r=float32(r), v_leak=zeros), float32(factor)
    if isinstance(population, LI):  # a gain in the weights: readers without their own gain keep the potential's scale
        r, factor = (1 / (1 - beta), gain) if reader.reads_r else (r, factor)
        never = np.full(n, _NEVER)
        return nir.LIF(
            tau=float32(tau), r=float32(r), v_leak=zeros, v_reset=zeros, v_threshold=float32(never)
        ), float32(factor)
    return nir.LIF(
        tau=float32(tau), r=float32(r), v_leak=zeros, v_reset=zeros, v_threshold=float32(_each(layer, "threshold", n))
    ), float32(factor)


def _each(layer: Layer, name: str, n: int) -> NDArray[np.float64]:
    values = _values(layer, name, n)
    return values if name == "threshold" else np.clip(values, 0.0, 1.0)


def _values(layer: Layer, name: str, n: int) -> NDArray[np.float64]:
    value = np.asarray(layer.tensor(name).detach().cpu().numpy(), dtype=np.float64)
    values: NDArray[np.float64] = np.broadcast_to(value.reshape(-1) if value.size > 1 else value, (n,)).copy()
    return values


def float32(values: NDArray[Any]) -> NDArray[np.float32]:
    return values.astype(np.float32)
