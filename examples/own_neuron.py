"""Your own neuron model: its threshold rises with every spike, and falls back slowly.

    sparsesnn train digits --neuron examples/own_neuron.py:ALIF --net-neuron ALIF --out runs/alif
    sparsesnn show runs/alif --neuron examples/own_neuron.py:ALIF --sample 3
    sparsesnn train shd --data DIR --neuron examples/own_neuron.py:ALIF --net-neuron ALIF       spoken digits

Source: Bellec et al. 2018, "Long short-term memory and learning-to-learn in networks of spiking neurons" (LSNN).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import sparsesnn as ss


@dataclass(frozen=True)
class ALIF(ss.Neuron):
    """v ← β·v - (θ + k·a)·s + i,   a ← ρ·a + (1 - ρ)·s,   and a spike where v > θ + k·a.

    The engine compares its first state with θ: that is x = v - k·a, the potential less the rise of the threshold.
    """

    beta: ss.PerNeuron = ss.parameter(0.9, "decay of the potential per step", low=0, high=1)
    rho: ss.PerNeuron = ss.parameter(0.97, "decay of the adaptation per step", low=0, high=1)
    strength: float = 1.8
    states: ClassVar = ("x", "a")

    def arrays(self, p: Mapping[str, Any]) -> ss.NeuronArrays:
        k, b, r = self.strength, p["beta"], p["rho"]
        return ss.NeuronArrays(
            A=[[b, k * (b - r)], [0, r]],
            R=[[0, -k], [0, 0]],
            r=[-p["threshold"], 0],
            f=[-k * (1 - r), 1 - r],
            B=[1, 0],
        )
