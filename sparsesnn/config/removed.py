"""Options and values of earlier versions: files and runs with them are still read, with a warning about the replacement."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

#: options that no longer exist, by section and name
OPTIONS: Mapping[tuple[str, str], str] = {
    ("train", "lists"): "training steps on 'cpu' always use lists",
}
#: values that no longer exist, and their replacements
VALUES: Mapping[tuple[str, str, str], str] = {
    ("train", "dense_mode", "compile"): "auto",
}


def without_removed(section: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """A section without the removed options, and with the replacement of each removed value."""
    kept = {}
    for name, value in table.items():
        if (section, name) in OPTIONS:
            _warn(f"{section}.{name} no longer exists and is ignored: {OPTIONS[section, name]}")
        elif isinstance(value, str) and (section, name, value) in VALUES:
            kept[name] = VALUES[section, name, value]
            _warn(f"{section}.{name} = {value!r} no longer exists; {kept[name]!r} is used")
        else:
            kept[name] = value
    return kept


def _warn(text: str) -> None:
    # Always attributed to this line, so that Python shows each text once.
    warnings.warn(text, UserWarning, stacklevel=1)
