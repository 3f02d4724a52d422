"""`sparsesnn bench step`: one training step, timed."""

from __future__ import annotations

import argparse
import json
from typing import Any

EXAMPLES = """\
examples:
  sparsesnn bench step
  sparsesnn bench step --net 700-1024r-20 --backend dense --json
  sparsesnn bench step --weights bfloat16                        half the bytes of weights"""


def register(what: Any) -> None:
    parser = what.add_parser(
        "step",
        help="one training step",
        description="Times forward, backward and Adam of one batch, and says where the time goes.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_step)
    parser.add_argument("--net", default="700-1024-1024-20", metavar="TEXT", help="the network (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=100, metavar="T", help="time steps (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=48, metavar="B", help="samples (default: %(default)s)")
    activity = "spikes per neuron and step (default: %(default)s)"
    parser.add_argument("--input-activity", type=float, default=0.015, metavar="A", help=activity)
    parser.add_argument(
        "--hidden-activity", type=float, default=0.02, metavar="A", help=activity + ", by scaling weights"
    )
    parser.add_argument("--backend", default="cpu", choices=("cpu", "dense"), help="default: %(default)s")
    parser.add_argument(
        "--weights",
        default="float32",
        choices=("float32", "bfloat16"),
        help="how the engine reads the weights (default: %(default)s)",
    )
    parser.add_argument("--device", default="cpu", metavar="NAME", help="of backend dense: cpu, cuda, cuda:0, …")
    parser.add_argument(
        "--precision",
        default="float32",
        metavar="P",
        help="of the products of backend dense: float32, bfloat16, float16 (default: %(default)s)",
    )
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="worker threads; 0: all cores")
    parser.add_argument("--repeats", type=int, default=15, metavar="N", help="timed steps (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _step(options: argparse.Namespace) -> int:
    from sparsesnn.bench import Workload, bench_step
    from sparsesnn.engines import set_threads

    set_threads(options.backend, options.threads)
    workload = Workload(
        net=options.net,
        n_steps=options.steps,
        n_samples=options.batch,
        input_activity=options.input_activity,
        hidden_activity=options.hidden_activity,
        weight_dtype=options.weights,
    )
    result = bench_step(
        workload, options.backend, repeats=options.repeats, device=options.device, precision=options.precision
    )
    print(json.dumps(result.to_dict(), allow_nan=False) if options.json else result.table())
    return 0
