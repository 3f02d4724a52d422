"""Where the numbers of a run go while it trains, besides its folder: loggers that other packages offer.

A package offers one in its pyproject.toml, and `train.loggers = "wandb"` (`--logger wandb`) asks for it:

    [project.entry-points."sparsesnn.loggers"]
    wandb = "my_package:WandbLogger"

examples/loggers.py has two, for Weights & Biases and MLflow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from sparsesnn.config import Config
from sparsesnn.errors import ConfigError

GROUP = "sparsesnn.loggers"


class Logger(Protocol):
    """Takes the numbers of a run. It is made as `logger(config, folder)`: the run's configuration and its folder.

    Only the first rank has loggers. What they raise ends the run; its last checkpoint stands.
    """

    def append(self, record: Mapping[str, Any]) -> None:
        """Takes the record of an epoch, a line of `metrics.jsonl`; after a resume epochs go on where they stopped."""

    def close(self, result: Mapping[str, Any] | None) -> None:
        """Called once, with what `result.json` holds, or None where the run was stopped or failed."""


def make_loggers(config: Config, folder: Path) -> list[Logger]:
    """The loggers that `train.loggers` names. Errors: `ConfigError` for one that no installed package offers."""
    names = [name.strip() for name in config.train.loggers.split(",") if name.strip()]
    offered = {point.name: point for point in entry_points(group=GROUP)} if names else {}
    if missing := [name for name in names if name not in offered]:
        there = ", ".join(sorted(offered)) or "none"
        raise ConfigError(
            f"train.loggers: no installed package offers {missing[0]!r} (entry point group {GROUP}); there are: {there}; "
            "install one, or change the name"
        )
    return [offered[name].load()(config, folder) for name in names]


def close_all(loggers: Sequence[Logger], result: Mapping[str, Any] | None) -> None:
    """Closes every logger."""
    for logger in loggers:
        logger.close(result)
