"""`sparsesnn plan`: which neuron lives where, what it weighs, and what a step is expected to cost."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsesnn.errors import ConfigError, PlanError
from sparsesnn.regular_file import MAX_TEXT_BYTES, check_regular

if TYPE_CHECKING:
    from sparsesnn.network import Network
    from sparsesnn.partition.cpu.grids import Grids
    from sparsesnn.partition.plan import Plan
    from sparsesnn.partition.target import Links, Target

EXAMPLES = """\
examples:
  sparsesnn plan --net 700-974-974-974-20s --target ipu-mk2               one IPU: tiles, bytes, cycles a step
  sparsesnn plan --net 700-974-974-974-20s --target ipu-mk2 --delay 1     the same network with all layers at once: faster
  sparsesnn plan --net 700-980-980-980-20s --target ipu-mk2:4 --delay 1 --plot p.png  four IPUs, and a drawing of their tiles
  sparsesnn plan --net 700-974-974-974-20s --target ipu-mk2 --replicas 4  four copies on four IPUs share the batch
  sparsesnn plan --net 700-256r-20 --target ipu-mk2 --activity 0.03 --capacity hidden=40
  sparsesnn plan --net 700-4096-4096-20 --target mpi:64x16                64 ranks of 16 cores over MPI, and the best grid
  sparsesnn plan --net 700-4096-4096-20 --target mpi:64x16 --replicas auto the plan of the best grid
  sparsesnn plan --net 700-4096-4096-20 --target mpi:64x16 --batches 48,96,192
  sparsesnn plan --net 700-4096-4096-20 --target mpi:64x16 --link 12.5,2  with links as launch weak-scaling measured them
  sparsesnn plan --sweep activity --plot activity.png                     predicted speed over activity, as a table
  sparsesnn plan --network net.json --target ipu-bow:2 --save plan.json   the whole plan, for a graph builder

targets: ipu-mk2, ipu-bow, cpu, mpi; with a size: ipu-mk2:4 (IPUs), ipu-mk2:2x64 (IPUs x tiles in use), cpu:8 (cores),
  mpi:64x16 (ranks x cores a rank).
capacity: the slots of a list. A population's own capacity is kept. If it has none, a list holds --max-activity of its
  neurons, or all of them if every neuron is listed; training measures its first batches instead, and with
  --activity RUN a plan takes the activity and the lists of that run. What does not fit is dropped and counted.
delay: with delay 0, the default here and in training, layers run one after another within a step. With --delay 1, here and
  in sparsesnn train, all layers run at once: the one flag with which IPUs are fastest. Layers on several IPUs need it.
grids: of ranks, a table says which replicas x shards is fastest for each number of ranks, its efficiency compared with
  one rank, and what bounds it. Links that sparsesnn launch weak-scaling measured (runs/weak-scaling/scaling.json) are used.
