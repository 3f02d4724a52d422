"""The least data that a training step must move, the bandwidth of this machine's caches, and the share of it that is reached.

Floor of a phase = Σ over its streams of bytes / bandwidth of the level that holds them, or its additions / their rate,
if that is longer. It counts only the data required by the spikes of this step, once each, as if all else were free:

    deliver        a weight row piece of 4·W bytes for each delivered spike and tile          read, at the columns' level
                   recurrent: a row of weights for each spike of the layer's own              read, L2 as far as it fits, else beyond
    step           the state, 4·N bytes in and out a step and sample, of each state           update, L1
    collect        id, distance and value of each listed neuron; two bit masks a neuron       update, L2
    sort           row and slot of each event, read and sorted by sender; q of each slot      update, L2
    step_grad      ∂L/∂v and ∂L/∂i, 4·N bytes in and out each a step and sample               update, L2
                   recurrent: a row of weights for each listed neuron                         read, likewise
    deliver_grad   a row piece of ∂L/∂i for each event, shared by both gradients              read, L2
                   and W additions for each of the two
                   weights, read, and their gradient, in and out, once a chunk                at the weights' level
    optimizer      weight, gradient and Adam's moments, 16 bytes in and 12 out a weight       update, at their level

Deliver and step are one loop of the engine, its phase "forward": step is its time without spikes, deliver the rest. W neurons a
tile, N neurons of a population. An addition takes as long as four bytes from L1, because processors add as fast as they load;
so additions count only if they outnumber the numbers read.
Source: Williams, Waterman, Patterson, "Roofline" (2009), with one roof a memory level.
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from sparsesnn import _core
from sparsesnn.bench.step import check_repeats, machine_name, still_adam, train_step
from sparsesnn.bench.workload import Workload
from sparsesnn.engines.module import Layer, Model
from sparsesnn.errors import ConfigError
from sparsesnn.output import Output
from sparsesnn.spikes import SpikeBatch
from sparsesnn.wording import count

SOURCE = Path(__file__).with_name("bandwidth.c")
LEVELS = ("L1", "L2", "L3", "memory")
PHASES = ("deliver", "step", "collect", "sort", "step_grad", "deliver_grad", "optimizer")
#: number of measurements of the machine between the steps
N_LOOKS = 3


@dataclass(frozen=True)
class Stream:
    """Bytes that a phase moves through one level: `update` if they are read and written (both counted), else read; and the additions
    meanwhile."""

    phase: str
    level: str
    update: bool
    n_bytes: float
    n_additions: int = 0


@dataclass(frozen=True)
class Machine:
    """Cache sizes in bytes, per core but L3, and bandwidths in bytes per second, of all threads together."""

    caches: Mapping[str, int]
    read: Mapping[str, float]
    update: Mapping[str, float]

    def level_of(self, n_bytes: float) -> str:
        """The smallest level that holds `n_bytes`."""
        return next((level for level in LEVELS[:3] if n_bytes <= self.caches[level]), "memory")


@functools.cache
def _measure() -> Any:
    """The function of bandwidth.c, compiled for this machine."""
    compiler = os.environ.get("CC", "cc")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "bandwidth.so"
        command = [compiler, "-O3", "-march=native", "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise ConfigError(
                f"bench roofline: {compiler} cannot be run: {error.strerror}; give a C compiler as CC"
            ) from None
        if done.returncode:
            raise ConfigError(f"bench roofline: {compiler} cannot compile {SOURCE}: {done.stderr.strip()}")
        function = ctypes.CDLL(str(library)).bandwidth
    function.argtypes, function.restype = (ctypes.c_size_t, ctypes.c_int, ctypes.c_double), ctypes.c_double
    return function


def measure_bandwidth(n_bytes: int, update: bool, seconds: float, n_threads: int) -> float:
    """Bytes per second of all threads together, each on its own `n_bytes`: reading them, or adding to them."""
    measure, together = _measure(), threading.Barrier(n_threads)

    def run(_: int) -> float:
        together.wait()  # all at once, so that they share caches and memory
        return float(measure(n_bytes, update, seconds))

    with ThreadPoolExecutor(n_threads) as pool:
        return sum(pool.map(run, range(n_threads)))


def measure_machine(threads: int, seconds: float = 0.01) -> Machine:
    """Bandwidths of this machine with `threads` threads; takes about 8·`seconds`, and temporarily some memory."""
    caches = cache_sizes()
    l3 = max(2 * caches["L2"], min(caches["L3"] // (2 * threads), 16 << 20))
    footprints = {
        "L1": caches["L1"] // 2,
        "L2": caches["L2"] // 2,
        "L3": l3,
        "memory": max(4 * caches["L3"] // threads, 64 << 20) if caches["L3"] <= 256 << 20 else 256 << 20,
    }
    read, update = (
        {level: measure_bandwidth(n_bytes, update, seconds, threads) for level, n_bytes in footprints.items()}
        for update in (False, True)
    )
    return Machine(caches, read, update)


def typical(machines: Sequence[Machine]) -> Machine:
    """The medians of several measurements of one machine, whose clock and neighbors change from second to second."""

    def medians(found: list[Mapping[str, float]]) -> dict[str, float]:
        return {level: median(m[level] for m in found) for level in LEVELS}

    return Machine(machines[0].caches, medians([m.read for m in machines]), medians([m.update for m in machines]))


def cache_sizes(described: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> dict[str, int]:
    """Bytes of a core's first and second cache, and of the third, which cores share.

    From Linux's description of the caches; usual sizes without one.
    """
    sizes = {"L1": 32 << 10, "L2": 512 << 10, "L3": 16 << 20}
    for cache in described.glob("index*"):
        try:
            kind, level, size = ((cache / name).read_text().strip() for name in ("type", "level", "size"))
            if kind != "Instruction" and f"L{level}" in sizes:
                sizes[f"L{level}"] = int(size.removesuffix("K")) << 10
        except (OSError, ValueError):  # a system that lists caches differently
            continue
    return sizes


def streams(model: Model, spikes: SpikeBatch, output: Output, machine: Machine) -> Iterator[Stream]:
    """All streams of one training step on `spikes`; `output` contains the fired and listed neurons."""
    lists: dict[str, SpikeBatch] = {model.network.inputs[0]: spikes}
    lists |= {name: x for name, x in output.spikes.items() if isinstance(x, SpikeBatch)}
    for name, layer in model.layers.items():
        assert isinstance(layer, Layer)
        senders = [lists[connection.pre] for connection in model.network.senders(name)]
        wanted = [connection.pre in output.spikes for connection in model.network.senders(name)]
        yield from _layer_streams(layer, senders, wanted, lists.get(name), machine)
    n_parameters = sum(p.numel() for p in model.parameters())
    yield Stream("optimizer", machine.level_of(16 * n_parameters), update=True, n_bytes=28 * n_parameters)


def _layer_streams(
    layer: Layer, senders: list[SpikeBatch], wanted: list[bool], own: SpikeBatch | None, machine: Machine
) -> Iterator[Stream]:
    n, rows = layer.population.n, senders[0].n_steps * senders[0].n_samples
    chunks = -(-rows // _core.chunk_plan(-(-n // 64))[0])  # approximate: groups of samples stay whole
    weight_bytes = 2 if layer.weight_dtype == "bfloat16" else 4
    n_pre = sum(c.n_pre for c in layer.incoming)
    columns = machine.level_of(weight_bytes * sum(layer.n_pre) * min(n, 64))  # of one tile
    n_spikes = [int(s.n_spikes.sum()) for s in senders]
    n_events = [s.ids.numel() if w else k for s, w, k in zip(senders, wanted, n_spikes, strict=True)]
    n_loops = len(layer.loops)
    own_spikes = int(own.n_spikes.sum()) * n_loops if own is not None else 0
    yield Stream("deliver", columns, False, weight_bytes * n * sum(n_spikes))
    yield from _rows("deliver", weight_bytes * n * own_spikes, weight_bytes * n * n * n_loops, machine)
    yield Stream("step", "L1", True, 8 * n * rows * len(layer.population.states))
    if own is not None:
        yield Stream("collect", "L2", True, 10 * own.ids.numel() + rows * n / 4)
    yield Stream("sort", "L2", True, 16 * (sum(n_events) + own_spikes))
    yield Stream("step_grad", "L2", True, 16 * n * rows)
    if own is not None:
        n_bytes = weight_bytes * n * own.ids.numel() * n_loops
        yield from _rows("step_grad", n_bytes, weight_bytes * n * n * n_loops, machine)
    n_rows = sum(n_events) + own_spikes
    n_shared = sum(k for k, w in zip(n_spikes, wanted, strict=True) if w)  # spikes with both gradients
    yield Stream("deliver_grad", "L2", False, 4 * n * n_rows, n_additions=n * (n_rows + n_shared))
    all_weights = machine.level_of(8 * n_pre * n)
    yield Stream("deliver_grad", all_weights, True, 8 * n_pre * n * chunks)
    n_read = sum(k for k, w in zip(layer.n_pre, wanted, strict=True) if w)
    yield Stream("deliver_grad", all_weights, False, 4 * n_read * n * chunks)


def _rows(phase: str, n_bytes: int, weights: int, machine: Machine) -> Iterator[Stream]:
    """Rows in an order determined by spikes, from weights of `weights` bytes, of which a core's L2 holds only a part."""
    if n_bytes:
        cached = min(1.0, machine.caches["L2"] / weights)
        yield Stream(phase, "L2", False, cached * n_bytes)
        yield Stream(phase, machine.level_of(weights), False, (1 - cached) * n_bytes)


