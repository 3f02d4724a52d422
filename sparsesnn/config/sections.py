"""The sections of a configuration: frozen dataclasses whose fields declare their meaning and allowed values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from sparsesnn import datasets, engines
from sparsesnn.config.tables import Table, fill_spreads, spread
from sparsesnn.decoding import OVER_TIME
from sparsesnn.engines import Objective, Updates
from sparsesnn.engines.dropout import Dropout
from sparsesnn.errors import ConfigError
from sparsesnn.init import Recurrence
from sparsesnn.layers import is_readout
from sparsesnn.network import Network
from sparsesnn.options import Option, check, option, options_of
from sparsesnn.task import PLAIN, Task

AUTO = "auto"

_MANY = 1_000_000


class Section:
    """A section checks its options when it is created; subclasses give its name: `class OptimConfig(Section, Updates, name="optim")`."""

    name_: ClassVar[str]

    def __init_subclass__(cls, name: str) -> None:
        cls.name_ = name

    def __post_init__(self) -> None:
        check(self, f"{self.name_}.{{}}:", ConfigError)
        fill_spreads(self, f"{self.name_}.{{}}:", ConfigError)


def _data_options(table: Table) -> dict[str, Option]:
    """The options of the data set named in a table; of all if it names none."""
    names = (table["name"],) if "name" in table else reversed(datasets.NAMES)
    return {key: known for name in names for key, known in datasets.options(name).items()}


@dataclass(frozen=True)
class DataConfig(Section, name="data"):
    """The source of the samples, and the conversion of events to spikes."""

    name: str = option("digits", "the data set", choices=datasets.NAMES)
    dir: str = option(
        "",
        "folder of its files; for your own events a file, or FILE.py:FUNCTION, which runs only if given on the command line",
        flag="data",
        metavar="DIR",
        free=True,
        local=True,
    )
    cache_dir: str = option(
        "", "folder of the event cache; empty: the default", flag="cache", metavar="DIR", free=True, local=True
    )
    download: bool = option(False, "download missing files, if the data set allows it", flag="download", free=True)
    valid: str = option(
        "auto",
        "validation part: own (the data's own part), none, or taken from the training part: random:0.1 (a tenth), speakers:0,1 (these "
        "speakers), file:val.txt (the sample numbers listed there); auto: own if there is one, else random:0.1",
        flag="valid",
        metavar="HOW",
    )
    test: str = option(
        "own",
        "test part: own, or taken from the training part as in valid, if a copy of a data set has none; auto: own if "
        "the data has such a part, else random:0.2",
    )
    options: dict[str, Any] = spread(_data_options)
    #: whether `dir` may be FILE.py:FUNCTION; see `Config.with_data_dir`. It is not a field, so that no file can set it
    runs_code: ClassVar[bool] = False


@dataclass(frozen=True)
class LossConfig(Section, Objective, name="loss"):
    """The loss: cross-entropy of classes or the error of values and, optionally, a penalty on too low or too high activity."""

    decoding: str = option(
        AUTO,
        "the output that is decoded: the potential over time (softmax_sum: the sum over time of its softmax over classes), the potential "
        "at each step, or the count of spikes; auto: step if each step has a label or values, else max (of values: mean) for an LI readout, "
        "count for a spiking one",
        choices=(AUTO, *OVER_TIME, "count"),
    )

    def decoding_for(self, network: Network, task: Task = PLAIN) -> str:
        """The decoding for this network's readout and task; `ConfigError` if the chosen one does not fit."""
        readout = is_readout(network.populations[network.output])
        if task.per_step and not readout:
            raise ConfigError(
                f"loss.decoding: each step has a {'value' if task.has_values else 'label'}, but {network.output!r} is spiking; end the network in LI"
            )
        if self.decoding == AUTO:
            return "step" if task.per_step else "count" if not readout else "mean" if task.has_values else "max"
        if task.per_step != (self.decoding == "step"):
            allowed = (
                "auto, step" if task.per_step else ", ".join(name for name in (AUTO, *OVER_TIME) if name != "step")
            )
            raise ConfigError(
                f"loss.decoding: is {self.decoding!r}, but the task of the data is: {task}; allowed: {allowed}"
            )
        if readout == (self.decoding == "count"):
            allowed = ", ".join(OVER_TIME) if readout else "count"
            kind = "an LI readout" if readout else "spiking"
            raise ConfigError(
                f"loss.decoding: is {self.decoding!r}, but {network.output!r} is {kind}; allowed: {allowed}"
            )
        return self.decoding


