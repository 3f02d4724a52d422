"""Fixed against natural activity: the bounds on the throughput of an event-sparse network, with the dense baseline.

A list holds at most K = max_activity·N ids. With *fixed* activity each list is forced full: the lower bound of
throughput at that capacity. With *natural* activity the weights decide the spikes, here scaled to a low activity, and
the capacity seldom matters: the upper bound. The dense baseline computes every neuron and does not depend on activity.
All networks have 2,944 hidden neurons, in 2 to 5 layers of about equal size.

Source: Finkbeiner et al., AAAI 2024, and its poster; there T could be smaller than the depth, so that the last layers
never received a spike. Here T is at least depth + 1, and throughput is listed with the activity of every layer.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, TextIO

import numpy as np
import torch
from torch import Tensor

from sparsesnn import datasets
from sparsesnn.bench.racing import Trainee, race
from sparsesnn.bench.rows import Row, Rows, draw
from sparsesnn.bench.step import machine_name
from sparsesnn.engines import engine_class, options_for, set_threads
from sparsesnn.engines.dense.device import check_precision, find_device
from sparsesnn.engines.module import Model
from sparsesnn.errors import ConfigError
from sparsesnn.init import init_activity
from sparsesnn.layers import LI, LIF, Input, fires
from sparsesnn.network import Network
from sparsesnn.spikes import SpikeBatch
from sparsesnn.whole_file import write_atomically
from sparsesnn.wording import count

N_HIDDEN = 2944


@dataclass(frozen=True)
class Shape:
    """Input in the form of a data set: its neurons and classes, and the activity of random input that can replace it."""

    n_neurons: int
    n_classes: int
    input_activity: float


SHAPES = {"shd": Shape(700, 20, 0.013), "nmnist": Shape(2312, 10, 0.014), "dvsgesture": Shape(2048, 11, 0.03)}


@dataclass(frozen=True)
class Settings:
    """Range of the sweep.

    Args:
        shapes: names of `SHAPES`.
        data: folders of real data sets by shape; other shapes use random spikes.
        layers: numbers of hidden layers, which share `n_hidden` neurons.
        max_activity: capacities as shares of a layer's neurons, in (0, 1].
        natural_activity: target of the weights' scaling in natural networks, spikes per neuron and step.
        n_steps, n_samples: T and B.
        grad_threshold: secondary gradient threshold.
        repeats: timed steps.
        n_threads: 0: all cores.
        dense: measure the dense baseline too.
        device, precision: of the dense baseline, see `sparsesnn.engines.dense.device`.
        backend: of the event-sparse networks: "cpu", "ipu" or "ipu-model".
        target: the IPUs, for the last two.
    """

    shapes: tuple[str, ...] = tuple(SHAPES)
    data: tuple[tuple[str, str], ...] = ()
    layers: tuple[int, ...] = (2, 3, 4, 5)
    max_activity: tuple[float, ...] = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
    natural_activity: float = 0.01
    n_hidden: int = N_HIDDEN
    n_steps: int = 100
    n_samples: int = 48
    grad_threshold: float = 0.9
    repeats: int = 3
    n_threads: int = 0
    dense: bool = True
    device: str = "cpu"
    precision: str = "float32"
    backend: str = "cpu"
    target: str = "ipu-mk2"

    def __post_init__(self) -> None:
        for name in (*self.shapes, *dict(self.data)):
            if name not in SHAPES:
                raise ConfigError(f"bench activity: shape is {name!r}; allowed: {', '.join(SHAPES)}")
        if self.n_steps < max(self.layers) + 1:
            raise ConfigError(
                f"bench activity: {self.n_steps} steps for {max(self.layers)} hidden layers, too few for a spike to "
                f"pass all of them: give at least {max(self.layers) + 1} steps"
            )
        if not all(0 < a <= 1 for a in self.max_activity) or not 0 < self.natural_activity < 1:
            raise ConfigError(
                "bench activity: activities are shares of a layer's neurons; give numbers above 0, up to 1"
            )
        if min(self.n_samples, self.repeats, *self.layers) < 1 or self.n_hidden < max(self.layers):
            raise ConfigError(
                "bench activity: batch, repeats and layers must be at least 1, with a neuron in each layer"
            )
        if self.on_ipus:
            from sparsesnn.bench.ipu_step import check_backend

            check_backend(self.backend, self.target)

    @property
    def on_ipus(self) -> bool:
        """Whether the event-sparse networks run on IPUs, in a separate program."""
        return engine_class(self.backend).runner is None


def layer_sizes(n_hidden: int, n_layers: int) -> list[int]:
    """`n_hidden` neurons in layers of about equal size, the larger first."""
    return [n_hidden // n_layers + (k < n_hidden % n_layers) for k in range(n_layers)]


def network(settings: Settings, shape: Shape, n_layers: int, max_activity: float, activity: str) -> Network:
    """The described network; `activity` is "natural", "fixed", or "dense": without limited lists."""
    layers = []
    for n in layer_sizes(settings.n_hidden, n_layers):
        lists: dict[str, Any] = {"capacity": max(1, round(max_activity * n)), "activity": activity}
        layers.append(LIF(n, grad_threshold=settings.grad_threshold, **({} if activity == "dense" else lists)))
    return Network.chain(Input(shape.n_neurons), *layers, LI(shape.n_classes))


def bench_activity(settings: Settings, folder: Path, stream: TextIO | None = None) -> list[Row]:
    """Measures all points missing in the folder; writes activity.json, activity.csv, activity.png and README.md.

    Columns: shape, n_layers, max_activity (null for the dense baseline), kind (natural, fixed, dense), samples_per_s,
    acceleration (over dense), step_ms, input_activity, activity (per layer), n_spikes_dropped, net, spikes (real, random);
    on IPUs, also how_timed, cycles, predicted_cycles, predicted_step_ms.
    """
    find_device(settings.device)
    check_precision(settings.precision, settings.device)
    plain: dict[str, Any] = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(settings).items()}
    plain["data"] = dict(settings.data)
    if not settings.on_ipus:  # as rows were saved before there were others
        del plain["backend"], plain["target"]
    rows = Rows(folder, "activity", {**plain, "machine": machine_name(), "torch": torch.__version__}, stream)
    data: dict[str, tuple[SpikeBatch, Tensor]] = {}

    def measure(point: Row) -> Row:
        name = point["shape"]
        if name not in data:
            data.clear()  # one shape at a time in memory
            data[name] = _batch(settings, name)
        row = _measure(settings, point, *data[name])
        base = [r for r in rows.rows if r["kind"] == "dense" and all(r[k] == point[k] for k in ("shape", "n_layers"))]
        speed = row["samples_per_s"]
        row["acceleration"] = 1.0 if point["kind"] == "dense" else speed / base[0]["samples_per_s"] if base else None
        if settings.on_ipus and point["kind"] == "dense":
            row |= {
                "how_timed": "seconds of this host",
                "cycles": None,
                "predicted_cycles": None,
                "predicted_step_ms": None,
            }
        return row

    points: list[Row] = []
    for shape in settings.shapes:
        for n_layers in settings.layers:
            if settings.dense:
                points.append({"shape": shape, "n_layers": n_layers, "kind": "dense", "max_activity": None})
            points += [
                {"shape": shape, "n_layers": n_layers, "kind": kind, "max_activity": a}
                for a in settings.max_activity
                for kind in ("natural", "fixed")
            ]
    measured = rows.run(points, measure)
    draw(plot, measured, folder / "activity.png")
    write_atomically(folder / "README.md", COLUMNS.encode())
    return measured


COLUMNS = """\
# Fixed against natural activity

