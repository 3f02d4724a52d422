"""Texts in files, which are UTF-8, and file names, which may be any bytes.

Python represents bytes of a name that are not UTF-8 as lone surrogates (PEP 383): the byte 0xe4 is "\\udce4". JSON stores these as
escapes; in other files they become bytes again.
"""

from __future__ import annotations

import codecs
import os
import sys
from pathlib import Path

from sparsesnn.errors import ConfigError
from sparsesnn.regular_file import MAX_TEXT_BYTES, check_regular

#: first line of a TOML file with bytes that are not UTF-8, which TOML forbids; without this line they are an error
RAW_NAMES = "# This file holds names of files that are not UTF-8.\n"


def to_bytes(text: str) -> bytes:
    """UTF-8, with the raw bytes of names."""
    return text.encode("utf-8", "surrogateescape")


def from_bytes(data: bytes) -> str:
    """Decodes like Python's command line: if file names are ASCII (LC_ALL=C), all other characters become surrogates."""
    return os.fsdecode(data)


def to_file(text: str) -> bytes:
    """The content of a TOML file; the inverse of `read_text`."""
    data = to_bytes(text)
    return data if _error(data) is None else RAW_NAMES.encode() + data


def print_file(data: bytes) -> None:
    """Writes a file or a command to standard output, independent of the terminal's encoding: escapes would change its meaning."""
    binary = getattr(sys.stdout, "buffer", None)
    if binary is None:  # a program captures it as text
        print(from_bytes(data), end="")
        return
    sys.stdout.flush()
    binary.write(data)
    binary.flush()


def read_text(path: Path, option: str, what: str) -> str:
    """Reads a text file that a user may have written.

    Args:
        option: the option that names it, such as "--config".
        what: the expected content, such as "a TOML file".

    Errors: `ConfigError` if it is not a regular file, too large, cannot be read, is not UTF-8, or begins with a byte order mark.
    """
    check_regular(path, ConfigError, MAX_TEXT_BYTES)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{option}: {path} cannot be read: {error.strerror}; give {what}") from None
    if data.startswith(RAW_NAMES.encode()):
        return from_bytes(data)
    for mark, name in ((codecs.BOM_UTF8, "UTF-8"), (codecs.BOM_UTF16_LE, "UTF-16"), (codecs.BOM_UTF16_BE, "UTF-16")):
        if data.startswith(mark):
            raise ConfigError(f"{option}: {path} is {name} with a byte order mark; save it as UTF-8 without one")
    if (wrong := _error(data)) is not None:
        line = data.count(b"\n", 0, wrong.start) + 1
        raise ConfigError(
            f"{option}: {path} is not UTF-8: byte 0x{data[wrong.start]:02x} in line {line}; save it as UTF-8, or give {what}"
        )
    return from_bytes(data)


def _error(data: bytes) -> UnicodeDecodeError | None:
    """The decoding error if these bytes are not UTF-8, else None."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error
    return None
