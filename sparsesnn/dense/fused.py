"""`fused`: a population's whole sequence is one autograd node, and what lies between its matrix products is C++.

    forward    chunk by chunk: current = bias + Σ spikes·W (a matrix product) → dynamics (C++) → spikes
    backward   chunk by chunk, last first: the potentials again from the kept current (C++) → ∂L/∂current (C++)
               → dW += spikesᵀ·∂L/∂current, and ∂L/∂spikes of the source = ∂L/∂current·Wᵀ (matrix products, `products.py`)

Kept between the two: the input current [T, B, N], the state at the start of each chunk, and the spikes as a byte each
(`spikes.py`), which the next population needs for its weight's gradient. A recurrent population does its recurrent product step by step both ways; the gradient
of its weight is one product a chunk.

Source: Liang et al., "Accelerating Spatiotemporal Supervised Training of Large-Scale Spiking Neural Networks on GPU"
(DATE 2022), for Conv → LIF on GPUs: store x alone, fuse the rest over time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsesnn import _core
from sparsesnn.dense.layer import Call, Result, arriving
from sparsesnn.dense.products import Factor, add_outer, array, empty
from sparsesnn.dense.spikes import DenseSpikes, no_memory
from sparsesnn.layers import LI, CubaLIF, Population
from sparsesnn.surrogate import KINDS

Array = np.ndarray[Any, Any]

#: rows of a chunk's matrix products: enough that a product runs near full speed, few enough that a chunk's buffers
#: (four of them) stay small beside what is kept
ROWS = 768
MIN_STEPS = 8

_RESETS = {"subtract": 0, "zero": 2, "none": 3}  # 1: subtract, then decay
_NEURON = ("alpha", "beta", "threshold", "grad_threshold")


def run(call: Call) -> Result:
    """See the module; spikes (LI: potentials) as float[T, B, N]."""
    out, run = _run(call, packed=False)
    return out, run.v, run.i_syn


def run_packed(call: Call) -> tuple[DenseSpikes, Tensor, Tensor | None]:
    """The same with a byte a spike, for the next fused population."""
    gradient, run = _run(call, packed=True)
    assert run.fired is not None
    return DenseSpikes(run.fired, gradient), run.v, run.i_syn


def _run(call: Call, *, packed: bool) -> tuple[Tensor, _Run]:
    neuron = call.neuron
    per_neuron = [getattr(neuron, name) for name in _NEURON]
    # one value a neuron: autograd sums the gradients of a value that all share
    per_neuron = [None if x is None else x.expand(call.n).contiguous() for x in per_neuron]
    spikes = [source.spikes for source in call.sources]
    inputs = [
        *(x.gradient if isinstance(x, DenseSpikes) else x.contiguous() for x in spikes),
        *(source.weight for source in call.sources),
        call.recurrent_weight,
        call.bias,
        *per_neuron,
    ]
    run = _Run(
        population=neuron.population,
        shape=(call.n_steps, call.n_samples, call.n),
        shifts=tuple(source.shift for source in call.sources),
        sources=tuple(x.fired if isinstance(x, DenseSpikes) else None for x in spikes),
        own=call.own,
        v=call.v.clone(),
        i_syn=None if call.i_syn is None else call.i_syn.clone(),
        fired=empty((call.n_steps, *call.v.shape), torch.bool) if packed else None,
    )
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs):
        return _Fused.apply(run, *inputs), run
    return run.forward(_Inputs.of(inputs, run.sources), keep=False), run


@dataclass(frozen=True)
class _Inputs:
    """The tensors of a call, cut from autograd; spikes are bool or float."""

    spikes: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]
    recurrent_weight: Tensor | None
    bias: Tensor | None
    neuron: dict[str, Array | None]

    @classmethod
    def of(cls, inputs: Sequence[Tensor | None], fired: Sequence[Tensor | None]) -> _Inputs:
        """`inputs` as `_Fused` takes them; where `fired` says who fired, the input is only a gradient's place."""
        tensors = [None if x is None else x.detach() for x in inputs]
        present = [x for x in tensors[: 2 * len(fired)] if x is not None]
        recurrent_weight, bias, *neuron = tensors[2 * len(fired) :]
        return cls(
            spikes=tuple(x if f is None else f for x, f in zip(present, fired, strict=False)),
            weights=tuple(present[len(fired) :]),
            recurrent_weight=recurrent_weight,
            bias=bias,
            neuron={name: _array(x) for name, x in zip(_NEURON, neuron, strict=True)},
        )


