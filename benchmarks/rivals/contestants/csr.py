"""Event products from PyTorch's stock sparse operations: CSR spikes forward and for ∂L/∂W, a dense product for ∂L/∂s.

The loops over time are those of `fused`. A recurrent product stays dense forward and backward: one step's spikes are too
few to justify a conversion; only its weight gradient is sparse.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rivals.contestants.fused import fire, go_back
from rivals.contestants.torch_tools import all_of, mean_of_potentials, parameters_of, step_of, tensor
from rivals.task import Task


def make(task: Task) -> Callable[[], float]:
    weights, recurrent = parameters_of(task)
    spikes = tensor(task.dense())
    events = Events(spikes.flatten(0, 1))
    return step_of(lambda: logits(spikes, events, weights, recurrent), all_of(weights, recurrent), task.labels)


def logits(spikes: Tensor, events: Events, weights: Sequence[Tensor], recurrent: Sequence[Tensor | None]) -> Tensor:
    """[B, n_classes]: time-mean of the readout's potentials; `events` are those of `spikes`."""
    x, lists = spikes, events
    for weight, own in zip(weights[:-1], recurrent, strict=True):
        x = Lif.apply(x, lists, weight, own)
        lists = Events(x.detach().flatten(0, 1))
    return mean_of_potentials(Product.apply(x, lists, weights[-1]))


class Events:
    """Spikes [rows, N] as a CSR matrix, and as the CSR matrix of its transpose."""

    def __init__(self, spikes: Tensor) -> None:
        n_rows, n = spikes.shape
        row, column = spikes.nonzero(as_tuple=True)
        order = torch.argsort(column, stable=True)
        self.by_step = _csr(row, column, (n_rows, n), spikes.dtype)
        self.by_sender = _csr(column[order], row[order], (n, n_rows), spikes.dtype)


def _csr(row: Tensor, column: Tensor, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    ends = torch.bincount(row, minlength=shape[0]).cumsum(0)
    starts = torch.cat([ends.new_zeros(1), ends]).to(torch.int32)
    ones = torch.ones(len(column), dtype=dtype, device=column.device)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(starts, column.to(torch.int32), ones, shape, check_invariants=False)


class Lif(torch.autograd.Function):
    """Like `fused.Lif`, with the spikes given twice: as a tensor, for autograd, and as events, for the products."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, lists: Events, weight: Tensor, own: Tensor | None) -> Tensor:
        v = (lists.by_step @ weight).view(*x.shape[:2], -1)
        spikes = fire(v, own)
        ctx.lists = lists
        ctx.save_for_backward(weight, own, v, spikes if own is not None else None)
        return spikes

    @staticmethod
    def backward(ctx: Any, *d_spikes: Tensor) -> tuple[Tensor | None, None, Tensor, Tensor | None]:
        weight, own, v, spikes = ctx.saved_tensors
        d_current = go_back(v, d_spikes[0], own)
        d_weight = ctx.lists.by_sender @ d_current.flatten(0, 1)
        d_own = None
        if own is not None:
            d_own = Events(spikes[:-1].flatten(0, 1)).by_sender @ d_current[1:].flatten(0, 1)
        return d_current @ weight.T if ctx.needs_input_grad[0] else None, None, d_weight, d_own


class Product(torch.autograd.Function):
    """Currents [T, B, N] of the readout."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, lists: Events, weight: Tensor) -> Tensor:
        ctx.lists = lists
        ctx.save_for_backward(weight)
        return (lists.by_step @ weight).view(*x.shape[:2], -1)

    @staticmethod
    def backward(ctx: Any, *d_current: Tensor) -> tuple[Tensor, None, Tensor]:
        (weight,) = ctx.saved_tensors
        return d_current[0] @ weight.T, None, ctx.lists.by_sender @ d_current[0].flatten(0, 1)
