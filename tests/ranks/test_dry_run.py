"""A dry run, one rank of R that is alone, against R ranks: the same messages, of the same sizes."""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from sparsesnn.cli import main
from sparsesnn.engines.cpu.engine import gradient_norm
from sparsesnn.engines.module import Model
from sparsesnn.engines.optimizers import gradients_of
from sparsesnn.engines.ranks.shards import make_shards
from sparsesnn.host import shared_memory
from sparsesnn.host.comm import Communicator, make_grid, simulate
from sparsesnn.host.comm.dry_run import Clock, DryRun
from sparsesnn.layers import LI, LIF, Input
from sparsesnn.network import Connection, Network, parse_net
from sparsesnn.partition.target import Links
from sparsesnn.spikes import SpikeBatch

NETS = {
    "feed-forward": parse_net("30-175-68-10"),
    "recurrent": parse_net("30-200r-130-10"),
    "delays": Network(
        {"input": Input(30), "hidden": LIF(330), "output": LI(10)},
        [Connection("input", "hidden"), Connection("hidden", "hidden", delay=3), Connection("hidden", "output")],
    ),
    "capacity": Network.chain(Input(30), LIF(260, recurrent=True, capacity=190), LIF(90, capacity=33), LI(10)),
    "spiking readout": parse_net("30-1000-70s"),
}


@pytest.fixture(autouse=True)
def _every_rank_has_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "_open", lambda text: None)


def exchanged(network: Network, grid: tuple[int, int], world: Communicator, *, full: bool) -> dict[str, Any]:
    """The traffic of a rank in a training step, and its gradients."""
    place = make_grid(world, *grid)
    model = Model(network, grid=place, seed=3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "->" in name:
                parameter.fill_(1.0) if full else parameter.mul_(3)
    n_samples = 24 * grid[0]
    drawn = torch.rand(13, n_samples, 30, generator=torch.Generator().manual_seed(5))
    spikes = SpikeBatch.from_dense((drawn < (2 if full else 0.2)).float())
    first = 24 * place.replicas.rank
    before = world.traffic.copy()
    output = model(spikes[first : first + 24], first_sample=first)
    logits = output.counts() if output.potentials is None else output.potentials.mean(0)
    (logits**2).sum().backward()
    model.finish_backward()
    gradient_norm(model, gradients_of(model))
    found = asdict(world.traffic.since(before))
    del found["seconds"]
    return {**found, "activity": output.activity()}


GRIDS = [(1, 2), (1, 3), (1, 5), (2, 1), (3, 1), (4, 1), (2, 2)]


@pytest.mark.parametrize("grid", GRIDS, ids=lambda g: f"{g[0]}x{g[1]}")
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("full", [True, False], ids=["all fire", "some fire"])
def test_messages_of_all_ranks(net: str, grid: tuple[int, int], full: bool) -> None:
    """The same number; where all neurons fire, so that lists are as long as those of the ranks, of the same sizes."""
    network, n = NETS[net], grid[0] * grid[1]
    of_shard = [make_shards(network, grid[1], shard) for shard in range(grid[1])]
    for rank, real in enumerate(simulate(n, lambda world: exchanged(network, grid, world, full=full))):
        found = exchanged(network, grid, DryRun(n, rank), full=full)
        assert found["n_messages"] == real["n_messages"]
        # Lists of populations that it has no neurons of are drawn; which candidates a capacity leaves depends on the others'.
        if full and net != "capacity" and all(of_shard[rank % grid[1]][name].n for name in real["activity"]):
            assert found == real


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("net", ["30-450-590-10", "30-590r-330-10", "30-450c-330rc-10"])
def test_sizes_of_lists(net: str, n: int) -> None:
    """Other ranks' neurons fire as often as this one's."""
    network = parse_net(net)
    real = simulate(n, lambda world: exchanged(network, (1, n), world, full=False))[0]
    found = exchanged(network, (1, n), DryRun(n), full=False)
    for name, activity in real.pop("activity").items():
        assert found["activity"][name] == pytest.approx(activity, rel=0.5)
    assert {what: found[what] for what in real} == pytest.approx(real, rel=0.3)
    assert found == exchanged(network, (1, n), DryRun(n), full=False)


def test_links_are_waited_for() -> None:
    network = NETS["recurrent"]
    waited = []
    for links in (Links(1e9, 0.0), Links(1e9, 1e-3), Links(1e6, 0.0)):
        world = DryRun(3, links=links)
        found = exchanged(network, (1, 3), world, full=True)
        waited.append(world.clock.waited)
        assert world.clock.now >= world.clock.waited
        assert sum(of.bytes_received for of in world.clock.traffic.values()) == world.traffic.bytes_received
        assert {"lists", "loops", "list gradients", "potentials"} <= set(world.clock.traffic)
    assert waited[1] > 0.05  # more than fifty messages, one after the other
    assert waited[2] > 0.5 * found["bytes_received"] / 1e6  # some of it arrives while the rank computes
    assert waited[0] < min(waited[1:])


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["train", "digits", "--net", "auto-450r-70-auto", "--set", "parallel.shards=5", "--set", "init.activity=0.05",
             "--set", "train.batch=17", "--threads", "1", "--comm", "dry-run:10", "--link", "1,50"]  # fmt: skip
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["ranks"], found["replicas"], found["shards"]) == (10, 2, 5)
    assert found["links"] == {"bytes_per_s": 1e9, "latency_s": pytest.approx(5e-5)}
    assert found["step_ms"] > found["waited_ms"] > 0
    assert found["planned_bytes"] > 0
    total = found["traffic"].pop("all")
    assert total["n_messages"] == sum(of["n_messages"] for of in found["traffic"].values())
    assert {"lists", "loops", "weight gradients"} <= set(found["traffic"])
    assert found["peak_bytes"] >= found["before_bytes"] > 0  # of this process, whose earlier tests may have held more
    assert found["activity"]["hidden1"] == pytest.approx(0.05, rel=0.5)
    assert main(words) == 0
    assert "the training is meaningless" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())  # nothing is kept


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--comm", "dry-run"], "--comm: is 'dry-run'; give dry-run:R"),
        (["--comm", "dry-run:1"], "at least 2"),
        (["--comm", "dry-run:2", "--out", "x"], "--comm dry-run:2: .* leave out --out"),
        (["--comm", "dry-run:2", "--backend", "dense"], "--comm dry-run: train.backend is 'dense'; allowed: cpu"),
        (["--comm", "dry-run:3", "--set", "parallel.shards=2"], "parallel: .* do not make 3 ranks"),
        (["--link", "1,2"], "--link: has no effect without --comm"),
    ],
)
def test_wrong_options(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", *words]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_a_clock_that_was_stopped_twice_stands_until_both_are_over() -> None:
    clock = Clock(Links())
    with clock.stopped():
        before = clock.now
        with clock.stopped():
            time.sleep(0.002)
        time.sleep(0.002)
    assert clock.now == before
    time.sleep(0.002)
    clock.advance()
    assert clock.now >= before + 0.002
