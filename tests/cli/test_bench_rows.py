"""Rows survive a stop, and never mix with those of other settings."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from sparsesnn.bench.rows import Rows, draw
from sparsesnn.errors import CheckpointError, ConfigError, MissingDependencyError

POINTS = [{"kind": "a", "n": 1}, {"kind": "a", "n": 2}, {"kind": "b", "n": None}]


def test_a_stopped_run_goes_on(tmp_path: Path) -> None:
    measured: list[object] = []

    def measure(point: dict[str, object]) -> dict[str, object]:
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(point)
        return {"speed": 10.5, "parts": [1, 2]}

    stream = io.StringIO()
    with pytest.raises(KeyboardInterrupt):
        Rows(tmp_path / "out", "rows", {"T": 5}, stream).run(POINTS, measure)
    assert stream.getvalue().startswith(f"{tmp_path / 'out'}: 3 points to measure\n[1/3] kind a, n 1, ")
    stream = io.StringIO()
    again: list[object] = []
    rows = Rows(tmp_path / "out", "rows", {"T": 5}, stream).run(POINTS, lambda p: again.append(p) or {"speed": 1.0})
    assert again == POINTS[2:]
    assert rows == [{**p, "speed": 10.5, "parts": [1, 2]} for p in POINTS[:2]] + [{**POINTS[2], "speed": 1.0}]
    assert "2 of 3 points are measured already" in stream.getvalue()
    assert "[3/3] kind b, n None" in stream.getvalue()
    assert json.loads((tmp_path / "out/rows.json").read_text()) == {"settings": {"T": 5}, "rows": rows}
    with (tmp_path / "out/rows.csv").open() as file:
        table = list(csv.DictReader(file))
    assert table[0] == {"kind": "a", "n": "1", "speed": "10.5", "parts": "[1, 2]"}
    assert table[2] == {"kind": "b", "n": "", "speed": "1.0", "parts": ""}


def test_other_settings_and_foreign_files_are_refused(tmp_path: Path) -> None:
    Rows(tmp_path, "rows", {"T": 5}, None).run(POINTS[:1], lambda _: {})
    with pytest.raises(ConfigError, match=r"holds rows of other settings \(.*: .* there, .* now\).*another --out"):
        Rows(tmp_path, "rows", {"T": 6}, None)
    (tmp_path / "rows.json").write_text('{"rows": 3}')
    with pytest.raises(CheckpointError, match="was not written by this benchmark"):
        Rows(tmp_path, "rows", {"T": 5}, None)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be created"):
        Rows(tmp_path / "file" / "x", "rows", {}, None)


def test_a_plot_that_cannot_be_drawn_costs_no_rows() -> None:
    def plot(path: str) -> None:
        raise MissingDependencyError("matplotlib", "plot", f"drawing {path}")

    with pytest.warns(
        UserWarning, match="drawing x.png needs the package 'matplotlib'.*the plot was not drawn, but the rows are"
    ):
        draw(plot, "x.png")
