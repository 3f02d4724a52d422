"""`sparsesnn bench`: measure speed and memory; one module per benchmark."""

from __future__ import annotations

from typing import Any

from sparsesnn.commands import (
    bench_activity,
    bench_baselines,
    bench_ipu_model,
    bench_step,
)


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "bench",
        help="measure speed and memory",
        description="Measures the speed and memory of training on this machine.",
    )
    what = parser.add_subparsers(dest="bench", metavar="WHAT", required=True)
    bench_step.register(what)
    bench_activity.register(what)
    bench_baselines.register(what)
    bench_ipu_model.register(what)
