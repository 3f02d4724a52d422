"""The configuration of a run: all sections, read from several sources and written out."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from sparsesnn import datasets, engines
from sparsesnn.arguments import current_names
from sparsesnn.config import tables
from sparsesnn.config.net import NetConfig
from sparsesnn.config.removed import without_removed
from sparsesnn.config.sections import (
    DataConfig,
    DropoutConfig,
    InitConfig,
    LossConfig,
    OptimConfig,
    ParallelConfig,
    TrainConfig,
)
from sparsesnn.datasets import Augment
from sparsesnn.datasets.loading import absolute_place
from sparsesnn.errors import ConfigError
from sparsesnn.options import Option, former_names
from sparsesnn.wording import meant

#: keys of the section net that describe it population by population
_DESCRIBED = ("populations", "connections")


@dataclass(frozen=True)
class Config:
    """The whole configuration of a run; `Config.resolve` makes one, `to_toml` and `to_dict` write it out."""

    data: DataConfig = field(default_factory=DataConfig)
    net: NetConfig = field(default_factory=NetConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    init: InitConfig = field(default_factory=InitConfig)
    augment: Augment = field(default_factory=Augment)
    dropout: DropoutConfig = field(default_factory=DropoutConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)

    @classmethod
    def resolve(cls, *layers: Mapping[str, Any]) -> Config:
        """Makes a configuration from tables such as {"data": {"name": "digits"}, "train": {"epochs": 5}}.

        Later tables override earlier ones, and all override the recipe of the data set that they name.

        Errors: `ConfigError` for unknown sections, keys and data sets, wrong types and values out of range.
        """
        given: dict[str, Any] = {}
        for layer in layers:
            _check_sections(layer)
            layer = {section: _current(section, table) for section, table in layer.items()}
            # a text given later replaces a description given before, and the reverse
            net = layer.get("net", {})
            if "text" in net or "populations" in net:
                given["net"] = {k: v for k, v in given.get("net", {}).items() if (k in _DESCRIBED) != ("text" in net)}
            given = tables.merge(given, layer)
        net = given.get("net", {})
        if "populations" in net and (others := sorted(set(net) - set(_DESCRIBED))):
            raise ConfigError(
                f"net: populations describe the whole network, so {', '.join(others)} would have no effect; remove them"
            )
        name = given.get("data", {}).get("name", DataConfig.name)
        if name not in datasets.NAMES:
            hint = f"; a file is given as --config {name}" if str(name).endswith(".toml") else ""
            if not hint and isinstance(name, str) and Path(name).suffix:
                hint = f"; your own events are the data set events: give events --data {name}"
            raise ConfigError(
                f"data.name: is {name!r}; {meant(name, datasets.NAMES)}allowed: {', '.join(datasets.NAMES)}{hint}"
            )
        below = tables.merge({"data": {"name": name}}, datasets.recipe(name))
        try:
            return tables.build(cls, tables.merge(below, given))
        except tables.EntryError as error:
            raise ConfigError(f"{_source(error.name, layers)}{error}{_elsewhere(error)}") from None

    @classmethod
    def from_dict(cls, table: Any) -> Config:
        """The inverse of `to_dict`; missing keys take the default of the data set."""
        if not isinstance(table, Mapping):
            raise ConfigError(f"configuration: is {table!r}; give a table of sections")
        return cls.resolve(table)

    @classmethod
    def from_toml(cls, text: str, source: str = "configuration") -> Config:
        return cls.resolve(tables.read_toml(text, source))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for strict JSON, every value written out."""
        return self._whole(tables.plain(self))

    def to_toml(self) -> str:
        """TOML that reads back as the same configuration, with a comment above every option that explains it."""
        return tables.commented(Config, self._whole(tables.plain(self, infinite=float))).lstrip("\n")

    def _whole(self, table: dict[str, Any]) -> dict[str, Any]:
        """Without the form of the network that is not used, and the options of other packages' engines that are not used."""
        table["net"] = {k: v for k, v in table["net"].items() if (k in _DESCRIBED) == bool(self.net.populations)}
        unused = engines.unused_options(self.train.backend)
        table["train"] = {k: v for k, v in table["train"].items() if k not in unused}
        return table

    def with_values(self, table: Mapping[str, Any]) -> Config:
        """The same configuration with some values replaced: `config.with_values({"train": {"seed": 1}})`."""
        mine, name = self.to_dict(), (table.get("data") or {}).get("name", self.data.name)
        if name != self.data.name and name in datasets.NAMES:
            # without the options that the other data set lacks, unless they were set
            own, known = datasets.defaults(self.data.name), datasets.defaults(name)
            mine["data"] = {k: v for k, v in mine["data"].items() if k not in own or k in known or v != own[k]}
        made = Config.resolve(mine, table)
        same = (made.data.name, made.data.dir) == (self.data.name, self.data.dir)
        return made._with_code() if same and self.data.runs_code else made

    def with_data_dir(self, place: str | Path) -> Config:
        """The same configuration with data from `place`, given by the caller.

        Only here may it be FILE.py:FUNCTION: code named in a configuration file or a checkpoint does not run.
        """
        return self.with_values({"data": {"dir": absolute_place(place)}})._with_code()

    def _with_code(self) -> Config:
        object.__setattr__(self.data, "runs_code", True)
        return self

    def options(self) -> dict[str, Option]:
        """The declaration of every option, by section.key."""
        return all_options(self.to_dict())


