"""A fake of the package cuda.bindings, for faults: calls give the results that a test asks for, and none computes anything.

test_cuda_bindings.py runs the real package; there is a test that it has every name of this fake.
"""

from __future__ import annotations

import sys
from enum import IntEnum
from types import ModuleType
from typing import Any

import pytest


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NOT_INITIALIZED = 3
    CUDA_ERROR_STUB_LIBRARY = 34
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_IMAGE = 200
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701
    CUDA_ERROR_LAUNCH_FAILED = 719
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901
    CUDA_ERROR_UNKNOWN = 999


class nvrtcResult(IntEnum):  # noqa: N801 - NVIDIA's name
    NVRTC_SUCCESS = 0
    NVRTC_ERROR_COMPILATION = 6


class CUdevice_attribute(IntEnum):  # noqa: N801
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97


class CUfunction_attribute(IntEnum):  # noqa: N801
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8


class CUstream_flags(IntEnum):  # noqa: N801
    CU_STREAM_NON_BLOCKING = 1


class CUstreamCaptureMode(IntEnum):
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1


#: calls that need a current context, and fail for ever once a kernel has
IN_CONTEXT = frozenset(
    (
        *(
            "cuStreamCreate",
            "cuStreamDestroy",
            "cuStreamQuery",
            "cuStreamSynchronize",
            "cuModuleLoadData",
            "cuModuleUnload",
        ),
        *("cuModuleGetFunction", "cuFuncSetAttribute", "cuLaunchKernel", "cuMemAlloc", "cuMemFree", "cuMemHostAlloc"),
        *(
            "cuMemFreeHost",
            "cuMemGetInfo",
            "cuMemcpyHtoDAsync",
            "cuMemcpyDtoHAsync",
            "cuMemcpyDtoDAsync",
            "cuMemsetD8Async",
        ),
        *("cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphInstantiate", "cuGraphLaunch", "cuGraphDestroy"),
        "cuGraphExecDestroy",
    )
)


