"""Numbers and events as the entries of spike lists: the work of the constructors of `SpikeBatch`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsesnn.errors import ShapeError, SpikeListError
from sparsesnn.event_times import Clock, Precision, step_of, window_problem
from sparsesnn.first_order import check_transforms
from sparsesnn.options import number, whole
from sparsesnn.sparse_tensors import coordinates, is_coordinates
from sparsesnn.tensor_like import plain_tensor
from sparsesnn.typed import padding_advice, typed
from sparsesnn.wording import a_type

#: modes of `SpikeBatch.from_dense` for the gradient of its spikes
GRADIENTS = ("none", "fired", "all")


@dataclass(frozen=True)
class Entries:
    """The entries of T·B lists, one list after the other.

    Args:
        ids: [S], neurons, in the order of the lists.
        n_listed: [T·B], the length of each list.
        sizes: T, B, N.
        n_spikes: [T·B], spikes of each list; None: all entries.
        values: float32[S]; None: 1 each.
        graded: whether values may be other numbers than 0 and 1.
        device: of the lists.
    """

    ids: npt.NDArray[Any]
    n_listed: npt.NDArray[Any]
    sizes: tuple[int, int, int]
    n_spikes: npt.NDArray[Any] | None = None
    values: Tensor | None = None
    graded: bool = False
    device: torch.device | str = "cpu"


def of_lists(lists: Sequence[Sequence[Iterable[int]]], n_neurons: int) -> Entries:
    """The arguments are those of `SpikeBatch.from_lists`."""
    for b, sample in enumerate(lists):
        if not hasattr(sample, "__len__") or not all(hasattr(ids, "__iter__") for ids in sample):
            raise ShapeError(
                f"from_lists: sample {b} is {str(sample)[:40]}; give for each sample a list of steps, each a list of ids"
            )
    n_samples, n_steps = len(lists), len(lists[0]) if len(lists) else 0
    if any(len(sample) != n_steps for sample in lists):
        raise ShapeError(
            f"from_lists: samples have {sorted({len(s) for s in lists})} steps; give the same number for all; "
            "pad the shorter with empty lists"
        )
    n_neurons, rows = as_size("from_lists", "n_neurons", n_neurons, 1), []
    for t in range(n_steps):
        for b in range(n_samples):
            given = lists[b][t]
            row = typed(given if hasattr(given, "dtype") else list(given))
            if row.size and row.dtype.kind not in "iu":
                raise SpikeListError(f"from_lists: ids are {row.dtype}, such as {row.flat[0]}; give whole numbers")
            rows.append(np.sort(row))
    n_spikes = np.array([len(row) for row in rows], dtype=np.int32)
    ids = np.concatenate([row.astype(np.int64) for row in rows if row.size] or [np.empty(0, np.int64)])
    if advice := padding_advice(ids, "ids[ids >= 0]"):
        raise SpikeListError(
            f"from_lists: spike ids run from -1 to {ids.max()}; allowed: 0 to {n_neurons - 1}; {advice}"
        )
    return Entries(ids, n_spikes, (n_steps, n_samples, n_neurons))


def of_dense(spikes: Any, batch_first: bool, gradient: str, graded: bool) -> Entries:
    """The arguments are those of `SpikeBatch.from_dense`."""
    is_hybrid = isinstance(spikes, Tensor) and spikes.is_sparse and spikes.dense_dim() > 0
    if is_coordinates(spikes) and gradient != "all" and not is_hybrid:
        return of_sparse(spikes, batch_first, gradient, graded, "from_dense")
    found = "a tensor" if isinstance(spikes, Tensor) else a_type(spikes)
    spikes = plain_tensor(spikes, "from_dense: spikes")
    check_transforms("from_dense", read=[spikes])
    if spikes.ndim != 3:
        raise ShapeError(
            f"from_dense: spikes are {found} of shape {list(spikes.shape)}; give [T, B, N]: steps, samples, neurons (or [B, T, N] with "
            "batch_first=True)"
        )
    spikes = spikes.float() if spikes.is_floating_point() and spikes.dtype.itemsize == 1 else spikes
    learns = _passes_gradient(spikes, gradient, GRADIENTS, "from_dense")
    spikes = spikes.transpose(0, 1) if batch_first else spikes
    n_steps, n_samples, n_neurons = spikes.shape
    flat = spikes.reshape(n_steps * n_samples, n_neurons)
    row, neuron = _places(flat.detach())
    n_spikes = n_listed = torch.bincount(row, minlength=len(flat))
    listed = flat.detach()[row, neuron]
    _check_values(listed, graded, "from_dense")
    if learns and gradient == "all":
        # first those that fired, then the others, each ascending
        neuron = torch.argsort(flat.detach() == 0, dim=1, stable=True)
        row = torch.arange(len(flat), device=flat.device)[:, None].expand_as(neuron).reshape(-1)
        neuron = neuron.reshape(-1)
        n_listed = torch.full_like(n_spikes, n_neurons)
    return Entries(
        neuron.cpu().numpy(),
        n_listed.cpu().numpy(),
        (n_steps, n_samples, n_neurons),
        n_spikes.cpu().numpy(),
        flat[row, neuron].float() if learns or graded else None,
        graded,
        spikes.device,
    )


def of_sparse(spikes: Any, batch_first: bool, gradient: str, graded: bool, where: str) -> Entries:
    """The arguments are those of `SpikeBatch.from_sparse`; the cost is that of the tensor's entries."""
    given = coordinates(spikes, where)
    check_transforms(where, read=[given.values])
    learns = _passes_gradient(given.values, gradient, GRADIENTS[:2], where)
    n_steps, n_samples, n_neurons = given.shape
    t, b, neuron = given.places
    if batch_first:
        n_steps, n_samples, t, b = n_samples, n_steps, b, t
    values = given.values.detach()
    _check_values(values[values != 0], graded, where, given.n_twice)
    row = t * n_samples + b
    order = torch.argsort(row * n_neurons + neuron)
    order = order[values[order] != 0]
    return Entries(
        neuron[order].cpu().numpy(),
        torch.bincount(row[order], minlength=n_steps * n_samples).cpu().numpy(),
        (n_steps, n_samples, n_neurons),
        values=given.values[order].float() if learns or graded else None,
        graded=graded,
        device=given.values.device,
    )


