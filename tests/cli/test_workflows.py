"""The hosted workflows call what exists, and the script that runs their steps here reads them as the hosted runner does."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("yaml", reason="PyYAML comes with pre-commit")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def workflows() -> ModuleType:
    spec = importlib.util.spec_from_file_location("workflows", ROOT / "tools" / "workflows.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_workflows_call_what_exists(workflows: ModuleType) -> None:
    assert list(workflows.problems(ROOT)) == []


def test_what_does_not_exist_is_found(workflows: ModuleType, tmp_path: Path) -> None:
    shutil.copy(ROOT / "dev", tmp_path)
    (tmp_path / ".github" / "workflows").mkdir(parents=True)
    text = (
        "jobs:\n"
        "  one:\n    timeout-minutes: 5\n    steps: [{ run: ./dev nothing }, { run: .ci/absent }]\n"
        "  two:\n    steps: [{ run: 'if true' }, { run: ./dev --torch x lint }]\n"
    )
    (tmp_path / ".github" / "workflows" / "a.yml").write_text(text)
    found = list(workflows.problems(tmp_path))
    assert [text.split(": ")[1] for text in found] == ["one", "one", "two", "two"]
    assert "./dev has no command 'nothing'; allowed: " in found[0]
    assert found[1] == "a.yml: one: .ci/absent is not a program"
    assert "no timeout-minutes" in found[2]
    assert "syntax error" in found[3]


def test_a_job_becomes_shell_steps(workflows: ModuleType) -> None:
    job = {
        "strategy": {"matrix": {"include": [{"which": "oldest", "python": "3.10"}, {"which": "newest"}]}},
        "env": {"PYTHON": "python${{ matrix.python }}"},
        "steps": [
            {"uses": "actions/checkout@v4"},
            {"run": "sudo apt-get install --yes g++"},
            {"run": "./dev versions ${{ matrix.which }} ${{ github.ref }}", "env": {"A": 1}},
        ],
    }
    env = {"PYTHON": "python3.10"}
    assert list(workflows.shell_steps(job)) == [
        ("uses actions/checkout@v4", "", env),
        ("sudo apt-get install --yes g++", "", env),
        ("./dev versions oldest ", "./dev versions oldest ", {**env, "A": "1"}),
    ]
    assert workflows.first_values({"compiler": ["g++", "clang++"]}) == {"compiler": "g++"}


def test_a_job_that_does_not_exist(workflows: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        workflows.main(["run", "ci.yml", "nothing"])
    assert "allowed: ci.yml ci, " in capsys.readouterr().err