class FakeCuda:
    """The settings and records of a test.

    Attributes:
        results: the code that a call gives instead of success, by the call's name; a list: in turn, then success.
        kernel_fails: after a launch of this kernel, all calls in the context give its code.
        calls: names of the calls so far.
        n_devices, capability, driver_version, free, compiler: the computer.
    """

    def __init__(self) -> None:
        self.results: dict[str, Any] = {}
        self.kernel_fails: dict[str, CUresult] = {}
        self.calls: list[str] = []
        self.n_devices, self.capability, self.driver_version, self.free = 2, (9, 0), 13000, 5_000_000
        self.compiler = 13, 0
        self.contexts: list[object] = []
        self.retained = 0
        self.sticky: CUresult | None = None
        self.captured: list[str] | None = None
        self.n_compiled = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """`import cuda.bindings.driver` and `.nvrtc` find the fake."""
        modules = {name: ModuleType(name) for name in ("cuda", "cuda.bindings")}
        modules["cuda.bindings"].__version__ = f"{self.compiler[0]}.0.3"  # type: ignore[attr-defined]
        modules["cuda.bindings.driver"] = self._module("cuda.bindings.driver", self._driver())
        modules["cuda.bindings.nvrtc"] = self._module("cuda.bindings.nvrtc", self._nvrtc())
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)

    def _module(self, name: str, calls: dict[str, Any]) -> ModuleType:
        module = ModuleType(name)
        success: IntEnum = nvrtcResult.NVRTC_SUCCESS if name.endswith("nvrtc") else CUresult.CUDA_SUCCESS
        for call, result in calls.items():
            is_call = callable(result) and not isinstance(result, type)
            setattr(module, call, self._call(call, result, success) if is_call else result)
        return module

    def _call(self, name: str, result: Any, success: IntEnum) -> Any:
        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append(name)
            asked = self.results.get(name, success)
            if isinstance(asked, list):
                asked = asked.pop(0) if asked else success
            if isinstance(asked, BaseException):
                raise asked
            if name in IN_CONTEXT and not self.contexts:
                asked = CUresult.CUDA_ERROR_INVALID_CONTEXT
            if name in IN_CONTEXT and self.sticky is not None:
                asked = self.sticky
            values = result(*arguments)
            values = values if isinstance(values, tuple) else () if values is None else (values,)
            return (asked, *values) if asked == success else (asked, *(None for _ in values))

        return call

    def _driver(self) -> dict[str, Any]:
        def attribute(which: CUdevice_attribute, device: int) -> int:
            return {16: 132, 75: self.capability[0], 76: self.capability[1], 97: 232_448}[which]

        def push(context: object) -> None:
            self.contexts.append(context)

        def retain(device: int) -> object:
            self.retained += 1
            return "context"

        def release(device: int) -> None:
            self.retained -= 1

        def launch(function: str, *rest: Any) -> None:
            if self.captured is not None:
                self.captured.append(function)
            else:
                self.sticky = self.kernel_fails.get(function)

        def begin(stream: object, mode: object) -> None:
            self.captured = []

        def end(stream: object) -> Any:
            graph, self.captured = self.captured, None
            return graph

        def run(graph: list[str], stream: object) -> None:
            for function in graph:
                launch(function)

        return {
            **{kind.__name__: kind for kind in (CUresult, CUdevice_attribute, CUfunction_attribute)},
            **{kind.__name__: kind for kind in (CUstream_flags, CUstreamCaptureMode)},
            "CU_MEMHOSTALLOC_PORTABLE": 1,
            "cuInit": lambda flags: None,
            "cuDriverGetVersion": lambda: self.driver_version,
            "cuDeviceGetCount": lambda: self.n_devices,
            "cuDeviceGet": lambda index: index,
            "cuDeviceGetName": lambda size, device: b"Fake".ljust(size, b"\0"),
            "cuDeviceGetAttribute": attribute,
            "cuGetErrorString": lambda code: f"text of {int(code)}".encode(),
            "cuDevicePrimaryCtxRetain": retain,
            "cuDevicePrimaryCtxRelease": release,
            "cuCtxPushCurrent": push,
            "cuCtxPopCurrent": lambda: self.contexts.pop(),
            "cuStreamCreate": lambda flags: "stream",
            "cuStreamDestroy": lambda stream: None,
            "cuStreamQuery": lambda stream: None,
            "cuStreamSynchronize": lambda stream: None,
            "cuModuleLoadData": lambda image: "module",
            "cuModuleUnload": lambda module: None,
            "cuModuleGetFunction": lambda module, name: name.decode(),
            "cuFuncSetAttribute": lambda function, which, value: None,
            "cuLaunchKernel": launch,
            "cuMemAlloc": lambda n_bytes: 4096 * len(self.calls),
            "cuMemFree": lambda address: None,
            "cuMemGetInfo": lambda: (self.free, 10_000_000),
            "cuMemHostAlloc": lambda n_bytes, flags: 4096 * len(self.calls),
            "cuMemFreeHost": lambda address: None,
            "cuMemcpyHtoDAsync": lambda to, source, n_bytes, stream: None,
            "cuMemcpyDtoHAsync": lambda to, source, n_bytes, stream: None,
            "cuMemcpyDtoDAsync": lambda to, source, n_bytes, stream: None,
            "cuMemsetD8Async": lambda to, value, n_bytes, stream: None,
            "cuStreamBeginCapture": begin,
            "cuStreamEndCapture": end,
            "cuGraphInstantiate": lambda graph, flags: list(graph),
            "cuGraphLaunch": run,
            "cuGraphDestroy": lambda graph: None,
            "cuGraphExecDestroy": lambda graph: None,
        }

    def _nvrtc(self) -> dict[str, Any]:
        def compile_program(program: object, n_flags: int, flags: list[bytes]) -> None:
            assert n_flags == len(flags)
            self.n_compiled += 1

        def fill(text: bytes) -> Any:
            def get(program: object, buffer: bytearray) -> None:
                buffer[:] = text

            return get

        out: dict[str, Any] = {
            "nvrtcVersion": lambda: self.compiler,
            "nvrtcGetSupportedArchs": lambda: [75, 80, 86, 89, 90, 100, 120],
            "nvrtcCreateProgram": lambda *arguments: "program",
            "nvrtcDestroyProgram": lambda program: None,
            "nvrtcCompileProgram": compile_program,
        }
        for what, text in (
            ("ProgramLog", b"step.cu(7): error: no such thing\0"),
            ("CUBIN", b"\x7fELF code"),
            ("PTX", b".ptx\0"),
        ):
            out[f"nvrtcGet{what}Size"] = lambda program, text=text: len(text)
            out[f"nvrtcGet{what}"] = fill(text)
        return out
