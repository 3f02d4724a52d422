"""The configuration of a run: frozen dataclasses, one per section of the TOML file.

Precedence: defaults of the data set < configuration file < command line. In all sections 0 switches an option off
where its text says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from sparsesnn import datasets, engines
from sparsesnn.datasets import Augment
from sparsesnn.engines import Options
from sparsesnn.errors import ConfigError, DescriptionError
from sparsesnn.layers import LI, CubaLIF, Population, decays
from sparsesnn.layers.checks import PerNeuron
from sparsesnn.loss import OVER_TIME
from sparsesnn.network import Network, parse_net
from sparsesnn.surrogate import Surrogate, fast_sigmoid
from sparsesnn.train import schema

AUTO = "auto"

#: keys of the section net that describe it population by population
DESCRIBED = ("populations", "connections")


@dataclass(frozen=True)
class DataConfig:
    """Where samples come from.

    Args:
        name: of the data set: digits, dvsgesture, nmnist, shd, ssc, synthetic.
        dir: folder of its files; "" for data sets that need none.
        cache_dir: folder of the event cache; "" for the default place.
        download: fetch files that are missing.
        valid: validation part, taken from the training part and never from the test part: "speakers:0,1" holds out
            speakers, "random:0.1" a tenth of the samples, "own" is the data set's own validation part, "none" none.
        test: "own": the data set's test part. Otherwise as `valid`, taken from the training part before anything else:
            for copies of a data set that have no test part. Its results are not results of the data set's test part.
        options: how events become spikes, such as dt_ms, n_steps, pool; in TOML they stand beside `name`. Which there
            are depends on the data set (`sparsesnn.datasets.defaults`).
    """

    name: str = "digits"
    dir: str = ""
    cache_dir: str = ""
    download: bool = False
    valid: str = "random:0.1"
    test: str = "own"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class NetConfig:
    """The network: as a text with arguments for its hidden populations, or population by population.

    Args:
        text: such as "700-256r-20", see `sparsesnn.parse_net`; "auto" as first or last size is that of the data.
        delay: of all connections, steps.
        capacity: most ids per list; 0: no limit.
        tau_range: [low, high], time constants in steps: β of the hidden neurons is then exp(-1/τ) with τ spread evenly
            between them on a logarithmic scale, neuron by neuron, in place of `beta`. Empty: every neuron has `beta`.
        readout_beta, readout_bias, readout_learn_beta: of the LI readout.
        populations, connections: the form of `Network.to_dict`; then all other keys of the section have no meaning.

    The other keys are arguments of the hidden populations, see `sparsesnn.layers.Population` and `CubaLIF` (alpha).
    """

    text: str = "auto-128r-auto"
    delay: int = 0
    alpha: PerNeuron = 0.9
    beta: PerNeuron = 0.95
    threshold: PerNeuron = 1.0
    grad_threshold: PerNeuron = 0.9
    reset: str = "subtract"
    reset_decays: bool = False
    detach_reset: bool = True
    bias: bool = False
    gain: float = 1.0
    capacity: int = 0
    activity: str = "natural"
    learn_alpha: bool = False
    learn_beta: bool = False
    learn_threshold: bool = False
    tau_range: tuple[float, ...] = ()
    readout_beta: PerNeuron = 0.95
    readout_bias: bool = False
    readout_learn_beta: bool = False
    surrogate: Surrogate = field(default_factory=fast_sigmoid)
    populations: dict[str, Any] = field(default_factory=dict)
    connections: tuple[dict[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if self.tau_range and not (len(self.tau_range) == 2 and 0 < self.tau_range[0] <= self.tau_range[1] < math.inf):
            raise ConfigError(
                f"net.tau_range: is {list(self.tau_range)}; give two time constants in steps, [low, high], or [] for none"
            )

    def network(self, n_neurons: int, n_classes: int) -> Network:
        """The network for data with that many input neurons and classes.

        Errors: `ConfigError` if the text or a population has no meaning, or the sizes do not fit the data.
        """
        try:
            network = self._described() if self.populations else self._parsed(n_neurons, n_classes)
        except DescriptionError as error:
            message = str(error)
            raise ConfigError(message if message.startswith("net") else f"net: {message}") from None
        source, last = network.populations[network.inputs[0]], network.populations[network.output]
        if source.n != n_neurons or last.n % n_classes:
            raise ConfigError(self._misfit(network, source.n, last.n, n_neurons, n_classes))
        return network

    def _described(self) -> Network:
        return Network.from_dict({"populations": self.populations, "connections": [dict(c) for c in self.connections]})

    def _parsed(self, n_neurons: int, n_classes: int) -> Network:
        parts = self.text.strip().split("-")
        if parts[0] == AUTO:
            parts[0] = str(n_neurons)
        if len(parts) > 1 and re.fullmatch(f"{AUTO}s?", parts[-1]):
            parts[-1] = parts[-1].replace(AUTO, str(n_classes))
        arguments = {f.name: getattr(self, f.name) for f in fields(CubaLIF) if hasattr(self, f.name)}
        arguments["capacity"] = self.capacity or None
        network = parse_net("-".join(parts), **arguments)
        if self.tau_range:
            for name, population in network.populations.items():
                if isinstance(population, Population):
                    network = network.with_population(name, beta=decays(self.tau_range, population.n))
        if isinstance(network.populations[network.output], LI):
            network = network.with_population(
                network.output, beta=self.readout_beta, bias=self.readout_bias, learn_beta=self.readout_learn_beta
            )
        return network.with_delay(self.delay)

    def _misfit(self, network: Network, n_in: int, n_out: int, n_neurons: int, n_classes: int) -> str:
        has = f"the data has {n_neurons} neurons and {n_classes} classes"
        arrived = f"net: {n_in} input and {n_out} output neurons, but {has}"
        if self.populations:
            return (
                f"{arrived}; set n = {n_neurons} for {network.inputs[0]!r} and n = {n_classes} for {network.output!r}"
            )
        parts = self.text.strip().split("-")
        fitting = f"{n_classes}s" if parts[-1].endswith("s") else str(n_classes)
        return f"{arrived}; write --net {'-'.join([str(n_neurons), *parts[1:-1], fitting])}"


@dataclass(frozen=True)
class LossConfig:
    """What is minimised: cross-entropy, and if wanted a punishment of too low or too high activity.

    Args:
        decoding: "max", "mean", "sum" or "last" potential over time, "count" of spikes; "auto": max for an LI
            readout, count for a spiking one.
        label_smoothing: share of the target spread over all classes, in [0, 1).
        lower, upper: bounds of the activity, spikes per neuron and step; 0: none.
        strength_lower, strength_upper: weights of the two terms, see `sparsesnn.loss.activity_regulariser`.
    """

    decoding: str = AUTO
    label_smoothing: float = 0.0
    lower: float = 0.0
    upper: float = 0.0
    strength_lower: float = 100.0
    strength_upper: float = 100.0

    def __post_init__(self) -> None:
        _choice("loss.decoding", self.decoding, (AUTO, *OVER_TIME, "count"))
        _between("loss.label_smoothing", self.label_smoothing, 0, 1, open_end=True)
        for name in ("lower", "upper"):
            _between(f"loss.{name}", getattr(self, name), 0, 1)
        for name in ("strength_lower", "strength_upper"):
            _between(f"loss.{name}", getattr(self, name), 0, math.inf, open_end=True)

    def decoding_for(self, network: Network) -> str:
        """The decoding for this network's readout; `ConfigError` if the one asked for does not fit."""
        readout = isinstance(network.populations[network.output], LI)
        if self.decoding == AUTO:
            return "max" if readout else "count"
        if readout == (self.decoding == "count"):
            allowed = ", ".join(OVER_TIME) if readout else "count"
            kind = "an LI readout" if readout else "spiking"
            raise ConfigError(
                f"loss.decoding: is {self.decoding!r}, but {network.output!r} is {kind}; allowed: {allowed}"
            )
        return self.decoding


