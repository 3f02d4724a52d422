"""Forward and backward passes of a network over T steps of B samples: buffers, and the kernels in the order in which they run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsesnn.currents import Currents
from sparsesnn.engines.gpu.arguments import make, structs
from sparsesnn.engines.gpu.device import Device, Kernel
from sparsesnn.engines.gpu.layers import GpuLayer, Link
from sparsesnn.engines.gpu.layout import LANES, Wave, add_groups, add_samples, places
from sparsesnn.engines.gpu.plan import Shape, buffers, saving
from sparsesnn.engines.gpu.weights import DeviceWeights
from sparsesnn.spikes import SpikeBatch

#: numbers per neuron that a backward pass copies to the host
_NEURON_GRADIENTS = ("gradient of bias", "gradient of parameters")


class Passes:
    """The passes of one shape.

    Args:
        device, layers, weights: of the network.
        source: the network's input.
        shape: of the batches.

    Attributes:
        losses: those that the device computes after these passes, by kind.
        saving: the layers that a backward pass comes through.
        n_batches: counts the batches, each of which overwrites the lists of the one before.
    """

    def __init__(
        self, device: Device, layers: Mapping[str, GpuLayer], weights: DeviceWeights, source: str, shape: Shape
    ) -> None:
        self.device, self.layers, self.weights, self.source, self.shape = device, layers, weights, source, shape
        self.saving = saving(layers, shape)
        self._at: dict[str, int] = {}
        self._staging: dict[str, npt.NDArray[Any]] = {}
        for name, n_bytes in buffers(layers, shape).items():
            self._at[name] = device.allocate(n_bytes, name)
        self._kernels = {name: self._compile(layer) for name, layer in layers.items()}
        self._forward: Callable[[], None] | None = None
        self._backward: Callable[[], None] | None = None
        self._depends_on: tuple[Any, ...] = ()
        self.losses: dict[Any, Any] = {}
        self.n_batches = 0
        self._make_staging()
        if shape.saves:
            self._upload_waves()

    # ---- memory ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Frees the buffers."""
        for address in self._at.values():
            self.device.free(address)
        self._at, self._staging = {}, {}
        self.n_batches += 1

    def _pinned(self, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        """Host memory of this name; the same array each time."""
        if name not in self._staging:
            n_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
            self._staging[name] = self.device.pinned(n_bytes).view(dtype).reshape(shape)
        return self._staging[name]

    def address(self, name: str) -> int:
        """Of a buffer."""
        return self._at[name]

    def extra(self, name: str, shape: tuple[int, ...], dtype: Any) -> tuple[int, Any]:
        """A buffer that is not part of every pass: its address, and host memory of the same shape; made by the first call."""
        staged = self._pinned(name, shape, dtype)
        if name not in self._at:
            self._at[name] = self.device.allocate(staged.nbytes, name)
        return self._at[name], staged

    def _make_staging(self) -> None:
        """Host memory that recorded work copies to: made before, because nothing is allocated while work is recorded."""
        if self.shape.learns_input:
            n = next(layer.n for layer in self.layers.values() if layer.is_given)
            self._pinned("input, gradient", (self.shape.n_given or 0, self.shape.n_samples, n), np.float32)
        for name, layer in self.layers.items():
            if layer.fires:
                self._pinned(f"{name}, needed", (self.shape.n_samples,), np.int32)
                self._pinned(f"{name}, lists", (layer.n_counts, self.shape.n_lists), np.int32)
            else:
                self._pinned(f"{name}, potentials", (self.shape.n_steps, self.shape.n_samples, layer.n), np.float32)
            for what in _NEURON_GRADIENTS:
                if f"{name}, {what}" in self._at:
                    self._pinned(f"{name}, {what}", self._shape_of(layer, what), np.float32)

    def _upload_waves(self) -> None:
        """Copies the leaves of all waves to the device, and the slots to add after each."""
        leaves = [leaf for wave in self.shape.waves for leaf in wave.leaves]
        pairs = [pair for wave in self.shape.waves for pair in wave.pairs]
        for name, rows in (("leaves", leaves), ("pairs of leaves", pairs)):
            if rows:
                self.device.upload(self._at[name], np.array(rows, np.int32))
                self.device.synchronize()

    # ---- kernels ---------------------------------------------------------------------------------------------------

    def _compile(self, layer: GpuLayer) -> dict[str, Kernel]:
        macros = layer.macros(len(layer.learnt) if self.shape.saves else 0)
        given = {"GIVEN": "1"} if layer.is_given else {}
        found = dict(self.device.compile("step.cu", macros | given, ["step"]))
        if layer.name in self.shape.thinned:
            found |= self.device.compile("dropout.cu", {}, ["thin", "thin_grad"])
        if self.shape.saves:
            found |= self.device.compile("step_grad.cu", macros, ["step_grad"])
            found |= self.device.compile(
                "deliver_grad.cu",
                {name: macros[name] for name in ("COLUMNS", "WEIGHT") if name in macros},
                ["list_grad", "senders", "weight_grad", "add_leaves", "given_grad", "neuron_grad"],
            )
        return found

    def _lists(self, name: str) -> ctypes.Structure:
        """The lists of a population, as kernels read them."""
        counts, ids = ("input, lists", "input, ids") if name == self.source else (f"{name}, lists", f"{name}, ids")
        at, n_bytes = self._at[counts], 4 * self.shape.n_lists
        values = self._at.get("input, values", 0) if name == self.source else 0
        return structs("step.cu")["DeviceLists"](at, at + n_bytes, at + 2 * n_bytes, self._at[ids], values)

    def _is_thinned(self, layer: GpuLayer, link: Link) -> bool:
        """Whether a layer reads a population's lists after dropout."""
        return link.pre in self.shape.thinned and link.pre != layer.name

    def _lists_read(self, layer: GpuLayer, link: Link) -> ctypes.Structure:
        """The lists that arrive at a layer."""
        lists = self._lists(link.pre)
        if self._is_thinned(layer, link):
            lists.n_spikes = self._at[f"{link.pre}, thinned lists"]
            lists.n_listed = lists.n_spikes + 4 * self.shape.n_lists
            lists.ids = self._at[f"{link.pre}, thinned ids"]
        return lists

    def _d_values_read(self, layer: GpuLayer, link: Link) -> int:
        """∂L/∂value of their entries."""
        thinned = "thinned " if self._is_thinned(layer, link) else ""
        return self._at[f"{link.pre}, gradients of {thinned}values"]

    def _dropped(self, layer: GpuLayer) -> int:
        """Address of the counts of dropped candidates; 0 without a capacity."""
        return self._at[f"{layer.name}, lists"] + 12 * self.shape.n_lists if layer.capacity else 0

    def _numbers(self, layer: GpuLayer) -> dict[str, int]:
        """Addresses of a layer's numbers per neuron."""
        at, row = self._at[f"{layer.name}, numbers"], 4 * layer.n_padded
        return {
            "entries": at,
            "derivatives": at + layer.n_entries * row,
            "grad_threshold": at + (layer.n_numbers - 2) * row,
            "bias": at + (layer.n_numbers - 1) * row if layer.has_bias else 0,
        }

    def _weight(self, layer: GpuLayer, link: Link) -> int:
        return self.weights.matrices[layer.name, link.name].read

    def _launch_step(self, layer: GpuLayer) -> None:
        at, name = self._at, layer.name
        kinds = structs("step.cu")
        own: dict[str, int] = {}
        if layer.fires:
            lists = self._lists(name)
            own = {
                "begin": lists.begin, "n_spikes": lists.n_spikes, "n_listed": lists.n_listed, "ids": lists.ids,
                "needed": at[f"{name}, needed"], "fields": at.get(f"{name}, fields", 0), "room": self.shape.rooms[name],
                "capacity": layer.capacity, "rotation": at.get(f"{name}, rotation", 0), "n_dropped": self._dropped(layer),
            }  # fmt: skip
        else:
            own = {"potentials": at[f"{name}, potentials"], "rows": at.get(f"{name}, rows", 0)}
        surrogate = layer.surrogate
        arguments = make(
            "step.cu", "StepArgs", **self._numbers(layer), **own,
            sources=[kinds["Source"](self._lists_read(layer, s), self._weight(layer, s), s.delay, s.n_pre) for s in layer.sources],
            loops=[kinds["Loop"](self._weight(layer, loop), loop.delay) for loop in layer.loops],
            n_sources=len(layer.sources), n_loops=len(layer.loops), n=layer.n, n_tiles=layer.n_tiles, n_steps=self.shape.n_steps,
            n_samples=self.shape.n_samples, given=at["input, currents"] if layer.is_given else 0,
            given_step=0 if self.shape.n_given == 1 else self.shape.n_samples, surrogate=layer.surrogate_number, saves=int(name in self.saving), records_x=int(layer.records_x),
            traces_spikes=int(layer.traces_spikes), detaches=int(layer.detaches), slope=surrogate.slope if surrogate else 1.0,
        )  # fmt: skip
        shared = 32 * layer.n_tiles if layer.fires else 0
        self.device.launch(self._kernels[name]["step"], self.shape.n_samples, layer.n_threads, shared, arguments, name)

    def _launch_thin(self, kernel: str, layer: GpuLayer, first_sample: int, n_samples: int, adds: bool = False) -> None:
        at, name = self._at, layer.name
        counts = at[f"{name}, thinned lists"]
        arguments = make(
            "dropout.cu", "ThinArgs", lists=self._lists(name), draws=at[f"{name}, draws"], n_spikes=counts,
            n_listed=counts + 4 * self.shape.n_lists, ids=at[f"{name}, thinned ids"],
            d_thinned=at.get(f"{name}, gradients of thinned values", 0), d_values=at.get(f"{name}, gradients of values", 0),
            n_samples=self.shape.n_samples, adds=int(adds), first_sample=first_sample, n_wave=n_samples,
        )  # fmt: skip
        self.device.launch(self._kernels[name][kernel], self.shape.n_steps * n_samples, 32, 0, arguments, name)

    def _launch_step_grad(self, layer: GpuLayer, wave: Wave, once: bool) -> None:
        at, name = self._at, layer.name
        own: dict[str, Any] = {}
        if layer.fires:
            own = {
                "lists": self._lists(name), "fields": at[f"{name}, fields"], "d_values": at[f"{name}, gradients of values"],
                "room": self.shape.rooms[name], "n_dropped": self._dropped(layer),
            }  # fmt: skip
        else:
            own = {
                "d_potentials": at[f"{name}, gradient of potentials"], "rows": at.get(f"{name}, rows", 0),
                "d_parameters": at.get(f"{name}, gradient of parameters", 0), "same_at_all_steps": int(once),
            }  # fmt: skip
        numbers = self._numbers(layer)
        arguments = make(
            "step_grad.cu", "StepGradArgs", entries=numbers["entries"], derivatives=numbers["derivatives"], **own,
            loops=[structs("step_grad.cu")["Loop"](self._weight(layer, loop), loop.delay) for loop in layer.loops],
            d_currents=at["gradient of currents"], first_sample=wave.first_sample, n_wave=wave.n_samples, n_loops=len(layer.loops), n=layer.n, n_tiles=layer.n_tiles,
            n_steps=self.shape.n_steps, n_samples=self.shape.n_samples, records_x=int(layer.records_x), detaches=int(layer.detaches),
        )  # fmt: skip
        shared = 4 * layer.n_padded if layer.fires else 0
        self.device.launch(self._kernels[name]["step_grad"], wave.n_samples, layer.n_threads, shared, arguments, name)

    def _launch_list_grad(self, layer: GpuLayer, wave: Wave, link: Link, adds: bool) -> None:
        arguments = make(
            "deliver_grad.cu", "ListGradArgs", lists=self._lists_read(layer, link), weight=self._weight(layer, link),
            d_currents=self._at["gradient of currents"], first_sample=wave.first_sample, n_wave=wave.n_samples, d_values=self._d_values_read(layer, link),
            n_tiles=layer.n_tiles, n_steps=self.shape.n_steps, n_samples=self.shape.n_samples, delay=link.delay, adds=int(adds),
        )  # fmt: skip
        self.device.launch(
            self._kernels[layer.name]["list_grad"],
            self.shape.n_steps * wave.n_samples,
            128,
            0,
            arguments,
            f"{link.pre} -> {layer.name}",
        )

    def _launch_weight_grad(self, layer: GpuLayer, wave: Wave, link: Link) -> None:
        matrix = self.weights.matrices[layer.name, link.name]
        kernels, bits = self._kernels[layer.name], self._at["events by sender"]
        self.device.fill(bits, 4 * wave.n_groups * link.n_pre * self.shape.n_words)
        arguments = make(
            "deliver_grad.cu", "SendersArgs", lists=self._lists_read(layer, link), bits=bits, n_pre=link.n_pre, n_steps=self.shape.n_steps,
            n_samples=self.shape.n_samples, delay=link.delay, n_words=self.shape.n_words, first_sample=wave.first_sample, n_wave=wave.n_samples,
        )  # fmt: skip
        self.device.launch(kernels["senders"], self.shape.n_steps * wave.n_samples, 32, 0, arguments, matrix.name)
        n_halves = 256 // LANES
        n_blocks = -(-link.n_pre // (2 * n_halves))
        arguments = make(
            "deliver_grad.cu", "WeightGradArgs", bits=bits, d_currents=self._at["gradient of currents"],
            leaves=self._at["leaves"] + 12 * self._before(wave, "leaves"), sums=matrix.at["gradient"], n_pre=link.n_pre,
            n_tiles=layer.n_tiles, n_steps=self.shape.n_steps, n_words=self.shape.n_words, n_blocks=n_blocks, n_wave=wave.n_samples,
            first_sample=wave.first_sample, n_samples=self.shape.n_samples, delay=link.delay, lists=self._lists_read(layer, link),
        )  # fmt: skip
        self.device.launch(
            kernels["weight_grad"], n_blocks * layer.n_tiles * len(wave.leaves), 256, 0, arguments, matrix.name
        )
        if wave.pairs:
            arguments = make(
                "deliver_grad.cu", "AddLeavesArgs", sums=matrix.at["gradient"], size=matrix.size,
                pairs=self._at["pairs of leaves"] + 8 * self._before(wave, "pairs"), n_pairs=len(wave.pairs),
            )  # fmt: skip
            self.device.launch(kernels["add_leaves"], -(-matrix.size // 256), 256, 0, arguments, matrix.name)

    def _launch_given_grad(self, layer: GpuLayer, wave: Wave, adds: bool) -> None:
        arguments = make(
            "deliver_grad.cu", "GivenGradArgs", d_currents=self._at["gradient of currents"], d_given=self._at["input, gradient"],
            n=layer.n, n_tiles=layer.n_tiles, n_steps=self.shape.n_steps, n_samples=self.shape.n_samples,
            once=int(self.shape.n_given == 1), adds=int(adds), first_sample=wave.first_sample, n_wave=wave.n_samples,
        )  # fmt: skip
        kernel = self._kernels[layer.name]["given_grad"]
        self.device.launch(kernel, layer.n_tiles * wave.n_samples, 64, 0, arguments, layer.name)

    def _before(self, wave: Wave, what: str) -> int:
        """Leaves, or pairs of them, of the waves before this one."""
        return sum(len(getattr(other, what)) for other in self.shape.waves if other.first_sample < wave.first_sample)

    def _launch_neuron_grad(self, layer: GpuLayer, wave: Wave) -> None:
        at, name = self._at, layer.name
        n_traces = len(layer.learnt) if layer.fires else 0
        if not n_traces and not layer.has_bias:
            return
        traces = 4 * self.shape.n_samples * self.shape.rooms[name] * (1 + layer.records_x) if layer.fires else 0
        fired = (
            {"lists": self._lists(name), "d_values": at[f"{name}, gradients of values"], "room": self.shape.rooms[name]}
            if layer.fires
            else {}
        )
        arguments = make(
            "deliver_grad.cu", "NeuronGradArgs", d_currents=at["gradient of currents"], **fired, first_sample=wave.first_sample, n_wave=wave.n_samples,
            traces=at.get(f"{name}, fields", 0) + traces, d_bias=at.get(f"{name}, gradient of bias", 0),
            d_parameters=at.get(f"{name}, gradient of parameters", 0), n_tiles=layer.n_tiles, n_steps=self.shape.n_steps,
            n_samples=self.shape.n_samples, n_traces=n_traces,
        )  # fmt: skip
        self.device.launch(self._kernels[name]["neuron_grad"], layer.n_tiles * wave.n_groups, 64, 0, arguments, name)

    # ---- forward ---------------------------------------------------------------------------------------------------

    def put(
        self,
        given: SpikeBatch | Currents,
        numbers: Mapping[str, npt.NDArray[np.float32]],
        choices: Mapping[str, npt.NDArray[np.uint64]],
    ) -> None:
        """Copies a batch to the device.

        Args:
            given: the input, checked; lists have at most `n_input` entries.
            numbers: of each layer, see `GpuLayer.numbers`.
            choices: by buffer, see `Program.choices`.
        """
        self.n_batches += 1
        if isinstance(given, Currents):
            staged = self._pinned("input, currents", tuple(given.values.shape), np.float32)
            staged[...] = given.values.detach().numpy()
            self.device.upload(self._at["input, currents"], staged)
        else:
            self._put_lists(given)
        arrays = {f"{name}, numbers": array for name, array in numbers.items()} | dict(choices)
        for name, array in arrays.items():
            staged = self._pinned(name, array.shape, array.dtype)
            staged[...] = array
            self.device.upload(self._at[name], staged)

    def _put_lists(self, spikes: SpikeBatch) -> None:
        offsets = spikes.offsets.numpy()
        counts = self._pinned("input, lists", (3, self.shape.n_lists), np.int32)
        counts[0], counts[1], counts[2] = offsets[:-1], spikes.n_spikes.numpy(), np.diff(offsets)
        self.device.upload(self._at["input, lists"], counts)
        ids = self._pinned("input, ids", (self.shape.n_input,), np.uint16)
        n_ids = spikes.ids.numel()
        ids[:n_ids] = spikes.ids.numpy()
        if n_ids:
            self.device.upload(self._at["input, ids"], ids[:n_ids])
        if self.shape.graded:
            values = self._pinned("input, values", (self.shape.n_input,), np.float32)
            values[:n_ids] = spikes.entry_values().detach().numpy()
            self.device.upload(self._at["input, values"], values[:n_ids])

    def forward(self) -> dict[str, int]:
        """Runs all layers; see `needs`."""
        if self._forward is None:
            self._forward = self.device.record(self.launch_forward)
        self._forward()
        self.device.synchronize()
        return self.needs()

    def needs(self) -> dict[str, int]:
        """By population, the entries per sample that its lists need; if there is less room, the pass is not valid."""
        return {name: int(self._staging[f"{name}, needed"].max(initial=0)) for name in self.shape.rooms}

    def launch_forward(self) -> None:
        """Starts the forward pass, and the way of its results to the host."""
        for name, layer in self.layers.items():
            self._launch_step(layer)
            if name in self.shape.thinned:
                self._launch_thin("thin", layer, 0, self.shape.n_samples)
            for what in ("needed", "lists") if layer.fires else ("potentials",):
                self.device.download_later(self._at[f"{name}, {what}"], self._staging[f"{name}, {what}"])

    def potentials(self, name: str) -> npt.NDArray[np.float32]:
        """[T, B, N] of a readout; valid until the next forward pass."""
        found: npt.NDArray[np.float32] = self._staging[f"{name}, potentials"]
        return found

    def n_spikes(self, name: str) -> int:
        """Spikes of a population in the last forward pass."""
        return int(self._staging[f"{name}, lists"][1].sum(dtype=np.int64))

    def n_dropped(self, name: str) -> int:
        """Candidates that its lists dropped."""
        return int(self._staging[f"{name}, lists"][3:4].sum(dtype=np.int64))

    def lists(self, name: str) -> tuple[SpikeBatch, npt.NDArray[np.int64]]:
        """The lists of a population in the last forward pass, and the places of their entries on the device."""
        begin, n_spikes, n_listed, *dropped = (x.copy() for x in self._staging[f"{name}, lists"])
        at = places(begin, n_listed)
        all_ids = np.empty(self.shape.n_samples * self.shape.rooms[name], np.uint16)
        self.device.download(self._at[f"{name}, ids"], all_ids)
        offsets = np.zeros(self.shape.n_lists + 1, np.int64)
        np.cumsum(n_listed, out=offsets[1:])
        batch = SpikeBatch(
            torch.from_numpy(offsets), torch.from_numpy(all_ids[at]), torch.from_numpy(n_spikes), self.shape.n_steps, self.shape.n_samples,
            self.layers[name].n, dropped=torch.from_numpy(dropped[0]) if dropped else None,
        )  # fmt: skip
        return batch, at

    # ---- backward --------------------------------------------------------------------------------------------------

    def backward(self, d_out: Mapping[str, tuple[npt.NDArray[np.float32], npt.NDArray[np.int64] | None]]) -> None:
        """Computes all gradients.

        Args:
            d_out: by layer, the gradient of the loss: of a readout's potentials [T, B, N], or [1, B, N] for all steps, and None; or of
                the values of a population's lists, and the places of their entries.
        """
        once = False
        given = tuple(name for name in d_out if name in self.saving)
        for name in given:
            gradient, at = d_out[name]
            if at is None:
                once = len(gradient) == 1
                staged = self._pinned(f"{name}, gradient of potentials{once}", gradient.shape, np.float32)
                staged[...] = gradient
                self.device.upload(self._at[f"{name}, gradient of potentials"], staged)
            else:
                staged = self._pinned(
                    f"{name}, gradients of values", (self.shape.n_samples * self.shape.rooms[name],), np.float32
                )
                staged[at] = gradient
                self.device.upload(self._at[f"{name}, gradients of values"], staged)
        self.weights.room_for_gradients(self.shape.n_slots)
        depends_on = given, once, self.weights.n_rooms
        if self._backward is None or self._depends_on != depends_on:
            self._backward = self.device.record(lambda: self.launch_backward(given, once))
            self._depends_on = depends_on
        self._backward()

    def launch_backward(self, given: tuple[str, ...], once: bool) -> None:
        """Starts the backward pass.

        Args:
            given: the layers whose output has a gradient already.
            once: the gradient of potentials is the same at all steps.
        """
        layers = [layer for name, layer in self.layers.items() if name in self.saving][::-1]
        read = {link.pre for layer in layers for link in layer.sources}
        for layer in layers:
            if layer.name not in given and layer.name not in read:
                self._fill_nothing(layer)
        for wave in self.shape.waves:
            arrived = set(given) - set(self.shape.thinned)
            for layer in layers:
                if layer.name in self.shape.thinned:
                    self._launch_thin("thin_grad", layer, wave.first_sample, wave.n_samples, layer.name in given)
                self._launch_step_grad(layer, wave, once)
                if layer.is_given and self.shape.learns_input:
                    self._launch_given_grad(layer, wave, self.source in arrived)
                    arrived.add(self.source)
                for link in layer.sources:
                    if link.pre in self.saving:
                        self._launch_list_grad(layer, wave, link, link.pre in arrived)
                        arrived.add(link.pre)
                for link in layer.links:
                    if self.weights.matrices[layer.name, link.name].learns:
                        self._launch_weight_grad(layer, wave, link)
                self._launch_neuron_grad(layer, wave)
        for name in self.layers:
            for what in _NEURON_GRADIENTS:
                if f"{name}, {what}" in self._at:
                    self.device.download_later(self._at[f"{name}, {what}"], self._staging[f"{name}, {what}"])
        if self.shape.learns_input:
            self.device.download_later(self._at["input, gradient"], self._staging["input, gradient"])
        self.weights.launch_squares()

    def _fill_nothing(self, layer: GpuLayer) -> None:
        """The gradient of a layer whose output nothing reads."""
        name, slots = layer.name, self.shape.n_samples * self.shape.rooms.get(layer.name, 0)
        if layer.fires:
            self.device.fill(self._at[f"{name}, gradients of values"], 4 * slots)
        else:
            self.device.fill(self._at[f"{name}, gradient of potentials"], 4 * self.shape.n_lists * layer.n)

    def _shape_of(self, layer: GpuLayer, what: str) -> tuple[int, ...]:
        if what == "gradient of bias":
            return self.shape.n_groups, layer.n_padded
        return len(layer.learnt), self.shape.n_groups if layer.fires else self.shape.n_samples, layer.n_padded

    def input_gradient(self, given: Currents) -> Tensor:
        """The gradient of given currents, in their shape; after `synchronize`."""
        return torch.from_numpy(self._staging["input, gradient"].copy()).reshape(given.values.shape)

    def neuron_gradients(self, layer: GpuLayer) -> dict[str, Tensor]:
        """The gradients of a layer's bias and trained parameters, float32[N] each; after `synchronize`."""
        found: dict[str, Tensor] = {}
        if f"{layer.name}, gradient of bias" in self._staging:
            found["bias"] = torch.from_numpy(add_groups(self._staging[f"{layer.name}, gradient of bias"])[: layer.n])
        if layer.learnt:
            add = add_groups if layer.fires else add_samples
            sums = self._staging[f"{layer.name}, gradient of parameters"]
            for name, by in zip(layer.learnt, sums, strict=True):
                found[name] = torch.from_numpy(add(by)[: layer.n])
        return found
