"""Neuron and readout models: one file each, a frozen description per model."""

from sparsesnn.layers.ad_lif import AdLIF
from sparsesnn.layers.cuba_lif import CubaLIF
from sparsesnn.layers.decays import decays
from sparsesnn.layers.input import Input
from sparsesnn.layers.li import LI
from sparsesnn.layers.lif import LIF, Population

__all__ = ["LI", "LIF", "AdLIF", "CubaLIF", "Input", "Population", "decays"]
