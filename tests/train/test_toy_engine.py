"""An engine of another package: found by its entry point, trained with by name, and reported if it is broken."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sparsesnn.train.metrics import read_metrics

TRAIN = [
    *(
        "train",
        "digits",
        "--epochs",
        "2",
        "--batch",
        "32",
        "--lr",
        "0.01",
        "--net",
        "auto-24r-auto",
        "--set",
        "data.n_steps=10",
    ),
    *("--set", "train.tensorboard=false", "--set", "train.plots=false", "--threads", "1", "--quiet"),
]
#: runs commands one after the other in one process, and prints the exit status and the errors of each
COMMANDS = """
import contextlib, io, json, sys, warnings
import sparsesnn
warnings.simplefilter("error")
sparsesnn.Model(sparsesnn.parse_net("3-4-2"))
sparsesnn.Model(sparsesnn.parse_net("3-4-2"), backend="dense", dense_mode="step")
warnings.simplefilter("ignore")
from sparsesnn.cli import main
found = []
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as errors, contextlib.redirect_stdout(io.StringIO()):
        status = main(arguments)
    found.append((status, errors.getvalue()))
print(json.dumps(found))
"""


def run(*arguments: str, packages: Path | None, folder: Path) -> subprocess.CompletedProcess[str]:
    """Python, with the packages that a folder holds."""
    given = os.environ.get("PYTHONPATH", "")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [packages and str(packages), given]))}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two installed packages: one offers the toy engine, the other one that cannot be imported."""
    folder = tmp_path_factory.mktemp("packages")
    shutil.copy(Path(__file__).with_name("toy_engine.py"), folder)
    (folder / "broken_engine.py").write_text("raise RuntimeError('no driver')\n")
    for package, points in (("toy", "toy = toy_engine:ToyEngine"), ("broken", "broken = broken_engine:Engine")):
        info = folder / f"{package}_package-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}-package\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[sparsesnn.engines]\n{points}\n")
    return folder


@pytest.fixture(scope="module")
def runs(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of the same network on the toy engine and on ours."""
    pytest.importorskip("sklearn")
    folder = tmp_path_factory.mktemp("runs")
    for name, more in (("toy", ["--decimals", "7"]), ("cpu", [])):
        arguments = ["-m", "sparsesnn", *TRAIN, "--backend", name, "--out", name, *more]
        done = run(*arguments, packages=packages, folder=folder)
        assert done.returncode == 0, done.stderr
        assert "'broken', the entry point broken_engine:Engine of broken-package, cannot be loaded" in done.stderr
        assert "RuntimeError: no driver" in done.stderr
    return folder


def test_the_reference_trains_as_an_engine(runs: Path) -> None:
    """A spike that rounding moves becomes other spikes, so that runs part after some steps."""
    toy, ours = (read_metrics(runs / name) for name in ("toy", "cpu"))
    assert toy[0]["loss"] == pytest.approx(ours[0]["loss"], rel=0.01)
    assert toy[0]["activity"]["hidden"] == pytest.approx(ours[0]["activity"]["hidden"], rel=0.05)
    assert toy[-1]["loss"] < 0.8 * toy[0]["loss"]


def test_its_options_are_in_the_configuration_of_its_runs_alone(runs: Path) -> None:
    assert "decimals = 7" in (runs / "toy" / "config.toml").read_text()
    assert "decimals" not in (runs / "cpu" / "config.toml").read_text()


def test_its_runs_need_its_package(runs: Path, packages: Path) -> None:
    done = run("-m", "sparsesnn", "eval", "toy", "--json", packages=packages, folder=runs)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["accuracy"] > 0.35
    without = run("-m", "sparsesnn", "eval", "toy", packages=None, folder=runs)
    assert without.returncode != 0
    assert "train.decimals" in without.stderr or "unknown key 'decimals'" in without.stderr


def test_refusals_name_engines(packages: Path, tmp_path: Path) -> None:
    """Options of another engine, and an engine that cannot be imported; a model of ours imports neither."""
    commands = [[*TRAIN, "--decimals", "3"], [*TRAIN, "--backend", "broken"]]
    done = run("-c", COMMANDS, json.dumps(commands), packages=packages, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    (status, of_option), (broken, of_engine) = json.loads(done.stdout)
    assert (status, broken) == (2, 2)
    assert "train.decimals: is 3 with backend 'cpu'; only backend 'toy' reads it" in of_option
    assert "backend: 'broken', the entry point broken_engine:Engine of broken-package, cannot be loaded" in of_engine
