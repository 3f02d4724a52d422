"""NIR files: HDF5, read after their sizes were looked at, written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sparsesnn.errors import DataError, MissingDependencyError
from sparsesnn.whole_file import whole_file

#: bytes that all arrays of a file may declare; HDF5 can declare much in a small file
MAX_BYTES = 8 << 30
MAX_NODES = 100_000


def nir_package() -> Any:
    """The package `nir`. Errors: `MissingDependencyError`."""
    try:
        import nir
    except ImportError:
        raise MissingDependencyError("nir", "nir", "exchanging networks through NIR") from None
    return nir


def read(path: str | Path) -> Any:
    """The graph in the file `path`. Errors: `DataError` if it is missing, damaged, too large or no NIR file."""
    nir = nir_package()
    import h5py

    path = Path(path)
    found = [0, 0]

    def weigh(_: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found[0] += item.size * max(1, item.dtype.itemsize) if item.shape is not None else 0
        found[1] += 1
        if found[0] > MAX_BYTES or found[1] > 20 * MAX_NODES:
            raise DataError(
                f"{path}: declares more than {MAX_BYTES >> 30} GiB or {MAX_NODES:,} nodes; it is no network"
            )

    try:
        with h5py.File(path, "r") as file:
            file.visititems(weigh)
        return nir.read(str(path), type_check=False)  # it gets the types of convolutions with groups wrong
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file; give one that a NIR export wrote") from None
    except Exception as error:  # h5py and nir raise what they meet: OSError, KeyError, AssertionError, …
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{path}: is no NIR file that can be read: {reason}") from None


def write(path: str | Path, graph: Any) -> None:
    """Writes a graph to `path`; the file appears whole. Errors: `DataError` if it cannot be written."""
    nir = nir_package()
    path = Path(path)
    try:
        with whole_file(path) as temporary:
            temporary.touch()  # nir's own message for a folder that is not there names HDF5's flags
            nir.write(str(temporary), graph)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {os.strerror(error.errno or 0)}") from None
    except Exception as error:  # scalars, for one: HDF5 does not compress them
        raise DataError(f"{path}: nir could not write the graph: {' '.join(str(error).split())[:200]}") from None
