"""A plan as text: a table of placement, bytes, and, on IPUs, the predicted cost of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsesnn.partition.cpu import memory as cpu_memory
from sparsesnn.partition.ipu import memory as ipu_memory
from sparsesnn.partition.ipu.cost import predict
from sparsesnn.partition.ipu.memory import MOST_OF_A_TILE
from sparsesnn.partition.plan import Plan
from sparsesnn.partition.prediction import Prediction
from sparsesnn.wording import count

#: the least speed-up that twice the devices should bring
LEAST_GAIN = 0.9
#: instead of a prediction for cores and ranks
MEASURE = "speed: measure it with sparsesnn bench step, or for one rank of R with sparsesnn train --comm dry-run:R"


def summary(plan: Plan, prediction: Prediction | None = None) -> dict[str, Any]:
    """The numbers of the table, as plain data; "predicted" is None for cores and ranks."""
    prediction = _prediction(plan, prediction)
    return {
        "target": plan.target.to_dict(),
        "n_steps": plan.n_steps,
        "n_samples": plan.n_samples,
        "replicas": plan.replicas,
        "regularizes": plan.regularizes,
        "keep_every": plan.keep_every,
        "optimizer": plan.optimizer,
        "weight_dtype": plan.weight_dtype,
        "strategy": plan.strategy,
        "n_neurons": sum(p.n for k, p in plan.populations.items() if k not in plan.network.inputs),
        "n_weights": plan.network.n_weights(),
        "populations": [_population(plan, name) for name in plan.populations],
        "memory": _memory(plan),
        "predicted": None if prediction is None else prediction.to_dict(),
        "notes": notes(plan),
    }


def _prediction(plan: Plan, known: Prediction | None) -> Prediction | None:
    return known or (predict(plan) if plan.target.kind == "ipu" else None)


def notes(plan: Plan) -> list[str]:
    """Warnings that a user should read before relying on the plan's figures."""
    texts = []
    depth = _first_spike_steps(plan)
    late = [name for name, step in depth.items() if step >= plan.n_steps]
    if late:
        texts.append(
            f"{len(late)} of {len(depth)} populations, from {late[0]} on, cannot receive a spike within T="
            f"{plan.n_steps}: delays add up to {count(max(depth.values()), 'step')}; give more steps or fewer delayed layers"
        )
    used = {s.device for p in plan.populations.values() for s in p.shards}
    what = "device" if plan.target.kind == "ipu" else "rank"
    idle = [d for d in range(plan.target.devices) if d not in used]
    if idle:
        joined = what == "device" and any(c.delay == 0 and c.pre not in plan.network.inputs for c in plan.connections)
        why = "; layers joined by delay 0 stay on one device: give delay 1" if joined else ""
        texts.append(f"{len(idle)} of {plan.target.devices} {what}s have no neurons{why}")
    if plan.target.kind == "ipu":
        fullest = int(ipu_memory.tile_totals(plan).max()) / plan.target.bytes_per_tile
        if fullest > MOST_OF_A_TILE:
            texts.append(
                f"the fullest tile is {100 * fullest:.0f} % full; above {100 * MOST_OF_A_TILE:.0f} % the plan may not fit on a "
                "device, because code and exchanges are estimated: lower the capacity of lists, or use more tiles"
            )
    for name, p in plan.populations.items():
        expected = plan.activity[name] * p.n
        if p.capacity and expected > p.capacity:
            texts.append(
                f"{name}: {expected:.0f} spikes a step are expected, but its lists have {count(p.capacity, 'slot')}; "
                "the rest would be dropped: raise its capacity"
            )
    return texts


def gains(prediction: Prediction, fewer: Prediction, plan: Plan, smaller: Plan) -> list[str]:
    """A note if `smaller`, the same network on fewer devices, is predicted to be about as fast."""
    if LEAST_GAIN * prediction.samples_per_s > fewer.samples_per_s:
        return []
    return [
        f"{count(plan.target.devices, 'IPU')} bring almost no gain: {prediction.samples_per_s:,.0f} samples/s are predicted, and "
        f"{fewer.samples_per_s:,.0f} on {smaller.target.devices}; use the IPUs for replicas instead (--replicas)"
    ]


