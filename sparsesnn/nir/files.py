"""NIR files: HDF5, read within bounds that depend on the size of the file, written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sparsesnn.datasets import hdf5
from sparsesnn.errors import DataError, MissingDependencyError
from sparsesnn.whole_file import whole_file

MAX_NODES = 100_000


def most_bytes(n_bytes: int) -> int:
    """Most bytes of all arrays in a file of `n_bytes`: zeros compress to a thousandth, weights to more than a quarter."""
    return (128 << 20) + 64 * n_bytes


def nir_package() -> Any:
    """The package `nir`. Errors: `MissingDependencyError`."""
    try:
        import nir
    except ImportError:
        raise MissingDependencyError("nir", "nir", "exchanging networks through NIR") from None
    return nir


def read(path: str | Path) -> Any:
    """The graph in the file `path`.

    The package `nir` would open the file itself, and follow its links to other files; it gets dicts of arrays instead.

    Errors: `DataError` if it is missing, damaged, too large, not a NIR file, or refers to other files.
    """
    nir, path = nir_package(), Path(path)
    if not path.exists():
        raise DataError(f"{path}: no such file; give one written by a NIR export")
    tree = hdf5.read_tree(path, "node", most_bytes(path.stat().st_size) if path.is_file() else 0)
    if tree is None:
        raise DataError(f"{path}: is not a NIR file: it has no group 'node'; give one written by a NIR export")
    try:
        if "type_check" in tree:
            raise ValueError("node has an entry 'type_check'")
        # type_check: the package gets the types of convolutions with groups wrong
        return nir.dict2NIRNode({**tree, "type_check": False})
    except Exception as error:  # exceptions from nir: KeyError, AssertionError, …
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{path}: is not a readable NIR file: {reason}") from None


def write(path: str | Path, graph: Any) -> None:
    """Writes a graph to `path`; the file appears whole. Errors: `DataError` if it cannot be written."""
    nir = nir_package()
    path = Path(path)
    try:
        with whole_file(path) as temporary:
            temporary.touch()  # for a missing folder, nir's own message would name HDF5's flags
            nir.write(str(temporary), graph)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {os.strerror(error.errno or 0)}") from None
    except Exception as error:  # such as scalars, which HDF5 does not compress
        raise DataError(f"{path}: nir could not write the graph: {' '.join(str(error).split())[:200]}") from None
