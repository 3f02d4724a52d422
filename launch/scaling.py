"""Weak and strong scaling over ranks, and over the batch: the measurements, their order and their evaluation.

    weak-scaling    ranks and network grow together, so that the work per rank is constant: "layers" (deeper), "width" (wider
                    by √R: constant weights per rank), or "batch" (data parallel: replicas)
    strong-scaling  the same network and batch on more ranks
    batch-size      the same network and ranks on larger batches

Points may have more ranks than are available: a dry run simulates one of them here (`host/comm/dry_run.py`).

Each point is a separate run, started like any command by `sparsesnn launch`, so that a cluster's launcher, hosts and
binding are those of its trainings. Every row holds the activity of every layer: a layer without spikes costs nothing, and
would scale for free; so T ≥ depth + 1 is required.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from sparsesnn.errors import SparseSnnError
from sparsesnn.launch.links import given_links
from sparsesnn.launch.points import DRY_RUN, MEASURED, POINT_FIELDS, Point, Row, Settings, work_per_s
from sparsesnn.partition.target import Links
from sparsesnn.wording import count


def run_point(
    point: Point,
    threads: int,
    launch: Sequence[str] = (),
    links: Links | None = None,
    apart: Point | None = None,
    ipus: Mapping[str, Any] | None = None,
) -> Row:
    """Starts the ranks of one point (or the single rank of a dry run) by `sparsesnn launch`, and returns their row.

    Args:
        launch: more of its options, such as ["--hosts", "a,b"].
        links: between the ranks of a dry run.
        apart: a network that each rank then trains separately; the row has its apart_step_ms.
        ipus: backend, target and instances, see `Settings`, if the ranks are IPUs.

    Errors: `SparseSnnError` if a rank fails; its message is on standard error.
    """
    if ipus is not None and not ipus["instances"]:  # one process needs no launcher
        from sparsesnn.launch import scaling_ipu

        return scaling_ipu.measure_here(point, threads, ipus["backend"], ipus["target"])
    with tempfile.TemporaryDirectory(dir=".", prefix=".scaling-") as folder:  # visible to the ranks of all hosts
        spec, out = Path(folder) / "point.json", Path(folder) / "row.json"
        spec.write_text(
            json.dumps(
                {
                    "point": asdict(point),
                    "links": links and asdict(links),
                    "apart": apart and asdict(apart),
                    "ipus": ipus,
                }
            ),
            encoding="utf-8",
        )
        n_ranks = 1 if point.how == DRY_RUN else point.ranks
        if ipus is not None:
            n_ranks = max(1, ipus["instances"])
        command = [sys.executable, "-m", "sparsesnn", "launch", "--ranks", str(n_ranks), "--threads", str(threads)]
        if ipus is not None and ipus["instances"]:
            command += ["--num-replicas", str(point.replicas), "--ipus-per-replica", str(point.shards)]
        command += [*launch, "--"]
        command += ["-m", "sparsesnn.launch.scaling_worker", str(spec.resolve()), str(out.resolve())]
        done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL)
        if done.returncode or not out.exists():
            raise SparseSnnError(
                f"{'dry run of ' * (point.how == DRY_RUN)}{count(point.ranks, 'rank')} ended with code {done.returncode}; see its output above. The command: {shlex.join(command)}"
            )
        row: Row = json.loads(out.read_text(encoding="utf-8"))
    return row


def run_dry(point: Point, settings: Settings, rows: Sequence[Row], launch: Sequence[str] = ()) -> Row:
    """The row of a dry run's point: its layers have the mean activity of the last measured row."""
    last = [row for row in rows if row["how"] == MEASURED][-1]
    hidden = [rate for name, rate in last["layer_activity"].items() if name != "input"]
    activity = min(point.max_activity, sum(hidden) / len(hidden))
    links = given_links(settings.link) if settings.link else Links(**last["links"])
    row = run_point(replace(point, activity=activity), settings.threads, launch, links)
    return row | {"played_activity": activity, "played_activity_of_ranks": last["ranks"]}


