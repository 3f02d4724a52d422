"""Neurons in two nodes: a readout of NIR, LI, CubaLI or I, and a Threshold that reads it, are neurons without a reset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from sparsesnn.nir.files import nir_package
from sparsesnn.nir.graphs import Graph, array

#: nodes that pass on their input
_FORWARD = ("Input", "Output", "Identity")


def with_thresholds(graph: Graph, taken: Callable[[Any], bool]) -> Graph:
    """The graph with one node in place of LI, CubaLI or I and the Threshold that alone reads it: LIF, CubaLIF or IF, in `unreset`.

    The node has the Threshold's name. A Threshold that reads anything else stays.

    Args:
        taken: whether a user's own model reads a node; such a node stays.
    """
    nodes, before = dict(graph.nodes), {name: list(sources) for name, sources in graph.before.items()}
    n_readers = Counter(source for sources in before.values() for source in sources)
    unreset = set()
    for name in graph.of_kind("Threshold"):
        source = _membrane(graph, name, n_readers)
        if source is None or taken(nodes[name]) or taken(nodes[source]):
            continue
        nodes[name] = _joined(nodes[source], nodes[name])
        before[name] = before.pop(source, [])
        del nodes[source]
        unreset.add(name)
    return replace(graph, nodes=nodes, before=before, unreset=frozenset(unreset))


def _membrane(graph: Graph, name: str, n_readers: Counter[str]) -> str | None:
    """The readout that this Threshold alone reads, perhaps through nodes that pass it on; None: there is none."""
    while True:
        sources = graph.before.get(name, ())
        if len(sources) != 1 or n_readers[sources[0]] != 1:
            return None
        name = sources[0]
        kind = type(graph.nodes[name]).__name__
        if kind in ("LI", "CubaLI", "I"):
            return name
        if kind not in _FORWARD:
            return None


def _joined(membrane: Any, threshold: Any) -> Any:
    """A node that fires; its v_reset has no meaning."""
    nir, kind = nir_package(), type(membrane).__name__
    names = {"LI": ("tau", "r", "v_leak"), "I": ("r",), "CubaLI": ("tau_syn", "tau_mem", "r", "v_leak", "w_in")}[kind]
    values = [*(array(getattr(membrane, k)) for k in names), array(threshold.threshold)]
    arguments = dict(zip((*names, "v_threshold"), np.broadcast_arrays(*values), strict=True))
    return getattr(nir, f"{kind}F")(**arguments, v_reset=arguments.get("v_leak"))
