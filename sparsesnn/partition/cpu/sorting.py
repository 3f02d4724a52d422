"""Lists sorted by sender for the backward pass: in which chunks, and, where ranks share a population, for whom they all are."""

from __future__ import annotations

from sparsesnn.connection import Connection
from sparsesnn.layers import LI
from sparsesnn.network import Network
from sparsesnn.partition.cpu.tiles import GROUP_SAMPLES, tile_width
from sparsesnn.partition.plan import ConnectionPlan, Plan

#: rows (t, b) that the backward pass works on at a time: `backward_rows` of host/src/choices.h
CHUNK_ROWS = 1024
#: bytes of a tile's weights from several connections above which it does more: `columns_kb` of host/src/choices.h
COLUMNS_BYTES = 1 << 19


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
    n_owners = sum(bool(shards) for shards in plan.shards_of_ranks(c.pre))
    first = None if c.pre in plan.network.inputs or n_owners < 2 else first_reader(plan.network, c.pre)
    return first is not None and (first.post, first.delay) == (c.post, c.delay)


def chunk_rows(plan: Plan, name: str) -> int:
    """Twice CHUNK_ROWS where weights do not fit L2: `chunk_plan` of host/src/chunks.cpp."""
    incoming = plan.incoming(name)
    columns = 4 * tile_width(plan, name) * sum(plan.in_lists(c).n_pre for c in incoming)
    many = (
        len(incoming) > 1
        and columns > COLUMNS_BYTES
        and not any(c.recurrent or plan.is_compressed(c) for c in incoming)
    )
    return CHUNK_ROWS * (2 if many else 1)


def chunk_shape(n_steps: int, n_samples: int, n_rows: int = CHUNK_ROWS) -> tuple[int, int]:
    """Groups of samples and steps of a chunk of at most so many rows: `make_chunks` of host/src/chunks.cpp."""
    most = n_rows // GROUP_SAMPLES  # steps of a group
    return min(-(-n_samples // GROUP_SAMPLES), max(1, most // max(1, n_steps))), min(n_steps, most)


def n_chunks(n_steps: int, n_samples: int, n_rows: int = CHUNK_ROWS) -> int:
    """Chunks of a backward pass."""
    groups, steps = chunk_shape(n_steps, n_samples, n_rows)
    return -(-n_samples // max(1, groups * GROUP_SAMPLES)) * -(-n_steps // max(1, steps))
