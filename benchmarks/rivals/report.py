"""Tables as Markdown, and JSON; both written to a temporary name first."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rivals.catalog import SEMANTICS, WORKLOADS
from rivals.race import QUIET
from rivals.results import Result, ratios
from sparsesnn.wording import count
from studies.roofline import cache_sizes


def about(threads: int, command: str, root: Path, device: str = "cpu") -> dict[str, Any]:
    """The conditions of the run; `ConfigError` for a missing device."""
    import sparsesnn
    from sparsesnn.engines.dense.device import device_name, find_device

    place = find_device(device)

    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(root),
        "command": command,
        "machine": _processor(),
        "device": device_name(place),
        "cores": os.cpu_count(),
        "mhz": _megahertz(),
        "caches": cache_sizes(),
        "threads": threads,
        "isa": sparsesnn.build_info()["isa"],
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def commit(root: Path) -> str:
    """The commit of the tree, with `+` for uncommitted changes; results of earlier runs do not count as changes."""
    try:
        head = _git(root, "rev-parse", "--short", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if changed else "")


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(root), *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _megahertz() -> float | None:
    """The current frequency of the fastest core; None if unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return max((float(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")), default=None)


def conditions(facts: Mapping[str, Any]) -> str:
    """Frequency, caches and stolen time, as text; `facts["stolen"]` is a share of the time of all cores."""
    parts = [] if facts["mhz"] is None else [f"{facts['mhz']:,.0f} MHz at the start"]
    parts += [f"{level} {n >> 10:,} kB" for level, n in facts["caches"].items()]
    if facts["stolen"] is not None:
        parts.append(f"{100 * facts['stolen']:.1f} % of the time stolen by the host")
    return ", ".join(parts)


def markdown(
    facts: Mapping[str, Any],
    workloads: Mapping[str, Sequence[Result]],
    activity: Mapping[str, Mapping[str, float]],
    missing: Mapping[str, str],
    sweep: Mapping[str, Any] | None,
    guide: str = "../README.md",
) -> str:
    """The whole page; `guide` is the path from its folder to the page on the method."""
    gpu = "" if facts["device"] == "cpu" else f"{facts['device']} with "
    lines = [
        "# One training step, all contestants in one run",
        "",
        f"{facts['date']}, commit {facts['commit']}, {gpu}{facts['machine']}, {count(facts['threads'], 'thread')} ({facts['isa']}): "
        f"`{facts['command']}`. Forward, cross-entropy of the time-mean readout, backward through time, Adam; "
        f"T = {facts['n_steps']}, batch {facts['n_samples']}, unless a heading says otherwise; float32, the same spikes and weights for all. "
        f"Medians over interleaved turns; [how it is measured]({guide}).",
        "",
        f"The machine: {conditions(facts)}.",
    ]
    for name, results in workloads.items():
        firing = ", ".join(f"{k} {100 * a:.2f} %" for k, a in activity[name].items())
        lines += ["", f"## {name}: {WORKLOADS[name]}", "", f"Activity: {firing}.", "", *table(results)]
        if disturbed := disturbance(results):
            lines += ["", disturbed]
    if missing:
        lines += ["", "## Missing", ""]
        lines += [f"- {name}: {why}" for name, why in missing.items()]
    points = sweep["points"] if sweep else []
    if found := ratios(workloads, points):
        lines += ["", "## Ratios of sparsesnn", "", "| | |", "|---|---|"]
        lines += [f"| {name} | {ratio:.2f} |" for name, ratio in found.items()]
    if sweep:
        lines += ["", *sweep_lines(sweep)]
    lines += ["", "## Losses", "", "The expected loss depends on the order of a step; ✓ is within 2e-4 of it.", ""]
    lines += [f"- **{kind}**: {meaning}" for kind, meaning in SEMANTICS.items()]
    return "\n".join(lines) + "\n"


def table(results: Sequence[Result]) -> list[str]:
    """One workload, fastest first."""
    lines = [
        "| | version | samples/s | ms a step (quartiles) | CPU ms | memory of a step, MB | first step, s | loss | mode |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for r in sorted(results, key=lambda r: -r.samples_per_s):
        memory = "?" if r.growth_mb is None else f"{r.growth_mb:,.0f}"
        verdict = "✓" if r.agrees else f"**✗** expected {r.expected_loss:.5f}"
        lines.append(
            f"| {r.title} | {r.version or ''} | {r.samples_per_s:,.0f} "
            f"| {r.step_ms:.1f} ({r.quartiles_ms[0]:.1f}–{r.quartiles_ms[1]:.1f}) | {r.cpu_ms:.1f} | {memory} | {r.first_step_s:.1f} "
            f"| {r.loss:.5f} {r.semantics} {verdict} | {r.note} |"
        )
    return lines


def disturbance(results: Sequence[Result]) -> str:
    """A warning if others used the machine; empty if not."""
    used = sum(r.n_turns for r in results)
    loud = used - sum(r.n_quiet for r in results)
    if not loud:
        return ""
    worst = max((r.foreign or 0.0 for r in results), default=0.0)
    return (
        f"**Disturbed**: in {loud} of {used} turns other processes used the machine, "
        f"up to {worst:.2f} cores in a contestant's median turn."
    )


def sweep_lines(sweep: Mapping[str, Any]) -> list[str]:
    """The sweep over activities as a table."""
    names = sweep["names"]
    lines = [f"## Activity, {sweep['net']}", "", "![samples/s against hidden activity](activity.png)", ""]
    lines += [f"| hidden activity | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    for point in sweep["points"]:
        speed = point["samples_per_s"]
        cells = [f"{speed[name]:,.0f}" if name in speed else "" for name in names]
        lines.append(f"| {100 * point['activity']:.2f} % | {' | '.join(cells)} |")
    where = sweep["dense_wins_at"]
    won = "sparsesnn is faster at every point." if where is None else f"Dense wins from {100 * where:.0f} % on."
    if disturbed := sweep_disturbance(sweep):
        won += f" **{disturbed.capitalize()}.**"
    return [*lines, "", won]


def sweep_disturbance(sweep: Mapping[str, Any]) -> str:
    """A warning if others used the machine during the sweep; empty if not."""
    loads = [load or 0.0 for point in sweep["points"] for load in point.get("foreign", {}).values()]
    loud = sum(load > QUIET for load in loads)
    return f"disturbed: others used the machine at {loud} of {len(loads)} marks" if loud else ""


def write(path: Path, text: str) -> None:
    """Writes the file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    write(path, json.dumps(data, indent=1, allow_nan=False, ensure_ascii=False) + "\n")
