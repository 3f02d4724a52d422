"""How fast the engine `gpu` is: copies, kernels alone, whole steps, other implementations, the host's share."""

from __future__ import annotations

import functools
import importlib
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from typing import Any

import torch

from gpu_checks import networks
from gpu_checks.devices import Idle, Launch, Watched, replaced
from gpu_checks.networks import Size
from gpu_checks.report import MEASURED, Part, Report
from sparsesnn.bench.workload import Workload
from sparsesnn.engines.base import Batch
from sparsesnn.engines.dense.engine import DenseEngine
from sparsesnn.engines.gpu import choose
from sparsesnn.engines.gpu.device import Device
from sparsesnn.engines.gpu.engine import GpuEngine
from sparsesnn.errors import SparseSnnError
from sparsesnn.layers import Input

#: networks of timed steps
NETS = ("W1", "W2")
#: the activity of whole steps
USUAL = 0.02
#: below this share of the speed of a copy within L2 a kernel needs more loads in flight before anything else
SHARE_OF_COPY = 0.5
#: a row for the README: this many times as fast as the best dense float32 at 2 %
FACTOR = 1.5
#: above this share of a step the host is the next work
SHARE_OF_HOST = 0.2
#: bytes that are copied: within L2 of every GPU since Ampere, and far beyond it
COPIES = {"L2": 8 << 20, "memory": 1 << 30}
#: other libraries: module of rivals.contestants, and seconds that its first step may take on a GPU
RIVALS = {
    "SpikingJelly": ("spikingjelly_net", 15),
    "snnTorch": ("snntorch_net", 15),
    "JAX scan": ("jax_scan", 45),
    "torch.compile": ("compiled", 90),
}

Rows = list[dict[str, Any]]


def measure(report: Report, device: str, size: Size, *, rivals: bool) -> None:
    """All parts, in order; each is written as it ends."""
    copy: dict[str, float] = {}
    kernels: dict[tuple[str, int], float] = {}
    rows: Rows = []
    report.run("copies", partial(_copies, device=device, size=size, speed=copy))
    for activity in sorted(size.activities, key=lambda x: abs(x - USUAL)):
        for net in NETS:
            for batch in size.batches:
                report.run(
                    f"kernels alone: {net}, batch {batch}, {activity:.1%}",
                    partial(
                        _kernels,
                        device=device,
                        size=size,
                        net=net,
                        batch=batch,
                        activity=activity,
                        copy=copy,
                        total=kernels,
                    ),
                    needs=_after_kernels(size),
                    stops=False,
                )
    for net in NETS:
        for batch in size.batches:
            where = partial(_steps, device=device, size=size, net=net, batch=batch, kernels=kernels, rows=rows)
            report.run(f"whole steps: {net}, batch {batch}", where, stops=False)
    if rivals:
        for name, (module, seconds) in RIVALS.items():
            for net in NETS:
                for batch in size.batches:
                    rival = partial(
                        _rival, device=device, size=size, net=net, batch=batch, module=module, name=name, rows=rows
                    )
                    report.run(
                        f"{name}: {net}, batch {batch}",
                        rival,
                        needs=seconds if size is networks.FULL else 0,
                        stops=False,
                    )
    report.run("result", partial(_result, size=size, rows=rows), stops=False)


def _after_kernels(size: Size) -> float:
    """Seconds that whole steps need, which kernels alone must leave."""
    return 90.0 if size is networks.FULL else 0.0


def visit_kernels(size: Size) -> int:
    """Runs the networks of this check once, on a device that only compiles; how many."""
    for net in NETS:
        networks.make_engine(GpuEngine, "gpu", size.nets[net], 2, {}).step(
            networks.batch_of(size.nets[net], networks.DRY, 2), networks.LR
        )
    return len(NETS)


# ---- tools ----------------------------------------------------------------------------------------------------------


def _batch(text: str, size: Size, n_samples: int) -> Batch:
    return _kept_batch(text, size.name, n_samples)


@functools.lru_cache(maxsize=4)
def _kept_batch(text: str, size: str, n_samples: int) -> Batch:
    return networks.batch_of(text, next(x for x in networks.SIZES if x.name == size), n_samples)


