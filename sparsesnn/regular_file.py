"""Files opened for reading: a pipe, a device or a folder is refused, because opening it could block."""

from __future__ import annotations

import stat
from pathlib import Path

#: most bytes of a configuration, a network or a plan
MAX_TEXT_BYTES = 64 << 20
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def check_regular(path: str | Path, error: type[Exception], most_bytes: int | None = None) -> None:
    """Refuses a path that is not a regular file; a missing file is left to the caller, which opens it.

    Args:
        error: raised with a message that begins with the path.
        most_bytes: also refuse larger files; None: any size.
    """
    try:
        status = Path(path).stat()
    except OSError:
        return
    for is_kind, name in _KINDS:
        if is_kind(status.st_mode):
            raise error(f"{path}: is {name}; give a file")
    if most_bytes is not None and status.st_size > most_bytes:
        raise error(f"{path}: has {status.st_size:,} bytes; at most {most_bytes:,} are read; give another file")
