"""Batches in a fixed order, made ahead by a thread while the consumer trains on the last one."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sparsesnn.datasets import hashing
from sparsesnn.datasets.augment import Augment
from sparsesnn.datasets.event_set import EventSet
from sparsesnn.errors import ConfigError
from sparsesnn.spikes import SpikeBatch

Batch = tuple[SpikeBatch, torch.Tensor]


class Stream:
    """The batches of some samples of an `EventSet`, epoch by epoch.

    The order of epoch k depends on (seed, k) alone and the augmentation of a sample on (seed, k, its number), so a run
    that stopped in the middle of an epoch goes on with `epoch(k, start_batch)` and sees what it would have seen.

    Args:
        event_set: where the samples come from.
        indices: int[n], which samples; None means all.
        batch_size: B; the last batch of an epoch is smaller when B does not divide n.
        shuffle: a new order for each epoch; otherwise the order of `indices`.
        seed: of the order and of the augmentation.
        augment: how samples are changed; None leaves them as they are.
        drop_last: leave out the last batch when it is smaller; those samples are not seen in that epoch.
        prefetch: batches made ahead; 0 makes each one when it is asked for, without a thread.

    Attributes:
        wait_s: seconds that consumers waited for batches, over all epochs so far.
    """

    def __init__(
        self,
        event_set: EventSet,
        indices: Sequence[int] | npt.NDArray[Any] | None,
        batch_size: int,
        *,
        shuffle: bool,
        seed: int,
        augment: Augment | None = None,
        drop_last: bool = False,
        prefetch: int = 2,
    ) -> None:
        chosen = np.arange(len(event_set)) if indices is None else np.asarray(indices)
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
        if batch_size < 1 or prefetch < 0:
            raise ConfigError(f"Stream: batch_size is {batch_size}, prefetch {prefetch}; allowed: from 1 and from 0")
        self.event_set = event_set
        self.indices = chosen.astype(np.int64)
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.augment = augment
        self.drop_last = drop_last
        self.prefetch = prefetch
        self.wait_s = 0.0

    def __len__(self) -> int:
        """Batches of one epoch."""
        n = self.indices.size
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    @property
    def n_samples(self) -> int:
        """Samples that one epoch hands out."""
        return min(len(self) * self.batch_size, self.indices.size)

    def order(self, epoch: int) -> npt.NDArray[np.int64]:
        """int64[n], the samples in the order of that epoch."""
        if not self.shuffle:
            return self.indices
        return self.indices[hashing.permutation(self.indices.size, hashing.keys(self.seed, epoch))]

    def epoch(self, epoch: int, start_batch: int = 0) -> Generator[Batch, None, None]:
        """Iterates `(spikes, labels int64[B])` from batch `start_batch` of that epoch on.

        Closing the iterator, or dropping it before its end, ends the thread. An error in the thread is raised here.
        """
        if not 0 <= start_batch <= len(self):
            raise ConfigError(
                f"Stream: start_batch is {start_batch}; allowed: 0 to {len(self)}, the batches of an epoch"
            )
        order = self.order(epoch)
        chosen = [order[k * self.batch_size : (k + 1) * self.batch_size] for k in range(start_batch, len(self))]

        def make(k: int) -> Batch:
            spikes = self.event_set.batch(chosen[k], rng=(self.seed, epoch), augment=self.augment)
            return spikes, torch.from_numpy(self.event_set.labels[chosen[k]])

        return self._timed(_ahead(make, len(chosen), self.prefetch), len(chosen))

    def _timed(self, batches: Generator[Batch, None, None], n_batches: int) -> Generator[Batch, None, None]:
        with closing(batches):
            for _ in range(n_batches):
                start = time.perf_counter()
                try:
                    batch = next(batches)
                finally:
                    self.wait_s += time.perf_counter() - start
                yield batch


def _ahead(make: Callable[[int], Batch], n_batches: int, depth: int) -> Generator[Batch, None, None]:
    """`make(0) .. make(n_batches - 1)`, made by a thread that is at most `depth` batches ahead of the consumer."""
    if depth == 0:
        yield from map(make, range(n_batches))
        return
    slots = threading.Semaphore(depth)
    stop = threading.Event()
    ready: queue.SimpleQueue[Batch | BaseException] = queue.SimpleQueue()

    def produce() -> None:
        try:
            for k in range(n_batches):
                slots.acquire()
                if stop.is_set():
                    return
                ready.put(make(k))
        except BaseException as error:  # whatever it is: the consumer must hear of it, or wait for ever
            ready.put(error)

    thread = threading.Thread(target=produce, name="sparsesnn-stream", daemon=True)
    thread.start()
    try:
        for _ in range(n_batches):
            item = ready.get()
            if isinstance(item, BaseException):
                raise item
            slots.release()
            yield item
    finally:
        stop.set()
        slots.release()
        thread.join()
