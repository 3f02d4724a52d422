"""Does event sparsity cost accuracy? Dense and sparse training of one network on one data set, over seeds.

Every variant starts, seed by seed, from the same random weights, scaled by its own rules to the same activity, and sees
the same batches. The epoch is chosen on a validation part taken from the training part; the test part is used once.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from sparsesnn.bench.rows import Row, Rows, draw, write_csv
from sparsesnn.config import Config
from sparsesnn.errors import ConfigError
from sparsesnn.json_file import strict_json
from sparsesnn.train import train
from sparsesnn.train.metrics import read_metrics
from sparsesnn.whole_file import write_atomically
from sparsesnn.wording import count

#: 97.5 % quantiles of Student's t for 1, 2, … degrees of freedom
T_QUANTILES = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """One way to train: a backend, the capacity of its lists, and the listing threshold.

    Args:
        max_activity: capacity as a share of a layer's neurons; None: no limit.
        grad_threshold: secondary gradient threshold; -inf lists every neuron, which is dense BPTT.
    """

    backend: str = "cpu"
    max_activity: float | None = None
    grad_threshold: float = 0.9

    def __post_init__(self) -> None:
        if self.max_activity is not None and not 0 < self.max_activity <= 1:
            raise ConfigError(
                f"bench convergence: max activity is {self.max_activity:g}; give a share of a layer's neurons, "
                "above 0, at most 1"
            )

    @property
    def name(self) -> str:
        """The name in tables, plots and folders."""
        if self.backend == "dense":
            return "dense"
        room = "no limit" if self.max_activity is None else f"max {100 * self.max_activity:g} %"
        return f"sparse, {room}, grad_threshold {self.grad_threshold:g}"

    def config(self, base: Config, seed: int, initial_activity: float) -> Config:
        """The base configuration with this variant's settings."""
        net: dict[str, Any] = {"grad_threshold": self.grad_threshold}
        if self.max_activity is not None:
            net["capacity"] = max(1, round(self.max_activity * _hidden_size(base)))
        return base.with_values(
            {
                "net": net,
                "init": {"activity": initial_activity},
                "train": {
                    "seed": seed, "backend": self.backend, "dense_mode": "auto", "tensorboard": False, "plots": False,
                },
            }
        )  # fmt: skip


DENSE = Variant("dense", None, -math.inf)
#: as (share of a layer's neurons, grad_threshold); a grad_threshold of 1, the threshold, lists spikes only
SETTINGS = ((0.1, 0.9), (0.05, 0.9), (0.05, 0.5), (0.1, 1.0))


def bench_convergence(
    base: Config,
    folder: Path,
    *,
    settings: Sequence[tuple[float, float]] = SETTINGS,
    seeds: Sequence[int] = (0, 1, 2),
    stream: TextIO | None = None,
) -> list[Row]:
    """Trains the runs that the folder lacks; returns a row a variant.

    Writes convergence.json and .csv (a row a run), summary.json, summary.csv and summary.md (a row a variant, means
    with 95 % confidence intervals over seeds), convergence.png, and the runs themselves.

    Args:
        base: data set, network, epochs; validation has to be taken from the training part.
        settings: (max activity, grad_threshold) of the limited variants, besides dense and sparse without a limit.
        seeds: of initial weights, order of samples and augmentation.

    Errors: `ConfigError` for a base without validation, with hidden layers of several sizes, or seeds given twice.
    """
    if base.data.valid == "none":
        raise ConfigError("bench convergence: data.valid is 'none'; give a validation part, such as random:0.2")
    if not seeds or len(set(seeds)) != len(seeds):
        raise ConfigError(f"bench convergence: seeds are {list(seeds)}; give each once, at least one")
    variants = [DENSE, Variant(), *(Variant("cpu", room, threshold) for room, threshold in settings)]
    names = [variant.name for variant in variants]
    if len(set(names)) != len(names):
        raise ConfigError(f"bench convergence: two settings are the same: {', '.join(names)}; give each once")
    rooms = [variant.max_activity for variant in variants if variant.max_activity is not None]
    # half of the smallest capacity: all variants can reach it, and none begins with full lists
    initial = min([base.init.activity, *(0.5 * room for room in rooms)])
    plain = base.to_dict()
    for section, key in (("data", "dir"), ("data", "cache_dir"), ("train", "threads"), ("train", "seed")):
        plain[section].pop(key, None)
    rows = Rows(folder, "convergence", {"config": plain, "initial_activity": initial}, stream)

    def measure(point: Row) -> Row:
        variant = variants[names.index(point["variant"])]
        place = folder / "runs" / _slug(variant.name) / f"seed-{point['seed']}"
        result = train(variant.config(base, point["seed"], initial), out=place, resume=True)
        records = read_metrics(place)
        return {
            "test_accuracy": result.test_accuracy,
            "valid_accuracy": result.valid_accuracy,
            "epochs_to_best": result.best_epoch,
            "samples_per_s": result.samples_per_s,
            "seconds": result.seconds,
            "activity": dict(result.activity),
            "dropped_in_test": dict(result.dropped),
            "valid_by_epoch": [record["valid_accuracy"] for record in records],
        }

    results = rows.run([{"variant": name, "seed": seed} for seed in seeds for name in names], measure)
    results = [row for row in results if row["variant"] in names and row["seed"] in seeds]
    summary = summarize(results, names)
    write_atomically(folder / "summary.json", (strict_json(summary, indent=1) + "\n").encode())
    write_csv(folder / "summary.csv", summary)
    write_atomically(folder / "summary.md", describe(base, summary, len(seeds), initial).encode())
    draw(
        plot,
        results,
        names,
        folder / "convergence.png",
        f"{base.data.name}, {base.net.text}, {count(len(seeds), 'seed')}",
    )
    return summary


def interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean, and half the width of its 95 % confidence interval (Student's t); None for a single value."""
    n = len(values)
    if n < 2:
        return values[0], None
    t = T_QUANTILES[n - 2] if n - 2 < len(T_QUANTILES) else 1.96
    return statistics.fmean(values), t * statistics.stdev(values) / math.sqrt(n)


def summarize(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """A row a variant; `against_dense` is the mean difference in test accuracy, seed by seed."""
    by_name = {name: sorted((r for r in rows if r["variant"] == name), key=lambda r: r["seed"]) for name in names}
    base = by_name[names[0]]
    summary = []
    for name, runs in by_name.items():
        row: Row = {"variant": name, "n_seeds": len(runs)}
        for key in ("test_accuracy", "valid_accuracy", "epochs_to_best", "samples_per_s"):
            row[key], row[f"{key}_ci95"] = interval([run[key] for run in runs])
        differences = [run["test_accuracy"] - other["test_accuracy"] for run, other in zip(runs, base, strict=True)]
        row["against_dense"], row["against_dense_ci95"] = interval(differences)
        row["activity"] = statistics.fmean(statistics.fmean(run["activity"].values()) for run in runs)
        row["dropped_in_test"] = sum(sum(run["dropped_in_test"].values()) for run in runs)
        summary.append(row)
    return summary


def describe(base: Config, summary: Sequence[Row], n_seeds: int, initial_activity: float) -> str:
    """A summary of method and results, for a reader without the code."""
    lines = [
        f"# Convergence: {base.data.name}, network {base.net.text}",
        "",
        f"{base.train.epochs} epochs of batches of {base.train.batch}, {count(n_seeds, 'seed')}. Validation part: `{base.data.valid}`, "
        "taken from the training part; it chose the epoch. The test part was used once. All variants begin with an "
        f"activity of {100 * initial_activity:g} % and see the same batches.",
        "",
        "dense: every neuron gets a gradient (backpropagation through time). sparse: only neurons whose potential is above "
        "grad_threshold do; grad_threshold 1 means only those that fired (the threshold is 1). max: lists have room for "
        "that share of a layer's neurons; further candidates are dropped.",
        "",
        "| variant | test accuracy, % | against dense, points | epochs to the best | training samples/s | activity, % | "
        "dropped |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in summary:
        lines.append(
            f"| {r['variant']} | {_with(r, 'test_accuracy', 100, 1)} | {_with(r, 'against_dense', 100, 1)} "
            f"| {_with(r, 'epochs_to_best', 1, 1)} | {_with(r, 'samples_per_s', 1, 0)} | {100 * r['activity']:.2f} "
            f"| {r['dropped_in_test']:,} |"
        )
    lines += [
        "",
        "± is the 95 % confidence interval of the mean over seeds (Student's t). A difference against dense whose interval "
        "contains 0 cannot be distinguished from chance with these seeds. Activity: spikes per neuron and step, and dropped: candidates "
        "without a slot, both on the test part, all seeds.",
        "",
        "Files: convergence.csv (a row a run), summary.csv (this table), convergence.png, runs/ (every run: its "
        "configuration, metrics by epoch, weights).",
        "",
    ]
    return "\n".join(lines)


def _with(row: Row, key: str, scale: float, digits: int) -> str:
    half = row[f"{key}_ci95"]
    return f"{scale * row[key]:.{digits}f}" + ("" if half is None else f" ± {scale * half:.{digits}f}")


def plot(rows: Sequence[Row], names: Sequence[str], path: Path, title: str) -> None:
    """Validation accuracy by epoch with its confidence band; test accuracy with its interval and every seed."""
    from sparsesnn import figures

    figure = figures.new_figure(12, 4.6)
    left, right = figure.subplots(1, 2)
    for k, name in enumerate(names):
        runs, color = [r for r in rows if r["variant"] == name], figures.CYCLE[k % len(figures.CYCLE)]
        curves = 100 * np.array([r["valid_by_epoch"] for r in runs], float)
        means, halves = zip(*(interval(list(column)) for column in curves.T), strict=True)
        epochs = np.arange(1, len(means) + 1)
        left.plot(epochs, means, color=color, label=name)
        if len(runs) > 1:
            half = np.array(halves, float)
            left.fill_between(epochs, np.array(means) - half, np.array(means) + half, color=color, alpha=0.12)
        mean, half_width = interval([100 * r["test_accuracy"] for r in runs])
        right.errorbar([mean], [-k], xerr=None if half_width is None else [half_width], fmt="s", color=color, capsize=4)
        right.plot([100 * r["test_accuracy"] for r in runs], [-k] * len(runs), ".", color=color, alpha=0.5)
    left.set_xlabel("epoch")
    left.set_ylabel("validation accuracy, %")
    left.set_ylim(0, 100)
    left.grid(alpha=0.3)
    left.legend(frameon=False, fontsize=7)
    right.set_yticks([-k for k in range(len(names))], names, fontsize=7)
    right.set_xlabel("test accuracy, % (square: mean and 95 % interval)")
    right.grid(alpha=0.3)
    figures.save(figure, path, title)


def _hidden_size(base: Config) -> int:
    """Neurons of a hidden layer; all must have the same size, because a capacity counts ids."""
    if base.net.populations:
        raise ConfigError("bench convergence: describe the network by net.text, not by populations")
    sizes = {int("".join(c for c in part if c.isdigit())) for part in base.net.text.split("-")[1:-1]}
    if len(sizes) != 1:
        raise ConfigError(
            f"bench convergence: net.text is {base.net.text!r}; a share of a layer's neurons has one meaning only if all "
            "hidden layers have one size: give, for example, auto-128-128-auto"
        )
    return sizes.pop()


def _slug(name: str) -> str:
    return "-".join("".join(c if c.isalnum() or c in ".-" else " " for c in name).split())


def as_settings(text: str) -> tuple[tuple[float, float], ...]:
    """`"5:0.9,2:0.5"` (percent : grad_threshold) → ((0.05, 0.9), (0.02, 0.5)); "" → ()."""
    settings = []
    for part in text.split(",") if text else []:
        room, _, threshold = part.partition(":")
        try:
            settings.append((float(room) / 100, float(threshold)))
        except ValueError:
            raise ConfigError(
                f"--settings: is {text!r}; give max activity in percent and grad_threshold, such as 5:0.9,2:0.5"
            ) from None
    return tuple(settings)


def default_base(name: str, given: Sequence[Mapping[str, Any]]) -> Config:
    """The command's default: one recurrent layer of 128 neurons, 40 epochs; minutes in all.

    A recipe with which a recurrent layer learns in few epochs: the mean potential as readout, the gradient through the
    reset, clipped gradients, an upper bound on the activity, a falling learning rate.
    """
    below: dict[str, Any] = {
        "data": {"name": name, "valid": "random:0.2"},
        "net": {"text": "auto-128r-auto", "detach_reset": False, "readout_beta": 0.99},
        "loss": {"decoding": "mean", "upper": 0.05, "strength_upper": 100.0},
        "train": {"epochs": 40, "batch": 48},
        "optim": {"lr": 5e-3, "clip_norm": 1.0, "schedule": "cosine"},
        "init": {"readout_std": 1.0},
    }
    if any(str(values.get("net", {}).get("text", "")).endswith("s") for values in given):
        below["loss"]["decoding"] = "count"  # a spiking readout
        below["init"].pop("readout_std")
    return Config.resolve(below, *given)
