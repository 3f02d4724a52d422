"""A drawing of a plan: bytes on every tile of every device, what they are, and whose neurons they serve. SVG, written here."""

from __future__ import annotations

from collections.abc import Mapping
from xml.sax.saxutils import escape

import numpy as np

from sparsesnn.partition.cpu import memory as cpu_memory
from sparsesnn.partition.ipu import memory as ipu_memory
from sparsesnn.partition.plan import Plan
from sparsesnn.partition.prediction import Prediction, predict

#: items of `ipu/memory.py` and `cpu/memory.py`, in groups that share a colour; from the bottom of the stack to its top
GROUPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "weights": ("#1b4f72", ("weights", "masters", "packed")),
    "gradient": ("#2e86c1", ("gradient",)),
    "optimiser": ("#85c1e9", ("optimiser",)),
    "history and state": ("#b9770e", ("history", "state", "parameters", "records", "state gradient", "readout")),
    "buffers, masks, shares": (
        "#f0b27a",
        ("buffers", "lists", "list gradients", "shares", "masks", "sorting", "waiting sums"),
    ),
    "collectors, reducers": ("#7d3c98", ("collector", "reducer")),
    "code, objects, reserved": ("#aab7b8", ("code", "objects", "reserved")),
}
#: colours of populations, taken in turn
POPULATIONS = ("#117a65", "#d4ac0d", "#922b21", "#5b2c6f", "#1a5276", "#7e5109", "#28b463", "#cb4335")
WIDTH, PANEL, BAND, LEFT, GAP = 736, 96, 8, 92, 34


def svg(plan: Plan, prediction: Prediction | None = None) -> str:
    """The drawing as SVG text: a panel per device (one for all ranks of a CPU target), and what a step costs."""
    columns = _columns(plan)
    panels = _panels(plan, columns)
    totals = np.sum(list(columns.values()), axis=0)
    limit = plan.target.bytes_per_tile if plan.target.kind == "ipu" else plan.target.bytes_per_device or 0
    top = max(int(totals.max()), limit, 1)
    parts = [_text(LEFT, 20, _title(plan), size=13, weight="bold"), *_legend(plan)]
    y = 74
    for title, first, last in panels:
        parts += _panel(plan, {k: v[first:last] for k, v in columns.items()}, first, y, title, top, limit)
        y += PANEL + BAND + GAP
    parts += _phases(prediction or predict(plan), y)
    height = y + 62
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 20}" height="{height}" '
        f'viewBox="0 0 {LEFT + WIDTH + 20} {height}" font-family="sans-serif">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _columns(plan: Plan) -> dict[str, np.ndarray]:
    """group → bytes on every tile, or rank."""
    if plan.target.kind == "ipu":
        items: Mapping[str, np.ndarray] = ipu_memory.tile_bytes(plan)
    else:
        ranks = cpu_memory.rank_bytes(plan)
        items = {k: np.array([r[k] for r in ranks], np.int64) for k in cpu_memory.ITEMS}
    zero = np.zeros_like(next(iter(items.values())))
    return {group: sum((items[k] for k in members if k in items), zero) for group, (_, members) in GROUPS.items()}


def _panels(plan: Plan, columns: Mapping[str, np.ndarray]) -> list[tuple[str, int, int]]:
    if plan.target.kind == "cpu":
        return [("ranks", 0, len(next(iter(columns.values()))))]
    n = plan.target.tiles
    return [(f"IPU {d}", d * n, (d + 1) * n) for d in range(plan.target.devices)]


def _title(plan: Plan) -> str:
    return (
        f"{plan.target.name}: bytes per {'tile' if plan.target.kind == 'ipu' else 'rank'}, T={plan.n_steps}, "
        f"batch {plan.n_samples}, {plan.optimizer} ({plan.strategy})"
    )


def _legend(plan: Plan) -> list[str]:
    parts, x = [], LEFT
    for group, (colour, _) in GROUPS.items():
        parts += [_rect(x, 32, 10, 10, colour), _text(x + 14, 41, group, size=10)]
        x += 26 + 6 * len(group)
    x = LEFT
    shown = [k for k in plan.populations if k not in plan.network.inputs]
    for k, name in enumerate(shown[:8]):
        parts += [_rect(x, 50, 10, 6, POPULATIONS[k % len(POPULATIONS)]), _text(x + 14, 57, name, size=10)]
        x += 26 + 6 * len(name)
    if len(shown) > 8:
        parts.append(_text(x, 57, f"… {len(shown)} populations, colours in turn", size=10))
    return parts


