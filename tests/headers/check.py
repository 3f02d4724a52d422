"""Compiles the IPU sources against the open headers of PopART, PopLibs and poprithms. `./dev headers DIR`

    python tests/headers/check.py DIR [--compiler g++] [--include INCLUDE ...] [--json FILE]

DIR holds checkouts named popart, poplibs and poprithms (github.com/graphcore; those of SDK 3.3 or 3.4), which are read and
never copied from. What is closed, Poplar itself above all, comes from poplar_stub.hpp and vertex_stub.hpp beside this file:
declarations in the form in which the open sources call them. Nothing is linked or run; the compiler checks names, argument
types and overrides.

    ours       must compile: host/src/ipu with the stubs; codelets/ipu as popc sees them; host/src/popart with the open headers
    theirs     how many of PopLibs' and PopART's own sources compile against the stubs: what vouches for the stubs
    refused    must not compile: deliberate mistakes, so that the check is known to be able to fail
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CHECKOUTS = ("popart", "poplibs", "poprithms")

#: closed headers that open or our sources include, by folder; each forwards to poplar_stub.hpp
HOST_HEADERS = {
    "poplar": (
        "ArrayRef ComputeSet CSRFunctions CodeletFileType CycleCount DataStream DebugContext Device "
        "DeviceManager Engine Executable FunctionBufferMappingType Graph GraphElements IPUModel Interval "
        "MetadataCreation OptionFlags PerfEstimateFunc PrintTensor ProfileValue Program Quarter RandomSeed "
        "ReplicatedStreamMode StreamCallback StringRef SyncType Target TargetType Tensor TensorCloneMethod "
        "TensorRearranger Type TypeConversion TypeTraits VariableMappingMethod VectorLayout "
        "VertexIntrospector VertexRef exceptions replication_factor"
    ),
    "popdist": ("backend context"),
    "gcl": ("Collectives CollectiveBalancedReorder TileAllocation"),
    "gccs": ("Algorithm CompilerFeatures"),
    "popef": ("Types"),
    "pvti": ("pvti"),
}
#: and those of the device
DEVICE_HEADERS = ("poplar/Vertex.hpp", "poplar/HalfFloat.hpp", "poplar/VectorTypes.hpp")

#: what stands for open headers where there are no checkouts
OPEN_HEADERS = {
    "popops/codelets.hpp": "#include <poplar/Graph.hpp>\nnamespace popops { void addCodelets(poplar::Graph&); }\n"
}

INCLUDES = {
    "popart": ("willow/include",),
    "poplibs": ("include",),
    "poprithms": ("poprithms/poprithms/include",),
}
#: of the open projects' own sources, those that use Poplar and little else
THEIRS = (
    "popart/docs/popart/files/custom_op/*.cpp",
    "poplibs/lib/popops/*.cpp",
    "poplibs/lib/poputil/*.cpp",
    "poplibs/lib/poprand/*.cpp",
    "popart/willow/src/popx/op/[a-e]*.cpp",
)

MISTAKES = {
    "a method that does not exist": "void f(poplar::Graph& g) { g.addVaraible(poplar::FLOAT, {1}, {}); }",
    "a vector where a type is wanted": "void f(poplar::Graph& g) { g.addVariable(std::vector<int>{}, {1}, {}); }",
    "a tensor for a tile": "void f(poplar::Graph& g, poplar::Tensor t) { g.setTileMapping(t, t); }",
    "a program for a compute set": "void f(poplar::program::Sequence s) { poplar::program::Execute e(s); }",
    "an override that overrides nothing": (
        "#include <popart/op.hpp>\nstruct X : popart::Op { using Op::Op; void setUp() override; };"
    ),
    "a misspelt call of PopLibs": (
        "#include <popops/Zero.hpp>\nvoid f(poplar::Graph& g, poplar::Tensor t, poplar::program::Sequence& s)"
        " { popops::zeros(g, t, s, {}); }"
    ),
}


#: vertices of two codelets that popc would refuse, beside one that it takes
VERTICES = """
struct Good : poplar::MultiVertex { bool compute(unsigned); };
struct NoWorker : poplar::MultiVertex { bool compute(); };
struct Worker : poplar::Vertex { bool compute(unsigned); };
static_assert(poplar::stub::is_vertex<Good>);
"""
MISTAKES_OF_VERTICES = {
    "a MultiVertex that computes without a worker": "static_assert(poplar::stub::is_vertex<NoWorker>);",
    "a Vertex that computes for a worker": "static_assert(poplar::stub::is_vertex<Worker>);",
}


@dataclass(frozen=True)
class Result:
    """Of one source: whether it compiled, and the compiler's first error if not."""

    source: str
    compiled: bool
    error: str = ""


