"""Whether the first step of a sequence differs from the others: no neuron has fired before it, so none is reset.

The kernels derive the spikes before a step from the potential: v > θ. Before the first step v is 0, so no neuron counts as
fired unless its threshold is negative, which a trained threshold can become. Then 0 > θ without a spike, and subtracting θ
would change the results. The kernels take a flag, `fresh`.
"""

from __future__ import annotations

from sparsesnn.layers import Neuron, fires


def matters(population: Neuron) -> bool:
    """Whether the population fires and its threshold may become negative."""
    return fires(population) and population.learn_threshold
