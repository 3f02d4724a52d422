from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsesnn.datasets import Augment, EventSet
from sparsesnn.datasets.augment import rotations
from sparsesnn.datasets.sensor import Sensor
from sparsesnn.errors import ConfigError

N_NEURONS, N_STEPS = 37, 23
CAMERA = Sensor(9, 6, 2)
ALL = Augment(time_jitter=1.5, time_shift=3, time_stretch=0.3, channel_shift=4, channel_jitter=1.2, event_drop=0.2)


@pytest.fixture(scope="module")
def event_set() -> EventSet:
    rng = np.random.default_rng(1)
    events = [(rng.uniform(0, N_STEPS, n), rng.integers(0, N_NEURONS, n)) for n in (150, 0, 1, 80, 200, 33)]
    return EventSet.from_events(events, range(6), n_neurons=N_NEURONS, n_steps=N_STEPS, dt_us=1.0)


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
    blend=st.sampled_from([0.0, 0.6]),
    mask=st.sampled_from([0.0, 0.4]),
    seed=st.integers(-(2**63), 2**64),
)
def test_a_sample_is_changed_alike_in_whatever_batch_it_is(chosen, jitter, shift, stretch, drop, blend, mask, seed):
    events = ALL_SAMPLES
    augment = Augment(
        time_jitter=jitter,
        time_shift=shift,
        time_stretch=stretch,
        channel_shift=shift,
        channel_jitter=jitter,
        event_drop=drop,
        blend=blend,
        time_mask=mask,
        channel_mask=int(mask * N_NEURONS),
    )
    together = dense(events, chosen, augment, seed)
    for b, sample in enumerate(chosen):
        np.testing.assert_array_equal(together[b], dense(events, [sample], augment, seed)[0])


def _all_samples() -> EventSet:
    rng = np.random.default_rng(2)
    events = [(rng.uniform(0, N_STEPS, n), rng.integers(0, N_NEURONS, n)) for n in (40, 0, 1, 30, 25, 3)]
    return EventSet.from_events(events, [0, 1, 0, 1, 0, 1], n_neurons=N_NEURONS, n_steps=N_STEPS, dt_us=1.0)


ALL_SAMPLES = _all_samples()


def test_seed_epoch_and_sample_all_count(event_set):
    # samples 0 and 1 of `twins` have the same spikes
    twins = EventSet.from_events(
        [(np.arange(20.0), np.arange(20))] * 2, [0, 0], n_neurons=N_NEURONS, n_steps=N_STEPS, dt_us=1.0
    )
    a, b = dense(twins, [0, 1], ALL)
    assert (a != b).any()
    base = dense(event_set, [0], ALL, seed=7, epoch=2)
    assert (base == dense(event_set, [0], ALL, seed=7, epoch=2)).all()
    assert (base != dense(event_set, [0], ALL, seed=8, epoch=2)).any()
    assert (base != dense(event_set, [0], ALL, seed=7, epoch=3)).any()


GOLDEN = [(4, 6), (4, 10), (6, 7), (7, 9), (11, 17), (12, 13), (12, 15), (15, 18), (15, 19)]


def test_result_is_fixed():
    """Figures are compared over versions and machines: the effect of a seed must never change."""
    event_set = EventSet.from_events(
        [(np.arange(5.0, 17.0), np.arange(5, 17))], [0], n_neurons=24, n_steps=24, dt_us=1.0
    )
    batch = event_set.batch([0], rng=(1, 2), augment=ALL)
    step = batch.list_index().tolist()
    assert list(zip(step, batch.ids.tolist(), strict=True)) == GOLDEN


