"""Files that a release needs say the same as pyproject.toml, and can be read."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_citation_names_version_and_license() -> None:
    text = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {PROJECT['project']['version']}\n" in text
    assert f"\nlicense: {PROJECT['project']['license']}\n" in text
    assert PROJECT["project"]["urls"]["Homepage"] in text


def test_wheels_are_built_for_every_python_from_the_minimum() -> None:
    minimum = re.fullmatch(r">=3\.(\d+)", PROJECT["project"]["requires-python"])
    assert minimum
    built = [int(n) for n in re.findall(r"cp3(\d+)-\*", PROJECT["tool"]["cibuildwheel"]["build"])]
    assert built == list(range(int(minimum[1]), built[-1] + 1))
    stable = int(PROJECT["tool"]["scikit-build"]["wheel"]["py-api"].removeprefix("cp3"))
    assert stable < built[-1], "one wheel for this Python and newer ones, which is tried on a newer one"


def test_hosted_files_are_yaml_and_run_what_everybody_runs() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with pre-commit")
    files = sorted((ROOT / ".github").rglob("*.yml"))
    read = {path.name: yaml.safe_load(path.read_text()) for path in [*files, ROOT / "CITATION.cff"]}
    assert ".ci/run" in [step.get("run") for step in read["ci.yml"]["jobs"]["ci"]["steps"]]
    versions = read["versions.yml"]["jobs"]["versions"]
    assert "./dev versions ${{ matrix.which }}" in [step.get("run") for step in versions["steps"]]
    rows = {(row["which"], row["python"]) for row in versions["strategy"]["matrix"]["include"]}
    newest = max(map(int, re.findall(r"cp3(\d+)-\*", PROJECT["tool"]["cibuildwheel"]["build"])))
    minimum = PROJECT["project"]["requires-python"].removeprefix(">=")
    assert {("oldest", minimum), ("newest", minimum), ("newest", f"3.{newest}")} <= rows
    for name in ("bug.yml", "wish.yml", "ipu.yml", "question.yml"):
        assert {"name", "description", "body"} == set(read[name])
