"""Spikes between fused populations: 0 or 1, with a gradient that takes no memory until it is computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsesnn.output import CountedSpikes
from sparsesnn.spikes import SpikeBatch


@dataclass(frozen=True)
class DenseSpikes:
    """The spikes of one population, for T steps and B samples.

    Args:
        fired: [T, B, N], 0 and 1: bytes (bool) on a CPU; on CUDA in the precision of the products that read them, so that none converts
            them.
        gradient: float[T, B, N], their stand-in for autograd. All its elements share one uninitialized place in memory: only
            its shape, its dtype and its place in the graph count. (Like `SpikeBatch.values`, which is as short as lists.)
    """

    fired: Tensor
    gradient: Tensor

    @classmethod
    def from_lists(
        cls, spikes: SpikeBatch, dtype: torch.dtype, device: torch.device, fired_dtype: torch.dtype = torch.bool
    ) -> DenseSpikes:
        """Converts lists of a data set, which carry no gradient.

        Lists in main memory are checked there and travel in one copy, for which the host does not wait.

        Args:
            dtype: of the gradient.
            fired_dtype: of `fired`.
        """
        spikes.check_form()
        if spikes.device.type == "cpu":
            places = torch.from_numpy(places_of(spikes.validate().expanded())).to(device, non_blocking=True)
            fired = torch.zeros(spikes.shape, dtype=fired_dtype, device=device)
            fired.view(-1).index_fill_(0, places, 1)
        else:
            fired = spikes.to_dense().to(device, fired_dtype)
        return cls(fired, no_memory(spikes.shape, dtype, device))

    @property
    def shape(self) -> torch.Size:
        return self.fired.shape

    @property
    def n_samples(self) -> int:
        return int(self.fired.shape[1])

    @property
    def n_neurons(self) -> int:
        return int(self.fired.shape[2])

    @property
    def ndim(self) -> int:
        return self.fired.ndim

    def __len__(self) -> int:
        return len(self.fired)

    def to_dense(self) -> Tensor:
        """float[T, B, N], 1 for each spike; its gradient flows back to the population."""
        return cast(Tensor, _ToDense.apply(self.gradient, self.fired))


def places_of(spikes: SpikeBatch, dtype: type[np.signedinteger[Any]] = np.int64) -> npt.NDArray[Any]:
    """The places of the spikes in [T, B, N], flat and ascending; near-spikes have none. Lists are in main memory, checked, one per step.

    Args:
        dtype: of the places, wide enough for T·B·N.
    """
    offsets, ids, n_spikes = (x.numpy() for x in (spikes.offsets, spikes.ids, spikes.n_spikes))
    n_listed = offsets[1:] - offsets[:-1]
    places = np.repeat(np.arange(len(n_listed), dtype=dtype) * spikes.n_neurons, n_listed) + ids.astype(dtype)
    if int(n_spikes.sum()) == len(ids):
        return places
    return places[np.arange(len(ids)) < np.repeat(offsets[:-1] + n_spikes, n_listed)]


def no_memory(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor whose elements share one place in memory."""
    return torch.empty((), dtype=dtype, device=device).expand(shape)


class SpikesByName(CountedSpikes):
    """The spikes of each population as a float tensor [T, B, N], made on first access.

    Args:
        spikes: tensors are used unchanged: a library that maps all tensors of an output rebuilds this from tensors.
    """

    def __init__(self, spikes: Mapping[str, DenseSpikes | Tensor]) -> None:
        self.packed = {name: x for name, x in spikes.items() if isinstance(x, DenseSpikes)}
        self._dense: dict[str, Tensor] = {name: x for name, x in spikes.items() if isinstance(x, Tensor)}
        self._names = list(spikes)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._dense:
            self._dense[name] = self.packed[name].to_dense()
        return self._dense[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def activity(self) -> dict[str, float]:
        """Spikes per neuron and time step."""
        if not self._names:
            return {}
        fired = [self.packed[name].fired if name in self.packed else self._dense[name] for name in self]
        counts = torch.stack([x.count_nonzero() for x in fired]).tolist()  # the host waits once
        return {name: n / max(1, x.numel()) for name, n, x in zip(self, counts, fired, strict=True)}

    def dropped(self) -> dict[str, int]:
        """Zeros: there are no lists that could fill up."""
        return dict.fromkeys(self, 0)


class _ToDense(torch.autograd.Function):
    """forward(gradient, fired) → fired as numbers; the gradient passes unchanged."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, fired: Tensor) -> Tensor:
        return fired.to(gradient.dtype, copy=True)  # the backward pass still reads `fired`

    @staticmethod
    def backward(ctx: Any, *d: Tensor) -> tuple[Tensor, None]:
        return d[0], None
