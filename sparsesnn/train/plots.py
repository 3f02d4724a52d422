"""Plots of a run: learning curves, activity per population, confusion of classes, a raster of one sample; and of a sample of data.

Drawn after training, on separate figures: no global matplotlib state, no window, no cost in the training step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsesnn.datasets.labels import label_text
from sparsesnn.decoding import decode
from sparsesnn.errors import MissingDependencyError
from sparsesnn.figures import (
    BLUE,
    CYCLE,
    GRAY,
    GREEN,
    ORANGE,
    RED,
    drawing,
    import_matplotlib,
    new_figure,
    save,
    shown,
)
from sparsesnn.network import Network
from sparsesnn.output import LayerOutput, Output
from sparsesnn.spikes import SpikeBatch
from sparsesnn.task import PLAIN, Task
from sparsesnn.traces import Traces
from sparsesnn.train.metrics import Result, read_metrics
from sparsesnn.train.output_plots import MOST_POINTS, MOST_SAMPLES, draw_steps, plot_outputs, verdict
from sparsesnn.train.predictions import Confusion, class_name
from sparsesnn.train.report import optional
from sparsesnn.whole_file import whole_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sparsesnn.datasets import EventSet
    from sparsesnn.datasets.sensor import Sensor
    from sparsesnn.train.loop import Run

#: a raster with more neurons than this draws points of one pixel
_MANY_NEURONS = 256
_MOST_FRAMES = 12
#: limits of an animation: frames, the least duration of each, and the approximate width
_MOST_IMAGES, _LEAST_FRAME_MS, _ANIMATION_PIXELS = 100, 40.0, 256
#: the most maps of a population, or filters of a connection, that are drawn; and the most channels of a filter
_MOST_MAPS, _MOST_CHANNELS = 16, 4
#: a confusion matrix of more classes shows only colors; its largest size in inches, and the most names along an axis
_MOST_NUMBERS, _LARGEST, _MOST_NAMES = 40, 16.0, 80


def plot_run(run: Run, result: Result, confusion: Confusion) -> None:
    """Writes curves, activity, confusion (of values and steps: outputs) and a raster of the first test sample to the run's folder.

    All ranks call this, the first one draws. If a plot cannot be drawn, a warning is given.
    """
    test, parts = run.parts.test, run.parts
    task, some = parts.task, test.indices[: MOST_SAMPLES if parts.task.per_step else MOST_POINTS]
    spikes = test.event_set.batch(test.indices[:1])
    output = run.engine.output(spikes)  # on all ranks
    decoded = [
        decode(run.engine.output(test.event_set.batch(chosen)), run.training.decoding, parts.n_outputs).detach().cpu()
        for chosen in ([] if task.is_plain else [some])
    ]
    logits = decode(output, run.training.decoding, parts.n_outputs).detach().cpu()
    if not run.grid.is_first:
        return
    folder, title = run.folder, f"{run.config.data.name}, {run.folder.name}"
    with optional("plots"):
        try:
            import_matplotlib()
        except MissingDependencyError as error:
            run.report.note(f"plots   none: {error}")
            return
        records = read_metrics(folder)
        labels = torch.from_numpy(test.event_set.batch_labels(test.indices[:1]))
        with optional("curves.png"):
            plot_curves(records, folder / "curves.png", best_epoch=result.best_epoch, title=title)
        with optional("activity.png"):
            plot_activity(records, folder / "activity.png", title=title)
        of = f"{title}, test part, after epoch {result.best_epoch}"
        if not task.has_values:
            with optional("confusion.png"):
                plot_confusion(confusion.counts, test.class_names, folder / "confusion.png", title=of)
        for outputs in decoded:
            with optional("outputs.png"):
                plot_outputs(
                    task, outputs, torch.from_numpy(test.event_set.batch_labels(some)), folder / "outputs.png",
                    title=of, names=test.class_names, scale=run.times.dt_ms or 1.0,
                )  # fmt: skip
        with optional("filters.png, maps.png"):
            plot_maps(run.network, run.engine.model, spikes, output, folder, title=title)
        with optional("raster.png"):
            plot_raster(
                run.network, spikes, output, labels, logits, folder / "raster.png",
                title="first test sample", task=task, dt_ms=run.times.dt_ms, names=test.class_names,
            )  # fmt: skip


def plot_curves(records: Sequence[Mapping[str, Any]], path: Path, *, best_epoch: int, title: str) -> None:
    """Loss and accuracy (of values the RMSE) over epochs, training and validation, with the chosen epoch marked."""
    figure = new_figure(10, 4)
    left, right = figure.subplots(1, 2)
    epochs = [record["epoch"] for record in records]
    has_values = "rmse" in records[0] if records else False
    score = ("rmse", 1.0) if has_values else ("accuracy", 100.0)
    for axes, key, scale in ((left, "loss", 1.0), (right, *score)):
        marker = "o" if len(epochs) < 40 else None
        axes.plot(epochs, [scale * r[key] for r in records], color=BLUE, marker=marker, markersize=3, label="training")
        valid = [r[f"valid_{key}"] for r in records]
        if all(value is not None for value in valid):
            values = [scale * value for value in valid]
            axes.plot(epochs, values, color=ORANGE, marker=marker, markersize=3, label="validation")
        if best_epoch in epochs:
            axes.axvline(best_epoch, color=GRAY, linestyle=":", label=f"chosen epoch ({best_epoch})")
        axes.set_xlabel("epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
    left.set_ylabel("loss (error)" if has_values else "loss (cross-entropy)")
    right.set_ylabel("RMSE" if has_values else "accuracy, %")
    right.legend(frameon=False)
    save(figure, path, title)


def plot_activity(records: Sequence[Mapping[str, Any]], path: Path, *, title: str) -> None:
    """Activity of every spiking population over epochs, and dropped candidates if there are any."""
    dropped = any(any(record["dropped"].values()) for record in records)
    figure = new_figure(10 if dropped else 6.5, 4)
    panels = figure.subplots(1, 2 if dropped else 1, squeeze=False)[0]
    epochs = [record["epoch"] for record in records]
    names = list(records[-1]["activity"]) if records else []
    for axes, key, scale in zip(panels, ("activity", "dropped"), (100.0, 1.0), strict=False):
        for k, name in enumerate(names):
            values = [scale * record[key].get(name, 0) for record in records]
            marker = "o" if len(epochs) < 40 else None
            axes.plot(epochs, values, color=CYCLE[k % len(CYCLE)], marker=marker, markersize=3, label=shown(name))
        axes.set_xlabel("epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        if names:
            axes.legend(frameon=False, title="population")
    panels[0].set_ylabel("activity, % of neurons that fire in a step")
    if dropped:
        panels[1].set_ylabel("candidates dropped in the epoch")
    save(figure, path, title)


@torch.no_grad()
def plot_maps(network: Network, model: Any, spikes: SpikeBatch, output: Output, folder: Path, *, title: str) -> None:
    """For a network with convolutions: `filters.png`, their weights, and `maps.png`, where its neurons fired in a sample."""
    filters = {}
    for layer in model.layers.values():
        for c, weight in zip(layer.incoming, layer.weights, strict=True):
            if not c.synapses.is_matrix and weight.ndim == 4:
                array = weight.detach().cpu().numpy()
                filters[
                    f"{c.name}: {array.shape[3]} filters of {array.shape[0]} × {array.shape[1]}, a row per channel before"
                ] = [
                    [array[:, :, m, n] for n in range(min(array.shape[3], _MOST_MAPS))]
                    for m in range(min(array.shape[2], _MOST_CHANNELS))
                ]
    activity = {}
    for name, lists in {network.inputs[0]: spikes, **output.spikes}.items():
        if (shape := network.shape(name)) is None:
            continue
        dense = lists.to_dense() if isinstance(lists, SpikeBatch) else lists
        mean = dense[:, 0].float().mean(0).cpu().numpy()
        first = getattr(network.populations[name], "channels_first", False)
        maps = mean.reshape(shape[2], *shape[:2]) if first else mean.reshape(shape).transpose(2, 0, 1)
        activity[f"{name}: {100 * mean.mean():.2g} % active, up to {100 * mean.max():.2g} % at a place"] = [
            [*maps[:_MOST_MAPS]]
        ]
    for file, rows, map_color in (("filters.png", filters, "RdBu_r"), ("maps.png", activity, "magma")):
        if rows and filters:
            _tiles(rows, folder / file, map_color, title)


def _tiles(panels: Mapping[str, Sequence[Sequence[npt.NDArray[Any]]]], path: Path, colors: str, title: str) -> None:
    """A panel of images each, in rows; the largest value of a panel has the strongest color."""
    images = []
    for rows in panels.values():
        height, width = rows[0][0].shape
        image = np.full((len(rows) * (height + 1) - 1, len(rows[0]) * (width + 1) - 1), np.nan)
        for y, row in enumerate(rows):
            for x, one in enumerate(row):
                image[y * (height + 1) :, x * (width + 1) :][:height, :width] = one
        images.append(image)
    heights = [min(3.0, 0.3 + 9 * image.shape[0] / image.shape[1]) for image in images]
    figure = new_figure(9, 0.6 + sum(heights))
    panels_of = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, name, image in zip(panels_of, panels, images, strict=True):
        most = float(np.nanmax(np.abs(image))) or 1.0
        lowest = -most if colors.startswith("RdBu") else 0.0
        axes.imshow(image, cmap=colors, vmin=lowest, vmax=most, interpolation="nearest")
        axes.set_axis_off()
        axes.set_title(name, fontsize=8, loc="left")
    save(figure, path, title)


@torch.no_grad()
def plot_raster(
    network: Network,
    spikes: SpikeBatch,
    output: Output,
    labels: Tensor,
    decoded: Tensor,
    path: Path,
    *,
    title: str,
    task: Task = PLAIN,
    dt_ms: float | None = None,
    names: Sequence[str] = (),
) -> None:
    """One sample through the network: a raster per population, the traces of recorded neurons, and the readout.

    Args:
        spikes: B = 1.
        output: the network's output for them; each of its `traces` has a panel.
        labels, decoded: of a batch of this one sample, see `sparsesnn.task.Task` and `sparsesnn.engines.base.Engine.infer`; the readout panel
            compares them.
        dt_ms: width of a step, milliseconds; None: time is in steps.
        names: of the classes; empty: their numbers.
    """
    input_name, scale = network.inputs[0], dt_ms or 1.0
    rasters: dict[str, LayerOutput] = {input_name: spikes, **output.spikes}
    traced = {name: traces for name, traces in output.traces.items() if name in rasters}
    heights = [2.0] * (len(rasters) + len(traced) + 1)
    figure = new_figure(9, 1.0 + sum(heights))
    panels = list(figure.subplots(len(heights), 1, sharex=True, gridspec_kw={"height_ratios": heights}))
    for k, (name, lists) in enumerate(rasters.items()):
        axes, color = panels.pop(0), CYCLE[k % len(CYCLE)]
        n_neurons = network.populations[name].n
        steps, neurons = _points(lists)
        size = 1.5 if n_neurons > _MANY_NEURONS else 6.0
        axes.scatter(scale * steps, neurons, s=size, color=color, marker="o", linewidths=0)
        axes.set_ylim(-0.02 * n_neurons - 0.5, 1.02 * n_neurons - 0.5)
        axes.set_ylabel(f"{name}\nneuron")
        axes.set_title(f"{steps.size:,} spikes of {n_neurons:,} neurons", fontsize=8, loc="right", pad=2)
        axes.set_title(network.delays_text(name), fontsize=8, loc="left", pad=2)
        if name in traced:
            _traces(panels.pop(0), name, traced[name], scale)
    if task.per_step:
        draw_steps(panels[0], task, decoded[:, 0].cpu().numpy(), labels[:, 0].numpy(), names, scale)
        outcome = verdict(task, decoded.cpu(), labels)
    elif task.has_values:
        _values_over_time(panels[0], output, labels[0].tolist(), scale)
        outcome = verdict(task, decoded.cpu(), labels)
    else:
        label, predicted = int(labels[0]), int(decoded[0].argmax())
        classes = [shown(class_name(names, k)) for k in range(decoded.shape[-1])]
        _readout(panels[0], output, label, predicted, classes, scale)
        right = "right" if predicted == label else "wrong"
        outcome = f"class {classes[label]}, read as {classes[predicted]} ({right})"
    panels[0].set_xlabel("time step" if dt_ms is None else "time, ms")
    panels[0].set_xlim(-0.5 * scale, (spikes.n_steps - 0.5) * scale)
    save(figure, path, f"{title}: {outcome}")


def _traces(axes: Axes, name: str, traces: Traces, scale: float) -> None:
    """Potentials of the recorded neurons, one above the other, each in units of its threshold; dots where it fires."""
    assert traces.threshold is not None, "a readout has its own panel"
    v = (traces.v[:, 0] / traces.threshold).numpy()
    time = scale * np.arange(len(v))
    for k in range(v.shape[1]):
        color = CYCLE[k % len(CYCLE)]
        axes.plot(time, v[:, k], color=color, linewidth=0.9, label=f"neuron {int(traces.neurons[k])}")
        fired = v[:, k] > 1
        axes.scatter(time[fired], v[fired, k], s=8, color=color, linewidths=0)
    axes.axhline(1, color=GRAY, linestyle=":", linewidth=0.8)
    axes.set_ylabel(f"{name}\nv / threshold")
    axes.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 0.98), ncols=6, borderpad=0)
    axes.grid(alpha=0.3)


def _values_over_time(axes: Axes, output: Output, targets: Sequence[float], scale: float) -> None:
    """The potential of every value over time, and its target as a dashed line."""
    potentials = output.potentials
    assert potentials is not None, "values are decoded from potentials"
    traces = potentials[:, 0].unflatten(-1, (len(targets), -1)).mean(-1).detach().cpu().numpy()
    for k, target in enumerate(targets):
        color, suffix = CYCLE[k % len(CYCLE)], f" {k}" if len(targets) > 1 else ""
        axes.plot(scale * np.arange(len(traces)), traces[:, k], color=color, linewidth=1, label=f"output{suffix}")
        axes.axhline(target, color=color, linestyle="--", linewidth=1, label=f"target{suffix}")
    axes.set_ylabel("readout\npotential")
    axes.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 0.98), ncols=6, borderpad=0)
    axes.grid(alpha=0.3)


def _readout(axes: Axes, output: Output, label: int, predicted: int, classes: Sequence[str], scale: float) -> None:
    """Potential of every class over time, or its spikes so far."""
    potentials, spikes, n_classes = output.potentials, output.spikes.get(output.output), len(classes)
    if potentials is not None:
        traces = potentials[:, 0].unflatten(-1, (n_classes, -1)).mean(-1).cpu().numpy()
        axes.set_ylabel("readout\npotential")
    else:
        assert spikes is not None, "a network without potentials ends in spikes"
        dense = spikes.to_dense() if isinstance(spikes, SpikeBatch) else spikes
        traces = dense[:, 0].unflatten(-1, (n_classes, -1)).sum(-1).cumsum(0).cpu().numpy()
        axes.set_ylabel("readout\nspikes so far")
    time = scale * np.arange(len(traces))
    for c in range(n_classes):
        if c not in (label, predicted):
            axes.plot(time, traces[:, c], color=GRAY, linewidth=0.7, alpha=0.6)
    if predicted != label:
        axes.plot(time, traces[:, predicted], color=RED, linewidth=1.8, label=f"class {classes[predicted]} (predicted)")
    name = f"class {classes[label]} ({'correct, predicted' if predicted == label else 'correct'})"
    axes.plot(time, traces[:, label], color=GREEN, linewidth=1.8, label=name)
    axes.plot([], [], color=GRAY, linewidth=0.7, label="other classes")
    axes.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 0.98), ncols=3, borderpad=0)
    axes.grid(alpha=0.3)


def plot_confusion(counts: npt.NDArray[np.int64], names: Sequence[str], path: Path, *, title: str) -> None:
    """Samples of each class (rows) by predicted class (columns); colors are shares of the row."""
    shares = counts / np.maximum(1, counts.sum(1, keepdims=True))
    n = len(counts)
    size = min(0.34 * n, _LARGEST)
    figure = new_figure(max(4.0, size + 2), max(3.6, size + 1.4))
    axes = figure.subplots()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    if n <= _MOST_NUMBERS:
        for row, column in zip(*np.nonzero(counts), strict=True):
            color = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, f"{counts[row, column]}", ha="center", va="center", fontsize=7, color=color)
    named = range(0, n, -(-n // _MOST_NAMES))
    labels = [shown(class_name(names, k)) for k in named]
    axes.set_xticks(named, labels, rotation=90 if max(map(len, labels)) > 2 else 0, fontsize=7)
    axes.set_yticks(named, labels, fontsize=7)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("class")
    figure.colorbar(image, ax=axes, label="share of the class", shrink=0.8)
    save(figure, path, title)


def plot_sample(event_set: EventSet, sample: int, path: Path, *, title: str) -> None:
    """One sample of data as the network sees it: frames if it has an image, else a raster."""
    steps, neurons, n_spikes = _events(event_set, sample)
    title = f"{title}: {label_text(event_set, sample, shown)}, {n_spikes:,} spikes in {event_set.n_steps} steps"
    if event_set.sensor is None:
        figure = new_figure(9, 5)
        axes = figure.subplots()
        size = 1.5 if event_set.n_neurons > _MANY_NEURONS else 6.0
        axes.scatter(steps, neurons, s=size, color=BLUE, marker="o", linewidths=0)
        axes.set_xlim(-0.5, event_set.n_steps - 0.5)
        axes.set_ylim(-0.5, event_set.n_neurons - 0.5)
        axes.set_xlabel("time step")
        axes.set_ylabel("neuron")
    else:
        figure = _frames(*_images(steps, neurons, event_set.sensor, event_set.n_steps, _MOST_FRAMES))
    save(figure, path, title)


def animate_sample(event_set: EventSet, sample: int, path: Path) -> float:
    """Writes one sample of a camera as a looping GIF, in the colors of `plot_sample`; returns its slow-down factor.

    A frame lasts as long as its steps, but at least `_LEAST_FRAME_MS`; if steps have no width, exactly that.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingDependencyError("matplotlib", "plot", "drawing animations") from error
    assert event_set.sensor is not None, "the caller checks that it is a camera"
    steps, neurons, _ = _events(event_set, sample)
    images = _images(steps, neurons, event_set.sensor, event_set.n_steps, _MOST_IMAGES)[0]
    enlarged = max(1, _ANIMATION_PIXELS // max(images.shape[1:3]))
    pixels = (255 * images).round().astype(np.uint8).repeat(enlarged, axis=1).repeat(enlarged, axis=2)
    frames = [Image.fromarray(image).quantize(64, dither=Image.Dither.NONE) for image in pixels]
    life_ms = (event_set.dt_us or 0.0) / 1e3 * event_set.n_steps / max(1, len(frames))
    frame_ms = max(_LEAST_FRAME_MS, life_ms)
    with drawing(path), whole_file(path) as temporary:
        frames[0].save(
            temporary, "GIF", save_all=True, append_images=frames[1:], duration=round(frame_ms), loop=0, disposal=1
        )
    return frame_ms / life_ms if life_ms else 1.0


def _events(event_set: EventSet, sample: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any], int]:
    """Step and neuron of every event of a sample, repeated by its spike's count; and the number of spikes."""
    spikes = event_set.batch([sample])
    steps, neurons = _points(spikes)
    if event_set.sensor is None:
        return steps, neurons, steps.size
    n_events = spikes.entry_values().long().numpy()
    return steps.repeat(n_events), neurons.repeat(n_events), steps.size


