"""Which device runs kernels: the GPU that an option names, or the emulated one of the tests."""

from __future__ import annotations

import os
import re

from sparsesnn.engines.gpu.device import Device
from sparsesnn.errors import DeviceError

#: names the device that stands in for a GPU
VARIABLE = "SPARSESNN_GPU"


def open_device(name: str) -> Device:
    """The device called `name`: cuda (the first GPU that this process sees), cuda:0, cuda:1, …; cpu, the default of the option that this
    engine shares with others, is the first GPU too.

    With SPARSESNN_GPU=emulated, in a checkout, a CPU runs the kernels, slowly and with checks; for tests.

    Errors: `DeviceError` for another name or another value of SPARSESNN_GPU, and if the device cannot be used;
    `MissingDependencyError` without the package cuda-bindings.
    """
    match = re.fullmatch(r"cpu|cuda(?::([0-9]{1,4}))?", name)
    if match is None:
        raise DeviceError(f"device: is {name!r}, and the engine gpu runs on cuda, cuda:0, cuda:1, …")
    which = os.environ.get(VARIABLE, "")
    if which == "emulated":
        from sparsesnn.engines.gpu.emulated import EmulatedDevice

        return EmulatedDevice()
    if which:
        raise DeviceError(f"{VARIABLE}: is {which!r}; allowed: emulated (in a checkout, for tests), or not set")
    from sparsesnn.engines.gpu.cuda import CudaDevice

    return CudaDevice(int(match[1] or 0))
