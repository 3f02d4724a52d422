"""An NVIDIA GPU, by CUDA's driver.

The device works in the primary context, which PyTorch shares, on its own stream. Each call makes the context current and then puts
back the one before, so PyTorch's current device stays, and any thread may call.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparsesnn.engines.gpu import cubins
from sparsesnn.engines.gpu.bindings import (
    OLDEST_CAPABILITY,
    check_driver,
    load_driver,
    load_nvrtc,
    name_of,
    visibility,
)
from sparsesnn.engines.gpu.device import Device, Kernel
from sparsesnn.engines.gpu.nvrtc import architecture_of, compile_source, options, source_files
from sparsesnn.errors import ConfigError, DeviceError, DeviceMemoryError

#: "1": wait after every kernel, so that an error names the one that failed
CHECK_VARIABLE = "SPARSESNN_GPU_CHECK"

#: after these the context is lost, until the process ends
FATAL = frozenset(
    f"CUDA_ERROR_{name}"
    for name in (
        *("ILLEGAL_ADDRESS", "LAUNCH_FAILED", "LAUNCH_TIMEOUT", "ILLEGAL_INSTRUCTION", "MISALIGNED_ADDRESS"),
        *("INVALID_ADDRESS_SPACE", "INVALID_PC", "HARDWARE_STACK_ERROR", "ASSERT", "ECC_UNCORRECTABLE"),
        *("NVLINK_UNCORRECTABLE", "CONTAINED", "EXTERNAL_DEVICE", "CONTEXT_IS_DESTROYED", "UNKNOWN"),
    )
)

#: shared memory that a block may have without asking
PLAIN_SHARED_BYTES = 48 * 1024

#: seconds for which a wait asks again at once; later it sleeps in between
SPIN_S = 0.005


class _Function:
    """A kernel of a loaded module.

    Attributes:
        handle: the driver's.
        shared_bytes: the shared memory that a block may have at present.
    """

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.shared_bytes = PLAIN_SHARED_BYTES


class _Work(NamedTuple):
    """One piece of work for the stream.

    Args:
        start: adds it to the stream.
        kernel, what: of a launch.
        holds: what must live until it has ended.
    """

    start: Callable[[], object]
    kernel: str = ""
    what: str = ""
    holds: object = None


class CudaDevice(Device):
    """A GPU. The number is CUDA's, among the GPUs that this process sees.

    Errors: `ConfigError` if no GPU has this number; `DeviceError` if the GPU or its driver is missing, too old or busy;
    `MissingDependencyError` without the package cuda-bindings.
    """

    def __init__(self, index: int = 0) -> None:
        self._closed = True  # until all is there
        self._driver = load_driver()
        self._pid = os.getpid()
        self.name = f"cuda:{index}"
        self._failure: DeviceError | None = None  # the one that lost the context
        self._since: list[Sequence[_Work]] = []  # work since the last wait
        self._supports = int(self._do("cuDriverGetVersion"))
        _, self._compiler = load_nvrtc()
        check_driver(self._supports, self._compiler)
        self._device = self._find(index)
        model = self._do("cuDeviceGetName", 128, self._device).split(b"\0")[0].decode(errors="replace").strip()
        self.name = f"cuda:{index} ({model})"
        self.capability = self._attribute("COMPUTE_CAPABILITY_MAJOR"), self._attribute("COMPUTE_CAPABILITY_MINOR")
        if self.capability < OLDEST_CAPABILITY:
            raise DeviceError(
                f"device '{self.name}': its compute capability is {self.capability[0]}.{self.capability[1]}; the engine gpu "
                "needs 7.5 or newer (GPUs since 2018: Turing, Ampere, Ada, Hopper, Blackwell); use the engine cpu"
            )
        self.n_processors = self._attribute("MULTIPROCESSOR_COUNT")
        self.shared_bytes = self._attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        self._architecture = architecture_of(self.capability)
        self._checks = _checks()
        self._modules: dict[str, Any] = {}
        self._sizes: dict[int, int] = {}
        self._graphs: list[Any] = []
        self._recording: list[_Work] | None = None
        self._stream: Any = None
        self._context = self._do("cuDevicePrimaryCtxRetain", self._device)
        self._closed = False
        with self._use():
            self._stream = self._do("cuStreamCreate", self._driver.CUstream_flags.CU_STREAM_NON_BLOCKING)

    # ---- kernels ----------------------------------------------------------------------------------------------------

    def compile(self, source: str, defines: Mapping[str, str], kernels: Sequence[str]) -> Mapping[str, Kernel]:
        assert self._recording is None, "compile within record"
        flags = options(self._architecture, defines)
        key = cubins.key(source_files(source), flags, self._compiler)
        with self._use():
            module = self._modules.get(key) or self._load(key, source, defines)
            self._modules[key] = module
            return {
                name: Kernel(name, _Function(self._do("cuModuleGetFunction", module, name.encode())))
                for name in kernels
            }

    def _load(self, key: str, source: str, defines: Mapping[str, str]) -> Any:
        """Loads machine code. Code from the cache that the driver refuses is compiled again, once."""

        def compiled() -> bytes:
            return compile_source(source, self._architecture, defines).cubin

        code, module = self._driver.cuModuleLoadData(cubins.cached(key, compiled))
        if code != 0:
            cubins.forget(key)
            code, module = self._driver.cuModuleLoadData(cubins.cached(key, compiled))
        if code != 0:
            raise self._error(
                code,
                f"the driver (CUDA {self._supports // 1000}.{self._supports % 1000 // 10}) refuses {source}, compiled for "
                f"{self._architecture} by NVRTC {self._compiler[0]}.{self._compiler[1]}; install a newer driver",
            )
        return module

    def launch(
        self, kernel: Kernel, grid: int, block: int, shared_bytes: int, arguments: ctypes.Structure, what: str
    ) -> None:
        if grid == 0:
            return  # which CUDA refuses
        function: _Function = kernel.handle
        copied = type(arguments).from_buffer_copy(arguments)
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(copied))

        def start() -> None:
            if shared_bytes > function.shared_bytes:
                self._raise_shared(kernel, shared_bytes, what)
            size = grid, 1, 1, block, 1, 1, shared_bytes
            code = self._driver.cuLaunchKernel(function.handle, *size, self._stream, ctypes.addressof(pointers), 0)[0]
            if code != 0:
                shape = f"{grid:,} blocks of {block} threads with {shared_bytes:,} bytes of shared memory"
                raise self._error(
                    code, f"the kernel {kernel.name} of {what} does not start ({shape})", kernel.name, what
                )

        self._add(_Work(start, kernel.name, what, (copied, pointers)))

    def _raise_shared(self, kernel: Kernel, shared_bytes: int, what: str) -> None:
        """Lets blocks of a kernel have this much shared memory."""
        if shared_bytes > self.shared_bytes:
            raise DeviceError(
                f"{self.name}: the kernel {kernel.name} of {what} needs {shared_bytes:,} bytes of shared memory a block; "
                f"this GPU gives {self.shared_bytes:,}",
                kernel=kernel.name,
                what=what,
            )
        name = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._do("cuFuncSetAttribute", kernel.handle.handle, name, shared_bytes)
        kernel.handle.shared_bytes = shared_bytes

    # ---- memory -----------------------------------------------------------------------------------------------------

    def allocate(self, n_bytes: int, what: str) -> int:
        assert self._recording is None, "allocate within record"
        with self._use():
            code, address = self._driver.cuMemAlloc(max(n_bytes, 1))
            if name_of(code) == "CUDA_ERROR_OUT_OF_MEMORY":
                free, total = self._do("cuMemGetInfo")
                raise DeviceMemoryError(
                    f"{self.name}: {what} needs {n_bytes:,} bytes; of {total:,} bytes {free:,} are free, and this run holds "
                    f"{sum(self._sizes.values()):,}; take a smaller batch, or end other programs on this GPU "
                    "(PyTorch keeps memory too: torch.cuda.empty_cache())",
                    needed=n_bytes,
                    free=int(free),
                    what=what,
                )
            if code != 0:
                raise self._error(code, f"no memory for {what} ({n_bytes:,} bytes)")
            self._sizes[int(address)] = n_bytes
            return int(address)

    def free(self, address: int) -> None:
        assert self._recording is None, "free within record"
        with self._use():
            self._wait()
            self._do("cuMemFree", address)
            del self._sizes[address]

    def pinned(self, n_bytes: int) -> npt.NDArray[np.uint8]:
        if n_bytes == 0:
            return np.empty(0, np.uint8)
        with self._use():
            code, address = self._driver.cuMemHostAlloc(n_bytes, self._driver.CU_MEMHOSTALLOC_PORTABLE)
            if code != 0:
                raise self._error(
                    code, f"{n_bytes:,} bytes of host memory cannot be locked; free memory, or take a smaller batch"
                )
            return np.asarray(_Pinned(self._driver, self._device, int(address), n_bytes))

    def memory(self) -> tuple[int, int]:
        with self._use():
            free, total = self._do("cuMemGetInfo")
            return int(free), int(total)

    # ---- copies -----------------------------------------------------------------------------------------------------

    def upload(self, address: int, data: npt.NDArray[Any]) -> None:
        host = _address(data)
        if data.nbytes:
            self._add(
                _Work(lambda: self._do("cuMemcpyHtoDAsync", address, host, data.nbytes, self._stream), holds=data)
            )

    def download(self, address: int, into: npt.NDArray[Any]) -> None:
        assert self._recording is None, "download within record"
        self.download_later(address, into)
        self.synchronize()

    def download_later(self, address: int, into: npt.NDArray[Any]) -> None:
        assert into.flags.writeable
        host = _address(into)
        if into.nbytes:
            self._add(
                _Work(lambda: self._do("cuMemcpyDtoHAsync", host, address, into.nbytes, self._stream), holds=into)
            )

    def fill(self, address: int, n_bytes: int) -> None:
        if n_bytes:
            self._add(_Work(lambda: self._do("cuMemsetD8Async", address, 0, n_bytes, self._stream)))

    def copy(self, to: int, source: int, n_bytes: int) -> None:
        if n_bytes:
            self._add(_Work(lambda: self._do("cuMemcpyDtoDAsync", to, source, n_bytes, self._stream)))

    # ---- the stream -------------------------------------------------------------------------------------------------

    def _add(self, work: _Work) -> None:
        if self._recording is not None:
            self._recording.append(work)
            if self._checks:
                return  # a graph could not be checked kernel by kernel: the replay runs the pieces
        with self._use():
            work.start()
            if self._recording is None:
                self._since.append((work,))
                if self._checks:
                    self._wait()

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        assert self._recording is None, "record within record"
        pieces: list[_Work] = []
        with self._use():
            if not self._checks:
                mode = self._driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
                self._do("cuStreamBeginCapture", self._stream, mode)
            self._recording = pieces
            try:
                work()
            except BaseException:
                if not self._checks:
                    code, graph = self._driver.cuStreamEndCapture(self._stream)
                    if code == 0:
                        self._driver.cuGraphDestroy(graph)
                raise
            finally:
                self._recording = None
            if self._checks:
                return lambda: self._replay_pieces(pieces)
            graph = self._do("cuStreamEndCapture", self._stream)
            try:
                executable = self._do("cuGraphInstantiate", graph, 0)
            finally:
                self._driver.cuGraphDestroy(graph)
        self._graphs.append(executable)

        def replay() -> None:
            with self._use():
                self._do("cuGraphLaunch", executable, self._stream)
                self._since.append(pieces)

        weakref.finalize(replay, _forget_graph, weakref.ref(self), executable).atexit = False
        return replay

    def _replay_pieces(self, pieces: Sequence[_Work]) -> None:
        for piece in pieces:
            self._add(piece)

    def synchronize(self) -> None:
        assert self._recording is None, "synchronize within record"
        with self._use():
            self._wait()

    def _wait(self) -> None:
        """Asks until the stream is empty, rather than waiting in the driver, where Ctrl-C could not reach."""
        start, pending = time.perf_counter(), self._driver.CUresult.CUDA_ERROR_NOT_READY
        while (code := self._driver.cuStreamQuery(self._stream)[0]) == pending:
            waited = time.perf_counter() - start
            if waited > SPIN_S:
                time.sleep(waited / 64 if waited < 0.1 else 0.002)
        if code != 0:
            raise self._error(code, "waiting for the GPU failed")
        self._since.clear()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if os.getpid() != self._pid:
            return  # all of it is the parent's
        driver = self._driver
        driver.cuCtxPushCurrent(self._context)
        try:
            if self._stream is not None:
                driver.cuStreamSynchronize(self._stream)
            for graph in self._graphs:
                driver.cuGraphExecDestroy(graph)
            for address in self._sizes:
                driver.cuMemFree(address)
            for module in self._modules.values():
                driver.cuModuleUnload(module)
            if self._stream is not None:
                driver.cuStreamDestroy(self._stream)
        finally:
            driver.cuCtxPopCurrent()
            driver.cuDevicePrimaryCtxRelease(self._device)
            self._sizes.clear()  # and the arrays of work that did not end
            self._since.clear()

    def __del__(self) -> None:
        if not sys.is_finalizing():  # then the process gives everything back
            with suppress(Exception):
                self.close()

    # ---- calls of the driver ----------------------------------------------------------------------------------------

    @contextmanager
    def _use(self) -> Iterator[None]:
        """The context is current within."""
        if self._closed:
            raise DeviceError(f"{self.name}: this device object was closed; open another one")
        if os.getpid() != self._pid:
            raise DeviceError(
                f"{self.name}: was opened by process {self._pid}, from which this one ({os.getpid()}) was forked, and CUDA "
                "does not work after a fork; start processes with multiprocessing's 'spawn', or open the device in the child only"
            )
        if self._failure is not None:
            raise DeviceError(str(self._failure), kernel=self._failure.kernel, what=self._failure.what)
        self._do("cuCtxPushCurrent", self._context)
        try:
            yield
        finally:
            self._driver.cuCtxPopCurrent()

    def _do(self, call: str, *arguments: Any) -> Any:
        """The results of a call without its code: none, one, or a list."""
        code, *results = getattr(self._driver, call)(*arguments)
        if code != 0:
            raise self._error(code, f"{call} failed")
        return results[0] if len(results) == 1 else results or None

    def _error(self, code: Any, attempt: str, kernel: str = "", what: str = "") -> DeviceError:
        """The error for a result of the driver. A kernel's failure appears in any later call, so its name is looked up."""
        name = name_of(code)
        found, text = self._driver.cuGetErrorString(code)
        reason = f"{text.decode(errors='replace')} ({name})" if found == 0 and text else name
        if name not in FATAL:
            return DeviceError(f"{self.name}: {attempt}: {reason}", kernel=kernel, what=what)
        launches = list(dict.fromkeys((x.kernel, x.what) for pieces in self._since for x in pieces if x.kernel))
        kernel, what = launches[0] if len(launches) == 1 else ("", "")
        if not launches:
            culprit = f"{attempt}"
        elif kernel:
            culprit = f"the kernel {kernel} of {what} failed"
        else:
            last = ", ".join(f"{x} of {y}" for x, y in launches[-12:])
            culprit = f"one of the last kernels failed ({last}; set {CHECK_VARIABLE}=1 to learn which one)"
        self._failure = DeviceError(
            f"{self.name}: {culprit}: {reason}; all data of this process on the GPU is lost: start it again, from the last checkpoint",
            kernel=kernel,
            what=what,
        )
        return self._failure

    def _find(self, index: int) -> Any:
        n_devices = int(self._do("cuDeviceGetCount"))
        if index >= n_devices:
            there = {0: "no GPU", 1: "one GPU, cuda:0"}.get(
                n_devices, f"{n_devices} GPUs, cuda:0 to cuda:{n_devices - 1}"
            )
            raise DeviceError(f"device 'cuda:{index}': this process sees {there} ({visibility()})")
        return self._do("cuDeviceGet", index)

    def _attribute(self, name: str) -> int:
        attribute = getattr(self._driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self._do("cuDeviceGetAttribute", attribute, self._device))


