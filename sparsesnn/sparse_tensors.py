"""Sparse tensors of PyTorch and JAX as places and values, without a dense copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sparsesnn.errors import ShapeError, SpikeListError
from sparsesnn.tensor_like import plain_tensor


@dataclass(frozen=True)
class Coordinates:
    """A sparse tensor with three axes.

    Args:
        places: int64[3, S], one column for each entry, ascending, each once.
        values: [S], on the tensor's device, with its gradient.
        shape: of the tensor.
        n_twice: entries that it held more than once; their values are summed, as in PyTorch and JAX.
    """

    places: Tensor
    values: Tensor
    shape: tuple[int, int, int]
    n_twice: int


def is_coordinates(value: Any) -> bool:
    """Whether `value` is a COO tensor of PyTorch or a BCOO array of JAX."""
    return (isinstance(value, Tensor) and value.layout == torch.sparse_coo) or _is_bcoo(value)


def coordinates(value: Any, where: str) -> Coordinates:
    """The places and values of a COO tensor of PyTorch or a BCOO array of JAX with axes [T, B, N] or [B, T, N].

    Args:
        where: the beginning of messages, such as "from_sparse".

    Errors: `ShapeError` for other types and shapes; `SpikeListError` for places outside the shape.
    """
    if not is_coordinates(value):
        kind = f"a tensor with layout {value.layout}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise ShapeError(
            f"{where}: spikes are {kind}; give a sparse tensor of PyTorch in COO layout, as x.to_sparse() makes, or a BCOO array of JAX; "
            "for dense arrays use from_dense"
        )
    if isinstance(value, Tensor):
        places, values, n_dense = value._indices(), value, value.dense_dim()
    else:
        places, values, n_dense = _of_bcoo(value, where)
    shape = tuple(map(int, value.shape))
    if len(shape) != 3 or n_dense:
        dense = f", the last {n_dense} of them dense" if n_dense else ""
        raise ShapeError(
            f"{where}: spikes have {len(shape)} axes {list(shape)}{dense}; give three sparse ones: [T, B, N], or with batch_first [B, T, N]"
        )
    if values.is_complex() or values.is_quantized:
        raise ShapeError(f"{where}: spikes are {values.dtype}; give real numbers")
    for axis, (row, size) in enumerate(zip(places, shape, strict=True)):
        if row.numel() and (int(row.min()) < 0 or int(row.max()) >= size):
            raise SpikeListError(
                f"{where}: places on axis {axis} run from {int(row.min())} to {int(row.max())}; the shape {list(shape)} allows 0 to "
                f"{size - 1}; correct the indices or the shape"
            )
    whole = values if values.is_sparse else torch.sparse_coo_tensor(places, values, shape, check_invariants=False)
    n_given, whole = whole._nnz(), whole.coalesce()
    return Coordinates(whole.indices(), whole.values(), (shape[0], shape[1], shape[2]), n_given - whole._nnz())


def _is_bcoo(value: Any) -> bool:
    return type(value).__name__ == "BCOO" and type(value).__module__.startswith("jax")


def _of_bcoo(value: Any, where: str) -> tuple[Tensor, Tensor, int]:
    """Places [axes, S], values [S] and the number of dense axes of a BCOO array, without its padding (places beyond every axis)."""
    if value.n_batch:
        raise ShapeError(
            f"{where}: the BCOO array has {value.n_batch} batch axes (n_batch); give one without, as "
            "jax.experimental.sparse.bcoo_update_layout(x, n_batch=0) makes"
        )
    n_sparse = value.n_sparse
    places = plain_tensor(value.indices, f"{where}: indices of the BCOO array").long().reshape(-1, n_sparse)
    values = plain_tensor(value.data, f"{where}: values of the BCOO array")
    sizes = torch.tensor(value.shape[:n_sparse], dtype=torch.int64)
    kept = ~(places == sizes).all(1)
    return places[kept].T.contiguous(), values[kept], value.n_dense
