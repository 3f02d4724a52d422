"""Spikes on their way: axonal delays move them, in lists and in dense tensors; see `sparsesnn.delays`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sparsesnn import _core
from sparsesnn.engines.cpu.layer import engine_lists
from sparsesnn.engines.dense import DenseSpikes
from sparsesnn.output import LayerOutput
from sparsesnn.spikes import SpikeBatch


def arriving(spikes: LayerOutput | DenseSpikes, delays: Tensor, *, between: bool, first_step: int = 0) -> LayerOutput:
    """The spikes as they arrive after a delay for each neuron.

    Args:
        spikes: lists, or a tensor [T, B, M].
        delays: float32[M], in steps, at least 0.
        between: they may lie between steps; else they are whole.
        first_step: the result has the steps from here on; those before are of an earlier chunk.

    Returns: lists for lists, which are graded where delays lie between steps; a tensor for a tensor.
    """
    steps = delays.detach().floor()
    fraction = delays - steps if between else None
    if isinstance(spikes, SpikeBatch):
        return _moved_lists(spikes, steps.int(), fraction, first_step)
    x = spikes if isinstance(spikes, Tensor) else spikes.to_dense()
    moved = _moved(x, steps.long())
    if fraction is not None:
        f = fraction.to(x.dtype)
        moved = (1 - f) * moved + f * _moved(x, steps.long() + 1)
    return moved[first_step:]


def _moved(x: Tensor, steps: Tensor) -> Tensor:
    """Row t of neuron m is row t - steps[m] of x [T, B, M], or 0."""
    source = torch.arange(len(x), device=x.device)[:, None] - steps
    rows = torch.gather(x, 0, source.clamp(min=0)[:, None].expand(x.shape))
    return rows * (source >= 0).to(x.dtype)[:, None]


def _moved_lists(spikes: SpikeBatch, steps: Tensor, fraction: Tensor | None, first_step: int) -> SpikeBatch:
    move = _Move(spikes, steps.numpy(), None if fraction is None else fraction.detach().numpy(), first_step)
    values = move.result["values"]
    moved = SpikeBatch(
        offsets=torch.from_numpy(move.result["offsets"]),
        ids=torch.from_numpy(move.result["ids"]),
        n_spikes=torch.from_numpy(move.result["n_spikes"]),
        n_steps=spikes.n_steps - first_step,
        n_samples=spikes.n_samples,
        n_neurons=spikes.n_neurons,
        values=None if values is None else torch.from_numpy(values),
        graded=values is not None,
    )
    learns = any(x is not None and x.requires_grad for x in (spikes.values, fraction)) and torch.is_grad_enabled()
    if not learns:
        return moved
    return replace(moved, values=_MoveValues.apply(move, moved, spikes.values, fraction))


class _Move:
    """One move of lists; keeps what its gradient needs."""

    def __init__(self, spikes: SpikeBatch, steps: Any, fraction: Any, first_step: int) -> None:
        self.lists = engine_lists(spikes)
        self.sizes, self.steps, self.fraction = (spikes.n_samples, spikes.n_neurons), steps, fraction
        self.result = _core.delayed(self.lists, *self.sizes, steps, fraction, first_step)


class _MoveValues(torch.autograd.Function):
    """forward(move, moved lists, values before, parts f of a step) → values of the moved lists."""

    @staticmethod
    def forward(ctx: Any, move: _Move, moved: SpikeBatch, values: Tensor | None, fraction: Tensor | None) -> Tensor:
        ctx.move = move
        return moved.entry_values()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_moved: Tensor) -> tuple[Any, ...]:
        move: _Move = ctx.move
        earlier, later = move.result["earlier"], move.result["later"]
        _, _, of_values, of_delays = ctx.needs_input_grad
        d_values, d_delays = _core.delayed_grad(
            move.lists, *move.sizes, move.steps, move.fraction, earlier, later, d_moved.contiguous().numpy(), of_delays
        )
        found = (torch.from_numpy(d_values) if of_values else None, torch.from_numpy(d_delays) if of_delays else None)
        return None, None, *found
