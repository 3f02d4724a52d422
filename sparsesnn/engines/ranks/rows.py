"""Rows of a gradient on their way between replicas: those whose source was silent stay behind where that saves bytes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sparsesnn.host.comm import Communicator, Request
from sparsesnn.host.comm.base import Array

Rows = npt.NDArray[np.bool_]
#: a message under way, and its array
Sent = tuple[Request, Array]


def send_rows(comm: Communicator, sums: Array, active: Rows, to: int, tag: int) -> list[Sent]:
    """Sends which rows are active and these of each sum [K, m, n]; all of them where few are missing."""
    if not len(active) or not len(sums):
        return []
    few = active.sum() <= 0.9 * len(active)
    parts = [active.copy() if few else np.ones_like(active)]
    parts += [one[active] if few else one for one in sums]
    return [(comm.send(part, to, tag), part) for part in parts]


def receive_rows(comm: Communicator, out: list[Array], source: int, tag: int) -> Rows:
    """Receives into `out`, [m, n] each; returns which rows were active."""
    if not out or not len(out[0]):
        return np.zeros(1, np.bool_)
    active = np.empty(len(out[0]), np.bool_)
    comm.receive(active, source, tag).wait()
    for one in out:
        if active.all():
            comm.receive(one, source, tag).wait()
            continue
        some = np.empty((int(active.sum()), one.shape[1]), np.float32)
        comm.receive(some, source, tag).wait()
        one[:] = 0
        one[active] = some
    return active


def wait(sent: list[Sent]) -> None:
    while sent:
        sent.pop()[0].wait()
