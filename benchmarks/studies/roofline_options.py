"""`./dev bench roofline`: a training step against the limits of the machine."""

from __future__ import annotations

import argparse
import json
from typing import Any

from sparsesnn.commands.measuring import add_parser, workload_of

EXAMPLES = """\
examples:
  ./dev bench roofline
  ./dev bench roofline --net 700-1024r-20 --threads 1 --json

It measures the phases of training steps and, between them, the bandwidths of this machine's caches, by a small C program that is
  compiled for it (CC, or cc). benchmarks/studies/roofline.py has the formulas for the least data of each phase."""


def register(what: Any) -> None:
    text = (
        "a training step against the limits of caches: "
        "Times a training step phase by phase, next to the least time in which this machine can move the step's data."
    )
    flags = "net steps batch input-activity hidden-activity threads repeats"
    parser = add_parser(what, "roofline", text, EXAMPLES, _roofline, flags)
    parser.add_argument(
        "--weights",
        default="float32",
        choices=("float32", "bfloat16"),
        help="how the engine reads the weights (default: %(default)s)",
    )


def _roofline(options: argparse.Namespace) -> int:
    from sparsesnn.engines import set_threads
    from studies.roofline import bench_roofline

    set_threads("cpu", options.threads)
    result = bench_roofline(workload_of(options, weight_dtype=options.weights), repeats=options.repeats)
    print(json.dumps(result.to_dict(), allow_nan=False) if options.json else result.table())
    return 0