@dataclass(frozen=True)
class Compiler:
    """Syntax checks of single files.

    Args:
        command: the compiler.
        includes: searched in this order.
    """

    command: str
    includes: tuple[Path, ...]

    def check(self, source: Path, *flags: str) -> Result:
        arguments = [self.command, "-std=c++17", "-fsyntax-only", "-w", *flags]
        for path in self.includes:
            arguments += ["-isystem" if ROOT not in path.parents and path != ROOT else "-I", str(path)]
        found = subprocess.run([*arguments, str(source)], capture_output=True, text=True, check=False)
        errors = [line for line in found.stderr.splitlines() if "error:" in line]
        return Result(str(source), found.returncode == 0, errors[0] if errors else found.stderr.strip()[:300])


def vertices(codelet: Path) -> str:
    """Statements that every class of a codelet is what popc takes as a vertex."""
    text = codelet.read_text(encoding="utf-8")
    names = re.findall(r"SPARSESNN_VERTEX\((\w+),", text)
    names += [f"{name}<{of}>" for name, of in re.findall(r"SPARSESNN_VERTEX_OF\((\w+), (\w+),", text)]
    lines = [f"static_assert(poplar::stub::is_vertex<{name}>);" for name in names]
    return "\n".join([f'#include "{codelet}"', "namespace sparsesnn::ipu {", *lines, "}", ""])


@contextmanager
def forwarders(checkouts: Path | None) -> Iterator[Path]:
    """A folder with a header for every closed include path, and without checkouts for open ones that our sources include."""
    with tempfile.TemporaryDirectory() as root:
        host = [f"{folder}/{name}.hpp" for folder, names in HOST_HEADERS.items() for name in names.split()]
        for names, stub in ((host, "poplar_stub.hpp"), (DEVICE_HEADERS, "vertex_stub.hpp")):
            for name in names:
                path = Path(root, name)
                path.parent.mkdir(exist_ok=True)
                path.write_text(f'#pragma once\n#include "{HERE / stub}"\n', encoding="utf-8")
        for name, text in ({} if checkouts else OPEN_HEADERS).items():
            path = Path(root, name)
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"#pragma once\n{text}", encoding="utf-8")
        yield Path(root)


