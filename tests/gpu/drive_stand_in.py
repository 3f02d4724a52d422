"""Runs the device `cuda` on the stand-in for NVIDIA's driver, through the real package cuda.bindings; prints "done".

Started by test_cuda_bindings.py with LD_LIBRARY_PATH, because the package looks for libcuda.so.1 once in a process.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from pathlib import Path

import numpy as np

from sparsesnn.engines.gpu import nvrtc
from sparsesnn.engines.gpu.choose import open_device
from sparsesnn.errors import DeviceError, DeviceMemoryError


class ScaleArgs(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint64), ("n", ctypes.c_int32), ("factor", ctypes.c_float)]


def message_of(error: type[Exception], call: object, *arguments: object) -> str:
    try:
        call(*arguments)  # type: ignore[operator]
    except error as raised:
        return str(raised)
    raise AssertionError(f"{call} raised nothing")


def main(sources: str) -> None:
    nvrtc.ROOT = Path(sources)
    library = ctypes.CDLL("libcuda.so.1")
    left = library.stand_in_left
    left.restype = ctypes.c_size_t
    device = open_device("cuda:1")
    assert device.name == "cuda:1 (Stand-in)"
    assert (device.n_processors, device.shared_bytes) == (132, 232448)
    scale = device.compile("scale.cu", {}, ["scale"])["scale"]

    # a launch reads its struct, which may change at once; copies go through both kinds of host memory
    x = np.arange(100, dtype=np.float32)
    address = device.allocate(x.nbytes, "x")
    assert address % 256 == 0
    device.upload(address, x)
    arguments = ScaleArgs(address, 90, 3.0)
    device.launch(scale, 3, 32, 0, arguments, "hidden")
    arguments.factor = 0.0
    device.launch(scale, 0, 32, 0, arguments, "hidden")  # no blocks: nothing
    out = device.pinned(x.nbytes).view(np.float32)
    device.download_later(address, out)
    device.synchronize()
    expected = np.where(x < 90, 3 * x, x)
    np.testing.assert_array_equal(out, expected)

    # a graph: nothing runs while it is recorded; each replay reads the host memory again
    y = np.zeros(50, np.float32)
    other = device.allocate(x.nbytes, "other")

    def work() -> None:
        device.upload(address, x)
        device.launch(scale, 2, 64, 100_000, ScaleArgs(address, 100, 2.0), "out")
        device.fill(other, x.nbytes)
        device.copy(other, address, x.nbytes // 2)
        device.download_later(other, y)

    replay = device.record(work)
    assert not y.any()
    for factor in (1, 10):
        x[:] = factor * np.arange(100)
        replay()
        device.synchronize()
        np.testing.assert_array_equal(y, 2 * x[:50])
    whole = np.ones(100, np.float32)
    device.download(other, whole)
    np.testing.assert_array_equal(whole[50:], 0)

    # errors
    assert "232,449 bytes of shared memory" in message_of(
        DeviceError, device.launch, scale, 1, 32, 232_449, arguments, "hidden"
    )
    assert "kernel scale of hidden does not start (1 blocks of 33 threads" in message_of(
        DeviceError, device.launch, scale, 1, 33, 0, arguments, "hidden"
    )
    assert "cuModuleGetFunction" in message_of(DeviceError, device.compile, "scale.cu", {}, ["shrink"])
    text = message_of(DeviceMemoryError, device.allocate, 1 << 30, "weights of hidden")
    assert "weights of hidden needs 1,073,741,824 bytes" in text
    assert "out of memory" not in text

    free, total = device.memory()
    device.free(other)
    assert device.memory() == (free + x.nbytes, total)
    del replay
    gc.collect()
    device.close()
    device.close()
    assert "closed" in message_of(DeviceError, device.synchronize)
    np.testing.assert_array_equal(out, expected)  # outlives the device
    del out
    gc.collect()
    assert left() == 0, left()
    print("done")


if __name__ == "__main__":
    main(sys.argv[1])
