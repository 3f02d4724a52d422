"""Training steps of the IPU program, timed on a device or counted on the emulated one, next to the plan's prediction.

On `ipu` the time of a step is measured on the host: packing of lists, streams, the device. On `ipu-model` it is the cycles
counted by the emulated machine, over the clock of the target: predicted, never measured on an IPU.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from torch import Tensor

from sparsesnn.engines.module import Model
from sparsesnn.errors import ConfigError
from sparsesnn.ipu import IpuProgram
from sparsesnn.ipu.backends import MACHINES, native_module
from sparsesnn.ipu.instance import Instance
from sparsesnn.layers import fires
from sparsesnn.network import Network
from sparsesnn.partition.ipu.cost import predict
from sparsesnn.partition.planner import make_plan
from sparsesnn.partition.prediction import Prediction
from sparsesnn.partition.target import Target, parse_target
from sparsesnn.spikes import SpikeBatch

BACKENDS = ("ipu", "ipu-model")
#: sources of a row's time
MEASURED, COUNTED = "seconds of the device", "cycles of the emulated machine"


@dataclass(frozen=True)
class IpuStep:
    """A training step, and its prediction.

    Args:
        seconds: of each timed step: measured, or on an emulated IPU counted cycles over the clock.
        cycles: of a step, counted; None: on hardware.
        prediction: by the plan, for the requested activity.
        activity, listed: per spiking population, spikes and listed neurons per neuron and step, over this process's samples.
        dropped: candidates dropped from full lists, in one step.
        exchange_bytes, link_bytes: received by tiles and IPUs of one replica in a training step, counted; None: on hardware.
        moving: share of the cycles in which data moves or tiles wait for barriers; None: on hardware.
        fullest_tile: bytes of the fullest tile; None: on hardware.
    """

    seconds: tuple[float, ...]
    cycles: float | None
    prediction: Prediction
    activity: dict[str, float]
    listed: dict[str, float]
    dropped: dict[str, int]
    exchange_bytes: int | None = None
    link_bytes: int | None = None
    moving: float | None = None
    fullest_tile: int | None = None

    @property
    def step_s(self) -> float:
        return median(self.seconds)

    @property
    def predicted_cycles(self) -> float:
        return self.prediction.batch_s * self.prediction.clock_hz

    def columns(self) -> dict[str, Any]:
        """Time, cycles and their prediction, for a row."""
        return {
            "how_timed": MEASURED if self.cycles is None else COUNTED,
            "cycles": self.cycles,
            "predicted_cycles": self.predicted_cycles,
            "predicted_step_ms": 1e3 * self.prediction.batch_s,
        }


def check_backend(backend: str, target: str) -> Target:
    """The target of a benchmark on IPUs.

    Errors: `ConfigError` for another backend, a target other than an IPU, and `ipu` in an installation without the SDK.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"--backend: is {backend!r}; allowed: {', '.join(BACKENDS)}")
    machine = parse_target(target)
    if machine.kind != "ipu":
        raise ConfigError(
            f"--target: is {target!r} with --backend {backend}; give an IPU, such as ipu-mk2 or ipu-mk2:1x64"
        )
    native_module(backend)
    return machine


def time_steps(
    network: Network,
    model: Model,
    spikes: SpikeBatch,
    labels: Tensor,
    *,
    backend: str,
    target: Target,
    activity: float | Mapping[str, float],
    n_samples: int | None = None,
    instance: Instance | None = None,
    capacity: int | None = None,
    repeats: int = 3,
    warm_up: int = 1,
) -> IpuStep:
    """Times training steps whose updates change nothing (Adam, learning rate 0), so that the activity is constant.

    Args:
        network, model: the described network, and the weights for the device.
        spikes, labels: of the replicas of this process.
        target: the IPUs of one replica.
        activity: for the prediction, for all populations or by name.
        n_samples: of the whole batch; None: those of `spikes`.
        instance: replicas of this process, see `find_instance`; None: one.
        capacity: of the input's lists; None: the longest list. All processes must use the same.
        repeats, warm_up: timed steps, and untimed ones before. An emulated IPU always takes the same cycles: it runs one of each.
    """
    instance = instance or Instance()
    whole = spikes.n_samples if n_samples is None else n_samples
    longest = int(spikes.n_listed.max()) if spikes.n_listed.numel() else 0
    plan = make_plan(
        network,
        -(-whole // instance.total),
        spikes.n_steps,
        target,
        activity=activity,
        max_activity=1.0,
        capacity={network.inputs[0]: max(1, longest if capacity is None else capacity)},
        replicas=instance.total,
    )
    spiking = fires(network.populations[network.output])
    program = IpuProgram(
        plan, model, decoding="count" if spiking else "mean", backend=backend, instance=instance, checks="never"
    )
    emulated = MACHINES[backend].emulated
    for _ in range(0 if emulated else warm_up):
        program.train_step(spikes, labels, 0.0, n_samples=whole)
    if emulated:
        program.reset_counts()  # without loading weights
    seconds: list[float] = []
    for _ in range(1 if emulated else repeats):
        start = time.perf_counter()
        program.train_step(spikes, labels, 0.0, n_samples=whole)
        seconds.append(time.perf_counter() - start)
    counted: dict[str, Any] = {"cycles": None}
    if emulated:
        report = program.report()  # before the lists are copied to the host
        compute = sum(p.compute for p in report.phases)
        seconds = [report.seconds]
        counted = {
            "cycles": report.cycles,
            "exchange_bytes": sum(p.exchange_bytes for p in report.phases),
            "link_bytes": sum(p.link_bytes for p in report.phases),
            "moving": 1 - compute / report.cycles,
            "fullest_tile": max(report.tile_bytes),
        }
    lists = program.lists(spikes.n_samples)
    places = {name: max(1, x.n_steps * x.n_samples * x.n_neurons) for name, x in lists.items()}
    return IpuStep(
        seconds=tuple(seconds),
        prediction=predict(plan),
        activity={name: x.activity() for name, x in lists.items()},
        listed={name: x.ids.numel() / places[name] for name, x in lists.items()},
        dropped={name: x.n_dropped() for name, x in lists.items()},
        **counted,
    )
