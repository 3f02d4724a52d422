"""A recording step by step: the same spikes as a set of its windows, in constant memory, and closed when no one reads on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sparsesnn as ss
from sparsesnn.datasets import event_files, file_steps, text_events
from sparsesnn.errors import ConfigError, DataError

ROOT = Path(__file__).resolve().parents[2]


def write(path: Path, table: np.ndarray, head: str = "9 7\nt_us x y p") -> Path:
    path.write_text(head + "\n" + "\n".join(" ".join(map(str, row)) for row in table.tolist()) + "\n")
    return path


def bursts(n: int = 4000, seed: int = 0) -> np.ndarray:
    """Events with silences, several in a cell, and some that come up to 10 ms late."""
    rng = np.random.default_rng(seed)
    t = np.sort(rng.choice([0, 70_000, 71_000, 333_000], n) + rng.integers(0, 20_000, n))
    t[1 : n // 2] += rng.integers(-4000, 4000, n // 2 - 1)  # from the second one on: time begins with the first
    t = np.maximum(t, t[0]) + 12_345
    return np.stack([t, rng.integers(0, 9, n), rng.integers(0, 7, n), rng.integers(0, 2, n)], axis=1)


@pytest.mark.parametrize("block", [64, 3000, 1 << 20])
@pytest.mark.parametrize("dt_us", [500, 3000, 400_000])
@pytest.mark.parametrize(("count", "duplicates"), [(False, "binary"), (True, "count")])
def test_steps_are_those_of_a_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, dt_us: float, count: bool, duplicates: str
) -> None:
    table = bursts()
    monkeypatch.setattr(text_events, "_BLOCK_BYTES", block)
    path = write(tmp_path / "a.txt", table)
    steps = list(file_steps(path, dt_us=dt_us, pool=2, count=count))
    n_steps = int((table[:, 0].max() - table[0, 0]) // dt_us) + 1
    assert len(steps) == n_steps
    whole = ss.EventSet.from_recordings(path, n_steps=n_steps, dt_us=dt_us, pool=2, labels=[0], duplicates=duplicates)
    assert len(whole) == 1
    batch = whole.batch([0])
    assert torch.equal(torch.cat([step.to_dense() for step in steps]), batch.to_dense())
    assert {(step.n_samples, step.n_steps, step.n_neurons) for step in steps} == {(1, 1, 5 * 4 * 2)}


def test_a_live_network_sees_what_a_network_sees(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", bursts())
    model = ss.Model(ss.parse_net("126-17r-3"))
    live = model.live()
    found = torch.cat([live(spikes).potentials for spikes in file_steps(path, dt_us=2000)])
    whole = ss.EventSet.from_recordings(path, n_steps=len(found), dt_us=2000, labels=[0])
    with torch.no_grad():
        assert torch.equal(found, model(whole.batch([0])).potentials)


@pytest.mark.parametrize("name", ["a.aedat4", "a.raw", "a.dat"])
def test_files_of_cameras(tmp_path: Path, name: str) -> None:
    faery = pytest.importorskip("faery", reason="the extra cameras is not installed")
    rng = np.random.default_rng(0)
    table = np.zeros(30_001, faery.EVENTS_DTYPE)
    table["t"] = 5_000 + np.sort(rng.integers(0, 20_000_000, table.size))  # beyond 2^24
    table["x"], table["y"] = rng.integers(0, 20, table.size), rng.integers(0, 10, table.size)
    table["on"] = rng.integers(0, 2, table.size)
    faery.events_stream_from_array(table, (20, 10)).to_file(tmp_path / name)
    steps = list(file_steps(tmp_path / name, dt_us=20_000, count=True))
    t = table["t"].astype(np.int64)
    assert sum(float(step.to_dense().sum()) for step in steps) == table.size
    assert len(steps) == (t[-1] - t[0]) // 20_000 + 1
    first = table[t < t[0] + 20_000]
    ids = first["x"] + 20 * (first["y"].astype(int) + 10 * first["on"])
    assert steps[0].ids.tolist() == np.unique(ids).tolist()


def test_memory_does_not_grow_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight times the events, the same peak."""
    monkeypatch.setattr(text_events, "_BLOCK_BYTES", 1 << 16)
    peaks = []
    for n in (20_000, 160_000):
        rng = np.random.default_rng(0)
        table = np.stack(
            [100 * np.arange(n), rng.integers(0, 9, n), rng.integers(0, 7, n), rng.integers(0, 2, n)], axis=1
        )
        path = write(tmp_path / f"{n}.txt", table)
        tracemalloc.start()
        n_spikes = sum(int(step.n_spikes.sum()) for step in file_steps(path, dt_us=10_000))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert 0 < n_spikes <= n
    assert peaks[1] < 1.5 * peaks[0], peaks


