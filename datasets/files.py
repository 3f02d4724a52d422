"""Folders of many files, one recording each: finding, counting and reading them in bulk."""

from __future__ import annotations

import os
import tarfile
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsesnn.errors import DataError, MissingDependencyError
from sparsesnn.regular_file import check_regular


def find_folder(name: str, class_name: str, part: str, data_dir: Path | None, download: bool) -> Path:
    """The folder of one split, downloaded by Tonic if it is missing and `download` is set.

    Args:
        name, class_name: names of the data set, here and in Tonic.
        part: name of the split's folder.
        data_dir: holds `class_name`/`part` (Tonic's `save_to`), or `part`.

    Raises:
        DataError: the folder does not exist.
        MissingDependencyError: a download is requested but Tonic is not installed.
    """
    if data_dir is None:
        raise DataError(
            f"{name}: no folder was given; give data_dir (--data), the folder that holds {class_name}/{part}, "
            "or, with download=True (--download), a folder to download to"
        )
    places = [data_dir / class_name / part, data_dir / part]
    for attempt in range(2):
        for place in places:
            if place.is_dir():
                return place
        if download and attempt == 0:
            with downloading(name, data_dir / class_name):
                getattr(tonic_datasets(name), class_name)(str(data_dir), train="train" in part.lower())
    raise DataError(
        f"{name}: neither {places[0]} nor {places[1]} is a folder; give the folder that holds one of them, "
        "or download=True (--download) to let Tonic fetch the data set"
        + ("; if the copy has no test part, data.test takes one from the training part" * ("test" in part.lower()))
    )


@contextmanager
def downloading(name: str, folder: Path) -> Iterator[None]:
    """Turns any exception of a Tonic download into a `DataError`."""
    try:
        yield
    except (OSError, RuntimeError, ValueError, EOFError, zipfile.BadZipFile, tarfile.TarError) as error:
        raise DataError(
            f"{name}: Tonic could not download the data set ({type(error).__name__}: {error}); try again, or fetch and "
            f"unpack its files by hand in {folder}"
        ) from error


def tonic_datasets(name: str) -> Any:
    """Tonic's data sets; `MissingDependencyError` without Tonic."""
    try:
        import tonic.datasets
    except ImportError as error:
        raise MissingDependencyError("tonic", "data", f"the data set '{name}'") from error
    return tonic.datasets


def is_hidden(name: str) -> bool:
    """Whether a file or folder is not data: its name begins with a dot or is __MACOSX.

    Archives made on a Mac hold `._NAME` for every file and `__MACOSX`, notebooks leave `.ipynb_checkpoints`.
    """
    return name.startswith(".") or name == "__MACOSX"


def list_files(folder: Path, suffix: str) -> list[str]:
    """All files below a folder with names ending in `suffix`, relative to it, in order; `DataError` if there is none.

    Hidden files and folders are skipped, see `is_hidden`.
    """
    paths = []
    for place, folders, names in os.walk(folder, onerror=_unreadable):
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        below = Path(place).relative_to(folder)
        paths += [(below / name).as_posix() for name in sorted(names) if name.endswith(suffix) and not is_hidden(name)]
    if not paths:
        raise DataError(f"{folder}: holds no {suffix} files; check that the data set was unpacked there")
    return paths


def _unreadable(error: OSError) -> None:
    raise DataError(f"{error.filename}: cannot be read ({error.strerror}); check its permissions") from error


def warn_if_partial(name: str, split: str, n_here: int, n_whole: int, what: str, folder: Path) -> None:
    """Warns if recordings are missing: results then are not results of the whole data set."""
    if n_here < n_whole:
        warnings.warn(
            f"{name}: {n_here:,} of the {n_whole:,} {what} of the {split} part are in {folder}; continuing with these, "
            "but results are not those of the whole set",
            stacklevel=2,
        )


#: most bytes of a recording that is read as a whole
MOST_RECORDING_BYTES = 256 << 20
#: exceptions of NumPy and Python for damaged or malicious .npy headers and archives
NPY_ERRORS = (
    *(OSError, EOFError, ValueError, TypeError, KeyError, SyntaxError, tokenize.TokenError, OverflowError),
    *(MemoryError, RecursionError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error),
)


def map_npy(path: Path) -> npt.NDArray[Any]:
    """The memory-mapped array of a .npy file: its size is compared with the header's claim before memory is allocated.

    Raises:
        DataError: it is damaged, in another format, or holds Python objects, which are never unpickled.
    """
    check_regular(path, DataError)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's warnings about a damaged header
            array = np.load(path, mmap_mode="r", allow_pickle=False)
    except NPY_ERRORS as error:
        raise DataError(f"{path}: is damaged or not a .npy file ({error}); get a fresh copy") from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise DataError(f"{path}: is an archive; give a .npy file, one array")
    return array


def read_rows(paths: list[Path], n_columns: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The bytes of some files as one array uint8[E, n_columns], and int64[n], the number of rows of each file.

    Raises:
        DataError: a file cannot be read, or its last row is cut short.
    """
    contents = []
    for path in paths:
        check_regular(path, DataError, MOST_RECORDING_BYTES)
        try:
            contents.append(path.read_bytes())
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}); check its permissions") from error
        if len(contents[-1]) % n_columns:
            raise DataError(
                f"{path}: has {len(contents[-1])} bytes, which is not a multiple of the {n_columns} bytes of an event; "
                "it is cut short or in another format; get a fresh copy"
            )
    n_rows = np.array([len(content) // n_columns for content in contents], np.int64)
    return np.frombuffer(b"".join(contents), np.uint8).reshape(-1, n_columns), n_rows
