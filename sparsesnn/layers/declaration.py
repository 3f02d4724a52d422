"""What a neuron model declares of itself, for whoever runs it."""

from __future__ import annotations

import math
from typing import NamedTuple


class Parameter(NamedTuple):
    """A number per neuron, or one for all, that may be trained (`learn_<name>`).

    Args:
        name: attribute of the description and of the layer's module, name in the C++ model.
        low, high: the range that the network reads it in while it trains, see `sparsesnn.bounds`.
    """

    name: str
    low: float = -math.inf
    high: float = math.inf


BETA = Parameter("beta", 0.0, 1.0)
ALPHA = Parameter("alpha", 0.0, 1.0)
THRESHOLD = Parameter("threshold")
