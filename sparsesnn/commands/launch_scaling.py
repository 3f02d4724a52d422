"""`sparsesnn launch weak-scaling | strong-scaling | batch-size`: measure how training scales over ranks."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from sparsesnn.errors import ConfigError
from sparsesnn.wording import count

KINDS = ("weak-scaling", "strong-scaling", "batch-size")
#: fields of `points.Settings`; series on CPUs are saved without them
IPU_SETTINGS = ("backend", "target", "instances")

EXAMPLES = """\
examples:
  sparsesnn launch weak-scaling --ranks 1,2                           deeper: 2 layers of 1024 per rank
  sparsesnn launch weak-scaling --ranks 1,2,4 --grow width --width 2048 --layers 4
  sparsesnn launch weak-scaling --ranks 1,2 --grow batch              data parallel: 48 samples per rank
  sparsesnn launch strong-scaling --ranks 1,2 --layers 4 --width 2048 --recurrent
  sparsesnn launch weak-scaling --ranks 1,2 --dry-run-ranks 64,1024 --grow width      extrapolate to many ranks
  sparsesnn launch batch-size --ranks 2 --batches 16,48,128
  sparsesnn launch weak-scaling --ranks 1,4,16,64 --threads 16 --launch '--hosts a,b,c,d'
  sparsesnn launch weak-scaling --backend ipu-model --target ipu-mk2:1x64 --width 128 --batch 8 --steps 20    emulated IPUs
  sparsesnn launch weak-scaling --backend ipu --ranks 1,2,4 --grow batch --instances 1 --launch '--vipu-partition p8'

each point is started by `sparsesnn launch` with the options in --launch; the default is one thread per rank.
--out gets scaling.csv, scaling.json and scaling.png; an interrupted series resumes where it stopped, and more --rounds add
  to the existing ones. If other work disturbs the machine (virtual machines), use --rounds 5: a single run of a point means little.
--dry-run-ranks: of R ranks, the one with the most neurons runs alone on this machine. Its computation and memory are real; the
  messages of the others are made up; their time follows --link, or the links measured with --ranks. Layers are as active as in the
  last measured row. Rows are marked "dry run", with hollow markers in the plot. The time excludes waiting for slower ranks, and
  competition between ranks of one host; layers should have 64 neurons per rank, or the simulated rank has none of some layers.
  With --grow layers there must be more --steps than layers; --grow width has no such limit.
