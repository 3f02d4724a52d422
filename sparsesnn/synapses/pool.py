"""Pooling over maps."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Optional

import numpy as np

from sparsesnn.arguments import named
from sparsesnn.errors import DescriptionError
from sparsesnn.synapses.base import GivenShape, InLists
from sparsesnn.synapses.conv2d import Conv2d
from sparsesnn.synapses.maps import OnMaps, Sides, check_shape, check_sides, sides

REDUCTIONS = ("sum", "average", "max")


@named
@dataclass(frozen=True)
class Pool(OnMaps):
    """Sums, averages or takes the maximum over windows of each channel, without weights.

    The maximum of spikes is 1 if any neuron of the window fired.

    Incomplete windows at the lower and right edge are dropped. The gradient of a maximum goes to the first neuron of the
    window, row by row, that has it.

    Args:
        reduction: "sum", "average" or "max".
        size: of the window; one number, or one each for height and width.
        stride: None: `size`, so that windows do not overlap.
        shape, channels_first: of the sender; set by a network.
    """

    reduction: str
    size: Sides
    stride: Optional[Sides] = None  # noqa: UP045
    shape: Optional[GivenShape] = None  # noqa: UP045
    channels_first: bool = False

    def __post_init__(self) -> None:
        if self.reduction not in REDUCTIONS:
            raise DescriptionError(f"Pool: reduction is {self.reduction!r}; allowed: {', '.join(REDUCTIONS)}")
        object.__setattr__(self, "stride", self.size if self.stride is None else self.stride)
        check_sides(self, size=1, stride=1)
        object.__setattr__(self, "shape", check_shape("Pool", self.shape))

    def windows(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int]]:
        assert self.stride is not None, "set by __post_init__"
        return sides(self.size), sides(self.stride), (0, 0), (1, 1)

    @property
    def n_channels(self) -> int:
        return self.pre_shape[2]

    def weight_shape(self, n_pre: int, n_post: int) -> tuple[int, ...]:
        return (0,)

    def fan_in(self, n_pre: int, n_post: int) -> int:
        height, width = sides(self.size)
        return height * width

    def in_lists(self, n_pre: int) -> InLists | None:
        """After pooling, each neuron receives its own window."""
        shape = self.post_shape
        return InLists((self,), Conv2d(shape[2], 1, groups=shape[2], shape=shape), math.prod(shape))

    def list_arguments(self) -> dict[str, Any]:
        """The arguments of `_core.pooled`."""
        size, stride, _, _ = self.windows()
        return {
            "shape": self.pre_shape,
            "channels_first": self.channels_first,
            "size": size,
            "stride": stride,
            "maximum": self.reduction == "max",
            "share": self.share,
        }

    @property
    def share(self) -> float:
        """The factor on a sum."""
        return 1 / self.fan_in(0, 0) if self.reduction == "average" else 1.0

    def add(self, i: Any, spikes: Any, weight: Any) -> None:
        maps, made = self.maps(spikes), self.received(i)
        windows = [maps[read] for _, _, read in self.taps()]
        made += np.max(windows, axis=0) if self.reduction == "max" else self.share * np.sum(windows, axis=0)

    def pull(self, spikes: Any, weight: Any, d: Any) -> tuple[Any, Any]:
        maps, d = self.maps(spikes), self.received(d)
        d_maps = np.zeros_like(maps, dtype=d.dtype)
        first = np.argmax([maps[read] for _, _, read in self.taps()], axis=0)
        for k, (_, _, read) in enumerate(self.taps()):
            d_maps[read] += d * (first == k) if self.reduction == "max" else d * self.share
        return self.flat(d_maps).reshape(spikes.shape), np.zeros_like(weight)

    def product(self, spikes: Any, weight: Any) -> Any:
        from torch.nn import functional

        size, stride, _, _ = self.windows()
        images = self.images(spikes)
        if self.reduction == "max":
            made = functional.max_pool2d(images, size, stride)
        else:
            made = functional.avg_pool2d(images, size, stride, divisor_override=1 if self.reduction == "sum" else None)
        return made.permute(0, 2, 3, 1).reshape(spikes.shape[0], math.prod(self.post_shape))

    def fan_out(self, weight: Any, d: Any) -> Any:
        kind = replace(self, reduction="sum")
        return kind.product_grad(d.new_zeros(1, self.n_pre), weight, d[None], (True, False))[0][0]

    def product_grad(self, spikes: Any, weight: Any, d: Any, needs: tuple[bool, bool]) -> tuple[Any, Any]:
        import torch

        if not needs[0]:
            return None, None
        with torch.enable_grad():
            read = spikes.detach().requires_grad_()
            (d_spikes,) = torch.autograd.grad(self.product(read, weight), read, d)
        return d_spikes, None
