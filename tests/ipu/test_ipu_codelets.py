"""What popc would refuse, or a tile does not have, is not in the codelets."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparsesnn import _ipu

ROOT = Path(__file__).parents[2]
CODELETS = ROOT / "codelets"
SHARED = [*CODELETS.glob("tile_*.h"), *CODELETS.glob("neuron/*.h"), CODELETS / "number.h", CODELETS / "surrogate.h"]
FILES = sorted([*CODELETS.glob("ipu/*.cpp"), *CODELETS.glob("ipu/*.h"), *SHARED])
#: words of the language and the library, and why they cannot be there
FORBIDDEN = {
    r"\bstd::": "no standard library on a tile",
    r"\bdouble\b": "no double precision",
    r"\bnew\b|\bdelete\b|\bmalloc\b": "no heap",
    r"\bthrow\b|\btry\b|\bcatch\b": "no exceptions",
    r"\bvirtual\b|\bdynamic_cast\b|\btypeid\b": "no run-time types",
    r"\b(?:asm|goto)\b": "one source for every machine",
}
INCLUDES = (
    "vertex.h",
    "poplar/Vertex.hpp",
    "poplar/HalfFloat.hpp",
    "ipu_vector_math",
    "codelets/neuron/models.h",
    "codelets/surrogate.h",
    "codelets/tile_select.h",
    "../number.h",
    "number.h",
    *(path.name for path in CODELETS.glob("neuron/*.h")),
)
RECORDS = "codelets/ipu/records.h"


def code_of(path: Path) -> str:
    """The text without comments, literals, and what popc does not read."""
    text = re.sub(r"#else\n#include \"host/src/emulator/codelet.h\"\n", "", path.read_text())
    text = re.sub(r"#ifndef __POPC__[^#]*#endif", "", text)
    return re.sub(r"//[^\n]*|\"[^\"\n]*\"(?=\);)", "", text)


def test_there_are_codelets() -> None:
    assert len(FILES) >= 7


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_nothing_that_a_tile_does_not_have(path: Path) -> None:
    text = code_of(path)
    for pattern, reason in FORBIDDEN.items():
        found = re.search(pattern, text)
        assert found is None, f"{path.name}: {found[0]!r}: {reason}"
    for include in re.findall(r"#include [<\"]([^>\"]+)[>\"]", text):
        assert include in (*INCLUDES, RECORDS), f"{path.name} includes {include}"


@pytest.mark.parametrize("path", [p for p in FILES if p.suffix == ".cpp"], ids=lambda p: p.name)
def test_there_is_no_code_that_only_hardware_runs(path: Path) -> None:
    assert "__IPU__" not in path.read_text()


@pytest.mark.parametrize("path", [p for p in FILES if p.suffix == ".cpp"], ids=lambda p: p.name)
def test_every_vertex_is_registered_with_its_fields(path: Path) -> None:
    text = path.read_text()
    classes = re.findall(r"class (\w+) : public poplar::(?:Multi)?Vertex", text)
    registered = re.findall(r"SPARSESNN_VERTEX(?:_OF)?\((\w+),", text)
    assert classes == list(dict.fromkeys(registered))
    for name in re.findall(r"template <class Weight>\nclass (\w+)", text):
        assert re.findall(rf"SPARSESNN_VERTEX_OF\({name}, (\w+),", text) == ["float", "half"]


# ---- what a tile has little of: stack; recursion and calls through pointers need sizes of stacks that nobody can tell ----


def calls(source: Path, folder: Path) -> dict[str, set[str]]:
    """Who calls whom, as popc sees the source, without inlining."""
    includes = (f"-I{ROOT}", f"-I{ROOT / 'host/src/emulator/include'}")
    flags = ("-std=c++17", "-O0", "-D__POPC__", "-fkeep-inline-functions", "-fcallgraph-info")
    subprocess.run(["g++", *flags, *includes, "-c", str(source), "-o", str(folder / "x.o")], check=True)
    found = defaultdict(set)
    for line in (folder / "x.ci").read_text().splitlines():
        if edge := re.match(r'edge: { sourcename: "([^"]*)" targetname: "([^"]*)"', line):
            found[edge[1]].add(edge[2])
    return found


def cycles(graph: dict[str, set[str]]) -> Iterator[list[str]]:
    """Functions that call themselves, directly or through others."""
    for start in graph:
        reached, path = set(), [start]
        while path:
            for callee in graph.get(path.pop(), ()):
                if callee == start:
                    yield [start, *sorted(reached)]
                if callee not in reached:
                    reached.add(callee)
                    path.append(callee)


needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@needs_gxx
@pytest.mark.parametrize("path", [p for p in FILES if p.suffix == ".cpp"], ids=lambda p: p.name)
def test_nothing_recurses_or_calls_through_a_pointer(path: Path, tmp_path: Path) -> None:
    graph = calls(path, tmp_path)
    assert any("compute" in caller for caller in graph)
    assert [caller for caller, callees in graph.items() if "__indirect_call" in callees] == []
    assert list(cycles(graph)) == []


@needs_gxx
@pytest.mark.parametrize(
    ("body", "recurses", "indirect"),
    [
        ("int odd(int k) { return k ? even(k - 1) : 0; } int even(int k) { return k ? odd(k - 1) : 1; }", 2, False),
        ("int f(int k) { return k ? f(k - 1) : 0; }", 1, False),
        ("int f(int (*g)(int)) { return g(n); }", 0, True),
        ("int f(int k) { return g(k) + g(k); } int g(int k) { return k; }", 0, False),
    ],
)
def test_recursion_is_seen(body: str, recurses: int, indirect: bool, tmp_path: Path) -> None:
    source = tmp_path / "planted.cpp"
    source.write_text(f"struct V {{ int n; {body} }};")
    graph = calls(source, tmp_path)
    assert len({found[0] for found in cycles(graph)}) == recurses
    assert any("__indirect_call" in callees for callees in graph.values()) == indirect


# ---- alignment: this machine loads 8 bytes from anywhere, a tile does not ------------------------------------------


def test_codelets_under_test_abort_where_a_tile_would_trap() -> None:
    module = Path(str(_ipu.__file__)).read_bytes()
    if b"__ubsan_handle_type_mismatch" not in module:
        pytest.skip("needs a build by ./dev with g++, which sets SPARSESNN_CHECK_CODELETS")
    for name in (b"ListGrad", b"Update"):
        assert name in module


@needs_gxx
def test_a_misaligned_pair_of_weights_is_noticed(tmp_path: Path) -> None:
    source = tmp_path / "misaligned.cpp"
    source.write_text(
        '#include "codelets/ipu/vertex.h"\nalignas(8) float row[4] = {1, 2, 3, 4};\n'
        "int main(int n, char**) { return (int)sparsesnn::ipu::weight_pair(row + (n > 1), 0)[0]; }\n"
    )
    includes = (f"-I{ROOT}", f"-I{ROOT / 'host/src/emulator/include'}")
    flags = ("-std=c++17", "-D__POPC__", "-fsanitize=undefined", "-fno-sanitize-recover=undefined")
    subprocess.run(["g++", *flags, *includes, str(source), "-o", str(tmp_path / "x")], check=True)
    aligned, off = (
        subprocess.run([str(tmp_path / "x"), *more], capture_output=True, text=True, check=False)
        for more in ((), ("1",))
    )
    assert aligned.returncode == 1
    assert "misaligned address" in off.stderr, off.returncode
