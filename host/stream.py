"""Batches in a fixed order, prepared by a thread while the consumer trains on the last one."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sparsesnn import _core
from sparsesnn.arguments import named
from sparsesnn.datasets import hashing
from sparsesnn.datasets.augment import Augment
from sparsesnn.datasets.event_set import EventSet
from sparsesnn.errors import ConfigError
from sparsesnn.host.batches import Batch, Batches, Indices
from sparsesnn.options import whole
from sparsesnn.spikes import SpikeBatch
from sparsesnn.typed import typed
from sparsesnn.wording import a_type

# words for other random orders of an epoch; the order of samples has no word, for compatibility
_BATCH_ORDER, _CLASS_ORDER = 1, 2


@named
class Stream:
    """The batches of some samples of an `EventSet`, epoch by epoch.

    The order of epoch k depends on (seed, k) alone and the augmentation of a sample on (seed, k, its number): neither on
    the backend, nor on threads, nor on ranks. So a run that stopped in the middle of an epoch resumes with
    `epoch(k, start_batch)` and gets the same batches.

    **Ranks.** B is the batch of all R ranks together. Each takes whole groups of samples (`share`), so for any R the
    slices of all ranks, one after the other, are the batch of a single rank, each sample exactly once; and gradients,
    which are summed group by group, are the same. All ranks take the same number of batches; if a batch has fewer
    groups than there are ranks, some slices are empty. A mean over the batch is the sum over the ranks' samples, divided
    by their number.

    **Buckets.** With `bucket_batches` = m > 1 the shuffled order is cut into runs of m batches; each run is sorted by
    the number of spikes of a sample before it is cut into batches, which are then put into a random order. So the samples
    of a batch have similar lengths. The work of a sample is proportional to its spikes: slices of such a batch cost the
    ranks (and the threads that share samples) about the same; otherwise all wait for the one with the longest samples.
    With recordings like SHD's in batches of 64, the busiest of 8 ranks gets 18 % more spikes than the mean, and 3 % more with
    m = 16; on 32 ranks it is 53 % and 7 %. On one rank it gains little, because lists are ragged and nothing is padded. The
    price: the samples of a batch are no longer independent draws. The smaller last batch is the same with and without buckets.

    Args:
        event_set: the source of the samples.
        indices: int[n], numbers of the samples; None means all.
        batch_size: B, over all ranks; the last batch of an epoch is smaller if B does not divide n.
        shuffle: a new order for each epoch; otherwise the order of `indices`.
        seed: of the order and of the augmentation.
        augment: changes to the samples; None: no changes.
        bucket_batches: batches sorted by length together; 0 or 1: none. Needs `shuffle`.
        balance: draw all classes equally often: the length of an epoch stays; samples of rare classes appear several times, and of
            frequent classes a part, a different one in each epoch. Needs `shuffle`, and a class for each sample.
        drop_last: leave out the last batch if it is smaller; its samples are not used in that epoch.
        prefetch: batches made ahead; 0 makes each one on request, without a thread. With 2, one is filled while another
            waits; more, which are small, bridge moments in which other processes have the cores.
        rank, n_ranks: r and R.
        per_rank: samples of a batch for each rank, in the order of the ranks, until none are left; 0: whole groups,
            distributed evenly.
        device: the device of the batches.

    Attributes:
        wait_s: seconds that consumers waited for batches, over all epochs so far.

    Raises:
        ConfigError: an invalid argument.
    """

    def __init__(
        self,
        event_set: EventSet,
        indices: Sequence[int] | npt.NDArray[Any] | None = None,
        batch_size: int = 64,
        *,
        shuffle: bool = False,
        seed: int = 0,
        augment: Augment | None = None,
        bucket_batches: int = 0,
        balance: bool = False,
        drop_last: bool = False,
        prefetch: int = 8,
        rank: int = 0,
        n_ranks: int = 1,
        per_rank: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        if not isinstance(event_set, EventSet):
            raise ConfigError(
                f"Stream: event_set is {a_type(event_set)}; give an EventSet, such as datasets.load('digits')"
            )
        batch_size, seed = _whole("batch_size", batch_size), _whole("seed", seed)
        bucket_batches, prefetch = _whole("bucket_batches", bucket_batches), _whole("prefetch", prefetch)
        rank, n_ranks = _whole("rank", rank), _whole("n_ranks", n_ranks)
        chosen = np.arange(len(event_set)) if indices is None else typed(indices)
        if chosen.size == 0:
            chosen = chosen.astype(np.int64)
        if chosen.ndim != 1 or chosen.dtype.kind not in "iu":
            raise ConfigError(
                f"Stream: indices are {chosen.dtype}{list(chosen.shape)}; give a flat list of sample numbers"
            )
        if chosen.size and (chosen.min() < 0 or chosen.max() >= len(event_set)):
            raise ConfigError(
                f"Stream: indices run from {chosen.min()} to {chosen.max()}; allowed: 0 to {len(event_set) - 1}"
            )
        for name, value, least in (("batch_size", batch_size, 1), ("prefetch", prefetch, 0)):
            if value < least:
                raise ConfigError(f"Stream: {name} is {value}; give {least} or more")
        if not 1 <= n_ranks <= batch_size or not 0 <= rank < n_ranks:
            raise ConfigError(
                f"Stream: rank is {rank} of {n_ranks} for batches of {batch_size}; "
                "allowed: 0 to n_ranks - 1, and at most as many ranks as samples in a batch"
            )
        if bucket_batches < 0 or (bucket_batches > 1 and not shuffle):
            raise ConfigError(
                f"Stream: bucket_batches is {bucket_batches}{'' if shuffle else ' without shuffle'}; "
                "allowed: 0 (none), or a number of batches together with shuffle"
            )
        if balance and not (shuffle and event_set.task.is_plain):
            why = f"samples with a {event_set.task}" if shuffle else "without shuffle"
            raise ConfigError(
                f"Stream: balance is True, {why}; allowed: a class for each sample, together with shuffle"
            )
        self.event_set = event_set
        self.indices: Indices = chosen.astype(np.int64)
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.bucket_batches = bucket_batches
        self.balance = balance
        self.drop_last = drop_last
        self.prefetch = prefetch
        if per_rank and n_ranks * per_rank < batch_size:
            raise ConfigError(
                f"Stream: per_rank is {per_rank} on {n_ranks} ranks for batches of {batch_size}; allowed: 0, or from "
                f"{-(-batch_size // n_ranks)}"
            )
        self.rank, self.n_ranks, self.per_rank = rank, n_ranks, per_rank
        self.device = torch.device(device)
        self.wait_s = 0.0
        self.batches = Batches(event_set, seed=seed, augment=augment, partners=self.indices)

    def __len__(self) -> int:
        """Batches of one epoch, the same for every rank."""
        n = self.indices.size
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    @property
    def n_samples(self) -> int:
        """Samples in the batches of one epoch, over all ranks."""
        return min(len(self) * self.batch_size, self.indices.size)

    def order(self, epoch: int) -> Indices:
        """int64[n], the samples in the order of an epoch, for all ranks together."""
        if not self.shuffle:
            return self.indices
        samples = self._balanced(epoch) if self.balance else self.indices
        order = samples[hashing.permutation(samples.size, hashing.keys(self.seed, epoch))]
        return self._bucketed(order, epoch) if self.bucket_batches > 1 else order

    def _balanced(self, epoch: int) -> Indices:
        """int64[n], samples of all classes in turn; those of each class in an order of the epoch, again from its first if it ends."""
        labels = self.event_set.labels[self.indices]
        classes, chosen = np.unique(labels), np.empty_like(self.indices)
        for k, label in enumerate(classes.tolist()):
            members = self.indices[labels == label]
            members = members[hashing.permutation(members.size, hashing.keys(self.seed, epoch, _CLASS_ORDER, label))]
            places = chosen[k :: classes.size]
            places[:] = members[np.arange(places.size) % members.size]
        return chosen

    def _bucketed(self, order: Indices, epoch: int) -> Indices:
        """The order with whole batches made of samples of similar length; the rest, if any, stays at the end."""
        n_whole = order.size // self.batch_size
        starts = self.event_set.sample_starts
        place = np.arange(n_whole * self.batch_size)
        length = (starts[1:] - starts[:-1])[order[: place.size]]
        run = place // (self.batch_size * self.bucket_batches)
        batches = np.lexsort((place, length, run)).reshape(n_whole, self.batch_size)
        # within a batch back to the shuffled order: the slices of the ranks must not be sorted by length
        batches = np.sort(batches, axis=1)
        batches = batches[hashing.permutation(n_whole, hashing.keys(self.seed, epoch, _BATCH_ORDER))]
        return np.concatenate([order[batches.reshape(-1)], order[place.size :]])

    def batch_samples(self, epoch: int, batch: int) -> Indices:
        """int64[b], this rank's samples of a batch of an epoch."""
        return self._slice(self.order(epoch), batch)

    def _slice(self, order: Indices, batch: int) -> Indices:
        whole = order[batch * self.batch_size : (batch + 1) * self.batch_size]
        first, last = self._share(whole.size)
        return whole[first:last]

    def _share(self, n_samples: int) -> tuple[int, int]:
        if not self.per_rank:
            return share(n_samples, self.rank, self.n_ranks)
        first = min(self.rank * self.per_rank, n_samples)
        return first, min(first + self.per_rank, n_samples)

    def place(self, batch: int) -> tuple[int, int]:
        """The number of samples of a batch on the ranks before this one, and on all ranks."""
        n = min(self.batch_size, self.indices.size - batch * self.batch_size)
        return self._share(n)[0], n

    def epoch(self, epoch: int, start_batch: int = 0) -> Generator[Batch, None, None]:
        """Iterates over `(spikes, labels)` of an epoch from batch `start_batch`.

        Labels are int64[B], or float32[B, C], the share of each class, if the augmentation mixes samples; for other tasks see
        `sparsesnn.task.Task`. Closing the iterator, or dropping it before its end, ends the thread. An error in the thread is raised here.
        """
        if not 0 <= start_batch <= len(self):
            raise ConfigError(
                f"Stream: start_batch is {start_batch}; allowed: 0 to {len(self)}, the batches of an epoch"
            )
        order = self.order(epoch)
        make = self.batches.epoch(epoch)

        def batch(k: int) -> Batch:
            return self._on_device(*make(self._slice(order, start_batch + k)))

        n_batches = len(self) - start_batch
        return self._timed(_ahead(batch, n_batches, self.prefetch), n_batches)

    def _on_device(self, spikes: SpikeBatch, labels: torch.Tensor) -> Batch:
        """Copies a batch to the device; from page-locked memory the copy does not block the thread."""
        if spikes.offsets.device == self.device:
            return spikes, labels
        return spikes.pin_memory().to(self.device, non_blocking=True), labels.to(self.device)

    def _timed(self, batches: Generator[Batch, None, None], n_batches: int) -> Generator[Batch, None, None]:
        with closing(batches):
            for _ in range(n_batches):
                start = time.perf_counter()
                try:
                    batch = next(batches)
                finally:
                    self.wait_s += time.perf_counter() - start
                yield batch


