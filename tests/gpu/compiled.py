"""Compiles the kernels of codelets/gpu with NVRTC, which needs no GPU, and rewrites kernels.csv, the resources of a GPU that each one needs.

    python tests/gpu/compiled.py          needs the packages cuda-bindings and nvidia-cuda-nvrtc in .ci/constraints.txt's versions

Registers differ between versions of the compiler, so the table names the one that made it.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path

from sparsesnn.engines.gpu.bindings import load_nvrtc
from sparsesnn.engines.gpu.nvrtc import Compiled, compile_source, uses

TABLE = Path(__file__).with_name("kernels.csv")

#: GPUs: A100; RTX 30; RTX 40, L4, L40; H100, H200; RTX 50
ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_120")

#: on these every variant is compiled, on the others the first ones of each source
WHOLE, FEW = "sm_90", 3

SHAPES = {
    "Subtract": 1,
    "Readout": 0,
    "Any<4>": 1,
    "Zero": 1,
    "Any<1>": 1,
    "Current<false>": 1,
    "Current<true>": 1,
    "Rotating": 1,
    "Adaptive<false>": 1,
    "Adaptive<true>": 1,
    "Any<2>": 1,
    "Any<3>": 1,
}


def _neurons(
    shape: str, columns: int = 4, rounds: int = 1, traces: int = 0, threads: int = 256, capacity: int = 0
) -> dict[str, str]:
    macros = {
        "SHAPE": shape,
        "COLUMNS": columns,
        "ROUNDS": rounds,
        "TRACES": traces,
        "FIRES": SHAPES[shape],
        "CAPACITY": capacity,
        "THREADS": threads,
    }
    return {name: str(value) for name, value in macros.items()}


#: weights that are read as bfloat16
BF16 = {"WEIGHT": "uint16"}

#: macros with which each source is compiled (`GpuLayer.macros`)
VARIANTS: dict[str, list[dict[str, str]]] = {
    **{
        source: [
            *(_neurons(shape) for shape in SHAPES),
            *(_neurons("Subtract", columns) for columns in (1, 2)),
            *(_neurons("Subtract", threads=threads) for threads in (512, 1024)),
            *(_neurons("Subtract", rounds=rounds, threads=1024) for rounds in (2, 4)),
            *(_neurons(shape, traces=1) for shape in ("Subtract", "Readout", "Adaptive<true>")),
            _neurons("Current<false>", traces=2),
            *(_neurons(shape, capacity=1) for shape in ("Subtract", "Zero", "Adaptive<true>")),
            *(_neurons("Subtract", rounds=rounds, threads=1024, capacity=1) for rounds in (1, 2, 4)),
            *({**_neurons("Subtract", columns), **BF16} for columns in (4, 2, 1)),
            {**_neurons("Readout"), **BF16},
            *({**_neurons(shape), "GIVEN": "1"} for shape in ("Subtract", "Readout") if source == "step.cu"),
        ]
        for source in ("step.cu", "step_grad.cu")
    },
    "deliver_grad.cu": [{"COLUMNS": columns, **more} for more in ({}, BF16) for columns in ("4", "2", "1")],
    "dropout.cu": [{}],
    "loss.cu": [{}],
    "update.cu": [{}],
}


@dataclass(frozen=True)
class Row:
    """A line of the table; see `sparsesnn.engines.gpu.nvrtc.Use`."""

    kernel: str
    macros: str
    architecture: str
    registers: int
    spilled: int
    stack: int
    shared: int


def variants(source: str, architecture: str) -> list[dict[str, str]]:
    """The macros with which a source is compiled for an architecture."""
    return VARIANTS[source][: None if architecture == WHOLE else FEW]


def rows_of(architecture: str, defines: Mapping[str, str], compiled: Compiled) -> Iterator[Row]:
    """The lines of one compiled source."""
    for kernel, use in sorted(uses(compiled.log).items()):
        yield Row(kernel, text_of(defines), architecture, *astuple(use))


def text_of(defines: Mapping[str, str]) -> str:
    """Macros, as the table has them."""
    return " ".join(f"{name}={value}" for name, value in defines.items())


def kernels_of(text: str) -> list[str]:
    """The names of the kernels in a source."""
    return re.findall(r"^KERNEL\((\w+),", text, re.MULTILINE)


def contracted(ptx: str) -> list[str]:
    """Instructions of floating-point numbers that are a contracted multiply-add, or that the assembler may contract to one."""
    loose = re.compile(r"\b(fma\.|mad\.[a-z.]*f(32|64)|(mul|add|sub)\.(ftz\.)?f(32|64))")
    return [line.strip() for line in ptx.splitlines() if loose.search(line)]


def read_table() -> tuple[str, dict[tuple[str, str, str], Row]]:
    """The compiler that made the table, and its lines by kernel, macros and architecture."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        version = file.readline().removeprefix("# NVRTC ").strip()
        rows = [
            Row(
                x["kernel"],
                x["macros"],
                x["architecture"],
                *(int(x[name]) for name in ("registers", "spilled", "stack", "shared")),
            )
            for x in csv.DictReader(file)
        ]
    return version, {(x.kernel, x.macros, x.architecture): x for x in rows}


def compiler() -> str:
    """The version of NVRTC that is installed."""
    return ".".join(map(str, load_nvrtc()[1]))


def main() -> None:
    rows = [
        row
        for source in VARIANTS
        for architecture in ARCHITECTURES
        for defines in variants(source, architecture)
        for row in rows_of(architecture, defines, compile_source(source, architecture, defines))
    ]
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        file.write(f"# NVRTC {compiler()}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row.__dataclass_fields__)
        writer.writerows(astuple(row) for row in rows)
    spilled = [row for row in rows if row.spilled or row.stack]
    print(f"{len(rows)} kernels, {len(spilled)} with local memory: {TABLE}")
    for row in spilled:
        print(f"  {row}")


if __name__ == "__main__":
    main()
