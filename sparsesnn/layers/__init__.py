"""Neuron and readout models: one file each, a frozen description per model."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sparsesnn.layers.ad_lif import AdLIF
from sparsesnn.layers.cuba_lif import CubaLIF
from sparsesnn.layers.decays import decays
from sparsesnn.layers.input import Input
from sparsesnn.layers.li import LI
from sparsesnn.layers.lif import LIF, Population
from sparsesnn.layers.resonator import Resonator

__all__ = ["LI", "LIF", "MODELS", "AdLIF", "CubaLIF", "Input", "Population", "Resonator", "decays"]

#: all models, by name
MODELS: Mapping[str, type] = MappingProxyType(
    {model.__name__: model for model in (Input, LIF, CubaLIF, Resonator, AdLIF, LI)}
)
