"""A drawing of a plan: bytes on every tile of every device, by item and by population."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sparsesnn import figures
from sparsesnn.partition.cpu import memory as cpu_memory
from sparsesnn.partition.ipu import memory as ipu_memory
from sparsesnn.partition.ipu.cost import predict
from sparsesnn.partition.plan import Plan
from sparsesnn.partition.prediction import Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: items of `ipu/memory.py` and `cpu/memory.py`, in groups that share a color; from the bottom of the stack to its top
GROUPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "weights": ("#1b4f72", ("weights", "masters", "packed")),
    "gradient": ("#2e86c1", ("gradient",)),
    "optimizer": ("#85c1e9", ("optimizer",)),
    "history and state": ("#b9770e", ("history", "state", "parameters", "records", "state gradient", "readout")),
    "buffers, masks, shares": (
        "#f0b27a",
        ("buffers", "lists", "list gradients", "moved lists", "shares", "masks", "sorting", "waiting sums"),
    ),
    "collectors, reducers": ("#7d3c98", ("collector", "reducer")),
    "code, objects, reserved": ("#aab7b8", ("code", "objects", "reserved")),
}


def draw(plan: Plan, path: Path, prediction: Prediction | None = None) -> None:
    """A panel per device (one for all ranks of a CPU target), and, for IPUs, the predicted cost of a step."""
    ipu = plan.target.kind == "ipu"
    columns = _columns(plan)
    width = plan.target.tiles if ipu else len(next(iter(columns.values())))
    n_panels = plan.target.devices if ipu else 1
    limit = (plan.target.bytes_per_tile if ipu else plan.target.bytes_per_device) or 0
    figure = figures.new_figure(11, 1.8 + 1.7 * n_panels)
    heights = [1.0] * n_panels + [0.4] * ipu
    *panels, last = figure.subplots(len(heights), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    panels += [] if ipu else [last]
    for device, axes in enumerate(panels):
        tiles = np.arange(width) + (device * plan.target.stride if ipu else 0)
        stack = [column[tiles] / 1024 for column in columns.values()]
        colors = [color for color, _ in GROUPS.values()]
        # a step per tile: the repeated last value closes the last step
        axes.stackplot(
            [*tiles, tiles[-1] + 1],
            [[*s, s[-1]] for s in stack],
            step="post",
            colors=colors,
            labels=list(columns),
        )
        axes.axhline(limit / 1024, color="black", linestyle="--", linewidth=0.7)
        if ipu:
            _populations(axes, plan, tiles)
        axes.set(xlim=(tiles[0], tiles[-1] + 1), ylabel=f"IPU {device}, KiB" if ipu else "ranks, KiB")
    panels[-1].set_xlabel("tile" if ipu else "rank")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", fontsize=7, frameon=False)
    if ipu:
        _phases(last, prediction or predict(plan))
    where = f"{plan.target.name}: bytes per {'tile' if ipu else 'rank'}"
    figures.save(figure, path, f"{where}, T={plan.n_steps}, batch {plan.n_samples}, {plan.optimizer} ({plan.strategy})")


def _columns(plan: Plan) -> dict[str, np.ndarray]:
    """group → bytes on every tile, or rank."""
    if plan.target.kind == "ipu":
        items: Mapping[str, np.ndarray] = ipu_memory.tile_bytes(plan)
    else:
        ranks = cpu_memory.rank_bytes(plan)
        items = {k: np.array([r[k] for r in ranks], np.int64) for k in cpu_memory.ITEMS}
    zero = np.zeros_like(next(iter(items.values())))
    return {group: sum((items[k] for k in members if k in items), zero) for group, (_, members) in GROUPS.items()}


def _populations(axes: Axes, plan: Plan, tiles: np.ndarray) -> None:
    """Below the stack: the populations on the tiles; several on one tile share the height."""
    shared = max((len(v) for v in plan.tile_to_shards().values()), default=1)
    height = 0.08 * plan.target.bytes_per_tile / 1024 / shared
    for k, name in enumerate(k for k in plan.populations if k not in plan.network.inputs):
        spans = [(s.tile, 1) for s in plan.populations[name].shards if tiles[0] <= s.tile <= tiles[-1]]
        color = figures.CYCLE[k % len(figures.CYCLE)]
        axes.broken_barh(spans, (-height * (1 + k % shared), height), color=color, label=figures.shown(name))


def _phases(axes: Axes, prediction: Prediction) -> None:
    """The predicted cost of a step, as one bar."""
    start = 0.0
    for k, (phase, cycles) in enumerate(prediction.phases().items()):
        axes.barh(0, cycles, left=start, color=figures.CYCLE[k % len(figures.CYCLE)], label=phase)
        start += cycles
    speed = f"{start:,.0f} cycles per step, {prediction.samples_per_s:,.0f} samples/s"
    axes.set_title(f"predicted: {speed} (not measured)", fontsize=9)
    axes.set_axis_off()
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0), ncols=8, fontsize=6, frameon=False)
