"""Lists sorted by sender for the backward pass: in which chunks, and, where ranks share a population, for whom they all are."""

from __future__ import annotations

from sparsesnn.connection import Connection
from sparsesnn.layers import LI
from sparsesnn.network import Network
from sparsesnn.partition.cpu.tiles import GROUP_SAMPLES
from sparsesnn.partition.plan import ConnectionPlan, Plan

#: rows (t, b) that the backward pass works on at a time, twice as many of one group of samples: `backward_rows` of host/src/machine/choices.h
CHUNK_ROWS = 2048
#: with more threads rows are fewer: `chunk_plan` of host/src/cpu/chunks.cpp
FEW_THREADS = 4


def first_reader(network: Network, name: str) -> Connection | None:
    """The connection by which the lists of a population are first heard, if that gathers them by sender on its way back; None: each
    rank sorts for itself what it needs."""

    def is_readout(c: Connection) -> bool:
        return isinstance(network.populations[c.post], LI)

    readers = [c for c in network.connections if c.pre == name]
    first = min(readers, key=lambda c: (c.delay, is_readout(c)), default=None)
    if first is None or is_readout(first) or not first.synapses.is_matrix or first.axonal:
        return None
    return first


def sorts_for_all(plan: Plan, c: ConnectionPlan) -> bool:
    """Whether the ranks that own neurons of pre sort their lists for this connection on all ranks."""
    first = None if c.pre in plan.network.inputs or plan.n_owners[c.pre] < 2 else first_reader(plan.network, c.pre)
    return first is not None and (first.post, first.delay) == (c.post, c.delay)


def chunk_rows(n_threads: int) -> int:
    """Rows of a chunk of several groups at most: `chunk_plan` of host/src/cpu/chunks.cpp."""
    return max(1, CHUNK_ROWS * FEW_THREADS // max(FEW_THREADS, n_threads))


def chunk_shape(n_steps: int, n_samples: int, n_threads: int) -> tuple[int, int]:
    """Samples and steps of a chunk at most: `make_chunks` of host/src/cpu/chunks.cpp."""
    rows = chunk_rows(n_threads)
    most_steps = max(1, 2 * rows // GROUP_SAMPLES)
    n_parts = max(1, -(-n_steps // most_steps))
    groups = max(1, rows // (max(1, n_steps) * GROUP_SAMPLES))  # 1 where there are several parts
    return min(n_samples, groups * GROUP_SAMPLES), -(-n_steps // n_parts)


def n_chunks(n_steps: int, n_samples: int, n_threads: int) -> int:
    """Chunks of a backward pass."""
    samples, steps = chunk_shape(n_steps, n_samples, n_threads)
    return -(-n_samples // max(1, samples)) * -(-n_steps // max(1, steps))


def chunk_of(plan: Plan) -> tuple[int, int]:
    """Samples and steps of a chunk."""
    return chunk_shape(plan.n_steps, plan.n_samples, plan.target.tiles)
