"""A CPU that stands in for a GPU in tests: it runs the kernels of codelets/gpu and checks that they keep the rules of a GPU."""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsesnn.engines.gpu.device import Device, Kernel
from sparsesnn.errors import DeviceError, DeviceMemoryError

PACKAGE = Path(__file__).resolve().parents[2]
FLAGS = ("-std=c++20", "-ffp-contract=off", "-fno-strict-aliasing", "-fvisibility=hidden", "-fPIC", "-shared")
UNDEFINED = 0xFF  # undefined_byte of host/src/gpu/device_memory.h

#: one kernel at a time runs in a process: the machine has one set of fibers
_lock = threading.Lock()


class EmulatedDevice(Device):
    """Runs kernels on this CPU, thread by thread, with checks.

    A launch fails at the first access that is out of bounds, misaligned, a race, a read of memory that nothing has written, or a use
    of memory that has been freed, and at divergent barriers, ballots and shuffles. The message names the kernel, the population,
    block, thread, line and element. `close` fails if memory has not been freed. `download_later` copies its numbers at
    `synchronize`; an array must not change between `upload` and `synchronize`. Blocks, warps and lanes run in random order.

    Args:
        seed: for these orders.
        total_bytes: the device's memory.
        sources: the folder that holds `codelets` and `host/src/gpu`; None: the package.

    Errors: `DeviceError` in an installation without the sources of the emulated device.
    """

    def __init__(self, seed: int = 0, total_bytes: int = 4 << 30, sources: Path | None = None) -> None:
        sources = sources or PACKAGE
        if not (sources / "host/src/gpu/emulated.cpp").exists():
            raise DeviceError(
                f"SPARSESNN_GPU=emulated: this installation has no emulated device (no file {sources / 'host/src/gpu/emulated.cpp'}); "
                "it is for tests from a checkout; unset SPARSESNN_GPU to use a GPU"
            )
        self.name, self.n_processors, self.shared_bytes = "emulated GPU", 4, 99 << 10
        self._sources, self._total = sources, total_bytes
        self._library = _load(sources, sources / "host/src/gpu/emulated.cpp", ("-O2",))
        self._machine = self._library.emulated_create(seed)
        self._destroy = weakref.finalize(self, self._library.emulated_destroy, self._machine)
        self._arrays: dict[int, tuple[int, str]] = {}
        self._recorded: list[Callable[[], None]] | None = None
        self._uploaded: list[tuple[npt.NDArray[Any], bytes]] = []
        self._downloaded: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]] = []

    def compile(self, source: str, defines: Mapping[str, str], kernels: Sequence[str]) -> Mapping[str, Kernel]:
        self._not_recorded("compile")
        macros = [f"-D{name}={value}" for name, value in sorted(defines.items())]
        path = self._sources / "codelets" / "gpu" / source
        if not path.exists():
            raise DeviceError(f"{source}: no such file in {path.parent}")
        library = _load(self._sources, path, ("-O1", "-DSPARSESNN_EMULATED", *macros))
        return {name: Kernel(name, _entry(library, source, name)) for name in kernels}

    def allocate(self, n_bytes: int, what: str) -> int:
        self._not_recorded("allocate")
        free = self.memory()[0]
        address = 0 if n_bytes > free else int(self._library.emulated_allocate(self._live(), n_bytes, what.encode()))
        if not address:
            raise DeviceMemoryError(
                f"{what}: needs {n_bytes:,} bytes but the {self.name} has {free:,} left of {self._total:,}; use a smaller batch",
                needed=n_bytes,
                free=free,
                what=what,
            )
        self._arrays[address] = (n_bytes, what)
        return address

    def free(self, address: int) -> None:
        self._not_recorded("free")
        self._ask("free", address)
        del self._arrays[address]

    def pinned(self, n_bytes: int) -> npt.NDArray[np.uint8]:
        self._not_recorded("pinned")
        return np.zeros(n_bytes, np.uint8)

    def upload(self, address: int, data: npt.NDArray[Any]) -> None:
        _check_contiguous(data)

        def work() -> None:
            self._ask("upload", address, data.ctypes.data, data.nbytes)
            self._uploaded.append((data, data.tobytes()))

        self._do(work)

    def download(self, address: int, into: npt.NDArray[Any]) -> None:
        self._not_recorded("download")
        self.synchronize()
        _check_contiguous(into)
        self._ask("download", address, into.ctypes.data, into.nbytes)

    def download_later(self, address: int, into: npt.NDArray[Any]) -> None:
        _check_contiguous(into)

        def work() -> None:
            data = np.empty_like(into)
            self._ask("download", address, data.ctypes.data, data.nbytes)
            self._downloaded.append((into, data))
            into.view(np.uint8)[...] = UNDEFINED

        self._do(work)

    def fill(self, address: int, n_bytes: int) -> None:
        self._do(lambda: self._ask("fill", address, n_bytes))

    def copy(self, to: int, source: int, n_bytes: int) -> None:
        self._do(lambda: self._ask("copy", to, source, n_bytes))

    def launch(
        self, kernel: Kernel, grid: int, block: int, shared_bytes: int, arguments: ctypes.Structure, what: str
    ) -> None:
        copied = bytes(arguments)
        if not 0 <= shared_bytes <= self.shared_bytes:
            message = f"{shared_bytes:,} bytes of shared memory in a block; up to {self.shared_bytes:,} are allowed"
            raise _failed(kernel.name, what, message)
        if grid == 0:
            return
        self._do(lambda: self._run(kernel, grid, block, shared_bytes, copied, what))

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        self._not_recorded("record")
        recorded: list[Callable[[], None]] = []
        self._recorded = recorded
        try:
            work()
        finally:
            self._recorded = None

        def replay() -> None:
            for step in recorded:
                self._do(step)

        return replay

    def synchronize(self) -> None:
        self._not_recorded("synchronize")
        for into, data in self._downloaded:
            into[...] = data
        changed = [data for data, before in self._uploaded if data.tobytes() != before]
        self._downloaded.clear()
        self._uploaded.clear()
        if changed:
            raise DeviceError(
                f"upload: an array of shape {changed[0].shape} and dtype {changed[0].dtype} changed before `synchronize`, "
                "while the device may still have read it"
            )

    def memory(self) -> tuple[int, int]:
        return self._total - sum(n_bytes for n_bytes, _ in self._arrays.values()), self._total

    def close(self) -> None:
        leaked, self._arrays = self._arrays, {}
        self._destroy()
        if leaked:
            names = ", ".join(f"'{what}' ({n_bytes:,} bytes)" for n_bytes, what in leaked.values())
            raise DeviceError(f"{self.name}: closed with {len(leaked)} arrays that have not been freed: {names}")

    def _do(self, work: Callable[[], None]) -> None:
        if self._recorded is None:
            work()
        else:
            self._recorded.append(work)

    def _not_recorded(self, what: str) -> None:
        if self._recorded is not None:
            raise DeviceError(f"{what}: not while work is recorded; call it before or after `record`")

    def _ask(self, name: str, *arguments: int) -> None:
        message = getattr(self._library, f"emulated_{name}")(self._live(), *arguments)
        if message:
            raise DeviceError(f"{name}: {message.decode()}")

    def _run(self, kernel: Kernel, grid: int, block: int, shared_bytes: int, arguments: bytes, what: str) -> None:
        with _lock:
            message = self._library.emulated_launch(
                self._live(), kernel.handle, grid, block, shared_bytes, arguments, len(arguments)
            )
        if message:
            raise _failed(kernel.name, what, message.decode())

    def _live(self) -> Any:
        if not self._destroy.alive:
            raise DeviceError(f"{self.name}: used after it was closed")
        return self._machine


