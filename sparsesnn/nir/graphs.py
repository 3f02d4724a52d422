"""A NIR graph as names, predecessors, and the linear routes between neurons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsesnn.errors import DescriptionError
from sparsesnn.nir import maps
from sparsesnn.nir.files import MAX_NODES, nir_package
from sparsesnn.synapses import Dense, Series, Shape, Synapses
from sparsesnn.synapses.maps import OnMaps

#: name for the graph's Input
INPUT = "*input*"
_LINEAR = ("Linear", "Affine", "Scale", *maps.NODES, "Flatten", "Delay", "Output", "Identity", "Input")
#: deepest nesting: NIR graphs may contain graphs
MAX_DEPTH = 20
#: most neurons of a population, and elements of maps: a shape of a few bytes can name any number
MAX_NEURONS = 1 << 24
#: most elements of a matrix that is not in the file: the identity, an expanded Scale, a product
MAX_ELEMENTS = 1 << 26


def check_neurons(n: int, where: str) -> None:
    """`DescriptionError` for too many neurons, or elements of maps, for a population."""
    if not 1 <= n <= MAX_NEURONS:
        raise DescriptionError(f"{where}: has {n:,} neurons; allowed: 1 to {MAX_NEURONS:,}; correct the shapes")


def _check_matrix(n_post: int, n_pre: int, where: str) -> None:
    if n_post * n_pre > MAX_ELEMENTS:
        raise DescriptionError(
            f"{where} makes a matrix of {n_post:,} x {n_pre:,}; allowed: {MAX_ELEMENTS:,} elements of a matrix that is not in the "
            "file; write the weights themselves as a Linear"
        )


@dataclass(frozen=True)
class Route:
    """The path of spikes from one population to another.

    Args:
        source: name of the firing node, or `INPUT`.
        matrix: float[n_post, n_pre], as in NIR; None: each neuron reaches its counterpart.
        delay: in the graph's unit of time.
        kinds: convolution and pooling in sequence; the matrix reads the last one's result.
        filters: of the convolution among them, in the order of `Conv2d`.
    """

    source: str
    matrix: NDArray[Any] | None = None
    delay: float = 0.0
    kinds: tuple[OnMaps, ...] = ()
    filters: NDArray[Any] | None = None

    @property
    def changes(self) -> bool:
        """Whether the route changes the spikes."""
        return self.matrix is not None or bool(self.kinds)

    def synapses(self) -> Synapses:
        members = (*self.kinds, *([Dense()] if self.matrix is not None or not self.kinds else []))
        return members[0] if len(members) == 1 else Series(members)

    def weights(self, n: int) -> NDArray[Any] | None:
        """The weights for `synapses`: [n_pre, n_post], a row per source, or a convolution's; None: there are none."""
        if self.matrix is None and self.kinds:
            return self.filters
        if self.matrix is None:
            _check_matrix(n, n, f"node {self.source!r}, whose neurons reach their counterparts one by one,")
            return np.eye(n, dtype=np.float32)
        return np.ascontiguousarray(self.matrix.T)

    def sizes(self) -> tuple[int, int] | None:
        """Numbers of neurons before and after the route; None: the source's."""
        if not self.changes:
            return None
        before = self.kinds[0].n_pre if self.kinds else self.matrix.shape[1]  # type: ignore[union-attr]
        return before, math.prod(self.kinds[-1].post_shape) if self.matrix is None else self.matrix.shape[0]

    def through(self, kind: OnMaps, filters: NDArray[Any] | None, where: str) -> Route:
        """The same route followed by convolution or pooling."""
        if self.matrix is not None or (filters is not None and self.filters is not None):
            raise DescriptionError(
                f"{where}: reads the result of other weights; here two layers of weights need neurons between them: add some"
            )
        first = self.source == INPUT and not self.kinds
        bound = replace(kind, channels_first=first)  # type: ignore[call-arg]  # a field of every kind
        return replace(self, kinds=(*self.kinds, bound), filters=self.filters if filters is None else filters)

    def in_order(self, values: NDArray[Any], shape: Shape | None) -> NDArray[Any]:
        """Numbers per element of the route's resulting maps, along the last axis, in our order; an Input keeps NIR's."""
        return values if self.source == INPUT and not self.kinds else _in_order(values, shape)

    def times(self, scale: NDArray[Any], shape: Shape | None, name: str) -> Route:
        """The same route with one factor on its results, or one each."""
        if not self.kinds or self.matrix is not None or shape is None:
            return replace(self, matrix=_rows(scale, self.matrix, name))
        if self.filters is None:
            raise DescriptionError(f"node {name!r}: scales pools, which have no weights; scale those of a convolution")
        each = np.broadcast_to(scale, (math.prod(shape),))
        return replace(self, filters=self.filters * maps.per_channel(each, shape, f"node {name!r}", "its factor"))


