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
    return EventSet.from_events(events, [0] * len(lists), n_neurons=n_neurons, n_steps=n_steps, dt_us=1.0, n_classes=1)


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
        ({"labels": np.array([0, 1])}, r"labels is int64\[2\]; for 1 sample of 2 steps give int64\[1\]"),
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
        (np.array([1, None]), "labels: holds a NoneType, None"),
    ],
)
def test_labels_that_are_neither_numbers_nor_texts_are_errors(labels, message):
    events = [([1.0, 2.0], [0, 1])] * 2
    with pytest.raises(DataError, match=f"from_events: {message}"):
        EventSet.from_events(events, labels, n_neurons=3, n_steps=4, dt_us=1.0)
    with pytest.raises(DataError, match=message.replace("labels:", r"groups\['who'\]:")):
        EventSet.from_events(events, [0, 1], n_neurons=3, n_steps=4, dt_us=1.0, groups={"who": labels})
    numbers = np.unique(["yes", "no"], return_inverse=True)[1]
    for good in (numbers, numbers.astype(bool), numbers.tolist()):
        assert EventSet.from_events(events, good, n_neurons=3, n_steps=4, dt_us=1.0).labels.tolist() == [1, 0]
    assert len(EventSet.from_events([], [], n_neurons=3, n_steps=4, dt_us=1.0)) == 0


EVENTS = [([1.0, 2.0], [0, 1]), ([1.5], [2])]
WINDOW = {"n_neurons": 3, "n_steps": 4, "dt_us": 1.0}


def test_a_list_of_classes_gives_texts_their_numbers():
    train = EventSet.from_events(EVENTS * 6, ["cat", "dog", "owl"] * 4, **WINDOW)
    assert (train.classes, train.labels[:3].tolist()) == (["cat", "dog", "owl"], [0, 1, 2])
    test = EventSet.from_events(EVENTS, ["owl", "dog"], classes=train.classes, **WINDOW)
    assert (test.labels.tolist(), test.n_classes, test.classes) == ([2, 1], 3, train.classes)
    for classes in (
        np.array(train.classes),
        tuple(train.classes),
        {"dog": 1, "owl": 2, "cat": 0},
        [b"cat", b"dog", b"owl"],
    ):
        assert EventSet.from_events(EVENTS, ["owl", "dog"], classes=classes, **WINDOW).labels.tolist() == [2, 1]
    described = EventSet.from_events(EVENTS, ["owl", "dog"], description={"classes": ["owl", "cat", "dog"]}, **WINDOW)
    assert (described.labels.tolist(), described.classes) == ([0, 2], ["owl", "cat", "dog"])
    free = EventSet.from_events(
        EVENTS, [2, 0], description={"classes": ["a", "b"], "group_names": {"x": ["y"]}}, **WINDOW
    )
    assert (free.labels.tolist(), free.n_classes, free.classes, free.group_names) == (
        [2, 0],
        3,
        ["a", "b"],
        {"x": ["y"]},
    )
    numbers = EventSet.from_events(EVENTS, [2, 1], classes=train.classes, **WINDOW)
    assert (numbers.labels.tolist(), numbers.n_classes) == ([2, 1], 3)
    assert EventSet.from_events(EVENTS, [30, 10], classes=[10, 20, 30], **WINDOW).labels.tolist() == [2, 0]
    assert EventSet.from_events([], [], classes=train.classes, **WINDOW).n_classes == 3


def test_a_list_of_members_gives_texts_of_groups_their_numbers():
    who = {"groups": {"speakers": ["eva", "ann"]}}
    names = {"speakers": ["eva", "bob", "ann"]}
    found = EventSet.from_events(EVENTS, [0, 1], **who, group_names=names, **WINDOW)
    assert (found.groups["speakers"].tolist(), found.group_names) == ([0, 2], names)
    again = EventSet.from_events(EVENTS, [0, 1], **who, description={"group_names": names}, **WINDOW)
    assert (again.groups["speakers"].tolist(), again.group_names) == ([0, 2], names)
    assert EventSet.from_events(EVENTS, [0, 1], **who, **WINDOW).group_names == {"speakers": ["ann", "eva"]}
    with pytest.raises(DataError, match=r"groups\['speakers'\]: holds 'eva', which group_names\['speakers'\] lacks"):
        EventSet.from_events(EVENTS, [0, 1], **who, group_names={"speakers": ["ann"]}, **WINDOW)
    with pytest.raises(DataError, match="group_names has 'who'; allowed: speakers"):
        EventSet.from_events(EVENTS, [0, 1], **who, group_names={"who": ["ann"]}, **WINDOW)


