"""Spikes as NIR's data: events with times, or a grid of steps; and the activity of a network as the data of its graph.

Times are in the unit of `dt`, that of the graph's time constants. An event at time t belongs to step floor(t / dt), up to rounding.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sparsesnn.errors import ShapeError, SpikeListError
from sparsesnn.nir.files import nir_package
from sparsesnn.options import number
from sparsesnn.output import Output
from sparsesnn.spike_entries import Entries, as_size
from sparsesnn.spikes import SpikeBatch
from sparsesnn.wording import count as counted

#: rounding of a time, as a share of a step and of the time
_SLACK, _SLACK_TIME = 1e-6, 1e-9
_NO_ID = -1  # NIR's padding


def to_data(spikes: SpikeBatch, *, dt: float, grid: bool = False) -> Any:
    """Spikes as a `nir.EventData`, or, with `grid`, as a `nir.TimeGriddedData`; near-spikes are left out.

    Args:
        spikes: lists of T steps, B samples, N neurons. Graded ones become a `ValuedEventData`, or a grid of float32.
        dt: the width of a step. The spikes of step k are at time k·dt.

    Returns: `idx` and `time` [B, most spikes of a sample, at least 1], ascending, padded with -1 and infinity, as NIR asks; or `data`
        bool[B, T, N].
    Errors: `SpikeListError` for a dt that is not above 0.
    """
    nir, dt = nir_package(), _step(dt, "to_data")
    spikes = spikes.detach().expanded().to("cpu").validate()
    if grid:
        dense = spikes.to_dense().transpose(0, 1).numpy()
        return nir.TimeGriddedData(np.ascontiguousarray(dense if spikes.graded else dense > 0), dt)
    fired = spikes.fired()
    t, b = np.divmod(spikes.list_index()[fired].numpy(), max(1, spikes.n_samples))
    order = np.argsort(b, kind="stable")  # within a sample, lists are in the order of time
    lengths = np.bincount(b, minlength=spikes.n_samples)
    shape = (spikes.n_samples, max(1, int(lengths.max(initial=0))))
    idx, time, value = np.full(shape, _NO_ID, np.int64), np.full(shape, np.inf), np.zeros(shape, np.float32)
    place = b[order], np.arange(order.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    idx[place], time[place] = spikes.ids.numpy()[fired.numpy()][order], t[order] * dt
    end = spikes.n_steps * dt
    if not spikes.graded:
        return nir.EventData(idx, time, spikes.n_neurons, end)
    value[place] = spikes.entry_values()[fired].numpy()[order]
    return nir.ValuedEventData(idx=idx, time=time, n_neurons=spikes.n_neurons, t_max=end, value=value)


def from_data(
    data: Any, *, dt: float | None = None, n_steps: int | None = None, graded: bool | None = None
) -> SpikeBatch:
    """Makes a batch from a `nir.EventData`, `ValuedEventData` or `TimeGriddedData`.

    Args:
        dt: the width of a step; None: that of a grid, which must equal it. Events have none, so it must be given.
        n_steps: T; None: all of the data, for events t_max / dt, rounded up. Data after it are left out, with a warning.
        graded: whether values other than 0 and 1 are allowed; of events without values, whether several of one neuron in one step
            make one entry with their number, else one spike. None: for data with values (`ValuedEventData`; floating-point grids with
            other numbers than 0 and 1). Values of one neuron in one step are added.

    Errors: `ShapeError` for other types and shapes; `SpikeListError` for ids and times outside the data's own bounds, for numbers that
        are NaN or infinite, and for a dt that is missing or does not fit.
    """
    nir = nir_package()
    if isinstance(data, nir.TimeGriddedData):
        return _from_grid(data, dt, n_steps, graded)
    if not isinstance(data, nir.EventData):
        kind = type(data).__name__
        inner = "; give one of its nodes' observables" if kind in ("NIRGraphData", "NIRNodeData") else ""
        raise ShapeError(
            f"from_data: data is a {kind}; allowed: EventData, ValuedEventData, TimeGriddedData of nir{inner}"
        )
    if dt is None:
        raise SpikeListError(
            "from_data: dt is None; events have times, not steps: give the width of a step, in their unit"
        )
    return SpikeBatch._of(_of_events(data, _step(dt, "from_data"), n_steps, graded))


def output_data(output: Output, *, dt: float, grid: bool = False) -> Any:
    """The activity of a network as a `nir.NIRGraphData`, for the graph that `to_nir` makes of it.

    Args:
        output: of a model on the backend `cpu`, whose spikes are lists.
        dt, grid: see `to_data`.

    Returns: for each population that fires the observable "spikes", and for the last one, if it has potentials, "potentials", a grid of
        float32[B, T, N].
    Errors: `ShapeError` for spikes that are not lists.
    """
    nir, nodes = nir_package(), {}
    for name, spikes in output.spikes.items():
        if not isinstance(spikes, SpikeBatch):
            raise ShapeError(
                f"output_data: the spikes of {name} are a {type(spikes).__name__}; give the output of a model with backend='cpu', or "
                "lists of SpikeBatch.from_dense to to_data"
            )
        nodes[name] = {"spikes": to_data(spikes, dt=dt, grid=grid)}
    if output.potentials is not None:
        numbers = output.potentials.detach().cpu().transpose(0, 1).contiguous().numpy()
        nodes.setdefault(output.output, {})["potentials"] = nir.TimeGriddedData(numbers, _step(dt, "output_data"))
    return nir.NIRGraphData({name: nir.NIRNodeData(observables) for name, observables in nodes.items()})


def _step(dt: Any, where: str) -> float:
    width = number(dt)
    if width is None or not 0 < width < float("inf"):
        raise SpikeListError(f"{where}: dt is {dt!r}; give the width of a step above 0, in the unit of the times")
    return width


def _from_grid(data: Any, dt: float | None, n_steps: int | None, graded: bool | None) -> SpikeBatch:
    values = np.asarray(data.data)
    if values.ndim != 3 or values.dtype.kind not in "biuf":
        raise ShapeError(
            f"from_data: data of the grid are {values.dtype}{list(values.shape)}; give numbers [samples, steps, neurons]"
        )
    width = _step(data.dt, "from_data: the grid's")
    if dt is not None and abs(_step(dt, "from_data") - width) > _SLACK * width:
        raise SpikeListError(f"from_data: dt is {dt:g}, but the grid has steps of {width:g}; leave dt out")
    if graded is None:
        graded = values.dtype.kind == "f" and not bool(np.isin(values, (0, 1)).all())
    spikes = SpikeBatch.from_dense(torch.from_numpy(np.ascontiguousarray(values)), batch_first=True, graded=graded)
    wanted = spikes.n_steps if n_steps is None else as_size("from_data", "n_steps", n_steps, 0)
    if wanted > spikes.n_steps:
        return spikes.then(spikes.silence(wanted - spikes.n_steps))
    left_out = spikes.steps(wanted, spikes.n_steps)
    _report(left_out.ids.numel(), spikes.ids.numel(), wanted)
    return spikes.steps(0, wanted)


def _of_events(data: Any, dt: float, n_steps: int | None, graded: bool | None) -> Entries:
    idx, time, end = np.asarray(data.idx), np.asarray(data.time, np.float64), number(data.t_max)
    n_neurons = as_size("from_data", "n_neurons", data.n_neurons, 1)
    if idx.ndim != 2 or idx.shape != time.shape or idx.dtype.kind not in "iu":
        raise ShapeError(
            f"from_data: idx is {idx.dtype}{list(idx.shape)} and time {list(time.shape)}; give integers and times, [samples, events]"
        )
    if end is None or not 0 <= end < float("inf"):
        raise SpikeListError(f"from_data: t_max is {data.t_max!r}; give the end of the recording, finite and from 0 up")
    b, k = np.nonzero(idx != _NO_ID)
    unit, t = idx[b, k].astype(np.int64), time[b, k]
    if unit.size and (unit.min() < 0 or unit.max() >= n_neurons):
        raise SpikeListError(
            f"from_data: idx runs from {unit.min()} to {unit.max()}; allowed: 0 to {n_neurons - 1}, and -1 for padding"
        )
    if not np.isfinite(t).all() or (t.size and (t.min() < 0 or t.max() > end)):
        raise SpikeListError(
            f"from_data: times run from {t.min():g} to {t.max():g}; allowed: 0 to t_max, {end:g}; correct t_max, or set idx to -1 for "
            "padding"
        )
    step = np.floor(t / dt + _SLACK + _SLACK_TIME * t / dt).astype(np.int64)
    whole = max(int(np.ceil(end / dt - _SLACK)), 1 if step.size else 0)
    step = np.minimum(step, whole - 1)  # an event at t_max lies in the last step
    wanted = whole if n_steps is None else as_size("from_data", "n_steps", n_steps, 0)
    inside = step < wanted
    _report(int((~inside).sum()), step.size, wanted)
    n_samples = len(idx)
    key, place, n_times = np.unique(
        ((step * n_samples + b) * n_neurons + unit)[inside], return_inverse=True, return_counts=True
    )
    has_values = hasattr(data, "value")
    values: NDArray[Any] | None = None
    if has_values:
        given = np.asarray(data.value)
        if given.shape != idx.shape or given.dtype.kind not in "biuf":
            raise ShapeError(f"from_data: value is {given.dtype}{list(given.shape)}; give numbers {list(idx.shape)}")
        chosen = given[b, k][inside].astype(np.float64)
        if not np.isfinite(chosen).all():
            raise SpikeListError("from_data: values are NaN or infinite; give finite numbers")
        values = np.bincount(place, chosen, key.size)
        key, values = key[values != 0], values[values != 0]
        if graded is False and not bool((values == 1).all()):
            wrong = values[values != 1][0]
            raise SpikeListError(
                f"from_data: an event has the value {wrong:g}; allowed with graded=False: 1; give graded=True"
            )
    elif graded:
        values = n_times.astype(np.float64)
    lengths = np.bincount(key // max(1, n_neurons), minlength=wanted * n_samples)
    is_graded = has_values if graded is None else graded
    listed = torch.from_numpy(values.astype(np.float32)) if values is not None and is_graded else None
    return Entries(key % n_neurons, lengths, (wanted, n_samples, n_neurons), values=listed, graded=is_graded)


def _report(n_left_out: int, n_all: int, n_steps: int) -> None:
    if n_left_out:
        warnings.warn(
            f"from_data: {counted(n_left_out, 'spike')} of {n_all:,} after step {n_steps} are left out; give a larger n_steps to keep them",
            stacklevel=4,
        )
