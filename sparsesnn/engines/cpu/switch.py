"""When training steps of the engine `cpu` go on with dense products, and when they return to lists.

Time of lists grows with the neurons that fire and those that nearly do; time of dense products does not. After each training step
`Switch.count` decides about the next one, from counts alone: the same choice for any number of threads and any instruction set.
Measured constants: docs/speed.md, "Dense products where a network is busy".
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sparsesnn.connection import Connection
from sparsesnn.engines.base import Training
from sparsesnn.engines.dense.engine import DenseEngine
from sparsesnn.engines.module import Model
from sparsesnn.errors import ConfigError
from sparsesnn.network import Network
from sparsesnn.output import Output
from sparsesnn.spikes import SpikeBatch

#: training steps take dense products from this many times their time on, and lists again below that many times
BEGIN, END = 1.0, 0.85
#: smaller steps, in multiply-adds of dense products, are Python's time rather than that of products
LEAST_PRODUCTS = 1 << 26
#: larger steps, in T·B·neurons, keep lists: dense products take 13 bytes for each, so this is 3.5 GB
MOST_NUMBERS = 1 << 28


@dataclass(frozen=True)
class Shares:
    """What a batch counted, as shares of all senders (the input and populations), each weighted by its multiply-adds in dense products.

    Args:
        fired: that fired; behind a pool, that have a spike in their window, as if spikes were spread evenly.
        near: that were listed without firing; the input has none.
    """

    fired: float
    near: float


@dataclass(frozen=True)
class Cost:
    """Time of a training step with lists, in that of one with dense products.

    Args:
        still: where nothing fires.
        fired, near: what all of the senders would add.
        most_near: from this share of near-spikes on, they cost no more.
    """

    still: float
    fired: float
    near: float
    most_near: float = 1.0

    def of(self, shares: Shares) -> float:
        return self.still + self.fired * shares.fired + self.near * min(shares.near, self.most_near)


#: networks of convolutions and pools; others, where one product gives the gradients of many near-spikes
MAPS, MATRICES = Cost(0.3, 1.5, 1.75), Cost(0.1, 1.8, 1.3, 0.3)


def goes_dense(dense: bool, cost: Cost, shares: Shares) -> bool:
    """Whether the next step takes dense products; `dense`: whether this one was to."""
    return cost.of(shares) > (END if dense else BEGIN)


class Switch:
    """Runs training steps of a model with lists or with dense products, which read and train the same parameters.

    Attributes:
        is_dense: whether the next step takes dense products.
        listed: share of the neurons that do not fire which the last step with lists listed; dense products do not count it.
        note: what the last step changed, in words; "": nothing.
    """

    def __init__(self, model: Model) -> None:
        self.lists, self.dense = model, _with_dense_products(model)
        network = model.network
        self.cost = MATRICES if network.is_matrices else MAPS
        self.senders = [_Sender.of(network, c) for c in network.connections]
        self.n_products = sum(s.n_products for s in self.senders)
        self.n_neurons = sum(p.n for p in network.populations.values())
        self.is_dense, self.listed, self.note = False, 0.0, ""

    @classmethod
    def of(cls, model: Model, training: Training) -> Switch | None:
        """None where training keeps lists: by `lists`, over ranks, and where the dense engine computes something else or more."""
        options, network = training.options, model.network
        if options.lists == "always" or model.parts or not DenseEngine.takes("weight_dtype", options.weight_dtype):
            return None
        for c in network.connections:
            n_pre, n_post = network.ends(c)
            if c.axonal or (c.synapses.is_matrix and c.synapses.n_products(n_pre, n_post) < n_pre * n_post):
                return None
        try:
            DenseEngine.check("dense", network, training)
        except ConfigError:
            return None
        return cls(model)

    def model_for(self, spikes: SpikeBatch) -> Model:
        """What runs a training step with this input."""
        return self.dense if self.is_dense and self._suits(spikes) else self.lists

    def count(self, spikes: SpikeBatch, output: Output) -> None:
        """Chooses for the next training step by what this one put out."""
        self.note = ""
        if not self._suits(spikes):
            return
        shares = self._shares({self.lists.source: spikes.activity(), **output.activity()}, output)
        dense = goes_dense(self.is_dense, self.cost, shares)
        if dense != self.is_dense:
            self.note = (
                f"{shares.fired:.3f} of the senders fire, and {shares.near:.3f} are listed without firing (weighted by their synapses); "
                f"training steps go on with {'dense products' if dense else 'lists'}"
            )
        self.is_dense = dense

    def _suits(self, spikes: SpikeBatch) -> bool:
        """Whether dense products of such a step are large enough to gain anything, and their memory is in bounds."""
        n = spikes.n_steps * spikes.n_samples
        return n * self.n_products >= LEAST_PRODUCTS and n * self.n_neurons <= MOST_NUMBERS

    def _shares(self, fired: Mapping[str, float], output: Output) -> Shares:
        quiet = {s.pre: 1 - fired[s.pre] for s in self.senders if s.pre in output.spikes}
        lists = {name: s for name, s in output.spikes.items() if name in quiet and isinstance(s, SpikeBatch)}
        if lists:
            near = {k: len(s.ids) / (s.n_steps * s.n_samples * s.n_neurons) - fired[k] for k, s in lists.items()}
            self.listed = self._mean(near) / max(1e-9, self._mean({k: quiet[k] for k in lists}))
        mean_fired = sum(s.n_products * (1 - (1 - fired[s.pre]) ** s.window) for s in self.senders) / self.n_products
        return Shares(mean_fired, self.listed * self._mean(quiet))

    def _mean(self, shares: Mapping[str, float]) -> float:
        """Over all senders; those without a share have none."""
        return sum(s.n_products * shares.get(s.pre, 0.0) for s in self.senders) / self.n_products

    # ---- checkpoints -------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        return {_NAME: torch.tensor([float(self.is_dense), self.listed], dtype=torch.float64, device="cpu")}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `tensors`; an older checkpoint goes on with lists."""
        dense, self.listed = tensors[_NAME].tolist() if _NAME in tensors else (0.0, 0.0)
        self.is_dense = bool(dense)


_NAME = "switch/state"


@dataclass(frozen=True)
class _Sender:
    """Of a connection: its sender, multiply-adds of a step in which every sender fires, and neurons in a window of its pools."""

    pre: str
    n_products: int
    window: int

    @classmethod
    def of(cls, network: Network, c: Connection) -> _Sender:
        n_pre, n_post = network.ends(c)
        read = c.synapses.in_lists(n_pre)
        assert read is not None, "the engine cpu runs it"
        window = math.prod(pool.fan_in(0, 0) for pool in read.pools)
        return cls(c.pre, read.kind.n_products(read.n_pre, n_post), window)


def _with_dense_products(model: Model) -> Model:
    """The same network with the same parameters and buffers, run by the dense engine."""
    layers = nn.ModuleDict()
    for name, layer in model.layers.items():
        layers[name] = copy.copy(layer)
        layers[name].backend = "dense"  # type: ignore[assignment]
    twin = copy.copy(model)
    twin._modules = {**model._modules, "layers": layers}
    twin.backend = "dense"
    return twin
