"""What popc would refuse, or a tile does not have, is not in the codelets."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sparsesnn import _ipu

ROOT = Path(__file__).parents[2]
CODELETS = ROOT / "codelets"
SHARED = [CODELETS / f"{name}.h" for name in ("neuron", "number", "surrogate", "capacity", "splitmix")]
FILES = sorted([*CODELETS.glob("ipu/*.cpp"), *CODELETS.glob("ipu/*.h"), *SHARED])
#: words of the language and the library, and why they cannot be there
FORBIDDEN = {
    r"\bstd::": "no standard library on a tile",
    r"\bdouble\b": "no double precision",
    r"(?<![\w.])(?<!\bF\()(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?(?![\w.])": "a literal without f is a double",
    r"\b0x[\da-fA-F.]+p[-+]?\d+(?!\w)": "a literal without f is a double",
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
    "codelets/neuron.h",
    "codelets/capacity.h",
    "codelets/surrogate.h",
    "codelets/number.h",
    "number.h",
    "records.h",
    "select.h",
    "splitmix.h",
)
#: bytes of stack on x86-64 with -O1, more than a tile's code needs, which popc compiles with -O3: of one function (PopART gives
#: a worker 512), and of the deepest chain of calls. Without optimization, unrolled loops over states and entries take a place
#: on the stack for every step.
MAX_FRAME, MAX_STACK = 512, 1280


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
        assert include in INCLUDES, f"{path.name} includes {include}"


@pytest.mark.parametrize("literal", ["0.5", "1.", ".25", "1e-3", "2.5e3", "0x1p-3"])
def test_a_literal_of_type_double_is_seen(literal: str) -> None:
    patterns = [pattern for pattern, reason in FORBIDDEN.items() if "is a double" in reason]
    assert any(re.search(pattern, f"x * {literal};") for pattern in patterns)
    assert not any(re.search(pattern, f"x * {literal}f + y0.x + 12 + 0x1e;") for pattern in patterns)


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


# ---- stack, which a tile has little of; recursion and calls through pointers need stacks of unknown size ----------------


@dataclass(frozen=True)
class Compiled:
    """A source as popc sees it, compiled here; without optimization (-O0) nothing is folded away, and only what must be is inlined.

    Args:
        assembly: of this machine.
        calls: who calls whom.
        frames: bytes of stack that each function takes by itself.
    """

    assembly: str
    calls: dict[str, set[str]]
    frames: dict[str, int]

    def deepest(self) -> int:
        """Bytes of stack of the deepest chain of calls; there is no recursion."""
        known: dict[str, int] = {}

        def depth(function: str) -> int:
            if function not in known:
                below = max((8 + depth(x) for x in self.calls.get(function, ())), default=0)
                known[function] = self.frames.get(function, 0) + below
            return known[function]

        return max(map(depth, self.frames))


def compiled(source: Path, folder: Path, optimization: str = "-O0") -> Compiled:
    includes = (f"-I{ROOT}", f"-I{ROOT / 'host/src/emulator/include'}")
    flags: tuple[str, ...] = (
        "-std=c++17",
        optimization,
        "-D__POPC__",
        "-fkeep-inline-functions",
        "-fcallgraph-info=su",
    )
    if platform.machine() == "x86_64":
        flags += ("-mno-red-zone",)  # bytes below the stack pointer, which no frame counts
    subprocess.run(["g++", *flags, *includes, "-S", str(source), "-o", str(folder / "x.s")], check=True)
    calls: dict[str, set[str]] = defaultdict(set)
    frames: dict[str, int] = {}
    for line in (folder / "x.ci").read_text().splitlines():
        if edge := re.match(r'edge: { sourcename: "([^"]*)" targetname: "([^"]*)"', line):
            calls[edge[1]].add(edge[2])
        if node := re.match(
            r'node: { title: "([^"]*)" label: "[^"]*\\n([0-9]+) bytes \((?:static|dynamic,bounded)\)', line
        ):
            frames[node[1]] = int(node[2])
        assert "bytes (dynamic)" not in line, f"{source.name}: a stack of no fixed size: {line}"
    return Compiled((folder / "x.s").read_text(), calls, frames)


@pytest.fixture(scope="module")
def codelets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Compiled]:
    """All codelets, by the name of their file."""
    return {path.name: compiled(path, tmp_path_factory.mktemp("codelets")) for path in FILES if path.suffix == ".cpp"}


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
def test_nothing_recurses_or_calls_through_a_pointer(path: Path, codelets: dict[str, Compiled]) -> None:
    graph = codelets[path.name].calls
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
    graph = compiled(source, tmp_path).calls
    assert len({found[0] for found in cycles(graph)}) == recurses
    assert any("__indirect_call" in callees for callees in graph.values()) == indirect


@needs_gxx
@pytest.mark.parametrize("path", [p for p in FILES if p.suffix == ".cpp"], ids=lambda p: p.name)
def test_stacks_are_small(path: Path, tmp_path: Path) -> None:
    found = compiled(path, tmp_path, "-O1")
    assert {name: n for name, n in found.frames.items() if n > MAX_FRAME} == {}
    assert 0 < found.deepest() <= MAX_STACK


@needs_gxx
def test_a_large_stack_is_seen(tmp_path: Path) -> None:
    source = tmp_path / "planted.cpp"
    for n, frame, deepest in ((100, 400, 800), (200, 800, 1600)):
        source.write_text(
            f"struct V {{ [[gnu::noinline]] float f(int k) {{ volatile float x[{n}]; x[k] = 1.0f; return x[0]; }}\n"
            f"[[gnu::noinline]] float g(int k) {{ volatile float x[{n}]; x[k] = f(k); return x[0]; }} }};"
        )
        found = compiled(source, tmp_path, "-O1")
        assert frame <= max(found.frames.values()) < frame + 120
        assert deepest <= found.deepest() < deepest + 240


# ---- integer division and arithmetic in double, which compilers emit although a tile has neither --------------------

needs_x86 = pytest.mark.skipif(
    shutil.which("g++") is None or platform.machine() != "x86_64", reason="reads x86-64 assembly of g++"
)
#: x86-64 instructions; a division by a constant is a multiplication, as on a tile
DIVIDES = re.compile(r"\t(i?div[bwlq]?)\s")
DOUBLES = re.compile(r"\t(v?cvt\w*[sp]d\w*|v?(?:add|sub|mul|div|sqrt|max|min|u?comi)[sp]d)\s")


@needs_x86
@pytest.mark.parametrize("path", [p for p in FILES if p.suffix == ".cpp"], ids=lambda p: p.name)
def test_nothing_divides_whole_numbers_or_computes_in_double(path: Path, codelets: dict[str, Compiled]) -> None:
    assert set(DIVIDES.findall(codelets[path.name].assembly)) == set()
    assert set(DOUBLES.findall(codelets[path.name].assembly)) == set()


@needs_x86
@pytest.mark.parametrize(
    ("body", "divides", "doubles"),
    [
        ("unsigned f(unsigned a, unsigned b) { return a / b; }", True, False),
        ("int f(int a, int b) { return a % b; }", True, False),
        ("unsigned long long f(unsigned long long a, unsigned b) { return a % b; }", True, False),
        ("unsigned f(unsigned a) { return a / 6 + a % 10; }", False, False),
        ("float f(float a, float b) { return a / b * 0.5f; }", False, False),
        ("float f(float a) { return a * 0.1; }", False, True),
        ("bool f(float a) { return a > 0.1; }", False, True),
        ("float f(unsigned a) { return 1.0 * a; }", False, True),
    ],
)
def test_division_and_double_are_seen(body: str, divides: bool, doubles: bool, tmp_path: Path) -> None:
    source = tmp_path / "planted.cpp"
    source.write_text(f"struct V {{ {body} }};")
    assembly = compiled(source, tmp_path).assembly
    assert (bool(DIVIDES.search(assembly)), bool(DOUBLES.search(assembly))) == (divides, doubles)


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
