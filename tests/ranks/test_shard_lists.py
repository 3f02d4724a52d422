"""Lists of a population from those of its shards, and values back to the owners of the neurons (host/src/ranks/shard_lists.cpp)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sparsesnn import _core
from sparsesnn.errors import ShapeError, SpikeListError


def lists_of(kinds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Offsets, ids and numbers of spikes of lists from [lists, N]: 2 for neurons that fired, 1 for those that nearly did."""
    ids = [np.concatenate([np.flatnonzero(row == 2), np.flatnonzero(row == 1)]) for row in kinds]
    offsets = np.cumsum([0, *(len(one) for one in ids)])
    return offsets, np.concatenate(ids), (kinds == 2).sum(1).astype(np.int32)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("first", [
    [0, 0, 310, 310, 640], [0, 300, 512, 640], [*range(0, 640, 16), 640], [*range(640), 640]
])  # fmt: skip
@pytest.mark.parametrize(("fired", "near"), [(0.0, 0.0), (0.03, 0.02), (0.6, 0.4)])
def test_merged_and_split(first: list[int], fired: float, near: float, wide: bool) -> None:
    """Few ranks with long runs of ids and many with short ones; more lists than are merged at a time."""
    if wide:
        first = [*first, 70_001]
    rng = np.random.default_rng(len(first))
    drawn = rng.random((300 if not wide else 9, first[-1]))
    kinds = np.where(drawn < fired, 2, np.where(drawn < fired + near, 1, 0))
    messages = []
    for begin, end in itertools.pairwise(first):
        offsets, ids, n_spikes = lists_of(kinds[:, begin:end])
        own = _core.Lists(offsets, ids.astype(np.uint16 if end - begin <= 65536 else np.int32), n_spikes)
        messages.append(_core.shard_message(own, end - begin, None) if end > begin else np.empty(0, np.uint8))
    offsets, ids, n_spikes, _ = _core.merge_messages(messages, len(kinds), False, first)
    for found, expected in zip((offsets, ids, n_spikes), lists_of(kinds), strict=True):
        assert np.array_equal(found, expected)
    values = rng.random((3, len(ids)), dtype=np.float32)
    parts = _core.split_values(_core.Lists(offsets, ids, n_spikes), values, first)
    assert len(parts) == len(first) - 1
    for part, begin, end in zip(parts, first, first[1:], strict=False):
        assert np.array_equal(np.ravel(part), np.ravel(values[:, (ids >= begin) & (ids < end)]))


def test_messages_of_shards_must_fit():
    lists = _core.Lists(np.array([0, 2, 2]), np.array([3, 1], np.uint16), np.array([1, 0], np.int32))
    message = _core.shard_message(lists, 8, None)
    offsets, ids, n_spikes, dropped = _core.merge_messages([message, message], 2, False, [0, 8, 16])
    assert (offsets.tolist(), ids.tolist(), n_spikes.tolist(), dropped) == ([0, 4, 4], [3, 11, 1, 9], [2, 0], None)
    with pytest.raises(ShapeError, match="a message a rank, and first neurons that ascend from 0"):
        _core.merge_messages([message, message], 2, False, [0, 16])
    with pytest.raises(ShapeError, match="first neurons that ascend from 0"):
        _core.merge_messages([message, message], 2, False, [0, 16, 8])
    for wrong in (message[:-1].copy(), message[:7].copy(), np.full_like(message, 255)):
        with pytest.raises(
            SpikeListError, match=rf"rank 1 sent {wrong.size} bytes, which are not 2 lists of 8 neurons"
        ):
            _core.merge_messages([message, wrong], 2, False, [0, 8, 16])
    with pytest.raises(ShapeError, match="shard_message: dropped has other lists"):
        _core.shard_message(lists, 8, np.zeros(3, np.int32))
    short = _core.Lists(np.array([0, 1, 1]), np.array([3, 1], np.uint16), np.array([1, 0], np.int32))
    with pytest.raises(SpikeListError, match="split_values: offsets or counts do not fit the ids"):
        _core.split_values(short, np.zeros((1, 2), np.float32), [0, 8])


@pytest.mark.parametrize(("n_listed", "expected"), [(0, 0), (3, 3), (17, 17), (18, 20), (20, 20)])
@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_rows_that_may_differ_from_zero(n_listed, expected, dtype):
    """Which of 20 neurons stand in a list; nine in ten count as all of them."""
    ids = np.arange(n_listed, dtype=dtype)
    lists = _core.Lists(np.array([0, n_listed]), ids, np.array([n_listed], np.int32))
    assert np.array_equal(np.asarray(lists.perhaps_listed(20)), np.arange(20) < expected)
    if n_listed:
        with pytest.raises(SpikeListError, match="perhaps_listed: an id is too large"):
            lists.perhaps_listed(n_listed - 1)


