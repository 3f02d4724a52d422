"""Lists on their way: axonal delays move their entries; see `sparsesnn.delays`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsesnn import _core
from sparsesnn.engines.cpu.layer import engine_lists
from sparsesnn.first_order import first_order
from sparsesnn.spikes import SpikeBatch


class Move:
    """One move of lists; keeps what its gradient needs. Here one process has all entries.

    Args:
        delays: float32[M], in steps, at least 0.
        between: they may lie between steps; else they are whole.
        first_step: the result has the steps from here on; those before are of an earlier chunk.
    """

    #: the field of lists that holds the values that autograd sees
    values = "values"
    #: whether gradients by delays are kept apart by groups of samples, which replicas add up
    separate = False

    def __init__(self, spikes: SpikeBatch, delays: Tensor, between: bool, first_step: int) -> None:
        steps = delays.detach().floor()
        self.fraction = delays - steps if between else None
        fraction = None if self.fraction is None else self.fraction.detach().numpy()
        self.given = engine_lists(spikes), spikes.n_samples, spikes.n_neurons, steps.int().numpy(), fraction
        self.result = _core.delayed(*self.given, first_step)
        self.n_steps = spikes.n_steps - first_step

    def moved(self, spikes: SpikeBatch) -> SpikeBatch:
        """The same lists as they arrive, graded where delays lie between steps."""
        values = self.result["values"]
        moved = replace(
            spikes,
            offsets=torch.from_numpy(self.result["offsets"]),
            ids=torch.from_numpy(self.result["ids"]),
            n_spikes=torch.from_numpy(self.result["n_spikes"]),
            n_steps=self.n_steps,
            values=None if values is None else torch.from_numpy(values),
            dropped=None,
            graded=values is not None,
        )
        before = getattr(spikes, self.values)
        learns = any(x is not None and x.requires_grad for x in (before, self.fraction)) and torch.is_grad_enabled()
        if not learns:
            return moved
        return replace(moved, **{self.values: _MoveValues.apply(self, moved, before, self.fraction)})

    def places(self, lists: SpikeBatch) -> Any:
        """Where the entries whose gradient this process has lie in lists; None: it has all."""
        return None

    def own_values(self, d_values: Any) -> Any:
        """Of the gradient by all values before, that of this process."""
        return d_values

    def sum_groups(self, d_delays: Any) -> Any:
        """The gradient by delays from what the engine found."""
        return d_delays

    def gradients(self, d_moved: Tensor, places: Any, of_delays: bool) -> tuple[Tensor, Tensor | None]:
        """By the values before, and by the delays.

        Args:
            d_moved: of the moved entries at `places`; None: of all.
        """
        found = d_moved.contiguous().numpy()
        if places is not None:
            found = np.zeros(len(self.result["ids"]), np.float32)
            found[places] = d_moved.numpy()
        d_values, d_delays = _core.delayed_grad(
            *self.given,
            self.result["earlier"],
            self.result["later"],
            found,
            of_delays,
            self.separate,
        )
        by_values = torch.from_numpy(self.own_values(d_values))
        return by_values, torch.from_numpy(self.sum_groups(d_delays)) if of_delays else None


class _MoveValues(torch.autograd.Function):
    """forward(move, moved lists, values before, parts f of a step) → values of the moved lists."""

    @staticmethod
    def forward(ctx: Any, move: Move, moved: SpikeBatch, values: Tensor | None, fraction: Tensor | None) -> Tensor:
        ctx.read = values, fraction
        ctx.move, ctx.places = move, move.places(moved)
        after = moved.entry_values()
        return after if ctx.places is None else after[torch.from_numpy(ctx.places)]

    @staticmethod
    @first_order("a layer of the backend 'cpu'")
    def backward(ctx: Any, d_moved: Tensor) -> tuple[Any, ...]:
        _, _, of_values, of_delays = ctx.needs_input_grad
        by_values, by_delays = ctx.move.gradients(d_moved, ctx.places, of_delays)
        return None, None, by_values if of_values else None, by_delays
