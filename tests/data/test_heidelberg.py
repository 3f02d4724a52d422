"""SHD and SSC: files written here, hostile ones among them, and the real data where it is."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from sparsesnn.datasets import cache, hdf5, heidelberg, load
from sparsesnn.datasets.binning import max_count
from sparsesnn.errors import ConfigError, DataError, MissingDependencyError

h5py = pytest.importorskip("h5py")
tonic = pytest.importorskip("tonic")

REAL = Path(os.environ.get("SPARSESNN_TEST_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))

FILES = {"shd": ("SHD", ("train", "test")), "ssc": ("SSC", ("train", "valid", "test"))}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSESNN_CACHE", str(tmp_path / "cache"))


def write_file(path: Path, seed: int = 0, **changes: object) -> list[tuple[np.ndarray, np.ndarray]]:
    """A file in SHD's format with 5 samples, one of them empty; a change of None leaves a key out."""
    rng = np.random.default_rng(seed)
    sizes = (40, 0, 7, 300, 1)
    events = [
        (np.sort(rng.uniform(0, 1.2, n)).astype(np.float16), rng.integers(0, 700, n).astype(np.uint16)) for n in sizes
    ]
    content: dict[str, object] = {
        "spikes/times": [times for times, _ in events],
        "spikes/units": [units for _, units in events],
        "labels": np.array([0, 1, 2, 1, 0], np.uint16),
        "extra/speaker": np.array([3, 3, 4, 5, 4], np.uint16),
        "extra/keys": np.array([b"zero", b"one", b"two"]),
        **changes,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for key, value in content.items():
            if isinstance(value, list):
                dataset = file.create_dataset(key, (len(value),), h5py.vlen_dtype(value[0].dtype))
                for s, array in enumerate(value):
                    dataset[s] = array
            elif value is not None:
                file[key] = value
    return events


def tonic_set(name: str, folder: Path, split: str):
    """Tonic's own data set, unchanged; it wants the archive to exist, by name only."""
    class_name = FILES[name][0]
    (folder / class_name / f"{name}_{split}.h5.zip").touch()
    if name == "shd":
        return tonic.datasets.SHD(str(folder), train=split == "train")
    return tonic.datasets.SSC(str(folder), split=split)


def assert_equals_tonic(event_set, dataset, samples, dt_us: int) -> None:
    """Bin for bin what Tonic's ToFrame makes of Tonic's events."""
    n_steps, n_units = event_set.n_steps, 700
    to_frame = tonic.transforms.ToFrame(
        sensor_size=dataset.sensor_size, time_window=dt_us, start_time=0, end_time=n_steps * dt_us
    )
    for sample in samples:
        events, label = dataset[sample]
        frames = to_frame(events) if events.size else np.zeros((n_steps, 1, n_units))
        dense = event_set.batch([sample]).to_dense().numpy()[:, 0]
        largest = max_count(event_set.description["duplicates"]) or 1
        np.testing.assert_array_equal(dense, np.minimum(frames[:, 0], largest))
        assert event_set.labels[sample] == label


# ---- files written here ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "split"), [(name, split) for name, (_, splits) in FILES.items() for split in splits])
def test_equals_tonic_event_for_event(tmp_path, name, split):
    path = tmp_path / FILES[name][0] / f"{name}_{split}.h5"
    written = write_file(path)
    dataset = tonic_set(name, tmp_path, split)
    read = [pair for block in heidelberg.read_events(path) for pair in block]
    assert len(read) == len(dataset) == len(written)
    for sample, (t_us, unit) in enumerate(read):
        events, _ = dataset[sample]
        np.testing.assert_array_equal(t_us, events["t"])
        np.testing.assert_array_equal(unit, events["x"])

    event_set = load(name, split=split, data_dir=tmp_path, dt_ms=7, n_steps=150)
    assert_equals_tonic(event_set, dataset, range(5), 7000)
    assert event_set.labels.tolist() == [0, 1, 2, 1, 0]
    assert event_set.groups["speakers"].tolist() == [3, 3, 4, 5, 4]
    assert (event_set.n_neurons, event_set.n_classes) == (700, 3)
    assert event_set.n_lost == sum((t >= 150 * 7000).sum() for t, _ in read) > 0
    assert event_set.description["classes"] == ["zero", "one", "two"]
    assert event_set.description["split"] == split


def test_blocks_and_pooling(tmp_path, monkeypatch):
    write_file(tmp_path / "SHD" / "shd_train.h5")
    whole = load("shd", data_dir=tmp_path)
    monkeypatch.setattr(hdf5, "BLOCK_SAMPLES", 2)
    monkeypatch.setenv("SPARSESNN_CACHE", str(tmp_path / "other"))
    blocks = load("shd", data_dir=tmp_path)
    np.testing.assert_array_equal(whole.ids, blocks.ids)
    np.testing.assert_array_equal(whole.n_spikes, blocks.n_spikes)
    assert whole.n_lost == blocks.n_lost

    pooled = load("shd", data_dir=tmp_path, pool=5)
    assert pooled.n_neurons == 140
    dense = whole.batch(range(5)).to_dense().numpy()
    want = dense.reshape(*dense.shape[:2], 140, 5).max(3)
    np.testing.assert_array_equal(pooled.batch(range(5)).to_dense().numpy(), want)


def test_counts_equal_tonics_frames(tmp_path):
    path = tmp_path / "SHD" / "shd_train.h5"
    written = write_file(path)
    dataset = tonic_set("shd", tmp_path, "train")
    event_set = load("shd", data_dir=tmp_path, dt_ms=200, n_steps=5, duplicates="count:2")
    assert event_set.n_neurons == 700
    assert_equals_tonic(event_set, dataset, range(5), 200_000)
    assert event_set.n_events == sum(times.size for times, _ in written)
    assert event_set.n_merged < load("shd", data_dir=tmp_path, dt_ms=200, n_steps=5).n_merged


@pytest.mark.slow
def test_the_number_of_processes_changes_nothing(tmp_path, monkeypatch):
    write_file(tmp_path / "shd_train.h5")
    one = load("shd", data_dir=tmp_path)
    monkeypatch.setattr(hdf5, "BLOCK_SAMPLES", 2)
    monkeypatch.setenv("SPARSESNN_CACHE", str(tmp_path / "other"))
    two = load("shd", data_dir=tmp_path, n_workers=2)
    for name in ("ids", "n_spikes", "labels"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    assert (one.n_lost, one.n_merged) == (two.n_lost, two.n_merged)


def test_the_folder_of_the_file_will_do_and_needs_no_archive(tmp_path):
    write_file(tmp_path / "speech" / "shd_test.h5")
    event_set = load("shd", split="test", data_dir=str(tmp_path / "speech"))
    assert len(event_set) == 5


def test_is_cached_by_file_and_parameters(tmp_path, monkeypatch):
    path = tmp_path / "SHD" / "shd_train.h5"
    write_file(path)
    first = load("shd", data_dir=tmp_path)
    monkeypatch.setitem(sys.modules, "tonic.datasets", None)  # a cached set needs neither Tonic nor h5py
    monkeypatch.setitem(sys.modules, "h5py", None)
    again = load("shd", data_dir=tmp_path)
    np.testing.assert_array_equal(again.ids, first.ids)
    assert not again.ids.flags.owndata
    with pytest.raises(MissingDependencyError, match=r"needs the package .* pip install 'sparsesnn\[data\]'"):
        load("shd", data_dir=tmp_path, dt_ms=5)
    monkeypatch.undo()
    monkeypatch.setenv("SPARSESNN_CACHE", str(tmp_path / "cache"))
    write_file(path, seed=1)
    other = load("shd", data_dir=tmp_path)
    assert other.ids.tolist() != first.ids.tolist()
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_a_copy_elsewhere_is_described_alike(tmp_path):
    write_file(tmp_path / "a" / "shd_train.h5")
    content = (tmp_path / "a" / "shd_train.h5").read_bytes()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "shd_train.h5").write_bytes(content)
    one, other = (load("shd", data_dir=tmp_path / name) for name in "ab")
    assert dict(one.description) == dict(other.description)


def test_without_tonic_the_message_names_the_extra(tmp_path, monkeypatch):
    write_file(tmp_path / "shd_train.h5")
    monkeypatch.setitem(sys.modules, "tonic", None)
    monkeypatch.setitem(sys.modules, "tonic.datasets", None)
    with pytest.raises(MissingDependencyError, match=r"'shd' needs the package 'tonic'.*sparsesnn\[data\]"):
        load("shd", data_dir=tmp_path)


# ---- hostile files ------------------------------------------------------------------------------------------------


def no_download(*args, **kwargs):
    raise AssertionError("no download was requested")


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_an_error_and_no_download(tmp_path, monkeypatch, name):
    monkeypatch.setattr(tonic.datasets.hsd.HSD, "download", no_download)
    class_name = FILES[name][0]
    with pytest.raises(DataError, match=rf"neither .*{class_name}/{name}_train\.h5 nor .*download=True"):
        load(name, data_dir=tmp_path)
    with pytest.raises(DataError, match="no folder was given; give data_dir"):
        load(name)


def test_download_is_asked_of_tonic(tmp_path, monkeypatch):
    def fetch(self):
        write_file(Path(self.location_on_system) / self.data_filename)

    monkeypatch.setattr(tonic.datasets.hsd.HSD, "download", fetch)
    assert len(load("shd", split="test", data_dir=tmp_path, download=True)) == 5
    monkeypatch.setattr(tonic.datasets.hsd.HSD, "download", no_download)
    assert len(load("shd", split="test", data_dir=tmp_path, download=True, dt_ms=3)) == 5


f16, u16 = np.float16, np.uint16
GOOD = [np.array([0.1], f16)] * 5
UNITS = [np.array([1], u16)] * 5


def spikes(sample: int, times=(0.1,), units=(1,)) -> dict[str, object]:
    """Five samples of one event; one of them has these events instead."""
    all_times, all_units = list(GOOD), list(UNITS)
    all_times[sample], all_units[sample] = np.array(times, f16), np.array(units, u16)
    return {"spikes/times": all_times, "spikes/units": all_units}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"spikes/times": None}, r"has no spikes/times; a file in SHD's format holds"),
        ({"labels": None, "extra/keys": None}, r"has no labels, extra/keys;"),
        ({"extra/speaker": None}, r"has no extra/speaker;"),
        ({"spikes/times": np.zeros(5)}, r"spikes/times is float64\[5\]; it must hold one array of floating-point"),
        ({"spikes/times": np.zeros((5, 2))}, r"spikes/times is float64\[5, 2\]"),
        ({"spikes/units": GOOD}, "it must hold one array of integer units per sample"),
        ({"labels": np.zeros((5, 1), u16)}, r"labels is uint16\[5, 1\]; it must be flat integers"),
        ({"labels": np.zeros(5)}, r"labels is float64\[5\]"),
        ({"extra/speaker": np.zeros((5, 1), u16)}, r"extra/speaker is \[5, 1\]; it must be flat"),
        ({"labels": np.zeros(4, u16)}, "numbers of samples are .*'labels': 4.*must be equal"),
        ({"extra/speaker": np.zeros(6, u16)}, "'extra/speaker': 6"),
        ({"spikes/times": GOOD[:4]}, "'spikes/times': 4"),
        ({"labels": np.array([0, 1, 2, 3, 0])}, "labels run from 0 to 3, but extra/keys names 3 classes"),
        ({"labels": np.array([0, -1, 2, 1, 0])}, "labels run from -1 to 2"),
        ({"labels": np.array([0, 1, 2, 2**40, 0]), "extra/keys": np.empty(0, "S1")}, "at most 100,000 classes"),
        (spikes(3, times=[np.nan]), "sample 3 has times such as nan"),
        (spikes(4, times=[np.inf]), "sample 4 has times such as inf"),
        (spikes(2, units=[700]), "sample 2 has units such as 700"),
        (spikes(4, units=[1, 2]), r"sample 4 has times \[1\] and units \[2\]"),
    ],
)
def test_files_in_another_form_are_errors_that_name_the_file(tmp_path, changes, message):
    write_file(tmp_path / "shd_train.h5", **changes)
    with pytest.raises(DataError, match=rf"shd_train\.h5: .*{message}"):
        load("shd", data_dir=tmp_path)