@dataclass(frozen=True)
class Graph:
    """Nodes without inner graphs, and their connections."""

    nodes: Mapping[str, Any]
    before: Mapping[str, Sequence[str]]
    #: neurons without a reset, which `with_thresholds` made
    unreset: frozenset[str] = frozenset()

    def of_kind(self, *kinds: str) -> list[str]:
        return [name for name, node in self.nodes.items() if type(node).__name__ in kinds]

    def inputs(self) -> list[str]:
        """The graph's own inputs; an inner graph's Input has predecessors and forwards their output."""
        return [name for name in self.of_kind("Input") if not self.before.get(name)]

    def readouts(self, neuron_kinds: Sequence[str]) -> list[str]:
        """Outputs that directly follow weights, without neurons; such a sum is a separate readout."""
        neurons = self.of_kind(*neuron_kinds)
        known = {*neurons, *self.of_kind(*_LINEAR)}
        if unknown := [name for name in self.nodes if name not in known]:
            kinds = sorted({type(self.nodes[name]).__name__ for name in unknown})
            raise DescriptionError(
                f"node {unknown[0]!r}: is a {kinds[0]}; known: {', '.join((*neuron_kinds, *_LINEAR))} (unknown in this "
                f"graph: {', '.join(kinds)})"
            )
        if len(self.inputs()) != 1:
            raise DescriptionError(f"the graph has {len(self.inputs())} Input nodes; a model here has one")
        names = []
        for name in self.of_kind("Output"):
            routes, _ = self.incoming(name, neurons)
            if any(r.changes for r in routes):
                names.append(f"{name} (sum)")
        return names

    def incoming(self, name: str, neurons: Sequence[str]) -> tuple[list[Route], NDArray[Any] | None]:
        """All routes into a node, one per source, and the constant input (None: there is none)."""
        return self._sum(name.removesuffix(" (sum)"), frozenset(neurons), ())

    @cached_property
    def shapes(self) -> Mapping[str, Shape]:
        """Shapes of the maps that nodes output; after a Flatten, still those of its input."""
        found: dict[str, Shape] = {}
        ready = self.inputs()
        one_axis = any(type(node).__name__ == "Conv1d" for node in self.nodes.values())
        after: dict[str, list[str]] = {}
        for name, sources in self.before.items():
            for source in sources:
                after.setdefault(source, []).append(name)
        ready += [name for name in self.nodes if maps.shape_before(self.nodes[name])]
        while ready:
            name = ready.pop(0)
            kind = type(self.nodes[name]).__name__
            made = next((found[source] for source in self.before.get(name, ()) if source in found), None)
            if kind in maps.NODES:
                made = self._bound(name, made).post_shape
            elif kind in ("Linear", "Affine"):
                made = None
            elif kind == "Input" and not self.before.get(name):
                made = maps.shape_of(
                    next(iter(self.nodes[name].input_type.values())), one_axis, f"the Input node {name!r}: shape"
                )
            if made is not None and name not in found:
                check_neurons(math.prod(made), f"node {name!r}")
                found[name] = made
                ready += after.get(name, ())
        return found

    def _bound(self, name: str, shape: Shape | None) -> Any:
        """The kind of synapses of a convolution or pooling for maps of a shape."""
        node, where = self.nodes[name], f"node {name!r} ({type(self.nodes[name]).__name__})"
        shape = shape or maps.shape_before(node)
        try:
            if shape is None:
                raise DescriptionError(
                    "the shape of its input is unknown; give the Input node [channels, "
                    f"{'length' if type(node).__name__ == 'Conv1d' else 'height, width'}]"
                )
            return maps.kind_of(node).bound(shape)
        except DescriptionError as error:
            raise DescriptionError(f"{where}: {error}") from None

    def _shape_into(self, name: str) -> Shape | None:
        return next((self.shapes[source] for source in self.before.get(name, ()) if source in self.shapes), None)

    def _sum(self, name: str, stops: frozenset[str], via: tuple[str, ...]) -> tuple[list[Route], Any]:
        routes: dict[str, Route] = {}
        bias = None
        for source in self.before.get(name, ()):
            found, constant = self._out_of(source, stops, via)
            for route in found:
                routes[route.source] = _add(routes.get(route.source), route, name)
            bias = constant if bias is None else bias if constant is None else bias + constant
        return list(routes.values()), bias

    def _out_of(self, name: str, stops: frozenset[str], via: tuple[str, ...]) -> tuple[list[Route], Any]:
        """The output of a node, as routes from firing nodes."""
        if name in stops:
            return [Route(name)], None
        # cached, because paths that split and rejoin would double the work each time
        if (name, stops) not in self._known:
            if name in via:
                raise DescriptionError(f"node {name!r}: feeds itself through weights alone; a loop must hold a neuron")
            self._known[name, stops] = self._made(name, stops, via)
        return self._known[name, stops]

    @cached_property
    def _known(self) -> dict[tuple[str, frozenset[str]], tuple[list[Route], Any]]:
        return {}

    def _made(self, name: str, stops: frozenset[str], via: tuple[str, ...]) -> tuple[list[Route], Any]:
        node, kind = self.nodes[name], type(self.nodes[name]).__name__
        if kind == "Input" and not self.before.get(name):
            return [Route(INPUT)], None
        routes, bias = self._sum(name, stops, (*via, name))
        if kind in ("Linear", "Affine"):
            weight = array(node.weight)
            if weight.ndim != 2:
                raise DescriptionError(f"node {name!r}: weight has shape {weight.shape}; give a matrix [n_post, n_pre]")
            shape = self._shape_into(name)
            routes = [replace(r, matrix=_times(r.in_order(weight, shape), r, name)) for r in routes]
            bias = None if bias is None else _in_order(weight, shape) @ bias
            if kind == "Affine" and np.any(array(node.bias) != 0):
                own = array(node.bias).reshape(-1)
                if own.size != weight.shape[0]:
                    raise DescriptionError(
                        f"node {name!r}: {own.size} biases for {weight.shape[0]} rows; give one per row"
                    )
                bias = own if bias is None else own + bias
        elif kind in maps.NODES:
            routes, bias = self._windows(name, routes, bias)
        elif kind == "Scale":
            scale, shape = array(node.scale).reshape(-1), self._shape_into(name)
            routes = [r.times(r.in_order(scale, shape), shape, name) for r in routes]
            bias = None if bias is None else _in_order(scale, shape) * bias
        elif kind == "Delay":
            delays = np.unique(array(node.delay))
            if len(delays) != 1 or not delays[0] >= 0:
                raise DescriptionError(
                    f"node {name!r}: delays {delays[:3]}…; a connection here has one delay, from 0 up"
                )
            routes = [replace(r, delay=r.delay + float(delays[0])) for r in routes]
        return routes, bias

    def _windows(self, name: str, routes: list[Route], bias: Any) -> tuple[list[Route], Any]:
        """The output of a convolution or pooling, as routes."""
        node, where = self.nodes[name], f"node {name!r} ({type(self.nodes[name]).__name__})"
        kind = self._bound(name, self._shape_into(name))
        if not hasattr(node, "weight"):
            return [r.through(kind, None, where) for r in routes], None if bias is None else maps.pooled(bias, kind)
        filters = maps.filters_of(array(node.weight))
        if filters.shape != kind.weight_shape(0, 0):
            raise DescriptionError(
                f"{where}: reads {filters.shape[2] * kind.groups} channels, but its input has {kind.pre_shape[2]}: correct its shape"
            )
        routes = [r.through(kind, filters, where) for r in routes]
        own = array(node.bias).reshape(-1)
        return routes, np.tile(own, kind.post_shape[0] * kind.post_shape[1]) if np.any(own != 0) else None

    def input_size(self) -> int:
        shape = next(iter(self.nodes[self.inputs()[0]].input_type.values()))
        sizes = maps.whole(shape, f"the Input node {self.inputs()[0]!r}: shape") if shape is not None else [0]
        if min(sizes, default=0) < 1:
            raise DescriptionError(f"the Input node has shape {shape}; give the number of neurons")
        check_neurons(math.prod(sizes), "the Input node")
        return math.prod(sizes)

    def parameter_size(self, name: str) -> int:
        """Number of values per neuron parameter; 1 if neurons or channels share one, or for a readout without a node."""
        node = self.nodes.get(name)
        if node is None or name in self.shapes:
            return 1
        return array(node.threshold if type(node).__name__ == "Threshold" else node.r).size


