"""JSON files: strict, and read from untrusted places."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NoReturn

from sparsesnn.errors import CheckpointError
from sparsesnn.regular_file import check_regular

#: nesting limit of a JSON file; a deeper one would exhaust the reader's stack
_MOST_LEVELS = 64


def strict_json(value: Any, *, indent: int | None = None) -> str:
    """JSON without NaN and infinity, which other readers reject."""
    return json.dumps(value, indent=indent, allow_nan=False)


def read_json(path: Path, *, max_bytes: int = 512 << 20) -> Any:
    """The content of a JSON file from an untrusted place.

    Errors: `CheckpointError` if it is missing, too large, not UTF-8, not strict JSON or nested too deeply.
    """
    check_regular(path, CheckpointError)
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > max_bytes:
        raise CheckpointError(f"{path}: is larger than {max_bytes:,} bytes; it is not a file of sparsesnn")

    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is not a JSON number")

    def finite(text: str) -> float:
        number = float(text)
        return number if math.isfinite(number) else refuse(text)

    try:
        content = json.loads(data.decode(), parse_constant=refuse, parse_float=finite)
        _check_depth(content)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: is damaged or not JSON: {error}") from None
    return content


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(_MOST_LEVELS):
        inner = (x.values() if isinstance(x, dict) else x for x in level if isinstance(x, (dict, list)))
        level = [x for values in inner for x in values if isinstance(x, (dict, list))]
        if not level:
            return
    raise ValueError(f"it is nested more than {_MOST_LEVELS} levels deep")
