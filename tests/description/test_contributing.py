"""CONTRIBUTING's lists of files are whole, and ARCHITECTURE names files that exist.

Each toy is written into a copy of the tree, in the files that its section's table names and no others, and then used.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sparsesnn import _core

ROOT = Path(__file__).parents[2]
#: a file's text becomes another one; a new file's text is empty before
Edit = Callable[[str], str]


def paths_of(section: str) -> list[str]:
    """The files in the first column of a section's table."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert found, f"CONTRIBUTING.md has no section {section!r}"
    cells = re.findall(r"^\| (`.*?) \|", found[1], re.M)
    return [path for cell in cells for path in re.findall(r"`([^`]+)`", cell)]


def test_files_to_open_hold_what_the_table_says() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = re.search(r"^## Which file to open\n(.*?)(?=^## )", text, re.M | re.S)
    assert table
    rows = re.findall(r"^\| [^|]* \| `([^`]+)` \| `([^`]+)` \|$", table[1], re.M)
    assert len(rows) == table[1].count("\n| ") - 1 >= 20  # all but the heading
    for path, name in rows:
        assert name in (ROOT / path).read_text(encoding="utf-8"), f"{path}: {name}"


def test_rows_of_the_heart_exist() -> None:
    """Those that `./dev test` runs of folders that it does not run whole."""
    text = (ROOT / "tests" / "conftest.py").read_text(encoding="utf-8")
    rows = re.findall(r'"(\S+)::(test_\w+)"', text)
    folders = {folder.name for folder in (ROOT / "tests").iterdir() if any(folder.glob("test_*.py"))}
    assert folders - {path.split("/")[0] for path, _ in rows} == {"description", "engine", "gradients", "cluster"}
    for path, name in rows:
        assert f"def {name}(" in (ROOT / "tests" / path).read_text(encoding="utf-8"), f"{path}: {name}"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the sources, links as links, with the compiled engine."""
    for folder in ("sparsesnn", "codelets", "datasets", "host", "launch", "cmake"):
        ignored = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True, ignore=ignored)
    for file in ("CMakeLists.txt", "pyproject.toml"):
        shutil.copy(ROOT / file, tmp_path)
    shutil.copy(_core.__file__, tmp_path / "sparsesnn")
    return tmp_path


def add(tree: Path, section: str, name: str, edits: dict[str, Edit], at_most: int) -> None:
    """Makes the edits; they are those of the section's table, `<…>` being the name."""
    paths = [re.sub(r"<\w+>", name, path) for path in paths_of(section)]
    assert sorted(edits) == sorted(paths), f"## {section} of CONTRIBUTING.md"
    assert len(paths) <= at_most
    for path, edit in edits.items():
        file = tree / path
        before = file.read_text(encoding="utf-8") if file.exists() else ""
        after = edit(before)
        assert after != before
        file.write_text(after, encoding="utf-8")


def new(text: str) -> Edit:
    return lambda before: text if not before else pytest.fail("the file is there already")


def swap(old: str, by: str) -> Edit:
    return lambda before: before.replace(old, by, 1)


