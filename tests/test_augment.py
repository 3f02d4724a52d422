from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsesnn.datasets import Augment, EventSet
from sparsesnn.errors import ConfigError

N_NEURONS, N_STEPS = 37, 23
ALL = Augment(time_jitter=1.5, time_shift=3, time_stretch=0.3, channel_shift=4, channel_jitter=1.2, event_drop=0.2)


@pytest.fixture(scope="module")
def event_set() -> EventSet:
    rng = np.random.default_rng(1)
    events = [(rng.uniform(0, N_STEPS, n), rng.integers(0, N_NEURONS, n)) for n in (150, 0, 1, 80, 200, 33)]
    return EventSet.from_events(events, range(6), n_units=N_NEURONS, n_steps=N_STEPS, dt_us=1.0)


def dense(event_set: EventSet, indices, augment, seed=7, epoch=2) -> np.ndarray:
    """bool[B, T, N]"""
    batch = event_set.batch(indices, rng=(seed, epoch), augment=augment).validate()
    return batch.to_dense().numpy().transpose(1, 0, 2) > 0


@given(
    chosen=st.lists(st.integers(0, 5), min_size=1, max_size=9),
    jitter=st.sampled_from([0.0, 0.7]),
    shift=st.sampled_from([0, 5]),
    stretch=st.sampled_from([0.0, 0.5]),
    drop=st.sampled_from([0.0, 0.3]),
    seed=st.integers(-(2**63), 2**64),
)
def test_a_sample_is_changed_alike_in_whatever_batch_it_is(chosen, jitter, shift, stretch, drop, seed):
    events = ALL_SAMPLES
    augment = Augment(
        time_jitter=jitter,
        time_shift=shift,
        time_stretch=stretch,
        channel_shift=shift,
        channel_jitter=jitter,
        event_drop=drop,
    )
    together = dense(events, chosen, augment, seed)
    for b, sample in enumerate(chosen):
        np.testing.assert_array_equal(together[b], dense(events, [sample], augment, seed)[0])


def _all_samples() -> EventSet:
    rng = np.random.default_rng(2)
    events = [(rng.uniform(0, N_STEPS, n), rng.integers(0, N_NEURONS, n)) for n in (40, 0, 1, 30, 25, 3)]
    return EventSet.from_events(events, range(6), n_units=N_NEURONS, n_steps=N_STEPS, dt_us=1.0)


ALL_SAMPLES = _all_samples()


def test_seed_epoch_and_sample_all_count(event_set):
    # samples 0 and 1 of `twins` have the same spikes
    twins = EventSet.from_events(
        [(np.arange(20.0), np.arange(20))] * 2, [0, 0], n_units=N_NEURONS, n_steps=N_STEPS, dt_us=1.0
    )
    a, b = dense(twins, [0, 1], ALL)
    assert (a != b).any()
    base = dense(event_set, [0], ALL, seed=7, epoch=2)
    assert (base == dense(event_set, [0], ALL, seed=7, epoch=2)).all()
    assert (base != dense(event_set, [0], ALL, seed=8, epoch=2)).any()
    assert (base != dense(event_set, [0], ALL, seed=7, epoch=3)).any()


GOLDEN = [(4, 6), (4, 10), (6, 7), (7, 9), (11, 17), (12, 13), (12, 15), (15, 18), (15, 19)]


def test_result_is_fixed():
    """Figures are compared over versions and machines: what a seed means must never change."""
    event_set = EventSet.from_events([(np.arange(5.0, 17.0), np.arange(5, 17))], [0], n_units=24, n_steps=24, dt_us=1.0)
    batch = event_set.batch([0], rng=(1, 2), augment=ALL)
    step = batch.list_index().tolist()
    assert list(zip(step, batch.ids.tolist(), strict=True)) == GOLDEN


def test_drop_leaves_out_the_share_and_adds_nothing(event_set):
    rng = np.random.default_rng(0)
    large = EventSet.from_events(
        [(rng.uniform(0, 500, 40_000), rng.integers(0, 500, 40_000))], [0], n_units=500, n_steps=500, dt_us=1.0
    )
    before = large.batch([0])
    after = large.batch([0], rng=(0, 0), augment=Augment(event_drop=0.25)).validate()
    n = before.ids.numel()
    assert abs(after.ids.numel() - 0.75 * n) < 5 * (0.75 * 0.25 * n) ** 0.5
    assert not (dense(event_set, [0], Augment(event_drop=0.25)) & ~dense(event_set, [0], None)).any()
    assert event_set.batch([0, 3], rng=(0, 0), augment=Augment(event_drop=1.0)).ids.numel() == 0


