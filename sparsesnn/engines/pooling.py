"""Pools of spikes on the event-sparse engine: lists are made of lists, before a layer reads them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sparsesnn import _core
from sparsesnn.engines.cpu.layer import engine_lists
from sparsesnn.errors import ShapeError
from sparsesnn.spikes import SpikeBatch
from sparsesnn.synapses import Pool


def pooled(spikes: SpikeBatch, pools: Sequence[Pool]) -> SpikeBatch:
    """The lists that a row of pools makes. Sums and averages are graded; a maximum of spikes is a spike."""
    for pool in pools:
        spikes = _pooled(spikes, pool)
    return spikes


def _pooled(spikes: SpikeBatch, pool: Pool) -> SpikeBatch:
    if spikes.n_neurons != pool.n_pre:
        raise ShapeError(f"input has N={spikes.n_neurons}; {pool} needs N={pool.n_pre}")
    result = _core.pooled(engine_lists(spikes), spikes.n_samples, **pool.list_arguments())
    values = result["values"]
    made = SpikeBatch(
        offsets=torch.from_numpy(result["offsets"]),
        ids=torch.from_numpy(result["ids"]),
        n_spikes=torch.from_numpy(result["n_spikes"]),
        n_steps=spikes.n_steps,
        n_samples=spikes.n_samples,
        n_neurons=math.prod(pool.post_shape),
        values=None if values is None else torch.from_numpy(values),
        graded=values is not None,
    )
    if spikes.values is None or not spikes.values.requires_grad or not torch.is_grad_enabled():
        return made
    return replace(made, values=_PoolValues.apply(result, made, pool.share, spikes.values))


class _PoolValues(torch.autograd.Function):
    """forward(result, pooled lists, share, values before) → values of the pooled lists."""

    @staticmethod
    def forward(ctx: Any, result: dict[str, Any], made: SpikeBatch, share: float, values: Tensor) -> Tensor:
        ctx.result, ctx.share, ctx.n_values = result, share, len(values)
        return made.entry_values()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_made: Tensor) -> tuple[None, None, None, Tensor]:
        d_values = _core.pooled_grad(
            ctx.result["ends"], ctx.result["entries"], d_made.contiguous().numpy(), ctx.share, ctx.n_values
        )
        return None, None, None, torch.from_numpy(d_values)
