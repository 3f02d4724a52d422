"""Spike lists as tensors of a PopTorch model: fixed shapes, int32 ids, and a float tensor that carries the gradient.

Letters: T steps, B samples, N neurons, K capacity. A list is n_spikes, n_listed, then ids: spikes first, then
near-spikes, each ascending; 0 after the last one. PopTorch cuts inputs along their first dimension, so data is
batch-first, [B, T, 2 + K]; inside a model time comes first, [T, B, 2 + K].
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparsesnn.errors import ShapeError, SpikeListError

#: n_spikes and n_listed, before the ids of a list
HEAD = 2


class Spikes(NamedTuple):
    """The spikes of one population over a sequence.

    Args:
        lists: int32[T, B, 2 + K].
        values: float32[T, B, K], 1 for spikes and 0 elsewhere; gradients flow through it, to listed neurons. None for
            data, which has no gradient.
        n: N.
        dropped: int32[T, B], candidates that did not fit; None for data.
    """

    lists: Tensor
    values: Tensor | None
    n: int
    dropped: Tensor | None = None

    @property
    def capacity(self) -> int:
        return self.lists.shape[2] - HEAD

    def entry_values(self) -> Tensor:
        """float32[T, B, K], `values`, or the same from the lists if they carry no gradient."""
        if self.values is not None:
            return self.values
        slots = torch.arange(self.capacity, dtype=torch.int32, device=self.lists.device)
        return (slots < self.lists[:, :, :1]).float()

    def counts(self) -> Tensor:
        """float32[B, N], spikes over the sequence; differentiable, so it can enter a loss."""
        n_steps, n_samples, k = self.lists.shape[0], self.lists.shape[1], self.capacity
        ids = self.lists[:, :, HEAD:].permute(1, 0, 2).reshape(n_samples, n_steps * k).long()
        values = self.entry_values().permute(1, 0, 2).reshape(n_samples, n_steps * k)
        # slots after the last id have the value 0: they add nothing to neuron 0
        return torch.zeros(n_samples, self.n, dtype=values.dtype, device=values.device).scatter_add(1, ids, values)

    def to_dense(self) -> Tensor:
        """float32[T, B, N], 1 for each spike; differentiable. As costly as a dense layer's output."""
        values = self.entry_values()
        silence = torch.zeros(values.shape[0], values.shape[1], self.n, dtype=values.dtype, device=values.device)
        return silence.scatter_add(2, self.lists[:, :, HEAD:].long(), values)

    def n_dropped(self) -> Tensor:
        """int32[], candidates that did not fit, over the whole batch."""
        if self.dropped is None:
            return torch.zeros((), dtype=torch.int32, device=self.lists.device)
        return self.dropped.sum().int()


def from_data(lists: Tensor, n: int) -> Spikes:
    """Spikes from the data of a `poptorch.DataLoader`: int32[B, T, 2 + K], lists of N neurons."""
    if lists.ndim != 3 or lists.dtype != torch.int32 or not HEAD < lists.shape[2] <= HEAD + n:
        raise ShapeError(
            f"spikes: got {lists.dtype} with shape {tuple(lists.shape)}; give int32 [B, T, 2 + K], K from 1 to {n}, "
            "the format of sparsesnn.poptorch.pack and pack_dense"
        )
    return Spikes(lists.transpose(0, 1), None, n)


def pack(batch: Any, capacity: int | None = None) -> Tensor:
    """Converts a data set's `sparsesnn.SpikeBatch` to lists for PopTorch: int32[B, T, 2 + K]. On the host.

    Args:
        batch: spikes of B samples over T steps.
        capacity: K; None: the length of the longest list, and at least 1.

    Errors: `SpikeListError` if a list is longer than `capacity`, and for spikes with values.
    """
    if batch.graded:
        raise SpikeListError("pack: spikes have values, but an IPU's lists hold only ids; give plain lists")
    n_listed = batch.validate().n_listed
    longest = max(1, int(n_listed.max())) if n_listed.numel() else 1
    k = _checked("pack", capacity, longest, batch.n_neurons)
    return fixed_lists(batch, k).view(batch.n_steps, batch.n_samples, HEAD + k).transpose(0, 1).contiguous()


def fixed_lists(batch: Any, k: int) -> Tensor:
    """The lists of a `SpikeBatch`, none longer than `k`, as int32[T·B, 2 + K]."""
    lists = torch.zeros(len(batch.n_listed), HEAD + k, dtype=torch.int32)
    lists[:, 0], lists[:, 1] = batch.n_spikes, batch.n_listed.int()
    row, place = places(batch)
    lists[row, HEAD + place] = batch.ids.int()
    return lists


def places(batch: Any) -> tuple[Tensor, Tensor]:
    """int64[S] each: for every entry of a `SpikeBatch` its list, and its slot within it."""
    place = torch.arange(batch.ids.numel()) - torch.repeat_interleave(batch.offsets[:-1], batch.n_listed)
    return batch.list_index(), place


def _checked(what: str, capacity: int | None, longest: int, n: int) -> int:
    k = longest if capacity is None else capacity
    if not 1 <= k <= n:
        raise SpikeListError(f"{what}: capacity is {k}; allowed: 1 to {n} (the neurons)")
    if longest > k:
        raise SpikeListError(f"{what}: a list has {longest} spikes, but capacity is {k}; raise it")
    return k


def pack_dense(spikes: Tensor, capacity: int | None = None) -> Tensor:
    """Converts dense spikes to lists: [..., N] of 0 and 1 → int32[..., 2 + K]. For data sets, on the host.

    Args:
        spikes: any dtype; for PopTorch [T, N] a sample, or [B, T, N].
        capacity: K; None: the length of the longest list, and at least 1.

    Errors: `SpikeListError` if entries are not 0 or 1, or a list is longer than `capacity`.
    """
    if not bool(((spikes == 0) | (spikes == 1)).all()):
        raise SpikeListError("pack_dense: entries must be 0 or 1; a list holds ids, not counts")
    fired = spikes != 0
    n_spikes = fired.sum(-1)
    longest = max(1, int(n_spikes.max())) if n_spikes.numel() else 1
    k = _checked("pack_dense", capacity, longest, spikes.shape[-1])
    # a stable sort moves the neurons that fired to the front, in ascending order
    ids = torch.sort(fired.int(), dim=-1, descending=True, stable=True)[1][..., :k]
    ids = ids * (torch.arange(k, device=ids.device) < n_spikes[..., None])
    return torch.cat([n_spikes[..., None], n_spikes[..., None], ids], -1).int()