@pytest.mark.parametrize("name", ["time_shift", "channel_shift"])
def test_shift_moves_the_whole_sample(event_set, name):
    axis = 0 if name == "time_shift" else 1
    plain = dense(event_set, [4], None)[0]
    seen = set()
    for epoch in range(60):
        moved = dense(event_set, [4], Augment(**{name: 3}), epoch=epoch)[0]
        fits = [d for d in range(-3, 4) if (moved == _shifted(plain, d, axis)).all()]
        assert len(fits) == 1
        seen.add(fits[0])
    assert seen == set(range(-3, 4))


def _shifted(plain: np.ndarray, by: int, axis: int) -> np.ndarray:
    moved = np.zeros_like(plain)
    for source in range(plain.shape[axis]):
        if 0 <= source + by < plain.shape[axis]:
            moved[(slice(None),) * axis + (source + by,)] = plain[(slice(None),) * axis + (source,)]
    return moved


@pytest.mark.parametrize(("name", "axis"), [("time_jitter", 0), ("channel_jitter", 1)])
def test_jitter_moves_each_spike_by_its_own_draw(name, axis):
    # one spike a sample in the middle, so that moves can be read off
    n = 4000
    centre = [(np.array([50.0]), np.array([50]))] * n
    event_set = EventSet.from_events(centre, [0] * n, n_units=101, n_steps=101, dt_us=1.0)
    changed = dense(event_set, np.arange(n), Augment(**{name: 4.0}))
    place = np.argwhere(changed)
    assert len(place) == n
    move = place[:, 1 + axis] - 50
    assert (place[:, 2 - axis] == 50).all()
    assert abs(move.mean()) < 5 * 4.0 / n**0.5
    # rounding adds 1/12 to the variance; the standard error of a variance is s²·(2/n)^½
    assert abs(move.var() - 16.08) < 5 * 16.08 * (2 / n) ** 0.5


def test_stretch_scales_time_and_leaves_no_gaps():
    # one neuron that fires in all steps: a stretch may not leave steps empty in the middle
    n = 200
    event_set = EventSet.from_events(
        [(np.repeat(np.arange(40.0), 50), np.tile(np.arange(50), 40))] * n,
        [0] * n,
        n_units=50,
        n_steps=100,
        dt_us=1.0,
    )
    changed = dense(event_set, np.arange(n), Augment(time_stretch=0.5))
    per_step = changed.sum(2)
    end = per_step.shape[1] - np.argmax(per_step[:, ::-1] > 0, axis=1)
    assert end.min() < 24
    assert 56 < end.max() <= 60
    for counts, stop in zip(per_step, end, strict=True):
        assert (counts[: stop - 1] > 0).all()


def test_spikes_that_leave_are_left_out_and_those_that_meet_become_one():
    event_set = EventSet.from_events([(np.zeros(5), np.arange(5))], [0], n_units=5, n_steps=1, dt_us=1.0)
    for epoch in range(20):
        batch = event_set.batch([0], rng=(0, epoch), augment=Augment(channel_jitter=3.0)).validate()
        assert batch.ids.numel() <= 5
    far = event_set.batch([0], rng=(0, 0), augment=Augment(channel_shift=10**8, time_shift=10**8)).validate()
    assert far.ids.numel() == 0


def test_sorting_and_marking_agree(event_set, monkeypatch):
    marked = event_set.batch([5, 0, 2], rng=(0, 0), augment=ALL)
    monkeypatch.setattr("sparsesnn.datasets.event_set._MAX_CELLS_PER_SPIKE", 0)
    ordered = event_set.batch([5, 0, 2], rng=(0, 0), augment=ALL)
    for name in ("offsets", "ids", "n_spikes"):
        assert (getattr(marked, name) == getattr(ordered, name)).all()


@pytest.mark.parametrize(
    ("strength", "message"),
    [
        ({"time_jitter": -1.0}, "time_jitter is -1.0; give a number that is 0"),
        ({"time_jitter": float("nan")}, "time_jitter is nan"),
        ({"channel_jitter": float("inf")}, "channel_jitter is inf"),
        ({"time_shift": 1.5}, "time_shift is 1.5; give a whole number"),
        ({"channel_shift": "2"}, "channel_shift is '2'"),
        ({"time_stretch": 1.0}, "time_stretch is 1.0; allowed: 0 to below 1"),
        ({"event_drop": 1.1}, "event_drop is 1.1; allowed: 0 to at most 1"),
        ({"event_drop": True}, "event_drop is True"),
    ],
)
def test_strengths_without_meaning_are_errors(strength, message):
    with pytest.raises(ConfigError, match=message):
        Augment(**strength)


def test_truth_says_whether_anything_changes():
    assert not Augment()
    assert Augment(time_shift=1)
    assert Augment(time_shift=2.0).time_shift == 2
