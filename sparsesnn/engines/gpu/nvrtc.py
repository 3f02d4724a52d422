"""Compiles kernels of codelets/gpu with NVRTC, for one architecture; needs no GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsesnn.engines.gpu.bindings import load_nvrtc, name_of
from sparsesnn.errors import DeviceError

#: the folder from which `#include "codelets/…"` starts, in a checkout and in an installed wheel
ROOT = Path(__file__).parents[2]

# The bits of the CPU need no contracted multiply-add, correctly rounded divisions and roots, and subnormal numbers.
OPTIONS = (
    "-default-device",  # functions without __device__: neuron.h knows nothing of CUDA
    "--std=c++20",
    "--fmad=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "--ftz=false",
    "--ptxas-options=-v",  # registers and spills go to the log
)


@dataclass(frozen=True)
class Compiled:
    """A compiled source.

    Args:
        cubin: machine code.
        ptx: the assembly from which it was made.
        log: warnings, and per kernel registers, spills and shared memory.
    """

    cubin: bytes
    ptx: str
    log: str


def source_files(source: str) -> dict[str, bytes]:
    """The text of a file of codelets/gpu and of all files that it includes, by their paths below `ROOT`.

    Files that are absent are left out: they are for other compilers, or this one will miss them.

    Errors: `DeviceError` if there is no such source.
    """
    start = ROOT / "codelets" / "gpu" / source
    if not start.is_file():
        raise DeviceError(f"kernels: {start} is missing; install sparsesnn again")
    texts: dict[str, bytes] = {}
    waiting = [start]
    while waiting:
        path = waiting.pop()
        name = _canonical(path)
        if name in texts or not path.is_file():
            continue
        texts[name] = path.read_bytes()
        for included in re.findall(rb'^\s*#\s*include\s+"([^"]+)"', texts[name], re.MULTILINE):
            near = path.parent / included.decode()
            waiting.append(near if near.is_file() else ROOT / included.decode())
    return dict(sorted(texts.items()))


def _canonical(path: Path) -> str:
    """codelets/gpu/../number.h → codelets/number.h, by names alone: `codelets` may be a link."""
    parts: list[str] = []
    for part in path.relative_to(ROOT).parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def options(architecture: str, defines: Mapping[str, str]) -> list[str]:
    """The compiler's options, without folders.

    Args:
        architecture: such as "sm_90".
        defines: macros.
    """
    macros = [f"-D{name}={value}" for name, value in sorted(defines.items())]
    return [f"--gpu-architecture={architecture}", *OPTIONS, *macros]


def compile_source(source: str, architecture: str, defines: Mapping[str, str]) -> Compiled:
    """Compiles a file of codelets/gpu.

    Args:
        source: the file's name, such as "forward.cu".
        architecture, defines: see `options`.

    Errors: `DeviceError` with the compiler's messages.
    """
    nvrtc, version = load_nvrtc()
    path = ROOT / "codelets" / "gpu" / source
    text = source_files(source)[f"codelets/gpu/{source}"]
    program = _do(nvrtc, "nvrtcCreateProgram", text, str(path).encode(), 0, None, None)
    try:
        flags = [flag.encode() for flag in (*options(architecture, defines), f"--include-path={ROOT}")]
        code = nvrtc.nvrtcCompileProgram(program, len(flags), flags)[0]
        log = _text(nvrtc, program, "ProgramLog").decode(errors="replace")
        if code != 0:
            macros = ", ".join(f"{k}={v}" for k, v in defines.items()) or "no macros"
            raise DeviceError(
                f"kernels: {source} ({macros}) does not compile for {architecture} with NVRTC {version[0]}.{version[1]} "
                f"({name_of(code)}):\n{_first_lines(log)}"
            )
        return Compiled(_text(nvrtc, program, "CUBIN"), _text(nvrtc, program, "PTX").decode(), log)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def architecture_of(capability: tuple[int, int]) -> str:
    """The architecture to compile for: that of the GPU, or the next lower one of the same generation that this NVRTC knows.

    Args:
        capability: the GPU's compute capability.

    Errors: `DeviceError` if there is none.
    """
    nvrtc, version = load_nvrtc()
    known = sorted(divmod(x, 10) for x in _do(nvrtc, "nvrtcGetSupportedArchs"))
    usable = [x for x in known if x[0] == capability[0] and x[1] <= capability[1]]
    if not usable:
        raise DeviceError(
            f"device 'cuda': its compute capability is {capability[0]}.{capability[1]}; NVRTC {version[0]}.{version[1]} compiles for "
            f"{', '.join(f'{major}.{minor}' for major, minor in known)}; install a newer nvidia-cuda-nvrtc, or a newer PyTorch"
        )
    return f"sm_{usable[-1][0]}{usable[-1][1]}"


def _do(nvrtc: Any, call: str, *arguments: Any) -> Any:
    code, *results = getattr(nvrtc, call)(*arguments)
    if code != 0:
        raise DeviceError(f"kernels: NVRTC failed ({call}: {name_of(code)}); install it again")
    return results[0] if results else None


def _text(nvrtc: Any, program: Any, what: str) -> bytes:
    """A result of a compiled program, which NVRTC ends with a zero byte if it is text."""
    buffer = bytearray(_do(nvrtc, f"nvrtcGet{what}Size", program))
    _do(nvrtc, f"nvrtcGet{what}", program, buffer)
    return bytes(buffer) if what == "CUBIN" else bytes(buffer).rstrip(b"\0")


def _first_lines(log: str, most: int = 20) -> str:
    lines = [line for line in log.splitlines() if line.strip()]
    more = f"\n… {len(lines) - most} more lines" if len(lines) > most else ""
    return "\n".join(lines[:most]) + more


@dataclass(frozen=True)
class Use:
    """The resources that one kernel needs of a multiprocessor.

    Args:
        registers: of each thread.
        spilled: bytes of registers that a thread keeps in memory: stores and loads.
        stack: bytes of local memory of a thread, spilled registers included.
        shared: bytes of shared memory of a block, without those that a launch adds.
    """

    registers: int
    spilled: int
    stack: int
    shared: int


def uses(log: str, kernels: Sequence[str] = ()) -> dict[str, Use]:
    """The kernels' needs, from the log of the compiler.

    Args:
        kernels: names that must be there; a missing one is an error of ours.
    """
    found: dict[str, Use] = {}
    for name, part in re.findall(
        r"Compiling entry function '(\w+)'(.*?)(?=Compiling entry function|\Z)", log, re.DOTALL
    ):
        spills = [int(n) for n in re.findall(r"(\d+) bytes spill", part)]
        stack, shared = (re.search(rf"(\d+) bytes {what}", part) for what in ("stack frame", "smem"))
        registers = re.search(r"Used (\d+) registers", part)
        assert registers, f"the compiler's log has another form:\n{log}"
        assert stack, f"the compiler's log has another form:\n{log}"
        found[name] = Use(int(registers[1]), sum(spills), int(stack[1]), int(shared[1]) if shared else 0)
    assert set(kernels) <= set(found), f"the compiler made {sorted(found)}, not {sorted(kernels)}"
    return found
