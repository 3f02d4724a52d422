"""The record: the exact results of small training runs, to compare the code before and after a change.

    ./dev bench record write FILE.json            train the runs, and write their results
    ./dev bench record compare FILE.json          train the runs of the file again, and print each difference
    ./dev bench record compare FILE.json --only recipe

There are 60 random runs: each neuron model, reset and kind of delay, capacities, dropout, graded spikes, maps, recurrence,
grids of 1 to 4 ranks, the emulated IPU, integer weights, the dense engine, and runs that are stopped and resumed. One more
run trains the network of each committed recipe on random events. The file holds the configuration of every run, so that it can
be compared even after the code that draws them has changed. The data are drawn here, from the seed of the run.

For each run it holds the SHA-256 of the trained weights, the loss, activity and dropped spikes of each epoch, and the
SHA-256 of the spike lists of each population, for the first samples of the data. PyTorch computes some of these numbers;
its vector instructions are switched off, so that different processors agree. The dense engine promises no bits: its weights
differ between instruction sets. benchmarks/results/record.json is compared after each change of the engines.
"""

from __future__ import annotations

import os

os.environ.setdefault("ATEN_CPU_CAPABILITY", "default")  # before PyTorch is imported
os.environ.setdefault("MKL_CBWR", "COMPATIBLE")

import argparse
import hashlib
import json
import random
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import ranks_random
import torch

import ipu_cases
import sparsesnn
from sparsesnn.config import Config
from sparsesnn.config.tables import read_toml
from sparsesnn.errors import DescriptionError, SparseSnnError
from sparsesnn.host.comm import simulate
from sparsesnn.spikes import SpikeBatch
from sparsesnn.train import load_run, train

RECIPES = Path(__file__).resolve().parents[1] / "configs"
N_RANDOM = 60
#: the kind of a run, by its seed modulo 12
KINDS = ("cpu", "maps", "ranks", "cpu", "ipu-model", "ranks", "resumed", "integers", "ranks", "cpu", "dense", "ranks")
GRIDS = ((1, 2), (2, 1), (1, 3), (2, 2), (3, 1), (1, 4), (4, 1))
#: samples whose lists are recorded
N_LISTED = 4

Run = dict[str, Any]


# ---- runs ------------------------------------------------------------------------------------------------------------