def floor_ms(all_streams: list[Stream], machine: Machine) -> dict[str, float]:
    """Least time of each phase, ms."""
    floor = dict.fromkeys(PHASES, 0.0)
    for s in all_streams:
        moving = s.n_bytes / (machine.update if s.update else machine.read)[s.level]
        floor[s.phase] += 1e3 * max(moving, 4 * s.n_additions / machine.read["L1"])
    return floor


def engine_phases(seconds: Mapping[str, float], step_s: float) -> dict[str, float]:
    """The engine's clocks (`_core.phase_seconds`) by the phases of this page, seconds; `step_s`: of `step_seconds`."""
    step = min(step_s, seconds["forward"])
    return {
        "pack": seconds["pack"],
        "deliver": seconds["forward"] - step,
        "step": step,
        "collect": seconds["collect"],
        "sort": seconds["sort"],
        "step_grad": seconds["step_grad"],
        "deliver_grad": seconds["deliver_grad"] + seconds["sum_shares"],
    }


def step_seconds(model: Model, spikes: SpikeBatch, repeats: int = 5) -> float:
    """Median seconds of the forward loops if no spike is delivered: without input and bias, no neuron fires."""
    silent = SpikeBatch.from_dense(torch.zeros(spikes.n_steps, spikes.n_samples, spikes.n_neurons))
    seconds = []
    for _ in range(repeats):
        _core.phase_seconds(reset=True)
        model(silent)
        seconds.append(float(_core.phase_seconds(reset=True)["forward"]))
    return median(seconds)


