"""Rows of a long benchmark, saved one by one: an interrupted run resumes where it stopped."""

from __future__ import annotations

import csv
import io
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from sparsesnn.errors import CheckpointError, ConfigError, SparseSnnError
from sparsesnn.json_file import read_json, strict_json
from sparsesnn.train.files import locked
from sparsesnn.whole_file import write_atomically
from sparsesnn.wording import count

Row = dict[str, Any]


class Rows:
    """The rows of one benchmark in a folder: `NAME.json` (settings and rows) and `NAME.csv` (the rows).

    Args:
        folder: created if needed.
        name: of the files.
        settings: everything that determines the rows; a folder with other settings is refused.
        stream: for progress messages; None: none.

    Errors: `ConfigError` if the folder cannot be created or holds rows of other settings.
    """

    def __init__(
        self, folder: Path, name: str, settings: Mapping[str, Any], stream: TextIO | None = sys.stderr
    ) -> None:
        self.folder, self.name, self.settings, self.stream = folder, name, dict(settings), stream
        self.rows: list[Row] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--out: {folder} cannot be created: {error.strerror}; give another folder") from None
        path = folder / f"{name}.json"
        if not path.exists():
            return
        saved = read_json(path)
        if not isinstance(saved, dict) or not isinstance(saved.get("rows"), list):
            raise CheckpointError(f"{path}: was not written by this benchmark; give another --out")
        if saved.get("settings") != self.settings:
            raise ConfigError(
                f"--out: {path} holds rows of other settings ({_differences(saved.get('settings'), self.settings)}); "
                "give the options of that run to resume it, or another --out"
            )
        self.rows = saved["rows"]

    def run(self, points: Sequence[Row], measure: Callable[[Row], Row]) -> list[Row]:
        """Calls `measure(point)` for every point without a row; a row is the point and its measurements."""
        with locked(self.folder):
            left = [point for point in points if not any(point.items() <= row.items() for row in self.rows)]
            if len(left) < len(points):
                self.say(f"{self.folder}: {len(points) - len(left)} of {len(points)} points are measured already")
            elif left:
                self.say(f"{self.folder}: {count(len(left), 'point')} to measure")
            # values shared by all points are in the settings
            varied = [name for name in points[0] if len(points) == 1 or any(p[name] != points[0][name] for p in points)]
            started = time.perf_counter()
            for k, point in enumerate(left):
                row = {**point, **measure(point)}
                self.rows.append(row)
                self.write()
                seconds = (time.perf_counter() - started) / (k + 1) * (len(left) - k - 1)
                done = ", ".join(f"{name} {point[name]}" for name in varied)
                when = f", {seconds / 60:.0f} min left" if k + 1 < len(left) else ""
                self.say(f"[{len(points) - len(left) + k + 1}/{len(points)}] {done}{when}")
        return self.rows

    def write(self) -> None:
        """JSON and CSV; lists and tables within a row are JSON text in the CSV."""
        saved = {"settings": self.settings, "rows": self.rows}
        write_atomically(self.folder / f"{self.name}.json", (strict_json(saved, indent=1) + "\n").encode())
        write_csv(self.folder / f"{self.name}.csv", self.rows)

    def say(self, text: str) -> None:
        if self.stream is not None:
            print(text, file=self.stream, flush=True)


def _differences(there: object, now: Mapping[str, Any]) -> str:
    """The differences, as `width: 256 there, 512 now`."""
    old = there if isinstance(there, dict) else {}
    names = [name for name in dict.fromkeys([*now, *old]) if old.get(name) != now.get(name)]
    return ", ".join(f"{name}: {old.get(name)} there, {now.get(name)} now" for name in names)


def draw(plot: Callable[..., None], *arguments: Any) -> None:
    """Draws a plot, or warns if it fails: the measurements matter more than their picture."""
    try:
        plot(*arguments)
    except (SparseSnnError, OSError) as error:
        warnings.warn(f"{error}; the plot was not drawn, but the rows are written", stacklevel=2)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes one line per row, with columns in the order of their first appearance."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    table = csv.DictWriter(text, columns, lineterminator="\n")
    table.writeheader()
    for row in rows:
        table.writerow({k: strict_json(v) if isinstance(v, (dict, list)) else v for k, v in row.items()})
    write_atomically(path, text.getvalue().encode())