def test_drop_leaves_out_the_share_and_adds_nothing(event_set):
    rng = np.random.default_rng(0)
    large = EventSet.from_events(
        [(rng.uniform(0, 500, 40_000), rng.integers(0, 500, 40_000))], [0], n_neurons=500, n_steps=500, dt_us=1.0
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
    center = [(np.array([50.0]), np.array([50]))] * n
    event_set = EventSet.from_events(center, [0] * n, n_neurons=101, n_steps=101, dt_us=1.0)
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
        n_neurons=50,
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
    event_set = EventSet.from_events([(np.zeros(5), np.arange(5))], [0], n_neurons=5, n_steps=1, dt_us=1.0)
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
        ({"time_jitter": -1.0}, "time_jitter: is -1.0; allowed: 0 or more"),
        ({"time_jitter": float("nan")}, "time_jitter: is nan"),
        ({"channel_jitter": float("inf")}, "channel_jitter: is inf"),
        ({"time_shift": 1.5}, "time_shift: is 1.5; allowed: whole numbers"),
        ({"channel_shift": "2"}, "channel_shift: is '2'"),
        ({"time_stretch": 1.0}, "time_stretch: is 1.0; allowed: 0 to below 1"),
        ({"event_drop": 1.1}, "event_drop: is 1.1; allowed: 0 to 1"),
        ({"event_drop": True}, "event_drop: is True"),
        ({"time_crop": 1.0}, "time_crop: is 1.0; allowed: 0 to below 1"),
        ({"mix": 1.5}, "mix: is 1.5; allowed: 0 to 1"),
        ({"blend": 1.5}, "blend: is 1.5; allowed: 0 to 1"),
        ({"time_mask": -0.5}, "time_mask: is -0.5; allowed: 0 to 1"),
        ({"channel_mask": 0.5}, "channel_mask: is 0.5; allowed: whole numbers"),
        ({"flip": 2}, "flip: is 2; allowed: 0 to 1"),
        ({"spatial_shift": 0.5}, "spatial_shift: is 0.5; allowed: whole numbers"),
        ({"rotation": 22.5}, "rotation: is 22.5; allowed: whole numbers"),
        ({"rotation": 181}, "rotation: is 181; allowed: whole numbers, 0 to 180"),
    ],
)
def test_strengths_without_meaning_are_errors(strength, message):
    with pytest.raises(ConfigError, match=message):
        Augment(**strength)


def test_truth_says_whether_anything_changes():
    assert not Augment()
    assert Augment(time_shift=1)


# ---- time crop -----------------------------------------------------------------------------------------------------


def test_a_crop_silences_the_ends_and_moves_nothing():
    # one neuron that fires in all steps
    event_set = EventSet.from_events(
        [(np.arange(40.0), np.zeros(40, int))] * 300, [0] * 300, n_neurons=1, n_steps=40, dt_us=1.0
    )
    kept = dense(event_set, np.arange(300), Augment(time_crop=0.5))[:, :, 0]
    n_kept, first = kept.sum(1), kept.argmax(1)
    for row, n, start in zip(kept, n_kept, first, strict=True):
        assert row[start : start + n].all()
    assert set(n_kept.tolist()) == set(range(20, 41))
    assert {int(f) for f, n in zip(first, n_kept, strict=True) if n < 40} >= set(range(10))
    assert abs(n_kept.mean() - 30) < 5 * 6.06 / 300**0.5


# ---- masks ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def full() -> EventSet:
    """300 samples in which every neuron fires in every step."""
    events = (np.repeat(np.arange(9.0), 13), np.tile(np.arange(13), 9))
    return EventSet.from_events([events] * 300, [0] * 300, n_neurons=13, n_steps=9, dt_us=1.0)


@pytest.mark.parametrize(("strength", "axis", "most"), [({"time_mask": 0.5}, 1, 4), ({"channel_mask": 5}, 2, 5)])
def test_a_mask_silences_one_stretch_at_a_uniform_place(full, strength, axis, most):
    kept = dense(full, np.arange(300), Augment(**strength))
    silent = ~kept.any(3 - axis)
    assert (kept.all(3 - axis) == ~silent).all(), "whole steps or whole channels"
    edges = np.abs(np.diff(np.pad(silent, ((0, 0), (1, 1))).astype(int), axis=1)).sum(1)
    assert set(edges.tolist()) == {0, 2}
    assert set(silent.sum(1).tolist()) == set(range(most + 1))
    assert silent.any(0).all(), "every place is reached, the ends too"


def test_masks_may_silence_all(full):
    assert not dense(full, np.arange(300), Augment(time_mask=1.0)).any(axis=(1, 2)).all()
    kept = dense(full, np.arange(300), Augment(channel_mask=10**6))
    assert 0 < (~kept.any(axis=(1, 2))).sum() < 100, "a length of 13 is one of 14, a longer one none"


def test_masks_leave_what_they_do_not_cover_as_it_would_be(event_set):
    augment = Augment(time_stretch=0.3, channel_jitter=1.0, event_drop=0.2)
    masked = replace(augment, time_mask=0.6, channel_mask=20)
    assert not (dense(event_set, range(6), masked) & ~dense(event_set, range(6), augment)).any()


