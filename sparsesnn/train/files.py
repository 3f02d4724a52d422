"""Atomically written files of a run, and the lock that keeps two processes out of one folder."""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from sparsesnn.errors import CheckpointError, ConfigError
from sparsesnn.regular_file import check_regular
from sparsesnn.whole_file import whole_file

LOCK = ".lock"

#: nesting limit of a run's JSON files; a deeper file would exhaust the reader's stack
_MOST_LEVELS = 64

#: types that a file can write
Buffer = bytes | memoryview


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


def strict_json(value: Any, *, indent: int | None = None) -> str:
    """JSON without NaN and infinity, which other readers reject."""
    return json.dumps(value, indent=indent, allow_nan=False)


def read_json(path: Path, *, max_bytes: int = 512 << 20) -> Any:
    """The content of a JSON file from an untrusted place.

    Errors: `CheckpointError` if it is missing, too large, not UTF-8, not strict JSON or nested too deeply.
    """
    check_regular(path, CheckpointError)
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > max_bytes:
        raise CheckpointError(f"{path}: is larger than {max_bytes:,} bytes; it is not a file of sparsesnn")

    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is not a JSON number")

    def finite(text: str) -> float:
        number = float(text)
        return number if math.isfinite(number) else refuse(text)

    try:
        content = json.loads(data.decode(), parse_constant=refuse, parse_float=finite)
        _check_depth(content)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: is damaged or not JSON: {error}") from None
    return content


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(_MOST_LEVELS):
        inner = (x.values() if isinstance(x, dict) else x for x in level if isinstance(x, (dict, list)))
        level = [x for values in inner for x in values if isinstance(x, (dict, list))]
        if not level:
            return
    raise ValueError(f"it is nested more than {_MOST_LEVELS} levels deep")


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