@dataclass(frozen=True)
class RooflineResult:
    """The results of `bench_roofline`.

    Args:
        step_ms: median time of a step.
        phases_ms: of each phase; "pack" copies weights into tiles, "other" is the rest of a step: Python, PyTorch and waiting.
        floor_ms: the least time of each phase and in total on this machine, from its bytes and additions.
        share: floor over time.
        floor_1_thread_ms: the total floor on one thread of the same machine.
        bandwidth: measured bytes per second, "read" and "update" of each memory level.
        threads, machine, workload: the conditions.
    """

    step_ms: float
    phases_ms: dict[str, float]
    floor_ms: dict[str, float]
    share: dict[str, float]
    floor_1_thread_ms: float
    bandwidth: dict[str, dict[str, float]]
    threads: int
    machine: str
    workload: dict[str, Any]

    def table(self) -> str:
        """The result as a text table."""
        w, total = self.workload, self.floor_ms["total"]
        lines = [
            f"{w['net']}, T={w['n_steps']}, batch {w['n_samples']}, {count(self.threads, 'thread')}, {self.machine}",
            f"{'phase':<14}{'ms':>8}{'floor':>8}{'share':>8}",
        ]
        for name, ms in {**self.phases_ms, "total": self.step_ms}.items():
            floor = f"{self.floor_ms[name]:>8.2f}{100 * self.share[name]:>6.0f} %" if name in self.share else ""
            lines.append(f"{name:<14}{ms:>8.2f}{floor}")
        if self.threads > 1:
            lines.append(
                f"threads    the floor is {self.floor_1_thread_ms:.2f} ms on 1 thread: {count(self.threads, 'thread')} can at best "
                f"be {self.floor_1_thread_ms / total:.2f} times as fast, not {self.threads}"
            )
        rates = (
            f"{level} {read / 1e9:.0f} / {self.bandwidth['update'][level] / 1e9:.0f}"
            for level, read in self.bandwidth["read"].items()
        )
        return "\n".join([*lines, "bandwidth  read / read-modify-write, GB/s:   " + "   ".join(rates)])

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def bench_roofline(workload: Workload, *, repeats: int = 15, warm_up: int = 3) -> RooflineResult:
    """Medians over `repeats` training steps on the engine, with its threads.

    In between, the machine's bandwidths are measured three times: its clock and the load of its neighbors vary.
    """
    check_repeats(repeats)
    spikes, labels = workload.spikes(), workload.labels()
    model = workload.model("cpu", spikes)
    optimizer = still_adam(model)
    threads = _core.num_threads()
    for _ in range(warm_up):
        train_step(model, optimizer, spikes, labels)
    times, clocks = [], []
    machines, single, steps = [], [], []
    for k in range(repeats):
        if N_LOOKS * k % repeats < N_LOOKS:
            machines.append(measure_machine(threads))
            single.append(machines[-1] if threads == 1 else measure_machine(1))
            steps.append(step_seconds(model, spikes))
            # not timed: restores the caches to their state in training
            train_step(model, optimizer, spikes, labels)
        _core.phase_seconds(reset=True)
        times.append(train_step(model, optimizer, spikes, labels)[2])
        clocks.append(_core.phase_seconds(reset=True))
    seconds = {name: median(clock[name] for clock in clocks) for name in clocks[0]}
    phases = {name: 1e3 * s for name, s in engine_phases(seconds, median(steps)).items()}
    phases["optimizer"] = 1e3 * median(t[2] for t in times)
    phases["other"] = 1e3 * median(sum(t) - t[2] - sum(c.values()) for t, c in zip(times, clocks, strict=True))
    step_ms = 1e3 * median(sum(t) for t in times)
    machine = typical(machines)
    all_streams = list(streams(model, spikes, model(spikes), machine))
    floor = floor_ms(all_streams, machine)
    floor["total"] = sum(floor.values())
    took = {**phases, "total": step_ms}
    return RooflineResult(
        step_ms=step_ms,
        phases_ms=phases,
        floor_ms=floor,
        share={name: ms / took[name] for name, ms in floor.items() if took[name] > 0},
        floor_1_thread_ms=sum(floor_ms(all_streams, typical(single)).values()),
        bandwidth={"read": dict(machine.read), "update": dict(machine.update)},
        threads=threads,
        machine=machine_name(),
        workload=asdict(workload),
    )
