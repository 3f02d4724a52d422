"""Times one training step and its parts."""

from __future__ import annotations

import ctypes
import gc
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from sparsesnn import _core
from sparsesnn.bench.workload import Workload
from sparsesnn.engines import Batch, Training, Updates, check_options, engine_class, make_engine, options_for
from sparsesnn.engines.dense.device import (
    autocast,
    device_name,
    find_device,
    joules,
    peak_memory,
    synchronize,
    use_precision,
)
from sparsesnn.engines.module import Model
from sparsesnn.engines.tensors import model_tensors
from sparsesnn.errors import ConfigError
from sparsesnn.layers import is_readout
from sparsesnn.loss import CrossEntropy
from sparsesnn.output import Output
from sparsesnn.spikes import SpikeBatch
from sparsesnn.wording import count


@dataclass(frozen=True)
class StepResult:
    """The result of `bench_step`.

    Args:
        samples_per_s: batch over the median time of a step: `whole_ms` if there is one, else `step_ms`.
        step_ms: median time of a step, run part by part.
        whole_ms: median time of a training step of the engine, as `sparsesnn train` runs it; None on a CPU, where it is that of its parts.
        step_ms_all: every timed step.
        forward_ms, backward_ms, optimizer_ms: medians of its parts.
        phases_ms: median time in each phase of the engine (cpu backend): "pack" copies weights into tiles, "forward" delivers
            spikes and steps neurons, "collect" makes lists, "sort" sorts them by sender, "step_grad" goes back through time,
            "deliver_grad" and "sum_shares" are the gradients of weights and lists; "other" is the rest of a step without the
            optimizer: Python, PyTorch, allocation and waiting for the last thread.
        activity: spikes per neuron and step, measured, per population, with the input.
        listed: spikes and near-spikes per neuron and step, likewise.
        dropped: candidates without a slot.
        loss: of the first step.
        peak_bytes: peak memory of the process in untimed steps, in addition to its memory before the first: with gradients
            but without weights, Adam's state and data. None if the system does not report it.
        weight_bytes, optimizer_bytes: of the parameters, and of Adam's two moments.
        backend, isa, threads, machine, device, workload: the workload and its machine.
        samples_per_joule: of the device, by NVML; None if not available.
    """

    samples_per_s: float
    step_ms: float
    whole_ms: float | None
    step_ms_all: list[float]
    forward_ms: float
    backward_ms: float
    optimizer_ms: float
    phases_ms: dict[str, float]
    activity: dict[str, float]
    listed: dict[str, float]
    dropped: dict[str, int]
    loss: float
    peak_bytes: int | None
    weight_bytes: int
    optimizer_bytes: int
    backend: str
    isa: str
    threads: int
    machine: str
    device: str
    samples_per_joule: float | None
    workload: dict[str, Any]

    def table(self) -> str:
        """The result as text."""
        w = self.workload
        lines = [
            f"{w['net']}, T={w['n_steps']}, batch {w['n_samples']}, backend {self.backend}, {self.isa}, "
            f"{count(self.threads, 'thread')}, {self.machine}",
            f"{self.samples_per_s:,.0f} samples/s   step {self.step_ms:.1f} ms = forward {self.forward_ms:.1f} "
            f"+ backward {self.backward_ms:.1f} + optimizer {self.optimizer_ms:.1f}"
            + ("" if self.whole_ms is None else f"; as one graph {self.whole_ms:.1f}"),
            "activity   " + "   ".join(f"{name} {a:.4f}" for name, a in self.activity.items()),
        ]
        if self.phases_ms:
            lines += [f"{name:<14}{ms:>8.2f}" for name, ms in {**self.phases_ms, "total": self.step_ms}.items()]
        if self.peak_bytes is not None:
            lines.append(
                f"memory     {self.peak_bytes / 2**20:.0f} MiB in addition to the process with its weights "
                f"({self.weight_bytes / 2**20:.0f} MiB), Adam's state ({self.optimizer_bytes / 2**20:.0f} MiB) and data"
            )
        if self.samples_per_joule is not None:
            lines.append(f"energy     {self.samples_per_joule:.1f} samples/J of {self.device}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def bench_step(
    workload: Workload,
    backend: str = "cpu",
    *,
    repeats: int = 15,
    warm_up: int = 3,
    device: str = "cpu",
    precision: str = "float32",
) -> StepResult:
    """Medians over `repeats` training steps of one workload, after `warm_up` untimed steps.

    `device` and `precision` are for the backend dense, see `sparsesnn.engines.dense.device`; on CUDA the peak is the device's.
    """
    check_repeats(repeats)
    options = {"device": device, "precision": precision, "weight_dtype": workload.weight_dtype}
    check_options(backend, options)
    kind = engine_class(backend)
    place = find_device("cpu" if kind.copies_weights else device)  # of the model's tensors
    use_precision(place, precision)
    spikes, labels = workload.spikes(), workload.labels()
    model = workload.model(backend, spikes).to(place)
    parameter_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    gc.collect()
    before = start_peak() if place.type == "cpu" else None
    optimizer = still_adam(model)
    output, first_loss, _ = train_step(model, optimizer, spikes, labels, precision)  # creates the optimizer's state
    activity = {"input": spikes.activity(), **output.activity()}
    listed = {
        name: lists.ids.numel() / max(1, lists.n_steps * lists.n_samples * lists.n_neurons)
        for name, lists in output.spikes.items()
        if isinstance(lists, SpikeBatch)
    }
    dropped = output.dropped()
    del output
    for _ in range(warm_up):
        train_step(model, optimizer, spikes, labels, precision)
    peak = None if before is None else peak_bytes() - before - 2 * parameter_bytes
    energy = joules(place)
    times, clocks = [], []
    for _ in range(repeats):
        _core.phase_seconds(reset=True)
        times.append(train_step(model, optimizer, spikes, labels, precision)[2])
        clocks.append(_core.phase_seconds(reset=True))
    spent = joules(place)
    per_joule = repeats * workload.n_samples / (spent - energy) if energy is not None and spent else None
    if place.type == "cuda":
        with peak_memory(place) as highest:
            train_step(model, optimizer, spikes, labels, precision)
        peak = highest[0]
    whole_ms = None
    if (kind.copies_weights or place.type == "cuda") and precision != "float16":  # with which no engine trains
        # the first three compile and record
        whole_ms = 1e3 * median(whole_steps(model, spikes, labels, 3 + repeats, options)[3:])
    totals = [1e3 * sum(t) for t in times]
    optimizer_ms = 1e3 * median(t[2] for t in times)
    phases: dict[str, float] = {}
    if kind.counts_phases:
        phases = {name: 1e3 * median(clock[name] for clock in clocks) for name in clocks[0]}
        phases["optimizer"] = optimizer_ms
        # computed per step: if different phases are slow in different steps, their medians add up to less than a step
        phases["other"] = 1e3 * median(
            sum(t) - t[2] - sum(clock.values()) for t, clock in zip(times, clocks, strict=True)
        )
    return StepResult(
        samples_per_s=1e3 * workload.n_samples / (whole_ms or median(totals)),
        step_ms=median(totals),
        whole_ms=whole_ms,
        step_ms_all=totals,
        forward_ms=1e3 * median(t[0] for t in times),
        backward_ms=1e3 * median(t[1] for t in times),
        optimizer_ms=optimizer_ms,
        phases_ms=phases,
        activity=activity,
        listed=listed,
        dropped=dropped,
        loss=first_loss,
        peak_bytes=peak,
        weight_bytes=parameter_bytes,
        optimizer_bytes=2 * parameter_bytes,
        backend=backend,
        isa=_core.build_info()["isa"],
        threads=_core.num_threads() if torch.get_num_threads() == 1 else torch.get_num_threads(),
        machine=machine_name() if place.type == "cpu" else device_name(place),
        device=str(place),
        samples_per_joule=per_joule,
        workload=asdict(workload),
    )


