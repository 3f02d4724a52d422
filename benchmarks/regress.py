"""Compares the training step of two commits, and fails if the newer one is slower.

    ./dev bench regress BASE              HEAD against BASE
    ./dev bench regress BASE NEW --limit 3

Both commits are built in build/regress (kept, one folder each), with the packages of this environment. Three small networks take
training steps on one thread: feed-forward, recurrent, and with maps.

Where the processor's counters can be read (`perf stat`), instructions are counted: they hardly vary, so one measurement is enough.
Elsewhere there are ten rounds. In a round each commit has a fresh process, and their short turns alternate (A B B A A B B A ...); the
shortest CPU times of a step count. The result is the median of the rounds' ratios, or the ratio of the shortest times of all rounds if that
is smaller. If it is above the limit, ten more rounds are taken, and all count, so that other processes raise no alarm.

Exit status 1: a network became slower than the limit. Committed changes are compared; uncommitted ones are not.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "regress"
#: networks by name: the text, inputs, steps, samples, and the gain of the initial weights, with which about 2 % of the neurons fire
NETWORKS = {
    "feed-forward": ("300-256-256-20", 300, 50, 16, 3.0),
    "recurrent": ("300-256r-20", 300, 50, 16, 2.0),
    "maps": ("2x16x16:5C8-MP2-10", 512, 25, 8, 3.0),
}
#: CPU seconds of one turn, and turns of a network in a round: short and many, so that both commits meet the same disturbances
TURN, N_TURNS = 0.04, 24
#: the shortest times of a step in a round, in ns, of base and new, by network
Times = Mapping[str, tuple[int, int]]
#: instructions are counted between these numbers of steps, so that starting the process cancels out
FEW, MANY = 3, 23


# ---- the measured process ------------------------------------------------------------------------------------------------


def make_step(name: str) -> Callable[[], None]:
    """One training step of a network: forward, loss, backward."""
    import torch

    import sparsesnn as ss

    text, n_inputs, n_steps, n_samples, gain = NETWORKS[name]
    generator = torch.Generator().manual_seed(1)
    spikes = (torch.rand((n_steps, n_samples, n_inputs), generator=generator) < 0.03).float()
    labels = torch.arange(n_samples) % 10
    torch.manual_seed(1)
    model = ss.Model(ss.parse_net(text))
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(gain)
    batch = ss.SpikeBatch.from_dense(spikes)

    def loss(output: ss.Output) -> torch.Tensor:
        assert output.potentials is not None
        return torch.nn.functional.cross_entropy(output.potentials.mean(0), labels)

    def step() -> None:
        for weight in model.parameters():
            weight.grad = None
        _, output = model.learn(batch, loss)
        activity = [float(value) for value in output.activity().values()]
        if not 0.005 < min(activity) <= max(activity) < 0.1:
            raise RuntimeError(f"{name}: activity {activity}; a step has the usual work from 0.005 to 0.1")

    return step


def serve(tree: Path) -> None:
    """Takes a turn for each line on standard input, the name of a network; answers with the shortest CPU time of its steps, in ns."""
    steps = {}
    use(tree)
    for line in sys.stdin:
        name = line.strip()
        if name not in steps:
            steps[name] = make_step(name)
            steps[name]()
        best, end = 1 << 62, time.process_time() + TURN
        while time.process_time() < end:
            start = time.process_time_ns()
            steps[name]()
            best = min(best, time.process_time_ns() - start)
        print(best, flush=True)


def use(tree: Path) -> None:
    """Imports the package of a tree, with one thread; refuses another one."""
    import torch

    import sparsesnn as ss

    if tree not in Path(ss.__file__).resolve().parents:
        raise RuntimeError(f"sparsesnn comes from {ss.__file__}, not from {tree}")
    torch.set_num_threads(1)
    ss.set_num_threads(1)


def worker(tree: Path, *arguments: str) -> list[str]:
    """The command of a measured process. -S: an editable installation of this environment does not come first."""
    return [sys.executable, "-S", "-W", "ignore", __file__, "--tree", str(tree), *arguments]


def environment(tree: Path) -> dict[str, str]:
    packages = {sysconfig.get_path("purelib"), *(path for path in sys.path if path.endswith("site-packages"))}
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(tree), *sorted(packages)]), "OMP_NUM_THREADS": "1"}


# ---- building a commit ---------------------------------------------------------------------------------------------------


def build(revision: str) -> Path:
    """The folder of a commit with its compiled engine; made on the first call."""
    commit = output("git", "rev-parse", "--verify", f"{revision}^{{commit}}").strip()
    folder = WORK / commit[:12]
    tree = folder / "tree"
    if (folder / "ready").exists():
        return tree
    print(f"building {revision} ({commit[:12]})", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    tree.mkdir(parents=True)
    output("git", "archive", "--output", str(folder / "tree.tar"), commit)
    with tarfile.open(folder / "tree.tar") as archive:
        archive.extractall(tree, filter="data")
    nanobind = output(sys.executable, "-m", "nanobind", "--cmake_dir").strip()
    found = (f"-DPython_EXECUTABLE={sys.executable}", f"-Dnanobind_DIR={nanobind}")
    isa = output(sys.executable, "-c", "import sparsesnn; print(sparsesnn.build_info()['isa'])").strip()
    isas = f"-DSPARSESNN_ISAS={isa}"  # the copies of the kernels for other instruction sets would not run
    output("cmake", "-S", str(tree), "-B", str(folder / "build"), "-G", "Ninja", *found, isas)
    output("cmake", "--build", str(folder / "build"), "--target", "_core")
    (module,) = (folder / "build").glob("_core*.so")
    shutil.copy(module, tree / "sparsesnn")
    (folder / "ready").touch()
    return tree


def output(*command: str) -> str:
    """The standard output of a command; ends the program if it fails."""
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode:
        end = (result.stdout + result.stderr)[-3000:]
        sys.exit(f"regress: {' '.join(command)} failed with exit status {result.returncode}:\n{end}")
    return result.stdout


# ---- instructions --------------------------------------------------------------------------------------------------------


def count_instructions(command: Sequence[str], env: Mapping[str, str] = os.environ) -> int | None:
    """Instructions of a process; None where the processor's counters cannot be read."""
    if shutil.which("perf") is None:
        return None
    counted = ["perf", "stat", "-x,", "-e", "instructions:u", *command]
    return instructions_of(subprocess.run(counted, env=env, capture_output=True, text=True, check=False).stderr)


