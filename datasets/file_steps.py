"""A recording step by step, for a live network: `for spikes in file_steps(path, dt_us=1000): output = live(spikes)`."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sparsesnn.datasets.binning import check_window, pooled
from sparsesnn.datasets.event_files import LATE_US, EventFile, opened
from sparsesnn.datasets.sensor import Sensor
from sparsesnn.errors import DataError
from sparsesnn.event_times import step_of
from sparsesnn.ids import MAX_UINT16_NEURONS
from sparsesnn.options import plain, whole
from sparsesnn.spikes import SpikeBatch

Ints = npt.NDArray[np.int64]

#: longest silence in a recording: a clock that jumps ahead further would make steps without end
MAX_SILENCE_US = 3600e6


def file_steps(
    path: str | os.PathLike[str],
    *,
    dt_us: float,
    pool: int = 1,
    count: bool = False,
    sensor_size: Sequence[int] | None = None,
    time_unit: str = "",
) -> Generator[SpikeBatch, None, None]:
    """The steps of a recording, one after the other, each a `SpikeBatch` of one sample and one step; step 0 has the first event.

    The file is read block by block, so memory does not grow with its length. It is closed with the last step, or when the
    generator is closed or dropped.

    Args:
        path: .aedat4, .raw, .dat, or text with lines `t x y p`, see `datasets.event_files`.
        dt_us: width of a step, microseconds.
        pool: pixels that share a neuron, in x and in y. Unit order: x + W·(y + H·p), as in `EventSet.from_recordings`.
        count: the value of a spike is the number of its events; False: plain spikes.
        sensor_size: (width, height); None: that in the file's header, which text files often lack.
        time_unit: "us", "ms" or "s", for text files that do not name it.

    Raises:
        DataError: the file is missing or damaged; time goes back by more than 10 ms, or jumps ahead by more than an hour; an event
            lies beyond the sensor, or the size of the sensor is unknown.
        MissingDependencyError: the package that reads such files is not installed.
        ConfigError: an invalid step or pool.
    """
    _, dt_us, _, _ = check_window(n_steps=1, dt_us=dt_us, pool=1, n_units=1)
    with opened(Path(path).expanduser(), time_unit) as file:
        width, height = _size(file, sensor_size)
        check_window(n_steps=1, dt_us=dt_us, pool=pool, n_units=max(width, height))
        grid, now = Sensor(pooled(width, pool), pooled(height, pool), 2), 0
        for step, unit in _cells(file, dt_us, pool, grid, (width, height)):
            if not step.size:
                continue
            bounds = np.flatnonzero(np.diff(step, prepend=now - 1)).tolist()
            for first, last in zip(bounds, [*bounds[1:], step.size], strict=True):
                while now < step[first]:
                    yield _one_step(unit[:0], grid.n_neurons, count)
                    now += 1
                yield _one_step(unit[first:last], grid.n_neurons, count)
                now += 1


def _cells(
    file: EventFile, dt_us: float, pool: int, grid: Sensor, size: tuple[int, int]
) -> Generator[tuple[Ints, Ints], None, None]:
    """Step and unit of the events of some whole steps, ascending in steps."""
    begin, latest = None, 0.0
    kept: tuple[Ints, Ints] = (np.empty(0, np.int64), np.empty(0, np.int64))
    for block in file.blocks():
        if not block.t_us.size:
            continue
        if begin is None:
            begin = latest = float(block.t_us[0])
        leap = np.diff(block.t_us, prepend=latest)
        if float(leap.max()) > MAX_SILENCE_US:
            raise DataError(
                f"{file.path}: time jumps ahead by {leap.max() / 1e6:g} s; allowed: {MAX_SILENCE_US / 1e6:g} s; the file is damaged, or holds "
                "several recordings: cut it"
            )
        latest = max(latest, float(block.t_us.max()))
        for name, values, side in zip("xy", (block.x, block.y), size, strict=True):
            if int(values.max()) >= side:
                raise DataError(
                    f"{file.path}: has an event with {name} = {values.max()}; sensor_size is {size}; give a larger one"
                )
        row = block.y.astype(np.int64) // pool + grid.height * block.p.astype(np.int64)
        unit = block.x.astype(np.int64) // pool + grid.width * row
        step = np.maximum(step_of(block.t_us - begin, dt_us), 0).astype(np.int64)
        step, unit = np.append(kept[0], step), np.append(kept[1], unit)
        order = np.argsort(step, kind="stable")
        step, unit = step[order], unit[order]
        # later events are at most LATE_US earlier than the latest one so far
        n_whole = int(np.searchsorted(step, float(step_of(np.array(latest - begin - LATE_US), dt_us))))
        yield step[:n_whole], unit[:n_whole]
        kept = step[n_whole:], unit[n_whole:]
    yield kept


def _one_step(unit: Ints, n_neurons: int, count: bool) -> SpikeBatch:
    ids, n_events = np.unique(unit, return_counts=True)
    return SpikeBatch(
        offsets=torch.tensor([0, ids.size]),
        ids=torch.from_numpy(ids.astype(np.uint16 if n_neurons <= MAX_UINT16_NEURONS else np.int32)),
        n_spikes=torch.tensor([ids.size], dtype=torch.int32),
        n_steps=1,
        n_samples=1,
        n_neurons=n_neurons,
        values=torch.from_numpy(n_events.astype(np.float32)) if count else None,
        graded=count,
    )


def _size(file: EventFile, sensor_size: Any) -> tuple[int, int]:
    if sensor_size is None and file.sensor is not None:
        return file.sensor
    given = plain(sensor_size)
    sizes = [whole(size) or 0 for size in given] if isinstance(given, (list, tuple)) else []
    if len(sizes) != 2 or min(sizes) < 1:
        problem = "names no sensor" if sensor_size is None else f"has sensor_size {sensor_size!r}"
        raise DataError(f"{file.path}: {problem}; give sensor_size=(width, height) in pixels")
    return sizes[0], sizes[1]
