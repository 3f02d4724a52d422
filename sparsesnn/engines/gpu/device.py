"""The interface of a device that runs kernels of codelets/gpu: an NVIDIA GPU, or a CPU that stands in for one in tests."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Kernel:
    """A compiled kernel.

    Args:
        name: the function's name.
        handle: the device's own object for it.
    """

    name: str
    handle: Any


class Device(ABC):
    """One device. All work runs in order, on one stream; only `download` and `synchronize` wait for it.

    Addresses are those of the device's memory, as integers: kernels get them in their structs of arguments.

    Attributes:
        name: for messages, such as "cuda:0 (NVIDIA H200)".
        n_processors: streaming multiprocessors.
        shared_bytes: the shared memory that one block may have.
    """

    name: str
    n_processors: int
    shared_bytes: int

    @abstractmethod
    def compile(self, source: str, defines: Mapping[str, str], kernels: Sequence[str]) -> Mapping[str, Kernel]:
        """Compiles one file of codelets/gpu, or takes the result from the cache.

        Args:
            source: the file's name, such as "forward.cu".
            defines: macros.
            kernels: the names of the kernels that are wanted, declared by KERNEL (codelets/gpu/device.h).
        """

    @abstractmethod
    def allocate(self, n_bytes: int, what: str) -> int:
        """Memory, aligned to 256 bytes, not initialized; 0 bytes give an address too.

        Args:
            what: its content, for the message.

        Errors: `DeviceMemoryError` with the bytes that were asked for and those that are free.
        """

    @abstractmethod
    def free(self, address: int) -> None:
        """Gives memory back, after all work so far has ended."""

    @abstractmethod
    def pinned(self, n_bytes: int) -> npt.NDArray[np.uint8]:
        """Host memory from which `upload`, and into which `download_later`, copy without a detour."""

    @abstractmethod
    def upload(self, address: int, data: npt.NDArray[Any]) -> None:
        """Copies a contiguous array to the device. The array may change once the work so far has ended (`synchronize`)."""

    @abstractmethod
    def download(self, address: int, into: npt.NDArray[Any]) -> None:
        """Copies from the device into a contiguous array, and waits for it."""

    @abstractmethod
    def download_later(self, address: int, into: npt.NDArray[Any]) -> None:
        """The same; the array has the numbers after `synchronize`."""

    @abstractmethod
    def fill(self, address: int, n_bytes: int) -> None:
        """Sets memory to zero."""

    @abstractmethod
    def copy(self, to: int, source: int, n_bytes: int) -> None:
        """Copies within the device."""

    @abstractmethod
    def launch(
        self, kernel: Kernel, grid: int, block: int, shared_bytes: int, arguments: ctypes.Structure, what: str
    ) -> None:
        """Starts a kernel.

        Args:
            grid: blocks; 0: nothing runs.
            block: threads in each, a multiple of 32.
            shared_bytes: shared memory of each block.
            arguments: its struct, copied now.
            what: the population or connection that it works for, named in errors.

        Errors: `DeviceError`, now or at the next `download` or `synchronize`, with the kernel and `what`.
        """

    @abstractmethod
    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Records the launches, copies and fills of `work` as one graph; the result runs them again.

        `work` must not download, allocate (`pinned` memory neither) or compile. Uploads and `download_later` read and write the same host memory each time.
        """

    @abstractmethod
    def synchronize(self) -> None:
        """Waits until all work has ended."""

    @abstractmethod
    def memory(self) -> tuple[int, int]:
        """Free and total bytes."""

    @abstractmethod
    def close(self) -> None:
        """Frees all memory and modules of this device object."""
