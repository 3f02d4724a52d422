"""Plots of outputs next to labels: over time if each step has its own, else values predicted against targets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sparsesnn.figures import CYCLE, GRAY, GREEN, RED, new_figure, save, shown
from sparsesnn.task import NO_LABEL, Task
from sparsesnn.train.predictions import class_name
from sparsesnn.train.report import percent
from sparsesnn.value_errors import ValueErrors, sums_of_samples

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor

#: samples of `plot_outputs`, and the most points of a scatter plot
MOST_SAMPLES, MOST_POINTS = 4, 1000


def plot_outputs(
    task: Task,
    outputs: Tensor,
    labels: Tensor,
    path: Path,
    *,
    title: str,
    names: Sequence[str] = (),
    scale: float = 1.0,
) -> None:
    """Writes a panel for each sample if steps have labels or values, else a scatter plot for each value.

    Args:
        outputs, labels: of a batch, see `sparsesnn.engines.base.Engine.infer` and `sparsesnn.task.Task`.
        names: of the classes; empty: their numbers.
        scale: milliseconds of a step; 1: time is in steps.
    """
    if not task.per_step:
        _scatter(outputs.numpy(), labels.numpy(), path, title)
        return
    n = min(MOST_SAMPLES, outputs.shape[1])
    figure = new_figure(9, 1.0 + 1.8 * n)
    panels = figure.subplots(n, 1, sharex=True, squeeze=False)[:, 0]
    for k, axes in enumerate(panels):
        draw_steps(axes, task, outputs[:, k].numpy(), labels[:, k].numpy(), names, scale, legend=k == 0)
        axes.set_title(
            f"sample {k}: {verdict(task, outputs[:, k : k + 1], labels[:, k : k + 1])}", fontsize=8, loc="right", pad=2
        )
    panels[-1].set_xlabel("time step" if scale == 1 else "time, ms")
    save(figure, path, title)


def verdict(task: Task, outputs: Tensor, labels: Tensor) -> str:
    """Such as `93.10 % of labeled steps right` or `RMSE 0.0312`, of the samples of a batch."""
    if task.has_values:
        return f"RMSE {ValueErrors.of(sums_of_samples(outputs, labels)).rmse:.3g}"
    right = int((outputs.argmax(-1) == labels).sum())
    n = task.n_labels(labels)
    return f"{percent(right / n)} of {n:,} labeled steps right" if n else "no labels"


def draw_steps(
    axes: Axes,
    task: Task,
    outputs: npt.NDArray[Any],
    labels: npt.NDArray[Any],
    names: Sequence[str] = (),
    scale: float = 1.0,
    *,
    legend: bool = True,
) -> None:
    """One sample over time: values as lines, targets dashed; or the class of each step and the predicted one, wrong steps in red.

    Args:
        outputs, labels: [T, K] and [T, K], or [T, C] and [T].
    """
    time = scale * np.arange(len(outputs))
    if task.has_values:
        for k in range(outputs.shape[1]):
            color, suffix = CYCLE[k % len(CYCLE)], f" {k}" if outputs.shape[1] > 1 else ""
            axes.plot(time, labels[:, k], color=color, linewidth=1, linestyle="--", alpha=0.7, label=f"target{suffix}")
            axes.plot(time, outputs[:, k], color=color, linewidth=1, label=f"output{suffix}")
        axes.set_ylabel("value")
    else:
        predicted = outputs.argmax(1)
        labeled = labels != NO_LABEL
        wrong = labeled & (predicted != labels)
        axes.step(
            time, np.where(labeled, labels, np.nan), where="mid", color=GREEN, linewidth=3, alpha=0.5, label="label"
        )
        axes.step(time, predicted, where="mid", color=GRAY, linewidth=1, label="predicted")
        axes.scatter(time[wrong], predicted[wrong], s=4, color=RED, linewidths=0, zorder=3, label="wrong")
        classes = range(outputs.shape[1])
        axes.set_yticks(classes, [shown(class_name(names, k)) for k in classes], fontsize=7)
        axes.set_ylabel("class")
    if legend:
        axes.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 0.98), ncols=6, borderpad=0)
    axes.grid(alpha=0.3)


def _scatter(outputs: npt.NDArray[Any], targets: npt.NDArray[Any], path: Path, title: str) -> None:
    n = min(outputs.shape[1], len(CYCLE))
    figure = new_figure(min(3.6 * n + 0.6, 12), 4)
    for k, axes in enumerate(figure.subplots(1, n, squeeze=False)[0]):
        x, y = targets[:MOST_POINTS, k], outputs[:MOST_POINTS, k]
        ends = [float(min(x.min(), y.min())), float(max(x.max(), y.max()))]
        axes.plot(ends, ends, color=GRAY, linewidth=0.8)
        axes.scatter(x, y, s=6, color=CYCLE[k], linewidths=0)
        axes.set_xlabel("target" if n == 1 else f"target {k}")
        axes.set_ylabel("output")
        axes.grid(alpha=0.3)
    save(figure, path, title)
