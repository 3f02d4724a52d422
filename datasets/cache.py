"""The event cache: a data set is converted once and then mapped from one safetensors file.

One file for each data set, split, set of parameters, source file and format version; the SHA-256 of all these is the
key, in the file's name and in the file. A file is written under a temporary name, synced and renamed, so that a reader
sees a whole file or none, and two processes that convert at once each write their own and the last one stays. What is
read is checked: structure always, content by its checksum; a damaged file is converted anew, with a logged warning.
Arrays are views of the mapped file: many processes share one copy in memory.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import mmap
import os
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from sparsesnn.datasets.event_set import EventSet
from sparsesnn.errors import CacheError, DataError

#: raised whenever the content of a file changes its meaning, or the conversion its result
FORMAT_VERSION = 1

_DTYPES = {"U8": np.uint8, "U16": np.uint16, "I32": np.int32, "I64": np.int64}
_MAX_HEADER_BYTES = 16 << 20
_EDGE_BYTES = 1 << 16
_STALE_S = 24 * 3600.0
_GROUP = "group."

_log = logging.getLogger(__name__)


def default_dir() -> Path:
    """$SPARSESNN_CACHE, or ~/.cache/sparsesnn."""
    named = os.environ.get("SPARSESNN_CACHE")
    return Path(named).expanduser() if named else Path("~/.cache/sparsesnn").expanduser()


def source_identity(path: Path) -> dict[str, Any]:
    """What tells one version of a source file from another: name, size, time of change, hash of its head and tail."""
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


def cache_key(parameters: Mapping[str, Any]) -> str:
    """SHA-256 of everything that decides the content, written as canonical JSON."""
    return hashlib.sha256(_canonical({"format": FORMAT_VERSION, **parameters}).encode()).hexdigest()


def cache_path(folder: Path, parameters: Mapping[str, Any]) -> Path:
    """Where the set with these parameters is kept; `parameters` name at least the data set and the split."""
    return folder / f"{parameters['name']}-{parameters['split']}-{cache_key(parameters)[:16]}.safetensors"


def load_or_build(
    parameters: Mapping[str, Any],
    build: Callable[[], EventSet],
    cache_dir: Path | None = None,
    *,
    check_content: bool = True,
) -> EventSet:
    """The set with these parameters, from the cache if it is there and whole, else made by `build` and kept.

    A cache that cannot be written (no permission, disk full) is a logged warning: the set is returned all the same.

    Args:
        parameters: everything that decides the content, JSON values; at least `name` and `split`.
        build: makes the set.
        cache_dir: folder of the cache; None means `default_dir()`.
        check_content: compare the checksum of a file that is read, about half a second for a gigabyte.
    """
    key = cache_key(parameters)
    try:
        path = cache_path(default_dir() if cache_dir is None else cache_dir, parameters)
    except RuntimeError as error:  # this user has no home folder
        _log.warning("no folder for the event cache (%s); this run goes on without; set SPARSESNN_CACHE", error)
        return build()
    try:
        return read(path, key, check_content=check_content)
    except FileNotFoundError:
        pass
    except (CacheError, OSError) as error:
        _log.warning("%s; the cache is made anew", error)
    event_set = build()
    try:
        write(path, key, event_set)
        return read(path, key, check_content=check_content)
    except (CacheError, OSError) as error:
        _log.warning(
            "%s: the event cache cannot be kept (%s); this run goes on without; set SPARSESNN_CACHE", path, error
        )
        return event_set


def verify(path: Path) -> None:
    """Raises `CacheError` unless the file is whole and its content has the checksum it claims."""
    try:
        read(path, None)
    except OSError as error:
        raise CacheError(f"{path}: the event cache cannot be read ({error.strerror}); delete it") from error


# ---- writing -------------------------------------------------------------------------------------------------------


def write(path: Path, key: str, event_set: EventSet) -> None:
    """Writes `path` in one step: whoever reads sees the old file or the whole new one.

    Raises:
        OSError: the folder cannot be written or the disk is full; nothing is left behind.
    """
    arrays: dict[str, npt.NDArray[Any]] = {
        "ids": event_set.ids,
        "n_spikes": event_set.n_spikes,
        "labels": event_set.labels,
        **{_GROUP + name: group for name, group in event_set.groups.items()},
    }
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    metadata = {
        "format": str(FORMAT_VERSION),
        "key": key,
        "n_neurons": str(event_set.n_neurons),
        "n_classes": str(event_set.n_classes),
        "n_lost": str(event_set.n_lost),
        "description": _canonical(event_set.description),
    }
    metadata["checksum"] = _checksum(metadata, arrays)
    content = safetensors.numpy.save(arrays, metadata)

    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(path.parent)
    temporary = path.parent / f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    try:
        with temporary.open("xb") as file:
            file.write(content)
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


def _remove_stale(folder: Path) -> None:
    """Removes what processes that were killed while writing left, once it is a day old."""
    for temporary in folder.glob(".*.safetensors.*.tmp"):
        try:
            if time.time() - temporary.stat().st_mtime > _STALE_S:
                temporary.unlink()
        except OSError:
            continue  # another process removed it first, or owns it


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
        key: what it must have been made with; None takes any.
        check_content: compare the checksum of the whole content.

    Raises:
        FileNotFoundError, OSError: there is no such file, or it cannot be opened.
        CacheError: it is not whole, was made with other parameters or by another version, or its content changed.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < 8:
            raise _damaged(path, f"has {size} bytes, a header needs more")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    metadata, entries = _header(path, mapped, size)
    if metadata.get("format") != str(FORMAT_VERSION):
        raise _damaged(path, f"has the format {metadata.get('format')!r}, this version reads {FORMAT_VERSION}")
    if key is not None and metadata.get("key") != key:
        raise _damaged(path, f"was made with other parameters (key {metadata.get('key')!r}, wanted {key!r})")
    arrays = _arrays(path, mapped, size, entries)
    if check_content and metadata.get("checksum") != _checksum(metadata, arrays):
        raise _damaged(path, "does not have the content that its checksum was taken of")
    try:
        return EventSet(
            ids=arrays["ids"],
            n_spikes=arrays["n_spikes"],
            labels=arrays["labels"],
            n_neurons=int(metadata["n_neurons"]),
            n_classes=int(metadata["n_classes"]),
            groups={name[len(_GROUP) :]: array for name, array in arrays.items() if name.startswith(_GROUP)},
            n_lost=int(metadata["n_lost"]),
            description=json.loads(metadata["description"]),
        )
    except (KeyError, ValueError, DataError) as error:
        raise _damaged(path, f"holds no event set ({type(error).__name__}: {error})") from error


def _header(path: Path, mapped: mmap.mmap, size: int) -> tuple[dict[str, str], dict[str, Any]]:
    n_bytes = int.from_bytes(mapped[:8], "little")
    if n_bytes > min(size - 8, _MAX_HEADER_BYTES):
        raise _damaged(path, f"claims a header of {n_bytes} bytes and has {size} in all")
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
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(path, f"describes the array {name!r} as {str(entry)[:200]}") from error
        fits = 0 <= begin <= end <= size - start and min(shape, default=0) >= 0
        if not fits or math.prod(shape) * dtype.itemsize != end - begin:
            raise _damaged(path, f"claims {shape} {dtype} for {name!r} in bytes {begin} to {end} of {size - start}")
        array = np.frombuffer(mapped, dtype, count=math.prod(shape), offset=start + begin)
        arrays[name] = array.reshape(shape)
        n_bytes += end - begin
    if n_bytes != size - start:
        raise _damaged(path, f"has {size - start} bytes of arrays and describes {n_bytes}")
    return arrays


def _damaged(path: Path, what: str) -> CacheError:
    return CacheError(f"{path}: the event cache {what}; delete it, it will be made anew from the source")
