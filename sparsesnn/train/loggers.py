"""Loggers from other packages, which receive the numbers of a run while it trains, besides its folder.

A package offers one in its pyproject.toml, and `train.loggers = "wandb"` (`--logger wandb`) selects it:

    [project.entry-points."sparsesnn.loggers"]
    wandb = "my_package:WandbLogger"

examples/loggers.py has two, for Weights & Biases and MLflow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Protocol

from sparsesnn.config import Config
from sparsesnn.engines.registry import is_installed
from sparsesnn.errors import ConfigError
from sparsesnn.train.report import optional

GROUP = "sparsesnn.loggers"


class Logger(Protocol):
    """Receives the numbers of a run. It is created by `logger(config, folder)`: the run's configuration and its folder.

    Only the first rank has loggers. An error in one becomes a warning, and the run continues.
    """

    def append(self, record: Mapping[str, Any]) -> None:
        """Receives the record of an epoch, a line of `metrics.jsonl`; after a resume epochs continue where they stopped."""

    def close(self, result: Mapping[str, Any] | None) -> None:
        """Called once, with the content of `result.json`, or None if the run was stopped or failed."""


@dataclass(frozen=True)
class Guarded:
    """A logger whose errors become warnings, so that they do not end the run."""

    name: str
    logger: Logger

    def append(self, record: Mapping[str, Any]) -> None:
        with optional(self.name):
            self.logger.append(record)

    def close(self, result: Mapping[str, Any] | None) -> None:
        with optional(self.name):
            self.logger.close(result)


def make_loggers(config: Config, folder: Path) -> list[Guarded]:
    """The loggers that `train.loggers` names. Errors: `ConfigError` for one that no installed package offers."""
    names = [name.strip() for name in config.train.loggers.split(",") if name.strip()]
    offered = {point.name: point for point in entry_points(group=GROUP) if is_installed(point)} if names else {}
    if missing := [name for name in names if name not in offered]:
        there = ", ".join(sorted(offered)) or "none"
        raise ConfigError(
            f"train.loggers: no installed package offers {missing[0]!r} (entry point group {GROUP}); available: {there}; "
            "install one, or change the name"
        )
    made = (guarded(f"logger {name}", partial(_make, offered[name], config, folder)) for name in names)
    return [logger for loggers in made for logger in loggers]


def _make(point: EntryPoint, config: Config, folder: Path) -> Logger:
    logger: Logger = point.load()(config, folder)
    return logger


def guarded(name: str, make: Callable[[], Logger]) -> list[Guarded]:
    """The logger that `make` returns, in a list that is empty, with a warning, if it fails."""
    made: list[Guarded] = []
    with optional(name):
        made.append(Guarded(name, make()))
    return made


def close_all(loggers: Sequence[Guarded], result: Mapping[str, Any] | None) -> None:
    """Closes every logger."""
    for logger in loggers:
        logger.close(result)
