"""Gradients of parameters, summed over replicas; the result equals that of one process, bit for bit.

A weight's gradient is a sum over groups of samples along a tree (host/src/training/group_tree.h). Each replica has the sums of the
branches that its groups form: one branch if 2, 4, … replicas share a batch evenly. Each replica adds up some rows of every
weight: it receives these rows of all branches and sends the total to all. While a layer's sums travel, earlier layers run
backward; sums in a host's shared memory wait until the end, when one message serves all of them.

Replicas on one host only exchange the positions of their branches (`shared_memory.py`): the others read the branches and write
the totals there. Replicas on different hosts send them. Rows whose source neuron did not fire in any sample hold zeros and are
not sent if that saves bytes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from sparsesnn import _core
from sparsesnn.engines.cpu.wiring import Wiring
from sparsesnn.engines.ranks.rows import Arriving, Rows, Sent, send_rows, wait
from sparsesnn.errors import ShapeError
from sparsesnn.host.comm import Communicator
from sparsesnn.host.comm.base import BACK, FORTH, Array, room
from sparsesnn.host.shared_memory import HostMemory
from sparsesnn.parameters import DELAYS


class Reduction:
    """The sums of one backward pass; `add` while it runs, `finish` after it.

    Args:
        replicas: the ranks that own the same parameters, in the order of their samples.
    """

    def __init__(self, replicas: Communicator) -> None:
        self.comm = replicas
        self.memory = HostMemory(replicas)
        self.beside = [r for r in self.memory.ranks if r != replicas.rank]  # the others on this host
        self.remote = [r for r in range(replicas.size) if r not in self.memory.ranks]
        self.batch: _Batch | None = None
        self.open: list[_Sum] = []

    def begin(self, n_samples: int, first_sample: int) -> None:
        """Called before a pass that all replicas run forward and backward. They wait for one another (`n_batch`) here and not in the
        middle of the pass, where one replica's delay in the forward part and another's in the backward part would add up."""
        if not self.open:
            self.batch = None  # left from a pass without a backward part
        self.n_batch(n_samples, first_sample)

    def n_batch(self, n_samples: int, first_sample: int) -> int:
        """Number of samples of all replicas in this pass; this one has `n_samples`, after `first_sample` others.

        Errors: `ShapeError` unless `first_sample` matches the other replicas and is a multiple of the group size.
        """
        if self.batch is None:
            counts = [int(part[0]) for part in self.comm.all_gather(np.array([n_samples], np.int64))]
            self.batch = _Batch.of(counts)
        split = n_samples and first_sample % _core.group_samples
        if sum(self.batch.counts[: self.comm.rank]) != first_sample or split:
            raise ShapeError(
                f"replica {self.comm.rank}: first_sample is {first_sample}, but the replicas have "
                f"{self.batch.counts} samples; give the number that come before, whole groups of {_core.group_samples}"
            )
        return sum(self.batch.counts)

    def add(self, parameter: nn.Parameter, branches: Array, active: Rows) -> None:
        """Starts the sum over replicas of one weight's gradient [M, n].

        Args:
            branches: float32[K, M, n], this replica's sums; they are overwritten.
            active: [M], rows that may differ from zero.
        """
        branches, place = self._placed(branches)
        this = _Sum(parameter, branches, active.copy(), {self.comm.rank: place})
        this.steps = self._sum(this)
        next(this.steps, None)
        if not self.memory.is_shared:
            for one in self.open:  # their messages had one layer's time to arrive
                next(one.steps, None)
        self.open.append(this)

    def add_layer(
        self, layer: Any, learnt: Collection[str], found: Mapping[str, Any], listed: Callable[[str], Rows]
    ) -> dict[str, Array]:
        """Sums a layer's gradients over replicas: returns small ones immediately, sums weights in the background.

        Args:
            learnt: the engine's names of the trained parameters.
            found: for each name, the sums of this replica's branches, or groups.
            listed: gives, by a matrix's name, the senders that may appear in a list.
        """
        wiring = Wiring.of(layer)
        layer.check_plain("ranks with replicas")
        for name, c in wiring.connections.items():
            if name not in learnt:
                continue
            parameter: nn.Parameter = getattr(layer, c.name)
            sums = found[name]
            if layer.columns(c) is not None:  # one number per synapse, as rows
                if name not in wiring.rows:
                    sums = sums.reshape(len(sums), math.prod(sums.shape[1:]))[:, layer.places(c).numpy()]
                self.add(parameter, sums[:, :, None], np.ones(len(parameter), np.bool_))
            elif name in wiring.windows:  # one number per weight, as rows of channels
                n_rows = math.prod(parameter.shape[:-1])
                every = np.ones(n_rows, np.bool_)
                self.add(parameter, sums.reshape(len(sums), n_rows, parameter.shape[-1]), every)
            else:
                self.add(parameter, sums, listed(name))
        small = ("bias", *wiring.parameters, *(loop + DELAYS for loop in wiring.loops))
        return {name: self.fold(found[name]) for name in small if name in learnt}

    def fold(self, groups: Array) -> Array:
        """The total of small gradients, from those of this replica's groups [G, …]; waits for all replicas."""
        shape = groups.shape[1:]
        total: Array = np.zeros(shape, np.float32)
        for part in self.comm.all_gather(groups.reshape(-1)):
            for group in part.reshape(-1, *shape) if part.size else ():
                total += group
        return total

    def finish(self) -> None:
        """Sets the gradients of all weights; `add` must have been called in the same order on every replica."""
        if self.open:
            if self.beside:
                self._say_where()
            for this in self.open:
                next(this.steps, None)
            self.memory.group.barrier()  # every replica here has written its totals
        going = list(self.open)
        while going:
            going = [this for this in going if next(this.steps, this) is not this]
        for this in self.open:
            this.parameter.grad = torch.from_numpy(this.total.reshape(this.parameter.shape))
        self.open.clear()
        self.batch = None

    def _rows(self, this: _Sum, replica: int) -> slice:
        """The rows that a replica adds up."""
        n = len(this.active)
        return slice(n * replica // self.comm.size, n * (replica + 1) // self.comm.size)

    def _sum(self, this: _Sum) -> Iterator[None]:
        """Adds up this replica's branches and those of others, by rows; messages travel during each yield, so the replica should
        compute before the next step."""
        assert self.batch is not None
        n_own = self.batch.n_branches[self.comm.rank]  # 0 without samples: `branches` then only holds the total
        rows = self._rows(this, self.comm.rank)
        forth: list[Sent] = []
        arriving: dict[int, Arriving] = {}
        for r in self.remote:
            given = self._rows(this, r)
            forth += send_rows(self.comm, this.branches[:n_own, given], this.active[given], r, FORTH)
            if n := self.batch.n_branches[r]:
                out = [np.asarray(_core.empty_matrix(*this.total[rows].shape)) for _ in range(n)]
                arriving[r] = Arriving(self.comm, out, r, FORTH)
        yield
        parts: list[Array] = []
        copies: list[Array] = []
        for r, n in enumerate(self.batch.n_branches):
            if r == self.comm.rank:
                parts += list(this.branches[:n, rows])
            elif r in self.memory.ranks:
                theirs = self.memory.at(r, this.places[r], (max(1, n), *this.total.shape))[:, rows]
                parts += list(theirs[:n])
                copies.append(theirs[0])  # becomes its total; no one else reads or writes these rows there
            elif n:
                this.active[rows] |= arriving[r].take()
                parts += arriving.pop(r).out
        _core.add_branches(parts, self.batch.folds, this.total[rows], this.active[rows], copies)
        del parts
        back: list[Sent] = []
        for r in self.remote:
            back += send_rows(self.comm, this.total[None, rows], this.active[rows], r, BACK)
        wait(forth)  # the totals will overwrite this replica's branches
        arriving = {r: Arriving(self.comm, [this.total[self._rows(this, r)]], r, BACK) for r in self.remote}
        yield
        for r in self.remote:
            arriving[r].take()
        yield
        wait(back)

    # ---- between replicas on one host --------------------------------------------------------------------------

    def _placed(self, branches: Array) -> tuple[Array, int]:
        """Puts branches [K, M, n] where others on this host can read them; returns them and their place. Without any, adds one of zeros
        to hold the total."""
        if not len(branches):
            branches = np.zeros((1, *branches.shape[1:]), np.float32)
        if not self.beside:
            return branches, -1
        if (place := self.memory.place(branches)) >= 0:  # the engine has put them there already
            return branches, place
        placed = room(branches.shape, np.float32, shared=True)
        placed[:] = branches
        return placed, self.memory.place(placed)

    def _say_where(self) -> None:
        """Exchanges, among replicas on this host, the places of all sums' branches and the active rows."""
        places = np.array([this.places[self.comm.rank] for this in self.open], np.int64)
        active = [this.active for this in self.open]
        told = np.concatenate([places.view(np.uint8), *(one.view(np.uint8) for one in active)])
        for r, heard in zip(self.memory.ranks, self.memory.group.all_gather(told), strict=True):
            at = heard[: places.nbytes].view(np.int64)
            start = places.nbytes
            for this, place, own in zip(self.open, at.tolist(), active, strict=True):
                this.places[r] = place
                own |= heard[start : start + len(own)].view(np.bool_)
                start += len(own)


@dataclass(frozen=True)
class _Batch:
    """How the samples of one pass are divided over the replicas.

    Args:
        counts: samples of each replica.
        n_branches: branches of each replica.
        folds: for all branches, in order: the number of pending sums that each is added to.
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


@dataclass
class _Sum:
    """One weight's sum in progress.

    Args:
        branches: this replica's branches; the first becomes the total.
        active: rows that may differ from zero, first in this replica's branches, finally in those of all on this host.
        places: the place of the branches in the memory of each replica on this host.
        steps: the steps of the sum, between which messages travel.
    """

    parameter: nn.Parameter
    branches: Array
    active: Rows
    places: dict[int, int]
    steps: Iterator[None] = field(init=False)

    @property
    def total(self) -> Array:
        total: Array = self.branches[0]
        return total