@pytest.mark.parametrize(
    ("labels", "classes", "message"),
    [
        (["cat", "dgo"], ["cat", "dog"], "holds 'dgo', which classes lacks; did you mean 'dog'. allowed: cat, dog"),
        (["cat", "dog"], [], "holds 'cat', which classes lacks; allowed: none"),
        ([0, 2], ["cat", "dog"], "run from 0 to 2; classes has 2 names, so 0 to 1"),
        (["cat", "dog"], "cat", "classes: is 'cat'; give a list"),
        (["cat", "dog"], {"cat", "dog"}, "classes: is .*; give a list"),
        (["cat", "dog"], ["cat", "dog", "cat"], "classes: holds 'cat' twice"),
        (["cat", "dog"], [0.5, 1.5], "classes: is .*; give a list of texts"),
    ],
)
def test_classes_that_do_not_go_with_the_labels_are_errors(labels, classes, message):
    with pytest.raises(DataError, match=f"from_events: labels: {message}"):
        EventSet.from_events(EVENTS, labels, classes=classes, **WINDOW)
    with pytest.raises(DataError, match="n_classes is 5, but classes has 2 names"):
        EventSet.from_events(EVENTS, ["cat", "dog"], classes=["cat", "dog"], n_classes=5, **WINDOW)


def test_other_texts_in_a_second_set_are_a_warning():
    first = EventSet.from_events(EVENTS, ["cat", "owl"], **WINDOW)
    EventSet.from_events(EVENTS, ["owl", "cat"], **WINDOW)  # the same texts
    EventSet.from_events(EVENTS, [1, 0], **WINDOW)
    with pytest.warns(
        UserWarning, match="numbered in sorted order: dog, owl.*earlier set had cat, owl.*classes="
    ) as caught:
        other = EventSet.from_events(EVENTS, ["owl", "dog"], **WINDOW)
    assert caught[0].filename == __file__
    assert first.labels[1] == other.labels[0] == 1
    EventSet.from_events(EVENTS, ["owl", "dog"], **WINDOW)  # once
    EventSet.from_events(EVENTS, ["yes", "no"], classes=["yes", "no"], **WINDOW)
    with pytest.warns(UserWarning, match="numbered in sorted order: no, yes.*earlier set had yes, no"):
        EventSet.from_events(EVENTS, ["yes", "no"], **WINDOW)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            np.zeros((2, 4), int),
            r"has the shape \[2, 4\]; give one label for each sample, \[2\]; labels of steps",
        ),
        ([[0, 1], [1]], "has lists of different lengths; give one label for each sample"),
        (np.array([["a", "b"], ["b", "a"]]), r"has the shape \[2, 2\]; give one label for each sample"),
        (
            np.eye(2),
            r"has the shape \[2, 2\] with a single 1 in each row; for one-hot labels give labels.argmax\(axis=1\)",
        ),
        ([[0], [1]], r"has the shape \[2, 1\]; give a flat array, labels.reshape\(-1\)"),
        (
            [0, 0, 1],
            "has 3 entries for 2 samples, as many as there are events in total; give one label for each sample",
        ),
        ([0] * 8, "has 8 entries for 2 samples, as many as there are steps in total; give one label for each sample"),
        ([0] * 5, "has 5 entries for 2 samples; give one label for each sample"),
    ],
)
def test_anything_but_one_label_for_each_sample_is_an_error(labels, message):
    with pytest.raises(DataError, match=f"from_events: labels: {message}"):
        EventSet.from_events(EVENTS, labels, **WINDOW)


