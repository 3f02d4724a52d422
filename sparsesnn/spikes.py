"""Spike lists, which layers exchange instead of dense tensors.

Shape letters: T steps, B samples, N neurons, S entries over all lists. List (t, b) has the index i = t·B + b; its
entries are `ids[offsets[i]:offsets[i+1]]`: first `n_spikes[i]` neurons that fired, then near-spikes, each ascending.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsesnn.arguments import named, renamed
from sparsesnn.errors import ShapeError, SpikeListError
from sparsesnn.event_times import Clock, Precision, step_of, window_problem
from sparsesnn.first_order import check_transforms
from sparsesnn.ids import MAX_UINT16_NEURONS, id_dtype, signed, unsigned
from sparsesnn.options import number, plain, whole
from sparsesnn.tensor_like import plain_tensor
from sparsesnn.tracers import check_tracers, untraced
from sparsesnn.typed import padding_advice, typed

#: modes of `SpikeBatch.from_dense` for the gradient of its spikes
GRADIENTS = ("none", "fired", "all")


# Not frozen, and compared by identity: libraries such as Lightning take dataclasses apart and set their fields.
@named
@dataclass(eq=False)
class SpikeBatch:
    """The spikes of one population, for T steps and B samples, as index lists; methods never change it in place.

    Args:
        offsets: int64[T·B + 1], start of each list.
        ids: uint16[S] (int32 when N > 65,536), neuron ids.
        n_spikes: int32[T·B], number of entries in each list that fired; the rest are near-spikes.
        n_steps, n_samples, n_neurons: T, B, N.
        values: float32[S], 1 for spikes and 0 for near-spikes, carrying the gradient of the lists; None for data.
        dropped: int32[T·B], number of dropped candidates; None if nothing can be dropped.
        graded: whether spikes may have values other than 1, such as counts. A spike then adds value · weight to a
            current, and `values` is not None.
        repeats: there is one list for each sample, [B] instead of [T·B], which holds at every step; see `constant`.
    """

    offsets: Tensor
    ids: Tensor
    n_spikes: Tensor
    n_steps: int
    n_samples: int
    n_neurons: int
    values: Tensor | None = None
    dropped: Tensor | None = None
    graded: bool = False
    repeats: bool = False

    def __post_init__(self) -> None:
        if not (type(self.n_steps) is type(self.n_samples) is type(self.n_neurons) is int):
            self.n_steps, self.n_samples, self.n_neurons = map(plain, (self.n_steps, self.n_samples, self.n_neurons))

    def __repr__(self) -> str:
        n_spikes = int(self.n_spikes.sum())
        near, dropped = self.ids.numel() - n_spikes, self.n_dropped()
        n_spikes *= self._times
        return (
            f"SpikeBatch(T={self.n_steps}, B={self.n_samples}, N={self.n_neurons}: {n_spikes:,} spikes"
            + (f", {near:,} near-spikes" if near else "")
            + (f", {dropped:,} dropped" if dropped else "")
            + (", graded" if self.graded else "")
            + (", the same at all steps" if self.repeats else "")
            + f", activity {100 * self.activity():.3g} %)"
        )

    # ---- Constructors ---------------------------------------------------------------------------------------------

    @classmethod
    def from_lists(cls, lists: Sequence[Sequence[Iterable[int]]], n_neurons: int) -> SpikeBatch:
        """Makes a batch from `lists[b][t]`, the ids that fire in sample b at step t; sorts them; duplicates are an error."""
        n_samples, n_steps = len(lists), len(lists[0]) if len(lists) else 0
        if any(len(sample) != n_steps for sample in lists):
            raise ShapeError(
                f"from_lists: samples have {sorted({len(s) for s in lists})} steps; give the same number for all; "
                "pad the shorter with empty lists"
            )
        n_neurons, rows = _count("from_lists", "n_neurons", n_neurons, 1), []
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
        return cls._from_flat(ids, n_spikes, n_steps, n_samples, n_neurons)

    @classmethod
    @untraced
    def from_dense(
        cls, spikes: Tensor | npt.ArrayLike, *, batch_first: bool = False, gradient: str = "none", graded: bool = False
    ) -> SpikeBatch:
        """Makes a batch from a tensor [T, B, N] (or [B, T, N] with `batch_first`) of 0 and 1; sparse tensors and NumPy arrays too.

        Args:
            batch_first: the axes are [B, T, N]. A model warns about probably swapped axes if nearly nothing fires and B > 4·T.
            graded: entries may be any finite numbers, such as counts or analog currents; all except 0 are listed.
            gradient: for earlier layers, if `spikes` requires a gradient. "fired": entries of 1 receive the gradient of
                their spike, straight through; "all": entries of 0 are also listed, as near-spikes, so that every entry
                receives its gradient, at the cost of dense lists. "none" is for data.

        Errors: `ShapeError` for another shape; `SpikeListError` for other entries, and for spikes that require a gradient
        if `gradient` is "none".
        """
        check_tracers("from_dense")
        found, spikes = type(spikes).__name__, plain_tensor(spikes, "from_dense: spikes")
        check_transforms("from_dense", read=[spikes])
        if spikes.ndim != 3:
            raise ShapeError(
                f"from_dense: spikes are a {found}, shape is {tuple(spikes.shape)}; give a tensor [T, B, N], or with batch_first [B, T, N]"
            )
        spikes = spikes.float() if spikes.is_floating_point() and spikes.dtype.itemsize == 1 else spikes
        if gradient not in GRADIENTS:
            raise SpikeListError(f"from_dense: gradient is {gradient!r}; allowed: {', '.join(map(repr, GRADIENTS))}")
        learns = spikes.requires_grad and torch.is_grad_enabled()
        if learns and gradient == "none":
            raise SpikeListError(
                "from_dense: spikes require a gradient, but gradient is 'none', which would keep earlier layers from "
                "learning; give gradient='all' or 'fired' to pass it on, or spikes.detach()"
            )
        spikes = spikes.transpose(0, 1) if batch_first else spikes
        n_steps, n_samples, n_neurons = spikes.shape
        flat = spikes.reshape(n_steps * n_samples, n_neurons)
        row, neuron = _places(flat.detach())
        n_spikes = n_listed = torch.bincount(row, minlength=len(flat))
        listed = flat.detach()[row, neuron]
        if not graded and not bool((listed == 1).all()):
            value = listed[listed != 1][0].item()
            advice = "for counts or other values give graded=True"
            if bool((listed == -1).any()) and spikes.min() == -1 and bool((listed == listed.round()).all()):
                advice = (
                    "-1 looks like padding, which must be removed first: for ids give from_lists the rows without it, row[row >= 0]; for "
                    "spikes give spikes.clamp(min=0); for spikes of both signs give graded=True"
                )
            raise SpikeListError(f"from_dense: spikes hold {value:.6g}; entries must be 0 or 1; {advice}")
        if graded and not bool(torch.isfinite(listed).all()):
            raise SpikeListError("from_dense: entries are NaN or infinite; give finite numbers")
        if learns and gradient == "all":
            # first those that fired, then the others, each ascending
            neuron = torch.argsort(flat.detach() == 0, dim=1, stable=True)
            row = torch.arange(len(flat), device=flat.device)[:, None].expand_as(neuron).reshape(-1)
            neuron = neuron.reshape(-1)
            n_listed = torch.full_like(n_spikes, n_neurons)
        batch = cls._from_flat(
            neuron.cpu().numpy(), n_listed.cpu().numpy(), n_steps, n_samples, n_neurons, n_spikes.cpu().numpy()
        ).to(spikes.device)
        return replace(batch, values=flat[row, neuron].float(), graded=graded) if learns or graded else batch

    @classmethod
    def constant(cls, values: Tensor | npt.ArrayLike, n_steps: int) -> SpikeBatch:
        """Makes a batch of numbers that are the same at all steps, such as the brightness of pixels: direct encoding.

        Only one list for each sample is kept. The first layer of the backend `cpu` computes its current once, and the gradient of its
        weights from the sum over the steps; other readers get `expanded()`.

        Args:
            values: float[B, N], finite; all except 0 are listed.
            n_steps: T.

        Errors: `ShapeError` for another shape; `SpikeListError` for NaN and infinite values, and for values that require a gradient,
        which those of an `Input(currents=True)` may.
        """
        values = plain_tensor(values, "constant: values")
        if values.ndim != 2:
            raise ShapeError(
                f"constant: values have shape {list(values.shape)}; give [B, N], such as images.flatten(1)"
            )
        n_steps = _count("constant", "n_steps", n_steps, 0)
        if values.requires_grad and torch.is_grad_enabled():
            raise SpikeListError(
                "constant: values require a gradient, which lists that repeat do not pass on; give values.detach(), or the output of a "
                "torch.nn.Module as currents, to a network with Input(currents=True)"
            )
        once = cls.from_dense(values.detach()[None], graded=True)
        return replace(once, n_steps=n_steps, repeats=True)

    @classmethod
    @renamed(n_units="n_neurons")
    def from_events(
        cls,
        events: Sequence[tuple[np.ndarray, np.ndarray]],
        *,
        n_steps: int,
        n_neurons: int,
        dt_us: float,
        count: bool = False,
        start: str = "zero",
    ) -> SpikeBatch:
        """Makes a batch from raw events: one `(t_us, unit)` pair of arrays per sample.

        An event at `t_us`, in microseconds, falls into step floor(t_us / dt_us), see `event_times`. Events before 0 or in step
        `n_steps` and later are left out; several events of one unit in one step make one spike, or, `count`, one graded spike
        whose value is their number. With `start="first"`, the time of a sample begins at its first event instead of 0. Warns if
        samples or most events are left out, if the window does not fit the events, and if a clock restarts.
        """
        width = number(dt_us)
        if width is None or not width > 0:
            raise SpikeListError(f"from_events: dt_us is {dt_us!r}; give the width of a step in microseconds, above 0")
        dt_us = width
        n_steps, n_neurons = (
            _count("from_events", "n_steps", n_steps, 0),
            _count("from_events", "n_neurons", n_neurons, 1),
        )
        n_samples, clock = len(events), Clock(start)
        keys, used, n_inside = [], [], 0
        for b, (given, unit) in enumerate(events):
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
        clock.warn("from_events", window_problem(*clock.samples(), np.array(used, np.int64), **window, start=start))
        n_spikes = np.bincount(key // n_neurons, minlength=n_steps * n_samples)
        batch = cls._from_flat(key % n_neurons, n_spikes, n_steps, n_samples, n_neurons)
        return replace(batch, values=torch.from_numpy(counts.astype(np.float32)), graded=True) if count else batch

    @classmethod
    def _from_flat(
        cls,
        ids: np.ndarray,
        n_listed: np.ndarray,
        n_steps: int,
        n_samples: int,
        n_neurons: int,
        n_spikes: np.ndarray | None = None,
    ) -> SpikeBatch:
        """Makes a checked batch from ids in list order, the length of each list, and the number of spikes in each (None: all)."""
        if ids.size and (ids.min() < 0 or ids.max() >= n_neurons):
            raise SpikeListError(f"spike ids run from {ids.min()} to {ids.max()}; allowed: 0 to {n_neurons - 1}")
        offsets = np.zeros(n_steps * n_samples + 1, np.int64)
        np.cumsum(n_listed, out=offsets[1:])
        batch = cls(
            offsets=torch.from_numpy(offsets),
            ids=torch.from_numpy(ids.astype(np.uint16 if n_neurons <= MAX_UINT16_NEURONS else np.int32)),
            n_spikes=torch.from_numpy(np.asarray(n_listed if n_spikes is None else n_spikes).astype(np.int32)),
            n_steps=n_steps,
            n_samples=n_samples,
            n_neurons=n_neurons,
        )
        return batch.validate()

    # ---- Queries ---------------------------------------------------------------------------------------------

    @property
    def shape(self) -> torch.Size:
        """[T, B, N], the shape of `to_dense()`."""
        return torch.Size((self.n_steps, self.n_samples, self.n_neurons))

    @property
    def device(self) -> torch.device:
        """The device of the lists."""
        return self.offsets.device

    @property
    def n_list_steps(self) -> int:
        """Number of steps that have separate lists: T, or 1 if they repeat."""
        return 1 if self.repeats else self.n_steps

    @property
    def _times(self) -> int:
        """Number of steps at which a list holds."""
        return self.n_steps if self.repeats else 1

    def expanded(self) -> SpikeBatch:
        """The same spikes with a list for every step and sample; unchanged unless lists repeat."""
        if not self.repeats:
            return self
        rows = torch.arange(self.n_samples, device=self.device).repeat(self.n_steps)
        return replace(self._rows(rows, self.n_steps, self.n_samples), repeats=False)

    @property
    def n_listed(self) -> Tensor:
        """int64[T·B], the length of each list."""
        return self.offsets[1:] - self.offsets[:-1]

    def list_index(self) -> Tensor:
        """int64[S], the list i = t·B + b of each entry."""
        lists = torch.arange(self.offsets.numel() - 1, device=self.offsets.device)
        return torch.repeat_interleave(lists, self.n_listed, output_size=self.ids.numel())

    def fired(self) -> Tensor:
        """bool[S], True for spikes, False for near-spikes."""
        ends = self.offsets[:-1] + self.n_spikes
        position = torch.arange(self.ids.numel(), device=self.offsets.device)
        return position < torch.repeat_interleave(ends, self.n_listed, output_size=self.ids.numel())

    def entry_values(self) -> Tensor:
        """float32[S], `values`, or 1 for spikes and 0 for near-spikes if the lists carry no gradient."""
        return self.fired().float() if self.values is None else self.values

    @untraced
    def to_dense(self) -> Tensor:
        """float32[T, B, N], 1 for each spike; gradients flow back to all listed neurons."""
        values = self.validate().entry_values()
        shape = (self.n_list_steps, self.n_samples, self.n_neurons)
        flat = values.new_zeros(math.prod(shape))
        index = self.list_index() * self.n_neurons + self.ids.long()
        return flat.index_put((index,), values).view(shape).expand(self.shape)

    @untraced
    def counts(self) -> Tensor:
        """float32[B, N], spikes over the sequence; differentiable, so it can be part of a loss."""
        values = self.validate().entry_values()
        flat = values.new_zeros(self.n_samples * self.n_neurons)
        index = (self.list_index() % self.n_samples) * self.n_neurons + self.ids.long()
        return flat.index_add(0, index, values * self._times).view(self.n_samples, self.n_neurons)

    @untraced
    def activity(self) -> float:
        """Spikes per neuron and time step, averaged over the batch."""
        return float(self.n_spikes.sum()) / max(1, self.n_list_steps * self.n_samples * self.n_neurons)

    @untraced
    def n_dropped(self) -> int:
        """Number of dropped candidates in the whole batch."""
        return 0 if self.dropped is None else int(self.dropped.sum())

    def __len__(self) -> int:
        return self.n_samples

    # ---- Slices and copies ---------------------------------------------------------------------------------------------

    def samples(self, index: slice | Sequence[int] | Tensor) -> SpikeBatch:
        """The batch of the chosen samples, in the given order; a mask chooses the samples for which it is true."""
        self.validate()
        numbers = range(self.n_samples)[index] if isinstance(index, slice) else index
        chosen = signed(plain_tensor(numbers, "samples: numbers")).cpu()
        if chosen.dtype == torch.bool and chosen.shape == (self.n_samples,):
            chosen = chosen.nonzero()[:, 0]
        elif chosen.numel() and (chosen.dtype == torch.bool or chosen.is_floating_point()):
            raise ShapeError(
                f"samples: index is {chosen.dtype}{list(chosen.shape)}; give numbers of samples, or a mask of {self.n_samples}"
            )
        chosen = chosen.long()
        if chosen.ndim != 1:
            raise ShapeError(f"samples: index has shape {tuple(chosen.shape)}; give a slice or a flat list of samples")
        if chosen.numel() and (int(chosen.min()) < -self.n_samples or int(chosen.max()) >= self.n_samples):
            raise IndexError(f"samples: index {chosen.tolist()} is out of range for a batch of {self.n_samples}")
        samples = chosen.to(self.device) % max(1, self.n_samples)
        rows = torch.arange(self.n_list_steps, device=self.device)[:, None] * self.n_samples + samples
        return self._rows(rows.reshape(-1), self.n_steps, chosen.numel())

    def __getitem__(self, index: slice | Sequence[int] | Tensor | int) -> SpikeBatch:
        one = whole(index)  # a Python or NumPy integer, or a tensor of shape []
        return self.samples(cast("slice | Sequence[int] | Tensor", index) if one is None else [one])

    def steps(self, start: int, stop: int) -> SpikeBatch:
        """Steps `start` to `stop - 1` of every sample."""
        self.validate()
        start, stop = plain(start), plain(stop)
        if not 0 <= start <= stop <= self.n_steps:
            raise IndexError(f"steps: {start} to {stop} is out of range for a batch with {self.n_steps} steps")
        if self.repeats:
            return replace(self, n_steps=stop - start)._each(lambda x: unsigned(signed(x).clone()))
        rows = slice(start * self.n_samples, stop * self.n_samples)
        offsets = self.offsets[rows.start : rows.stop + 1]
        entries = slice(int(offsets[0]), int(offsets[-1]))
        part = self._part(rows, entries, offsets - offsets[0], stop - start, self.n_samples)
        # copied, so that a part does not keep the whole batch in memory
        return part._each(lambda x: unsigned(signed(x).clone()))

    def _rows(self, rows: Tensor, n_steps: int, n_samples: int) -> SpikeBatch:
        n_listed = self.n_listed[rows]
        offsets = torch.zeros(rows.numel() + 1, dtype=torch.int64, device=self.device)
        torch.cumsum(n_listed, 0, out=offsets[1:])
        shift = torch.repeat_interleave(self.offsets[rows] - offsets[:-1], n_listed)
        entries = torch.arange(shift.numel(), device=self.device) + shift
        return self._part(rows, entries, offsets, n_steps, n_samples)

    def _part(
        self, rows: slice | Tensor, entries: slice | Tensor, offsets: Tensor, n_steps: int, n_samples: int
    ) -> SpikeBatch:
        """A batch of the lists `rows`, with the given entries."""
        return replace(
            self,
            offsets=offsets,
            ids=unsigned(signed(self.ids)[entries]),
            n_spikes=self.n_spikes[rows],
            n_steps=n_steps,
            n_samples=n_samples,
            values=None if self.values is None else self.values[entries],
            dropped=None if self.dropped is None else self.dropped[rows],
        )

    def then(self, later: SpikeBatch) -> SpikeBatch:
        """This batch followed in time by `later`, which must have the same samples and neurons."""
        if (later.n_samples, later.n_neurons) != (self.n_samples, self.n_neurons):
            raise ShapeError(
                f"then: B={later.n_samples}, N={later.n_neurons} cannot follow B={self.n_samples}, N={self.n_neurons}"
            )
        return _joined((self.expanded(), later.expanded()), self.n_steps + later.n_steps, self.n_samples)

    @staticmethod
    def cat(batches: Sequence[SpikeBatch]) -> SpikeBatch:
        """The samples of all batches, one batch after the other; all have the same steps and neurons.

        Makes one batch of single samples in a `DataLoader`: `SpikeBatch.cat([spikes for spikes, label in rows])`.

        Errors: `ShapeError` for no batch, and for batches that differ in T or N.
        """
        batches = list(batches)
        if not batches:
            raise ShapeError("cat: got no batches; give at least one, which sets the numbers of steps and neurons")
        n_steps, n_neurons = batches[0].n_steps, batches[0].n_neurons
        for k, batch in enumerate(batches):
            if (batch.n_steps, batch.n_neurons) != (n_steps, n_neurons):
                raise ShapeError(
                    f"cat: batch {k} has T={batch.n_steps}, N={batch.n_neurons}, but batch 0 has T={n_steps}, "
                    f"N={n_neurons}; give batches with the same steps and neurons"
                )
        if not all(batch.repeats for batch in batches):
            batches = [batch.expanded() for batch in batches]
        # The joined lists are ordered by batch, then step; the result's by step, then batch.
        sizes, n_rows = [batch.n_samples for batch in batches], batches[0].n_list_steps
        n_samples = sum(sizes)
        index = torch.arange(n_rows * n_samples, device=batches[0].device)
        parts = index.split([n_rows * size for size in sizes])
        rows = torch.cat([part.view(n_rows, size) for part, size in zip(parts, sizes, strict=True)], dim=1)
        return _joined(batches, n_steps, n_samples)._rows(rows.reshape(-1), n_steps, n_samples)

    def silence(self, n_steps: int) -> SpikeBatch:
        """`n_steps` steps of empty lists, for the same samples and neurons."""
        n_steps = _count("silence", "n_steps", n_steps, 0)
        return self._from_flat(
            np.empty(0, np.int64), np.zeros(n_steps * self.n_samples, np.int32), n_steps, self.n_samples, self.n_neurons
        )

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> SpikeBatch:
        """The same lists on another device; unchanged if they are already there.

        Args:
            device: such as "cpu" or "cuda"; the backend `cpu` reads lists in main memory.
            non_blocking: copies from page-locked memory do not wait; see `torch.Tensor.to`.
        """
        if isinstance(device, torch.dtype):
            raise ShapeError(f"SpikeBatch.to: got {device}, but ids and counts have fixed types; give a device")
        # a device without a number is the current one
        if torch.empty(0, device=device).device == self.device:
            return self
        return self._each(lambda x: unsigned(signed(x).to(device, non_blocking=non_blocking)))

    def pin_memory(self) -> SpikeBatch:
        """The same lists in page-locked memory, for overlapping copies to a GPU; unchanged without CUDA.

        A `DataLoader` with `pin_memory=True` calls this.
        """
        return self._each(lambda x: unsigned(signed(x).pin_memory())) if torch.cuda.is_available() else self

    def _each(self, change: Callable[[Tensor], Tensor]) -> SpikeBatch:
        return replace(
            self,
            offsets=change(self.offsets),
            ids=change(self.ids),
            n_spikes=change(self.n_spikes),
            values=None if self.values is None else change(self.values),
            dropped=None if self.dropped is None else change(self.dropped),
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "ids": signed(self.ids)}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update({**state, "ids": unsigned(state["ids"])})

    def detach(self) -> SpikeBatch:
        """The same lists, detached from the autograd graph."""
        return replace(self, values=None if self.values is None else self.values.detach())

    # ---- Validation -----------------------------------------------------------------------------------------------

    def validate(self) -> SpikeBatch:
        """Returns self; raises `ShapeError` or `SpikeListError` naming the first list that breaks an invariant.

        Lists on another device are checked there; only those that break an invariant are copied, to name the first.
        """
        from sparsesnn import _core

        self.check_form()
        if self.device.type != "cpu" and self._holds():
            return self
        offsets, ids, n_spikes = (x.detach().cpu().numpy() for x in (self.offsets, self.ids, self.n_spikes))
        values = self.values.detach().cpu().contiguous().numpy() if self.graded and self.values is not None else None
        _core.Lists(offsets, ids, n_spikes, values).check(self.n_neurons, self.n_samples, "SpikeBatch")
        return self

    def _holds(self) -> bool:
        """Whether the lists keep every invariant, found out where they lie."""
        offsets, n_listed, n_spikes = self.offsets, self.n_listed, self.n_spikes
        rise = (n_listed >= 0).all() & (n_spikes >= 0).all() & (n_spikes <= n_listed).all()
        if not bool(rise & (offsets[0] == 0) & (offsets[-1] == self.ids.numel())):
            return False
        ids = self.ids.long()
        begins = torch.zeros(
            len(ids) + 1, dtype=torch.bool, device=self.device
        )  # of the spikes, and of the near-spikes, of a list
        begins[offsets] = True
        begins[offsets[:-1] + n_spikes] = True
        good = ((ids >= 0) & (ids < self.n_neurons)).all() & (begins[1 : len(ids)] | (ids[1:] > ids[:-1])).all()
        if self.graded and self.values is not None:
            good &= torch.isfinite(self.values.detach()).all()
        return bool(good)

    def check_form(self) -> None:
        """`ShapeError` unless types and sizes are consistent; the contents of the lists are not checked."""
        if self._is_plain():
            return
        for name, least in (("n_steps", 0), ("n_samples", 0), ("n_neurons", 1)):
            number = getattr(self, name)
            if type(number) is not int or not least <= number < 2**31:
                raise ShapeError(f"SpikeBatch.{name} is {number!r}; allowed: {least} to {2**31 - 1}; give an int")
        n_lists = self.n_list_steps * self.n_samples
        n_ids = self.ids.numel() if isinstance(self.ids, Tensor) else 0
        for name, dtype, size in (
            ("offsets", torch.int64, n_lists + 1),
            ("ids", id_dtype(self.n_neurons), n_ids),
            ("n_spikes", torch.int32, n_lists),
            ("values", torch.float32, n_ids),
            ("dropped", torch.int32, n_lists),
        ):
            array = getattr(self, name)
            if array is None and (name == "dropped" or (name == "values" and not self.graded)):
                continue
            if not isinstance(array, Tensor):
                raise ShapeError(f"SpikeBatch.{name} is a {type(array).__name__}; give a tensor {dtype} [{size}]")
            read = name != "values"  # the engine does not read these in place: they carry a gradient
            if array.dtype != dtype or tuple(array.shape) != (size,) or (read and not array.is_contiguous()):
                strided = "" if array.is_contiguous() else ", not contiguous"
                raise ShapeError(
                    f"SpikeBatch.{name} is {array.dtype} {list(array.shape)}{strided}; T={self.n_steps}, "
                    f"B={self.n_samples}, N={self.n_neurons} and {n_ids} ids need {dtype} [{size}], contiguous"
                )
            if array.device != self.offsets.device:
                raise ShapeError(
                    f"SpikeBatch.{name} is on {array.device}, offsets on {self.offsets.device}; put them on one device"
                )

    def _is_plain(self) -> bool:
        """Whether lists in main memory surely pass `check_form`: a quick test for the usual case."""
        offsets, ids, n_spikes, values, dropped = self.offsets, self.ids, self.n_spikes, self.values, self.dropped
        n_steps, n_samples, n_neurons = self.n_steps, self.n_samples, self.n_neurons
        if not (type(offsets) is type(ids) is type(n_spikes) is Tensor and type(n_steps) is type(n_samples) is int):
            return False
        if not (type(n_neurons) is int and 0 < n_neurons <= MAX_UINT16_NEURONS and n_steps >= 0 and n_samples >= 0):
            return False
        n_lists = self.n_list_steps * n_samples
        return (
            n_lists < 2**31
            and offsets.dtype == torch.int64
            and ids.dtype == torch.uint16
            and n_spikes.dtype == torch.int32
            and offsets.shape == (n_lists + 1,)
            and n_spikes.shape == (n_lists,)
            and ids.ndim == 1
            and offsets.is_cpu
            and ids.is_cpu
            and n_spikes.is_cpu
            and offsets.is_contiguous()
            and ids.is_contiguous()
            and n_spikes.is_contiguous()
            and dropped is None
            and (not self.graded if values is None else _is_like(values, ids))
        )


def _count(where: str, name: str, value: Any, least: int) -> int:
    """A number of steps, samples or neurons. Errors: `ShapeError`."""
    number = whole(value)
    if number is None or not least <= number < 2**31:
        raise ShapeError(f"{where}: {name} is {value!r}; give a whole number from {least} to {2**31 - 1}")
    return number


def _places(flat: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column of every number that is not 0, row by row."""
    if flat.device.type != "cpu" or flat.dtype == torch.bfloat16:
        row, column = torch.nonzero(flat, as_tuple=True)
        return row, column
    found = np.divmod(np.flatnonzero(flat.numpy() != 0), max(1, flat.shape[1]))  # a tenth of PyTorch's time
    return torch.from_numpy(found[0]), torch.from_numpy(found[1])


