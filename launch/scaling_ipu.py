"""Scaling over IPUs: measurements in one process, or counts of the emulated machine; efficiencies and the table.

Every connection has a delay of one step, which connections between IPUs need, so that all points have the same network.
A point of R ranks uses R IPUs: shards are the IPUs of one replica, replicas are copies of the program. One process
drives them all, or under PopRun each instance its own replicas. No step is measured apart, because IPUs share nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sparsesnn.bench.ipu_step import time_steps
from sparsesnn.engines import set_threads
from sparsesnn.engines.module import Model
from sparsesnn.host.comm import Local
from sparsesnn.ipu.instance import find_instance
from sparsesnn.launch.point_work import N_CALIBRATION, average, calibrate, draw_spikes, events_of
from sparsesnn.launch.points import Point, Row, network_of, target_of, work_per_s

if TYPE_CHECKING:
    from sparsesnn.host.comm import Communicator


def measure_here(point: Point, threads: int, backend: str, target: str) -> Row:
    """The row of a point, measured by this process alone."""
    set_threads(backend, threads)
    return measure(point, Local(), backend, target)


def measure(point: Point, world: Communicator, backend: str, target: str) -> Row:
    """The row of a point; the same on all ranks of `world`, which are the instances of PopRun."""
    machine = target_of(backend, target, point.shards)
    instance = find_instance(backend, machine, point.replicas)
    network = network_of(point).with_delay(1)  # required between IPUs
    model = Model(network)
    calibrate(model, network, draw_spikes(point, 0, min(N_CALIBRATION, point.batch)), point.activity)
    own = instance.samples(point.batch)
    first, last = (min(k * own, point.batch) for k in (world.rank, world.rank + 1))
    spikes = draw_spikes(point, first, last)
    labels = torch.randint(0, point.n_classes, (point.batch,), generator=torch.Generator().manual_seed(point.seed))
    longest = max(int(n) for (n,) in world.all_gather(np.array([int(spikes.n_listed.max())], np.int64)))
    step = time_steps(
        network, model, spikes, labels[first:last], backend=backend, target=machine, activity=point.activity,
        n_samples=point.batch, instance=instance, capacity=longest, repeats=point.repeats, warm_up=point.warm_up,
    )  # fmt: skip
    n = last - first
    activity = average(world, {"input": spikes.activity(), **step.activity}, n)
    listed = average(world, {"input": spikes.activity(), **step.listed}, n)
    step_s = max(float(took[0]) for took in world.all_gather(np.array([step.step_s])))
    dropped = dict(zip(step.dropped, world.sum_counts(list(step.dropped.values())), strict=True))
    received = None if step.exchange_bytes is None or step.link_bytes is None else step.exchange_bytes + step.link_bytes
    return {
        "backend": backend,
        "target": machine.name,
        "instances": world.size if instance.poprun else None,
        "samples_per_s": point.batch / step_s,
        "step_ms": 1e3 * step_s,
        "step_ms_all": [1e3 * took for took in step.seconds],
        **step.columns(),
        "n_neurons": sum(p.n for name, p in network.populations.items() if name != "input"),
        "n_weights": network.n_weights(),
        "layer_activity": activity,
        "layer_listed": listed,
        "dropped": dropped,
        "events_per_s": events_of(network, activity, listed) * point.batch * point.n_steps / step_s,
        "bytes_per_time_step": None if received is None else received * point.replicas / point.n_steps,
        "comm_share": step.moving,
        "links": None,
        "threads": None,
    }


def finish(rows: Sequence[Row]) -> None:
    """Adds efficiencies, relative to the first row: work per second and IPU, as measured or counted, and as predicted."""
    first = rows[0]

    def per_ipu(row: Row, step_ms: str) -> float:
        return float(work_per_s(row) / row["ranks"] * row["step_ms"] / row[step_ms])

    for row in rows:
        row["efficiency"] = per_ipu(row, "step_ms") / per_ipu(first, "step_ms")
        row["predicted_efficiency"] = per_ipu(row, "predicted_step_ms") / per_ipu(first, "predicted_step_ms")
        row["apart_efficiency"] = None


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a text table."""
    lines = [
        f"{'IPUs':>5} {'copies':>6} {'layers':>6} {'width':>6} {'batch':>6} {'ms':>10} {'pred.':>10} {'cycles':>12} {'pred.':>12} "
        f"{'samples/s':>10} {'eff.':>6} {'pred.':>6} {'moving':>6} {'kB/step':>9} {'dropped':>8}  activity of every layer, %"
    ]
    for row in rows:
        activity = " ".join(f"{100 * a:.2f}" for name, a in row["layer_activity"].items() if name != "input")
        cycles, moving, sent = row["cycles"], row["comm_share"], row["bytes_per_time_step"]
        lines.append(
            f"{row['ranks']:>5} {row['replicas']:>6} {row['n_layers']:>6} {row['width']:>6} {row['batch']:>6} "
            f"{row['step_ms']:>10.3f} {row['predicted_step_ms']:>10.3f} {_number(cycles, 12, ',.0f')} "
            f"{row['predicted_cycles']:>12,.0f} {row['samples_per_s']:>10,.1f} {row['efficiency']:>6.3f} "
            f"{row['predicted_efficiency']:>6.3f} {_number(moving, 6, '.1%')} {_number(sent and sent / 1e3, 9, '.2f')} "
            f"{sum(row['dropped'].values()):>8,}  {activity}"
        )
    wanted = ", ".join(dict.fromkeys(f"{100 * row['activity']:g}" for row in rows))
    lines += [
        "",
        f"ms: {rows[0]['how_timed']}; pred.: of the plan, for an activity of {wanted} % in every layer",
        "moving: share of the cycles in which data moves or tiles wait for a barrier",
    ]
    if rows[0]["cycles"] is not None:
        lines.append("counted on the emulated machine, never measured on an IPU")
    return "\n".join(lines)


def _number(x: float | None, width: int, form: str) -> str:
    return f"{'-':>{width}}" if x is None else f"{x:>{width}{form}}"