@dataclass
class _Run:
    """One call: its state moves on in the forward pass, its chunks remember where they started.

    Args:
        shape: T, B, N.
        shifts: per source, row t - shift arrives at step t.
        sources: per source bool[T', B, M], who fired; None where its spikes are an input as floats.
        own: [B, N], the spikes before the first step; None if not recurrent.
        v, i_syn: [B, N], running.
        fired: bool[T, B, N], written by the forward pass if the spikes are wanted so; None: wanted as floats.
        starts: v and i_syn at the start of each chunk.
        current: [T, B, N], kept for the backward pass, which uses up its memory: a second one computes it again.
    """

    population: LI | Population
    shape: tuple[int, int, int]
    shifts: tuple[int, ...]
    sources: tuple[Tensor | None, ...]
    own: Tensor | None
    v: Tensor
    i_syn: Tensor | None
    fired: Tensor | None
    starts: list[tuple[Tensor, Tensor | None]] = field(default_factory=list)
    current: Tensor | None = None

    def chunks(self) -> list[tuple[int, int]]:
        """First and last step of each chunk, of about equal length."""
        n_steps, n_samples, _ = self.shape
        longest = max(MIN_STEPS, math.ceil(ROWS / max(1, n_samples)))
        edges = np.linspace(0, n_steps, math.ceil(n_steps / longest) + 1).round().astype(int).tolist()
        return list(itertools.pairwise(edges))

    def spec(self) -> _core.DenseSpec:
        population = self.population
        if isinstance(population, LI):
            return _core.DenseSpec(model=2, reset=3, detach_reset=True, surrogate=0, slope=1.0, gain=population.gain)
        return _core.DenseSpec(
            model=1 if isinstance(population, CubaLIF) else 0,
            reset=1 if population.reset_decays else _RESETS[population.reset],
            detach_reset=population.detach_reset,
            surrogate=KINDS.index(population.surrogate.kind),
            slope=population.surrogate.slope,
            gain=population.gain,
        )

    # ---- forward -----------------------------------------------------------------------------------------------

    def forward(self, x: _Inputs, *, keep: bool) -> Tensor:
        """Spikes (LI: potentials) [T, B, N] or a gradient's place; keeps the current and the starts if asked to."""
        spec, chunks, own = self.spec(), self.chunks(), self.own
        n_steps, n_samples, n = self.shape
        longest = max((stop - start for start, stop in chunks), default=0)
        current = empty((n_steps if keep else longest, n_samples, n), self.v.dtype)
        out = empty(self.shape, self.v.dtype) if self.fired is None else None
        spikes = out if self.fired is None else self.fired
        assert spikes is not None
        weights = [Factor(weight) for weight in x.weights]
        recurrent_weight = None if x.recurrent_weight is None else Factor(x.recurrent_weight)
        for start, stop in chunks:
            i = current[start:stop] if keep else current[: stop - start]
            self.input_current(i, x, weights, start, stop)
            if keep:
                self.starts.append((self.v.clone(), None if self.i_syn is None else self.i_syn.clone()))
            # a recurrent population's current depends on the step before, so its chunk goes step by step
            for t0, t1 in [(start, stop)] if own is None else [(t, t + 1) for t in range(start, stop)]:
                here = i[t0 - start : t1 - start]
                if own is not None and recurrent_weight is not None:
                    recurrent_weight.product(own, here[0], accumulate=True)
                    own = spikes[t0]
                _core.dense_forward(
                    spec,
                    _array(here),
                    **x.neuron,
                    v=_array(self.v),
                    i_syn=_array(self.i_syn),
                    out=None if out is None else _array(out[t0:t1]),
                    fired=None if self.fired is None else _array(self.fired[t0:t1]),
                    v_rows=None,
                    i_syn_rows=None,
                )
        self.current = current if keep else None
        return no_memory(self.shape, self.v.dtype, self.v.device) if out is None else out

    def input_current(self, i: Tensor, x: _Inputs, weights: Sequence[Factor], start: int, stop: int) -> None:
        """i ← bias + Σ_k what arrives of source k · W_k, in the order of the sources."""
        for k, (shift, spikes, weight) in enumerate(zip(self.shifts, x.spikes, weights, strict=True)):
            arrived, silent = arriving(spikes, shift, start, stop)
            if k == 0:
                i[:silent] = 0 if x.bias is None else x.bias
            weight.product(arrived, i[silent:], accumulate=k > 0, bias=x.bias if k == 0 else None)

    # ---- backward ----------------------------------------------------------------------------------------------

    def current_again(self, x: _Inputs, out: Tensor | None) -> Tensor:
        """The current of the forward pass, to the bit, from the spikes; `out` [T, B, N] of a recurrent population."""
        current = empty(self.shape, self.v.dtype)
        weights = [Factor(weight) for weight in x.weights]
        for start, stop in self.chunks():
            self.input_current(current[start:stop], x, weights, start, stop)
        if self.own is not None and x.recurrent_weight is not None and out is not None:
            recurrent_weight = Factor(x.recurrent_weight)
            for t in range(len(current)):
                recurrent_weight.product(out[t - 1] if t else self.own, current[t], accumulate=True)
        return current

    def backward(self, x: _Inputs, out: Tensor | None, d_out: Tensor, needs: _Needs) -> _Gradients:
        """Gradients of what is needed; `out` [T, B, N] of a recurrent population."""
        current = self.current_again(x, out) if self.current is None else self.current
        self.current = None
        spec, chunks = self.spec(), self.chunks()
        fires, cuba = isinstance(self.population, Population), self.i_syn is not None
        longest = max((stop - start for start, stop in chunks), default=0)

        def zeros(wanted: bool = True) -> Tensor | None:
            return torch.zeros_like(self.v) if wanted else None

        def steps(n: int, wanted: bool = True) -> Any:
            return empty((n, *self.shape[1:]), self.v.dtype) if wanted else None

        v_rows, i_rows = steps(longest + 1, fires or needs.beta), steps(longest + 1, cuba)
        d_current, d_one = steps(longest), steps(1, out is not None)
        weights = [
            Factor(w, transposed=True) if wanted else None for w, wanted in zip(x.weights, needs.spikes, strict=True)
        ]
        recurrent_weight = None if x.recurrent_weight is None else Factor(x.recurrent_weight, transposed=True)
        delta, d_i, d_next = zeros(), zeros(cuba), zeros(out is not None)
        sums = {
            "d_bias": zeros(needs.bias),
            "d_alpha": zeros(needs.alpha),
            "d_beta": zeros(needs.beta),
            "d_threshold": zeros(needs.threshold),
        }
        arrays = {name: _array(total) for name, total in sums.items()}
        g = _Gradients.empty(x, needs, self, current)
        for (start, stop), (v, i_syn) in zip(reversed(chunks), reversed(self.starts), strict=True):
            n = stop - start
            if v_rows is not None:
                _core.dense_forward(
                    spec,
                    _array(current[start:stop]),
                    **x.neuron,
                    v=_array(v.clone()),
                    i_syn=None if i_syn is None else _array(i_syn.clone()),
                    out=None,
                    fired=None,
                    v_rows=_array(v_rows[: n + 1]),
                    i_syn_rows=None if i_rows is None else _array(i_rows[: n + 1]),
                )
            for t0, t1 in [(0, n)] if out is None else [(t, t + 1) for t in reversed(range(n))]:
                d_here = d_out[start + t0 : start + t1]
                if d_one is not None and d_next is not None and recurrent_weight is not None:
                    d_one.copy_(d_here)
                    recurrent_weight.product(d_next, d_one[0], accumulate=True)
                    d_here = d_one
                _core.dense_backward(
                    spec,
                    _array(d_here),
                    **x.neuron,
                    v_rows=None if v_rows is None else _array(v_rows[t0 : t1 + 1]),
                    i_syn_rows=None if i_rows is None else _array(i_rows[t0 : t1 + 1]),
                    delta=_array(delta),
                    d_i=_array(d_i),
                    d_current=_array(d_current[t0:t1]),
                    **arrays,
                )
                if out is not None:
                    d_next = d_current[t0]
            if d_next is not None:
                d_next = d_next.clone()  # the next chunk writes where it lies
            self.products(x, g, weights, d_current[:n], out, start, stop)
        g.sums = {name: None if total is None else total.sum(0) for name, total in sums.items()}
        return g

    def products(
        self,
        x: _Inputs,
        g: _Gradients,
        weights: Sequence[Factor | None],
        d_current: Tensor,
        out: Tensor | None,
        start: int,
        stop: int,
    ) -> None:
        """A chunk's share of the gradients by weights, and by the spikes of the sources; `weights` are transposed."""
        last = stop == self.shape[0]  # the chunk that comes first here
        for k, (shift, weight) in enumerate(zip(self.shifts, weights, strict=True)):
            arrived, silent = arriving(x.spikes[k], shift, start, stop)
            if (d_weight := g.weights[k]) is not None:
                add_outer(d_weight, arrived, d_current[silent:], first=last)
            if (d_spikes := g.spikes[k]) is not None and weight is not None:
                weight.product(d_current[silent:], arriving(d_spikes, shift, start, stop)[0])
        if g.recurrent_weight is not None and out is not None and self.own is not None:
            begin = max(start, 1)
            add_outer(g.recurrent_weight, out[begin - 1 : stop - 1], d_current[begin - start :], first=last)
            if start == 0:
                add_outer(g.recurrent_weight, self.own, d_current[0], first=False)