def _passes_gradient(spikes: Tensor, gradient: str, allowed: Sequence[str], where: str) -> bool:
    """Whether a gradient passes to `spikes`. Errors: `SpikeListError` if it would be lost, and for an unknown mode."""
    if gradient not in allowed:
        raise SpikeListError(f"{where}: gradient is {gradient!r}; allowed: {', '.join(map(repr, allowed))}")
    learns = spikes.requires_grad and torch.is_grad_enabled()
    if learns and gradient == "none":
        raise SpikeListError(
            f"{where}: spikes require a gradient, but gradient is 'none', which would keep earlier layers from "
            f"learning; give gradient={' or '.join(map(repr, reversed(allowed[1:])))} to pass it on, or spikes.detach()"
        )
    return learns


def _check_values(listed: Tensor, graded: bool, where: str, n_twice: int = 0) -> None:
    """`SpikeListError` for values that are not allowed.

    Args:
        listed: all values that are not 0.
        n_twice: entries of a sparse tensor that it holds more than once, and whose values are summed.
    """
    if not bool(torch.isfinite(listed).all()):
        allowed = "give finite numbers" if graded else "entries must be 0 or 1"
        raise SpikeListError(f"{where}: entries are NaN or infinite; {allowed}")
    if graded or bool((listed == 1).all()):
        return
    value = listed[listed != 1][0].item()
    advice = "for counts or other values give graded=True"
    if n_twice:
        advice = f"{n_twice:,} entries of the sparse tensor repeat others, and their values are summed: remove them; {advice}"
    elif listed.min() == -1 and bool((listed == listed.round()).all()):
        advice = (
            "-1 looks like padding, which must be removed first: for ids give from_lists the rows without it, row[row >= 0]; for "
            "spikes give spikes.clamp(min=0); for spikes of both signs give graded=True"
        )
    raise SpikeListError(f"{where}: spikes hold {value:.6g}; entries must be 0 or 1; {advice}")


