"""The event cache: a data set is converted once and then mapped from one safetensors file.

There is one file per data set, split, set of parameters, source and format version; the SHA-256 of all these is the
key, in the file's name and in the file. A file is written under a temporary name, synced and renamed, so that a reader
sees a whole file or none, whatever happens to the writer. If several processes want the same set, one converts it under
a lock that ends with its process, and the others wait and map the result. Files are checked when read: always their
structure, and their content by its checksum; a damaged file is converted again, with a warning. Arrays are views of the
mapped file: many processes share one copy in memory.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import mmap
import os
import re
import secrets
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsesnn.datasets.event_set import EventSet
from sparsesnn.errors import CacheError, DataError
from sparsesnn.regular_file import check_regular
from sparsesnn.utf8 import to_bytes

#: raised whenever the meaning of a file's content or the result of the conversion changes
FORMAT_VERSION = 4

#: the numbers of an event set that are stored in the metadata, as text
_NUMBERS = ("n_neurons", "n_classes", "n_lost", "n_merged")
_DTYPES = {
    "U8": np.uint8,
    "U16": np.uint16,
    "I8": np.int8,
    "I16": np.int16,
    "I32": np.int32,
    "I64": np.int64,
    "F32": np.float32,
}
_DTYPE_NAMES = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}
_FILE_NAME = re.compile(r"(?P<name>\w+)-(?P<split>\w+)-(?P<key>[0-9a-f]{16})\.safetensors")
_MAX_HEADER_BYTES = 16 << 20
_EDGE_BYTES = 1 << 16
_STALE_S = 24 * 3600.0
_GROUP = "group."


def default_dir() -> Path:
    """$SPARSESNN_CACHE, or ~/.cache/sparsesnn."""
    named = os.environ.get("SPARSESNN_CACHE")
    return Path(named).expanduser() if named else Path("~/.cache/sparsesnn").expanduser()


def source_identity(path: Path) -> dict[str, Any]:
    """Identifies the version of a source file: name, size, time of change, hash of its head and tail."""
    check_regular(path, DataError)
    try:
        stat = path.stat()
        with path.open("rb") as file:
            edges = file.read(_EDGE_BYTES)
            file.seek(max(0, stat.st_size - _EDGE_BYTES))
            edges += file.read(_EDGE_BYTES)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from error
    return {
        "name": path.name,
        "size": stat.st_size,
        "mtime_ns": stat.st_mtime_ns,
        "edges_sha256": hashlib.sha256(edges).hexdigest(),
    }


def tree_identity(folder: Path, files: Iterable[str]) -> dict[str, Any]:
    """Identifies the version of a folder of source files: names and sizes of all, and the last time of change.

    Args:
        folder: the folder of the files.
        files: their names, relative to the folder.
    """
    n_files, n_bytes, newest, digest = 0, 0, 0, hashlib.sha256()
    for name in files:
        try:
            stat = (folder / name).stat()
        except OSError as error:
            raise DataError(f"{folder / name}: cannot be read ({error.strerror}); check its permissions") from error
        digest.update(to_bytes(f"{name}\0{stat.st_size}\0"))
        n_files, n_bytes, newest = n_files + 1, n_bytes + stat.st_size, max(newest, stat.st_mtime_ns)
    return {
        "name": folder.name,
        "n_files": n_files,
        "size": n_bytes,
        "mtime_ns": newest,
        "names_sizes_sha256": digest.hexdigest(),
    }


def without_times(source: Mapping[str, Any]) -> dict[str, Any]:
    """An identity without the time of change: a copy of the files elsewhere is the same data."""
    return {key: value for key, value in source.items() if key != "mtime_ns"}


def cache_key(parameters: Mapping[str, Any]) -> str:
    """SHA-256 of everything that determines the content, written as canonical JSON."""
    return hashlib.sha256(_canonical({"format": FORMAT_VERSION, **parameters}).encode()).hexdigest()


def cache_path(folder: Path, parameters: Mapping[str, Any]) -> Path:
    """The file for the set with these parameters; `parameters` name at least the data set and the split."""
    return folder / f"{parameters['name']}-{parameters['split']}-{cache_key(parameters)[:16]}.safetensors"


def load_or_build(
    parameters: Mapping[str, Any],
    build: Callable[[], EventSet],
    cache_dir: Path | None = None,
    *,
    check_content: bool = True,
) -> EventSet:
    """The set with these parameters, from the cache if it holds an intact copy, else made by `build` and cached.

    If the cache cannot be written (no permission, disk full), this warns and returns the set anyway.

    Args:
        parameters: everything that determines the content, JSON values; at least `name` and `split`.
        build: makes the set.
        cache_dir: folder of the cache; None means `default_dir()`.
        check_content: compare the checksum when a file is read, about half a second per gigabyte.
    """
    key = cache_key(parameters)
    try:
        path = cache_path(default_dir() if cache_dir is None else cache_dir, parameters)
    except RuntimeError as error:  # this user has no home folder
        _warn(f"no folder for the event cache ({error}); this run continues without it; set SPARSESNN_CACHE")
        return build()
    kept = _kept(path, key, check_content, warns=False)  # a damaged file is replaced below, with a warning
    if kept is not None:
        return kept
    with ExitStack() as stack:
        try:
            stack.enter_context(_alone(path))
            alone = True
        except OSError:  # the folder cannot be written or has no locks; writing will show which
            alone = False
        # another process may have made the set while this one waited
        kept = _kept(path, key, check_content, warns=True)
        if kept is not None:
            return kept
        event_set = build()
        try:
            if alone:
                _remove_temporaries(path)
            write(path, key, event_set)
            return read(path, key, check_content=check_content)
        except (CacheError, OSError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            _warn(
                f"{path}: the event cache cannot be written ({why}); this run continues without it; set SPARSESNN_CACHE"
            )
            return event_set


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=3)


def _kept(path: Path, key: str, check_content: bool, *, warns: bool) -> EventSet | None:
    """The set in the cache; None if there is none or it is damaged; `warns`: with a warning."""
    try:
        return read(path, key, check_content=check_content)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (CacheError, OSError) as error:
        if warns:
            _warn(f"{error}; doing so now" if isinstance(error, CacheError) else f"{error}; it is rebuilt")
        return None


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Locks this file against other processes, waiting while one makes it; the lock ends with its process.

    Raises:
        OSError: the folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.name}.lock")
    while True:
        file = lock.open("a")
        try:
            _wait_for(file.fileno(), path)
            # the last owner removed the lock file; then others open a different file from the one locked here
            if os.path.samestat(os.fstat(file.fileno()), lock.stat()):
                break
        except FileNotFoundError:
            pass
        except BaseException:
            file.close()
            raise
        file.close()
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        file.close()


def _wait_for(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _warn(f"{path}: another process is making this event cache; waiting for it")
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def verify(path: Path) -> None:
    """Raises `CacheError` unless the file is whole and its content matches its checksum."""
    try:
        read(path, None)
    except OSError as error:
        raise CacheError(f"{path}: the event cache cannot be read ({error.strerror}); delete it") from error


# ---- listing -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """One file of the cache, by its name and header; its content is not checked.

    Args:
        path, n_bytes: the file.
        name, split: of the data set.
        made_at: time of creation, seconds since 1970.
        n_samples, n_steps, n_spikes: of the set; 0 if `fault` is not None.
        numbers: n_neurons, n_classes, n_lost, n_merged.
        description: see `EventSet`.
        fault: why the header cannot be read; None if it can.
    """

    path: Path
    n_bytes: int
    name: str
    split: str
    made_at: float
    n_samples: int = 0
    n_steps: int = 0
    n_spikes: int = 0
    numbers: Mapping[str, int] | None = None
    description: Mapping[str, Any] | None = None
    fault: str | None = None


def entries(folder: Path, name: str | None = None) -> list[Entry]:
    """The cache files in a folder, of one data set or of all; other files are skipped."""
    listed = []
    for path in sorted(folder.glob("*.safetensors")):
        match = _FILE_NAME.fullmatch(path.name)
        if match is None or name not in (None, match["name"]):
            continue
        try:
            stat = path.stat()
        except FileNotFoundError:  # removed meanwhile
            continue
        entry = Entry(path, stat.st_size, match["name"], match["split"], stat.st_mtime)
        try:
            listed.append(_described(entry))
        except (CacheError, OSError) as error:
            listed.append(replace(entry, fault=str(error)))
        except (KeyError, ValueError, RecursionError) as error:
            listed.append(replace(entry, fault=f"{path}: holds no event set ({type(error).__name__}: {error})"))
    return listed


def _described(entry: Entry) -> Entry:
    metadata, arrays = _open(entry.path)
    n_samples, n_steps = arrays["n_spikes"].shape
    return replace(
        entry,
        n_samples=n_samples,
        n_steps=n_steps,
        n_spikes=arrays["ids"].size,
        numbers={number: int(metadata[number]) for number in _NUMBERS},
        description=json.loads(metadata["description"]),
    )


def clear(folder: Path, name: str | None = None) -> list[Entry]:
    """Removes the files of one data set, or of all, and leftovers of killed writers; returns the removed entries.

    Processes that have mapped a file keep its content. Files that do not belong to the cache stay.
    """
    removed = entries(folder, name)
    for entry in removed:
        entry.path.unlink(missing_ok=True)
    for left in (*folder.glob(".*.safetensors.*.tmp"), *folder.glob(".*.safetensors.lock")):
        match = _FILE_NAME.match(left.name[1:])
        if match is not None and name in (None, match["name"]):
            left.unlink(missing_ok=True)
    return removed


# ---- writing -------------------------------------------------------------------------------------------------------


def write(path: Path, key: str, event_set: EventSet) -> None:
    """Writes `path` atomically: readers see the old file or the whole new one.

    Raises:
        OSError: the folder cannot be written or the disk is full; nothing is left behind.
    """
    arrays: dict[str, npt.NDArray[Any]] = {
        "ids": event_set.ids,
        "n_spikes": event_set.n_spikes,
        "labels": event_set.labels,
        **({} if event_set.values is None else {"values": event_set.values}),
        **{_GROUP + name: group for name, group in event_set.groups.items()},
    }
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    metadata = {
        "format": str(FORMAT_VERSION),
        "key": key,
        **{name: str(getattr(event_set, name)) for name in _NUMBERS},
        "description": _canonical(event_set.description),
    }
    metadata["checksum"] = _checksum(metadata, arrays)
    # wide elements first, so that every array is aligned; array by array, to avoid a second copy in memory
    arrays = dict(sorted(arrays.items(), key=lambda item: (-item[1].itemsize, item[0])))

    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(path.parent)
    temporary = path.parent / f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    try:
        with temporary.open("xb") as file:
            file.write(_safetensors_header(metadata, arrays))
            for array in arrays.values():
                file.write(array.reshape(-1).view(np.uint8).data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _safetensors_header(metadata: Mapping[str, str], arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Length, JSON and spaces up to a multiple of 8, as described at https://github.com/huggingface/safetensors."""
    table: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, array in arrays.items():
        begin, end = end, end + array.nbytes
        table[name] = {
            "dtype": _DTYPE_NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
    text = _canonical(table).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _remove_stale(folder: Path) -> None:
    """Removes files left by processes that were killed while writing, once they are a day old."""
    for left in (*folder.glob(".*.safetensors.*.tmp"), *folder.glob(".*.safetensors.lock")):
        try:
            if time.time() - left.stat().st_mtime > _STALE_S:
                left.unlink()
        except OSError:
            continue  # another process removed it first, or owns it


def _remove_temporaries(path: Path) -> None:
    """Removes killed processes' leftovers of this one file, of any age; the caller holds the lock."""
    for left in path.parent.glob(f".{path.name}.*.tmp"):
        left.unlink(missing_ok=True)


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _checksum(metadata: Mapping[str, str], arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """SHA-256 over the metadata and, by name, type, shape and bytes of each array."""
    digest = hashlib.sha256(_canonical({k: v for k, v in metadata.items() if k != "checksum"}).encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(arrays[name].reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


# ---- reading -------------------------------------------------------------------------------------------------------


def read(path: Path, key: str | None, *, check_content: bool = True) -> EventSet:
    """Maps a cache file; the arrays are read-only views of it.

    Args:
        path: the file.
        key: the key it must have; None accepts any.
        check_content: compare the checksum of the whole content.

    Raises:
        FileNotFoundError, OSError: the file does not exist, or cannot be opened.
        CacheError: it is incomplete, was made with other parameters or by another version, or its content changed.
    """
    metadata, arrays = _open(path)
    if key is not None and metadata.get("key") != key:
        raise _damaged(path, f"was made with other parameters (key {metadata.get('key')!r}, wanted {key!r})")
    if check_content and metadata.get("checksum") != _checksum(metadata, arrays):
        raise _damaged(path, "has content that does not match its checksum")
    try:
        return EventSet(
            ids=arrays["ids"],
            n_spikes=arrays["n_spikes"],
            labels=arrays["labels"],
            values=arrays.get("values"),
            groups={name[len(_GROUP) :]: array for name, array in arrays.items() if name.startswith(_GROUP)},
            description=json.loads(metadata["description"]),
            path=path,
            **{name: int(metadata[name]) for name in _NUMBERS},
        )
    except (KeyError, TypeError, ValueError, RecursionError, DataError) as error:
        raise _damaged(path, f"holds no event set ({type(error).__name__}: {error})") from error


def _open(path: Path) -> tuple[dict[str, str], dict[str, npt.NDArray[Any]]]:
    """Metadata and arrays of a file of this format, mapped."""
    check_regular(path, CacheError)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < 8:
            raise _damaged(path, f"has {size} bytes, fewer than a header needs")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    metadata, entries = _header(path, mapped, size)
    if metadata.get("format") != str(FORMAT_VERSION):
        raise _damaged(path, f"has format {metadata.get('format')!r}; this version reads {FORMAT_VERSION}")
    return metadata, _arrays(path, mapped, size, entries)


def _header(path: Path, mapped: mmap.mmap, size: int) -> tuple[dict[str, str], dict[str, Any]]:
    n_bytes = int.from_bytes(mapped[:8], "little")
    if n_bytes > min(size - 8, _MAX_HEADER_BYTES):
        raise _damaged(path, f"claims a header of {n_bytes} bytes but has only {size} in all")
    try:
        entries = json.loads(mapped[8 : 8 + n_bytes])
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"has a header that is not JSON ({error})") from error
    metadata = entries.pop("__metadata__", None) if isinstance(entries, dict) else None
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _damaged(path, "has a header without metadata")
    entries["__start__"] = 8 + n_bytes
    return metadata, entries


def _arrays(path: Path, mapped: mmap.mmap, size: int, entries: dict[str, Any]) -> dict[str, npt.NDArray[Any]]:
    start = entries.pop("__start__")
    arrays, n_bytes = {}, 0
    for name, entry in entries.items():
        try:
            dtype = np.dtype(_DTYPES[entry["dtype"]])
            shape = [int(length) for length in entry["shape"]]
            begin, end = (int(offset) for offset in entry["data_offsets"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise _damaged(path, f"describes the array {name!r} as {str(entry)[:200]}") from error
        fits = 0 <= begin <= end <= size - start and min(shape, default=0) >= 0
        if not fits or math.prod(shape) * dtype.itemsize != end - begin:
            raise _damaged(path, f"claims {shape} {dtype} for {name!r} in bytes {begin} to {end} of {size - start}")
        array = np.frombuffer(mapped, dtype, count=math.prod(shape), offset=start + begin)
        arrays[name] = array.reshape(shape)
        n_bytes += end - begin
    if n_bytes != size - start:
        raise _damaged(path, f"has {size - start} bytes of arrays but describes {n_bytes}")
    return arrays


def _damaged(path: Path, what: str) -> CacheError:
    return CacheError(f"{path}: the event cache {what}; delete it, and it will be made again from the source")
