"""Batches made by the engine equal those of the specification, `EventSet.batch`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparsesnn import _core
from sparsesnn.datasets import Augment, EventSet
from sparsesnn.datasets.sensor import Sensor
from sparsesnn.errors import DataError, ShapeError
from sparsesnn.host.batches import Batches


def make(n_events, *, n_steps, n_neurons, sensor=None, seed=0, duplicates="binary") -> EventSet:
    rng = np.random.default_rng(seed)
    events = [(rng.uniform(0, n_steps, n), rng.integers(0, n_neurons, n)) for n in n_events]
    window = {"n_neurons": n_neurons, "n_steps": n_steps, "dt_us": 1.0, "duplicates": duplicates}
    made = EventSet.from_events(events, np.arange(len(events)) % 4, **window, n_classes=4)
    return replace(made, description={"sensor": sensor.entry()} if sensor else {})


CAMERA = Sensor(7, 5, 2)
SETS = {
    "channels": make((150, 0, 1, 80, 200, 33), n_steps=23, n_neurons=37),
    "camera": make((150, 0, 1, 80, 200, 33), n_steps=23, n_neurons=CAMERA.n_neurons, sensor=CAMERA),
    "counts": make((150, 0, 90), n_steps=23, n_neurons=7, duplicates="count"),
    "counts up to 2": make((150, 0, 90), n_steps=23, n_neurons=7, duplicates="count:2"),
    "camera counts": make((400, 0, 1), n_steps=3, n_neurons=CAMERA.n_neurons, sensor=CAMERA, duplicates="count"),
    "large counts": make((60_000, 90, 700), n_steps=1, n_neurons=65, duplicates="count"),  # values need uint16
    "largest counts": make((70_000, 2), n_steps=1, n_neurons=1, duplicates="count"),  # int32
    "counts far apart": make((500, 3, 0), n_steps=900, n_neurons=3000, duplicates="count"),  # sorted, not tallied
    "one": make((1, 3), n_steps=1, n_neurons=1),
    "words": make((500, 700), n_steps=3, n_neurons=128),  # a whole number of words of marks
    "long lists": make((60_000, 90), n_steps=2, n_neurons=1000),  # lengths need uint16
    "wide": make((300, 100), n_steps=4, n_neurons=70_001),  # ids need int32, and few spikes have many cells
    "far apart": make((20, 3, 0), n_steps=900, n_neurons=3000),  # sorted, not marked
}


def assert_same(spikes, wanted) -> None:
    spikes.validate()
    assert spikes.graded == wanted.graded == (wanted.values is not None)
    for name in ("offsets", "ids", "n_spikes", *(["values"] if wanted.graded else [])):
        one, other = getattr(spikes, name), getattr(wanted, name)
        assert one.dtype == other.dtype
        assert torch.equal(one, other), name
    assert (spikes.n_steps, spikes.n_samples, spikes.n_neurons) == (wanted.n_steps, wanted.n_samples, wanted.n_neurons)


@st.composite
def cases(draw):
    name = draw(st.sampled_from(sorted(SETS)))
    event_set = SETS[name]
    chosen = draw(st.lists(st.integers(0, len(event_set) - 1), max_size=7))
    pick = lambda *values: draw(st.sampled_from((0, *values)))  # noqa: E731
    common = {
        "time_jitter": pick(0.7, 30.0),
        "time_shift": pick(5),
        "time_stretch": pick(0.1, 0.9),
        "time_crop": pick(0.3, 0.99),
        "event_drop": pick(0.2, 1.0),
        "mix": pick(0.5, 1.0),
        "blend": pick(0.5, 1.0),
        "time_mask": pick(0.4, 1.0),
    }
    if event_set.sensor:
        own = {"spatial_shift": pick(2), "flip": pick(0.5, 1.0), "rotation": pick(1, 30, 180)}
    else:
        own = {"channel_shift": pick(4), "channel_jitter": pick(0.4, 9.0), "channel_mask": pick(3, 10**6)}
    partners = draw(st.lists(st.integers(0, len(event_set) - 1), min_size=1, max_size=4))
    return (
        event_set,
        chosen,
        Augment(**common, **own),
        partners,
        draw(st.integers(0, 2**63 - 1)),
        draw(st.integers(0, 9)),
    )


@given(cases())
def test_the_engine_makes_the_batches_of_the_specification(case):
    event_set, chosen, augment, partners, seed, epoch = case
    chosen, partners = np.array(chosen, np.int64), np.array(partners, np.int64)
    source = Batches(event_set, seed=seed, augment=augment, partners=partners)
    spikes, labels = source.epoch(epoch)(chosen)
    assert_same(spikes, event_set.batch(chosen, (seed, epoch), augment, partners))
    if augment.mix:
        assert np.array_equal(labels.numpy(), event_set.shares(chosen, (seed, epoch), augment, partners))
    else:
        assert labels.tolist() == event_set.labels[chosen].tolist()


def test_every_instruction_set_draws_the_same_numbers(isa):
    event_set = SETS["channels"]
    chosen = np.array([4, 0, 5, 4])
    for augment in (Augment(event_drop=0.3), Augment(time_jitter=2.0, time_stretch=0.3, channel_jitter=1.5)):
        spikes, _ = Batches(event_set, seed=5, augment=augment, partners=chosen).epoch(2)(chosen)
        assert_same(spikes, event_set.batch(chosen, (5, 2), augment))


@pytest.mark.parametrize("name", SETS)
def test_without_augmentation_the_batch_is_the_samples(name):
    event_set = SETS[name]
    for chosen in ([], [0], [1, 0, 1, 1]):
        chosen = np.array(chosen, np.int64)
        wanted = event_set.batch(chosen)
        for source in (
            Batches(event_set, seed=0, augment=None, partners=chosen),
            Batches(event_set, seed=0, augment=Augment(), partners=chosen),
        ):
            spikes, labels = source.epoch(3)(chosen)
            assert_same(spikes, wanted)
            assert labels.dtype == torch.int64
            assert labels.tolist() == event_set.labels[chosen].tolist()


# ---- wrong arguments, and files that change meanwhile ----------------------------------------------------------


def call(**changes):
    arguments = {
        "ids": np.array([0, 1, 2], np.uint16),
        "n_spikes": np.array([[1, 1], [0, 1]], np.uint8),
        "sample_starts": np.array([0, 2, 3]),
        "n_neurons": 3,
        "chosen": np.array([1, 0]),
        "augment": None,
        "values": None,
        **changes,
    }
    return _core.make_batch(*arguments.values())


def strengths(**changes):
    none = dict.fromkeys(
        (
            "time_jitter",
            "time_stretch",
            "time_crop",
            "time_mask",
            "channel_jitter",
            "event_drop",
            "blend",
            "mix",
            "flip",
        ),
        0.0,
    )
    whole = dict.fromkeys(
        ("time_shift", "channel_shift", "channel_mask", "spatial_shift", "rotation", "width", "height", "seed"), 0
    )
    values = {**none, **whole, "epoch": 0, "quantiles": None, "rotated": None, "partners": np.empty(0, np.int64)}
    return _core.Augment(**{**values, **changes})


def test_the_call_by_itself_works():
    offsets, ids, n_spikes, values = call()
    assert (offsets.tolist(), ids.tolist(), n_spikes.tolist()) == ([0, 0, 1, 2, 3], [0, 2, 1], [0, 1, 1, 1])
    assert values is None
    for dtype in (np.uint8, np.uint16, np.int32):
        *_, values = call(values=np.array([7, 9, 200], dtype))
        assert (values.dtype, values.tolist()) == (np.float32, [7, 200, 9])
    assert call(augment=strengths(event_drop=1.0))[1].size == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids": np.zeros(3, np.float32)}, "ids must be a flat array of uint16 or int32"),
        ({"ids": np.zeros((1, 3), np.uint16)}, "ids must be a flat array"),
        ({"n_spikes": np.zeros(4, np.uint8)}, r"n_spikes must be .* with the shape \[samples, steps\]"),
        ({"n_spikes": np.zeros((2, 2), np.int64)}, "n_spikes must be uint8, uint16 or int32"),
        ({"sample_starts": np.array([0, 3])}, "one entry more than the number of samples"),
        ({"chosen": np.array([2])}, "chosen holds 2; allowed: 0 to 1"),
        ({"chosen": np.array([-1])}, "chosen holds -1"),
        ({"chosen": np.array([[0]])}, "chosen must be flat"),
        ({"values": np.ones(2, np.uint8)}, "values must be .* one for each id"),
        ({"values": np.ones(3, np.float32)}, "values must be uint8, uint16 or int32"),
        ({"n_neurons": 0}, "n_neurons must be above 0"),
        ({"augment": strengths(mix=0.1, partners=np.array([7]))}, "partners holds 7; allowed: 0 to 1"),
        (
            {"augment": strengths(blend=0.1, by_class=np.array([7]), spans=np.array([[0, 1], [0, 1]]))},
            "by_class holds 7; allowed: 0 to 1",
        ),
        (
            {"augment": strengths(blend=0.1, by_class=np.array([1]), spans=np.array([[0, 1]]))},
            "spans must have one row for each sample",
        ),
        ({"augment": strengths(flip=0.1, width=2, height=2)}, "the sensor's pixels do not divide the neurons"),
    ],
)
def test_arguments_that_do_not_fit_are_errors(changes, message):
    with pytest.raises(ShapeError, match=message):
        call(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"flip": 0.5}, "an image needs a sensor"),
        ({"width": 2}, "no such width and height"),
        ({"width": -2, "height": -2}, "no such width and height"),
        ({"time_jitter": 1.0}, "jitter needs 4096 quantiles"),
        ({"time_jitter": 1.0, "quantiles": np.zeros(7)}, "jitter needs 4096 quantiles"),
        ({"mix": 0.5}, "mixing needs partners"),
        ({"blend": 0.5}, "blending needs the partners class by class"),
        ({"blend": 0.5, "by_class": np.arange(2)}, "blending needs the partners class by class"),
        ({"blend": 0.5, "by_class": np.arange(2), "spans": np.arange(2)}, "blending needs the partners"),
        ({"blend": 0.5, "by_class": np.arange(2), "spans": np.array([[0, 3]])}, "spans leave by_class"),
        ({"blend": 0.5, "by_class": np.arange(2), "spans": np.array([[-1, 1]])}, "spans leave by_class"),
        ({"blend": 0.5, "by_class": np.arange(2), "spans": np.array([[2, 1]])}, "spans leave by_class"),
        ({"rotation": 1, "width": 2, "height": 1}, "a table for every angle"),
        ({"rotation": 1, "width": 2, "height": 1, "rotated": np.zeros((3, 3), np.int32)}, "a table for every angle"),
        (
            {"rotation": 1, "width": 2, "height": 1, "rotated": np.full((3, 2), 2, np.int32)},
            "rotated leaves the sensor",
        ),
        ({"rotation": 500, "width": 2, "height": 1, "rotated": np.zeros((3, 2), np.int32)}, "a table for every angle"),
    ],
)
def test_strengths_that_do_not_fit_are_errors(changes, message):
    with pytest.raises(ShapeError, match=message):
        strengths(**changes)


@pytest.mark.parametrize("augment", [None, strengths(time_shift=1)])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_spikes": np.array([[1, 200], [0, 1]], np.uint8)}, "lists that are longer than their sample"),
        ({"n_spikes": np.array([[-1, 1], [0, 1]], np.int32)}, "lists that are longer than their sample"),
        (
            {"sample_starts": np.array([0, 2, 3_000_000]), "n_spikes": np.array([[0, 0], [0, 2]], np.uint8)},
            "longer than",
        ),
        ({"sample_starts": np.array([-5, 2, 3])}, "starts outside its ids"),
    ],
)
def test_a_cache_that_changed_under_way_is_an_error_and_no_wild_read(changes, message, augment):
    with pytest.raises(DataError, match=f"the event cache has .*{message}.*load the data again"):
        call(**changes, augment=augment)


def test_ids_beyond_the_neurons_are_an_error_and_no_wild_write():
    with pytest.raises(DataError, match="has ids beyond its neurons"):
        call(ids=np.array([0, 60_000, 2], np.uint16), augment=strengths(time_shift=1))
    with pytest.raises(DataError, match="has ids beyond its neurons"):
        call(
            ids=np.array([0, -1, 2], np.int32),
            values=np.array([2, 70_000, 1], np.int32),
            augment=strengths(time_shift=1),
        )


@pytest.mark.parametrize("augment", [None, strengths(time_shift=1)])
@pytest.mark.parametrize("value", [0, -1, 2**24 + 1])
def test_values_that_are_no_counts_are_an_error(value, augment):
    with pytest.raises(DataError, match="the event cache has values that are not counts"):
        call(values=np.array([1, value, 1], np.int32), augment=augment)
