"""The type of neuron ids in lists."""

from __future__ import annotations

import torch
from torch import Tensor

#: largest population whose ids fit uint16
MAX_UINT16_NEURONS = 65_536


def id_dtype(n_neurons: int) -> torch.dtype:
    """uint16 if every id fits, else int32."""
    return torch.uint16 if n_neurons <= MAX_UINT16_NEURONS else torch.int32


def signed(ids: Tensor) -> Tensor:
    """The same memory as int16 if it is uint16, for which PyTorch has few operations and no pickling."""
    return ids.view(torch.int16) if ids.dtype == torch.uint16 else ids


def unsigned(ids: Tensor) -> Tensor:
    """The inverse of `signed`."""
    return ids.view(torch.uint16) if ids.dtype == torch.int16 else ids