@pytest.mark.parametrize(("n_steps", "n_samples", "order"), [
    (9, 19, (0, 64, 1)), (9, 19, (2, 72, 3)), (9, 3, (1, 8, 1)), (300, 9, (3, 1024, 1)), (2, 5, (4, 16, 1)), (0, 0, (0, 8, 1))
])  # fmt: skip
@pytest.mark.parametrize("first", [[0, 0, 31, 31, 64], [0, 20, 40, 64]])
def test_sorted_by_their_owners(first: list[int], n_steps: int, n_samples: int, order: tuple[int, int, int]) -> None:
    """From the slots of whole lists to the order of events, and from there to the owners: the values of those that arrive."""
    rng = np.random.default_rng(n_steps)
    kinds = rng.choice(3, (n_steps * n_samples, first[-1]), p=[0.7, 0.2, 0.1])
    messages, events, alone = [], [], []
    for begin, end in itertools.pairwise(first):
        if begin == end:
            messages.append(np.empty(0, np.uint8))
            alone.append(messages[-1])
            continue
        offsets, ids, n_spikes = (
            lists_of(kinds[:, begin:end]) if n_steps else (np.zeros(1, np.int64), np.empty(0), np.zeros(0, np.int32))
        )
        own = _core.Lists(offsets, ids.astype(np.uint16), n_spikes)
        events.append((begin, end, len(ids), _core.OwnEvents(own, end - begin, n_samples, order)))
        alone.append(_core.shard_message(own, end - begin, None))
        messages.append(_core.shard_message(own, end - begin, None, events[-1][3]))
    found = _core.SortedLists(messages, first, n_steps, n_samples, order)
    rest = [message[end:] for message, end in zip(messages, found.ends, strict=True)]
    for one, expected in zip(rest, alone, strict=True):
        assert np.array_equal(one, expected)
    offsets, ids, n_spikes, _ = _core.merge_messages(rest, len(kinds), False, first)
    values = rng.random((2, len(ids)), dtype=np.float32)
    whole = _core.Lists(offsets, ids, n_spikes)
    by_event = np.asarray(found.from_slots(whole, values))
    step = np.repeat(np.arange(len(kinds)) // max(1, n_samples), np.diff(offsets))
    arrived = np.where(step + order[0] < n_steps, values, 0)
    owned = {(begin, end): (n, own) for begin, end, n, own in events}
    for (begin, end), a, b in zip(itertools.pairwise(first), found.edges, found.edges[1:], strict=False):
        n, own = owned.get((begin, end), (0, ()))
        assert len(own) == b - a
        for row in range(2 if n else 0):
            slots = own.to_slots(np.ascontiguousarray(by_event[row, a:b]), n)
            assert np.array_equal(slots, arrived[row, (ids >= begin) & (ids < end)])


def test_sorted_messages_must_fit() -> None:
    order = (0, 16, 1)
    lists = _core.Lists(np.array([0, 2, 2]), np.array([3, 1], np.uint16), np.array([1, 0], np.int32))
    events = _core.OwnEvents(lists, 8, 2, order)
    message = np.asarray(_core.shard_message(lists, 8, None, events))
    found = _core.SortedLists([message, message], [0, 8, 16], 1, 2, order)
    for wrong in (message[: found.ends[0] - 1].copy(), message[:3].copy(), np.full_like(message, 255)):
        with pytest.raises(
            SpikeListError, match=rf"rank 1 sent {wrong.size} bytes, which do not begin with the events"
        ):
            _core.SortedLists([message, wrong], [0, 8, 16], 1, 2, order)
    rows = message.copy()
    rows[16:18] = 255  # behind 16 counts of a byte
    with pytest.raises(SpikeListError, match="rows outside every chunk"):
        _core.SortedLists([message, rows], [0, 8, 16], 1, 2, order)
    for wrong in ((-1, 16, 1), (0, 7, 1), (0, 16, 0)):
        with pytest.raises(ShapeError, match="order: give a delay"):
            _core.OwnEvents(lists, 8, 2, wrong)
    with pytest.raises(ShapeError, match="2 lists are .*steps of 4 samples"):
        _core.OwnEvents(lists, 8, 4, order)
    with pytest.raises(SpikeListError, match="OwnEvents"):
        _core.OwnEvents(lists, 2, 2, order)
    with pytest.raises(ShapeError, match="a value for each event"):
        events.to_slots(np.zeros(1, np.float32), 2)
    with pytest.raises(ShapeError, match="the lists that were sorted"):
        found.from_slots(
            _core.Lists(np.array([0]), np.empty(0, np.uint16), np.empty(0, np.int32)), np.zeros((1, 0), np.float32)
        )
