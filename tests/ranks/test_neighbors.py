"""Parts that ranks of one host read where they lie: here the ranks are threads, which share one process's memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from sparsesnn import _core
from sparsesnn.errors import ShapeError
from sparsesnn.host import shared_memory
from sparsesnn.host.comm.base import room

pytestmark = pytest.mark.skipif(_core.shared_memory() is None, reason="this system has no files in memory")

MEMORY = np.frombuffer(shared_memory._open(shared_memory._own_file()), np.uint8)


def shared(values: Any, dtype: Any = np.float32) -> np.ndarray:
    array = np.asarray(values, dtype)
    found = room(array.shape, dtype, shared=True)
    found[:] = array
    return found


def box() -> np.ndarray:
    return shared(np.zeros(_core.Neighbors.box_bytes() // 4))


def on_ranks(n_ranks: int, run: Callable[[int, _core.Neighbors], Any]) -> list[Any]:
    """What `run` returns on every rank."""
    boxes = [box() for _ in range(n_ranks)]
    places = [_core.shared_place(one) for one in boxes]

    # Made here, so that all stay until all ranks have ended, as others read what one gave last.
    neighbors = [_core.Neighbors([MEMORY] * n_ranks, places, r, True) for r in range(n_ranks)]
    with ThreadPoolExecutor(n_ranks) as threads:
        return list(threads.map(run, range(n_ranks), neighbors))


@pytest.mark.parametrize("n_ranks", [1, 2, 5])
@pytest.mark.parametrize("n_parts", [0, 1, 3, 90])  # numbers of 90 parts are told one part after the other
def test_every_part_arrives(n_ranks, n_parts):
    def part(k: int, source: int, to: int) -> np.ndarray:
        """Of sizes that differ, none among them; some in shared memory."""
        values = np.arange((k + 2 * source + 3 * to) % 7) + 100 * source + to
        dtype = (np.float32, np.int64, np.uint8)[k % 3]
        return shared(values, dtype) if (k + to) % 2 else values.astype(dtype)

    def run(r: int, neighbors: _core.Neighbors) -> tuple[Any, ...]:
        for _ in range(3):
            got = neighbors.swap([[part(k, r, to) for to in range(n_ranks)] for k in range(n_parts)])
            for k, of_ranks in enumerate(got):
                for source, one in enumerate(of_ranks):
                    wanted = part(k, source, r)
                    assert one.view(wanted.dtype).tolist() == wanted.tolist()
        return neighbors.travelled()

    travelled = on_ranks(n_ranks, run)
    for r, (sent, received, n_messages, seconds) in enumerate(travelled):
        others = [to for to in range(n_ranks) if to != r]
        given = [part(k, r, to).nbytes for k in range(n_parts) for to in others]
        assert (sent, n_messages) == (3 * sum(given), 3 * sum(n > 0 for n in given))
        assert received == 3 * sum(part(k, source, r).nbytes for k in range(n_parts) for source in others)
        assert seconds > 0


def test_parts_in_shared_memory_are_read_in_place_and_others_copied_once():
    all_are_here = threading.Barrier(2)

    def run(r: int, neighbors: _core.Neighbors) -> None:
        in_place, elsewhere = shared([r, r]), np.full(50_000, r, np.float32)
        got = neighbors.swap([[in_place] * 2, [elsewhere] * 2])
        other = 1 - r
        all_are_here.wait()
        in_place += 10
        elsewhere += 10
        all_are_here.wait()
        assert got[0][other].view(np.float32).tolist() == [10 + other] * 2
        assert set(got[1][other].view(np.float32)) == {other}
        all_are_here.wait()
        neighbors.swap([])
        assert neighbors.travelled()[:3] == (200_008, 200_008, 2)

    on_ranks(2, run)


def test_what_is_lent_stays_until_all_have_read_it():
    all_are_here = threading.Barrier(2)

    def run(r: int, neighbors: _core.Neighbors) -> list[float]:
        read = []
        for k in range(20):
            got = neighbors.swap([[shared(np.full(3000, 100 * r + k))] * 2])[0][1 - r].view(np.float32)
            all_are_here.wait()
            shared(np.full(3000, -1))  # would take the place of a part that nobody holds
            all_are_here.wait()
            read += sorted(set(got))
        return read

    assert on_ranks(2, run) == [[100 + k for k in range(20)], list(range(20))]


def test_a_rank_that_waits_looks_after_its_messages():
    looked = threading.Event()

    def look() -> bool:
        looked.set()
        return False

    def run(r: int, neighbors: _core.Neighbors) -> None:
        if r:
            assert looked.wait(30)
        else:
            _core.look_meanwhile(look)
        neighbors.swap([])

    on_ranks(2, run)


def test_wrong_boxes_and_parts():
    place = _core.shared_place(own := box())
    for boxes, rank in (([place], 1), ([place, place], 0), ([MEMORY.size - 8], 0), ([place + 4], 0)):
        with pytest.raises(ShapeError, match="Neighbors: "):
            _core.Neighbors([MEMORY], boxes, rank, False)
    with pytest.raises(ShapeError, match="parts for 2 ranks, not 1"):
        _core.Neighbors([MEMORY], [place], 0, False).swap([[own, own]])
    behind = shared(np.full(64, 1 << 40), np.int64)  # a rank that has told what cannot be
    liar = box().view(np.uint8)
    liar[:] = np.resize(behind.view(np.uint8), liar.size)
    neighbors = _core.Neighbors([MEMORY] * 2, [place, _core.shared_place(liar.view(np.float32))], 0, False)
    with pytest.raises(ShapeError, match="rank 1 gave a part outside its memory"):
        neighbors.swap([[own, own]])
