"""Texts in files, which are UTF-8, and names of files, which may be any bytes.

Python keeps the bytes of a name that are no UTF-8 as lone surrogates (PEP 383): `d\\xe4t` is "d\\udce4t". JSON holds these as escapes; in
other files they become the bytes again.
"""

from __future__ import annotations

import codecs
from pathlib import Path

from sparsesnn.errors import ConfigError
from sparsesnn.regular_file import MAX_TEXT_BYTES, check_regular

#: first line of a TOML file with names that are no UTF-8, and so no TOML; without it such bytes are an error
RAW_NAMES = "# This file holds names of files that are not UTF-8.\n"


def to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def from_bytes(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def to_file(text: str) -> bytes:
    """The content of a TOML file; the inverse of `read_text`."""
    has_raw_names = any("\udc80" <= c <= "\udcff" for c in text)
    return (RAW_NAMES.encode() if has_raw_names else b"") + to_bytes(text)


def read_text(path: Path, option: str, what: str) -> str:
    """A file that a person may have written.

    Args:
        option: that names it, such as "--config".
        what: what to give, such as "a TOML file".

    Errors: `ConfigError` if it is no regular file, too large, cannot be read, is not UTF-8, or begins with a byte order mark.
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
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{option}: {path} is not UTF-8: byte 0x{data[error.start]:02x} in line {line}; save it as UTF-8, or give {what}"
        ) from None
