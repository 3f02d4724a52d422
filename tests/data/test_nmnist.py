"""N-MNIST: files written here, hostile ones among them, and the real subset where it is."""

from __future__ import annotations

import json
import os
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from sparsesnn.cli import main
from sparsesnn.datasets import load, nmnist
from sparsesnn.datasets.binning import max_count
from sparsesnn.errors import ConfigError, DataError

tonic = pytest.importorskip("tonic")

REAL = Path(os.environ.get("SPARSESNN_TEST_DATA", Path(__file__).resolve().parents[3] / "shared" / "data")) / "nmnist"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSESNN_CACHE", str(tmp_path / "cache"))


def load_partial(**more):
    """The data set, with the warning that it is a part of N-MNIST expected."""
    with pytest.warns(UserWarning, match=r"nmnist: [\d,]+ of the [16]0,000 recordings of the (train|test) part are in"):
        return load("nmnist", **more)


def tonic_set(folder: Path, **options):
    class NMNIST(tonic.datasets.NMNIST):
        def _check_exists(self):
            return True

    return NMNIST(str(folder), **options)


def encode(x, y, p, t_us) -> bytes:
    """Events in the format of the files."""
    x, y, p, t_us = (np.asarray(a, np.int64) for a in (x, y, p, t_us))
    columns = [x, y, (p << 7) | (t_us >> 16), (t_us >> 8) & 255, t_us & 255]
    return np.stack(columns, axis=1).astype(np.uint8).tobytes()


def random_events(rng, n: int, longest_us: int = 320_000) -> bytes:
    return encode(
        rng.integers(0, 34, n), rng.integers(0, 34, n), rng.integers(0, 2, n), np.sort(rng.integers(0, longest_us, n))
    )


def write(folder: Path, recordings: dict[str, bytes], part: str = "Train") -> Path:
    for name, content in recordings.items():
        path = folder / "NMNIST" / part / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def written(folder: Path) -> Path:
    """Recordings at the limits of the format: none, one and many events, several overflows, one time for all."""
    rng = np.random.default_rng(1)
    overflow = encode([0], [240], [0], [0])
    return write(
        folder,
        {
            "0/00002.bin": random_events(rng, 900),
            "0/00010.bin": b"",
            "3/00001.bin": random_events(rng, 300)[: 250 * 5] + overflow * 3 + random_events(rng, 200) + overflow,
            "3/00007.bin": overflow,
            "7/00003.bin": encode([33], [33], [1], [(1 << 23) - 1]),
            "7/00004.bin": encode([5] * 9, [6] * 9, [0, 1, 1] * 3, [20_000] * 9),
            # borders: of steps (5 ms), of saccades, of the window
            "9/00009.bin": encode(
                range(10), range(10), [0, 1] * 5,
                [0, 4_999, 5_000, 99_999, 100_000, 105_000, 105_001, 210_000, 210_001, 314_999],
            ),
        },
    )  # fmt: skip


def assert_equals_tonic(event_set, dataset, *, dt_us: int, start_us: int = 0, samples=None) -> None:
    """Bin for bin what Tonic's ToFrame makes of Tonic's events, count for count where counts are kept."""
    n_steps = event_set.n_steps
    to_frame = tonic.transforms.ToFrame(
        sensor_size=(34, 34, 2), time_window=dt_us, start_time=start_us, end_time=start_us + n_steps * dt_us
    )
    assert len(event_set) == len(dataset)
    for sample in range(len(dataset)) if samples is None else samples:
        events, label = dataset[sample]
        events = events[np.argsort(events["t"], kind="stable")]  # ToFrame searches in sorted times
        frames = to_frame(events) if events.size else np.zeros((n_steps, 2, 34, 34))
        dense = event_set.batch([sample]).to_dense().numpy()[:, 0]
        largest = max_count(event_set.description["duplicates"]) or 1
        np.testing.assert_array_equal(dense.reshape(frames.shape), np.minimum(frames, largest))
        assert event_set.labels[sample] == label


