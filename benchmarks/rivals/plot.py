"""A plot of samples/s against activity."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rivals.catalog import RIVALS
from rivals.report import sweep_disturbance
from sparsesnn import figures
from sparsesnn.wording import count


def draw(path: Path, sweep: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Writes a PNG of the sweep."""
    titles = {rival.name: rival.title.strip("*").replace("`", "") for rival in RIVALS}
    figure = figures.new_figure(7.2, 4.6)
    axes = figure.subplots()
    for name, color in zip(sweep["names"], figures.CYCLE, strict=False):
        points = [p for p in sweep["points"] if name in p["samples_per_s"]]
        axes.plot(
            [100 * p["activity"] for p in points],
            [p["samples_per_s"][name] for p in points],
            marker="o",
            markersize=4,
            linewidth=2.4 if name == "sparsesnn" else 1.4,
            color=color,
            label=titles[name],
        )
    if (where := sweep["dense_wins_at"]) is not None:
        axes.axvline(100 * where, color="0.5", linestyle=":", linewidth=1)
        axes.annotate(
            f"dense wins from {100 * where:.0f} %",
            (100 * where, 0.97),
            xycoords=("data", "axes fraction"),
            ha="right",
            va="top",
            rotation=90,
            color="0.35",
            fontsize=8,
        )
    axes.set(xscale="log", yscale="log", xlabel="hidden activity, % (spikes per neuron and step)", ylabel="samples/s")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(which="major", color="0.88")
    disturbed = sweep_disturbance(sweep)
    title = (
        f"Training step of {sweep['net']}, T={facts['n_steps']}, batch {facts['n_samples']}, "
        f"{count(facts['threads'], 'thread')} of {facts['machine']}" + (f"\n{disturbed}" if disturbed else "")
    )
    # below the title, which may be wider than the axes
    figure.legend(fontsize=8, frameon=False, loc="outside right center")
    figures.save(figure, path, title)
