"""Converts a NIR graph to a `Model` with its weights.

Neurons become populations. Nodes between them (Linear, Affine, Scale, Flatten, Delay) become one weight matrix, one delay
and one bias; Conv1d, Conv2d, SumPool2d and AvgPool2d become kinds of synapses. A path from a population to itself becomes
its recurrent weights. LI, CubaLI or I followed by a Threshold becomes a population without a reset.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from sparsesnn.engines.module import Model
from sparsesnn.errors import DescriptionError, SparseSnnError
from sparsesnn.layers import LI, LIF, CubaLI, CubaLIF, Input, Neuron, fires
from sparsesnn.network import Connection, Network
from sparsesnn.nir import graphs, maps
from sparsesnn.nir.conventions import Array, Convention, decays_of, find_convention, unrounded_gain
from sparsesnn.nir.files import nir_package, read
from sparsesnn.nir.graphs import Graph, Route
from sparsesnn.nir.thresholds import with_thresholds
from sparsesnn.options import number
from sparsesnn.surrogate import Surrogate, fast_sigmoid
from sparsesnn.synapses import Pool

#: default secondary gradient threshold of imported neurons, as a share of their threshold
GRAD_SHARE = 0.9
# a log message, not a warning: leaving these choices open is fine
_LOG = logging.getLogger("sparsesnn.nir")
_reported = False


def from_nir(
    graph: Any,
    *,
    source: str,
    dt: float | None = None,
    reset: str | None = None,
    reset_delay: bool = True,
    gain: str | None = None,
    surrogate: Surrogate | None = None,
    grad_threshold: float | str | None = None,
    backend: str = "cpu",
    neurons: Sequence[type[Neuron]] = (),
) -> Model:
    """Makes a `Model` from a NIR graph; it fires as the network does in the library that wrote it, up to the order of sums.

        model = sparsesnn.nir.from_nir("net.nir", source="snntorch", reset="subtract")

    Maps keep their meaning: the input's neurons are in NIR's order, channels first; those of populations after a convolution
    or pooling are channels last, like all maps here. Populations are named `input`, `hidden` (or `hidden1`, …) and `output` (or `output1`, …), as in `Network.chain`.

    Args:
        graph: a `nir.NIRGraph`, or the path of a file.
        source: library that wrote it, see `CONVENTIONS`: "snntorch", "norse", "spikingjelly", "sinabs", "rockpool", "spyx"; or
            "nir": NIR's own equations by Euler's step.
        dt: the step in the unit of the graph's time constants; None: the library's default. For Norse the dt of its
            neurons, which must equal the one given to its `to_nir`.
        reset: "subtract", "zero" or "none", if the library's files do not contain it; None: its default, with a warning if
            that differs from NIR's equations.
        reset_delay: snnTorch's argument of that name, which its files do not contain either.
        gain: "unit" if the library adds its input unscaled, whatever the graph says: Sinabs with norm_input=False; None:
            the library's default.
        surrogate: of all neurons that fire, such as `sparsesnn.atan(2)`, snnTorch's default; None: `fast_sigmoid(10)`, ours.
            It and `grad_threshold` matter only in training, and files do not contain them: the defaults used for None are
            reported once, as a message of the logger `sparsesnn.nir`.
        grad_threshold: of all neurons that fire, a potential or "exact", see `LIF`; -inf: every neuron receives a gradient, as in
            other libraries. None: 0.9 times the threshold of each neuron; neurons of classes in `neurons` keep theirs.
        backend: the model's backend.
        neurons: your own classes with a method `from_nir`, see `sparsesnn.layers.neuron`; each node is offered to them first.

    Errors: `DescriptionError` if the graph has no equivalent here: node types, padded pools, potentials at rest that differ
        from the reset, feedback between populations, resets that lose input; it names the node and the difference.
    """
    convention = find_convention(source)
    if gain not in (None, "unit"):
        raise DescriptionError(f"gain is {gain!r}; give 'unit', or None for the default of {source}")
    convention = replace(convention, gain=gain or convention.gain)
    if not isinstance(surrogate, (Surrogate, NoneType)):
        raise DescriptionError(f"surrogate is {surrogate!r}; give a Surrogate, such as sparsesnn.atan(2), or None")
    how = _How(convention, *_settle(convention, dt, reset), reset_delay, surrogate, grad_threshold, tuple(neurons))
    given = read(graph) if isinstance(graph, (str, Path)) else graph
    try:
        return _model(given, source, how, backend)
    except SparseSnnError:
        raise
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RuntimeError) as error:
        # errors of NumPy and PyTorch for inconsistent shapes and types
        raise DescriptionError(
            f"graph: its nodes do not fit together ({type(error).__name__}: {' '.join(str(error).split())[:200]}); correct their "
            "shapes, or write the file again"
        ) from error


def _model(given: Any, source: str, how: _How, backend: str) -> Model:
    convention = how.convention
    nodes = graphs.flatten(given, input_skips_loops=source == "spyx")
    nodes = with_thresholds(nodes, taken=lambda node: how.own(node) is not None)
    own = {type(node).__name__ for node in nodes.nodes.values() if how.own(node) is not None}
    kinds = (*_NEURONS, *sorted(own - {*_NEURONS}))
    neurons = nodes.of_kind(*kinds)
    ends = nodes.readouts(kinds)
    routes = {name: _incoming(nodes, name, neurons) for name in [*neurons, *ends]}
    order = graphs.order({name: [r.source for r in found[0]] for name, found in routes.items()})
    names = _names(order, routes)
    sizes = _sizes(nodes, order, routes)
    populations: dict[str, Any] = {"input": _input(sizes[graphs.INPUT], routes)}
    connections, weights, matrices = [], {}, {}
    for node in order:
        incoming, bias = routes[node]
        made = _population(how, nodes, node, sizes[node], incoming, bias)
        populations[names[node]] = made.population
        feeds = [r for r in incoming if r.source != node]
        loops = [r for r in incoming if r.source == node]
        if not feeds:
            raise DescriptionError(f"node {node!r}: its only input is itself; connect it to the input")
        if any(r.kinds for r in loops):
            raise DescriptionError(
                f"node {node!r}: its recurrent path has a convolution or pooling; recurrent synapses here are matrices: use a Linear"
            )
        if any(r.delay for r in loops):
            raise DescriptionError(f"node {node!r}: its recurrent path has a delay; ours is always one step: remove it")
        for route in sorted(feeds, key=lambda r: -1 if r.source == graphs.INPUT else order.index(r.source)):
            late = convention.late if route.source != graphs.INPUT else 0
            delay = how.steps(route.delay, node) + late
            connections.append(Connection(names[route.source], names[node], delay, route.synapses()))
        for route in incoming:
            matrices[names[route.source], names[node]] = made.weights(route, sizes[route.source], node)
        if made.bias is not None:
            weights[f"layers.{names[node]}.bias"] = made.bias
    if any(fires(population) for population in populations.values()):
        _report(how)
    model = Model(Network(populations, tuple(connections)), backend=backend)
    for c in model.network.connections:
        if (weight := matrices[c.pre, c.post]) is not None:
            weights[f"layers.{c.post}.{c.name}"] = weight
    state = model.state_dict()
    model.load_state_dict(state | {name: _tensor(value, state[name]) for name, value in weights.items()})
    return model


_NEURONS = ("LIF", "CubaLIF", "IF", "LI", "CubaLI", "I", "Threshold")
#: neurons that never fire
_READOUTS = ("LI", "CubaLI", "I")


def _incoming(nodes: Graph, name: str, neurons: list[str]) -> tuple[list[Route], NDArray[Any] | None]:
    """Routes into a node; maps connected one to one without weights get windows of size 1."""
    routes, bias = nodes.incoming(name, neurons)
    shape = nodes.shapes.get(name)
    if shape is None:
        return routes, bias
    one = Pool("sum", 1, shape=shape)
    return [r if r.changes else r.through(one, None, f"node {name!r}") for r in routes], bias


def _input(n: int, routes: dict[str, Any]) -> Input:
    """The input, with the shape read by convolutions or pooling."""
    shapes = {r.kinds[0].shape for found, _ in routes.values() for r in found if r.source == graphs.INPUT and r.kinds}
    if len(shapes) > 1:
        raise DescriptionError(f"the Input node: is read as maps of {' and of '.join(map(str, shapes))}; use one shape")
    return Input(shape=next(iter(shapes)), channels_first=True) if shapes else Input(n)


def _tensor(value: NDArray[Any], like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.array(value, dtype=np.float32)).reshape(like.shape)


@dataclass(frozen=True)
class _How:
    """A convention with the choices left open by the graph."""

    convention: Convention
    dt: float
    reset: str
    reset_delay: bool
    surrogate: Surrogate | None
    grad_threshold: float | str | None
    models: tuple[type[Neuron], ...] = ()

    def own(self, node: Any) -> Neuron | None:
        """The population that a user's own class makes from a node; None: no class does."""
        for model in self.models:
            made = model.from_nir(node, self.dt) if hasattr(model, "from_nir") else None
            if made is not None:
                return cast(Neuron, made)
        return None

    def steps(self, delay: float, node: str) -> int:
        """A delay in steps. Errors: `DescriptionError` if it is not a whole number of steps."""
        if not math.isfinite(delay / self.dt):
            raise DescriptionError(
                f"node {node!r}: has a delay of {delay:g}; give a finite number of steps of {self.dt:g}"
            )
        steps = round(delay / self.dt)
        if abs(delay - steps * self.dt) > 1e-6 * max(self.dt, abs(delay)) or not 0 <= steps < 1 << 20:
            raise DescriptionError(
                f"node {node!r}: a delay of {delay:g} is not a whole number of steps of {self.dt:g}; give `dt`"
            )
        return steps


