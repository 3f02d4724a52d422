"""Devices of the backend `dense`: lookup by name, peak memory, energy use."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch

from sparsesnn.errors import ConfigError

PRECISIONS = ("float32", "bfloat16", "float16")


def find_device(text: str) -> torch.device:
    """The device called `"cpu"`, or "auto", `"cuda"` (the current one) or `"cuda:1"`.

    Errors: `ConfigError` for another name, or if there is no such device.
    """
    kind, colon, number = text.partition(":")
    if text not in ("auto", "cpu") and (kind != "cuda" or (colon and not number.isdecimal())):
        raise ConfigError(f"device: is {text!r}; allowed: auto, cpu, cuda, cuda:0, cuda:1, …")
    if kind in ("auto", "cpu"):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        why = "was built without CUDA" if torch.version.cuda is None else "finds no CUDA device (driver, visibility?)"
        raise ConfigError(f"device: is {text!r}, but this PyTorch ({torch.__version__}) {why}; use device cpu")
    there = torch.cuda.device_count()
    if number and int(number) >= there:
        raise ConfigError(f"device: is {text!r}, but there are {there} CUDA devices; give cuda:0 to cuda:{there - 1}")
    return torch.device("cuda", int(number) if number else torch.cuda.current_device())


def check_precision(precision: str, place: str = "{}:") -> None:
    """Raises `ConfigError` for an unknown precision; `place`: prefix of the message, with {} for the option's name."""
    if precision not in PRECISIONS:
        raise ConfigError(f"{place.format('precision')} is {precision!r}; allowed: {', '.join(PRECISIONS)}")


def autocast(device: torch.device, precision: str) -> Any:
    """Autocast context: products in a 16-bit precision, state and trained weights in float32; does nothing for float32."""
    if precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, getattr(torch, precision))


def use_precision(device: torch.device, precision: str) -> None:
    """Makes float32 convolutions on CUDA exact, in the whole process: by default PyTorch uses TF32, with 10 of 23 mantissa bits."""
    if device.type == "cuda" and precision == "float32":
        torch.backends.cudnn.allow_tf32 = False


def synchronize(device: torch.device) -> None:
    """Waits until the device has finished its queued work; does nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def device_name(device: torch.device) -> str:
    """The manufacturer's name of a CUDA device, else "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


@contextlib.contextmanager
def peak_memory(device: torch.device) -> Iterator[list[int]]:
    """Measures the peak memory of a CUDA device inside the context, in bytes above the memory in use before: one number, set at the end."""
    found: list[int] = []
    synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    yield found
    synchronize(device)
    found.append(torch.cuda.max_memory_allocated(device) - before)


def joules(device: torch.device) -> float | None:
    """The energy that a device has used since its driver was loaded, in joules; None if it is not measured.

    NVML counts millijoules of whole devices, from Volta on, including the work of other programs.
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
    """NVML and its handle of a PyTorch device: found by UUID, because PyTorch may number only visible devices."""
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
