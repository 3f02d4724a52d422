"""Bytes per rank, item by item: what the CPU engine holds at once while it trains.

Lists are ragged on a CPU, so everything that grows with spikes is an expectation, at the plan's activity. Letters: T, B, M,
n neurons of the rank, S = T·B·(ids listed per list), W tile width, P tiles of the rank.

| item | bytes |
|---|---|
| weights, gradient | Σ M·n·4 each |
| optimiser | Adam 2·Σ M·n·4 |
| synapses | of sparse ones: which neurons they join; where they are read as matrices, these |
| packed | weights once more, in tiles, as a pass begins by packing them: recurrent ones of one layer, for its backward |
|  | pass; the others lie where the gradients of the step before lay, unless there are none; at most, for where there are |
|  | tiles enough each thread has the columns of one at a time |
| lists | of every population that the rank owns or reads: S·(2 + 4) for ids and values, 12 B a list; ids are 4 B above 65,536 |
| list gradients | S·4 for each of them |
|  | over several ranks: ids of every population, for a loss reads them; values and gradients of own entries alone, and, of |
|  | one layer's lists at a time, what this rank's K blocks of tiles give, twice, and all ranks' blocks give own entries |
| moved lists | of a connection with axonal delays, not of loops: its lists once more, as they arrive, those with parts of a step |
|  | twice, without what arrives after the end; ids, values and 12 B a list as above, 4 B of gradient, and for it 4 B |
|  | for the place of every entry |
| records | own listed neurons: σ' and what else is kept, 4 B each |
| masks | of one layer at a time: 16 B per tile and list |
| state | the states of all layers; while a layer runs, its own once more and ∂L/∂i of as many steps as a loop's delay; B·n·4 each |
| waiting sums | of one layer: its weight gradient once more for each sum over groups of samples that waits for its other half, |
|  | of more than 64 samples (host/src/training/group_tree.h), and for the group at hand where that takes several chunks, T > 512 |
| state gradient | ∂L/∂i of a chunk (sorting.py), 4·W a row and core; where all tiles of a layer wait for one another, as those of a |
|  | recurrent one, 4·W·P a row; of recurrent layers of one process whose weights do not stay in L2 the currents of 512 rows |
|  | on each core, where those are more |
|  | maps that hear convolutions alone keep what a row receives of one sample on each core, 32 B a run of weights (sorting), a weight gradient a sample |
|  | (waiting sums), records before they are in order (masks), and no currents of several steps |
| sorting | of one layer: all it received, sorted by sender, 4 B a spike, 8 B where gradients flow back; of lists that ranks |
|  | sort for one another (sorting.py), from the forward pass on: 4 B an id and 8 B a neuron and chunk, 8 B more for own ids |
| shares | of one chunk: P·(listed ids of the chunk)·4.5; of a loop whose list gradients come from a product 4 B an id |
| readout | potentials, their gradient, and PyTorch's copy of it, T·B·n·4 each |
| objects | what Python and PyTorch hold of a layer beside its arrays: modules, nodes of the graph, small tensors |

The engine keeps what one layer needed for the next one (`host/src/machine/memory.h`), so the largest of each item counts, and
the items add up, although not all are in use at once. Against what `sparsesnn bench step` measured in nine runs (Zen 1, commit ed61b31)
of 700-1024-1024-20, 64-2048-2048-10, 700-1024r-20 and 64-2048r-10, T = 20 to 500 and batches of 16 to 520, the sum above
weights and optimiser was 0.96 to 1.13 times the measured memory, of the recurrent ones 0.90 to 1.41.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from sparsesnn.layers import LI, Input, Population
from sparsesnn.layers.declaration import n_learnt
from sparsesnn.partition.cpu.cost import tile_blocks
from sparsesnn.partition.cpu.sorting import chunk_of, n_chunks, sorts_for_all
from sparsesnn.partition.cpu.tiles import GROUP_SAMPLES, LEAF_GROUPS, tile_width
from sparsesnn.partition.lengths import Lengths, expected_lengths
from sparsesnn.partition.plan import ConnectionPlan, Plan, Shard

ITEMS = (
    "weights",
    "gradient",
    "optimiser",
    "synapses",
    "packed",
    "lists",
    "list gradients",
    "moved lists",
    "records",
    "state",
    "masks",
    "sorting",
    "waiting sums",
    "state gradient",
    "shares",
    "readout",
    "objects",
)
#: bytes of the objects of a layer: measured over 400 layers that hold next to nothing
OBJECT_BYTES = 30_000
#: which neurons a sparse synapse joins: sender, receiver, place, and how sums over receivers go on
SYNAPSE_BYTES = 13
#: where the entries of a row of maps begin in a list: `RowStarts` of host/src/maps/windows.h
START_BYTES = 4
#: rows whose currents wait on each core, and from how many bytes of weights and arriving ids a step on: `waiting_rows` and
#: `lets_sources_wait` of host/src/cpu/forward.cpp
WAITING_ROWS, WAITING_BYTES, WAITING_IDS = 512, 2 << 20, 6
#: bytes of a loop's weights from which on its list gradients may come from a product: `cached` of host/src/cpu/backward.cpp
RETURNED_BYTES = 3 << 19
#: share of a population listed (a spike counts a third) from which on its list gradients come from one product:
#: `dense_share` of host/src/machine/choices.h
DENSE_SHARE = 0.45


def rank_bytes(plan: Plan) -> list[dict[str, int]]:
    """item → bytes, for every rank."""
    lengths = expected_lengths(plan)
    blocks = {name: tile_blocks(plan, name) for name in plan.populations}
    shards = {name: plan.shards_of_ranks(name) for name in plan.populations}
    return [
        _rank(plan, rank, lengths, blocks, {name: of_ranks[rank] for name, of_ranks in shards.items()})
        for rank in range(plan.target.devices)
    ]


def _rank(
    plan: Plan,
    rank: int,
    lengths: Mapping[str, Lengths],
    blocks: Mapping[str, list[int]],
    shards: Mapping[str, list[Shard]],
) -> dict[str, int]:
    rows = plan.n_steps * plan.n_samples
    train = 1 if plan.trains else 0
    own = {k: sum(s.n for s in mine) for k, mine in shards.items()}
    tiles = {k: len(mine) for k, mine in shards.items()}
    out = dict.fromkeys(ITEMS, 0)
    out["objects"] = OBJECT_BYTES * (len(own) - len(plan.network.inputs))
    seen: set[str] = set()
    kept = 0
    for name, n in own.items():
        if not n:
            continue
        population = plan.network.populations[name]
        incoming = plan.incoming(name)
        padded = tiles[name] * tile_width(plan, name)
        begin = shards[name][0].first
        n_weights = {c: plan.n_weights(c, begin, begin + n) for c in incoming}
        whole = {c: plan.is_windows(c) or plan.is_compressed(c) for c in incoming}  # read as they are
        n_read = {c: w if whole[c] else plan.in_lists(c).n_pre * n for c, w in n_weights.items()}
        weights = 4 * sum(n_weights.values())
        out["weights"] += weights
        out["gradient"] += weights * train
        out["optimiser"] += weights * {"adam": 2, "sgd": 0, "none": 0}[plan.optimizer]
        out["synapses"] += sum(
            SYNAPSE_BYTES * w if plan.is_compressed(c) else 8 * w + 4 * n_read[c]
            for c, w in n_weights.items()
            if plan.is_compressed(c) or n_read[c] > w
        )
        seen |= {name, *(c.pre for c in incoming)}
        peak = {
            "packed": (2 if plan.weight_dtype == "half" else 4) * _packed(plan, incoming) * padded
            + 4 * sum(w for c, w in n_weights.items() if whole[c]),
            "state": 4
            * plan.n_samples
            * padded
            * (
                _states(population)
                + min(plan.n_steps, max((plan.reach(c) for c in incoming if c.recurrent), default=0)) * plan.trains
            ),
            "masks": 0 if isinstance(population, LI) else 16 * tiles[name] * rows,
            "state gradient": 4
            * max(
                math.prod(chunk_of(plan)) * train * _grad_columns(plan, name, tiles[name], lengths),
                _waiting_rows(plan, name, lengths) * padded,
            ),
            "shares": sum(_shares(plan, c, tiles[name], lengths[c.pre]) for c in incoming) * train,
            "waiting sums": 4 * sum(n_read.values()) * waiting_sums(plan) * train,
            "sorting": sum(_sorting(plan, c, lengths[c.pre]) for c in incoming) * train,
        }
        peak["waiting sums"] += sum(
            4 * w * chunk_of(plan)[0] * train for c, w in n_weights.items() if plan.is_windows(c)
        )
        if plan.runs_by_row(name):
            peak = _windows(plan, name, sum(n_weights.values()), lengths)
        for item, size in peak.items():  # one layer after the other
            out[item] = max(out[item], size)
        kept += 4 * plan.n_samples * n * _states(population)
        if not isinstance(population, Population):
            out["readout"] += 4 * rows * n * (1 + 2 * train)
        else:
            share = n / plan.populations[name].n
            fields = 1 + (population.reset == "zero")
            fields += n_learnt(population)
            out["records"] += math.ceil(4 * fields * rows * lengths[name].listed * share) * train
        out["moved lists"] += sum(_moved(plan, c, lengths[c.pre]) for c in incoming if not c.recurrent)
    several = plan.target.devices > 1
    out["state"] += 0 if several else kept  # models over ranks return no state
    for name in plan.populations if several else seen:
        if isinstance(plan.network.populations[name], LI):
            continue
        wide = 4 if plan.populations[name].n > 65536 else 2
        ids = math.ceil(rows * lengths[name].listed)
        if several:
            mine = math.ceil(ids * own[name] / plan.populations[name].n)
            out["lists"] += ids * wide + 4 * mine * train + 12 * rows
            for c in plan.outgoing(name):
                if train and sorts_for_all(plan, c):
                    n_starts = 2 * n_chunks(plan.n_steps, plan.n_samples, plan.target.tiles)
                    out["sorting"] += 4 * (ids + 2 * mine + n_starts * (plan.populations[name].n + own[name]))
                of_ranks = blocks[c.post]
                sums = 0 if c.recurrent else 4 * (2 * of_ranks[rank] * ids + sum(of_ranks) * mine) * train
                out["list gradients"] = max(out["list gradients"], sums)
            continue
        out["lists"] += ids * (wide + 4 * train) + 12 * rows
        out["list gradients"] += 4 * ids * train * (not isinstance(plan.network.populations[name], Input))
    return out


def _moved(plan: Plan, c: ConnectionPlan, lengths: Lengths) -> int:
    """Lists of a connection with axonal delays as they arrive, `_Move` of sparsesnn/engines/arrival.py."""
    delays = plan.axonal(c)
    if delays is None:
        return 0
    n, rows = plan.populations[c.pre].n, plan.n_steps * plan.n_samples
    steps, ids = np.floor(delays.first(n)), rows * lengths.listed

    def arrives(later: int) -> float:
        """The share of entries that arrives before the end."""
        return float(np.maximum(0, plan.n_steps - steps - later).mean()) / plan.n_steps

    # the later part of an entry is one with the earlier part of the neuron's next, where it has one
    moved = ids * (arrives(0) + delays.learn * arrives(1) * (1 - lengths.listed / n))
    gives = plan.trains and (delays.learn or c.pre not in plan.network.inputs)  # a gradient
    each = (4 if n > 65536 else 2) + 4 * (gives or delays.learn) + 4 * gives
    return math.ceil(moved * each + 4 * ids * (1 + delays.learn) * gives + 12 * rows)


def _windows(plan: Plan, name: str, n_weights: int, lengths: Mapping[str, Lengths]) -> dict[str, int]:
    """What a layer of maps holds while it runs, instead of what others do; `masks`: its records, row by row."""
    population, n = plan.network.populations[name], plan.populations[name].n
    train, cores = int(plan.trains), min(plan.target.tiles, plan.n_samples)
    shapes = [plan.in_lists(c).kind.window_shape() for c in plan.incoming(name)]
    heard = [shape["shape"][0] * (shape["shape"][2] if shape["channels_first"] else 1) for shape in shapes if shape]
    own = plan.in_lists(plan.incoming(name)[0]).kind.post_shape[0]
    fields = 1 + (getattr(population, "reset", "") == "zero")
    return {
        "packed": 4 * n_weights,
        "state": 4 * plan.n_samples * n * _states(population),
        "masks": math.ceil(lengths[name].listed * plan.n_steps * plan.n_samples * (8 + 4 * fields * train)),
        "sorting": START_BYTES * plan.n_steps * cores * (1 + train) * (sum(h + 1 for h in heard) + (own + 1) * train),
        "waiting sums": 4 * n_weights * min(plan.n_samples, GROUP_SAMPLES * LEAF_GROUPS) * train,
    }


def _states(population: Input | LI | Population) -> int:
    """Numbers per neuron that its model carries."""
    return 0 if isinstance(population, Input) else len(population.states)


def _packed(plan: Plan, incoming: tuple[ConnectionPlan, ...]) -> int:
    """Senders whose weights are packed where no gradient can lie."""
    read = [c for c in incoming if not plan.is_compressed(c) and not plan.is_windows(c)]
    return sum(plan.populations[c.pre].n for c in read if c.recurrent or not plan.trains)


def _grad_columns(plan: Plan, name: str, n_tiles: int, lengths: Mapping[str, Lengths]) -> int:
    """Neurons whose ∂L/∂i of a chunk is there at a time: of one tile on each core, unless something waits for all of them
    (`keeps_all` of host/src/cpu/backward.cpp)."""
    incoming, cores = plan.incoming(name), plan.target.tiles
    by_tile = isinstance(plan.network.populations[name], Population) and n_tiles >= cores
    waits = any(
        c.recurrent or plan.is_compressed(c) or plan.is_windows(c) or _is_dense(plan, c, lengths[c.pre])
        for c in incoming
    )
    return tile_width(plan, name) * (cores if by_tile and not waits else n_tiles)


def _waiting_rows(plan: Plan, name: str, lengths: Mapping[str, Lengths]) -> int:
    """Rows whose currents wait on all cores together for those of loops."""
    incoming, rows = plan.incoming(name), plan.n_steps * plan.n_samples
    if plan.target.devices > 1 or not any(c.recurrent for c in incoming) or rows < WAITING_ROWS:
        return 0
    if any(plan.is_windows(c) or plan.is_compressed(c) for c in incoming):
        return 0
    n_bytes = 4 * plan.populations[name].n * sum(plan.in_lists(c).n_pre for c in incoming)
    arriving = sum(lengths[c.pre].listed for c in incoming if not c.recurrent)
    return min(plan.target.tiles * WAITING_ROWS, rows) if n_bytes > WAITING_BYTES and arriving > WAITING_IDS else 0


def waiting_sums(plan: Plan) -> int:
    """Buffers like a weight's gradient, beside it, that its sum over groups of samples takes."""

    def waiting(n_groups: int) -> int:
        if n_groups <= LEAF_GROUPS:
            return 0
        first = (n_groups + 1) // 2
        return max(waiting(first), 1 + waiting(n_groups - first))  # the first half waits while the second is added up

    return waiting(-(-plan.n_samples // GROUP_SAMPLES)) + (chunk_of(plan)[1] < plan.n_steps)


def _shares(plan: Plan, c: ConnectionPlan, n_tiles: int, lengths: Lengths) -> int:
    if c.pre in plan.network.inputs:
        return 0
    if plan.is_windows(c):
        return 0
    if _is_dense(plan, c, lengths):
        large = plan.populations[c.post].n ** 2 * 4 > RETURNED_BYTES
        return math.ceil(plan.n_steps * plan.n_samples * lengths.listed * 4) if c.recurrent and large else 0
    if c.recurrent:
        return 0  # what comes back through loops is added up sample by sample
    if plan.is_compressed(c):
        n_tiles = 1  # sums over blocks of tiles
    return math.ceil(math.prod(chunk_of(plan)) * lengths.listed * 4.5 * n_tiles)


def _is_dense(plan: Plan, c: ConnectionPlan, lengths: Lengths) -> bool:
    """Whether list gradients come from a product over all senders: `listed_densely` of host/src/cpu/dense_shares.cpp."""
    groups = -(-plan.n_samples // GROUP_SAMPLES)
    n_all = groups * GROUP_SAMPLES * plan.populations[c.pre].n
    return (
        not plan.is_compressed(c) and plan.n_samples * (lengths.listed - lengths.spikes * 2 / 3) >= DENSE_SHARE * n_all
    )


def _sorting(plan: Plan, c: ConnectionPlan, lengths: Lengths) -> int:
    """Own lists of a recurrent layer, the input's and those of a product are sorted for the weight gradient alone: spikes."""
    rows = plan.n_steps * plan.n_samples
    if plan.is_windows(c) or sorts_for_all(plan, c):
        return 0
    spikes_only = c.recurrent or c.pre in plan.network.inputs or _is_dense(plan, c, lengths)
    return math.ceil(rows * (4 * lengths.spikes if spikes_only else 8 * lengths.listed))
