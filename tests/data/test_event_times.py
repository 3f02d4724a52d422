"""From times of any type and unit to steps, clocks that begin anywhere, and clocks that wrap."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sparsesnn as ss
from sparsesnn.cli import main
from sparsesnn.datasets import load
from sparsesnn.errors import ConfigError, DataError, SpikeListError
from sparsesnn.event_times import Precision, step_of, unwrap
from sparsesnn.spikes import SpikeBatch
from sparsesnn.train import Config, prepare

MS = 1000.0
UNITS = {"t_s": 1e-6, "t_ms": 1e-3, "t_us": 1.0}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSESNN_CACHE", str(tmp_path / "cache"))


def grid() -> np.ndarray:
    return np.arange(4000) * 1000


def anywhere() -> np.ndarray:
    return np.sort(np.random.default_rng(0).integers(0, 4_000_000, 4000))


def save(path: Path, **table: Any) -> Path:
    n = table["label"].size
    sample = table.pop("sample", np.zeros(len(next(iter(table.values()))), int))
    np.savez(path, unit=table.pop("unit", np.zeros(sample.size, int)), sample=sample, **table)
    assert n
    return path


def assert_same(a: Any, b: ss.EventSet) -> None:
    np.testing.assert_array_equal(np.asarray(a.n_spikes).reshape(b.n_spikes.shape), b.n_spikes)


def of_one(t_us: np.ndarray, n_steps: int = 4000, dt_us: float = MS, **more: Any) -> ss.EventSet:
    return ss.EventSet.from_events([(t_us, np.zeros(len(t_us), int))], [0], n_steps=n_steps, dt_us=dt_us, **more)


# ---- one rule for a step -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [grid, anywhere])
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.longdouble])
def test_floats_make_the_lists_of_whole_microseconds(
    tmp_path: Path, times: Callable[[], np.ndarray], unit: str, dtype: type
) -> None:
    whole = times()
    expected = of_one(whole)
    given = (whole * UNITS[unit]).astype(dtype)
    path = save(tmp_path / "a.npz", **{unit: given}, label=np.zeros(1, int))
    assert_same(load("events", data_dir=path, n_steps=4000, dt_ms=1), expected)
    scale = 1 / UNITS[unit]
    for converted in (given * dtype(scale), given.astype(np.float64) * scale):
        assert_same(of_one(converted), expected)
        pair = (converted, np.zeros(whole.size, int))
        assert_same(SpikeBatch.from_events([pair], n_steps=4000, n_neurons=1, dt_us=MS), expected)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_integers_of_every_width(dtype: type) -> None:
    whole = np.arange(100)
    assert_same(of_one(whole.astype(dtype), 50, 3.0), of_one(whole, 50, 3.0))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", ["events", "shd"])
def test_files_in_the_format_of_shd(tmp_path: Path, dtype: type, name: str) -> None:
    h5py = pytest.importorskip("h5py")
    pytest.importorskip("tonic")
    whole = anywhere()
    path = tmp_path / "shd_train.h5"
    with h5py.File(path, "w") as file:
        for key, values in (("times", (whole * 1e-6).astype(dtype)), ("units", np.zeros(whole.size, np.uint16))):
            file.create_dataset(f"spikes/{key}", (1,), h5py.vlen_dtype(values.dtype))[0] = values
        file["labels"], file["extra/speaker"], file["extra/keys"] = np.zeros(1, int), np.zeros(1, int), np.array([b"a"])
    found = load(name, data_dir=path if name == "events" else tmp_path, n_steps=4000, dt_ms=1)
    assert_same(found, of_one(whole))


def test_a_data_set_of_tonic_with_float_times() -> None:
    whole = anywhere()

    class Floats:
        sensor_size = (1, 1, 1)

        def __len__(self) -> int:
            return 1

        def __getitem__(self, k: int) -> tuple[np.ndarray, int]:
            events = np.zeros(whole.size, [("x", int), ("t", np.float64)])
            events["t"] = whole * 1e-6 * 1e6
            return events, 0

    assert_same(ss.EventSet.from_tonic(Floats(), n_steps=4000, dt_us=MS), of_one(whole))


@pytest.mark.parametrize("unit", UNITS)
def test_time_of_day_as_float64(tmp_path: Path, unit: str) -> None:
    whole = anywhere()
    given = (whole + 1_700_000_000_123_457) * UNITS[unit]
    path = save(tmp_path / "a.npz", **{unit: given}, label=np.zeros(1, int))
    assert_same(load("events", data_dir=path, n_steps=4000, dt_ms=1, start="first"), of_one(whole - whole[0]))


def test_steps_that_are_no_whole_microseconds() -> None:
    whole = np.arange(3600)
    found = np.flatnonzero(of_one(whole, 3600, 1.1).n_spikes[0])
    assert found.tolist() == sorted({10 * k // 11 for k in whole.tolist()})
    assert (of_one(whole / 360 * 1e6, 3600, 1e6 / 360).n_spikes == 1).all()
    # finer than a microsecond, and no rounding of times that are
    assert step_of(np.array([0.3, 0.29, 0.999, 0.9985]), 0.1).tolist() == [3, 2, 9, 9]
    assert step_of(np.array([0.999, 1000.0]), 0.001).tolist() == [999, 1_000_000]
    assert step_of(np.array([1000]), 1000.001).tolist() == [0]


def test_before_zero_and_between_microseconds() -> None:
    assert step_of(np.array([-1.0, -1e-300, -0.0, 999.9, 1000.0]), MS).tolist() == [-1, -1, 0, 0, 1]
    fine = Precision(np.dtype(np.float64))
    assert fine.in_us(np.array([0.25, 1000999.9999999999, -2.0000000000000004])).tolist() == [0.25, 1001000.0, -2.0]


def test_a_type_that_is_too_coarse_is_a_warning(tmp_path: Path) -> None:
    late = (1_700_000_000 + np.arange(40) * 0.01).astype(np.float32)
    path = save(tmp_path / "a.npz", t_s=late, label=np.zeros(1, int))
    with pytest.warns(UserWarning, match=r"float32, .* 1\.28e\+08 us, but a step lasts 10000 us.*float64"):
        load("events", data_dir=path, n_steps=40, dt_ms=10, start="first")
    with pytest.warns(UserWarning, match=r"float16, .* 32 us, but a step lasts 10 us"):
        of_one(np.arange(0, 40_000, 1000).astype(np.float16), 5000, 10.0)


def test_times_that_are_no_numbers() -> None:
    for bad in (np.array(["2020-01-01"], "datetime64[us]"), np.array([3], "timedelta64[ms]"), np.array([True])):
        with pytest.raises(DataError, match=f"times of type {bad.dtype}".replace("[", r"\[")):
            of_one(bad)
        with pytest.raises(SpikeListError, match=f"times of type {bad.dtype}".replace("[", r"\[")):
            SpikeBatch.from_events([(bad, np.zeros(1, int))], n_steps=3, n_neurons=1, dt_us=1.0)
    for bad in (np.array([1.0, np.nan]), np.array([np.inf, 1.0], np.float32)):
        with pytest.raises(DataError, match=r"sample 0 has times such as (nan|inf) \(1 in all\)"):
            of_one(bad, start="first")


# ---- where the time of a sample begins -------------------------------------------------------------------------------------------


def recording(offset_us: int, n: int = 4) -> dict[str, np.ndarray]:
    """Samples of 1 s, one after the other."""
    rng = np.random.default_rng(0)
    sample = np.repeat(np.arange(n), 1000)
    t_us = np.sort(rng.integers(0, 1_000_000, (n, 1000))).ravel() + 1_000_000 * sample + offset_us
    return {"t_us": t_us, "unit": rng.integers(0, 20, t_us.size), "sample": sample, "label": np.arange(n) % 2}


def pairs(table: dict[str, np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    own = [table["sample"] == s for s in range(table["label"].size)]
    return [(table["t_us"][k], table["unit"][k]) for k in own]


@pytest.mark.parametrize("offset_us", [0, 3_600_000_000, 1_700_000_000_000_000, -(10**9)])
def test_start_first_is_everywhere(tmp_path: Path, offset_us: int) -> None:
    table = recording(offset_us)
    events = pairs(table)
    expected = ss.EventSet.from_events([(t - t.min(), u) for t, u in events], table["label"], n_steps=100, dt_us=1e4)
    window: dict[str, Any] = {"n_steps": 100, "dt_us": 1e4, "start": "first"}
    found = [
        ss.EventSet.from_events(events, table["label"], **window),
        load("events", data_dir=save(tmp_path / "a.npz", **table), n_steps=100, dt_ms=10, start="first"),
    ]
    for one in found:
        np.testing.assert_array_equal(one.ids, expected.ids)
        assert_same(one, expected)
        assert one.description["start"] == "first"
    batch = SpikeBatch.from_events(events, n_neurons=20, **window)
    np.testing.assert_array_equal(batch.n_spikes.reshape(100, 4).T.numpy(), expected.n_spikes)

    class Running:
        sensor_size = (20, 1, 1)

        def __len__(self) -> int:
            return 4

        def __getitem__(self, k: int) -> tuple[np.ndarray, int]:
            made = np.zeros(1000, [("x", int), ("t", int)])
            made["t"], made["x"] = events[k]
            return made, k % 2

    assert_same(ss.EventSet.from_tonic(Running(), **window), expected)
    with pytest.warns(UserWarning, match="start='first'" if offset_us >= 0 else "outside the window"):
        ss.EventSet.from_tonic(Running(), n_steps=100, dt_us=1e4)
    for call in (ss.EventSet.from_events, SpikeBatch.from_events):
        labels = {"labels": table["label"]} if call == ss.EventSet.from_events else {"n_neurons": 20}
        with pytest.raises(ConfigError, match="start is 'last'; allowed: 'zero', 'first'"):
            call(events, **labels, **{**window, "start": "last"})


def test_samples_that_get_nothing_are_a_warning() -> None:
    table = recording(0)
    fact = r"3 of the 4 samples .* no spikes: .* outside the window of 100 steps of 10000 us.*start='first'"
    with pytest.warns(UserWarning, match=fact):
        ss.EventSet.from_events(pairs(table), table["label"], n_steps=100, dt_us=1e4)
    with pytest.warns(UserWarning, match=fact):
        SpikeBatch.from_events(pairs(table), n_neurons=20, n_steps=100, dt_us=1e4)
    with pytest.warns(UserWarning, match=r"follow one another on one clock.*start='first'"):
        ss.EventSet.from_events(pairs(table), table["label"], n_steps=400, dt_us=1e4)
    own = [(t - t.min(), u) for t, u in pairs(table)]
    with pytest.warns(UserWarning, match=r"2,\d{3} of 4,000 events.* outside the window.* n_steps$"):
        ss.EventSet.from_events(own, table["label"], n_steps=40, dt_us=1e4)
    with pytest.warns(UserWarning, match=r"3,\d{3} of 4,000 events merge: .* fill 5 of 100 steps"):
        ss.EventSet.from_events(own, table["label"], n_steps=100, dt_us=2.5e5 - 5e4)


def test_training_reports_what_data_check_knows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = recording(3_600_000_000, 20)
    path = save(tmp_path / "late.npz", **table)
    assert main(["data", "check", str(path), "--no-plot"]) == 0
    out = capsys.readouterr().out
    assert "set data.start=first" in out
    assert f"--data {path} --set data.start=first   (100 steps of 10 ms)" in out
    config = Config.from_dict({"data": {"name": "events", "dir": str(path), "valid": "none"}})
    for _ in ("made", "from the cache"):
        with pytest.warns(UserWarning, match=r"20 of 20 samples.* single step.* events merge.*data\.start=first"):
            late = prepare.load_parts(config.data)
    assert "problems" not in late.fingerprint()["description"], "a run resumes whatever the texts are"
    assert prepare.load_parts(config.with_values({"data": {"start": "first"}}).data).train.event_set.n_lost == 0
    # times that may be intended are reported without a warning
    table["t_us"] = table["t_us"] - 1_000_000 * table["sample"] - 3_598_000_000
    path = save(tmp_path / "answers.npz", **table)
    arguments = ["train", "events", "--data", str(path), "--epochs", "1", "--no-plots", "--net", "auto-8-auto"]
    assert main([*arguments, "--out", str(tmp_path / "run")]) == 0
    assert "note    samples begin late: set data.start=first" in capsys.readouterr().err


def test_time_of_day_without_a_start_says_what_to_set(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npz", **recording(1_700_000_000_000_000))
    with pytest.raises(DataError, match=r"times reach 1\.7e\+15 us.*allowed: less than 1e\+12.*data\.start=first"):
        load("events", data_dir=path)


def test_ordinary_data_is_no_warning() -> None:
    rng = np.random.default_rng(1)
    for n in (1, 2, 5, 40):  # sparse ones among them
        events = [(rng.uniform(0, 1e6, n), rng.integers(0, 9, n)) for _ in range(50)]
        ss.EventSet.from_events(events, np.arange(50) % 3, n_steps=100, dt_us=1e4)
    late = [(rng.uniform(3e5, 5e5, 40), rng.integers(0, 9, 40)) for _ in range(50)]  # answers to what came before
    ss.EventSet.from_events(late, np.arange(50) % 3, n_steps=100, dt_us=1e4)
    dense = [(rng.uniform(0, 1e6, 4000), rng.integers(0, 9, 4000)) for _ in range(5)]
    assert ss.EventSet.from_events(dense, np.arange(5) % 3, n_steps=100, dt_us=1e4).n_merged > 15_000


# ---- clocks that wrap ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("period", "lowest"), [(2**24, 0), (2**31, 0), (2**32, 0), (2**32, -(2**31))], ids=["24", "31", "32", "signed"]
)
def test_a_wrap_in_the_order_of_recording_is_undone_and_reported(tmp_path: Path, period: int, lowest: int) -> None:
    rng = np.random.default_rng(2)
    true = np.sort(rng.integers(0, 950_000, (3, 100))) + np.array([[10**6], [period - 500_000], [3 * 10**6]])
    wrapped = true % period + lowest
    sample, unit = np.repeat(np.arange(3), 100), rng.integers(0, 9, 300)
    labels, fact = np.array([0, 1, 0]), rf"clock wraps at 2\^{period.bit_length() - 1} us in 1 sample"
    path = save(tmp_path / "a.npz", t_us=wrapped.ravel(), unit=unit, sample=sample, label=labels)
    expected = ss.EventSet.from_events(
        [(t - t.min(), u) for t, u in zip(true, unit.reshape(3, 100), strict=True)], labels, n_steps=95, dt_us=1e4
    )
    with pytest.warns(UserWarning, match=fact):
        assert_same(load("events", data_dir=path, n_steps=95, dt_ms=10, start="first"), expected)
    events = list(zip(wrapped, unit.reshape(3, 100), strict=True))
    with pytest.warns(UserWarning, match=fact):
        assert_same(ss.EventSet.from_events(events, labels, n_steps=95, dt_us=1e4, start="first"), expected)
    for order in (np.argsort(wrapped[1]), rng.permutation(100)):
        events[1] = wrapped[1][order], unit[100:200][order]
        with pytest.warns(UserWarning, match=r"seems to wrap at .*not in the order of recording.*left as they are"):
            left = ss.EventSet.from_events(events, labels, n_steps=95, dt_us=1e4, start="first")
        assert left.n_lost > 0


def test_falling_times_that_are_no_wraps_stay() -> None:
    rng = np.random.default_rng(3)
    for length in (5e6, 16e6, 6e7, 5e9):
        by_unit = np.concatenate([np.sort(rng.uniform(0, length, 50)) for _ in range(20)])
        for times in (by_unit, rng.permutation(by_unit), np.array([length, 3.0]), np.array([1.67e7, 3.0, 5e6])):
            kept = times.copy()
            assert unwrap(times, np.array([times.size])).texts() == []
            np.testing.assert_array_equal(times, kept)


def test_several_wraps_and_a_little_disorder() -> None:
    true = np.arange(0, 60_000_000, 5000) + 9_000_000
    true[100:102] = true[101], true[100]
    t_us = (true % 2**24).astype(np.float64)
    assert unwrap(t_us, np.array([t_us.size])).moved == {2.0**24: 1}
    np.testing.assert_array_equal(t_us, true)
