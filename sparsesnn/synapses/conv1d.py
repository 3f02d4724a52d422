"""Convolution over one axis."""

from __future__ import annotations

from dataclasses import dataclass

from sparsesnn.arguments import named
from sparsesnn.errors import DescriptionError
from sparsesnn.synapses.conv2d import Conv2d


@named
@dataclass(frozen=True)
class Conv1d(Conv2d):
    """`Conv2d` over maps of height 1, for senders of shape (length, channels): float32[1, kernel, channels before / groups, channels].

        i[x, :] += Σ_{dx} Σ_{c fired at x·stride - padding + dx·dilation} weight[0, dx, c, :]

    The axis is one of neurons, such as frequencies of a cochlea, never time.

    Args:
        channels: of the receiver.
        kernel, stride, padding, dilation: as in `torch.nn.Conv1d`, one number each.
        groups, shape, channels_first: as in `Conv2d`; the shape is (1, length, channels).
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("kernel", "stride", "padding", "dilation"):
            if isinstance(getattr(self, name), tuple):
                raise DescriptionError(f"Conv1d: {name} is {getattr(self, name)}; give one number, or use Conv2d")

    def windows(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int]]:
        (_, kernel), (_, stride), (_, padding), (_, dilation) = super().windows()
        return (1, kernel), (1, stride), (0, padding), (1, dilation)

    def check_shape(self) -> None:
        if self.pre_shape[0] != 1:
            raise DescriptionError(
                f"{self}: reads maps of shape (length, channels), but the sender has {self.pre_shape}; use Conv2d"
            )
        super().check_shape()