def finish(settings: Settings, rows: Sequence[Row]) -> None:
    """Adds efficiencies, relative to the first row of the same round, to measured rows.

    efficiency: work per second and rank, over that of the first row. With constant work per rank it is t₁/t_R; for a
        fixed network t₁·R₁/(t_R·R). Work is counted (`work_per_s`), because it cannot be exactly constant: the first
        layer passes no gradient on, so twice the layers are more than twice the work, and a network wider by √R has
        the same number of weights per rank, but fewer neurons.
    apart_efficiency: for weak scaling, the efficiency of the same number of ranks without exchange, each with its own network:
        the time of one rank alone over that of all at once. Cores share caches, memory and power.
    predicted_efficiency: for IPUs, by the plan.
    """
    for k in dict.fromkeys(row["round"] for row in rows):
        of_round = [row for row in rows if row["round"] == k]
        if settings.on_ranks:
            _finish_round(of_round)
        else:
            from sparsesnn.launch import scaling_ipu

            scaling_ipu.finish(of_round)


def _finish_round(rows: Sequence[Row]) -> None:
    first = rows[0]
    for row in rows:
        row["efficiency"] = work_per_s(row) / row["ranks"] / (work_per_s(first) / first["ranks"])
        alone, apart = _apart_ms(first), _apart_ms(row)
        row["apart_efficiency"] = None if alone is None or apart is None else alone / apart


def medians(rows: Sequence[Row]) -> list[Row]:
    """A row for each point: the median of every number over all rounds, the rest as in the first; and the number of rounds."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[k] for k in sorted(POINT_FIELDS)), []).append(row)
    return [
        {
            k: median(row[k] for row in same) if type(x) is float and k not in POINT_FIELDS else x
            for k, x in same[0].items()
        }
        | {"rounds": len(same)}
        for same in groups.values()
    ]


def _apart_ms(row: Row) -> float | None:
    """The time of a step of one rank's network while all ranks run theirs; None: not measured."""
    return row["step_ms"] if row["ranks"] == 1 else row.get("apart_step_ms")


