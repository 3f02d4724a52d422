"""`./dev bench convergence`: does event sparsity cost accuracy?"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from sparsesnn.config.flags import add_flags, given

EXAMPLES = """\
examples:
  ./dev bench convergence shd --data DIR
  ./dev bench convergence digits --epochs 10 --seeds 0,1,2,3,4
  ./dev bench convergence shd --data DIR --settings 10:0.9,5:0.9,5:0.5,2:0.9

networks trained, once per seed: dense (every neuron gets a gradient), sparse without a limit, and sparse with each of
  --settings, max activity in percent of a layer's neurons : grad_threshold (1: only neurons that fired get a gradient).
--out holds summary.md (read this), summary.csv, convergence.csv (a row a run), convergence.png and runs/; a benchmark
  that was stopped continues where it stopped. Validation is taken from the training part and chooses the epoch."""


def register(what: Any) -> None:
    parser = what.add_parser(
        "convergence",
        help="accuracy and epochs of dense and sparse training, over seeds",
        description="Trains dense, sparse, and sparse with limits, and compares accuracy with confidence intervals.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_convergence)
    parser.add_argument("dataset", metavar="DATASET", help="digits, shd, nmnist, … as in 'sparsesnn train'")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/convergence"), metavar="DIR", help="default: %(default)s"
    )
    parser.add_argument("--seeds", default="0,1,2", metavar="0,1,…", help="default: %(default)s")
    parser.add_argument("--settings", default="10:0.9,5:0.9,5:0.5,10:1", metavar="P:θ,…", help="default: %(default)s")
    add_flags(parser)
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def _convergence(options: argparse.Namespace) -> int:
    from sparsesnn.commands.numbers import integers
    from studies.convergence import as_settings, bench_convergence, default_base

    summary = bench_convergence(
        default_base(options.dataset, [{"train": {"threads": 1}}, given(options)]),  # small networks: one thread
        options.out,
        settings=as_settings(options.settings),
        seeds=integers("--seeds", options.seeds, least=0),
        stream=sys.stderr,
    )
    print(json.dumps(summary, allow_nan=False) if options.json else (options.out / "summary.md").read_text(), end="\n")
    return 0