# ---- blends --------------------------------------------------------------------------------------------------------


def blocks(places, labels, duplicates="binary", n_steps=40) -> EventSet:
    """Sample s fires 5 × 4 spikes in the steps and neurons from places[s] on; none where that is None."""
    step, unit = (x.reshape(-1) for x in np.mgrid[:5, :4])
    none = (np.empty(0), np.empty(0, int))
    events = [none if place is None else (step + float(place[0]), unit + place[1]) for place in places]
    window = {"n_neurons": 31, "n_steps": n_steps, "dt_us": 1.0, "duplicates": duplicates}
    return EventSet.from_events(events, labels, **window, n_classes=4)


def test_a_blend_takes_half_of_either_sample_at_their_common_center():
    # centers are 7 steps and 4 channels apart: the first moves by 3 and 2, the second by -4 and -2
    event_set = blocks([(10, 6), (17, 10), None], [1, 1, 0], duplicates="count")
    counts = np.zeros((40, 31))
    for epoch in range(300):
        blend = event_set.batch([0], (7, epoch), Augment(blend=1.0), partners=np.array([1])).validate()
        sample = blend.to_dense().numpy()[:, 0]
        assert sample[13:18, 8:12].sum() == sample.sum()
        counts += sample
    # each of the 40 spikes stays with probability one half, two of them in each place
    assert abs(counts.sum() - 300 * 20) < 5 * (300 * 40 * 0.25) ** 0.5
    assert abs(counts[13:18, 8:12] - 300).max() < 5 * (300 * 2 * 0.25) ** 0.5


def test_spikes_of_a_blend_that_meet_become_one():
    event_set = blocks([(10, 6), (17, 10)], [1, 1])
    for epoch in range(10):
        sample = event_set.batch([0], (7, epoch), Augment(blend=1.0), partners=np.array([1])).validate()
        assert 0 < sample.ids.numel() < 20


def test_centers_meet_whoever_comes_first():
    """Differences are rounded down for one and up for the other, so that both end at the same place."""
    for first, second in itertools.product([(10, 6), (11, 9)], [(15, 13), (16, 12), (3, 2)]):
        event_set = blocks([first, second], [0, 0])
        for chosen in (0, 1):
            covered = np.zeros((40, 31), bool)
            for epoch in range(40):
                covered |= dense_of(event_set, [chosen], epoch, partners=[1 - chosen])
            step, unit = np.nonzero(covered)
            assert (np.ptp(step), np.ptp(unit)) == (4, 3)


def dense_of(event_set, chosen, epoch, partners, **strengths) -> np.ndarray:
    batch = event_set.batch(chosen, (7, epoch), Augment(blend=1.0, **strengths), np.array(partners)).validate()
    return batch.to_dense().numpy()[:, 0] > 0


def test_partners_have_the_same_class_and_are_drawn_alike():
    # the place of a spike identifies its sample; centers are equal, so that nothing moves
    ring = [(10, 3), (10, 3), (10, 3), (10, 3), (10, 3)]
    event_set = blocks(ring, [2, 0, 2, 2, 0])
    mates = np.concatenate(
        [
            Augment(blend=0.7).blending(
                np.arange(5), labels=event_set.labels, partners=np.array([4, 0, 3]), seed=1, epoch=e
            )
            for e in range(400)
        ]
    ).reshape(400, 5)
    assert (event_set.labels[mates] == event_set.labels).all()
    for sample, allowed in enumerate([{0, 3}, {1, 4}, {0, 2, 3}, {0, 3}, {4}]):
        assert set(mates[:, sample].tolist()) == allowed
    assert abs((mates[:, 2] == 2).mean() - 0.3) < 5 * (0.3 * 0.7 / 400) ** 0.5
    assert abs((mates[:, 2] == 0).mean() - 0.35) < 5 * (0.35 * 0.65 / 400) ** 0.5


@pytest.mark.parametrize(
    ("places", "labels", "partners"),
    [
        ([(10, 6), (3, 2)], [0, 1], [1]),  # no other sample of its class
        ([(10, 6), None], [0, 0], [1]),  # a silent partner
        ([(10, 6), (3, 2)], [0, 0], [0]),  # itself
        ([(10, 6), (3, 2)], [3, 1], []),  # no partner at all
    ],
)
def test_a_sample_without_a_partner_stays_as_it_is(places, labels, partners):
    event_set = blocks(places, labels)
    plain = event_set.batch([0]).to_dense().numpy()[:, 0] > 0
    for epoch in range(5):
        assert (dense_of(event_set, [0], epoch, np.array(partners, np.int64)) == plain).all()


