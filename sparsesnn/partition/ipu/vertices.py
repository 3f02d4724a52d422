"""The number of vertices that the graph builder (host/src/ipu) makes for a plan; compile time grows with it.

A tile has one vertex a phase, whatever it holds. Phases: fetch, step, compact, loss; fetch, list gradient, reduce, sum,
state gradient, a second list gradient for the input; square sums, norm, update. If populations are joined by delay 0,
every round has its own step, compact, list gradient, reduce, sum and state gradient. Deep chains would exceed
`MAX_PER_TILE` vertices a tile; their rounds take turns in one set of vertices. That costs exchange, because every turn
moves the lists of all rounds. An activity regularizer has two more phases, on collectors and on shards; trained parameters
of neurons have two more on shards, their gradients and the arrays that follow from them.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sparsesnn.layers.declaration import fires, learnt
from sparsesnn.partition.plan import Plan

#: mean vertices a tile above which a program's rounds share their vertices
MAX_PER_TILE = 12
#: the most tiles of one IPU whose sums of squares one worker adds without an intermediate stage
MAX_DIRECT_SUMS = 16


def loops_rounds(plan: Plan) -> bool:
    """Whether rounds take turns in one set of vertices."""
    return n_vertices(plan, loops=False) > MAX_PER_TILE * plan.target.n_tiles and max(plan.stages.values()) > 0


def n_vertices(plan: Plan, loops: bool | None = None) -> int:
    """Vertices of the program; `loops`: whether rounds share them, None: the builder's choice."""
    if loops is None:
        loops = loops_rounds(plan)
    network, stages = plan.network, plan.stages
    shards = {k: [s.tile for s in p.shards] for k, p in plan.populations.items()}
    collectors = {k: [c.tile for c in p.collectors] for k, p in plan.populations.items()}
    spiking = [k for k in plan.populations if fires(network.populations[k])]
    placed = [k for k in plan.populations if k not in plan.inputs]
    rounds = sorted({stages[k] for k in placed})
    groups = [rounds] if loops else [[r] for r in rounds]

    total = _tiles(collectors[network.inputs[0]]) + _tiles(collectors[network.output])
    for group in groups:
        here = [k for k in placed if stages[k] in group]
        firing = [k for k in here if k in spiking]
        total += _tiles(*(shards[k] for k in here)) + _tiles(*(collectors[k] for k in firing))
        if plan.trains:
            received = [c for c in plan.connections if c.pre in firing or (loops and c.pre in plan.inputs)]
            total += _tiles(*(shards[c.post] for c in received))
            total += _tiles(*([r.tile for r in c.reducers] for c in received if c.pre in firing))
            total += _tiles(*(collectors[k] for k in firing)) + _tiles(*(shards[k] for k in here))
    if not plan.trains:
        return total
    if not loops:
        total += _tiles(*(shards[c.post] for c in plan.connections if c.pre in plan.inputs))
    total += _tiles(*(collectors[k] for k in (*plan.network.inputs, *spiking)))
    if plan.keep_every > 1 and not loops:  # lists are sent again, before a step is repeated and between its rounds
        total += _tiles(*(collectors[k] for k in (*plan.network.inputs, *spiking)))
        for group in groups[:-1]:
            total += _tiles(*(collectors[k] for k in spiking if stages[k] in group))
    if plan.regularizes:
        total += _tiles(*(collectors[k] for k in spiking)) + _tiles(*(shards[k] for k in spiking))
    total += 2 * _tiles(*(shards[k] for k in placed if learnt(network.populations[k])))  # formulas of parameters
    used = np.unique(np.concatenate([shards[k] for k in placed]))
    per_device = np.bincount(used // plan.target.stride, minlength=plan.target.devices)
    return total + 2 * len(used) + int((per_device > MAX_DIRECT_SUMS).sum()) + 1 + _totals(plan)


def _tiles(*lists: Iterable[int]) -> int:
    return len(set().union(*lists))


def _totals(plan: Plan) -> int:
    """The vertices that add the gradients of values shared by a whole population, one for each value."""
    return sum(not isinstance(getattr(p, name), tuple) for p in plan.network.populations.values() for name in learnt(p))