def test_events_outside_the_window_are_counted(tmp_path):
    times = [np.array([-0.001, -0.0, 0.0, 0.0099, 0.5, 1.0], f16), *GOOD[:4]]
    units = [np.arange(6).astype(u16), *UNITS[:4]]
    write_file(tmp_path / "shd_train.h5", **{"spikes/times": times, "spikes/units": units})
    event_set = load("shd", data_dir=tmp_path, dt_ms=10, n_steps=50)
    assert event_set.n_lost == 3
    assert event_set.ids[:3].tolist() == [1, 2, 3]
    assert event_set.n_spikes[0, 0] == 3


def test_a_class_without_samples_still_counts(tmp_path):
    write_file(tmp_path / "shd_train.h5", labels=np.zeros(5, u16))
    assert load("shd", data_dir=tmp_path).n_classes == 3
    write_file(tmp_path / "shd_train.h5", **{"extra/keys": np.empty(0, "S1")})
    assert load("shd", data_dir=tmp_path).n_classes == 3


def test_speakers_that_have_names_are_numbered(tmp_path):
    write_file(tmp_path / "shd_train.h5", **{"extra/speaker": np.array([b"ute", b"ada", b"ute", b"zoe", b"ada"])})
    assert load("shd", data_dir=tmp_path).groups["speakers"].tolist() == [1, 0, 1, 2, 0]