def test_a_silent_sample_stays_silent():
    event_set = blocks([None, (10, 6)], [0, 0])
    assert not dense_of(event_set, [0], 1, partners=[1]).any()


def test_a_blended_sample_keeps_its_label_and_is_not_mixed():
    event_set = blocks([(10, 6), (17, 10), (25, 20)], [1, 1, 0])
    augment = Augment(blend=0.5, mix=1.0)
    n_blended = 0
    for epoch in range(100):
        rng, partners = (7, epoch), np.array([1, 2])
        mate = augment.blending(np.array([0]), labels=event_set.labels, partners=partners, seed=7, epoch=epoch)
        (target,) = event_set.shares([0], rng, augment, partners)
        spikes = event_set.batch([0], rng, augment, partners).to_dense().numpy()[:, 0] > 0
        if mate[0] == 1:
            n_blended += 1
            assert target.tolist() == [0, 1, 0, 0]
            assert (spikes == dense_of(event_set, [0], epoch, [1, 2])).all()
    assert 25 < n_blended < 75


def test_blends_of_cameras_move_over_time_alone():
    rng = np.random.default_rng(4)
    pixels = rng.permutation(CAMERA.n_neurons)
    events = [(np.full(50, 3.0), pixels[:50]), (np.full(50, 8.0), pixels[50:100])]
    made = EventSet.from_events(events, [0, 0], n_neurons=CAMERA.n_neurons, n_steps=12, dt_us=1.0)
    made = replace(made, description={"sensor": CAMERA.entry()})
    blend = made.batch([0], (7, 0), Augment(blend=1.0), np.array([1])).to_dense().numpy()[:, 0] > 0
    assert np.flatnonzero(blend.any(1)).tolist() == [5]
    assert set(np.flatnonzero(blend[5]).tolist()) <= set(pixels[:100].tolist())
    assert 25 < blend.sum() < 75


# ---- mixing --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def striped() -> EventSet:
    """Sample s fires neuron s in every step, sample 3 twice as densely, sample 4 never."""
    events = [(np.arange(30.0), np.full(30, s)) for s in range(3)]
    events.append((np.repeat(np.arange(30.0), 2), np.tile([3, 4], 30)))
    events.append((np.empty(0), np.empty(0, int)))
    return EventSet.from_events(events, [0, 1, 2, 3, 4], n_neurons=5, n_steps=30, dt_us=1.0)


def test_a_mixed_sample_has_a_section_of_another_one_and_its_share_of_the_label(striped):
    augment, sections, partners = Augment(mix=0.8), 0, set()
    for epoch in range(200):
        (mixed,) = dense(striped, [0], augment, epoch=epoch)
        (target,) = striped.shares([0], (7, epoch), augment)
        theirs = ~mixed[:, 0]
        partner = int(target[1:].argmax()) + 1
        if target[1:].any():
            sections += 1
            partners.add(partner)
            edges = np.flatnonzero(np.diff(np.r_[False, theirs, False]))
            assert len(edges) == 2, "one section"
            neurons = [3, 4] if partner == 3 else [partner]
            assert mixed[theirs][:, neurons].all()
        counts = np.array([mixed[:, 0].sum(), mixed[:, 1].sum(), mixed[:, 2].sum(), mixed[:, 3:].sum(), 0])
        if counts.any():
            np.testing.assert_allclose(target, counts / counts.sum(), atol=1e-6)
        else:
            assert target.tolist() == [1, 0, 0, 0, 0], "all of it is a section of the silent sample"
    assert partners == {1, 2, 3}
    # 0.8 of the epochs, 3 of 5 partners that leave a trace, length 0 in one of 31
    expected = 200 * 0.8 * 3 / 5 * 30 / 31
    assert abs(sections - expected) < 5 * (expected * 0.5) ** 0.5


