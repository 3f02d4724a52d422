"""One weight's sum over R = 2^k replicas in 2·k messages: recursive halving forth, recursive doubling back.

Each replica has one sum, a leaf of a tree of k levels in which neighbors are added first (host/src/training/group_tree.h). In round j
the replicas r and r XOR 2^j share the rows that both hold: each sends the half that the other one keeps, and adds what it
gets to its own, the lower replica's first. So every row's additions are those of the tree, whoever makes them. In the end each
replica has the total of M/R rows; the rounds backwards give them to all.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from sparsesnn import _core
from sparsesnn.engines.ranks.rows import Arriving, Sent, send_rows, wait
from sparsesnn.host.comm import Communicator
from sparsesnn.host.comm.base import BACK, FORTH, Array


def is_halved(n_branches: list[int], folds: list[int]) -> bool:
    """Whether replicas with so many sums each, which fold so, are the leaves of such a tree."""
    n = len(n_branches)
    whole = n & (n - 1) == 0 and all(k == 1 for k in n_branches)
    return n > 1 and whole and folds == [(~r & (r + 1)).bit_length() - 1 for r in range(n)]  # ones at the end of r


def halve(comm: Communicator, total: Array, active: npt.NDArray[np.bool_]) -> Iterator[None]:
    """Makes the sum; where this yields messages may travel, so let the replica compute before it goes on.

    Args:
        total: float32[M, n], this replica's sum, overwritten by that of all.
        active: [M], rows that may differ from zero; in the end those of any replica.
    """
    forth: list[Sent] = []
    back: list[Sent] = []
    rounds: list[tuple[int, slice, slice]] = []
    keep = slice(0, len(active))
    for j in range(comm.size.bit_length() - 1):
        middle = (keep.start + keep.stop) // 2
        halves = slice(keep.start, middle), slice(middle, keep.stop)
        upper, other = comm.rank >> j & 1, comm.rank ^ (1 << j)
        keep, give = halves[upper], halves[1 - upper]
        rounds.append((other, keep, give))
        forth += send_rows(comm, total[None, give], active[give], other, FORTH)
        out = np.asarray(_core.empty_matrix(keep.stop - keep.start, total.shape[1]))
        theirs = Arriving(comm, [out], other, FORTH)
        yield
        active[keep] |= theirs.take()
        parts = [total[keep], out] if comm.rank < other else [out, total[keep]]
        _core.add_branches(parts, [0, 1], total[keep], active[keep])
        del parts, out, theirs
    for other, kept, given in reversed(rounds):
        back += send_rows(comm, total[None, kept], active[kept], other, BACK)
        wait(forth)  # the rows that were given are overwritten now
        theirs = Arriving(comm, [total[given]], other, BACK)
        yield
        active[given] = theirs.take()
    yield
    wait(back)