@dataclass(frozen=True)
class OptimConfig(Section, Updates, name="optim"):
    """The optimizer."""

    schedule: str = option(
        "cosine",
        "cosine falls to final_lr_factor · lr at the last step; onecycle rises from lr / 25 and falls to the same; plateau falls "
        "by plateau_factor when validation does not improve",
        choices=("cosine", "constant", "onecycle", "plateau"),
    )
    warmup_epochs: float = option(
        0.0,
        "epochs over which the rate rises, fractions allowed; 0: none (with schedule onecycle: 30 % of the run)",
        low=0,
    )
    final_lr_factor: float = option(0.01, "see schedule", low=0, high=1)
    plateau_factor: float = option(0.5, "see schedule", above=0, below=1)
    plateau_patience: int = option(
        5, "epochs without improved validation before schedule plateau lowers the rate", low=1, high=_MANY
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_groups("optim.")


@dataclass(frozen=True)
class DropoutConfig(Section, Dropout, name="dropout"):
    """Spikes of hidden populations dropped on their way to the next population in training."""


@dataclass(frozen=True)
class InitConfig(Section, Recurrence, name="init"):
    """Initial weights: scaled until each population has the wanted activity on training data."""

    from_run: str = option(
        "",
        "a run folder whose trained parameters are copied if names and shapes fit; all others are drawn at random, and init.activity "
        "has no effect",
        flag="init-from",
        metavar="RUN",
    )
    activity: float = option(
        0.05, "target: spikes per neuron and step of every spiking population; 0: weights as drawn", low=0, below=1
    )
    layers: dict[str, float] = option(dict, "wanted activity of single populations, by name", low=0, below=1)
    n_batches: int = option(2, "training batches to measure on", low=1, high=_MANY)
    tolerance: float = option(0.1, "allowed relative difference from the wanted activity", low=0, high=1)
    mean_shift: float = option(0.0, "shift of the weights' mean, see sparsesnn.init", low=-100, high=100)
    readout_std: float = option(
        1.0, "standard deviation of the readout's potentials; 0: the readout as drawn", low=0, high=1e6
    )


@dataclass(frozen=True)
class TrainConfig(Section, engines.options_class(), name="train"):  # type: ignore[misc]
    """The run itself."""

    epochs: int = option(20, "passes through the training part", low=1, high=_MANY, flag="epochs", metavar="N")
    patience: int = option(
        0, "end the run after this number of epochs without improved validation; 0: never", low=0, high=_MANY
    )
    batch: int = option(64, "samples per step", low=1, high=_MANY, flag="batch", metavar="N")
    seed: int = option(
        0, "seed of initial weights, order and augmentation", low=0, high=2**63 - 1, flag="seed", metavar="N"
    )
    backend: str = option(
        "cpu",
        "cpu: spike lists on CPUs; gpu: spike lists on an NVIDIA GPU; dense: PyTorch with full matrices, on a CPU or GPU; ipu: Graphcore "
        "IPUs; ipu-model: the IPU program on an emulator",
        choices=engines.names,
        flag="backend",
        metavar="NAME",
    )
    threads: int = option(
        0,
        "worker threads per rank; 0: all cores, shared by the ranks of a host",
        low=0,
        high=1024,
        free=True,
        local=True,
        flag="threads",
        metavar="N",
    )
    prefetch: int = option(8, "batches made ahead by a thread; 0: none", low=0, high=1000, free=True)
    bucket_batches: int = option(
        0,
        "number of batches whose samples are sorted by length, so that each batch has similar ones; 0: none",
        low=0,
        high=_MANY,
    )
    balance: bool = option(
        False,
        "draw all classes equally often in training: samples of rare classes several times an epoch, and some of the frequent ones",
    )
    drop_last: bool = option(False, "leave out the last batch of an epoch if it is smaller")
    checkpoint_seconds: float = option(
        300.0,
        "interval of checkpoints within an epoch, in addition to one after each epoch; 0: none",
        low=0,
        high=1e9,
        free=True,
    )
    checkpoint_batches: int = option(0, "the same interval in batches; 0: none", low=0, high=10**9, free=True)
    tensorboard: bool = option(
        True,
        "write TensorBoard files: numbers, histograms of weights, pictures (needs TensorBoard)",
        flag="no-tensorboard",
        free=True,
    )
    loggers: str = option(
        "",
        "names of loggers, joined by commas, that receive the results of each epoch; they come from installed packages (entry points "
        "sparsesnn.loggers)",
        flag="logger",
        metavar="NAMES",
        free=True,
    )
    plots: bool = option(True, "draw pictures (needs matplotlib)", flag="no-plots", free=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        engines.check_options(self.backend, self.engine_options(), "train.{}:")

    def engine_options(self) -> dict[str, Any]:
        """The options that single engines read."""
        return {name: getattr(self, name) for name in options_of(engines.options_class())}


@dataclass(frozen=True)
class ParallelConfig(Section, name="parallel"):
    """How MPI ranks share the work; without a launcher there is one rank. Results do not depend on it."""

    replicas: int = option(
        0,
        "groups of ranks that train on different samples; 0: as many as the ranks allow. On the IPU backends: copies of the program, "
        "each on the IPUs of train.target; 0: one, or as many as PopRun starts. IPUs add gradients in their own order",
        low=0,
        high=_MANY,
        free=True,
    )
    shards: int = option(
        0,
        "ranks that share the neurons of one replica; 0: one, or all ranks left by replicas",
        low=0,
        high=_MANY,
        free=True,
    )
