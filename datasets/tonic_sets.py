"""Any data set of Tonic as spike lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsesnn.datasets.binning import Binned, bin_events, pooled
from sparsesnn.datasets.classes import count_classes, numbered
from sparsesnn.datasets.event_set import EventSet
from sparsesnn.datasets.sensor import Sensor
from sparsesnn.errors import DataError
from sparsesnn.event_times import Clock

#: samples that are read at once
_BLOCK = 256


def from_tonic(
    dataset: Any,
    *,
    n_steps: int,
    dt_us: float,
    pool: int = 1,
    duplicates: str = "binary",
    start: str = "zero",
    sensor_size: Sequence[int] | None = None,
) -> EventSet:
    """See `EventSet.from_tonic`."""
    name, clock = type(dataset).__name__, Clock(start)
    size = tuple(getattr(dataset, "sensor_size", None) or () if sensor_size is None else sensor_size)
    if len(size) != 3 or not all(isinstance(x, (int, np.integer)) and x > 0 for x in size):
        raise DataError(f"from_tonic: {name} says no sensor_size; give sensor_size=(width, height, polarities)")
    width, height, n_polarities = (int(x) for x in size)
    side_x, side_y = pooled(width, pool), pooled(height, pool)
    parts, labels = [], []
    for first in range(0, max(1, len(dataset)), _BLOCK):
        events = []
        for k in range(first, min(first + _BLOCK, len(dataset))):
            given, label = dataset[k]
            labels.append(label.item() if hasattr(label, "item") else label)
            events.append(_flat(given, (width, height, n_polarities), pool, f"from_tonic: {name}: sample {k}"))
        parts.append(
            bin_events(
                events,
                n_units=side_x * side_y * n_polarities,
                n_steps=n_steps,
                dt_us=dt_us,
                duplicates=duplicates,
                source=f"from_tonic: {name}",
                first_sample=first,
                clock=clock,
            )
        )
    binned = Binned.join(parts)
    clock.warn(f"from_tonic: {name}", binned.window_problem(*clock.samples(), dt_us, start=start))
    classes, names = numbered(np.array(labels) if labels else np.empty(0, np.int64), f"from_tonic: {name}: labels")
    known = [str(x) for x in getattr(dataset, "classes", [])]
    n_classes = count_classes(classes, names, f"from_tonic: {name}")
    sensor = Sensor(side_x, side_y, n_polarities)
    return EventSet.from_binned(
        binned,
        classes,
        n_classes if names else max(n_classes, len(known)),
        description={
            "name": name,
            "dt_us": dt_us,
            "pool": pool,
            **({} if binned.values is None else {"duplicates": duplicates}),
            **({} if start == "zero" else {"start": start}),
            "classes": names or known,
            **({"sensor": sensor.entry()} if height > 1 else {}),
        },
    )


def _flat(events: Any, size: tuple[int, int, int], pool: int, where: str) -> tuple[Any, Any]:
    """Times and units of one sample; the pixel is pooled in x and, where there is more than one row, in y."""
    fields = getattr(getattr(events, "dtype", None), "names", None) or ()
    if "t" not in fields or "x" not in fields:
        raise DataError(
            f"{where} is {type(events).__name__} with fields {list(fields)}; give events with x, t and perhaps y, p"
        )
    width, height, n_polarities = size
    x = events["x"].astype(np.int64)
    y = events["y"].astype(np.int64) if "y" in fields and height > 1 else np.zeros_like(x)
    p = events["p"].astype(np.int64) if "p" in fields and n_polarities > 1 else np.zeros_like(x)
    p = np.where(p < 0, 0, p)
    for name, values, limit in (("x", x, width), ("y", y, height), ("p", p, n_polarities)):
        if values.size and not 0 <= int(values.min()) <= int(values.max()) < limit:
            raise DataError(f"{where} has {name} from {values.min()} to {values.max()}; allowed: 0 to {limit - 1}")
    side_x, side_y = pooled(width, pool), pooled(height, pool)
    return events["t"], x // pool + side_x * (y // pool + side_y * p)
