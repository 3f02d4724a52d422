"""Ranks started by torchrun, through torch.distributed: gloo for main memory, NCCL for CUDA devices.

For the backend `dense`, whose gradients DistributedDataParallel adds up. A message consists of its length, then its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from sparsesnn.errors import ConfigError
from sparsesnn.host.comm.base import Array, Bytes, Communicator, Traffic
from sparsesnn.host.comm.watch import open_many_files


def torch_world(local_rank: int | None, ranks_on_host: int | None) -> TorchGroup:
    """All ranks of torchrun; each takes the CUDA device with its number on its host, if there are devices.

    Errors: `ConfigError` if this PyTorch has no gloo.
    """
    if not dist.is_available() or not dist.is_gloo_available():
        raise ConfigError(f"torchrun: this PyTorch ({torch.__version__}) was built without torch.distributed and gloo")
    backend = "gloo"
    if torch.cuda.is_available() and dist.is_nccl_available():
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device((local_rank or 0) % torch.cuda.device_count())
    open_many_files()  # gloo connects all pairs of ranks
    dist.init_process_group(backend, timeout=timedelta(minutes=30))
    return TorchGroup(dist.group.WORLD, Traffic(), ranks_on_host or 1)


class TorchGroup(Communicator):
    """A group of torch.distributed; `group` is for DistributedDataParallel."""

    launcher = "torchrun"

    def __init__(self, group: dist.ProcessGroup | None, traffic: Traffic, ranks_on_host: int) -> None:
        self.group, self.traffic, self.ranks_on_host = group, traffic, ranks_on_host
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def send(self, array: Array, to: int, tag: int = 0) -> _Sent:
        parts = [_bytes(np.array([array.nbytes], np.int64)), _bytes(array)]
        with self.traffic.timed():
            works = [
                dist.isend(x, group=self.group, tag=t, group_dst=to) for x, t in zip(parts, _tags(tag), strict=True)
            ]
        self.traffic.count(sent=array.nbytes, n_messages=1)
        return _Sent(self, works, parts, array.nbytes)

    def receive(self, array: Array, source: int, tag: int = 0) -> _Received:
        return _Received(self, array, source, tag)

    def take(self, source: int, tag: int = 0) -> Bytes:
        length = np.empty(1, np.int64)
        with self.traffic.timed():
            for_length, for_bytes = _tags(tag)
            dist.recv(_bytes(length), group=self.group, tag=for_length, group_src=source)
            array = np.empty(int(length[0]), np.uint8)
            dist.recv(_bytes(array), group=self.group, tag=for_bytes, group_src=source)
        self.traffic.count(received=array.nbytes)
        return array

    def all_gather(self, array: Array) -> list[Array]:
        own = np.ascontiguousarray(array).reshape(-1)
        with self.traffic.timed():
            sizes = [torch.empty(1, dtype=torch.int64, device="cpu") for _ in range(self.size)]
            dist.all_gather(sizes, torch.tensor([own.nbytes], device="cpu"), group=self.group)
            longest = max(1, *(int(n) for n in sizes))  # gloo gathers equal lengths
            padded = torch.zeros(longest, dtype=torch.uint8, device="cpu")
            padded[: own.nbytes] = _bytes(own)
            parts = [torch.empty(longest, dtype=torch.uint8, device="cpu") for _ in range(self.size)]
            dist.all_gather(parts, padded, group=self.group)
        arrays = [part.numpy()[: int(n)].view(own.dtype) for part, n in zip(parts, sizes, strict=True)]
        received = sum(part.nbytes for part in arrays) - own.nbytes
        self.traffic.count(sent=own.nbytes * (self.size - 1), received=received, n_messages=self.size - 1)
        return arrays

    def split(self, colors: Sequence[int]) -> TorchGroup:
        made = None
        for each in sorted(set(colors)):  # every rank makes every group, in the same order
            members = [r for r, c in enumerate(colors) if c == each]
            members = [dist.get_global_rank(self.group, r) for r in members] if self.group is not None else members
            group = dist.new_group(members)
            made = group if each == colors[self.rank] else made
        return TorchGroup(made, self.traffic, self.ranks_on_host)


class _Sent:
    def __init__(
        self, comm: TorchGroup, works: Sequence[dist.Work | None], parts: list[torch.Tensor], n_bytes: int
    ) -> None:
        self.comm, self.works, self.parts, self.n_bytes = comm, works, parts, n_bytes

    def wait(self) -> int:
        with self.comm.traffic.timed():
            for work in self.works:
                if work is not None:
                    work.wait()
        return self.n_bytes


class _Received:
    """Receives its message in `wait`."""

    def __init__(self, comm: TorchGroup, array: Array, source: int, tag: int) -> None:
        self.comm, self.array, self.source, self.tag = comm, array, source, tag

    def wait(self) -> int:
        message = self.comm.take(self.source, self.tag)
        _bytes(self.array)[: message.nbytes].copy_(torch.from_numpy(message))
        return int(message.nbytes)


def _tags(tag: int) -> tuple[int, int]:
    """The two tags of a message: for its length and its bytes."""
    return 2 * tag, 2 * tag + 1


def _bytes(array: Array) -> torch.Tensor:
    """The array's memory."""
    if not array.flags.writeable:  # PyTorch warns, though it is only read
        array = array.copy()
    return torch.from_numpy(array.reshape(-1).view(np.uint8))
