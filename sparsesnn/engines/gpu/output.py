"""The output of a pass on a device; lists are copied to the host when they are read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsesnn.engines.gpu.passes import Passes
from sparsesnn.output import CountedSpikes, Output
from sparsesnn.spikes import SpikeBatch


class DeviceSpikes(CountedSpikes):
    """The lists of all populations that fire, as of a pass.

    Args:
        passes: where they lie.
        learns: whether their values carry a gradient.

    Attributes:
        learnt: the values of the lists that were read, by population, with the places of the entries on the device.
    """

    def __init__(self, passes: Passes, *, learns: bool) -> None:
        self._passes, self._learns = passes, learns
        self._read: dict[str, SpikeBatch] = {}
        self.learnt: dict[str, tuple[Tensor, npt.NDArray[np.int64]]] = {}
        places = passes.shape.n_lists
        self._counts = {name: (passes.n_spikes(name), places * passes.layers[name].n) for name in passes.shape.rooms}

    def __getitem__(self, name: str) -> SpikeBatch:
        if name not in self._counts:
            raise KeyError(name)
        if name not in self._read:
            lists, at = self._passes.lists(name)
            if self._learns:
                lists.values = lists.fired().to(torch.float32).requires_grad_()
                self.learnt[name] = lists.values, at
            self._read[name] = lists
        return self._read[name]

    def __contains__(self, name: object) -> bool:  # Mapping's would copy the lists
        return name in self._counts

    def __iter__(self) -> Iterator[str]:
        return iter(self._counts)

    def __len__(self) -> int:
        return len(self._counts)

    def activity(self) -> dict[str, float]:
        return {name: fired / places if places else 0.0 for name, (fired, places) in self._counts.items()}

    def dropped(self) -> dict[str, int]:
        return dict.fromkeys(self._counts, 0)


def output_of(passes: Passes, output: str, *, learns: bool) -> Output:
    """The output of a forward pass.

    Args:
        output: the last population.
        learns: whether it carries a gradient.
    """
    potentials: Tensor | None = None
    if passes.layers[output].is_readout:
        potentials = torch.from_numpy(passes.potentials(output).copy())
        potentials.requires_grad_(learns)
    return Output(potentials=potentials, spikes=DeviceSpikes(passes, learns=learns), state={}, output=output)


def gradients_of(output: Output) -> dict[str, tuple[npt.NDArray[np.float32], Any]]:
    """The gradients that the loss's backward pass left in an output, for `Passes.backward`."""
    found: dict[str, tuple[npt.NDArray[np.float32], Any]] = {}
    if output.potentials is not None and output.potentials.grad is not None:
        found[output.output] = output.potentials.grad.contiguous().numpy(), None
    assert isinstance(output.spikes, DeviceSpikes)
    for name, (values, at) in output.spikes.learnt.items():
        if values.grad is not None:
            found[name] = values.grad.contiguous().numpy(), at
    return found
