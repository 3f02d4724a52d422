"""Named flat arrays from one .npz or HDF5 file, which may be damaged or malicious. They are read in pieces.

Nothing is unpickled. The sizes in a header are compared with the size of the file before memory is taken, see `most_entries` and
`most_bytes` in `hdf5_items`: a file of a few megabytes takes a few hundred megabytes of memory at most.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsesnn.datasets import hdf5, hdf5_items
from sparsesnn.datasets.classes import shape_advice, strange_entry
from sparsesnn.datasets.files import NPY_ERRORS
from sparsesnn.datasets.hdf5_items import most_bytes, most_entries
from sparsesnn.errors import DataError
from sparsesnn.typed import typed

Array = npt.NDArray[Any]

#: DEFLATE expands one byte to at most this many
_MOST_FROM_ONE = 1040
#: bytes of an array's header in an .npz file; NumPy writes 128, and more for structured types
_HEADER_BYTES = 1 << 16
#: most arrays read from one file; each is opened separately
_MOST_ARRAYS = 256
#: number of event arrays, which may all be as long as the file allows; others are short
_LONG_ARRAYS = 8
#: most characters of a label or group; all texts are stored at the length of the longest
_TEXT_LENGTH = 1000

#: most axes of arrays that are not flat
_AXES = {"step_label": 2, "target": 2, "step_target": 3}

#: array entries read at once
BLOCK = 1 << 20
#: an array of `room` with at least this many bytes is kept in a file
_LARGE = 64 << 20


@dataclass(frozen=True)
class Column:
    """An array that is read in pieces; flat, except for labels of steps and values.

    Args:
        shape, dtype: of the whole array, from its header.
        pieces: reads the array from the first to the last entry, `BLOCK` at a time; may be called again.
        in_fortran_order: whether entries follow one another along the first axis.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    pieces: Callable[[], Iterator[Array]] = field(repr=False)
    in_fortran_order: bool = False

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def whole(self) -> Array:
        """The whole array."""
        parts = list(self.pieces()) or [np.zeros(self.shape, self.dtype)]
        if not self.shape:
            return parts[0]
        entries = np.concatenate(parts)
        return entries.reshape(self.shape[::-1]).T if self.in_fortran_order else entries.reshape(self.shape)


Columns = Mapping[str, Column]


def blocks(columns: Columns, names: Sequence[str]) -> Iterator[tuple[slice, dict[str, Array]]]:
    """Blocks of several columns of the same length, each with its slice."""
    start = 0
    for pieces in zip(*(columns[name].pieces() for name in names), strict=True):
        stop = start + pieces[0].size
        yield slice(start, stop), dict(zip(names, pieces, strict=True))
        start = stop


def room(n: int, dtype: Any) -> Array:
    """An array to fill. A large one is in an unnamed file, whose memory the system can reclaim.

    Raises:
        DataError: the disk is full.
    """
    n_bytes = n * np.dtype(dtype).itemsize
    if n_bytes < _LARGE:
        return np.empty(n, dtype)
    with _spare_folder(n_bytes) as folder, tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, n_bytes)  # a full disk raises an error here, but a signal later
        return np.asarray(np.memmap(file, dtype, "r+", shape=(n,)))


class Growing:
    """A flat array of unknown length, in an unnamed file: `append` pieces, take the `whole`, and `close` the file.

    Raises:
        DataError: the disk is full.
    """

    def __init__(self, dtype: Any) -> None:
        self.dtype, self.n = np.dtype(dtype), 0
        with _spare_folder(0) as folder:
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  closed by close

    def append(self, values: Array) -> None:
        """Adds entries at the end."""
        self.n += values.size
        with _spare_folder(self.n * self.dtype.itemsize):
            self._file.write(values.astype(self.dtype).data)

    def whole(self) -> Array:
        """All entries; they stay when the file is closed."""
        with _spare_folder(self.n * self.dtype.itemsize):
            self._file.flush()
            return (
                np.asarray(np.memmap(self._file, self.dtype, "r+", shape=(self.n,)))
                if self.n
                else np.empty(0, self.dtype)
            )

    def close(self) -> None:
        """Closes the file; entries that `whole` has not returned are lost."""
        self._file.close()


