"""Lists that ranks share on their way: the gradients of their entries lie on the ranks that own them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from sparsesnn.engines.cpu.arrival import Move
from sparsesnn.engines.ranks.shards import ShardedSpikes
from sparsesnn.spikes import SpikeBatch

if TYPE_CHECKING:
    from sparsesnn.engines.ranks.layer import Part


class ShardMove(Move):
    """A move of lists that every rank has; `part`: of ranks that run the layer together."""

    values = "own_values"
    separate = True

    def __init__(self, part: Part, spikes: ShardedSpikes, delays: Tensor, between: bool, first_step: int) -> None:
        self.part, self.shards, self.own_places = part, spikes.shards, spikes.own_places
        super().__init__(spikes, delays, between, first_step)

    def places(self, lists: SpikeBatch) -> Any:
        assert isinstance(lists, ShardedSpikes)
        return lists.own_places

    def own_values(self, d_values: Any) -> Any:
        return d_values[self.own_places]

    def sum_groups(self, d_delays: Any) -> Any:
        return self.part.sum_groups(d_delays, self.shards)
