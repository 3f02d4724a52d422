"""Shards on a CPU: slabs of a population, dealt to ranks and cores."""

from __future__ import annotations

from dataclasses import replace

from sparsesnn import placement
from sparsesnn.errors import PlanError
from sparsesnn.partition.cpu.memory import rank_bytes
from sparsesnn.partition.pieces import Shard
from sparsesnn.partition.plan import Plan


def place_slabs(plan: Plan) -> Plan:
    """Slabs of the engine's own width, on the ranks that `sparsesnn.placement` gives them."""
    target, populations = plan.target, dict(plan.populations)
    for name, first in placement.neurons_of_ranks(plan.network, target.devices).items():
        width, shards = placement.tile_width(plan.network, name), list[Shard]()
        for rank in range(target.devices):
            begins = range(first[rank], first[rank + 1], width)
            for k, begin in enumerate(begins):
                worker = k * target.tiles // len(begins)
                n = min(width, first[rank + 1] - begin)
                shards.append(Shard(len(shards), begin, n, device=rank, rank=rank, worker=worker))
        populations[name] = replace(populations[name], shards=tuple(shards))
    whole = [name for name in populations if placement.hears_maps(plan.network, name)]
    strategy = "slabs of the engine's width, each layer over all ranks"
    if whole and target.devices > 1:
        strategy += (
            f", but {', '.join(whole)}, with maps as input, whole on one: replicas share their work, shards do not"
        )
    plan = replace(plan, populations=populations, strategy=strategy)
    if target.bytes_per_device is None:
        return plan
    ranks = [sum(items.values()) for items in rank_bytes(plan)]
    worst = max(range(target.devices), key=ranks.__getitem__)
    if ranks[worst] > target.bytes_per_device:
        needed = -(-sum(ranks) // target.bytes_per_device)
        raise PlanError(
            f"plan: needs {ranks[worst]:,} bytes on rank {worst} but target '{target.name}' has "
            f"{target.bytes_per_device:,}; use {max(needed, target.devices + 1)} ranks or more, or a smaller batch",
            needed=ranks[worst],
            available=target.bytes_per_device,
        )
    return plan