def _panel(
    plan: Plan, columns: Mapping[str, np.ndarray], first: int, y: int, title: str, top: int, limit: int
) -> list[str]:
    n = len(next(iter(columns.values())))
    parts = [_text(LEFT - 8, y + 12, title, size=12, anchor="end", weight="bold")]
    base = np.zeros(n)
    for group, (colour, _) in GROUPS.items():
        if columns[group].any():
            parts.append(_area(base, base + columns[group], y, top, colour, group))
            base = base + columns[group]
    for value, label in ((0, "0"), (limit or top, f"{(limit or top) / 1024:,.0f} KiB")):
        line = y + PANEL * (1 - value / top)
        parts.append(_text(LEFT - 8, line + 4, label, size=10, anchor="end"))
        parts.append(
            f'<line x1="{LEFT}" y1="{line:.1f}" x2="{LEFT + WIDTH}" y2="{line:.1f}" stroke="#555" stroke-width="0.7"'
            + (' stroke-dasharray="4 3"/>' if value else "/>")
        )
    if plan.target.kind == "ipu":
        parts += _band(plan, first, n, y + PANEL + 3)
    parts.append(
        _text(LEFT, y + PANEL + BAND + 14, f"{'tile' if plan.target.kind == 'ipu' else 'rank'} {first}", size=9)
    )
    parts.append(_text(LEFT + WIDTH, y + PANEL + BAND + 14, f"{first + n - 1}", size=9, anchor="end"))
    return parts


def _area(low: np.ndarray, high: np.ndarray, y: int, top: int, colour: str, what: str) -> str:
    """One group of a stack as a closed outline; tiles of equal height become one step."""
    n = len(low)
    starts = np.flatnonzero(np.concatenate([[True], (np.diff(low) != 0) | (np.diff(high) != 0)]))
    ends = [*starts[1:].tolist(), n]

    def point(column: int, value: np.floating) -> str:
        return f"{LEFT + WIDTH * column / n:.1f},{y + PANEL * (1 - value / top):.1f}"

    upper = [p for a, b in zip(starts.tolist(), ends, strict=True) for p in (point(a, high[a]), point(b, high[a]))]
    lower = [p for a, b in zip(starts.tolist(), ends, strict=True) for p in (point(a, low[a]), point(b, low[a]))]
    return f'<polygon fill="{colour}" points="{" ".join(upper + lower[::-1])}"><title>{escape(what)}</title></polygon>'


def _band(plan: Plan, first: int, n: int, y: int) -> list[str]:
    """Below the stack: which population's neurons live on the tiles; several on one tile share its height."""
    parts = []
    names = [k for k in plan.populations if k not in plan.network.inputs]
    shared = max((len(v) for v in plan.tile_to_shards().values()), default=1)
    height = BAND / shared
    for k, name in enumerate(names):
        tiles = np.sort([s.tile for s in plan.populations[name].shards if first <= s.tile < first + n])
        if not len(tiles):
            continue
        row = y + height * (k % shared)
        for run in np.split(tiles, np.flatnonzero(np.diff(tiles) != 1) + 1):
            x, width = LEFT + WIDTH * (run[0] - first) / n, WIDTH * len(run) / n
            parts.append(_rect(x, row, width, height, POPULATIONS[k % len(POPULATIONS)], name))
    return parts


def _phases(prediction: Prediction, y: int) -> list[str]:
    """What a step is expected to cost, as one bar."""
    phases = {k: v for k, v in prediction.phases().items() if v}
    total = sum(phases.values())
    parts = [
        _text(
            LEFT,
            y + 8,
            f"predicted: {total:,.0f} cycles a step, {prediction.samples_per_s:,.0f} samples/s (not measured)",
            size=11,
            weight="bold",
        )
    ]
    x = float(LEFT)
    for k, (phase, cycles) in enumerate(phases.items()):
        width = WIDTH * cycles / total
        parts.append(_rect(x, y + 16, width, 16, POPULATIONS[k % len(POPULATIONS)], f"{phase}: {cycles:,.0f} cycles"))
        if width > 6.5 * len(phase):
            parts.append(_text(x + 3, y + 28, phase, size=10, fill="white"))
        x += width
    return parts


def _rect(x: float, y: float, width: float, height: float, fill: str, title: str = "") -> str:
    body = f"><title>{escape(title)}</title></rect>" if title else "/>"
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.2f}" height="{height:.2f}" fill="{fill}"' + body


def _text(
    x: float, y: float, text: str, *, size: int, anchor: str = "start", weight: str = "normal", fill: str = "#222"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" '
        f'fill="{fill}">{escape(text)}</text>'
    )
