"""Program of every rank in a scaling measurement: `python -m sparsesnn.launch.scaling_worker POINT.json OUT.json`."""

from __future__ import annotations

import gc
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from sparsesnn import _core
from sparsesnn.adam import Adam
from sparsesnn.engines.cpu.engine import gradient_norm
from sparsesnn.engines.module import Model
from sparsesnn.engines.optimizers import gradients_of
from sparsesnn.engines.ranks.shards import make_shards
from sparsesnn.host.comm import Communicator, Grid, Local, make_grid
from sparsesnn.host.comm.dry_run import DryRun
from sparsesnn.host.comm.on_ranks import run_on_ranks
from sparsesnn.json_file import strict_json
from sparsesnn.launch.links import measure_links
from sparsesnn.launch.point_work import N_CALIBRATION, average, calibrate, draw_spikes, events_of, lists_of, n_places
from sparsesnn.launch.points import DRY_RUN, Point, network_of
from sparsesnn.loss import CrossEntropy
from sparsesnn.partition.target import Links
from sparsesnn.runtime import num_threads
from sparsesnn.whole_file import write_atomically


def main(arguments: list[str]) -> int:
    spec = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    point = Point(**spec["point"])
    torch.set_num_threads(1)

    def work(ranks: Communicator | None) -> int:
        world = ranks or Local()
        if spec.get("ipus"):
            from sparsesnn.launch import scaling_ipu

            row = scaling_ipu.measure(point, world, spec["ipus"]["backend"], spec["ipus"]["target"])
            if world.rank == 0:
                write_atomically(Path(arguments[1]), strict_json(row).encode())
            return 0
        if point.how == DRY_RUN:
            world = DryRun(point.ranks, busiest_rank(point), Links(**spec["links"]))
        row = measure(point, world)
        if spec.get("apart"):
            row["apart_step_ms"] = 1e3 * time_apart(Point(**spec["apart"]), world)
        if world.rank == 0 or point.how == DRY_RUN:
            write_atomically(Path(arguments[1]), strict_json(row).encode())
        return 0

    return run_on_ranks(work)


def measure(point: Point, world: Communicator) -> dict[str, Any]:
    """Times training steps of `point` on the ranks of `world`; the row is the same on all of them.

    In a dry run, times come from the rank's clock, and all ranks are equally fast; phases of the engine are left out, because they
    include the time to make up the other ranks' messages.
    """
    dry = isinstance(world, DryRun)
    links = world.clock.links if isinstance(world, DryRun) else measure_links(world)
    network = network_of(point)
    grid = make_grid(world, point.replicas, point.shards)
    first, last = samples_of(grid.replicas.rank, point.replicas, point.batch)
    # On one rank the engine runs as for users, without communication: the base of all efficiencies.
    training = Training(point, grid if world.size > 1 else None, first, last)
    step = training.step
    output, _ = step()
    rates = {"input": training.spikes.activity(), **output.activity()}
    listed = {name: lists.ids.numel() / n_places(lists) for name, lists in lists_of(output).items()}
    activity = average(grid.replicas, rates, last - first)
    listed = average(grid.replicas, listed, last - first)
    dropped = dict(zip(output.dropped(), grid.replicas.sum_counts(list(output.dropped().values())), strict=True))
    del output
    gc.collect()
    for _ in range(point.warm_up):
        step()
    seconds: list[float] = []
    sent: list[float] = []
    messages: list[float] = []
    waited: list[float] = []
    parts: list[dict[str, float]] = []
    for _ in range(point.repeats):
        world.barrier()
        _core.phase_seconds(reset=True)
        before, (start, waited_before) = world.traffic.copy(), read_clock(world)
        update = step()[1]
        (end, waited_after), traffic = read_clock(world), world.traffic.since(before)
        took = end - start
        parts.append({**_core.phase_seconds(reset=True), **update})
        seconds.append(took)
        # in a dry run, counts all ranks: each sends its part to all the others, or as much as this one
        sent.append(traffic.bytes_sent + (dry * (world.size - 1)) * traffic.bytes_received)
        messages.append(traffic.n_messages)
        waited.append(waited_after - waited_before)
    shares = [w / s for w, s in zip(waited, seconds, strict=True)]
    phases = {name: [each[name] for each in parts] for name in parts[0]}
    rows: list[list[float]] = [seconds, sent, messages, shares, waited, *phases.values()]
    medians = [median(row) for row in rows]
    ranks = world.all_gather(np.array(medians))
    phases_ms = {name: 1e3 * float(max(rank[5 + k] for rank in ranks)) for k, name in enumerate(phases)}
    step_s = float(max(rank[0] for rank in ranks))
    exchange_s = float(min(rank[4] for rank in ranks))  # the rank that all others wait for
    sizes = {name: p.n for name, p in network.populations.items()}
    return {
        "samples_per_s": point.batch / step_s,
        "step_ms": 1e3 * step_s,
        "step_ms_all": [1e3 * took for took in seconds],
        "n_neurons": sum(n for name, n in sizes.items() if name != "input"),
        "n_weights": network.n_weights(),
        "layer_activity": activity,
        "layer_listed": listed,
        "dropped": dropped,
        "events_per_s": events_of(network, activity, listed) * point.batch * point.n_steps / step_s,
        "bytes_per_time_step": float(sum(rank[1] for rank in ranks[: 1 if dry else None])) / point.n_steps,
        "messages_per_time_step": float(max(rank[2] for rank in ranks)) / point.n_steps,
        "comm_share": float(max(rank[3] for rank in ranks)),
        "exchange_ms": 1e3 * exchange_s,
        "waiting_ms": 1e3 * (float(max(rank[4] for rank in ranks)) - exchange_s),
        "sort_ms": phases_ms["sort"],
        "phases_ms": None if dry else phases_ms,
        "latency_us": None if links is None else 1e6 * links.latency_s,
        "bandwidth_gb_per_s": None if links is None else 1e-9 * links.bytes_per_s,
        "links": None if links is None else asdict(links),
        "threads": num_threads(),
        "isa": _core.build_info()["isa"],
    }


