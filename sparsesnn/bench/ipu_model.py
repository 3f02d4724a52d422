"""One training step on the emulated IPU: its counts, and the time of the emulation."""

from __future__ import annotations

import itertools
import time
from dataclasses import asdict, dataclass
from typing import Any

from sparsesnn.bench.workload import Workload
from sparsesnn.engines.module import Model
from sparsesnn.errors import ConfigError
from sparsesnn.init import init_activity
from sparsesnn.ipu import IpuProgram
from sparsesnn.ipu.report import MachineReport
from sparsesnn.layers import fires
from sparsesnn.partition.planner import make_plan
from sparsesnn.partition.target import parse_target


@dataclass(frozen=True)
class IpuModelResult:
    """The result of `bench_ipu_model`.

    Args:
        report: counts of one training step, with streams of the batch but without loading of weights.
        samples_per_s: batch over the predicted time of the step. Predicted, never measured on an IPU.
        activity, dropped: per population, of that step.
        plan_s, build_s, emulate_s: seconds of this machine.
        workload: the workload.
    """

    report: MachineReport
    samples_per_s: float
    activity: dict[str, float]
    dropped: dict[str, int]
    plan_s: float
    build_s: float
    emulate_s: float
    workload: dict[str, Any]

    def table(self) -> str:
        """The result as text."""
        return "\n".join(
            [
                self.report.table(),
                f"predicted {self.samples_per_s:,.0f} samples/s, not measured on an IPU",
                "activity  " + "   ".join(f"{k} {a:.4f}" for k, a in self.activity.items()),
                "dropped   " + "   ".join(f"{k} {n:,}" for k, n in self.dropped.items()),
                f"here      plan {self.plan_s:.1f} s, build {self.build_s:.1f} s, emulate {self.emulate_s:.1f} s",
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "report": self.report.to_dict()}


def bench_ipu_model(
    workload: Workload,
    target: str,
    *,
    delay: int = 0,
    max_activity: float = 0.05,
    replicas: int = 1,
    checks: str = "first",
) -> IpuModelResult:
    """Plans, builds and runs one training step (Adam, cross-entropy of the readout's mean); replicas share the batch."""
    if replicas < 1:
        raise ConfigError(f"bench: replicas is {replicas}; give a whole number, at least 1")
    network = workload.network().with_delay(delay)
    spikes, labels = workload.spikes(), workload.labels()
    model = Model(network, seed=workload.seed)
    hidden = {k: workload.hidden_activity for k, p in network.populations.items() if fires(p)}
    if hidden:
        init_activity(model, [spikes], hidden, tolerance=0.05)
    longest = max(1, int(spikes.n_listed.max()))
    marks = [time.perf_counter()]
    plan = make_plan(
        network,
        -(-workload.n_samples // replicas),
        workload.n_steps,
        parse_target(target),
        activity={network.inputs[0]: workload.input_activity, **hidden},
        max_activity=max_activity,
        capacity={network.inputs[0]: longest},
        replicas=replicas,
    )
    marks.append(time.perf_counter())
    decoding = "count" if network.output in hidden else "mean"
    program = IpuProgram(plan, model, decoding=decoding, checks=checks)
    program.reset_counts()
    marks.append(time.perf_counter())
    program.train_step(spikes, labels)
    marks.append(time.perf_counter())
    report = program.report()
    lists = program.lists(workload.n_samples)
    seconds = [b - a for a, b in itertools.pairwise(marks)]
    return IpuModelResult(
        report=report,
        samples_per_s=workload.n_samples / report.seconds,
        activity={"input": spikes.activity(), **{k: x.activity() for k, x in lists.items()}},
        dropped={k: x.n_dropped() for k, x in lists.items()},
        plan_s=seconds[0],
        build_s=seconds[1],
        emulate_s=seconds[2],
        workload=asdict(workload),
    )