@dataclass(frozen=True)
class _Needs:
    """Which gradients somebody asked for."""

    spikes: tuple[bool, ...]
    weights: tuple[bool, ...]
    recurrent_weight: bool
    bias: bool
    alpha: bool
    beta: bool
    threshold: bool

    @classmethod
    def of(cls, needs: Sequence[bool], n_sources: int) -> _Needs:
        recurrent_weight, bias, alpha, beta, threshold, _ = needs[2 * n_sources :]
        return cls(
            tuple(needs[:n_sources]),
            tuple(needs[n_sources : 2 * n_sources]),
            recurrent_weight,
            bias,
            alpha,
            beta,
            threshold,
        )


@dataclass
class _Gradients:
    """None where nobody asked."""

    spikes: list[Tensor | None]
    weights: list[Tensor | None]
    recurrent_weight: Tensor | None
    sums: dict[str, Tensor | None] = field(default_factory=dict)

    @classmethod
    def empty(cls, x: _Inputs, needs: _Needs, run: _Run, current: Tensor) -> _Gradients:
        """To be written by the chunks, last first; one of `spikes` may use the memory of `current`."""
        left: Tensor | None = current

        def like(tensor: Tensor | None, wanted: bool) -> Tensor | None:
            if not wanted or tensor is None:
                return None
            # without a step no chunk writes it
            return torch.zeros_like(tensor) if run.shape[0] == 0 else empty(tuple(tensor.shape), tensor.dtype)

        def to_write(spikes: Tensor, shift: int, wanted: bool) -> Tensor | None:
            if not wanted:
                return None
            nonlocal left
            if left is not None and shift == 0 and spikes.shape[-1] <= run.shape[-1]:
                # a chunk's current has been read when this is written: rows are no wider, and end where it ends
                d_spikes, left = left.view(-1)[left.numel() - spikes.numel() :].view(spikes.shape), None
                return d_spikes
            d_spikes = empty(tuple(spikes.shape), run.v.dtype)
            d_spikes[max(0, run.shape[0] - shift) :] = 0  # what arrives after the last step; the chunks write the rest
            return d_spikes

        return cls(
            [to_write(*args) for args in zip(x.spikes, run.shifts, needs.spikes, strict=True)],
            [like(tensor, wanted) for tensor, wanted in zip(x.weights, needs.weights, strict=True)],
            like(x.recurrent_weight, needs.recurrent_weight),
        )


class _Fused(torch.autograd.Function):
    """forward(run, spikes of each source or their gradients' places, weights…, V, bias, α, β, θ, θ_grad) → as `_Run`."""

    @staticmethod
    def forward(ctx: Any, run: _Run, *inputs: Tensor | None) -> Tensor:
        out = run.forward(_Inputs.of(inputs, run.sources), keep=True)
        ctx.run = run
        own = None if run.own is None else out if run.fired is None else run.fired
        ctx.save_for_backward(own, *inputs)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Any, ...]:
        run: _Run = ctx.run
        out, *inputs = ctx.saved_tensors
        needs = _Needs.of(ctx.needs_input_grad[1:], len(run.shifts))
        g = run.backward(_Inputs.of(inputs, run.sources), out, d_out.contiguous(), needs)
        sums = (g.sums[name] for name in ("d_bias", "d_alpha", "d_beta", "d_threshold"))
        return None, *g.spikes, *g.weights, g.recurrent_weight, *sums, None


def _array(x: Tensor | None) -> Any:
    """The tensor's memory; None stays None."""
    return None if x is None else array(x)
