"""Devices for the check: one that computes nothing, and one that remembers its launches."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

from sparsesnn.engines.gpu import cubins, engine
from sparsesnn.engines.gpu.bindings import load_nvrtc
from sparsesnn.engines.gpu.device import Device, Kernel
from sparsesnn.engines.gpu.nvrtc import compile_source, options, source_files


def replaced(make: Callable[[], Device]) -> AbstractContextManager[Any]:
    """While it holds, the engine opens this device, whatever its name."""
    return mock.patch.object(engine, "open_device", side_effect=lambda name: make())


class Idle(Device):
    """A device that compiles into the cache, and computes nothing: all downloads are zeros.

    Args:
        architecture: to compile for; "": nothing is compiled.
    """

    def __init__(self, architecture: str = "") -> None:
        self.name, self.n_processors, self.shared_bytes = "no device", 132, 232_448
        self.architecture = architecture
        self.next = 256

    def compile(self, source: str, defines: Mapping[str, str], kernels: Sequence[str]) -> Mapping[str, Kernel]:
        if self.architecture:
            key = cubins.key(source_files(source), options(self.architecture, defines), load_nvrtc()[1])
            cubins.cached(key, lambda: compile_source(source, self.architecture, defines).cubin)
        return {name: Kernel(name, None) for name in kernels}

    def allocate(self, n_bytes: int, what: str) -> int:
        address = self.next
        self.next += -(-max(1, n_bytes) // 256) * 256
        return address

    def free(self, address: int) -> None:
        pass

    def pinned(self, n_bytes: int) -> npt.NDArray[np.uint8]:
        return np.zeros(n_bytes, np.uint8)

    def upload(self, address: int, data: npt.NDArray[Any]) -> None:
        pass

    def download(self, address: int, into: npt.NDArray[Any]) -> None:
        into[...] = 0

    def download_later(self, address: int, into: npt.NDArray[Any]) -> None:
        into[...] = 0

    def fill(self, address: int, n_bytes: int) -> None:
        pass

    def copy(self, to: int, source: int, n_bytes: int) -> None:
        pass

    def launch(
        self, kernel: Kernel, grid: int, block: int, shared_bytes: int, arguments: ctypes.Structure, what: str
    ) -> None:
        pass

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        work()
        return lambda: None

    def synchronize(self) -> None:
        pass

    def memory(self) -> tuple[int, int]:
        return 1 << 40, 1 << 40

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Launch:
    """A launch of a kernel: the arguments of `Device.launch`."""

    kernel: Kernel
    grid: int
    block: int
    shared_bytes: int
    arguments: ctypes.Structure
    what: str

    def run(self, device: Device) -> None:
        device.launch(self.kernel, self.grid, self.block, self.shared_bytes, self.arguments, self.what)


class Watched(Device):
    """A device that keeps the launches of graphs, and counts the bytes that are allocated.

    Attributes:
        ran: the launches of the graphs that were replayed, in order; clear it before the step that matters.
        n_bytes, most_bytes: allocated now, and at most.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.name, self.n_processors, self.shared_bytes = device.name, device.n_processors, device.shared_bytes
        self.ran: list[Launch] = []
        self.recording: list[Launch] | None = None
        self.sizes: dict[int, int] = {}
        self.n_bytes = self.most_bytes = 0

    def launch(
        self, kernel: Kernel, grid: int, block: int, shared_bytes: int, arguments: ctypes.Structure, what: str
    ) -> None:
        kept = Launch(kernel, grid, block, shared_bytes, type(arguments).from_buffer_copy(arguments), what)
        (self.ran if self.recording is None else self.recording).append(kept)
        self.device.launch(kernel, grid, block, shared_bytes, arguments, what)

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        recorded: list[Launch] = []
        self.recording = recorded
        try:
            replay = self.device.record(work)
        finally:
            self.recording = None

        def run() -> None:
            self.ran += recorded
            replay()

        return run

    def allocate(self, n_bytes: int, what: str) -> int:
        address = self.device.allocate(n_bytes, what)
        self.sizes[address] = n_bytes
        self.n_bytes += n_bytes
        self.most_bytes = max(self.most_bytes, self.n_bytes)
        return address

    def free(self, address: int) -> None:
        self.device.free(address)
        self.n_bytes -= self.sizes.pop(address)

    def compile(self, source: str, defines: Mapping[str, str], kernels: Sequence[str]) -> Mapping[str, Kernel]:
        return self.device.compile(source, defines, kernels)

    def pinned(self, n_bytes: int) -> npt.NDArray[np.uint8]:
        return self.device.pinned(n_bytes)

    def upload(self, address: int, data: npt.NDArray[Any]) -> None:
        self.device.upload(address, data)

    def download(self, address: int, into: npt.NDArray[Any]) -> None:
        self.device.download(address, into)

    def download_later(self, address: int, into: npt.NDArray[Any]) -> None:
        self.device.download_later(address, into)

    def fill(self, address: int, n_bytes: int) -> None:
        self.device.fill(address, n_bytes)

    def copy(self, to: int, source: int, n_bytes: int) -> None:
        self.device.copy(to, source, n_bytes)

    def synchronize(self) -> None:
        self.device.synchronize()

    def memory(self) -> tuple[int, int]:
        return self.device.memory()

    def close(self) -> None:
        self.device.close()
