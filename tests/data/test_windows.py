"""Recordings cut into labeled windows: against a count by hand, by Python and on the command line, in parts that divide no recording."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sparsesnn as ss
from sparsesnn.cli import main
from sparsesnn.datasets import classes, event_files, load, split_validation
from sparsesnn.datasets.intervals import read_intervals
from sparsesnn.errors import ConfigError, DataError

SIZE = (9, 7)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSESNN_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(classes, "_seen", [])  # a test may follow others with other classes


def record(
    path: Path, *, first_us: int = 500, seconds: float = 1.0, seed: int = 0, column: int | None = None
) -> np.ndarray:
    """int64[n, 4], t x y p of a recording as text; an event every 1 ms, from the first time on."""
    rng = np.random.default_rng(seed)
    n = round(seconds * 1000)
    x = rng.integers(0, SIZE[0], n) if column is None else np.full(n, column)
    table = np.stack([first_us + 1000 * np.arange(n), x, rng.integers(0, SIZE[1], n), rng.integers(0, 2, n)], axis=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "\n".join(" ".join(map(str, row)) for row in table.tolist())
    path.write_text(f"{SIZE[0]} {SIZE[1]}\nt_us x y p\n{lines}\n")
    return table


def lists(events: ss.EventSet, sample: int) -> set[tuple[int, int]]:
    """(step, id) of the spikes of a sample."""
    own = events.ids[events.sample_starts[sample] : events.sample_starts[sample + 1]]
    return set(zip(np.repeat(np.arange(events.n_steps), events.n_spikes[sample]).tolist(), own.tolist(), strict=True))


def by_hand(
    table: np.ndarray, start_us: float, stop_us: float, n_steps: int, dt_us: float, pool: int = 1
) -> set[tuple[int, int]]:
    """The same, event by event."""
    width, height = -(-SIZE[0] // pool), -(-SIZE[1] // pool)
    found = set()
    for t, x, y, p in table.tolist():
        step = int((t - start_us) // dt_us)
        if start_us <= t < stop_us and step < n_steps:
            found.add((step, x // pool + width * (y // pool + height * p)))
    return found


# ---- cutting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stride_us", "n_windows"), [(None, 4), (200_000, 4), (50_000, 17), (333_000, 3), (900_000, 1)]
)
@pytest.mark.parametrize("pool", [1, 2])
def test_windows_by_hand(tmp_path: Path, stride_us: float | None, n_windows: int, pool: int) -> None:
    table = record(tmp_path / "a.txt", seconds=1.0)
    made = ss.EventSet.from_recordings(
        tmp_path / "a.txt", n_steps=20, dt_us=10_000, stride_us=stride_us, labels="one", pool=pool
    )
    n_windows += stride_us in (None, 200_000)  # the last window ends less than a step after the last event
    assert len(made) == n_windows
    for k in range(n_windows):
        start = 500 + k * (stride_us or 200_000)
        assert lists(made, k) == by_hand(table, start, start + 200_000, 20, 10_000, pool), k
    assert made.sensor is not None
    assert (made.sensor.width, made.sensor.height, made.sensor.n_polarities) == (-(-9 // pool), -(-7 // pool), 2)
    assert made.classes == ["one"]
    assert made.n_lost == 0


def test_windows_lie_within_intervals(tmp_path: Path) -> None:
    """A shorter interval is one window, whose other steps are silent."""
    table = record(tmp_path / "a.txt", seconds=1.0)
    intervals = [(600_000, 650_000, "late"), (100_000, 305_000, "early"), (310_250.5, 400_000, "early")]
    made = ss.EventSet.from_recordings([tmp_path / "a.txt"], n_steps=10, dt_us=10_000, labels=[intervals])
    wanted = [(100_000, 200_000), (200_000, 300_000), (310_250.5, 400_000), (600_000, 650_000)]
    assert [made.classes[k] for k in made.labels] == ["early"] * 3 + ["late"]
    for k, (start, stop) in enumerate(wanted):
        assert lists(made, k) == by_hand(table, start, stop, 10, 10_000), k
    inside = sum(int(((table[:, 0] >= a) & (table[:, 0] < b)).sum()) for a, b in wanted)
    assert made.description["notes"] == [f"{1000 - inside:,} of 1,000 events lie in no window"]


@pytest.mark.parametrize("ending", ["csv", "txt"])
@pytest.mark.parametrize(("unit", "scale"), [("us", 1), ("ms", 1e3), ("s", 1e6)])
def test_intervals_of_a_file(tmp_path: Path, ending: str, unit: str, scale: float) -> None:
    record(tmp_path / "a.txt")
    rows = [(0, 250_000, "to the left" if ending == "csv" else "left"), (250_000, 900_000, "right")]
    mark = "," if ending == "csv" else " "
    lines = [mark.join(("label", f"start_{unit}", f"stop_{unit}"))]
    lines += [mark.join((label, f"{start / scale:g}", f"{stop / scale:g}")) for start, stop, label in rows]
    (tmp_path / f"a.labels.{ending}").write_text("# by hand\n" + "\n".join(lines) + "  # the last\n")
    made = ss.EventSet.from_recordings(tmp_path / "a.txt", n_steps=20, dt_us=5_000)
    in_python = ss.EventSet.from_recordings([tmp_path / "a.txt"], n_steps=20, dt_us=5_000, labels=[rows])
    assert np.array_equal(made.ids, in_python.ids)
    assert [made.classes[k] for k in made.labels] == [rows[0][2]] * 2 + ["right"] * 6


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("", "is empty; begin it with the line start_s"),
        ("0,1,left\n", "line 1 is '0,1,left'; begin the file with the line start_s"),
        ("start,stop,label\n", "line 1 is"),
        ("start_s,stop_s,label,more\n", "line 1 is"),
        ("start_s,stop_s,label\n0,1\n", "line 2 is '0,1'; allowed: a start, a later stop, and a label"),
        ("start_s,stop_s,label\n0,1,\n", "line 2 is"),
        ("start_s,stop_s,label\n1,1,left\n", "line 2 is"),
        ("start_s,stop_s,label\n0,nan,left\n", "line 2 is"),
        ("start_s,stop_s,label\n0,inf,left\n", "line 2 is"),
        ("start_s,stop_s,label\n", "has no intervals"),
        (
            "start_s,stop_s,label\n7,9,left\n",
            r"its intervals lie between 7e\+06 and 9e\+06 us, its events between 500 and 999500",
        ),
    ],
)
def test_intervals_that_are_none(tmp_path: Path, text: str, facts: str) -> None:
    record(tmp_path / "a.txt")
    (tmp_path / "a.labels.csv").write_text(text)
    with pytest.raises(DataError, match=facts):
        ss.EventSet.from_recordings(tmp_path / "a.txt", n_steps=10, dt_us=1000)


def test_intervals_in_other_encodings(tmp_path: Path) -> None:
    path = tmp_path / "a.labels.csv"
    path.write_bytes("start_s,stop_s,label\n0,1,grün\n".encode("utf-8-sig"))
    assert read_intervals(path) == [(0.0, 1e6, "grün")]
    path.write_bytes("start_s,stop_s,label\n0,1,grün\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"a\.labels\.csv: cannot be read"):
        read_intervals(path)


@pytest.mark.parametrize(
    ("labels", "facts"),
    [
        (["a", "b"], "labels has the length 2; for 1 recording give one each"),
        ([[(1, 2)]], r"interval 0 is \(1, 2\); give \(start_us, stop_us, label\)"),
        ([[(2, 1, "a")]], "interval 0 runs from 2 to 1"),
        ([[("0", "1", "a")]], "interval 0 runs from '0' to '1'"),
        ([[(0, float("inf"), "a")]], "interval 0 runs from 0 to inf"),
        ([[]], "has no intervals"),
        ([1.5], "labels: is float64"),
        (None, r"a\.txt: has no labels; write intervals into a\.labels\.csv next to it"),
    ],
)
def test_labels_that_are_none(tmp_path: Path, labels: Any, facts: str) -> None:
    record(tmp_path / "a.txt")
    with pytest.raises(DataError, match=facts):
        ss.EventSet.from_recordings([tmp_path / "a.txt"], n_steps=10, dt_us=1000, labels=labels)


def test_a_window_longer_than_every_recording(tmp_path: Path) -> None:
    record(tmp_path / "left" / "a.txt", seconds=0.5)
    record(tmp_path / "left" / "b.txt", seconds=0.3)
    facts = r"the window of 60 steps of 10 ms, 600 ms, is longer than every recording and interval; the longest, of left/a\.txt, lasts 499 ms"
    with pytest.raises(DataError, match=facts):
        ss.EventSet.from_recordings(tmp_path, n_steps=60, dt_us=10_000)
    assert len(ss.EventSet.from_recordings(tmp_path, n_steps=40, dt_us=10_000)) == 2, (
        "the shorter one is one sample too"
    )


def test_windows_that_are_mostly_empty(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("9 7\nt_us x y p\n" + "".join(f"{t} 1 2 1\n" for t in (0, 1, 2, 3_000_000)))
    with pytest.warns(UserWarning, match=r"29 of 30 windows have no events; check the intervals, or the unit"):
        ss.EventSet.from_recordings(path, n_steps=10, dt_us=10_000, labels="a")


@pytest.mark.parametrize(
    ("options", "error", "facts"),
    [
        ({"stride_us": 0}, ConfigError, "stride_us is 0; give a time in microseconds above 0"),
        ({"stride_us": -1.0}, ConfigError, "stride_us is -1"),
        ({"stride_us": float("nan")}, ConfigError, "stride_us is nan"),
        ({"stride_us": "x"}, ConfigError, "stride_us is 'x'"),
        ({"dt_us": 0}, ConfigError, "the time step is 0"),
        ({"pool": 0}, ConfigError, "pool is 0"),
        ({"sensor_size": (5, 7)}, DataError, r"sensor_size is \(5, 7\); give \(width, height\), at least 9 and 7"),
        ({"sensor_size": (9,)}, DataError, "sensor_size is"),
        ({"time_unit": "s"}, DataError, "its header names the unit us"),
        ({"duplicates": "no"}, ConfigError, "duplicates is 'no'"),
    ],
)
def test_arguments_that_are_refused(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], facts: str
) -> None:
    record(tmp_path / "a.txt")
    with pytest.raises(error, match=facts):
        ss.EventSet.from_recordings(tmp_path / "a.txt", **{"n_steps": 10, "dt_us": 1000, "labels": "a", **options})


@pytest.mark.parametrize("paths", [[], "nowhere", "folder"])
def test_no_recordings(tmp_path: Path, paths: Any) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "README.txt").write_text("not a recording")
    with pytest.raises(DataError, match="from_recordings: .* give (recordings|files)"):
        ss.EventSet.from_recordings(paths if paths == [] else tmp_path / paths, n_steps=10, dt_us=1000)


def test_a_recording_without_its_label(tmp_path: Path) -> None:
    record(tmp_path / "left" / "a.txt")
    (tmp_path / "b.raw").write_bytes(b"% evt 3.0\n")
    with pytest.raises(
        DataError, match=r"b\.raw: has no label; put it into a folder named after its class, or .* b\.labels\.csv"
    ):
        ss.EventSet.from_recordings(tmp_path, n_steps=10, dt_us=1000)


def test_classes_are_numbers_if_all_folders_are(tmp_path: Path) -> None:
    for name in ("10", "2"):
        record(tmp_path / name / "a.txt")
    assert sorted(set(ss.EventSet.from_recordings(tmp_path, n_steps=10, dt_us=1000).labels.tolist())) == [2, 10]


def test_the_classes_of_another_set(tmp_path: Path) -> None:
    record(tmp_path / "b" / "r.txt")
    made = ss.EventSet.from_recordings(tmp_path, n_steps=10, dt_us=100_000, classes=["a", "b"])
    assert (made.labels.tolist(), made.n_classes) == ([1], 2)


def test_a_clock_that_wraps_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    t = ((1 << 24) - 500_000 + 1000 * np.arange(1000)) % (1 << 24)
    path.write_text("9 7\nt_us x y p\n" + "".join(f"{k} 1 2 1\n" for k in t.tolist()))
    with pytest.warns(UserWarning, match=r"the clock wraps at 2\^24 us in 1 sample; 2\^24 us are added"):
        made = ss.EventSet.from_recordings(path, n_steps=10, dt_us=10_000, labels="a")
    assert [len(lists(made, k)) for k in range(10)] == [10] * 10


# ---- folders, the command line, parts --------------------------------------------------------------------------------


def folder(root: Path, parts: Sequence[str] = ("",), n_each: int = 4) -> Path:
    """Recordings of two classes by their pixels: columns 0 and 5."""
    for part in parts:
        for k, name in enumerate(("left", "right")):
            for r in range(n_each):
                record(root / part / name / f"r{r}.txt", seconds=0.4 + 0.1 * r, seed=10 * k + r, column=5 * k)
    (root / "README.txt").write_text("by hand")
    (root / ".hidden").mkdir()
    return root


@pytest.mark.parametrize("stride_ms", [100.0, 35.0])
def test_the_command_line_and_python_make_the_same(tmp_path: Path, stride_ms: float) -> None:
    root = folder(tmp_path)
    loaded = load("events", data_dir=root, dt_ms=5, n_steps=20, stride_ms=stride_ms, pool=2)
    made = ss.EventSet.from_recordings(
        root, n_steps=20, dt_us=5000, stride_us=None if stride_ms == 100 else 35e3, pool=2
    )
    for name in ("ids", "n_spikes", "labels"):
        assert np.array_equal(getattr(loaded, name), getattr(made, name)), name
    assert loaded.classes == made.classes == ["left", "right"]
    assert loaded.sensor == made.sensor
    assert loaded.group_names == made.group_names
    assert made.group_names["recording"][:2] == ["left/r0.txt", "left/r1.txt"]
    assert np.array_equal(loaded.groups["recording"], made.groups["recording"])


def test_recordings_are_samples_without_a_stride(tmp_path: Path) -> None:
    loaded = load("events", data_dir=folder(tmp_path), n_steps=50)
    assert (len(loaded), loaded.n_lost) == (8, 0)
    assert loaded.dt_us == pytest.approx(700_000 / 50, rel=0.01)
    short = load("events", data_dir=tmp_path, n_steps=50, dt_ms=10)
    assert (len(short), short.n_lost) == (8, 2 * (100 + 200)), "what lasts longer than 500 ms is cut off"


def test_a_run_on_whole_recordings_is_evaluated_on_shorter_ones(tmp_path: Path) -> None:
    data = str(folder(tmp_path / "data"))
    command = ["train", "events", "--data", data, "--out", str(tmp_path / "run"), "--epochs", "1", "--threads", "1"]
    assert main([*command, "--no-plots", "--no-tensorboard"]) == 0
    for k, name in enumerate(("left", "right")):
        for r in range(4):
            record(tmp_path / "other" / name / f"{r}.txt", seconds=0.2, column=5 * k)
    assert main(["eval", str(tmp_path / "run"), "--data", str(tmp_path / "other"), "--split", "train"]) == 0


def test_a_change_of_labels_is_another_set(tmp_path: Path) -> None:
    record(tmp_path / "a.txt")
    options: dict[str, Any] = {"data_dir": tmp_path / "a.txt", "dt_ms": 5, "n_steps": 20, "stride_ms": 100}
    for names in (["left", "right"], ["up", "down"]):
        rows = "".join(f"{k / 2},{k / 2 + 0.5},{name}\n" for k, name in enumerate(names))
        (tmp_path / "a.labels.csv").write_text(f"start_s,stop_s,label\n{rows}")
        assert load("events", **options).classes == sorted(names)


def test_files_of_arrays_go_first(tmp_path: Path) -> None:
    """A folder of parts may hold notes and tables too."""
    table = {"t_us": [1, 2], "unit": [0, 1], "sample": [0, 1], "label": [0, 1]}
    np.savez(tmp_path / "train.npz", **table)
    (tmp_path / "notes.txt").write_text("by hand")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "table.csv").write_text("a,b\n")
    assert len(load("events", data_dir=tmp_path)) == 2


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"stride_ms": 5}, "data.stride_ms: is 5, but data.dt_ms is not given"),
        ({"dt_ms": 5, "stride_ms": 5}, "these are not recordings"),
    ],
)
def test_a_stride_without_effect_is_refused(tmp_path: Path, options: dict[str, Any], facts: str) -> None:
    np.savez(tmp_path / "a.npz", t_us=[1, 2], unit=[0, 1], sample=[0, 1], label=[0, 1])
    record(tmp_path / "a.txt")
    with pytest.raises(ConfigError, match=facts):
        load("events", data_dir=tmp_path / ("a.npz" if "dt_ms" in options else "a.txt"), **options)


def test_training_on_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = folder(tmp_path / "data")
    command = [
        "train",
        "events",
        "--data",
        str(root),
        "--out",
        str(tmp_path / "run"),
        "--epochs",
        "3",
        "--threads",
        "1",
    ]
    options = [
        "--set",
        "data.dt_ms=5",
        "--set",
        "data.n_steps=20",
        "--set",
        "data.stride_ms=50",
        "--no-plots",
        "--no-tensorboard",
    ]
    assert main([*command, *options]) == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["test_accuracy"], result["n_train"] + result["n_valid"] + result["n_test"]) == (1.0, 80)
    assert re.search(
        r"data +events: \d+ training, \d+ validation \(random:0\.1\), \d+ test samples, 2 classes",
        capsys.readouterr().err,
    )


def test_check_of_a_recording_without_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.txt"
    record(path, seconds=12)
    assert main(["data", "check", str(path), "--no-plot"]) == 0
    said = capsys.readouterr().out
    assert "samples  1, events 12,000" in said
    assert "9 x 7 pixels x 2 polarities" in said
    assert "samples last up to 12 s: set data.dt_ms and data.stride_ms to cut them into windows" in said
    with pytest.raises(DataError, match="has no labels; write intervals into a.labels.csv"):
        load("events", data_dir=path, dt_ms=5)
    path.write_text("1.5 2 3 1\n7 2 3 0\n")
    assert main(["data", "check", str(path), "--no-plot"]) != 0
    assert "is not certain" in capsys.readouterr().err
    assert main(["data", "check", str(path), "--no-plot", "--time-unit", "ms"]) == 0
    assert "--set data.time_unit=ms" in capsys.readouterr().out


def test_parts_of_folders(tmp_path: Path) -> None:
    root = folder(tmp_path, ("train", "test"), n_each=2)
    train, test = (
        load("events", data_dir=root, dt_ms=5, n_steps=20, stride_ms=100, split=part) for part in ("train", "test")
    )
    assert train.description["parts"] == ["train", "test"]
    names = train.group_names["recording"]
    for part, events in (("train", train), ("test", test)):
        assert {names[k].split("/")[0] for k in events.groups["recording"]} == {part}
        assert len(events) == 2 * (4 + 5)
    with pytest.raises(ConfigError, match=r"has the parts test, train; give the folder of one part"):
        ss.EventSet.from_recordings(root, n_steps=20, dt_us=5000)


# ---- no recording is divided -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how", ["random:0.1", "random:0.25", "random:0.5", "random:0.9", "recording:left/r0.txt,right/r3.txt"]
)
@pytest.mark.parametrize("seed", range(3))
def test_splits_divide_no_recording(tmp_path: Path, how: str, seed: int) -> None:
    events = ss.EventSet.from_recordings(folder(tmp_path, n_each=5), n_steps=20, dt_us=5000, stride_us=20_000)
    rest, held_out = split_validation(events, how, seed=seed)
    recording = events.groups["recording"]
    assert not set(recording[rest]) & set(recording[held_out])
    assert rest.size + held_out.size == len(events)
    assert set(events.labels[rest]) == set(events.labels[held_out]) == {0, 1}, "both classes in both parts"
    share = {"random:0.1": 2, "random:0.25": 2, "random:0.5": 4, "random:0.9": 8}.get(how, 2)
    assert np.unique(recording[held_out]).size == share


def test_splits_of_recordings_with_several_classes(tmp_path: Path) -> None:
    for r in range(5):
        record(tmp_path / f"r{r}.txt", seed=r)
        rows = "0,0.5,left\n0.5,1,right\n" if r < 3 else f"0,1,{'left' if r == 3 else 'right'}\n"
        (tmp_path / f"r{r}.labels.csv").write_text(f"start_s,stop_s,label\n{rows}")
    events = ss.EventSet.from_recordings(tmp_path, n_steps=20, dt_us=5000)
    _, held_out = split_validation(events, "random:0.3")
    assert np.unique(events.groups["recording"][held_out]).tolist() in ([0], [1], [2]), "of the three that are alike"
    alike = ss.EventSet.from_recordings([tmp_path / f"r{r}.txt" for r in (0, 3, 4)], n_steps=20, dt_us=5000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a class is missing in one part, whichever is held out
        _, held_out = split_validation(alike, "random:0.3")
    assert np.unique(alike.groups["recording"][held_out]).size == 1, "no two are alike: any one"


def test_splits_that_would_divide_a_recording(tmp_path: Path) -> None:
    events = ss.EventSet.from_recordings(folder(tmp_path), n_steps=20, dt_us=5000)
    (tmp_path / "numbers.txt").write_text("0 1")
    with pytest.raises(
        ConfigError,
        match=r"divides recording left/r0\.txt between two parts, .* 'recording:left/r0\.txt' or 'random:0\.2'",
    ):
        split_validation(events, f"file:{tmp_path / 'numbers.txt'}")
    one = ss.EventSet.from_recordings(tmp_path / "left" / "r0.txt", n_steps=20, dt_us=5000, labels=[0])
    with pytest.raises(
        ConfigError, match=r"valid: 'random:0\.2' holds out whole recordings, but there is one, r0\.txt; give more"
    ):
        split_validation(one, "random:0.2")


def test_an_endless_number_of_windows_needs_no_more_memory_than_their_events(tmp_path: Path) -> None:
    """Half a year of silence between two events."""
    path = tmp_path / "a.txt"
    path.write_text("9 7\nt_us x y p\n0 1 1 1\n15000000000000 1 1 1\n")
    with pytest.raises(DataError, match=r"a\.txt: .* windows"):
        ss.EventSet.from_recordings(path, n_steps=10, dt_us=1000, labels="a")


def test_the_endings_are_those_of_the_table() -> None:
    for ending in event_files.ENDINGS:
        assert f"`{ending}`" in (event_files.__doc__ or "")
