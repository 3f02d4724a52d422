"""Lists of a population from those of its shards, and values back to the owners of the neurons (host/src/shard_lists.cpp)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sparsesnn import _core
from sparsesnn.errors import ShapeError, SpikeListError


def lists_of(kinds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Offsets, ids and numbers of spikes of lists from [lists, N]: 2 where a neuron fired, 1 where it nearly did."""
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
