"""The tile and rank of every neuron on CPUs, for the engines and the planner.

A pure function of the network, never of the machine: the width of a tile decides the order of sums in a dot product, and so
the last bit of a gradient.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparsesnn.errors import DescriptionError
from sparsesnn.layers import Input
from sparsesnn.network import Network

#: widths of a CPU tile that the kernels are built for
CPU_TILE_WIDTHS = (16, 32, 64)
#: bytes of weight and weight gradient that one tile should keep in its core's L2 cache; half of the smallest usual L2
CPU_TILE_BYTES = 1024 * 1024
#: tiles of a population; a network of more neurons needs larger ones
MAX_SHARDS = 1 << 18


def cpu_tile_width(n: int, n_read: int) -> int:
    """Neurons a CPU tile holds, for a population of `n` neurons, each of which reads at most `n_read` weights at a time.

    The widest vector-friendly slab whose weight columns stay in L2, those of one connection: the engine reads one after the
    other. In the backward pass columns and their gradient stream by, once in a few samples.
    """
    for width in reversed(CPU_TILE_WIDTHS):
        if width < 2 * n and 4 * width * n_read <= CPU_TILE_BYTES:
            return width
    return CPU_TILE_WIDTHS[0]


def n_read(network: Network, name: str) -> int:
    """Weights of one neuron of a population that the CPU engine reads at a time: of the connection that has most."""
    read = (c for c in network.incoming(name) if not c.synapses.gives_currents)
    return max((c.synapses.n_read(*network.ends(c)) for c in read), default=0)


def tile_width(network: Network, name: str) -> int:
    """Neurons per tile of a population."""
    return cpu_tile_width(network.populations[name].n, n_read(network, name))


def neurons_of_ranks(network: Network, n_ranks: int) -> Mapping[str, tuple[int, ...]]:
    """For each population but the input, [R + 1]: rank r owns neurons first[r] to first[r + 1] - 1.

    Layers run one after another, so each is dealt to all ranks, in contiguous runs of whole tiles; the ranks that hold the fewest
    weights so far get one tile more. A population with maps as input is whole on one rank: its places share their weights.

    Errors: `DescriptionError` for a population of more tiles than the engine has numbers for.
    """
    found = {}
    held = [0] * n_ranks
    for name, population in network.populations.items():
        if isinstance(population, Input):
            continue
        n, width = population.n, tile_width(network, name)
        n_tiles = -(-n // width)
        if n_tiles > MAX_SHARDS:
            raise DescriptionError(
                f"a population has {n:,} neurons, which are {n_tiles:,} tiles of the CPU engine; allowed: {MAX_SHARDS:,}; describe "
                "a smaller network"
            )
        by_load = sorted(range(n_ranks), key=held.__getitem__)
        each, left = divmod(n_tiles, n_ranks)
        more = set(by_load[:left])
        tiles = [each + (rank in more) for rank in range(n_ranks)]
        if hears_maps(network, name):
            tiles = [n_tiles * (rank == by_load[0]) for rank in range(n_ranks)]
            held[by_load[0]] += n
        first = [0]
        for rank, k in enumerate(tiles):
            first.append(min(n, first[-1] + k * width))
            if k:
                held[rank] += sum(
                    c.synapses.n_weights(*network.ends(c), first[-2], first[-1]) for c in network.incoming(name)
                )
        found[name] = tuple(first)
    return found


def hears_maps(network: Network, name: str) -> bool:
    """Whether a population has an input that is not a matrix."""
    return not all(c.synapses.is_matrix or c.synapses.gives_currents for c in network.incoming(name))
