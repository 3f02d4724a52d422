"""The form of a `SpikeBatch`, and the invariants of its lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sparsesnn.errors import ShapeError
from sparsesnn.ids import MAX_UINT16_NEURONS, id_dtype

if TYPE_CHECKING:
    from sparsesnn.spikes import SpikeBatch


def check_form(batch: SpikeBatch) -> None:
    """`ShapeError` unless types and sizes are consistent; the contents of the lists are not checked."""
    if _is_plain(batch):
        return
    for name, least in (("n_steps", 0), ("n_samples", 0), ("n_neurons", 1)):
        number = getattr(batch, name)
        if type(number) is not int or not least <= number < 2**31:
            raise ShapeError(f"SpikeBatch.{name} is {number!r}; allowed: {least} to {2**31 - 1}; give an int")
    n_lists = batch.n_list_steps * batch.n_samples
    n_ids = batch.ids.numel() if isinstance(batch.ids, Tensor) else 0
    for name, dtype, size in (
        ("offsets", torch.int64, n_lists + 1),
        ("ids", id_dtype(batch.n_neurons), n_ids),
        ("n_spikes", torch.int32, n_lists),
        ("values", torch.float32, n_ids),
        ("dropped", torch.int32, n_lists),
    ):
        array = getattr(batch, name)
        if array is None and (name == "dropped" or (name == "values" and not batch.graded)):
            continue
        if not isinstance(array, Tensor):
            raise ShapeError(f"SpikeBatch.{name} is a {type(array).__name__}; give a tensor {dtype} [{size}]")
        read = name != "values"  # the engine does not read these in place: they carry a gradient
        if array.dtype != dtype or tuple(array.shape) != (size,) or (read and not array.is_contiguous()):
            strided = "" if array.is_contiguous() else ", not contiguous"
            raise ShapeError(
                f"SpikeBatch.{name} is {array.dtype} {list(array.shape)}{strided}; T={batch.n_steps}, "
                f"B={batch.n_samples}, N={batch.n_neurons} and {n_ids} ids need {dtype} [{size}], contiguous"
            )
        if array.device != batch.offsets.device:
            raise ShapeError(
                f"SpikeBatch.{name} is on {array.device}, offsets on {batch.offsets.device}; put them on one device"
            )


def holds(batch: SpikeBatch) -> bool:
    """Whether the lists keep every invariant, found out where they lie."""
    offsets, n_listed, n_spikes = batch.offsets, batch.n_listed, batch.n_spikes
    rise = (n_listed >= 0).all() & (n_spikes >= 0).all() & (n_spikes <= n_listed).all()
    if not bool(rise & (offsets[0] == 0) & (offsets[-1] == batch.ids.numel())):
        return False
    ids = batch.ids.long()
    begins = torch.zeros(
        len(ids) + 1, dtype=torch.bool, device=batch.device
    )  # of the spikes, and of the near-spikes, of a list
    begins[offsets] = True
    begins[offsets[:-1] + n_spikes] = True
    good = ((ids >= 0) & (ids < batch.n_neurons)).all() & (begins[1 : len(ids)] | (ids[1:] > ids[:-1])).all()
    if batch.graded and batch.values is not None:
        good &= torch.isfinite(batch.values.detach()).all()
    return bool(good)


def _is_plain(batch: SpikeBatch) -> bool:
    """Whether lists in main memory surely pass `check_form`: a quick test for the usual case."""
    offsets, ids, n_spikes, values, dropped = batch.offsets, batch.ids, batch.n_spikes, batch.values, batch.dropped
    n_steps, n_samples, n_neurons = batch.n_steps, batch.n_samples, batch.n_neurons
    if not (type(offsets) is type(ids) is type(n_spikes) is Tensor and type(n_steps) is type(n_samples) is int):
        return False
    if not (type(n_neurons) is int and 0 < n_neurons <= MAX_UINT16_NEURONS and n_steps >= 0 and n_samples >= 0):
        return False
    n_lists = batch.n_list_steps * n_samples
    return (
        n_lists < 2**31
        and offsets.dtype == torch.int64
        and ids.dtype == torch.uint16
        and n_spikes.dtype == torch.int32
        and offsets.shape == (n_lists + 1,)
        and n_spikes.shape == (n_lists,)
        and ids.ndim == 1
        and offsets.is_cpu
        and ids.is_cpu
        and n_spikes.is_cpu
        and offsets.is_contiguous()
        and ids.is_contiguous()
        and n_spikes.is_contiguous()
        and dropped is None
        and (not batch.graded if values is None else _is_like(values, ids))
    )


def _is_like(values: Tensor, ids: Tensor) -> bool:
    """Whether `values` has a float32 for each id, in main memory."""
    return isinstance(values, Tensor) and values.dtype == torch.float32 and values.shape == ids.shape and values.is_cpu
