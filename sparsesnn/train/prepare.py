"""From a configuration to the inputs of a run: the parts of the data, the network, and streams of batches."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsesnn import datasets, engines
from sparsesnn.config import Config, DataConfig
from sparsesnn.config.sections import AUTO
from sparsesnn.datasets import EventSet, hashing, splits
from sparsesnn.engines import Objective, Training, Updates
from sparsesnn.engines.dropout import Dropout, Heard
from sparsesnn.errors import ConfigError, DataError
from sparsesnn.host.comm import Communicator
from sparsesnn.host.stream import Stream
from sparsesnn.init import Recurrence
from sparsesnn.layers import fires
from sparsesnn.network import Network, gives_currents
from sparsesnn.options import part_of
from sparsesnn.partition.plan import Plan
from sparsesnn.partition.planner import make_plan
from sparsesnn.partition.target import Target
from sparsesnn.task import NO_LABEL, PLAIN, Task

Indices = npt.NDArray[np.int64]

#: a fingerprint's key that older checkpoints lack
SAMPLES = "samples_sha256"


@dataclass(frozen=True)
class Part:
    """Some samples of an event set."""

    event_set: EventSet
    indices: Indices

    @classmethod
    def whole(cls, event_set: EventSet) -> Part:
        return cls(event_set, np.arange(len(event_set)))

    def __len__(self) -> int:
        return int(self.indices.size)

    @property
    def class_names(self) -> list[str]:
        """Names of the classes; empty if the data has none."""
        return self.event_set.classes


@dataclass(frozen=True)
class Parts:
    """Training, validation (None without one) and test part of a data set."""

    train: Part
    valid: Part | None
    test: Part

    @property
    def n_neurons(self) -> int:
        return self.train.event_set.n_neurons

    @property
    def n_classes(self) -> int:
        return self.train.event_set.n_classes

    @property
    def n_outputs(self) -> int:
        """Classes, or values."""
        return self.train.event_set.n_outputs

    @property
    def task(self) -> Task:
        return self.train.event_set.task

    def fingerprint(self) -> dict[str, Any]:
        """Origin and size of the training part; equal for equal data, wherever the files are."""
        source = self.train.event_set
        described = {key: x for key, x in source.description.items() if key not in ("problems", "notes")}  # texts only
        return {
            "description": json.loads(json.dumps(described, default=str)),
            "n_neurons": source.n_neurons,
            "n_steps": source.n_steps,
            "n_classes": source.n_classes,
            **({} if source.task.is_plain else {"task": source.task.name, "n_outputs": source.n_outputs}),
            "n_spikes": int(source.ids.size),
            "n_lost": int(source.n_lost),
            "n_train": len(self.train),
            "n_valid": len(self.valid) if self.valid else 0,
            SAMPLES: self._samples(),
        }

    def _samples(self) -> str:
        """SHA-256 of the indices of each part's samples, and of their labels."""
        digest = hashlib.sha256()
        for part in (self.train, self.valid, self.test):
            if part is not None:
                digest.update(part.indices.astype("<i8").tobytes())
                labels = part.event_set.labels[part.indices]
                digest.update((labels if part.event_set.task.has_values else labels.astype("<i8")).tobytes())
        return digest.hexdigest()


def load_split(config: DataConfig, split: str) -> EventSet:
    """One split of the data set, through the event cache."""
    return datasets.load(
        config.name,
        data_dir=config.dir or None,
        cache_dir=config.cache_dir or None,
        split=split,
        download=config.download,
        runs_code=config.runs_code,
        **config.options,
    )


def held_out_by(config: DataConfig, train: EventSet) -> tuple[str, str]:
    """The origin of test and validation part: `auto` is the data's own part, or a share of the training part."""
    there = train.description.get("parts", datasets.split_names(config.name))
    settings = {"test": (config.test, "random:0.2"), "valid": (config.valid, "random:0.1")}
    test, valid = (how if how != "auto" else "own" if k in there else share for k, (how, share) in settings.items())
    return test, valid


def own_parts(config: DataConfig, train: EventSet) -> list[str]:
    """The parts, besides the training part, that a run reads from the data set."""
    return [part for part, how in zip(("test", "valid"), held_out_by(config, train), strict=True) if how == "own"]


