"""Which device runs kernels: the GPU that an option names, or the emulated one of the tests."""

from __future__ import annotations

import os

from sparsesnn.engines.gpu.device import Device
from sparsesnn.errors import DeviceError


def open_device(name: str) -> Device:
    """The device called `name`: auto (the first GPU), cuda, cuda:0, …

    With SPARSESNN_GPU=emulated, in a checkout, it is the emulated device.

    Errors: `DeviceError` if there is none, or for another value of SPARSESNN_GPU.
    """
    which = os.environ.get("SPARSESNN_GPU", "")
    if which == "emulated":
        from sparsesnn.engines.gpu.emulated import EmulatedDevice

        return EmulatedDevice()
    if which:
        raise DeviceError(f"SPARSESNN_GPU is {which!r}; allowed: emulated, in a checkout with tests, or not set")
    from sparsesnn.engines.gpu.cuda import CudaDevice

    return CudaDevice(name)
