"""Classes and groups: whole numbers as they are, texts numbered in their order."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sparsesnn.errors import DataError

#: the readout has a neuron for each
MAX_CLASSES = 100_000


def numbered(values: npt.ArrayLike, what: str) -> tuple[npt.NDArray[np.int64], list[str]]:
    """int64[n], and the names that the numbers stand for; none where the values are numbers already.

    Args:
        values: [n], whole numbers or texts.
        what: whose they are, for messages.

    Raises:
        DataError: another shape; floats, which would be truncated; numbers beyond int64.
    """
    given = np.asarray(values)
    if given.ndim != 1:
        raise DataError(f"{what}: has the shape {list(given.shape)}; give one number or text for each sample")
    if given.dtype.kind == "O":
        given = _texts(given, what)
    if given.dtype.kind in "SU":
        names, numbers = np.unique(_decoded(given), return_inverse=True)
        return numbers.astype(np.int64).reshape(-1), [str(name) for name in names]
    if given.size and given.dtype.kind not in "biu":
        raise DataError(f"{what}: is {given.dtype}, such as {given[0]!r}; give whole numbers from 0, or texts")
    if given.dtype == np.uint64 and given.size and int(given.max()) >= 1 << 63:
        raise DataError(f"{what}: holds {given.max()}; allowed: numbers below 2^63")
    return given.astype(np.int64), []


def count_classes(labels: npt.NDArray[np.int64], names: list[str], what: str) -> int:
    """The number of classes: of the names, or the largest label and one.

    Raises:
        DataError: labels that are negative, or larger than a readout can be.
    """
    if labels.size and not 0 <= int(labels.min()) <= int(labels.max()) < MAX_CLASSES:
        raise DataError(
            f"{what}: labels run from {labels.min()} to {labels.max()}; allowed: 0 to {MAX_CLASSES - 1:,}; give texts where "
            "numbers are names"
        )
    return max(len(names), int(labels.max(initial=-1)) + 1)


def _texts(values: npt.NDArray[Any], what: str) -> npt.NDArray[Any]:
    for value in values:
        if not isinstance(value, (str, bytes)):
            raise DataError(f"{what}: holds a {type(value).__name__}, {value!r}; give whole numbers or texts")
    texts = [value.decode(errors="replace") if isinstance(value, bytes) else value for value in values]
    return np.array(texts, dtype=str) if texts else np.empty(0, "U1")


def _decoded(values: npt.NDArray[Any]) -> npt.NDArray[np.str_]:
    return np.char.decode(values, "utf-8", "replace") if values.dtype.kind == "S" else values
