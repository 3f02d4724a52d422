"""One step of a population with plain autograd: decay, add, compare, as `sparsesnn.reference` specifies it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from sparsesnn.layers import Neuron as Model
from sparsesnn.layers import is_readout
from sparsesnn.surrogate import Surrogate


class Moment(NamedTuple):
    """A population between two steps: its states in the model's order, and its spikes (None for a readout); [B, N]."""

    state: tuple[Tensor, ...]
    s: Tensor | None


@dataclass(frozen=True)
class Neuron:
    """A population with its parameters, [] or [N] in the model's order, within their range."""

    population: Model
    parameters: tuple[Tensor, ...]
    grad_threshold: Tensor | None

    @property
    def named(self) -> dict[str, Tensor]:
        """The parameters by name."""
        return {p.name: x for p, x in zip(self.population.parameters, self.parameters, strict=True)}

    def first(self, state: tuple[Tensor, ...], *, fresh: bool) -> Moment:
        """The moment before the first step; `fresh`: of a sequence, so no neuron has fired, regardless of θ."""
        if is_readout(self.population):
            return Moment(state, None)
        x = state[0]
        return Moment(state, torch.zeros_like(x) if fresh else (x > self.named["threshold"]).to(x.dtype))

    def step(self, i: Tensor, before: Moment) -> tuple[Tensor, Moment]:
        """Input current [B, N] in; spikes (LI: potentials) [B, N] and the next moment out."""
        population, p = self.population, self.named
        if is_readout(population):
            state = population.step(p, before.state, None, None, i)
            return state[0], Moment(state, None)
        s = cast(Tensor, before.s)
        state = population.step(p, before.state, s.detach() if population.detach_reset else s, s, i)
        fired = cast(Tensor, Spike.apply(state[0], p["threshold"], self.grad_threshold, population.surrogate))
        return fired, Moment(state, fired)


class Spike(torch.autograd.Function):
    """s = v > θ forward; backward σ'(v - θ) if the neuron is listed (v > θ_grad, or fired), else zero."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, threshold: Tensor, grad_threshold: Tensor, surrogate: Surrogate) -> Tensor:
        ctx.save_for_backward(v, threshold, grad_threshold)
        ctx.surrogate = surrogate
        return (v > threshold).to(v.dtype)

    @staticmethod
    def backward(ctx: Any, *d_s: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        v, threshold, grad_threshold = ctx.saved_tensors
        listed = (v > grad_threshold) | (v > threshold)
        d_v = torch.where(listed, ctx.surrogate.derivative(v - threshold) * d_s[0], 0)
        d_threshold = (-d_v).sum_to_size(threshold.shape) if ctx.needs_input_grad[1] else None
        return d_v, d_threshold, None, None


def surrogate_derivative(surrogate: Surrogate, x: Tensor) -> Tensor:
    """σ'(x), elementwise; the formulas are in `sparsesnn.surrogate`."""
    return cast(Tensor, surrogate.derivative(x))