def flatten(graph: Any, *, input_skips_loops: bool = False) -> Graph:
    """Checks a NIR graph and dissolves inner graphs; their inputs and outputs remain as nodes that forward their input.

    Args:
        input_skips_loops: if an inner graph's input goes into the weights of its loop, lead it past them, to the neurons
            (as Spyx means it).
    """
    nir = nir_package()
    if not isinstance(graph, nir.NIRGraph):
        raise DescriptionError(f"graph is a {type(graph).__name__}; give a nir.NIRGraph, or the path of a NIR file")
    nodes: dict[str, Any] = {}
    before: dict[str, list[str]] = {}

    def visit(inner: Any, prefix: str, depth: int) -> None:
        if depth > MAX_DEPTH or len(nodes) > MAX_NODES:
            raise DescriptionError(
                f"the graph has more than {MAX_DEPTH} levels or {MAX_NODES:,} nodes; it is not a network"
            )
        entry, leave = {}, {}
        for name, node in inner.nodes.items():
            full = prefix + str(name)
            if isinstance(node, nir.NIRGraph):
                visit(node, full + ".", depth + 1)
                kinds = {k: [m for m, x in node.nodes.items() if type(x).__name__ == k] for k in ("Input", "Output")}
                if any(len(found) != 1 for found in kinds.values()):
                    raise DescriptionError(f"node {full!r}: an inner graph needs one Input and one Output")
                entry[name], leave[name] = (f"{full}.{kinds[k][0]}" for k in ("Input", "Output"))
            else:
                nodes[full], entry[name], leave[name] = node, full, full
        edges = dict.fromkeys((str(a), str(b)) for a, b in inner.edges)
        for pre, post in edges:
            if input_skips_loops and depth and type(inner.nodes.get(pre)).__name__ == "Input":
                post = next((n for w, n in edges if w == post and (n, w) in edges), post)
            if pre not in leave or post not in entry:
                raise DescriptionError(f"edge {pre!r} -> {post!r}: one of them is not a node of the graph")
            before.setdefault(entry[post], []).append(leave[pre])

    visit(graph, "", 0)
    return Graph(nodes, before)


