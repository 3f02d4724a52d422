"""The baseline: one population as dense tensors and plain PyTorch autograd, with the engine's semantics.

The products with the input weights are hoisted out of the time loop (one GEMM per source over all T·B rows); only the
recurrent product and the elementwise update remain inside it. Works in the dtype and on the device of the weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from sparsesnn.errors import DescriptionError, ShapeError
from sparsesnn.layers import LI, CubaLIF, Population
from sparsesnn.surrogate import Surrogate

if TYPE_CHECKING:
    from sparsesnn.module import Layer, LayerOutput, LayerState


def run_layer(layer: Layer, sources: Sequence[LayerOutput], state: LayerState | None) -> tuple[Tensor, LayerState]:
    """Runs one population for T steps: decay, add, compare, as `sparsesnn.reference` specifies it.

    Args:
        layer: description and parameters.
        sources: per source its spikes [T, B, M], 0 or 1. With a state, a source of delay d is [T + d, B, M]: row t is
            what arrives at step t. Without one it is shifted here, and nothing arrives in its first d steps.
        state: from the call before; None: zero potentials, no past spikes. It receives no gradient.

    Returns: spikes [T, B, N] (potentials for LI) and the state after the last step.
    Errors: `DescriptionError` if a capacity is set; `ShapeError` for sources or states that do not fit.
    """
    from sparsesnn.module import LayerState, last_steps

    population = layer.population
    if isinstance(population, Population) and population.capacity is not None:
        raise DescriptionError(
            f"{type(population).__name__}: capacity is {population.capacity}, but the backend 'dense' has no lists "
            "that could fill up; allowed: capacity=None; change that, or use backend='cpu'"
        )
    currents = _input_current(layer, sources, shift=state is None)
    n_samples, n = currents.shape[1:]
    v = _from_state(state.v if state else None, "v", currents, (n_samples, n))
    beta = cast(Tensor, layer.beta).clamp(0, 1)
    step = (state.step if state else 0) + len(currents)
    if isinstance(population, LI):
        out, v = _integrate(currents, v, beta, population.gain)
        return out, LayerState(v.detach(), step=step)
    before = state.history if state else None
    own = None
    if layer.recurrent_weight is not None:
        if state is not None and not isinstance(before, Tensor):
            raise ShapeError(
                f"{type(population).__name__}: recurrent, but the state's history is {type(before).__name__}; "
                "allowed: the last spikes [1 or more, B, N]; pass the state that this layer returned"
            )
        own = _from_state(before[-1] if isinstance(before, Tensor) else None, "history", currents, (n_samples, n))
    i_syn = None
    if isinstance(population, CubaLIF):
        i_syn = _from_state(state.i_syn if state else None, "i_syn", currents, (n_samples, n))
    spikes, v, i_syn = _fire(layer, population, currents, v, i_syn, own, beta)
    history = last_steps(before, spikes, layer.n_history) if layer.n_history else None
    return spikes, LayerState(v.detach(), None if i_syn is None else i_syn.detach(), history, step)


def _integrate(currents: Tensor, v: Tensor, beta: Tensor, gain: float) -> tuple[Tensor, Tensor]:
    """LI: v[t] = β·v[t-1] + gain·i[t]."""
    potentials = []
    for i in currents.unbind(0):
        v = beta * v + (i if gain == 1 else gain * i)
        potentials.append(v)
    return torch.stack(potentials) if potentials else currents, v


def _fire(
    layer: Layer,
    population: Population,
    currents: Tensor,
    v: Tensor,
    i_syn: Tensor | None,
    own: Tensor | None,
    beta: Tensor,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """LIF and CubaLIF; `own` holds the population's spikes one step back, None if it is not recurrent."""
    threshold, grad_threshold = cast(Tensor, layer.threshold), cast(Tensor, layer.grad_threshold)
    alpha = cast(Tensor, layer.alpha).clamp(0, 1) if i_syn is not None else None
    gain = population.gain
    s = (v > threshold).to(v.dtype)
    spikes = []
    for i in currents.unbind(0):  # unbind: its backward stacks once, where currents[t] would add T full-size tensors
        if own is not None:
            i = torch.addmm(i, own, cast(Tensor, layer.recurrent_weight))
        if i_syn is not None and alpha is not None:
            i = i_syn = alpha * i_syn + i
        v = _decay_and_reset(population, v, s, beta, threshold) + (i if gain == 1 else gain * i)
        fired = cast(Tensor, Spike.apply(v, threshold, grad_threshold, population.surrogate))
        spikes.append(fired)
        s = fired.detach() if population.detach_reset else fired
        own = fired if own is not None else None
    return torch.stack(spikes) if spikes else currents, v, i_syn


