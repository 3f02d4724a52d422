"""Replicas × shards, measured, next to the order in which the plan puts them.

    ./dev bench grids --ranks 1,2,4                       every grid of so many ranks
    ./dev bench grids --ranks 2,4 --recurrent --width 512 --rounds 4

Each grid trains the same network and batch, in turns with the others; the fastest of all rounds counts. By default it is processor
time without communication, of the rank that computes longest, which holds where ranks share cores or others use the machine, and the
plan's time for messages over --link. With --wall it is the time of a step.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from sparsesnn.launch.scaling import Point, predict_step
from sparsesnn.partition.cpu.tiles import GROUP_SAMPLES
from sparsesnn.partition.target import Links


def work(spec_file: Path, out: Path) -> int:
    """On every rank."""
    from sparsesnn.host.comm import Communicator, Local, base
    from sparsesnn.host.comm.on_ranks import run_on_ranks
    from sparsesnn.launch import scaling_worker

    torch.set_num_threads(1)
    spec = json.loads(spec_file.read_text(encoding="utf-8"))
    if not spec.pop("wall"):  # a rank that waits for messages spins
        base.perf_counter = time.perf_counter = time.thread_time  # type: ignore[attr-defined]

    def measured(world: Communicator | None) -> int:
        ranks = world or Local()
        row = scaling_worker.measure(Point(**spec), ranks)
        if ranks.rank == 0:
            out.write_text(json.dumps([row["step_ms"], row["exchange_ms"]]), encoding="utf-8")
        return 0

    return run_on_ranks(measured)


def grids(ranks: Sequence[int], batch: int) -> list[tuple[int, int]]:
    """All replicas × shards, but those with idle replicas."""
    n_groups = math.ceil(batch / GROUP_SAMPLES)
    return [(n, r // n) for r in ranks for n in range(1, r + 1) if r % n == 0 and n <= n_groups]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--link", default="5,2", metavar="GB/s,us", help="of the plan (default: %(default)s)")
    parser.add_argument(
        "--wall", action="store_true", help="time by the clock; for a quiet machine with a core for each rank"
    )
    parser.add_argument("--recurrent", action="store_true")
    for name, default in (("layers", 2), ("width", 1024), ("batch", 48), ("steps", 100), ("repeats", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--work", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.work:
        return work(*options.work)
    gigabytes, microseconds = map(float, options.link.split(","))
    links = Links(bytes_per_s=1e9 * gigabytes, latency_s=1e-6 * microseconds)
    shared = {
        "n_layers": options.layers,
        "width": options.width,
        "batch": options.batch,
        "recurrent": options.recurrent,
    }
    points = [
        Point(replicas, shards, n_steps=options.steps, repeats=options.repeats, **shared)
        for replicas, shards in grids([int(n) for n in options.ranks.split(",")], options.batch)
    ]
    times: defaultdict[Point, list[float]] = defaultdict(list)
    with TemporaryDirectory() as folder:
        spec, out = Path(folder) / "point.json", Path(folder) / "row.json"
        for _ in range(options.rounds):
            for point in points:
                spec.write_text(json.dumps({**asdict(point), "wall": options.wall}), encoding="utf-8")
                launch = ["launch", "--ranks", str(point.ranks), "--threads", "1", "--oversubscribe", "--bind", "none"]
                command = [sys.executable, "-m", "sparsesnn", *launch, "--", __file__, "--work", str(spec), str(out)]
                subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
                step_ms, exchange_ms = json.loads(out.read_text(encoding="utf-8"))
                parts = predict_step(point, 1, links).parts_s
                sent_ms = 1e3 * (parts["exchange"] + parts["latency"])
                times[point].append(step_ms if options.wall else step_ms - exchange_ms + sent_ms)
            print(f"round {len(times[points[0]])} of {options.rounds}", flush=True)
            print(table(times, links), flush=True)
    return 0


def table(times: Mapping[Point, Sequence[float]], links: Links) -> str:
    """For people."""
    rows = [(1e3 * predict_step(point, 1, links).batch_s, min(found), point) for point, found in times.items()]
    by_plan, by_time = sorted(row[0] for row in rows), sorted(row[1] for row in rows)
    lines = [f"{'replicas':>8} {'shards':>7} {'plan, ms':>9} {'measured':>9}  place in the plan, measured"]
    for plan_ms, ms, point in rows:
        places = f"{1 + by_plan.index(plan_ms):>5} {1 + by_time.index(ms):>5}"
        lines.append(f"{point.replicas:>8} {point.shards:>7} {plan_ms:>9.1f} {ms:>9.1f}  {places}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
