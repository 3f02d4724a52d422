"""`./dev bench regress`: what counts as slower, and that a measured process uses the tree that it is given."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import regress

from sparsesnn import _core

ROOT = Path(__file__).resolve().parents[2]


def test_a_slower_network_is_confirmed_by_further_rounds() -> None:
    rounds: list[int] = []

    def slower(k: int) -> regress.Times:
        rounds.append(k)
        return {"a": (100 + k, 100 + k), "b": (100 + k, 108 + k)}

    shown: list[str] = []
    found = regress.compare_times(3, 1.05, slower, show=shown.append)
    assert found == {"a": 1.0, "b": pytest.approx(1.079, abs=0.002)}
    assert rounds == [0, 1, 2, 3, 4, 5]
    assert shown == ["above the limit after 3 rounds (a +0.0 %, b +7.9 %): 3 more"]


@pytest.mark.parametrize(
    "times",
    [
        [(100, 120), (100, 130), (100, 101), (100, 101), (100, 101)],  # two rounds disturb the newer commit
        [(90, 101), (100, 101), (100, 101), (100, 101), (100, 101)],  # one is lucky for the base
        [(100, 108), (101, 109), (102, 110), (103, 111), (101, 101)],  # four disturb it, the fifth is quiet
    ],
)
def test_disturbances_are_no_alarm(times: list[tuple[int, int]]) -> None:
    assert regress.slowdowns([{"a": pair} for pair in times])["a"] == pytest.approx(1.01, abs=0.001)


def test_equal_commits_take_no_more_rounds() -> None:
    rounds: list[int] = []
    regress.compare_times(4, 1.05, lambda k: rounds.append(k) or {"a": (100, 104)})  # type: ignore[func-returns-value]
    assert rounds == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("123456,,instructions:u,1000,100.00,,\n", 123456),
        ("warning\n77,,cpu_core/instructions:u/,1000,100.00,,\n", 77),
        ("<not supported>,,instructions:u,0,100.00,,\n", None),
        ("", None),
    ],
)
def test_counts_of_perf(text: str, count: int | None) -> None:
    assert regress.instructions_of(text) == count


def test_instructions_decide_where_they_can_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    per_step = {"base": 1000, "new": 1100}
    monkeypatch.setattr(regress, "count_instructions", lambda command: 1000)
    monkeypatch.setattr(regress, "count_steps", lambda tree, name, n: 5_000_000 + n * per_step[tree.name])
    found = regress.compare_instructions([Path("base"), Path("new")])
    assert found == dict.fromkeys(regress.NETWORKS, 1.1)
    monkeypatch.setattr(regress, "count_instructions", lambda command: None)
    monkeypatch.setattr(regress, "count_steps", lambda tree, name, n: pytest.fail("counters cannot be read"))
    assert regress.compare_instructions([Path("base"), Path("new")]) is None


@pytest.mark.slow
def test_a_round_measures_every_network_of_a_tree(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "sparsesnn", tmp_path / "sparsesnn", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    shutil.copy(_core.__file__, tmp_path / "sparsesnn")  # an editable installation keeps it elsewhere
    times = regress.one_round([tmp_path, tmp_path], 0)
    assert set(times) == set(regress.NETWORKS)
    assert all(0.2 < new / base < 5 for base, new in times.values())


@pytest.mark.slow
def test_another_tree_is_refused(tmp_path: Path) -> None:
    command = regress.worker(tmp_path, "--steps", "1", "--network", "maps")
    found = subprocess.run(command, env=regress.environment(ROOT), capture_output=True, text=True, check=False)
    assert f"not from {tmp_path}" in found.stderr


def test_an_unknown_commit_ends_in_one_message() -> None:
    with pytest.raises(SystemExit, match=r"rev-parse --verify no-such-commit.* failed with exit status 128"):
        regress.build("no-such-commit")
