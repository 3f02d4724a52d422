"""HDF5 files that may be damaged: every failure becomes a `DataError`, even if the library crashes its process."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sparsesnn.datasets import hdf5_items, reader_process
from sparsesnn.datasets.hdf5_items import BLOCK_SAMPLES as BLOCK_SAMPLES
from sparsesnn.datasets.hdf5_items import RefusedError
from sparsesnn.errors import DataError, MissingDependencyError
from sparsesnn.regular_file import check_regular

#: the script of the process that reads a file first
PROBE = Path(hdf5_items.__file__)

#: exceptions of h5py for damaged files
ERRORS = (
    *(OSError, RuntimeError, KeyError, ValueError, TypeError, ArithmeticError, AttributeError, IndexError),
    *(MemoryError, UnicodeError, AssertionError, RecursionError, RefusedError),
)


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """The file, open for reading."""
    try:
        import h5py  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError("h5py", "data", f"reading {path.name}") from error
    check_regular(path, DataError)
    with reading(path), hdf5_items.open_file(str(path)) as file:
        yield file


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns HDF5's exceptions for damaged files into a `DataError`."""
    try:
        yield
    except RefusedError as error:
        raise DataError(f"{path}: {error}") from None
    except ERRORS as error:
        raise DataError(f"{path}: {why(str(error) or type(error).__name__, getattr(error, 'errno', None))}") from error


def why(text: str, number: int | None = None) -> str:
    """The reason why h5py cannot read a file, and the remedy.

    Args:
        text, number: h5py's error message and errno; None if it has no errno.
    """
    if "unable to lock file" in text:
        if number in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            return "is on a file system without locks; set the environment variable HDF5_USE_FILE_LOCKING=FALSE"
        return "is locked: another process has it open for writing; close it there, or wait until that process ends"
    if "already open for" in text:
        return (
            "is marked as open for writing; close it in the process that writes it; if that process crashed, run: h5clear -s on "
            "the file"
        )
    if number in (errno.EACCES, errno.EPERM):
        return f"cannot be read ({os.strerror(number)}); check its permissions"
    if number is not None and number > 0:
        return f"cannot be read ({os.strerror(number)}); check the disk, or get a fresh copy"
    if "filter" in text and ("not registered" in text or "plugin" in text):
        return (
            "is compressed with a filter that this HDF5 library does not have; run: pip install hdf5plugin, or write the file with "
            f"gzip ({text})"
        )
    return f"is damaged or not an HDF5 file ({' '.join(text.split())[:300]}); get a fresh copy"


def probe(path: Path, choose: Callable[[list[str]], Sequence[str]]) -> list[str]:
    """The names in the file, after another process has read the arrays chosen by `choose`.

    The HDF5 library follows addresses in a damaged file, which can crash or hang the process. Once per conversion, a
    process with limits on memory and time tries the file first: it reads the same pieces in the same way.

    Args:
        choose: takes all names and returns those to be read, which may be paths such as "spikes/times".

    Raises:
        DataError: the file is damaged, reaches into other files, or claims more than it can hold.
    """
    check_regular(path, DataError)
    if not sys.executable:  # an embedded interpreter cannot start another process
        with opened(path) as file:
            names = hdf5_items.names_of(file)
            hdf5_items.read_all(file, choose(names), path.stat().st_size)
            return names
    found: list[str] = []

    def chosen(answer: Any) -> Sequence[str]:
        found.extend(answer["names"])
        return choose(found)

    _ask(path, {}, chosen)
    return found


def read_tree(path: Path, name: str, most: int) -> dict[str, Any] | None:
    """A group of a file as dicts of arrays, see `hdf5_items.tree`; None if the file has no such group.

    Raises:
        DataError: as `probe`.
    """
    check_regular(path, DataError)
    if sys.executable:
        _ask(path, {"tree": name, "most": most})
    with opened(path) as file:
        group = hdf5_items.item(file, name)
        return None if group is None else hdf5_items.tree(group, name, path.stat().st_size, most)


def _ask(path: Path, request: dict[str, Any], choose: Callable[[Any], Any] | None = None) -> None:
    """Lets another process read a file; a line that it prints before its verdict goes to `choose`."""
    process = reader_process.start(PROBE, text=True)
    assert process.stdin is not None, "opened with a pipe"
    assert process.stdout is not None, "opened with a pipe"
    answer: Any = {}
    try:
        process.stdin.write(json.dumps({"path": str(path), "modules": sys.path, **request}) + "\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline() or "{}")
        if choose is not None and "names" in answer:
            process.stdin.write(json.dumps(list(choose(answer))) + "\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline() or "{}")
    except (BrokenPipeError, ValueError):
        answer = {}
    except BaseException:
        process.kill()
        raise
    finally:
        code = reader_process.end(process)
    _judge(path, answer, code)


def _judge(path: Path, answer: Any, code: int) -> None:
    """`DataError` unless the process that read a file reports success; its exit code tells how it died."""
    if "refused" in answer:
        raise DataError(f"{path}: {answer['refused']}")
    if "error" in answer:
        raise DataError(f"{path}: {why(answer['error'] or answer['type'], answer['errno'])}")
    if "done" not in answer:
        raise DataError(
            f"{path}: is damaged: the HDF5 library ended with {reader_process.describe(code)} on it; get a fresh copy"
        )
