"""The report of a check: its parts in order, as JSON and text, written after each."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sparsesnn.errors import DeviceError, MissingDependencyError
from sparsesnn.whole_file import write_atomically

#: verdicts on a part
PASSED, FAILED, SKIPPED, MEASURED, UNUSABLE = "passed", "failed", "skipped", "measured", "unusable"


class FaultError(Exception):
    """A check has failed; the message says how."""


class Part:
    """One part.

    Attributes:
        verdict: how it ended.
        lines: its text.
        data: its numbers.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.verdict = PASSED
        self.lines: list[str] = []
        self.data: dict[str, Any] = {}
        self.seconds = 0.0

    def say(self, line: str) -> None:
        """Adds a line, and prints it."""
        self.lines.append(line)
        print(f"  {line}", flush=True)

    def skip(self, why: str) -> None:
        """Ends as skipped."""
        self.verdict = SKIPPED
        self.say(why)


class Report:
    """All parts.

    Args:
        what: bits or speed.
        folder: of {what}.json and {what}.txt.
        limit: seconds after which no part begins.
    """

    def __init__(self, what: str, folder: Path, limit: float) -> None:
        self.what, self.folder, self.limit = what, folder, limit
        self.start = time.monotonic()
        self.parts: list[Part] = []
        self.stopped = ""
        self.about = {
            "commit": _commit(),
            "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
            "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
            "torch": torch.__version__,
            "python": platform.python_version(),
        }
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def left(self) -> float:
        """Seconds until no part begins."""
        return self.limit - (time.monotonic() - self.start)

    def run(self, name: str, work: Callable[[Part], None], *, needs: float = 0.0, stops: bool = True) -> None:
        """Runs a part of the check, unless an earlier one stopped it.

        Args:
            work: gets the part; raises `FaultError` if it found one.
            needs: seconds that it takes; it is skipped with less left.
            stops: whether later parts make no sense if it fails.
        """
        if self.stopped:
            return
        part = Part(name)
        self.parts.append(part)
        print(name, flush=True)
        begin = time.monotonic()
        if self.left < needs:
            part.skip(f"{max(0.0, self.left):.0f} s are left, and it needs {needs:.0f}")
        else:
            try:
                work(part)
            except FaultError as error:
                part.verdict = FAILED
                part.say(str(error))
            except (DeviceError, MissingDependencyError) as error:
                part.verdict = UNUSABLE if len(self.parts) == 1 else FAILED
                part.say(str(error))
            except Exception as error:
                part.verdict = FAILED
                part.say(f"{type(error).__name__}: {error}")
                part.data["traceback"] = traceback.format_exc()
        part.seconds = time.monotonic() - begin
        print(f"  {part.verdict}, {part.seconds:.1f} s", flush=True)
        if part.verdict in (FAILED, UNUSABLE) and stops:
            self.stopped = name
        self.write()

    def write(self) -> None:
        """Writes both files."""
        parts = [
            {"name": x.name, "verdict": x.verdict, "seconds": x.seconds, "lines": x.lines, **x.data} for x in self.parts
        ]
        data = {"what": self.what, **self.about, "stopped_at": self.stopped, "parts": parts}
        write_atomically(self.folder / f"{self.what}.json", (json.dumps(data, indent=1) + "\n").encode())
        write_atomically(self.folder / f"{self.what}.txt", self.text().encode())

    def text(self) -> str:
        """The report as text."""
        lines = [f"gpu_check.py {self.what}: {self.verdict}", *(f"{key}: {value}" for key, value in self.about.items())]
        for x in self.parts:
            lines += ["", f"{x.name}: {x.verdict}, {x.seconds:.1f} s", *(f"  {line}" for line in x.lines)]
        if self.stopped:
            lines += ["", f"stopped after: {self.stopped}"]
        return "\n".join(lines) + "\n"

    @property
    def verdict(self) -> str:
        """The verdict of the whole check."""
        verdicts = {x.verdict for x in self.parts}
        return next((x for x in (UNUSABLE, FAILED) if x in verdicts), PASSED)

    def end(self) -> int:
        """Writes the report, and gives the status of the process."""
        self.write()
        print(f"{self.verdict}: {self.folder / self.what}.txt")
        return {PASSED: 0, FAILED: 1, UNUSABLE: 2}[self.verdict]


def _commit() -> str:
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
