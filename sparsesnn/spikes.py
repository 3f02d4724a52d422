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

from sparsesnn import spike_checks, spike_entries
from sparsesnn.arguments import named, renamed
from sparsesnn.errors import ShapeError, SpikeListError
from sparsesnn.ids import MAX_UINT16_NEURONS, signed, unsigned
from sparsesnn.options import plain, whole
from sparsesnn.spike_entries import as_size
from sparsesnn.tensor_like import plain_tensor
from sparsesnn.tracers import check_tracers, untraced


# Not frozen, and compared by identity: libraries such as Lightning take dataclasses apart and set their fields.
@named
@dataclass(eq=False)
class SpikeBatch:
    """The spikes of one population, for T steps and B samples, as index lists; methods never change it in place.

    Args:
        offsets: int64[T·B + 1], start of each list.
        ids: uint16[S] (int32 when N > 65,536), neuron ids.
        n_spikes: int32[T·B], number of entries in each list that fired. The rest are near-spikes: neurons above
            `grad_threshold` that did not fire but receive a gradient.
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
        """Makes a batch from nested lists: `lists[b][t]` holds the ids that fire in sample b at step t, in any order.

        Samples come first here. Errors: `SpikeListError` for duplicates and ids out of range; `ShapeError` for samples that
        differ in their number of steps.
        """
        return cls._of(spike_entries.of_lists(lists, n_neurons))

    @classmethod
    @untraced
    def from_dense(
        cls, spikes: Tensor | npt.ArrayLike, *, batch_first: bool = False, gradient: str = "none", graded: bool = False
    ) -> SpikeBatch:
        """Makes a batch from a tensor or array of 0 and 1, [T, B, N] (or [B, T, N] with `batch_first`).

        `SpikeBatch.from_dense((torch.rand(100, 32, 700) < 0.02).float())`. It also reads sparse tensors, and arrays of NumPy,
        SciPy and JAX.

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
        return cls._of(spike_entries.of_dense(spikes, batch_first, gradient, graded))

    @classmethod
    @untraced
    def from_sparse(
        cls, spikes: Any, *, batch_first: bool = False, gradient: str = "none", graded: bool = False
    ) -> SpikeBatch:
        """Makes a batch from a sparse tensor [T, B, N] (or [B, T, N] with `batch_first`), at the cost of its entries.

        Args:
            spikes: a tensor of PyTorch in COO layout, coalesced or not, or a BCOO array of JAX. Entries at the same place are summed.
            batch_first: the axes are [B, T, N].
            gradient: for earlier layers, if the values require a gradient: "fired" passes each listed value its gradient, straight
                through. "none" is for data.
            graded: values may be any finite numbers, such as counts; else each is 1 (or 0: no spike).

        Errors: `ShapeError` for other types, layouts and shapes; `SpikeListError` for places outside the shape, for other values,
        among them those of repeated places, and for values that require a gradient if `gradient` is "none".
        """
        check_tracers("from_sparse")
        return cls._of(spike_entries.of_sparse(spikes, batch_first, gradient, graded, "from_sparse"))

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
        n_steps = as_size("constant", "n_steps", n_steps, 0)
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
        `n_steps` and later are left out; several events of one unit in one step make one spike; with `count` its value is
        their number. With `start="first"`, the time of a sample begins at its first event instead of 0. Warns if
        samples or most events are left out, if the window does not fit the events, and if a clock restarts.
        """
        return cls._of(spike_entries.of_events(events, n_steps, n_neurons, dt_us, count, start))

    @classmethod
    def _of(cls, entries: spike_entries.Entries) -> SpikeBatch:
        """Makes a checked batch of entries."""
        batch = cls._from_flat(entries.ids, entries.n_listed, *entries.sizes, entries.n_spikes).to(entries.device)
        return batch if entries.values is None else replace(batch, values=entries.values, graded=entries.graded)

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
        """Returns the spikes as a tensor float32[T, B, N]: 1 for a spike, or its value if spikes are graded, else 0.

        Gradients flow back to all listed neurons.
        """
        values = self.validate().entry_values()
        shape = (self.n_list_steps, self.n_samples, self.n_neurons)
        flat = values.new_zeros(math.prod(shape))
        index = self.list_index() * self.n_neurons + self.ids.long()
        return flat.index_put((index,), values).view(shape).expand(self.shape)

    @untraced
    def counts(self) -> Tensor:
        """Returns the spikes of each neuron over the sequence, float32[B, N]: their number, or the sum of graded values.

        It is differentiable, so it can be part of a loss.
        """
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
        n_steps = as_size("silence", "n_steps", n_steps, 0)
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
        if self.device.type != "cpu" and spike_checks.holds(self):
            return self
        offsets, ids, n_spikes = (x.detach().cpu().numpy() for x in (self.offsets, self.ids, self.n_spikes))
        values = self.values.detach().cpu().contiguous().numpy() if self.graded and self.values is not None else None
        _core.Lists(offsets, ids, n_spikes, values).check(self.n_neurons, self.n_samples, "SpikeBatch")
        return self

    def check_form(self) -> None:
        """`ShapeError` unless types and sizes are consistent; the contents of the lists are not checked."""
        spike_checks.check_form(self)


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
