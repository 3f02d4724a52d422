"""Arrays and groups of one HDF5 file, without following links out of it, and bounds on their sizes.

A small HDF5 file can claim arrays of any size, name other files as its own data, and crash the process that reads it. So no link to
another file is followed, sizes are compared with the size of the file before memory is allocated, and this file is also a script:
`hdf5.probe` starts it in a separate process, with limits on memory and time, to read the file first. It imports nothing
from sparsesnn, which would take seconds.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

#: samples read at once
BLOCK_SAMPLES = 256
#: numbers read at once
BLOCK_NUMBERS = 1 << 20
#: bytes of variable-length lists read at once, if they are as long as the lists before them
BLOCK_BYTES = 16 << 20
#: most soft links followed for one name, as in HDF5
MAX_LINKS = 16
#: deepest nesting of groups
MAX_DEPTH = 64
#: most groups and arrays in a tree
MAX_ITEMS = 200_000
#: most arrays behind a virtual array
MAX_SOURCES = 100_000
#: filters of the package hdf5plugin; files do not always contain their names
FILTERS = {
    307: "bzip2", 32001: "blosc", 32004: "lz4", 32008: "bitshuffle", 32013: "zfp", 32015: "zstd", 32017: "sz", 32026: "blosc2",
}  # fmt: skip
#: most CPU seconds of one read and of a whole file; both grow with the file
MAX_SECONDS, MAX_SECONDS_ALL = 8.0, 60.0


class RefusedError(Exception):
    """The file holds something unsupported; the message names it and the remedy."""


# ---- bounds ----------------------------------------------------------------------------------------------------------
# Each is a constant, allowed for any file, plus a term that grows with the file: exhausting memory takes a large file.


def most_entries(n_bytes: int) -> int:
    """Most entries of an array in a file of `n_bytes`. Compressed events take 8 bits or more, so 2 bits leave a margin."""
    return (1 << 22) + 4 * n_bytes


def most_bytes(n_bytes: int) -> int:
    """Most bytes of an array in a file of `n_bytes`; texts padded to one length compress well."""
    return (64 << 20) + 64 * n_bytes


def most_lists(n_bytes: int) -> int:
    """Most variable-length texts or lists in a file of `n_bytes`: each has a 16-byte address, possibly compressed."""
    return 4096 + n_bytes // 4


def most_chunk_bytes(n_bytes: int) -> int:
    """Most bytes of a chunk, which HDF5 holds in memory as a whole."""
    return (64 << 20) + 8 * n_bytes


def most_chunks(n_bytes: int) -> int:
    """Most chunks of an array: each has an entry in an index."""
    return 1024 + n_bytes // 8


# ---- access ----------------------------------------------------------------------------------------------------------


def open_file(path: str) -> Any:
    """The file, open for reading; with the filters of the package hdf5plugin if it is installed."""
    import h5py

    with contextlib.suppress(Exception):  # if it is missing or broken, so are its filters
        import hdf5plugin  # noqa: F401
    return h5py.File(path, "r")


def names_of(file: Any) -> list[str]:
    """The names in a file; bytes that are not UTF-8 become surrogates."""
    return [os.fsdecode(name) for name in file]


def item(group: Any, path: str) -> Any:
    """The array or group at a path; None if there is none.

    Raises:
        RefusedError: the path leads through a link to another file, or through a cycle of soft links.
    """
    return _follow(group, path, [MAX_LINKS])


def _follow(group: Any, path: str, left: list[int]) -> Any:
    import h5py

    here = group["/"] if path.startswith("/") else group
    for part in path.split("/"):
        if part in ("", "."):
            continue
        link = here.get(part, getlink=True) if isinstance(here, h5py.Group) else None
        if isinstance(link, h5py.ExternalLink):
            raise RefusedError(
                f"{part} is a link to another file, {link.filename!r}; only links within the file are allowed: copy the data into it"
            )
        if isinstance(link, h5py.SoftLink):
            left[0] -= 1
            if left[0] < 0:
                raise RefusedError(f"{part} is a soft link through more than {MAX_LINKS} others; remove it")
            here = _follow(here, link.path, left)
        else:
            here = here[part] if isinstance(link, h5py.HardLink) else None
        if here is None:
            return None
    return here


def is_list(dtype: Any) -> bool:
    """Whether entries are variable-length texts or lists of numbers."""
    import h5py

    text, element = h5py.check_string_dtype(dtype), h5py.check_vlen_dtype(dtype)
    return (text is not None and text.length is None) or (element is not None and _is_plain(element))


def _is_plain(dtype: Any) -> bool:
    return getattr(dtype, "kind", "O") in "biufS" and dtype.itemsize > 0


def is_readable(dtype: Any) -> bool:
    """Whether entries are numbers, texts, or lists of numbers; no compounds, references or lists of lists."""
    return _is_plain(dtype) or is_list(dtype)


def check(data: Any, name: str, n_bytes: int, most: int | None = None, depth: int = 0) -> None:
    """`RefusedError` unless an array lies in its own file and claims no more than a file of `n_bytes` can hold.

    Args:
        most: bytes that it may claim; None: the bound for compressed events.
    """
    import h5py

    layout = data.id.get_create_plist()
    # before the shape: HDF5 opens the files of a virtual array to find it
    if layout.get_layout() == h5py.h5d.VIRTUAL:
        _check_virtual(data, layout, name, n_bytes, most, depth)
    elif layout.get_external_count():
        other = os.fsdecode(layout.get_external(0)[0])
        raise RefusedError(f"{name} lies in another file, {other!r}; copy its data into this file")
    try:
        dtype = data.dtype
    except TypeError as error:
        raise RefusedError(f"{name} has a type unknown to NumPy ({error}); write numbers or texts") from None
    if data.shape is None:
        raise RefusedError(f"{name} is empty (its dataspace is null); write numbers or texts")
    n = math.prod(data.shape)
    limits = [(n * dtype.itemsize, most_bytes(n_bytes) if most is None else most, "bytes")]
    if most is None:
        limits.append((n, most_entries(n_bytes), "entries"))
    if is_list(dtype):
        limits.append((n, most_lists(n_bytes), "texts or lists"))
    for claimed, allowed, what in limits:
        if claimed > allowed:
            raise RefusedError(
                f"{name} claims {n:,} entries, {n * dtype.itemsize:,} bytes, in a file of {n_bytes:,} bytes; allowed: {allowed:,} "
                f"{what} in such a file; the file is damaged, or must be written without compression"
            )
    if data.chunks:
        chunk = math.prod(data.chunks) * dtype.itemsize
        if chunk > most_chunk_bytes(n_bytes):
            raise RefusedError(
                f"{name} has chunks of {chunk:,} bytes in a file of {n_bytes:,}; allowed: {most_chunk_bytes(n_bytes):,}; write it "
                "with smaller chunks (h5repack -l)"
            )
        n_chunks = math.prod(-(-side // max(1, part)) for side, part in zip(data.shape, data.chunks, strict=True))
        if n_chunks > most_chunks(n_bytes):
            raise RefusedError(
                f"{name} claims {n_chunks:,} chunks in a file of {n_bytes:,} bytes; allowed: {most_chunks(n_bytes):,}; the file is "
                "damaged, or needs larger chunks (h5repack -l)"
            )
        _check_filters(data, layout, name)


def _check_virtual(data: Any, layout: Any, name: str, n_bytes: int, most: int | None, depth: int) -> None:
    import h5py

    n = layout.get_virtual_count()
    if depth >= MAX_LINKS or n > MAX_SOURCES:
        raise RefusedError(
            f"{name} consists of {n:,} arrays, {depth} levels deep; allowed: {MAX_SOURCES:,} and {MAX_LINKS}; write it as one array"
        )
    own, seen = os.path.basename(data.file.filename), set[str]()  # noqa: PTH119
    for k in range(n):
        file, source = layout.get_virtual_filename(k), layout.get_virtual_dsetname(k)
        if file not in (".", own):
            raise RefusedError(
                f"{name} consists of arrays of other files, such as {file!r}; write it as one array into this file"
            )
        if "%" in source:
            raise RefusedError(
                f"{name} consists of arrays whose names are a pattern, {source!r}; write it as one array into this file"
            )
        if source in seen:
            continue
        seen.add(source)
        target = item(data.file, source)
        if isinstance(target, h5py.Dataset):
            check(target, source, n_bytes, most, depth + 1)


def _check_filters(data: Any, layout: Any, name: str) -> None:
    from h5py import h5z

    for k in range(layout.get_nfilters()):
        code, _, _, title = layout.get_filter(k)
        if h5z.filter_avail(code) or not data.id.get_num_chunks():
            continue
        if data.id.get_chunk_info(0).filter_mask >> k & 1:  # the chunk was written without this filter
            continue
        called = FILTERS.get(code) or title.decode(errors="replace")[:40] or "without a name"
        raise RefusedError(
            f"{name} is compressed with the filter {called!r} ({code}), which this HDF5 library does not have; run: pip install "
            "hdf5plugin, or write the file with gzip"
        )


# ---- reading ---------------------------------------------------------------------------------------------------------


def _nothing() -> None:
    pass


#: called after each read; in a probe it restarts the time limit
_progress: Callable[[], None] = _nothing


def pieces(data: Any, name: str, n_bytes: int, block: int = BLOCK_NUMBERS) -> Iterator[Any]:
    """The entries of an array in order, some at a time: texts as bytes, lists as arrays.

    Raises:
        RefusedError: lists or texts hold more bytes than the file, because entries share bytes.
    """
    if not data.shape or not is_list(data.dtype):
        n = 1 if len(data.shape) == 1 else 0
        for k in range(0, data.shape[0] if n else 1, block):
            yield data[k : k + block] if n else data[()]
            _progress()
        return
    start, step, total = 0, 1, 0
    while start < data.shape[0]:
        some = data[start : start + step]
        total += sum(len(x) if isinstance(x, (bytes, str)) else x.nbytes for x in some.flat)
        if total > n_bytes:
            raise RefusedError(
                f"{name} holds {total:,} bytes or more in its first {start + len(some):,} entries, but the file has {n_bytes:,}: "
                "several entries share their bytes; write the file again"
            )
        yield some
        _progress()
        start += step
        step = max(1, min(2 * step, BLOCK_SAMPLES, BLOCK_BYTES * start // (total + 1)))


def tree(group: Any, name: str, n_bytes: int, most: int) -> dict[str, Any]:
    """A group as a dict: groups become dicts, arrays NumPy arrays, texts Python strings.

    Args:
        name: of the group, for messages.
        n_bytes: size of the file.
        most: bytes that all arrays together may claim.

    Raises:
        RefusedError: see `item` and `check`; more than `most` bytes; groups that contain themselves or are nested too deep.
    """
    import h5py
    import numpy as np

    n_items, claimed, most_items = 0, 0, min(MAX_ITEMS, 1000 + n_bytes // 64)

    def visit(group: Any, where: str, above: tuple[int, ...]) -> dict[str, Any]:
        nonlocal n_items, claimed
        address = h5py.h5o.get_info(group.id).addr
        if address in above:
            raise RefusedError(f"{where} is a link to a group that contains it; remove the link")
        if len(above) >= MAX_DEPTH:
            raise RefusedError(f"{where[:80]}… is more than {MAX_DEPTH} groups deep; it is not a network")
        made: dict[str, Any] = {}
        for key in group:
            if isinstance(key, bytes) or not key.isprintable():  # h5py leaves names that are not UTF-8 as bytes
                raise RefusedError(f"{where} has an entry named {key!r}, which is not printable text; it is damaged")
            name = f"{where}/{key}"
            n_items += 1
            if n_items > most_items:
                raise RefusedError(
                    f"has more than {most_items:,} groups and arrays in {n_bytes:,} bytes; it is damaged, or links repeat them"
                )
            member = item(group, key)
            if isinstance(member, h5py.Group):
                made[key] = visit(member, name, (*above, address))
                continue
            if not isinstance(member, h5py.Dataset):
                raise RefusedError(f"{name} is neither an array nor a group, or is a broken link; remove it")
            check(member, name, n_bytes, most)
            claimed += member.size * member.dtype.itemsize
            if claimed > most:
                raise RefusedError(
                    f"declares arrays of {claimed:,} bytes or more in a file of {n_bytes:,}; allowed: {most:,} in such a file; it "
                    "is damaged, or must be written without compression"
                )
            if not is_readable(member.dtype):
                raise RefusedError(f"{name} is {member.dtype}; allowed: numbers and texts")
            if member.shape and is_list(member.dtype):
                some = list(pieces(member, name, n_bytes))
                made[key] = np.concatenate(some) if some else np.empty(member.shape, object)
                continue
            value = member[()]
            _progress()
            made[key] = value.decode() if isinstance(value, bytes) else value
        return made

    return visit(group, name, ())


# ---- the probe's process, which may crash ----------------------------------------------------------------------------


def _limit(n_bytes: int) -> None:
    """Limits memory, and time for one read, so that this process ends if it takes much more than such a file needs."""

    def again() -> None:
        signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS + n_bytes / 50e6)  # SIGPROF ends the process

    global _progress
    _progress = again
    again()
    with open("/proc/self/statm") as file:  # noqa: PTH123  pathlib is not loaded
        pages = int(file.read().split()[0])
    most = pages * resource.getpagesize() + (512 << 20) + 32 * n_bytes
    seconds = int(MAX_SECONDS_ALL + n_bytes / 5e6)
    for kind, soft in ((resource.RLIMIT_AS, most), (resource.RLIMIT_CPU, seconds), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(kind)[1]
        soft = soft if hard == resource.RLIM_INFINITY else min(soft, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (soft, hard))


def read_all(file: Any, names: Sequence[str], n_bytes: int) -> None:
    """Checks arrays and reads them completely; names missing from the file are skipped."""
    import h5py

    for name in names:
        data = item(file, name)
        if not isinstance(data, h5py.Dataset):
            continue
        check(data, name, n_bytes)
        if is_readable(data.dtype):  # others are refused later because of their type, and never read
            for _ in pieces(data, name, n_bytes):
                pass


def _serve(request: Any) -> None:
    path = request["path"]
    n_bytes = os.stat(path).st_size  # noqa: PTH116
    with open_file(path) as file:
        _limit(n_bytes)
        if "tree" in request:
            group = item(file, request["tree"])
            if group is not None:
                tree(group, request["tree"], n_bytes, request["most"])
        else:
            print(json.dumps({"names": names_of(file)}), flush=True)
            read_all(file, json.loads(sys.stdin.readline()), n_bytes)


def verdict(error: Exception) -> dict[str, Any]:
    """The probe's answer if it cannot read a file."""
    if isinstance(error, RefusedError):
        return {"refused": str(error)}
    return {"error": str(error), "errno": getattr(error, "errno", None), "type": type(error).__name__}


def main() -> None:
    """Reads a request, a line of JSON, from standard input; answers with lines of JSON."""
    request = json.loads(sys.stdin.readline())
    sys.path[:] = request["modules"]
    try:
        _serve(request)
        print(json.dumps({"done": True}))
    except Exception as error:
        print(json.dumps(verdict(error)))


if __name__ == "__main__":
    main()
