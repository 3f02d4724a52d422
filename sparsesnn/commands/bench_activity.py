"""`sparsesnn bench activity`: fixed against natural activity."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from sparsesnn.commands.measuring import add_parser

EXAMPLES = """\
examples:
  sparsesnn bench activity
  sparsesnn bench activity --shapes shd --layers 2,3 --max-activity 1,5,20
  sparsesnn bench activity --shapes nmnist --data nmnist=DIR
  sparsesnn bench activity --backend ipu --shapes shd                     time on an IPU, next to the prediction
  sparsesnn bench activity --backend ipu-model --target ipu-mk2:1x64 --shapes shd --layers 2 --hidden 200 --steps 20 --batch 8

measured: training steps of networks with 2,944 hidden neurons in 2 to 5 layers. natural: layers fire as their weights
  decide, and lists hold at most max activity (upper bound of throughput). fixed: lists are forced full (lower bound).
  dense: the baseline, which computes every neuron.
--out gets activity.csv, activity.json, activity.png and README.md, which explains every column; an interrupted run
  resumes where it stopped. A full run takes about ten minutes on two cores."""


def register(what: Any) -> None:
    text = (
        "speed with full lists and with natural activity, against the dense baseline: "
        "Measures samples per second for lists of several lengths: forced full (lower bound), and with natural activity (upper bound)."
    )
    flags = "steps batch device precision repeats=3 threads"
    parser = add_parser(what, "activity", text, EXAMPLES, _activity, flags)
    parser.add_argument("--out", type=Path, default=Path("runs/activity"), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--shapes", default="shd,nmnist,dvsgesture", metavar="S,…", help="default: %(default)s")
    parser.add_argument(
        "--data", action="append", default=[], metavar="SHAPE=DIR", help="folder of the real data set of a shape"
    )
    parser.add_argument("--layers", default="2,3,4,5", metavar="N,…", help="hidden layers (default: %(default)s)")
    parser.add_argument(
        "--max-activity", default="0.5,1,2,5,10,20,50", metavar="%,…", help="percent (default: %(default)s)"
    )
    parser.add_argument(
        "--natural-activity",
        default="1",
        metavar="%",
        help="percent of neurons that fire in natural networks (default: %(default)s)",
    )
    parser.add_argument("--hidden", type=int, default=2944, metavar="N", help="hidden neurons (default: %(default)s)")
    parser.add_argument(
        "--backends",
        metavar="B,…",
        help="cpu, ipu or ipu-model, and dense for the speedup over it (default: cpu,dense; with --backend only that one)",
    )
    parser.add_argument(
        "--backend",
        metavar="NAME",
        help="same as --backends with one name: ipu measures seconds, ipu-model counts cycles on an emulated IPU; both are compared "
        "with the prediction",
    )
    parser.add_argument(
        "--target",
        metavar="MACHINE",
        help="for ipu and ipu-model: IPUs × tiles, such as ipu-mk2:1x64 (default: ipu-mk2)",
    )


def _activity(options: argparse.Namespace) -> int:
    from sparsesnn.bench.activity import Settings, bench_activity
    from sparsesnn.commands.numbers import floats, integers
    from sparsesnn.errors import ConfigError
    from sparsesnn.wording import count

    data = []
    for text in options.data:
        shape, _, folder = text.partition("=")
        if not folder:
            raise ConfigError(f"--data: is {text!r}; give the shape and its folder, such as nmnist=DIR")
        data.append((shape, folder))
    if options.backend is not None and options.backends is not None:
        raise ConfigError(f"--backend {options.backend}, --backends {options.backends}: give one of them")
    backends = (options.backends or options.backend or "cpu,dense").split(",")
    sparse = [name for name in backends if name != "dense"]
    if len(sparse) != 1 or len(set(backends)) < len(backends) or sparse[0] not in ("cpu", "ipu", "ipu-model"):
        raise ConfigError(
            f"--backend{'s' * (options.backend is None)}: is {','.join(backends)!r}; give one of cpu, ipu, ipu-model, and with "
            "--backends also dense, for the speedup over it, such as cpu,dense"
        )
    if options.target is not None and sparse == ["cpu"]:
        raise ConfigError(
            f"--target: is {options.target!r}, which applies only to backend ipu or ipu-model; leave it out"
        )
    settings = Settings(
        shapes=tuple(options.shapes.split(",")),
        data=tuple(data),
        layers=tuple(integers("--layers", options.layers)),
        max_activity=tuple(a / 100 for a in floats("--max-activity", options.max_activity, 0, 100)),
        natural_activity=floats("--natural-activity", options.natural_activity, 0, 99)[0] / 100,
        n_hidden=options.hidden,
        n_steps=options.steps,
        n_samples=options.batch,
        repeats=options.repeats,
        n_threads=options.threads,
        dense="dense" in backends,
        device=options.device,
        precision=options.precision,
        backend=sparse[0],
        target=options.target or "ipu-mk2",
    )
    rows = bench_activity(settings, options.out, sys.stderr)
    if options.json:
        print(json.dumps(rows, allow_nan=False))
    else:
        print(f"{count(len(rows), 'row')} in {options.out / 'activity.csv'}, plotted in {options.out / 'activity.png'}")
    return 0
