"""Ctrl-C and SIGTERM end a run after the current batch, with a checkpoint."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from sparsesnn.errors import SparseSnnError

#: seconds within which further signals count as the same request: at a time limit Slurm sends SIGTERM twice at once, and Ctrl-C reaches
#: ranks from the terminal and from mpirun.
MOMENT_S = 1.0


class StoppedError(SparseSnnError):
    """The run was stopped by a signal, after its checkpoint was written.

    Attributes:
        signal: its number; the command line exits with 128 + signal.
    """

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.signal = number


class StopRequest:
    """The signal received; 0 and False before one arrives."""

    signal: int = 0

    def __bool__(self) -> bool:
        return self.signal != 0

    @property
    def name(self) -> str:
        return "Ctrl-C" if self.signal == signal.SIGINT else signal.Signals(self.signal).name


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Within the block SIGINT and SIGTERM are noted; a signal more than a moment later acts as usual, for users who
    cannot wait.

    Outside the main thread Python allows no handlers, so nothing is noted there.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    first = 0.0

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal first
        now = time.monotonic()
        if not request:
            request.signal, first = number, now
        elif now >= first + MOMENT_S:
            for known, handler in before.items():
                signal.signal(known, handler)
            signal.raise_signal(number)

    for number in before:
        signal.signal(number, note)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