def _failed(kernel: str, what: str, message: str) -> DeviceError:
    return DeviceError(f"kernel '{kernel}' for '{what}': {message}", kernel=kernel, what=what)


def _check_contiguous(data: npt.NDArray[Any]) -> None:
    if not data.flags.c_contiguous:
        raise DeviceError(f"array of shape {data.shape}: is not contiguous; copy it with np.ascontiguousarray")


# ---- compiling -----------------------------------------------------------------------------------------------------

_TYPES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "create": (ctypes.c_void_p, (ctypes.c_uint64,)),
    "destroy": (None, (ctypes.c_void_p,)),
    "allocate": (ctypes.c_uint64, (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_char_p)),
    "free": (ctypes.c_char_p, (ctypes.c_void_p, ctypes.c_uint64)),
    "upload": (ctypes.c_char_p, (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64)),
    "download": (ctypes.c_char_p, (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64)),
    "fill": (ctypes.c_char_p, (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64)),
    "copy": (ctypes.c_char_p, (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)),
    "launch": (
        ctypes.c_char_p,
        (ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int] * 3, ctypes.c_char_p, ctypes.c_int),
    ),
}


def _entry(library: ctypes.CDLL, source: str, name: str) -> int:
    try:
        function = getattr(library, f"sparsesnn_{name}")
    except AttributeError:
        raise DeviceError(f"{source}: has no kernel '{name}'; declare it with KERNEL", kernel=name) from None
    function.restype = ctypes.c_void_p
    return int(function())


