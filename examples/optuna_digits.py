"""A search over learning rate, decay and surrogate with Optuna, which stops trials that fall behind.

    pip install '.[digits]' optuna
    python examples/optuna_digits.py --trials 20 --epochs 8

Validation decides; a search never looks at the test part. Every trial has its own run folder, and those of pruned trials
can be inspected, too. Trials may run in several processes: give them one `--storage`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna

from sparsesnn.train import Config, train


def objective(trial: optuna.Trial, epochs: int, out: Path) -> float:
    """Best validation accuracy of one run."""
    table = {
        "data": {"name": "digits"},
        "net": {
            "text": "auto-64r-auto",
            "beta": trial.suggest_float("beta", 0.7, 0.99),
            "surrogate": {"slope": trial.suggest_float("slope", 2.0, 30.0, log=True)},
        },
        "optim": {"lr": trial.suggest_float("lr", 3e-4, 3e-2, log=True)},
        "train": {"epochs": epochs, "plots": False, "tensorboard": False},
    }

    def report(record: Mapping[str, Any]) -> None:
        trial.report(record["valid_accuracy"], record["epoch"])
        if trial.should_prune():
            raise optuna.TrialPruned

    result = train(Config.resolve(table), out=out / f"trial-{trial.number}", on_epoch=report)
    assert result.valid_accuracy is not None, "digits hold out a validation part"
    return result.valid_accuracy


def main(arguments: Sequence[str] | None = None) -> optuna.Study:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("runs/optuna"))
    parser.add_argument("--storage", help="a data base that several processes share, such as sqlite:///digits.db")
    options = parser.parse_args(arguments)
    study = optuna.create_study(
        study_name="digits",
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=0),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=2),
        storage=options.storage,
        load_if_exists=True,
    )
    study.optimize(lambda trial: objective(trial, options.epochs, options.out), n_trials=options.trials)
    print(f"best validation accuracy {100 * study.best_value:.1f} % with {study.best_params}")
    return study


if __name__ == "__main__":
    main()