def test_a_reader_that_stops_leaves_nothing(tmp_path: Path) -> None:
    faery = pytest.importorskip("faery", reason="the extra cameras is not installed")
    table = np.zeros(300_000, faery.EVENTS_DTYPE)
    table["t"] = np.arange(table.size)
    faery.events_stream_from_array(table, (20, 10)).to_file(tmp_path / "a.raw")
    for _ in file_steps(tmp_path / "a.raw", dt_us=10):
        break
    assert Path(f"/proc/self/task/{os.getpid()}/children").read_text().split() == []


@pytest.mark.parametrize(
    ("rows", "head", "options", "error", "facts"),
    [
        ([[0, 1, 1, 1]], "t_us x y p", {}, DataError, r"a\.txt: names no sensor; give sensor_size=\(width, height\)"),
        ([[0, 1, 1, 1]], "t_us x y p", {"sensor_size": (9,)}, DataError, r"has sensor_size \(9,\)"),
        (
            [[0, 9, 1, 1]],
            "t_us x y p",
            {"sensor_size": (9, 7)},
            DataError,
            r"x = 9; sensor_size is \(9, 7\); give a larger",
        ),
        (
            [[0, 1, 1, 1], [3_600_000_001, 1, 1, 1]],
            "9 7\nt_us x y p",
            {},
            DataError,
            "jumps ahead by 3600 s; allowed: 3600 s",
        ),
        ([[9_000_000, 1, 1, 1], [1, 1, 1, 1]], "9 7\nt_us x y p", {}, DataError, "time goes back by 9 s at event 1"),
        ([[0, 1, 1, 1]], "9 7\nt_us x y p", {"dt_us": 0}, ConfigError, "the time step is 0"),
        ([[0, 1, 1, 1]], "9 7\nt_us x y p", {"pool": 10}, ConfigError, "pool is 10; give a whole number from 1 to 9"),
    ],
)
def test_refusals(
    tmp_path: Path, rows: list[list[int]], head: str, options: dict[str, Any], error: type[Exception], facts: str
) -> None:
    path = write(tmp_path / "a.txt", np.array(rows), head)
    with pytest.raises(error, match=facts):
        list(file_steps(path, **{"dt_us": 1e6, **options}))


def test_time_runs_on_over_a_wrap_of_the_clock(tmp_path: Path) -> None:
    t = ((1 << 24) - 5000 + 1000 * np.arange(10)) % (1 << 24)
    path = write(tmp_path / "a.txt", np.stack([t, *np.ones((3, 10), int)], axis=1))
    assert [int(step.n_spikes.sum()) for step in file_steps(path, dt_us=1000)] == [1] * 10


def test_late_events_count_in_their_step(tmp_path: Path) -> None:
    late = int(event_files.LATE_US)
    path = write(tmp_path / "a.txt", np.array([[0, 1, 1, 1], [late + 100, 2, 2, 1], [101, 3, 3, 1]]))
    steps = list(file_steps(path, dt_us=100))
    assert [k for k, step in enumerate(steps) if int(step.n_spikes.sum())] == [0, 1, late // 100 + 1]


@pytest.mark.slow
def test_the_example(tmp_path: Path) -> None:
    script = ROOT / "examples" / "live_from_file.py"
    own = subprocess.run([sys.executable, str(script)], check=True, capture_output=True, text=True, cwd=tmp_path)
    assert re.fullmatch(r"( +\d s  input +[\d,]+ spikes  class \d  \d+ us a step\n){1,2}", own.stdout), own.stdout
    assert list(tmp_path.iterdir()) == []
    path = write(tmp_path / "a.txt", np.stack([1000 * np.arange(3001), *np.ones((3, 3001), int)], axis=1), "t_us x y p")
    command = [sys.executable, str(script), str(path), "--sensor", "4", "4", "--dt-ms", "10"]
    given = subprocess.run(command, check=True, capture_output=True, text=True)
    assert [line.split()[3] for line in given.stdout.splitlines()] == ["100"] * 3


def test_the_converter_of_the_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against Tonic's reader, on a file of this test."""
    tonic_io = pytest.importorskip("tonic.io")
    text = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    (block,) = [code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "def convert" in code]
    session: dict[str, Any] = {}
    exec(compile(block, "docs/data.md", "exec", dont_inherit=True), session)
    rng = np.random.default_rng(0)
    words = np.stack([rng.integers(0, 1 << 15, 999), np.sort(rng.integers(0, 10**8, 999))], axis=1).astype(">u4")
    (tmp_path / "a.aedat").write_bytes(b"#!AER-DAT2.0\r\n# a line\r\n" + words.tobytes())
    header = tonic_io.read_aedat_header_from_file  # returns three values, of which Tonic's own reader expects two
    monkeypatch.setattr(tonic_io, "read_aedat_header_from_file", lambda path: header(path)[:2])
    session["convert"](tmp_path / "a.aedat", tmp_path / "a.txt")
    _, theirs = tonic_io.read_dvs_128(str(tmp_path / "a.aedat"))
    ours = event_files.read_events(tmp_path / "a.txt")
    assert ours.sensor == (128, 128)
    for name, column in zip("txyp", ours[:4], strict=True):
        assert np.array_equal(column.astype(int), theirs[name].astype(int)), name
