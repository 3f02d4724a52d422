"""Messages with rows of a gradient between replicas: rows of silent sources are not sent if that saves bytes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sparsesnn.host.comm import Communicator, Request
from sparsesnn.host.comm.base import Array

Rows = npt.NDArray[np.bool_]
#: a message in transit, and its array
Sent = tuple[Request, Array]


def send_rows(comm: Communicator, sums: Array, active: Rows, to: int, tag: int) -> list[Sent]:
    """Sends which rows are active, and those rows of each sum [K, m, n]; all rows if few are inactive."""
    if not len(active) or not len(sums):
        return []
    few = active.sum() <= 0.9 * len(active)
    parts = [active.copy() if few else np.ones_like(active)]
    parts += [one[active] if few else one for one in sums]
    return [(comm.send(part, to, tag), part) for part in parts]


class Arriving:
    """Rows in transit from another replica; receiving starts at construction, so they travel while this one computes.

    Args:
        out: the sums, [m, n] each; they may be read and written after `take`.
    """

    def __init__(self, comm: Communicator, out: list[Array], source: int, tag: int) -> None:
        self.out, self.active = out, np.zeros(len(out[0]), np.bool_)
        self.requests = [comm.receive(part, source, tag) for part in (self.active, *out) if len(part)]

    def take(self) -> Rows:
        """Waits for the rows; returns which were active."""
        for request in self.requests:
            request.wait()
        if not self.active.all():
            n = self.active.sum()
            for one in self.out:
                some = one[:n].copy()  # the message holds only active rows
                one[:] = 0
                one[self.active] = some
        return self.active


def wait(sent: list[Sent]) -> None:
    while sent:
        sent.pop()[0].wait()
