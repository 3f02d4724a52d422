"""Spikes on their way: axonal delays move them, in lists and in dense tensors; see `sparsesnn.delays`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sparsesnn import _core
from sparsesnn.engines.cpu.layer import engine_lists
from sparsesnn.engines.dense import DenseSpikes
from sparsesnn.engines.ranks.shards import ShardedSpikes
from sparsesnn.first_order import first_order
from sparsesnn.output import LayerOutput
from sparsesnn.spikes import SpikeBatch

if TYPE_CHECKING:
    from sparsesnn.engines.ranks.layer import Part


def arriving(
    spikes: LayerOutput | DenseSpikes,
    delays: Tensor,
    *,
    between: bool,
    first_step: int = 0,
    part: Part | None = None,
) -> LayerOutput:
    """The spikes as they arrive after a delay for each neuron.

    Args:
        spikes: lists, or a tensor [T, B, M].
        delays: float32[M], in steps, at least 0.
        between: they may lie between steps; else they are whole.
        first_step: the result has the steps from here on; those before are of an earlier chunk.
        part: of ranks that run the layer together, see `sparsesnn.engines.ranks`.

    Returns: lists for lists, which are graded where delays lie between steps, and of a population that ranks share where they are
    given; a tensor for a tensor.
    """
    steps = delays.detach().floor()
    fraction = delays - steps if between else None
    if isinstance(spikes, SpikeBatch):
        return _moved_lists(part.shared(spikes) if part else spikes, steps.int(), fraction, first_step, part)
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


def _moved_lists(
    spikes: SpikeBatch, steps: Tensor, fraction: Tensor | None, first_step: int, part: Part | None
) -> SpikeBatch:
    move = _Move(spikes, steps.numpy(), None if fraction is None else fraction.detach().numpy(), first_step, part)
    values = move.result["values"]
    moved = replace(
        spikes,
        offsets=torch.from_numpy(move.result["offsets"]),
        ids=torch.from_numpy(move.result["ids"]),
        n_spikes=torch.from_numpy(move.result["n_spikes"]),
        n_steps=spikes.n_steps - first_step,
        values=None if values is None else torch.from_numpy(values),
        dropped=None,
        graded=values is not None,
    )
    before = move.seen(spikes)
    learns = any(x is not None and x.requires_grad for x in (before, fraction)) and torch.is_grad_enabled()
    if not learns:
        return moved
    field = "own_values" if isinstance(spikes, ShardedSpikes) else "values"
    return replace(moved, **{field: _MoveValues.apply(move, moved, before, fraction)})


class _Move:
    """One move of lists; keeps what its gradient needs.

    Attributes:
        places: where the entries whose gradient this process has lie in the lists; None: it has all.
    """

    def __init__(self, spikes: SpikeBatch, steps: Any, fraction: Any, first_step: int, part: Part | None) -> None:
        self.part = part
        self.shards = spikes.shards if isinstance(spikes, ShardedSpikes) else None
        self.places = spikes.own_places if isinstance(spikes, ShardedSpikes) else None
        self.lists = engine_lists(spikes)
        self.sizes, self.steps, self.fraction = (spikes.n_samples, spikes.n_neurons), steps, fraction
        self.result = _core.delayed(self.lists, *self.sizes, steps, fraction, first_step)

    @staticmethod
    def seen(spikes: SpikeBatch) -> Tensor | None:
        """The values that autograd sees."""
        return spikes.own_values if isinstance(spikes, ShardedSpikes) else spikes.values

    def gradients(self, d_moved: Tensor, places: Any, of_delays: bool) -> tuple[Tensor, Tensor | None]:
        """By the values before, and by the delays.

        Args:
            d_moved: of the moved entries at `places`; None: of all.
        """
        found = d_moved.contiguous().numpy()
        if places is not None:
            found = np.zeros(len(self.result["ids"]), np.float32)
            found[places] = d_moved.numpy()
        separate = self.part is not None
        d_values, d_delays = _core.delayed_grad(
            self.lists,
            *self.sizes,
            self.steps,
            self.fraction,
            self.result["earlier"],
            self.result["later"],
            found,
            of_delays,
            separate,
        )
        by_values = torch.from_numpy(d_values if self.places is None else d_values[self.places])
        if not of_delays:
            return by_values, None
        if self.part is not None and self.shards is not None:
            d_delays = self.part.sum_groups(d_delays, self.shards)
        return by_values, torch.from_numpy(d_delays)


class _MoveValues(torch.autograd.Function):
    """forward(move, moved lists, values before, parts f of a step) → values of the moved lists."""

    @staticmethod
    def forward(ctx: Any, move: _Move, moved: SpikeBatch, values: Tensor | None, fraction: Tensor | None) -> Tensor:
        ctx.read = values, fraction
        ctx.move, ctx.places = move, moved.own_places if isinstance(moved, ShardedSpikes) else None
        after = moved.entry_values()
        return after if ctx.places is None else after[torch.from_numpy(ctx.places)]

    @staticmethod
    @first_order("a layer of the backend 'cpu'")
    def backward(ctx: Any, d_moved: Tensor) -> tuple[Any, ...]:
        _, _, of_values, of_delays = ctx.needs_input_grad
        by_values, by_delays = ctx.move.gradients(d_moved, ctx.places, of_delays)
        return None, None, by_values if of_values else None, by_delays
