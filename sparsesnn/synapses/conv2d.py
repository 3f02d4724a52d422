"""Convolution over maps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from sparsesnn.arguments import named
from sparsesnn.errors import DescriptionError
from sparsesnn.synapses.base import GivenShape, InLists
from sparsesnn.synapses.maps import OnMaps, Sides, check_shape, check_sides, sides


@named
@dataclass(frozen=True)
class Conv2d(OnMaps):
    """A 2-D convolution over the maps of the sender.

    The weight is float32[kernel height, kernel width, sender's channels / groups, channels]; PyTorch's is [out, in, h, w].

        i[y, x, :] += Σ_{dy, dx} Σ_{c fired at (y·stride - padding + dy·dilation, x·stride - padding + dx·dilation)} weight[dy, dx, c, :]

    So a spike adds one row of `channels` numbers for each place whose window contains it.

    Args:
        channels: of the receiver.
        kernel, stride, padding, dilation: whole numbers with the meaning of `torch.nn.Conv2d`, one or (height, width). Texts
            such as "same" are refused; padding is with zeros.
        groups: number of groups of channels, each of which reads its part of the sender's; equal to the sender's number of
            channels: depthwise.
        shape, channels_first: of the sender; set by a network.
    """

    channels: int
    kernel: Sides
    stride: Sides = 1
    padding: Sides = 0
    dilation: Sides = 1
    groups: int = 1
    shape: Optional[GivenShape] = None  # noqa: UP045
    channels_first: bool = False

    def __post_init__(self) -> None:
        check_sides(self, channels=1, kernel=1, stride=1, padding=0, dilation=1, groups=1)
        shape = check_shape("Conv2d", self.shape)
        object.__setattr__(self, "shape", shape)
        before = shape[2] if shape else self.groups
        for what, n in (("channels", self.channels), ("the sender's channels", before)):
            if n % self.groups:
                raise DescriptionError(
                    f"Conv2d: groups is {self.groups}, but {what} are {n}; groups must divide both numbers of channels"
                )

    def windows(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int]]:
        return sides(self.kernel), sides(self.stride), sides(self.padding), sides(self.dilation)

    def in_lists(self, n_pre: int) -> InLists | None:
        return InLists((), self, n_pre)

    def window_shape(self) -> dict[str, Any] | None:
        kernel, stride, padding, dilation = self.windows()
        return {
            "shape": self.pre_shape,
            "channels_first": self.channels_first,
            "kernel": kernel,
            "stride": stride,
            "padding": padding,
            "dilation": dilation,
            "groups": self.groups,
            "channels": self.channels,
        }

    @property
    def n_channels(self) -> int:
        return self.channels

    def weight_shape(self, n_pre: int, n_post: int) -> tuple[int, ...]:
        return (*self.windows()[0], self.pre_shape[2] // self.groups, self.channels)

    def fan_in(self, n_pre: int, n_post: int) -> int:
        height, width, channels, _ = self.weight_shape(n_pre, n_post)
        return height * width * channels

    def add(self, i: Any, spikes: Any, weight: Any) -> None:
        maps, made = self.maps(spikes), self.received(i)
        for y, x, read in self.taps():
            for before, after in self._groups():
                made[..., after] += maps[read][..., before] @ weight[y, x, :, after]

    def pull(self, spikes: Any, weight: Any, d: Any) -> tuple[Any, Any]:
        maps, d = self.maps(spikes), self.received(d)
        d_maps, d_weight = np.zeros_like(maps, dtype=d.dtype), np.zeros_like(weight)
        for y, x, read in self.taps():
            for before, after in self._groups():
                d_weight[y, x, :, after] = np.einsum("ryxm,ryxn->mn", maps[read][..., before], d[..., after])
                d_maps[read][..., before] += d[..., after] @ weight[y, x, :, after].T
        return self.flat(d_maps).reshape(spikes.shape), d_weight

    def _groups(self) -> list[tuple[slice, slice]]:
        """Channels before and after, for each group."""
        n, m = self.pre_shape[2] // self.groups, self.channels // self.groups
        return [(slice(g * n, g * n + n), slice(g * m, g * m + m)) for g in range(self.groups)]

    def product(self, spikes: Any, weight: Any) -> Any:
        from torch.nn import functional

        _, stride, padding, dilation = self.windows()
        filters = weight.permute(3, 2, 0, 1).contiguous()  # without this some shapes have no gradient
        made = functional.conv2d(self.images(spikes), filters, None, stride, padding, dilation, self.groups)
        return made.permute(0, 2, 3, 1).reshape(spikes.shape[0], math.prod(self.post_shape))

    def fan_out(self, weight: Any, d: Any) -> Any:
        return self.product_grad(d.new_zeros(1, self.n_pre), (weight != 0).to(d.dtype), d[None], (True, False))[0][0]

    def product_grad(self, spikes: Any, weight: Any, d: Any, needs: tuple[bool, bool]) -> tuple[Any, Any]:
        import torch

        _, stride, padding, dilation = self.windows()
        d_images, d_weight, _ = torch.ops.aten.convolution_backward(
            self.received(d).permute(0, 3, 1, 2),
            self.images(spikes),
            weight.permute(3, 2, 0, 1).contiguous(),
            None,
            stride,
            padding,
            dilation,
            False,
            [0, 0],
            self.groups,
            [*needs, False],
        )
        return self.rows(d_images) if needs[0] else None, d_weight.permute(2, 3, 1, 0) if needs[1] else None
