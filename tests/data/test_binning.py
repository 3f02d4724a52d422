from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparsesnn import LI, Layer
from sparsesnn.datasets import EventSet
from sparsesnn.datasets.binning import Binned, bin_events, max_count, pooled, step_us
from sparsesnn.errors import ConfigError, DataError


def reference(events, *, n_neurons, n_steps, dt_us, pool, largest=1):
    """Event by event, with a dictionary of counts: `lists[s][t]` of cells and counts, the events lost and those merged."""
    lists, n_lost, n_merged = [], 0, 0
    for times, units in events:
        steps: dict[int, dict[int, int]] = {}
        for time, unit in zip(times, units, strict=True):
            step = math.floor(time / dt_us)
            if not 0 <= step < n_steps:
                n_lost += 1
                continue
            counts = steps.setdefault(step, {})
            counts[unit // pool] = counts.get(unit // pool, 0) + 1
            n_merged += counts[unit // pool] > largest
        lists.append(
            [sorted((cell, min(count, largest)) for cell, count in steps.get(t, {}).items()) for t in range(n_steps)]
        )
    return lists, n_lost, n_merged


def as_lists(binned: Binned) -> list[list[list[tuple[int, int]]]]:
    """`lists[s][t]` of neurons and values."""
    lengths = binned.n_spikes
    values = np.ones_like(binned.ids) if binned.values is None else binned.values
    pieces = np.split(np.stack([binned.ids, values], 1), np.cumsum(lengths.reshape(-1).astype(np.int64))[:-1])
    n_steps = lengths.shape[1]
    return [
        [list(map(tuple, pieces[s * n_steps + t].tolist())) for t in range(n_steps)] for s in range(lengths.shape[0])
    ]


@given(
    data=st.data(),
    n_neurons=st.integers(1, 13),
    n_steps=st.integers(1, 7),
    pool=st.integers(1, 5),
    duplicates=st.sampled_from(["binary", "count:1", "count:2", "count:3", "count"]),
)
def test_equals_the_slow_reference(data, n_neurons, n_steps, pool, duplicates):
    pool = min(pool, n_neurons)
    dt_us = data.draw(st.sampled_from([1.0, 3.0, 10.0, 2.5]))
    # borders of steps, both sides of the window, and times between
    time = st.one_of(
        st.integers(-2, n_steps + 2).map(lambda k: k * dt_us),
        # not within rounding errors of a border: those times belong to the border
        st.floats(-3 * dt_us, (n_steps + 3) * dt_us, allow_nan=False).map(lambda t: round(t, 3)),
    )
    sample = st.lists(st.tuples(time, st.integers(0, n_neurons - 1)), max_size=20)
    samples = data.draw(st.lists(sample, max_size=4))
    events = [([t for t, _ in s], [u for _, u in s]) for s in samples]
    window = {"n_neurons": n_neurons, "n_steps": n_steps, "dt_us": dt_us, "pool": pool}
    binned = bin_events([(np.array(t, float), np.array(u, int)) for t, u in events], **window, duplicates=duplicates)
    lists, n_lost, n_merged = reference(events, **window, largest=max_count(duplicates) or 1)
    assert as_lists(binned) == lists
    assert (binned.n_lost, binned.n_merged) == (n_lost, n_merged)
    assert (binned.values is None) == (duplicates == "binary")
    n_counted = binned.ids.size if binned.values is None else int(binned.values.sum())
    assert n_counted + n_lost + n_merged == sum(map(len, samples))
    assert binned.n_neurons == math.ceil(n_neurons / pool)


# ---- several events of one cell in one step ------------------------------------------------------------------------

REPEATS = [([0, 0, 0, 1, 2, 2], [3, 3, 3, 3, 0, 3])]


def test_a_count_is_the_value_of_a_spike():
    window = {"n_neurons": 4, "n_steps": 3, "dt_us": 1.0}
    plain = bin_events(REPEATS, **window)
    assert as_lists(plain) == [[[(3, 1)], [(3, 1)], [(0, 1), (3, 1)]]]
    assert (plain.n_merged, plain.values) == (2, None)
    for duplicates in ("count", "count:3"):
        whole = bin_events(REPEATS, **window, duplicates=duplicates)
        assert as_lists(whole) == [[[(3, 3)], [(3, 1)], [(0, 1), (3, 1)]]]
        assert (whole.n_neurons, whole.n_merged) == (4, 0)
    two = bin_events(REPEATS, **window, duplicates="count:2")
    assert as_lists(two) == [[[(3, 2)], [(3, 1)], [(0, 1), (3, 1)]]]
    assert (two.n_neurons, two.n_merged, two.n_lost) == (4, 1, 0)


def test_values_have_the_smallest_type_that_fits():
    def binned(n):
        return bin_events([(np.zeros(n), np.zeros(n, int))], n_neurons=1, n_steps=2, dt_us=1.0, duplicates="count")

    found = [binned(n) for n in (0, 255, 256, 65_536)]
    assert [x.values.dtype for x in found] == [np.uint8, np.uint8, np.uint16, np.int32]
    joined = Binned.join(found)
    assert (joined.values.dtype, joined.values.tolist()) == (np.int32, [255, 256, 65_536])
    assert joined.n_spikes.dtype == np.uint8


@pytest.mark.parametrize("backend", ["cpu", "dense"])
def test_a_count_delivers_that_many_times_the_weight(backend):
    event_set = EventSet.from_events(REPEATS, [0], n_neurons=4, n_steps=3, dt_us=1.0, duplicates="count:3", n_classes=1)
    layer = Layer(LI(2, beta=0.0), n_pre=4, backend=backend)
    weight = torch.tensor([[1.0, 8.0], [2.0, 9.0], [3.0, 10.0], [4.0, 11.0]])
    with torch.no_grad():
        layer.weights[0].copy_(weight)
    batch = event_set.batch([0])
    potentials, _ = layer(batch if backend == "cpu" else batch.to_dense())
    assert potentials[:, 0].tolist() == [[12.0, 33.0], [4.0, 11.0], [5.0, 19.0]]  # 3·w, w, w + w'


def test_rules_for_duplicates():
    assert [max_count(text) for text in ("binary", "count:1", "count:255")] == [None, 1, 255]
    assert max_count("count") == max_count("count:16777216") == 2**24
    for bad in (
        "",
        "counts",
        "binary:2",
        "count:",
        "count:0",
        "count:16777217",
        "count:-1",
        "count:²",
        "count:2.0",
        4,
        None,
    ):
        with pytest.raises(ConfigError, match=r"duplicates is .*; allowed: 'binary' .* 'count:K'"):
            max_count(bad)


@pytest.mark.filterwarnings("ignore:.*Times are in microseconds")
@given(
    data=st.data(),
    dt_us=st.sampled_from([1, 7, 1000, 5000]),
    n_steps=st.integers(1, 9),
    duplicates=st.sampled_from(["binary", "count:2", "count"]),
)
def test_hostile_events_equal_tonics_frames(data, dt_us, n_steps, duplicates):
    """On borders of steps, out of order, all at once, before and beyond the window: count for count."""
    tonic = pytest.importorskip("tonic")
    end_us = n_steps * dt_us
    time = st.one_of(
        st.integers(-2, n_steps + 2).map(lambda k: k * dt_us),
        st.integers(-2, n_steps + 2).map(lambda k: k * dt_us - 1),
        st.integers(-3, end_us + 3),
        st.sampled_from([0, end_us - 1, end_us, 2**40]),
    )
    rows = data.draw(st.lists(st.tuples(time, st.integers(0, 4), st.integers(0, 1)), max_size=40))
    rows += data.draw(st.lists(st.sampled_from(rows), max_size=20)) if rows else []  # the same event again
    t, x, p = (np.array([row[k] for row in rows], np.int64) for k in range(3))
    binned = bin_events([(t, x + 5 * p)], n_neurons=10, n_steps=n_steps, dt_us=dt_us, duplicates=duplicates)

    events = np.zeros(len(rows), [("x", int), ("t", int), ("p", int)])
    order = np.argsort(t, kind="stable")  # Tonic searches in sorted times
    events["t"], events["x"], events["p"] = t[order], x[order], p[order]
    to_frame = tonic.transforms.ToFrame((5, 1, 2), time_window=dt_us, start_time=0, end_time=end_us)
    frames = to_frame(events).reshape(n_steps, 10) if rows else np.zeros((n_steps, 10))
    counts = np.zeros((n_steps, 10))
    for step, entries in enumerate(as_lists(binned)[0]):
        for neuron, value in entries:
            counts[step, neuron] = value
    np.testing.assert_array_equal(counts, np.minimum(frames.astype(float), max_count(duplicates) or 1))
    assert binned.n_lost == len(rows) - frames.sum()
    assert binned.n_merged == frames.sum() - counts.sum()


def test_order_of_events_does_not_matter():
    rng = np.random.default_rng(3)
    time, unit = rng.uniform(-5, 120, 300), rng.integers(0, 17, 300)
    order = rng.permutation(300)
    window = {"n_neurons": 17, "n_steps": 11, "dt_us": 10.0}
    one, other = bin_events([(time, unit)], **window), bin_events([(time[order], unit[order])], **window)
    np.testing.assert_array_equal(one.ids, other.ids)
    np.testing.assert_array_equal(one.n_spikes, other.n_spikes)
    assert one.n_lost == other.n_lost > 0


def test_float16_times_are_widened_before_any_arithmetic():
    # 60000 us / 7 in float16 would be 8568 or 8576, and the product of larger times infinite
    time = np.array([60000.0, 7000.0], np.float16)
    binned = bin_events([(time, np.array([0, 1], np.uint16))], n_neurons=2, n_steps=10_000, dt_us=7.0)
    steps = np.flatnonzero(binned.n_spikes[0])
    np.testing.assert_array_equal(steps, [7000 // 7, 60000 // 7])


def test_times_of_any_size_are_lost_in_silence():
    binned = bin_events([([1e308, -1e308, 1e-308], [0, 0, 0])], n_neurons=1, n_steps=2, dt_us=0.001)
    assert binned.n_lost == 2
    assert binned.n_spikes.tolist() == [[1, 0]]


def test_types_are_the_smallest_that_fit():
    dense = (np.zeros(300), np.arange(300))
    assert bin_events([dense], n_neurons=300, n_steps=2, dt_us=1.0).n_spikes.dtype == np.uint16
    assert bin_events([dense], n_neurons=300, n_steps=2, dt_us=1.0, pool=2).n_spikes.dtype == np.uint8
    assert bin_events([dense], n_neurons=65_536, n_steps=2, dt_us=1.0).ids.dtype == np.uint16
    assert bin_events([dense], n_neurons=65_537, n_steps=2, dt_us=1.0).ids.dtype == np.int32
    largest = bin_events([([0.0], [65_535])], n_neurons=65_536, n_steps=1, dt_us=1.0)
    assert largest.ids.tolist() == [65_535]


def test_parts_join():
    a = bin_events([(np.zeros(300), np.arange(300)), ([], [])], n_neurons=300, n_steps=2, dt_us=1.0)
    b = bin_events([([1.5, 9.0], [299, 0])], n_neurons=300, n_steps=2, dt_us=1.0)
    joined = Binned.join([a, b])
    assert as_lists(joined) == as_lists(a) + as_lists(b)
    assert joined.n_lost == 1


def test_no_samples_and_empty_samples():
    none = bin_events([], n_neurons=5, n_steps=3, dt_us=1.0)
    assert none.ids.size == 0
    assert none.n_spikes.shape == (0, 3)
    empty = bin_events([([], []), ([], [])], n_neurons=5, n_steps=3, dt_us=1.0)
    assert empty.ids.size == 0
    assert empty.n_spikes.tolist() == [[0, 0, 0]] * 2


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_times_that_are_no_numbers_are_an_error_that_names_the_sample(bad):
    events = [([1.0], [0]), ([1.0, bad], [0, 1])]
    with pytest.raises(DataError, match=r"file\.h5: sample 8 has times such as .*\(1 in all\).*remove those events"):
        bin_events(events, n_neurons=2, n_steps=3, dt_us=1.0, source="file.h5", first_sample=7)


@pytest.mark.parametrize("unit", [-1, 700, 2**40])
def test_units_out_of_range_are_an_error(unit):
    with pytest.raises(DataError, match=rf"sample 0 has units such as {unit} .*allowed: 0 to 699"):
        bin_events([([1.0], [unit])], n_neurons=700, n_steps=3, dt_us=1.0)


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([([1.0, 2.0], [0])], r"times \[2\] and units \[1\]"),
        ([(np.zeros((2, 2)), np.zeros((2, 2), int))], r"times \[2, 2\]"),
        ([([1.0], [0.5])], "units of type float64"),
        ([(["now"], [0])], "times of type <U3"),
        ([([1j], [0])], "times of type complex128"),
    ],
)
def test_arrays_of_the_wrong_form_are_errors(events, message):
    with pytest.raises(DataError, match=message):
        bin_events(events, n_neurons=2, n_steps=3, dt_us=1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_steps": 0}, "n_steps is 0"),
        ({"n_steps": 2.0}, "n_steps is 2.0"),
        ({"n_steps": True}, "n_steps is True"),
        ({"dt_us": 0.0}, "time step is 0.0"),
        ({"dt_us": math.nan}, "time step is nan"),
        ({"dt_us": math.inf}, "time step is inf"),
        ({"pool": 0}, "pool is 0"),
        ({"pool": 6}, "pool is 6.* 1 to 5"),
        ({"n_neurons": 0}, "n_neurons is 0"),
        ({"n_neurons": 5.0}, "n_neurons is 5.0"),
        ({"dt_us": "1"}, "time step is 1"),
    ],
)
def test_parameters_without_meaning_are_errors(change, message):
    with pytest.raises(ConfigError, match=message):
        bin_events([], **{"n_neurons": 5, "n_steps": 3, "dt_us": 1.0, **change})


def test_numbers_of_other_libraries_and_former_names():
    events = [([0.0, 2.5], np.array([4, 1], np.uint64)), ([1.0], [0])]
    plain = bin_events(events, n_neurons=5, n_steps=3, dt_us=1.0, pool=2)
    for of in (np.int64, np.array, lambda n: np.array(n, object)):
        found = bin_events(events, n_neurons=of(5), n_steps=of(3), dt_us=of(1), pool=of(2))
        assert (type(found.n_neurons), found.ids.tolist()) == (int, plain.ids.tolist())
    with pytest.warns(DeprecationWarning, match="bin_events: n_units is now called n_neurons"):
        assert bin_events(events, n_units=5, n_steps=3, dt_us=1.0, pool=2).n_neurons == 3
    assert step_us(np.float32(0.5)) == step_us(np.array(0.5)) == 500.0


def test_pooling_covers_all_units():
    assert [pooled(700, pool) for pool in (1, 5, 7, 699, 700)] == [700, 140, 100, 2, 1]
    assert pooled(701, 5) == 141


def test_step_is_resolved_to_the_nanosecond():
    assert step_us(2.01) == 2010.0
    assert step_us(10) == 10_000.0
    assert step_us(0.000_001) == 0.001
    for bad in (0, -1, math.nan, math.inf, "10", True):
        with pytest.raises(ConfigError, match="dt_ms is"):
            step_us(bad)
