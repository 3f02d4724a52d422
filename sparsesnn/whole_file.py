"""A file that is whole or not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: how the names of files end that are still being written; they begin with a dot
TEMPORARY = ".tmp"


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A name in the same folder to write to, which becomes `path` at the end; after an error an older `path` is untouched."""
    temporary = path.with_name(f".{path.name}{TEMPORARY}")
    try:
        temporary.unlink(missing_ok=True)  # of a killed writer, or a link, which would be written through
        yield temporary
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