def order(sources: Mapping[str, Sequence[str]]) -> list[str]:
    """Populations, each after its sources. Errors: `DescriptionError` for feedback between populations."""
    feeds: dict[str, list[str]] = {}
    open_reads = {}
    for k, reads in sources.items():
        own = {r for r in reads if r not in (k, INPUT)}
        open_reads[k] = len(own)
        for r in own:
            feeds.setdefault(r, []).append(k)
    ordered = []
    ready = [k for k, n in open_reads.items() if n == 0]
    place = {k: i for i, k in enumerate(sources)}
    while ready:  # level by level, so that nodes of equal depth keep their order
        ordered += ready
        after = []
        for k in ready:
            for post in feeds.get(k, ()):
                open_reads[post] -= 1
                if open_reads[post] == 0:
                    after.append(post)
        ready = sorted(after, key=place.__getitem__)
    if len(ordered) < len(sources):
        left = sorted(set(sources) - set(ordered))
        raise DescriptionError(
            f"nodes {', '.join(map(repr, left))}: feed one another in a loop; here a population may feed back "
            "to itself only: join them into one"
        )
    # Populations without readers come last: the last one is the network's output.
    read = {r for k, reads in sources.items() for r in reads if r != k}
    return [k for k in ordered if k in read] + [k for k in ordered if k not in read]


