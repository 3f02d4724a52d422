"""`./dev bench rivals`."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rivals import environments, plot, report
from rivals.catalog import GROUPS, HIDDEN_ACTIVITY, N_SAMPLES, N_STEPS, RIVALS, WORKLOADS, Course, Rival, chosen
from rivals.race import Loaded, Worker, WorkerError, rotate, stolen_seconds
from rivals.results import Result, crossing, ratios, summarize
from rivals.task import Task

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = ROOT / ".venv-rivals"

SWEEP = (0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.3, 0.5)
QUICK_SWEEP = (0.002, 0.02, 0.2)

EXAMPLES = """\
examples:
  ./dev bench rivals                                  the whole run, some 15 minutes; writes benchmarks/results/
  ./dev bench rivals --quick --out build/race          a quick check, in a few minutes
  ./dev bench rivals --only sparsesnn,fused,snntorch --workloads W1 --no-sweep --out build/race
  ./dev bench rivals --device cuda:0 --out build/race  the dense contestants on a GPU"""


class Race:
    """One run: environments, tasks, rotations."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.rivals = [rival for rival in chosen(options.only) if rival.runs_on(options.device)]
        self.missing: dict[str, str] = {}
        self.places = self._places()
        self.started = time.monotonic()

    def _places(self) -> dict[str, environments.Environment]:
        places = {}
        for name in dict.fromkeys(rival.environment for rival in self.rivals):
            members = [rival for rival in RIVALS if rival.environment == name]
            places[name] = environments.prepare(name, members, ENVIRONMENTS, fresh=self.options.fresh)
        return places

    def make_tasks(self, wanted: Sequence[tuple[Course, float]]) -> None:
        """Makes the task files with sparsesnn, in a separate process: network and hidden activity → file."""
        python = environments.own().python
        if python is None:
            raise SystemExit("rivals: sparsesnn, which makes the tasks, is not installed here; run ./dev bench rivals")
        orders = []
        for course, hidden in dict.fromkeys(wanted):
            what: dict[str, Any] = {
                "net": course.net,
                "hidden_activity": hidden,
                "n_steps": course.n_steps,
                "n_samples": course.n_samples,
            }
            if course.recording:
                what |= {"recording": course.recording, "dt_ms": course.dt_ms, "rate": course.rate}
            else:
                what |= {"delays": course.delays}
            orders.append({"camera" if course.recording else "workload": what, "out": str(self.path(course, hidden))})
        print(f"==> making {len(orders)} tasks", file=sys.stderr)
        subprocess.run(
            [str(python), "-m", "rivals.prepare"],
            check=True,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])},
            input=json.dumps(orders),
            text=True,
        )

    def path(self, course: Course, hidden_activity: float) -> Path:
        net = course.net.replace(":", "-")
        return self.folder / f"{net}-{len(course.delays)}-{course.dt_ms:g}-{course.n_steps}-{hidden_activity:g}.npz"

    def start(self, stack: ExitStack, rivals: Sequence[Rival], label: str) -> list[Worker]:
        """Starts the processes of all contestants that can run."""
        workers = []
        for rival in rivals:
            place = self.places[rival.environment]
            if (why := place.lacks(rival)) or place.python is None:
                self.missing[rival.title.strip("*")] = why or "no environment"
                continue
            logs = self.folder / label
            logs.mkdir(exist_ok=True)
            workers.append(
                stack.enter_context(
                    Worker(
                        rival,
                        place.python,
                        rival.threads or self.options.threads,
                        logs,
                        ENVIRONMENTS / "inductor",
                        self.options.device,
                    )
                )
            )
        return workers

    def load(self, workers: list[Worker], path: Path, label: str) -> dict[str, Loaded]:
        """Runs the first steps; a contestant that fails leaves the race, with the reason."""
        loaded: dict[str, Loaded] = {}
        for worker in list(workers):
            name = worker.rival.name
            print(f"    {name}: first step …", end="", file=sys.stderr, flush=True)
            try:
                loaded[name] = worker.load(path)
                print(f" {loaded[name].first_step_s:.1f} s, loss {loaded[name].loss:.5f}", file=sys.stderr)
            except WorkerError as error:
                print(" failed", file=sys.stderr)
                self.drop(worker.rival, label, str(error))
                worker.close()
                workers.remove(worker)
        return loaded

    def run(
        self, workers: list[Worker], path: Path, label: str, rounds: int, *, with_memory: bool
    ) -> tuple[Task, list[Result]]:
        """All contestants' turns at one task."""
        task = Task.load(path)
        loaded = self.load(workers, path, label)
        turns, failed = rotate(workers, rounds, self.options.seconds)
        for rival in self.rivals:
            if rival.name in failed:
                self.drop(rival, label, failed[rival.name])
        return task, [
            summarize(
                worker.rival,
                loaded[worker.rival.name],
                turns[worker.rival.name],
                rounds,
                task.n_samples,
                task.losses[worker.rival.semantics],
                worker.growth() if with_memory else None,
            )
            for worker in workers
        ]

    def drop(self, rival: Rival, label: str, why: str) -> None:
        """Removes a contestant from the race, but keeps it in the report."""
        self.missing[f"{rival.title.strip('*')} on {label}"] = why[:300]

    def workload(self, name: str) -> tuple[list[Result], dict[str, float]]:
        """All contestants on one workload, and the activity of its populations."""
        print(f"==> {name}: {WORKLOADS[name]}", file=sys.stderr)
        path = self.path(WORKLOADS[name], WORKLOADS[name].hidden_activity)
        rivals = [rival for rival in self.rivals if rival.takes_part(name)]
        with ExitStack() as stack:
            workers = self.start(stack, rivals, name)
            task, results = self.run(workers, path, name, self.options.repeats, with_memory=True)
        print("\n".join(report.table(results)), flush=True)
        unreset = {f"{k} without a reset": a for k, a in task.unreset.items()} if name in GROUPS["long"] else {}
        return results, {**task.activity, **unreset}

    def sweep(self, course: Course, targets: Sequence[float]) -> dict[str, Any]:
        """samples/s of some contestants against hidden activity."""
        points: list[dict[str, Any]] = []
        rivals = [rival for rival in self.rivals if rival.sweep]
        with ExitStack() as stack:
            workers = self.start(stack, rivals, "sweep")
            for target in targets:
                print(f"==> {target:.1%} hidden activity", file=sys.stderr)
                path, label = self.path(course, target), f"{course} at {target:.1%}"
                task, results = self.run(workers, path, label, self.options.sweep_repeats, with_memory=False)
                hidden = [a for population, a in task.activity.items() if population.startswith("hidden")]
                points.append(
                    {
                        "target": target,
                        "activity": sum(hidden) / len(hidden),
                        "populations": task.activity,
                        "samples_per_s": {r.name: r.samples_per_s for r in results},
                        "foreign": {r.name: r.foreign for r in results},
                        "agrees": {r.name: r.agrees for r in results},
                    }
                )
        names = [rival.name for rival in rivals if any(rival.name in p["samples_per_s"] for p in points)]
        dense = [rival.name for rival in rivals if rival.kind in ("dense", "library")]
        return {
            "net": course.net,
            "names": names,
            "points": points,
            "dense_wins_at": crossing(points, "sparsesnn", dense),
            "csr_wins_at": crossing(points, "sparsesnn", ["csr"]),
        }


