"""`sparsesnn bench ipu-model`: one training step on the emulated IPU, counted."""

from __future__ import annotations

import argparse
import json
from typing import Any

from sparsesnn.commands.measuring import add_parser, workload_of

EXAMPLES = """\
examples:
  sparsesnn bench ipu-model --net 700-128-20 --batch 8 --steps 20 --target ipu-mk2:1x64
  sparsesnn bench ipu-model --net 700-974-974-974-20 --delay 1 --target ipu-mk2     the net of Finkbeiner et al. 2024

cycles are predicted, not measured: costs of codelets are in host/src/emulator/work.h, those of the machine in
host/src/emulator/machine.h; docs/ipu.md names the source of each number."""


def register(what: Any) -> None:
    text = (
        "one training step on the emulated IPU: "
        "Builds the IPU program, runs one training step on the emulated machine, and prints its counts."
    )
    flags = "net=700-128-20 steps=20 batch=8 input-activity hidden-activity"
    parser = add_parser(what, "ipu-model", text, EXAMPLES, _run, flags)
    parser.add_argument(
        "--delay", type=int, default=0, choices=(0, 1), help="delay of all connections (default: %(default)s)"
    )
    parser.add_argument(
        "--max-activity",
        type=float,
        default=0.05,
        metavar="A",
        help="capacity of lists / neurons (default: %(default)s)",
    )
    parser.add_argument(
        "--target", default="ipu-mk2:1x64", metavar="MACHINE", help="IPUs × tiles (default: %(default)s)"
    )
    parser.add_argument(
        "--replicas", type=int, default=1, metavar="R", help="copies that share the batch (default: %(default)s)"
    )
    parser.add_argument(
        "--checks",
        default="first",
        choices=("always", "first", "never"),
        help="when to check for races and unwritten data (default: first, in the first run of each phase)",
    )


def _run(options: argparse.Namespace) -> int:
    from sparsesnn.bench.ipu_model import bench_ipu_model

    workload = workload_of(options)
    result = bench_ipu_model(
        workload,
        options.target,
        delay=options.delay,
        max_activity=options.max_activity,
        replicas=options.replicas,
        checks=options.checks,
    )
    print(json.dumps(result.to_dict(), allow_nan=False) if options.json else result.table())
    return 0
