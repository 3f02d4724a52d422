"""Each fault of a GPU, its driver or its compiler is one clear sentence; without a GPU, on a fake of cuda.bindings."""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_cuda import CUresult, FakeCuda, nvrtcResult

from sparsesnn.engines.gpu.choose import open_device
from sparsesnn.engines.gpu.device import Device, Kernel
from sparsesnn.errors import ConfigError, DeviceError, DeviceMemoryError, MissingDependencyError


class Arguments(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint64), ("n", ctypes.c_int32)]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeCuda:
    """A computer with two GPUs, as cuda.bindings sees it."""
    fake = FakeCuda()
    fake.install(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sparsesnn.engines.gpu.cubins._warned", False)
    for name in ("SPARSESNN_GPU", "SPARSESNN_GPU_CHECK", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return fake


@pytest.fixture
def device(cuda: FakeCuda) -> Iterator[Device]:
    opened = open_device("cuda:0")
    yield opened
    opened.close()


def kernels(device: Device) -> dict[str, Kernel]:
    return dict(device.compile("step.cu", {}, ["step", "list_grad"]))


def launch(device: Device, kernel: Kernel, what: str) -> None:
    device.launch(kernel, 4, 64, 0, Arguments(), what)


def test_the_fake_has_the_names_of_the_package(cuda: FakeCuda) -> None:
    fakes = {name: sys.modules.pop(f"cuda.bindings.{name}") for name in ("driver", "nvrtc")}
    for name in ("cuda", "cuda.bindings"):
        sys.modules.pop(name)
    for name, fake in fakes.items():
        real: Any = pytest.importorskip(f"cuda.bindings.{name}", reason="the package cuda-bindings is not installed")
        for key in [key for key in vars(fake) if not key.startswith("__")]:
            assert hasattr(real, key), key
            if isinstance(getattr(fake, key), type):
                assert {x.name: int(x) for x in getattr(fake, key)}.items() <= {
                    x.name: int(x) for x in getattr(real, key)
                }.items()


def test_names_of_devices(cuda: FakeCuda) -> None:
    for name, wanted in {"cpu": "cuda:0", "cuda": "cuda:0", "cuda:1": "cuda:1"}.items():
        device = open_device(name)
        assert device.name == f"{wanted} (Fake)"
        assert (device.n_processors, device.shared_bytes) == (132, 232_448)
        device.close()
    assert cuda.retained == 0
    assert cuda.contexts == []


@pytest.mark.parametrize("name", ["cpu:0", "cuda:", "cuda:-1", "cuda:x", "cuda:00000", "gpu", ""])
def test_other_names_are_refused(cuda: FakeCuda, name: str) -> None:
    with pytest.raises(DeviceError, match=f"device: is '{name}'.*cuda:0"):
        open_device(name)


def test_other_values_of_variables_are_refused(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSESNN_GPU_CHECK", "yes")
    with pytest.raises(ConfigError, match="SPARSESNN_GPU_CHECK: is 'yes'; allowed: 1"):
        open_device("cuda")
    monkeypatch.setenv("SPARSESNN_GPU", "emulate")
    with pytest.raises(DeviceError, match="SPARSESNN_GPU: is 'emulate'; allowed: emulated"):
        open_device("cuda")


# ---- packages, driver, compiler ------------------------------------------------------------------------------------


def test_no_package(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = importlib.import_module

    def missing(name: str) -> Any:
        if name.startswith("cuda"):
            raise ModuleNotFoundError(f"No module named {name!r}", name="cuda")
        return real_import(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(MissingDependencyError, match=r"2\.10.*'cuda-bindings'.*pip install 'sparsesnn\[cuda\]'"):
        open_device("cuda")


def test_a_package_that_does_not_load(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> Any:
        raise ImportError("libstdc++.so.6: version GLIBCXX_3.4.32 not found")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(DeviceError, match=r"cuda-bindings is installed, but does not load .*GLIBCXX_3.4.32"):
        open_device("cuda")


def test_no_driver(cuda: FakeCuda) -> None:
    cuda.results["cuInit"] = RuntimeError("Failed to dlopen libcuda.so.1")
    with pytest.raises(DeviceError, match=r"no NVIDIA driver .*libcuda.so.1.*install the driver.*engine cpu"):
        open_device("cuda")


def test_no_gpu(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda.results["cuInit"] = CUresult.CUDA_ERROR_NO_DEVICE
    with pytest.raises(DeviceError, match=r"finds no GPU \(CUDA_VISIBLE_DEVICES is not set\).*CUDA_ERROR_NO_DEVICE"):
        open_device("cuda")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    with pytest.raises(DeviceError, match="CUDA_VISIBLE_DEVICES is '7'"):
        open_device("cuda")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (CUresult.CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "another version than the running kernel module"),
        (CUresult.CUDA_ERROR_STUB_LIBRARY, "stub.*LD_LIBRARY_PATH"),
        (CUresult.CUDA_ERROR_NOT_INITIALIZED, "forked.*'spawn'"),
        (CUresult.CUDA_ERROR_UNKNOWN, "does not start; look with nvidia-smi"),
    ],
)
def test_a_driver_that_does_not_start(cuda: FakeCuda, code: CUresult, words: str) -> None:
    cuda.results["cuInit"] = code
    with pytest.raises(DeviceError, match=f"{words}.*{code.name}"):
        open_device("cuda")


def test_no_such_gpu(cuda: FakeCuda) -> None:
    with pytest.raises(DeviceError, match=r"'cuda:2': this process sees 2 GPUs, cuda:0 to cuda:1"):
        open_device("cuda:2")
    cuda.n_devices = 1
    with pytest.raises(DeviceError, match=r"'cuda:1': this process sees one GPU, cuda:0"):
        open_device("cuda:1")


def test_an_old_driver(cuda: FakeCuda) -> None:
    cuda.driver_version = 12080
    with pytest.raises(
        DeviceError, match=r"too old: it runs CUDA 12\.8, .*NVRTC is of CUDA 13\.0.*cuda-bindings==12\.\*"
    ):
        open_device("cuda")


def test_a_driver_of_the_same_generation_is_enough(cuda: FakeCuda) -> None:
    cuda.compiler = 13, 5
    open_device("cuda").close()


def test_no_compiler(cuda: FakeCuda) -> None:
    cuda.results["nvrtcVersion"] = RuntimeError("Failed to dlopen libnvrtc.so.13")
    with pytest.raises(
        DeviceError, match=r"NVRTC cannot be loaded .*libnvrtc.so.13.*pip install 'nvidia-cuda-nvrtc==13\.\*'"
    ):
        open_device("cuda")


def test_an_old_gpu(cuda: FakeCuda) -> None:
    cuda.capability = 7, 0
    with pytest.raises(DeviceError, match=r"cuda:0 \(Fake\).*capability is 7\.0.*7\.5 or newer.*engine cpu"):
        open_device("cuda")


def test_a_gpu_newer_than_the_compiler(cuda: FakeCuda) -> None:
    """Of a known generation the next lower architecture is taken, whose code runs there."""
    cuda.capability = 9, 7
    device: Any = open_device("cuda")
    assert device._architecture == "sm_90"
    cuda.capability = 13, 0
    with pytest.raises(
        DeviceError, match=r"capability is 13\.0; NVRTC 13\.0 compiles for 7\.5, .*newer nvidia-cuda-nvrtc"
    ):
        open_device("cuda")


def test_a_source_that_does_not_compile(cuda: FakeCuda, device: Device) -> None:
    cuda.results["nvrtcCompileProgram"] = nvrtcResult.NVRTC_ERROR_COMPILATION
    with pytest.raises(
        DeviceError, match=r"step.cu \(COLUMNS=4\) does not compile for sm_90 with NVRTC 13\.0.*\n.*no such thing"
    ):
        device.compile("step.cu", {"COLUMNS": "4"}, ["step"])
    with pytest.raises(DeviceError, match=r"steps\.cu is missing"):
        device.compile("steps.cu", {}, ["step"])


def test_code_that_the_driver_refuses_is_compiled_again_once(cuda: FakeCuda, device: Device) -> None:
    """A file of the cache may be whole, and yet not run on this driver."""
    kernels(device)
    assert cuda.n_compiled == 1
    cuda.results["cuModuleLoadData"] = [CUresult.CUDA_ERROR_INVALID_IMAGE]
    other = open_device("cuda:1")
    kernels(other)
    assert cuda.n_compiled == 2
    other.close()
    cuda.results["cuModuleLoadData"] = CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU
    another = open_device("cuda:1")
    with pytest.raises(
        DeviceError, match=r"driver \(CUDA 13\.0\) refuses step\.cu, compiled for sm_90 by NVRTC 13\.0.*newer driver"
    ):
        kernels(another)
    another.close()


# ---- memory --------------------------------------------------------------------------------------------------------


def test_out_of_memory(cuda: FakeCuda, device: Device) -> None:
    device.allocate(1000, "ids of hidden")
    cuda.results["cuMemAlloc"] = CUresult.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(
        DeviceMemoryError, match=r"weights of hidden needs 6,000,000 bytes; of 10,000,000.* 5,000,000 are free, .*1,000"
    ) as raised:
        device.allocate(6_000_000, "weights of hidden")
    assert (raised.value.needed, raised.value.free, raised.value.what) == (6_000_000, 5_000_000, "weights of hidden")
    cuda.results["cuMemHostAlloc"] = CUresult.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(DeviceError, match=r"6,000 bytes of host memory cannot be locked"):
        device.pinned(6000)


def test_a_device_gives_everything_back(cuda: FakeCuda) -> None:
    device = open_device("cuda")
    device.allocate(10, "x")
    step = kernels(device)["step"]
    replay = device.record(lambda: launch(device, step, "hidden"))
    kept = device.pinned(10)
    device.close()
    assert [cuda.calls.count(x) for x in ("cuMemFree", "cuModuleUnload", "cuGraphExecDestroy", "cuStreamDestroy")] == [
        1,
        1,
        1,
        1,
    ]
    assert cuda.retained == 1  # for the pinned memory
    assert "cuMemFreeHost" not in cuda.calls
    with pytest.raises(DeviceError, match=r"cuda:0 \(Fake\): this device object was closed"):
        device.memory()
    with pytest.raises(DeviceError, match="closed"):
        replay()
    del kept
    gc.collect()
    assert "cuMemFreeHost" in cuda.calls
    assert cuda.retained == 0
    assert cuda.contexts == []


# ---- kernels that fail ---------------------------------------------------------------------------------------------


def test_a_kernel_that_does_not_start(cuda: FakeCuda, device: Device) -> None:
    step = kernels(device)["step"]
    cuda.results["cuLaunchKernel"] = CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
    with pytest.raises(
        DeviceError,
        match=r"kernel step of hidden does not start \(4 blocks of 64 threads.*CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
    ) as raised:
        launch(device, step, "hidden")
    assert (raised.value.kernel, raised.value.what) == ("step", "hidden")
    cuda.results.clear()
    launch(device, step, "hidden")  # such a failure does no harm
    device.synchronize()


def test_a_kernel_that_fails_is_named(cuda: FakeCuda, device: Device) -> None:
    step = kernels(device)["step"]
    cuda.kernel_fails["step"] = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    launch(device, step, "hidden")
    for call in (device.synchronize, device.synchronize, lambda: device.allocate(8, "x")):  # the context stays lost
        with pytest.raises(
            DeviceError,
            match=r"kernel step of hidden failed: text of 700 \(CUDA_ERROR_ILLEGAL_ADDRESS\).*start it again",
        ) as raised:
            call()
        assert (raised.value.kernel, raised.value.what) == ("step", "hidden")


def test_one_of_several_kernels_failed(cuda: FakeCuda, device: Device) -> None:
    """Without a wait in between it may be any of them, but none from before the last wait."""
    made = kernels(device)
    launch(device, made["list_grad"], "before")
    device.synchronize()
    launch(device, made["list_grad"], "out")
    cuda.kernel_fails["step"] = CUresult.CUDA_ERROR_LAUNCH_FAILED
    launch(device, made["step"], "hidden")
    with pytest.raises(
        DeviceError,
        match=r"one of the last kernels failed \(list_grad of out, step of hidden; set SPARSESNN_GPU_CHECK=1",
    ) as raised:
        device.download(4096, np.zeros(4))
    assert (raised.value.kernel, raised.value.what) == ("", "")


@pytest.mark.parametrize("graph", [False, True])
def test_with_checks_it_is_named_exactly(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, graph: bool) -> None:
    monkeypatch.setenv("SPARSESNN_GPU_CHECK", "1")
    device = open_device("cuda")
    made = kernels(device)
    cuda.kernel_fails["step"] = CUresult.CUDA_ERROR_LAUNCH_FAILED

    def work() -> None:
        launch(device, made["list_grad"], "out")
        launch(device, made["step"], "hidden")
        launch(device, made["list_grad"], "after")

    run = device.record(work) if graph else work
    with pytest.raises(DeviceError, match="kernel step of hidden failed") as raised:
        run()
    assert raised.value.kernel == "step"
    device.close()


def test_a_failure_within_a_graph_names_its_kernels(cuda: FakeCuda, device: Device) -> None:
    made = kernels(device)

    def work() -> None:
        launch(device, made["list_grad"], "out")
        launch(device, made["step"], "hidden")

    replay = device.record(work)
    replay()
    device.synchronize()
    cuda.kernel_fails["step"] = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    replay()
    with pytest.raises(DeviceError, match=r"\(list_grad of out, step of hidden; set"):
        device.synchronize()


def test_an_error_while_recording_ends_the_recording(cuda: FakeCuda, device: Device) -> None:
    def work() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        device.record(work)
    assert cuda.captured is None
    assert cuda.calls[-2:] == ["cuGraphDestroy", "cuCtxPopCurrent"]
    device.synchronize()  # which is refused while work is recorded


def test_graphs_that_nobody_can_run_are_destroyed(cuda: FakeCuda, device: Device) -> None:
    replay = device.record(lambda: device.fill(4096, 8))
    del replay
    gc.collect()
    assert "cuGraphExecDestroy" in cuda.calls
    device.close()
    assert cuda.calls.count("cuGraphExecDestroy") == 1


# ---- processes and signals -----------------------------------------------------------------------------------------


def test_ctrl_c_reaches_a_process_that_waits(cuda: FakeCuda, device: Device) -> None:
    """A kernel that never ends does not block the process."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    cuda.results["cuStreamQuery"] = CUresult.CUDA_ERROR_NOT_READY
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        device.synchronize()
    assert time.monotonic() - start < 20
    timer.join()
    signal.signal(signal.SIGINT, before)
    cuda.results.clear()
    device.synchronize()
    assert cuda.contexts == []


def test_use_after_a_fork(cuda: FakeCuda, device: Device, capfd: pytest.CaptureFixture[str]) -> None:
    pinned = device.pinned(8)
    calls = len(cuda.calls)
    child = os.fork()
    if child == 0:  # nothing of pytest may run here
        status = 1
        try:
            device.synchronize()
        except DeviceError as error:
            os.write(1, str(error).encode())
            device.close()
            del pinned
            status = 0 if len(cuda.calls) == calls else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert status == 0
    text = capfd.readouterr().out
    assert f"was opened by process {os.getpid()}" in text
    assert "'spawn'" in text
    device.synchronize()
