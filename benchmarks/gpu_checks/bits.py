"""Whether the engine `gpu` gives the bits of `cpu`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import random_networks
import torch
from random_networks import Case

from gpu_checks import networks
from gpu_checks.networks import Size
from gpu_checks.report import FaultError, Part, Report
from sparsesnn.engines.cpu.engine import CpuEngine
from sparsesnn.engines.gpu import choose
from sparsesnn.engines.gpu.engine import GpuEngine

#: tools of compute-sanitizer, and the faults that each looks for
SANITIZERS = {"memcheck": "accesses out of bounds", "racecheck": "races on shared memory"}


def check(report: Report, device: str, size: Size) -> None:
    """All parts, in order; the first fault stops the check."""
    report.run("device", partial(_open, device=device))
    report.run("small networks", partial(_small_networks, device=device, size=size))
    for tool, what in SANITIZERS.items():
        report.run(f"compute-sanitizer {tool}: {what}", partial(_sanitizer, tool=tool, device=device), needs=20)
    for net, text in size.nets.items():
        report.run(
            f"{net}, {text}: weights after {size.training_steps} steps of batch {size.batch}",
            partial(_training, net=net, device=device, size=size),
        )


def visit_kernels(size: Size) -> int:
    """Runs every network once, on a device that only compiles; how many."""
    for seed in size.seeds:
        of = networks.small_case(seed, size)
        engine, _ = random_networks.run(of, GpuEngine, 1)
        with torch.no_grad(), engine.evaluated():
            engine.run(of.batch(99))
    for text in size.nets.values():
        engine = networks.make_engine(GpuEngine, "gpu", text, 2, {})
        engine.step(networks.batch_of(text, networks.DRY, 2), networks.LR)
    return len(size.seeds) + len(size.nets)


def _open(part: Part, device: str) -> None:
    opened: Any = choose.open_device(device)
    free, total = opened.memory()
    part.data |= {"device": opened.name, "processors": opened.n_processors, "free_bytes": free, "total_bytes": total}
    part.say(f"{opened.name}: {opened.n_processors} multiprocessors, {free:,} of {total:,} bytes free")
    opened.close()


def _small_networks(part: Part, device: str, size: Size) -> None:
    """Every case against the file; if one differs, against `cpu` on this machine, which says what and where."""
    known = networks.references()[size.name]["cases"]
    part.data["cases"] = {}
    for seed in size.seeds:
        of = networks.small_case(seed, size)
        engine, steps = random_networks.run(_on(of, device), GpuEngine, 3)
        made = networks.digest(steps, engine, of.batch(99))
        engine.close()
        part.data["cases"][str(seed)] = made
        if made == known[str(seed)]:
            continue
        here = networks.expected_of_case(seed, size)
        if here != known[str(seed)]:
            raise FaultError(
                f"network {seed}: the engine cpu does not give the bits of {networks.REFERENCES.name} on this machine: {_unlike(here, known[str(seed)])}"
            )
        raise FaultError(
            f"network {seed}: {_unlike(made, here)} differ from the engine cpu; {first_difference(seed, size)}"
        )
    part.say(f"{len(size.seeds)} networks have the lists, losses and weights of the engine cpu")


def _on(of: Case, device: str) -> Case:
    """The case on a device."""
    options = {**of.training.get("options", {}), "device": device}
    return replace(of, training={**of.training, "options": options})


def _unlike(a: Mapping[str, str], b: Mapping[str, str]) -> str:
    return ", ".join(key for key in a if a[key] != b[key])


def first_difference(seed: int, size: Size) -> str:
    """The first entry of the first list, or of the first weight, that differs after one step of training."""
    of = networks.small_case(seed, size)
    outputs = []
    for kind in (CpuEngine, GpuEngine):
        engine, _ = random_networks.run(of, kind, 1)
        with torch.no_grad(), engine.evaluated():
            outputs.append((engine.run(of.batch(99)), engine.weights()))
    (wanted, weights), (made, other_weights) = outputs
    for name, lists in wanted.spikes.items():
        other = made.spikes[name]
        for k, (begin, end) in enumerate(zip(lists.offsets[:-1].tolist(), lists.offsets[1:].tolist(), strict=True)):
            first = int(other.offsets[k])
            ids, theirs = lists.ids[begin:end].tolist(), other.ids[first : int(other.offsets[k + 1])].tolist()
            if ids != theirs:
                t, b = divmod(k, lists.n_samples)
                return f"{name}, step {t}, sample {b}: cpu lists {ids[:8]}, this device {theirs[:8]}"
    for name, weight in weights.items():
        at = (weight != other_weights[name]).nonzero().tolist()
        if at:
            place = tuple(at[0])
            return (
                f"{name}{list(place)}: cpu {float(weight[place])!r}, this device {float(other_weights[name][place])!r}"
            )
    return "after one step everything is equal: it begins later"


def _training(part: Part, net: str, device: str, size: Size) -> None:
    known = networks.references()[size.name]["training"][net]
    text, scales = size.nets[net], networks.scales_of(size, net, 0.02)
    engine = networks.make_engine(GpuEngine, "gpu", text, size.batch, scales, {"device": device})
    made = networks.train(engine, text, size)
    engine.close()
    part.data |= {"made": made, "expected": known}
    if made != known:
        here = networks.train(networks.make_engine(CpuEngine, "cpu", text, size.batch, scales), text, size)
        if here != known:
            raise FaultError(f"the engine cpu does not give the bits of {networks.REFERENCES.name} on this machine")
        raise FaultError(
            f"{_unlike(made, known)} differ: loss {float.fromhex(made['loss'])!r}, expected {float.fromhex(known['loss'])!r}"
        )
    part.say(f"weights_sha256 {made['weights'][:16]}…, as on the engine cpu")


# ---- compute-sanitizer ----------------------------------------------------------------------------------------------


def one_step(device: str) -> None:
    """A step of a small recurrent network, for compute-sanitizer."""
    text = "30-70r-40r-5"
    engine = networks.make_engine(GpuEngine, "gpu", text, 9, {"hidden1": 4.0, "hidden2": 4.0}, {"device": device})
    for number in range(2):
        engine.step(networks.batch_of(text, networks.DRY, 9, number), networks.LR)
    engine.close()
    print("one step: done")


def find_sanitizer() -> str | None:
    """The path of compute-sanitizer, which comes with the CUDA toolkit."""
    return shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")


def _sanitizer(part: Part, tool: str, device: str) -> None:
    program = find_sanitizer()
    if program is None:
        part.skip("compute-sanitizer is not installed")
        return
    script = Path(__file__).resolve().parents[1] / "gpu_check.py"
    name = "emulated" if os.environ.get(choose.VARIABLE) == "emulated" else device
    command = [
        program,
        "--tool",
        tool,
        "--error-exitcode",
        "7",
        sys.executable,
        str(script),
        "one-step",
        "--device",
        name,
    ]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    except subprocess.TimeoutExpired:
        part.skip("did not end within 90 s")
        return
    text = ended.stdout + ended.stderr
    part.data |= {"command": command, "output": text[-8000:]}
    if ended.returncode == 0 and "one step: done" in text:
        part.say(next((line.strip("= ") for line in text.splitlines() if "SUMMARY" in line), "no findings"))
    elif "SUMMARY: 0 errors" in text or "not supported" in text:
        part.skip(f"does not work on this machine: {text.strip().splitlines()[-1]}")
    else:
        found = [line.strip("= ") for line in text.splitlines() if "=========" in line][:6]
        raise FaultError(f"status {ended.returncode}: {'; '.join(found) or text.strip()[-300:]}")