def of_events(
    events: Sequence[tuple[np.ndarray, np.ndarray]],
    n_steps: int,
    n_neurons: int,
    dt_us: float,
    count: bool,
    start: str,
) -> Entries:
    """The arguments are those of `SpikeBatch.from_events`."""
    width = number(dt_us)
    if width is None or not width > 0:
        raise SpikeListError(f"from_events: dt_us is {dt_us!r}; give the width of a step in microseconds, above 0")
    dt_us = width
    n_steps, n_neurons = (
        as_size("from_events", "n_steps", n_steps, 0),
        as_size("from_events", "n_neurons", n_neurons, 1),
    )
    n_samples, clock = len(events), Clock(start)
    keys, used, n_inside = [], [], 0
    for b, pair in enumerate(events):
        try:
            given, unit = pair
        except (TypeError, ValueError):
            raise ShapeError(
                f"from_events: sample {b} is {a_type(pair)}; give a pair of arrays (t_us, unit) for each sample"
            ) from None
        given, unit = typed(given), typed(unit)
        if given.shape != unit.shape or given.ndim != 1:
            raise ShapeError(
                f"from_events: sample {b} has t_us {given.shape} and unit {unit.shape}; give equal lengths"
            )
        if given.dtype.kind not in "fiu":
            raise SpikeListError(
                f"from_events: sample {b} has times of type {given.dtype}; give floating-point or integer times"
            )
        precision = Precision.of(given)
        t_us = precision.in_us(given)
        if not np.isfinite(t_us).all():
            raise SpikeListError(f"from_events: sample {b} has times that are NaN or infinite; remove those events")
        if unit.size and unit.dtype.kind not in "iu":
            raise SpikeListError(f"from_events: sample {b} has units of type {unit.dtype}; give integers")
        if unit.size and (unit.min() < 0 or unit.max() >= n_neurons):
            advice = padding_advice(unit, "t_us[unit >= 0], unit[unit >= 0]")
            raise SpikeListError(
                f"from_events: sample {b} has units {unit.min()} to {unit.max()}; allowed: 0 to {n_neurons - 1}"
                + (advice and f"; {advice}")
            )
        clock.notes += precision.notes(t_us, dt_us)
        step = step_of(clock.relative(t_us, np.array([t_us.size])), dt_us, precision.slack_us(t_us))
        inside = (step >= 0) & (step < n_steps)
        used.append(np.unique(step[inside]).size)
        n_inside += int(inside.sum())
        row = step[inside].astype(np.int64) * n_samples + b
        keys.append(row * n_neurons + unit[inside].astype(np.int64))
    key, counts = np.unique(np.concatenate([np.empty(0, np.int64), *keys]), return_counts=True)
    n_merged, n_all = 0 if count else n_inside - key.size, sum(int(n.sum()) for n in clock.n_events)
    window: dict[str, Any] = {"n_lost": n_all - n_inside, "n_merged": n_merged, "n_steps": n_steps, "dt_us": dt_us}
    problems = window_problem(*clock.samples(), np.array(used, np.int64), **window, start=start)
    clock.warn("from_events", problems, stacklevel=5)  # the caller of `SpikeBatch.from_events`
    n_spikes = np.bincount(key // n_neurons, minlength=n_steps * n_samples)
    values = torch.from_numpy(counts.astype(np.float32)) if count else None
    return Entries(key % n_neurons, n_spikes, (n_steps, n_samples, n_neurons), values=values, graded=count)


def as_size(where: str, name: str, value: Any, least: int) -> int:
    """A number of steps, samples or neurons. Errors: `ShapeError`."""
    size = whole(value)
    if size is None or not least <= size < 2**31:
        raise ShapeError(f"{where}: {name} is {value!r}; give a whole number from {least} to {2**31 - 1}")
    return size


def _places(flat: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column of every number that is not 0, row by row."""
    if flat.device.type != "cpu" or flat.dtype == torch.bfloat16:
        row, column = torch.nonzero(flat, as_tuple=True)
        return row, column
    found = np.divmod(np.flatnonzero(flat.numpy() != 0), max(1, flat.shape[1]))  # a tenth of PyTorch's time
    return torch.from_numpy(found[0]), torch.from_numpy(found[1])
