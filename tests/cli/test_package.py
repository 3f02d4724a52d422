"""The package as a user meets it: import, version, build_info, settings from the environment, the compiled stub."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import sparsesnn
from sparsesnn.errors import ConfigError

ROOT = Path(__file__).parents[2]


def python(code: str, *, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_version_has_one_source() -> None:
    line = f'version = "{sparsesnn.__version__}"'
    assert line in (ROOT / "pyproject.toml").read_text().splitlines()
    assert sparsesnn.__version__ == importlib.metadata.version("sparsesnn") == sparsesnn.build_info()["version"]


def test_public_names_exist() -> None:
    missing = [name for name in sparsesnn.__all__ if not hasattr(sparsesnn, name)]
    assert missing == []


def test_modules_are_attributes(tmp_path: Path) -> None:
    """Those that the documents name, in a process that imports the package alone."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py")]
    texts = [path.read_text() for path in pages]
    texts += [inspect.getdoc(getattr(sparsesnn, name)) or "" for name in sparsesnn.__all__]
    names = set(re.findall(r"(?<![\w.])(?:ss|sparsesnn)(?:\.[A-Za-z_]\w*)+", "\n".join(texts)))
    names = {name.replace("ss.", "sparsesnn.", 1) if name.startswith("ss.") else name for name in names}
    names -= {
        "sparsesnn.loggers",
        "sparsesnn.forward",
        "sparsesnn.backward",
    }  # a group of entry points, labels of the profiler
    names -= set(re.findall(r"-m (sparsesnn[\w.]+)", "\n".join(texts)))
    assert {f"sparsesnn.{name}" for name in ("onnx.export", "nir.from_nir", "train.train", "integers.save")} <= names
    result = python(
        f"""
import sparsesnn
assert {{"nir", "onnx", "train", "integers", "Model"}} <= set(dir(sparsesnn))
for name in {sorted(names)}:
    found = sparsesnn
    for part in name.split(".")[1:]:
        if not hasattr(found, part):
            print(name)
            break
        found = getattr(found, part)
""",
        cwd=tmp_path,
    )
    assert result.stderr == ""
    assert result.stdout.split() == []


def test_typed_modules_are_those_of_the_package() -> None:
    tree = ast.parse((ROOT / "sparsesnn" / "__init__.py").read_text())
    (typed,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imported = [alias.asname for node in typed.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert imported == sorted(sparsesnn._modules)


def test_a_name_that_is_missing() -> None:
    with pytest.raises(AttributeError, match="'sparsesnn' has no attribute 'nothing'"):
        sparsesnn.nothing  # noqa: B018


def test_build_info_is_consistent() -> None:
    info = sparsesnn.build_info()
    assert info["isa_built"][0] == "base"
    assert set(info["isa_supported"]) <= set(info["isa_built"])
    assert info["isa"] in info["isa_supported"]
    assert info["threads"] == sparsesnn.num_threads() >= 1
    assert "-ffp-contract=off" in info["flags"]
    assert "-ffast-math" not in info["flags"]
    assert "-mfma" not in info["flags"]
    assert info["compiler"].split()[0] in ("GNU", "Clang", "AppleClang", "IntelLLVM")


def test_typed() -> None:
    for name in ("py.typed", "_core.pyi"):
        assert (ROOT / "sparsesnn" / name).is_file()


def test_import_leaves_optional_packages_alone(tmp_path: Path) -> None:
    own = ("sparsesnn.nir", "sparsesnn.onnx", "sparsesnn.train", "sparsesnn.integers", "sparsesnn.bench")
    optional = (*own, "tonic", "h5py", "sklearn", "matplotlib", "tensorboard", "scipy", "mpi4py", "nir", "onnx")
    result = python(f"import sys, sparsesnn; print([m for m in {optional} if m in sys.modules])", cwd=tmp_path)
    assert result.stdout.strip() == "[]", result.stderr


@pytest.mark.parametrize("isa", sparsesnn.build_info()["isa_supported"])
def test_environment_chooses_the_instruction_set(isa: str, tmp_path: Path) -> None:
    result = python("import sparsesnn; print(sparsesnn.build_info()['isa'])", cwd=tmp_path, SPARSESNN_ISA=isa)
    assert result.stdout.strip() == isa, result.stderr


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("SPARSESNN_ISA", "mmx", "ImportError: SPARSESNN_ISA is 'mmx', which is not in this build (base"),
        ("SPARSESNN_THREADS", "0", "ImportError: SPARSESNN_THREADS is '0'; give a whole number from 1 to 1024"),
        ("SPARSESNN_THREADS", "many", "ImportError: SPARSESNN_THREADS is 'many'; give a whole number"),
    ],
)
def test_environment_refuses(variable: str, value: str, message: str, tmp_path: Path) -> None:
    result = python("import sparsesnn", cwd=tmp_path, **{variable: value})
    assert result.returncode != 0
    assert message in result.stderr