@pytest.mark.parametrize(
    "number", [np.int64, np.uint8, lambda n: np.array(n), torch.tensor, lambda n: np.array(n, object)]
)
def test_whole_numbers_of_other_libraries_are_numbers(number):
    plain = EventSet.from_events(EVENTS, [1, 0], n_neurons=3, n_steps=4, dt_us=2, pool=2, n_classes=2)
    sizes = {
        "n_neurons": number(3),
        "n_steps": number(4),
        "dt_us": number(2),
        "pool": number(2),
        "n_classes": number(2),
    }
    found = EventSet.from_events(EVENTS, [number(1), number(0)], **sizes)
    for name in ("n_neurons", "n_classes", "n_steps", "dt_us"):
        assert getattr(found, name) == getattr(plain, name)
        assert type(getattr(found, name)) is type(getattr(plain, name)), name
    assert_same(found.batch([number(0), number(1)]), plain.batch([0, 1]))
    assert dataclasses.replace(plain, n_neurons=number(2), n_classes=number(2), n_lost=number(0)).n_neurons == 2
    camera = dataclasses.replace(plain, description={"sensor": [number(2), number(1), number(1)]})
    assert camera.sensor is not None
    assert camera.sensor.entry() == [2, 1, 1]


@pytest.mark.parametrize("wrong", [3.0, np.float64(3), np.array([3]), True, np.bool_(True), "3", None, 0])
def test_what_is_no_whole_number_is_named(wrong):
    with pytest.raises((ConfigError, DataError), match="n_steps is"):
        EventSet.from_events(EVENTS, [1, 0], n_steps=wrong, dt_us=1.0)
    if wrong is not None:
        with pytest.raises(ConfigError, match="n_neurons is"):
            EventSet.from_events(EVENTS, [1, 0], n_neurons=wrong, n_steps=4, dt_us=1.0)
    with pytest.raises(DataError, match="n_neurons is"):
        dataclasses.replace(make([[[0]]], 1, 1), n_neurons=wrong)


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["b", "a"], object),
        np.array([b"b", "a"], object),
        np.array(["b", "a"], np.dtypes.StringDType()) if hasattr(np.dtypes, "StringDType") else ["b", "a"],
        np.array(["b", "a"], "S1"),
        np.array([1, 0], object),
        np.array([np.int64(1), 0], object),
        torch.tensor([1, 0]),
    ],
    ids=lambda labels: f"{type(labels).__name__} of {labels.dtype}",
)
def test_labels_and_events_as_objects_are_read(labels):
    objects = [(np.array(t, object), np.array(unit, object)) for t, unit in EVENTS]
    found = EventSet.from_events(objects, labels, groups={"who": labels}, **WINDOW)
    assert (found.labels.tolist(), found.groups["who"].tolist()) == ([1, 0], [1, 0])
    assert_same(found.batch([0, 1]), EventSet.from_events(EVENTS, [1, 0], **WINDOW).batch(np.array([0, 1], object)))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array(["a", 1], object), "holds texts and numbers, such as 'a' and 1"),
        (np.array([1, None], object), "holds a NoneType, None"),
        (np.array(["a", None], object), "holds a NoneType, None"),
        (np.array([True, 2], object), "holds a bool, True"),
        (np.array([1 << 70, 0], object), "holds 1180591620717411303424, which int64"),
        (np.array([0.5, 1], object), "is float64, such as .*0.5"),
    ],
)
def test_objects_that_are_no_labels_are_named(labels, message):
    with pytest.raises(DataError, match=f"labels: {message}"):
        EventSet.from_events(EVENTS, labels, **WINDOW)


def test_the_former_name_of_n_neurons_is_accepted():
    with pytest.warns(DeprecationWarning, match="EventSet.from_events: n_units is now called n_neurons") as caught:
        found = EventSet.from_events(EVENTS, [0, 1], n_units=7, n_steps=4, dt_us=1.0)
    assert (caught[0].filename, found.n_neurons) == (__file__, 7)
    with pytest.raises(TypeError, match="n_neurons is 3, and n_units, its former name, 7; leave n_units out"):
        EventSet.from_events(EVENTS, [0, 1], n_units=7, **WINDOW)


def test_units_of_minus_one_look_like_padding():
    with pytest.raises(DataError, match=r"units such as -1 .*-1 looks like padding: remove it first, .*unit >= 0"):
        EventSet.from_events([([1.0, -1.0], [0, -1])], [0], **WINDOW)


def test_is_frozen():
    event_set = make([[[0]]], 1, 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        event_set.n_lost = 3