activity.csv and activity.json have one row per measurement of a whole training step; activity.png plots the acceleration over
the maximum activity. The number of hidden neurons is constant; the number of their layers varies. Spike lists hold at most a
share of their layer, the maximum activity. Natural: the weights decide the spikes and so the lengths of lists: the upper bound
of throughput. Fixed: every list is filled up to its capacity: the lower bound.

| column | meaning |
|---|---|
| shape | data set whose input the network reads: shd (700 channels), nmnist, dvsgesture (pixels × 2) |
| n_layers | hidden layers |
| kind | natural, fixed; dense: the same network with every neuron computed, the baseline of its shape and number of layers, measured once, before the others |
| max_activity | capacity of a list, as a share of its layer's neurons; empty for dense |
| samples_per_s, step_ms | training: forward, cross-entropy, backward, Adam; median |
| acceleration | samples_per_s over that of the baseline |
| input_activity, activity | spikes per neuron and step of the input, and of each hidden layer; as measured, not as requested |
| n_spikes_dropped | spikes and near-spikes that did not fit into their list, in one step over the whole batch |
| net | sizes of the layers |
| spikes | random, or real: from a data set |
| how_timed | on IPUs only: seconds of the device, or cycles of the emulated machine, never measured on an IPU; step_ms is derived from these |
| cycles, predicted_cycles | on IPUs only: cycles of a training step as counted by the emulated machine (empty on hardware), and as predicted by the plan |
| predicted_step_ms | on IPUs only: the plan's prediction of step_ms, for the requested activity |

