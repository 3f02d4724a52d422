"""A network on a device: its weights, and passes for the shapes of the last batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from sparsesnn.engines.gpu.device import Device
from sparsesnn.engines.gpu.layers import GpuLayer, check_network, layers_of
from sparsesnn.engines.gpu.layout import GROUP, leaves
from sparsesnn.engines.gpu.passes import MORE_ROOM, Passes, first_room
from sparsesnn.engines.gpu.weights import DeviceWeights
from sparsesnn.errors import DescriptionError, DeviceMemoryError, ShapeError
from sparsesnn.network import Network
from sparsesnn.spikes import SpikeBatch

#: shapes of batches whose buffers are kept: those of training, its last batch, and evaluation
KEPT = 4


class Program:
    """A network's layers on a device.

    Args:
        device: where it runs.
        network: the description.
        layers: the model's layers by name, on the host; their parameters give the numbers of neurons at each pass.

    Attributes:
        weights: on the device.
        layers: as kernels see them.
        n_passes: forward passes so far.
    """

    def __init__(self, device: Device, network: Network, layers: Mapping[str, Any]) -> None:
        check_network(network, "backend 'gpu'")
        self.device, self.network = device, network
        self.layers = layers_of(network, layers)
        self.weights = DeviceWeights(device, self.layers)
        self.source = network.inputs[0]
        self._passes: dict[tuple[int, int, bool], Passes] = {}
        self._rooms: dict[tuple[int, str], int] = {}
        self._numbers: dict[str, npt.NDArray[np.float32]] = {}
        self.n_passes = 0

    def check(self, spikes: SpikeBatch) -> SpikeBatch:
        """The input in the form that kernels read. Errors: those of lists that break their invariants, and for values of spikes."""
        if spikes.graded:
            raise DescriptionError(
                "input: its spikes have values, which backend 'gpu' does not run yet; use backend 'cpu', or 'dense' with device 'cuda'"
            )
        if spikes.device.type != "cpu":
            raise ShapeError(
                f"input: spike lists are on {spikes.device}; give them on the cpu: they are checked there, and then copied"
            )
        spikes = spikes.expanded() if spikes.repeats else spikes
        return spikes.validate()

    def forward(self, spikes: SpikeBatch, tensors: Mapping[str, Mapping[str, Tensor]], *, saves: bool) -> Passes:
        """Runs the network on checked lists, with as much room for lists as they need.

        Args:
            tensors: of each layer, see `GpuLayer.tensors`.
            saves: whether a backward pass may follow.
        """
        self.n_passes += 1
        numbers = {name: self._numbers_of(layer, tensors[name]) for name, layer in self.layers.items()}
        while True:
            passes = self._passes_for(spikes, saves)
            needs = passes.forward(spikes, numbers)
            if not needs:
                return passes
            for name, need in needs.items():
                most = self.layers[name].n * spikes.n_steps
                self._rooms[spikes.n_steps, name] = min(most, int(MORE_ROOM * need) + 1)
            self._forget(spikes.n_steps)

    def _numbers_of(self, layer: GpuLayer, tensors: Mapping[str, Tensor]) -> npt.NDArray[np.float32]:
        if layer.learns_numbers:
            return layer.numbers(tensors)
        if layer.name not in self._numbers:
            self._numbers[layer.name] = layer.numbers(tensors)
        return self._numbers[layer.name]

    def changed(self) -> None:
        """Numbers of neurons that do not learn may have changed on the host."""
        self._numbers = {}

    def holds(self, layers: Mapping[str, Any]) -> bool:
        """Whether these are still the layers, with the same parameters that learn."""
        return all(own.layer is layers.get(name) and own.is_current() for name, own in self.layers.items())

    def _forget(self, n_steps: int) -> None:
        for key in [key for key in self._passes if key[0] == n_steps]:
            self._passes.pop(key).close()

    def _passes_for(self, spikes: SpikeBatch, saves: bool) -> Passes:
        key = spikes.n_steps, spikes.n_samples, saves
        found = self._passes.pop(key, None)
        if found is not None and found.n_input >= spikes.ids.numel():
            self._passes[key] = found  # the last one used
            return found
        if found is not None:
            found.close()
        while len(self._passes) >= KEPT:
            self._passes.pop(next(iter(self._passes))).close()
        rooms = {
            name: self._rooms.setdefault((spikes.n_steps, name), first_room(layer.n, spikes.n_steps))
            for name, layer in self.layers.items()
            if layer.fires
        }
        arguments = (self.source, self.network.populations[self.source].n, spikes.n_steps)
        n_input = int(MORE_ROOM * spikes.ids.numel()) + 1
        try:
            made = Passes(self.device, self.layers, self.weights, *arguments, spikes.n_samples, n_input, rooms, saves)
        except DeviceMemoryError as error:
            raise self._too_large(error, spikes, rooms, saves) from None
        self._passes[key] = made
        return made

    def n_bytes(self, n_steps: int, n_samples: int, n_input: int, rooms: Mapping[str, int], saves: bool) -> int:
        """Bytes on the device for batches of this shape: lists, records, gradients, weights and their moments."""
        planned = object.__new__(Passes)
        planned.__dict__.update(
            layers=self.layers, rooms=dict(rooms), saves=saves, n_steps=n_steps, n_samples=n_samples, n_input=n_input,
            n_lists=n_steps * n_samples, n_groups=-(-n_samples // GROUP), n_words=-(-n_steps * GROUP // 32),
        )  # fmt: skip
        planned.leaves, planned.pairs = leaves(planned.n_groups)
        return sum(planned.buffers().values()) + self.weights.n_bytes(
            len(planned.leaves) - 1 if saves else 0, 2 if saves else 0
        )

    def _too_large(
        self, error: DeviceMemoryError, spikes: SpikeBatch, rooms: Mapping[str, int], saves: bool
    ) -> DeviceMemoryError:
        """The error for a batch that does not fit, with the largest one that does."""
        per_sample = -(-spikes.ids.numel() // max(1, spikes.n_samples))

        def needed(n_samples: int) -> int:
            return self.n_bytes(spikes.n_steps, n_samples, int(MORE_ROOM * per_sample * n_samples) + 1, rooms, saves)

        _, total = self.device.memory()
        low, high = 0, spikes.n_samples
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if needed(middle) <= total else (low, middle)
        all_bytes = needed(spikes.n_samples)
        return DeviceMemoryError(
            f"{self.device.name}: a batch of {spikes.n_samples:,} samples of {spikes.n_steps:,} steps needs {all_bytes:,} bytes, but "
            f"{error.free:,} of {total:,} are free; "
            + (
                f"a batch of {low:,} fits if nothing else uses the device"
                if low
                else "not even one sample fits: use fewer steps or backend 'cpu'"
            ),
            needed=all_bytes,
            free=error.free,
            what=error.what,
        )

    def close(self) -> None:
        """Frees everything on the device."""
        for passes in self._passes.values():
            passes.close()
        self._passes = {}
        self.weights.close()
        self.device.close()
