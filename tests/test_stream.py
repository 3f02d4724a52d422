from __future__ import annotations

import gc
import threading
import time

import numpy as np
import pytest
import torch

from sparsesnn.datasets import Augment, EventSet
from sparsesnn.errors import ConfigError
from sparsesnn.host.stream import Stream


def make(n_samples: int = 23) -> EventSet:
    rng = np.random.default_rng(0)
    events = [(rng.uniform(0, 9, 30), rng.integers(0, 13, 30)) for _ in range(n_samples)]
    return EventSet.from_events(events, np.arange(n_samples), n_units=13, n_steps=9, dt_us=1.0)


@pytest.fixture
def event_set() -> EventSet:
    return make()


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    gc.collect()
    assert stream_threads() == []


def stream_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "sparsesnn-stream"]


def seen(batches) -> list[int]:
    # in `make` a sample's label is its number
    return [sample for _, labels in batches for sample in labels.tolist()]


def assert_same_batches(one, other) -> None:
    for (a, labels_a), (b, labels_b) in zip(one, other, strict=True):
        assert torch.equal(labels_a, labels_b)
        for name in ("offsets", "ids", "n_spikes"):
            assert torch.equal(getattr(a, name), getattr(b, name))


@pytest.mark.parametrize("prefetch", [0, 1, 2, 50])
@pytest.mark.parametrize(
    ("batch_size", "drop_last", "sizes"),
    [(5, False, [5, 5, 5, 5, 3]), (5, True, [5] * 4), (40, False, [23]), (40, True, [])],
)
def test_an_epoch_hands_out_each_sample_once(event_set, prefetch, batch_size, drop_last, sizes):
    stream = Stream(event_set, None, batch_size, shuffle=True, seed=1, drop_last=drop_last, prefetch=prefetch)
    batches = list(stream.epoch(0))
    assert [len(spikes) for spikes, _ in batches] == sizes
    assert len(stream) == len(sizes)
    assert stream.n_samples == sum(sizes)
    samples = seen(batches)
    assert len(set(samples)) == len(samples)
    for spikes, labels in batches:
        assert labels.dtype == torch.int64
        assert_same_batches([(spikes, labels)], [(event_set.batch(labels.numpy()), labels)])


def test_order_follows_seed_and_epoch_alone(event_set):
    def order(seed, epoch, **options):
        return seen(Stream(event_set, None, 4, shuffle=True, seed=seed, **options).epoch(epoch))

    base = order(1, 0)
    assert base == order(1, 0, prefetch=0)
    assert base != order(1, 1)
    assert base != order(2, 0)
    assert sorted(base) == sorted(order(1, 1)) == list(range(23))
    assert base != list(range(23))
    # another batch size cuts the same order differently
    assert base == seen(Stream(event_set, None, 7, shuffle=True, seed=1).epoch(0))


def test_without_shuffle_the_order_is_that_of_the_indices(event_set):
    stream = Stream(event_set, [7, 3, 3, 11], 3, shuffle=False, seed=0)
    assert seen(stream.epoch(0)) == seen(stream.epoch(9)) == [7, 3, 3, 11]


def test_an_epoch_goes_on_where_it_stopped(event_set):
    augment = Augment(time_jitter=1.0, event_drop=0.2)
    stream = Stream(event_set, None, 4, shuffle=True, seed=3, augment=augment)
    whole = list(stream.epoch(5))
    for start in range(len(stream) + 1):
        again = Stream(event_set, None, 4, shuffle=True, seed=3, augment=augment, prefetch=start % 3)
        assert_same_batches(whole[start:], again.epoch(5, start))
    with pytest.raises(ConfigError, match="start_batch is 7; allowed: 0 to 6"):
        stream.epoch(0, 7)


def test_augmentation_changes_with_the_epoch(event_set):
    stream = Stream(event_set, [4], 1, shuffle=False, seed=3, augment=Augment(event_drop=0.5))
    (first, _), (second, _) = next(stream.epoch(0)), next(stream.epoch(1))
    assert first.ids.tolist() != second.ids.tolist()


@pytest.mark.parametrize("close", [True, False])
@pytest.mark.parametrize("taken", [0, 1, 3])
def test_leaving_early_ends_the_thread(event_set, close, taken):
    batches = Stream(event_set, None, 1, shuffle=True, seed=0).epoch(0)
    for _ in range(taken):
        next(batches)
    assert len(stream_threads()) == (taken > 0)
    if close:
        batches.close()
    del batches
    assert stream_threads() == []


def test_a_consumer_that_fails_ends_the_thread(event_set):
    def consume():
        for _ in Stream(event_set, None, 1, shuffle=True, seed=0).epoch(0):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        consume()
    gc.collect()
    assert stream_threads() == []


class Failing:
    """An event set whose third batch cannot be made."""

    def __init__(self, event_set: EventSet) -> None:
        self.event_set, self.n_made, self.labels = event_set, 0, event_set.labels

    def __len__(self) -> int:
        return len(self.event_set)

    def batch(self, *args, **kwargs):
        self.n_made += 1
        if self.n_made == 3:
            raise OSError("the disk went away")
        return self.event_set.batch(*args, **kwargs)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_error_in_the_thread_reaches_the_consumer_with_its_traceback(event_set, prefetch):
    batches = Stream(Failing(event_set), None, 4, shuffle=True, seed=0, prefetch=prefetch).epoch(0)
    next(batches)
    next(batches)
    with pytest.raises(OSError, match="the disk went away") as raised:
        next(batches)
    assert any(entry.name == "batch" for entry in raised.traceback)
    assert stream_threads() == []


class Slow(Failing):
    """An event set that takes 20 ms for a batch, and remembers how many it made."""

    def batch(self, *args, **kwargs):
        self.n_made += 1
        time.sleep(0.02)
        return self.event_set.batch(*args, **kwargs)


def test_waiting_is_measured_and_the_thread_stays_within_its_depth(event_set):
    slow = Slow(event_set)
    stream = Stream(slow, None, 4, shuffle=True, seed=0, prefetch=0)
    list(stream.epoch(0))
    assert stream.wait_s >= 6 * 0.02

    slow = Slow(event_set)
    stream = Stream(slow, None, 1, shuffle=True, seed=0, prefetch=2)
    batches = stream.epoch(0)
    next(batches)
    time.sleep(0.3)
    assert slow.n_made == 3  # the one handed out, and two ahead
    waited = stream.wait_s
    next(batches)
    assert stream.wait_s - waited < 0.02
    batches.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"indices": [0, 23]}, "run from 0 to 23; allowed: 0 to 22"),
        ({"indices": [-1]}, "run from -1"),
        ({"indices": [[1]]}, r"int64\[1, 1\]"),
        ({"indices": [0.5]}, r"float64\[1\]"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"prefetch": -1}, "prefetch -1"),
    ],
)
def test_arguments_without_meaning_are_errors(event_set, change, message):
    arguments = {"indices": None, "batch_size": 4, "prefetch": 2, **change}
    with pytest.raises(ConfigError, match=message):
        Stream(event_set, arguments.pop("indices"), arguments.pop("batch_size"), shuffle=True, seed=0, **arguments)


def test_no_samples_make_no_batches(event_set):
    stream = Stream(event_set, [], 4, shuffle=True, seed=0)
    assert len(stream) == 0
    assert list(stream.epoch(0)) == []