def _time_of(device: Device, work: Callable[[], None], times: int, tries: int = 5) -> float:
    """Median seconds of `work`, which adds to the device's stream, from graphs of it `times` over."""

    def all_of_it() -> None:
        for _ in range(times):
            work()

    replay = device.record(all_of_it)
    replay()
    device.synchronize()
    found = []
    for _ in range(tries):
        start = time.perf_counter()
        replay()
        device.synchronize()
        found.append((time.perf_counter() - start) / times)
    return median(found)


def _seconds_of_steps(step: Callable[[], object], wait: Callable[[], None], repeats: int) -> float:
    """Median seconds of a step, after some to warm up."""
    for _ in range(3):
        step()
    wait()
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        step()
        wait()
        found.append(time.perf_counter() - start)
    return median(found)


def _gpu(device: str, size: Size, net: str, batch: int, activity: float) -> tuple[Any, Watched]:
    """The engine, on a device that remembers."""
    watched = Watched(choose.open_device(device))
    with replaced(lambda: watched):
        engine = networks.make_engine(
            GpuEngine, "gpu", size.nets[net], batch, networks.scales_of(size, net, activity), {"device": device}
        )
        engine.step(_batch(size.nets[net], size, batch), 1e-12)
    return engine, watched


# ---- parts ----------------------------------------------------------------------------------------------------------


def _copies(part: Part, device: str, size: Size, speed: dict[str, float]) -> None:
    opened = choose.open_device(device)
    part.data["device"] = opened.name
    for name, wanted in COPIES.items():
        n_bytes = wanted if size is networks.FULL else 1 << 16
        to, source = (opened.allocate(n_bytes, what) for what in ("copy", "source"))
        opened.fill(source, n_bytes)
        seconds = _time_of(opened, partial(opened.copy, to, source, n_bytes), size.repeats)
        speed[name] = 2 * n_bytes / seconds
        part.say(f"{name}: {n_bytes:,} bytes at {speed[name] / 1e9:,.0f} GB/s, read and written")
        opened.free(source)
        opened.free(to)
    opened.close()
    part.data["bytes_per_s"] = dict(speed)
    part.verdict = MEASURED


def _kernels(
    part: Part,
    device: str,
    size: Size,
    net: str,
    batch: int,
    activity: float,
    copy: Mapping[str, float],
    total: dict[tuple[str, int], float],
) -> None:
    engine, watched = _gpu(device, size, net, batch, activity)
    with replaced(lambda: watched):
        watched.ran.clear()
        step = engine.step(_batch(size.nets[net], size, batch), 1e-12)
        watched.synchronize()
        launches = list(watched.ran)
        bytes_of = _bytes_of(engine, _batch(size.nets[net], size, batch))
        parts = Counter((launch.kernel.name, launch.what) for launch in launches)  # of a batch of several waves
        rows: Rows = []
        for launch in launches:
            seconds = _time_of(watched.device, partial(launch.run, watched.device), size.repeats, tries=3)
            row: dict[str, Any] = {
                "kernel": launch.kernel.name,
                "what": launch.what,
                "grid": launch.grid,
                "block": launch.block,
                "us": 1e6 * seconds,
            }
            n_bytes = bytes_of(launch) / parts[launch.kernel.name, launch.what]
            if n_bytes:
                row |= {"bytes": n_bytes, "bytes_per_s": n_bytes / seconds, "of_copy": n_bytes / seconds / copy["L2"]}
            rows.append(row)
        engine.close()
    seconds = sum(row["us"] for row in rows) / 1e6
    if activity == min(size.activities, key=lambda x: abs(x - USUAL)):
        total[net, batch] = seconds
    part.data |= {"kernels": rows, "activity": dict(step.activity), "sum_us": 1e6 * seconds}
    part.say(
        f"{len(rows)} launches, {1e6 * seconds:,.0f} µs in all; activity "
        + ", ".join(f"{k} {v:.2%}" for k, v in step.activity.items())
    )
    for row in sorted(rows, key=lambda row: -row["us"])[:8]:
        share = (
            f"{row['bytes_per_s'] / 1e9:8,.0f} GB/s, {row['of_copy']:.0%} of a copy within L2" if "bytes" in row else ""
        )
        flag = (
            "  <- more loads in flight first"
            if row.get("of_copy", 1.0) < SHARE_OF_COPY and not _is_dry() and row["us"] > 5e4 * seconds
            else ""
        )
        part.say(f"{row['kernel']:<14} {row['what']:<28} {row['us']:9.1f} µs {share}{flag}")
    part.verdict = MEASURED