def whole_steps(
    model: Model, spikes: SpikeBatch, labels: torch.Tensor, n_steps: int, options: Mapping[str, Any]
) -> list[float]:
    """Seconds of each of `n_steps` training steps of the model's engine, with its weights and a learning rate of 0."""
    readout = model.network.populations[model.network.output]
    decoding = "mean" if is_readout(readout) else "count"
    training = Training(
        readout.n,
        decoding,
        batch=spikes.n_samples,
        updates=Updates("adam"),
        options=options_for(model.backend, options),
    )
    engine: Any = make_engine(model.backend, model.network, training)
    engine.load_weights(model_tensors(model), "bench")
    engine.start()
    seconds = []
    for _ in range(n_steps):
        start = time.perf_counter()
        engine.step(Batch(spikes, labels), 0.0)  # ends when the loss has come back
        seconds.append(time.perf_counter() - start)
    return seconds


def check_repeats(repeats: int) -> None:
    if repeats < 1:
        raise ConfigError(f"bench: repeats is {repeats}; give at least 1")


def still_adam(model: Model) -> torch.optim.Optimizer:
    """Adam with a learning rate of 0: updates have their usual cost, and the activity does not change."""
    optimizer: torch.optim.Optimizer = engine_class(model.backend).adam(model.parameters(), lr=0.0)  # type: ignore[attr-defined]
    return optimizer