def _report(how: _How) -> None:
    """Reports the defaults for training that neither the file nor the caller set; once per process."""
    global _reported
    defaults = {
        "surrogate": ("fast_sigmoid(slope=10)", how.surrogate),
        "grad_threshold": (f"{GRAD_SHARE:g} times the threshold", how.grad_threshold),
    }
    chosen = [f"{name} is {default}" for name, (default, given) in defaults.items() if given is None]
    if not chosen or _reported:
        return
    _reported = True
    _LOG.warning(
        "NIR graphs hold no surrogate and no grad_threshold, which matter only in training; for imported neurons, %s. Give surrogate "
        "and grad_threshold to choose (--surrogate, --grad-threshold); snnTorch's default is atan(alpha=2) with a gradient for every "
        "neuron, that is, grad_threshold=-inf",
        " and ".join(chosen),
    )


def _settle(convention: Convention, dt: float | None, reset: str | None) -> tuple[float, str]:
    dt = convention.dt if dt is None else dt
    if dt is None:
        raise DescriptionError(
            f"`dt`: graphs of {convention.name!r} have no default step; give `dt`, in the unit of its time constants"
        )
    step = number(dt)
    if step is None or not 0 < step < math.inf:
        raise DescriptionError(f"`dt` is {dt!r}; give a step above 0, in the unit of the graph's time constants")
    if reset is None:
        reset = convention.resets[0]
        if reset != "zero":
            warnings.warn(
                f"graphs of {convention.name} always say that neurons are set to v_reset; `reset={reset}`, the library's default, is "
                "assumed: give `reset`",
                stacklevel=3,
            )
    if reset not in convention.resets:
        known = ", ".join(convention.resets)
        raise DescriptionError(f"`reset` is {reset!r}; allowed for {convention.name}: {known}")
    return step, reset