def main() -> int:
    parser = _arguments()
    options = parser.parse_args()
    try:
        chosen(options.only)
    except ValueError as error:
        parser.error(str(error))
    for name in ("repeats", "sweep_repeats", "threads"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is {getattr(options, name)}; give at least 1")
    if unknown := sorted(set(options.workloads) - set(WORKLOADS) - set(GROUPS)):
        parser.error(f"no workload {', '.join(unknown)}; there are {', '.join([*WORKLOADS, *GROUPS])}")
    workloads = list(dict.fromkeys(one for name in options.workloads for one in GROUPS.get(name, (name,))))
    command = " ".join(["./dev bench rivals", *sys.argv[1:]])
    if options.quick:
        options.repeats, options.sweep_repeats, options.seconds = 2, 1, 0.1
    facts = report.about(options.threads, command, ROOT, options.device)
    facts |= {"n_steps": N_STEPS, "n_samples": N_SAMPLES, "input_activity": 0.015, "hidden_activity": HIDDEN_ACTIVITY}
    out: Path = options.out
    stolen = stolen_seconds()
    with tempfile.TemporaryDirectory(prefix="rivals-") as folder:
        race = Race(options, Path(folder))
        targets = (QUICK_SWEEP if options.quick else SWEEP) if options.sweep else ()
        race.make_tasks(
            [(WORKLOADS[name], WORKLOADS[name].hidden_activity) for name in workloads]
            + [(WORKLOADS["W1"], target) for target in targets]
        )
        raced = {name: race.workload(name) for name in workloads}
        results = {name: those for name, (those, _) in raced.items()}
        activity = {name: firing for name, (_, firing) in raced.items()}
        sweep = race.sweep(WORKLOADS["W1"], targets) if targets else None
    facts["minutes"] = round((time.monotonic() - race.started) / 60, 1)
    after = stolen_seconds()
    facts["stolen"] = (after[0] - stolen[0]) / max(1e-9, after[1] - stolen[1]) if stolen and after else None
    guide = os.path.relpath(ROOT / "benchmarks" / "README.md", out)
    page = report.markdown(facts, results, activity, race.missing, sweep, guide)
    report.write(out / "rivals.md", page)
    report.write_json(
        out / "rivals.json",
        {
            "about": facts,
            "workloads": {
                name: {
                    "net": WORKLOADS[name].net,
                    "delays": WORKLOADS[name].delays,
                    "activity": activity[name],
                    "results": [result.to_dict() for result in those],
                }
                for name, those in results.items()
            },
            "ratios": ratios(results, sweep["points"] if sweep else []),
            "missing": race.missing,
        },
    )
    if sweep:
        report.write_json(out / "activity.json", {"about": facts, **sweep})
        plot.draw(out / "activity.png", sweep, facts)
    print(f"\n{page}\n==> {out}: {', '.join(sorted(p.name for p in out.iterdir()))}")
    differ = [f"{r.name} on {name}" for name, those in results.items() for r in those if not r.agrees]
    for point in sweep["points"] if sweep else []:
        differ += [f"{name} at {point['target']:.1%}" for name, agreed in point["agrees"].items() if not agreed]
    if differ:
        print(
            f"rivals: these losses differ from the expected ones, so they belong to another network: {', '.join(differ)}"
        )
    return 1 if differ else 0


def _arguments() -> argparse.ArgumentParser:
    names = ", ".join(rival.name for rival in RIVALS)
    parser = argparse.ArgumentParser(
        prog="./dev bench rivals",
        description="Times one training step of sparsesnn and of other libraries, in one interleaved run.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", type=lambda text: text.split(","), metavar="NAMES", help=f"contestants, of {names}")
    parser.add_argument(
        "--workloads",
        type=lambda text: text.split(","),
        default=["steps"],
        metavar="NAMES",
        help="workloads, of "
        + ", ".join(f"{name} ({course})" for name, course in WORKLOADS.items())
        + "; "
        + ", ".join(f"{name}: {', '.join(those)}" for name, those in GROUPS.items())
        + " (default: steps)",
    )
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="rounds (default: %(default)s)")
    parser.add_argument(
        "--sweep-repeats", type=int, default=3, metavar="N", help="rounds a point of the sweep (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, default=0.4, metavar="S", help="seconds of timed steps a turn, at least one step"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, metavar="N", help="default: all cores")
    parser.add_argument(
        "--device", default="cpu", metavar="NAME", help="cpu, cuda:0, …: on a GPU only PyTorch contestants run"
    )
    parser.add_argument("--quick", action="store_true", help="two rounds of short turns, three points of the sweep")
    parser.add_argument(
        "--sweep", action=argparse.BooleanOptionalAction, default=True, help="samples/s against hidden activity, on W1"
    )
    parser.add_argument("--fresh", action="store_true", help="make the environments again, with current versions")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", metavar="DIR")
    return parser


if __name__ == "__main__":
    sys.exit(main())