def _load(sources: Path, path: Path, flags: Sequence[str]) -> ctypes.CDLL:
    """The shared library of one source, compiled or from the cache."""
    compiler = _compiler()
    command = [*compiler, *FLAGS, *flags, f"-I{sources}", "-x", "c++", str(path)]
    folders = ("host/src/gpu",) if path.suffix == ".cpp" else ("host/src/gpu", "codelets", "codelets/gpu")
    key = hashlib.sha256("\0".join([*compiler, *FLAGS, *flags, _version(tuple(compiler))]).encode())
    for file in [path, *(header for folder in folders for header in sorted((sources / folder).glob("*.h")))]:
        key.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    library = _cache() / f"{path.stem}-{key.hexdigest()[:24]}.so"
    if not library.exists():
        _compile(command, path, library)
    loaded = ctypes.CDLL(str(library))
    for name, (result, arguments) in _TYPES.items():
        if hasattr(loaded, f"emulated_{name}"):
            function = getattr(loaded, f"emulated_{name}")
            function.restype, function.argtypes = result, list(arguments)
    return loaded


def _compile(command: list[str], path: Path, library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent, prefix="compiling-") as folder:
        compiled = Path(folder, library.name)
        result = subprocess.run([*command, "-o", str(compiled)], capture_output=True, text=True, check=False)
        if result.returncode:
            raise DeviceError(f"{path.name}: {command[0]} cannot compile it:\n{result.stderr.strip()}")
        compiled.replace(library)  # whole or not at all, whichever process is the first


def _compiler() -> list[str]:
    names = ("c++", "g++", "clang++")
    command = shlex.split(os.environ.get("CXX", "")) or [name for name in names if shutil.which(name)][:1]
    if not command or not shutil.which(command[0]):
        raise DeviceError(
            f"SPARSESNN_GPU=emulated: no C++ compiler (not found: {command[0] if command else ', '.join(names)}); "
            "install one, or name it in CXX"
        )
    return command


@functools.cache
def _version(compiler: tuple[str, ...]) -> str:
    return subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=True).stdout


def _cache() -> Path:
    """The user's folder of compiled kernels; one of this process if that is not writable."""
    try:
        folder = Path(os.environ.get("SPARSESNN_CACHE") or "~/.cache/sparsesnn").expanduser() / "emulated"
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except (OSError, RuntimeError):  # no such user, or no home
        pass
    return _temporary()


@functools.cache
def _temporary() -> Path:
    folder = tempfile.mkdtemp(prefix="sparsesnn-emulated-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
