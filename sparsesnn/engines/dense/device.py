"""Where the backend `dense` runs: a device by its name, its peak memory, the energy it takes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch

from sparsesnn.errors import ConfigError

PRECISIONS = ("float32", "bfloat16", "float16")


def find_device(text: str) -> torch.device:
    """`"cpu"`, `"cuda"` (the current one) or `"cuda:1"` as a device that is there.

    Errors: `ConfigError` for another name, and where there is no such device.
    """
    kind, colon, number = text.partition(":")
    if text != "cpu" and (kind != "cuda" or (colon and not number.isdecimal())):
        raise ConfigError(f"device: is {text!r}; allowed: cpu, cuda, cuda:0, cuda:1, …")
    if kind == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        why = "was built without CUDA" if torch.version.cuda is None else "finds no CUDA device (driver, visibility?)"
        raise ConfigError(f"device: is {text!r}, but this PyTorch ({torch.__version__}) {why}; use device cpu")
    there = torch.cuda.device_count()
    if number and int(number) >= there:
        raise ConfigError(f"device: is {text!r}, but there are {there} CUDA devices; give cuda:0 to cuda:{there - 1}")
    return torch.device("cuda", int(number) if number else torch.cuda.current_device())


def check_precision(precision: str, place: str = "{}:") -> None:
    """`ConfigError` for a precision that does not exist; `place`: for the message, with {} where the option's name goes."""
    if precision not in PRECISIONS:
        raise ConfigError(f"{place.format('precision')} is {precision!r}; allowed: {', '.join(PRECISIONS)}")


def autocast(device: torch.device, precision: str) -> Any:
    """Products in a precision of 16 bits, state and weights that learn in float32; nothing for float32."""
    if precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, getattr(torch, precision))


def use_precision(device: torch.device, precision: str) -> None:
    """Lets convolutions in float32 on CUDA be that, in the whole process: PyTorch takes TF32 for them, with 10 bits of 23."""
    if device.type == "cuda" and precision == "float32":
        torch.backends.cudnn.allow_tf32 = False


def synchronize(device: torch.device) -> None:
    """Waits until the device has done what it was told; a CPU has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def device_name(device: torch.device) -> str:
    """What the maker calls it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


@contextlib.contextmanager
def peak_memory(device: torch.device) -> Iterator[list[int]]:
    """The highest memory of a CUDA device within, in bytes above what was held before: one number, set at the end."""
    found: list[int] = []
    synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    yield found
    synchronize(device)
    found.append(torch.cuda.max_memory_allocated(device) - before)


def joules(device: torch.device) -> float | None:
    """The energy that a device has taken since its driver was loaded; None where nobody counts.

    NVML counts whole devices in millijoules, from Volta on; other programs' work on the device is in it.
    """
    if device.type != "cuda":
        return None
    handle = _nvml_handle(device.index or 0)
    if handle is None:
        return None
    nvml, of = handle
    try:
        return float(nvml.nvmlDeviceGetTotalEnergyConsumption(of)) / 1e3
    except nvml.NVMLError:
        return None


@functools.cache
def _nvml_handle(index: int) -> tuple[Any, Any] | None:
    """NVML and its name for a device of PyTorch's: by the device's UUID, since PyTorch may count only visible ones."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(index).uuid)
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
    except (pynvml.NVMLError, AttributeError):
        return None
