"""The description that a custom op reads: a network and a tile map as one text, which is an attribute of PopART's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, List  # noqa: UP035

import numpy as np

from sparsesnn.errors import DescriptionError
from sparsesnn.layers import Input, is_readout
from sparsesnn.layers.arrays import arrays_of
from sparsesnn.layers.declaration import THRESHOLD, fires, given_entries, kept_states
from sparsesnn.layers.recorded import entries_with_u
from sparsesnn.network import Network
from sparsesnn.poptorch.tile_map import TileMap, connections
from sparsesnn.surrogate import KINDS
from sparsesnn.synapses.dense import check_dense
from sparsesnn.synapses.one_to_one import check_no_currents


def check(network: Network) -> None:
    """Refuses networks for which the ops have no codelet, on every backend alike: a model that trains on one trains on all."""
    names = list(network.populations)
    if len(network.inputs) != 1 or names[0] != network.inputs[0]:
        raise DescriptionError(f"the op reads one input, listed first; the network has {list(network.inputs)}")
    check_no_currents(network, "the op")
    check_dense(network.connections, "the op")
    for name, p in network.populations.items():
        if not getattr(p, "linear", True):
            raise DescriptionError(
                f"{name}: {type(p).__name__} is not linear between spikes; the op runs models with arrays"
            )
        if late := [c.name for c in network.incoming(name) if c.is_recurrent and c.delay > 1]:
            raise DescriptionError(f"{', '.join(late)}: the op has recurrent connections of delay 1; change the delay")
        if is_readout(p) and name != network.output:
            raise DescriptionError(f"{name}: a second readout: the op has only one, at the end; remove it")


def capacity(population: Any) -> int:
    """Slots of a population's lists: its capacity, or the number of neurons; 0 for a readout."""
    if is_readout(population):
        return 0
    return int(getattr(population, "capacity", None) or population.n)


def describe(
    network: Network,
    input_capacity: int,
    tile_map: TileMap,
    *,
    seeds: Sequence[int],
    saves: bool,
    input_gradient: bool,
    codelets: str,
) -> str:
    """The attribute `description` of `sparsesnn::Stack`: records, one a line. host/src/popart/description.h explains and reads them.

    Args:
        input_capacity: K of the input's lists.
        seeds: for each population's choice among candidates that overflow a capacity, 64 bits, unsigned.
        saves: whether there will be a backward pass.
        input_gradient: whether the input's lists have a gradient.
        codelets: path of popc's output.
    """
    first = network.populations[network.inputs[0]]
    populations = [p for p in network.populations.values() if not isinstance(p, Input)]
    records: List[Sequence[Any]] = [  # noqa: UP006
        ("pass", int(saves), int(input_gradient)),
        ("codelets", codelets),
        ("input", first.n, input_capacity),
        *(("population", *_population(p, seeds[k])) for k, p in enumerate(populations)),
        *(("connection", *row) for row in connections(network)),
        *(("shard", *row) for row in tile_map.shards),
        *(("collector", *row) for row in tile_map.collectors),
        *(("reducer", *row) for row in tile_map.reducers),
    ]
    return "\n".join(" ".join(map(str, record)) for record in records)


def _population(p: Any, seed: int) -> list[Any]:
    surrogate = getattr(p, "surrogate", None)
    kind, slope = (KINDS.index(surrogate.kind), float(surrogate.slope)) if surrogate else (0, 1.0)
    flags = (getattr(p, "detach_reset", True), getattr(p, "activity", "natural") == "fixed", p.bias)
    model, given, kept = p.structure, given_entries(p), kept_states(p)
    names = [",".join(x) or "-" for x in (entry_names(p), model.ones, given)]
    return [
        *(model.n_states, int(model.fires), int(model.sequential), *names),
        sum(1 << k for k, x in enumerate((*p.states, "i")) if x in kept),
        *(p.n, capacity(p), seed, kind, slope, *map(int, flags), *_values(p, given)),
    ]


def entry_names(population: Any) -> tuple[str, ...]:
    """The entries of the neurons' arrays, then the threshold if they fire."""
    return (*population.structure.step_entries, *((THRESHOLD.name,) if fires(population) else ()))


def _values(population: Any, given: Sequence[str]) -> list[str]:
    """[rows, N]: the entries of the neurons' arrays that the op is not given, then θ_grad if they fire."""
    parameters = {q.name: np.array(_per_neuron(population, q.name), np.float32) for q in population.parameters}
    found = {**entries_with_u(arrays_of(population, parameters)), **parameters}
    rows = [found[name] for name in entry_names(population) if name not in given]
    if fires(population):
        rows.append(_per_neuron(population, "listed_above"))
    return [str(x) for row in rows for x in np.broadcast_to(np.asarray(row, np.float32), population.n)]


def _per_neuron(population: Any, name: str) -> list[float]:
    value = getattr(population, name)
    return [float(x) for x in value] if isinstance(value, tuple) else [float(value)] * population.n
