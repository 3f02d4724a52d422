"""A fake PopART for tests: our custom op, compiled against fake headers, on the emulated machine.

`library()` compiles the sources that a PopTorch user would compile with the SDK (host/src/popart, host/src/ipu, codelets/ipu) with
the emulated machine and tests/fakes/popart/session.cpp in place of Poplar and PopART. `Op` is one custom op with
its gradient op, for given shapes and attributes.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[3]
SOURCES = (
    "host/src/emulator/*.cpp",
    "host/src/machine/openmp.cpp",
    "host/src/machine/thread_pool.cpp",
    "codelets/ipu/*.cpp",
    "host/src/ipu/*.cpp",
    "host/src/popart/*.cpp",
    "tests/fakes/popart/*.cpp",
)
INCLUDES = (".", "host/src/emulator/include", "tests/fakes/popart/include")
HEADERS = ("host/src/**/*.h", "host/src/**/*.hpp", "codelets/**/*.h", "tests/fakes/popart/**/*.hpp")
FLAGS = ("-O1", "-fPIC", "-ffp-contract=off", "-Wall", "-Wextra")
#: the emulated machine of every op: tiles, and when it checks for faults (host/src/emulator/machine.h)
machine = {"tiles": 64, "checks": os.environ.get("FAKE_POPART_CHECKS", "first")}


class PopartError(RuntimeError):
    """PopTorch's exception for errors of PopART or Poplar."""


def build(folder: Path) -> Path:
    """The library, compiled unless the same sources were compiled before."""
    paths = sorted(path for pattern in SOURCES for path in ROOT.glob(pattern))
    sources = [path for path in paths if "_module" not in path.name]  # bindings for Python
    headers = sorted(path for pattern in HEADERS for path in ROOT.glob(pattern))
    compiler = os.environ.get("CXX", "g++")
    key = hashlib.sha256(" ".join([compiler, *FLAGS]).encode())
    for path in [*sources, *headers]:
        key.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    into = folder / key.hexdigest()[:16]
    into.mkdir(parents=True, exist_ok=True)
    library = into / "libfake_popart.so"
    with (into / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several test processes only one compiles
        if library.exists():
            return library
        front = [shutil.which("ccache") or "", compiler]
        command = [*filter(None, front), *FLAGS, *(f"-I{ROOT / include}" for include in INCLUDES)]

        def compile_one(source: Path) -> Path:
            out = into / (str(source.relative_to(ROOT)).replace("/", "_") + ".o")
            # C++17 like the SDK's compiler; our thread pool needs more, and is not part of users' builds
            standard = "-std=c++20" if source.name == "thread_pool.cpp" else "-std=c++17"
            subprocess.run([*command, standard, "-c", str(source), "-o", str(out)], check=True)
            return out

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compile_one, sources))
        part = into / "part.so"
        subprocess.run([compiler, "-shared", "-o", str(part), *map(str, objects), "-pthread"], check=True)
        for path in objects:
            path.unlink()
        part.replace(library)
    return library


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    lib = ctypes.CDLL(str(build(ROOT / "build" / "fakes")))
    pointer, text, whole = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    for name, result, arguments in (
        ("error", text, []),
        ("read", text, [text]),
        ("threads", None, [whole]),
        ("attributes", pointer, []),
        ("put_int", None, [pointer, text, ctypes.c_int64]),
        ("put_float", None, [pointer, text, ctypes.c_float]),
        ("put_string", None, [pointer, text, text]),
        ("put_ints", None, [pointer, text, pointer, ctypes.c_size_t]),
        ("put_floats", None, [pointer, text, pointer, ctypes.c_size_t]),
        ("op", pointer, [text, text, whole, pointer, whole, pointer, pointer, pointer, whole, whole, whole, text]),
        ("delete", None, [pointer]),
        ("out_rank", whole, [pointer, whole]),
        ("out_is_float", whole, [pointer, whole]),
        ("out_dim", ctypes.c_int64, [pointer, whole, whole]),
        ("has_gradient", whole, [pointer, whole]),
        ("tile_bytes", ctypes.c_size_t, [pointer]),
        ("forward", whole, [pointer, pointer, pointer]),
        ("backward", whole, [pointer, pointer, pointer]),
    ):
        function = getattr(lib, f"fake_popart_{name}")
        function.restype, function.argtypes = result, arguments
    lib.fake_popart_threads(1)
    return lib


