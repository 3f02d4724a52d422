"""`fused` for stages of image networks: convolution → batch norm → neurons, one autograd node a stage.

Kept for the backward pass: x, what the convolution put out [T, B, N], and the spikes that it read, a byte each. Batch
norm is folded into the dynamics: with its mean μ and its spread, i = a·x + c with a = γ/√(σ² + ε) and c = β - a·μ, a number
a channel each, and neither i nor a normalised x is ever stored.

    backward   i and the potentials again, a chunk of steps at a time → d = ∂L/∂i, and its sums Σ d and Σ d·x a channel
               batch norm: ∂L/∂γ = (Σ d·x - μ·Σ d)/√(σ² + ε), ∂L/∂β = Σ d,
                           ∂L/∂x = a·(d - (Σ d)/m - x̂·(∂L/∂γ)/m), in place, over the m = T·B·H·W numbers of a channel
               → the gradients of the convolution

Source: Liang et al., "Accelerating Spatiotemporal Supervised Training of Large-Scale Spiking Neural Networks on GPU"
(DATE 2022): save the results of convolutions alone, recompute the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sparsesnn.engines.dense import first_step
from sparsesnn.engines.dense.dynamics import Dynamics, Numbers
from sparsesnn.engines.dense.image_network import Pool, Shape, Stage
from sparsesnn.engines.dense.spikes import no_memory
from sparsesnn.layers import Population

#: numbers of a chunk's largest buffers: maps that a convolution reads or makes
CHUNK_NUMBERS = {"cpu": 1 << 20, "cuda": 1 << 26}


@dataclass
class Fold:
    """Batch norm, or a bias, as numbers a channel: i = scale·x + shift.

    `mean` and `rstd` = 1/√(σ² + ε) of a batch norm; `frozen`: they are constants, not those of this batch.
    """

    scale: Tensor
    shift: Tensor
    mean: Tensor | None = None
    rstd: Tensor | None = None
    frozen: bool = False


@dataclass
class Run:
    """One call of a stage; tensors of neurons are [.., N], N = C·H·W, C slowest.

    Args:
        kit: what computes on the device of the weights, see `fused.kit_of`.
        source_shape, read, shape: of the maps that arrive, of those that the weights read, of the neurons.
        source: bool[T, B, M], the spikes that arrive; None where they are an input as floats.
        state: [B, N] each, running.
        fired: bool[T, B, N], written if the spikes are wanted so.
        dtype, gradient_dtype: of x and its gradient; of the gradient by the source.
        fold: what makes the current of x; None: x is the current.
        starts: the state at the start of each chunk.
    """

    kit: ModuleType
    stage: Stage
    source_shape: Shape
    read: Shape
    shape: Shape
    n_steps: int
    n_samples: int
    source: Tensor | None
    state: tuple[Tensor, ...]
    fired: Tensor | None
    dtype: torch.dtype
    gradient_dtype: torch.dtype
    fold: Fold | None = None
    starts: list[tuple[Tensor, ...]] = field(default_factory=list)

    @property
    def v(self) -> Tensor:
        """The first of the states."""
        return self.state[0]

    @property
    def n(self) -> int:
        return math.prod(self.shape)

    @property
    def fresh(self) -> bool:
        """Whether the first step differs: every call begins a sequence."""
        return first_step.matters(self.stage.neuron)

    def numbers(self, neuron: Sequence[Tensor | None]) -> Numbers:
        """What `Fused` takes, apart."""
        n = len(self.stage.neuron.parameters)
        return Numbers(tuple(x for x in neuron[:n] if x is not None), neuron[n] if len(neuron) > n else None)

    def chunks(self) -> list[tuple[int, int]]:
        """First and last step of each chunk."""
        widened = self.n * math.prod(pool.size**2 for pool in self.stage.after)  # before its pools
        largest = max(1, self.n_samples * max(widened, math.prod(self.source_shape)))
        steps = max(1, min(self.n_steps, CHUNK_NUMBERS[self.v.device.type] // largest))
        return [(t, min(self.n_steps, t + steps)) for t in range(0, self.n_steps, steps)]

    def empty(self, n_steps: int, n: int, dtype: torch.dtype) -> Tensor:
        made: Tensor = self.kit.empty((n_steps, self.n_samples, n), dtype, self.v.device)
        return made

    # ---- products ----------------------------------------------------------------------------------------------

    def frames(self, source: Tensor, start: int, stop: int) -> Tensor:
        """The spikes of some steps as maps [t·B, C, H, W] in the dtype of products."""
        return source.detach()[start:stop].to(self.dtype).view(-1, *self.source_shape)

    def products(self, x: Tensor, source: Tensor, weight: Tensor) -> None:
        """x ← what the stage's weights make of its spikes, chunk by chunk."""
        factor = None if self.stage.kernel else self.kit.Factor(weight, self.dtype, transposed=True)
        for start, stop in self.chunks():
            read = pooled(self.frames(source, start, stop), self.stage.before)
            if factor is not None:
                factor.product(read.flatten(1), x[start:stop])
            else:
                made = convolved(read, weight.to(self.dtype), self.stage)
                x[start:stop] = made.view(stop - start, self.n_samples, self.n)

    def products_grad(
        self, source: Tensor, weight: Tensor, d_x: Tensor, start: int, stop: int, wanted: bool
    ) -> tuple[Tensor | None, Tensor]:
        """∂L/∂source [t, B, M] (None if not wanted) and the chunk's share of ∂L/∂W, from ∂L/∂x of some steps."""
        stage = self.stage
        frames = self.frames(source, start, stop)
        pools = stage.before if wanted else ()
        with torch.enable_grad():
            frames.requires_grad_(bool(pools))
            read = pooled(frames, stage.before)
        flat, weight = read.detach(), weight.to(self.dtype)
        d_read: Tensor | None
        if not stage.kernel:
            d = d_x.view(len(flat), stage.channels)
            d_weight = self.kit.empty(
                tuple(weight.shape), torch.float32 if self.dtype.itemsize < 4 else self.dtype, d.device
            )
            self.kit.add_outer(d_weight, d, flat.flatten(1), first=True)
            d_read = self.empty(stop - start, math.prod(self.read), self.dtype) if wanted else None
            if d_read is not None:
                self.kit.Factor(weight, self.dtype).product(d, d_read)
        elif stage.after:  # their gradient needs what they pooled, which is computed again
            with torch.enable_grad():
                flat.requires_grad_(wanted)
                own = weight.detach().requires_grad_()
                made = convolved(flat, own, stage)
            d = d_x.view(made.shape)
            grads = torch.autograd.grad(made, [own, flat] if wanted else [own], d)
            d_weight, d_read = grads[0], grads[1] if wanted else None
        else:
            d = d_x.view(-1, *self.shape)
            padding = [stage.padding, stage.padding]
            d_read, d_weight, _ = torch.ops.aten.convolution_backward(
                d, flat, weight, None, [1, 1], padding, [1, 1], False, [0, 0], 1, [wanted, True, False]
            )
        if d_read is not None and pools:
            (d_read,) = torch.autograd.grad(read, frames, d_read.view(read.shape))
        return d_read, d_weight

    # ---- forward -----------------------------------------------------------------------------------------------

    def forward(self, source: Tensor, weight: Tensor, neuron: Numbers, x: Tensor) -> Tensor:
        """Spikes (LI: potentials) [T, B, N], or a gradient's place, from x as `products` left it."""
        out = self.empty(self.n_steps, self.n, self.v.dtype) if self.fired is None else None
        for start, stop in self.chunks():
            self.starts.append(tuple(one.clone() for one in self.state))
            self.kit.forward(
                Dynamics.of(self.stage.neuron),
                neuron,
                x[start:stop],
                fresh=self.fresh and start == 0,
                state=self.state,
                out=None if out is None else out[start:stop],
                fired=None if self.fired is None else self.fired[start:stop],
                **self._folded(),
            )
        shape = (self.n_steps, self.n_samples, self.n)
        return no_memory(shape, self.dtype, self.v.device) if out is None else out

    def _folded(self) -> dict[str, Tensor | None]:
        if self.fold is None:
            return {"scale": None, "shift": None}
        return {"scale": self._of_neurons(self.fold.scale), "shift": self._of_neurons(self.fold.shift)}

    def _of_neurons(self, channels: Tensor) -> Tensor:
        """A number a channel → the same for each of its neurons, [N]."""
        return channels.to(self.v.dtype).repeat_interleave(self.n // self.shape[0])

    # ---- backward ----------------------------------------------------------------------------------------------

    def backward(
        self,
        source: Tensor,
        weight: Tensor,
        neuron: Numbers,
        x: Tensor,
        d_out: Tensor,
        needs: Mapping[str, bool],
    ) -> dict[str, Tensor | None]:
        """Gradients by source, weight, scale and shift (of `fold`), and parameters; None where not needed."""
        dynamics, state = Dynamics.of(self.stage.neuron), self.v.dtype
        fires, chunks = isinstance(self.stage.neuron, Population), self.chunks()
        longest = max((stop - start for start, stop in chunks), default=0)
        normalised = self.fold is not None and self.fold.rstd is not None
        learns = tuple(needs[name] for name in dynamics.parameters)
        keeps = fires or any(learns)
        rows = tuple(self.empty(longest + 1, self.n, state) for _ in self.state) if keeps else ()
        d_x = self.empty(self.n_steps if normalised else longest, self.n, self.dtype)
        d_state = tuple(torch.zeros_like(one) for one in self.state)
        wanted = {"d_scale": normalised, "d_bias": needs["shift"] or normalised}
        sums = {name: torch.zeros_like(self.v) if want else None for name, want in wanted.items()}
        d_parameters = tuple(torch.zeros_like(self.v) if want else None for want in learns)
        found: dict[str, Tensor | None] = dict.fromkeys(("source", "weight", "scale", "shift"))
        for (start, stop), before in zip(reversed(chunks), reversed(self.starts), strict=True):
            n = stop - start
            d_here = d_x[start:stop] if normalised else d_x[:n]
            if keeps:
                self.kit.forward(
                    dynamics,
                    neuron,
                    x[start:stop],
                    fresh=self.fresh and start == 0,
                    state=tuple(one.clone() for one in before),
                    rows=tuple(one[: n + 1] for one in rows),
                    **self._folded(),
                )
            self.kit.backward(
                dynamics,
                neuron,
                d_out[start:stop],
                fresh=self.fresh and start == 0,
                rows=tuple(one[: n + 1] for one in rows),
                d_state=d_state,
                d_current=d_here,
                d_parameters=d_parameters,
                current=x[start:stop],
                **self._folded(),
                **sums,
            )
            if not normalised:
                self._gradients(found, source, weight, d_here, start, stop, needs)
        if normalised:
            self._normalised(found, x, d_x, sums)
            for start, stop in chunks:
                self._gradients(found, source, weight, d_x[start:stop], start, stop, needs)
        elif sums["d_bias"] is not None:
            found["shift"] = self._of_channels(sums["d_bias"])
        for name, total in zip(dynamics.parameters, d_parameters, strict=True):
            found[name] = None if total is None else total.sum(0)
        return found

    def _normalised(
        self, found: dict[str, Tensor | None], x: Tensor, d: Tensor, sums: Mapping[str, Tensor | None]
    ) -> None:
        """Turns ∂L/∂i into ∂L/∂x, in place; ∂L/∂γ and ∂L/∂β."""
        fold = self.fold
        d_bias, d_scale = sums["d_bias"], sums["d_scale"]
        if fold is None or fold.mean is None or fold.rstd is None or d_bias is None or d_scale is None:
            raise AssertionError("only a batch norm has these sums")
        total, by_x = self._of_channels(d_bias), self._of_channels(d_scale)
        d_gamma = fold.rstd * (by_x - fold.mean * total)
        m = max(1, self.n_steps * self.n_samples * self.n // self.shape[0])
        share = 0.0 if fold.frozen else 1.0 / m
        slope = -share * fold.scale * fold.rstd * d_gamma
        rest = -share * fold.scale * total - slope * fold.mean
        by_channel = [number.to(d.dtype).view(1, -1, 1) for number in (fold.scale, slope, rest)]
        maps = _channels(d, self.shape)
        maps.mul_(by_channel[0]).addcmul_(_channels(x, self.shape), by_channel[1]).add_(by_channel[2])
        found["scale"], found["shift"] = d_gamma, total

    def _of_channels(self, neurons: Tensor) -> Tensor:
        """Sums [B, N] → sums [C]."""
        return neurons.view(len(neurons), self.shape[0], -1).sum((0, 2))

    def _gradients(
        self,
        found: dict[str, Tensor | None],
        source: Tensor,
        weight: Tensor,
        d_x: Tensor,
        start: int,
        stop: int,
        needs: Mapping[str, bool],
    ) -> None:
        """A chunk's share of the gradients by source and weight."""
        d_source, d_weight = self.products_grad(source, weight, d_x, start, stop, needs["source"])
        before = found["weight"]
        found["weight"] = d_weight.to(weight.dtype) if before is None else before.add_(d_weight)
        if d_source is not None:
            whole = found["source"]
            if whole is None:
                whole = found["source"] = self.empty(self.n_steps, math.prod(self.source_shape), self.gradient_dtype)
            whole[start:stop] = d_source.view(stop - start, self.n_samples, -1)


class Fused(torch.autograd.Function):
    """forward(run, x, source or its gradient's place, weight, γ or None, shift or None, parameters…, θ_grad if any) → `Run`'s.

    The gradient by `shift` is that of batch norm's β, or of a bias. x comes without a graph.
    """

    @staticmethod
    def forward(ctx: Any, run: Run, x: Tensor, *inputs: Tensor | None) -> Tensor:
        source, weight, _, _, *neuron = inputs
        ctx.run = run
        ctx.save_for_backward(x, *inputs)
        assert source is not None
        assert weight is not None
        read = source if run.source is None else run.source
        return run.forward(read, weight, run.numbers(neuron), x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Any, ...]:
        run: Run = ctx.run
        x, source, weight, _, _, *neuron = ctx.saved_tensors
        _, _, *needed = ctx.needs_input_grad
        parameters = (parameter.name for parameter in run.stage.neuron.parameters)
        names = [*("source", "weight", "scale", "shift", *parameters), "grad_threshold"][: len(needed)]
        needs = dict(zip(names, needed, strict=True))
        read = source if run.source is None else run.source
        found = run.backward(read, weight, run.numbers(neuron), x, d_out.contiguous(), needs)
        return None, None, *(found.get(name) if needs[name] else None for name in names)


def pooled(maps: Tensor, pools: Sequence[Pool]) -> Tensor:
    """Maps [.., C, H, W] through pools."""
    for pool in pools:
        over = functional.max_pool2d if pool.kind == "max" else functional.avg_pool2d
        maps = over(maps, pool.size)
    return maps


def convolved(maps: Tensor, weight: Tensor, stage: Stage) -> Tensor:
    """Currents of a stage with a kernel, pooled as it says."""
    return pooled(functional.conv2d(maps, weight, padding=stage.padding), stage.after)


def _channels(x: Tensor, shape: Shape) -> Tensor:
    """[t, B, N] → [t·B, C, H·W], the same memory."""
    return x.view(-1, shape[0], shape[1] * shape[2])
