"""Loggers for Weights & Biases and MLflow, of a few lines each.

    pip install wandb
    python examples/loggers.py digits --to wandb

Here the program hands the logger to `train`. To have it in every `sparsesnn train --logger wandb`, offer it in a package of
yours:

    [project.entry-points."sparsesnn.loggers"]
    wandb = "my_package:WandbLogger"
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparsesnn.train import Config, Report, Result, train


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a record, those of populations as `activity/hidden`."""
    found: dict[str, float] = {}
    for key, value in record.items():
        for name, number in value.items() if isinstance(value, Mapping) else [("", value)]:
            if isinstance(number, (int, float)):
                found[f"{key}/{name}" if name else key] = number
    return found


class WandbLogger:
    """Each epoch is a step of a run of Weights & Biases."""

    def __init__(self, config: Config, folder: Path) -> None:
        import wandb

        self.run = wandb.init(project="sparsesnn", name=folder.name, dir=str(folder), config=config.to_dict())

    def append(self, record: Mapping[str, Any]) -> None:
        self.run.log(numbers(record), step=record["epoch"])

    def close(self, result: Mapping[str, Any] | None) -> None:
        if result is not None:
            self.run.summary["test_accuracy"] = result["test_accuracy"]
        self.run.finish(exit_code=0 if result is not None else 1)


class MlflowLogger:
    """Each epoch is a step of a run of MLflow."""

    def __init__(self, config: Config, folder: Path) -> None:
        import mlflow

        self.mlflow = mlflow
        mlflow.start_run(run_name=folder.name)
        mlflow.log_params({f"{section}.{key}": v for section, t in config.to_dict().items() for key, v in t.items()})

    def append(self, record: Mapping[str, Any]) -> None:
        self.mlflow.log_metrics(numbers(record), step=record["epoch"])

    def close(self, result: Mapping[str, Any] | None) -> None:
        if result is not None:
            self.mlflow.log_metric("test_accuracy", result["test_accuracy"])
        self.mlflow.end_run("FINISHED" if result is not None else "FAILED")


def main(arguments: Sequence[str] | None = None) -> Result:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("dataset", nargs="?", default="digits")
    parser.add_argument("--to", choices=("wandb", "mlflow"), default="wandb")
    parser.add_argument("--out", type=Path, default=Path("runs/logged"))
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args(arguments)
    config = Config.resolve({"data": {"name": options.dataset}, "train": {"epochs": options.epochs}})
    logger = (WandbLogger if options.to == "wandb" else MlflowLogger)(config, options.out)
    result = None
    try:
        result = train(config, out=options.out, report=Report(), on_epoch=logger.append)
        return result
    finally:
        logger.close(None if result is None else vars(result))


if __name__ == "__main__":
    main()
