"""An `ImageNetwork` as a `torch.nn.Module`: convolutions, batch norm and pooling in front of the dense neurons."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsesnn.bounds import bounded
from sparsesnn.engines.dense import compiled, fused, unrolled
from sparsesnn.engines.dense.image_fused import Fold, Fused, Run, convolved, pooled
from sparsesnn.engines.dense.image_network import ImageNetwork, Shape, Stage
from sparsesnn.engines.dense.layer import check_mode, choose_mode
from sparsesnn.engines.dense.neuron import Neuron
from sparsesnn.engines.dense.spikes import DenseSpikes, SpikesByName
from sparsesnn.errors import DescriptionError, ShapeError
from sparsesnn.layers import LI, Population
from sparsesnn.output import Output
from sparsesnn.spikes import SpikeBatch
from sparsesnn.wording import count

#: of batch norm, as PyTorch's
EPSILON, MOMENTUM = 1e-5, 0.1


class ImageLayer(nn.Module):
    """One stage.

    Parameters: `weight` float32[channels, channels before, kernel, kernel] or, fully connected, [channels, elements], both
    U(±1/√fan in); `bias` [channels]; `norm_weight`, `norm_bias` [channels] of batch norm, with the buffers
    `running_mean` and `running_var`; `beta`, `alpha`, `threshold` (parameters if learnt, else buffers; [] or [n]).
    """

    def __init__(
        self, stage: Stage, source_shape: Shape, read: Shape, shape: Shape, mode: str, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.stage, self.dense_mode = stage, mode
        self.source_shape, self.read, self.shape = source_shape, read, shape
        size = stage.weight_shape(read)
        bound = math.prod(size[1:]) ** -0.5
        self.weight = nn.Parameter((torch.rand(size, generator=generator) * 2 - 1) * bound)
        neuron, channels = stage.neuron, stage.channels
        self.bias = nn.Parameter(torch.zeros(channels)) if neuron.bias and not stage.batch_norm else None
        self.norm_weight = nn.Parameter(torch.ones(channels)) if stage.batch_norm else None
        self.norm_bias = nn.Parameter(torch.zeros(channels)) if stage.batch_norm else None
        if stage.batch_norm:
            self.register_buffer("running_mean", torch.zeros(channels))
            self.register_buffer("running_var", torch.ones(channels))
        for name in (*(parameter.name for parameter in neuron.parameters), "grad_threshold"):
            if hasattr(neuron, name):
                value = torch.tensor(getattr(neuron, name), dtype=torch.float32)
                if getattr(neuron, f"learn_{name}", False):
                    self.register_parameter(name, nn.Parameter(value))
                else:
                    self.register_buffer(name, value)

    def forward(self, source: Tensor | DenseSpikes) -> Tensor | DenseSpikes:
        """Spikes [T, B, M] of the maps before in, spikes (LI: potentials) [T, B, N] out."""
        mode = choose_mode(self.dense_mode, self.weight.device, self.weight.dtype)
        if mode == "fused":
            return self._fused(source)
        spikes = source.to_dense() if isinstance(source, DenseSpikes) else source
        x = self._products(spikes.to(self.weight.dtype), one_by_one=mode == "step")
        currents = self._normalise(x)
        zeros = torch.zeros(x.shape[1:], device=x.device, dtype=self.weight.dtype)
        moment = self._neuron().first((zeros,) * len(self.stage.neuron.states), fresh=True)
        run = compiled.over_steps if mode == "compile" else unrolled.over_steps
        return run(self._neuron(), currents, moment)[0]

    def _products(self, spikes: Tensor, *, one_by_one: bool) -> Tensor:
        """x [T, B, N], for all steps at once or a step at a time."""
        n_steps, n_samples, _ = spikes.shape
        if one_by_one and n_steps:
            return torch.cat([self._products(step[None], one_by_one=False) for step in spikes.unbind(0)])
        read = pooled(spikes.reshape(-1, *self.source_shape), self.stage.before)
        made = convolved(read, self.weight, self.stage) if self.stage.kernel else read.flatten(1) @ self.weight.t()
        return made.reshape(n_steps, n_samples, -1)

    def _normalise(self, x: Tensor) -> Tensor:
        """The currents of x, by PyTorch's own batch norm; with a bias where there is one."""
        if self.stage.batch_norm:
            maps = x.reshape(-1, *self.shape)
            made = functional.batch_norm(
                maps,
                *self._running(),
                self.norm_weight,
                self.norm_bias,
                self.training,
                MOMENTUM,
                EPSILON,
            )
            return made.view_as(x)
        return x if self.bias is None else x + self.bias.repeat_interleave(x.shape[-1] // self.shape[0])

    def _running(self) -> tuple[Tensor, Tensor]:
        return cast(Tensor, self.running_mean), cast(Tensor, self.running_var)

    def _neuron(self) -> Neuron:
        return Neuron(
            population=self.stage.neuron,
            parameters=tuple(
                bounded(getattr(self, name), low, high) for name, low, high in self.stage.neuron.parameters
            ),
            grad_threshold=getattr(self, "grad_threshold", None),
        )

    # ---- fused -------------------------------------------------------------------------------------------------

    def _fused(self, source: Tensor | DenseSpikes) -> Tensor | DenseSpikes:
        n_steps, n_samples = source.shape[:2]
        n, device = math.prod(self.shape), self.weight.device
        kit = fused.kit_of(device)
        fires = isinstance(self.stage.neuron, Population)
        zeros = torch.zeros(n_samples, n, device=device, dtype=self.weight.dtype)
        place = source.gradient if isinstance(source, DenseSpikes) else source.contiguous()
        run = Run(
            kit=kit,
            stage=self.stage,
            source_shape=self.source_shape,
            read=self.read,
            shape=self.shape,
            n_steps=n_steps,
            n_samples=n_samples,
            source=source.fired if isinstance(source, DenseSpikes) else None,
            state=tuple(zeros.clone() for _ in self.stage.neuron.states),
            fired=kit.empty((n_steps, n_samples, n), torch.bool, device) if fires else None,
            dtype=kit.product_dtype(self.weight),
            gradient_dtype=place.dtype,
        )
        spikes = place.detach() if run.source is None else run.source
        with torch.no_grad():
            x = run.empty(n_steps, n, run.dtype)
            run.products(x, spikes, self.weight.detach())
            run.fold = self._fold(x)
        neuron = self._neuron()
        per_neuron = [x.expand(n).contiguous() for x in neuron.parameters]
        if neuron.grad_threshold is not None:
            per_neuron.append(neuron.grad_threshold.expand(n).contiguous())
        shift = self.norm_bias if self.stage.batch_norm else self.bias
        out = cast(Tensor, Fused.apply(run, x, place, self.weight, self.norm_weight, shift, *per_neuron))
        return out if run.fired is None else DenseSpikes(run.fired, out)

    def _fold(self, x: Tensor) -> Fold | None:
        """Batch norm of x as numbers a channel; moves the running mean and variance while the module trains."""
        if self.bias is not None:
            return Fold(torch.ones_like(self.bias), self.bias.detach())
        if self.norm_weight is None or self.norm_bias is None:
            return None
        mean, var = self._running()
        if self.training:
            maps = x.view(-1, self.shape[0], self.shape[1] * self.shape[2])
            m = maps.shape[0] * maps.shape[2]
            batch_var, batch_mean = torch.var_mean(maps.to(self.weight.dtype), dim=(0, 2), correction=0)
            mean.lerp_(batch_mean, MOMENTUM)
            var.lerp_(batch_var * (m / max(1, m - 1)), MOMENTUM)
            mean, var = batch_mean, batch_var
        rstd = (var + EPSILON).rsqrt()
        scale = self.norm_weight.detach() * rstd
        return Fold(scale, self.norm_bias.detach() - scale * mean, mean.clone(), rstd, frozen=not self.training)


class ImageModel(nn.Module):
    """An image network that runs and learns, on the backend `dense` alone.

    Args:
        network: the description.
        dense_mode: how it computes, see `sparsesnn.dense`; all modes give the same.
        seed: of the initial weights.
        backend: there for the error that "cpu" gets.

    Errors: `DescriptionError` for another backend or an unknown mode.
    """

    backend = "dense"

    def __init__(
        self, network: ImageNetwork, *, dense_mode: str = "auto", seed: int = 0, backend: str = "dense"
    ) -> None:
        super().__init__()
        if backend != "dense":
            raise DescriptionError(
                f"backend is {backend!r}, but convolutions, pooling and batch norm have no event lists; allowed: "
                "backend='dense', or a network of fully connected populations such as 784-1000-10"
            )
        check_mode(dense_mode, "dense")
        self.network, self.dense_mode = network, dense_mode
        generator = torch.Generator().manual_seed(seed)
        self.layers = nn.ModuleDict()
        shape = network.shape
        for name, stage, (read, after) in zip(network.names, network.stages, network.maps(), strict=True):
            self.layers[name] = ImageLayer(stage, shape, read, after, dense_mode, generator)
            shape = after

    def forward(self, images: Tensor | SpikeBatch | DenseSpikes) -> Output:
        """Runs T steps from zero potentials.

        Args:
            images: float or bool [T, B, C, H, W], or spike lists or `DenseSpikes` over C·H·W neurons.

        Errors: `ShapeError` for images of another shape.
        """
        source: Tensor | DenseSpikes
        weight = next(self.parameters())
        shape = self.network.shape
        if isinstance(images, (SpikeBatch, DenseSpikes)):
            if images.n_neurons != math.prod(shape):
                raise ShapeError(
                    f"input has {count(images.n_neurons, 'neuron')}; the network's images {shape} have {math.prod(shape)}"
                )
            if isinstance(images, DenseSpikes):
                source = images
            else:
                source = DenseSpikes.from_lists(images, weight.dtype, weight.device)
        else:
            if tuple(images.shape[2:]) != shape or images.ndim != 5:
                raise ShapeError(f"input is {tuple(images.shape)}; give [T, B, {', '.join(map(str, shape))}]")
            source = images.to(weight.device, weight.dtype).flatten(2)
        spikes: dict[str, Tensor | DenseSpikes] = {}
        for name, module in self.layers.items():
            layer = cast(ImageLayer, module)
            source = layer(source)
            if isinstance(layer.stage.neuron, Population):
                spikes[name] = source
        packed = {name: s for name, s in spikes.items() if isinstance(s, DenseSpikes)}
        last = self.network.stages[-1].neuron
        return Output(
            potentials=source if isinstance(last, LI) and isinstance(source, Tensor) else None,
            spikes=SpikesByName(packed) if packed else {k: s for k, s in spikes.items() if isinstance(s, Tensor)},
            state={},
            output=self.network.names[-1],
        )


@torch.no_grad()
def scale_to_activity(model: ImageModel, images: Tensor | SpikeBatch, target: float, most: int = 30) -> None:
    """Scales the weights of the stages that fire, one after the other, until each is about as active as wanted.

    A stage behind batch norm has the scale of its currents from there and is left as it is.
    """
    for name, module in model.layers.items():
        layer = cast(ImageLayer, module)
        if layer.stage.batch_norm or not isinstance(layer.stage.neuron, Population):
            continue
        low, high = 0.0, math.inf
        factor = 1.0
        start = layer.weight.clone()
        for _ in range(most):
            layer.weight.copy_(start * factor)
            activity = model(images).activity()[name]
            if abs(activity - target) <= 0.1 * target:
                break
            low, high = (factor, high) if activity < target else (low, factor)
            factor = 2 * factor if math.isinf(high) else 0.5 * (low + high)
