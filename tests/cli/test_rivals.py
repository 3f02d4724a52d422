"""The race's pure parts, its hand-written contestants against autograd, and the protocol with real processes."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rivals import environments, plot, report
from rivals.catalog import GROUPS, RIVALS, SEMANTICS, WORKLOADS, chosen
from rivals.contestants import compiled, convolution, csr, fused
from rivals.contestants.ours import LONGEST
from rivals.contestants.torch_tools import delayed, mean_of_potentials
from rivals.prepare import VARIANTS, make_task
from rivals.race import Loaded, Turn, Worker, WorkerError, rotate
from rivals.results import Result, agrees, best_dense, crossing, ratios, summarize
from rivals.task import BETA, THRESHOLD, Task
from torch import Tensor

from sparsesnn.bench import Workload
from sparsesnn.delays import Delays

SMALL = Workload(net="13-21-17r-5", n_steps=11, n_samples=3, input_activity=0.2, hidden_activity=0.1)


@pytest.fixture(scope="module")
def task() -> Task:
    return make_task(SMALL)


# ---- hand-written contestants -----------------------------------------------------------------------------------------


def _leaves(task: Task) -> tuple[Tensor, list[Tensor], list[Tensor | None]]:
    """In float64, where two orders of a sum do not end on two sides of a threshold."""
    weights = [torch.tensor(w, dtype=torch.float64, requires_grad=True) for w in task.weights]
    recurrent = [
        None if w is None else torch.tensor(w, dtype=torch.float64, requires_grad=True) for w in task.recurrent
    ]
    return torch.from_numpy(task.spikes).double(), weights, recurrent


def _gradients(module: object, task: Task) -> list[Tensor]:
    spikes, weights, recurrent = _leaves(task)
    events = [csr.Events(spikes.flatten(0, 1))] if module is csr else []
    logits = module.logits(spikes, *events, weights, recurrent)  # type: ignore[attr-defined]
    loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(task.labels))
    leaves = [*weights, *(w for w in recurrent if w is not None)]
    return [loss.detach(), *torch.autograd.grad(loss, leaves)]


@pytest.mark.parametrize("module", [fused, csr])
@pytest.mark.parametrize("net", ["13-21-17-5", "9-31r-4", "13-21r-17r-5"])
@pytest.mark.parametrize("n_steps", [1, 2, 11])
def test_hand_written_gradients_are_those_of_autograd(module: object, net: str, n_steps: int) -> None:
    workload = replace(SMALL, net=net, hidden_activity=0.2)
    task = make_task(workload)
    task = replace(task, spikes=task.spikes[:n_steps])
    expected = _gradients(compiled, task)
    if n_steps == 11:
        assert all(bool(g.any()) for g in expected)
    for found, wanted in zip(_gradients(module, task), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("module", [fused, csr])
@pytest.mark.parametrize("value", [0, 1])
def test_silent_and_full_input(module: object, value: int, task: Task) -> None:
    task = replace(task, spikes=np.full_like(task.spikes, value))
    for found, wanted in zip(_gradients(module, task), _gradients(compiled, task), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("delays", [(0,), (0, 3, 6), (0, 1, 2, 3), (0, 20)])
def test_gradients_with_delays_are_those_of_shifted_spikes(delays: tuple[int, ...]) -> None:
    task = make_task(replace(SMALL, net="13-21-17-5", hidden_activity=0.2, delays=delays))
    assert [w.shape for w in task.weights] == [(len(delays), 13, 21), (len(delays), 21, 17), (17, 5)]
    spikes, weights, recurrent = _leaves(task)

    def gradients(logits: Tensor) -> list[Tensor]:
        loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(task.labels))
        return [loss.detach(), *torch.autograd.grad(loss, weights)]

    x = spikes
    for weight in weights[:-1]:
        currents = torch.stack([delayed(x, d) @ w for d, w in zip(delays, weight.unbind(0), strict=True)]).sum(0)
        x = compiled.lif(currents, None)
    expected = gradients(mean_of_potentials(x @ weights[-1]))
    assert float(expected[0]) == pytest.approx(task.losses["subtract"], rel=1e-5)
    assert all(bool(g.any()) for g in expected)
    kernels = [convolution.kernel(w) for w in weights[:-1]]
    for logits in (
        fused.logits(spikes, weights, recurrent, delays),
        convolution.logits(spikes, [*kernels, weights[-1]], delays),
    ):
        for found, wanted in zip(gradients(logits), expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


def test_events_are_the_matrix_and_its_transpose() -> None:
    spikes = (torch.rand(7, 5, generator=torch.Generator().manual_seed(1)) < 0.4).double()
    events = csr.Events(spikes)
    assert torch.equal(events.by_step.to_dense(), spikes)
    assert torch.equal(events.by_sender.to_dense(), spikes.T)


def test_mean_of_potentials_is_the_mean_of_potentials() -> None:
    currents = torch.randn(9, 2, 3, dtype=torch.float64)
    v, total = torch.zeros(2, 3, dtype=torch.float64), torch.zeros(2, 3, dtype=torch.float64)
    for i in currents:
        v = BETA * v + i
        total += v
    torch.testing.assert_close(mean_of_potentials(currents), total / 9)


# ---- the task ----------------------------------------------------------------------------------------------------------


def _loss(task: Task, kind: str) -> float:
    """The equations of `SEMANTICS` in float64, spelt out."""
    x = task.spikes.astype(np.float64)
    late = 0
    for layer, (weight, own) in enumerate(zip(task.weights[:-1], task.recurrent, strict=True)):
        n_steps, n_samples = x.shape[:2]
        if kind.startswith("axonal"):
            x = _arriving(x, Delays(LONGEST, learn=kind.endswith("trained"), seed=layer).first(x.shape[2]))
        v = np.zeros((n_samples, weight.shape[1]))
        s = np.zeros_like(v)
        out = np.zeros((n_steps, *v.shape))
        for t in range(n_steps):
            i = x[t - late] @ weight if t >= late else np.zeros_like(v)
            if own is not None:
                i = i + s @ own
            if kind == "at once":
                v = BETA * (v - THRESHOLD * s) + i
            elif kind == "zero":
                v = BETA * v * (1 - s) + i
            elif kind == "none":
                v = BETA * v + i
            else:
                v = BETA * v - THRESHOLD * s + i
            s = (v > THRESHOLD).astype(np.float64)
            out[t] = s
        x, late = out, int(kind == "late")
    u = np.zeros((x.shape[1], task.weights[-1].shape[1]))
    total = np.zeros_like(u)
    for t in range(len(x)):
        u = BETA * u + (x[t - late] @ task.weights[-1] if t >= late else 0)
        total += u
    logits = total / len(x)
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return float(-log_p[np.arange(len(logits)), task.labels].mean())


def _arriving(x: np.ndarray, delays: np.ndarray) -> np.ndarray:
    """x [T, B, M], of each sender m later by delays[m] steps; between two steps a share arrives at each."""
    later = np.zeros((len(x) + LONGEST + 1, *x.shape[1:]))
    for m, delay in enumerate(delays.astype(np.float64)):
        first, share = int(delay), delay % 1
        later[first : first + len(x), :, m] += (1 - share) * x[..., m]
        later[first + 1 : first + 1 + len(x), :, m] += share * x[..., m]
    return later[: len(x)]


@pytest.mark.parametrize("kind", list(SEMANTICS))
def test_expected_losses_are_those_of_the_equations(kind: str, task: Task) -> None:
    assert task.losses[kind] == pytest.approx(_loss(task, kind), rel=1e-5)


def test_semantics_differ_by_more_than_the_tolerance(task: Task) -> None:
    assert set(VARIANTS) == set(SEMANTICS) == set(task.losses)
    losses = list(task.losses.values())
    assert not any(agrees(a, b) for k, a in enumerate(losses) for b in losses[:k])


def test_a_task_survives_its_file(tmp_path: Path, task: Task) -> None:
    task.save(tmp_path / "task.npz")
    found = Task.load(tmp_path / "task.npz")
    assert found.delays == ()
    assert np.array_equal(found.spikes, task.spikes)  # 13 inputs: bits that fill no byte
    assert np.array_equal(found.labels, task.labels)
    assert all(np.array_equal(a, b) for a, b in zip(found.weights, task.weights, strict=True))
    assert found.recurrent[0] is None
    assert np.array_equal(found.recurrent[1], task.recurrent[1])  # type: ignore[arg-type]
    assert (found.losses, found.activity) == (task.losses, task.activity)
    assert (found.n_steps, found.n_samples) == (11, 3)


def test_a_task_with_delays_survives_its_file(tmp_path: Path) -> None:
    task = make_task(replace(SMALL, delays=(0, 2)))
    task.save(tmp_path / "task.npz")
    found = Task.load(tmp_path / "task.npz")
    assert found.delays == (0, 2)
    taps = found.taps(1)
    assert [(d, w.shape) for d, w in taps] == [(0, (21, 17)), (2, (21, 17))]
    assert all(np.array_equal(w, given) for (_, w), given in zip(taps, task.weights[1], strict=True))
    assert [(d, w.shape) for d, w in found.taps(2)] == [(0, (17, 5))]


def test_a_file_that_is_no_task_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", spikes=np.zeros(3))
    with pytest.raises(ValueError, match=r"other.npz: has no \['about', 'labels', 'weight0'\]"):
        Task.load(tmp_path / "other.npz")


# ---- the catalog -----------------------------------------------------------------------------------------------------


def test_every_contestant_is_known_once_and_has_a_file() -> None:
    assert len({rival.name for rival in RIVALS}) == len(RIVALS)
    folder = Path(fused.__file__).parent
    for rival in RIVALS:
        assert (folder / f"{rival.module}.py").is_file(), rival.name
        assert rival.semantics in SEMANTICS
        assert rival.environment in ("own", "torch", "jax")
        assert set(rival.only) <= set(WORKLOADS)


def test_workloads_with_delays_are_for_those_who_know_delays() -> None:
    names = {workload: [rival.name for rival in RIVALS if rival.takes_part(workload)] for workload in WORKLOADS}
    both = ["sparsesnn", "sparsesnn-dense", "fused", "snntorch", "spikingjelly"]
    assert {*both, "csr"} <= set(names["W2"])
    assert "convolution" not in names["W1"]
    assert sorted(names["D25"]) == sorted([*both, "convolution"])
    assert set(names["D1"]) - set(names["D25"]) == {"sparsesnn-axonal", "sparsesnn-trained"}
    assert set(WORKLOADS) == {name for group in GROUPS.values() for name in group}


def test_contestants_are_chosen_by_name() -> None:
    assert [rival.name for rival in chosen(["csr", "sparsesnn"])] == ["sparsesnn", "csr"]
    assert chosen(None) == list(RIVALS)
    with pytest.raises(ValueError, match="no contestant gpu; there are sparsesnn, "):
        chosen(["gpu", "csr"])


# ---- results -----------------------------------------------------------------------------------------------------------


def _result(name: str, speed: float, **changes: object) -> Result:
    (rival,) = chosen([name])
    loaded = Loaded(loss=3.0, first_step_s=1.5, version="1.0")
    result = summarize(rival, loaded, [Turn(48 / speed, 3, 0.05, 0.0)], 1, 48, 3.0, 30_000_000)
    return replace(result, **changes)  # type: ignore[arg-type]


def test_the_quietest_turns_count_not_the_fastest() -> None:
    (rival,) = chosen(["fused"])
    turns = [
        Turn(0.1, 1, 0.05, 0.9),
        Turn(0.3, 1, 0.05, 0.0),
        Turn(0.4, 1, 0.05, 0.02),
        Turn(0.2, 1, 0.05, 0.5),
        Turn(0.5, 1, 0.05, 0.01),
    ]
    found = summarize(rival, Loaded(3.0, 1.5, "2"), turns, 3, 48, 3.0, None)
    assert found.step_ms == pytest.approx(400)
    assert found.samples_per_s == pytest.approx(120)
    assert found.cpu_ms == pytest.approx(50)
    assert found.quartiles_ms == pytest.approx((350, 450))
    assert (found.n_turns, found.n_quiet, found.foreign, found.growth_mb) == (3, 3, 0.01, None)
    loud = summarize(rival, Loaded(3.0, 1.5, "2"), turns[:1], 3, 48, 3.0, None)
    assert (loud.n_turns, loud.n_quiet) == (1, 0)


def test_where_the_system_does_not_tell_the_load_all_turns_count() -> None:
    (rival,) = chosen(["fused"])
    found = summarize(
        rival, Loaded(3.0, 1.5, "2"), [Turn(0.1, 1, 0.05, None), Turn(0.3, 1, 0.05, None)], 2, 48, 3.0, None
    )
    assert (found.step_ms, found.foreign, found.n_quiet) == (pytest.approx(200), None, 2)


def test_losses_agree_to_rounding_and_no_further() -> None:
    assert agrees(3.0, 3.0)
    assert agrees(3.0 * (1 + 1e-4), 3.0)
    assert not agrees(3.0 * (1 + 1e-3), 3.0)
    assert not agrees(math.nan, 3.0)


def test_best_dense_is_the_fastest_without_sparse_products() -> None:
    results = [_result("sparsesnn", 900), _result("csr", 300), _result("fused", 100), _result("spikingjelly", 120)]
    best = best_dense(results)
    assert best is not None
    assert best.name == "spikingjelly"
    assert best_dense(results[:2]) is None


def test_ratios() -> None:
    workloads = {
        "W1": [_result(*x) for x in (("sparsesnn", 2000), ("sparsesnn-1-thread", 1000), ("fused", 200), ("csr", 400))]
    }
    points = [{"target": a, "samples_per_s": {"sparsesnn": s}} for a, s in ((0.002, 8000), (0.02, 2000), (0.04, 1000))]
    assert ratios(workloads, points) == {
        "W1: against the best dense (fused)": 10,
        "W1: against csr": 5,
        "W1: all threads against one": 2,
        "time at 4.0% / at 2.0% hidden activity": 2,
        "time at 0.2% / at 2.0% hidden activity": 0.25,
    }
    assert ratios({"W1": [_result("fused", 200)]}, []) == {}
    speeds = (("sparsesnn", 2000), ("convolution", 100), ("sparsesnn-axonal", 1600), ("sparsesnn-trained", 1000))
    assert ratios({"D1": [_result(*x) for x in speeds]}, []) == {
        "D1: against the best dense (convolution)": 20,
        "D1: against convolution": 20,
        "D1: time of sparsesnn-axonal against sparsesnn": 1.25,
        "D1: time of sparsesnn-trained against sparsesnn": 2,
    }


def test_dense_wins_where_the_lines_cross() -> None:
    def points(*activities: float) -> list[dict[str, object]]:
        return [
            {"activity": a, "samples_per_s": {"sparsesnn": 20 / a, "fused": 100.0, "csr": 1 / a}} for a in activities
        ]

    assert crossing(points(0.5, 0.01, 0.1), "sparsesnn", ["fused", "snntorch"]) == pytest.approx(0.2)
    assert crossing(points(0.01, 0.1), "sparsesnn", ["fused"]) is None
    assert crossing(points(0.3, 0.5), "sparsesnn", ["fused"]) == pytest.approx(0.3)
    assert crossing(points(0.01, 0.1, 0.5), "sparsesnn", ["csr"]) is None
    assert crossing([], "sparsesnn", ["csr"]) is None


# ---- written results ---------------------------------------------------------------------------------------------------


FACTS = {
    "date": "2026-01-01 00:00 UTC",
    "commit": "abc",
    "machine": "a processor",
    "device": "cpu",
    "mhz": 2595.1,
    "caches": {"L1": 32 << 10, "L2": 1 << 20, "L3": 32 << 20},
    "stolen": 0.0123,
    "threads": 2,
    "isa": "avx2",
    "command": "./dev bench rivals",
    "n_steps": 100,
    "n_samples": 48,
}
SWEEP = {
    "net": "700-1024-1024-20",
    "names": ["sparsesnn", "fused"],
    "points": [
        {"target": 0.02, "activity": 0.0202, "samples_per_s": {"sparsesnn": 2000.0, "fused": 200.0}},
        {"target": 0.5, "activity": 0.48, "samples_per_s": {"sparsesnn": 100.0, "fused": 200.0}},
    ],
    "dense_wins_at": 0.25,
}


def test_the_table_is_sorted_and_says_whose_loss_is_wrong() -> None:
    results = [_result("fused", 200), _result("sparsesnn", 2000), _result("norse", 50, agrees=False, growth_mb=None)]
    _, _, *rows = report.table(results)
    assert [row.split("|")[1].strip() for row in rows] == ["**sparsesnn**", "fused dense PyTorch", "Norse"]
    assert "| 2,000 | 24.0 (24.0–24.0) | 50.0 | 30 | 1.5 | 3.00000 subtract ✓ |" in rows[0]
    assert "| ? |" in rows[2]
    assert "**✗** expected 3.00000" in rows[2]


def test_the_page_names_what_is_missing_and_what_disturbed() -> None:
    results = [_result("sparsesnn", 2000), _result("fused", 200, n_quiet=0, foreign=0.8)]
    page = report.markdown(FACTS, {"W1": results}, {"W1": {"input": 0.015}}, {"Norse": "pip: no network"}, SWEEP)
    assert "- Norse: pip: no network" in page
    assert "2,595 MHz at the start, L1 32 kB, L2 1,024 kB, L3 32,768 kB, 1.2 % of the time stolen by the host." in page
    assert report.conditions({**FACTS, "mhz": None, "stolen": None}) == "L1 32 kB, L2 1,024 kB, L3 32,768 kB"
    assert "**Disturbed**: in 1 of 2 turns other processes used the machine, up to 0.80 cores" in page
    assert "| W1: against the best dense (fused) | 10.00 |" in page
    assert "Dense wins from 25 % on." in page
    assert "| 48.00 % | 100 | 200 |" in page
    loud = {**SWEEP, "points": [{**SWEEP["points"][0], "foreign": {"sparsesnn": 0.9, "fused": None}}]}
    assert "**Disturbed: others used the machine at 1 of 2 marks.**" in "\n".join(report.sweep_lines(loud))
    assert "[how it is measured](../README.md)" in page
    quiet = report.markdown(FACTS, {"W1": results[:1]}, {"W1": {}}, {}, None, "../../README.md")
    assert "[how it is measured](../../README.md)" in quiet
    assert "Disturbed" not in quiet
    assert "Missing" not in quiet
    assert "activity.png" not in quiet


def test_json_is_whole_or_not_written(tmp_path: Path) -> None:
    report.write_json(tmp_path / "a" / "x.json", {"results": [_result("fused", 200).to_dict()]})
    assert json.loads((tmp_path / "a" / "x.json").read_text())["results"][0]["samples_per_s"] == pytest.approx(200)
    with pytest.raises(ValueError, match="not JSON compliant"):
        report.write_json(tmp_path / "a" / "x.json", {"loss": math.nan})
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["x.json"]


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs the extra 'plot'")
@pytest.mark.parametrize("where", [None, 0.25])
def test_the_plot_is_a_picture(tmp_path: Path, where: float | None) -> None:
    plot.draw(tmp_path / "activity.png", {**SWEEP, "dense_wins_at": where}, FACTS)
    assert (tmp_path / "activity.png").read_bytes().startswith(b"\x89PNG")
    assert len(list(tmp_path.iterdir())) == 1


# ---- environments ------------------------------------------------------------------------------------------------------


def test_pips_reason_is_its_last_error() -> None:
    said = "Looking\nERROR: no versions\nERROR: No matching distribution found for x\n[notice] new pip\n"
    assert environments.reason(said) == "No matching distribution found for x"
    assert environments.reason("one\ntwo\n\n") == "two"
    assert environments.reason("") == environments.reason(None) == "no output"


def test_one_package_that_fails_is_missing_and_the_others_race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str]) -> None:
        if "norse" in command:
            raise subprocess.CalledProcessError(1, command, output="ERROR: no network")

    monkeypatch.setattr(environments, "_run", run)
    rivals = chosen(["norse", "snntorch", "csr"])
    (tmp_path / "torch").mkdir()
    found = environments.prepare("torch", rivals, tmp_path)
    assert {rival.name: found.lacks(rival) for rival in rivals} == {
        "norse": "pip: no network",
        "snntorch": None,
        "csr": None,
    }
    assert not (tmp_path / "torch").exists()  # tried again next time


def test_an_environment_that_cannot_be_made_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str]) -> None:
        raise subprocess.CalledProcessError(1, command, output="no space left")

    monkeypatch.setattr(environments, "_run", run)
    rivals = chosen(["norse"])
    found = environments.prepare("torch", rivals, tmp_path)
    assert found.python is None
    assert found.lacks(rivals[0]) == "its environment could not be made: no space left"


def test_pythons_are_found_by_version(tmp_path: Path) -> None:
    assert environments.version_of(Path(sys.executable)) == sys.version_info[:2]
    assert environments.version_of(tmp_path / "python3") == (0, 0)
    assert environments.find_python((99, 0)) is None
    newest = environments.find_python((3, 10))
    assert newest is not None
    assert environments.version_of(newest) >= sys.version_info[:2]


# ---- processes ---------------------------------------------------------------------------------------------------------


def _worker(name: str, folder: Path) -> Worker:
    (rival,) = chosen([name])
    return Worker(rival, Path(sys.executable), 1, folder, folder)


def _stops(worker: Worker) -> bool:
    """On a loaded machine the signal takes its time."""
    for _ in range(600):
        if Path(f"/proc/{worker.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
            return True
        time.sleep(0.1)
    return False


@pytest.mark.slow
def test_contestants_race_in_turn_and_agree(tmp_path: Path, task: Task) -> None:
    task.save(tmp_path / "task.npz")
    with _worker("sparsesnn", tmp_path) as ours, _worker("csr", tmp_path) as theirs:
        for worker in (ours, theirs):
            loaded = worker.load(tmp_path / "task.npz")
            assert agrees(loaded.loss, task.losses["subtract"])
            assert loaded.version
        turns, failed = rotate([ours, theirs], 2, 0.01)
        assert not failed
        assert all(len(t) >= 2 and all(turn.seconds > 0 and turn.cpu > 0 for turn in t) for t in turns.values())
        growth = theirs.growth()
        if Path("/proc/self/stat").exists():
            assert growth is not None
            assert growth < 200e6
            assert _stops(ours)  # between turns
            assert _stops(theirs)
    assert ours.process.returncode is not None


def test_a_contestant_that_fails_says_why(tmp_path: Path) -> None:
    with _worker("csr", tmp_path) as worker:
        with pytest.raises(WorkerError, match=r"FileNotFoundError: .*nowhere\.npz"):
            worker.load(tmp_path / "nowhere.npz")
        worker.process.kill()
        worker.process.wait()
        with pytest.raises(WorkerError, match="its process ended"):
            worker.turn(0.1)


@pytest.mark.slow
def test_who_fails_on_the_way_leaves_and_the_others_go_on(tmp_path: Path, task: Task) -> None:
    task.save(tmp_path / "task.npz")
    with _worker("fused", tmp_path) as stays, _worker("csr", tmp_path) as leaves:
        stays.load(tmp_path / "task.npz")  # the other one has nothing to step with
        workers = [leaves, stays]
        turns, failed = rotate(workers, 1, 0.01)
        assert workers == [stays]
        assert list(turns) == ["fused"]
        assert failed == {"csr": "AssertionError: load must come first"}


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from rivals.__main__ import main

    for arguments, message in ((["--only", "gpu"], "no contestant gpu"), (["--workloads", "W9"], "no workload W9")):
        monkeypatch.setattr(sys, "argv", ["rivals", *arguments])
        with pytest.raises(SystemExit):
            main()
        assert message in capsys.readouterr().err


def test_the_command_line_explains_itself() -> None:
    benchmarks = Path(fused.__file__).parents[2]
    command = [sys.executable, "-m", "rivals", "--help"]
    done = subprocess.run(command, env={"PYTHONPATH": str(benchmarks)}, capture_output=True, text=True, check=True)
    assert "--workloads" in done.stdout
    assert "W2 (700-1024r-20)" in done.stdout
