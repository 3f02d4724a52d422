"""Arrows between parts run one way: no import cycles between files or folders, read from the source without running it.

Imports under TYPE_CHECKING do not count; imports within functions do, because they are dependencies too.
"""

from __future__ import annotations

import ast
import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
Graph = dict[str, set[str]]


def modules() -> dict[str, Path]:
    """Every module of the package, by its name."""
    found = {}
    for folder, _, files in os.walk(ROOT / "sparsesnn", followlinks=True):
        for path in sorted(Path(folder, file) for file in files if file.endswith(".py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


def imported(tree: ast.AST, in_functions: bool) -> Iterator[tuple[str, str]]:
    """Module and name (empty for a module itself) of all imports that run."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                yield from imported(ast.Module([other], []), in_functions)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif in_functions or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from imported(node, in_functions)


@functools.cache
def graph(in_functions: bool) -> Graph:
    """Module → our modules that it imports; for a package, those that its __init__ imports."""
    known = modules()
    found: Graph = {}
    for name, path in known.items():
        found[name] = set()
        for module, item in imported(ast.parse(path.read_text(encoding="utf-8")), in_functions):
            whole = f"{module}.{item}"
            target = whole if whole in known else module
            # other members of a package than modules (_core, a version) are not imports of its __init__
            if target in known and target not in (name, "sparsesnn"):
                found[name].add(target)
    return found


def cycles(found: Graph) -> list[list[str]]:
    """The strongly connected components of more than one node (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    out: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(found.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                out.append(sorted(component))

    for node in sorted(found):
        if node not in index:
            visit(node)
    return out


def folder_of(module: str, known: dict[str, Path]) -> str:
    """The folder below `sparsesnn` that holds a module; a file directly in `sparsesnn` counts as a folder."""
    return ".".join(module.split(".")[:2])


def folders(found: Graph) -> Graph:
    known = modules()
    out: Graph = {}
    for module, others in found.items():
        here = folder_of(module, known)
        out.setdefault(here, set()).update(folder_of(other, known) for other in others)
        out[here].discard(here)
    return out


def test_files_import_one_another_in_no_cycle() -> None:
    """Neither when they are imported nor when their functions run."""
    assert cycles(graph(in_functions=True)) == []


def test_folders_import_one_another_in_no_cycle() -> None:
    found = folders(graph(in_functions=True))
    assert cycles(found) == []
    assert len(found) > 25


def test_a_cycle_is_found() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]


#: parts in layers; a module imports its own layer and those below. Modules are named by their beginning, and the longest name counts;
#: modules in no layer, such as `host` and `partition`, have their own rules or none
LAYERS: dict[str, tuple[str, ...]] = {
    "description": (
        *("errors", "wording", "options", "arguments", "subclasses", "documented", "typed", "ids", "splitmix"),
        *("surrogate", "delays", "layers", "synapses", "connection", "network", "map_text", "placement", "reference"),
    ),
    "spikes": (
        *(
            "spikes",
            "spike_entries",
            "spike_checks",
            "sparse_tensors",
            "event_times",
            "tensor_like",
            "first_order",
            "encode",
        ),
        *("tracers", "uncompiled"),
    ),
    "chain": (
        *("output", "loss", "traces", "parameters", "bounds", "state_dicts", "init", "operations", "neurobench"),
        *("model_card", "model_folder", "tensor_file"),
        *("engines.runner", "engines.registry", "engines.module", "engines.live", "engines.sequential"),
        *("engines.dropout", "engines.layer_inputs", "engines.watch", "engines.stored"),
    ),
    "engines": ("engines", "ipu"),
    "train": ("train", "config"),
    "commands": ("commands", "cli", "bench", "launch.scaling"),
}


def layer_of(module: str) -> str:
    """The layer of a module; "": none."""
    name = module.removeprefix("sparsesnn.")
    found = {
        start: layer
        for layer, starts in LAYERS.items()
        for start in starts
        if f"{name}.".startswith((f"{start}.", f"{start}_")) or name == start
    }
    return found[max(found, key=len)] if found else ""


def test_layers_import_what_is_below_them() -> None:
    """`commands → train → engines → chain → spikes → description`, in functions too."""
    order, seen = list(LAYERS), set()
    for module, others in graph(in_functions=True).items():
        mine = layer_of(module)
        seen.add(mine)
        for other in others if mine else ():
            theirs = layer_of(other)
            assert not theirs or order.index(theirs) <= order.index(mine), f"{module} imports {other}"
    assert seen == {*order, ""}


def engine_of(module: str) -> str:
    """The engine whose folder holds a module; "": none."""
    match = re.match(r"sparsesnn\.engines\.(cpu|gpu|dense|ranks|ipu)(\.|$)", module)
    return match[1] if match else ""


def test_engines_do_not_know_one_another() -> None:
    """Nor do the modules that they share: an engine is found by its name alone. Ranks run the engine `cpu`."""
    folders_of_engines = {
        path.name for path in (ROOT / "sparsesnn" / "engines").iterdir() if (path / "engine.py").exists()
    }
    assert (
        folders_of_engines
        == {"cpu", "gpu", "dense", "ranks", "ipu"}
        == {engine_of(f"sparsesnn.engines.{x}") for x in folders_of_engines}
    )
    for module, others in graph(in_functions=True).items():
        if not module.startswith("sparsesnn.engines"):
            continue
        known = {engine_of(module), *(["cpu"] if engine_of(module) == "ranks" else [])}
        assert not [x for x in others if engine_of(x) and engine_of(x) not in known], module


def test_engines_do_not_know_the_planner() -> None:
    """Where neurons lie on CPUs is `sparsesnn.placement`, which both read; a plan for IPUs is made next to the program that runs it."""
    for module, others in graph(in_functions=True).items():
        if module.startswith("sparsesnn.engines"):
            assert not [x for x in others if x.startswith("sparsesnn.partition")], module


def test_nobody_asks_for_the_name_of_an_engine() -> None:
    """What differs is a property of its class or its runner."""
    asks = re.compile(r"backend\w*['\"\])]* (==|!=|in|not in) [\"(]")
    for module, path in modules().items():
        found = [line for line in path.read_text(encoding="utf-8").splitlines() if asks.search(line)]
        assert found == [], module


def test_data_sets_know_spikes_alone() -> None:
    """`datasets → spikes`."""
    above = {"chain", "engines", "train", "commands"}
    for module, others in graph(in_functions=True).items():
        if module.startswith("sparsesnn.datasets"):
            found = [
                x for x in others if layer_of(x) in above or x.startswith(("sparsesnn.host", "sparsesnn.partition"))
            ]
            assert found == [], module


def test_launch_and_host_import_no_command() -> None:
    found = graph(in_functions=True)
    above = ("sparsesnn.commands", "sparsesnn.cli")
    for module, others in found.items():
        if module.startswith(("sparsesnn.launch", "sparsesnn.host", "sparsesnn.datasets")):
            assert not [other for other in others if other.startswith(above)], module


def test_device_code_includes_no_host_header() -> None:
    """`codelets/ipu/vertex.h` names the stand-in for Poplar's headers, where no SDK is, `codelets/gpu/device.h` that for a GPU."""
    stand_ins = {"host/src/emulator/codelet.h", "host/src/gpu/emulated.h"}
    for path in sorted([*(ROOT / "codelets").rglob("*.h"), *(ROOT / "codelets").rglob("*.cpp")]):
        includes = re.findall(r'#include "([^"]+)"', path.read_text(encoding="utf-8"))
        found = [name for name in includes if "host/" in name and name not in stand_ins]
        assert found == [], path.name


def test_codelets_of_all_devices_include_no_host_header() -> None:
    """Neither by a path from the root nor by one that goes up."""
    paths = sorted((ROOT / "codelets").glob("*.h"))
    assert len(paths) > 4
    for path in paths:
        includes = re.findall(r'#include "([^"]+)"', path.read_text(encoding="utf-8"))
        assert [name for name in includes if "host" in name.split("/")] == [], path.name
