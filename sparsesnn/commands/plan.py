"""`sparsesnn plan`: the place of each neuron, its bytes, and, on IPUs, the predicted cost of a step."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsesnn.commands import neuron_files
from sparsesnn.errors import ConfigError, PlanError
from sparsesnn.regular_file import MAX_TEXT_BYTES, check_regular

if TYPE_CHECKING:
    from sparsesnn.network import Network
    from sparsesnn.partition.plan import Plan
    from sparsesnn.partition.target import Target

EXAMPLES = """\
examples:
  sparsesnn plan --net 700-974-974-974-20s --target ipu-mk2               one IPU: tiles, bytes, cycles per step
  sparsesnn plan --net 700-974-974-974-20s --target ipu-mk2 --delay 1     the same network with layers in parallel: faster
  sparsesnn plan --net 700-980-980-980-20s --target ipu-mk2:4 --delay 1 --plot p.png  four IPUs, and a drawing of their tiles
  sparsesnn plan --net 700-974-974-974-20s --target ipu-mk2 --replicas 4  four copies on four IPUs share the batch
  sparsesnn plan --net 700-256r-20 --target ipu-mk2 --activity 0.03 --capacity hidden=40
  sparsesnn plan --net 700-4096-4096-20 --target mpi:64x16 --memory 4     64 MPI ranks of 16 cores: bytes of each
  sparsesnn plan --net 700-4096-4096-20 --target mpi:64x16 --replicas 4   4 replicas of 16 ranks
  sparsesnn plan --sweep activity --plot activity.png                     predicted speed over activity, as a table
  sparsesnn plan --network net.json --target ipu-bow:2 --save plan.json   the whole plan, for a graph builder

targets: ipu-mk2, ipu-bow, cpu, mpi; with a size: ipu-mk2:4 (IPUs), ipu-mk2:2x64 (IPUs x tiles in use), cpu:8 (cores),
  mpi:64x16 (ranks x cores per rank).
capacity: the slots of a list. A population's own capacity is kept. If it has none, a list holds --max-activity of its
  neurons, or all of them if every neuron is listed; training measures its first batches instead, and with
  --activity RUN a plan uses the activity and the lists of that run. Candidates that do not fit are dropped and counted.
delay: with delay 0, the default here and in training, layers run one after another within a step. With --delay 1, here and
  in sparsesnn train, all layers run in parallel, which is fastest on IPUs. Layers on several IPUs need it.
