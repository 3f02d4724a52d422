"""Which grid of a cluster the plan proposes."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparsesnn.cli import main
from sparsesnn.errors import ConfigError, PlanError
from sparsesnn.launch.links import measured_links, read_links
from sparsesnn.network import parse_net
from sparsesnn.partition.cpu.grids import Grid, best_grid, grid_text, largest_part, search_grids
from sparsesnn.partition.cpu.memory import rank_bytes
from sparsesnn.partition.plan import Plan
from sparsesnn.partition.planner import make_plan
from sparsesnn.partition.target import Links, parse_target
from sparsesnn.wording import count


def search(
    net: str, ranks: int, batches: tuple[int, ...] = (48,), replicas: int = 0, latency_s: float = 2e-6, **changes: Any
) -> list[Grid]:
    target = replace(parse_target("mpi:1x2"), links=Links(12.5e9, latency_s), **changes)

    def plan(n: int, shards: int, n_samples: int) -> Plan:
        return make_plan(parse_net(net), n_samples, 100, target.with_devices(shards), replicas=n)

    return search_grids(plan, ranks, batches, replicas)


def test_fewer_ranks_are_best_where_messages_are_slow() -> None:
    net = "700-2048r-2048r-20"
    fast, slow = (best_grid(search(net, 64, latency_s=s)) for s in (1e-8, 1e-4))
    assert slow.ranks < fast.ranks <= 64
    assert search(net, 64, latency_s=1e-4)[-1].bound == "latency"
    assert best_grid(search(net, 64, latency_s=1.0)).ranks == 1


def test_rows_are_the_fastest_of_their_ranks() -> None:
    rows = search("700-512-512-20", 12)
    assert [row.ranks for row in rows] == sorted({row.ranks for row in rows})
    assert rows[0].ranks == 1
    assert rows[0].efficiency == pytest.approx(1)
    assert {(row.replicas * row.shards) for row in rows} >= {1, 2, 3, 4, 6, 12}
    four = [grid for r in (1, 2, 4) for grid in search("700-512-512-20", 4, replicas=r) if grid.ranks == 4]
    assert next(row for row in rows if row.ranks == 4).samples_per_s == max(grid.samples_per_s for grid in four)
    assert all(sum(row.predicted.parts_s.values()) == pytest.approx(row.predicted.batch_s) for row in rows)


@pytest.mark.parametrize(("batch", "replicas", "most"), [(48, 4, 16), (48, 6, 8), (17, 2, 16), (5, 1, 5), (9, 2, 8)])
def test_replicas_have_whole_groups(batch: int, replicas: int, most: int) -> None:
    assert largest_part(batch, replicas) == most
    assert all(row.replicas <= -(-batch // 8) for row in search("70-64-20", 16, (batch,)))


def test_larger_batches_keep_more_ranks_busy() -> None:
    small, both = (best_grid(search("700-512r-20", 64, batches)) for batches in ((48,), (48, 768)))
    assert both.batch == 768
    assert both.samples_per_s > small.samples_per_s


def test_ranks_that_cannot_hold_the_network_are_left_out() -> None:
    rows = search("700-2048-2048-20", 16, replicas=1, bytes_per_device=40 << 20)
    assert rows[0].ranks > 1
    with pytest.raises(PlanError, match="needs .* bytes on rank"):
        search("700-2048-2048-20", 2, bytes_per_device=1 << 20)


def test_ranks_without_a_tile_are_left_out() -> None:
    rows = search("70-256-20", 1024, (16,))
    assert rows[-1].ranks == 2 * 4  # two groups of samples, four tiles of 64 neurons


def test_populations_of_maps_are_whole_on_one_rank_and_replicas_share_their_work() -> None:
    network = parse_net("2x34x34:5C16s2-3C32s2-140-10")
    plan = make_plan(network, 8, 9, parse_target("mpi:3x2"))
    ranks = {name: {shard.rank for shard in p.shards} for name, p in plan.populations.items()}
    assert [len(ranks[name]) for name in ("hidden1", "hidden2", "hidden3")] == [1, 1, 3]
    assert ranks["hidden1"] != ranks["hidden2"]
    assert "hidden1, hidden2, which hear maps, whole on one" in plan.strategy
    assert sum(sum(items.values()) > 0 for items in rank_bytes(plan)) == 3
    best = best_grid(search("2x34x34:5C16s2-3C32s2-10", 8, (64,)))
    assert (best.replicas, best.shards) == (8, 1)


def test_a_search_over_1024_ranks_takes_seconds() -> None:
    """Counted in calls of functions, of which a second holds a million and more: how many there are depends on no machine."""
    n_calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal n_calls
        n_calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        search("-".join(["700", *["1024r"] * 100, "20"]), 1024, (48, 384))
    finally:
        sys.setprofile(before)
    assert 0 < n_calls < 7_000_000


# ---- the commands ---------------------------------------------------------------------------------------------------


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    assert main([*arguments]) == code
    said = capsys.readouterr()
    return said.out, said.err


PLAN = ("plan", "--net", "700-512r-20", "--target", "mpi:16x2")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def series(folder: Path, kind: str, latency_s: float | None) -> Path:
    path = folder / "runs" / kind / "scaling.json"
    path.parent.mkdir(parents=True)
    links = None if latency_s is None else {"bytes_per_s": 1e9, "latency_s": latency_s}
    path.write_text(json.dumps({"rows": [{"links": None}, {"links": links}]}))
    return path


def test_the_plan_says_which_grid_is_best(capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    out, _ = run(capsys, *PLAN)
    best = json.loads(run(capsys, *PLAN, "--json")[0])["best_grid"]
    assert "grids of at most 16 ranks × 2 cores; links of 12.5 GB/s and 2 µs a message (assumed" in out
    assert f"best: {count(best['replicas'], 'replica')} × {count(best['shards'], 'shard')}, " in out
    assert f"parallel.replicas={best['replicas']} --set parallel.shards={best['shards']}" in out
    assert f"bound by {best['bound']}" in out
    assert max(map(len, out.splitlines())) <= 125
    n = json.loads(run(capsys, *PLAN, "--json")[0])["predicted"]["messages_per_step"]
    assert f"messages that a rank sends: {n:,.2f} a step" in out
    auto = json.loads(run(capsys, *PLAN, "--replicas", "auto", "--json")[0])
    assert (auto["replicas"], auto["target"]["devices"]) == (best["replicas"], best["shards"])
    assert auto["predicted"]["batch_ms"] == pytest.approx(best["step_ms"])


def test_idle_ranks_are_said(capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    out, _ = run(capsys, "plan", "--net", "70-128-20", "--target", "mpi:64x2", "--batch", "8")
    assert "of more than 2 ranks some would be idle" in out


def test_replicas_share_the_ranks(capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    data = json.loads(run(capsys, *PLAN, "--replicas", "2", "--json")[0])
    assert (data["replicas"], data["target"]["name"], data["n_samples"]) == (2, "mpi:8x2", 24)
    assert {row["replicas"] for row in data["grids"]} == {2}
    for text, message in [
        ("3", "16 ranks of 'mpi:16x2' cannot share evenly; give one of 1, 2, 4, 8, 16"),
        ("x", "is 'x'"),
    ]:
        assert message in run(capsys, *PLAN, "--replicas", text, code=2)[1]
    few = run(capsys, *PLAN, "--replicas", "8", "--batch", "5", code=2)[1]
    assert "--replicas: is 8, for batches of 5; give at most one for each sample" in few
    assert (
        "--batches: target 'cpu'"
        in run(capsys, "plan", "--net", "7-5-3", "--target", "cpu", "--batches", "8", code=2)[1]
    )


def test_measured_links_enter(capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    assert measured_links() is None
    old = series(elsewhere, "weak-scaling", 5e-3)
    os.utime(old, (1, 1))
    assert measured_links() == (Links(1e9, 5e-3), old.relative_to(elsewhere))
    out, _ = run(capsys, *PLAN)
    assert "links of 1 GB/s and 5e+03 µs a message (measured, runs/weak-scaling/scaling.json)" in out
    assert "best: 1 replica × 1 shard, 1 rank" in out
    new = series(elsewhere, "strong-scaling", None)  # one rank alone has no links
    assert measured_links() == (Links(1e9, 5e-3), old.relative_to(elsewhere))
    assert "measured one rank alone" in run(capsys, *PLAN, "--link", str(new), code=2)[1]
    assert "5e+03 µs a message (given)" in run(capsys, *PLAN, "--link", str(old))[0]
    new.write_text('{"rows": 3}')
    with pytest.raises(ConfigError, match=r"holds no links .*; give the scaling.json"):
        read_links(new)


def test_launch_takes_the_best_grid(capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    series(elsewhere, "weak-scaling", 1.0)  # no message is worth it
    launch = (
        "launch",
        "--ranks",
        "8",
        "--threads",
        "2",
        "--launcher",
        "mpich",
        "--dry-run",
        "--auto",
        "--bind",
        "none",
    )
    out, err = run(capsys, *launch, "--hosts", "a:4,b:4", "--", "train", "digits")
    assert "launch --auto: 1 replica × 1 shard, 1 rank: " in err
    assert "of at most 8, links of runs/weak-scaling/scaling.json" in err
    assert " -n 1 " in out
    assert " -hosts a:1 " in out
    assert out.rstrip().endswith("train digits --set parallel.replicas=1 --set parallel.shards=1")
    for words, message in [
        (("eval", "x"), "--auto: the command is 'eval'"),
        (("train", "digits", "--backend", "dense"), "--auto: train.backend is 'dense'"),
        (("train", "digits", "--set", "parallel.shards=2"), "parallel.shards 2; leave them at 0"),
    ]:
        assert message in run(capsys, *launch, "--", *words, code=2)[1]


def test_text_of_a_grid() -> None:
    (grid,) = search("70-64-20", 1)
    assert grid_text(grid).startswith("1 replica × 1 shard, 1 rank: ")
