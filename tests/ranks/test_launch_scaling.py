"""Scaling: the points, the measurements of ranks, tables and plots; ranks are threads of this process, or mpirun's."""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsesnn.cli import main
from sparsesnn.errors import ConfigError, SparseSnnError
from sparsesnn.host import shared_memory
from sparsesnn.host.comm import Communicator, Local, simulate
from sparsesnn.host.comm.dry_run import DryRun
from sparsesnn.launch import scaling
from sparsesnn.launch.finding import find_launcher
from sparsesnn.launch.links import given_links, measure_links, measured_links, read_links
from sparsesnn.launch.point_work import draw_spikes
from sparsesnn.launch.points import DRY_RUN, KINDS, MEASURED, Point, Settings, network_of, points, share_of
from sparsesnn.launch.scaling_worker import busiest_rank, measure, samples_of, time_apart
from sparsesnn.layers import LIF
from sparsesnn.partition.planner import make_plan
from sparsesnn.partition.target import Links, parse_target

SMALL = Point(replicas=1, shards=1, n_layers=2, width=256, batch=17, n_steps=7, activity=0.05, max_activity=0.1, repeats=2, warm_up=1)  # fmt: skip


# ---- which points ---------------------------------------------------------------------------------------------------


def grids(**changes: Any) -> list[tuple[int, ...]]:
    found = points(Settings(ranks=(1, 2, 4), n_layers=2, width=512, batch=10, **changes))
    return [(p.replicas, p.shards, p.n_layers, p.width, p.batch) for p in found]


def test_ranks_and_network_grow_together() -> None:
    assert grids() == [(1, 1, 2, 512, 10), (1, 2, 4, 512, 10), (1, 4, 8, 512, 10)]
    assert grids(grow="width") == [(1, 1, 2, 512, 10), (1, 2, 2, 704, 10), (1, 4, 2, 1024, 10)]
    assert grids(grow="batch") == [(1, 1, 2, 512, 10), (2, 1, 2, 512, 20), (4, 1, 2, 512, 40)]
    assert grids(kind="strong-scaling") == [(1, 1, 2, 512, 10), (1, 2, 2, 512, 10), (1, 4, 2, 512, 10)]
    assert grids(kind="strong-scaling", split="samples")[2] == (4, 1, 2, 512, 10)
    assert grids(kind="batch-size", batches=(3, 9)) == [(1, 1, 2, 512, 3), (1, 1, 2, 512, 9)]


def test_dry_runs_follow_what_is_measured() -> None:
    settings = Settings(ranks=(1, 2), dry_run_ranks=(2, 64), grow="width", width=512)
    found = [(point.ranks, point.how, point.width) for point in points(settings)]
    assert found == [(1, MEASURED, 512), (2, MEASURED, 704), (2, DRY_RUN, 704), (64, DRY_RUN, 4096)]


