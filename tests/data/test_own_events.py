"""A user's own events: files of arrays, of SHD's format, folders and functions; damaged ones among them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sparsesnn as ss
from sparsesnn.cli import main
from sparsesnn.datasets import arrays as arrays_module
from sparsesnn.datasets import events as own_events
from sparsesnn.datasets import load, windows
from sparsesnn.datasets.recording import read
from sparsesnn.datasets.sensor import Sensor
from sparsesnn.errors import CodeError, ConfigError, DataError
from sparsesnn.train import Config, evaluate_run, load_run, prepare, train

h5py = pytest.importorskip("h5py")

CLASSES = np.array(["up", "left", "right"])


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSESNN_CACHE", str(tmp_path / "cache"))


def arrays(n: int = 13, n_units: int = 37, seed: int = 0) -> dict[str, np.ndarray]:
    """Events in any order; sample 3 has none, unit 5 is silent; the units that fire tell the classes apart."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 40, n)
    counts[3] = 0
    sample = np.repeat(np.arange(n), counts)
    label = np.arange(n) % 3
    unit = (rng.integers(0, 9, sample.size) + 12 * label[sample]) % n_units
    unit[unit == 5] = 6
    unit[0] = n_units - 1
    order = rng.permutation(sample.size)
    return {
        "t_ms": rng.uniform(0, 250, sample.size)[order],
        "unit": unit[order].astype(np.uint16),
        "sample": sample[order].astype(np.int32),
        "label": CLASSES[label],
        "group": np.array(["zoe", "ada"])[np.arange(n) // 2 % 2],
        "group_day": np.arange(n) // 5,
    }


def save(path: Path, table: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npz":
        np.savez_compressed(path, **table)
        return path
    with h5py.File(path, "w") as file:
        for name, values in table.items():
            texts = np.asarray(values).dtype.kind == "U"
            file.create_dataset(name, data=[str(v) for v in values] if texts else values)
    return path


def by_sample(table: dict[str, np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pairs of times in microseconds and units."""
    n = len(table["label"])
    return [(1e3 * table["t_ms"][table["sample"] == s], table["unit"][table["sample"] == s]) for s in range(n)]


def assert_same(a: ss.EventSet, b: ss.EventSet) -> None:
    for name in ("ids", "n_spikes", "labels"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    assert (a.n_neurons, a.n_classes, a.n_lost, a.n_merged) == (b.n_neurons, b.n_classes, b.n_lost, b.n_merged)


@pytest.mark.parametrize("ending", ["npz", "h5", "hdf5"])
@pytest.mark.parametrize("unit_of_time", ["t_us", "t_ms", "t_s"])
def test_a_file_of_arrays_is_what_from_events_makes(tmp_path: Path, ending: str, unit_of_time: str) -> None:
    table = arrays()
    expected = ss.EventSet.from_events(
        by_sample(table), table["label"], n_steps=20, dt_us=10_000.0, groups={"group": table["group"]}
    )
    factor = {"t_us": 1e3, "t_ms": 1, "t_s": 1e-3}[unit_of_time]
    times = np.round(table.pop("t_ms") * factor, 12)
    found = load(
        "events", data_dir=save(tmp_path / f"mine.{ending}", {unit_of_time: times, **table}), n_steps=20, dt_ms=10
    )
    assert_same(found, expected)
    assert found.n_lost > 0
    assert found.n_neurons == 37
    assert found.description["classes"] == ["left", "right", "up"] == expected.description["classes"]
    np.testing.assert_array_equal(CLASSES[np.arange(13) % 3], np.array(found.description["classes"])[found.labels])
    assert found.description["group_names"] == {"group": ["ada", "zoe"]} == expected.description["group_names"]
    assert found.groups["group"].tolist() == expected.groups["group"].tolist()
    assert found.groups["day"].tolist() == (np.arange(13) // 5).tolist()
    assert found.path is not None, "it is cached"
    assert load("events", data_dir=tmp_path / f"mine.{ending}", n_steps=20, dt_ms=10).path == found.path


def test_a_window_of_its_own_loses_nothing(tmp_path: Path) -> None:
    found = load("events", data_dir=save(tmp_path / "a.npz", arrays()))
    assert (found.n_steps, found.n_lost) == (100, 0)
    assert found.dt_us == 2500.0
    late = arrays()
    late["t_ms"] = late["t_ms"] + 1000.0 * late["sample"]
    first = load("events", data_dir=save(tmp_path / "late.npz", late), start="first")
    assert first.n_lost == 0
    assert first.dt_us is not None
    assert first.dt_us <= 2500.0
    assert all(spikes[0] > 0 for spikes in first.n_spikes[np.arange(13) != 3])


@pytest.mark.parametrize("signs", [(0, 1), (-1, 1)])
def test_pixels_and_polarities(tmp_path: Path, signs: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    x, y, on = rng.integers(0, 11, 90), rng.integers(0, 7, 90), rng.integers(0, 2, 90)
    x[0], y[0] = 10, 6
    table = {
        "t_us": np.arange(90),
        "x": x,
        "y": y,
        "p": np.array(signs)[on],
        "sample": np.arange(90) // 45,
        "label": [0, 1],
    }
    found = load("events", data_dir=save(tmp_path / "a.npz", table), n_steps=3, dt_ms=0.03, pool=2)
    assert found.sensor is not None
    assert (found.sensor.width, found.sensor.height, found.sensor.n_polarities) == (6, 4, 2)
    units = x // 2 + 6 * (y // 2 + 4 * on)
    pairs = [(np.arange(45), units[:45]), (np.arange(45, 90), units[45:])]
    assert_same(found, ss.EventSet.from_events(pairs, [0, 1], n_neurons=48, n_steps=3, dt_us=30.0))
    larger = load("events", data_dir=tmp_path / "a.npz", n_steps=3, dt_ms=0.03, width=20, height=8)
    assert larger.n_neurons == 20 * 8 * 2
    with pytest.raises(DataError, match=r"a\.npz: x reaches 10; data\.width is 10; raise it, or give 0"):
        load("events", data_dir=tmp_path / "a.npz", width=10)


@pytest.mark.parametrize("extra", [False, True])
def test_a_file_like_shd_with_any_number_of_channels(tmp_path: Path, extra: bool) -> None:
    times = [np.array([0.1, 0.25], np.float16), np.array([], np.float16), np.array([0.0], np.float32)]
    units = [np.array([1, 1234], np.uint16), np.array([], np.uint16), np.array([7], np.uint16)]
    with h5py.File(tmp_path / "mine.h5", "w") as file:
        for name, values, dtype in (("times", times, np.float32), ("units", units, np.uint16)):
            data = file.create_dataset(f"spikes/{name}", (3,), h5py.vlen_dtype(dtype))
            for k, value in enumerate(values):
                data[k] = value
        file["labels"] = np.array([2, 0, 1])
        if extra:
            file["extra/speaker"] = np.array([4, 4, 1])
            file["extra/keys"] = np.array([b"a", b"b", b"c", b"d"])
    found = load("events", data_dir=tmp_path / "mine.h5", n_steps=10, dt_ms=50)
    assert found.n_neurons == 1235
    assert found.ids.tolist() == [1, 1234, 7]
    assert found.n_spikes.argmax(1).tolist() == [1, 0, 0]
    assert found.labels.tolist() == [2, 0, 1]
    assert found.n_classes == (4 if extra else 3)
    assert found.description["classes"] == (["a", "b", "c", "d"] if extra else [])
    assert {name: list(group) for name, group in found.groups.items()} == ({"speakers": [4, 4, 1]} if extra else {})


def test_parts_of_a_file_and_files_of_a_folder(tmp_path: Path) -> None:
    table = arrays()
    part = np.array(["train"] * 8 + ["test"] * 3 + ["valid"] * 2)
    one = {k: load("events", split=k, data_dir=save(tmp_path / "one.npz", {**table, "part": part})) for k in set(part)}
    for split, name in (("train", "train.npz"), ("test", "mine_test.h5"), ("valid", "mine-valid.npz")):
        chosen = np.flatnonzero(part == split)
        mine = np.isin(table["sample"], chosen)
        own = {k: v[mine] if k in ("t_ms", "unit", "sample") else v[chosen] for k, v in table.items()}
        own["sample"] = own["sample"] - chosen[0]
        save(tmp_path / "folder" / name, own)
    for split, expected in one.items():
        assert_same(load("events", split=split, data_dir=tmp_path / "folder"), expected)
        assert expected.description["parts"] == ["train", "valid", "test"]
    assert [len(one[k]) for k in ("train", "test", "valid")] == [8, 3, 2]
    (tmp_path / "folder" / "__MACOSX").mkdir()
    (tmp_path / "folder" / ".ipynb_checkpoints").mkdir()
    for name in ("._train.npz", ".mine_test.h5"):
        (tmp_path / "folder" / name).write_bytes(b"of a Mac")
    assert_same(load("events", data_dir=tmp_path / "folder"), one["train"])
    save(tmp_path / "folder" / "other_test.npz", table)
    with pytest.raises(DataError, match=r"mine_test\.h5 and other_test\.npz are both the part 'test'"):
        load("events", data_dir=tmp_path / "folder")
    with pytest.raises(DataError, match=r"no\.npz: has no part 'valid'; its parts: train"):
        load("events", split="valid", data_dir=save(tmp_path / "no.npz", table))


def config(data: Path | str, **more: Any) -> Config:
    small = {"net": {"text": "auto-16-auto"}, "train": {"epochs": 2, "batch": 5, "plots": False, "tensorboard": False}}
    return Config.resolve({"data": {"name": "events", "dir": str(data)}}, small, more)


def test_a_run_from_a_file_to_its_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(tmp_path / "mine.npz", arrays(60))
    result = train(config(path), out=tmp_path / "run")
    assert (result.n_train, result.n_valid, result.n_test) == (42, 6, 12)
    assert result.data["description"]["classes"] == ["left", "right", "up"]
    assert load_run(tmp_path / "run").n_classes == 3
    assert evaluate_run(tmp_path / "run")["accuracy"] == result.test_accuracy
    arguments = ["train", "events", "--data", str(path), "--epochs", "1", "--no-plots", "--valid", "group:ada"]
    assert main([*arguments, "--out", str(tmp_path / "by-group")]) == 0
    said = capsys.readouterr().err
    assert "3 classes (left, right, up)" in said
    assert "(group:ada)" in said
    with pytest.raises(ConfigError, match=r"valid: 'group:eva' does not list names .*allowed: group:ada,zoe"):
        prepare.load_parts(config(path).with_values({"data": {"valid": "group:eva"}}).data)


def test_own_parts_are_used_and_others_are_taken_from_training(tmp_path: Path) -> None:
    part = np.array(["train"] * 45 + ["test"] * 15)
    parts = prepare.load_parts(config(save(tmp_path / "a.npz", {**arrays(60), "part": part})).data)
    assert parts.valid is not None
    assert (len(parts.train), len(parts.valid), len(parts.test)) == (39, 6, 15)
    assert parts.test.event_set is not parts.train.event_set


FUNCTIONS = """
import numpy as np
import sparsesnn as ss

N_CALLS = 0

def table():
    return {"t_us": [5, 1, 9], "unit": [0, 2, 1], "sample": [0, 0, 1], "label": ["b", "a"]}

def one_set():
    return ss.EventSet.from_events([([1.0], [2])] * 20, [0, 1] * 10, n_steps=3, dt_us=1.0)

def both():
    return {"train": one_set(), "test": one_set()}

def wrong():
    return [1, 2]

def strange():
    return {"dev": one_set()}

def fails():
    return 1 // 0

def missing():
    return {"t_us": [5]}

not_a_function = 7
"""


def test_functions(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(FUNCTIONS)
    table = load("events", data_dir=f"{path}:table", n_steps=2, dt_ms=0.005)
    assert (table.ids.tolist(), table.n_neurons) == ([2, 0, 1], 3)
    assert table.description["classes"] == ["a", "b"]
    assert len(load("events", data_dir=f"{path}:one_set")) == 20
    parts = prepare.load_parts(config("").with_data_dir(f"{path}:one_set").data)
    assert (len(parts.train), len(parts.test)) == (14, 4)
    assert len(prepare.load_parts(config("").with_data_dir(f"{path}:both").data).test) == 20
    for name, message in {
        "wrong": r"mine\.py:wrong: returns a list; allowed: an EventSet, a dict",
        "strange": "returns the part 'dev'; allowed: train, valid, test",
        "fails": r"mine\.py:fails: ended with ZeroDivisionError: .*\(line 23 of .*mine\.py\)",
        "missing": r"mine\.py:missing: has no array 'sample'",
        "nothing": "mine.py has no function 'nothing'",
        "not_a_function": "has no function 'not_a_function'",
    }.items():
        with pytest.raises(DataError, match=message):
            load("events", data_dir=f"{path}:{name}")
    with pytest.raises(DataError, match=r"other\.py is not a file; give FILE\.py:FUNCTION"):
        load("events", data_dir=f"{tmp_path}/other.py:table")
    with pytest.raises(DataError, match="has no part 'test'; its parts: train"):
        load("events", split="test", data_dir=f"{path}:one_set")


# ---- code runs only if it is named in the command or call ---------------------------------------------------------------

TAPS = """
import pathlib
import numpy as np

pathlib.Path(__file__).with_suffix(".ran").touch()

def taps():
    labels = np.arange(30) % 2
    unit = np.repeat(4 * labels, 9) + np.tile(np.arange(9) % 4, 30)
    return {"t_us": np.tile(np.arange(9.0), 30), "unit": unit, "sample": np.repeat(np.arange(30), 9), "label": labels}
"""


@pytest.fixture(scope="module")
def run_from_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of code, which leaves taps.ran if it runs, and `run`, a run on its data."""
    folder = tmp_path_factory.mktemp("code")
    (folder / "taps.py").write_text(TAPS)
    (folder / "recipe.toml").write_text(config("taps.py:taps").to_toml())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "--config", "recipe.toml", "--data", "taps.py:taps", "--out", "run", "--quiet"]) == 0
    (folder / "taps.ran").unlink()
    return folder


@pytest.fixture
def taps(run_from_code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, which is the current folder."""
    folder = tmp_path / "here"
    shutil.copytree(run_from_code, folder)
    monkeypatch.chdir(folder)
    own_events._made.cache_clear()  # as in a new process
    return folder


@pytest.mark.parametrize(
    "command",
    [
        "eval run",
        "show run",
        "train --resume --out run --epochs 3",
        "train --config recipe.toml --out other",
        "train --config recipe.toml --out other --seeds 0,1",
        "train --config run/config.toml --comm dry-run:2",
        "data build --config recipe.toml",
        "data show --config recipe.toml",
    ],
)
def test_code_that_a_file_names_does_not_run(taps: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = (taps / "run" / "result.json").read_bytes()
    assert main(command.split()) == 2
    said = capsys.readouterr().err
    assert not (taps / "taps.ran").exists()
    assert (taps / "run" / "result.json").read_bytes() == result
    assert not list(taps.glob("other/**/checkpoint.json"))
    assert "data.dir" in said
    typed = said[said.index("run: sparsesnn ") + 5 :].split()
    assert typed[:-2] == ["sparsesnn", *command.split()]
    assert typed[-2] == "--data"
    assert Path(typed[-1].rpartition(":")[0]).name == "taps.py"


@pytest.mark.parametrize(
    "command",
    [
        "eval run --data taps.py:taps",
        "show run --data taps.py:taps",
        "train --resume --out run --epochs 3 --data taps.py:taps --quiet",
        "train --config recipe.toml --out other --seeds 0,1 --data taps.py:taps --quiet",
        "train --config recipe.toml --out other --data.dir taps.py:taps --quiet",
        "train --config recipe.toml --out other --set data.dir=taps.py:taps --quiet",
        "train --config recipe.toml --comm dry-run:2 --data taps.py:taps",
        "data build --config recipe.toml --data taps.py:taps",
    ],
)
def test_code_in_the_command_runs(taps: Path, command: str) -> None:
    assert main(command.split()) == 0
    assert (taps / "taps.ran").exists()


def test_code_in_python(taps: Path, run_from_code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_file = config("taps.py:taps")
    for call in (
        lambda: train(of_file, out=taps / "other"),
        lambda: evaluate_run(taps / "run"),
        lambda: load_run(taps / "run").part("train"),
        lambda: load("events", data_dir="taps.py:taps", runs_code=False),
        lambda: prepare.load_parts(
            of_file.with_data_dir("taps.py:taps").with_values({"data": {"dir": "taps.py:x"}}).data
        ),
    ):
        with pytest.raises(CodeError, match=r"data_dir='.*taps\.py:\w+'"):
            call()
    with pytest.raises(ConfigError, match="runs_code"):
        config("taps.py:taps").with_values({"data": {"runs_code": True}})
    assert not (taps / "taps.ran").exists()
    # the path in the checkpoint is absolute: in another folder it does not mean another file
    place = load_run(taps / "run").config.data.dir
    assert place == str(run_from_code / "taps.py:taps")
    assert (
        evaluate_run(taps / "run", data_dir=place)["loss"]
        == evaluate_run(taps / "run", data_dir="taps.py:taps")["loss"]
    )
    monkeypatch.chdir(taps.parent)
    run = load_run(taps / "run", data=taps / "taps.py:taps")
    assert len(run.part("train")) + len(run.part("valid")) + len(run.part("test")) == 30


# ---- Tonic ------------------------------------------------------------------------------------------------------------


class TonicLike:
    """As a data set of Tonic: items are structured events and a label."""

    sensor_size = (9, 5, 2)
    dtype = np.dtype([("x", np.int16), ("y", np.int16), ("t", np.int64), ("p", bool)])

    def __init__(self, labels: list[Any]) -> None:
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, k: int) -> tuple[np.ndarray, Any]:
        rng = np.random.default_rng(k)
        n = 17 * k
        events = np.empty(n, self.dtype)
        events["x"], events["y"], events["p"] = rng.integers(0, 9, n), rng.integers(0, 5, n), rng.integers(0, 2, n)
        events["t"] = np.sort(rng.integers(0, 1000, n))
        return events, self.labels[k]


def test_a_data_set_of_tonic_equals_its_frames() -> None:
    transforms = pytest.importorskip("tonic.transforms")
    dataset = TonicLike([2, 0, 1, 1])
    found = ss.EventSet.from_tonic(dataset, n_steps=7, dt_us=100.0, duplicates="count:3")
    to_frame = transforms.ToFrame(TonicLike.sensor_size, time_window=100, start_time=0, end_time=700)
    for k in range(1, 4):
        frame = np.minimum(to_frame(dataset[k][0])[:7], 3).reshape(7, -1)
        np.testing.assert_array_equal(found.batch([k]).to_dense()[:, 0].numpy(), frame)
    assert found.labels.tolist() == [2, 0, 1, 1]
    assert found.sensor is not None
    assert (found.sensor.width, found.sensor.n_polarities) == (9, 2)
    named = ss.EventSet.from_tonic(TonicLike(["b", "a"]), n_steps=7, dt_us=100.0, pool=2)
    assert named.description["classes"] == ["a", "b"]
    assert named.n_neurons == 5 * 3 * 2


def test_what_is_no_data_set_of_tonic() -> None:
    with pytest.raises(DataError, match=r"TonicLike: sample 1 has x from 0 to \d+; allowed: 0 to 3"):
        ss.EventSet.from_tonic(TonicLike([0, 1]), n_steps=7, dt_us=100.0, sensor_size=(4, 5, 2))
    with pytest.raises(DataError, match="list has no sensor_size; give sensor_size="):
        ss.EventSet.from_tonic([], n_steps=7, dt_us=100.0)
    with pytest.raises(DataError, match=r"sample 0 is ndarray with fields \[\]; give events with x, t"):
        ss.EventSet.from_tonic([(np.zeros(3), 0)], n_steps=7, dt_us=100.0, sensor_size=(4, 5, 2))


def test_classes_of_a_data_set_of_tonic() -> None:
    class Named(TonicLike):
        classes = ("dog", "cat", "owl")

    window: dict[str, Any] = {"n_steps": 7, "dt_us": 100.0}
    for classes in (Named.classes, np.array(Named.classes, "S"), {"cat": 1, "dog": 0, "owl": 2}):
        Named.classes = classes  # type: ignore[assignment]
        for labels, numbers in ((["owl", "dog"], [2, 0]), ([np.array([1]), np.array(0)], [1, 0])):
            found = ss.EventSet.from_tonic(Named(labels), **window)
            assert (found.labels.tolist(), found.n_classes, found.classes) == (numbers, 3, ["dog", "cat", "owl"])
    found = ss.EventSet.from_tonic(Named(["owl", "fox"]), classes=["fox", "owl"], **window)
    assert (found.labels.tolist(), found.classes) == ([1, 0], ["fox", "owl"])
    with pytest.raises(
        DataError, match=r"labels: holds 'fox', which dataset\.classes .*classes=.* lacks; .*allowed: dog, cat, owl"
    ):
        ss.EventSet.from_tonic(Named(["owl", "fox"]), **window)
    with pytest.warns(
        UserWarning, match="from_tonic: TonicLike: labels are texts.*: b, c.*earlier set had fox, owl"
    ) as caught:
        ss.EventSet.from_tonic(TonicLike(["b", "c"]), **window)
    assert caught[0].filename == __file__


def test_sizes_for_a_data_set_of_tonic() -> None:
    plain = ss.EventSet.from_tonic(TonicLike([0, 1]), n_steps=7, dt_us=100.0, pool=2)
    sizes: dict[str, Any] = {"n_steps": np.int64(7), "pool": torch.tensor(2), "sensor_size": np.array([9, 5, 2])}
    assert_same(ss.EventSet.from_tonic(TonicLike([0, 1]), dt_us=np.float32(100), **sizes), plain)
    for wrong in (0, 2.0, True, 10):
        with pytest.raises(ConfigError, match=f"pool is {wrong}"):
            ss.EventSet.from_tonic(TonicLike([0, 1]), n_steps=7, dt_us=100.0, pool=wrong)
    with pytest.raises(DataError, match=r"has sensor_size \(9, 5\); give sensor_size="):
        ss.EventSet.from_tonic(TonicLike([0, 1]), n_steps=7, dt_us=100.0, sensor_size=(9, 5))
    with pytest.raises(DataError, match=r"labels: has the shape \[2, 7\]; give one label for each sample"):
        ss.EventSet.from_tonic(TonicLike([np.zeros(7, int)] * 2), n_steps=7, dt_us=100.0)


# ---- labels ---------------------------------------------------------------------------------------------------------------


def test_labels_of_from_events() -> None:
    events = [([1.0, 2.0], [0, 4])] * 3
    window: dict[str, Any] = {"n_steps": 3, "dt_us": 1.0}
    named = ss.EventSet.from_events(events, np.array([b"b", b"a", b"b"]), **window)
    assert (named.labels.tolist(), named.n_neurons, named.description["classes"]) == ([1, 0, 1], 5, ["a", "b"])
    for labels, message in (
        ([0.0, 1.5, 2.0], r"labels: is float64, such as .*0\.0.*; give whole numbers from 0, or texts"),
        ([0, -1, 2], "labels run from -1 to 2; allowed: 0 to 99,999"),
        ([0, 10**12, 2], "labels run from 0 to 1000000000000; allowed: 0 to 99,999"),
        ([[0], [1], [2]], r"labels: has the shape \[3, 1\]"),
        (np.array([None, "a", "b"]), "labels: holds a NoneType, None"),
    ):
        with pytest.raises(DataError, match=message):
            ss.EventSet.from_events(events, labels, **window)


# ---- hostile files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"t_ms": None}, "has no times; give one of t_us, t_ms, t_s"),
        ({"t_s": np.zeros(2)}, "has t_ms and t_s; give one of"),
        ({"t_ms": np.array(["a"] * 238)}, "t_ms is <U1"),
        ({"sample": None}, r"has no array 'sample'; add it \(for every event the number of its sample"),
        ({"label": None}, r"has no array 'label'; add it \(for every sample its class"),
        ({"unit": None}, "has no units; give unit, or x and y"),
        ({"x": np.zeros(3, int)}, "has unit and x or y"),
        ({"unit": None, "x": np.zeros(3, int)}, "has no y; give x and y"),
        ({"unit": np.zeros(3, int)}, r"unit has 3 entries, t_ms \d+; give one for each event"),
        ({"unit": np.zeros((2, 2), int)}, r"unit is int64\[2, 2\]; give a flat array"),
        ({"label": np.zeros(5)}, "label: is float64"),
        ({"unit": np.zeros(9)}, r"unit is float64\[9\]; give a flat array of whole numbers"),
        ({"label": np.zeros(2, int)}, r"sample\[\d+\] is \d+; label has 2 samples, so 0 to 1 are allowed"),
        ({"group": np.zeros(2, int)}, r"group is \[2\], label \[13\]; give one entry for each sample"),
        ({"part": np.array(["train"] * 12 + ["dev"])}, r"part is \['dev'\]; allowed: train, valid, test"),
        ({"part": np.zeros(13, int)}, "part is numbers; allowed: train"),
        ({"unit": np.arange(219) * 10**7}, r"unit\[218\] is 2180000000; allowed: 0 to 99,999,999; remove the event"),
        (
            {"unit": None, "x": np.arange(219) * 99, "y": np.arange(219)},
            r"x\[218\] is 21582; allowed: 0 to 9,999; remove",
        ),
        ({"label": np.arange(13) * 10**6}, "labels run from 0 to 12000000; allowed: 0 to 99,999"),
    ],
)
@pytest.mark.parametrize("ending", ["npz", "h5"])
def test_arrays_that_contradict_one_another(tmp_path: Path, changes: dict[str, Any], message: str, ending: str) -> None:
    table = {name: values for name, values in {**arrays(), **changes}.items() if values is not None}
    path = save(tmp_path / f"mine.{ending}", table)
    with pytest.raises(
        DataError, match=rf"mine\.{ending}: .*(?s:{message if ending == 'npz' else message.replace('<U1', '.*')})"
    ):
        load("events", data_dir=path)


@pytest.mark.parametrize(
    ("name", "value"), [("t_ms", np.nan), ("t_ms", -np.inf), ("unit", -1), ("sample", -1), ("sample", 13)]
)
def test_values_out_of_range_are_named_with_their_place(tmp_path: Path, name: str, value: float) -> None:
    table = arrays()
    table[name] = table[name].astype(float if name == "t_ms" else np.int64)
    table[name][7] = value
    with pytest.raises(DataError, match=rf"mine\.npz: {name}\[7\] is {value:g}"):
        load("events", data_dir=save(tmp_path / "mine.npz", table))


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "harm",)

    table = arrays() | {"label": np.array([Harm()] * 13, object)}
    np.savez(tmp_path / "mine.npz", **table)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"mine\.npz: label holds Python objects, which are never made from files"):
        load("events", data_dir=tmp_path / "mine.npz")
    assert not (tmp_path / "harm").exists()


def npz(path: Path, name: str, header: bytes, data: bytes, **more: Any) -> Path:
    """An archive with one array more, whose header is written as it is."""
    np.savez(path, **{k: v for k, v in arrays().items() if k != name})  # type: ignore[arg-type]
    with zipfile.ZipFile(path, "a", **more) as archive:
        archive.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data)
    return path


def test_what_a_header_claims_is_compared_before_memory_is_taken(tmp_path: Path) -> None:
    claim = b"{'descr': '<i8', 'fortran_order': False, 'shape': (%d,)}\n"
    with pytest.raises(DataError, match=r"unit claims int64\[1000000000000\], 8,000,000,000,000 bytes, but holds 16"):
        load("events", data_dir=npz(tmp_path / "a.npz", "unit", claim % 10**12, bytes(16)))
    with pytest.raises(DataError, match="unit is int64"):
        load("events", data_dir=npz(tmp_path / "b.npz", "unit", claim.replace(b"(%d,)", b"(2, 1)"), bytes(16)))
    with pytest.raises(DataError, match=r"c\.npz: is damaged or not an \.npz file"):
        load("events", data_dir=npz(tmp_path / "c.npz", "unit", b"{'descr': '''", bytes(16)))
    good = npz(tmp_path / "d.npz", "unit", claim % 2, bytes(16), compression=zipfile.ZIP_DEFLATED).read_bytes()
    size = (len(claim % 2) + 10 + 16).to_bytes(4, "little")
    (tmp_path / "d.npz").write_bytes(good.replace(size, (2**31 - 1).to_bytes(4, "little")))
    with pytest.raises(DataError, match=r"d\.npz: (unit claims 2,147,483,647 bytes from \d+; it is|is) damaged"):
        load("events", data_dir=tmp_path / "d.npz")
    with h5py.File(tmp_path / "e.h5", "w") as file:
        file.create_dataset("t_us", (10**13,), np.float64)  # never written: takes no room in the file
        for name in ("unit", "sample", "label"):
            file[name] = np.zeros(3, int)
    with pytest.raises(
        DataError, match=r"e\.h5: t_us claims 10,000,000,000,000 entries, 80,000,000,000,000 bytes.* allowed: 67,3"
    ):
        load("events", data_dir=tmp_path / "e.h5")
    (tmp_path / "f.h5").write_bytes(b"no")
    with pytest.raises(DataError, match=r"f\.h5: is damaged or not an HDF5 file"):
        load("events", data_dir=tmp_path / "f.h5")


@pytest.mark.parametrize("descr", ["<U0", "|S0", "|V0"])
def test_entries_of_no_size_are_refused(tmp_path: Path, descr: str) -> None:
    header = b"{'descr': '%s', 'fortran_order': False, 'shape': (800000000,)}\n" % descr.encode()
    with pytest.raises(DataError, match=rf"a\.npz: label is \{descr}\[800000000\]; give a flat array"):
        load("events", data_dir=npz(tmp_path / "a.npz", "label", header, b""))


def test_archives_take_memory_in_proportion_to_their_size(tmp_path: Path) -> None:
    def refusal(name: str, values: np.ndarray, **more: np.ndarray) -> str:
        np.savez_compressed(tmp_path / "a.npz", **{**arrays(), name: values, **more})  # type: ignore[arg-type]
        with pytest.raises(DataError) as raised:
            read(tmp_path / "a.npz")
        return str(raised.value)

    assert "label claims uint8[5000000], 5,000,000 bytes, from " in refusal("label", np.zeros(5_000_000, np.uint8))
    assert "bytes in such a file" in refusal("label", np.full(40_000, "x" * 700))
    assert "allowed: 1,000 characters of a text" in refusal("label", np.array(["x" * 1001] * 13))
    groups = {f"group_{k}": np.zeros(4_000_000, np.uint8) for k in range(9)}
    assert re.search(
        r"its 15 arrays claim 36,\d+,\d+ entries from .*allowed: 34,", refusal("label", np.arange(13), **groups)
    )
    assert "allowed: 256" in refusal("label", np.arange(13), **{f"group_{k}": np.arange(13) for k in range(251)})
    header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (1,)}\n"
    with pytest.raises(DataError, match=r"unit is compressed by method 14; allowed: 0 \(stored\), 8"):
        read(npz(tmp_path / "b.npz", "unit", header, bytes(8), compression=zipfile.ZIP_LZMA))
    with zipfile.ZipFile(tmp_path / "c.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("t_us.npy", b"\x93NUMPY\x02\x00" + (10**8).to_bytes(4, "little") + b" " * 10**8)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"c\.npz: is damaged"):
            read(tmp_path / "c.npz")
        assert tracemalloc.get_traced_memory()[1] < 10**7
    finally:
        tracemalloc.stop()


def test_a_check_of_far_units_takes_no_memory_for_those_between(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    far = {"x": np.full(9, 9999), "y": np.full(9, 9999), "p": np.ones(9, int)}
    table = {"t_us": np.arange(9), "sample": np.zeros(9, int), "label": [0], **far}
    tracemalloc.start()
    try:
        assert main(["data", "check", str(save(tmp_path / "a.npz", table)), "--out", str(tmp_path / "a.png")]) == 0
        assert tracemalloc.get_traced_memory()[1] < 3 * 10**8
    finally:
        tracemalloc.stop()
    assert "1 of 200,000,000 have events" in capsys.readouterr().out


def test_damaged_archives_are_errors_or_whole(tmp_path: Path) -> None:
    path = save(tmp_path / "mine.npz", arrays())
    content, rng, n_good = path.read_bytes(), np.random.default_rng(0), 0
    for k in range(300):
        damaged = bytearray(content[: rng.integers(len(content))] if k % 10 == 0 else content)
        for place in rng.integers(0, max(1, len(damaged)), 3).tolist():
            damaged[place : place + 1] = rng.bytes(1)
        path.write_bytes(damaged)
        with contextlib.suppress(DataError):
            assert len(read(path)) == 13
            n_good += 1
    assert n_good < 250


def test_places_that_are_no_files(tmp_path: Path) -> None:
    for place, message in (
        (None, r"events: no file was given; give --data FILE\.npz"),
        (tmp_path / "a.npz", r"a\.npz is neither a file nor a folder"),
        (tmp_path, r"holds no train\.npz"),
        (
            save(tmp_path / "other" / "b.h5", arrays()).rename(tmp_path / "b.mat"),
            r"b\.mat: ends in '\.mat'; allowed: \.npz",
        ),
    ):
        with pytest.raises(DataError, match=message):
            load("events", data_dir=place)


# ---- sparsesnn data check ----------------------------------------------------------------------------------------------------


def test_check_says_what_is_there_and_draws_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    table = arrays()
    table["t_ms"][2] = -4.0
    path = save(tmp_path / "mine.npz", {**table, "weather": np.zeros(3)})
    assert main(["data", "check", str(path), "--out", str(tmp_path / "mine.png")]) == 0
    out = capsys.readouterr().out
    for fact in (
        rf"samples  13, events {len(table['unit'])}",
        "units    0 to 36",
        "classes  3: left 4, right 4, up 5",
        "group    group: 2: ada 6, zoe 7",
        "parts    train 13",
        "not read: weather",
        "1 sample without events",
        "1 event before time 0",
        f"sparsesnn train events --data {path}",
    ):
        assert fact in out, out
    assert (tmp_path / "mine.png").read_bytes().startswith(b"\x89PNG")
    assert main(["data", "check", str(tmp_path / "no.npz")]) == 1
    assert "is neither a file nor a folder" in capsys.readouterr().err


def test_check_says_what_training_would_refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(tmp_path / "wrong.npz", {**arrays(), "label": np.arange(13) - 1})
    assert main(["data", "check", str(path), "--no-plot"]) == 1
    assert "wrong.npz: label: labels run from -1 to 11; allowed: 0 to 99,999" in capsys.readouterr().err
    nothing = {name: array[:0] if name in ("t_ms", "unit", "sample") else array for name, array in arrays().items()}
    path = save(tmp_path / "nothing.npz", {**nothing, "part": np.array(["test"] * 13)})
    assert main(["data", "check", str(path), "--no-plot"]) == 0
    out = capsys.readouterr().out
    assert "note     there are no events" in out
    assert "note     the part 'train' has no samples" in out


def test_names_survive_the_cache_and_json(tmp_path: Path) -> None:
    path = save(tmp_path / "mine.npz", arrays())
    made, kept = (load("events", data_dir=path) for _ in range(2))
    assert json.loads(json.dumps(dict(kept.description))) == json.loads(json.dumps(dict(made.description)))


# ---- large files ---------------------------------------------------------------------------------------------------


def large(n_events: int, n: int = 23, *, ordered: bool) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    sample = rng.integers(0, n - 2, n_events)
    return {
        "t_us": rng.random(n_events) * 1e6,
        "x": rng.integers(0, 33, n_events).astype(np.int16),
        "y": rng.integers(0, 21, n_events).astype(np.int16),
        "p": rng.integers(0, 2, n_events).astype(np.int8) * 2 - 1,
        "sample": np.sort(sample) if ordered else sample,
        "label": np.arange(n) % 3,
    }


def save_as(kind: str, folder: Path, table: dict[str, np.ndarray]) -> Path:
    path = folder / f"mine.{'h5' if 'h5' in kind else 'npz'}"
    if kind == "h5 in chunks":
        with h5py.File(path, "w") as file:
            for name, values in table.items():
                file.create_dataset(name, data=values, chunks=(17,) if values.size > 17 else None, compression="gzip")
    else:
        (np.savez if kind == "npz" else np.savez_compressed)(path, **table)
    return path


@pytest.mark.parametrize("kind", ["npz", "compressed npz", "h5 in chunks"])
@pytest.mark.parametrize("ordered", [True, False])
def test_pieces_of_any_size_give_the_same(
    kind: str, ordered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = large(1009, ordered=ordered)
    path = save_as(kind, tmp_path, table)
    found = []
    for block in (1 << 20, 97, 1):
        monkeypatch.setattr(arrays_module, "BLOCK", block)
        monkeypatch.setattr(arrays_module, "_LARGE", 1 if block < 1000 else 1 << 20)
        monkeypatch.setattr(windows, "_BLOCK_EVENTS", 3 * block)
        made = load("events", data_dir=path, cache_dir=tmp_path / str(block), start="first", pool=2, n_steps=31)
        assert made.path is not None
        found.append((made.path.name, made.path.read_bytes()))
    assert found[0] == found[1] == found[2]
    assert made.n_events == 1009
    unit = table["x"] // 2 + 17 * (table["y"] // 2 + 11 * (table["p"] > 0))
    own = [table["sample"] == s for s in range(23)]
    events = [(table["t_us"][k] - (table["t_us"][k].min() if k.any() else 0), unit[k]) for k in own]
    assert_same(made, ss.EventSet.from_events(events, table["label"], n_steps=31, dt_us=made.dt_us or 0, n_neurons=374))


@pytest.mark.parametrize("kind", ["npz", "compressed npz", "h5 in chunks"])
def test_a_large_file_is_never_in_memory_at_once(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n_events = 200_003
    table = large(n_events, ordered=False)
    if kind == "h5 in chunks":
        path = tmp_path / "mine.h5"
        with h5py.File(path, "w") as file:
            for name, values in table.items():
                file.create_dataset(name, data=values, chunks=(min(4096, values.size),))
    else:
        path = save_as(kind, tmp_path, table)
    n_bytes = sum(values.nbytes for values in table.values())
    del table
    monkeypatch.setattr(arrays_module, "BLOCK", 4096)
    monkeypatch.setattr(arrays_module, "_LARGE", 1 << 10)
    read(path)  # imports
    tracemalloc.start()
    try:
        recording = read(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert recording.t_us.size == n_events
    assert peak < n_bytes / 5, f"{peak:,} of {n_bytes:,} bytes"


@pytest.mark.parametrize("kind", ["npz", "compressed npz", "h5 in chunks"])
def test_a_file_that_was_cut_short(kind: str, tmp_path: Path) -> None:
    path = save_as(kind, tmp_path, large(1009, ordered=True))
    content = path.read_bytes()
    for size in (len(content) - 1, len(content) // 2, 100):
        path.write_bytes(content[:size])
        facts = (
            r"mine\.h5: is damaged.*truncated|mine\.h5: is damaged"
            if "h5" in kind
            else (rf"mine\.npz: is cut short: its {size:,} bytes .* copy it again")
        )
        with pytest.raises(DataError, match=facts):
            read(path)


def test_a_full_disk_says_how_much_is_needed_and_where(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DataError, match=r"needs 80,000,000 bytes .*: No space left on device; .* set TMPDIR"):
        arrays_module.room(10_000_000, np.float64)


def test_the_example_of_a_camera(tmp_path: Path) -> None:
    script = Path(__file__).resolve().parents[2] / "examples" / "camera_events.py"
    path = tmp_path / "bars.npz"
    subprocess.run([sys.executable, str(script), str(path), "--samples", "9"], check=True, stdout=subprocess.DEVNULL)
    made = load("events", data_dir=path, n_steps=40)
    assert made.sensor == Sensor(24, 24, 2)
    assert made.n_lost == 0
    assert [made.description["classes"][k] for k in made.labels] == [*["right", "left", "down", "up"] * 2, "right"]
    column = made.batch([0, 1]).to_dense().view(40, 2, 2, 24, 24).sum((2, 3))  # [T, B, x]
    place = (column * torch.arange(24)).sum(2) / column.sum(2)
    assert place[5, 0] < 12 < place[30, 0], "right"
    assert place[5, 1] > 12 > place[30, 1], "left"


def test_a_label_for_every_event_is_a_warning(tmp_path: Path) -> None:
    sample = np.repeat(np.arange(5), 10)
    events = {"t_us": np.tile(np.arange(10), 5), "unit": sample, "sample": sample}
    right = save(tmp_path / "right.npz", {**events, "label": np.arange(5) % 2})
    assert load("events", data_dir=right).labels.tolist() == [0, 1, 0, 1, 0]
    wrong = save(tmp_path / "wrong.npz", {**events, "label": sample % 2})
    advice = (
        r"wrong\.npz: 45 of 50 samples have no events: label has one entry for each event; give one for each sample"
    )
    with pytest.warns(UserWarning, match=f"{advice}.* label.np.unique.sample, return_index=True.") as caught:
        found = load("events", data_dir=wrong)
    assert (len(caught), len(found)) == (1, 50)
    assert (sample % 2)[np.unique(sample, return_index=True)[1]].tolist() == [0, 1, 0, 1, 0]
    many = save(tmp_path / "many.npz", {**events, "label": np.zeros(500, int)})
    with pytest.warns(UserWarning, match="495 of 500 samples have no events: label has one entry for each sample"):
        load("events", data_dir=many)
    some = save(tmp_path / "some.npz", {**events, "label": np.zeros(10, int)})
    assert len(load("events", data_dir=some)) == 10, "half of the samples may be silent"


@pytest.mark.parametrize("ending", ["npz", "h5", "py"])
def test_labels_of_steps_under_the_name_of_labels_of_samples_are_an_error(tmp_path: Path, ending: str) -> None:
    table = {"t_us": [5, 1, 9], "unit": [0, 2, 1], "sample": [0, 0, 1], "label": np.zeros((2, 7), int)}
    facts = r"label is int64\[2, 7\]; give one label for each sample, \[2\]; labels of steps, .*in a file step_label"
    if ending == "py":
        with pytest.raises(DataError, match=facts):
            own_events.from_arrays(table, "mine.py:table")
    else:
        path = save(tmp_path / f"a.{ending}", table)
        with pytest.raises(DataError, match=facts):
            read(path)


def test_objects_and_padding_in_arrays_in_memory() -> None:
    table: dict[str, Any] = {
        "t_us": [5, 1, 9],
        "unit": [0, 2, 1],
        "sample": [0, 0, 1],
        "label": ["b", "a"],
        "group": ["x", "y"],
    }
    plain = own_events.from_arrays(table, "mine")
    found = own_events.from_arrays({name: np.array(values, object) for name, values in table.items()}, "mine")
    assert found.t_us.tolist() == plain.t_us.tolist()
    assert found.places["unit"].tolist() == plain.places["unit"].tolist()
    assert (
        (found.class_names, found.group_names)
        == (plain.class_names, plain.group_names)
        == (["a", "b"], {"group": ["x", "y"]})
    )
    if hasattr(np.dtypes, "StringDType"):
        texts = np.array(["b", "a"], np.dtypes.StringDType())
        assert own_events.from_arrays({**table, "label": texts}, "mine").class_names == ["a", "b"]
    for change, message in (
        ({"label": np.array(["b", None], object)}, "mine: label holds a NoneType, None"),
        ({"label": ["b", ["a"]]}, "mine: label has lists of different lengths"),
        ({"unit": [0, -1, 1]}, r"unit\[1\] is -1; .*-1 looks like padding: remove it first, as in unit\[unit >= 0\]"),
    ):
        with pytest.raises(DataError, match=message):
            own_events.from_arrays({**table, **change}, "mine")


def test_the_former_name_of_an_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(tmp_path / "mine.npz", arrays())
    with pytest.warns(DeprecationWarning, match="load: events: n_units is now called n_neurons") as caught:
        former = load("events", data_dir=path, n_units=40)
    assert caught[0].filename == __file__
    assert_same(former, load("events", data_dir=path, n_neurons=40))
    file = tmp_path / "run.toml"
    file.write_text(f'[data]\nname = "events"\ndir = "{path}"\nn_units = 40\n')
    table = {"data": {"name": "events", "n_units": 40}}
    assert Config.from_toml(file.read_text()).data.options["n_neurons"] == 40
    assert Config.resolve(table, {"data": {"n_neurons": 41}}).data.options["n_neurons"] == 41, "the later layer wins"
    assert Config.resolve({"data": {**table["data"], "n_neurons": 40}}).data.options["n_neurons"] == 40
    with pytest.raises(ConfigError, match="data: n_neurons is 41, and n_units, its former name, 40; leave n_units out"):
        Config.resolve({"data": {**table["data"], "n_neurons": 41}})
    for given in (["--data.n_units", "40"], ["--data.n_neurons", "40"], ["--set", "data.n_units=40"]):
        assert main(["train", "events", "--data", str(path), *given, "--print-config"]) == 0
        assert "n_neurons = 40\n" in capsys.readouterr().out


def test_classes_that_a_part_lacks_are_named(tmp_path: Path) -> None:
    part = np.array(["train"] * 50 + ["test"] * 10)
    table = {**arrays(60), "part": part}
    table["label"] = np.where(part == "test", "down", table["label"])
    message = "the training part has no samples of class down, which are .*; the test part has no samples of classes left, right, up"
    with pytest.warns(UserWarning, match=message) as caught:
        prepare.load_parts(config(save(tmp_path / "a.npz", table)).data)
    assert len(caught) == 1


def test_parts_of_a_function_are_matched_by_the_names_of_their_classes(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "import sparsesnn as ss\n"
        "def made(labels):\n"
        "    return ss.EventSet.from_events([([1.0], [2])] * len(labels), labels, n_steps=3, dt_us=1.0)\n"
        "def both():\n"
        "    return {'train': made(['cat', 'dog', 'owl'] * 20), 'test': made(['owl', 'dog', 'owl', 'cat'])}\n"
        "def fewer():\n"
        "    return {'train': made(['cat', 'dog', 'owl'] * 20), 'test': made(['owl', 'dog'])}\n"
    )
    assert prepare.load_parts(config("").with_data_dir(f"{path}:both").data).test.event_set.labels.tolist() == [
        2,
        1,
        2,
        0,
    ]
    with pytest.warns(UserWarning, match="the test part has no samples of class cat") as caught:
        parts = prepare.load_parts(config("").with_data_dir(f"{path}:fewer").data)
    assert (len(caught), parts.test.event_set.labels.tolist()) == (1, [2, 1])


def test_one_class_is_a_warning(tmp_path: Path) -> None:
    file = save(tmp_path / "one.npz", {**arrays(), "label": np.zeros(13, int)})
    config = Config.from_dict({"data": {"name": "events", "dir": str(file), "valid": "none"}})
    with pytest.warns(UserWarning, match="events: all samples have one class, .*give label other values"):
        prepare.load_parts(config.data)