def test_a_section_of_silence_takes_no_share(striped):
    augment = Augment(mix=1.0)
    for epoch in range(20):
        (target,) = striped.shares([0], (7, epoch), augment, partners=np.array([4]))
        spikes = striped.batch([0], (7, epoch), augment, partners=np.array([4]))
        assert target.tolist() == [1, 0, 0, 0, 0]
        (silent,) = striped.shares([4], (7, epoch), augment, partners=np.array([4]))
        assert silent.tolist() == [0, 0, 0, 0, 1]
    assert spikes.ids.numel() < 30


def test_without_mixing_the_targets_are_the_labels(striped):
    assert (striped.shares([2, 0], (0, 0), Augment(event_drop=0.5)).argmax(1) == [2, 0]).all()


def test_a_mixed_sample_is_then_changed_like_any_other(striped):
    plain = dense(striped, [0], Augment(mix=1.0), epoch=5)[0]
    moved = dense(striped, [0], Augment(mix=1.0, time_shift=3), epoch=5)[0]
    assert any((moved == _shifted(plain, d, 0)).all() for d in range(-3, 4))


# ---- images --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pictures() -> EventSet:
    rng = np.random.default_rng(4)
    events = [(rng.uniform(0, 3, 60), rng.integers(0, CAMERA.n_neurons, 60)) for _ in range(3)]
    made = EventSet.from_events(events, range(3), n_neurons=CAMERA.n_neurons, n_steps=3, dt_us=1.0)
    return replace(made, description={"sensor": CAMERA.entry()})


def frames(event_set: EventSet, sample: int, augment, epoch=2) -> np.ndarray:
    """bool[T, polarity, y, x]"""
    return dense(event_set, [sample], augment, epoch=epoch)[0].reshape(3, 2, 6, 9)


def test_a_spatial_shift_moves_the_image_and_keeps_polarity(pictures):
    plain, seen = frames(pictures, 1, None), set()
    for epoch in range(150):
        moved = frames(pictures, 1, Augment(spatial_shift=2), epoch)
        fits = [
            (dx, dy)
            for dx in range(-2, 3)
            for dy in range(-2, 3)
            if (moved == _shifted(_shifted(plain, dy, 2), dx, 3)).all()
        ]
        assert len(fits) == 1
        seen.add(fits[0])
    assert seen == {(dx, dy) for dx in range(-2, 3) for dy in range(-2, 3)}


def test_a_flip_mirrors_left_and_right(pictures):
    plain, n_flipped = frames(pictures, 0, None), 0
    for epoch in range(100):
        changed = frames(pictures, 0, Augment(flip=0.3), epoch)
        flipped = (changed == plain[..., ::-1]).all()
        assert flipped or (changed == plain).all()
        n_flipped += int(flipped)
    assert abs(n_flipped - 30) < 5 * (100 * 0.3 * 0.7) ** 0.5
    assert (frames(pictures, 0, Augment(flip=1.0)) == plain[..., ::-1]).all()


def test_rotation_goes_by_its_table():
    table = rotations(5, 5, 180).reshape(361, 5, 5)
    grid = np.arange(25).reshape(5, 5)
    assert (table[180] == grid).all()
    for degrees, turns in ((90, 1), (-90, -1), (180, 2), (-180, 2)):
        # the destination of pixel (y, x): the rotated picture has it at table[y, x]
        turned = np.zeros(25, int)
        turned[table[180 + degrees].reshape(-1)] = grid.reshape(-1)
        assert (turned.reshape(5, 5) == np.rot90(grid, -turns)).all()
    # 45 degrees take the corners outside and leave the center
    assert table[225][2, 2] == 12
    assert (table[225][[0, 0, 4, 4], [0, 4, 0, 4]] == -1).all()
    # no pixel goes further than rounding allows, for any angle
    for degrees in range(-180, 181, 7):
        to = table[180 + degrees]
        y, x = np.divmod(np.where(to < 0, 12, to), 5)
        own_y, own_x = np.divmod(grid, 5)
        far = abs(np.hypot(y - 2, x - 2) - np.hypot(own_y - 2, own_x - 2))
        assert far[to >= 0].max() <= 0.5**0.5 + 1e-9


def test_rotation_turns_samples_by_whole_degrees(pictures):
    plain, tables, seen = frames(pictures, 2, None), rotations(9, 6, 20), set()
    for epoch in range(40):
        changed = frames(pictures, 2, Augment(rotation=20), epoch)
        fits = []
        for angle, table in enumerate(tables):
            wanted = np.zeros((3, 2, 54), bool)
            for t, p, pixel in np.argwhere(plain.reshape(3, 2, 54)):
                if table[pixel] >= 0:
                    wanted[t, p, table[pixel]] = True
            if (wanted.reshape(plain.shape) == changed).all():
                fits.append(angle)
        assert fits
        seen.add(fits[0])
    assert len(seen) > 10