@dataclass(frozen=True)
class OptimConfig:
    """How weights change.

    Args:
        name: "adamw", "adam" or "sgd".
        lr: learning rate after the warm-up.
        weight_decay: acts on weights only, not on biases, decays and thresholds.
        momentum: of sgd.
        beta1, beta2, eps: of adam and adamw.
        clip_norm: highest norm of all gradients together; 0: no limit.
        schedule: "cosine" to `final_lr_factor`·lr at the last step, or "constant".
        warmup_epochs: the rate rises in a line over these, fractions allowed; 0: none.
        final_lr_factor: see schedule.
    """

    name: str = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.0
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    clip_norm: float = 0.0
    schedule: str = "cosine"
    warmup_epochs: float = 0.0
    final_lr_factor: float = 0.01

    def __post_init__(self) -> None:
        _choice("optim.name", self.name, ("adamw", "adam", "sgd"))
        _choice("optim.schedule", self.schedule, ("cosine", "constant"))
        for name in ("lr", "weight_decay", "clip_norm", "warmup_epochs"):
            _between(f"optim.{name}", getattr(self, name), 0, math.inf, open_end=True)
        for name in ("momentum", "beta1", "beta2"):
            _between(f"optim.{name}", getattr(self, name), 0, 1, open_end=True)
        _between("optim.eps", self.eps, 1e-30, 1)
        _between("optim.final_lr_factor", self.final_lr_factor, 0, 1)


