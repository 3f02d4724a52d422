"""The factors of training throughput: one varied at a time, for each backend.

    batch, width (neurons of the hidden layer), model (LIF, CubaLIF, recurrent LIF), precision, outputs (population code)

The results are the throughput, the share of a step's time in neuron dynamics and in synaptic products, the arithmetic of the
products per second, and the synaptic events delivered per second (a spike that reaches a neuron).
Source: Sun et al. 2022, "Intelligence Processing Units Accelerate Neuromorphic Learning", which varies the same factors.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any, TextIO

import numpy as np
import torch
from torch import Tensor

from sparsesnn import _core, datasets
from sparsesnn.bench.racing import Trainee
from sparsesnn.bench.rows import Row, Rows, draw
from sparsesnn.bench.step import machine_name
from sparsesnn.engines.dense.device import find_device
from sparsesnn.engines.module import Model
from sparsesnn.errors import ConfigError
from sparsesnn.init import init_activity
from sparsesnn.layers import LI, LIF, CubaLIF, Input
from sparsesnn.network import Network, parse_net
from sparsesnn.options import options_of
from sparsesnn.output import Output
from sparsesnn.spikes import SpikeBatch
from sparsesnn.whole_file import write_atomically
from studies import roofline

MODELS = ("lif", "cuba_lif", "recurrent")
PRECISIONS = ("float32", "bfloat16")
FACTORS = ("batch", "width", "model", "precision", "outputs")
#: the engine's phases (roofline.py) of neuron dynamics
NEURON_PHASES = ("step", "collect", "sort", "step_grad")
CONVOLUTIONS = (
    "aten::mkldnn_convolution",
    "aten::convolution_backward",
    "aten::thnn_conv2d",
    "aten::_slow_conv2d_forward",
)
#: names of matrix products in PyTorch's profiler; the first is our own
PRODUCTS = ("sparsesnn::dense_multiply", "aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm", *CONVOLUTIONS)
SYNAPSE_PHASES = ("pack", "deliver", "deliver_grad")


@dataclass(frozen=True)
class Settings:
    """The points of the sweep; each factor is varied around the base values.

    Args:
        batch, width, model, precision, outputs: values of each factor. bfloat16 means that weights are read in it on
            backend cpu, and that products are computed in it on dense (`torch.autocast`), with float32 sums of weights
            and state; outputs, for a population code, are a multiple of the classes.
        backends: cpu, dense.
        base_batch, base_width: of the points that vary another factor (LIF, float32, an output a class).
        n_steps: T.
        dataset, folder: the source of samples; None: 700 inputs, random spikes, 10 classes.
        input_activity: activity of random spikes.
        hidden_activity: target activity of the hidden layer, spikes per neuron and step.
        repeats: timed steps.
        net: a network with convolutions (`sparsesnn.map_text`), for the backend dense: then batch, model, precision and outputs vary,
            and the pixels are random spikes. None: one hidden layer.
        n_threads: worker threads; 0: all cores.
        device: for the backend dense, see `sparsesnn.engines.dense.device`.
    """

    batch: tuple[int, ...] = (8, 16, 32, 64, 128)
    width: tuple[int, ...] = (128, 256, 512, 1024, 2048)
    model: tuple[str, ...] = MODELS
    precision: tuple[str, ...] = PRECISIONS
    outputs: tuple[int, ...] = (10, 50, 100, 500)
    backends: tuple[str, ...] = ("cpu", "dense")
    base_batch: int = 48
    base_width: int = 512
    n_steps: int = 100
    dataset: str | None = None
    folder: str | None = None
    input_activity: float = 0.015
    hidden_activity: float = 0.02
    repeats: int = 5
    n_threads: int = 0
    device: str = "cpu"
    net: str | None = None

    def __post_init__(self) -> None:
        for name, allowed in (("model", MODELS), ("precision", PRECISIONS), ("backends", ("cpu", "dense"))):
            if unknown := sorted(set(getattr(self, name)) - set(allowed)):
                raise ConfigError(f"bench sweep: {name} is {unknown[0]!r}; allowed: {', '.join(allowed)}")
        alone = self.backends == ("dense",) and "recurrent" not in self.model and self.dataset is None
        if self.net is not None and (not alone or parse_net(self.net).is_matrices):
            raise ConfigError(
                "bench sweep: --net is for convolutions, which only the backend dense has, here without recurrent layers and "
                "data sets of events; give --backends dense --models lif,cuba_lif, and no data set"
            )
        numbers = (
            *self.batch,
            *self.width,
            *self.outputs,
            self.base_batch,
            self.base_width,
            self.n_steps,
            self.repeats,
        )
        if min(numbers) < 1:
            raise ConfigError("bench sweep: batch, width, outputs, steps and repeats must be at least 1")

    def points(self) -> list[Row]:
        """One row a point: the factor that is varied, its value, the backend."""
        return [
            {"factor": factor, "value": value, "backend": backend}
            for factor in FACTORS
            if self.net is None or factor != "width"
            for value in getattr(self, factor)
            for backend in self.backends
        ]


def bench_sweep(settings: Settings, folder: Path, stream: TextIO | None = None) -> list[Row]:
    """Measures the points that the folder lacks; writes sweep.json, sweep.csv, sweep.png and README.md."""
    find_device(settings.device)
    plain: dict[str, Any] = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(settings).items()}
    plain.pop("folder")
    rows = Rows(folder, "sweep", {**plain, "machine": machine_name(), "torch": torch.__version__}, stream)
    results = rows.run(settings.points(), lambda point: _measure(settings, point))
    draw(plot, results, folder / "sweep.png")
    write_atomically(folder / "README.md", COLUMNS.encode())
    return results


COLUMNS = """\
# A sweep of training throughput