# ---- files written here ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"stabilize": True}, {"first_saccade_only": True, "stabilize": True}])
def test_equals_tonic_event_for_event(tmp_path, options):
    dataset = tonic_set(written(tmp_path), train=True, **options)
    folder = tmp_path / "NMNIST" / "Train"
    names = nmnist.list_files(folder)
    assert [str(folder / name) for name in names] == dataset.data
    read = nmnist.read_events([folder / name for name in names])
    if options.get("first_saccade_only"):
        read = read.where(read.t_us < 100_000)
    if options.get("stabilize"):
        read = nmnist.stabilised(read)
    bounds = np.concatenate([[0], np.cumsum(read.n_events)])
    for sample, (begin, end) in enumerate(pairwise(bounds)):
        events, label = dataset[sample]
        for name, ours in (("x", read.x), ("y", read.y), ("p", read.p), ("t", read.t_us)):
            np.testing.assert_array_equal(ours[begin:end], events[name])
        assert label == int(names[sample][0])


@pytest.mark.parametrize("duplicates", ["binary", "count:2", "count:9"])
@pytest.mark.parametrize("stabilise", [False, True])
def test_lists_equal_tonics_frames(tmp_path, stabilise, duplicates):
    folder = written(tmp_path)
    event_set = load_partial(data_dir=folder, n_steps=40, dt_ms=5, stabilise=stabilise, duplicates=duplicates)
    dataset = tonic_set(folder, train=True, stabilize=stabilise)
    assert_equals_tonic(event_set, dataset, dt_us=5000)
    raw = tonic_set(folder, train=True)
    assert event_set.n_events == sum(len(raw[s][0]) for s in range(len(raw)))
    beyond = sum((dataset[s][0]["t"] >= 200_000).sum() for s in range(len(dataset)))
    moved_off = event_set.n_events - sum(len(dataset[s][0]) for s in range(len(dataset)))
    assert event_set.n_lost == beyond + moved_off
    assert (moved_off > 0) == stabilise


def test_a_saccade_begins_at_its_own_zero(tmp_path):
    folder = written(tmp_path)
    window = {"data_dir": folder, "dt_ms": 5, "n_steps": 21}
    first = load_partial(**window, saccade=1)
    assert_equals_tonic(first, tonic_set(folder, train=True, first_saccade_only=True), dt_us=5000)
    for saccade, begin, end in ((2, 105_000, 210_000), (3, 210_000, 1 << 40)):
        dataset = tonic_set(folder, train=True, transform=lambda e, b=begin, f=end: e[(e["t"] > b) & (e["t"] <= f)])
        assert_equals_tonic(load_partial(**window, saccade=saccade), dataset, dt_us=5000, start_us=begin + 1)
    everything = load_partial(**window, saccade=0).n_events
    assert all(load_partial(**window, saccade=s).n_events == everything for s in (1, 2, 3))


def test_unit_order_and_pooling(tmp_path):
    write(tmp_path, {"4/1.bin": encode([3, 33, 0, 2], [5, 33, 0, 5], [0, 1, 0, 0], [0, 1, 6_000, 2])})
    whole = load_partial(data_dir=tmp_path, n_steps=2)
    assert whole.n_neurons == 2312
    assert whole.ids.tolist() == [2 + 34 * 5, 3 + 34 * 5, 33 + 34 * (33 + 34), 0]
    assert whole.description["sensor"] == [34, 34, 2]
    pooled = load_partial(data_dir=tmp_path, n_steps=2, pool=3)  # 34 pixels make 12 neurons, the last of one pixel
    assert pooled.n_neurons == 288
    assert pooled.ids.tolist() == [0 + 12 * 1, 1 + 12 * 1, 11 + 12 * (11 + 12), 0]
    counted = load_partial(data_dir=tmp_path, n_steps=2, pool=4, duplicates="count:2")
    assert counted.description["sensor"] == [9, 9, 2]
    assert counted.ids.tolist() == [0 + 9 * 1, 8 + 9 * (8 + 9), 0]
    assert counted.values.tolist() == [2, 1, 1]


