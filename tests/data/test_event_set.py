from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparsesnn.datasets import Augment, EventSet
from sparsesnn.errors import ConfigError, DataError
from sparsesnn.spikes import SpikeBatch


def make(lists: list[list[list[int]]], n_neurons: int, n_steps: int) -> EventSet:
    """From `lists[s][t]`."""
    events = [
        (
            np.array([t + 0.5 for t, row in enumerate(sample) for _ in row]),
            np.array([u for row in sample for u in row], int),
        )
        for sample in lists
    ]
    return EventSet.from_events(events, [0] * len(lists), n_units=n_neurons, n_steps=n_steps, dt_us=1.0, n_classes=1)


def assert_same(batch: SpikeBatch, other: SpikeBatch) -> None:
    assert (batch.n_steps, batch.n_samples, batch.n_neurons) == (other.n_steps, other.n_samples, other.n_neurons)
    for name in ("offsets", "ids", "n_spikes"):
        a, b = getattr(batch, name), getattr(other, name)
        assert a.dtype == b.dtype
        assert torch.equal(a, b), name


@given(data=st.data(), n_neurons=st.integers(1, 9), n_steps=st.integers(1, 5), n_samples=st.integers(1, 6))
def test_batch_equals_lists_sample_by_sample(data, n_neurons, n_steps, n_samples):
    row = st.sets(st.integers(0, n_neurons - 1)).map(sorted)
    lists = data.draw(
        st.lists(st.lists(row, min_size=n_steps, max_size=n_steps), min_size=n_samples, max_size=n_samples)
    )
    chosen = data.draw(st.lists(st.integers(0, n_samples - 1), min_size=1, max_size=8))
    event_set = make(lists, n_neurons, n_steps)
    batch = event_set.batch(chosen).validate()
    assert_same(batch, SpikeBatch.from_lists([lists[s] for s in chosen], n_neurons))


def test_batch_of_all_odd_shapes():
    rng = np.random.default_rng(0)
    dense = rng.random((5, 7, 33)) < 0.2
    dense[2] = False  # a sample without spikes
    dense[3] = True  # full lists
    lists = [[np.flatnonzero(row).tolist() for row in sample] for sample in dense]
    event_set = make(lists, 33, 7)
    batch = event_set.batch([4, 2, 3]).validate()
    np.testing.assert_array_equal(batch.to_dense().numpy(), dense[[4, 2, 3]].transpose(1, 0, 2))
    assert event_set.activity() == pytest.approx(dense.mean())
    assert len(event_set) == 5
    assert event_set.n_steps == 7


def test_empty_batch():
    event_set = make([[[0], [1]]], 2, 2)
    for augment in (None, Augment(time_jitter=1.0)):
        batch = event_set.batch([], rng=(0, 0), augment=augment).validate()
        assert batch.n_samples == 0
        assert batch.ids.numel() == 0


def test_large_populations_use_int32():
    event_set = make([[[0, 70_000], []], [[], [65_536]]], 70_001, 2)
    for augment in (None, Augment(event_drop=1e-12)):
        batch = event_set.batch([1, 0], rng=(0, 0), augment=augment).validate()
        assert batch.ids.dtype == torch.int32
        assert batch.ids.tolist() == [0, 70_000, 65_536]


def test_augment_that_is_off_changes_nothing_and_needs_no_rng():
    event_set = make([[[0, 2], [1]]], 3, 2)
    assert_same(event_set.batch([0], augment=Augment()), event_set.batch([0]))
    with pytest.raises(ConfigError, match=r"augment is given but rng is not; give rng=\(seed, epoch\)"):
        event_set.batch([0], augment=Augment(event_drop=0.5))


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([0, 2], "run from 0 to 2; allowed: 0 to 1"),
        ([-1], "run from -1 to -1"),
        ([[0, 1]], r"int64\[1, 2\]"),
        ([0.0], r"float64\[1\]"),
        ([True], r"bool\[1\]"),
    ],
)
def test_numbers_that_no_sample_has_are_errors(indices, message):
    event_set = make([[[0]], [[1]]], 2, 1)
    with pytest.raises(IndexError, match=message):
        event_set.batch(indices)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": np.array([0, 3, 1], np.uint16)}, "ids run from 0 to 3; allowed: 0 to 2"),
        ({"ids": np.array([0, 1], np.uint16)}, "lists hold 3 spikes but there are 2 ids"),
        ({"ids": np.array([0, 1, 2], np.int64)}, r"ids are int64\[3\]; for 3 neurons give flat uint16"),
        ({"n_spikes": np.array([[2, 1]], np.int64)}, r"n_spikes is int64\[1, 2\]"),
        ({"n_spikes": np.array([2, 1], np.uint8)}, r"n_spikes is uint8\[2\]"),
        ({"n_spikes": np.array([[4, -1]], np.int32)}, "a list has a negative length"),
        ({"labels": np.array([0, 1])}, r"labels is int64\[2\]; for 1 sample give int64\[1\]"),
        ({"labels": np.array([2])}, "labels run from 2 to 2; allowed: 0 to 1"),
        ({"groups": {"speakers": np.array([1.0])}}, r"speakers is float64\[1\]"),
    ],
)
def test_arrays_that_do_not_fit_together_are_errors(change, message):
    fields = {
        "ids": np.array([0, 2, 1], np.uint16),
        "n_spikes": np.array([[2, 1]], np.uint8),
        "labels": np.array([1]),
        "n_neurons": 3,
        "n_classes": 2,
    }
    EventSet(**fields)
    with pytest.raises(DataError, match=message):
        EventSet(**{**fields, **change})


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0.0, 1.5], r"labels: is float64, such as .*0\.0.*whole numbers"),
        (np.array([1, None]), "labels: holds a int, 1"),
    ],
)
def test_labels_that_are_neither_numbers_nor_texts_are_errors(labels, message):
    events = [([1.0, 2.0], [0, 1])] * 2
    with pytest.raises(DataError, match=f"from_events: {message}"):
        EventSet.from_events(events, labels, n_units=3, n_steps=4, dt_us=1.0)
    with pytest.raises(DataError, match=message.replace("labels:", r"groups\['who'\]:")):
        EventSet.from_events(events, [0, 1], n_units=3, n_steps=4, dt_us=1.0, groups={"who": labels})
    numbers = np.unique(["yes", "no"], return_inverse=True)[1]
    for good in (numbers, numbers.astype(bool), numbers.tolist()):
        assert EventSet.from_events(events, good, n_units=3, n_steps=4, dt_us=1.0).labels.tolist() == [1, 0]
    assert len(EventSet.from_events([], [], n_units=3, n_steps=4, dt_us=1.0)) == 0


def test_is_frozen():
    event_set = make([[[0]]], 1, 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        event_set.n_lost = 3
