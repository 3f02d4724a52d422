"""Large messages travel while the engine computes, which looks at them meanwhile; MPI is a fake here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from sparsesnn import _core
from sparsesnn.engines.module import Model
from sparsesnn.host.comm import Traffic
from sparsesnn.host.comm.mpi import LARGE, Mpi
from sparsesnn.network import parse_net
from sparsesnn.spikes import SpikeBatch

#: more than any test needs, where only one or two passes of 1 ms and more are needed
MANY = 1000


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    _core.look_meanwhile(None)


# ruff: noqa: N802  # mpi4py's names
class FakeMpi:
    """An MPI whose messages end after some looks."""

    BYTE = ANY_SOURCE = 0
    Status = type("Status", (), {"n": 0, "Get_count": lambda self, unit: self.n})

    def __init__(self, n_looks: int) -> None:
        self.n_looks, self.n_tests, self.error = n_looks, 0, None

    def Get_rank(self) -> int:
        return 0

    def Get_size(self) -> int:
        return 2

    def Isend(self, what: Any, to: int, tag: int) -> FakeRequest:
        return FakeRequest(self, 0)

    def Irecv(self, what: Any, source: int, tag: int) -> FakeRequest:
        return FakeRequest(self, what[0].nbytes - 7)


class FakeRequest:
    def __init__(self, mpi: FakeMpi, n_bytes: int) -> None:
        self.mpi, self.n_bytes, self.left = mpi, n_bytes, mpi.n_looks

    def __bool__(self) -> bool:
        return self.left > 0

    def Test(self, status: Any) -> bool:
        assert self.left, "an MPI says nothing of a message that has ended"
        self.mpi.n_tests += 1
        if self.mpi.error:
            raise self.mpi.error
        self.left -= 1
        status.n = 0 if self.left else self.n_bytes
        return not self.left

    def Wait(self, status: Any) -> None:
        assert self.left
        self.left, status.n = 0, self.n_bytes


def communicator(n_looks: int) -> tuple[FakeMpi, Mpi]:
    mpi = FakeMpi(n_looks)
    return mpi, Mpi(mpi, mpi, Traffic(), [], yields=False, ranks_on_host=1)


def backward() -> Callable[[], torch.Tensor]:
    """A training pass of a few milliseconds; returns the gradient."""
    model = Model(parse_net("301-333-17"), seed=3)
    spikes = SpikeBatch.from_dense((torch.rand(23, 9, 301, generator=torch.Generator().manual_seed(1)) < 0.2).float())

    def run() -> torch.Tensor:
        model.zero_grad()
        output = model(spikes)
        output.potentials.square().sum().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    return run


def for_each_of_many(run: Callable[[], object]) -> None:
    for _ in range(MANY):
        run()


def test_the_engine_looks_until_all_have_ended():
    mpi, comm = communicator(n_looks=4)
    run = backward()
    alone = run()
    room = np.zeros(LARGE, np.uint8)
    requests = [comm.send(room, 1), comm.receive(room, 1)]
    for _ in range(MANY):
        assert torch.equal(run(), alone)
        if not comm.large:
            break
    assert mpi.n_tests == 8
    for _ in range(10):
        run()
    assert mpi.n_tests == 8, "none is under way"
    assert [request.wait() for request in requests] == [LARGE, LARGE - 7]
    assert comm.traffic.bytes_received == LARGE - 7


def test_one_that_is_waited_for_is_not_looked_at():
    mpi, comm = communicator(n_looks=MANY)
    assert comm.receive(np.zeros(LARGE, np.uint8), 1).wait() == LARGE - 7
    run = backward()
    for _ in range(10):
        run()
    assert (mpi.n_tests, comm.large) == (0, [])


def test_small_ones_are_not_looked_at():
    mpi, comm = communicator(n_looks=MANY)
    comm.send(np.zeros(LARGE - 1, np.uint8), 1)
    run = backward()
    for _ in range(10):
        run()
    assert mpi.n_tests == 0


def test_an_error_of_mpi_is_one_of_the_pass():
    mpi, comm = communicator(n_looks=MANY)
    run = backward()
    comm.send(np.zeros(LARGE, np.uint8), 1)
    mpi.error = RuntimeError("MPI_ERR_PROC_FAILED")
    with pytest.raises(RuntimeError, match="MPI_ERR_PROC_FAILED"):
        for_each_of_many(run)
