"""Processes in which native code decodes untrusted files, where it may crash or hang."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONUTF8": "1", "RUST_BACKTRACE": "0"}


def start(script: str | Path, *, text: bool = False) -> subprocess.Popen[Any]:
    """Runs a script of ours in this Python, isolated from the user's settings, with pipes for its input and output; `text`: not bytes."""
    return subprocess.Popen(
        [sys.executable, "-I", str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=text,
        env={**os.environ, **_ENVIRONMENT},
    )


def end(process: subprocess.Popen[Any]) -> int:
    """Closes the pipes of a process, and waits for its exit status."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    return process.wait()


def describe(code: int) -> str:
    """`signal 11` or `status 1`."""
    return f"signal {-code}" if code < 0 else f"status {code}"
