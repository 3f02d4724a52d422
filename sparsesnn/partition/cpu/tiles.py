"""Tiles of the CPU engine: how wide they are."""

from __future__ import annotations

from sparsesnn.errors import DescriptionError
from sparsesnn.partition.pieces import MAX_SHARDS, Shard
from sparsesnn.partition.plan import Plan

#: widths of a CPU tile that the kernels are built for
CPU_TILE_WIDTHS = (16, 32, 64)
#: samples of a group, and groups that are added one after the other: `group_samples` of host/src/cpu/layer.h, `leaf_groups` of
#: host/src/training/group_tree.h
GROUP_SAMPLES, LEAF_GROUPS = 8, 8
#: bytes of weight and weight gradient that one tile should keep in its core's L2 cache; half of the smallest usual L2
CPU_TILE_BYTES = 1024 * 1024


def cpu_tile_width(n: int, n_read: int) -> int:
    """Neurons a CPU tile holds, for a population of `n` neurons, each of which reads at most `n_read` weights at a time.

    The widest vector-friendly slab whose weight columns stay in L2, those of one connection: the engine reads one after the
    other. In the backward pass columns and their gradient stream by, once in a few samples. A pure function of the network,
    never of the machine: the width decides the order of sums in a dot product, and so the last bit of a gradient.
    """
    for width in reversed(CPU_TILE_WIDTHS):
        if width < 2 * n and 4 * width * n_read <= CPU_TILE_BYTES:
            return width
    return CPU_TILE_WIDTHS[0]


def tile_width(plan: Plan, name: str) -> int:
    """Of a population in a plan for CPUs."""
    return cpu_tile_width(plan.populations[name].n, plan.n_read(name))


def cpu_shards(n: int, n_read: int) -> tuple[Shard, ...]:
    """The shards of one population on the CPU, in ascending order; they cover each neuron once."""
    width = cpu_tile_width(n, n_read)
    if n > MAX_SHARDS * width:
        raise DescriptionError(
            f"a population has {n:,} neurons, which are {-(-n // width):,} tiles of the CPU engine; allowed: {MAX_SHARDS:,}; describe "
            "a smaller network"
        )
    return tuple(Shard(tile, first, min(width, n - first)) for tile, first in enumerate(range(0, n, width)))