def _is_like(values: Tensor, ids: Tensor) -> bool:
    """Whether `values` has a float32 for each id, in main memory."""
    return isinstance(values, Tensor) and values.dtype == torch.float32 and values.shape == ids.shape and values.is_cpu


def _joined(parts: Sequence[SpikeBatch], n_steps: int, n_samples: int) -> SpikeBatch:
    """The lists of all parts, one part after the other, on the device of the first."""
    for part in parts:
        part.validate()
    starts = np.cumsum([0, *(part.ids.numel() for part in parts[:-1])]).tolist()
    ends = [part.offsets[1:] + start for part, start in zip(parts, starts, strict=True)]
    values = dropped = None
    if any(part.values is not None for part in parts):
        values = torch.cat([part.entry_values() for part in parts])
    if any(part.dropped is not None for part in parts):
        none = [torch.zeros_like(part.n_spikes) for part in parts]
        dropped = torch.cat([zeros if x.dropped is None else x.dropped for x, zeros in zip(parts, none, strict=True)])
    return replace(
        parts[0],
        offsets=torch.cat([parts[0].offsets[:1], *ends]),
        ids=unsigned(torch.cat([signed(part.ids) for part in parts])),
        n_spikes=torch.cat([part.n_spikes for part in parts]),
        n_steps=n_steps,
        n_samples=n_samples,
        values=values,
        dropped=dropped,
        graded=any(part.graded for part in parts),
    )
