"""The input population: neurons whose spikes come from data, or currents that a caller gives."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Optional

from sparsesnn.arguments import named
from sparsesnn.errors import DescriptionError
from sparsesnn.layers.checks import check_population
from sparsesnn.options import plain
from sparsesnn.synapses.base import GivenShape
from sparsesnn.synapses.maps import check_shape


@named
@dataclass(frozen=True)
class Input:
    """`n` input neurons, for example 700 cochlea channels; they have no state.

    Args:
        n: number of neurons; None: that of the shape.
        shape: (height, width, channels) of maps, for convolutions and pooling: `Input(shape=(34, 34, 2))`; (length, channels)
            is kept as (1, length, channels).
        channels_first: the neurons of a shape are in the order [channels, height, width], as in camera data sets;
            False: [height, width, channels].
        currents: whether the input is currents instead of spikes: float32[T, B, n], such as the output of a
            `torch.nn.Linear`. Each neuron of the receiving populations gets its own current, without a weight, and the gradient
            flows back. n is then the size of these populations, and `shape` must be None.
    """

    n: int = None  # type: ignore[assignment]  # a number once the object is created
    shape: Optional[GivenShape] = None  # noqa: UP045
    channels_first: bool = False
    currents: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "channels_first", plain(self.channels_first))
        object.__setattr__(self, "currents", plain(self.currents))
        shape = check_shape("Input", self.shape)
        object.__setattr__(self, "shape", shape)
        if shape is not None:
            n = math.prod(shape)
            if self.n not in (None, n):
                raise DescriptionError(f"Input: n is {self.n!r}, but shape {shape} has {n} neurons; leave n out")
            object.__setattr__(self, "n", n)
        if self.n is None or type(self.channels_first) is not bool or (self.channels_first and shape is None):
            raise DescriptionError(
                f"Input: n is {self.n!r}, shape {shape!r}, channels_first {self.channels_first!r}; give n or shape, and "
                "channels_first=True or False with a shape"
            )
        if type(self.currents) is not bool or (self.currents and shape is not None):
            raise DescriptionError(
                f"Input: currents is {self.currents!r}, shape {shape!r}; allowed: True and False, and True only without a shape; give n"
            )
        check_population(self)