@pytest.mark.slow
def test_the_number_of_processes_and_the_size_of_blocks_change_nothing(tmp_path, monkeypatch):
    folder = written(tmp_path)
    one = load_partial(data_dir=folder, stabilise=True, duplicates="count")
    monkeypatch.setattr(nmnist, "_BLOCK", 3)
    for n_workers in (1, 2):
        monkeypatch.setenv("SPARSESNN_CACHE", str(tmp_path / f"cache-{n_workers}"))
        other = load_partial(data_dir=folder, stabilise=True, duplicates="count", n_workers=n_workers)
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_array_equal(one.n_spikes, other.n_spikes)
        np.testing.assert_array_equal(one.values, other.values)
        assert (one.n_lost, one.n_merged) == (other.n_lost, other.n_merged)


def test_is_cached_by_files_and_parameters(tmp_path, monkeypatch):
    folder = written(tmp_path)
    first = load_partial(data_dir=folder)
    assert not first.ids.flags.owndata
    with monkeypatch.context() as patch:
        patch.setattr(nmnist, "read_events", None)
        assert load_partial(data_dir=folder).path == first.path
        assert load_partial(data_dir=folder / "NMNIST").path == first.path
    others = {load_partial(data_dir=folder, **change).path for change in (
        {"dt_ms": 2}, {"n_steps": 7}, {"pool": 2}, {"saccade": 1}, {"stabilise": True}, {"duplicates": "count"}
    )}  # fmt: skip
    (folder / "NMNIST" / "Train" / "3" / "00001.bin").write_bytes(encode([1], [1], [1], [1]))
    others.add(load_partial(data_dir=folder).path)
    (folder / "NMNIST" / "Train" / "3" / "00007.bin").unlink()
    others.add(load_partial(data_dir=folder).path)
    assert len(others - {first.path}) == 8


# ---- hostile files -----------------------------------------------------------------------------------------------


def test_files_of_other_systems_are_skipped(tmp_path):
    expected = load_partial(data_dir=written(tmp_path / "plain"))
    others = dict.fromkeys(
        ("0/._00002.bin", ".ipynb_checkpoints/00002-checkpoint.bin", "__MACOSX/0/._00002.bin"), b"1234567"
    )
    found = load_partial(data_dir=write(written(tmp_path / "mac"), others))
    assert found.labels.tolist() == expected.labels.tolist()
    np.testing.assert_array_equal(found.ids, expected.ids)


@pytest.mark.parametrize(
    ("recordings", "message"),
    [
        (
            {"1/7.bin": bytes(12)},
            r"7\.bin: has 12 bytes, which is not a multiple of the 5 bytes of an event; it is cut",
        ),
        (
            {"1/6.bin": bytes(5), "1/7.bin": bytes(5) + encode([34], [0], [0], [9])},
            r"7\.bin: has an event at x = 34, y = 0 \(1 such",
        ),
        ({"1/7.bin": encode([0], [239], [0], [9])}, r"7\.bin: has an event at x = 0, y = 239"),
        ({"10/7.bin": b""}, r"10/7\.bin: a recording must lie in a folder 0 to 9"),
        ({"7.bin": b""}, "7.bin: a recording must lie in a folder 0 to 9"),
        ({"1/deeper/7.bin": b""}, "a recording must lie in a folder 0 to 9"),
        ({"1/7.txt": b""}, r"Train: holds no \.bin files; check that the data set was unpacked there"),
    ],
)
@pytest.mark.filterwarnings("ignore:nmnist")
def test_files_in_another_form_are_errors_that_name_the_file(tmp_path, recordings, message):
    with pytest.raises(DataError, match=message):
        load("nmnist", data_dir=write(tmp_path, recordings))


def test_a_missing_folder_is_an_error_and_no_download(tmp_path, monkeypatch):
    def no_download(self):
        raise AssertionError("no download was requested")

    monkeypatch.setattr(tonic.datasets.NMNIST, "download", no_download)
    with pytest.raises(DataError, match=r"neither .*NMNIST/Test nor .*Test is a folder; .*download=True"):
        load("nmnist", data_dir=tmp_path, split="test")
    with pytest.raises(DataError, match=r"no folder was given; give data_dir .--data., the folder that holds NMNIST/T"):
        load("nmnist")