def array(value: Any) -> NDArray[Any]:
    """A parameter as NumPy array; exporters also write PyTorch tensors and numbers."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    values = np.asarray(value)
    if values.dtype.kind not in "fiu" or not values.size:
        raise DescriptionError(f"a parameter is {values.dtype}{list(values.shape)}; give numbers")
    if np.any(np.isnan(values)):
        raise DescriptionError("a parameter is NaN; give numbers")
    return values


def per_neuron(node: Any, attribute: str, n: int, where: str, shape: Shape | None = None) -> NDArray[np.float64]:
    """A parameter for each of `n` neurons, from one value or one each; for maps in our order."""
    value = getattr(node, attribute, None)
    if value is None:
        value = 0.0 if attribute in ("v_reset", "v_leak") else 1.0
    found = array(value).astype(np.float64)
    if shape is not None and shape[0] == 1 and found.ndim == 2:  # [channels, length]
        found = found[:, None]
    if (
        shape is not None
        and found.ndim == 3
        and all(a in (1, b) for a, b in zip(found.shape, maps.theirs(shape), strict=True))
    ):
        found = np.broadcast_to(found, maps.theirs(shape))
    found = found.reshape(-1)
    if found.size not in (1, n):
        raise DescriptionError(f"{where}: {attribute} has {found.size} values for {n} neurons; give one, or one each")
    values: NDArray[np.float64] = np.broadcast_to(found, (n,)).copy()
    return values if shape is None else maps.to_ours(values, shape)


def _in_order(values: NDArray[Any], shape: Shape | None) -> NDArray[Any]:
    """Numbers per element of maps, along the last axis, in our order; without maps unchanged."""
    return values if shape is None or values.shape[-1] != math.prod(shape) else maps.to_ours(values, shape)


def _add(known: Route | None, route: Route, name: str) -> Route:
    if known is None:
        return route
    if known.delay != route.delay:
        raise DescriptionError(
            f"node {name!r}: receives {route.source!r} with delays {known.delay:g} and {route.delay:g}; a connection here has "
            "one delay: make them equal"
        )
    if known.kinds or route.kinds:
        raise DescriptionError(
            f"node {name!r}: receives {route.source!r} on two paths, one with convolution or pooling; use a single path"
        )
    n = next((m.shape[1] for m in (known.matrix, route.matrix) if m is not None), 0)
    _check_matrix(n, n, f"node {name!r}")
    if known.matrix is None and route.matrix is None:
        raise DescriptionError(f"node {name!r}: receives {route.source!r} twice without weights; use one Scale of 2")
    parts = [np.eye(n, dtype=np.float32) if m is None else m for m in (known.matrix, route.matrix)]
    return replace(known, matrix=parts[0] + parts[1])


def _times(weight: NDArray[Any], route: Route, name: str) -> NDArray[Any]:
    sizes, matrix = route.sizes(), route.matrix
    if sizes is not None and weight.shape[1] != sizes[1]:
        raise DescriptionError(f"node {name!r}: has {weight.shape[1]} columns for {sizes[1]} inputs; correct its shape")
    if matrix is None:
        return weight
    _check_matrix(weight.shape[0], matrix.shape[1], f"node {name!r}")
    product: NDArray[Any] = weight.astype(np.float64) @ matrix
    return product


def _rows(scale: NDArray[Any], matrix: NDArray[Any] | None, name: str) -> NDArray[Any]:
    if matrix is None:
        _check_matrix(scale.size, scale.size, f"node {name!r}")
        return np.diag(scale)
    if scale.size not in (1, matrix.shape[0]):
        raise DescriptionError(f"node {name!r}: {scale.size} factors for {matrix.shape[0]} inputs; give one each")
    scaled: NDArray[Any] = scale[:, None] * matrix
    return scaled
