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
  sparsesnn bench activity --backend ipu --shapes shd                     seconds of an IPU, next to the prediction
  sparsesnn bench activity --backend ipu-model --target ipu-mk2:1x64 --shapes shd --layers 2 --hidden 200 --steps 20 --batch 8

what is measured: training steps of networks with 2,944 hidden neurons in 2 to 5 layers. natural: a layer fires what its
  weights make it fire, its lists hold at most max activity (upper bound of throughput). fixed: lists forced full (lower
  bound). dense: the baseline, which computes every neuron.
--out holds activity.csv, activity.json, activity.png and README.md, which says what each column means; a run that was
  stopped goes on where it stopped. The whole takes some ten minutes on two cores."""


def register(what: Any) -> None:
    text = (
        "fixed against natural activity, beside the dense baseline: "
        "Throughput against the activity that lists have room for, with both bounds."
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
        "--natural-activity", default="1", metavar="%", help="percent that natural networks fire (default: %(default)s)"
    )
    parser.add_argument("--hidden", type=int, default=2944, metavar="N", help="hidden neurons (default: %(default)s)")
    parser.add_argument(
        "--backends",
        metavar="B,…",
        help="cpu, ipu or ipu-model, and dense for the acceleration over it (default: cpu,dense; with --backend that one alone)",
    )
    parser.add_argument(
        "--backend",
        metavar="NAME",
        help="the same as --backends with one name: ipu measures seconds, ipu-model counts cycles on an emulated IPU; both next to "
        "the prediction",
    )
    parser.add_argument(
        "--target",
        metavar="MACHINE",
        help="of ipu and ipu-model: IPUs × tiles, such as ipu-mk2:1x64 (default: ipu-mk2)",
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
            "--backends also dense, for the acceleration over it, such as cpu,dense"
        )
    if options.target is not None and sparse == ["cpu"]:
        raise ConfigError(f"--target: is {options.target!r}, which only backend ipu or ipu-model reads; leave it out")
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
        print(f"{count(len(rows), 'row')} in {options.out / 'activity.csv'}, drawn in {options.out / 'activity.png'}")
    return 0
