"""Converts tensors of every layout, arrays of NumPy, SciPy and JAX, and lists of numbers to plain tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsesnn.errors import ShapeError
from sparsesnn.wording import a_type


def plain_tensor(value: Any, what: str) -> Tensor:
    """The numbers of `value` as a strided tensor; a tensor keeps its dtype, device and gradient.

    Args:
        value: a tensor, also sparse or quantized; an array; or nested lists of numbers.
        what: the beginning of messages, such as "from_dense: spikes".

    Errors: `ShapeError` for anything but numbers in the form of one array.
    """
    if isinstance(value, Tensor):
        if value.is_meta or value.is_nested or value.is_complex():
            kind = "on the device meta, which holds no numbers" if value.is_meta else f"of {value.dtype}"
            kind = "nested, whose rows may differ in length" if value.is_nested else kind
            raise ShapeError(f"{what}: got a tensor {kind}; give real numbers, in a tensor of one shape")
        if value.is_quantized:
            return torch.dequantize(value)
        return value if value.layout == torch.strided else value.to_dense()
    try:
        array = np.asarray(value.toarray() if hasattr(value, "toarray") else value)  # SciPy's sparse arrays have it
    except (TypeError, ValueError):
        array = np.empty(0, object)
    if array.dtype.type.__module__ == "ml_dtypes":  # bfloat16, float8 and int4 of JAX
        array = array.astype(np.float32)
    if array.dtype.kind not in "biuf":
        raise ShapeError(f"{what}: got {a_type(value)}; give a tensor, or an array of numbers")
    if array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    # PyTorch has one byte order, no negative strides, and warns about read-only memory
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return torch.from_numpy(native if native.flags.writeable and min(native.strides, default=0) >= 0 else native.copy())
