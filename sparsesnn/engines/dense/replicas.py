"""The backend `dense` over ranks: DistributedDataParallel, with gradients of the whole batch.

Each rank runs part of the batch. Its loss is divided by the size of the whole batch, so gradients are summed, not averaged
as DistributedDataParallel does by default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sparsesnn.bounds import gate, ungated
from sparsesnn.engines.dropout import Heard
from sparsesnn.engines.module import Model
from sparsesnn.host.comm.torch_group import TorchGroup
from sparsesnn.output import Output
from sparsesnn.spikes import SpikeBatch


class Replicated(nn.Module):
    """A `Model` whose gradients are summed over ranks; all ranks begin with the weights of the first.

    Args:
        model: a model of the backend dense, on its device.
        replicas: all ranks.
    """

    def __init__(self, model: Model, replicas: TorchGroup) -> None:
        super().__init__()
        device = next(model.parameters()).device
        self.parallel = DistributedDataParallel(
            model, device_ids=[device] if device.type == "cuda" else None, process_group=replicas.group
        )
        # DDP would refuse a function whose annotations are strings
        ranges: dict[Tensor, tuple[float, float]] = {}
        for layer in model.modules():
            for name, low, high in getattr(getattr(layer, "population", None), "parameters", ()):
                if (low, high) != (-math.inf, math.inf):
                    ranges[getattr(layer, name)] = (low, high)
        self.parallel.register_comm_hook(replicas.group, lambda group, bucket: _add_up(group, bucket, ranges))

    def forward(self, spikes: SpikeBatch, heard: Heard | None = None) -> Output:
        """See `Model`; input and output are this rank's part of the batch."""
        run = self.parallel if torch.is_grad_enabled() else self.parallel.module
        with ungated():
            output: Output = run(spikes, heard=heard)
        return output


def _add_up(group: Any, bucket: Any, ranges: Mapping[Tensor, tuple[float, float]]) -> Any:
    """Sums a bucket of gradients over ranks; for parameters with an allowed range, gates the total."""
    parts = zip(bucket.parameters(), bucket.gradients(), strict=True)
    bounded = [(p, gradient, ranges[p]) for p, gradient in parts if p in ranges]
    work: Any = dist.all_reduce(bucket.buffer(), group=group, async_op=True)

    def finish(done: Any) -> Tensor:
        total: Tensor = done.value()[0]
        for p, gradient, (low, high) in bounded:  # views of the total
            gradient.copy_(gate(p.detach(), gradient, low, high))
        return total

    return work.get_future().then(finish)
