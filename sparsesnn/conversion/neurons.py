"""Neuron models of other libraries that are not among ours: with a trained gain, or with a kernel of another shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from sparsesnn.layers.arrays import NeuronArrays
from sparsesnn.layers.checks import PerNeuron
from sparsesnn.layers.lif import Membrane
from sparsesnn.layers.neuron import Neuron, parameter


@dataclass(frozen=True)
class ScaledLIF(Membrane):
    """LIF whose gain may be trained: v[t] = ρ(v[t-1]) + scale·i[t].

    Source: SpikingJelly's `ParametricLIFNode`, Fang et al. 2021, eq. 6; the `LIF` of Sinabs, whose time constant is trained.
    """

    scale: PerNeuron = parameter(1.0, "factor on the input current")
    states: ClassVar[Any] = ("v",)

    def arrays(self, p: Mapping[str, Any]) -> NeuronArrays:
        R, r = self.reset_of(p["beta"], p["threshold"])
        return NeuronArrays(A=[[p["beta"]]], R=[[R]], r=[r], B=[p["scale"]])


@dataclass(frozen=True)
class ScaledCubaLIF(Membrane):
    """LIF with a synaptic current, whose factors may be trained: i_syn[t] = α·i_syn[t-1] + jump·i[t]; v[t] = ρ(v[t-1]) + scale·i_syn[t].

    Source: the `LIF` of Sinabs with `tau_syn`.
    """

    alpha: PerNeuron = parameter(0.9, "decay of the synaptic current per step", low=0, high=1)
    scale: PerNeuron = parameter(1.0, "factor on the synaptic current")
    jump: PerNeuron = parameter(1.0, "factor on the input current")
    states: ClassVar[Any] = ("v", "i_syn")

    def arrays(self, p: Mapping[str, Any]) -> NeuronArrays:
        R, r = self.reset_of(p["beta"], p["threshold"])
        A = [[p["beta"], p["scale"]], [0, p["alpha"]]]
        return NeuronArrays(A=A, R=[[R, 0], [0, 0]], r=[r, 0], B=[0, p["jump"]], sequential=True)


@dataclass(frozen=True)
class SelfLIF(Membrane):
    """LIF whose spike comes back to the neuron itself, one step later: v[t] = ρ(v[t-1]) + V·s[t-1] + i[t].

    Source: snnTorch's `RLeaky` with `all_to_all=False`.
    """

    V: PerNeuron = parameter(1.0, "current that a spike brings to its own neuron")
    states: ClassVar[Any] = ("v",)

    def arrays(self, p: Mapping[str, Any]) -> NeuronArrays:
        R, r = self.reset_of(p["beta"], p["threshold"])
        return NeuronArrays(A=[[p["beta"]]], R=[[R]], r=[r], f=[p["V"]], B=[1])


@dataclass(frozen=True)
class AlphaNeuron(Neuron):
    """A difference of two decays, without a reset: e[t] = α·e[t-1] + i[t]; h[t] = β·h[t-1] - i[t]; v[t] = height·(e[t] + h[t]).

    Source: snnTorch's `Alpha` with `reset_mechanism="none"`.
    """

    alpha: PerNeuron = parameter(0.9, "decay of the excitatory current", low=0, high=1)
    beta: PerNeuron = parameter(0.8, "decay of the inhibitory current", low=0, high=1)
    height: PerNeuron = parameter(1.0, "factor on the sum of the two")
    states: ClassVar[Any] = ("v", "e", "h")

    def arrays(self, p: Mapping[str, Any]) -> NeuronArrays:
        A = [[0, p["height"], p["height"]], [0, p["alpha"], 0], [0, 0, p["beta"]]]
        return NeuronArrays(A=A, B=[0, 1, -1], sequential=True)


@dataclass(frozen=True)
class Leak(Neuron):
    """A readout whose factors may be trained: i_syn[t] = α·i_syn[t-1] + i[t]; v[t] = β·v[t-1] + scale·i_syn[t].

    Source: Norse's `LI`, Sinabs' `ExpLeak`. With α = β = 0 and scale = 1 it is the weighted sum of a layer without neurons.
    """

    beta: PerNeuron = parameter(0.95, "decay of the readout per step", low=0, high=1)
    alpha: PerNeuron = parameter(0.0, "decay of the synaptic current per step", low=0, high=1)
    scale: PerNeuron = parameter(1.0, "factor on the synaptic current")
    fires: ClassVar[bool] = False
    states: ClassVar[Any] = ("v", "i_syn")

    def arrays(self, p: Mapping[str, Any]) -> NeuronArrays:
        return NeuronArrays(A=[[p["beta"], p["scale"]], [0, p["alpha"]]], B=[0, 1], sequential=True)