class Training:
    """Training steps of a point's network on samples `first` to `last` - 1, with updates that change nothing.

    Attributes:
        spikes: the input of these samples.
    """

    def __init__(self, point: Point, grid: Grid | None, first: int, last: int) -> None:
        network = network_of(point)
        self.model = Model(network, grid=grid)
        calibrate(self.model, network, draw_spikes(point, 0, min(N_CALIBRATION, point.batch)), point.activity)
        self.first_sample = first
        self.spikes = draw_spikes(point, first, last)
        labels = torch.randint(0, point.n_classes, (point.batch,), generator=torch.Generator().manual_seed(point.seed))
        self.loss = CrossEntropy(labels[first:last], "mean", point.n_classes, n_samples=point.batch)
        # A learning rate of 0: updates have their usual cost, and the activity does not change.
        self.optimizer = Adam(self.model.parameters(), lr=0.0)

    def step(self) -> tuple[Any, dict[str, float]]:
        """The output, and the seconds taken by the gradients' norm and the update."""
        self.optimizer.zero_grad(set_to_none=True)
        _, output = self.model.learn(self.spikes, self.loss, first_sample=self.first_sample)
        self.model.finish_backward()
        start = time.perf_counter()
        gradient_norm(self.model, gradients_of(self.model))
        normed = time.perf_counter()
        self.optimizer.step()
        return output, {"norm": normed - start, "optimizer": time.perf_counter() - normed}


def time_apart(point: Point, world: Communicator) -> float:
    """Seconds per step of separate networks on all ranks at once, of the slowest rank."""
    step = Training(point, None, 0, point.batch).step
    for _ in range(point.warm_up):
        step()
    seconds = []
    for _ in range(point.repeats):
        world.barrier()
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return float(max(took[0] for took in world.all_gather(np.array([median(seconds)]))))


def read_clock(world: Communicator) -> tuple[float, float]:
    """Seconds so far, and those spent in communication by this rank."""
    if isinstance(world, DryRun):
        world.clock.advance()
        return world.clock.now, world.clock.waited
    return time.perf_counter(), world.traffic.seconds


def busiest_rank(point: Point) -> int:
    """The rank with the most samples and neurons."""
    shards = make_shards(network_of(point), point.shards, 0).values()
    shard = max(range(point.shards), key=lambda r: sum(one.n_of(r) for one in shards))

    def n_samples(replica: int) -> int:
        first, last = samples_of(replica, point.replicas, point.batch)
        return last - first

    return max(range(point.replicas), key=n_samples) * point.shards + shard


def samples_of(replica: int, n_replicas: int, n_samples: int) -> tuple[int, int]:
    """Range of a replica's samples: whole groups, in which gradients are summed."""
    group = _core.group_samples
    n_groups = -(-n_samples // group)
    first, last = (-(-r * n_groups // n_replicas) * group for r in (replica, replica + 1))
    return min(first, n_samples), min(last, n_samples)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
