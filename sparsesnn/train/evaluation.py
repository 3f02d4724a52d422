"""Evaluation of a trained network: one pass over a part of its data, or of a saved run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w
from torch import Tensor

from sparsesnn import engines
from sparsesnn.config import Config
from sparsesnn.engines import Batch, Engine
from sparsesnn.engines.average import evaluated_tensors
from sparsesnn.engines.dropout import Dropout
from sparsesnn.engines.module import Model
from sparsesnn.errors import CheckpointError, ConfigError, DataError, NotFiniteError, NumericError, UnknownModelError
from sparsesnn.host.stream import Stream
from sparsesnn.integers import read as read_integers
from sparsesnn.layers import Neuron
from sparsesnn.layers.catalog import define
from sparsesnn.model_card import ModelCard
from sparsesnn.network import Network
from sparsesnn.options import part_of
from sparsesnn.output import Output
from sparsesnn.task import PLAIN, Task
from sparsesnn.train import checkpoint as ckpt
from sparsesnn.train import prepare
from sparsesnn.train.checkpoint import CheckpointStore
from sparsesnn.train.metrics import RESULT, Result, Tally, read_progress
from sparsesnn.train.predictions import Predictions

#: called with each batch, the network's output, and its decoded values, see `sparsesnn.engines.base.Engine.infer`
Seen = Callable[[Batch, Output, Tensor], None]


def evaluate(
    engine: Engine, stream: Stream, *, after_batch: Callable[[], None] | None = None, seen: Seen | None = None
) -> Tally:
    """One pass over a stream without training: loss (plain cross-entropy, or the error of values), scores, activity and dropped.

    Args:
        engine: its weights are not changed.
        stream: not changed either; the order of batches is that of epoch 0.
        after_batch: called after every batch; may raise to stop.
        seen: called with every batch and its results; on ranks, with those of this replica.

    Errors: `NumericError` if the outputs are not finite.
    """
    tally = Tally()
    mark = time.perf_counter()
    for k, (spikes, labels) in enumerate(stream.epoch(0)):
        batch = Batch(spikes, labels, *stream.place(k))
        step = engine.infer(batch, None if seen is None else partial(seen, batch))
        if not math.isfinite(step.loss):
            message = (
                f"evaluation: the loss is {step.loss} after {tally.n_samples} samples; lower optim.lr and train again"
            )
            try:
                engine.check_state(engine.weights())
            except NotFiniteError as error:
                raise NotFiniteError(error.what, error.value, f"; {message}") from None
            raise NumericError(message)
        tally.add(step)
        tally.seconds = time.perf_counter() - mark
        if after_batch is not None:
            after_batch()
    return tally


@dataclass(frozen=True)
class SavedRun:
    """A trained network read back from its run folder.

    Args:
        engine: with the requested weights.
        config: the run's.
        network: the model's network.
        n_classes: classes of its data; of a task with values, their number.
        epoch: the epoch whose final weights these are, counted from 1.
        data: `Parts.fingerprint` of its data.
        folder: of the run.
        version: of sparsesnn that wrote it.
    """

    engine: Engine
    config: Config
    network: Network
    n_classes: int
    epoch: int
    data: Mapping[str, Any]
    folder: Path
    version: str

    @property
    def model(self) -> Model:
        """The network as a module."""
        model: Model = self.engine.model
        return model

    def part(self, split: str = "test") -> prepare.Part:
        """The "test", "valid" or "train" part of the data; `CodeError` for code that was not passed to `load_run`."""
        return part_of_run(self.config, split)

    def save(self, folder: str | Path, *, card: ModelCard | None = None, overwrite: bool = False) -> None:
        """Writes the network to a folder for `sparsesnn.Model.load`, see `Model.save`.

        Args:
            card: None: that of the run, `card()`.
        """
        self.model.save(folder, card=card or self.card(), overwrite=overwrite)

    def card(self) -> ModelCard:
        """The data, the configuration without places on this machine, and, of a finished run, the scores and activity of the test part."""
        scores: dict[str, float | None] = {}
        activity: Mapping[str, float] = {}
        if (self.folder / RESULT).exists():
            result = Result.read(self.folder)
            if self.epoch == result.best_epoch:
                scores = {"accuracy": result.test_accuracy, "rmse": result.test_rmse, "r2": result.test_r2}
                activity = result.activity
            elif self.epoch == result.n_epochs:
                scores = {"accuracy": result.test_accuracy_last, "rmse": result.test_rmse_last}
        return ModelCard(
            dataset=self.config.data.name,
            scores={name: score for name, score in scores.items() if score is not None},
            activity=activity,
            command=f"sparsesnn train --config config.toml    # sparsesnn {self.version}; these are the weights after epoch {self.epoch}",
            text=f"with this `config.toml`:\n\n```toml\n{tomli_w.dumps(_without_paths(self.config.to_dict()))}```\n",
        )


def _without_paths(value: Any) -> Any:
    """A configuration for others: without places on this machine, and without None, which TOML lacks."""
    if not isinstance(value, Mapping):
        return value

    def stays(x: Any) -> bool:
        return x is not None and not (isinstance(x, str) and x.startswith(("/", "~")))

    return {key: _without_paths(x) for key, x in value.items() if stays(x)}


def load_run(
    folder: str | Path,
    *,
    data: str | Path | None = None,
    weights: str = "best",
    backend: str | None = None,
    integers: str | Path | None = None,
    neurons: Sequence[type[Neuron]] = (),
) -> SavedRun:
    """Reads a run folder, or the `checkpoint.json` in it. Neither code in it nor code that it names is run.

    Args:
        data: file or folder of the data, or FILE.py:FUNCTION, which is code; None: the run's data, unless that is code. Other
            files are read with the step and sizes of the run's data, even if these were derived from the files.
        weights: "best" (chosen by validation; the last ones before the first validation) or "last".
        backend: None: the one that trained.
        integers: a file of `sparsesnn.integers.save`, whose weights are used.
        neurons: your own neuron models in the run's network, such as [ALIF].

    Errors: `CheckpointError` if it is missing or damaged; `ConfigError` for unknown `weights`.
    """
    for model in neurons:
        define(model)
    if weights not in ("best", "last"):
        raise ConfigError(f"weights: is {weights!r}; allowed: best, last")
    if backend is not None and engines.on_host(backend) != backend:
        allowed = ", ".join(name for name in engines.names() if engines.on_host(name) == name)
        raise ConfigError(f"backend: is {backend!r}; allowed: {allowed}")
    path = Path(folder)
    store = CheckpointStore(path.parent if path.name == ckpt.NAME else path)
    saved = store.read()
    files = saved.best if weights == "best" and saved.best is not None else saved.tensors
    try:
        config, network = Config.from_dict(saved.config), Network.from_dict(saved.network)
        progress = read_progress(saved.progress)
        task = Task.named(saved.data.get("task", PLAIN.name))
        n_classes = int(saved.data["n_outputs" if task.has_values else "n_classes"])
        _check_description(saved.data.get("description", {}))
    except UnknownModelError as error:
        raise CheckpointError(f"{store.path}: {error}; to load_run give neurons=[…]") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"{store.path}: is not a checkpoint of sparsesnn: {error}") from None
    tensors = store.tensors(files, network)
    if files is saved.tensors:
        tensors = evaluated_tensors(tensors, part_of(config.dropout, Dropout).factors(network))
    if network.n_weights() > sum(tensor.numel() for tensor in tensors.values()):
        raise CheckpointError(f"{store.path}: {files[0].file} is too small for its network; it belongs to another one")
    backend = backend or engines.on_host(config.train.backend)
    training = prepare.make_training(config, network, n_classes, task)
    options = engines.options_to_evaluate(backend, training.options)
    where = str(store.folder / files[0].file)
    if integers is not None:
        given, where = read_integers(integers), str(integers)
        options["weight_dtype"] = given.weight_dtype
        tensors = {f"model/{name}": tensor for name, tensor in given.tensors.items()}
    engine = engines.make_engine(backend, network, replace(training, options=engines.options_for(backend, options)))
    engine.load_weights(tensors, where)
    engine.start()
    epoch = progress.best_epoch if files is saved.best else progress.epoch
    run = SavedRun(engine, config, network, n_classes, epoch, saved.data, store.folder, saved.version)
    return run if data is None else replace(run, config=_on_other_files(run, data))


def evaluate_run(
    folder: str | Path,
    *,
    data_dir: str | Path | None = None,
    split: str = "test",
    weights: str = "best",
    backend: str | None = None,
    threads: int = 0,
    predictions: Predictions | None = None,
    integers: str | Path | None = None,
) -> dict[str, Any]:
    """Evaluates a saved run on one part of its data, and returns the results that `sparsesnn eval` prints.

    Keys: accuracy (rmse and r2 if samples have values), loss, n_samples, samples_per_s, activity, dropped, epoch, split and
    weights; task and n_labels too, unless the task is one class per sample.

    Args:
        folder, weights, backend, integers: see `load_run`.
        data_dir: `data` of `load_run`; named classes keep the run's numbers.
        split: "test", "valid" (the run's validation part) or "train" (without it).
        threads: worker threads; 0: all cores.
        predictions: takes the logits of every sample.

    Errors: those of `load_run`; `DataError` if the data has other neurons or steps, or more or other classes than the network.
    """
    run = load_run(folder, data=data_dir, weights=weights, backend=backend, integers=integers)
    engines.set_threads(run.engine.name, threads)
    config = run.config
    part = part_of_run(config, split)
    known = run.data.get("description", {})
    part = replace(part, event_set=prepare.with_classes_of(known, part.event_set, config.data.name))
    if part.event_set.dt_us != known.get("dt_us", part.event_set.dt_us):
        raise DataError(
            f"{config.data.name}: the data has steps of {part.event_set.dt_us} us, the run's had {known['dt_us']}; give data like "
            "those it was trained on (--data)"
        )
    task = run.engine.training.task
    if part.event_set.task != task:
        raise DataError(
            f"{config.data.name}: the task of this data is: {part.event_set.task}, that of the run: {task}; give the data it was trained on (--data)"
        )
    n_neurons, n_classes = part.event_set.n_neurons, part.event_set.n_outputs
    n_input = run.network.populations[run.network.inputs[0]].n
    if n_neurons != n_input or n_classes > run.n_classes:
        raise DataError(
            f"{config.data.name}: the data has {n_neurons} neurons and {n_classes} {'values' if task.has_values else 'classes'}, the network {n_input} and "
            f"{run.n_classes}; give the data it was trained on (--data)"
        )
    if predictions is not None:
        predictions.samples, predictions.names, predictions.task = part.indices.tolist(), part.class_names, task
    seen = None if predictions is None else predictions.add
    tally = evaluate(run.engine, prepare.eval_stream(config, part), seen=seen)
    return {
        "split": split,
        "weights": weights,
        "epoch": run.epoch,
        **tally.scores(),
        "loss": tally.loss,
        "n_samples": tally.n_samples,
        **({} if task.is_plain else {"task": task.name, "n_labels": tally.n_labels}),
        "samples_per_s": tally.samples_per_s,
        "activity": tally.activity,
        "dropped": tally.dropped,
    }


def _check_description(description: Mapping[str, Any]) -> None:
    """`ValueError` unless the fields of a data set's description that are used here have their types."""
    names, sensor = description.get("classes") or [], description.get("sensor") or [1, 1, 1]
    right = isinstance(description.get("dt_us") or 0.0, (int, float)) and isinstance(names, list) and len(sensor) > 1
    if not right or not all(isinstance(x, (str, int)) for x in (*names, *sensor)):
        raise ValueError("data.description has other types than those of a data set")


def _on_other_files(run: SavedRun, data_dir: str | Path) -> Config:
    """The run's configuration for other files; settings derived from its own files (0, for your own events) are kept."""
    data, known = run.config.data, run.data.get("description", {})
    moved = run.config.with_data_dir(data_dir)
    changed: dict[str, Any] = {}
    if data.name == "events" and data.dir not in (str(data_dir), moved.data.dir):
        pool, sensor = data.options.get("pool", 1), known.get("sensor")
        sizes = {"width": sensor[0], "height": sensor[1]} if sensor else {"n_neurons": run.data["n_neurons"]}
        derived = {"dt_ms": known.get("dt_us", 0.0) / 1e3, **{k: n * pool for k, n in sizes.items()}}
        changed |= {k: x for k, x in derived.items() if not data.options.get(k)}
    return moved.with_values({"data": changed})


def part_of_run(config: Config, split: str) -> prepare.Part:
    """The "train", "valid" or "test" part of a run's data; `ConfigError` if the run has none."""
    if split == "test" and config.data.test == "own":
        return prepare.Part.whole(prepare.load_split(config.data, "test"))
    parts = prepare.load_parts(config.data)
    if split == "test":
        return parts.test
    if split == "train":
        return parts.train
    if parts.valid is None:
        raise ConfigError("eval: the run has no validation part (data.valid is 'none'); allowed: --split test or train")
    return parts.valid
