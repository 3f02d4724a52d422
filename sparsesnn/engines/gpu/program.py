"""A network on a device: its weights, and passes for the shapes of the last batches."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsesnn.currents import Currents
from sparsesnn.engines.dropout import Drawn, Heard, numbers
from sparsesnn.engines.gpu.device import Device
from sparsesnn.engines.gpu.layers import GpuLayer, check_network, layers_of
from sparsesnn.engines.gpu.loss import DeviceLoss, key_of
from sparsesnn.engines.gpu.passes import Passes
from sparsesnn.engines.gpu.plan import MORE_ROOM, Shape, buffers, first_room
from sparsesnn.engines.gpu.weights import DeviceWeights
from sparsesnn.errors import DescriptionError, DeviceMemoryError, ShapeError
from sparsesnn.loss import CrossEntropy
from sparsesnn.network import Network, gives_currents
from sparsesnn.rotation import list_seed, next_training_step
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
        self.source, self.reads_currents = network.inputs[0], gives_currents(network)
        self._passes: dict[tuple[Any, ...], Passes] = {}
        self._rooms: dict[tuple[int, str], int] = {}
        self._numbers: dict[str, npt.NDArray[np.float32]] = {}
        self._seen: frozenset[int] = frozenset()
        self.n_passes = 0

    def check(self, given: Any) -> SpikeBatch | Currents:
        """The input in the form that kernels read. Errors: those of lists that break their invariants, and of `Currents.of`."""
        if not self.reads_currents:
            return self._check_lists(given)
        currents = Currents.of(given, None, "input", self.network.populations[self.source].n)
        return replace(currents, values=currents.values.to("cpu", torch.float32))

    def _check_lists(self, spikes: SpikeBatch) -> SpikeBatch:
        if spikes.values is not None and spikes.values.requires_grad:
            raise DescriptionError(
                "input: its values want a gradient, which backend 'gpu' does not compute; use backend 'cpu', or give spikes.detach()"
            )
        if spikes.device.type != "cpu":
            raise ShapeError(
                f"input: spike lists are on {spikes.device}; give them on the cpu: they are checked there, and then copied"
            )
        if spikes.repeats:
            raise DescriptionError(
                "input: its lists are the same at all steps, which backend 'gpu' does not run with the bits of 'cpu'; use Input(n, "
                "currents=True), or backend 'cpu'"
            )
        return spikes.validate()

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Of each layer, see `GpuLayer.tensors`."""
        return {name: layer.tensors() for name, layer in self.layers.items()}

    def choices(self, heard: Heard | None, n_samples: int, first_sample: int) -> dict[str, npt.NDArray[np.uint64]]:
        """By buffer, the numbers that decide the random choices of a pass; counts a step of training.

        Args:
            heard: of dropout.
            first_sample: the number of samples of the batch that come before these.
        """
        found = self._draws(heard, n_samples) if heard else {}
        for name, layer in self.layers.items():
            if layer.capacity:
                seed = list_seed(layer.layer.rotation_seed, next_training_step(layer.layer))
                found[f"{name}, rotation"] = np.array([seed, first_sample], np.uint64)
        return found

    def _draws(self, heard: Heard, n_samples: int) -> dict[str, npt.NDArray[np.uint64]]:
        """By buffer, the numbers that decide dropout."""
        if not isinstance(heard, Drawn):
            raise DescriptionError(
                f"dropout: heard is {heard!r}, which has no draws (sparsesnn.engines.dropout.Drawn) that backend 'gpu' can repeat; use "
                "backend 'cpu', or 'dense' with device 'cuda'"
            )
        number = numbers(self.network)
        read = {link.pre for layer in self.layers.values() for link in layer.sources}
        draws = {f"{name}, draws": heard.draws(number[name]) for name in self.layers if name in read & number.keys()}
        for array in draws.values():
            if array.shape != (2, 1 + n_samples):
                raise ShapeError(
                    f"dropout: heard draws for {array.shape[1] - 1} samples, but the batch has {n_samples}; give it the samples of the batch"
                )
        return draws

    def forward(
        self,
        given: SpikeBatch | Currents,
        tensors: Mapping[str, Mapping[str, Tensor]],
        choices: Mapping[str, npt.NDArray[np.uint64]],
        *,
        saves: bool,
        loss: CrossEntropy | None = None,
    ) -> Passes:
        """Runs the network on checked input (see `check`), again if lists need more room.

        Args:
            tensors: of each layer, see `GpuLayer.tensors`.
            choices: see `choices`.
            saves: whether a backward pass may follow.
            loss: a loss that the device computes (`sparsesnn.engines.gpu.loss.fits`): then the backward pass runs too.
        """
        self.n_passes += 1
        of_layers = {name: self._numbers_of(layer, tensors[name]) for name, layer in self.layers.items()}
        while True:
            passes = self._passes_for(given, saves, choices)
            passes.put(given, of_layers, choices)
            needs = passes.forward() if loss is None else self._loss_of(passes, loss).step(loss)
            rooms = self._better_rooms(passes.shape, needs)
            if not rooms:
                return passes
            self._rooms.update(rooms)
            self._forget(given.n_steps)

    @property
    def passes(self) -> Passes:
        """Those of the last batch."""
        return next(reversed(self._passes.values()))

    def _loss_of(self, passes: Passes, loss: CrossEntropy) -> DeviceLoss:
        key = key_of(loss)
        if key not in passes.losses:
            passes.losses[key] = DeviceLoss(passes, self.network.output, loss)
        found: DeviceLoss = passes.losses[key]
        return found

    def take_loss(self, passes: Passes, loss: CrossEntropy) -> Tensor:
        """The value of a loss that the last pass has computed, float32[]."""
        return self._loss_of(passes, loss).take(loss)

    def _better_rooms(self, shape: Shape, needs: Mapping[str, int]) -> dict[tuple[int, str], int]:
        """Rooms for lists that had too little, or after the first pass more than twice their need."""
        begins, self._seen = shape.n_steps not in self._seen, self._seen | {shape.n_steps}
        found = {}
        for name, need in needs.items():
            room, most = shape.rooms[name], self.layers[name].n * shape.n_steps
            better = min(most, max(64, int(MORE_ROOM * need) + 1))
            if need > room or (begins and 2 * better < room):
                found[shape.n_steps, name] = better
        return found

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

    def _passes_for(self, given: SpikeBatch | Currents, saves: bool, choices: Collection[str]) -> Passes:
        n_steps, n_ids = given.n_steps, 0
        kind: dict[str, Any] = {"thinned": tuple(name for name in self.layers if f"{name}, draws" in choices)}
        if isinstance(given, Currents):
            kind["n_given"] = 1 if given.is_constant else n_steps
            kind["learns_input"] = saves and given.values.requires_grad
        else:
            n_ids, kind["graded"] = given.ids.numel(), given.graded
        key = n_steps, given.n_samples, saves, *kind.items()
        found = self._passes.pop(key, None)
        if found is not None and found.shape.n_input >= n_ids:
            self._passes[key] = found  # the last one used
            return found
        if found is not None:
            found.close()
        while len(self._passes) >= KEPT:
            self._passes.pop(next(iter(self._passes))).close()
        rooms = {
            name: self._rooms.setdefault((n_steps, name), first_room(layer.n, n_steps))
            for name, layer in self.layers.items()
            if layer.fires
        }
        shape = Shape(n_steps, given.n_samples, int(MORE_ROOM * n_ids) + 1, rooms, saves, **kind)
        try:
            made = Passes(self.device, self.layers, self.weights, self.source, shape)
        except DeviceMemoryError as error:
            raise self._too_large(error, shape) from None
        self._passes[key] = made
        return made

    def n_bytes(self, shape: Shape) -> int:
        """Bytes on the device for batches of this shape: lists, records, gradients, weights and their moments."""
        return sum(buffers(self.layers, shape).values()) + self.weights.n_bytes(
            shape.n_slots if shape.saves else 0, 2 * shape.saves
        )

    def _too_large(self, error: DeviceMemoryError, shape: Shape) -> DeviceMemoryError:
        """The error for a batch that does not fit, with the largest one that does."""
        per_sample = -(-shape.n_input // max(1, shape.n_samples))

        def needed(n_samples: int) -> int:
            return self.n_bytes(replace(shape, n_samples=n_samples, n_input=per_sample * n_samples))

        _, total = self.device.memory()
        low, high = 0, shape.n_samples
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if needed(middle) <= total else (low, middle)
        all_bytes = self.n_bytes(shape)
        fits = (
            f"a batch of {low:,} fits if nothing else uses the device"
            if low
            else "not even one sample fits: use fewer steps or backend 'cpu'"
        )
        return DeviceMemoryError(
            f"{self.device.name}: a batch of {shape.n_samples:,} samples of {shape.n_steps:,} steps needs {all_bytes:,} bytes, but "
            f"{error.free:,} of {total:,} are free; {fits}",
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