def _whole(name: str, value: Any) -> int:
    number = whole(value)
    if number is None:
        raise ConfigError(f"Stream: {name} is {value!r}; give a whole number")
    return number


def share(n_samples: int, rank: int, n_ranks: int) -> tuple[int, int]:
    """A rank's samples `first` to `last - 1` of a batch: whole groups of `_core.group_samples`."""
    n_groups = -(-n_samples // _core.group_samples)
    first, last = (-(-r * n_groups // n_ranks) * _core.group_samples for r in (rank, rank + 1))
    return min(first, n_samples), min(last, n_samples)


def _ahead(make: Callable[[int], Batch], n_batches: int, depth: int) -> Generator[Batch, None, None]:
    """`make(0) .. make(n_batches - 1)`, made by a thread that is at most `depth` batches ahead of the consumer.

    A thread that is `depth` ahead rests until half of them are consumed: on a busy machine each wake-up may cost the
    consumer, which wakes it, its core.
    """
    if depth == 0:
        yield from map(make, range(n_batches))
        return
    ready: collections.deque[Batch | BaseException] = collections.deque()
    changed = threading.Condition()  # of `ready` and `stopped`; only one of the two threads ever waits for it
    stopped = False

    def produce() -> None:
        try:
            for k in range(n_batches):
                with changed:
                    if len(ready) >= depth:
                        changed.wait_for(lambda: stopped or len(ready) <= depth // 2)
                    if stopped:
                        return
                put(make(k))
        except BaseException as error:  # any error must reach the consumer, or it waits forever
            put(error)

    def put(item: Batch | BaseException) -> None:
        with changed:
            ready.append(item)
            changed.notify()

    def take() -> Batch | BaseException:
        with changed:
            changed.wait_for(lambda: ready)
            item = ready.popleft()
            if len(ready) <= depth // 2:
                changed.notify()
        return item

    thread = threading.Thread(target=produce, name="sparsesnn-stream", daemon=True)
    thread.start()
    try:
        for _ in range(n_batches):
            item = take()
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        with changed:
            stopped = True
            changed.notify()
        thread.join()
