"""Sweeps as Markdown tables and plots, each marked as a prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from itertools import groupby
from pathlib import Path

from sparsesnn import figures
from sparsesnn.partition.ipu import memory, work
from sparsesnn.partition.ipu.sweeps import Row, Sensitivity
from sparsesnn.partition.target import IPU_MK2


def activity_table(rows: Sequence[Row]) -> str:
    """Samples/s: a line per activity, a column per depth and kind of activity."""
    series = list(dict.fromkeys(r.series for r in rows))
    speed = {(r.series, r.x): _speed(r) for r in rows}
    lines = [
        ["largest activity", *(s.replace(" hidden layers", "") for s in series)],
        *([f"{100 * x:g} %", *(speed[s, x] for s in series)] for x in sorted({r.x for r in rows})),
    ]
    return _markdown(lines)


def _speed(row: Row) -> str:
    return f"{row.samples_per_s:,.0f}" if row.bytes_share <= memory.MOST_OF_A_TILE else "too full"


def scaling_table(rows: Sequence[Row]) -> str:
    """A line per series and number of IPUs; efficiency is samples/s over those of one IPU of the same series."""
    lines = [
        [
            "IPUs",
            "neurons",
            "weights",
            "layers",
            "reached in T",
            "samples/s",
            "efficiency",
            "exchange",
            "links",
            "fullest tile",
        ]
    ]
    for series, group in groupby(rows, key=lambda r: r.series):
        lines.append([f"**{series}**", *[""] * 9])
        points = list(group)
        for r in points:
            lines.append(
                [
                    f"{r.x:g}",
                    f"{r.n_neurons:,}",
                    f"{r.n_weights / 1e6:.1f} M",
                    f"{r.n_layers}",
                    f"{100 * r.reached:.0f} %",
                    _speed(r),
                    f"{r.samples_per_s / points[0].samples_per_s:.2f}",
                    f"{100 * r.exchange_share:.0f} %",
                    f"{100 * r.link_share:.0f} %",
                    f"{100 * r.bytes_share:.0f} %",
                ]
            )
    return _markdown(lines)


def sensitivity_table(base: float, rows: Sequence[Sensitivity]) -> str:
    """Samples/s, and its change if an assumption is halved or doubled."""
    lines = [["assumption", "halved", "doubled"]]
    for r in rows:
        lines.append([r.what, *(f"{x:,.0f} ({100 * (x / base - 1):+.0f} %)" for x in (r.halved, r.doubled))])
    return _markdown(lines)


def assumptions_table() -> str:
    """Every assumption of the predictions, with its value."""
    lines = [["assumption", "value"]]
    for instance in (work.ASSUMPTIONS, memory.ASSUMPTIONS, IPU_MK2.exchange, IPU_MK2.links):
        lines += [[f"`{type(instance).__name__}.{f.name}`", f"{getattr(instance, f.name):g}"] for f in fields(instance)]
    lines += [[f"`Target.{name}`", f"{getattr(IPU_MK2, name):g}"] for name in ("clock_hz", "host_bytes_per_s")]
    return _markdown(lines)


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    head, *body = lines
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *body))


# ---- plots ---------------------------------------------------------------------------------------------------------


def plot_activity(rows: Sequence[Row], path: Path) -> None:
    """Samples/s against activity; natural activity above, fixed activity below, as solid and broken lines."""
    figure = figures.new_figure(7.5, 4.6)
    axes = figure.subplots()
    depths = list(dict.fromkeys(r.series.split(",")[0] for r in rows))
    for k, depth in enumerate(depths):
        for kind, style in (("natural", "-"), ("fixed", "--")):
            points = [r for r in rows if r.series == f"{depth}, {kind}"]
            axes.plot(
                [100 * r.x for r in points],
                [r.samples_per_s for r in points],
                style,
                marker="o",
                markersize=3,
                color=f"C{k}",
                label=f"{depth}, {kind}",
            )
    axes.set(xscale="log", yscale="log", xlabel="maximum activity (list capacity), %", ylabel="samples/s, predicted")
    ticks = [100 * x for x in sorted({r.x for r in rows})]
    axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    figures.save(figure, path, "predicted, not measured: one IPU, 2,942 neurons, T=100, batch 48")


def plot_scaling(rows: Sequence[Row], path: Path) -> None:
    """Efficiency against the number of IPUs."""
    figure = figures.new_figure(7.5, 4.6)
    axes = figure.subplots()
    for series, group in groupby(rows, key=lambda r: r.series):
        points = list(group)
        axes.plot(
            [r.x for r in points],
            [r.samples_per_s / points[0].samples_per_s for r in points],
            "--" if series.endswith("24") else "-",
            marker="o",
            markersize=3,
            label=series,
        )
    ticks = sorted({r.x for r in rows})
    axes.set(xscale="log", ylim=(0, 1.05), xlabel="IPUs", ylabel="samples/s relative to one IPU, predicted")
    axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    figures.save(figure, path, "predicted, not measured: weak scaling, T=100, natural activity 2 %, lists of 5 %")