def _first_spike_steps(plan: Plan) -> dict[str, int]:
    """By population: the first step at which a spike of the input can reach it."""
    steps: dict[str, int] = {}
    for name in plan.populations:
        arrivals = [steps[c.pre] + c.delay for c in plan.incoming(name) if not c.recurrent]
        steps[name] = min(arrivals, default=0)
    return steps


def _population(plan: Plan, name: str) -> dict[str, Any]:
    p = plan.populations[name]
    return {
        "name": name,
        "model": type(plan.network.populations[name]).__name__,
        "n": p.n,
        "activity": plan.activity[name],
        "capacity": p.capacity,
        "n_shards": len(p.shards),
        "n_per_shard": max((s.n for s in p.shards), default=0),
        "devices": sorted({s.device for s in p.shards}),
        "n_collectors": len(p.collectors),
    }


def _memory(plan: Plan) -> dict[str, Any]:
    """The fullest tile, or rank, item by item, and the mean over used ones."""
    if plan.target.kind == "ipu":
        by_item, limit = ipu_memory.tile_bytes(plan), plan.target.bytes_per_tile
        where = "tile"
    else:
        ranks = cpu_memory.rank_bytes(plan)
        by_item = {k: np.array([r[k] for r in ranks], np.int64) for k in cpu_memory.ITEMS}
        limit = plan.target.bytes_per_device or 0
        where = "rank"
    totals = np.array(list(by_item.values())).sum(0)
    worst, used = int(totals.argmax()), totals > 0
    return {
        "where": where,
        "fullest": worst,
        "limit": limit,
        "bytes": int(totals[worst]),
        "items": {k: int(v[worst]) for k, v in by_item.items() if v.any()},
        "mean_items": {k: float(v[used].mean()) for k, v in by_item.items() if v.any()},
        "mean_bytes": float(totals[used].mean()),
        "n_used": int(used.sum()),
    }


# ---- text ----------------------------------------------------------------------------------------------------------


def table(plan: Plan, prediction: Prediction | None = None) -> str:
    """Lines for a terminal, at most 120 columns."""
    prediction = _prediction(plan, prediction)
    data = summary(plan, prediction)
    speed = [MEASURE] if prediction is None else [*_cost_lines(prediction), "", *_foot(plan, prediction)]
    return "\n".join(
        [
            *_head(data, plan),
            "",
            *_populations(data, plan),
            "",
            *_memory_lines(data["memory"], plan),
            "",
            *speed,
            *(f"note: {note}" for note in data["notes"]),
        ]
    )


def _head(data: dict[str, Any], plan: Plan) -> list[str]:
    target = plan.target
    if target.kind == "ipu":
        machine = f"{count(target.devices, 'IPU')} of {count(target.tiles, 'tile')}"
    else:
        machine = f"{count(target.devices, 'rank')} of {count(target.tiles, 'core')}"
    kept = f" (potentials of {plan.keep_every} at a time)" if plan.keep_every > 1 else ""
    copies = f" in each of {plan.replicas} replicas" if plan.replicas > 1 else ""
    return [
        f"{count(data['n_neurons'], 'neuron')}, {data['n_weights'] / 1e6:,.2f} M weights on {target.name} ({machine})",
        f"T={plan.n_steps}{kept}, batch {plan.n_samples}{copies}, optimizer {plan.optimizer}, weights {plan.weight_dtype}; "
        f"strategy: {plan.strategy}",
    ]


#: more populations than this are shown by their first and last ones
MAX_ROWS = 12