def python(tree: Path, code: str) -> str:
    """The output of a program that imports sparsesnn from the tree, and nowhere else."""
    start = f"""
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
sys.path.insert(0, {str(tree)!r})
import numpy as np, torch
import sparsesnn as ss
from sparsesnn import _core, reference
assert ss.__file__.startswith({str(tree)!r}), ss.__file__

def compare(network, backends):
    '''Every backend against the reference: output, and gradients of the first weight.'''
    generator = torch.Generator().manual_seed(3)
    x = (torch.rand(13, 3, 7, generator=generator) < 0.4).float()
    for backend, options in backends:
        model = ss.Model(network, backend=backend, seed=1, **options)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.abs_()
        parameters = {{name: reference.Parameters.from_layer(layer) for name, layer in model.layers.items()}}
        records = reference.network_forward(network, parameters, x.double().numpy())
        output = model(ss.SpikeBatch.from_dense(x))
        output.potentials.sum().backward()
        assert records["hidden"].spikes.sum() > 0
        np.testing.assert_allclose(output.potentials.detach().numpy(), records["output"].v[:-1], rtol=1e-4, atol=1e-5)
        want = reference.network_backward(network, parameters, records, {{"output": np.ones((13, 3, 2))}})
        layer = model.layers["hidden"]
        source, full = layer.senders[0], want["hidden"].weights[0]
        if layer.columns(source) is not None:
            full = full.ravel()[layer.places(source).numpy()]
        np.testing.assert_allclose(layer.sender_weights[0].grad.numpy(), full, rtol=1e-3, atol=1e-4)
"""
    done = subprocess.run(
        [sys.executable, "-c", start + code], cwd=tree, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def compiled(tree: Path, source: Path) -> str:
    """The output of a C++ program that includes codelets of the tree."""
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no C++ compiler {compiler}")
    program = tree / "program"
    arguments = ["-std=c++20", "-ffp-contract=off", f"-I{tree}", f"-I{ROOT}", str(source), "-o", str(program)]
    done = subprocess.run([compiler, *arguments], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return subprocess.run([program], capture_output=True, text=True, check=True, timeout=60).stdout


# ---- a neuron model ----------------------------------------------------------------------------------------------------

MODEL_PY = '''"""Perfect integrate-and-fire neurons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Mapping, Tuple

from sparsesnn.layers.arrays import NeuronArrays
from sparsesnn.layers.neuron import Neuron
from sparsesnn.options import option


@dataclass(frozen=True)
class Perfect(Neuron):
    """v[t] = v[t-1] - θ·s[t-1] + gain·i[t]."""

    gain: float = option(1.0, "factor on the input current")

    letter: ClassVar[Tuple[str, str]] = ("p", "without a leak")
    states: ClassVar[Tuple[str, ...]] = ("v",)

    def arrays(self, p: Mapping[str, Any]) -> NeuronArrays:
        return NeuronArrays(A=[[1]], r=[-p["threshold"]], B=[self.gain])
'''


def test_a_neuron_model(tree: Path) -> None:
    edits = {
        "sparsesnn/layers/perfect.py": new(MODEL_PY),
        "sparsesnn/layers/__init__.py": lambda before: before.replace(
            "\n__all__", "\nfrom sparsesnn.layers.perfect import Perfect\n\n__all__", 1
        ).replace("(Input, ", "(Input, Perfect, ", 1),
    }
    add(tree, "A neuron model", "perfect", edits, at_most=2)
    backends = [("cpu", {}), *(("dense", {"dense_mode": mode}) for mode in ("step", "hoist", "fused"))]
    code = f"""
from sparsesnn import layers
network = ss.Network.chain(ss.Input(7), layers.Perfect(9, grad_threshold=0.5), ss.LI(2))
compare(network, {backends!r})
assert ss.Network.from_json(network.to_json()) == network
assert ss.parse_net("7-9p-2", beta=0.5).populations["hidden"] == layers.Perfect(9)
try:
    layers.Perfect(9, beta=0.5)
except TypeError as error:
    assert "beta" in str(error)
else:
    raise AssertionError("beta is ignored")
print("fine")
"""
    assert python(tree, code) == "fine\n"


ODD: dict[str, Edit] = {
    "host/src/transforms/odd.cpp": new(
        """#include <nanobind/nanobind.h>

#include "transform.h"

namespace nb = nanobind;

namespace sparsesnn {
namespace {

// Lists of the odd neurons.
struct OddOnes : Transformed {
  Array<std::int64_t> slots;
  void pull(const float* d_made, float* d_read) const override {
    for (std::size_t j = 0; j < slots.size(); ++j) d_read[j] = slots[j] < 0 ? 0.0f : d_made[slots[j]];
  }
};

struct Odd : Transform {
  explicit Odd(int n) : Transform(n, n) {}
  const char* name() const override { return "odd"; }
  std::unique_ptr<Transformed> run(const Lists& lists, int n_steps, int n_samples, nb::handle) const override {
    const std::size_t n_lists = std::size_t(n_steps) * n_samples, n = lists.offsets[n_lists];
    auto made = std::make_unique<OddOnes>();
    made->n_steps = n_steps;
    made->offsets = Array<std::int64_t>::zeros(n_lists + 1);
    made->n_spikes = Array<std::int32_t>::zeros(n_lists);
    made->ids = Array<unsigned char>(2 * n);
    made->slots = Array<std::int64_t>(n);
    std::int64_t end = 0;
    for (std::size_t i = 0; i < n_lists; ++i) {
      for (std::int64_t j = lists.offsets[i]; j < lists.offsets[i + 1]; ++j) {
        made->slots[j] = lists.id(j) % 2 ? end : -1;
        if (lists.id(j) % 2 == 0) continue;
        made->n_spikes[i] += j < lists.offsets[i] + lists.n_spikes[i];
        reinterpret_cast<std::uint16_t*>(made->ids.data())[end++] = std::uint16_t(lists.id(j));
      }
      made->offsets[i + 1] = end;
    }
    return made;
  }
};

const Kind kind([](nb::module_& m) { nb::class_<Odd, Transform>(m, "Odd").def(nb::init<int>()); });

}  // namespace
}  // namespace sparsesnn
"""
    ),
    "sparsesnn/engines/cpu/transforms.py": lambda before: before.replace(
        """#: in the order in which spikes go through them
KINDS = (dropout, resume, delay, pool)
""",
        """import os


def odd(way: Way) -> list[Made]:
    return [Made(_core.Odd(way.c.n_pre), "odd")] if "ODD" in os.environ else []


KINDS = (dropout, resume, delay, odd, pool)
""",
    ),
}
#: the engine with the toy against the same engine without it, whose input lacks the even neurons
ODD_RUNS = """
import os
x = (torch.rand(11, 3, 9, generator=torch.Generator().manual_seed(1)) < 0.4).float()
found = []
for toy in (False, True):
    model = ss.Model(ss.Network.chain(ss.Input(9), ss.LI(4)), seed=1)
    dense = x.clone().requires_grad_()
    given = dense if toy else dense * (torch.arange(9) % 2)
    os.environ.update({"ODD": "1"} if toy else {})
    output = model(ss.SpikeBatch.from_dense(given, gradient="all"))
    output.potentials.square().sum().backward()
    odd = dense.grad[..., 1::2]
    found.append((output.potentials.detach(), model.layers["output"].sender_weights[0].grad, odd))
    if toy:
        assert not dense.grad[..., ::2].any() and odd.any()
for one, other in zip(*found):
    torch.testing.assert_close(one, other)
"""


@pytest.mark.slow
def test_a_transform_in_the_engine(tree: Path) -> None:
    """The engine built again, for the plainest instruction set."""
    for needed in ("cmake", "ninja"):
        if shutil.which(needed) is None:
            pytest.skip(f"there is no {needed}")
    nanobind = pytest.importorskip("nanobind", reason="nanobind is needed to build the engine")
    add(tree, "A transform of lists", "odd", ODD, at_most=2)
    defined = {
        "nanobind_DIR": nanobind.cmake_dir(),
        "Python_EXECUTABLE": sys.executable,
        "SPARSESNN_ISAS": "",
        "CMAKE_BUILD_TYPE": "Debug",
    }
    build = tree / "build"
    for command in (
        ["cmake", "-S", tree, "-B", build, "-G", "Ninja", *(f"-D{k}={v}" for k, v in defined.items())],
        ["cmake", "--build", build, "--target", "_core"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
        assert done.returncode == 0, done.stdout + done.stderr
    module = next(build.glob("_core*.so"))
    shutil.copy(module, tree / "sparsesnn" / Path(_core.__file__).name)
    code = f"""
{ODD_RUNS}
print("fine")
"""
    assert python(tree, code) == "fine\n"


# ---- a surrogate -------------------------------------------------------------------------------------------------------


def test_a_surrogate(tree: Path) -> None:
    edits = {
        "sparsesnn/surrogate.py": swap(
            "}\nKINDS = ",
            '    "halves": Formulas(lambda np, x, k: 0.5 * k * np.ones_like(x), lambda np, x, k: 0.5 + 0.5 * k * x),\n'
            "}\nKINDS = ",
        ),
        "codelets/surrogate.h": lambda before: before.replace("Exponential>;", "Exponential, Halves>;").replace(
            "using Surrogates = List<",
            """struct Halves {
  static constexpr const char* name = "halves";
  template <class F>
  static F derivative(F slope, F) {
    return F(0.5) * slope;
  }
};

using Surrogates = List<""",
            1,
        ),
    }
    add(tree, "A surrogate", "halves", edits, at_most=2)
    code = """
chosen = ss.Surrogate("halves", 3.0)
network = ss.Network.chain(ss.Input(7), ss.LIF(9, grad_threshold=0.5, surrogate=chosen), ss.LI(2))
compare(network, [("dense", {"dense_mode": "hoist"})])
assert ss.Network.from_json(network.to_json()) == network
print(chosen.derivative(np.array([0.25]))[0])
"""
    found = float(python(tree, code))
    source = tree / "program.cpp"
    source.write_text(
        """#include <cstdio>

#include "codelets/surrogate.h"

int main() {
  using namespace sparsesnn::base;
  std::printf("%g", surrogate(find<Surrogates>("halves"), 3.0f, 0.25f));
}
"""
    )
    assert float(compiled(tree, source)) == found == 1.5


# ---- a kind of synapses ------------------------------------------------------------------------------------------------

SYNAPSES_PY = '''"""One weight per neuron."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsesnn.errors import DescriptionError
from sparsesnn.synapses.base import Columns, Synapses


@dataclass(frozen=True)
class OneToOne(Synapses):
    """i[n] += weight[n] where sender n fired."""

    def check(self, where: str, n_pre: int, n_post: int) -> None:
        if n_pre != n_post:
            raise DescriptionError(f"{where}: OneToOne joins populations of one size, not {n_pre} and {n_post}")

    def weight_shape(self, n_pre: int, n_post: int) -> tuple[int, ...]:
        return (n_post,)

    def fan_in(self, n_pre: int, n_post: int) -> int:
        return 1

    def columns(self, n_pre: int, n_post: int, begin: int, end: int) -> Columns | None:
        return np.arange(end - begin + 1, dtype=np.int64), np.arange(begin, end, dtype=np.int32)
'''


def test_a_kind_of_synapses(tree: Path) -> None:
    edits = {
        "sparsesnn/synapses/onetoone.py": new(SYNAPSES_PY),
        "sparsesnn/synapses/__init__.py": swap(
            "\n__all__", "\nfrom sparsesnn.synapses.onetoone import OneToOne\n\n__all__"
        ),
    }
    add(tree, "A kind of synapses", "onetoone", edits, at_most=2)
    code = """
from sparsesnn.synapses import OneToOne
populations = {"input": ss.Input(7), "hidden": ss.LIF(7, grad_threshold=0.5), "output": ss.LI(2)}
first = ss.Connection("input", "hidden", synapses=OneToOne())
network = ss.Network(populations, (first, ss.Connection("hidden", "output")))
assert ss.Model(network).layers["hidden"].sender_weights[0].shape == (7,)
compare(network, [("cpu", {}), ("dense", {"dense_mode": "fused"}), ("dense", {"dense_mode": "hoist"})])
assert ss.Network.from_json(network.to_json()) == network
print("fine")
"""
    assert python(tree, code) == "fine\n"


# ---- a data set --------------------------------------------------------------------------------------------------------

DATA_PY = '''"""Two classes, told apart by which half of the neurons fires.

Units: none; neurons 0 to 2 fire for class 0, neurons 3 to 5 for class 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsesnn.datasets.binning import bin_events
from sparsesnn.datasets.event_set import EventSet
from sparsesnn.options import option

SPLITS = ("train", "valid", "test")
LICENSE, CITATION = "public domain", "none"
RECIPE = {"train": {"epochs": 2}}


@dataclass(frozen=True)
class Options:
    """How large it is."""

    n_samples: int = option(24, "samples of each part", low=2)


def load(*, split: str, options: Options, **others: Any) -> EventSet:
    labels = np.arange(options.n_samples) % 2
    events = [(np.arange(9) * 1000.0, np.arange(9) % 3 + 3 * label) for label in labels]
    binned = bin_events(events, n_neurons=6, n_steps=9, dt_us=1000.0)
    description = {"name": "halves", "split": split, "classes": ["low", "high"]}
    return EventSet(binned.ids, binned.n_spikes, labels, binned.n_neurons, 2, description=description)
'''


@pytest.mark.slow
def test_a_data_set(tree: Path) -> None:
    edits = {
        "datasets/halves.py": new(DATA_PY),
        "datasets/loading.py": swap('    "nmnist": "nmnist",', '    "halves": "halves",\n    "nmnist": "nmnist",'),
    }
    add(tree, "A data set", "halves", edits, at_most=2)
    code = """
from sparsesnn import datasets
from sparsesnn.cli import main
assert len(datasets.load("halves", n_samples=10)) == 10
assert main(["train", "halves", "--net", "auto-9-auto", "--out", "run", "--quiet", "--train.plots", "false"]) == 0
assert main(["data", "info", "halves"]) == 0
"""
    assert "told apart by which half" in python(tree, code)
    assert json.loads((tree / "run/result.json").read_text())["n_valid"] == 24


# ---- ARCHITECTURE ------------------------------------------------------------------------------------------------------


def test_the_architecture_names_files_that_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    paths = re.findall(r"`([\w./-]+(?:\.(?:py|cpp|h|md)|/))`", text)
    assert len(paths) > 30
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert re.findall(r"^\| (\d) \|", text, re.M) == [str(k) for k in range(1, 10)]
    assert len(text.splitlines()) <= 120
