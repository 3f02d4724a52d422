"""HDF5 files that may be damaged: every failure becomes a `DataError`, also where the library ends its process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sparsesnn.errors import DataError, MissingDependencyError

#: samples, and numbers, that are read at once
BLOCK_SAMPLES, BLOCK_NUMBERS = 256, 1 << 20

#: reads data sets from end to end; its arguments are the search path of modules, the file, names, and the sizes of a block
PROBE = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
import h5py
with h5py.File(sys.argv[2], "r") as file:
    for key in json.loads(sys.argv[3]):
        if not file[key].shape:
            file[key][()]
            continue
        block = int(sys.argv[4 if h5py.check_vlen_dtype(file[key].dtype) else 5])
        for start in range(0, len(file[key]), block):
            file[key][start : start + block]
"""


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """The file, open for reading."""
    try:
        import h5py
    except ImportError as error:
        raise MissingDependencyError("h5py", "data", f"reading {path.name}") from error
    with reading(path), h5py.File(path, "r") as file:
        yield file


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """What HDF5 raises on damaged files, of many types, as one `DataError`."""
    try:
        yield
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, ArithmeticError, MemoryError) as error:
        raise DataError(f"{path}: is damaged or no HDF5 file ({error}); get a fresh copy") from error


def probe(path: Path, keys: Sequence[str]) -> None:
    """Raises `DataError` if another process that reads these data sets is killed by the file.

    The HDF5 library follows the addresses that lists of varying length are stored by, and a damaged one ends the
    process with a segmentation fault. Once for each conversion, a process that may die tries the file first.
    """
    if not sys.executable:  # an embedded interpreter cannot start another
        return
    command = [
        *(sys.executable, "-I", "-c", PROBE, json.dumps(sys.path)),
        *(str(path), json.dumps(list(keys)), str(BLOCK_SAMPLES), str(BLOCK_NUMBERS)),
    ]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if ended.returncode < 0:
        raise DataError(
            f"{path}: is damaged: the HDF5 library ended with signal {-ended.returncode} on it; get a fresh copy"
        )
