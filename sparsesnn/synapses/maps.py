"""Base of the kinds that read maps: populations whose neurons have a place, [height, width, channels].

The neuron of channel c at row y and column x is number (y·width + x)·channels + c: channels last, so that all channels of a
place lie next to each other, and a spike adds short rows. An `Input` may have its channels first, as in camera data sets:
number (c·height + y)·width + x.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar, Optional, Tuple, Union  # noqa: UP035

import numpy as np

from sparsesnn.errors import DescriptionError
from sparsesnn.options import plain
from sparsesnn.synapses.base import GivenShape, Shape, Synapses

#: one number, or one for the height and one for the width
Sides = Union[int, Tuple[int, int]]  # noqa: UP006, UP007  evaluated under Python 3.8 by sparsesnn.poptorch
#: most elements of a layer's maps, and of its weights: a typing error is refused before memory is allocated
MOST_ELEMENTS = 1 << 28


class OnMaps(Synapses, shared=True):
    """Synapses from maps to maps; `Conv2d` and `Pool` explain these fields."""

    is_matrix: ClassVar[bool] = False
    shape: Optional[GivenShape]  # noqa: UP045  with height once the object is created
    channels_first: bool

    def windows(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int]]:
        """Kernel, stride, padding and dilation, each for height and width."""
        raise NotImplementedError

    @property
    def n_channels(self) -> int:
        """Channels of the receiver."""
        raise NotImplementedError

    def bound(self, shape: Optional[Shape], channels_first: bool = False) -> Synapses:  # noqa: UP045
        kind = type(self).__name__
        if shape is None and self.shape is None:
            raise DescriptionError(
                f"{kind}: reads maps, but its sender has no shape; give Input(shape=(height, width, channels)), or put it "
                "after a convolution or pooling"
            )
        if shape is not None and self.shape not in (None, shape):
            raise DescriptionError(
                f"{kind}: shape is {self.shape}, but its sender has the shape {shape}; leave shape out"
            )
        of_sender = {"shape": shape or self.shape, "channels_first": channels_first or self.channels_first}
        made: OnMaps = replace(self, **of_sender)
        made.check_shape()
        return made

    def check_shape(self) -> None:
        """`DescriptionError` if the resulting maps are empty or too large."""
        made = self.post_shape
        if min(made) < 1:
            raise DescriptionError(
                f"{self}: maps of {self.pre_shape} become empty; use a smaller kernel or fewer pools, or pad"
            )
        n_weights = math.prod(self.weight_shape(self.n_pre, math.prod(made)))
        if max(math.prod(made), n_weights) > MOST_ELEMENTS:
            raise DescriptionError(
                f"{self}: makes maps of {made} with {n_weights:,} weights; allowed: {MOST_ELEMENTS:,} of each"
            )

    @property
    def pre_shape(self) -> Shape:
        """The sender's shape. Errors: `DescriptionError` before a network or `bound` has set it."""
        if self.shape is None:
            raise DescriptionError(f"{self}: does not know its sender's shape; put it into a Network, or give shape")
        assert len(self.shape) == 3, "completed by __post_init__"
        return self.shape

    @property
    def n_pre(self) -> int:
        """Number of the sender's neurons."""
        return math.prod(self.pre_shape)

    @property
    def post_shape(self) -> Shape:
        height, width = (
            (side + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
            for side, kernel, stride, pad, dilation in zip(self.pre_shape, *self.windows())  # noqa: B905  Python 3.8 knows no strict
        )
        return height, width, self.n_channels

    def cut(self, n_pre: int, n_post: int, begin: int, end: int) -> tuple[int, int]:
        """All weights for a whole population, else none: places share their weights."""
        n = self.weight_shape(n_pre, n_post)[-1]
        return n if begin else 0, n if end else 0

    def n_products(self, n_pre: int, n_post: int) -> int:
        height, width, _ = self.post_shape
        return height * width * math.prod(self.weight_shape(n_pre, n_post))

    def n_read(self, n_pre: int, n_post: int) -> int:
        return 0

    def widest(self, n_pre: int, n_post: int) -> int:
        return max(self.n_pre, n_post)

    # ---- NumPy -------------------------------------------------------------------------------------------------

    def maps(self, spikes: Any, outside: float = 0) -> Any:
        """Spikes [R, n_pre] as [R, height, width, channels], with padding around them."""
        height, width, channels = self.pre_shape
        (up, left) = self.windows()[2]
        n = math.prod(spikes.shape[:-1])
        result = (
            spikes.reshape(n, channels, height, width).transpose(0, 2, 3, 1)
            if self.channels_first
            else spikes.reshape(n, height, width, channels)
        )
        return np.pad(result, ((0, 0), (up, up), (left, left), (0, 0)), constant_values=outside)

    def flat(self, maps: Any) -> Any:
        """The inverse of `maps`: removes the padding."""
        height, width, _ = self.pre_shape
        (up, left) = self.windows()[2]
        result = maps[:, up : up + height, left : left + width]
        return (result.transpose(0, 3, 1, 2) if self.channels_first else result).reshape(len(maps), self.n_pre)

    def taps(self) -> list[tuple[int, int, tuple[Any, ...]]]:
        """Each position in the window, row and column, and the slices of `maps` that it reads for all places of the receiver."""
        kernel, stride, _, dilation = self.windows()
        height, width, _ = self.post_shape
        return [
            (
                y,
                x,
                (
                    slice(None),
                    slice(y * dilation[0], y * dilation[0] + (height - 1) * stride[0] + 1, stride[0]),
                    slice(x * dilation[1], x * dilation[1] + (width - 1) * stride[1] + 1, stride[1]),
                ),
            )
            for y in range(kernel[0])
            for x in range(kernel[1])
        ]

    # ---- PyTorch -----------------------------------------------------------------------------------------------

    def images(self, spikes: Any) -> Any:
        """Spikes [R, n_pre] as [R, channels, height, width], the same memory."""
        height, width, channels = self.pre_shape
        # oneDNN would mistake a permuted view of one channel for another order
        if self.channels_first or channels == 1:
            return spikes.reshape(spikes.shape[0], channels, height, width)
        return spikes.reshape(spikes.shape[0], height, width, channels).permute(0, 3, 1, 2)

    def received(self, rows: Any) -> Any:
        """The receiver's values [.., n_post] as maps [R, height, width, channels]; NumPy or PyTorch."""
        return rows.reshape(math.prod(rows.shape[:-1]), *self.post_shape)

    def rows(self, images: Any) -> Any:
        """The inverse of `images`."""
        return (images if self.channels_first else images.permute(0, 2, 3, 1)).reshape(images.shape[0], self.n_pre)


def sides(value: Sides) -> tuple[int, int]:
    """One number for both sides."""
    return value if isinstance(value, tuple) else (value, value)


def check_sides(kind: Any, **least: int) -> None:
    """Checks a kind's fields that are whole numbers, or one for each side. Errors: `DescriptionError`."""
    for name, low in least.items():
        value = plain(getattr(kind, name))
        value = tuple(value) if isinstance(value, list) else value
        given = value if isinstance(value, tuple) else (value,)
        if len(given) not in (1, 2) or any(type(x) is not int or x < low for x in given):
            raise DescriptionError(
                f"{type(kind).__name__}: {name} is {value!r}; allowed: whole numbers, {low} or more, or a pair of them for "
                "height and width"
            )
        object.__setattr__(kind, name, given[0] if len(set(given)) == 1 else given)


def check_shape(owner: str, shape: Any) -> Optional[Shape]:  # noqa: UP045
    """A shape as three numbers; (length, channels) has height 1, and None stays None. Errors: `DescriptionError`."""
    if shape is None:
        return None
    given = tuple(plain(shape)) if isinstance(plain(shape), (list, tuple)) else ()
    given = (1, *given) if len(given) == 2 else given
    if len(given) != 3 or any(type(x) is not int or x < 1 for x in given):
        raise DescriptionError(
            f"{owner}: shape is {shape!r}; give (height, width, channels) or (length, channels), each at least 1"
        )
    return given