def load_parts(config: DataConfig) -> Parts:
    """All three parts; the validation part comes from the training part, or is the data set's own.

    Errors: `DataError` for missing or damaged files, `ConfigError` for a validation part that cannot be made.
    """
    whole = load_split(config, "train")
    if whole.n_classes < 2 and not whole.task.has_values:
        warnings.warn(
            f"{config.name}: all samples have one class, so that every network is 100 % correct; give label other values too",
            UserWarning,
            stacklevel=2,
        )
    how_test, how_valid = held_out_by(config, whole)
    if how_test == "own":
        learnt, test = np.arange(len(whole)), Part.whole(_load_beside(config, whole, "test"))
    else:
        learnt, held_out = splits.divide(whole, how_test, option="test")
        test = Part(whole, held_out)
    valid: Part | None = None
    if how_valid == "own":
        valid = Part.whole(_load_beside(config, whole, "valid"))
    elif how_valid != "none":
        rest, held_out = splits.divide(whole, how_valid, among=learnt)
        learnt, valid = rest, Part(whole, held_out)
    parts = Parts(Part(whole, learnt), valid, test)
    named = {"training": parts.train, "validation": parts.valid, "test": parts.test}
    for name, part in named.items():
        if part is not None and not len(part):
            raise DataError(
                f"{config.name}: the {name} part is empty; check the files, or data.valid ({config.valid!r})"
            )
    if not whole.task.has_values:
        labels = {
            f"the {name} part": part.event_set.labels[part.indices] for name, part in named.items() if part is not None
        }
        splits.warn_of_missing_classes(labels, parts.train.class_names)
    return parts


def _load_beside(config: DataConfig, whole: EventSet, split: str) -> EventSet:
    """The data set's own part, with the labels of the training part.

    Errors: `DataError` if the two do not match.
    """
    part = with_classes_of(whole.description, load_split(config, split), config.name)
    for name, ours, theirs in (
        ("N", whole.n_neurons, part.n_neurons),
        ("T", whole.n_steps, part.n_steps),
        ("steps of us", whole.dt_us, part.dt_us),
        ("sensor", whole.sensor, part.sensor),
        ("the task", whole.task, part.task),
    ):
        if ours != theirs:
            raise DataError(
                f"{config.name}: {name} is {ours} in the part train, {theirs} in {split}; use files of one data set"
            )
    if part.n_outputs > whole.n_outputs or (whole.task.has_values and part.n_outputs != whole.n_outputs):
        what = "values" if whole.task.has_values else "classes"
        raise DataError(
            f"{config.name}: the part {split} has {part.n_outputs} {what}, train {whole.n_outputs}; use files of one data set"
        )
    return part


def with_classes_of(description: Mapping[str, Any], part: EventSet, where: str) -> EventSet:
    """The part with named classes numbered as in training; `description`: of the training part.

    Errors: `DataError` for a name unknown in training.
    """
    names, own = (list(of.get("classes") or ()) for of in (description, part.description))
    if not own or own == names:
        return part
    if unknown := [name for name in own if name not in names]:
        raise DataError(
            f"{where}: has the class {unknown[0]!r}; training had {', '.join(map(str, names[:9])) or 'numbers'}"
        )
    number = np.array([*(names.index(name) for name in own), NO_LABEL])  # the last one for -1
    known = {**part.description, "classes": names}
    return replace(part, labels=number[part.labels], n_classes=len(names), description=known)


def make_network(config: Config, parts: Parts) -> Network:
    """The network that the configuration describes; `ConfigError` if it does not fit the data."""
    dt_us, sensor = parts.train.event_set.dt_us, parts.train.event_set.sensor
    shape = None if sensor is None else (sensor.height, sensor.width, sensor.n_polarities)
    network = config.net.network(parts.n_neurons, parts.n_outputs, None if dt_us is None else dt_us / 1e3, shape)
    if gives_currents(network) and parts.train.event_set.values is None:
        raise ConfigError(
            f"net: the input is currents, numbers for each neuron, but {config.data.name} gives spikes; describe a network of spikes, such as "
            f"{parts.n_neurons}-{network.populations[network.output].n}, or give data with values, such as data.encoding = 'direct'"
        )
    return network


def in_numbers(network: Network) -> Network:
    """The network with `grad_threshold` as a number, as in older checkpoints."""
    for name, p in network.populations.items():
        if fires(p):
            network = network.with_population(name, grad_threshold=p.listed_above)
    return network


def class_weights(config: Config, part: Part) -> list[float] | None:
    """The weights of classes in the loss, by the labels of the training part: 1 on average over labels. None: equal.

    Errors: `ConfigError` if samples have values.
    """
    if config.loss.class_weights == "none":
        return None
    if part.event_set.task.has_values:
        raise ConfigError(
            "loss.class_weights: is 'balanced', but the samples have values, not classes; set it to 'none'"
        )
    labels = part.event_set.labels[part.indices]
    n_of = np.bincount(labels[labels >= 0].reshape(-1), minlength=part.event_set.n_classes)
    present = n_of > 0
    weights = np.zeros(len(n_of))
    weights[present] = n_of.sum() / (present.sum() * n_of[present])
    return [float(w) for w in weights]


def make_training(
    config: Config,
    network: Network,
    n_outputs: int,
    task: Task = PLAIN,
    *,
    graded: bool = False,
    class_weights: Sequence[float] | None = None,
) -> Training:
    """The configuration's requests to an engine.

    Args:
        n_outputs: classes of the data; of a task with values, their number.
        graded: whether the spikes of the data have values.
        class_weights: see `class_weights`.
    """
    return Training(
        n_classes=n_outputs,
        decoding=config.loss.decoding_for(network, task),
        task=task,
        class_weights=class_weights,
        batch=config.train.batch,
        seed=config.train.seed,
        objective=part_of(config.loss, Objective),
        updates=part_of(config.optim, Updates),
        options=config.train.engine_options(),
        replicas=config.parallel.replicas,
        dropout=part_of(config.dropout, Dropout),
        recurrence=part_of(config.init, Recurrence),
        graded=graded,
        measures_capacity=config.net.neurons["capacity"] == AUTO,
    )


