"""Compiles the PopART op against the open headers of PopART, PopLibs and poprithms. `./dev headers DIR`

    python tests/headers/check.py DIR [--compiler g++]

DIR holds checkouts named popart, poplibs and poprithms (github.com/graphcore; those of SDK 3.3 or 3.4), which are read and
never copied from. Poplar itself is closed: the emulator's headers (host/src/emulator/include) stand in for it. Nothing is linked or
run; the compiler checks names, argument types and overrides. Planted mistakes must not compile.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INCLUDES = ("popart/willow/include", "poplibs/include", "poprithms/poprithms/poprithms/include")

#: sources by their mistake; those with an open header need the checkouts
MISTAKES = {
    "a method that does not exist": "void f(poplar::Graph& g) { g.addVaraible(poplar::FLOAT, {1}, {}); }",
    "a vector in place of a type": "void f(poplar::Graph& g) { g.addVariable(std::vector<int>{}, {1}, {}); }",
    "a tensor in place of a tile": "void f(poplar::Graph& g, poplar::Tensor t) { g.setTileMapping(t, t); }",
    "a program in place of a compute set": "void f(poplar::program::Sequence s) { poplar::program::Execute e(s); }",
    "an override of nothing": "#include <popart/op.hpp>\nstruct X : popart::Op { using Op::Op; void setUp() override; };",
}


def compile_error(compiler: str, source: str, includes: Iterable[Path], *flags: str) -> str:
    """The first error of one source, given as text; empty if it compiles."""
    folders = [f"-I{ROOT}", f"-I{ROOT}/host/src/emulator/include", *(f"-isystem{path}" for path in includes)]
    command = [compiler, "-std=c++17", "-fsyntax-only", "-w", *flags, *folders, "-x", "c++", "-"]
    found = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    errors = [line for line in found.stderr.splitlines() if "error:" in line]
    return "" if found.returncode == 0 else (errors or [found.stderr.strip()[:300]])[0]


def check(compiler: str, includes: Sequence[Path]) -> list[tuple[str, bool, str]]:
    """Of every source: its name, whether the result is right, the compiler's error. Without `includes`, what Poplar's stand-in alone
    can tell: the codelets as popc sees them, and mistakes."""
    folders = ("codelets/ipu", "host/src/popart") if includes else ("codelets/ipu",)
    found = []
    for path in (path for folder in folders for path in sorted((ROOT / folder).glob("*.cpp"))):
        flag = "-D__POPC__" if path.parent.name == "ipu" else "-DONNX_NAMESPACE=onnx"
        error = compile_error(compiler, f'#include "{path}"\n', includes, flag)
        found.append(("/".join(path.parts[-3:]), not error, error))
    for what, text in MISTAKES.items():
        if includes or "#include" not in text:
            source = f"#include <poplar/Program.hpp>\n{text}\n"
            error = compile_error(compiler, source, includes, "-DONNX_NAMESPACE=onnx")
            found.append((f"refused: {what}", bool(error), error))
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="./dev headers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkouts", metavar="DIR", type=Path, help="holds popart, poplibs and poprithms")
    parser.add_argument("--compiler", default="g++", help="C++17 compiler (g++)")
    a = parser.parse_args(arguments)
    includes = [a.checkouts.resolve() / part for part in INCLUDES]
    if missing := [part.split("/")[0] for part in INCLUDES if not (a.checkouts / part).is_dir()]:
        parser.error(f"{a.checkouts} has no {', '.join(missing)}; clone them there from github.com/graphcore")
    if shutil.which(a.compiler) is None:
        parser.error(f"compiler '{a.compiler}' does not exist; give another with --compiler")
    found = check(a.compiler, includes)
    for name, good, error in found:
        print(f"{'ok  ' if good else 'FAIL'} {name} {'' if good else error}".rstrip())
    return 0 if all(good for _, good, _ in found) else 1


if __name__ == "__main__":
    sys.exit(main())
