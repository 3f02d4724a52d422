"""Writes a file whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

#: suffix of the names of incomplete files, which begin with a dot
TEMPORARY = ".tmp"

#: types that a file can write
Buffer = bytes | memoryview


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary name in the same folder, renamed to `path` at the end; after an error an existing `path` is unchanged."""
    temporary = path.with_name(f".{path.name}{TEMPORARY}")
    try:
        temporary.unlink(missing_ok=True)  # left by a killed writer, or a link, which writing would follow
        yield temporary
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, data: bytes | Iterable[Buffer]) -> int:
    """Writes `path` so that a crash at any instant leaves the old file or the new one, never a partial one; returns its size.

    The bytes go to a temporary name in the same folder, are flushed to the disk, and take the name in one step.
    Errors: `OSError`, such as a full disk; the temporary file is removed and an older `path` is untouched.
    """
    with whole_file(path) as temporary, temporary.open("wb") as file:
        n_bytes = sum(file.write(piece) for piece in ([data] if isinstance(data, bytes) else data))
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)
    return n_bytes


def sync_folder(folder: Path) -> None:
    """Makes renames and removals in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
