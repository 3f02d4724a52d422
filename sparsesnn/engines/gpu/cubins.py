"""Machine code of kernels in the user's cache folder, so that the compiler runs once per source, options and version of the compiler.

Machine code does not depend on the driver, unlike PTX: a newer driver runs it too, and a computer without a GPU can make it beforehand.

A file is written whole or not at all, under a name that two processes do not share until it is complete. Its head is a
hash of the rest, so a damaged file is noticed, and compiled again.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

#: begins every file; the number changes with the form
HEAD = b"sparsesnn cubin 1\n"

_warned = False


def folder() -> Path:
    """$XDG_CACHE_HOME/sparsesnn/cubins, else ~/.cache/sparsesnn/cubins.

    Errors: `OSError` if the user has no home folder.
    """
    cache = os.environ.get("XDG_CACHE_HOME")
    if cache:
        return Path(cache) / "sparsesnn" / "cubins"
    try:
        return Path.home() / ".cache" / "sparsesnn" / "cubins"
    except RuntimeError as error:
        raise OSError(f"{error} (HOME is not set)") from error


def key(sources: Mapping[str, bytes], options: Iterable[str], compiler: Iterable[int]) -> str:
    """The name of a file: everything on which machine code depends.

    Args:
        sources: the texts of all files that are compiled, by name.
        options: of the compiler, with architecture and macros.
        compiler: its version.
    """
    total = hashlib.sha256()
    for part in (*(piece for name in sorted(sources) for piece in (name.encode(), sources[name])), b"options"):
        total.update(len(part).to_bytes(8, "little") + part)
    for text in (*options, "compiler", *compiler):
        part = str(text).encode()
        total.update(len(part).to_bytes(8, "little") + part)
    return total.hexdigest()


def cached(name: str, compile: Callable[[], bytes]) -> bytes:
    """The machine code with this key, from the folder or from `compile`, which is then called once.

    A folder that cannot be read or written costs time, not results: one warning per process.
    """
    try:
        path = folder() / f"{name}.cubin"
        known = _read(path)
    except OSError as error:
        code = compile()
        _warn(error)
        return code
    if known is not None:
        return known
    code = compile()
    try:
        _write(path, code)
    except OSError as error:
        _warn(error)
    return code


def forget(name: str) -> None:
    """Removes a file, which the driver did not accept."""
    with suppress(OSError):
        (folder() / f"{name}.cubin").unlink()


def _read(path: Path) -> bytes | None:
    """The code in a file; None if there is none, or if it is damaged."""
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    code = data[len(HEAD) + 32 :]
    whole = data.startswith(HEAD) and data[len(HEAD) : len(HEAD) + 32] == hashlib.sha256(code).digest()
    return code if whole else None


def _write(path: Path, code: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # A name of its own: another process may write the same code now, and both files are right.
    handle, temporary = tempfile.mkstemp(prefix=f".{path.stem[:16]}-", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(HEAD + hashlib.sha256(code).digest() + code)
        Path(temporary).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise


def _warn(error: OSError) -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            f"compiled kernels cannot be cached ({error}), so every process compiles them again; let XDG_CACHE_HOME name a "
            "folder that you may write",
            RuntimeWarning,
            stacklevel=3,
        )