def test_a_file_without_samples(tmp_path):
    path = tmp_path / "shd_train.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("spikes/times", (0,), h5py.vlen_dtype(f16))
        file.create_dataset("spikes/units", (0,), h5py.vlen_dtype(u16))
        file["labels"] = file["extra/speaker"] = np.empty(0, u16)
        file["extra/keys"] = np.array([b"zero"])
    event_set = load("shd", data_dir=tmp_path)
    assert len(event_set) == 0
    assert event_set.n_steps == 100


@pytest.mark.parametrize("n_bytes", [0, 7, 100, 2000, 5000])
def test_truncated_files_are_errors(tmp_path, n_bytes):
    path = tmp_path / "shd_train.h5"
    write_file(path)
    content = path.read_bytes()
    assert len(content) > n_bytes
    path.write_bytes(content[:n_bytes])
    with pytest.raises(DataError, match=r"shd_train\.h5: is damaged or not an HDF5 file .*get a fresh copy"):
        load("shd", data_dir=tmp_path)


def test_a_file_that_kills_the_library_is_an_error(tmp_path, monkeypatch):
    write_file(tmp_path / "shd_train.h5")
    monkeypatch.setattr(hdf5, "PROBE", tmp_path / "probe.py")
    hdf5.PROBE.write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    with pytest.raises(DataError, match=r"shd_train\.h5: is damaged: the HDF5 library ended with signal 11"):
        load("shd", data_dir=tmp_path)