def _bytes_of(engine: Any, batch: Batch) -> Callable[[Launch], float]:
    """How many bytes the launches of a kernel must read from L2 or write, from the lists of the last step; 0: not counted.

    The heads of codelets/gpu say so.
    """
    program, passes = engine.program, engine.program.passes
    spikes: dict[str, int] = {}
    listed: dict[str, int] = {}
    for name, population in program.network.populations.items():
        if isinstance(population, Input):
            spikes[name] = listed[name] = batch.spikes.ids.numel()
        elif passes.layers[name].fires:
            lists = passes.lists(name)[0]
            spikes[name], listed[name] = int(lists.n_spikes.sum()), lists.ids.numel()
    rows = batch.spikes.n_steps * batch.spikes.n_samples
    links = {
        f"layers.{layer.name}.{link.name}": (layer, link) for layer in program.layers.values() for link in layer.links
    }

    def count(launch: Launch) -> float:
        kind, what = launch.kernel.name, launch.what
        n_bytes = 0
        if kind == "step":
            layer = program.layers[what]
            n_bytes = 4 * layer.n_padded * sum(spikes[link.pre] for link in layer.links)
        if kind == "step_grad":
            layer = program.layers[what]
            n_bytes = 8 * layer.n_padded * sum(listed[link.pre] for link in layer.loops) + 4 * layer.n_padded * rows
        if kind == "list_grad":
            pre, _, post = what.partition(" -> ")
            n_bytes = 8 * program.layers[post].n_padded * listed[pre]
        if kind == "weight_grad":
            layer, link = links[what]
            n_bytes = (
                4
                * layer.n_padded
                * (spikes[link.pre] + link.n_pre * sum(len(wave.leaves) for wave in passes.shape.waves))
            )
        return float(n_bytes)

    return count


def _steps(
    part: Part, device: str, size: Size, net: str, batch: int, kernels: Mapping[tuple[str, int], float], rows: Rows
) -> None:
    """Ours, and dense in each precision; the host's share of ours."""
    text, scales = size.nets[net], networks.scales_of(size, net, _usual(size))
    data = _batch(text, size, batch)
    engine, watched = _gpu(device, size, net, batch, _usual(size))
    with replaced(lambda: watched):
        seconds = _seconds_of_steps(lambda: engine.step(data, 1e-12), watched.synchronize, size.repeats)
        most = watched.most_bytes
        engine.close()
    found: Rows = [{"who": "lists, float32", "s": seconds, "bytes": most}]
    with replaced(Idle):
        engine = networks.make_engine(GpuEngine, "gpu", text, batch, scales)
        host = _seconds_of_steps(lambda: engine.step(data, 1e-12), lambda: None, size.repeats)
    part.data["host_alone_s"] = host
    place = "cpu" if _is_dry() else device
    for precision in ("float32", "tf32", "bfloat16"):
        try:
            dense = networks.make_engine(
                DenseEngine, "dense", text, batch, scales, {"device": place, "precision": precision}
            )
            found.append(_dense(dense, data, place, precision, size))
        except SparseSnnError as error:
            part.say(f"dense, {precision}: {error}")
    for row in found:
        row |= {"net": net, "batch": batch, "samples_per_s": batch / row["s"]}
        part.say(
            f"{row['who']:<18} {1e3 * row['s']:8.2f} ms  {row['samples_per_s']:10,.0f} samples/s  {row['bytes'] / 2**20:8,.0f} MiB"
        )
    rows += found
    part.data["rows"] = found
    if (net, batch) in kernels:
        share = 1 - kernels[net, batch] / seconds
        part.data |= {"kernels_s": kernels[net, batch], "host_share": share}
        part.say(
            f"host: {1e3 * host:.2f} ms of Python where nothing is computed; step minus kernels: {share:.0%} of the step"
            + ("  <- the host is the next work" if share > SHARE_OF_HOST and not _is_dry() else "")
        )
    part.verdict = MEASURED


