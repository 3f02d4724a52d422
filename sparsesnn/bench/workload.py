"""A training step to time: a network with wanted activities, random input spikes, random labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sparsesnn.datasets.images import Images, load_images
from sparsesnn.engines.module import Model
from sparsesnn.errors import ConfigError
from sparsesnn.init import init_activity
from sparsesnn.layers import fires
from sparsesnn.network import Network, parse_net
from sparsesnn.spikes import SpikeBatch


@dataclass(frozen=True)
class Workload:
    """A timed training step: forward, cross-entropy of the readout's mean over time, backward, Adam.

    Args:
        net: as `sparsesnn.parse_net` reads it, such as "700-1024-1024-20", or, for the backend dense,
            "1x28x28:5C12+MP2-5C64+MP2-10".
        n_steps, n_samples: T and B.
        input_activity: probability that an input neuron fires in a step.
        hidden_activity: spikes per neuron and step to which every hidden population is scaled.
        grad_threshold: secondary gradient threshold of the hidden populations.
        weight_dtype: type in which the engine reads weights, "float32" or "bfloat16".
        seed: of weights, spikes and labels.
        delays: in steps: each connection into a hidden population has one copy per delay; empty: one, without delay.
        images: name and folder of real images for a network with convolutions (`sparsesnn.datasets.images`), which fire at the
            rate of their pixels; None: random spikes of the same shape.
        neuron: the class of hidden populations without a letter, by name; "": LIF.
    """

    net: str = "700-1024-1024-20"
    n_steps: int = 100
    n_samples: int = 48
    input_activity: float = 0.015
    hidden_activity: float = 0.02
    grad_threshold: float = 0.9
    weight_dtype: str = "float32"
    seed: int = 0
    delays: Sequence[int] = ()
    images: Sequence[str] | None = None
    neuron: str = ""

    def __post_init__(self) -> None:
        for name in ("n_steps", "n_samples"):
            if getattr(self, name) < 1:
                raise ConfigError(f"bench: {name} is {getattr(self, name)}; give at least 1")
        for name in ("input_activity", "hidden_activity"):
            if not 0 < getattr(self, name) < 1:
                raise ConfigError(f"bench: {name} is {getattr(self, name)}; allowed: above 0, below 1")
        if self.images is not None and self.network().shape("input") is None:
            raise ConfigError(
                f"bench: images are given, but net {self.net!r} has no convolutions; give one such as 1x28x28:5C12-10"
            )

    def spikes(self) -> SpikeBatch:
        """Bernoulli spikes, the same for every backend."""
        if self.images is not None:
            images = self._images()
            fired = images.spikes(np.arange(self.n_samples) % len(images), self.n_steps, self.seed)
            return SpikeBatch.from_dense(torch.from_numpy(fired).flatten(2).float())
        n = self.network().populations["input"].n
        generator = torch.Generator().manual_seed(self.seed)
        steps = [
            SpikeBatch.from_dense((torch.rand(1, self.n_samples, n, generator=generator) < self.input_activity).float())
            for _ in range(self.n_steps)
        ]
        while len(steps) > 1:  # by pairs: one by one, the first steps would be copied T times
            steps = [a.then(b) for a, b in zip(steps[::2], steps[1::2], strict=False)] + steps[len(steps) & ~1 :]
        return steps[0]

    def labels(self) -> Tensor:
        """int64[B], random classes, or those of the images."""
        if self.images is not None:
            images = self._images()
            return torch.from_numpy(images.labels[np.arange(self.n_samples) % len(images)])
        n_classes = self.network().populations["output"].n
        generator = torch.Generator().manual_seed(self.seed + 1)
        return torch.randint(0, n_classes, (self.n_samples,), generator=generator)

    def _images(self) -> Images:
        name, folder = self.images or ("", "")
        images = load_images(name, folder)
        height, width, channels = self.network().shape("input") or (0, 0, 0)
        if images.pixels.shape[1:] != (channels, height, width) or not len(images):
            raise ConfigError(
                f"bench: {name} has images of {images.pixels.shape[1:]}, which do not fit net {self.net!r}"
            )
        return images

    def network(self) -> Network:
        """The description."""
        network = parse_net(self.net, neuron=self.neuron or None, grad_threshold=self.grad_threshold)
        return network.with_delays(self.delays) if self.delays else network

    def model(self, backend: str, spikes: SpikeBatch) -> Model:
        """The network on its fastest engine, with weights scaled to the wanted activity of each hidden population."""
        network = self.network()
        if network.is_matrices:
            model = Model(network, seed=self.seed, weight_dtype=self.weight_dtype)
        else:
            model = Model(network, seed=self.seed, backend=backend)
        hidden = {k: self.hidden_activity for k, p in network.populations.items() if fires(p)}
        if hidden:
            init_activity(model, [spikes], hidden, tolerance=0.02)
        if backend == model.backend:
            return model
        other = Model(network, seed=self.seed, backend=backend, weight_dtype=self.weight_dtype)
        other.load_state_dict(model.state_dict())
        return other
