"""Any Tonic data set as spike lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsesnn.datasets.binning import Binned, bin_events, check_window, pooled
from sparsesnn.datasets.classes import count_classes, names_of, numbered, warn_of_other_texts
from sparsesnn.datasets.sensor import Sensor
from sparsesnn.errors import DataError
from sparsesnn.event_times import Clock
from sparsesnn.options import plain, whole
from sparsesnn.typed import padding_advice

#: samples read at once
_BLOCK = 256


def read_tonic(
    dataset: Any,
    *,
    n_steps: int,
    dt_us: float,
    pool: int = 1,
    duplicates: str = "binary",
    start: str = "zero",
    sensor_size: Sequence[int] | None = None,
    classes: Sequence[Any] | None = None,
    stacklevel: int = 2,
) -> dict[str, Any]:
    """The arguments for `EventSet.from_binned`; see `EventSet.from_tonic`. `stacklevel`: of warnings."""
    name, clock = type(dataset).__name__, Clock(start)
    given = plain(getattr(dataset, "sensor_size", None) if sensor_size is None else sensor_size)
    size = [whole(x) or 0 for x in given] if isinstance(given, (list, tuple)) else []
    if len(size) != 3 or min(size) < 1:
        problem = "has no sensor_size" if given is None else f"has sensor_size {given!r}"
        raise DataError(f"from_tonic: {name} {problem}; give sensor_size=(width, height, polarities)")
    width, height, n_polarities = size
    n_steps, dt_us, pool, _ = check_window(n_steps=n_steps, dt_us=dt_us, pool=pool, n_units=max(width, height))
    side_x, side_y = pooled(width, pool), pooled(height, pool)
    parts, labels = [], []
    for first in range(0, max(1, len(dataset)), _BLOCK):
        events = []
        for k in range(first, min(first + _BLOCK, len(dataset))):
            given, label = dataset[k]
            label = plain(label)
            labels.append(label[0] if isinstance(label, list) and len(label) == 1 else label)
            events.append(_flat(given, (width, height, n_polarities), pool, f"from_tonic: {name}: sample {k}"))
        parts.append(
            bin_events(
                events,
                n_neurons=side_x * side_y * n_polarities,
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
    own, argument = _own_classes(dataset) if classes is None else [], "classes"
    if own and any(isinstance(label, (str, bytes)) for label in labels):
        classes, argument = own, "dataset.classes (to override it, give classes=)"
    numbers, names = numbered(labels, f"from_tonic: {name}: labels", classes, argument=argument)
    names = names or own  # if labels are numbers
    warn_of_other_texts(
        names, f"from_tonic: {name}", chosen=classes is not None or bool(own), stacklevel=stacklevel + 1
    )
    n_classes = count_classes(numbers, names, f"from_tonic: {name}")
    sensor = Sensor(side_x, side_y, n_polarities)
    description = {
        "name": name,
        "dt_us": dt_us,
        "pool": pool,
        **({} if binned.values is None else {"duplicates": duplicates}),
        **({} if start == "zero" else {"start": start}),
        "classes": names,
        **({"sensor": sensor.entry()} if height > 1 else {}),
    }
    return {"binned": binned, "labels": numbers, "n_classes": n_classes, "description": description}


def _own_classes(dataset: Any) -> list[str]:
    """Class names listed by the data set; empty if it has no list of names."""
    classes = getattr(dataset, "classes", None)
    try:
        return [] if classes is None else names_of(classes, "dataset.classes")[0]
    except DataError:
        return []


def _flat(events: Any, size: tuple[int, int, int], pool: int, where: str) -> tuple[Any, Any]:
    """Times and units of one sample; pixels are pooled in x and, if there is more than one row, in y."""
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
            advice = padding_advice(values, f"events[events['{name}'] >= 0]")
            raise DataError(
                f"{where} has {name} from {values.min()} to {values.max()}; allowed: 0 to {limit - 1}"
                + (advice and f"; {advice}")
            )
    side_x, side_y = pooled(width, pool), pooled(height, pool)
    return events["t"], x // pool + side_x * (y // pool + side_y * p)
