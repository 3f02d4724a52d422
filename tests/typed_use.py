"""How a user's typed program uses the package; type checkers read it (`./dev types`), nothing runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import assert_type

import sparsesnn as ss
from sparsesnn import datasets
from sparsesnn.init import init_activity
from sparsesnn.loss import cross_entropy

spikes = ss.SpikeBatch.from_dense(torch.zeros(7, 3, 30))
assert_type(spikes[0], ss.SpikeBatch)
assert_type(spikes.to("cpu"), ss.SpikeBatch)
assert_type(ss.SpikeBatch.cat([spikes, spikes]).shape, torch.Size)

beta = np.full(20, 0.9)
network = ss.Network.chain(
    ss.Input(30),
    ss.LIF(20, beta=beta, threshold=torch.tensor(1.0), grad_threshold=[0.9] * 20, recurrent=True, capacity=5),
    ss.CubaLIF.from_ms(20, tau=20, tau_syn=5, dt=1, surrogate=ss.boxcar(2.0)),
    ss.LI(5, beta=np.float32(0.9)),
)
model = ss.Model(network, seed=None)
output = model(spikes)
assert_type(output, ss.Output)
assert_type(output.potentials, Tensor | None)
assert_type(output.counts("hidden1"), Tensor)
assert_type(output.activity(), dict[str, float])
assert_type(output.state, Mapping[str, ss.LayerState])
assert_type(model(spikes, output.state).dropped(), dict[str, int])
assert_type(init_activity(model, [spikes], 0.05), dict[str, float])
assert_type(cross_entropy(output, torch.zeros(3, dtype=torch.int64), "max", n_classes=5), Tensor)


@dataclass(frozen=True)
class ALIF(ss.Neuron):
    """A user's own model; its learn_rho is an argument that the class gets when it is defined."""

    beta: ss.PerNeuron = ss.parameter(0.9, "decay of the potential", low=0, high=1)
    rho: ss.PerNeuron = ss.parameter(0.97, "decay of the adaptation", low=0, high=1)
    strength: float = 1.8
    states: ClassVar = ("x", "a")

    def arrays(self, p: Mapping[str, Any]) -> ss.NeuronArrays:
        k, b, r = self.strength, p["beta"], p["rho"]
        return ss.NeuronArrays(
            A=[[b, k * (b - r)], [0, r]], R=[[0, -k], [0, 0]], r=[-p["threshold"], 0], f=[-k * (1 - r), 1 - r], B=[1, 0]
        )


alif = ALIF(8, rho=np.full(8, 0.9), learn_rho=True, capacity=5)
assert_type(alif, ALIF)
assert_type(alif.strength, float)
assert_type(ss.Model(ss.Network.chain(ss.Input(30), alif, ss.LI(5))), ss.Model)

layer = ss.Layer(ss.LIF.from_ms(20, tau=20, dt=1), n_pre=30)
hidden, state = layer(spikes)
assert_type(hidden, Any)
assert_type(state, ss.LayerState)

optimizer: torch.optim.Optimizer = ss.Adam(model.parameters(), lr=1e-3)
digits = datasets.load("digits", split="train")
assert_type(digits, datasets.EventSet)
assert_type(digits.batch([0, 1]), ss.SpikeBatch)

# modules of the package need no separate import
assert_type(ss.nir.from_nir("net.nir", source="norse"), ss.Model)
assert_type(ss.train.Config.resolve({}), ss.train.Config)
assert_type(ss.loss.cross_entropy(output, torch.zeros(3, dtype=torch.int64), "max", n_classes=5), Tensor)
ss.onnx.export(model, "step.onnx")
ss.integers.save(model, "weights.safetensors")