def test_damaged_bytes_are_an_error_or_leave_a_whole_set(tmp_path):
    """Anything but a crash: HDF5 has no checksums by default, so not every change can be seen."""
    path = tmp_path / "shd_train.h5"
    write_file(path)
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    n_errors = 0
    for _ in range(15):
        damaged = bytearray(content)
        for place in rng.integers(0, len(content), 20):
            damaged[place] = rng.integers(0, 256)
        path.write_bytes(damaged)
        try:
            event_set = load("shd", data_dir=tmp_path)
        except DataError:
            n_errors += 1
        else:
            event_set.batch(range(len(event_set))).validate()
    assert n_errors > 1


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"dt_ms": 0}, "dt_ms is 0"),
        ({"n_steps": -3}, "n_steps is -3"),
        ({"pool": 701}, "pool is 701"),
        ({"duplicates": "all"}, "duplicates is 'all'; allowed: 'binary'"),
        ({"n_workers": 0}, "shd train: 0 worker processes requested; give a number from 1"),
        (
            {"pools": 5},
            "shd: unknown parameter 'pools'; did you mean 'pool'.*allowed: dt_ms, n_steps, pool, duplicates",
        ),
    ],
)
def test_parameters_without_meaning_are_errors(tmp_path, parameters, message):
    write_file(tmp_path / "shd_train.h5")
    with pytest.raises(ConfigError, match=message):
        load("shd", data_dir=tmp_path, **parameters)


# ---- real data ----------------------------------------------------------------------------------------------------


def real(folder: str) -> Path:
    if not (REAL / folder / "SHD").is_dir():
        pytest.skip(f"{REAL / folder} is not there; SPARSESNN_TEST_DATA names the folder of the data")
    return REAL / folder


def test_real_shd_recording_equals_tonic():
    folder = real("shd_one")
    event_set = load("shd", split="test", data_dir=folder, dt_ms=1, n_steps=1000)
    assert (len(event_set), event_set.n_classes, event_set.labels.tolist()) == (1, 20, [11])
    assert event_set.ids.size + event_set.n_lost == 9386
    assert_equals_tonic(event_set, tonic.datasets.SHD(str(folder), train=False), [0], 1000)


@pytest.mark.slow
@pytest.mark.parametrize(("split", "n"), [("train", 1200), ("test", 300)])
def test_real_speech_equals_tonic(split, n):
    folder = real("fsdd_cochlea")
    event_set = load("shd", split=split, data_dir=folder, dt_ms=10, n_steps=80)
    assert (len(event_set), event_set.n_classes, event_set.n_neurons) == (n, 10, 700)
    dataset = tonic.datasets.SHD(str(folder), train=split == "train")
    assert_equals_tonic(event_set, dataset, range(n), 10_000)
    path = folder / "SHD" / f"shd_{split}.h5"
    events = [pair for block in heidelberg.read_events(path) for pair in block]
    assert event_set.n_lost == sum(int((t_us >= 800_000).sum()) for t_us, _ in events)
    np.testing.assert_array_equal(event_set.groups["speakers"], dataset.speaker)
    for sample in range(0, n, n // 15):
        from_tonic, _ = dataset[sample]
        np.testing.assert_array_equal(events[sample][0], from_tonic["t"])
        np.testing.assert_array_equal(events[sample][1], from_tonic["x"])


def test_real_speech_cache_is_smaller_than_the_events(tmp_path):
    folder = real("fsdd_cochlea")
    event_set = load("shd", split="test", data_dir=folder)
    n_events = sum(t.size for block in heidelberg.read_events(folder / "SHD" / "shd_test.h5") for t, _ in block)
    (file,) = (tmp_path / "cache").iterdir()
    cache.verify(file)
    assert event_set.ids.nbytes < 0.5 * 4 * n_events + 1
    assert file.stat().st_size < 0.6 * 4 * n_events
