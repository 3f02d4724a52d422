"""Devices of the backend `dense`: lookup by name, peak memory, energy use."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch

from sparsesnn.errors import ConfigError

#: tf32: float32 rounded to 10 of 23 mantissa bits as products read it, on CUDA alone
PRECISIONS = ("float32", "tf32", "bfloat16", "float16")


def find_device(text: str) -> torch.device:
    """The device called `"cpu"`, `"cuda"` (the current one) or `"cuda:1"`.

    Errors: `ConfigError` for another name, or if there is no such device.
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


def check_precision(precision: str, device: str = "cpu", place: str = "{}:") -> None:
    """Raises `ConfigError` for an unknown precision, or one that the device does not have.

    Args:
        device: its name, for `find_device`.
        place: prefix of the message, with {} for the option's name.
    """
    if precision not in PRECISIONS:
        raise ConfigError(f"{place.format('precision')} is {precision!r}; allowed: {', '.join(PRECISIONS)}")
    if precision == "tf32" and device == "cpu":
        raise ConfigError(
            f"{place.format('precision')} is 'tf32' with device 'cpu', whose products do not have it; allowed there: float32, bfloat16; "
            "use device cuda"
        )


def autocast(device: torch.device, precision: str) -> Any:
    """Autocast context: products in a 16-bit precision, state and trained weights in float32; does nothing for the others."""
    if precision in ("float32", "tf32"):
        return contextlib.nullcontext()
    return torch.autocast(device.type, getattr(torch, precision))


def use_precision(device: torch.device, precision: str) -> None:
    """Sets the precision of float32 products and convolutions on CUDA, in the whole process: exact, or TF32 for "tf32".

    By default PyTorch uses TF32 for convolutions alone. Errors: those of `check_tf32`.
    """
    check_tf32(device, precision)
    if device.type == "cuda" and precision == "tf32":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    elif device.type == "cuda" and precision == "float32":
        torch.backends.cudnn.allow_tf32 = False


def check_tf32(device: torch.device, precision: str) -> None:
    """`ConfigError` for "tf32" on a GPU that does not have it."""
    if precision == "tf32" and device.type == "cuda" and (found := torch.cuda.get_device_capability(device)) < (8, 0):
        raise ConfigError(
            f"precision: is 'tf32', but {device} has compute capability {found[0]}.{found[1]}; TF32 needs 8.0 or newer; use float32 "
            "or bfloat16"
        )


@contextlib.contextmanager
def tf32(precision: str) -> Iterator[None]:
    """Context in which float32 products on CUDA are TF32 if `precision` is "tf32"; afterwards the process has its former setting."""
    if precision != "tf32":
        yield
        return
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    products.allow_tf32 = convolutions.allow_tf32 = True
    try:
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before


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