def count_steps(tree: Path, name: str, n_steps: int) -> int | None:
    """Instructions of a process that takes steps."""
    return count_instructions(worker(tree, "--steps", str(n_steps), "--network", name), environment(tree))


def instructions_of(text: str) -> int | None:
    """The number in the lines of `perf stat -x,`; None if it is "<not supported>", or missing."""
    for line in text.splitlines():
        count, _, rest = line.partition(",")
        if "instructions" in rest and count.isdecimal():
            return int(count)
    return None


def compare_instructions(trees: Sequence[Path]) -> dict[str, float] | None:
    """Ratios new / base by network; None without counters."""
    if count_instructions(["true"]) is None:
        return None
    ratios = {}
    for name in NETWORKS:
        counts = []
        for tree in trees:
            few, many = (count_steps(tree, name, n) for n in (FEW, MANY))
            if few is None or many is None:
                return None
            counts.append(many - few)
        ratios[name] = counts[1] / counts[0]
    return ratios


# ---- CPU time --------------------------------------------------------------------------------------------------------------


def one_round(trees: Sequence[Path], first: int) -> Times:
    """The shortest CPU times of a step, of base and new; the commit number `first` has the first turn."""
    processes = [
        subprocess.Popen(
            worker(tree, "--serve"), env=environment(tree), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for tree in trees
    ]
    try:
        times = {}
        for name in NETWORKS:
            best: list[list[int]] = [[], []]
            for turn in range(N_TURNS):
                side = (first + (turn + 1) // 2) % 2
                best[side].append(take_turn(processes[side], trees[side], name))
            times[name] = (min(best[0]), min(best[1]))
        return times
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def take_turn(process: subprocess.Popen[str], tree: Path, name: str) -> int:
    """CPU time in ns of a step; ends the program if the process has failed."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(f"{name}\n")
        process.stdin.flush()
        answer = process.stdout.readline()
    except BrokenPipeError:
        answer = ""
    if not answer.strip().isdecimal():
        sys.exit(f"regress: {tree} cannot take a step of the network '{name}'; the message is above")
    return int(answer)


def compare_times(
    n_rounds: int, limit: float, measure: Callable[[int], Times], *, show: Callable[[str], None] = print
) -> dict[str, float]:
    """`slowdowns` over rounds of `measure(round)`; if one is above the limit, over twice as many."""
    rounds = [measure(k) for k in range(n_rounds)]
    found = slowdowns(rounds)
    if max(found.values()) > limit:
        show(f"above the limit after {n_rounds} rounds ({text_of(found)}): {n_rounds} more")
        rounds += [measure(k) for k in range(n_rounds, 2 * n_rounds)]
        found = slowdowns(rounds)
    return found


def slowdowns(rounds: Sequence[Times]) -> dict[str, float]:
    """Ratios new / base by network: the median of the rounds, or the ratio of the shortest times of all rounds if it is smaller.

    A slower commit has both. Other processes move the two in different ways: the median if they disturb many rounds, the
    shortest times if one commit never had a quiet moment.
    """
    ratios = {}
    for name in rounds[0]:
        base, new = zip(*(times[name] for times in rounds), strict=True)
        ratios[name] = min(statistics.median(n / b for b, n in zip(base, new, strict=True)), min(new) / min(base))
    return ratios


def text_of(ratios: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {100 * (ratio - 1):+.1f} %" for name, ratio in ratios.items())


# ---- the program -------------------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """1 if a network became slower than the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="a commit, branch or tag")
    parser.add_argument("new", nargs="?", default="HEAD", help="another one (HEAD)")
    parser.add_argument("--limit", type=float, default=5.0, help="percent (5)")
    parser.add_argument("--rounds", type=int, default=10, help="rounds without counters (10)")
    parser.add_argument("--json", type=Path, help="write the ratios to this file")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or not options.limit > 0:
        parser.error(f"--rounds {options.rounds}, --limit {options.limit}; allowed: rounds from 1, a limit above 0")
    trees = [build(options.base), build(options.new)]
    limit = 1 + options.limit / 100
    ratios, measured = compare_instructions(trees), "instructions"
    if ratios is None:
        measured = "CPU time"
        ratios = compare_times(options.rounds, limit, lambda k: one_round(trees, k % 2))
    if options.json:
        options.json.write_text(json.dumps({"measured": measured, "ratios": ratios}) + "\n")
    slower = [name for name, ratio in ratios.items() if ratio > limit]
    print(f"{measured} of a training step, {options.new} against {options.base}: {text_of(ratios)}")
    if slower:
        print(f"slower by more than {options.limit:g} %: {', '.join(slower)}")
    return int(bool(slower))


def measured_process(arguments: Sequence[str]) -> int:
    """What `worker` starts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tree", type=Path, required=True)
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--network")
    options = parser.parse_args(arguments)
    if options.serve:
        serve(options.tree)
        return 0
    use(options.tree)
    step = make_step(options.network)
    for _ in range(options.steps):
        step()
    return 0


if __name__ == "__main__":
    sys.exit(measured_process(sys.argv[1:]) if "--tree" in sys.argv else main())