@dataclass(frozen=True)
class InitConfig:
    """Initial weights: scaled until each population is as active on training data as wanted.

    Args:
        activity: wanted spikes per neuron and step of every spiking population; 0: leave weights as drawn.
        layers: wanted activity of single populations, which then replaces `activity` for them.
        n_batches: training batches to measure on.
        tolerance, mean_shift: see `sparsesnn.init.init_activity`.
        readout_std: standard deviation of the readout's potentials; 0: leave the readout as drawn.
    """

    activity: float = 0.05
    layers: dict[str, float] = field(default_factory=dict)
    n_batches: int = 2
    tolerance: float = 0.1
    mean_shift: float = 0.0
    readout_std: float = 1.0

    def __post_init__(self) -> None:
        for name, value in {"activity": self.activity, **{f"layers.{k}": v for k, v in self.layers.items()}}.items():
            _between(f"init.{name}", value, 0, 1, open_end=True)
        _between("init.n_batches", self.n_batches, 1, 1_000_000)
        _between("init.tolerance", self.tolerance, 0, 1)
        _between("init.mean_shift", self.mean_shift, -100, 100)
        _between("init.readout_std", self.readout_std, 0, 1e6)


@dataclass(frozen=True)
class TrainConfig:
    """The run itself.

    Args:
        epochs: passes through the training part.
        batch: samples per step.
        seed: of the initial weights, the order of samples and the augmentation.
        backend: "cpu" (event-sparse engine), "dense" (PyTorch baseline), "ipu-model" (the IPU program on an emulated
            machine) or "ipu".
        target: machine of the two IPU backends, as `sparsesnn.partition.target` names it: "ipu-mk2:1x64".
        keep_every: of the IPU backends: potentials are kept of so many steps at a time, and computed again for the others:
            less memory a tile, more cycles, the same numbers; about the root of the steps needs least. 1: all are kept.
        weight_dtype: "float32", or "bfloat16" (cpu) or "float16" (the IPU backends): weights are read rounded, half the
            bytes; those that learn stay float32.
        dense_mode: how "dense" computes: "step", "hoist", "fused", "compile", or "auto", the fastest of them.
        device: of the backend dense: "cpu", "cuda", "cuda:0", …
        precision: of the products of the backend dense: "float32" or "bfloat16"; state, weights that learn and
            evaluation stay float32.
        threads: worker threads of a rank; 0: all cores, shared by the ranks of a host.
        prefetch: batches made ahead by a thread; 0: none.
        bucket_batches: batches whose samples are sorted by length together, so that those of one batch are of similar
            length, see `sparsesnn.host.stream.Stream`; 0: none.
        drop_last: leave out the last batch of an epoch where it is smaller.
        checkpoint_seconds: a checkpoint within an epoch after this time, beside the one after every epoch; 0: none.
        checkpoint_batches: the same after this many batches; 0: none.
        tensorboard: write TensorBoard files, if TensorBoard is installed.
        plots: draw PNGs, if matplotlib is installed.
    """

    epochs: int = 20
    batch: int = 64
    seed: int = 0
    backend: str = "cpu"
    target: str = "ipu-mk2:1x64"
    keep_every: int = 1
    weight_dtype: str = "float32"
    dense_mode: str = "auto"
    device: str = "cpu"
    precision: str = "float32"
    threads: int = 0
    prefetch: int = 8
    bucket_batches: int = 0
    drop_last: bool = False
    checkpoint_seconds: float = 300.0
    checkpoint_batches: int = 0
    tensorboard: bool = True
    plots: bool = True

    def __post_init__(self) -> None:
        _choice("train.backend", self.backend, engines.NAMES)
        engines.check_options(self.backend, self.engine_options(), where="train.")
        for name, low, high in (
            ("epochs", 1, 1_000_000),
            ("batch", 1, 1_000_000),
            ("keep_every", 1, 1_000_000),
            ("seed", 0, 2**63 - 1),
            ("threads", 0, 1024),
            ("prefetch", 0, 1000),
            ("bucket_batches", 0, 1_000_000),
            ("checkpoint_seconds", 0, 1e9),
            ("checkpoint_batches", 0, 1_000_000_000),
        ):
            _between(f"train.{name}", getattr(self, name), low, high)

    def engine_options(self) -> Options:
        """The options that single engines read."""
        return Options(**{f.name: getattr(self, f.name) for f in fields(Options)})


