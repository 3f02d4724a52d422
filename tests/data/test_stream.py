from __future__ import annotations

import gc
import threading
import time

import numpy as np
import pytest
import torch

from sparsesnn import _core
from sparsesnn.datasets import Augment, EventSet
from sparsesnn.errors import ConfigError
from sparsesnn.host.stream import Stream, share


def make(n_samples: int = 23) -> EventSet:
    rng = np.random.default_rng(0)
    events = [(rng.uniform(0, 9, 30), rng.integers(0, 13, 30)) for _ in range(n_samples)]
    return EventSet.from_events(events, np.arange(n_samples), n_neurons=13, n_steps=9, dt_us=1.0)


@pytest.fixture
def event_set() -> EventSet:
    return make()


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    if stream_threads():
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
    """A source whose third batch cannot be made."""

    def __init__(self, source) -> None:
        self.source, self.n_made = source, 0

    def epoch(self, epoch):
        make = self.source.epoch(epoch)

        def counted(chosen):
            self.n_made += 1
            self.before()
            return make(chosen)

        return counted

    def before(self):
        if self.n_made == 3:
            raise OSError("the disk went away")


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_error_in_the_thread_reaches_the_consumer_with_its_traceback(event_set, prefetch):
    stream = Stream(event_set, None, 4, shuffle=True, seed=0, prefetch=prefetch)
    stream.batches = Failing(stream.batches)
    batches = stream.epoch(0)
    next(batches)
    next(batches)
    with pytest.raises(OSError, match="the disk went away") as raised:
        next(batches)
    assert any(entry.name == "before" for entry in raised.traceback)
    assert stream_threads() == []


class Slow(Failing):
    """A source that takes 20 ms for a batch, remembers how many it began, and after `n_free` waits to be let on."""

    def __init__(self, source, n_free: int) -> None:
        super().__init__(source)
        self.n_free, self.goes_on = n_free, threading.Event()

    def before(self):
        time.sleep(0.02)
        if self.n_made > self.n_free:
            assert self.goes_on.wait(600)

    def wait_until(self, n_made: int) -> None:
        stop = time.monotonic() + 600
        while self.n_made < n_made:
            assert time.monotonic() < stop, "the source was not asked for more"
            time.sleep(0.002)


def test_waiting_is_measured_and_the_thread_stays_within_its_depth(event_set):
    stream = Stream(event_set, None, 4, shuffle=True, seed=0, prefetch=0)
    stream.batches = Slow(stream.batches, n_free=23)
    list(stream.epoch(0))
    assert stream.wait_s >= 6 * 0.02

    depth = 8
    stream = Stream(event_set, None, 1, shuffle=True, seed=0, prefetch=depth)
    stream.batches = slow = Slow(stream.batches, n_free=1 + depth)
    batches = stream.epoch(0)
    next(batches)
    slow.wait_until(1 + depth)
    time.sleep(0.3)
    assert slow.n_made == 1 + depth  # the one handed out, and those ahead
    waits = [stream.wait_s]
    for _ in range(depth):  # they come although no more are made
        next(batches)
        waits.append(stream.wait_s)
    assert min(np.diff(waits)) < 0.02  # a loaded machine may be late now and then
    slow.goes_on.set()
    batches.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"indices": [0, 23]}, "run from 0 to 23; allowed: 0 to 22"),
        ({"indices": [-1]}, "run from -1"),
        ({"indices": [[1]]}, r"int64\[1, 1\]"),
        ({"indices": [0.5]}, r"float64\[1\]"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"prefetch": -1}, "prefetch is -1; give 0 or more"),
        ({"rank": 2, "n_ranks": 2}, "rank is 2 of 2 for batches of 4; allowed: 0 to n_ranks - 1"),
        ({"rank": -1, "n_ranks": 2}, "rank is -1 of 2"),
        ({"n_ranks": 5}, "rank is 0 of 5 for batches of 4; .* at most as many ranks as samples"),
        ({"n_ranks": 0}, "rank is 0 of 0"),
        ({"bucket_batches": -1}, "bucket_batches is -1; allowed: 0"),
        ({"bucket_batches": 2, "shuffle": False}, "bucket_batches is 2 without shuffle"),
        ({"augment": Augment(flip=0.5)}, "flip is for the images of a camera; this data set has neurons without"),
    ],
)
def test_arguments_without_meaning_are_errors(event_set, change, message):
    arguments = {"indices": None, "batch_size": 4, "prefetch": 2, "shuffle": True, **change}
    with pytest.raises(ConfigError, match=message):
        Stream(event_set, arguments.pop("indices"), arguments.pop("batch_size"), seed=0, **arguments)
    with pytest.raises(ConfigError, match="event_set is a list; give an EventSet"):
        Stream([1, 2], batch_size=3)


