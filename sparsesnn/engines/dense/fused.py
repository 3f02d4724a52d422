"""`fused`: a population's whole sequence is one autograd node: matrix products, with the dynamics in C++ or Triton.

    forward    chunk by chunk: current = bias + Σ spikes·W (a matrix product) → dynamics → spikes
    backward   chunk by chunk, last first: recompute the potentials from the kept current → ∂L/∂current
               → dW += spikesᵀ·∂L/∂current, and ∂L/∂spikes of the source = ∂L/∂current·Wᵀ (matrix products)

Kept between the two: the input current [T, B, N], the state at the start of each chunk, and the spikes (`spikes.py`), which the next
population needs for its weight's gradient: a byte each on a CPU, numbers in the precision of the products on CUDA. A recurrent population computes its recurrent product
step by step, forward and backward; the gradient of its weight is one product per chunk.

The operations are in `on_cpu.py` and `on_cuda.py`.

Source: Liang et al., "Accelerating Spatiotemporal Supervised Training of Large-Scale Spiking Neural Networks on GPU"
(DATE 2022), for Conv → LIF on GPUs: store x alone, fuse the rest over time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsesnn.engines.dense import first_step, loops, on_cpu
from sparsesnn.engines.dense.call import Call, Result, arriving
from sparsesnn.engines.dense.dynamics import Dynamics, Numbers
from sparsesnn.engines.dense.pieces import Made, in_pieces
from sparsesnn.engines.dense.spikes import DenseSpikes, no_memory
from sparsesnn.errors import DescriptionError
from sparsesnn.first_order import first_order
from sparsesnn.layers import Neuron, fires
from sparsesnn.synapses import Synapses


def kit_of(device: torch.device) -> ModuleType:
    """The module with a device's operations: `on_cpu` or `on_cuda`, which have the same functions."""
    if device.type == "cpu":
        return on_cpu
    from sparsesnn.engines.dense import on_cuda

    return on_cuda


def spike_dtype_of(weight: Tensor) -> torch.dtype:
    """The dtype of `DenseSpikes.fired` for products with a weight, at this place: autocast may be on."""
    kit = kit_of(weight.device)
    dtype: torch.dtype = kit.spike_dtype(kit.product_dtype(weight))
    return dtype


def run(call: Call) -> Result:
    """Runs a call in the mode "fused"; spikes (LI: potentials) as float[T, B, N]."""
    out, run = _run(call, packed=False)
    return out, run.state


def run_packed(call: Call) -> tuple[DenseSpikes, tuple[Tensor, ...]]:
    """The same with spikes in the form that the next fused population reads."""
    gradient, run = _run(call, packed=True)
    assert run.fired is not None
    return DenseSpikes(run.fired, gradient), run.state


def _run(call: Call, *, packed: bool) -> tuple[Tensor, _Run]:
    neuron = call.neuron
    # one value per neuron: autograd sums the gradients of a shared value
    per_neuron = [x.expand(call.n).contiguous() for x in neuron.parameters]
    grad_threshold = neuron.grad_threshold
    spikes = [source.spikes for source in call.sources]
    inputs = [
        *(x.gradient if isinstance(x, DenseSpikes) else x.contiguous() for x in spikes),
        *(source.weight for source in call.sources),
        call.recurrent_weight,
        call.bias,
        None if grad_threshold is None else grad_threshold.expand(call.n).contiguous(),
        *per_neuron,
    ]
    device = call.v.device
    kit = kit_of(device)
    if kit is on_cpu and torch.is_autocast_enabled("cpu"):
        raise DescriptionError(
            "dense_mode is 'fused' under torch.autocast on the cpu, where it computes in float32 alone; "
            "use 'hoist' for mixed precision, or leave autocast out"
        )
    run = _Run(
        kit=kit,
        population=neuron.population,
        shape=(call.n_steps, call.n_samples, call.n),
        shifts=tuple(source.shift for source in call.sources),
        synapses=tuple(source.synapses for source in call.sources),
        sources=tuple(x.fired if isinstance(x, DenseSpikes) else None for x in spikes),
        own=call.own[0] if call.own else None,
        fresh=call.fresh and first_step.matters(neuron.population),
        state=tuple(x.clone() for x in call.state),
        fired=kit.empty((call.n_steps, *call.v.shape), spike_dtype_of(call.sources[0].weight), device)
        if packed
        else None,
        dtype=kit.product_dtype(call.sources[0].weight),
        gradient_dtypes=tuple(x.dtype for x in inputs[: len(spikes)] if x is not None),
    )
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs):
        return _Fused.apply(run, *inputs), run
    return run.forward(_Inputs.of(inputs, run), keep=False), run