def random_run(seed: int) -> Run:
    """The run of a seed: its `config`, the `events` it trains on, its `grid`, and `resume`, the epoch it stops after."""
    r, kind = random.Random(seed), KINDS[seed % len(KINDS)]
    while True:
        try:
            network = _draw_network(r, kind)
        except DescriptionError:  # two equal connections, or maps that are too small: draw again
            continue
        limited = any(getattr(p, "capacity", None) for p in network.populations.values())
        if network.populations[network.output].n <= 10 and not (kind == "dense" and limited):
            break
    grid = GRIDS[seed // 2 % len(GRIDS)] if kind == "ranks" else (1, 1)
    first, last = network.populations[network.inputs[0]], network.populations[network.output]
    fires = type(last).__name__ != "LI"
    backend = {"ranks": "cpu", "maps": "cpu", "resumed": "cpu", "integers": "cpu"}.get(kind, kind)
    on_ipu = backend == "ipu-model"
    n_steps, n_classes = r.choice((7, 13, 25)), last.n
    events = {
        "shape": (first.n,),
        "n_steps": n_steps,
        "n_samples": 10 * n_classes,
        "n_classes": n_classes,
        "dt_ms": 1.0,
        "seed": seed,
    }
    config: dict[str, Any] = {
        "data": {
            "name": "events",
            "test": "random:0.2",
            "valid": "random:0.2",
            "n_steps": n_steps,
            "dt_ms": 1.0,
            "duplicates": r.choice(("binary", "count")) if not on_ipu else "binary",
            "n_neurons": first.n,
        },
        "net": network.to_dict(),
        "loss": {
            "decoding": "count" if fires else r.choice(("max", "mean", "sum", "last")),
            "label_smoothing": r.choice((0.0, 0.1)),
            **r.choice(({}, {"upper": 0.1}, {"lower": 0.05, "upper": 0.3})),
        },
        "optim": {"name": r.choice(("adamw", "adam", "sgd")), "lr": 0.01, "clip_norm": r.choice((0.0, 1.0))},
        "train": {"epochs": 2, "batch": 16, "seed": seed, "backend": backend},
    }
    if not on_ipu:
        config["augment"] = r.choice(({}, {"event_drop": 0.2, "time_shift": 2}))
        config["dropout"] = r.choice(({}, {}, {"neurons": 0.2}, {"spikes": 0.2}))
    if kind == "integers":
        config["train"]["weight_dtype"] = r.choice(("int8", "int4", "bfloat16"))
    if on_ipu:
        config["train"]["target"] = r.choice(("ipu-mk2:1x16", "ipu-mk2:1x5", "ipu-mk2:2x16"))
    return {"config": _plain(config), "events": events, "grid": grid, "resume": 1 if kind == "resumed" else 0}


def _draw_network(r: random.Random, kind: str) -> Any:
    if kind == "ipu-model":
        fires = r.random() < 0.25
        return ipu_cases.random_network(r, 3, fires)
    if kind == "maps":
        return ranks_random.random_maps(r)
    return ranks_random.random_network(r)


def _plain(table: Any) -> Any:
    """Converts infinite numbers, which JSON lacks, to texts, as in configurations."""
    if isinstance(table, Mapping):
        return {k: _plain(v) for k, v in table.items()}
    if isinstance(table, (list, tuple)):
        return [_plain(v) for v in table]
    return str(table) if isinstance(table, float) and not np.isfinite(table) else table


def recipe_run(path: Path) -> Run:
    """The network, loss and optimizer of a committed recipe, for one epoch on random events of the data's shape."""
    recipe = read_toml(path.read_text(), path.name)
    name = recipe["data"]["name"]
    full = Config.resolve(recipe).to_dict()
    data = full["data"]
    shapes = {"nmnist": (34, 34, 2), "dvsgesture": (128, 128, 2), "digits": (128,)}
    shape = shapes.get(name, (700,))
    pool = int(data.get("pool") or 1)
    last = full["net"]["text"].rpartition("-")[2]
    n_classes = int(last) if last.isdecimal() else 10
    full["data"] = {
        "name": "events",
        "test": "random:0.2",
        "valid": "random:0.2",
        "n_steps": min(40, data.get("n_steps", 40)),
    }
    full["data"] |= {k: data[k] for k in ("duplicates",) if k in data}
    if len(shape) == 3:
        full["data"] |= {"width": shape[1], "height": shape[0], "pool": pool}
    else:
        full["data"] |= {"n_neurons": shape[0], "pool": pool}
    full["data"]["dt_ms"] = float(data.get("dt_ms") or 1.0)
    full["train"] |= {"epochs": 1, "batch": 16, "backend": "cpu", "patience": 0}
    events = {
        "shape": shape,
        "n_steps": full["data"]["n_steps"],
        "n_samples": 5 * n_classes,
        "n_classes": n_classes,
        "dt_ms": full["data"]["dt_ms"],
        "seed": 1,
    }
    return {"config": _plain(full), "events": events, "grid": (1, 1), "resume": 0}


def all_runs() -> dict[str, Run]:
    """All runs, by name."""
    runs = {f"random {seed} {KINDS[seed % len(KINDS)]}": random_run(seed) for seed in range(N_RANDOM)}
    return runs | {f"recipe {path.stem}": recipe_run(path) for path in sorted(RECIPES.glob("*.toml"))}


# ---- a run ------------------------------------------------------------------------------------------------------------


def write_events(
    path: Path, shape: Sequence[int], n_steps: int, n_samples: int, n_classes: int, dt_ms: float, seed: int
) -> None:
    """Writes events: about 5 % of the units have one in a step; each class prefers a part of the units.

    Args:
        shape: (units,) or (height, width, polarities).
    """
    rng, n = np.random.default_rng(seed), int(np.prod(shape))
    label = np.arange(n_samples) % n_classes
    n_events = max(1, n * n_steps // 20)
    unit = rng.integers(0, n, (n_samples, n_events))
    prefers = rng.random((n_samples, n_events)) < 0.3
    unit = np.where(prefers, (label[:, None] * n // n_classes + unit // n_classes) % n, unit)
    step = rng.integers(0, n_steps, (n_samples, n_events))
    arrays: dict[str, Any] = {
        "t_us": ((step + 0.5) * dt_ms * 1000).ravel(),
        "sample": np.repeat(np.arange(n_samples), n_events),
        "label": label,
    }
    if len(shape) == 3:
        height, width = shape[:2]
        arrays |= {
            "x": unit.ravel() % width,
            "y": unit.ravel() // width % height,
            "p": unit.ravel() // (width * height),
        }
    else:
        arrays["unit"] = unit.ravel()
    np.savez(path, **arrays)


def result_of(run: Run) -> dict[str, Any]:
    """The result of a run; its error if it cannot be trained."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        events, out = Path(folder) / "events.npz", Path(folder) / "run"
        write_events(events, **run["events"])
        try:
            return _train(run, events, out)
        except SparseSnnError as error:
            return {"error": f"{type(error).__name__}: {error}".replace(folder, "")}


def _train(run: Run, events: Path, out: Path) -> dict[str, Any]:
    data = {"data": {"dir": str(events)}, "train": {"plots": False, "tensorboard": False, "prefetch": 0}}
    replicas, shards = run["grid"]
    grid = {"parallel": {"replicas": replicas, "shards": shards}} if replicas * shards > 1 else {}
    config = Config.resolve(run["config"], data, grid)
    if run["resume"]:
        train(Config.resolve(config.to_dict(), {"train": {"epochs": run["resume"]}}), out=out)
    results = simulate(replicas * shards, lambda world: train(config, out=out, resume=bool(run["resume"]), world=world))
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {
        "weights_sha256": results[0].weights_sha256,
        "epochs": [
            {key: line[key] for key in ("loss", "valid_loss", "accuracy", "activity", "dropped")} for line in lines
        ],
        "lists": dict(_lists(out)),
    }


def _lists(out: Path) -> Iterator[tuple[str, str]]:
    """SHA-256 of the lists of each population, spikes and near-spikes."""
    saved = load_run(out, weights="last", backend="cpu")
    part = saved.part("train")
    for name, lists in saved.model(part.event_set.batch(part.indices[:N_LISTED])).spikes.items():
        assert isinstance(lists, SpikeBatch)
        arrays = (lists.offsets, lists.ids.to(torch.int64), lists.n_spikes)
        yield name, hashlib.sha256(b"".join(a.numpy().tobytes() for a in arrays)).hexdigest()


# ---- the program ------------------------------------------------------------------------------------------------------


def differences(name: str, before: Any, now: Any) -> Iterator[str]:
    """Each entry in which two results differ."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in sorted(set(before) | set(now)):
            yield from differences(f"{name}, {key}", before.get(key), now.get(key))
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for k, (a, b) in enumerate(zip(before, now, strict=True)):
            yield from differences(f"{name} {k}", a, b)
    elif before != now:
        yield f"{name}: {before} before, {now} now"


def compute(runs: Mapping[str, Run]) -> dict[str, Any]:
    results = {}
    for k, (name, run) in enumerate(runs.items(), 1):
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            results[name] = json.loads(json.dumps(result_of(run)))
        print(f"\r{k}/{len(runs)} {name:40}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    """1 if a result differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("write", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="runs whose name contains this text")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    sparsesnn.set_num_threads(1)
    if options.action == "write":
        runs = {name: run for name, run in all_runs().items() if options.only in name}
        results = compute(runs)
        for name in [name for name in runs if "init_activity" in results[name].get("error", "")]:
            runs[name]["config"]["init"] = {"activity": 0.0}  # random networks do not always reach the usual activity
            results |= compute({name: runs[name]})
        document = {name: {**runs[name], "result": results[name]} for name in runs}
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(run)}" for name, run in document.items())
        options.file.write_text(f"{{\n{lines}\n}}\n")  # one line per run
        failed = [f"{name}: {result['error']}" for name, result in results.items() if "error" in result]
        print(*failed, f"{len(runs)} runs written, {len(failed)} of them refused", sep="\n")
        return 0
    document = json.loads(options.file.read_text())
    runs = {name: run for name, run in document.items() if options.only in name}
    results = compute(runs)
    found = [line for name, run in runs.items() for line in differences(name, run["result"], results[name])]
    n_runs = len({line.split(",")[0] for line in found})
    print(*found, f"{len(runs)} runs compared: {n_runs} differ", sep="\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
