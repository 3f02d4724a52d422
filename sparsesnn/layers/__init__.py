"""Neuron and readout models: one file each, a frozen description per model."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sparsesnn.layers.ad_lif import AdLIF
from sparsesnn.layers.arrays import NeuronArrays
from sparsesnn.layers.checks import PerNeuron
from sparsesnn.layers.cuba_li import CubaLI
from sparsesnn.layers.cuba_lif import CubaLIF
from sparsesnn.layers.decays import decays
from sparsesnn.layers.declaration import fires, is_readout
from sparsesnn.layers.input import Input
from sparsesnn.layers.li import LI
from sparsesnn.layers.lif import LIF, Membrane
from sparsesnn.layers.neuron import Neuron, parameter
from sparsesnn.layers.resonator import Resonator
from sparsesnn.layers.structure import Structure

__all__ = [
    "LI",
    "LIF",
    "MODELS",
    "AdLIF",
    "CubaLI",
    "CubaLIF",
    "Input",
    "Membrane",
    "Neuron",
    "NeuronArrays",
    "PerNeuron",
    "Resonator",
    "Structure",
    "decays",
    "fires",
    "is_readout",
    "parameter",
]

#: all models, by name
MODELS: Mapping[str, type] = MappingProxyType(
    {model.__name__: model for model in (Input, LIF, CubaLIF, Resonator, AdLIF, LI, CubaLI)}
)


def __getattr__(name: str) -> Any:
    if name == "Population":
        raise ImportError(
            "sparsesnn.layers.Population is now Neuron: a model returns arrays in place of step and pull, see help(sparsesnn.Neuron.arrays) and "
            "sparsesnn/layers/neuron.py; whether a population fires is population.fires"
        )
    raise AttributeError(f"module 'sparsesnn.layers' has no attribute {name!r}")