sweep.csv and sweep.json hold a row a point; sweep.png draws throughput and shares of time. One factor is varied at a
time, around one hidden layer of LIF neurons in float32.

| column | meaning |
|---|---|
| factor, value | the varied factor and its value: batch (samples a step), width (hidden neurons), model (lif, cuba_lif: with a synaptic current, recurrent), precision, outputs (readout neurons; more than classes: a population code) |
| backend | cpu: event-sparse engine; dense: every neuron, PyTorch |
| samples_per_s, step_ms | training: forward, cross-entropy, backward, Adam; medians |
| neuron_share, synapse_share | share of the step's time in neuron dynamics (update, threshold, lists, their gradient), and in products with weights, both directions. The rest is loss, Adam, Python and memory |
| tflop_per_s | operations of the products, 2 operations a synapse, 10^12/s: the engine does it for spikes and listed neurons, dense for all |
| events_per_s | synaptic events delivered: a spike that reaches one neuron, forward; for convolutions as if spikes were spread evenly |
| input_activity, hidden_activity | spikes per neuron and step |
"""


def _measure(settings: Settings, point: Row) -> Row:
    choice: dict[str, Any] = {
        "batch": settings.base_batch,
        "width": settings.base_width,
        "model": "lif",
        "precision": "float32",
        "outputs": None,
        point["factor"]: point["value"],
    }
    network = _network(settings.net, choice) if settings.net is not None else None
    spikes, labels, n_classes = _batch(settings, choice["batch"], network)
    n_out = choice["outputs"] or n_classes
    if n_out < n_classes:
        raise ConfigError(f"bench sweep: {n_out} outputs for {n_classes} classes; give at least an output a class")
    neuron = CubaLIF if choice["model"] == "cuba_lif" else LIF
    hidden = neuron(choice["width"], recurrent=choice["model"] == "recurrent")
    network = network or Network.chain(Input(spikes.n_neurons), hidden, LI(n_out))
    model = _model(network, point["backend"], choice["precision"], spikes, settings.hidden_activity)
    on_dense = point["backend"] == "dense"
    trainee = Trainee(
        model,
        settings.n_threads,
        device=find_device(settings.device if on_dense else "cpu"),
        precision=choice["precision"] if on_dense else "float32",
    )
    output = trainee.step(spikes, labels)[0]
    events, flops = _work(network, spikes, output, point["backend"])
    activity = mean(output.activity().values())
    del output
    trainee.step(spikes, labels)
    seconds, shares = [], []
    for _ in range(settings.repeats):
        _core.phase_seconds(reset=True)
        seconds.append(trainee.step(spikes, labels)[2])
        shares.append(_core.phase_seconds(reset=True))
    took = median(seconds)
    neuron_s, synapse_s = (
        _engine_seconds(model, spikes, {name: median(s[name] for s in shares) for name in shares[0]})
        if point["backend"] == "cpu"
        else [took * share for share in _dense_shares(trainee, spikes, labels)]
    )
    return {
        "samples_per_s": spikes.n_samples / took,
        "step_ms": 1e3 * took,
        "neuron_share": min(1.0, neuron_s / took),
        "synapse_share": min(1.0, synapse_s / took),
        "tflop_per_s": flops / took / 1e12,
        "events_per_s": events / took,
        "input_activity": spikes.activity(),
        "hidden_activity": activity,
        "net": settings.net or f"{spikes.n_neurons}-{choice['width']}-{n_out}",
        "n_steps": spikes.n_steps,
        "n_samples": spikes.n_samples,
        "spikes": settings.dataset or "random",
    }


def _network(net: str, choice: dict[str, Any]) -> Network:
    """A network with convolutions, with the outputs and the neuron model of a point."""
    outputs = choice["outputs"]
    network = parse_net(net if outputs is None else re.sub(r"\d+(?=\D?$)", str(outputs), net))
    if choice["model"] != "cuba_lif":
        return network
    known = ("n", *options_of(LIF))
    changed = {
        name: CubaLIF(**{k: getattr(p, k) for k in known}) if isinstance(p, LIF) else p
        for name, p in network.populations.items()
    }
    return Network(changed, network.connections)


def _batch(settings: Settings, n_samples: int, network: Network | None) -> tuple[SpikeBatch, Tensor, int]:
    if settings.dataset is None:
        generator = torch.Generator().manual_seed(0)
        n = 700 if network is None else network.populations["input"].n
        x = torch.rand(settings.n_steps, n_samples, n, generator=generator) < settings.input_activity
        return SpikeBatch.from_dense(x.float()), torch.randint(0, 10, (n_samples,), generator=generator), 10
    options: dict[str, Any] = {"n_steps": settings.n_steps} if "n_steps" in datasets.defaults(settings.dataset) else {}
    events = datasets.load(settings.dataset, data_dir=settings.folder, **options)
    chosen = np.arange(n_samples) % len(events)  # a small set is repeated
    return events.batch(chosen), torch.as_tensor(np.asarray(events.labels)[chosen]).long(), events.n_classes


def _model(network: Network, backend: str, precision: str, spikes: SpikeBatch, activity: float) -> Model:
    scaled = Model(network, seed=0, backend="cpu" if network.is_matrices else "dense")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the reported activity may differ slightly from the target
        init_activity(scaled, [spikes], activity)
    model = Model(network, backend=backend, weight_dtype=precision if backend == "cpu" else "float32")
    model.load_state_dict(scaled.state_dict())
    return model


def _work(network: Network, spikes: SpikeBatch, output: Output, backend: str) -> tuple[float, float]:
    """Synaptic events delivered in a forward pass, and operations of all products of a step."""
    rows = spikes.n_steps * spikes.n_samples
    sent = {"input": float(spikes.n_spikes.sum())}
    listed = {}
    for name, activity in output.activity().items():
        sent[name] = activity * rows * network.populations[name].n
        lists = output.spikes[name] if backend == "cpu" else None
        listed[name] = float(lists.ids.numel()) if isinstance(lists, SpikeBatch) else sent[name]
    events = flops = 0.0
    for c in network.connections:
        n_pre, n_post = network.populations[c.pre].n, network.populations[c.post].n
        n_products = c.synapses.n_products(n_pre, n_post)
        events += sent[c.pre] * n_products / n_pre
        if backend == "cpu":  # forward and weight gradient for spikes, input gradient for listed neurons
            flops += 2 * n_products / n_pre * (2 * sent[c.pre] + listed.get(c.pre, 0.0))
        else:
            flops += 2.0 * rows * n_products * (3 if c.pre in listed else 2)
    return events, flops


def _engine_seconds(model: Model, spikes: SpikeBatch, clocks: dict[str, float]) -> tuple[float, float]:
    phases = roofline.engine_phases(clocks, roofline.step_seconds(model, spikes))
    return sum(phases[name] for name in NEURON_PHASES), sum(phases[name] for name in SYNAPSE_PHASES)


def _dense_shares(trainee: Trainee, spikes: SpikeBatch, labels: Tensor) -> tuple[float, float]:
    """The shares of one step under PyTorch's profiler: forward and backward without matrix products, and the products."""
    on_cuda = trainee.device.type == "cuda"
    # Kineto, which times the device, prints to the error stream; the older profiler suffices for a CPU
    made = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) if on_cuda else None
    with made or torch.autograd.profiler.profile(use_kineto=False) as profiler:
        took = trainee.step(spikes, labels)[2]
    products = update = 0.0
    for event in profiler.key_averages():
        name = event.key.lower()
        seconds = 1e-6 * (event.self_device_time_total if on_cuda else event.self_cpu_time_total)
        if name in PRODUCTS or (on_cuda and any(word in name for word in ("gemm", "cutlass", "nvjet"))):
            products += seconds
        elif "adam" in name:
            update += seconds
    return max(0.0, took - products - update) / took, min(1.0, products / took)