class _Pinned:
    """Page-locked host memory, which lives as long as an array of it; it keeps the context for as long."""

    def __init__(self, driver: Any, device: Any, address: int, n_bytes: int) -> None:
        self._driver, self._device, self._pid, self._address = driver, device, os.getpid(), address
        self._context = driver.cuDevicePrimaryCtxRetain(device)[1]
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (n_bytes,), "data": (address, False)}

    def __del__(self) -> None:
        if sys.is_finalizing() or os.getpid() != self._pid:
            return
        self._driver.cuCtxPushCurrent(self._context)
        self._driver.cuMemFreeHost(self._address)
        self._driver.cuCtxPopCurrent()
        self._driver.cuDevicePrimaryCtxRelease(self._device)


def _forget_graph(device: weakref.ref[CudaDevice], executable: Any) -> None:
    """Destroys a graph that is no longer used."""
    owner = device()
    if owner is None or owner._closed or owner._recording is not None:
        return  # `close` destroys it
    with suppress(DeviceError), owner._use():
        owner._wait()
        owner._graphs.remove(executable)
        owner._driver.cuGraphExecDestroy(executable)


def _address(data: npt.NDArray[Any]) -> int:
    assert data.flags.c_contiguous
    return int(data.ctypes.data)


def _checks() -> bool:
    """Whether every kernel is waited for."""
    text = os.environ.get(CHECK_VARIABLE, "")
    if text not in ("", "0", "1"):
        raise ConfigError(
            f"{CHECK_VARIABLE}: is {text!r}; allowed: 1 (wait after every kernel, to name one that fails), 0"
        )
    return text == "1"
