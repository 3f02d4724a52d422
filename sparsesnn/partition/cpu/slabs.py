"""Shards on a CPU: slabs of a population that the engine works through, dealt to ranks and cores."""

from __future__ import annotations

from dataclasses import replace

from sparsesnn.errors import PlanError
from sparsesnn.layers import Input
from sparsesnn.partition.cpu.memory import rank_bytes
from sparsesnn.partition.cpu.tiles import cpu_shards
from sparsesnn.partition.pieces import Shard
from sparsesnn.partition.plan import Plan


def place_slabs(plan: Plan) -> Plan:
    """Slabs of the engine's own width. Layers run one after another, so each is dealt to all ranks, in contiguous runs;
    who gets a slab more is who holds the fewest weights so far. A population that hears maps is whole on one rank: its places share
    their weights."""
    target = plan.target
    populations = {}
    held = [0] * target.devices
    whole = []
    for name, p in plan.populations.items():
        populations[name] = p
        if isinstance(plan.network.populations[name], Input):
            continue
        slabs = cpu_shards(p.n, plan.n_read(name))
        each, left = divmod(len(slabs), target.devices)
        by_load = sorted(range(target.devices), key=held.__getitem__)
        more = set(by_load[:left])
        n_slabs = [each + (rank in more) for rank in range(target.devices)]
        if not all(plan.synapses(c).is_matrix for c in plan.incoming(name)):
            whole.append(name)
            n_slabs = [len(slabs) * (rank == by_load[0]) for rank in range(target.devices)]
            held[by_load[0]] += p.n
        shards: list[Shard] = []
        for rank in range(target.devices):
            mine = slabs[len(shards) : len(shards) + n_slabs[rank]]
            own = (mine[0].first, mine[-1].first + mine[-1].n) if mine else (0, 0)
            held[rank] += sum(plan.n_weights(c, *own) for c in plan.incoming(name))
            shards += [
                replace(s, device=rank, rank=rank, worker=k * target.tiles // len(mine)) for k, s in enumerate(mine)
            ]
        populations[name] = replace(p, shards=tuple(shards))
    strategy = "slabs of the engine's width, each layer over all ranks"
    if whole and target.devices > 1:
        strategy += f", but {', '.join(whole)}, which hear maps, whole on one: replicas share their work, shards do not"
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
