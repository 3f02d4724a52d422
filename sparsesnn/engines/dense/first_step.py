"""Whether the first step of a sequence differs from the others: nobody has fired before it, so nobody is reset.

The kernels read who fired before a step off the potential: v > θ. Before the first step it is 0, and that is what it says
unless a threshold is negative, which one that learns can become. Then 0 > θ, though there was no spike, and subtracting θ
would change what follows. The C++ kernels are told (`fresh`); the Triton kernels run that step by itself, without a reset.
"""

from __future__ import annotations

from sparsesnn.layers import LI, Population


def matters(population: LI | Population) -> bool:
    """Whether 0 may lie above a threshold and a spike would change something."""
    return isinstance(population, Population) and population.learn_threshold