def check_all(checkouts: Path | None, command: str, more: Iterable[Path] = ()) -> dict[str, list[Result]]:
    """The three parts of the report; without checkouts what the stubs alone can tell."""
    with forwarders(checkouts) as stubs, ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        opened = tuple(checkouts / k / part for k in CHECKOUTS for part in INCLUDES[k]) if checkouts else ()
        compiler = Compiler(command, (ROOT, stubs, *opened, *more))
        host = sorted((ROOT / "host/src/ipu").glob("*.cpp"))
        host = [path for path in host if "_module" not in path.name]  # needs nanobind and nothing of Poplar's own
        codelets = []
        for source in sorted((ROOT / "codelets/ipu").glob("*.cpp")):
            codelets.append(stubs / "codelets" / source.name)
            codelets[-1].parent.mkdir(exist_ok=True)
            codelets[-1].write_text(vertices(source), encoding="utf-8")
        custom_op = sorted((ROOT / "host/src/popart").glob("*.cpp")) if checkouts else []
        ours = [
            *((path, ("-DSPARSESNN_POPLAR_SDK",)) for path in host),
            *((path, ("-D__POPC__",)) for path in codelets),
            *((path, ("-DSPARSESNN_POPLAR_SDK", "-DONNX_NAMESPACE=onnx")) for path in custom_op),
        ]
        theirs = [path for pattern in THEIRS for path in sorted(checkouts.glob(pattern))] if checkouts else []
        # fmt 9 formats what has an operator<< only if told to; the SDK's fmt is older
        defines = ("-DONNX_NAMESPACE=onnx", "-DFMT_DEPRECATED_OSTREAM")
        inside = (f"-I{checkouts}/poplibs/lib", f"-I{checkouts}/popart/willow/src", *defines)
        mistakes = []
        for what, text in MISTAKES.items():
            if "#include" in text and not checkouts:
                continue
            path = stubs / f"{what.replace(' ', '_')}.cpp"
            path.write_text(f"#include <poplar/Graph.hpp>\n#include <poplar/Program.hpp>\n{text}\n", encoding="utf-8")
            mistakes.append(path)
        for what, text in MISTAKES_OF_VERTICES.items():
            mistakes.append(stubs / f"{what.replace(' ', '_')}.cpp")
            mistakes[-1].write_text(f"#include <poplar/Vertex.hpp>\n{VERTICES}{text}\n", encoding="utf-8")
        return {
            "ours": list(pool.map(lambda job: compiler.check(job[0], *job[1]), ours)),
            "theirs": list(pool.map(lambda path: compiler.check(path, *inside), theirs)),
            "refused": list(pool.map(compiler.check, mistakes)),
        }


def report(found: dict[str, list[Result]], verbose: bool) -> Iterable[str]:
    for r in found["ours"]:
        yield f"{'ok  ' if r.compiled else 'FAIL'} {'/'.join(Path(r.source).parts[-3:])} {r.error}"
    for r in found["refused"]:
        name = Path(r.source).stem.replace("_", " ")
        yield f"FAIL {name} compiles" if r.compiled else f"ok   refused: {name}"
    passed = sum(r.compiled for r in found["theirs"])
    yield f"of {len(found['theirs'])} sources of PopLibs and PopART {passed} compile against the stubs"
    if verbose:
        for r in found["theirs"]:
            if not r.compiled:
                yield f"     {r.source}: {r.error}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="./dev headers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkouts", metavar="DIR", type=Path, help="holds popart, poplibs and poprithms")
    parser.add_argument("--compiler", default="g++", help="C++17 compiler (g++)")
    parser.add_argument(
        "--include",
        type=Path,
        metavar="INCLUDE",
        action="append",
        default=[],
        help="where Boost, spdlog, fmt and onnx are, if not in the system's folders; only 'theirs' needs them",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report as data, too")
    parser.add_argument("-v", "--verbose", action="store_true", help="say why sources of PopLibs and PopART fail")
    a = parser.parse_args(arguments)
    missing = [k for k in CHECKOUTS if not (a.checkouts / k / INCLUDES[k][0]).is_dir()]
    if missing:
        parser.error(f"{a.checkouts} has no {', '.join(missing)}; clone them there from github.com/graphcore")
    if shutil.which(a.compiler) is None:
        parser.error(f"compiler '{a.compiler}' is not there; give another with --compiler")
    found = check_all(a.checkouts.resolve(), a.compiler, a.include)
    print("\n".join(report(found, a.verbose)))
    if a.json:
        a.json.write_text(json.dumps({k: [asdict(r) for r in v] for k, v in found.items()}, indent=1), encoding="utf-8")
    good = all(r.compiled for r in found["ours"]) and not any(r.compiled for r in found["refused"])
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
