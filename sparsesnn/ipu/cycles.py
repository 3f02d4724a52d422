"""The cycles of one training step on the emulated machine, next to its plan's prediction for the same lists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsesnn.partition.ipu.cost import predict
from sparsesnn.partition.lengths import CountedLengths, Lengths
from sparsesnn.partition.plan import Plan
from sparsesnn.spikes import SpikeBatch

if TYPE_CHECKING:
    from sparsesnn.ipu.program import IpuProgram


@dataclass(frozen=True)
class Cycles:
    """One training step: forward, backward, update, and the streams of its batch; without building the program.

    With replicas, the cycles are those of the first one.

    Args:
        target: name of the machine.
        counted: cycles, by the emulated machine.
        predicted: cycles, by the plan's cost model, from the lists of this step.
        samples_per_s: of the whole batch, by the counted cycles; not measured on an IPU.
    """

    target: str
    counted: float
    predicted: float
    samples_per_s: float

    def text(self) -> str:
        off = 100 * (self.predicted / self.counted - 1)
        return (
            f"{self.target}, emulated: {self.counted:,.0f} cycles a training step ({self.predicted:,.0f} by the plan, "
            f"{off:+.1f} %), {self.samples_per_s:,.0f} samples/s; not measured on an IPU"
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare_cycles(program: IpuProgram, spikes: SpikeBatch) -> Cycles:
    """The cycles of the program's last training step, with `spikes` as its input, since `reset_counts`."""
    plan, counted = program.plan, program.report().cycles
    lists = {plan.network.inputs[0]: spikes, **program.lists(spikes.n_samples)}
    prediction = predict(plan, steps=counted_lengths(plan, lists))
    return Cycles(
        target=plan.target.name,
        counted=counted,
        predicted=prediction.batch_s * prediction.clock_hz,
        samples_per_s=prediction.n_samples * prediction.clock_hz / counted,
    )


def counted_lengths(plan: Plan, lists: Mapping[str, SpikeBatch]) -> list[dict[str, Lengths]]:
    """The lists of each population in every time step, with the loads of its busiest worker, bucket and collector.

    Args:
        lists: of the input and of every spiking population; a readout has none. The samples of the first replica count.
    """
    steps: list[dict[str, Lengths]] = [dict.fromkeys(plan.populations, Lengths(0.0, 0.0)) for _ in range(plan.n_steps)]
    for name, batch in lists.items():
        for t, lengths in enumerate(_counted(plan, name, batch.samples(slice(plan.n_samples)))):
            steps[t][name] = lengths
    return steps


def _counted(plan: Plan, name: str, batch: SpikeBatch) -> list[CountedLengths]:
    workers, n = plan.target.workers_per_tile, plan.n_samples
    shape = (plan.n_steps, batch.n_samples)
    spikes, listed = (_padded(x.numpy().reshape(shape), n) for x in (batch.n_spikes, batch.n_listed))
    sizes = np.zeros((plan.n_steps * batch.n_samples, workers), np.int64)
    fired = batch.fired().numpy()
    np.add.at(sizes, (batch.list_index().numpy()[fired], batch.ids.numpy()[fired] % workers), 1)
    per_bucket = sizes.reshape(*shape, workers).sum(1).max(1) / n
    return [
        CountedLengths(
            spikes=float(spikes[t].mean()),
            listed=float(listed[t].mean()),
            most=float(plan.populations[name].capacity),
            worker=(_of_worker(spikes[t], workers), _of_worker(listed[t], workers)),
            bucket=float(per_bucket[t]),
            collector=(_of_collector(plan, name, spikes[t]), _of_collector(plan, name, listed[t])),
        )
        for t in range(plan.n_steps)
    ]


def _padded(x: np.ndarray, n: int) -> np.ndarray:
    """Pads the last axis with zeros up to `n`: empty lists of absent samples."""
    return np.pad(x, [*[(0, 0)] * (x.ndim - 1), (0, n - x.shape[-1])])


def _of_worker(x: np.ndarray, workers: int) -> float:
    """Mean over the samples of the busiest worker; samples are dealt in turn."""
    rounds = -(-x.size // workers)
    return float(_padded(x, rounds * workers).reshape(rounds, workers).sum(0).max() / rounds)


def _of_collector(plan: Plan, name: str, x: np.ndarray) -> float:
    """Mean over the samples of the busiest collector."""
    return max((float(x[c.first : c.first + c.n].mean()) for c in plan.populations[name].collectors), default=0.0)