@dataclass(frozen=True)
class _Inputs:
    """The tensors of a call, detached; spikes are bool or float."""

    spikes: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]
    recurrent_weight: Tensor | None
    bias: Tensor | None
    neuron: Numbers

    @classmethod
    def of(
        cls,
        inputs: Sequence[Tensor | None],
        run: _Run,
        *,
        learnt: Sequence[str] = (),
        neuron: Numbers | None = None,
    ) -> _Inputs:
        """`inputs` as `_Fused` takes them; a source in `run.sources` uses those spikes, and its input only carries the gradient.

        Args:
            learnt: names of the parameters whose gradients are needed.
            neuron: the population's arrays, if they are known.
        """
        fired = run.sources
        tensors = [None if x is None else x.detach() for x in inputs]
        present = [x for x in tensors[: 2 * len(fired)] if x is not None]
        recurrent_weight, bias, grad_threshold, *parameters = tensors[2 * len(fired) :]
        return cls(
            spikes=tuple(x if f is None else f for x, f in zip(present, fired, strict=False)),
            weights=tuple(present[len(fired) :]),
            recurrent_weight=recurrent_weight,
            bias=bias,
            neuron=neuron
            or Numbers.of(
                run.population,
                {p.name: x for p, x in zip(run.population.parameters, parameters, strict=True) if x is not None},
                grad_threshold,
                learnt,
            ),
        )