@pytest.mark.parametrize("grow", ["layers", "width", "batch"])
def test_ranks_apart_have_the_network_of_one_rank(grow: str) -> None:
    settings = Settings(ranks=(1, 2), dry_run_ranks=(8,), grow=grow, n_layers=2, width=512, batch=10)
    one, two, played = points(settings)
    assert share_of(settings, two) == one
    assert share_of(settings, one) is share_of(settings, played) is None
    assert share_of(replace(settings, kind="strong-scaling", grow="layers"), two) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"dry_run_ranks": (64, 8)},
            r"--dry-run-ranks: is \[64, 8\]; give different numbers from 2 up in ascending order",
        ),
        ({"dry_run_ranks": (1, 8)}, r"--dry-run-ranks: is \[1, 8\]; give different numbers from 2 up"),
        (
            {"dry_run_ranks": (8,), "ranks": (1,)},
            r"--dry-run-ranks: \[8\] .* --ranks 1 does not measure; add --ranks 1,2 or --link",
        ),
        ({"link": "10,2"}, "--link: is '10,2', but it applies only with --dry-run-ranks; add that"),
        ({"dry_run_ranks": (64,)}, "--steps: is 100 for 128 layers: .* give at least 129"),
        ({"kind": "scaling"}, "--kind: is 'scaling'; allowed: weak-scaling, strong-scaling, batch-size"),
        ({"grow": "depth"}, "--grow: is 'depth'; allowed: layers, width, batch"),
        ({"ranks": (2, 1)}, r"--ranks: is \[2, 1\]; give different numbers in ascending order"),
        ({"ranks": ()}, "--ranks: is "),
        ({"n_layers": 0}, "--layers: is 0; give at least 1"),
        ({"activity": 0.1}, "--activity: is 0.1 with room for 0.05; give 0 < activity <= --max-activity <= 1"),
        (
            {"n_steps": 8, "ranks": (1, 2, 4)},
            "--steps: is 8 for 8 layers: spikes would not reach the last layer; .* least 9",
        ),
    ],
)
def test_series_that_make_no_sense(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Settings(**changes)


def test_network_of_a_point() -> None:
    network = network_of(replace(SMALL, recurrent=True))
    assert list(network.populations) == ["input", "hidden1", "hidden2", "output"]
    hidden = network.populations["hidden2"]
    assert isinstance(hidden, LIF)
    assert (hidden.n, hidden.capacity, network.is_recurrent("hidden2")) == (256, 26, True)


# ---- what ranks measure ---------------------------------------------------------------------------------------------


def test_one_rank() -> None:
    row = measure(SMALL, Local())
    assert row["links"] is None
    assert row["bytes_per_time_step"] == row["comm_share"] == 0.0
    assert row["n_neurons"] == 2 * 256 + 20
    assert row["n_weights"] == 2 * 256 * 256 + 256 * 20
    assert row["samples_per_s"] == pytest.approx(1e3 * 17 / row["step_ms"])
    for layer in ("hidden1", "hidden2"):
        assert row["layer_activity"][layer] == pytest.approx(0.05, rel=0.2)
        assert row["layer_listed"][layer] >= row["layer_activity"][layer]
    json.dumps(row, allow_nan=False)


@pytest.mark.parametrize("grid", [(1, 2), (2, 1), (1, 3)])
@pytest.mark.parametrize("recurrent", [False, True])
def test_ranks_do_the_same_network(grid: tuple[int, int], recurrent: bool) -> None:
    """The same spikes whoever computes them, so the same activity, dropped spikes and work."""
    point = replace(SMALL, recurrent=recurrent)
    alone = measure(point, Local())
    rows = simulate(grid[0] * grid[1], lambda world: measure(replace(point, replicas=grid[0], shards=grid[1]), world))
    for row in rows:
        for key in ("layer_activity", "layer_listed"):
            assert row[key] == pytest.approx(alone[key], rel=1e-12)
        assert row["dropped"] == alone["dropped"]
        assert row["events_per_s"] * row["step_ms"] == pytest.approx(alone["events_per_s"] * alone["step_ms"])
        assert row["bytes_per_time_step"] > 0
        assert 0 < row["comm_share"] < 1
        assert row["exchange_ms"] > 0
        assert row["waiting_ms"] >= 0
        assert row["sort_ms"] == row["phases_ms"]["sort"] > 0
        assert all(ms > 0 for ms in row["phases_ms"].values())


def test_ranks_apart_exchange_nothing() -> None:
    def work(world: Communicator) -> tuple[float, float]:
        before = world.traffic.copy()
        seconds = time_apart(SMALL, world)
        return seconds, world.traffic.since(before).bytes_sent

    found = simulate(2, work)
    assert found[0] == found[1]
    assert found[0][0] > 0
    assert found[0][1] <= 16  # of its time


@pytest.mark.parametrize("grid", [(1, 2), (1, 4), (2, 1)])
@pytest.mark.parametrize("recurrent", [False, True])
def test_a_dry_run_counts_what_ranks_count(
    grid: tuple[int, int], recurrent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "_open", lambda text: None)  # no rank reads another's memory
    point = replace(
        SMALL, replicas=grid[0], shards=grid[1], width=512, batch=24 * grid[0], n_steps=20, recurrent=recurrent
    )
    real = simulate(point.ranks, lambda world: measure(point, world))[0]
    links = Links(bytes_per_s=1e9, latency_s=1e-6)
    played = replace(point, how=DRY_RUN)
    row = measure(played, DryRun(point.ranks, busiest_rank(played), links))
    most = real["messages_per_time_step"]  # of two replicas that do not hold a branch each, one sends more
    assert row["messages_per_time_step"] == most if grid[0] == 1 else 0 < row["messages_per_time_step"] <= most
    assert row["bytes_per_time_step"] == pytest.approx(real["bytes_per_time_step"], rel=0.1)
    for layer in ("hidden1", "hidden2"):
        assert row["layer_activity"][layer] == pytest.approx(real["layer_activity"][layer], rel=0.2)
    assert row["samples_per_s"] == pytest.approx(1e3 * point.batch / row["step_ms"])
    assert 0 < row["exchange_ms"] < row["step_ms"]
    assert (row["waiting_ms"], row["phases_ms"], row["links"]) == (0.0, None, asdict(links))


def test_the_busiest_rank_has_most_samples_and_neurons() -> None:
    assert busiest_rank(replace(SMALL, replicas=3, batch=49)) == 0  # 7 groups: 3, 2 and 2, the last one of one sample
    point = replace(SMALL, shards=5, width=320 + 64)  # six tiles of each layer over five ranks
    network = network_of(point)
    plan = make_plan(network, 17, 7, parse_target("mpi:5x1"))
    own = [sum(shard.n for name in network.receivers() for shard in plan.shards_of_ranks(name)[r]) for r in range(5)]
    assert own[busiest_rank(point)] == max(own)


def test_samples_of_replicas_are_whole_groups() -> None:
    for n_samples in (1, 8, 17, 100):
        for replicas in (1, 2, 3, 16):
            bounds = [samples_of(r, replicas, n_samples) for r in range(replicas)]
            assert bounds[0][0] == 0
            assert bounds[-1][1] == n_samples
            assert all(a[1] == b[0] for a, b in itertools.pairwise(bounds))
            assert all(first % 8 == 0 or first == n_samples for first, _ in bounds)


def test_input_does_not_depend_on_who_draws_it() -> None:
    whole, part = draw_spikes(SMALL, 0, 17), draw_spikes(SMALL, 8, 16)
    np.testing.assert_array_equal(whole[8:16].to_dense().numpy(), part.to_dense().numpy())
    assert whole.activity() == pytest.approx(SMALL.activity, rel=0.1)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_links(size: int) -> None:
    found = simulate(size, lambda world: measure_links(world, rounds=8))
    assert len({asdict_of(links) for links in found}) == 1  # every rank knows the same
    links = found[0]
    assert links is not None
    assert 0 < links.latency_s < 60  # of a loaded machine
    assert 1e3 < links.bytes_per_s < 1e13
    assert measure_links(Local()) is None


def asdict_of(links: Links | None) -> tuple[float, float]:
    assert links is not None
    return links.bytes_per_s, links.latency_s


def test_links_of_the_newest_series_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def save(kind: str, latency_s: float | None) -> Path:
        path = Path("runs") / kind / "scaling.json"
        path.parent.mkdir(parents=True)
        links = None if latency_s is None else {"bytes_per_s": 1e9, "latency_s": latency_s}
        path.write_text(json.dumps({"rows": [{"links": None}, {"links": links}]}))
        return path

    assert measured_links() is None
    old = save("weak-scaling", 5e-3)
    os.utime(old, (1, 1))
    assert measured_links() == (Links(1e9, 5e-3), old)
    new = save("strong-scaling", None)  # one rank alone has no links
    assert measured_links() == (Links(1e9, 5e-3), old)
    assert given_links(str(old)) == Links(1e9, 5e-3)
    with pytest.raises(ConfigError, match="is a series of one rank"):
        given_links(str(new))
    new.write_text('{"rows": 3}')
    with pytest.raises(ConfigError, match=r"holds no links .*; give the scaling.json"):
        read_links(new)


# ---- tables, plots, files -------------------------------------------------------------------------------------------


def rows_of(settings: Settings, step_ms: list[float]) -> list[dict[str, Any]]:
    """Rows as a series would hold them, with these times."""
    found = []
    for point, ms in zip(points(settings), step_ms, strict=True):
        work = point.batch * point.n_layers * point.width**2
        layers = {f"hidden{k + 1}": point.activity for k in range(point.n_layers)}
        found.append(
            {"ranks": point.ranks, **asdict(point), "round": 1, "n_neurons": point.n_layers * point.width, "step_ms": ms, "samples_per_s": 1e3 * point.batch / ms,
             "events_per_s": 1e3 * work / ms, "layer_activity": {"input": 0.02, **layers}, "comm_share": 0.1,
             "exchange_ms": 0.25, "waiting_ms": 0.75, "sort_ms": 1.5, "bytes_per_time_step": 5e3, "links": None if point.ranks == 1 else {"bytes_per_s": 1e9, "latency_s": 1e-6}}
        )  # fmt: skip
    return found


def test_efficiency() -> None:
    settings = Settings(ranks=(1, 2), n_layers=2, width=512)
    rows = rows_of(settings, [10.0, 12.5])  # each rank has as much to do
    scaling.finish(settings, rows)
    assert [row["efficiency"] for row in rows] == pytest.approx([1.0, 0.8])
    assert [row["apart_efficiency"] for row in rows] == [1.0, None]  # saved before ranks were timed apart, too
    rows[1]["apart_step_ms"] = 11.0
    scaling.finish(settings, rows)
    assert rows[1]["apart_efficiency"] == pytest.approx(10 / 11)
    scaling.finish(settings, rows[1:])
    assert rows[1]["apart_efficiency"] == 1.0
    strong = Settings(kind="strong-scaling", ranks=(1, 4), n_layers=2, width=512)
    rows = rows_of(strong, [10.0, 5.0])  # half the time on four times the ranks
    scaling.finish(strong, rows)
    assert [row["efficiency"] for row in rows] == pytest.approx([1.0, 0.5])
    assert not any(name.startswith("predicted") for row in rows for name in row)  # of CPUs everything is measured


def test_rounds_are_compared_by_themselves_and_shown_as_medians() -> None:
    settings = Settings(ranks=(1, 2), n_layers=2, width=512)
    rounds = [rows_of(settings, [10.0 * slow, 12.5 * slow * late]) for slow, late in [(1, 1), (3, 1), (0.5, 1.25)]]
    rows = [row | {"round": k + 1} for k, of in enumerate(rounds) for row in of]
    scaling.finish(settings, rows)
    assert [row["efficiency"] for row in rows] == pytest.approx([1.0, 0.8, 1.0, 0.8, 1.0, 0.64])
    one, two = scaling.medians(rows)
    assert (one["ranks"], one["step_ms"], two["ranks"], two["step_ms"]) == (1, 10.0, 2, 12.5)
    assert two["efficiency"] == pytest.approx(0.8)
    assert two["layer_activity"] == rows[1]["layer_activity"]
    assert scaling.medians(rows[:2]) == [row | {"rounds": 1} for row in rows[:2]]
    two |= {"threads": 1, "bandwidth_gb_per_s": 1.0, "latency_us": 1.5}
    assert "\nmedians of 3 rounds\n" in scaling.table([one, two])


def test_table_and_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    settings = Settings(ranks=(1, 2), n_layers=2, width=512)
    rows = rows_of(settings, [10.0, 12.5])
    scaling.finish(settings, rows)
    rows[1] |= {"threads": 1, "bandwidth_gb_per_s": 1.0, "latency_us": 1.5}
    _, _, row, *_, spent, links = scaling.table(rows).splitlines()
    assert "0.800" in row
    assert spent.split() == ["2", "measured", "12.5", "0.25", "0.75", "1.50"]
    assert row.endswith("2.00 2.00 2.00 2.00")  # of every layer
    assert links.endswith("--comm dry-run:2 --link 1,1.5")
    assert "apart:" not in scaling.table(rows)
    rows[1]["apart_efficiency"] = 0.875
    assert " 0.800  0.875 " in scaling.table(rows)
    assert "\napart: " in scaling.table(rows)
    ipus = scaling.ipu_rows([1, 2])
    assert {row["x"] for row in ipus} == {1, 2}
    assert all(row["efficiency"] == 1.0 for row in ipus if row["x"] == 1)
    scaling.plot(settings, rows, ipus, tmp_path / "with.png")
    scaling.plot(Settings(kind="batch-size"), rows, [], tmp_path / "without.png")
    assert (tmp_path / "with.png").stat().st_size > (tmp_path / "without.png").stat().st_size > 5000


def test_dry_runs_are_told_from_measurements(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    settings = Settings(ranks=(1, 2), dry_run_ranks=(2, 64), grow="width", n_layers=2, width=512)
    rows = rows_of(settings, [10.0, 12.5, 12.0, 30.0])
    rows[1] |= {"threads": 1, "bandwidth_gb_per_s": 1.0, "latency_us": 1.0}
    for row in rows[2:]:
        row |= {"links": {"bytes_per_s": 1e6, "latency_s": 1e-3}, "bandwidth_gb_per_s": 1e-3, "latency_us": 1e3}
        row |= {"played_activity": 0.0195, "played_activity_of_ranks": 2}
    scaling.finish(settings, rows)
    text = scaling.table(rows)
    told = [line.split()[:3] for line in text.splitlines() if line.startswith("    2 ")]
    assert [words[1] for words in told] == ["measured", "dry", "measured", "dry"]  # in both tables
    assert "dry run: not measured" in text
    assert "as active as the layers of 2 ranks: 1.95 %" in text
    assert text.endswith("--comm dry-run:2 --link 1,1")  # the measured links
    scaling.plot(settings, rows, [], tmp_path / "dry.png")
    scaling.plot(settings, rows[:2], [], tmp_path / "measured.png")
    assert (tmp_path / "dry.png").read_bytes() != (tmp_path / "measured.png").read_bytes()


def test_a_dry_run_takes_activity_and_links_of_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(ranks=(1, 2), dry_run_ranks=(8,), grow="width", n_layers=2, width=512)
    rows = rows_of(settings, [10.0, 12.5, 0.1])[:2]
    rows[1]["layer_activity"] = {"input": 0.5, "hidden1": 0.01, "hidden2": 0.03}
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(scaling, "run_point", lambda *arguments: asked.append(arguments) or {})
    point = list(points(settings))[-1]
    row = scaling.run_dry(point, settings, rows, ["--bind", "none"])
    assert row == {"played_activity": 0.02, "played_activity_of_ranks": 2}
    scaling.run_dry(point, replace(settings, link="2,3"), rows)
    measured, given = asked
    assert measured == (replace(point, activity=0.02), 1, ["--bind", "none"], Links(bytes_per_s=1e9, latency_s=1e-6))
    assert given[3] == Links(bytes_per_s=2e9, latency_s=3e-6)


# ---- with mpirun ----------------------------------------------------------------------------------------------------


@pytest.fixture
def _mpirun() -> None:
    pytest.importorskip("mpi4py", reason="needs mpi4py, in the extra 'mpi'")
    try:
        find_launcher()
    except ConfigError:
        pytest.skip("this machine has no mpirun; pip install 'sparsesnn[mpi]' brings one")


@pytest.mark.slow
@pytest.mark.usefixtures("_mpirun")
def test_weak_scaling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["launch", "weak-scaling", "--ranks", "1,2", "--layers", "1", "--width", "128", "--batch", "8", "--steps", "9",
                 "--repeats", "2", "--ipus", "", "--no-plot", "--launch", "--bind none --oversubscribe", "--out", "out"]  # fmt: skip
    assert main(arguments) == 0
    said = capsys.readouterr()
    assert "activity of every layer" in said.out
    assert "[2/2] ranks 2, shards 2, n_layers 2\n" in said.err  # what differs from the other point, and no more
    saved = json.loads(Path("out/scaling.json").read_text())
    one, two = saved["rows"]
    assert (one["ranks"], two["ranks"], two["n_layers"]) == (1, 2, 2)
    assert one["efficiency"] == 1.0
    assert two["latency_us"] > 0
    assert two["bandwidth_gb_per_s"] > 0
    assert two["apart_efficiency"] == one["step_ms"] / two["apart_step_ms"] > 0
    assert Path("out/scaling.csv").read_text().count("\n") == 3
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert main([*arguments, "--rounds", "2", "--json"]) == 0  # the first round is not measured again
    said = capsys.readouterr()
    again = json.loads(said.out)["rows"]
    assert [(row["ranks"], row["round"]) for row in again] == [(1, 1), (2, 1), (1, 2), (2, 2)]
    assert [row["step_ms"] for row in again[:2]] == [one["step_ms"], two["step_ms"]]
    assert again[2]["efficiency"] == 1.0
    assert "[4/4] ranks 2, shards 2, n_layers 2, round 2\n" in said.err


@pytest.mark.usefixtures("_mpirun")
def test_a_series_goes_on_with_dry_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["launch", "weak-scaling", "--ranks", "1", "--dry-run-ranks", "3,1024", "--link", "2,3", "--grow", "batch", "--layers", "1",
                 "--width", "70", "--batch", "9", "--steps", "5", "--repeats", "1", "--ipus", "", "--no-plot",
                 "--launch", "--bind none --oversubscribe", "--out", "out"]  # fmt: skip
    assert main(arguments) == 0
    assert "dry run: not measured" in capsys.readouterr().out
    rows = json.loads(Path("out/scaling.json").read_text())["rows"]
    assert [(row["ranks"], row["how"]) for row in rows] == [(1, MEASURED), (3, DRY_RUN), (1024, DRY_RUN)]
    assert rows[2]["links"] == {"bytes_per_s": 2e9, "latency_s": 3e-6}
    assert Path("out/scaling.csv").read_text().count(",dry run,") == 2
    saved = json.loads(Path("out/scaling.json").read_text())
    for row in saved["rows"]:
        del row["round"]  # as before there were rounds
    Path("out/scaling.json").write_text(json.dumps(saved))
    assert main([*arguments, "--json"]) == 0  # nothing is measured again
    assert [row["step_ms"] for row in json.loads(capsys.readouterr().out)["rows"]] == [row["step_ms"] for row in rows]


@pytest.mark.usefixtures("_mpirun")
def test_a_dry_run_that_fails_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    point = replace(SMALL, shards=64, how=DRY_RUN)
    with pytest.raises(SparseSnnError, match="^dry run of 64 ranks ended with code .*; see its output above"):
        scaling.run_point(point, 1, ["--bind", "none", "--env", "SPARSESNN_ISA=none"], Links())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("_mpirun")
@pytest.mark.parametrize(("replicas", "ranks"), [(1, "1 rank"), (2, "2 ranks")])
def test_a_rank_that_fails_is_said(replicas: int, ranks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    point = replace(SMALL, replicas=replicas, shards=1)
    with pytest.raises(SparseSnnError, match=f"^{ranks} ended with code .*; see its output above. The command: "):
        scaling.run_point(point, 1, ["--bind", "none", "--oversubscribe", "--env", "SPARSESNN_ISA=none"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["weak-scaling", "--launch", "--ranks 3"], "--launch: contains --ranks or --threads"),
        (["weak-scaling", "--launch", "--hosts 'a"], '--launch: "--hosts \'a": No closing quotation; close the quotes'),
        (["--ranks", "3", "weak-scaling"], "launch weak-scaling: --ranks before it would have no effect"),
        (["--hosts", "a", "--dry-run", "batch-size"], "launch batch-size: --hosts, --dry-run before it would have no"),
        (
            ["--ranks", "2", "--", "weak-scaling"],
            "weak-scaling starts ranks itself; write: sparsesnn launch weak-scaling",
        ),
        (["strong-scalling"], "'strong-scalling' is not a sparsesnn command"),
        (["batch-size", "--batches", "0"], "--batches: is '0'; give whole numbers from 1 to 1,000,000"),
        (["weak-scaling", "--dry-run-ranks", "8", "--link", "fast"], "--link: is 'fast'; give GB/s and µs"),
        (["weak-scaling", "--dry-run-ranks", "many"], "--dry-run-ranks: is 'many'; give whole numbers"),
        (["strong-scaling", "--split", "time"], "--split: is 'time'; allowed: neurons, samples"),
    ],
)
def test_wrong_options(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
def test_help(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["launch", kind, "--help"])
    assert caught.value.code == 0
    assert f"usage: sparsesnn launch {kind}" in capsys.readouterr().out


# ---- IPUs -----------------------------------------------------------------------------------------------------------

IPU_SERIES = [
    "--backend", "ipu-model", "--target", "ipu-mk2:1x8", "--layers", "1", "--width", "64", "--batch", "4", "--steps", "8",
    "--activity", "0.05", "--max-activity", "0.1", "--no-plot",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "more", "devices"),
    [
        ("weak-scaling", ["--grow", "batch"], [(1, "ipu-mk2:1x8"), (2, "ipu-mk2:1x8")]),
        ("weak-scaling", ["--grow", "width"], [(1, "ipu-mk2:1x8"), (1, "ipu-mk2:2x8")]),
        ("weak-scaling", ["--recurrent"], [(1, "ipu-mk2:1x8"), (1, "ipu-mk2:2x8")]),  # deeper
        ("strong-scaling", ["--split", "samples"], [(1, "ipu-mk2:1x8"), (2, "ipu-mk2:1x8")]),
        ("batch-size", ["--ranks", "1", "--batches", "2,4"], [(1, "ipu-mk2:1x8")] * 2),
    ],
)
def test_series_on_emulated_ipus(
    kind: str, more: list[str], devices: list[tuple[int, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["launch", kind, *IPU_SERIES, *more, "--out", str(tmp_path)]
    assert main([*command, "--json", *(["--ipus", ""] if kind == "weak-scaling" else [])]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["replicas"], row["target"]) for row in rows] == devices
    for row in rows:
        assert (row["how"], row["how_timed"]) == ("emulated", "cycles of the emulated machine")
        assert row["step_ms"] == pytest.approx(1e3 * row["cycles"] / 1.33e9, rel=0.01)
        assert 0.3 < row["predicted_step_ms"] / row["step_ms"] < 3
        layers = [rate for name, rate in row["layer_activity"].items() if name.startswith("hidden")]
        assert len(layers) == row["n_layers"]
        assert all(0.02 < rate < 0.07 for rate in layers)  # spikes reach the last one
        assert 0 < row["comm_share"] < 1
        assert row["apart_efficiency"] is None
    assert rows[0]["efficiency"] == rows[0]["predicted_efficiency"] == 1
    assert all(0 < row["efficiency"] < 2.5 and 0 < row["predicted_efficiency"] < 2.5 for row in rows)
    if kind == "batch-size":
        assert main(command) == 0  # nothing is measured again
        printed = capsys.readouterr().out
        assert "never measured on an IPU" in printed
        assert f"{rows[0]['cycles']:,.0f}" in printed


@pytest.mark.slow
def test_series_under_poprun_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = Path(__file__).parents[1] / "fakes"
    launcher = find_launcher("auto")
    monkeypatch.setenv("PATH", f"{fakes}:{Path(launcher.executable).parent}:{os.environ['PATH']}")
    series = [*IPU_SERIES, "--grow", "batch", "--ipus", ""]
    more = ["--instances", "1"]
    if launcher.kind == "openmpi" and os.geteuid() == 0:
        more += ["--launch", "--launcher-args='--allow-run-as-root 1'"]
    rows = []
    for name, changes in (("alone", []), ("poprun", more)):
        assert main(["launch", "weak-scaling", *series, *changes, "--out", str(tmp_path / name)]) == 0
        rows.append(json.loads((tmp_path / name / "scaling.json").read_text())["rows"])
    for alone, under in zip(*rows, strict=True):
        assert (alone["instances"], under["instances"]) == (None, 1)
        assert {k: v for k, v in alone.items() if k != "instances"} == {
            k: v for k, v in under.items() if k != "instances"
        }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backend": "gpu"}, "--backend: is 'gpu'; allowed: cpu, ipu, ipu-model"),
        (
            {"backend": "ipu-model", "ranks": (1, 3)},
            r"--ranks: is \[1, 3\] with --backend ipu-model; .* for 3 give 2 or 4",
        ),
        ({"backend": "ipu-model", "target": "ipu-mk2:2"}, "--target: is 'ipu-mk2:2', of 2 IPUs; give one IPU"),
        ({"backend": "ipu-model", "target": "cpu:2"}, "--target: is 'cpu:2' with --backend ipu-model; give an IPU"),
        (
            {"backend": "ipu-model", "instances": 2},
            "--instances: is 2 with --backend ipu-model, which runs in one process",
        ),
        ({"backend": "ipu-model", "instances": -1}, "--instances: is -1"),
        ({"backend": "ipu-model", "dry_run_ranks": (8,)}, "--dry-run-ranks: is .* with --backend ipu-model; only cpu"),
        ({"backend": "ipu"}, "backend 'ipu' needs the Poplar SDK"),
        ({"instances": 1}, "--instances: is 1 with --backend cpu; it applies only to ipu and ipu-model"),
        ({"target": "ipu-mk2:1x8"}, "--target: is 'ipu-mk2:1x8' with --backend cpu"),
    ],
)
def test_series_on_ipus_that_make_no_sense(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Settings(**changes)