def _populations(data: dict[str, Any], plan: Plan) -> list[str]:
    tile = "tiles" if plan.target.kind == "ipu" else "slabs"
    device = "devices" if plan.target.kind == "ipu" else "ranks"
    head = ("population", "model", "neurons", "activity", "capacity", tile, "each", device, "delays in")
    rows: list[tuple[str, ...]] = []
    for p in data["populations"]:
        delays = ", ".join(f"{c.pre} {c.delay}" for c in plan.incoming(p["name"])[:3])
        rows.append(
            (
                p["name"],
                p["model"],
                f"{p['n']:,}",
                f"{100 * p['activity']:.2f} %",
                f"{p['capacity']:,}" if p["capacity"] else "-",
                f"{p['n_shards']:,}" if p["n_shards"] else "-",
                f"{p['n_per_shard']}" if p["n_shards"] else "-",
                _range(p["devices"]),
                delays or "-",
            )
        )
    if len(rows) > MAX_ROWS:
        hidden = len(rows) - MAX_ROWS + 1
        rows = [*rows[: MAX_ROWS // 2], (f"… {hidden} more", *[""] * 8), *rows[hidden + MAX_ROWS // 2 :]]
    return _columns(head, rows, left=(0, 1, 7, 8))


def _range(numbers: list[int]) -> str:
    if not numbers:
        return "-"
    whole = numbers == list(range(numbers[0], numbers[-1] + 1))
    return f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}" if whole else f"{len(numbers)}"


def _memory_lines(m: dict[str, Any], plan: Plan) -> list[str]:
    head = ("memory, bytes", f"fullest {m['where']}", "mean")
    rows = [(k, f"{v:,}", f"{m['mean_items'][k]:,.0f}") for k, v in m["items"].items()]
    rows.append(("all", f"{m['bytes']:,}", f"{m['mean_bytes']:,.0f}"))
    limit = f" of {m['limit']:,} ({100 * m['bytes'] / m['limit']:.0f} %)" if m["limit"] else ""
    n_places = plan.target.n_tiles if plan.target.kind == "ipu" else plan.target.devices
    return [
        *_columns(head, rows, left=(0,)),
        f"{m['where']} {m['fullest']} is the fullest: {m['bytes']:,} bytes{limit}; "
        f"{m['n_used']:,} of {n_places:,} {m['where']}s in use",
    ]


def _cost_lines(prediction: Prediction) -> list[str]:
    phases = prediction.phases()
    total = sum(phases.values())
    rows = [(k, f"{v:,.0f}", f"{100 * v / total:.1f} %") for k, v in phases.items() if v]
    rows.append(("all", f"{total:,.0f}", "100.0 %"))
    return _columns(("predicted cycles a step", "cycles", "share"), rows, left=(0,))


def _foot(plan: Plan, prediction: Prediction) -> list[str]:
    lines = [
        f"predicted: {prediction.samples_per_s:,.0f} samples/s ({1e3 * prediction.batch_s:.2f} ms a batch at "
        f"{plan.target.clock_hz / 1e9:.2f} GHz)",
        f"data moved in a step: exchange {_bytes(prediction.exchange_bytes_per_step)}, "
        f"links {_bytes(prediction.link_bytes_per_step)}; between host and devices {_bytes(prediction.host_bytes)} a batch",
    ]
    if prediction.lists_bytes:
        seconds = prediction.lists_bytes / (plan.target.host_bytes_per_s * plan.target.devices * plan.replicas)
        lines.append(
            f"spike lists stay on the device; to read those of a batch takes {_bytes(prediction.lists_bytes)}, "
            f"{1e3 * seconds:.2f} ms more"
        )
    lines.append(
        "a prediction by sparsesnn/partition/ipu/cost.py, not a measurement: nothing here has run on an IPU yet"
    )
    return lines


def _bytes(n: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n:.0f} B"


def _columns(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], left: tuple[int, ...]) -> list[str]:
    widths = [max(len(row[k]) for row in (head, *rows)) for k in range(len(head))]
    return [
        "  ".join(
            x.ljust(w) if k in left else x.rjust(w) for k, (x, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]
