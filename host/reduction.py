"""Gradients of parameters, summed over replicas to the bits of one process.

A gradient is the sum over groups of samples, one after the other (`_core.group_samples` of them). Replica 0 holds the sum
of its groups; it goes on from replica to replica, each of which adds its own groups in order, and the last one gives the
total to all. While a layer's total travels, the layers before it run backwards.

Rows of a weight whose source neuron did not fire in any sample hold zeros: they stay behind where that saves bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sparsesnn.host.comm import Communicator, Request
from sparsesnn.host.comm.base import Array

Rows = npt.NDArray[np.bool_]

#: tags: a running sum on its way to the next replica, and the total on its way back
FORTH, BACK = 4, 5


class Reduction:
    """The sums of one backward pass; `add` while it runs, `finish` after it.

    Args:
        replicas: the ranks that own the same parameters, in the order of their samples.
    """

    def __init__(self, replicas: Communicator) -> None:
        self.comm = replicas
        self.waiting: list[_Sum] = []
        self.open: list[_Sum] = []
        self.sent: list[tuple[Request, Array]] = []

    @property
    def separate(self) -> bool:
        """Whether this replica needs the sums of its groups one by one."""
        return self.comm.rank > 0

    def add(self, parameter: nn.Parameter, groups: Array, active: Rows) -> None:
        """Takes part in the sum for one weight [M, n].

        Args:
            groups: float32[G, M, n], or of replica 0 their sum [M, n].
            active: [M], rows that may differ from zero.
        """
        this = _Sum(parameter, groups, active)
        if self.comm.rank == 0:
            self._pass_on(groups, active, 1, FORTH)
            self.open.append(this)
            return
        if self.waiting:  # the one before has had the time of a layer to arrive
            self._go_on(self.waiting.pop(0))
        self.waiting.append(this)

    def fold(self, groups: Array) -> Array:
        """The total of small gradients: [G, …], or of replica 0 the sum of its groups; waits for all replicas."""
        shape = groups.shape if self.comm.rank == 0 else groups.shape[1:]
        parts = self.comm.all_gather(groups.reshape(-1))
        total: Array = parts[0].reshape(shape).copy()
        for part in parts[1:]:
            for group in part.reshape(-1, *shape) if part.size else ():
                total += group
        return total

    def finish(self) -> None:
        """Sets the gradients of all weights; the order of `add` was the same on every replica."""
        while self.waiting:
            self._go_on(self.waiting.pop(0))
        for this in self.open:
            this.parameter.grad = self._take(this, self.comm.size - 1, BACK)[0]
        self.open.clear()
        while self.sent:
            self.sent.pop()[0].wait()

    def _go_on(self, this: _Sum) -> None:
        """Adds this replica's groups to what the one before it sent, and hands the sum on, or back."""
        total, active = self._take(this, self.comm.rank - 1, FORTH)
        sum_, mine = total.numpy(), np.flatnonzero(this.active)
        for group in this.groups:
            if mine.size == len(sum_):
                sum_ += group
            else:
                sum_[mine] += group[mine]
        active |= this.active
        if self.comm.rank + 1 < self.comm.size:
            self._pass_on(sum_, active, self.comm.rank + 1, FORTH)
            self.open.append(this)
            return
        this.parameter.grad = total
        message = _pack(sum_, active)
        for r in range(self.comm.size - 1):
            self.sent += [(self.comm.send(part, r, BACK), part) for part in message]

    def _pass_on(self, sum_: Array, active: Rows, to: int, tag: int) -> None:
        self.sent += [(self.comm.send(part, to, tag), part) for part in _pack(sum_, active)]

    def _take(self, this: _Sum, source: int, tag: int) -> tuple[Tensor, Rows]:
        shape = tuple(this.parameter.shape)
        active = np.empty(shape[0], np.bool_)
        self.comm.receive(active, source, tag).wait()
        total = np.zeros(shape, np.float32) if not active.all() else np.empty(shape, np.float32)
        if active.all():
            self.comm.receive(total, source, tag).wait()
        else:
            rows = np.empty((int(active.sum()), *shape[1:]), np.float32)
            self.comm.receive(rows, source, tag).wait()
            total[active] = rows
        return torch.from_numpy(total), active


@dataclass(frozen=True)
class _Sum:
    parameter: nn.Parameter
    groups: Array
    active: Rows


def _pack(sum_: Array, active: Rows) -> tuple[Rows, Array]:
    """Which rows, and those rows; all of them where few are missing."""
    if active.sum() > 0.9 * len(active):
        return np.ones_like(active), sum_
    return active.copy(), sum_[active]
