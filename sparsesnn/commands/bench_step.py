"""`sparsesnn bench step`: one training step, timed."""

from __future__ import annotations

import argparse
import json
from typing import Any

from sparsesnn.commands import neuron_files
from sparsesnn.commands.measuring import add_parser, workload_of

EXAMPLES = """\
examples:
  sparsesnn bench step
  sparsesnn bench step --net 700-1024r-20 --backend dense --json
  sparsesnn bench step --weights bfloat16                        half the bytes for weights"""


def register(what: Any) -> None:
    text = (
        "one training step: Times the forward pass, the backward pass and Adam on one batch, and breaks the time down."
    )
    flags = "net steps batch input-activity hidden-activity device precision threads repeats"
    parser = add_parser(what, "step", text, EXAMPLES, _step, flags)
    neuron_files.add_net_flag(parser)
    parser.add_argument("--backend", default="cpu", choices=("cpu", "gpu", "dense"), help="default: %(default)s")
    parser.add_argument(
        "--weights",
        default="float32",
        choices=("float32", "bfloat16"),
        help="type in which the engine reads weights (default: %(default)s)",
    )


def _step(options: argparse.Namespace) -> int:
    from sparsesnn.bench import bench_step
    from sparsesnn.engines import set_threads

    set_threads(options.backend, options.threads)
    workload = workload_of(options, weight_dtype=options.weights, neuron=options.net_neuron or "")
    result = bench_step(
        workload, options.backend, repeats=options.repeats, device=options.device, precision=options.precision
    )
    print(json.dumps(result.to_dict(), allow_nan=False) if options.json else result.table())
    return 0
