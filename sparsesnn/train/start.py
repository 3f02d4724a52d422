"""The work before a run's first epoch: describes the run, and takes the weights of another run."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsesnn import datasets
from sparsesnn.config import Config
from sparsesnn.datasets import EventSet
from sparsesnn.engines import Engine
from sparsesnn.engines.average import evaluated_tensors
from sparsesnn.engines.dropout import Dropout
from sparsesnn.errors import ConfigError, DescriptionError
from sparsesnn.host.stream import Stream
from sparsesnn.layers import fires
from sparsesnn.network import Network
from sparsesnn.nir import readers_text
from sparsesnn.options import part_of
from sparsesnn.runtime import num_threads
from sparsesnn.spikes import SpikeBatch
from sparsesnn.train import prepare
from sparsesnn.train.checkpoint import CheckpointStore
from sparsesnn.train.report import percent
from sparsesnn.wording import count

if TYPE_CHECKING:
    from sparsesnn.train.loop import Run

#: the most names of classes in a line
MOST_NAMES = 12


def outputs_text(event_set: EventSet) -> str:
    """`10 classes`, `6 classes per step (91.2 % of the steps have a label)`, `2 values per step`."""
    task = event_set.task
    text = count(event_set.n_outputs, "value" if task.has_values else "class")
    if not task.per_step:
        return text
    labels = event_set.labels
    n_all = labels.size
    share = task.n_labels(labels) / max(1, n_all)
    return f"{text} per step" + ("" if share == 1 else f" ({percent(share)} of them are given)")


def introduce(run: Run) -> None:
    """The lines at the beginning: data, network, time, ranks."""
    parts, network, config, note = run.parts, run.network, run.config, run.report.note
    sizes = " → ".join(
        f"{name} {p.n:,}{' recurrent' if network.is_recurrent(name) else ''}{network.delays_text(name, ' ({})')}"
        for name, p in network.populations.items()
    )
    n_valid = len(parts.valid) if parts.valid else 0
    train = parts.train.event_set
    how_valid = prepare.held_out_by(config.data, train)[1]
    names = [name for k, name in enumerate(parts.train.class_names) if name != str(k)]
    note(
        f"data    {config.data.name}: {len(parts.train):,} training, {n_valid:,} validation "
        f"({how_valid}), {count(len(parts.test), 'test sample')}, {outputs_text(train)}"
        + (f" ({', '.join(names)}), " if 0 < len(names) <= MOST_NAMES else ", ")
        + f"{count(train.n_steps, 'step')}, input activity {train.activity():.4f}"
        + (f", {count(train.n_lost, 'event')} lost" if train.n_lost else "")
    )
    for text in train.description.get("notes", []):
        note(f"note    {text}")
    if warning := datasets.overrates(train, how_valid):
        note(f"note    data.valid: {warning}")
    note(f"net     {sizes}, {run.engine.n_parameters:,} parameters, readout '{run.training.decoding}'")
    if run.times.dt_ms is not None:
        note(f"time    {run.times}")
    note(f"note    {readers_text(network)}")
    note(f"run     {run.folder}, backend {config.train.backend}, seed {config.train.seed}")
    engine: Any = run.engine
    instance = getattr(engine, "instance", None)  # for an engine that makes its own replicas
    if instance is not None and instance.total > 1:
        note(
            f"IPUs    {count(instance.total, 'replica')}"
            + f" of {count(engine.target.devices, 'IPU')}" * (engine.target.devices > 1)
            + ", from PopRun" * instance.poprun
            + f", {instance.own} in each of {count(run.world.size, 'instance')}" * instance.is_part
        )
    elif run.world.size > 1:
        note(
            f"ranks   {run.world.size}: {count(run.grid.n_replicas, 'replica')} × "
            f"{count(run.grid.n_shards, 'shard')}, {count(num_threads(), 'thread')} each"
        )


def take_weights(folder: str, engine: Engine) -> str:
    """Takes trained parameters of another run, matched by name and shape, from its best epoch; returns a description.

    Untrained values, such as a fixed decay, remain as described.

    Errors: `CheckpointError` for a folder without a run; `ConfigError` if no weight fits.
    """
    path = Path(folder)
    store = CheckpointStore(path, engine.grid, engine.columns)
    saved = store.read()
    try:
        network = Network.from_dict(saved.network)
    except DescriptionError as error:
        raise ConfigError(f"init.from_run: {path}: its network is not one of sparsesnn: {error}") from None
    theirs = store.tensors(saved.best or saved.tensors, network)
    if not saved.best:  # the best ones are saved in the form used for evaluation
        dropout = part_of(Config.from_dict(saved.config).dropout, Dropout)
        theirs = evaluated_tensors(theirs, dropout.factors(network))
    ours = engine.weights()
    wanted = [f"model/{name}" for name, _ in engine.model.named_parameters()]
    names = [
        name
        for name in wanted
        if name in theirs
        and theirs[name].shape == ours[name].shape  # of this rank's neurons, which may be none
        and _sizes(network, name) == _sizes(engine.network, name)
    ]
    if not names:
        have = ", ".join(sorted(name.removeprefix("model/") for name in theirs if name.startswith("model/layers.")))
        raise ConfigError(f"init.from_run: no parameter of {path} has the name and shape of one here; it has {have}")
    shares = getattr(engine, "factors", {})  # of dropout here, by which weights are multiplied in evaluation
    learning = {name: theirs[name] / shares.get(name.removeprefix("model/"), 1.0) for name in names}
    engine.load_weights({**ours, **learning}, str(path))
    left = [name.removeprefix("model/layers.") for name in wanted if name not in names]
    return f"{count(len(names), 'parameter')} of {path}" + (f"; new: {', '.join(left)}" if left else "")


def scale_weights(
    config: Config, parts: prepare.Parts, engine: Engine, only: Collection[str] | None = None
) -> dict[str, float]:
    """Scales the weights according to `config.init`, on a few shuffled batches without augmentation; returns the activity reached.

    Args:
        only: populations; None: all.
    """
    init = config.init
    if not init.activity and not init.layers:
        return {}
    spiking = [name for name, p in engine.network.populations.items() if fires(p)]
    wanted = {**(dict.fromkeys(spiking, init.activity) if init.activity else {}), **init.layers}
    scales_readout = only is None or engine.network.output in only
    wanted = {name: value for name, value in wanted.items() if only is None or name in only}
    return engine.initialize(
        list(first_batches(config, parts)),
        wanted,
        tolerance=init.tolerance,
        mean_shift=init.mean_shift,
        readout_std=(init.readout_std or None) if scales_readout else None,
    )


def first_batches(config: Config, parts: prepare.Parts) -> Iterator[SpikeBatch]:
    """`init.n_batches` shuffled batches of the training part, without augmentation; the same on all ranks."""
    stream = prepare.eval_stream(config, parts.train)
    shuffled = Stream(stream.event_set, stream.indices, stream.batch_size, shuffle=True, seed=stream.seed, prefetch=0)
    for _, (spikes, _) in zip(range(config.init.n_batches), shuffled.epoch(0), strict=False):
        yield spikes


def _sizes(network: Network, tensor: str) -> list[int]:
    """Neurons of the population with a parameter, `model/layers.<population>.<parameter>`, and of a weight's sender."""
    name, _, parameter = tensor.removeprefix("model/layers.").partition(".")
    senders = [c.pre for c in network.incoming(name) if c.name == parameter]
    return [network.populations[end].n for end in (name, *senders) if end in network.populations]
