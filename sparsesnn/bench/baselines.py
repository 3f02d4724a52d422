"""Compares the modes of the dense backend: time and memory of a training step."""

from __future__ import annotations

import gc
import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from sparsesnn.bench.racing import Trainee, race
from sparsesnn.bench.step import machine_name, peak_bytes, start_peak
from sparsesnn.bench.workload import Workload
from sparsesnn.engines import set_threads
from sparsesnn.engines.dense import MODES, check_mode
from sparsesnn.engines.dense.device import check_precision, device_name, find_device, joules, peak_memory
from sparsesnn.engines.module import Model
from sparsesnn.errors import ConfigError, NumericError
from sparsesnn.runtime import num_threads
from sparsesnn.spikes import SpikeBatch
from sparsesnn.wording import count

#: modes measured by default
ALL = tuple(mode for mode in MODES if mode != "auto")


@dataclass(frozen=True)
class Baseline:
    """One mode on one workload.

    Args:
        mode: of the dense backend, see `sparsesnn.dense`.
        samples_per_s: batch over the median time of a training step.
        peak_bytes: peak memory of a separate process in addition to its memory before the first step: with gradients but
            without weights, Adam's state and data; None if the system does not report it.
        step_ms: median time of a step: forward, cross-entropy, backward, Adam.
        loss: of the first step; equal for all modes except for the order of sums.
        net, n_steps, n_samples: the workload.
        threads, machine, device, precision: where and how it ran.
        samples_per_joule: of the device, by NVML; None if not available.
    """

    mode: str
    samples_per_s: float
    peak_bytes: int | None
    step_ms: float
    loss: float
    net: str
    n_steps: int
    n_samples: int
    threads: int
    machine: str
    device: str = "cpu"
    precision: str = "float32"
    samples_per_joule: float | None = None


def bench_baselines(
    workloads: Sequence[Workload],
    modes: Sequence[str] = ALL,
    *,
    repeats: int = 7,
    n_threads: int = 0,
    device: str = "cpu",
    precision: str = "float32",
) -> list[Baseline]:
    """Measures every mode on every workload: interleaved steps in this process; memory in separate processes, on CUDA the device's.

    Errors: `DescriptionError` for an unknown mode; `ConfigError` for a missing device; `NumericError` if two modes
    disagree about the loss.
    """
    place = find_device(device)
    check_precision(precision, device)
    for mode in modes:
        check_mode(mode)
    results = []
    for workload in workloads:
        spikes, labels = workload.spikes(), workload.labels()
        trained = workload.model("dense", spikes)
        trainees = {mode: Trainee(_twin(trained, mode), n_threads, device=place, precision=precision) for mode in modes}
        losses = {mode: trainee.step(spikes, labels)[1] for mode, trainee in trainees.items()}
        _agree(losses, 1e-3 if precision == "float32" else 5e-2)
        seconds = race(trainees, spikes, labels, repeats=repeats)
        peaks: dict[str, int | None]
        if place.type == "cuda":
            peaks = {mode: _peak_on_device(trainee, spikes, labels) for mode, trainee in trainees.items()}
            energies = {
                mode: _samples_per_joule(t, spikes, labels, median(seconds[mode])) for mode, t in trainees.items()
            }
        else:
            del trainees
            peaks = {mode: _peak_elsewhere(workload, mode, n_threads, precision) for mode in modes}
            energies = dict.fromkeys(modes)
        for mode in modes:
            step = median(seconds[mode])
            results.append(
                Baseline(
                    mode=mode,
                    samples_per_s=workload.n_samples / step,
                    peak_bytes=peaks[mode],
                    step_ms=1e3 * step,
                    loss=losses[mode],
                    net=workload.net,
                    n_steps=workload.n_steps,
                    n_samples=workload.n_samples,
                    threads=n_threads or num_threads(),
                    machine=machine_name() if place.type == "cpu" else device_name(place),
                    device=str(place),
                    precision=precision,
                    samples_per_joule=energies[mode],
                )
            )
    return results


