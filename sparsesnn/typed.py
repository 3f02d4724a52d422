"""Columns of numbers or texts given as Python objects, as in data frames."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sparsesnn.options import number, plain, whole


def typed(values: Any) -> npt.NDArray[Any]:
    """`values` as an array; one of Python objects becomes int64, float64 or texts if all of its entries are.

    NumPy's StringDType becomes texts. Any other array of objects is returned unchanged, so that the caller can refuse it.
    """
    if hasattr(values, "detach"):  # a tensor, perhaps on a GPU
        values = values.detach().cpu()
    array = np.asarray(values)
    if array.dtype.kind not in ("O", "T"):
        return array
    if not array.size:
        return array.astype(np.float64)  # the type of np.asarray([])
    entries = [plain(x) for x in array.astype(object).reshape(-1)]
    result: Any = None
    if all(isinstance(x, (str, bytes)) for x in entries):
        result = np.array([x.decode(errors="replace") if isinstance(x, bytes) else x for x in entries], str)
    elif all(isinstance(x, bool) for x in entries):
        result = np.array(entries, bool)
    elif None not in (whole_ones := [whole(x) for x in entries]):
        fits = all(-(1 << 63) <= x < 1 << 63 for x in whole_ones if x is not None)
        result = np.array(whole_ones, np.int64) if fits else None
    elif None not in (numbers := [number(x) for x in entries]):
        result = np.array(numbers, np.float64)
    return array if result is None else result.reshape(array.shape)


def padding_advice(ids: npt.NDArray[Any], how: str) -> str:
    """Advice about -1, a common padding of ids; "" unless it is the only negative number.

    Args:
        how: code that removes it.
    """
    return f"-1 looks like padding: remove it first, as in {how}" if ids.size and ids.min() == -1 else ""