@pytest.mark.parametrize("program", [["-m", "sparsesnn"], [str(Path(sys.executable).with_name("sparsesnn"))]])
@pytest.mark.parametrize(
    ("variable", "value", "fact"),
    [
        ("SPARSESNN_THREADS", "abc", "'abc'"),
        ("SPARSESNN_ISA", "mmx", "'mmx'"),
        ("SPARSESNN_ISA", b"\xff", r"'\xff'"),
    ],
)
def test_the_command_refuses_an_environment_in_one_sentence(
    program: list[str], variable: str, value: str | bytes, fact: str
) -> None:
    environment = {**os.environb, variable.encode(): os.fsencode(value)}
    command = [sys.executable, *program, "info"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert found.stdout == ""
    assert found.stderr.startswith(f"sparsesnn: error: {variable} is {fact}")
    assert found.stderr.count("\n") == 1


def test_environment_sets_threads(tmp_path: Path) -> None:
    result = python("import sparsesnn; print(sparsesnn.num_threads())", cwd=tmp_path, SPARSESNN_THREADS="3")
    assert result.stdout.strip() == "3", result.stderr


def test_set_num_threads() -> None:
    sparsesnn.set_num_threads(3)
    assert sparsesnn.num_threads() == sparsesnn.build_info()["threads"] == 3


@pytest.mark.parametrize("n", [0, -1, 1025, 2**40, 2.0, "2", True, None])
def test_set_num_threads_refuses(n: object) -> None:
    before = sparsesnn.num_threads()
    with pytest.raises(ConfigError, match="set_num_threads: n is .*; give a whole number from 1 to 1024"):
        sparsesnn.set_num_threads(n)  # type: ignore[arg-type]
    assert sparsesnn.num_threads() == before


def test_set_isa() -> None:
    for name in sparsesnn.build_info()["isa_supported"]:
        sparsesnn.set_isa(name)
        assert sparsesnn.build_info()["isa"] == name


@pytest.mark.parametrize("name", ["mmx", "", "AVX2", 7])
def test_set_isa_refuses(name: object) -> None:
    with pytest.raises(ConfigError, match="set_isa: isa is .*; allowed here: base"):
        sparsesnn.set_isa(name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "use", ["import sparsesnn; sparsesnn.Model", "from sparsesnn import Model", "import sparsesnn.runtime"]
)
def test_source_tree_without_engine_says_what_to_do(use: str, tmp_path: Path) -> None:
    """A copy of the package without _core, first on the path, as the source tree is for an ordinary installation."""
    package = tmp_path / "sparsesnn"
    shutil.copytree(ROOT / "sparsesnn", package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    # -S: without the .pth files of site-packages an editable installation does not come first
    environment = {**os.environ, "PYTHONPATH": str(Path(np.__file__).parents[1])}
    result = subprocess.run(
        [sys.executable, "-S", "-c", use], cwd=tmp_path, capture_output=True, text=True, check=False, env=environment
    )
    assert f"needs the compiled engine (sparsesnn._core), which {package} does not have" in result.stderr
    assert "pip install -e ." in result.stderr
    assert "start Python from another directory" in result.stderr


@pytest.mark.parametrize("folder", ["codelets", "datasets", "host", "launch"])
def test_folders_refuse_a_bare_import(folder: str, tmp_path: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {folder}"
    result = python(code, cwd=tmp_path)
    assert "ImportError" in result.stderr
    assert f"import sparsesnn.{folder} instead" in result.stderr
    assert importlib.util.find_spec(f"sparsesnn.{folder}") is not None


def test_stub_is_that_of_the_compiled_module(tmp_path: Path) -> None:
    pinned = re.search(r'"nanobind==([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert pinned
    found = importlib.util.find_spec("nanobind") and importlib.metadata.version("nanobind")
    if found != pinned[1]:  # each version writes another stub
        pytest.skip(f"needs nanobind {pinned[1]}, in the extra 'dev'; found {found or 'none'}")
    written = tmp_path / "_core.pyi"
    command = ["-m", "nanobind.stubgen", "--quiet", "--exclude-values", "-m", "sparsesnn._core", "-o", str(written)]
    subprocess.run([sys.executable, *command], cwd=tmp_path, check=True)
    assert written.read_text() == (ROOT / "sparsesnn" / "_core.pyi").read_text(), "run: ./dev stubs"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_runs_the_engine(tmp_path: Path) -> None:
    """Data loaders fork: the child has no threads of the parent's pool, and starts its own."""
    code = """
import os, torch, sparsesnn
sparsesnn.set_num_threads(3)
layer = sparsesnn.Layer(sparsesnn.LIF(65), n_pre=33, generator=torch.Generator().manual_seed(1))
spikes = sparsesnn.SpikeBatch.from_dense((torch.rand(7, 5, 33, generator=torch.Generator().manual_seed(2)) < 0.3).float())
def run():
    with torch.no_grad():
        return layer(spikes)[0].ids.tolist()
before = run()
assert before
child = os.fork()
if child == 0:
    os._exit(0 if run() == before else 1)
assert os.waitpid(child, 0)[1] == 0
assert run() == before
"""
    # Python warns of every fork in a process with threads; this one is the subject.
    result = python("import warnings; warnings.simplefilter('ignore')\n" + code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
