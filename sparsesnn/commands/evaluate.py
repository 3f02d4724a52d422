"""`sparsesnn eval`: measure a trained network."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from sparsesnn.commands import neuron_files

EXAMPLES = """\
examples:
  sparsesnn eval runs/a                      test accuracy of the epoch chosen by validation
  sparsesnn eval runs/a --weights last --split valid --json
  sparsesnn eval runs/a --predictions test.csv --confusion --per-class   every sample; runs/a/confusion.png; each class"""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "eval",
        help="measure a trained network",
        description="Measures a trained network on one part of its data set: accuracy, or the error of values.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_eval)
    parser.add_argument("checkpoint", type=Path, metavar="RUN", help="a run folder, or the checkpoint.json in it")
    parser.add_argument(
        "--data", metavar="DIR", help="the data set's files (default: as in training), or FILE.py:FUNCTION"
    )
    neuron_files.add_flag(parser)
    parser.add_argument("--split", choices=("test", "valid", "train"), default="test", help="default: test")
    parser.add_argument(
        "--weights",
        choices=("best", "last"),
        default="best",
        help="best: of the epoch with the best validation (default); last: of the last epoch",
    )
    parser.add_argument("--backend", metavar="NAME", help="cpu or dense (default: as in training)")
    parser.add_argument(
        "--integers", type=Path, metavar="FILE", help="use the weights from 'sparsesnn quantize RUN FILE'"
    )
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="worker threads; 0: all cores")
    parser.add_argument(
        "--predictions",
        type=Path,
        metavar="FILE",
        help="write a CSV file with the label and the output of every sample, or step",
    )
    parser.add_argument(
        "--confusion", action="store_true", help="print the confusion matrix and draw confusion.png in the run folder"
    )
    parser.add_argument("--per-class", action="store_true", help="print precision, recall and F1 of every class")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _eval(options: argparse.Namespace) -> int:
    from sparsesnn.errors import ConfigError
    from sparsesnn.train.evaluation import evaluate_run
    from sparsesnn.train.predictions import Confusion, Predictions
    from sparsesnn.train.report import percent, shown_score
    from sparsesnn.wording import count, printable

    predictions = Predictions()

    result = evaluate_run(
        options.checkpoint,
        data_dir=options.data,
        split=options.split,
        weights=options.weights,
        backend=options.backend,
        threads=options.threads,
        predictions=predictions,
        integers=options.integers,
    )
    if options.predictions is not None:
        predictions.write(options.predictions)
    task = predictions.task
    if task.has_values and (options.confusion or options.per_class):
        raise ConfigError("--confusion, --per-class: this run predicts values, not classes; leave them out")
    confusion = Confusion(0) if task.has_values else predictions.confusion()
    if options.confusion:
        result["confusion"] = confusion.counts.tolist()
    if options.per_class:
        result["per_class"] = confusion.per_class(predictions.names)
    if options.json:
        print(json.dumps(result, allow_nan=False))
        if options.confusion:
            _draw(options, confusion, predictions.names, result)
        return 0
    of = f"{count(result['n_samples'], 'sample')}, after epoch {result['epoch']}"
    if task.per_step:
        of = f"{count(result['n_labels'], 'value' if task.has_values else 'labeled step')} in {of}"
    scores = ", ".join(shown_score(name, result[name]) for name in ("accuracy", "rmse", "r2") if name in result)
    print(f"{options.split} {scores} of {of}")
    print(f"loss {result['loss']:.4f}, {result['samples_per_s']:,.0f} samples/s")
    for name, activity in result["activity"].items():
        print(f"{name}: activity {activity:.4f}, dropped {result['dropped'][name]:,}")
    for row in result.get("per_class", ()):
        of = count(row["n_samples"], "step" if task.per_step else "sample")
        shares = ", ".join(f"{what} {percent(row[what])}" for what in ("precision", "recall", "f1"))
        print(printable(f"class {row['name']}: {shares} ({of})"))
    if options.confusion:
        picture = _draw(options, confusion, predictions.names, result)
        drawn = "" if picture is None else f", drawn to {printable(picture)}"
        print(f"confusion matrix (a row per class, a column per predicted class){drawn}:")
        width = len(str(max(map(max, result["confusion"])))) + 1
        for row in result["confusion"]:
            print("".join(f"{n:{width}}" for n in row))
    if options.predictions is not None:
        print(f"predictions: {printable(options.predictions)}")
    return 0


def _draw(options: argparse.Namespace, confusion: Any, names: Any, result: Any) -> Path | None:
    """The picture; None, with a warning, if it cannot be drawn: the numbers are the result."""
    from sparsesnn.train.plots import plot_confusion
    from sparsesnn.train.report import optional

    folder = options.checkpoint if options.checkpoint.is_dir() else options.checkpoint.parent
    path: Path = folder / "confusion.png"
    title = f"{folder.name}, {options.split} part, after epoch {result['epoch']}"
    drawn: Path | None = None
    with optional("confusion.png"):
        plot_confusion(confusion.counts, names, path, title=title)
        drawn = path
    return drawn  # noqa: RET504 - `optional` may leave its block early