@dataclass
class _Run:
    """One call: the forward pass updates its state and keeps the state at the start of each chunk.

    Args:
        kit: the operations on the device of the weights.
        shape: T, B, N.
        shifts: per source, row t - shift arrives at step t.
        synapses: per source, the kind of its synapses.
        sources: per source its spikes, [T', B, M] as in `DenseSpikes`; None if they are an input as floats.
        own: [B, N], the spikes before the first step; None if not recurrent.
        fresh: the first step differs, see `first_step`.
        state: [B, N] each, the current state.
        fired: [T, B, N], written by the forward pass if the caller wants `DenseSpikes`; None: it wants floats.
        dtype: dtype of products, currents and their gradients.
        gradient_dtypes: per source, dtype of the gradient with respect to its spikes.
        starts: the state at the start of each chunk.
        current: [T, B, N], kept for the backward pass, which reuses its memory: a second one computes it again.
    """

    kit: ModuleType
    population: Neuron
    shape: tuple[int, int, int]
    shifts: tuple[int, ...]
    synapses: tuple[Synapses, ...]
    sources: tuple[Tensor | None, ...]
    own: Tensor | None
    fresh: bool
    state: tuple[Tensor, ...]
    fired: Tensor | None
    dtype: torch.dtype
    gradient_dtypes: tuple[torch.dtype, ...]
    starts: list[tuple[Tensor, ...]] = field(default_factory=list)
    current: Tensor | None = None

    @property
    def v(self) -> Tensor:
        """The first state."""
        return self.state[0]

    def chunks(self) -> list[tuple[int, int]]:
        """First step and last + 1 of each chunk; chunks have about equal length."""
        n_steps, n_samples, _ = self.shape
        longest = max(self.kit.MIN_STEPS, math.ceil(self.kit.ROWS / max(1, n_samples)))
        if self.own is not None:
            longest = min(longest, self.kit.LOOP_STEPS)
        if maps := [n_samples * kind.widest(0, self.shape[2]) for kind in self.synapses if not kind.is_matrix]:
            longest = min(longest, max(1, self.kit.MAP_NUMBERS // max(1, *maps)))
        edges = np.linspace(0, n_steps, math.ceil(n_steps / longest) + 1).round().astype(int).tolist()
        return list(itertools.pairwise(edges))

    def empty(self, n_steps: int, dtype: torch.dtype | None = None) -> Tensor:
        """Uninitialized steps [T', B, N], in the dtype of the products or another."""
        shape = (n_steps, *self.shape[1:])
        tensor: Tensor = self.kit.empty(shape, self.dtype if dtype is None else dtype, self.v.device)
        return tensor

    def factor(self, weight: Tensor | None, kind: Synapses | None = None, *, transposed: bool = False) -> Any:
        """The right factor of products; None if there is no weight."""
        if weight is None or kind is None or kind.is_matrix:
            return None if weight is None else self.kit.Factor(weight, self.dtype, transposed=transposed)
        return Kernel(kind, weight.to(self.dtype))

    # ---- forward -----------------------------------------------------------------------------------------------

    def forward(self, x: _Inputs, *, keep: bool) -> Tensor:
        """Spikes (LI: potentials) [T, B, N] or a tensor that only carries the gradient; `keep`: keeps the current and the starts."""
        dynamics, chunks = Dynamics.of(self.population), self.chunks()
        own = None if self.own is None else self.own.clone()
        n_steps = self.shape[0]
        longest = max((stop - start for start, stop in chunks), default=0)
        current = self.empty(n_steps if keep else longest)
        out = self.empty(n_steps, self.v.dtype) if self.fired is None else None
        weights = [self.factor(*of) for of in zip(x.weights, self.synapses, strict=True)]
        recurrent_weight = self.factor(x.recurrent_weight)
        for start, stop in chunks:
            i = current[start:stop] if keep else current[: stop - start]
            self.input_current(i, x, weights, start, stop)
            if keep:
                self.starts.append(tuple(x.clone() for x in self.state))
            given: dict[str, Any] = {
                "fresh": self.fresh and start == 0,
                "state": self.state,
                "out": None if out is None else out[start:stop],
                "fired": None if self.fired is None else self.fired[start:stop],
            }
            if own is None:
                self.kit.forward(dynamics, x.neuron, i, **given)
            else:
                loops.forward(self.kit, dynamics, x.neuron, i, weight=recurrent_weight, own=own, **given)
        self.current = current if keep else None
        return no_memory(self.shape, self.dtype, self.v.device) if out is None else out

    def input_current(self, i: Tensor, x: _Inputs, weights: Sequence[Any], start: int, stop: int) -> None:
        """i ← bias + Σ_k arriving spikes of source k · W_k, in the order of the sources."""
        for k, (shift, spikes, weight) in enumerate(zip(self.shifts, x.spikes, weights, strict=True)):
            arrived, silent = arriving(spikes, shift, start, stop)
            if k == 0:
                i[:silent] = 0 if x.bias is None else x.bias
            weight.product(arrived, i[silent:], accumulate=k > 0, bias=x.bias if k == 0 else None)

    # ---- backward ----------------------------------------------------------------------------------------------

    def current_again(self, x: _Inputs, out: Tensor | None) -> Tensor:
        """Recomputes the current of the forward pass, bit for bit, from the spikes; `out` [T, B, N] if recurrent, else None."""
        current = self.empty(self.shape[0])
        weights = [self.factor(*of) for of in zip(x.weights, self.synapses, strict=True)]
        for start, stop in self.chunks():
            self.input_current(current[start:stop], x, weights, start, stop)
        if self.own is not None and x.recurrent_weight is not None and out is not None:
            recurrent_weight = self.factor(x.recurrent_weight)
            for t in range(len(current)):
                recurrent_weight.product(out[t - 1] if t else self.own, current[t], accumulate=True)
        return current

    def backward(self, x: _Inputs, out: Tensor | None, d_out: Tensor, needs: _Needs) -> _Gradients:
        """The gradients that are needed; `out` [T, B, N] if recurrent, else None."""
        current = self.current_again(x, out) if self.current is None else self.current
        self.current = None
        dynamics, chunks = Dynamics.of(self.population), self.chunks()
        longest = max((stop - start for start, stop in chunks), default=0)

        def zeros(wanted: bool) -> Tensor | None:
            return torch.zeros_like(self.v) if wanted else None

        state = self.v.dtype
        keeps = fires(self.population) or any(needs.parameters)
        rows = tuple(self.empty(longest + 1, state) for _ in self.state) if keeps else ()
        d_current = self.empty(longest)
        weights = [
            self.factor(w if wanted or not kind.is_matrix else None, kind, transposed=True)
            for w, kind, wanted in zip(x.weights, self.synapses, needs.spikes, strict=True)
        ]
        recurrent_weight = self.factor(x.recurrent_weight, transposed=True)
        d_state = tuple(torch.zeros_like(x) for x in self.state)
        d_next = None if out is None else torch.zeros_like(self.v, dtype=self.dtype)
        d_bias, d_parameters = zeros(needs.bias), tuple(torch.zeros_like(self.v) for x in needs.parameters if x)
        g = _Gradients.empty(x, needs, self, current)
        for (start, stop), before in zip(reversed(chunks), reversed(self.starts), strict=True):
            n = stop - start
            if keeps:
                self.kit.forward(
                    dynamics,
                    x.neuron,
                    current[start:stop],
                    fresh=self.fresh and start == 0,
                    state=tuple(one.clone() for one in before),
                    rows=tuple(one[: n + 1] for one in rows),
                )
            given: dict[str, Any] = {
                "fresh": self.fresh and start == 0,
                "rows": tuple(one[: n + 1] for one in rows),
                "d_state": d_state,
                "d_current": d_current[:n],
                "d_bias": d_bias,
                "d_parameters": d_parameters,
                "current": current[start:stop],
            }
            if d_next is None:
                self.kit.backward(dynamics, x.neuron, d_out[start:stop], **given)
            else:
                weight = recurrent_weight
                loops.backward(self.kit, dynamics, x.neuron, d_out[start:stop], weight=weight, d_next=d_next, **given)
            self.products(x, g, weights, d_current[:n], out, start, stop)
        g.sums = [None if total is None else total.sum(0) for total in (d_bias, *d_parameters)]
        return g

    def products(
        self,
        x: _Inputs,
        g: _Gradients,
        weights: Sequence[Any],
        d_current: Tensor,
        out: Tensor | None,
        start: int,
        stop: int,
    ) -> None:
        """Adds a chunk's share to the gradients of the weights and of the sources' spikes; `weights` are transposed."""
        last = stop == self.shape[0]  # the chunk that the backward pass runs first
        for k, (shift, weight) in enumerate(zip(self.shifts, weights, strict=True)):
            arrived, silent = arriving(x.spikes[k], shift, start, stop)
            d_weight, d_spikes = g.weights[k], g.spikes[k]
            d_arrived = None if d_spikes is None else arriving(d_spikes, shift, start, stop)[0]
            if isinstance(weight, Kernel):
                weight.add_gradients(arrived, d_current[silent:], d_arrived, d_weight, first=last)
                continue
            if d_weight is not None:
                self.kit.add_outer(d_weight, arrived, d_current[silent:], first=last)
            if d_arrived is not None and weight is not None:
                weight.product(d_current[silent:], d_arrived)
        if g.recurrent_weight is not None and out is not None and self.own is not None:
            begin = max(start, 1)
            self.kit.add_outer(g.recurrent_weight, out[begin - 1 : stop - 1], d_current[begin - start :], first=last)
            if start == 0:
                self.kit.add_outer(g.recurrent_weight, self.own, d_current[0], first=False)


@dataclass(frozen=True)
class Kernel:
    """Takes the place of `kit.Factor` if synapses are not a matrix: their own products, by PyTorch in pieces."""

    kind: Synapses
    weight: Tensor

    def product(self, a: Tensor, out: Tensor, *, accumulate: bool = False, bias: Tensor | None = None) -> None:
        """out ← the currents of spikes `a`, added to `out` or to a bias [N]; a [.., M] bool or float, out [.., N]."""
        if not a.numel():
            return
        spikes, currents = flat(a), flat(out)

        def piece(rows: slice) -> None:
            made, here = self.kind.product(spikes[rows].to(self.weight.dtype), self.weight), currents[rows]
            if accumulate:
                here += made
            elif bias is None:
                here.copy_(made)
            else:
                torch.add(made, bias, out=here)

        self.in_pieces(spikes, currents, piece)

    def add_gradients(self, a: Tensor, d: Tensor, d_a: Tensor | None, d_weight: Tensor | None, *, first: bool) -> None:
        """d_a ← the gradient of spikes `a`; adds to d_weight, or sets it if `first`; from `d` [.., N]."""
        if first and d_weight is not None:
            d_weight.zero_()
        if not a.numel():
            return
        needs = (d_a is not None, d_weight is not None)
        spikes, d_currents, d_spikes = flat(a), flat(d), None if d_a is None else flat(d_a)

        def piece(rows: slice) -> Tensor | None:
            here = spikes[rows].to(self.weight.dtype)
            by_spikes, by_weight = self.kind.product_grad(here, self.weight, d_currents[rows], needs)
            if d_spikes is not None:
                d_spikes[rows] = by_spikes
            return by_weight  # type: ignore[no-any-return]

        for by_weight in self.in_pieces(spikes, d_currents, piece):
            if d_weight is not None and by_weight is not None:
                d_weight += by_weight

    def in_pieces(self, spikes: Tensor, currents: Tensor, work: Callable[[slice], Made]) -> list[Made]:
        """Runs `work` on pieces of the rows [rows, M] and [rows, N]; a GPU gets all rows at once."""
        if self.weight.is_cuda:
            return [work(slice(0, len(spikes)))]
        n_products = self.kind.n_products(spikes.shape[-1], currents.shape[-1])
        return in_pieces(len(spikes), work, n_products=n_products, n_weights=self.weight.numel())


def flat(x: Tensor) -> Tensor:
    """[t, B, N] as [t·B, N], in the same memory."""
    return x.view(-1, x.shape[-1])


@dataclass(frozen=True)
class _Needs:
    """Which gradients are needed."""

    spikes: tuple[bool, ...]
    weights: tuple[bool, ...]
    recurrent_weight: bool
    bias: bool
    parameters: tuple[bool, ...]

    @classmethod
    def of(cls, needs: Sequence[bool], n_sources: int) -> _Needs:
        recurrent_weight, bias, _, *parameters = needs[2 * n_sources :]
        return cls(
            tuple(needs[:n_sources]),
            tuple(needs[n_sources : 2 * n_sources]),
            recurrent_weight,
            bias,
            tuple(parameters),
        )


@dataclass
class _Gradients:
    """The gradients; None for those that are not needed."""

    spikes: list[Tensor | None]
    weights: list[Tensor | None]
    recurrent_weight: Tensor | None
    sums: list[Tensor | None] = field(default_factory=list)  # bias, then the parameters with a gradient

    @classmethod
    def empty(cls, x: _Inputs, needs: _Needs, run: _Run, current: Tensor) -> _Gradients:
        """Uninitialized, for the chunks to write, last first; one of `spikes` may use the memory of `current`."""
        left: Tensor | None = current

        def like(tensor: Tensor | None, wanted: bool) -> Tensor | None:
            if not wanted or tensor is None:
                return None
            # without a step no chunk writes it
            if run.shape[0] == 0:
                return torch.zeros_like(tensor)
            made: Tensor = run.kit.empty(tuple(tensor.shape), tensor.dtype, tensor.device)
            return made

        def to_write(spikes: Tensor, dtype: torch.dtype, shift: int, wanted: bool) -> Tensor | None:
            if not wanted:
                return None
            nonlocal left
            in_place = shift == 0 and len(spikes) == run.shape[0] and spikes.shape[-1] <= run.shape[-1]
            if left is not None and in_place and dtype == left.dtype:
                # a chunk's current has been read before this overwrites it: rows are no wider, and both end at the same place
                memory, left = left.view(-1)[left.numel() - spikes.numel() :], None
                return memory.view(spikes.shape)
            d_spikes: Tensor = run.kit.empty(tuple(spikes.shape), dtype, spikes.device)
            d_spikes[max(0, run.shape[0] - shift) :] = 0  # would arrive after the last step; the chunks write the rest
            return d_spikes

        return cls(
            [to_write(*args) for args in zip(x.spikes, run.gradient_dtypes, run.shifts, needs.spikes, strict=True)],
            [like(tensor, wanted) for tensor, wanted in zip(x.weights, needs.weights, strict=True)],
            like(x.recurrent_weight, needs.recurrent_weight),
        )


class _Fused(torch.autograd.Function):
    """forward(run, spikes of each source or their gradient carriers, weights…, V, bias, θ_grad, parameters…): `_Run.forward`."""

    @staticmethod
    def forward(ctx: Any, run: _Run, *inputs: Tensor | None) -> Tensor:
        x = _Inputs.of(inputs, run)
        out = run.forward(x, keep=True)
        ctx.run, ctx.neuron = run, x.neuron
        own = None if run.own is None else out if run.fired is None else run.fired
        ctx.save_for_backward(own, *inputs)
        return out

    @staticmethod
    @first_order("a layer of the backend 'dense' in dense_mode 'fused'")
    def backward(ctx: Any, d_out: Tensor) -> tuple[Any, ...]:
        run: _Run = ctx.run
        out, *inputs = ctx.saved_tensors
        needs = _Needs.of(ctx.needs_input_grad[1:], len(run.shifts))
        names = [p.name for p in run.population.parameters]
        learnt = [name for name, wanted in zip(names, needs.parameters, strict=True) if wanted]
        x = _Inputs.of(inputs, run, learnt=learnt, neuron=None if learnt else ctx.neuron)
        g = run.backward(x, out, d_out.contiguous(), needs)
        d_bias, *sums = g.sums
        by_name = dict(zip(learnt, sums, strict=True))
        d_parameters = map(by_name.get, names)
        return None, *g.spikes, *g.weights, g.recurrent_weight, d_bias, None, *d_parameters