def plot(rows: Sequence[Row], path: Path) -> None:
    """A column a factor: throughput above, shares of a step's time below."""
    from sparsesnn import figures

    factors = list(dict.fromkeys(row["factor"] for row in rows))
    backends = list(dict.fromkeys(row["backend"] for row in rows))
    figure = figures.new_figure(3.6 * len(factors), 6.4)
    panels = figure.subplots(2, len(factors), squeeze=False)
    for column, factor in enumerate(factors):
        top, bottom = panels[0][column], panels[1][column]
        values = list(dict.fromkeys(row["value"] for row in rows if row["factor"] == factor))
        for k, backend in enumerate(backends):
            line = [r for r in rows if (r["factor"], r["backend"]) == (factor, backend)]
            at = [values.index(r["value"]) for r in line]
            top.plot(
                at, [r["samples_per_s"] for r in line], "os"[k % 2] + "-", color=figures.CYCLE[k % 2], label=backend
            )
            x = np.array(at) + 0.38 * (k - (len(backends) - 1) / 2)
            neuron = np.array([100 * r["neuron_share"] for r in line])
            synapse = np.array([100 * r["synapse_share"] for r in line])
            hatch = "" if k == 0 else "//"
            bottom.bar(x, synapse, 0.35, color=figures.BLUE, hatch=hatch, label=f"{backend}: products")
            bottom.bar(x, neuron, 0.35, bottom=synapse, color=figures.ORANGE, hatch=hatch, label=f"{backend}: neurons")
        top.set_yscale("log")
        top.set_title(factor, fontsize=10)
        bottom.set_ylim(0, 100)
        for axes in (top, bottom):
            axes.set_xticks(range(len(values)), [str(value) for value in values], fontsize=8)
            axes.grid(alpha=0.3, color=figures.GRAY)
    panels[0][0].set_ylabel("training samples/s")
    panels[1][0].set_ylabel("share of a step's time, %")
    panels[0][0].legend(frameon=False, fontsize=8)
    panels[1][-1].legend(frameon=False, fontsize=7)
    figures.save(figure, path, "training throughput, one factor varied at a time")


def with_values(settings: Settings, **changes: Any) -> Settings:
    """The settings with those changes that are not None."""
    return replace(settings, **{key: value for key, value in changes.items() if value is not None})
