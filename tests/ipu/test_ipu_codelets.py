"""What popc would refuse, or a tile does not have, is not in the codelets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CODELETS = Path(__file__).parents[2] / "codelets"
FILES = sorted([*CODELETS.glob("ipu/*.cpp"), *CODELETS.glob("ipu/*.h"), *CODELETS.glob("tile_*.h")])
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
    "codelets/tile_neuron.h",
    "codelets/tile_select.h",
)
RECORDS = "codelets/ipu/records.h"


def code_of(path: Path) -> str:
    """The text without comments, literals, and what only the emulated machine reads."""
    text = re.sub(r"#else\n#include \"host/src/emulator/codelet.h\"\n", "", path.read_text())
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
