"""Gradients of parameters, summed over replicas to the bits of one process.

A weight's gradient is a sum over groups of samples along a tree (host/src/group_tree.h). Each replica has the sums of the
branches that its groups make up: one, where 2, 4, … replicas share a batch evenly. Of every weight each replica adds up
some rows: it gets those of all branches, and gives the total to all. While a layer's sums travel, the layers before it run
backwards.

Where 2, 4, 8, … replicas on hosts of their own have one branch each, sums go through that tree in 2·log2(R) messages
(`halving.py`); else each replica sends rows to each.

Replicas on one host read one another's branches and totals where they lie (`shared_memory.py`) and say only where that is;
others send them. Rows whose source neuron did not fire in any sample hold zeros: they stay behind where that saves bytes.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from sparsesnn import _core
from sparsesnn.engines.ranks.halving import Halving, is_halved
from sparsesnn.engines.ranks.rows import Rows, Sent, receive_rows, send_rows, wait
from sparsesnn.errors import ShapeError
from sparsesnn.host.comm import Communicator
from sparsesnn.host.comm.base import BACK, FORTH, Array
from sparsesnn.host.shared_memory import HostMemory


class Reduction:
    """The sums of one backward pass; `add` while it runs, `finish` after it.

    Args:
        replicas: the ranks that own the same parameters, in the order of their samples.
    """

    def __init__(self, replicas: Communicator) -> None:
        self.comm = replicas
        self.memory = HostMemory(replicas)
        self.batch: _Batch | None = None
        self.open: list[_Sum] = []

    def n_batch(self, n_samples: int, first_sample: int) -> int:
        """Samples of all replicas in this pass, of which this one has `n_samples`, `first_sample` come before them.

        Errors: `ShapeError` unless those before make whole groups.
        """
        if self.batch is None:
            counts = [int(part[0]) for part in self.comm.all_gather(np.array([n_samples], np.int64))]
            self.batch = _Batch.of(counts)
        split = n_samples and first_sample % _core.group_samples
        if self.batch.first_sample(self.comm.rank) != first_sample or split:
            raise ShapeError(
                f"replica {self.comm.rank}: first_sample is {first_sample}, but the replicas have "
                f"{self.batch.counts} samples; give the number that come before, whole groups of {_core.group_samples}"
            )
        return sum(self.batch.counts)

    def add(self, parameter: nn.Parameter, branches: Array, active: Rows) -> None:
        """Takes part in the sum for one weight [M, n].

        Args:
            branches: float32[K, M, n], this replica's sums; they are overwritten.
            active: [M], rows that may differ from zero.
        """
        this = _Sum(parameter, self._placed(branches), active.copy())
        assert self.batch is not None
        if self.batch.is_halved and len(self.memory.ranks) == 1:
            this.halving = Halving(self.comm, this.total, this.active)
        for r in self._others if this.halving is None else ():
            if r in self.memory.ranks:
                this.forth.append(self._say_where(this, r))
            else:
                rows = self._rows(this, r)
                this.forth += send_rows(self.comm, branches[:, rows], active[rows], r, FORTH)
        self.open.append(this)
        for before in self.open[:-1]:  # what was sent has had the time of a layer to arrive
            if before.halving is not None:
                before.halving.advance()
            elif before is self.open[-2]:
                self._sum(before)

    def fold(self, groups: Array) -> Array:
        """The total of small gradients, from those of this replica's groups [G, …]; waits for all replicas."""
        shape = groups.shape[1:]
        total: Array = np.zeros(shape, np.float32)
        for part in self.comm.all_gather(groups.reshape(-1)):
            for group in part.reshape(-1, *shape) if part.size else ():
                total += group
        return total

    def finish(self) -> None:
        """Sets the gradients of all weights; the order of `add` was the same on every replica."""
        if self.open:
            if self.open[-1].halving is None:
                self._sum(self.open[-1])
            self.memory.group.barrier()  # the totals are there
        for this in self.open:
            self._collect(this)
        for this in self.open:
            wait(this.back)
        if self.open:
            self.memory.group.barrier()  # they are read: whoever has them may change them
        self.open.clear()
        self.batch = None

    @property
    def _others(self) -> list[int]:
        return [r for r in range(self.comm.size) if r != self.comm.rank]

    def _rows(self, this: _Sum, replica: int) -> slice:
        """The rows that a replica adds up."""
        n = len(this.active)
        return slice(n * replica // self.comm.size, n * (replica + 1) // self.comm.size)

    def _sum(self, this: _Sum) -> None:
        """Adds up this replica's rows of all branches, and gives the total to the others."""
        assert self.batch is not None
        rows = self._rows(this, self.comm.rank)
        for r in self._others:
            if r in self.memory.ranks:
                self._hear_where(this, r)
        parts: list[Array] = []
        for r, n_branches in enumerate(self.batch.n_branches):
            if r == self.comm.rank:
                parts += list(this.branches[:n_branches, rows])
            elif r in self.memory.ranks:
                parts += list(self._look(this, r, n_branches)[:, rows])
            elif n_branches:
                shape = (rows.stop - rows.start, this.branches.shape[2])
                out = [np.asarray(_core.empty_matrix(*shape)) for _ in range(n_branches)]
                this.active[rows] |= receive_rows(self.comm, out, r, FORTH)
                parts += out
        _core.add_branches(parts, self.batch.folds, this.total[rows], this.active[rows])
        for r in self._others:
            if r not in self.memory.ranks:
                this.back += send_rows(self.comm, this.total[None, rows], this.active[rows], r, BACK)

    def _collect(self, this: _Sum) -> None:
        """The rows that other replicas have added up."""
        if this.halving is not None:
            this.halving.collect()
            this.parameter.grad = torch.from_numpy(this.total).view_as(this.parameter)
            return
        wait(this.forth)  # where this replica's branches lie the totals are to come
        if len(self.memory.ranks) < self.comm.size:
            this.active[:] = True  # nobody has heard of all rows
        for r in self._others:
            rows = self._rows(this, r)
            if r in self.memory.ranks:
                _core.copy_rows(self._look(this, r, 1)[0, rows], this.active[rows], this.total[rows])
            else:
                receive_rows(self.comm, [this.total[rows]], r, BACK)
        this.parameter.grad = torch.from_numpy(this.total).view_as(this.parameter)

    # ---- between replicas on one host --------------------------------------------------------------------------

    def _placed(self, branches: Array) -> Array:
        """The same [K, M, n], one of zeros where there are none, for the total; others can read them."""
        if not len(branches):
            branches = np.zeros((1, *branches.shape[1:]), np.float32)
        if len(self.memory.ranks) == 1 or self.memory.place(branches) >= 0:  # where the engine has laid them
            return branches
        placed = np.asarray(_core.empty_matrix(1, branches.size, shared=True)).reshape(branches.shape)
        placed[:] = branches
        return placed

    def _say_where(self, this: _Sum, to: int) -> Sent:
        """Tells where branches lie and which rows are active."""
        place = np.array([self.memory.place(this.branches)], np.int64)
        message = np.concatenate([place.view(np.uint8), this.active.view(np.uint8)])
        return self.comm.send(message, to, FORTH), message

    def _hear_where(self, this: _Sum, source: int) -> None:
        message = self.comm.take(source, FORTH)
        this.places[source] = int(message[:8].view(np.int64)[0])
        this.active |= message[8:].view(np.bool_)

    def _look(self, this: _Sum, source: int, n: int) -> Array:
        """A replica's n sums [n, M, N]; of one, the total is the first."""
        return self.memory.at(source, this.places[source], (n, *this.total.shape))


@dataclass(frozen=True)
class _Batch:
    """How the samples of one pass lie on the replicas.

    Args:
        counts: samples of each.
        n_branches: sums of each.
        folds: of all branches, in order: how many of the sums that wait each is added to.
    """

    counts: list[int]
    n_branches: list[int]
    folds: list[int]

    @classmethod
    def of(cls, counts: list[int]) -> _Batch:
        edges = [-(-n // _core.group_samples) for n in itertools.accumulate(counts, initial=0)]
        branches = _core.find_branches(edges[-1], edges)
        n_branches = [sum(a <= lo < b for lo, _, _ in branches) for a, b in itertools.pairwise(edges)]
        return cls(counts, n_branches, [folds for _, _, folds in branches])

    @property
    def is_halved(self) -> bool:
        return is_halved(self.n_branches, self.folds)

    def first_sample(self, replica: int) -> int:
        return sum(self.counts[:replica])


@dataclass
class _Sum:
    """One weight's sum under way.

    Args:
        branches: this replica's; the first becomes the total.
        active: rows that may differ from zero, at first of this replica's, in the end of all on this host.
        places: of others' branches in their memory.
        halving: how the sum travels where each replica has one branch of a tree, on a host of its own.
    """

    parameter: nn.Parameter
    branches: Array
    active: Rows
    places: dict[int, int] = field(default_factory=dict)
    forth: list[Sent] = field(default_factory=list)
    back: list[Sent] = field(default_factory=list)
    halving: Halving | None = None

    @property
    def total(self) -> Array:
        total: Array = self.branches[0]
        return total
