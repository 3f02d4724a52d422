"""DVS128 Gesture: clips written here, hostile ones among them, and the ten real clips where they are."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import numpy as np
import pytest

from sparsesnn.datasets import dvs_gesture, load, split_validation
from sparsesnn.datasets.binning import max_count
from sparsesnn.errors import ConfigError, DataError
from sparsesnn.train import Config, train
from sparsesnn.train.evaluation import evaluate_run

tonic = pytest.importorskip("tonic")

REAL = Path(os.environ.get("SPARSESNN_TEST_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSESNN_CACHE", str(tmp_path / "cache"))


def load_partial(**more):
    """The data set, with the warning that it is a part of DVS128 Gesture expected."""
    with pytest.warns(UserWarning, match=r"dvsgesture: \d+ of the (1,077|264) clips of the (train|test) part are in"):
        return load("dvsgesture", **more)


def tonic_set(folder: Path, *, train: bool = True):
    class DVSGesture(tonic.datasets.DVSGesture):
        def _check_exists(self):
            return True

    return DVSGesture(str(folder), train=train)


def clip(rng, n: int, longest_ms: int, first_ms: int = 0) -> np.ndarray:
    """[n, 4]: events at whole milliseconds, many at the same time, in order of time; the last at `longest_ms`."""
    t = np.sort(rng.integers(first_ms, longest_ms + 1, n))
    t[:1], t[-1:] = first_ms, longest_ms
    return np.stack([rng.integers(0, 128, n), rng.integers(0, 128, n), rng.integers(0, 2, n), t], axis=1)


def write(folder: Path, clips: dict[str, np.ndarray], part: str = "ibmGestureTrain") -> Path:
    for name, events in clips.items():
        path = folder / "DVSGesture" / part / name
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, events)
    return folder


def written(folder: Path) -> Path:
    rng = np.random.default_rng(2)
    return write(
        folder,
        {
            "user03_led/0.npy": clip(rng, 4000, 899).astype(np.int32),
            "user03_led/4.npy": clip(rng, 900, 1500, first_ms=400),
            "user12_fluorescent_led/10.npy": clip(rng, 50, 90),  # shorter than a window
            "user12_fluorescent_led/2.npy": clip(rng, 3000, 700)[rng.permutation(3000)],  # out of order
            "user12_natural/2.npy": clip(rng, 500, 600).astype(np.float64),
            "user12_natural/3.npy": clip(rng, 1, 77),
        },
    )


def assert_windows_equal_tonic(event_set, dataset, *, dt_us: int, hop_us: int) -> None:
    """Each window, bin for bin, is what Tonic's ToFrame makes of what Tonic's SliceByTime cuts, pooled by blocks."""
    n_steps, (width, height, _) = event_set.n_steps, event_set.description["sensor"]
    pool = -(-128 // width)
    window_us = n_steps * dt_us
    slicer = tonic.slicers.SliceByTime(time_window=window_us, overlap=window_us - (hop_us or 1 << 50))
    n_seen = 0
    for path, label, user, light, (events, _) in zip(
        dataset.data, dataset.targets, dataset.users, dataset.lighting, dataset, strict=True
    ):
        names = sorted(dataset.data)
        events = events[np.argsort(events["t"], kind="stable")]
        members = np.flatnonzero(event_set.groups["clips"] == names.index(path))
        windows = slicer.get_slice_metadata(events, 0)
        assert event_set.groups["windows"][members].tolist() == list(range(len(windows)))
        for k, (sample, (begin, end)) in enumerate(zip(members, windows, strict=True)):
            start = events["t"][0] + k * hop_us
            to_frame = tonic.transforms.ToFrame(
                sensor_size=(128, 128, 2), time_window=dt_us, start_time=start, end_time=start + window_us
            )
            frames = to_frame(events[begin:end]) if end > begin else np.zeros((n_steps, 2, 128, 128))
            padded = np.pad(frames, ((0, 0), (0, 0), (0, pool * height - 128), (0, pool * width - 128)))
            pooled = padded.reshape(n_steps, 2, height, pool, width, pool).sum((3, 5))
            dense = event_set.batch([sample]).to_dense().numpy()[:, 0]
            largest = max_count(event_set.description["duplicates"]) or 1
            np.testing.assert_array_equal(dense.reshape(pooled.shape), np.minimum(pooled, largest))
            assert event_set.labels[sample] == label
            assert event_set.groups["users"][sample] == user
            assert event_set.description["lights"][event_set.groups["lights"][sample]] == light
            n_seen += 1
    assert n_seen == len(event_set)


# ---- files written here ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"pool": 1},
        {"pool": 4, "hop_ms": 100.0},
        {"pool": 5, "hop_ms": 37.0, "duplicates": "count:2"},
        {"pool": 128, "hop_ms": 250.0, "duplicates": "count:200"},
    ],
)
def test_windows_equal_what_tonic_cuts(tmp_path, options):
    folder = written(tmp_path)
    event_set = load_partial(data_dir=folder, dt_ms=10, n_steps=20, **options)
    assert event_set.n_classes == 11
    hop_us = int(options.get("hop_ms", 0) * 1000)
    assert_windows_equal_tonic(event_set, tonic_set(folder), dt_us=10_000, hop_us=hop_us)
    one_window = options.get("hop_ms", 0) == 0
    assert (event_set.groups["windows"].max() == 0) == one_window


def test_events_of_a_clip_equal_tonics(tmp_path):
    dataset = tonic_set(written(tmp_path))
    for path, (events, _) in zip(dataset.data, dataset, strict=True):
        ours = dvs_gesture.read_clip(Path(path))
        events = events[np.argsort(events["t"], kind="stable")]
        np.testing.assert_array_equal(ours.t_us, events["t"] - events["t"][0])
        for name in "xyp":
            np.testing.assert_array_equal(getattr(ours, name), events[name])


def test_files_of_other_systems_are_skipped(tmp_path):
    expected = load_partial(data_dir=written(tmp_path / "plain"))
    folder = written(tmp_path / "mac")
    for name in ("._user01_led", "__MACOSX/user01_led", ".ipynb_checkpoints"):
        place = folder / "DVSGesture" / "ibmGestureTrain" / name
        place.mkdir(parents=True)
        (place / "0.npy").write_bytes(b"of a Mac")
    found = load_partial(data_dir=folder)
    assert found.labels.tolist() == expected.labels.tolist()


def test_events_in_no_window_are_counted(tmp_path):
    t = np.array([0, 5, 9, 10, 19, 20, 25, 30, 39, 41])
    write(tmp_path, {"user01_lab/5.npy": np.stack([t * 0, t * 0 + 1, t * 0, t], axis=1)})
    window = {"data_dir": tmp_path, "dt_ms": 5, "n_steps": 2, "pool": 1}
    gaps = load_partial(**window, hop_ms=20)  # [0, 10), [20, 30)
    assert gaps.n_spikes.tolist() == [[1, 1], [1, 1]]
    assert (gaps.n_lost, gaps.n_merged) == (5, 1)
    touching = load_partial(**window, hop_ms=10)  # up to 40
    assert len(touching) == 4
    assert (touching.n_lost, touching.n_events) == (1, 10)
    overlapping = load_partial(**window, hop_ms=5)  # 0, 5, .. 30: each event but the first ones twice
    assert len(overlapping) == 7
    assert overlapping.groups["windows"].tolist() == list(range(7))
    assert overlapping.n_lost == 1


@pytest.mark.filterwarnings(
    "ignore:(training|the part of valid) .*has no samples of class"
)  # a person has few of them here
def test_held_out_groups(tmp_path):
    event_set = load_partial(data_dir=written(tmp_path), n_steps=10, dt_ms=10, hop_ms=100)
    train, valid = split_validation(event_set, "users:3")
    assert set(event_set.groups["users"][train].tolist()) == {12}
    assert set(event_set.groups["users"][valid].tolist()) == {3}
    _, later = split_validation(event_set, "windows:3,4")
    assert set(event_set.groups["windows"][later].tolist()) == {3, 4}
    rest, held = split_validation(event_set, "users:3", among=later)
    assert sorted([*rest, *held]) == later.tolist()
    assert set(event_set.groups["users"][held].tolist()) == {3}


def test_lights_have_the_same_numbers_everywhere(tmp_path):
    rng = np.random.default_rng(0)
    one = load_partial(data_dir=write(tmp_path / "a", {"user01_natural/0.npy": clip(rng, 9, 50)}))
    other = load_partial(data_dir=written(tmp_path / "b"))
    unknown = load_partial(data_dir=write(tmp_path / "c", {"user01_unverified/0.npy": clip(rng, 9, 50)}))
    assert one.groups["lights"].tolist() == [4]
    assert set(other.groups["lights"].tolist()) == {1, 3, 4}
    assert unknown.groups["lights"].tolist() == [5]
    assert unknown.description["lights"][5] == "unverified"


def test_a_clip_without_events_is_an_empty_sample(tmp_path):
    folder = write(tmp_path, {"user01_lab/1.npy": np.empty((0, 4), np.int32)})
    event_set = load_partial(data_dir=folder, hop_ms=50)
    assert event_set.n_spikes.sum() == 0
    assert len(event_set) == 1


@pytest.mark.slow
def test_the_number_of_processes_changes_nothing(tmp_path, monkeypatch):
    folder = written(tmp_path)
    monkeypatch.setattr(dvs_gesture, "_BLOCK", 2)
    one = load_partial(data_dir=folder, hop_ms=100, n_steps=10)
    monkeypatch.setenv("SPARSESNN_CACHE", str(tmp_path / "other"))
    two = load_partial(data_dir=folder, hop_ms=100, n_steps=10, n_workers=2)
    for name in ("ids", "n_spikes", "labels"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    assert one.groups.keys() == two.groups.keys() == {"users", "lights", "clips", "windows"}
    for name in one.groups:
        np.testing.assert_array_equal(one.groups[name], two.groups[name])
    assert (one.n_lost, one.n_merged) == (two.n_lost, two.n_merged)


def test_is_cached_by_files_and_parameters(tmp_path, monkeypatch):
    folder = written(tmp_path)
    first = load_partial(data_dir=folder)
    with monkeypatch.context() as patch:
        patch.setattr(dvs_gesture, "read_clip", None)
        assert load_partial(data_dir=folder).path == first.path
    others = {load_partial(data_dir=folder, **change).path for change in (
        {"dt_ms": 2}, {"n_steps": 7}, {"pool": 2}, {"hop_ms": 70}, {"duplicates": "count"}
    )}  # fmt: skip
    write(folder, {"user03_led/1.npy": np.zeros((3, 4), np.int32)})
    others.add(load_partial(data_dir=folder).path)
    assert len(others - {first.path}) == 6


# ---- hostile files -----------------------------------------------------------------------------------------------


def event(x=0, y=0, p=0, t=0) -> np.ndarray:
    return np.array([[1, 1, 1, 1], [x, y, p, t]])


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (event(x=128), r"event 1 is \[128, 0, 0, 0\] \(1 such in all\); allowed: whole x and y from 0 to 127"),
        (event(y=-1), r"event 1 is \[0, -1, 0, 0\]"),
        (event(p=2), r"polarity 0 or 1"),
        (event(t=-3), r"event 1 is \[0, 0, 0, -3\]"),
        (event(t=1 << 50), "whole milliseconds"),
        (event(x=0.5), r"event 1 is \[0.5, 0.0, 0.0, 0.0\]"),
        (event(t=np.nan), r"event 1 is \[0.0, 0.0, 0.0, nan\]"),
        (event(t=np.inf), "whole milliseconds"),
        (np.zeros((5, 3), int), r"is int64\[5, 3\]; a clip is numeric \[events, 4\]"),
        (np.zeros(4), r"is float64\[4\]"),
        (np.zeros((5, 4), complex), r"is complex128\[5, 4\]"),
        (np.array([[None] * 4]), r"is damaged or not a .npy file"),  # a pickle inside: never opened
    ],
)
@pytest.mark.filterwarnings("ignore:dvsgesture")
def test_arrays_of_another_form_are_errors_that_name_the_file(tmp_path, array, message):
    folder = write(tmp_path, {"user01_lab/1.npy": array})
    with pytest.raises(DataError, match=rf"user01_lab/1\.npy: .*{message}"):
        load("dvsgesture", data_dir=folder)


@pytest.mark.filterwarnings("ignore:dvsgesture")
def test_files_cut_short_are_errors(tmp_path):
    folder = write(tmp_path, {"user01_lab/1.npy": clip(np.random.default_rng(0), 30, 99)})
    path = folder / "DVSGesture" / "ibmGestureTrain" / "user01_lab" / "1.npy"
    content = path.read_bytes()
    for length in (0, 5, 20, 127, 130, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(DataError, match=r"1\.npy: is damaged or not a \.npy file .*get a fresh copy"):
            load("dvsgesture", data_dir=folder)


@pytest.mark.parametrize("name", ["user01_lab/11.npy", "user_lab/1.npy", "user01/1.npy", "1.npy", "user01_lab/a/1.npy"])
def test_files_of_other_names_are_errors(tmp_path, name):
    with pytest.raises(DataError, match=rf"{name}: is not a clip's name; allowed: user<NN>_<light>/<class>\.npy"):
        load("dvsgesture", data_dir=write(tmp_path, {name: event()}))


def test_a_missing_part_is_an_error(tmp_path):
    folder = written(tmp_path)
    with pytest.raises(DataError, match=r"neither .*ibmGestureTest nor .* is a folder"):
        load("dvsgesture", split="test", data_dir=folder)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"pool": 129}, "pool is 129; allowed: whole numbers, 1 to 128"),
        ({"hop_ms": -1.0}, "hop_ms is -1.0; allowed: 0 or more"),
        ({"hop_ms": 0.001}, "hop_ms is 0.001; give 0 .one window per clip. or at least 1"),
        ({"n_steps": 0}, "n_steps is 0"),
        ({"duplicates": "count:0"}, "duplicates is 'count:0'"),
    ],
)
def test_parameters_without_meaning_are_errors(tmp_path, parameters, message):
    with pytest.raises(ConfigError, match=message):
        load("dvsgesture", data_dir=written(tmp_path), **parameters)


# ---- real data ---------------------------------------------------------------------------------------------------


def test_real_clips_equal_tonic():
    folder = REAL / "dvs_gesture"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there; SPARSESNN_TEST_DATA names the folder of the data")
    event_set = load_partial(data_dir=folder, dt_ms=10, n_steps=29, hop_ms=290, pool=4, duplicates="count:3")
    assert (len(event_set), event_set.n_neurons) == (40, 32 * 32 * 2)
    dataset = tonic_set(folder)
    assert_windows_equal_tonic(event_set, dataset, dt_us=10_000, hop_us=290_000)
    assert event_set.n_events == sum(len(events) for events, _ in dataset)  # the windows touch: each event once


# ---- training ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:dvsgesture")
def test_training_on_a_copy_without_a_test_part(tmp_path):
    rng = np.random.default_rng(0)
    clips = {}
    for label in range(3):  # a gesture is a place here
        events = clip(rng, 2500, 999)
        events[:, 0] = 40 * label + rng.integers(0, 30, 2500)
        clips[f"user01_lab/{label}.npy"] = events
    config = Config.resolve(
        {
            "data": {
                "name": "dvsgesture",
                "dir": str(write(tmp_path, clips)),
                "n_steps": 5,
                "hop_ms": 100.0,
                "pool": 16,
                "valid": "windows:1",
                "test": "windows:2,7",
            },
            "net": {"text": "auto-32-auto", "grad_threshold": 0.0},
            "optim": {"lr": 3e-3},
            "train": {"epochs": 25, "batch": 8, "plots": False, "tensorboard": False},
        }
    )
    result = train(config, out=tmp_path / "run")
    assert (result.n_train, result.n_valid, result.n_test) == (3 * 6, 3, 6)  # nine windows a clip
    assert result.test_accuracy_last == 1.0
    assert evaluate_run(tmp_path / "run", split="test")["n_samples"] == 6
    with pytest.raises(DataError, match=r"neither .*ibmGestureTest nor"):
        train(config.with_values({"data": {"test": "own"}}), out=tmp_path / "other")
    with pytest.raises(ConfigError, match="test: 'windows:99' names windows 99, which have no samples"):
        train(config.with_values({"data": {"test": "windows:99"}}), out=tmp_path / "third")


@pytest.mark.parametrize("late", [False, True])
def test_one_event_at_another_time_does_not_ask_for_windows_without_end(tmp_path, late):
    events = clip(np.random.default_rng(0), 31, 4_000_099, first_ms=4_000_000)
    events[17, 3] += 3_600_001 if late else -3_600_001
    folder = write(tmp_path, {"user01_lab/1.npy": events})
    with pytest.raises(
        DataError, match=rf"user01_lab/1\.npy: event 17 is at {events[17, 3]:,} ms, 1\.0 hours from.*at most an hour"
    ):
        load_partial(data_dir=folder, hop_ms=1)
    events[17, 3] = events[0, 3]
    write(tmp_path, {"user01_lab/1.npy": events})
    assert load_partial(data_dir=folder, hop_ms=1).n_classes == 11


@pytest.mark.filterwarnings("ignore:dvsgesture")
def test_damaged_headers_are_errors_or_clips(tmp_path):
    folder = write(tmp_path, {"user01_lab/1.npy": clip(np.random.default_rng(0), 30, 99)})
    path = folder / "DVSGesture" / "ibmGestureTrain" / "user01_lab" / "1.npy"
    content, rng, n_good = path.read_bytes(), np.random.default_rng(0), 0
    for damage in (b'"""', b"(((", b"{0", b"\n ", *(rng.bytes(3) for _ in range(300))):
        for place in rng.integers(6, 120, 3).tolist():
            path.write_bytes(content[:place] + damage + content[place + len(damage) :])
            with contextlib.suppress(DataError):
                dvs_gesture.read_clip(path)
                n_good += 1
    assert n_good < 500