@dataclass(frozen=True)
class ParallelConfig:
    """How the ranks of mpirun share the work; without it there is one rank. Results do not depend on it.

    Args:
        replicas: ranks, or groups of them, that see different samples; 0: as many as the ranks allow. On the IPU backends,
            which run on one rank: copies of the program, each on IPUs as `train.target` says; 0: one. They add gradients in
            an order of their own: last bits of weights depend on it there.
        shards: ranks that share the neurons of one replica; 0: one, or as many as `replicas` leaves.
    """

    replicas: int = 0
    shards: int = 0

    def __post_init__(self) -> None:
        _between("parallel.replicas", self.replicas, 0, 1_000_000)
        _between("parallel.shards", self.shards, 0, 1_000_000)


@dataclass(frozen=True)
class Config:
    """All of a run; `Config.resolve` makes one, `to_toml` and `to_dict` write it out."""

    data: DataConfig = field(default_factory=DataConfig)
    net: NetConfig = field(default_factory=NetConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    init: InitConfig = field(default_factory=InitConfig)
    augment: Augment = field(default_factory=Augment)
    train: TrainConfig = field(default_factory=TrainConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)

    @classmethod
    def resolve(cls, *layers: Mapping[str, Any]) -> Config:
        """From tables, the later ones on top, and the defaults of the data set that they name below all.

        Errors: `ConfigError` for unknown sections, keys and data sets, wrong types and values out of range.
        """
        given: dict[str, Any] = {}
        for layer in layers:
            _check_sections(layer)
            # a text given later replaces a description given before, and the reverse
            net = layer.get("net", {})
            if "text" in net or "populations" in net:
                given["net"] = {k: v for k, v in given.get("net", {}).items() if (k in DESCRIBED) != ("text" in net)}
            given = schema.merge(given, layer)
        net = given.get("net", {})
        if "populations" in net and (others := sorted(set(net) - set(DESCRIBED))):
            raise ConfigError(
                f"net: populations describe the whole network, {', '.join(others)} would have no effect; remove them"
            )
        name = given.get("data", {}).get("name", DataConfig.name)
        if name not in datasets.NAMES:
            hint = f"; a file is given as --config {name}" if str(name).endswith(".toml") else ""
            raise ConfigError(f"data.name: is {name!r}; allowed: {', '.join(datasets.NAMES)}{hint}")
        below = schema.merge({"data": {"name": name, **datasets.defaults(name)}}, DATASET_DEFAULTS.get(name, {}))
        return cls._build(schema.merge(below, given))

    @classmethod
    def _build(cls, table: Mapping[str, Any]) -> Config:
        data = dict(table["data"])
        options = datasets.defaults(data["name"])
        own = [f.name for f in fields(DataConfig) if f.name != "options"]
        for key in data:
            if key not in own and key not in options:
                raise ConfigError(schema.unknown(key, [*own, *options], "data"))
        chosen = {key: _like(data[key], options[key], f"data.{key}") for key in options}
        section = {key: data[key] for key in own if key in data}
        return schema.build(cls, {**table, "data": {**section, "options": chosen}})

    @classmethod
    def from_dict(cls, table: Any) -> Config:
        """The inverse of `to_dict`; every key that is missing takes the default of the data set."""
        if not isinstance(table, Mapping):
            raise ConfigError(f"configuration: is {table!r}; give a table of sections")
        return cls.resolve(table)

    @classmethod
    def from_toml(cls, text: str, source: str = "configuration") -> Config:
        return cls.resolve(schema.read_toml(text, source))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for strict JSON, every value written out."""
        table: dict[str, Any] = schema.plain(self)
        table["data"].update(table["data"].pop("options"))
        table["net"] = {k: v for k, v in table["net"].items() if (k in DESCRIBED) == bool(self.net.populations)}
        return table

    def to_toml(self) -> str:
        return schema.write_toml(self.to_dict())

    def with_values(self, table: Mapping[str, Any]) -> Config:
        """The same configuration with some values replaced: `config.with_values({"train": {"seed": 1}})`."""
        return Config.resolve(self.to_dict(), table)


#: what differs from the defaults of the dataclasses, per data set
DATASET_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "digits": {"data": {"valid": "random:0.2"}, "optim": {"lr": 1e-2}, "train": {"epochs": 30}},
    "dvsgesture": {
        "data": {"valid": "users:20,21,22,23"},
        "net": {"text": "auto-256r-auto"},
        "train": {"epochs": 50, "batch": 32},
    },
    "nmnist": {"net": {"text": "auto-256-auto"}, "train": {"epochs": 20}},
    "shd": {"data": {"valid": "speakers:0,1"}, "net": {"text": "auto-256r-auto"}, "train": {"epochs": 50}},
    "ssc": {"data": {"valid": "own"}, "net": {"text": "auto-256r-auto"}, "train": {"epochs": 30}},
    "synthetic": {"optim": {"lr": 5e-3}, "train": {"epochs": 5}},
}

#: keys that may change between a run and its continuation: they have no part in the numbers
FREE_KEYS = frozenset(
    {
        "data.dir",
        "data.cache_dir",
        "data.download",
        "train.threads",
        "train.keep_every",
        "train.prefetch",
        "train.checkpoint_seconds",
        "train.checkpoint_batches",
        "train.tensorboard",
        "train.plots",
        "parallel.replicas",
        "parallel.shards",
    }
)


def differences(old: Config, new: Config) -> list[str]:
    """Keys in which two configurations differ in a way that forbids to continue one as the other, as "key: old → new".

    `train.epochs` may grow where the learning rate does not depend on it.
    """
    before, after = schema.flatten(old.to_dict()), schema.flatten(new.to_dict())
    free = set(FREE_KEYS)
    if engines.replicas_count(new.train.backend):
        free.discard("parallel.replicas")
    if new.optim.schedule == "constant" and new.train.epochs >= old.train.epochs:
        free.add("train.epochs")
    names = [*before, *(name for name in after if name not in before)]
    return [
        f"{name}: {before.get(name)!r} → {after.get(name)!r}"
        for name in names
        if name not in free and before.get(name) != after.get(name)
    ]


def _check_sections(layer: Mapping[str, Any]) -> None:
    allowed = [f.name for f in fields(Config)]
    for key, value in layer.items():
        if key not in allowed:
            raise ConfigError(schema.unknown(key, allowed))
        if not isinstance(value, Mapping):
            raise ConfigError(f"{key}: is {value!r}; give a table, [{key}]")


def _like(value: Any, default: Any, where: str) -> Any:
    """`value` if it has the type of `default`; a whole number is taken where a float is meant."""
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if default is not None and type(value) is not type(default):
        raise ConfigError(f"{where}: is {value!r} ({type(value).__name__}); give a {type(default).__name__}")
    return value


def _choice(where: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{where}: is {value!r}; allowed: {', '.join(allowed)}")


def _between(where: str, value: float, low: float, high: float, *, open_end: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"{where}: is {value!r}; give a number")
    if not low <= value <= high or (open_end and value == high):
        raise ConfigError(f"{where}: is {value!r}; allowed: {low:g} to {'below ' if open_end else ''}{high:g}")