If other programs disturb the measurement of a baseline, all accelerations of its line move.
"""


def _batch(settings: Settings, name: str) -> tuple[SpikeBatch, Tensor]:
    """One batch of a shape: from the data set if its folder is given, else random."""
    shape = SHAPES[name]
    generator = torch.Generator().manual_seed(0)
    folder = dict(settings.data).get(name)
    if folder is None:
        spikes = (torch.rand(settings.n_steps, settings.n_samples, shape.n_neurons, generator=generator)).lt(
            shape.input_activity
        )
        labels = torch.randint(0, shape.n_classes, (settings.n_samples,), generator=generator)
        return SpikeBatch.from_dense(spikes.float()), labels
    window_ms = {"shd": 1000.0, "nmnist": 315.0, "dvsgesture": 1450.0}[name]
    options: dict[str, Any] = {"dt_ms": window_ms / settings.n_steps, "n_steps": settings.n_steps}
    events = datasets.load(name, data_dir=folder, **options)
    chosen = np.arange(settings.n_samples) % len(events)  # a small set is repeated
    return events.batch(chosen), torch.as_tensor(np.asarray(events.labels)[chosen]).long()


def _measure(settings: Settings, point: Row, spikes: SpikeBatch, labels: Tensor) -> Row:
    kind, n_layers = point["kind"], point["n_layers"]
    shape = replace(SHAPES[point["shape"]], n_neurons=spikes.n_neurons)
    described = network(settings, shape, n_layers, point["max_activity"] or 1.0, kind)
    free = network(settings, shape, n_layers, 1.0, "dense")
    scaled = Model(free, seed=0)
    target = min(settings.natural_activity, point["max_activity"] or 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # an activity slightly off the target is reported as measured
        init_activity(scaled, [spikes], target)
    if kind != "dense" and settings.on_ipus:
        return _measure_ipu(settings, point, described, scaled, spikes, labels)
    backend = "dense" if kind == "dense" else settings.backend
    model = Model(described, backend=backend, seed=0)
    model.load_state_dict(scaled.state_dict())
    del scaled
    options = {"device": "cpu", "precision": "float32"}
    options |= options_for(backend, {"device": settings.device, "precision": settings.precision})
    device = find_device(options["device"])
    trainee = Trainee(model, settings.n_threads, device=device, precision=options["precision"])
    output, _, _ = trainee.step(spikes, labels)
    activity, dropped = output.activity(), sum(output.dropped().values())
    del output
    seconds = median(race({kind: trainee}, spikes, labels, repeats=settings.repeats)[kind])
    return _row(settings, point, described, spikes, seconds, list(activity.values()), dropped)


def _measure_ipu(
    settings: Settings, point: Row, described: Network, scaled: Model, spikes: SpikeBatch, labels: Tensor
) -> Row:
    """The row of one network on IPUs, with the weights of `scaled`."""
    from sparsesnn.bench.ipu_step import check_backend, time_steps
    from sparsesnn.ipu.instance import find_instance

    target = check_backend(settings.backend, settings.target)
    instance = find_instance(settings.backend, target)
    if instance.is_part:
        raise ConfigError(
            f"bench activity: {count(instance.total // instance.own, 'instance')} of PopRun would all measure the same; "
            "give poprun --num-instances=1 (sparsesnn launch --ranks 1)"
        )
    set_threads(settings.backend, settings.n_threads)
    model = Model(described, seed=0)
    model.load_state_dict(scaled.state_dict())
    asked = settings.natural_activity if point["kind"] == "natural" else point["max_activity"]
    hidden = [name for name, p in described.populations.items() if fires(p)]
    wanted = {described.inputs[0]: spikes.activity(), **dict.fromkeys(hidden, min(asked, point["max_activity"]))}
    step = time_steps(
        described, model, spikes, labels, backend=settings.backend, activity=wanted, repeats=settings.repeats,
        target=target, instance=instance,
    )  # fmt: skip
    dropped = sum(step.dropped.values())
    row = _row(settings, point, described, spikes, step.step_s, [step.activity[name] for name in hidden], dropped)
    return row | step.columns()


def _row(
    settings: Settings,
    point: Row,
    described: Network,
    spikes: SpikeBatch,
    seconds: float,
    activity: list[float],
    dropped: int,
) -> Row:
    sizes = [p.n for p in described.populations.values() if fires(p)]
    n_classes = described.populations[described.output].n
    return {
        "samples_per_s": spikes.n_samples / seconds,
        "acceleration": None,
        "step_ms": 1e3 * seconds,
        "input_activity": spikes.activity(),
        "activity": activity,
        "n_spikes_dropped": dropped,
        "net": "-".join(map(str, [spikes.n_neurons, *sizes, n_classes])),
        "spikes": "real" if point["shape"] in dict(settings.data) else "random",
    }


def plot(rows: Sequence[Row], path: Path) -> None:
    """One panel per shape: acceleration over the dense baseline against max activity, both bounds, one color per depth."""
    from sparsesnn import figures

    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    figure = figures.new_figure(4.6 * len(shapes), 4)
    for axes, shape in zip(figure.subplots(1, len(shapes), squeeze=False, sharey=True)[0], shapes, strict=True):
        for k, n_layers in enumerate(dict.fromkeys(row["n_layers"] for row in rows)):
            for kind, style in (("natural", "o-"), ("fixed", "s--")):
                line = [r for r in rows if (r["shape"], r["n_layers"], r["kind"]) == (shape, n_layers, kind)]
                key = "acceleration" if all(r["acceleration"] for r in line) else "samples_per_s"
                axes.plot(
                    [100 * r["max_activity"] for r in line],
                    [r[key] for r in line],
                    style,
                    color=figures.CYCLE[k % len(figures.CYCLE)],
                    markersize=4,
                    label=f"{n_layers} layers, {kind}",
                )
        if any(row["kind"] == "dense" for row in rows):
            axes.axhline(1, color="black", linewidth=0.8)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("max activity, % of a layer's neurons")
        axes.set_title(shape, fontsize=10)
        axes.grid(alpha=0.3, which="both")
    compared = any(row["kind"] == "dense" for row in rows)
    figure.axes[0].set_ylabel("times the throughput of the dense baseline" if compared else "samples/s")
    figure.axes[-1].legend(frameon=False, fontsize=7)
    figures.save(figure, path, "natural activity (upper bound) and lists forced full (lower bound)")
