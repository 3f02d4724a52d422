"""CUDA's driver and its run-time compiler NVRTC, by NVIDIA's package cuda.bindings. A missing part is reported in one sentence.

Both are loaded on first use: a computer without a GPU, or without a driver, can import everything in this folder.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from sparsesnn.errors import DeviceError, MissingDependencyError

#: what compiles and runs our kernels: Turing, the first with all that they use
OLDEST_CAPABILITY = (7, 5)


def load_driver() -> Any:
    """The module cuda.bindings.driver, after `cuInit`.

    Errors: `MissingDependencyError` without the package; `DeviceError` without a driver, or if it finds no GPU.
    """
    driver = _import("driver")
    try:
        code = driver.cuInit(0)[0]
    except RuntimeError as error:  # the package opens libcuda on the first call
        raise DeviceError(
            f"device 'cuda': there is no NVIDIA driver (libcuda.so.1 cannot be loaded: {error}); install the driver, or "
            "give a container its GPUs (docker run --gpus all); without a GPU use the engine cpu"
        ) from error
    if code != 0:
        raise DeviceError(_no_start(name_of(code)))
    return driver


def load_nvrtc() -> tuple[Any, tuple[int, int]]:
    """The module cuda.bindings.nvrtc, and the version of the compiler.

    Errors: `MissingDependencyError` without the package; `DeviceError` without the compiler's library.
    """
    nvrtc = _import("nvrtc")
    try:
        code, major, minor = nvrtc.nvrtcVersion()
    except RuntimeError as error:
        bindings = importlib.import_module("cuda.bindings").__version__
        major = bindings.partition(".")[0]
        package = "nvidia-cuda-nvrtc-cu12" if major == "12" else f"nvidia-cuda-nvrtc=={major}.*"
        raise DeviceError(
            f"device 'cuda': the compiler NVRTC cannot be loaded ({error}); cuda-bindings {bindings} needs that of CUDA "
            f"{major}: pip install '{package}'"
        ) from error
    if code != 0:
        raise DeviceError(f"device 'cuda': the compiler NVRTC does not start ({name_of(code)}); install it again")
    return nvrtc, (major, minor)


def check_driver(supports: int, compiler: tuple[int, int]) -> None:
    """Raises `DeviceError` if the driver cannot run the compiler's code: the major version of CUDA must not be newer.

    Args:
        supports: the driver's version of CUDA, such as 12080, from `cuDriverGetVersion`.
        compiler: version of NVRTC.
    """
    major, minor = supports // 1000, supports % 1000 // 10
    if major < compiler[0]:
        raise DeviceError(
            f"device 'cuda': the driver is too old: it runs CUDA {major}.{minor}, and the compiler NVRTC is of CUDA "
            f"{compiler[0]}.{compiler[1]}; install a newer driver, or a PyTorch build for CUDA {major} "
            f"(without one: pip install 'cuda-bindings=={major}.*' nvidia-cuda-nvrtc-cu{major})"
        )


def name_of(code: Any) -> str:
    """The name of a result, such as CUDA_ERROR_OUT_OF_MEMORY; codes that the package does not know are numbers."""
    return getattr(code, "name", None) or f"error {int(code)}"


def visibility() -> str:
    """The environment variable that hides GPUs from a process, for messages."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "CUDA_VISIBLE_DEVICES is not set" if visible is None else f"CUDA_VISIBLE_DEVICES is {visible!r}"


def _import(name: str) -> Any:
    try:
        return importlib.import_module(f"cuda.bindings.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "cuda":
            raise
        purpose = "the device 'cuda' (PyTorch's builds with CUDA bring it since 2.10, older ones do not)"
        raise MissingDependencyError("cuda-bindings", "cuda", purpose) from error
    except ImportError as error:
        raise DeviceError(
            f"device 'cuda': the package cuda-bindings is installed, but does not load ({error}); install it again: "
            "pip install --force-reinstall cuda-bindings"
        ) from error


def _no_start(code: str) -> str:
    """Why CUDA does not start."""
    reasons = {
        "CUDA_ERROR_NO_DEVICE": f"the driver finds no GPU ({visibility()}); look with nvidia-smi; without a GPU use the engine cpu",
        "CUDA_ERROR_INSUFFICIENT_DRIVER": "the driver is too old for this GPU or this CUDA; install a newer one",
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "the driver's library is of another version than the running kernel module; restart the computer, or install the matching driver",
        "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE": "the package cuda-compat does not support this GPU; remove it, or install a newer driver",
        "CUDA_ERROR_STUB_LIBRARY": "libcuda.so.1 is the stub of the CUDA toolkit, not a driver; take its folder out of LD_LIBRARY_PATH",
        "CUDA_ERROR_NOT_INITIALIZED": "CUDA was used in the process from which this one was forked; start processes with multiprocessing's 'spawn' instead of 'fork'",
    }
    reason = reasons.get(
        code, "the driver does not start; look with nvidia-smi, and restart the computer if that fails"
    )
    return f"device 'cuda': {reason} ({code})"
