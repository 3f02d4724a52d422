"""Random networks on the IPU program and on the CPU engine; `./dev bench ipu-random` runs hundreds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import ipu_random
from ipu_cases import random_case
from ipu_random import run_case

pytestmark = pytest.mark.slow

#: together: one and several IPUs and replicas, shared rounds, odd shards, halves, regularizers, all losses and optimizers
SEEDS = range(32)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_network_ends_where_the_engine_ends(seed: int) -> None:
    finding = run_case(random_case(seed), checks="first")
    assert finding.verdict != "fault", f"{finding.line()}\n{random_case(seed).describe()}"


def test_what_is_drawn_has_all_that_the_program_does() -> None:
    cases = [random_case(seed) for seed in SEEDS]
    populations = [p for case in cases for p in case.network.populations.values()]
    for what, found in {
        "decodings": {case.decoding for case in cases} == {"mean", "sum", "last", "max", "count"},
        "optimizers": {case.optimizer.kind for case in cases} == {"sgd", "adam", "adamw"},
        "replicas": {case.plan.replicas for case in cases} == {1, 2, 4},
        "devices": {case.plan.target.devices for case in cases} == {1, 2, 4},
        "potentials kept in part": {case.plan.keep_every for case in cases} == {1, 2, 3},
        "halves": {case.plan.weight_dtype for case in cases} == {"float32", "half"},
        "regularizers": any(case.regularizer for case in cases),
        "clipping": any(case.optimizer.clip_norm for case in cases),
        "odd shards": {case.plan.strategy[0] for case in cases} >= {"1", "3", "5"},
        "delays": {c.delay for case in cases for c in case.network.connections} >= {0, 1, 2, 3},
        "resets": {getattr(p, "reset", "none") for p in populations} == {"subtract", "zero", "none"},
        "exact resets": {getattr(p, "detach_reset", True) for p in populations} == {True, False},
        "recurrent": any(c.is_recurrent for case in cases for c in case.network.connections),
        "capacities": {getattr(p, "activity", "natural") for p in populations if getattr(p, "capacity", None)}
        == {"natural", "fixed"},
        "models": {type(p).__name__ for p in populations} == {"Input", "LIF", "CubaLIF", "AdLIF", "Resonator", "LI"},
        "learnt": all(any(getattr(p, f"learn_{q}", False) for p in populations) for q in ("alpha", "rho", "turn")),
    }.items():
        assert found, what


@pytest.mark.parametrize(
    "change",
    [{"label_smoothing": 0.05}, {"optimizer": None}, {"regularizer": None}],
    ids=["loss", "optimizer", "regularizer"],
)
def test_a_fault_is_told_from_the_order_of_sums(change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is given another number than the engine."""
    right = ipu_random._program

    def wrong(case: Any, model: Any, backend: str, optimizer: Any, *rest: Any) -> Any:
        if "optimizer" in change:
            optimizer = replace(optimizer, lr=1.05 * optimizer.lr)
            return right(case, model, backend, optimizer, *rest)
        return right(replace(case, **change), model, backend, optimizer, *rest)

    monkeypatch.setattr(ipu_random, "_program", wrong)
    case = next(c for c in map(random_case, SEEDS) if c.regularizer is not None and not c.label_smoothing)
    finding = run_case(case, n_batches=4)
    assert finding.verdict == "fault", finding.line()


def test_the_same_seed_is_the_same_network() -> None:
    assert random_case(5).describe() == random_case(5).describe() != random_case(6).describe()


def test_the_command_says_how_many_were_equal(capsys: pytest.CaptureFixture[str]) -> None:
    assert ipu_random.main(["2", "--first", "3", "--verbose"]) == 0
    out = capsys.readouterr().out
    assert out.count("seed ") == 4
    assert "2 networks in" in out
    assert "0 fault" in out