def _images(
    steps: npt.NDArray[Any], neurons: npt.NDArray[Any], sensor: Sensor, n_steps: int, most: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """[frames, height, width, 3], each with the events of some steps, and the frames' first steps (and the last one's end).

    Brighter pixels are orange, darker ones blue, more events stronger.
    """
    n_frames = min(most, n_steps)
    edges = np.linspace(0, n_steps, n_frames + 1).astype(int)
    frame = np.searchsorted(edges, steps, side="right") - 1
    plane, pixel = np.divmod(neurons.astype(np.int64), sensor.width * sensor.height)
    brighter = plane % 2 if sensor.n_polarities > 1 else np.ones_like(plane)
    n_pixels = sensor.width * sensor.height
    cell = (frame * 2 + brighter) * n_pixels + pixel
    counts = np.bincount(cell, minlength=n_frames * 2 * n_pixels).reshape(n_frames, 2, n_pixels)
    strongest = float(np.quantile(counts[counts > 0], 0.95)) if counts.any() else 1.0
    strength = np.minimum(1.0, counts / strongest)
    ink = np.array([[int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)] for color in (BLUE, ORANGE)])
    images = (1.0 - np.einsum("fps,pc->fsc", strength, 1.0 - ink)).clip(0, 1)
    return images.reshape(n_frames, sensor.height, sensor.width, 3), edges


def _frames(images: npt.NDArray[np.float64], edges: npt.NDArray[np.int64]) -> Figure:
    """The images side by side, with their steps."""
    n_columns = min(4, len(images))
    n_rows = -(-len(images) // n_columns)
    figure = new_figure(2.2 * n_columns, 2.4 * n_rows + 0.4)
    panels = figure.subplots(n_rows, n_columns, squeeze=False).reshape(-1)
    for k, axes in enumerate(panels):
        axes.set_axis_off()
        if k < len(images):
            axes.imshow(images[k], interpolation="nearest")
            last = edges[k + 1] - 1
            axes.set_title(f"step {edges[k]}" + (f" to {last}" if last > edges[k] else ""), fontsize=8)
    return figure


def _points(lists: LayerOutput) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Step and neuron of every spike of sample 0."""
    if isinstance(lists, SpikeBatch):
        fired = lists.fired().numpy()
        return lists.list_index().numpy()[fired] // lists.n_samples, lists.ids.numpy()[fired]
    steps, neurons = torch.nonzero(lists[:, 0], as_tuple=True)
    return steps.cpu().numpy(), neurons.cpu().numpy()
