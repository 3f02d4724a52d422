"""One epoch of loading: our stream next to those of Tonic and PyTorch, and how long training waits for it.

The contestants, each over the whole training part, shuffled, in batches, with frames or lists of the same time steps:

    tonic         Tonic's data set with `ToFrame`, and PyTorch's `DataLoader` with worker processes: as in tutorials
    disk cache    the same frames from Tonic's `DiskCachedDataset`, filled before, with the same `DataLoader`
    stream        our cache and stream, spike lists: the engine's input
    frames        our stream, converted to dense frames like the others: a dense network's input

The rounds are interleaved, so that a busy machine slows down all equally. All data are read once before timing.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from sparsesnn import _core, datasets
from sparsesnn.bench.step import machine_name
from sparsesnn.datasets import Augment, EventSet
from sparsesnn.engines.module import Model
from sparsesnn.errors import ConfigError, DataError, MissingDependencyError
from sparsesnn.host.stream import Stream
from sparsesnn.init import init_activity
from sparsesnn.layers import fires, is_readout
from sparsesnn.loss import cross_entropy
from sparsesnn.network import Network

#: our name → Tonic's class
TONIC_CLASSES = {"nmnist": "NMNIST", "shd": "SHD", "ssc": "SSC"}

#: samples whose spikes are compared with Tonic's frames
_N_COMPARED = 100


@dataclass(frozen=True)
class LoadingResult:
    """The results of `bench_loading`.

    Args:
        epoch_s: per way of loading, seconds of every epoch.
        prepare_s: seconds to fill a cache, once: of "disk cache" and of "stream" (0 if it was there).
        faster: how many times faster an epoch of "stream" is than one of the others, medians.
        training: per augmentation: samples per second, `wait_share` (share of the time that the engine waited for
            batches), `augment_share` (processor time to make an epoch's batches with the augmentation less that
            without, over the processor time of all threads that train the epoch: both are the same on a busy machine).
            Empty if nothing was trained.
        data, n_samples, n_steps, n_neurons, n_spikes: the loaded data; spikes are those of all samples.
        batch, n_workers, rounds, net, threads, isa, machine: the conditions.
    """

    epoch_s: dict[str, list[float]]
    prepare_s: dict[str, float]
    faster: dict[str, float]
    training: dict[str, dict[str, float]]
    data: str
    n_samples: int
    n_steps: int
    n_neurons: int
    n_spikes: int
    batch: int
    n_workers: int
    rounds: int
    net: str
    threads: int
    isa: str
    machine: str

    def table(self) -> str:
        """The result as a text table."""
        lines = [
            f"{self.data}: {self.n_samples:,} samples, {self.n_steps} steps, {self.n_neurons:,} neurons, "
            f"{self.n_spikes / max(1, self.n_samples):,.0f} spikes a sample; batch {self.batch}, "
            f"{self.n_workers} workers, {self.machine}",
            f"{'':12} {'ms an epoch':>12} {'samples/s':>12} {'stream is faster':>18} {'filled once, s':>16}",
        ]
        for name, seconds in self.epoch_s.items():
            faster = f"{self.faster[name]:,.1f} x" if name in self.faster else ""
            filled = f"{self.prepare_s[name]:,.1f}" if name in self.prepare_s else ""
            s = median(seconds)
            lines.append(f"{name:12} {1e3 * s:12,.1f} {self.n_samples / s:12,.0f} {faster:>18} {filled:>16}")
        for name, found in self.training.items():
            lines.append(
                f"training {self.net}, {name}: {found['samples_per_s']:,.0f} samples/s, "
                f"waits {100 * found['wait_share']:.2f} % of the time"
                + (f", augmentation costs {100 * found['augment_share']:.1f} %" if "augment_share" in found else "")
            )
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def bench_loading(
    name: str,
    data_dir: str | Path,
    *,
    cache_dir: str | Path | None = None,
    parameters: dict[str, Any] | None = None,
    batch: int = 48,
    n_workers: int = 2,
    rounds: int = 3,
    network: Callable[[int, int], Network] | None = None,
    augment: Augment | None = None,
    train_epochs: int = 3,
) -> LoadingResult:
    """Races the ways of loading the training part of one data set.

    Args:
        name: one of `TONIC_CLASSES`; `data_dir` holds the folder of Tonic's class.
        cache_dir: of our cache; None: the default place.
        parameters: of the data set (`sparsesnn.datasets.defaults`); duplicates must be "binary" and the saccade of
            N-MNIST 0 or 1, because Tonic's frames support nothing else.
        batch, n_workers: samples in a batch; worker processes of the `DataLoader`.
        rounds: epochs of each, interleaved.
        network: makes, for the data's numbers of neurons and classes, the network that is trained to measure waiting; its
            hidden populations are brought to 2 % activity. None: trains nothing.
        augment: if given, the network is trained with it too.
        train_epochs: timed epochs of training, after an untimed one.

    Raises:
        ConfigError: a data set without frames in Tonic.
        DataError: frames and lists have different spikes.
        MissingDependencyError: Tonic is not installed.
    """
    if name not in TONIC_CLASSES:
        raise ConfigError(f"bench loading: {name!r} cannot be raced; allowed: {', '.join(sorted(TONIC_CLASSES))}")
    chosen = {**datasets.defaults(name), **(parameters or {})}
    started = time.perf_counter()
    event_set = datasets.load(name, split="train", data_dir=data_dir, cache_dir=cache_dir, **(parameters or {}))
    prepare_s = {"stream": time.perf_counter() - started}
    frames = _tonic_frames(name, Path(data_dir), chosen)
    _check_equal(frames, event_set)

    stream = Stream(event_set, None, batch, shuffle=True, seed=0)
    with tempfile.TemporaryDirectory(prefix="sparsesnn-bench-") as folder:
        disk = _disk_cached(frames, folder)
        started = time.perf_counter()
        _exhaust(_loader(disk, batch, n_workers))
        prepare_s["disk cache"] = time.perf_counter() - started
        ways: dict[str, Callable[[int], Iterable[Any]]] = {
            "tonic": lambda _: _loader(frames, batch, n_workers),
            "disk cache": lambda _: _loader(disk, batch, n_workers),
            "stream": lambda k: stream.epoch(k),
            "frames": lambda k: ((spikes.to_dense(), labels) for spikes, labels in stream.epoch(k)),
        }
        epoch_s: dict[str, list[float]] = {way: [] for way in ways}
        for k in range(rounds):
            for way, epoch in ways.items():
                started = time.perf_counter()
                n = _exhaust(epoch(k))
                epoch_s[way].append(time.perf_counter() - started)
                if n != len(event_set):
                    raise DataError(f"bench loading: {way} handed out {n} samples of {len(event_set)}")
    training: dict[str, dict[str, float]] = {}
    net = ""
    if network is not None:
        description = network(event_set.n_neurons, event_set.n_classes)
        net = "-".join(
            f"{p.n}{'r' if description.is_recurrent(name) else ''}" for name, p in description.populations.items()
        )
        model = _model(description, event_set, batch)
        for label, changes in {"not augmented": None, **({"augmented": augment} if augment else {})}.items():
            training[label] = _train(model, event_set, batch, changes, train_epochs)
    ours = median(epoch_s["stream"])
    return LoadingResult(
        epoch_s=epoch_s,
        prepare_s=prepare_s,
        faster={way: median(seconds) / ours for way, seconds in epoch_s.items() if way != "stream"},
        training=training,
        data=f"{name} in {data_dir}",
        n_samples=len(event_set),
        n_steps=event_set.n_steps,
        n_neurons=event_set.n_neurons,
        n_spikes=int(event_set.ids.size),
        batch=batch,
        n_workers=n_workers,
        rounds=rounds,
        net=net,
        threads=_core.num_threads(),
        isa=_core.build_info()["isa"],
        machine=f"{os.cpu_count()} × {machine_name()}",
    )


# ---- Tonic's way -----------------------------------------------------------------------------------------------------


def _tonic_frames(name: str, data_dir: Path, parameters: Mapping[str, Any]) -> Any:
    """Tonic's data set with our parameters, whose samples are `(frames int16[T, polarity, (y,) x], label)`."""
    try:
        import tonic
    except ImportError as error:
        raise MissingDependencyError("tonic", "data", "the benchmark of loading") from error
    parent = getattr(tonic.datasets, TONIC_CLASSES[name])
    dt_us, n_steps, pool = round(parameters["dt_ms"] * 1e3), parameters["n_steps"], parameters["pool"]
    frames: Any = tonic.transforms.ToFrame(
        sensor_size=parent.sensor_size, time_window=dt_us, start_time=0, end_time=n_steps * dt_us
    )
    if pool > 1:
        _, height, _ = parent.sensor_size
        frames = tonic.transforms.Compose([frames, _Pool(pool, image=height > 1)])
    # a part of a set, or one without its archive, is sufficient here: Tonic would download the rest
    kind = type(parent.__name__, (parent,), {"_check_exists": lambda _: True})
    options: dict[str, Any] = {"split": "train"} if name == "ssc" else {"train": True}
    if name == "nmnist":
        options |= {"stabilize": parameters["stabilise"], "first_saccade_only": parameters["saccade"] == 1}
    return kind(str(data_dir), transform=frames, **options)