def test_download_is_asked_of_tonic(tmp_path, monkeypatch):
    monkeypatch.setattr(
        tonic.datasets.NMNIST, "download", lambda self: write(tmp_path, {"8/1.bin": encode([1], [2], [0], [3])}, "Test")
    )
    assert load_partial(data_dir=tmp_path, split="test", download=True).labels.tolist() == [8]
    monkeypatch.setattr(tonic.datasets.NMNIST, "download", None)  # a partial copy is not fetched again
    assert len(load_partial(data_dir=tmp_path, split="test", download=True)) == 1


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"pool": 0}, "pool is 0; allowed: whole numbers, 1 to 34"),
        ({"pool": 35}, "pool is 35"),
        ({"saccade": 4}, r"saccade is 4; allowed: whole numbers, 0 to 3"),
        ({"n_steps": 0}, "n_steps is 0"),
        ({"dt_ms": 0}, "dt_ms is 0"),
        ({"duplicates": "sum"}, "duplicates is 'sum'"),
        ({"n_workers": 0}, "0 worker processes requested"),
    ],
)
@pytest.mark.filterwarnings("ignore:nmnist")
def test_parameters_without_meaning_are_errors(tmp_path, parameters, message):
    with pytest.raises(ConfigError, match=message):
        load("nmnist", data_dir=written(tmp_path), **parameters)


def test_a_whole_copy_does_not_warn(tmp_path, monkeypatch):
    monkeypatch.setitem(nmnist._WHOLE, "train", 7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(load("nmnist", data_dir=written(tmp_path))) == 7


@pytest.mark.filterwarnings("always:nmnist")
def test_training_from_the_command_line(tmp_path, capsys):
    rng = np.random.default_rng(0)
    for part, n in (("Train", 12), ("Test", 4)):
        for k in range(n):  # a digit is a place here
            x = rng.integers(0, 10, 300) + 12 * (k % 3)
            events = encode(
                x, rng.integers(0, 34, 300), rng.integers(0, 2, 300), np.sort(rng.integers(0, 310_000, 300))
            )
            write(tmp_path, {f"{k % 3}/{k:05}.bin": events}, part)
    out = tmp_path / "run"
    options = ["--set", "data.pool=4", "--set", "data.stabilise=true", "--net", "auto-16-auto", "--epochs", "2"]
    arguments = ["train", "nmnist", "--data", str(tmp_path), "--out", str(out), "--no-plots", "--no-tensorboard"]
    assert main([*arguments, *options, "--valid", "random:0.25"]) == 0
    assert "warning: nmnist: 12 of the 60,000 recordings of the train part are in" in capsys.readouterr().err
    result = json.loads((out / "result.json").read_text())
    assert (result["n_train"], result["n_valid"], result["n_test"]) == (9, 3, 4)
    assert result["config"]["data"]["stabilise"] is True
    assert result["data"]["description"]["sensor"] == [9, 9, 2]


# ---- real data ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("split", "n"), [("train", 1000), ("test", 100)])
@pytest.mark.parametrize("stabilise", [False, True])
def test_real_recordings_equal_tonic(split, n, stabilise):
    if not REAL.is_dir():
        pytest.skip(f"{REAL} is not there; SPARSESNN_TEST_DATA names the folder of the data")
    window = {"data_dir": REAL, "split": split, "stabilise": stabilise}
    event_set = load_partial(**window)
    assert (len(event_set), event_set.n_classes, event_set.n_steps) == (n, 10, 63)
    dataset = tonic_set(REAL, train=split == "train", stabilize=stabilise)
    # stabilised events of every file are compared below, their frames of a part
    assert_equals_tonic(event_set, dataset, dt_us=5000, samples=range(0, n, 10 if stabilise else 1))
    names = nmnist.list_files(REAL / "NMNIST" / split.capitalize())
    read = nmnist.read_events([REAL / "NMNIST" / split.capitalize() / name for name in names])
    read = nmnist.stabilised(read) if stabilise else read
    for name, column in (("x", "x"), ("y", "y"), ("p", "p"), ("t_us", "t")):
        theirs = np.concatenate([events[column] for events, _ in dataset])
        np.testing.assert_array_equal(getattr(read, name), theirs)
    counted = load_partial(**window, duplicates="count:3")
    assert_equals_tonic(counted, dataset, dt_us=5000, samples=range(0, n, 50))
    assert counted.n_events == event_set.n_events