@dataclass(frozen=True)
class _Made:
    """A population, its bias, and the factor of each neuron's incoming weights (None: 1)."""

    population: Any
    bias: NDArray[Any] | None
    factor: Array | None

    def weights(self, route: Route, n_pre: int, node: str) -> NDArray[Any] | None:
        weights, factor = route.weights(n_pre), self.factor
        if factor is None:
            return weights
        if route.matrix is None and route.kinds:
            factor = maps.per_channel(factor, route.kinds[-1].post_shape, f"node {node!r}", "its gain")
        if weights is None:
            raise DescriptionError(
                f"node {node!r}: gains differ between channels, and pools have no weights; make them equal"
            )
        return weights * factor


def _population(how: _How, nodes: Graph, name: str, n: int, incoming: list[Route], bias: NDArray[Any] | None) -> _Made:
    recurrent = any(r.source == name for r in incoming)
    if name not in nodes.nodes:  # a weighted sum connected directly to the output
        return _Made(LI(n, beta=0.0, bias=bias is not None), bias, None)
    node = nodes.nodes[name]
    kind = type(node).__name__
    where = f"node {name!r} ({kind})"
    if name not in nodes.unreset and (made := how.own(node)) is not None:
        if made.n != n:
            raise DescriptionError(
                f"{where}: from_nir of {type(made).__name__} made {made.n} neurons of it; its inputs have {n}"
            )
        return _Made(replace(made, bias=bias is not None, **_of_own(how, incoming, name, made)), bias, None)

    def values(attribute: str) -> Array:
        return graphs.per_neuron(node, attribute, n, where, nodes.shapes.get(name))

    alpha = None
    if kind in ("IF", "I"):
        beta, gain = np.ones(n), values("r") * (1.0 if how.convention.current == "jump" else how.dt)
    elif kind == "Threshold":
        beta, gain = np.zeros(n), np.ones(n)
    elif kind in ("CubaLIF", "CubaLI"):
        alpha, synaptic = decays_of(how.convention, how.dt, values("tau_syn"), where)
        beta, share = decays_of(how.convention, how.dt, values("tau_mem"), where)
        gain = (
            _membrane_gain(how.convention, values("r"), share, values("tau_mem"))
            * {
                "scaled": _product(values("w_in"), synaptic, values("tau_syn")),
                "jump": values("w_in"),
                "decayed": alpha,
                "unit": np.ones(n),
            }[how.convention.current]
        )
    else:
        beta, share = decays_of(how.convention, how.dt, values("tau"), where)
        gain = _product(values("r"), share, values("tau")) if how.convention.gain == "file" else np.ones(n)
    gain = unrounded_gain(gain)
    if not np.all(np.isfinite(gain)):
        raise DescriptionError(f"{where}: r, w_in and the time constants give an infinite gain; give finite ones")
    factor = None if np.all(gain == gain[0]) else gain
    arguments: dict[str, Any] = {"beta": _short(beta), "bias": bias is not None}
    arguments["gain"] = float(gain[0]) if factor is None else 1.0
    if kind in _READOUTS:
        if recurrent:
            raise DescriptionError(
                f"{where}: has a recurrent path for its potential; here only spikes travel: make it a LIF"
            )
        if kind != "I" and np.any(values("v_leak") != 0):
            raise DescriptionError(f"{where}: v_leak is {values('v_leak').max():g}; a readout here rests at 0: use 0")
        readout = LI(n, **arguments) if alpha is None else CubaLI(n, alpha=_short(alpha), **arguments)
        return _Made(readout, _scaled(bias, factor), factor)
    resets = kind != "Threshold" and name not in nodes.unreset
    threshold = _threshold(kind, values, how, where) if resets else _threshold_alone(kind, values)
    if np.any(threshold <= 0):
        worst = int(np.argmin(threshold))
        raise DescriptionError(
            f"{where}: neuron {worst} has a threshold of {threshold[worst]:g} above its rest; here it is above 0: raise it, or take the "
            "difference into the bias"
        )
    arguments |= {
        "threshold": _short(threshold),
        "grad_threshold": _short(GRAD_SHARE * threshold) if how.grad_threshold is None else how.grad_threshold,
        "surrogate": how.surrogate or fast_sigmoid(),
        "recurrent": recurrent,
        **(_reset(how, kind, recurrent, where) if resets else {"reset": "none"}),
    }
    made = CubaLIF(n, alpha=_short(alpha), **arguments) if alpha is not None else LIF(n, **arguments)
    return _Made(made, _scaled(bias, factor), factor)