@dataclass(frozen=True)
class _Pool:
    """Adds up each `pool` neighbors of the last axis, and of the last but one of images; sent to worker processes."""

    pool: int
    image: bool

    def __call__(self, frames: Any) -> Any:
        for axis in (-1, -2)[: 2 if self.image else 1]:
            starts = np.arange(0, frames.shape[axis], self.pool)
            frames = np.add.reduceat(frames, starts, axis=axis)
        return frames


def _disk_cached(frames: Any, folder: str) -> Any:
    import tonic

    return tonic.DiskCachedDataset(frames, cache_path=folder)


def _loader(dataset: Any, batch: int, n_workers: int) -> Iterator[Any]:
    """The epoch of a `DataLoader`; its frames have equal lengths, so plain stacking works."""
    return iter(torch.utils.data.DataLoader(dataset, batch_size=batch, shuffle=True, num_workers=n_workers))


def _exhaust(batches: Iterable[Any]) -> int:
    """Takes all batches and counts their samples."""
    return sum(len(labels) for _, labels in batches)


def _check_equal(frames: Any, event_set: EventSet) -> None:
    """Raises `DataError` unless Tonic's frames hold the spikes of our samples, with their values where spikes count."""
    if len(frames) != len(event_set):
        raise DataError(f"bench loading: Tonic has {len(frames)} samples, our cache {len(event_set)}")
    # Tonic lists files in another order: samples are identified by their content
    ours = {_sample(event_set, k) for k in range(len(event_set))}
    step = max(1, len(frames) // _N_COMPARED)
    for k in range(0, len(frames), step):
        frame, label = frames[k]
        values = b"" if event_set.values is None else frame[frame != 0].astype(np.int64).tobytes()
        if (int(label), np.flatnonzero(frame).tobytes(), values) not in ours:
            raise DataError(f"bench loading: sample {k} of Tonic is not in our data; the comparison would not be fair")


def _sample(event_set: EventSet, k: int) -> tuple[int, bytes, bytes]:
    """Class of a sample, its cells step·N + id, ascending, and their values, if they have any."""
    own = slice(event_set.sample_starts[k], event_set.sample_starts[k + 1])
    step = np.repeat(np.arange(event_set.n_steps), event_set.n_spikes[k])
    cells = step * event_set.n_neurons + event_set.ids[own].astype(np.int64)
    values = b"" if event_set.values is None else event_set.values[own].astype(np.int64).tobytes()
    return int(event_set.labels[k]), cells.tobytes(), values


# ---- training --------------------------------------------------------------------------------------------------------


def _model(network: Network, event_set: EventSet, batch: int) -> Model:
    model = Model(network)
    hidden = [name for name, p in network.populations.items() if fires(p)]
    init_activity(model, [event_set.batch(range(min(batch, len(event_set))))], dict.fromkeys(hidden, 0.02))
    return model


def _train(model: Model, event_set: EventSet, batch: int, augment: Augment | None, n_epochs: int) -> dict[str, float]:
    """Trains with a learning rate of 0: the update takes its usual time, and the activity does not change."""
    stream = Stream(event_set, None, batch, shuffle=True, seed=0, augment=augment)
    decoding = "mean" if is_readout(model.network.populations[model.network.output]) else "count"
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0, fused=True)
    seconds, processor_s, waited, n_samples = 0.0, 0.0, 0.0, 0
    for epoch in range(n_epochs + 1):
        started, before, waited_before = time.perf_counter(), time.process_time(), stream.wait_s
        for spikes, labels in stream.epoch(epoch):
            optimizer.zero_grad(set_to_none=True)
            cross_entropy(model(spikes), labels, decoding, event_set.n_classes).backward()
            optimizer.step()
        if epoch:  # the first one warms up
            seconds += time.perf_counter() - started
            processor_s += time.process_time() - before
            waited += stream.wait_s - waited_before
            n_samples += stream.n_samples
    figures = {"samples_per_s": n_samples / seconds, "wait_share": waited / seconds}
    if augment:
        plain = Stream(event_set, None, batch, shuffle=True, seed=0, prefetch=0)
        own = Stream(event_set, None, batch, shuffle=True, seed=0, augment=augment, prefetch=0)
        cost = min(_processor_s(own, k) for k in range(3)) - min(_processor_s(plain, k) for k in range(3))
        figures["augment_share"] = cost / (processor_s / n_epochs - cost)
    return figures


def _processor_s(stream: Stream, epoch: int) -> float:
    """Processor time to make the batches of an epoch, without a thread."""
    started = time.thread_time()
    _exhaust(stream.epoch(epoch))
    return time.thread_time() - started
