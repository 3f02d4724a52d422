"""Communicators: the same results from threads and from MPI (tests/ranks/mpi_programs.py runs these checks over mpirun)."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from sparsesnn.errors import ConfigError, MissingDependencyError
from sparsesnn.host.comm import Communicator, Local, make_grid, mpi_world, simulate
from sparsesnn.host.comm.base import LAYERS
from sparsesnn.host.comm.exchange import PythonExchange
from sparsesnn.host.comm.simulated import BrokenGroupError


def check_communicator(comm: Communicator) -> None:
    """Every operation, with lengths that differ from rank to rank."""
    r, size = comm.rank, comm.size
    for dtype in (np.uint8, np.uint16, np.int32, np.int64, np.float32):
        parts = comm.all_gather(np.full(3 * r, r, dtype))
        assert [p.tolist() for p in parts] == [[k] * (3 * k) for k in range(size)]
        assert {p.dtype for p in parts} == {np.dtype(dtype)}
    assert check_parts(comm) == check_parts(comm.split([0] * size))
    assert comm.all_texts(f"rank {r} ü") == [f"rank {k} ü" for k in range(size)]
    assert comm.sum_counts([r, 2**40]) == [size * (size - 1) // 2, size * 2**40]
    comm.barrier()
    if size > 1:
        after, before = (r + 1) % size, (r - 1) % size
        sent = [comm.send(np.arange(k + r, dtype=np.float32), after, tag=k) for k in (2, 0, 1)]
        room = np.full(size + 5, -1, np.float32)
        assert comm.receive(room, before, tag=1).wait() == 4 * (1 + before)
        assert room[: 1 + before].tolist() == list(range(1 + before))
        assert comm.take(before, tag=2).view(np.float32).tolist() == list(range(2 + before))
        assert comm.take(before, tag=0).nbytes == 4 * before
        assert [request.wait() for request in sent] == [4 * (k + r) for k in (2, 0, 1)]
        large = np.arange(300_000, dtype=np.float32)
        request = comm.send(large, after, tag=7)
        got = np.empty_like(large)
        comm.receive(got, before, tag=7).wait()
        request.wait()
        assert np.array_equal(got, large)
        assert comm.traffic.bytes_sent >= large.nbytes
        assert comm.traffic.bytes_received >= large.nbytes
    halves = comm.split([k % 2 for k in range(size)])
    assert (halves.rank, halves.size) == (r // 2, (size + 1 - r % 2) // 2)
    assert [int(p[0]) for p in halves.all_gather(np.array([r]))] == list(range(r % 2, size, 2))
    assert halves.traffic is comm.traffic or size == 1
    check_exchange(comm)


def check_parts(comm: Communicator) -> tuple[int, int, int]:
    """Returns bytes sent and received, and messages."""
    before, r, ranks = comm.traffic.copy(), comm.rank, range(comm.size)
    for dtype in (np.uint8, np.int64, np.float32):
        parts = comm.gather_parts(np.full(3 * r + 1, r, dtype), "numbers", np.empty)
        assert [p.tolist() for p in parts] == [[k] * (3 * k + 1) for k in ranks]
    found = comm.traffic.since(before)
    return found.bytes_sent, found.bytes_received, found.n_messages


def check_exchange(comm: Communicator) -> None:
    exchange, r, ranks = PythonExchange(comm), comm.rank, range(comm.size)
    total, before = np.empty((2, 3), np.int32)
    exchange.scan(np.array([comm.rank, 7, comm.rank**2], np.int32), total, before)
    for found, of in ((total, range(comm.size)), (before, range(comm.rank))):
        assert found.tolist() == [sum(of), 7 * len(of), sum(k**2 for k in of)]
    for slot in (0, 1):
        exchange.start(slot, [np.full(slot + to, 16 * r + to, np.uint8) for to in ranks], None, np.empty)
    for slot in (1, 0):
        for k, part in enumerate(exchange.finish(slot)):
            assert part.tolist() == ([] if k == r else [16 * k + r] * (slot + r))
    before = comm.traffic.copy()  # of known sizes, of which 0 is not sent
    for n in (0, 3):
        exchange.start(
            LAYERS, [np.full(n * (r + to), r, np.uint8) for to in ranks], [n * (k + r) for k in ranks], np.empty
        )
        assert [p.tolist() for p in exchange.finish(LAYERS)] == [[k] * (n * (k + r) if k != r else 0) for k in ranks]
    assert comm.traffic.since(before).n_messages == comm.size - 1
    parts = exchange.gather(np.full(r, r, np.uint8), "numbers", np.empty)
    assert [p.tolist() for p in parts] == [[k] * k for k in ranks]


def test_scans_take_a_logarithm_of_messages():
    def messages(comm: Communicator) -> int:
        comm.scan(np.arange(5, dtype=np.int32))
        return comm.traffic.n_messages

    assert [max(simulate(n, messages)) for n in (1, 2, 3, 4, 7, 8, 16)] == [0, 1, 2, 2, 3, 3, 4]


def test_a_message_of_a_later_exchange_waits_for_it():
    """Rank 1 has all it needs for its second exchange before rank 2 has begun its first."""

    def work(comm: Communicator) -> list[list[int]]:
        exchange, found = PythonExchange(comm), []
        if comm.rank == 2:
            comm.take(1, 5)
        for step in range(2):
            if comm.rank == 1 and step == 0:  # both of its messages are there before rank 2's first
                for to in (0, 2):
                    comm.send(np.array([10], np.uint8), to, 0)
                    comm.send(np.array([11], np.uint8), to, 0)
                comm.send(np.empty(0, np.uint8), 2, 5)
            elif comm.rank != 1:
                exchange.start(0, [np.array([10 * comm.rank + step], np.uint8)] * 3, None, np.empty)
            if comm.rank != 1:
                found.append([int(part[0]) if part.size else -1 for part in exchange.finish(0)])
        return found

    assert simulate(3, work) == [[[-1, 10, 20], [-1, 11, 21]], [], [[0, 10, -1], [1, 11, -1]]]


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 5])
def test_ranks_as_threads(n_ranks):
    assert simulate(n_ranks, lambda comm: (check_communicator(comm), comm.rank)[1]) == list(range(n_ranks))


def test_one_rank_alone():
    check_communicator(Local())
    with pytest.raises(IndexError, match="to rank 1 of 1"):
        Local().send(np.zeros(1), 1)


def test_a_rank_that_fails_wakes_the_others():
    def fail(comm: Communicator) -> None:
        if comm.rank == 1:
            raise ValueError("of rank 1")
        comm.take(1)

    with pytest.raises(ValueError, match="of rank 1"):
        simulate(3, fail)


def test_waiting_for_a_failed_rank_says_so():
    def fail(comm: Communicator) -> None:
        if comm.rank == 1:
            raise ValueError
        with pytest.raises(BrokenGroupError, match="rank 0: another rank failed"):
            comm.take(1)

    with pytest.raises(ValueError):  # noqa: PT011 - any: it is ours
        simulate(2, fail)


def test_too_small_an_array_is_an_error():
    def run(comm: Communicator) -> None:
        if comm.rank:
            comm.send(np.zeros(9, np.uint8), 0)
        else:
            comm.receive(np.zeros(8, np.uint8), 1).wait()

    with pytest.raises(ValueError, match="9 bytes arrived for an array of 8"):
        simulate(2, run)


@pytest.mark.parametrize(
    ("size", "asked", "grid"),
    [(1, (0, 0), (1, 1)), (4, (0, 0), (4, 1)), (4, (0, 2), (2, 2)), (6, (2, 0), (2, 3)), (3, (1, 3), (1, 3))],
)
def test_grid(size, asked, grid):
    def place(comm: Communicator) -> tuple[int, int, int, int]:
        made = make_grid(comm, *asked)
        assert made.is_first == (comm.rank == 0)
        return made.n_replicas, made.n_shards, made.replicas.rank, made.shards.rank

    assert simulate(size, place) == [(*grid, r // grid[1], r % grid[1]) for r in range(size)]


@pytest.mark.parametrize("asked", [(3, 0), (0, 3), (2, 1), (5, 1), (4, 4)])
def test_a_grid_that_is_not_the_ranks(asked):
    with pytest.raises(ConfigError, match="parallel: .* do not make 4 ranks; set parallel.replicas .* or start"):
        simulate(4, lambda comm: make_grid(comm, *asked))


def test_without_mpi4py(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(MissingDependencyError, match="running on several ranks .* pip install 'sparsesnn\\[mpi\\]'"):
        mpi_world()