def _decay_and_reset(population: Population, v: Tensor, s: Tensor, beta: Tensor, threshold: Tensor) -> Tensor:
    """ρ(v[t-1]), with s = v[t-1] > θ."""
    if population.reset == "zero":
        return beta * v * (1 - s)
    if population.reset == "none":
        return beta * v
    return beta * (v - threshold * s) if population.reset_decays else beta * v - threshold * s


class Spike(torch.autograd.Function):
    """s = v > θ forward; backward σ'(v - θ) where the neuron is listed (v > θ_grad, or fired), zero elsewhere."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, threshold: Tensor, grad_threshold: Tensor, surrogate: Surrogate) -> Tensor:
        ctx.save_for_backward(v, threshold, grad_threshold)
        ctx.surrogate = surrogate
        return (v > threshold).to(v.dtype)

    @staticmethod
    def backward(ctx: Any, *d_s: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        v, threshold, grad_threshold = ctx.saved_tensors
        listed = (v > grad_threshold) | (v > threshold)
        d_v = torch.where(listed, surrogate_derivative(ctx.surrogate, v - threshold) * d_s[0], 0)
        d_threshold = (-d_v).sum_to_size(threshold.shape) if ctx.needs_input_grad[1] else None
        return d_v, d_threshold, None, None


def surrogate_derivative(surrogate: Surrogate, x: Tensor) -> Tensor:
    """σ'(x), elementwise; the formulas stand in `sparsesnn.surrogate`."""
    slope = surrogate.slope
    if surrogate.kind == "fast_sigmoid":
        return (slope * x.abs() + 1).pow(-2)
    if surrogate.kind == "straight_through":
        return torch.ones_like(x)
    if surrogate.kind == "sigmoid":
        s = torch.sigmoid(slope * x)
        return slope * s * (1 - s)
    if surrogate.kind == "atan":
        return slope / 2 / (1 + (math.pi / 2 * slope * x).square())
    if surrogate.kind == "triangle":
        return (1 - slope * x.abs()).clamp(min=0)
    return slope * (x.abs() < 0.5 / slope).to(x.dtype)


def _input_current(layer: Layer, sources: Sequence[LayerOutput], *, shift: bool) -> Tensor:
    """[T, B, N]: bias and the current of all sources, summed in their order."""
    model = type(layer.population).__name__
    shape: tuple[int, int] | None = None
    total: Tensor | None = layer.bias
    for k, (source, weight, delay) in enumerate(zip(sources, layer.weights, layer.delays, strict=True)):
        if not isinstance(source, Tensor):
            raise ShapeError(
                f"{model}: source {k} is a {type(source).__name__}; the backend 'dense' reads tensors [T, B, M]; "
                "give spikes.to_dense()"
            )
        if source.ndim != 3 or source.shape[2] != weight.shape[0]:
            raise ShapeError(f"{model}: source {k} is {tuple(source.shape)}; give [T, B, {weight.shape[0]}]")
        x = source.to(weight.device, weight.dtype)
        n_steps = x.shape[0] if shift else x.shape[0] - delay
        if n_steps < 0:
            raise ShapeError(
                f"{model}: source {k} has {x.shape[0]} steps and the delay is {delay}; with a state, "
                f"give the {delay} steps before the chunk in front of it"
            )
        if shape is None:
            shape = (n_steps, x.shape[1])
        if (n_steps, x.shape[1]) != shape:
            raise ShapeError(
                f"{model}: source {k} brings T, B = {(n_steps, x.shape[1])}, source 0 brings {shape}; make them equal"
                + ("" if shift else " (with a state, a source of delay d begins d steps earlier)")
            )
        arrives = x[: max(0, n_steps - delay)] if shift else x[:n_steps]
        current = arrives @ weight
        if shift and delay:
            current = functional.pad(current, (0, 0, 0, 0, delay, 0))[:n_steps]
        total = current if total is None else total + current
    assert total is not None, "a layer has at least one source"
    return total


def _from_state(value: Tensor | None, name: str, like: Tensor, shape: tuple[int, int]) -> Tensor:
    """A state's tensor, cut from autograd, in the dtype and on the device of `like`; zeros if there is none."""
    if value is None:
        return like.new_zeros(shape)
    if tuple(value.shape) != shape:
        raise ShapeError(
            f"state.{name} is {tuple(value.shape)}; the sources and the population need {shape}; "
            "pass the state of the same layer and the same number of samples"
        )
    return value.detach().to(like.device, like.dtype)
