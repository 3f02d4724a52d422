"""Two easy classes for the scripts of this folder: which half of the channels, or of an image, is the busier one."""

import torch
from torch import Tensor


def spikes(n_steps: int, n_samples: int, n: int, seed: int) -> tuple[Tensor, Tensor]:
    """float32[T, B, n] of 0 and 1, 2 % or 10 % of them 1; and int64[B], the half with 10 %."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (n_samples,), generator=generator)
    busy = torch.arange(n)[None] * 2 // n == labels[:, None]
    rates = torch.where(busy, 0.1, 0.02)
    return (torch.rand(n_steps, n_samples, n, generator=generator) < rates).float(), labels


def images(n_samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """float32[B, 1, 12, 12], and int64[B], the half, left or right, that is brighter."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (n_samples,), generator=generator)
    bright = torch.arange(12)[None] // 6 == labels[:, None]
    noise = torch.rand(n_samples, 1, 12, 12, generator=generator)
    return noise * torch.where(bright, 1.0, 0.3)[:, None, None], labels


def maps(n_steps: int, n_samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """float32[T, B, 2, 12, 12] of 0 and 1, as from a camera of events, and int64[B], the busier half."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (n_samples,), generator=generator)
    busy = torch.arange(12)[None] // 6 == labels[:, None]
    rates = torch.where(busy, 0.15, 0.03)[:, None, None]
    return (torch.rand(n_steps, n_samples, 2, 12, 12, generator=generator) < rates).float(), labels