efficiency: synaptic events per second and rank, over those of the first row; with constant work per rank, the ratio of
  times. The input is as wide and as active as a layer. The plot of weak scaling also has predictions for IPUs, and its table
  "apart": the efficiency of the same ranks without exchange, each with its own network. Cores share caches, memory and power, so
  this is below 1 on most machines. Replicas of recurrent layers on one host can do better together, because they share packed
  copies of large weights."""


def run(kind: str, arguments: Sequence[str]) -> int:
    """Parses the arguments after the kind, and measures."""
    from sparsesnn.bench.rows import Rows
    from sparsesnn.launch import scaling
    from sparsesnn.launch.points import DRY_RUN, Point, Row, points, share_of

    options = _parser(kind).parse_args(arguments)
    settings = _settings(kind, options)
    if options.rounds < 1:
        raise ConfigError(f"--rounds: is {options.rounds}; give at least 1")
    ipus = {name: getattr(settings, name) for name in IPU_SETTINGS}
    saved = {k: v for k, v in asdict(settings).items() if not settings.on_ranks or k not in IPU_SETTINGS}
    saved = json.loads(json.dumps({**saved, "launch": options.launch}))
    measured = Rows(options.out, "scaling", saved, sys.stderr)
    for row in measured.rows:
        row.setdefault("round", 1)  # for a series saved before rounds existed
    launch = _words(options.launch)

    def measure(row: Row) -> Row:
        point = Point(**{k: v for k, v in row.items() if k not in ("ranks", "round")})
        if point.how == DRY_RUN:
            return scaling.run_dry(point, settings, measured.rows, launch)
        apart = share_of(settings, point)
        return scaling.run_point(point, settings.threads, launch, apart=apart, ipus=None if settings.on_ranks else ipus)

    asked = [
        {"ranks": point.ranks, **asdict(point), "round": k + 1}
        for k in range(options.rounds)
        for point in points(settings)
    ]
    rows = measured.run(json.loads(json.dumps(asked)), measure)
    scaling.finish(settings, rows)
    measured.write()
    shown = scaling.medians(rows)
    if not options.json:
        print(scaling.table(shown), flush=True)
    predicted = []
    if kind == "weak-scaling" and options.ipus and (options.json or not options.no_plot):
        print(f"predicting {options.ipus} IPUs; skip this with --ipus ''", file=sys.stderr)
        predicted = scaling.ipu_rows(_integers("--ipus", options.ipus))
    if options.json:
        print(json.dumps({"settings": asdict(settings), "rows": rows, "ipus": predicted}, allow_nan=False))
    else:
        print(
            f"{options.out / 'scaling.csv'}: {count(len(rows), 'row')}"
            + (", the IPUs of the third panel of the plot are predicted" if predicted else "")
        )
    if not options.no_plot:
        scaling.plot(settings, shown, predicted, options.out / "scaling.png")
    return 0


def _parser(kind: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"sparsesnn launch {kind}",
        description="Measures how training steps scale, with the activity of every layer.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--backend",
        default="cpu",
        metavar="NAME",
        help="cpu (default); ipu: a rank is an IPU, and steps are timed; ipu-model: the same on emulated IPUs, whose cycles are "
        "counted. Results of IPUs are compared with the plan's prediction",
    )
    parser.add_argument(
        "--target",
        default="ipu-mk2",
        metavar="MACHINE",
        help="for ipu and ipu-model: one IPU; ipu-mk2:1x64 has 64 tiles (default: %(default)s)",
    )
    parser.add_argument(
        "--instances",
        type=int,
        default=0,
        metavar="N",
        help="for ipu and ipu-model: PopRun starts every point, with N instances that share its replicas; ipu-model allows only 1 "
        "(default: 0, without PopRun)",
    )
    parser.add_argument(
        "--ranks",
        default="1,2",
        metavar="R,…",
        help="numbers of ranks; of IPUs with ipu and ipu-model (default: %(default)s)",
    )
    parser.add_argument("--threads", type=int, default=1, metavar="T", help="threads per rank (default: %(default)s)")
    if kind == "weak-scaling":
        parser.add_argument("--grow", default="layers", metavar="WHAT", help="layers (default), width or batch")
        parser.add_argument(
            "--ipus",
            default="1,2,4,8,16,32,64",
            metavar="N,…",
            help="numbers of IPUs to predict in the plot; '' for none (default: %(default)s)",
        )
    if kind != "batch-size":
        parser.add_argument(
            "--dry-run-ranks", default="", metavar="R,…", help="more points, simulated by one rank (below)"
        )
        parser.add_argument(
            "--link", default="", metavar="LINK", help="bandwidth and latency for --dry-run-ranks: GB/s,µs, such as 12.5,2, or a scaling.json (default: as measured)"
        )  # fmt: skip
    if kind == "batch-size":
        parser.add_argument("--batches", default="8,16,32,64,128", metavar="B,…", help="default: %(default)s")
    parser.add_argument(
        "--split", default="neurons", metavar="WHAT", help="what the ranks share: neurons (default) or samples"
    )
    parser.add_argument("--layers", type=int, default=2, metavar="L", help="hidden layers with one rank (default: 2)")
    parser.add_argument("--width", type=int, default=1024, metavar="N", help="neurons in each (default: 1024)")
    parser.add_argument("--recurrent", action="store_true", help="every hidden layer is recurrent")
    parser.add_argument("--batch", type=int, default=48, metavar="B", help="samples (default: 48)")
    parser.add_argument(
        "--steps", type=int, default=100, metavar="T", help="time steps, more than layers (default: 100)"
    )
    parser.add_argument("--activity", type=float, default=0.02, metavar="A", help="natural activity (default: 0.02)")
    parser.add_argument(
        "--max-activity", type=float, default=0.05, metavar="A", help="capacity of lists (default: 0.05)"
    )
    parser.add_argument("--repeats", type=int, default=9, metavar="N", help="timed steps per run (default: 9)")
    parser.add_argument(
        "--rounds",
        type=int,
        default=1,
        metavar="N",
        help="interleaved runs of each point; medians are shown (default: 1)",
    )
    parser.add_argument(
        "--launch", default="", metavar="TEXT", help="more options of sparsesnn launch, such as '--hosts a,b'"
    )
    parser.add_argument("--out", type=Path, default=Path(f"runs/{kind}"), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--no-plot", action="store_true", help="draw nothing")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _settings(kind: str, options: argparse.Namespace):  # type: ignore[no-untyped-def]
    from sparsesnn.launch.links import given_links
    from sparsesnn.launch.points import Settings

    given = {
        "kind": kind, "ranks": tuple(_integers("--ranks", options.ranks)), "split": options.split,
        "n_layers": options.layers, "width": options.width, "batch": options.batch, "threads": options.threads,
        "recurrent": options.recurrent, "n_steps": options.steps, "activity": options.activity,
        "max_activity": options.max_activity, "repeats": options.repeats, "backend": options.backend,
        "target": options.target, "instances": options.instances,
    }  # fmt: skip
    if kind == "weak-scaling":
        given["grow"] = options.grow
        if options.grow == "batch" and options.split == "neurons":
            given["split"] = "samples"
    if kind == "batch-size":
        given["batches"] = tuple(_integers("--batches", options.batches))
    if kind != "batch-size":
        given["link"] = options.link
        if options.dry_run_ranks:
            given["dry_run_ranks"] = tuple(_integers("--dry-run-ranks", options.dry_run_ranks))
        if options.link:
            given_links(options.link)
    if "--ranks" in options.launch or "--threads" in options.launch:
        raise ConfigError("--launch: contains --ranks or --threads; give them outside --launch")
    return Settings(**given)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"--launch: {text!r}: {error}; close the quotes") from None


def _integers(option: str, text: str) -> list[int]:
    from sparsesnn.commands.numbers import integers

    return integers(option, text)