def all_options(table: Mapping[str, Any] | None = None) -> dict[str, Option]:
    """The options of every section, by section.key; without a table, those of all data sets."""
    declared = {}
    for section, known in tables.keys_of(Config, {}).items():
        keys = tables.keys_of(known.type, (table or {}).get(section, {}))
        declared.update({f"{section}.{key}": option for key, option in keys.items()})
    return declared


def differences(old: Config, new: Config, *, finished: bool = False) -> list[str]:
    """Differences between two configurations that prevent continuing one as the other, as "key: old → new".

    `train.epochs` may grow if the learning rate does not depend on it, or if the old run is `finished`;
    `train.backend` may be another engine with the same bits.
    """
    before, after = tables.flatten(old.to_dict()), tables.flatten(new.to_dict())
    free = {name for name, known in new.options().items() if known.free}
    if engines.replicas_count(new.train.backend):
        free.discard("parallel.replicas")
    if engines.have_same_bits(old.train.backend, new.train.backend):
        free |= {"train.backend", "train.device"}
    if (finished or new.optim.schedule == "constant") and new.train.epochs >= old.train.epochs:
        free.add("train.epochs")
    names = [*before, *(name for name in after if name not in before)]
    return [
        f"{name}: {before.get(name)!r} → {after.get(name)!r}"
        for name in names
        if name not in free and before.get(name) != after.get(name)
    ]


def _source(name: str, layers: Sequence[Mapping[str, Any]]) -> str:
    """The file, as the beginning of a message, that gives an entry: that of the last table that has it."""
    for layer in reversed(layers):
        if any(key == name or key.startswith(f"{name}.") for key in tables.flatten(layer)):
            return f"{layer.source}: " if isinstance(layer, tables.FileTable) else ""
    return ""


def _elsewhere(error: tables.EntryError) -> str:
    """A hint if an unknown key is one of another section."""
    key = error.name.rpartition(".")[2]
    sections = [name.partition(".")[0] for name in all_options() if name.partition(".")[2] == key]
    return f"; it is in [{sections[0]}]" if error.is_unknown and sections else ""


@functools.cache
def _former_names(section: str) -> dict[str, str]:
    return former_names(tables.keys_of(tables.keys_of(Config, {})[section].type, {}))


def _current(section: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """A section with the current names of its options, without removed ones."""
    try:
        return current_names(without_removed(section, table), _former_names(section), section)
    except TypeError as error:
        raise ConfigError(str(error)) from None


def _check_sections(layer: Mapping[str, Any]) -> None:
    allowed = [f.name for f in fields(Config)]
    for key, value in layer.items():
        if key not in allowed:
            raise ConfigError(tables.unknown(key, allowed))
        if not isinstance(value, Mapping):
            raise ConfigError(f"{key}: is {value!r}; give a table, [{key}]")
