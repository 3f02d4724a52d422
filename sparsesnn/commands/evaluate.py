"""`sparsesnn eval`: measure a trained network."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

EXAMPLES = """\
examples:
  sparsesnn eval runs/a                      test accuracy of the epoch that validation chose
  sparsesnn eval runs/a --weights last --split valid --json"""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "eval",
        help="measure a trained network",
        description="Runs a trained network over one part of its data set.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_eval)
    parser.add_argument("checkpoint", type=Path, metavar="RUN", help="a run folder, or the checkpoint.json in it")
    parser.add_argument("--data", metavar="DIR", help="folder of the data set's files (default: as in training)")
    parser.add_argument("--split", choices=("test", "valid", "train"), default="test", help="default: test")
    parser.add_argument(
        "--weights", choices=("best", "last"), default="best", help="best: those that validation chose (default)"
    )
    parser.add_argument("--backend", metavar="NAME", help="cpu or dense (default: as in training)")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="worker threads; 0: all cores")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _eval(options: argparse.Namespace) -> int:
    from sparsesnn.train.evaluation import evaluate_run
    from sparsesnn.train.report import percent
    from sparsesnn.wording import count

    result = evaluate_run(
        options.checkpoint,
        data_dir=options.data,
        split=options.split,
        weights=options.weights,
        backend=options.backend,
        threads=options.threads,
    )
    if options.json:
        print(json.dumps(result, allow_nan=False))
        return 0
    of = f"{count(result['n_samples'], 'sample')}, after epoch {result['epoch']}"
    print(f"{options.split} accuracy {percent(result['accuracy'])} of {of}")
    print(f"loss {result['loss']:.4f}, {result['samples_per_s']:,.0f} samples/s")
    for name, activity in result["activity"].items():
        print(f"{name}: activity {activity:.4f}, dropped {result['dropped'][name]:,}")
    return 0
