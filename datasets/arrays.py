"""Named flat arrays from one file, .npz or HDF5, that may be damaged or made to do harm.

Nothing is unpickled. What a header claims is compared with the bytes that the file holds before memory is taken: an array
takes at most about a thousand times the bytes that it has in the file, which is what DEFLATE can do.
"""

from __future__ import annotations

import math
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsesnn.datasets import hdf5
from sparsesnn.datasets.files import NPY_ERRORS
from sparsesnn.errors import DataError

Array = npt.NDArray[Any]

#: most bytes that DEFLATE makes of one
_MOST_FROM_ONE = 1040


def read_arrays(path: Path, wanted: Callable[[str], bool]) -> tuple[dict[str, Array], list[str]]:
    """The arrays [n] whose names are wanted, numbers or texts; and the names that the file has besides.

    Args:
        path: ends in .npz, .h5 or .hdf5.

    Raises:
        DataError: another ending; a file that is missing, damaged, or holds Python objects or arrays of another shape under
            a wanted name.
    """
    if not path.is_file():
        raise DataError(f"{path}: is no file; give a file that ends in .npz, .h5 or .hdf5")
    if path.suffix.lower() == ".npz":
        return _read_npz(path, wanted)
    if path.suffix.lower() in (".h5", ".hdf5"):
        return _read_hdf5(path, wanted)
    raise DataError(f"{path}: ends in {path.suffix!r}; allowed: .npz, .h5, .hdf5")


def as_arrays(table: Mapping[str, Any], wanted: Callable[[str], bool], where: str) -> dict[str, Array]:
    """The same of arrays that are in memory already."""
    found = {name: np.asarray(values) for name, values in table.items() if wanted(str(name))}
    for name, array in found.items():
        _check(where, name, array.shape, array.dtype)
    return found


def _check(where: str, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if dtype.hasobject:
        raise DataError(
            f"{where}: {name} holds Python objects, which are never made from files; save texts as np.array(names, dtype=str)"
        )
    if len(shape) > 1 or dtype.kind not in "biufSU":
        raise DataError(f"{where}: {name} is {dtype}{list(shape)}; give a flat array of numbers or texts")


def _read_npz(path: Path, wanted: Callable[[str], bool]) -> tuple[dict[str, Array], list[str]]:
    found: dict[str, Array] = {}
    others = []
    try:
        with warnings.catch_warnings(), zipfile.ZipFile(path) as archive:
            warnings.simplefilter("ignore")  # of Python, on a damaged header
            for info in archive.infolist():
                name = info.filename.removesuffix(".npy")
                if not wanted(name):
                    others.append(name)
                elif name in found:
                    raise DataError(f"{path}: holds {name} twice; write the file again")
                else:
                    found[name] = _member(path, archive, info, name)
    except NPY_ERRORS as error:
        raise DataError(f"{path}: is damaged or no .npz file ({error}); write it again, or get a fresh copy") from error
    return found, others


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> Array:
    packed = info.compress_size
    if packed > path.stat().st_size or info.file_size > _MOST_FROM_ONE * packed + 4096:
        raise DataError(f"{path}: {name} claims {info.file_size:,} bytes from {packed:,}; it is damaged")
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in readers:
            raise DataError(f"{path}: {name} has format version {version}; allowed: 1.0, 2.0; save it with numpy.savez")
        shape, _, dtype = readers[version](file)
        _check(str(path), name, shape, dtype)
        n_bytes = math.prod(shape) * dtype.itemsize
        if n_bytes != info.file_size - file.tell():
            raise DataError(
                f"{path}: {name} claims {dtype}{list(shape)}, {n_bytes:,} bytes, but holds {info.file_size - file.tell():,}; "
                "it is damaged"
            )
        data = file.read()
    return np.frombuffer(data, dtype).reshape(shape) if n_bytes else np.zeros(shape, dtype)


def _read_hdf5(path: Path, wanted: Callable[[str], bool]) -> tuple[dict[str, Array], list[str]]:
    with hdf5.opened(path) as file:
        import h5py

        names = [name for name in file if wanted(name) and isinstance(file.get(name), h5py.Dataset)]
        others = [name for name in file if name not in names]
    hdf5.probe(path, names)
    found = {}
    with hdf5.opened(path) as file:
        for name in names:
            data = file[name]
            if h5py.check_string_dtype(data.dtype) is not None:  # made as Python's texts
                _check(str(path), name, data.shape, np.dtype("S1"))
                data_bytes = math.prod(data.shape)  # at the least
            else:
                _check(str(path), name, data.shape, data.dtype)
                data_bytes = math.prod(data.shape) * data.dtype.itemsize
            held = min(data.id.get_storage_size(), path.stat().st_size)
            if data_bytes > _MOST_FROM_ONE * held + 4096:
                raise DataError(f"{path}: {name} claims {data_bytes:,} bytes from {held:,}; it is damaged")
            found[name] = np.asarray(data.asstr()[()] if h5py.check_string_dtype(data.dtype) is not None else data[()])
            if found[name].dtype == object:
                found[name] = found[name].astype(str)
    return found, others
