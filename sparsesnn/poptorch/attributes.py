"""What a custom op is told: a network and a tile map as the plain lists that PopART's attributes can be.

The names are those of host/src/popart/description.h, which checks them again on its side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Dict  # noqa: UP035

from sparsesnn.errors import DescriptionError
from sparsesnn.layers import LI, Input
from sparsesnn.layers.declaration import fires
from sparsesnn.network import Network
from sparsesnn.poptorch.tile_map import TileMap, connections
from sparsesnn.surrogate import KINDS
from sparsesnn.synapses.dense import check_dense

Attributes = Dict[str, Any]  # noqa: UP006


def check(network: Network) -> None:
    """Refuses what the ops have no codelet for, on every backend alike: a model that trains here trains there."""
    names = list(network.populations)
    if len(network.inputs) != 1 or names[0] != network.inputs[0]:
        raise DescriptionError(f"the op reads one input, listed first; the network has {list(network.inputs)}")
    check_dense(network.connections, "the op")
    for name, p in network.populations.items():
        for flag in (f"learn_{q.name}" for q in getattr(p, "parameters", ())):
            if getattr(p, flag, False):
                raise DescriptionError(f"{name}: {flag}=True: the op trains weights and biases only; leave it False")
        if late := [c.name for c in network.incoming(name) if c.is_recurrent and c.delay > 1]:
            raise DescriptionError(f"{', '.join(late)}: the op has recurrent connections of delay 1; change the delay")
        if isinstance(p, LI) and name != network.output:
            raise DescriptionError(f"{name}: a second readout: the op has one, at the end; take it out")


def capacity(population: Any) -> int:
    """Slots of a population's lists: its capacity, or room for everybody; 0 for a readout."""
    if isinstance(population, LI):
        return 0
    return int(getattr(population, "capacity", None) or population.n)


def attributes(
    network: Network,
    input_capacity: int,
    tile_map: TileMap,
    *,
    seeds: Sequence[int],
    saves: bool,
    input_gradient: bool,
    codelets: str,
) -> Attributes:
    """The attributes of `sparsesnn::Layer` and `sparsesnn::Stack`.

    Args:
        input_capacity: K of the input's lists.
        seeds: of each population's choice among candidates that overflow a capacity, 64 bits without a sign.
        saves: whether there will be a backward pass.
        input_gradient: whether the input's lists have a gradient.
        codelets: path of the file that popc made.
    """
    populations = [p for p in network.populations.values() if not isinstance(p, Input)]
    surrogates = [getattr(p, "surrogate", None) for p in populations]
    found: Attributes = {
        "n_input": network.populations[network.inputs[0]].n,
        "input_capacity": input_capacity,
        "n": [p.n for p in populations],
        "models": " ".join(p.kernel for p in populations),
        "capacity": [capacity(p) for p in populations],
        "detach_reset": [int(getattr(p, "detach_reset", True)) for p in populations],
        "surrogate": [KINDS.index(s.kind) if s else 0 for s in surrogates],
        "slope": [float(s.slope) if s else 1.0 for s in surrogates],
        "fixed": [int(getattr(p, "activity", "natural") == "fixed") for p in populations],
        "bias": [int(p.bias) for p in populations],
        "seed": [seed - (seed >> 63 << 64) for seed in seeds],  # the same bits, with a sign
        "constants": [float(x) for p in populations for x in p.constants],
        "parameters": [x for p in populations for name in _rows(p) for x in _per_neuron(p, name)],
        "connections": [x for row in connections(network) for x in row],
        "shards": [x for row in tile_map.shards for x in row],
        "collectors": [x for row in tile_map.collectors for x in row],
        "saves": int(saves),
        "input_gradient": int(input_gradient),
        "codelets": codelets,
    }
    if tile_map.reducers:  # PopTorch takes no empty lists
        found["reducers"] = [x for row in tile_map.reducers for x in row]
    return found


def _rows(population: Any) -> list[str]:
    """The parameters of a model, then θ_grad where it fires."""
    return [*(q.name for q in population.parameters), *(["listed_above"] if fires(population) else [])]


def _per_neuron(population: Any, name: str) -> list[float]:
    value = getattr(population, name)
    return [float(x) for x in value] if isinstance(value, tuple) else [float(value)] * population.n
