"""Files opened for reading: a pipe, a device or a folder is refused, because opening it could block."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from sparsesnn.errors import CheckpointError

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


def inside(folder: Path, name: str) -> Path:
    """The path of a run's file or folder, checked: a link out of the run folder could make a run read or write any file.

    Errors: `CheckpointError` for such a link, and for devices, pipes and sockets.
    """
    path = folder / name
    real = Path(os.path.realpath(path))
    if path.is_symlink() and not real.is_relative_to(os.path.realpath(folder)):
        raise CheckpointError(
            f"{path}: is a link to {real}, outside the run folder; put the file itself there, or remove the link"
        )
    if path.exists() and not path.is_file() and not path.is_dir():
        raise CheckpointError(
            f"{path}: is a device, pipe or socket; a run folder may contain only files and folders: remove it"
        )
    return path