def ipu_rows(ipus: Sequence[int], target: str = "ipu-mk2") -> list[Row]:
    """Predicted weak scaling on IPUs, batch 48: never measured."""
    from sparsesnn.partition.ipu.sweeps import weak_scaling

    rows = [asdict(row) for row in weak_scaling(ipus, target, batches=(48,))]
    for row in rows:
        one = next(other for other in rows if other["series"] == row["series"])
        # work grows with IPUs at a fixed batch, so ideally samples/s stay constant
        row["efficiency"] = row["samples_per_s"] / one["samples_per_s"]
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a text table."""
    if "cycles" in rows[0]:
        from sparsesnn.launch import scaling_ipu

        return scaling_ipu.table(rows)
    head = f"{'ranks':>5} {'how':>8} {'layers':>6} {'width':>6} {'batch':>6} {'ms':>9} {'samples/s':>10} {'eff.':>6} {'apart':>6} {'comm':>6} {'kB/step':>9}  activity of every layer, %"
    lines = [head]
    for row in rows:
        activity = " ".join(f"{100 * a:.2f}" for name, a in row["layer_activity"].items() if name != "input")
        lines.append(
            f"{row['ranks']:>5} {row['how']:>8} {row['n_layers']:>6} {row['width']:>6} {row['batch']:>6} {row['step_ms']:>9.1f} "
            f"{row['samples_per_s']:>10,.1f} {row['efficiency']:>6.3f} {_ratio(row['apart_efficiency'])} {100 * row['comm_share']:>5.1f}% "
            f"{row['bytes_per_time_step'] / 1e3:>9.2f}  {activity}"
        )
    dry_runs = [row for row in rows if row["how"] == DRY_RUN]
    lines += [
        "",
        f"{'ranks':>5} {'how':>8} {'step, ms':>9} {'exchange, ms':>13} {'waiting, ms':>12} {'sorting, ms':>12}",
    ]
    for row in rows:
        lines.append(
            f"{row['ranks']:>5} {row['how']:>8} {row['step_ms']:>9.1f} {row['exchange_ms']:>13.2f} {row['waiting_ms']:>12.2f} {row['sort_ms']:>12.2f}"
        )
    if dry_runs:
        row = dry_runs[-1]
        lines.append(
            f"dry run: not measured; one rank alone computes, {row['bandwidth_gb_per_s']:.3g} GB/s and {row['latency_us']:.3g} µs per message are "
            f"modeled, and the others' messages are made up, as active as the layers of {count(row['played_activity_of_ranks'], 'rank')}: "
            f"{100 * row['played_activity']:.2f} %; waiting for slower ranks is left out"
        )
    if any(row["apart_efficiency"] is not None and row["ranks"] > 1 for row in rows):
        lines.append(
            "apart: efficiency of the same ranks without exchange, each on its own network: the limit of this machine"
        )
    if (rounds := max(row.get("rounds", 1) for row in rows)) > 1:
        lines.append(f"medians of {rounds} rounds")
    last = [row for row in rows if row["how"] == MEASURED][-1]
    if last["links"]:
        gigabytes, microseconds = last["bandwidth_gb_per_s"], last["latency_us"]
        lines.append(
            f"links: {gigabytes:.3g} GB/s, {microseconds:.3g} µs per message; for other networks: sparsesnn train … "
            f"--comm dry-run:{last['ranks']} --link {gigabytes:.3g},{microseconds:.3g}"
        )
    return "\n".join(lines)


def _ratio(x: float | None) -> str:
    return f"{'-':>6}" if x is None else f"{x:>6.3f}"


def plot(settings: Settings, rows: Sequence[Mapping[str, Any]], ipus: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Efficiency and activity over the varied quantity, with hollow markers for dry runs; next to them the prediction for IPUs."""
    from sparsesnn import figures

    key = "batch" if settings.kind == "batch-size" else "ranks"
    x = [row[key] for row in rows]
    figure = figures.new_figure(4.6 * (3 if ipus else 2), 4.2)
    panels = list(figure.subplots(1, 3 if ipus else 2))
    if not settings.on_ranks:
        panels[0].plot(x, [row["predicted_efficiency"] for row in rows], "s--", color=figures.GRAY, label="predicted")
    apart = [(row[key], row["apart_efficiency"]) for row in rows if row["apart_efficiency"] is not None]
    if len(apart) > 1:
        panels[0].plot(*zip(*apart, strict=True), "v:", color=figures.GREEN, label="ranks without exchange")
    for how in dict.fromkeys(row["how"] for row in rows):
        of = [row for row in rows if row["how"] == how]
        at, hollow = [row[key] for row in of], {"markerfacecolor": "none"} if how == DRY_RUN else {}
        lines = (
            (figures.BLUE, "o-", "efficiency", how),
            (figures.ORANGE, "^:", "comm_share", f"time in communication, {how}"),
        )[: 2 if of[0]["comm_share"] is not None else 1]
        for color, style, what, label in lines:
            panels[0].plot(at, [row[what] for row in of], style, color=color, label=label, **hollow)
    panels[0].set_ylim(bottom=0)
    panels[0].set_title("efficiency", fontsize=10)
    for k, row in enumerate(rows):
        layers = [100 * a for name, a in row["layer_activity"].items() if name != "input"]
        panels[1].plot(
            range(1, 1 + len(layers)),
            layers,
            "o-",
            color=figures.CYCLE[k % len(figures.CYCLE)],
            markerfacecolor="none" if row["how"] == DRY_RUN else None,
            label=f"{key} {row[key]}" + ", dry run" * (row["how"] == DRY_RUN),
        )
    highest = max(100 * a for row in rows for name, a in row["layer_activity"].items() if name != "input")
    panels[1].set_ylim(0, 1.3 * highest)  # space for the legend above nearly level lines
    panels[1].get_xaxis().get_major_locator().set_params(integer=True)
    panels[1].set_xlabel("hidden layer")
    panels[1].set_title("activity of every layer, %", fontsize=10)
    if ipus:
        for k, series in enumerate(dict.fromkeys(row["series"] for row in ipus)):
            line = [row for row in ipus if row["series"] == series]
            panels[2].plot(
                [r["x"] for r in line], [r["efficiency"] for r in line], "o-", color=figures.CYCLE[k], label=series
            )
        panels[2].set_title("IPUs, predicted", fontsize=10)
        panels[2].set_xlabel("IPUs")
        panels[2].set_ylim(0, 1.1)
    panels[0].set_xlabel(key if settings.on_ranks or key == "batch" else "IPUs")
    for axes in (panels[0], *panels[2:]):
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted(set(x)) if axes is panels[0] else sorted({row["x"] for row in ipus}))
        axes.get_xaxis().set_major_formatter("{x:g}")
    for axes in panels:
        axes.grid(alpha=0.3, color=figures.GRAY)
        axes.legend(frameon=False, fontsize=7)
    neurons = f"{settings.width} {'recurrent ' * settings.recurrent}LIF"
    figures.save(figure, path, f"{settings.kind}: {settings.n_layers} × {neurons}, T={settings.n_steps}")