all speeds are predictions from counted instructions and published figures, not measurements."""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "plan",
        help="place a network on a target and predict its cost",
        description="Places every neuron on a tile, and says what fits, what it weighs and what it should cost.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_plan)
    what = parser.add_argument_group("what to place")
    what.add_argument("--net", metavar="TEXT", help="the network, such as 700-974-974-974-20s (see: train --help)")
    what.add_argument("--network", type=Path, metavar="FILE", help="the network as JSON (Network.to_json)")
    what.add_argument(
        "--delay",
        type=int,
        metavar="D",
        help="of all connections between populations, in steps, as --delay of train (default with --net: 0)",
    )
    what.add_argument(
        "--batch", type=int, default=48, metavar="B", help="samples, of all replicas (default: %(default)s)"
    )
    what.add_argument("--steps", type=int, default=100, metavar="T", help="time steps (default: %(default)s)")
    what.add_argument(
        "--optimizer",
        default="adam",
        choices=("adam", "sgd", "none"),
        help="none: inference, without gradients and history (default: %(default)s)",
    )
    what.add_argument(
        "--regulariser", action="store_true", help="activity is regularised: two phases more a batch (IPUs)"
    )
    what.add_argument(
        "--keep-every",
        type=int,
        default=1,
        metavar="K",
        help="keep potentials of K steps at a time and compute the others again: less memory, more cycles (IPUs)",
    )
    what.add_argument("--half", action="store_true", help="half-precision weights, float32 masters")
    where = parser.add_argument_group("where")
    where.add_argument("--target", default="ipu-mk2", metavar="NAME", help="the machine (default: %(default)s)")
    where.add_argument(
        "--link",
        metavar="GB/S,US",
        help="measured bandwidth of a device or rank, and latency in µs, such as 12.5,2; or the scaling.json of a series",
    )
    where.add_argument(
        "--replicas",
        default="1",
        metavar="R",
        help="copies that share the batch: of IPUs each on a machine such as --target, of mpi each on its part of the ranks; "
        "auto: the best grid of mpi (default: %(default)s)",
    )
    where.add_argument(
        "--batches", metavar="B,…", help="of mpi: search grids for these batches too, by samples a second"
    )
    where.add_argument("--memory", type=float, metavar="GIB", help="of a rank; cpu and mpi only (default: unlimited)")
    where.add_argument(
        "--strategy",
        default="search",
        choices=("even", "bytes", "work", "search"),
        help="sizes of shards (default: %(default)s)",
    )
    where.add_argument(
        "--layout",
        default="auto",
        choices=("auto", "contiguous", "split", "shared"),
        help="layer after layer, in equal parts on all devices, or all on each tile (default: the fastest)",
    )
    spikes = parser.add_argument_group("spikes")
    spikes.add_argument(
        "--activity",
        default="0.02",
        metavar="A",
        help="expected spikes per neuron and step: 0.02, or input=0.015,hidden1=0.03, or what was measured: the folder of a run, "
        "or a file of bench step --json (default: %(default)s)",
    )
    spikes.add_argument(
        "--max-activity",
        default="0.05",
        metavar="A",
        help="lists hold this share of a population; auto: what --activity needs and some (default: %(default)s)",
    )
    spikes.add_argument("--capacity", default="", metavar="NAME=K", help="slots of a list: input=48,hidden1=64")
    many = parser.add_argument_group("many plans at once; they take --target ipu-mk2 or ipu-bow, and no network")
    many.add_argument(
        "--sweep",
        choices=("activity", "weak-scaling", "sensitivity"),
        help="predict the published experiments: one IPU over activity, 1-16 IPUs, or the model over its assumptions",
    )
    many.add_argument("--ipus", default="1,2,4,8,16", metavar="N,N", help="of weak-scaling (default: %(default)s)")
    out = parser.add_argument_group("output")
    out.add_argument("--json", action="store_true", help="print the numbers as JSON")
    out.add_argument("--save", type=Path, metavar="FILE", help="write the plan itself as JSON")
    out.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the use of every tile, or the sweep (png, svg, pdf)"
    )


def _plan(options: argparse.Namespace) -> int:
    from sparsesnn.partition.cpu.grids import best_grid
    from sparsesnn.partition.drawing import draw
    from sparsesnn.partition.prediction import predict
    from sparsesnn.partition.report import gains, summary, table
    from sparsesnn.train.files import write_atomically

    if options.sweep is not None:
        return _sweep(options)
    plan, grids, smaller = _make(options)
    prediction = predict(plan)
    more_notes = [] if smaller is None else gains(prediction, predict(smaller), plan, smaller)
    if options.save is not None:
        with _writing("--save", options.save):
            write_atomically(options.save, plan.to_json().encode())
    if options.json:
        found = [grid.to_dict() for grid in grids.rows]
        data = {
            **summary(plan, prediction),
            "grids": found,
            "best_grid": best_grid(grids.rows).to_dict() if found else None,
        }
        data["notes"] += more_notes
        print(json.dumps(data, allow_nan=False))
    else:
        print("\n".join([table(plan, prediction), *(f"note: {text}" for text in more_notes), *grids.table()]))
    if options.plot is not None:
        with _writing("--plot", options.plot):
            draw(plan, options.plot, prediction)
    return 0


def _sweep(options: argparse.Namespace) -> int:
    from sparsesnn.partition.ipu import sweep_tables, sweeps

    if options.net is not None or options.network is not None:
        raise ConfigError("--sweep: has networks of its own; leave --net and --network away")
    if options.target not in ("ipu-mk2", "ipu-bow"):
        raise ConfigError(f"--sweep: target is {options.target!r}; give ipu-mk2 or ipu-bow, the sweep sets how many")
    delay = options.delay or 0
    if options.sweep == "weak-scaling" and options.delay == 0:
        raise ConfigError(
            "--delay: is 0, but the layers of weak-scaling lie on several IPUs, which needs 1; leave it away"
        )
    if delay not in (0, 1):
        raise ConfigError(f"--delay: is {delay}; a sweep takes 0 or 1")
    if options.sweep == "sensitivity":
        if options.plot is not None:
            raise ConfigError("--plot: sensitivity is a table alone; draw activity or weak-scaling")
        base, found = sweeps.sensitivity(options.target, delay)
        print(
            json.dumps({"base": base, "rows": [asdict(r) for r in found]})
            if options.json
            else sweep_tables.sensitivity_table(base, found)
        )
        return 0
    if options.sweep == "activity":
        rows = list(sweeps.activity_sweep(options.target, delay))
        text, draw = sweep_tables.activity_table(rows), sweep_tables.plot_activity
    else:
        rows = list(sweeps.weak_scaling(_counts(options.ipus), options.target))
        text, draw = sweep_tables.scaling_table(rows), sweep_tables.plot_scaling
    print(json.dumps([asdict(r) for r in rows], allow_nan=False) if options.json else text)
    if options.plot is not None:
        with _writing("--plot", options.plot):
            draw(rows, options.plot)
    return 0


def _counts(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1 or max(found) > 1024 or len(set(found)) != len(found):
        raise ConfigError(
            f"--ipus: is {text!r}; give different whole numbers from 1 to 1,024, joined by commas, such as 1,2,4"
        )
    return found


def _make(options: argparse.Namespace) -> tuple[Plan, Grids, Plan | None]:
    """The plan that is asked for; of ranks, the grids; of several IPUs, the same on half as many, if it fits."""
    from sparsesnn.commands.numbers import integers
    from sparsesnn.partition.cpu.grids import Grids, best_grid, search_grids
    from sparsesnn.partition.planner import make_plan
    from sparsesnn.partition.target import parse_target

    target = parse_target(options.target)
    ranks = target.devices if target.name.startswith("mpi") else 0
    links, source = target.links, "assumed; measure: launch weak-scaling"
    if options.link is not None:
        from sparsesnn.launch.links import given_links

        links, source = given_links(options.link), "given"
    elif ranks and (found := _measured()) is not None:
        links, source = found[0], f"measured, {found[1]}"
    target = replace(target, links=links)
    if options.memory is not None:
        if target.kind != "cpu":
            raise ConfigError(f"--memory: target '{target.name}' has its memory in its tiles; it is for cpu and mpi")
        if not 0 < options.memory < 1e9:
            raise ConfigError(f"--memory: is {options.memory}; give GiB of a rank, above 0")
        target = replace(target, bytes_per_device=int(options.memory * 2**30))
    network = _network(options)
    activity, lists = _activity(options.activity)
    capacity = {**lists, **_named(_assignments(options.capacity, int, "--capacity"), "--capacity")}
    replicas = _replicas(options.replicas, target)
    if options.batches is not None and not ranks:
        raise ConfigError(f"--batches: target '{target.name}' has no grids; give --target mpi:64x16 or the like")

    def plan(replicas: int, devices: int, n_samples: int) -> Plan:
        return make_plan(
            network,
            n_samples,
            options.steps,
            target if devices == target.devices else target.with_devices(devices),
            activity=activity,
            max_activity=None if options.max_activity == "auto" else _share(options.max_activity),
            capacity=capacity,
            optimizer=options.optimizer,
            weight_dtype="half" if options.half else "float32",
            strategy=options.strategy,
            layout=options.layout,
            replicas=replicas,
            regularises=options.regulariser,
            keep_every=options.keep_every,
        )

    batch = options.batch
    grids = Grids((), target, source)
    if ranks > 1:
        batches = [batch, *(integers("--batches", options.batches) if options.batches else ())]
        rows = search_grids(plan, ranks, batches, replicas if replicas > 1 else 0)
        grids = Grids(tuple(rows), target, source)
        if not replicas:
            best = best_grid(rows)
            return plan(best.replicas, best.shards, best.n_samples), grids, None
    n_replicas = max(1, replicas)
    devices = ranks // n_replicas if ranks else target.devices
    n_samples = -(-batch // n_replicas)
    made, smaller = plan(n_replicas, devices, n_samples), None
    if target.kind == "ipu" and devices > 1:
        with suppress(PlanError):
            smaller = plan(n_replicas, devices // 2, n_samples)
    return made, grids, smaller


def _replicas(text: str, target: Target) -> int:
    """0: the best grid is wanted."""
    mpi = target.name.startswith("mpi")
    if text == "auto" and mpi:
        return 0
    try:
        n = int(text)
    except ValueError:
        raise ConfigError(
            f"--replicas: is {text!r} on '{target.name}'; give a whole number" + ", or auto" * mpi
        ) from None
    if mpi and n > 0 and target.devices % n:
        near = [r for r in range(1, target.devices + 1) if target.devices % r == 0]
        raise ConfigError(
            f"--replicas: is {n}, which {target.devices} ranks of '{target.name}' cannot share evenly; give one of "
            f"{', '.join(map(str, near))}, or auto"
        )
    if n < 1:
        raise ConfigError(f"--replicas: is {n} on '{target.name}'; give a whole number, at least 1")
    return n


def _measured() -> tuple[Links, Path] | None:
    from sparsesnn.launch.links import measured_links

    return measured_links()


def _network(options: argparse.Namespace) -> Network:
    from sparsesnn.network import Network, parse_net
    from sparsesnn.utf8 import read_text

    if (options.net is None) == (options.network is None):
        raise ConfigError("plan: which network? give --net TEXT, such as 700-974-974-974-20s, or --network FILE")
    if options.net is not None:
        network = parse_net(options.net)
    else:
        network = Network.from_json(read_text(options.network, "--network", "a network as JSON"))
    return network if options.delay is None else network.with_delay(options.delay)


def _activity(text: str) -> tuple[Any, dict[str, int]]:
    """Numbers, or those that a run or a benchmark measured, the mapping "activity" of its JSON; and the slots of its lists
    that a run on IPUs measured."""
    path = Path(text)
    if not path.exists():
        return _assignments(text, float, "--activity"), {}
    file = path / "result.json" if path.is_dir() else path
    check_regular(file, ConfigError, MAX_TEXT_BYTES)
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"--activity: {file} cannot be read: {error}") from None
    found = data.get("activity") if isinstance(data, dict) else None
    if not isinstance(found, dict) or not all(type(x) in (int, float) for x in found.values()):
        raise ConfigError(f'--activity: {file} holds no "activity" by population; give a run folder or a number')
    machine = data.get("machine")
    lists = machine.get("lists") if isinstance(machine, dict) else None
    if not isinstance(lists, dict) or not all(type(x) is int for x in lists.values()):
        lists = {}
    return found, lists


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"--max-activity: is {text!r}; give a share such as 0.05, or auto") from None


def _assignments(text: str, kind: type, option: str) -> Any:
    """`"0.02"` → 0.02; `"a=1,b=2"` → {"a": 1, "b": 2}; `""` → {}."""
    try:
        if "=" not in text:
            return kind(text) if text.strip() else {}
        pairs = [part.partition("=") for part in text.split(",")]
        return {name.strip(): kind(value) for name, _, value in pairs}
    except ValueError:
        raise ConfigError(
            f"{option}: is {text!r}; give a number, or numbers by population, such as input=1,hidden1=2"
        ) from None


def _named(value: Any, option: str) -> dict[str, int]:
    if not isinstance(value, dict):
        raise ConfigError(f"{option}: is {value!r}; say of which population, such as hidden1={value}")
    return value


@contextmanager
def _writing(option: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{option}: {path} cannot be written: {error.strerror}") from None
