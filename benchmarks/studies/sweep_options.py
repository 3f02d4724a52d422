"""`./dev bench sweep`: the factors of throughput."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

EXAMPLES = """\
examples:
  ./dev bench sweep
  ./dev bench sweep shd --data DIR
  ./dev bench sweep --net 1x28x28:5C12+MP2-5C64+MP2-10 --backends dense --models lif,cuba_lif --steps 25
  ./dev bench sweep --batch 16,64 --width 256,1024 --backends cpu --json

factors, varied one at a time: batch, width of the hidden layer, neuron model (lif, cuba_lif, recurrent), precision
  (float32, bfloat16), and the number of output neurons (a population code).
--out holds sweep.csv, sweep.json, sweep.png and README.md, which explains each column; a sweep that was stopped
  continues where it stopped."""


def register(what: Any) -> None:
    parser = what.add_parser(
        "sweep",
        help="throughput against batch, width, model, precision, outputs",
        description="Times training steps while one factor is varied, and reports the shares of time.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_sweep)
    parser.add_argument("dataset", nargs="?", metavar="DATASET", help="source of the samples (default: random spikes)")
    parser.add_argument("--data", metavar="DIR", help="folder of the data set's files")
    parser.add_argument("--out", type=Path, default=Path("runs/sweep"), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--batch", metavar="B,…", help="default: 8,16,32,64,128")
    parser.add_argument("--width", metavar="N,…", help="default: 128,256,512,1024,2048")
    parser.add_argument("--models", metavar="M,…", help="default: lif,cuba_lif,recurrent")
    parser.add_argument("--precisions", metavar="P,…", help="default: float32,bfloat16")
    parser.add_argument("--outputs", metavar="N,…", help="default: 10,50,100,500")
    parser.add_argument("--backends", metavar="B,…", help="default: cpu,dense")
    parser.add_argument(
        "--net",
        metavar="TEXT",
        help="a network with convolutions, such as 1x28x28:5C12+MP2-5C64+MP2-10 (with --backends dense)",
    )
    parser.add_argument("--device", default="cpu", metavar="NAME", help="device of the backend dense: cpu, cuda:0, …")
    parser.add_argument("--steps", type=int, metavar="T", help="time steps (default: 100)")
    parser.add_argument("--repeats", type=int, metavar="N", help="timed steps (default: 5)")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="worker threads; 0: all cores")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")


def _sweep(options: argparse.Namespace) -> int:
    # PyTorch's profiler, which measures the share of products, would print at each start; read when PyTorch loads
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    from sparsesnn.commands.numbers import integers
    from sparsesnn.wording import count
    from studies.sweep import Settings, bench_sweep, with_values

    def numbers(name: str) -> tuple[int, ...] | None:
        text = getattr(options, name)
        return None if text is None else tuple(integers(f"--{name}", text))

    def names(name: str) -> tuple[str, ...] | None:
        text = getattr(options, name)
        return None if text is None else tuple(text.split(","))

    settings = with_values(
        Settings(),
        batch=numbers("batch"),
        width=numbers("width"),
        outputs=numbers("outputs"),
        model=names("models"),
        precision=names("precisions"),
        backends=names("backends"),
        n_steps=options.steps,
        repeats=options.repeats,
        dataset=options.dataset,
        folder=options.data,
        n_threads=options.threads,
        device=options.device,
        net=options.net,
    )
    rows = bench_sweep(settings, options.out, sys.stderr)
    if options.json:
        print(json.dumps(rows, allow_nan=False))
    else:
        print(f"{count(len(rows), 'row')} in {options.out / 'sweep.csv'}, drawn in {options.out / 'sweep.png'}")
    return 0
