"""One weight's sum over R = 2^k replicas in 2·k messages: recursive halving forth, recursive doubling back.

Each replica has one sum, a leaf of a tree of k levels in which neighbors are added first (host/src/group_tree.h). In round j
the replicas r and r XOR 2^j share the rows that both hold: each sends the half that the other one keeps, and adds what it
gets to its own, the lower replica's first. So every row's additions are those of the tree, whoever makes them. In the end each
replica has the total of M/R rows; the rounds backwards give them to all.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sparsesnn import _core
from sparsesnn.engines.ranks.rows import Sent, receive_rows, send_rows, wait
from sparsesnn.host.comm import Communicator
from sparsesnn.host.comm.base import BACK, FORTH, Array


def is_halved(n_branches: list[int], folds: list[int]) -> bool:
    """Whether replicas with so many sums each, which fold so, are the leaves of such a tree."""
    n = len(n_branches)
    whole = n & (n - 1) == 0 and all(k == 1 for k in n_branches)
    return n > 1 and whole and folds == [(~r & (r + 1)).bit_length() - 1 for r in range(n)]  # ones at the end of r


class Halving:
    """The sum under way.

    Args:
        total: float32[M, n], this replica's sum, overwritten by that of all.
        active: [M], rows that may differ from zero; in the end those of any replica.
    """

    def __init__(self, comm: Communicator, total: Array, active: npt.NDArray[np.bool_]) -> None:
        self.comm, self.total, self.active = comm, total, active
        self.n_rounds = comm.size.bit_length() - 1
        self.kept: list[slice] = []  # by round
        self.given: list[slice] = []
        self.sent: list[Sent] = []
        self.done = False
        self._give()

    def _other(self, j: int) -> int:
        return self.comm.rank ^ (1 << j)

    def _give(self) -> None:
        """Begins the next round."""
        j = len(self.kept)
        held = self.kept[-1] if j else slice(0, len(self.active))
        middle = (held.start + held.stop) // 2
        halves = slice(held.start, middle), slice(middle, held.stop)
        upper = self.comm.rank >> j & 1
        self.kept.append(halves[upper])
        self.given.append(halves[1 - upper])
        self.sent += send_rows(
            self.comm, self.total[None, self.given[-1]], self.active[self.given[-1]], self._other(j), FORTH
        )

    def advance(self) -> None:
        """Ends the round under way, and begins the next one, if there is one."""
        if self.done:
            return
        rows, other = self.kept[-1], self._other(len(self.kept) - 1)
        theirs = np.asarray(_core.empty_matrix(rows.stop - rows.start, self.total.shape[1]))
        self.active[rows] |= receive_rows(self.comm, [theirs], other, FORTH)
        parts = [self.total[rows], theirs] if self.comm.rank < other else [theirs, self.total[rows]]
        _core.add_branches(parts, [0, 1], self.total[rows], self.active[rows])
        self.done = len(self.kept) == self.n_rounds
        if not self.done:
            self._give()

    def collect(self) -> None:
        """Ends the sum: the total is there on all replicas."""
        while not self.done:
            self.advance()
        wait(self.sent)  # the rows that were given are overwritten now
        for j in reversed(range(self.n_rounds)):
            kept, given = self.kept[j], self.given[j]
            sent = send_rows(self.comm, self.total[None, kept], self.active[kept], self._other(j), BACK)
            if given.stop > given.start:
                self.active[given] = receive_rows(self.comm, [self.total[given]], self._other(j), BACK)
            wait(sent)
