"""A plan: which neurons live on which tile, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

#: widths of a CPU tile that the kernels are built for
CPU_TILE_WIDTHS = (16, 32, 64)
#: bytes of weight and weight gradient that one tile should keep in its core's L2 cache; half of the smallest usual L2
CPU_TILE_BYTES = 512 * 1024


@dataclass(frozen=True)
class Shard:
    """The neurons `first` to `first + n - 1` of one population, on one tile."""

    tile: int
    first: int
    n: int


def cpu_tile_width(n: int, n_pre: int) -> int:
    """Neurons a CPU tile holds, for a population of `n` neurons that read `n_pre` sources altogether.

    The widest vector-friendly slab whose columns, weight and gradient, stay in L2. A pure function of the network,
    never of the machine: the width decides the order of sums in a dot product, and so the last bit of a gradient.
    """
    for width in reversed(CPU_TILE_WIDTHS):
        if width < 2 * n and 8 * width * n_pre <= CPU_TILE_BYTES:
            return width
    return CPU_TILE_WIDTHS[0]


def cpu_shards(n: int, n_pre: int) -> tuple[Shard, ...]:
    """The shards of one population on the CPU, in ascending order; they cover each neuron once."""
    width = cpu_tile_width(n, n_pre)
    return tuple(Shard(tile, first, min(width, n - first)) for tile, first in enumerate(range(0, n, width)))
