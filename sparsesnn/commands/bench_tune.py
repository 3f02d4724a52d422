"""`sparsesnn bench tune`: the engine's choices of speed on this machine."""

from __future__ import annotations

import argparse
import json
from typing import Any

from sparsesnn.commands.measuring import add_parser, workload_of

EXAMPLES = """\
examples:
  sparsesnn bench tune
  sparsesnn bench tune --net 700-512r-20 --threads 4 --repeats 31
  sparsesnn bench tune --net 700-256-256-20 --delays 0,5,10       each connection three times

what is measured: training steps with the standard choices and with each other value, in turns. A value is proposed where it
  is faster beyond the noise; set it by the printed line before you start sparsesnn. No choice changes a bit of any result.
  docs/speed.md says what each choice is."""


def register(what: Any) -> None:
    text = (
        "the engine's choices of speed on this machine: "
        "Times training steps with other values of the engine's choices, and prints the lines that set the better ones."
    )
    flags = "net steps batch input-activity hidden-activity threads repeats"
    parser = add_parser(what, "tune", text, EXAMPLES, _tune, flags)
    parser.add_argument("--delays", metavar="D,…", help="in steps: every connection once for each (default: none)")


def _tune(options: argparse.Namespace) -> int:
    from sparsesnn.bench.tune import bench_tune
    from sparsesnn.commands.numbers import integers
    from sparsesnn.engines import set_threads

    set_threads("cpu", options.threads)
    workload = workload_of(options, delays=integers("--delays", options.delays, 0) if options.delays else ())
    result = bench_tune(workload, repeats=options.repeats)
    print(json.dumps(result.to_dict(), allow_nan=False) if options.json else result.table())
    return 0