def make_rank_plan(
    config: Config,
    network: Network,
    events: EventSet,
    target: Target,
    replicas: int,
    n_samples: int,
    activity: Mapping[str, float] | None = None,
) -> Plan:
    """The plan for training on ranks.

    Args:
        target: the target of one replica.
        n_samples: samples of one replica.
        activity: of populations for which it is known; for others it is assumed.
    """
    return make_plan(
        network,
        n_samples,
        events.n_steps,
        target,
        activity={network.inputs[0]: events.activity(), **(activity or {})},
        max_activity=1,
        optimizer="sgd" if config.optim.name == "sgd" else "adam",
        weight_dtype="half" if config.train.weight_dtype == "bfloat16" else "float32",
        replicas=replicas,
    )


class DrawnDropout:
    """The spikes of some samples that dropout keeps: a function of only (seed, epoch, sample), population, neuron and step.

    Args:
        samples: numbers of the samples of a batch in their data set.
    """

    def __init__(self, dropout: Dropout, seed: int, epoch: int, samples: Indices) -> None:
        self.dropout, self.place = dropout, (seed, epoch, samples)

    def __call__(self, population: int, step: Indices, sample: Indices, neuron: Indices) -> npt.NDArray[np.bool_]:
        kept = np.ones(np.broadcast_shapes(step.shape, sample.shape, neuron.shape), bool)
        for draw, counter in zip(self.draws(population), (neuron, step * _MOST_NEURONS + neuron), strict=True):
            if draw[0]:
                kept &= hashing.bits(draw[1:][sample], counter) >> np.uint64(11) >= draw[0]
        return kept

    def draws(self, population: int) -> npt.NDArray[np.uint64]:
        """See `sparsesnn.engines.dropout.Drawn`."""
        seed, epoch, samples = self.place
        rows = []
        for purpose, p in ((_NEURONS, self.dropout.neurons), (_SPIKES, self.dropout.spikes)):
            limit = np.array([math.ceil(p * 2.0**53)], np.uint64)  # `hashing.uniform` gives multiples of 2^-53
            rows.append(np.concatenate([limit, hashing.keys(seed, epoch, samples, purpose, population)]))
        return np.stack(rows)


# purposes of random numbers; see `datasets.augment`, whose purposes are below these
_NEURONS, _SPIKES = 1000, 1001
_MOST_NEURONS = 1 << 32


def heard(config: Config, stream: Stream, epoch: int, batch: int) -> Heard | None:
    """The spikes of a batch that dropout keeps; None without dropout."""
    dropout = part_of(config.dropout, Dropout)
    if dropout.heard == 1:
        return None
    return DrawnDropout(dropout, config.train.seed, epoch, stream.batch_samples(epoch, batch))


def _place_in(replicas: Communicator | None, config: Config) -> tuple[int, int, int]:
    """rank, n_ranks and per_rank of a `Stream`, which determine this replica's samples of a batch."""
    if replicas is None:
        return 0, 1, 0
    per_rank = engines.samples_of_rank(config.train.backend, config.train.batch, replicas.size)
    return replicas.rank, replicas.size, per_rank


def train_stream(config: Config, part: Part, replicas: Communicator | None = None) -> Stream:
    """A stream shuffled and augmented, both by the seed; this replica's samples of each batch.

    Errors: `ConfigError` for an augmentation that does not suit the data, and if no batch would be left.
    """
    rank, n_ranks, per_rank = _place_in(replicas, config)
    stream = Stream(
        part.event_set,
        part.indices,
        config.train.batch,
        shuffle=True,
        seed=config.train.seed,
        augment=config.augment,
        bucket_batches=config.train.bucket_batches,
        balance=config.train.balance,
        drop_last=config.train.drop_last,
        prefetch=config.train.prefetch,
        rank=rank,
        n_ranks=n_ranks,
        per_rank=per_rank,
    )
    if not len(stream):
        raise ConfigError(
            f"train.drop_last: leaves no batch of {len(part)} training samples; "
            f"set it to false, or train.batch ({config.train.batch}) to at most {len(part)}"
        )
    return stream


def eval_stream(config: Config, part: Part, replicas: Communicator | None = None) -> Stream:
    """A stream of all data in order, without augmentation; this replica's samples of each batch."""
    rank, n_ranks, per_rank = _place_in(replicas, config)
    return Stream(
        part.event_set,
        part.indices,
        config.train.batch,
        shuffle=False,
        seed=config.train.seed,
        prefetch=config.train.prefetch,
        rank=rank,
        n_ranks=n_ranks,
        per_rank=per_rank,
    )