def _dense(dense: Any, data: Batch, place: str, precision: str, size: Size) -> dict[str, Any]:
    wait: Callable[[], None] = (lambda: None) if place == "cpu" else torch.cuda.synchronize
    step = lambda: dense.step(data, 1e-12)  # noqa: E731
    step()
    if place != "cpu":
        torch.cuda.reset_peak_memory_stats()
    seconds = _seconds_of_steps(step, wait, size.repeats)
    most = 0 if place == "cpu" else torch.cuda.max_memory_reserved()
    return {"who": f"dense, {precision}", "s": seconds, "bytes": most}


def _rival(part: Part, device: str, size: Size, net: str, batch: int, module: str, name: str, rows: Rows) -> None:
    from rivals import prepare

    workload = Workload(size.nets[net], n_steps=size.n_steps, n_samples=batch, hidden_activity=_usual(size))
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX leaves memory to the parts after it
    try:
        contestant = importlib.import_module(f"rivals.contestants.{module}")
    except ImportError as error:
        part.skip(f"is not installed: {error}")
        return
    place = "cpu" if _is_dry() else device
    jax = contestant.jax if module.startswith("jax") else None
    if jax and place != "cpu" and jax.default_backend() == "cpu":
        part.skip("is installed without CUDA (pip install 'jax[cuda13]')")
        return
    with torch.device(place):
        task = _task(prepare.make_task, workload)
        step = contestant.make(task)
        start = time.perf_counter()
        step()
        first = time.perf_counter() - start
    wait: Callable[[], None] = (lambda: None) if place == "cpu" else torch.cuda.synchronize
    seconds = _seconds_of_steps(step, wait, max(2, size.repeats // 2))
    most = 0
    if place != "cpu":
        most = jax.devices()[0].memory_stats()["peak_bytes_in_use"] if jax else torch.cuda.max_memory_reserved()
    row = {
        "who": name,
        "net": net,
        "batch": batch,
        "s": seconds,
        "samples_per_s": batch / seconds,
        "bytes": most,
        "first_s": first,
    }
    rows.append(row)
    part.data["rows"] = [row]
    part.say(f"{1e3 * seconds:.2f} ms, {batch / seconds:,.0f} samples/s; first step {first:.1f} s")
    part.verdict = MEASURED


@functools.lru_cache(maxsize=4)
def _task(make: Callable[[Workload], Any], workload: Workload) -> Any:
    with torch.device("cpu"):
        return make(workload)


def _result(part: Part, size: Size, rows: Rows) -> None:
    """One table, and what follows from it."""
    if _is_dry():
        part.say("a dry run: these times say nothing about a GPU")
    for net in NETS:
        for batch in size.batches:
            here = [row for row in rows if (row["net"], row["batch"]) == (net, batch)]
            ours = next((row for row in here if row["who"].startswith("lists")), None)
            if ours is None:
                continue
            part.say(
                f"{net}, batch {batch}, {_usual(size):.1%}: "
                + ", ".join(f"{row['who']} {row['samples_per_s']:,.0f}" for row in here)
            )
            dense = [row["samples_per_s"] for row in here if row["who"] in ("dense, float32", "torch.compile")]
            if dense:
                factor = ours["samples_per_s"] / max(dense)
                verdict = "a row for the README" if factor >= FACTOR else f"below {FACTOR}, no row"
                part.say(f"  {factor:.2f} times the best dense float32: {verdict}")
                part.data[f"{net}, {batch}"] = factor
    part.verdict = MEASURED if rows else part.verdict


def _usual(size: Size) -> float:
    return min(size.activities, key=lambda x: abs(x - USUAL)) if USUAL not in size.activities else USUAL


def _is_dry() -> bool:
    return os.environ.get(choose.VARIABLE) == "emulated"
