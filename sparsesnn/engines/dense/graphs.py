"""Loops over steps as CUDA graphs: a recurrent population launches several small kernels per step, and a launch from Python takes
longer than its kernel.

A loop reads some tensors, writes others in place, and does the same work for all tensors of the same shapes. The first call runs
directly, which compiles its kernels; the second is recorded, on separate tensors; later calls replay the recording: inputs are copied
in, results are copied out.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

#: reads the first tensors and writes the second; None for tensors that the caller does not have
Work = Callable[[Sequence[Tensor | None], Sequence[Tensor | None]], None]

#: more than 0 while `apart` runs: its work is recorded as a whole later, so its loops need no separate graphs
_apart = 0

#: most recorded loops to keep; the least recently used is dropped. Each holds the memory of one call's tensors
LIMIT = 32


class Graph:
    """One recorded loop, and the tensors that it works on."""

    def __init__(self, work: Work, read: Sequence[Tensor | None], written: Sequence[Tensor | None]) -> None:
        self.read, self.written = _copies(read), _copies(written)
        self.again = record(lambda: work(self.read, self.written))

    def replay(self, read: Sequence[Tensor | None], written: Sequence[Tensor | None]) -> None:
        """The same as `work(read, written)`."""
        _copy([*self.read, *self.written], [*read, *written])
        self.again()
        _copy(written, self.written)


class Graphs:
    """Recorded loops by key, the most recently used last; None: has run once, not yet recorded."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self.found: OrderedDict[Hashable, Graph | None] = OrderedDict()

    def run(self, work: Work, name: Hashable, read: Sequence[Tensor | None], written: Sequence[Tensor | None]) -> None:
        """Runs `work(read, written)`; loops of the same `name`, on tensors of the same shapes, are assumed to be the same."""
        if (place := stream()) is None:
            work(read, written)
            return
        # two threads, or two streams, would share a graph's tensors
        key = (name, threading.get_ident(), place, *(_kind(x) for x in (*read, *written)))
        if key not in self.found:
            self.found[key] = None
            work(read, written)
        else:
            graph = self.found[key] or Graph(work, read, written)
            self.found[key] = graph
            graph.replay(read, written)
        self.found.move_to_end(key)
        while len(self.found) > self.limit:
            self.found.popitem(last=False)


def stream() -> int | None:
    """The current CUDA stream; None if loops are not recorded: without CUDA, or if the caller records a graph of more than a loop."""
    if _apart or not torch.cuda.is_available() or torch.cuda.is_current_stream_capturing():
        return None
    return int(torch.cuda.current_stream().cuda_stream)


def record(work: Callable[[], None]) -> Callable[[], None]:
    """Runs `work`, and records it as a CUDA graph; the result replays it in one launch."""
    stream = torch.cuda.Stream()
    apart(work, stream)
    return capture(work, stream)


def apart(work: Callable[[], None], stream: torch.cuda.Stream) -> None:
    """Runs `work` on a separate stream: kernels are compiled, and libraries set up, which must not be part of a graph."""
    global _apart
    caller = torch.cuda.current_stream(stream.device)
    stream.wait_stream(caller)
    _apart += 1
    try:
        with torch.cuda.stream(stream):
            work()
    finally:
        _apart -= 1
        caller.wait_stream(stream)


def capture(work: Callable[[], None], stream: torch.cuda.Stream, pool: Any = None) -> Callable[[], None]:
    """Records `work` as a CUDA graph without running it; the result replays it in one launch.

    Args:
        stream: the one on which `apart` ran it.
        pool: of memory, from `torch.cuda.graph_pool_handle`, which graphs share that never run at the same time; None: a new one.
    """
    graph = torch.cuda.CUDAGraph()
    # other threads may copy batches meanwhile
    with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        work()
    return graph.replay


def _kind(x: Tensor | None) -> Hashable:
    return None if x is None else (x.shape, x.stride(), x.dtype, x.device)


def _copies(tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    return [None if x is None else x.clone() for x in tensors]


def _copy(to: Sequence[Tensor | None], of: Sequence[Tensor | None]) -> None:
    for mine, given in zip(to, of, strict=True):
        if mine is not None and given is not None:
            mine.copy_(given)