def _of_own(how: _How, incoming: list[Route], name: str, population: Neuron) -> dict[str, Any]:
    """The arguments of a population of a user's own class that the graph and the caller of `from_nir` set."""
    if not population.fires:
        return {}
    chosen = {"surrogate": how.surrogate, "grad_threshold": how.grad_threshold}
    return {"recurrent": any(r.source == name for r in incoming)} | {k: x for k, x in chosen.items() if x is not None}


def _membrane_gain(convention: Convention, r: Array, share: Array, tau: Array) -> Array:
    return np.ones_like(r) if convention.gain == "unit" or convention.current == "decayed" else _product(r, share, tau)


def _product(r: Array, share: Array, tau: Array) -> Array:
    """r·f; 1 for a neuron without leak, whose τ and r are both infinite (snnTorch's beta=1)."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isinf(tau) & np.isinf(r), 1.0, r * share)


def _threshold(kind: str, values: Any, how: _How, where: str) -> Array:
    """The threshold relative to the resting potential, which is 0 here and must equal the reset potential."""
    threshold: Array = values("v_threshold")
    base: Array = values("v_reset")
    if kind == "IF":
        return threshold - base if how.reset == "zero" else threshold
    leak: Array = values("v_leak")
    if np.any(leak != base) or (np.any(leak != 0) and how.reset != "zero"):
        worst = int(np.argmax(np.abs(leak - base)))
        raise DescriptionError(
            f"{where}: neuron {worst} rests at v_leak = {leak[worst]:g} and is reset to v_reset = {base[worst]:g}; here "
            "both are one potential: make them equal (and 0 unless the reset is 'zero')"
        )
    return threshold - base


def _threshold_alone(kind: str, values: Any) -> Array:
    """The threshold of neurons without a reset, relative to the resting potential."""
    if kind == "Threshold":
        threshold: Array = values("threshold")
        return threshold
    threshold = values("v_threshold")
    return threshold if kind == "IF" else threshold - values("v_leak")


def _reset(how: _How, kind: str, recurrent: bool, where: str) -> dict[str, Any]:
    """Our arguments for the reset. snnTorch applies it one step late unless `reset_delay=False`."""
    name = how.convention.name
    if name == "snntorch":
        if how.reset == "zero" and how.reset_delay and (kind == "CubaLIF" or recurrent):
            raise DescriptionError(
                f"{where}: snnTorch's Synaptic, RLeaky and RSynaptic with reset_mechanism='zero' and reset_delay=True "
                "discard the input of the step after a spike, unlike any reset here: use reset_delay=False there, and "
                "give `reset_delay=False`"
            )
        if how.reset == "subtract" and not how.reset_delay:
            raise DescriptionError(
                f"{where}: snnTorch's 'subtract' with reset_delay=False undoes part of the reset for a neuron that stays "
                "above its threshold, unlike any reset here: use reset_delay=True there, its default"
            )
        decays = False
    elif name == "spyx":
        decays = kind == "CubaLIF"
    else:
        decays = how.reset == "subtract" and how.convention.reset_decays
    return {"reset": how.reset, "reset_decays": decays}


def _scaled(bias: NDArray[Any] | None, factor: Array | None) -> NDArray[Any] | None:
    return bias if bias is None or factor is None else bias * factor


def _short(values: Array | None) -> Any:
    """One number if all are equal, else one per neuron."""
    if values is None:
        return None
    return float(values[0]) if np.all(values == values[0]) else tuple(map(float, values))


def _names(order: list[str], routes: dict[str, Any]) -> dict[str, str]:
    read = {r.source for name, (incoming, _) in routes.items() for r in incoming if r.source != name}
    hidden = [name for name in order if name in read]
    ends = [name for name in order if name not in read]
    names = {graphs.INPUT: "input"}
    for group, what in ((hidden, "hidden"), (ends, "output")):
        names |= {name: what if len(group) == 1 else f"{what}{k + 1}" for k, name in enumerate(group)}
    return names


def _sizes(nodes: Graph, order: list[str], routes: dict[str, Any]) -> dict[str, int]:
    """Number of neurons of every population: from weights if there are any, else from the parameters or the input."""
    nir_package()
    sizes: dict[str, int] = {}
    for node in order:
        for route in routes[node][0]:
            if (ends := route.sizes()) is not None:
                for name, n in ((route.source, ends[0]), (node, ends[1])):
                    if sizes.setdefault(name, n) != n:
                        raise DescriptionError(
                            f"node {name!r}: its weights imply both {sizes[name]} and {n} neurons; correct their shapes"
                        )
    sizes.setdefault(graphs.INPUT, nodes.input_size())
    for name, n in sizes.items():
        graphs.check_neurons(n, f"node {name!r}")
    for node in order:
        own = nodes.parameter_size(node)
        direct = [sizes[r.source] for r in routes[node][0] if not r.changes and r.source in sizes]
        n = sizes.setdefault(node, own if own > 1 else (direct or [own])[0])
        if other := next((k for k in direct if k != n), 0):
            raise DescriptionError(
                f"node {node!r}: has {n} neurons, but reads {other} without weights, one by one; correct its shape, or put a Linear "
                "before it"
            )
        if own not in (1, n):
            raise DescriptionError(f"node {node!r}: has {own} values for {n} neurons; give one, or one per neuron")
    return sizes