@contextlib.contextmanager
def _spare_folder(n_bytes: int) -> Iterator[str]:
    """A folder on a disk for temporary files; an `OSError`, such as a full disk, becomes a `DataError`."""
    given = any(os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    folder = "/var/tmp" if not given and os.access("/var/tmp", os.W_OK) else tempfile.gettempdir()  # /tmp may be memory
    try:
        yield folder
    except OSError as error:
        raise DataError(
            f"converting needs {n_bytes:,} bytes temporarily in {folder}: {error.strerror}; free some space, or set TMPDIR to another folder"
        ) from None


def read_arrays(path: Path, wanted: Callable[[str], bool]) -> tuple[Columns, list[str]]:
    """The arrays [n] with wanted names, numbers or texts; and the other names in the file.

    Args:
        path: ends in .npz, .h5 or .hdf5.

    Raises:
        DataError: another ending; a file that is missing or damaged, or that holds Python objects or arrays of another shape
            under a wanted name.
    """
    if not path.is_file():
        raise DataError(f"{path}: is not a file; give a file that ends in .npz, .h5 or .hdf5")
    readers = {".npz": _read_npz, ".h5": _read_hdf5, ".hdf5": _read_hdf5}
    if path.suffix.lower() not in readers:
        hint = f"; to run a function of it, name that: {path}:FUNCTION" if path.suffix == ".py" else ""
        raise DataError(f"{path}: ends in {path.suffix!r}; allowed: .npz, .h5, .hdf5{hint}")
    columns, others = readers[path.suffix.lower()](path, wanted)
    n, n_bytes = sum(column.size for column in columns.values()), path.stat().st_size
    if n > _LONG_ARRAYS * most_entries(n_bytes):
        raise DataError(
            f"{path}: its {len(columns):,} arrays claim {n:,} entries from {n_bytes:,} bytes; allowed: "
            f"{_LONG_ARRAYS * most_entries(n_bytes):,} in such a file; remove groups, or write it without compression"
        )
    return columns, others


def as_columns(table: Mapping[str, Any], wanted: Callable[[str], bool], where: str) -> Columns:
    """The same for arrays in memory."""
    arrays = {str(name): _typed(where, str(name), values) for name, values in table.items() if wanted(str(name))}
    for name, array in arrays.items():
        _check(where, name, array.shape, array.dtype)
    return {name: in_memory(array) for name, array in arrays.items()}


def _typed(where: str, name: str, values: Any) -> Array:
    """An array of numbers or texts."""
    try:
        array = typed(values)
    except ValueError:  # lists of different lengths
        raise DataError(
            f"{where}: {name} has lists of different lengths; give a flat array of numbers or texts"
        ) from None
    if array.dtype.hasobject:
        raise DataError(f"{where}: {name} holds {strange_entry(array)}; give numbers alone, or texts alone")
    return array


def in_memory(array: Array) -> Column:
    """A column of an array."""

    def pieces() -> Iterator[Array]:
        if not array.shape:
            yield array
        else:
            yield from (array[k : k + BLOCK] for k in range(0, len(array), BLOCK))

    return Column(array.shape, array.dtype, pieces)


def _check(where: str, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if dtype.hasobject:
        raise DataError(
            f"{where}: {name} holds Python objects, which are never made from files; save texts as np.array(names, dtype=str)"
        )
    if len(shape) > 1 and shape[1] != 1 and name == "label":
        raise DataError(f"{where}: {name} is {dtype}{list(shape)}; {shape_advice(shape)}")
    axes = _AXES.get(name, 1)
    if len(shape) > axes or dtype.kind not in "biufSU" or dtype.itemsize == 0:
        allowed = "a flat array of numbers or texts" if axes == 1 else f"an array of numbers with at most {axes} axes"
        raise DataError(f"{where}: {name} is {dtype}{list(shape)}; give {allowed}")


def _check_size(path: Path, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Raises `DataError` if the array is too large for a file of this size."""
    n, n_file = math.prod(shape), path.stat().st_size
    n_bytes = n * dtype.itemsize
    length = dtype.itemsize // {"U": 4, "S": 1}.get(dtype.kind, dtype.itemsize)
    for claimed, most, what in (
        (n, most_entries(n_file), "entries"),
        (n_bytes, most_bytes(n_file), "bytes"),
        (length, _TEXT_LENGTH, "characters of a text"),
    ):
        if claimed > most:
            raise DataError(
                f"{path}: {name} claims {dtype}{list(shape)}, {n_bytes:,} bytes, from {n_file:,}; allowed: {most:,} {what} in such a "
                "file; the file is damaged, or must be written without compression"
            )


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """An open .npz file; all its errors become `DataError`."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except NPY_ERRORS as error:
        with path.open("rb") as file:
            begins = file.read(4) == b"PK\3\4"
        if begins and not zipfile.is_zipfile(path):
            raise DataError(
                f"{path}: is cut short: its {path.stat().st_size:,} bytes begin like an .npz file, but the directory at its end is "
                "missing; copy it again"
            ) from error
        raise DataError(
            f"{path}: is damaged or not an .npz file ({error}); write it again, or get a fresh copy"
        ) from error


def _chosen(path: Path, names: Sequence[str], wanted: Callable[[str], bool]) -> list[str]:
    chosen = [name for name in names if wanted(name)]
    if strange := [name for name in chosen if not name.isprintable()]:
        raise DataError(f"{path}: has an array named {strange[0]!r}, which is not valid text; rename it")
    if len(chosen) > _MOST_ARRAYS:
        raise DataError(
            f"{path}: holds {len(chosen):,} arrays of events, labels and groups; allowed: {_MOST_ARRAYS}; remove groups"
        )
    return chosen


def _read_npz(path: Path, wanted: Callable[[str], bool]) -> tuple[Columns, list[str]]:
    columns: dict[str, Column] = {}
    others = []
    with _opened(path) as archive:
        _chosen(path, [info.filename.removesuffix(".npy") for info in archive.infolist()], wanted)
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            if not wanted(name):
                others.append(name)
            elif name in columns:
                raise DataError(f"{path}: holds {name} twice; write the file again")
            else:
                columns[name] = _member(path, archive, info, name)
    return columns, others


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> Column:
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(
            f"{path}: {name} is compressed by method {info.compress_type}; allowed: 0 (stored), 8 (DEFLATE); save it with numpy.savez"
        )
    packed = info.compress_size
    if packed > path.stat().st_size or info.file_size > _MOST_FROM_ONE * packed + 4096:
        raise DataError(f"{path}: {name} claims {info.file_size:,} bytes from {packed:,}; it is damaged")
    with archive.open(info) as file:
        head = io.BytesIO(file.read(_HEADER_BYTES))
    shape, dtype, in_fortran_order = _header(path, name, head)
    begin = head.tell()
    n_bytes = math.prod(shape) * dtype.itemsize
    if n_bytes != info.file_size - begin:
        raise DataError(
            f"{path}: {name} claims {dtype}{list(shape)}, {n_bytes:,} bytes, but holds {info.file_size - begin:,}; it is damaged"
        )

    def pieces() -> Iterator[Array]:
        with _opened(path) as archive, archive.open(info) as file:
            file.read(begin)
            for k in range(0, math.prod(shape), BLOCK):
                n = min(BLOCK, math.prod(shape) - k)
                data = file.read(n * dtype.itemsize)
                if len(data) != n * dtype.itemsize:
                    raise DataError(
                        f"{path}: {name} ends after {k * dtype.itemsize + len(data):,} of {n_bytes:,} bytes; copy it again"
                    )
                yield np.frombuffer(data, dtype).reshape(-1 if shape else ())

    _check_size(path, name, shape, dtype)
    return Column(shape, dtype, pieces, in_fortran_order)


def _header(path: Path, name: str, file: Any) -> tuple[tuple[int, ...], np.dtype[Any], bool]:
    """Shape, type, and whether the entries are in Fortran's order."""
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise DataError(f"{path}: {name} has format version {version}; allowed: 1.0, 2.0; save it with numpy.savez")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's warnings about a damaged header
        shape, in_fortran_order, dtype = readers[version](file)
    _check(str(path), name, shape, dtype)
    return shape, dtype, in_fortran_order and len(shape) > 1


def _read_hdf5(path: Path, wanted: Callable[[str], bool]) -> tuple[Columns, list[str]]:
    all_names = hdf5.probe(path, lambda names: _chosen(path, names, wanted))
    columns = {}
    with hdf5.opened(path) as file:
        import h5py

        for name in filter(wanted, all_names):
            data = hdf5_items.item(file, name)
            if isinstance(data, h5py.Dataset):
                columns[name] = hdf5_column(path, name, data)
    return columns, [name if name.isprintable() else ascii(name) for name in all_names if name not in columns]


def hdf5_column(path: Path, name: str, data: Any) -> Column:
    """A flat array of numbers or texts in an HDF5 file that passed `hdf5.probe`."""
    import h5py

    is_text = h5py.check_string_dtype(data.dtype) is not None
    shape, dtype = data.shape, np.dtype("S1") if is_text else data.dtype  # texts become Python strings
    _check(str(path), name, shape, dtype)

    def pieces() -> Iterator[Array]:
        n_bytes = path.stat().st_size
        with hdf5.opened(path) as file:
            for piece in hdf5_items.pieces(hdf5_items.item(file, name), name, n_bytes, BLOCK):
                yield _texts(path, name, np.asarray(piece), math.prod(shape)) if is_text else np.asarray(piece)

    return Column(shape, dtype, pieces)


def _texts(path: Path, name: str, values: Array, n: int) -> Array:
    """UTF-8 texts as an array of Python strings; the whole column has `n`."""
    texts = [bytes(value).decode(errors="strict") for value in values.flat]
    longest, n_bytes = max(map(len, texts), default=0), path.stat().st_size
    if longest > _TEXT_LENGTH or 4 * n * longest > most_bytes(n_bytes):
        raise DataError(
            f"{path}: {name} has {n:,} texts of up to {longest:,} characters in a file of {n_bytes:,} bytes; allowed: {_TEXT_LENGTH:,} "
            "characters, and fewer in a small file; shorten them, or give numbers"
        )
    return np.array(texts, str).reshape(values.shape)
