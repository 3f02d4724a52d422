"""The lock that keeps two processes out of one run folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparsesnn.errors import ConfigError
from sparsesnn.regular_file import inside

LOCK = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Locks the folder for this process; the lock ends with the process, in whatever way.

    Errors: `ConfigError` if another process is training in the folder.
    """
    with inside(folder, LOCK).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read(32).strip() or "unknown"
            raise ConfigError(
                f"out: {folder} is in use by another training run (process {holder}); "
                "wait until it ends, or give another --out"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
