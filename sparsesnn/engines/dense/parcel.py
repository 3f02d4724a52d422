"""Tensors that travel together between the host and a device."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

#: dtype and shape
Form = tuple[torch.dtype, tuple[int, ...]]
#: bytes between the beginnings of two tensors are a multiple of this
_ALIGNMENT = 16


class Parcel:
    """Named tensors in one block of memory on the host and in another on a device: one copy moves them all.

    Args:
        forms: of each tensor.
        device: where the other block lies. For CUDA the host's block is page-locked.

    Attributes:
        here, there: the tensors on the host, and on the device.
    """

    def __init__(self, forms: Mapping[str, Form], device: torch.device) -> None:
        starts, size = {}, 0
        for name, (dtype, shape) in forms.items():
            starts[name] = size
            size += -(-math.prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        self._here = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=device.type == "cuda")
        self._there = torch.empty(size, dtype=torch.uint8, device=device)

        def views(block: Tensor) -> dict[str, Tensor]:
            return {
                name: block[starts[name] : starts[name] + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)
                for name, (dtype, shape) in forms.items()
            }

        self.here, self.there = views(self._here), views(self._there)

    def send(self) -> None:
        """Copies the host's block to the device. The host does not wait, and must not write it before the device has finished."""
        self._there.copy_(self._here, non_blocking=True)

    def fetch(self) -> None:
        """Copies the device's block to the host, after all work before it; the host waits."""
        self._here.copy_(self._there)