def table(rows: Sequence[Baseline]) -> str:
    """The rows as text: one block per workload, each mode relative to the first."""
    lines = []
    for net, n_steps, n_samples in dict.fromkeys((r.net, r.n_steps, r.n_samples) for r in rows):
        block = [r for r in rows if (r.net, r.n_steps, r.n_samples) == (net, n_steps, n_samples)]
        first = block[0]
        lines.append(f"{net}, T={n_steps}, batch {n_samples}, {count(first.threads, 'thread')}, {first.machine}")
        for r in block:
            line = f"  {r.mode:<8} {r.samples_per_s:8,.1f} samples/s  {r.samples_per_s / first.samples_per_s:5.2f}x"
            if r.peak_bytes is not None and first.peak_bytes:
                line += f"  peak {r.peak_bytes / 2**20:7,.0f} MiB  {r.peak_bytes / first.peak_bytes:5.2f}x"
            lines.append(line)
    return "\n".join(lines)


def _twin(model: Model, mode: str) -> Model:
    """The model with the same weights in another mode."""
    twin = Model(model.network, backend="dense", dense_mode=mode)
    twin.load_state_dict(model.state_dict())
    return twin


def _peak_on_device(trainee: Trainee, spikes: SpikeBatch, labels: Tensor) -> int:
    """Peak memory of a step, with its gradients, on a CUDA device."""
    trainee.optimizer.zero_grad(set_to_none=True)
    with peak_memory(trainee.device) as found:
        trainee.step(spikes, labels)
    trainee.optimizer.zero_grad(set_to_none=True)
    return found[0]


def _samples_per_joule(trainee: Trainee, spikes: SpikeBatch, labels: Tensor, step_s: float) -> float | None:
    """Measured over at least two seconds, because devices report their energy about ten times per second."""
    n_steps = max(1, math.ceil(2.0 / step_s))
    before = joules(trainee.device)
    if before is None:
        return None
    for _ in range(n_steps):
        trainee.step(spikes, labels)
    after = joules(trainee.device)
    return n_steps * spikes.n_samples / (after - before) if after is not None and after > before else None


def _agree(losses: dict[str, float], tolerance: float = 1e-3) -> None:
    """Raises if losses differ by more than a spike that rounding decides differently can explain."""
    first = next(iter(losses.values()))
    for mode, loss in losses.items():
        if abs(loss - first) > tolerance * abs(first):
            raise NumericError(f"bench baselines: mode {mode!r} has a loss of {loss:g}, others {first:g}: a bug")


def _peak_elsewhere(workload: Workload, mode: str, n_threads: int, precision: str = "float32") -> int | None:
    """`_peak` in a fresh process."""
    asked = json.dumps({"workload": asdict(workload), "mode": mode, "n_threads": n_threads, "precision": precision})
    # the arguments are ours: the interpreter that runs us, our module's name, and numbers as JSON
    done = subprocess.run(
        [sys.executable, "-m", "sparsesnn.bench.baselines", asked], capture_output=True, text=True, check=False
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ConfigError(f"bench baselines: measuring the memory of mode {mode!r} failed: {reason}")
    peak = json.loads(done.stdout.splitlines()[-1])
    return None if peak is None else int(peak)


def _peak(workload: Workload, mode: str, n_threads: int, precision: str, steps: int = 3) -> int | None:
    spikes, labels = workload.spikes(), workload.labels()
    trainee = Trainee(_twin(workload.model("dense", spikes), mode), n_threads, precision=precision)
    parameter_bytes = sum(p.numel() * p.element_size() for p in trainee.model.parameters())
    _load_product_code(spikes)
    gc.collect()
    before = start_peak()
    if before is None:
        return None
    for _ in range(steps):
        trainee.step(spikes, labels)
    return peak_bytes() - before - 2 * parameter_bytes


def _load_product_code(spikes: SpikeBatch) -> None:
    """Runs a small product, so that the one-time setup of the matrix library is not part of a step."""
    torch.mm(torch.ones(8, spikes.n_neurons), torch.ones(spikes.n_neurons, 8))


def _main(text: str) -> int:
    asked: dict[str, Any] = json.loads(text)
    workload = Workload(**asked["workload"])
    set_threads("dense", asked["n_threads"], {"dense_mode": asked["mode"]})
    print(json.dumps(_peak(workload, asked["mode"], asked["n_threads"], asked["precision"])))
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))