@pytest.mark.parametrize(
    ("strength", "message"),
    [
        ({"channel_shift": 1}, "channel_shift is for rows of channels; this data set has 9 × 6 pixels; set it to 0"),
        ({"channel_jitter": 1.0}, "channel_jitter is for rows of channels"),
        ({"channel_mask": 2}, "channel_mask is for rows of channels; .* allowed: time_.*blend, mix, spatial_shift"),
    ],
)
def test_channels_have_no_meaning_for_cameras(pictures, strength, message):
    with pytest.raises(ConfigError, match=message):
        pictures.batch([0], (0, 0), Augment(**strength))


@pytest.mark.parametrize("name", ["spatial_shift", "flip", "rotation"])
def test_images_have_no_meaning_for_channels(event_set, name):
    with pytest.raises(ConfigError, match=f"{name} is for the images of a camera; .* allowed: time_.*channel_shift"):
        event_set.batch([0], (0, 0), Augment(**{name: 1}))


# ---- counts --------------------------------------------------------------------------------------------------------


def counted(n_samples: int = 40) -> tuple[EventSet, EventSet]:
    """Samples with several events in a cell, counted; and the same events in separate cells."""
    rng = np.random.default_rng(3)
    events = [(rng.uniform(0, 20, 90), rng.integers(0, 8, 90)) for _ in range(n_samples)]
    window = {"n_neurons": 8, "n_steps": 20, "dt_us": 1.0}
    return EventSet.from_events(events, [0] * n_samples, **window, duplicates="count"), EventSet.from_events(
        events, [0] * n_samples, **window
    )


def test_events_move_one_by_one_and_are_counted_where_they_meet():
    event_set, _ = counted()
    plain = event_set.batch(range(40)).to_dense()
    assert plain.max() > 2
    assert plain.sum() == event_set.n_counted == 40 * 90
    for augment in (Augment(channel_jitter=0.3), Augment(time_jitter=0.4), Augment(time_stretch=0.2)):
        moved = event_set.batch(range(40), (0, 0), augment).to_dense()
        assert 0.7 * 3600 < moved.sum() <= 3600, augment  # but for those that leave the window or the channels
        assert (moved != plain).any()
        # events of one cell part, and others meet
        assert ((moved > 0) & (moved < plain)).any()
        assert (moved > plain).any()


def test_a_shift_keeps_values():
    event_set, _ = counted()
    plain = event_set.batch(range(40)).to_dense().numpy()
    moved = event_set.batch(range(40), (0, 0), Augment(channel_shift=3, time_shift=2)).to_dense().numpy()
    for sample in range(40):
        shifts = itertools.product(range(-3, 4), range(-2, 3))
        found = [_shifted(_shifted(plain[:, sample], dn, 1), dt, 0) for dn, dt in shifts]
        assert any((moved[:, sample] == x).all() for x in found)


def test_single_events_of_a_count_are_dropped():
    event_set, _ = counted()
    plain = event_set.batch(range(40)).to_dense()
    left = event_set.batch(range(40), (0, 0), Augment(event_drop=0.3)).to_dense()
    assert (left <= plain).all()
    assert ((left > 0) & (left < plain)).any()
    assert abs(left.sum() / 3600 - 0.7) < 4 * (0.3 * 0.7 / 3600) ** 0.5


def test_shares_of_mixed_labels_count_events():
    event_set, plain = counted(2)
    event_set, plain = (replace(x, labels=np.array([0, 1]), n_classes=2) for x in (event_set, plain))
    augment = Augment(mix=1.0)
    chosen, partners = np.array([0]), np.array([1])
    for epoch in range(20):
        _, (start,), (stop,) = augment.mixing(chosen, partners=partners, n_steps=20, seed=4, epoch=epoch)
        both = event_set.batch([0, 1]).to_dense().numpy()
        theirs = both[start:stop, 1].sum()
        own = both[:, 0].sum() - both[start:stop, 0].sum()
        share = event_set.shares([0], (4, epoch), augment, partners)[0]
        np.testing.assert_allclose(share, [own / (own + theirs), theirs / (own + theirs)], rtol=1e-6)