speeds: for IPUs, predictions from counted instructions and published figures, not measurements. A plan for cores and ranks counts
  bytes; measure their speed with sparsesnn bench step, and with sparsesnn train --comm dry-run:R for one rank of R."""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "plan",
        help="check that a network fits into a machine, and predict its speed on Graphcore IPUs",
        description="Places a network on a machine (Graphcore IPUs and their tiles, cores, or MPI ranks), checks that its bytes fit, and "
        "for IPUs predicts the time of a step.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_plan)
    what = parser.add_argument_group("the network")
    what.add_argument("--net", metavar="TEXT", help="the network, such as 700-974-974-974-20s (see: train --help)")
    neuron_files.add_net_flag(what)
    what.add_argument("--network", type=Path, metavar="FILE", help="the network as JSON (Network.to_json)")
    what.add_argument(
        "--delay",
        type=int,
        metavar="D",
        help="delay of all connections between populations, in steps, as in train (default with --net: 0)",
    )
    what.add_argument(
        "--batch", type=int, default=48, metavar="B", help="samples, over all replicas (default: %(default)s)"
    )
    what.add_argument("--steps", type=int, default=100, metavar="T", help="time steps (default: %(default)s)")
    what.add_argument(
        "--optimizer",
        default="adam",
        choices=("adam", "sgd", "none"),
        help="none: inference, without gradients and history (default: %(default)s)",
    )
    what.add_argument(
        "--regularizer",
        action="store_true",
        help="the loss has an activity penalty, which needs two more phases per batch on IPUs",
    )
    what.add_argument(
        "--keep-every",
        type=int,
        default=1,
        metavar="K",
        help="keep potentials of K steps at a time and recompute the others: less memory, more cycles (IPUs)",
    )
    what.add_argument("--half", action="store_true", help="half-precision weights; the optimizer keeps float32 copies")
    where = parser.add_argument_group("where")
    where.add_argument("--target", default="ipu-mk2", metavar="NAME", help="the machine (default: %(default)s)")
    where.add_argument(
        "--link",
        metavar="GB/S,US",
        help="measured bandwidth of an IPU to the others, and latency in µs, such as 100,1 (default: published figures)",
    )
    where.add_argument(
        "--replicas",
        type=int,
        default=1,
        metavar="R",
        help="copies that share the batch: on IPUs each on its own machine like --target, on mpi each on its part of the ranks "
        "(default: %(default)s)",
    )
    where.add_argument(
        "--memory", type=float, metavar="GIB", help="memory per rank; cpu and mpi only (default: unlimited)"
    )
    where.add_argument(
        "--strategy",
        default="search",
        choices=("even", "bytes", "work", "search"),
        help="how neurons are shared among tiles: equally (even), by bytes, by work, or by a search for the fastest (default: %(default)s)",
    )
    where.add_argument(
        "--layout",
        default="auto",
        choices=("auto", "contiguous", "split", "shared"),
        help="contiguous: layer after layer; split: equal parts on all devices; shared: all layers on every tile; auto: the fastest (default)",
    )
    spikes = parser.add_argument_group("spikes")
    spikes.add_argument(
        "--activity",
        default="0.02",
        metavar="A",
        help="expected spikes per neuron and step: 0.02, or input=0.015,hidden1=0.03, or measured ones: the folder of a run, or "
        "a file from bench step --json (default: %(default)s)",
    )
    spikes.add_argument(
        "--max-activity",
        default="0.05",
        metavar="A",
        help="a list of spikes has room for this share of a population; auto: enough for --activity, with a margin (default: %(default)s)",
    )
    spikes.add_argument("--capacity", default="", metavar="NAME=K", help="slots per list: input=48,hidden1=64")
    many = parser.add_argument_group("many plans at once, with --target ipu-mk2 or ipu-bow and without a network")
    many.add_argument(
        "--sweep",
        choices=("activity", "weak-scaling", "sensitivity"),
        help="predict the published experiments: one IPU over activity, 1-16 IPUs, or the model over its assumptions",
    )
    many.add_argument(
        "--ipus", default="1,2,4,8,16", metavar="N,N", help="numbers of IPUs for weak-scaling (default: %(default)s)"
    )
    out = parser.add_argument_group("output")
    out.add_argument("--json", action="store_true", help="print the numbers as JSON")
    out.add_argument("--save", type=Path, metavar="FILE", help="write the plan itself as JSON")
    out.add_argument(
        "--plot", type=Path, metavar="FILE", help="plot the use of every tile, or the sweep (png, svg, pdf)"
    )


def _plan(options: argparse.Namespace) -> int:
    from sparsesnn.partition.drawing import draw
    from sparsesnn.partition.ipu.cost import predict
    from sparsesnn.partition.report import gains, summary, table
    from sparsesnn.whole_file import write_atomically

    if options.sweep is not None:
        return _sweep(options)
    plan, smaller = _make(options)
    prediction = predict(plan) if plan.target.kind == "ipu" else None
    more_notes = [] if prediction is None or smaller is None else gains(prediction, predict(smaller), plan, smaller)
    if options.save is not None:
        with _writing("--save", options.save):
            write_atomically(options.save, plan.to_json().encode())
    if options.json:
        data = summary(plan, prediction)
        data["notes"] += more_notes
        print(json.dumps(data, allow_nan=False))
    else:
        print("\n".join([table(plan, prediction), *(f"note: {text}" for text in more_notes)]))
    if options.plot is not None:
        with _writing("--plot", options.plot):
            draw(plan, options.plot, prediction)
    return 0


def _sweep(options: argparse.Namespace) -> int:
    from sparsesnn.partition.ipu import sweep_tables, sweeps

    if options.net is not None or options.network is not None:
        raise ConfigError("--sweep: has its own networks; leave --net and --network out")
    if options.target not in ("ipu-mk2", "ipu-bow"):
        raise ConfigError(
            f"--sweep: target is {options.target!r}; give ipu-mk2 or ipu-bow without a number, which the sweep sets"
        )
    delay = options.delay or 0
    if options.sweep == "weak-scaling" and options.delay == 0:
        raise ConfigError(
            "--delay: is 0, but the layers of weak-scaling are on several IPUs, which needs 1; leave it out"
        )
    if delay not in (0, 1):
        raise ConfigError(f"--delay: is {delay}; a sweep takes 0 or 1")
    if options.sweep == "sensitivity":
        if options.plot is not None:
            raise ConfigError("--plot: sensitivity is only a table; plot activity or weak-scaling")
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
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1 or max(counts) > 1024 or len(set(counts)) != len(counts):
        raise ConfigError(
            f"--ipus: is {text!r}; give different whole numbers from 1 to 1,024, joined by commas, such as 1,2,4"
        )
    return counts


def _make(options: argparse.Namespace) -> tuple[Plan, Plan | None]:
    """The requested plan; for several IPUs, also the plan on half of them, if it fits."""
    from sparsesnn.partition.planner import make_plan
    from sparsesnn.partition.target import parse_target

    target = parse_target(options.target)
    if options.link is not None:
        from sparsesnn.launch.links import given_links

        if target.kind != "ipu":
            raise ConfigError(
                f"--link: no speed is predicted for '{target.name}'; give it to a dry run, which measures one rank: "
                "sparsesnn train --comm dry-run:R --link"
            )
        target = replace(target, links=given_links(options.link))
    if options.memory is not None:
        if target.kind != "cpu":
            raise ConfigError(
                f"--memory: target '{target.name}' has its memory in its tiles; the option is for cpu and mpi"
            )
        if not 0 < options.memory < 1e9:
            raise ConfigError(f"--memory: is {options.memory}; give GiB per rank, above 0")
        target = replace(target, bytes_per_device=int(options.memory * 2**30))
    network = _network(options)
    activity, lists = _activity(options.activity)
    capacity = {**lists, **_named(_assignments(options.capacity, int, "--capacity"), "--capacity")}
    replicas = _replicas(options.replicas, options.batch, target)

    def plan(devices: int) -> Plan:
        return make_plan(
            network,
            -(-options.batch // replicas),
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
            regularizes=options.regularizer,
            keep_every=options.keep_every,
        )

    if target.name.startswith("mpi"):
        return plan(target.devices // replicas), None
    made, smaller = plan(target.devices), None
    if target.kind == "ipu" and target.devices > 1:
        with suppress(PlanError):
            smaller = plan(target.devices // 2)
    return made, smaller


def _replicas(n: int, batch: int, target: Target) -> int:
    """The checked number of replicas: on mpi they share its ranks and the samples of a batch."""
    if n < 1:
        raise ConfigError(f"--replicas: is {n} on '{target.name}'; give a whole number, at least 1")
    if target.name.startswith("mpi"):
        if target.devices % n:
            near = [r for r in range(1, target.devices + 1) if target.devices % r == 0]
            raise ConfigError(
                f"--replicas: is {n}, which {target.devices} ranks of '{target.name}' cannot share evenly; give one of "
                f"{', '.join(map(str, near))}"
            )
        if n > batch:
            raise ConfigError(f"--replicas: is {n}, for a batch of {batch}; give at most one for each sample")
    return n


def _network(options: argparse.Namespace) -> Network:
    from sparsesnn.network import Network, parse_net
    from sparsesnn.utf8 import read_text

    if (options.net is None) == (options.network is None):
        raise ConfigError(
            "plan: the network is missing; give --net TEXT, such as 700-974-974-974-20s, or --network FILE"
        )
    if options.net is not None:
        network = parse_net(options.net, neuron=options.net_neuron)
    else:
        network = Network.from_json(read_text(options.network, "--network", "a network as JSON"))
    return network if options.delay is None else network.with_delay(options.delay)


def _activity(text: str) -> tuple[Any, dict[str, int]]:
    """Numbers, or those measured by a run or a benchmark (the mapping "activity" of its JSON); and the list slots measured
    by a run on IPUs."""
    path = Path(text)
    if not path.exists():
        return _assignments(text, float, "--activity"), {}
    file = path / "result.json" if path.is_dir() else path
    check_regular(file, ConfigError, MAX_TEXT_BYTES)
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"--activity: {file} cannot be read: {error}") from None
    rates = data.get("activity") if isinstance(data, dict) else None
    if not isinstance(rates, dict) or not all(type(x) in (int, float) for x in rates.values()):
        raise ConfigError(f'--activity: {file} has no "activity" by population; give a run folder or a number')
    machine = data.get("machine")
    lists = machine.get("lists") if isinstance(machine, dict) else None
    if not isinstance(lists, dict) or not all(type(x) is int for x in lists.values()):
        lists = {}
    return rates, lists


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
        raise ConfigError(f"{option}: is {value!r}; name the population, such as hidden1={value}")
    return value


@contextmanager
def _writing(option: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{option}: {path} cannot be written: {error.strerror}") from None
