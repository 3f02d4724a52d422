"""Forward and backward passes of a network over T steps of B samples: buffers, and the kernels in the order in which they run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsesnn.engines.gpu.arguments import make, structs
from sparsesnn.engines.gpu.device import Device, Kernel
from sparsesnn.engines.gpu.layers import GpuLayer, Link
from sparsesnn.engines.gpu.layout import GROUP, LANES, add_groups, add_samples, leaves, places
from sparsesnn.engines.gpu.weights import DeviceWeights
from sparsesnn.spikes import SpikeBatch

#: entries per sample that lists have room for at first, as a share of N·T
FIRST_ROOM = 0.05
#: the factor on the largest need when room is made
MORE_ROOM = 1.25


def first_room(n: int, n_steps: int) -> int:
    """Entries of a sample's lists that there is room for at first."""
    return min(n * n_steps, max(64, int(FIRST_ROOM * n * n_steps)))


class Passes:
    """The passes of one shape.

    Args:
        device, layers, weights: of the network.
        source: the network's input.
        n_source: its neurons.
        n_steps, n_samples: T, B.
        n_input: entries of the input's lists that there is room for.
        rooms: by population that fires, entries per sample that its lists have room for.
        saves: whether a backward pass may follow.
    """

    def __init__(
        self,
        device: Device,
        layers: Mapping[str, GpuLayer],
        weights: DeviceWeights,
        source: str,
        n_source: int,
        n_steps: int,
        n_samples: int,
        n_input: int,
        rooms: Mapping[str, int],
        saves: bool,
    ) -> None:
        self.device, self.layers, self.weights = device, layers, weights
        self.source, self.n_source = source, n_source
        self.n_steps, self.n_samples, self.n_input, self.rooms, self.saves = (
            n_steps,
            n_samples,
            n_input,
            dict(rooms),
            saves,
        )
        self.n_lists = n_steps * n_samples
        self.n_groups = -(-n_samples // GROUP)
        self.n_words = -(-n_steps * GROUP // 32)
        self.leaves, self.pairs = leaves(self.n_groups)
        self._at: dict[str, int] = {}
        self._staging: dict[str, npt.NDArray[Any]] = {}
        for name, n_bytes in self.buffers().items():
            self._at[name] = device.allocate(n_bytes, name)
        self._kernels = {name: self._compile(layer) for name, layer in layers.items()}
        self._forward: Callable[[], None] | None = None
        self._backward: Callable[[], None] | None = None
        self._given: tuple[str, ...] = ()
        self._once = False
        if saves:
            self._upload_plan()

    # ---- memory ----------------------------------------------------------------------------------------------------

    def buffers(self) -> dict[str, int]:
        """Bytes of each buffer on the device, by name."""
        lists, found = self.n_lists, {}
        found["input, lists"] = 12 * lists
        found["input, ids"] = 2 * self.n_input
        n_words = 0
        for name, layer in self.layers.items():
            learns = len(layer.learnt) if self.saves else 0
            found[f"{name}, numbers"] = 4 * layer.n_numbers * layer.n_padded
            if layer.fires:
                slots = self.n_samples * self.rooms[name]
                found[f"{name}, lists"] = 12 * lists
                found[f"{name}, needed"] = 4 * self.n_samples
                found[f"{name}, ids"] = 2 * slots
                if self.saves:
                    found[f"{name}, fields"] = 4 * slots * layer.n_fields
                    found[f"{name}, gradients of values"] = 8 * slots
            else:
                found[f"{name}, potentials"] = 4 * lists * layer.n
                if self.saves:
                    found[f"{name}, gradient of potentials"] = 4 * lists * layer.n
                    if learns:
                        found[f"{name}, rows"] = 4 * lists * layer.n_padded * (layer.n_states + 1)
            if not self.saves:
                continue
            found[f"{name}, gradient of currents"] = 4 * lists * layer.n_padded
            if layer.has_bias:
                found[f"{name}, gradient of bias"] = 4 * self.n_groups * layer.n_padded
            if learns:
                found[f"{name}, gradient of parameters"] = (
                    4 * learns * layer.n_padded * (self.n_groups if layer.fires else self.n_samples)
                )
            n_words = max([n_words, *(self.n_groups * link.n_pre * self.n_words for link in layer.links)])
        if self.saves:
            found["events by sender"] = 4 * n_words
            found["leaves"] = 4 * len(self.leaves)
            found["pairs of leaves"] = 8 * len(self.pairs)
        return found

    def close(self) -> None:
        """Frees the buffers."""
        for address in self._at.values():
            self.device.free(address)
        self._at = {}

    def _pinned(self, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        """Host memory of this name; the same array each time."""
        if name not in self._staging:
            n_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
            self._staging[name] = self.device.pinned(n_bytes).view(dtype).reshape(shape)
        return self._staging[name]

    def _upload_plan(self) -> None:
        self.device.upload(self._at["leaves"], np.array(self.leaves, np.int32))
        if self.pairs:
            self.device.upload(self._at["pairs of leaves"], np.array(self.pairs, np.int32))
        self.device.synchronize()

    # ---- kernels ---------------------------------------------------------------------------------------------------

    def _compile(self, layer: GpuLayer) -> dict[str, Kernel]:
        macros = layer.macros(len(layer.learnt) if self.saves else 0)
        found = dict(self.device.compile("step.cu", macros, ["step"]))
        if self.saves:
            found |= self.device.compile("step_grad.cu", macros, ["step_grad"])
            found |= self.device.compile(
                "deliver_grad.cu",
                {"COLUMNS": macros["COLUMNS"]},
                ["list_grad", "senders", "weight_grad", "add_leaves", "neuron_grad"],
            )
        return found

    def _lists(self, name: str) -> ctypes.Structure:
        """The lists of a population, as kernels read them."""
        counts, ids = ("input, lists", "input, ids") if name == self.source else (f"{name}, lists", f"{name}, ids")
        at, n_bytes = self._at[counts], 4 * self.n_lists
        return structs("step.cu")["DeviceLists"](at, at + n_bytes, at + 2 * n_bytes, self._at[ids])

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
        return self.weights.matrices[layer.name, link.name].at["weight"]

    def _launch_step(self, layer: GpuLayer) -> None:
        at, name = self._at, layer.name
        kinds = structs("step.cu")
        own: dict[str, int] = {}
        if layer.fires:
            lists = self._lists(name)
            own = {
                "begin": lists.begin, "n_spikes": lists.n_spikes, "n_listed": lists.n_listed, "ids": lists.ids,
                "needed": at[f"{name}, needed"], "fields": at.get(f"{name}, fields", 0), "room": self.rooms[name],
            }  # fmt: skip
        else:
            own = {"potentials": at[f"{name}, potentials"], "rows": at.get(f"{name}, rows", 0)}
        surrogate = layer.surrogate
        arguments = make(
            "step.cu", "StepArgs", **self._numbers(layer), **own,
            sources=[kinds["Source"](self._lists(s.pre), self._weight(layer, s), s.delay, s.n_pre) for s in layer.sources],
            loops=[kinds["Loop"](self._weight(layer, loop), loop.delay) for loop in layer.loops],
            n_sources=len(layer.sources), n_loops=len(layer.loops), n=layer.n, n_tiles=layer.n_tiles, n_steps=self.n_steps,
            n_samples=self.n_samples, surrogate=layer.surrogate_number, saves=int(self.saves), records_x=int(layer.records_x),
            traces_spikes=int(layer.traces_spikes), detaches=int(layer.detaches), slope=surrogate.slope if surrogate else 1.0,
        )  # fmt: skip
        shared = 32 * layer.n_tiles if layer.fires else 0
        self.device.launch(self._kernels[name]["step"], self.n_samples, layer.n_threads, shared, arguments, name)

    def _launch_step_grad(self, layer: GpuLayer, once: bool) -> None:
        at, name = self._at, layer.name
        own: dict[str, Any] = {}
        if layer.fires:
            own = {
                "lists": self._lists(name), "fields": at[f"{name}, fields"], "d_values": at[f"{name}, gradients of values"],
                "d_slots": self._d_slots(name), "room": self.rooms[name],
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
            d_currents=at[f"{name}, gradient of currents"], n_loops=len(layer.loops), n=layer.n, n_tiles=layer.n_tiles,
            n_steps=self.n_steps, n_samples=self.n_samples, records_x=int(layer.records_x), detaches=int(layer.detaches),
        )  # fmt: skip
        shared = 4 * layer.n_padded if layer.fires else 0
        self.device.launch(self._kernels[name]["step_grad"], self.n_samples, layer.n_threads, shared, arguments, name)

    def _d_slots(self, name: str) -> int:
        return self._at[f"{name}, gradients of values"] + 4 * self.n_samples * self.rooms[name]

    def _launch_list_grad(self, layer: GpuLayer, link: Link, adds: bool) -> None:
        arguments = make(
            "deliver_grad.cu", "ListGradArgs", lists=self._lists(link.pre), weight=self._weight(layer, link),
            d_currents=self._at[f"{layer.name}, gradient of currents"], d_values=self._at[f"{link.pre}, gradients of values"],
            n_tiles=layer.n_tiles, n_steps=self.n_steps, n_samples=self.n_samples, delay=link.delay, adds=int(adds),
        )  # fmt: skip
        self.device.launch(
            self._kernels[layer.name]["list_grad"], self.n_lists, 128, 0, arguments, f"{link.pre} -> {layer.name}"
        )

    def _launch_weight_grad(self, layer: GpuLayer, link: Link) -> None:
        matrix = self.weights.matrices[layer.name, link.name]
        kernels, bits = self._kernels[layer.name], self._at["events by sender"]
        self.device.fill(bits, 4 * self.n_groups * link.n_pre * self.n_words)
        arguments = make(
            "deliver_grad.cu", "SendersArgs", lists=self._lists(link.pre), bits=bits, n_pre=link.n_pre, n_steps=self.n_steps,
            n_samples=self.n_samples, delay=link.delay, n_words=self.n_words,
        )  # fmt: skip
        self.device.launch(kernels["senders"], self.n_lists, 32, 0, arguments, matrix.name)
        n_leaves, n_halves = len(self.leaves) - 1, 256 // LANES
        n_blocks = -(-link.n_pre // (2 * n_halves))
        arguments = make(
            "deliver_grad.cu", "WeightGradArgs", bits=bits, d_currents=self._at[f"{layer.name}, gradient of currents"],
            leaves=self._at["leaves"], sums=matrix.at["gradient"], n_pre=link.n_pre, n_tiles=layer.n_tiles, n_steps=self.n_steps,
            n_samples=self.n_samples, n_words=self.n_words, n_blocks=n_blocks,
        )  # fmt: skip
        self.device.launch(kernels["weight_grad"], n_blocks * layer.n_tiles * n_leaves, 256, 0, arguments, matrix.name)
        if self.pairs:
            arguments = make(
                "deliver_grad.cu", "AddLeavesArgs", sums=matrix.at["gradient"], pairs=self._at["pairs of leaves"],
                n_pairs=len(self.pairs), size=matrix.size,
            )  # fmt: skip
            self.device.launch(kernels["add_leaves"], -(-matrix.size // 256), 256, 0, arguments, matrix.name)

    def _launch_neuron_grad(self, layer: GpuLayer) -> None:
        at, name = self._at, layer.name
        n_traces = len(layer.learnt) if layer.fires else 0
        if not n_traces and not layer.has_bias:
            return
        traces = 4 * self.n_samples * self.rooms[name] * (1 + layer.records_x) if layer.fires else 0
        fired = (
            {"lists": self._lists(name), "d_slots": self._d_slots(name), "room": self.rooms[name]}
            if layer.fires
            else {}
        )
        arguments = make(
            "deliver_grad.cu", "NeuronGradArgs", d_currents=at[f"{name}, gradient of currents"], **fired,
            traces=at.get(f"{name}, fields", 0) + traces, d_bias=at.get(f"{name}, gradient of bias", 0),
            d_parameters=at.get(f"{name}, gradient of parameters", 0), n_tiles=layer.n_tiles, n_steps=self.n_steps,
            n_samples=self.n_samples, n_traces=n_traces,
        )  # fmt: skip
        self.device.launch(self._kernels[name]["neuron_grad"], layer.n_tiles * self.n_groups, 64, 0, arguments, name)

    # ---- forward ---------------------------------------------------------------------------------------------------

    def forward(self, spikes: SpikeBatch, numbers: Mapping[str, npt.NDArray[np.float32]]) -> dict[str, int]:
        """Runs all layers. Returns, by population whose lists found no room, the entries per sample that they need.

        Args:
            spikes: the input, checked, with at most `n_input` entries.
            numbers: of each layer, see `GpuLayer.numbers`.
        """
        offsets = spikes.offsets.numpy()
        counts = self._pinned("input, lists", (3, self.n_lists), np.int32)
        counts[0], counts[1], counts[2] = offsets[:-1], spikes.n_spikes.numpy(), np.diff(offsets)
        self.device.upload(self._at["input, lists"], counts)
        ids = self._pinned("input, ids", (self.n_input,), np.uint16)
        n_ids = spikes.ids.numel()
        ids[:n_ids] = spikes.ids.numpy()
        if n_ids:
            self.device.upload(self._at["input, ids"], ids[:n_ids])
        for name, array in numbers.items():
            staged = self._pinned(f"{name}, numbers", array.shape, np.float32)
            staged[...] = array
            self.device.upload(self._at[f"{name}, numbers"], staged)
        if self._forward is None:
            self._forward = self.device.record(self._launch_forward)
        self._forward()
        self.device.synchronize()
        needs = {name: int(self._staging[f"{name}, needed"].max(initial=0)) for name in self.rooms}
        return {name: need for name, need in needs.items() if need > self.rooms[name]}

    def _launch_forward(self) -> None:
        for name, layer in self.layers.items():
            self._launch_step(layer)
            if layer.fires:
                self.device.download_later(
                    self._at[f"{name}, needed"], self._pinned(f"{name}, needed", (self.n_samples,), np.int32)
                )
                self.device.download_later(
                    self._at[f"{name}, lists"], self._pinned(f"{name}, lists", (3, self.n_lists), np.int32)
                )
            else:
                shape = self.n_steps, self.n_samples, layer.n
                self.device.download_later(
                    self._at[f"{name}, potentials"], self._pinned(f"{name}, potentials", shape, np.float32)
                )

    def potentials(self, name: str) -> npt.NDArray[np.float32]:
        """[T, B, N] of a readout; valid until the next forward pass."""
        found: npt.NDArray[np.float32] = self._staging[f"{name}, potentials"]
        return found

    def n_spikes(self, name: str) -> int:
        """Spikes of a population in the last forward pass."""
        return int(self._staging[f"{name}, lists"][1].sum(dtype=np.int64))

    def lists(self, name: str) -> tuple[SpikeBatch, npt.NDArray[np.int64]]:
        """The lists of a population in the last forward pass, and the places of their entries on the device."""
        begin, n_spikes, n_listed = (x.copy() for x in self._staging[f"{name}, lists"])
        at = places(begin, n_listed)
        all_ids = np.empty(self.n_samples * self.rooms[name], np.uint16)
        self.device.download(self._at[f"{name}, ids"], all_ids)
        offsets = np.zeros(self.n_lists + 1, np.int64)
        np.cumsum(n_listed, out=offsets[1:])
        batch = SpikeBatch(
            torch.from_numpy(offsets), torch.from_numpy(all_ids[at]), torch.from_numpy(n_spikes), self.n_steps, self.n_samples,
            self.layers[name].n,
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
        for name, (gradient, at) in d_out.items():
            if at is None:
                once = len(gradient) == 1
                staged = self._pinned(f"{name}, gradient of potentials{once}", gradient.shape, np.float32)
                staged[...] = gradient
                self.device.upload(self._at[f"{name}, gradient of potentials"], staged)
            else:
                staged = self._pinned(f"{name}, gradients of values", (self.n_samples * self.rooms[name],), np.float32)
                staged[at] = gradient
                self.device.upload(self._at[f"{name}, gradients of values"], staged)
        given = tuple(d_out)
        if self.weights.room_for_gradients(len(self.leaves) - 1) or (given, once) != (self._given, self._once):
            self._backward, self._given, self._once = None, given, once
        if self._backward is None:
            self._backward = self.device.record(lambda: self._launch_backward(given, once))
        self._backward()

    def _launch_backward(self, given: tuple[str, ...], once: bool) -> None:
        arrived = set(given)
        for layer in reversed(list(self.layers.values())):
            if layer.name not in arrived:
                self._fill_nothing(layer)
            self._launch_step_grad(layer, once)
            for link in layer.sources:
                if link.pre in self.layers:
                    self._launch_list_grad(layer, link, link.pre in arrived)
                    arrived.add(link.pre)
            for link in layer.links:
                if self.weights.matrices[layer.name, link.name].learns:
                    self._launch_weight_grad(layer, link)
            self._launch_neuron_grad(layer)
            for what in ("gradient of bias", "gradient of parameters"):
                name = f"{layer.name}, {what}"
                if name in self._at:
                    shape = self._shape_of(layer, what)
                    self.device.download_later(self._at[name], self._pinned(name, shape, np.float32))
        self.weights.launch_squares()

    def _fill_nothing(self, layer: GpuLayer) -> None:
        """The gradient of a layer whose output nothing reads."""
        name, slots = layer.name, self.n_samples * self.rooms.get(layer.name, 0)
        if layer.fires:
            self.device.fill(self._at[f"{name}, gradients of values"], 4 * slots)
        else:
            self.device.fill(self._at[f"{name}, gradient of potentials"], 4 * self.n_lists * layer.n)

    def _shape_of(self, layer: GpuLayer, what: str) -> tuple[int, ...]:
        if what == "gradient of bias":
            return self.n_groups, layer.n_padded
        return len(layer.learnt), self.n_groups if layer.fires else self.n_samples, layer.n_padded

    def neuron_gradients(self, layer: GpuLayer) -> dict[str, Tensor]:
        """The gradients of a layer's bias and trained parameters, float32[N] each; after `synchronize`."""
        found: dict[str, Tensor] = {}
        if layer.has_bias:
            found["bias"] = torch.from_numpy(add_groups(self._staging[f"{layer.name}, gradient of bias"])[: layer.n])
        if layer.learnt:
            add = add_groups if layer.fires else add_samples
            sums = self._staging[f"{layer.name}, gradient of parameters"]
            for name, by in zip(layer.learnt, sums, strict=True):
                found[name] = torch.from_numpy(add(by)[: layer.n])
        return found