def train_step(
    model: Model,
    optimizer: torch.optim.Optimizer,
    spikes: SpikeBatch,
    labels: torch.Tensor,
    precision: str = "float32",
) -> tuple[Output, float, tuple[float, float, float]]:
    """One training step; returns the output, its loss and the seconds of forward, backward and update."""
    device = next(model.parameters()).device

    def now() -> float:
        synchronize(device)
        return time.perf_counter()

    network = model.network
    readout = network.populations[network.output]
    loss_of = _TimedLoss(labels.to(device), "mean" if is_readout(readout) else "count", readout.n)
    loss_of.now = now
    optimizer.zero_grad(set_to_none=True)
    start = now()
    if precision in ("float32", "tf32"):
        loss, output = model.learn(spikes, loss_of)
    else:
        with autocast(device, precision):
            output = model(spikes)
        loss = loss_of(output)
        loss.backward()
    backward = now()
    optimizer.step()
    end = now()
    return output, loss.item(), (loss_of.end - start, backward - loss_of.end, end - backward)


class _TimedLoss(CrossEntropy):
    """Records the time at which the loss was computed."""

    now: Callable[[], float]
    end = 0.0

    def __call__(self, output: Output) -> torch.Tensor:
        loss = super().__call__(output)
        self.end = self.now()
        return loss

    def of_potentials(self, v: np.ndarray) -> tuple[torch.Tensor, Callable[[float], Any]]:
        result = super().of_potentials(v)
        self.end = self.now()
        return result


def start_peak() -> int | None:
    """Resets the kernel's high-water mark of this process (Linux) and returns the memory in use."""
    # The first backward pass and the first update of a process load code: part of the process, not of the step.
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.sum().backward()
    torch.optim.Adam([weight], fused=True).step()
    _core.release_memory()
    try:
        ctypes.CDLL(None).malloc_trim(0)  # memory freed by earlier steps must not count
        Path("/proc/self/clear_refs").write_text("5")
    except (OSError, AttributeError):
        return None
    return _status("VmRSS")


def peak_bytes() -> int:
    return _status("VmHWM")


def _status(key: str) -> int:
    """Bytes of an entry of /proc/self/status, which is in kB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return 1024 * int(line.split()[1])
    raise OSError(f"/proc/self/status has no {key}")


def machine_name() -> str:
    """Name of the processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