def _attributes(values: dict[str, Any]) -> int:
    """float → float32, int → int64, str; or lists of one of these."""
    lib = library()
    attributes = lib.fake_popart_attributes()
    for key, value in values.items():
        name = key.encode()
        if isinstance(value, str):
            lib.fake_popart_put_string(attributes, name, value.encode("ascii"))
        elif isinstance(value, int):
            lib.fake_popart_put_int(attributes, name, value)
        elif isinstance(value, float):
            lib.fake_popart_put_float(attributes, name, value)
        elif isinstance(value[0], float):
            lib.fake_popart_put_floats(attributes, name, (ctypes.c_float * len(value))(*value), len(value))
        else:
            lib.fake_popart_put_ints(attributes, name, (ctypes.c_int64 * len(value))(*value), len(value))
    return int(attributes)


class Op:
    """One custom op for inputs of given shapes, compiled for its own emulated IPU.

    Args:
        trains: grow the gradient op too.
    """

    def __init__(
        self, domain: str, name: str, version: int, attributes: dict[str, Any], inputs: list[Tensor], n_outputs: int,
        trains: bool,
    ) -> None:  # fmt: skip
        lib = library()
        dims = [n for x in inputs for n in x.shape]
        self.handle = lib.fake_popart_op(
            domain.encode(),
            name.encode(),
            version,
            _attributes(attributes),
            len(inputs),
            (ctypes.c_int * len(inputs))(*(int(x.dtype == torch.float32) for x in inputs)),
            (ctypes.c_int * len(inputs))(*(x.ndim for x in inputs)),
            (ctypes.c_int64 * len(dims))(*dims),
            n_outputs,
            machine["tiles"],
            int(trains),
            str(machine["checks"]).encode(),
        )
        if not self.handle:
            raise PopartError(lib.fake_popart_error().decode())
        self.n_inputs, self.n_outputs, self.calls = len(inputs), n_outputs, 0

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            library().fake_popart_delete(self.handle)

    def out_like(self, k: int) -> Tensor:
        lib = library()
        shape = [lib.fake_popart_out_dim(self.handle, k, d) for d in range(lib.fake_popart_out_rank(self.handle, k))]
        return torch.empty(shape, dtype=torch.float32 if lib.fake_popart_out_is_float(self.handle, k) else torch.int32)

    def has_gradient(self, k: int) -> bool:
        return bool(library().fake_popart_has_gradient(self.handle, k))

    def tile_bytes(self) -> int:
        """Bytes on the fullest tile."""
        return int(library().fake_popart_tile_bytes(self.handle))

    def forward(self, inputs: list[Tensor]) -> list[Tensor]:
        inputs = [x.detach().contiguous() for x in inputs]
        outputs = [self.out_like(k) for k in range(self.n_outputs)]
        if not library().fake_popart_forward(self.handle, _pointers(inputs), _pointers(outputs)):
            raise PopartError(library().fake_popart_error().decode())
        self.calls += 1
        return outputs

    def backward(self, d_outputs: list[Tensor | None], like: list[Tensor]) -> list[Tensor | None]:
        """Gradients of the inputs that have one; the outputs of the last `forward` are still on the device."""
        d_outputs = [None if d is None else d.detach().contiguous() for d in d_outputs]
        gradients = [torch.empty(x.shape) if self.has_gradient(k) else None for k, x in enumerate(like)]
        if not library().fake_popart_backward(self.handle, _pointers(d_outputs), _pointers(gradients)):
            raise PopartError(library().fake_popart_error().decode())
        return gradients


def _pointers(tensors: list[Any]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*(None if x is None else x.data_ptr() for x in tensors))
