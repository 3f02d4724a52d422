"""Writes a file whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: suffix of the names of incomplete files, which begin with a dot
TEMPORARY = ".tmp"


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
