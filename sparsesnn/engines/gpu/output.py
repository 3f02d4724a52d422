"""The output of a pass on a device; lists are copied to the host when they are read."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsesnn.engines.gpu.passes import Passes
from sparsesnn.errors import DescriptionError
from sparsesnn.output import KnownCounts, Output
from sparsesnn.spikes import SpikeBatch


class DeviceSpikes(KnownCounts):
    """The lists of all populations that fire, as of a pass.

    Args:
        passes: where they lie.
        learns: whether their values carry a gradient.

    Attributes:
        learnt: the values of the lists that were read, by population, with the places of the entries on the device.

    Errors: `DescriptionError` when lists are read after a later pass, which overwrites them.
    """

    def __init__(self, passes: Passes, *, learns: bool) -> None:
        places = passes.shape.n_lists
        super().__init__(
            {
                name: (passes.n_spikes(name), passes.n_dropped(name), places * passes.layers[name].n)
                for name in passes.shape.rooms
            }
        )
        self._passes, self._learns, self._batch = passes, learns, passes.n_batches
        self._read: dict[str, SpikeBatch] = {}
        self.learnt: dict[str, tuple[Tensor, npt.NDArray[np.int64]]] = {}

    def __getitem__(self, name: str) -> SpikeBatch:
        if name not in self._counts:
            raise KeyError(name)
        if name not in self._read:
            if self._passes.n_batches != self._batch:
                raise DescriptionError(
                    f"lists of {name}: the device has run another batch since; read output.spikes before the next batch"
                )
            lists, at = self._passes.lists(name)
            if self._learns:
                lists.values = lists.fired().to(torch.float32).requires_grad_()
                self.learnt[name] = lists.values, at
            self._read[name] = lists
        return self._read[name]


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