# ---- ranks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bucket_batches", [0, 2])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 5])
def test_the_slices_of_all_ranks_are_the_batch_of_one(n_ranks, drop_last, bucket_batches):
    options = {
        "shuffle": True,
        "seed": 3,
        "drop_last": drop_last,
        "bucket_batches": bucket_batches,
        "augment": Augment(event_drop=0.3, time_jitter=1.0, mix=0.5, blend=0.4, time_mask=0.3, channel_mask=3),
    }
    event_set = make(60)
    whole = Stream(event_set, None, 27, **options)
    ranks = [Stream(event_set, None, 27, rank=rank, n_ranks=n_ranks, **options) for rank in range(n_ranks)]
    assert {len(stream) for stream in ranks} == {len(whole)}
    assert {stream.n_samples for stream in ranks} == {whole.n_samples}
    for (spikes, targets), *slices in zip(whole.epoch(4), *(stream.epoch(4) for stream in ranks), strict=True):
        assert sum(len(part) for part, _ in slices) == len(spikes)
        groups = [-(-len(part) // _core.group_samples) for part, _ in slices]
        assert max(groups) - min(groups) <= 1
        assert torch.equal(torch.cat([part for _, part in slices]), targets)
        dense = torch.cat([part.validate().to_dense() for part, _ in slices], dim=1)
        assert torch.equal(dense, spikes.to_dense())


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("n_samples", [0, 1, 7, 8, 9, 40, 63])
def test_shares_are_whole_groups(n_samples, n_ranks):
    shares = [share(n_samples, rank, n_ranks) for rank in range(n_ranks)]
    assert [first for first, _ in shares] == [0, *(last for _, last in shares[:-1])]
    assert shares[-1][1] == n_samples
    assert all(first % _core.group_samples == 0 or first == n_samples for first, _ in shares)


def test_places_count_the_samples_before(event_set):
    streams = [Stream(event_set, None, 20, shuffle=False, seed=0, rank=r, n_ranks=2) for r in range(2)]
    assert [[s.place(batch) for batch in range(2)] for s in streams] == [[(0, 20), (0, 3)], [(16, 20), (3, 3)]]
    assert [[len(x) for x, _ in s.epoch(0)] for s in streams] == [[16, 3], [4, 0]]


def test_a_last_batch_smaller_than_the_ranks_leaves_some_without_samples(event_set):
    sizes = [
        len(list(Stream(event_set, None, 11, shuffle=True, seed=0, rank=r, n_ranks=4).epoch(0))[-1][0])
        for r in range(4)
    ]
    assert sum(sizes) == 1
    assert sizes.count(0) == 3


# ---- buckets -------------------------------------------------------------------------------------------------------


def uneven(n_samples: int = 103) -> EventSet:
    """Samples of 0 to 205 events."""
    rng = np.random.default_rng(5)
    events = [(rng.uniform(0, 40, n), rng.integers(0, 60, n)) for n in rng.permutation(2 * np.arange(n_samples))]
    return EventSet.from_events(events, np.arange(n_samples), n_neurons=60, n_steps=40, dt_us=1.0)


def spread(event_set: EventSet, bucket_batches: int) -> float:
    """Mean over whole batches of the standard deviation of the samples' lengths."""
    stream = Stream(event_set, None, 10, shuffle=True, seed=1, bucket_batches=bucket_batches, drop_last=True)
    lengths = event_set.n_spikes.sum(1)
    return float(np.mean([lengths[stream.batch_samples(0, k)].std() for k in range(len(stream))]))


def test_buckets_gather_samples_of_similar_length():
    event_set = uneven()
    plain, small, large = (spread(event_set, m) for m in (0, 3, 10))
    assert spread(event_set, 1) == plain
    assert large < 0.15 * plain
    assert large < small < 0.6 * plain


def test_buckets_hand_out_the_same_samples_in_an_order_of_seed_and_epoch():
    event_set = uneven()

    def epoch(number, bucket_batches, seed=1, **options):
        stream = Stream(event_set, None, 10, shuffle=True, seed=seed, bucket_batches=bucket_batches, **options)
        return seen(stream.epoch(number))

    base = epoch(0, 4)
    assert base == epoch(0, 4, prefetch=0)
    assert base not in (epoch(1, 4), epoch(0, 4, seed=2), epoch(0, 5), epoch(0, 0))
    assert sorted(base) == list(range(103))
    # the samples of a smaller last batch, or those that drop_last leaves out, are not chosen by length
    assert base[100:] == epoch(0, 0)[100:]
    assert sorted(epoch(0, 4, drop_last=True)) == sorted(base[:100])


def test_batches_of_a_bucket_come_in_no_order_of_length():
    event_set = uneven()
    stream = Stream(event_set, None, 10, shuffle=True, seed=1, bucket_batches=10)
    lengths = event_set.n_spikes.sum(1)
    means = [lengths[stream.batch_samples(0, k)].mean() for k in range(10)]
    assert means != sorted(means)
    within = lengths[stream.batch_samples(0, 0)].tolist()
    assert within != sorted(within)


# ---- where batches are made ----------------------------------------------------------------------------------------


def test_batches_go_to_the_device(event_set):
    """The meta device stands for one that is not the host: it has shapes and no content."""
    for spikes, labels in Stream(event_set, None, 5, shuffle=True, seed=0, device="meta").epoch(0):
        assert {x.device.type for x in (spikes.offsets, spikes.ids, spikes.n_spikes, labels)} == {"meta"}


def test_mixing_hands_out_shares_of_classes(event_set):
    augment = Augment(mix=0.7)
    stream = Stream(event_set, None, 5, shuffle=True, seed=3, augment=augment)
    n_mixed = 0
    for k, (_, targets) in enumerate(stream.epoch(1)):
        assert targets.dtype == torch.float32
        assert targets.shape == (len(stream.batch_samples(1, k)), 23)
        torch.testing.assert_close(targets.sum(1), torch.ones(len(targets)))
        n_mixed += int((targets.amax(1) < 1).sum())
    assert 5 < n_mixed < 23


def test_partners_come_from_the_same_samples(event_set):
    """A sample of the validation part never enters the training part."""
    stream = Stream(event_set, [2, 3, 5], 3, shuffle=True, seed=3, augment=Augment(mix=1.0))
    for epoch in range(20):
        _, targets = next(iter(stream.epoch(epoch)))
        assert set(torch.nonzero(targets)[:, 1].tolist()) <= {2, 3, 5}


def test_blends_are_made_of_the_same_samples():
    """Samples of two blocks that no training sample has would show in it."""
    step, unit = (x.reshape(-1) for x in np.mgrid[:5, :4])
    events = [(step + 10.0, unit + (3 if s < 4 else 20)) for s in range(8)]
    made = EventSet.from_events(events, [0, 1] * 4, n_neurons=31, n_steps=40, dt_us=1.0)
    stream = Stream(made, [0, 1, 2, 3], 4, shuffle=True, seed=3, augment=Augment(blend=1.0))
    whole = Stream(made, None, 4, shuffle=True, seed=3, augment=Augment(blend=1.0))
    seen = {name: set() for name in ("some", "all")}
    for epoch in range(20):
        for name, source in (("some", stream), ("all", whole)):
            for spikes, _ in source.epoch(epoch):
                seen[name] |= set(spikes.ids.tolist())
    assert seen["some"] == {3, 4, 5, 6}
    assert seen["all"] > seen["some"]


def test_whole_numbers_of_other_libraries(event_set):
    plain = Stream(event_set, [0, 2, 1], 2, shuffle=True, seed=3, bucket_batches=2, prefetch=1)
    for of in (np.int64, np.array, torch.tensor, lambda n: np.array(n, object)):
        numbers = {"seed": of(3), "bucket_batches": of(2), "prefetch": of(1), "rank": of(0), "n_ranks": of(1)}
        stream = Stream(event_set, np.array([0, 2, 1], object), of(2), shuffle=True, **numbers)
        assert len(stream) == 2
        assert stream.order(1).tolist() == plain.order(1).tolist()
        assert [labels.tolist() for _, labels in stream.epoch(0)] == [labels.tolist() for _, labels in plain.epoch(0)]
    for name in ("batch_size", "seed", "prefetch"):
        for wrong in (2.0, True, "2"):
            with pytest.raises(ConfigError, match=f"Stream: {name} is {wrong!r}; give a whole number"):
                Stream(event_set, None, **{"batch_size": 2, "seed": 0, "shuffle": False, name: wrong})


def test_no_samples_make_no_batches(event_set):
    stream = Stream(event_set, [], 4, shuffle=True, seed=0)
    assert len(stream) == 0
    assert list(stream.epoch(0)) == []


@pytest.mark.parametrize(("n_ranks", "per_rank"), [(2, 8), (2, 7), (3, 5)])
def test_ranks_with_as_many_samples_each(event_set: EventSet, n_ranks: int, per_rank: int) -> None:
    """In the order of the ranks, whatever groups they make; the last ones may have none."""
    whole = Stream(event_set, None, 13, shuffle=True, seed=1)
    parts = [
        Stream(event_set, None, 13, shuffle=True, seed=1, rank=r, n_ranks=n_ranks, per_rank=per_rank)
        for r in range(n_ranks)
    ]
    for batch in range(len(whole)):
        samples = whole.batch_samples(0, batch)
        found = [part.batch_samples(0, batch) for part in parts]
        assert np.array_equal(np.concatenate(found), samples)
        assert [len(x) for x in found[:-1]] == [
            min(per_rank, max(0, len(samples) - r * per_rank)) for r in range(n_ranks - 1)
        ]
        assert [part.place(batch) for part in parts] == [
            (min(r * per_rank, len(samples)), len(samples)) for r in range(n_ranks)
        ]
    with pytest.raises(ConfigError, match="per_rank is 6 on 2 ranks for batches of 13; allowed: 0, or from 7"):
        Stream(event_set, None, 13, shuffle=True, seed=1, n_ranks=2, per_rank=6)
