"""Opens a device by its name."""

from __future__ import annotations

import os
import re

from sparsesnn.engines.gpu.device import Device
from sparsesnn.errors import ConfigError

#: names the device that stands in for a GPU
VARIABLE = "SPARSESNN_GPU"


def open_device(name: str) -> Device:
    """The device `"cuda"` (the first one that this process sees) or `"cuda:1"`.

    With SPARSESNN_GPU=emulated in the environment a CPU runs the kernels, slowly and with checks, in place of any GPU; for tests.

    Errors: `ConfigError` for another name, or another value of the variable; `DeviceError` if the device cannot be used;
    `MissingDependencyError` if a package is absent.
    """
    match = re.fullmatch(r"cuda(?::([0-9]{1,4}))?", name)
    if match is None:
        raise ConfigError(f"device: is {name!r}; the engine gpu runs on cuda, cuda:0, cuda:1, …")
    kind = os.environ.get(VARIABLE, "")
    if kind == "emulated":
        from sparsesnn.engines.gpu.emulated import EmulatedDevice

        return EmulatedDevice()
    if kind:
        raise ConfigError(
            f"{VARIABLE}: is {kind!r}; allowed: emulated (a CPU in place of the GPU, for tests), or unset"
        )
    from sparsesnn.engines.gpu.cuda import CudaDevice

    return CudaDevice(int(match[1] or 0))
