"""Bytes per rank, item by item: the CPU engine's memory while it trains.

Lists are ragged on a CPU, so everything that grows with spikes is an expectation, at the plan's activity. Letters: T, B, M,
n neurons of the rank, S = T·B·(ids listed per list), W tile width, P tiles of the rank, C rows of a chunk of T·B,
at most 4,096.

| item | bytes |
|---|---|
| weights, gradient | Σ M·n·4 each |
| optimizer | Adam 2·Σ M·n·4 |
| synapses | for sparse connections: the neurons they join; if they are read as matrices, these |
| packed | weights a second time: recurrent ones, and all of them without training; else they reuse the memory of the last step's gradients |
| lists | of every population that the rank owns or reads: S·(2 + 4) for ids and values, 12 B a list; ids are 4 B above 65,536 |
| list gradients | S·4 for each of them; over several ranks, own entries only, and for one layer's lists at a time the contributions of all ranks |
| moved lists | of a connection with axonal delays, not of loops: its lists a second time, as they arrive; with fractions of a step |
|  | twice, without entries that arrive after the end; ids, values and 12 B a list as above, 4 B of gradient, and for it 4 B |
|  | for the place of every entry |
| records | own listed neurons: σ' and other kept values, 4 B each |
| masks | 16 B per tile and list; for maps, own listed neurons a second time |
| state | the states of all layers; while a layer runs, its own a second time and ∂L/∂i of the steps of a loop's delay; B·n·4 each |
| waiting sums | the weight gradient once more for each sum over groups of samples that waits for its other half, with more than |
|  | 64 samples (host/src/training/group_tree.h), and for the current group if T > 512; for maps a gradient a sample |
| state gradient | ∂L/∂i: 4·W·C on each core, or, for a recurrent layer, a readout and few tiles, 4·n·C |
| sorting | all entries that the layer received, sorted by sender: 4 B a spike, 8 B if gradients flow back; over several ranks |
|  | lists are sorted once for all, from the forward pass on |
| shares | for list gradients: P·(listed ids of C rows)·4.5; none if most neurons are listed |
| readout | potentials, their gradient, and PyTorch's copy of it, T·B·n·4 each |
| objects | Python and PyTorch objects of a layer besides its arrays: modules, nodes of the graph, small tensors |

Layers reuse one another's memory (`host/src/machine/memory.h`): for "packed", "masks", "waiting sums", "state
gradient", "sorting" and "shares" the layer with the most counts, and the items add up, although not all are in use at
once. A dry run measures the memory of a rank on this machine (`sparsesnn train --comm dry-run:R`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from sparsesnn.layers import Input, Neuron, fires, is_readout
from sparsesnn.layers.declaration import n_learnt
from sparsesnn.partition.lengths import Lengths, expected_lengths
from sparsesnn.partition.pieces import ConnectionPlan, Shard
from sparsesnn.partition.plan import Plan
from sparsesnn.placement import tile_width

#: samples of a group, and groups that are added one after the other: `group_samples` of host/src/cpu/layer.h, `leaf_groups` of
#: host/src/training/group_tree.h
GROUP_SAMPLES, LEAF_GROUPS = 8, 8
ITEMS = (
    "weights",
    "gradient",
    "optimizer",
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
#: bytes of the objects of a layer: measured over 400 nearly empty layers
OBJECT_BYTES = 30_000
#: of a sparse synapse: sender, receiver, place, and how sums over receivers continue
SYNAPSE_BYTES = 13
#: rows (t, b) that several groups of samples share in the backward pass; the number of cores above which there are fewer
CHUNK_ROWS, FEW_CORES = 2048, 4


def rank_bytes(plan: Plan) -> list[dict[str, int]]:
    """item → bytes, for every rank."""
    lengths = expected_lengths(plan)
    shards = {name: plan.shards_of_ranks(name) for name in plan.populations}
    return [
        _rank(plan, lengths, {name: of_ranks[rank] for name, of_ranks in shards.items()})
        for rank in range(plan.target.devices)
    ]


def _rank(plan: Plan, lengths: Mapping[str, Lengths], shards: Mapping[str, list[Shard]]) -> dict[str, int]:
    rows, train = plan.n_steps * plan.n_samples, int(plan.trains)
    own = {k: sum(s.n for s in mine) for k, mine in shards.items()}
    out = dict.fromkeys(ITEMS, 0)
    out["objects"] = OBJECT_BYTES * (len(own) - len(plan.network.inputs))
    seen: set[str] = set()
    kept = 0
    for name, n in own.items():
        if not n:
            continue
        population, incoming = plan.network.populations[name], plan.incoming(name)
        begin = shards[name][0].first
        n_weights = {c: plan.n_weights(c, begin, begin + n) for c in incoming}
        weights = 4 * sum(n_weights.values())
        out["weights"] += weights
        out["gradient"] += weights * train
        out["optimizer"] += weights * {"adam": 2, "sgd": 0, "none": 0}[plan.optimizer]
        n_read = {c: w if _as_they_are(plan, c) else plan.in_lists(c).n_pre * n for c, w in n_weights.items()}
        out["synapses"] += sum(
            SYNAPSE_BYTES * w if plan.is_compressed(c) else 8 * w + 4 * n_read[c]
            for c, w in n_weights.items()
            if plan.is_compressed(c) or n_read[c] > w
        )
        seen |= {name, *(c.pre for c in incoming)}
        for item, size in _working(plan, name, n, len(shards[name]), n_read, lengths).items():
            out[item] = max(out[item], size)
        kept += 4 * plan.n_samples * n * _states(population)
        if not fires(population):
            out["readout"] += 4 * rows * n * (1 + 2 * train)
        else:
            share = n / plan.populations[name].n
            out["records"] += math.ceil(4 * _fields(population) * rows * lengths[name].listed * share) * train
        out["moved lists"] += sum(_moved(plan, c, lengths[c.pre]) for c in incoming if not c.recurrent)
    several = plan.target.devices > 1
    out["state"] += 0 if several else kept  # models over ranks return no state
    for name in plan.populations if several else seen:
        if is_readout(plan.network.populations[name]):
            continue
        wide = 4 if plan.populations[name].n > 65536 else 2
        ids = math.ceil(rows * lengths[name].listed)
        if several:
            mine = math.ceil(ids * own[name] / plan.populations[name].n)
            out["lists"] += ids * wide + 4 * mine * train + 12 * rows
            readers = [c for c in plan.outgoing(name) if not c.recurrent]
            if plan.n_owners[name] > 1 and any(plan.synapses(c).is_matrix for c in readers):
                out["sorting"] += 4 * (ids + 2 * mine) * train
            for c in readers:
                sums = 4 * (2 * ids * (own[c.post] > 0) + plan.n_owners[c.post] * mine) * train
                out["list gradients"] = max(out["list gradients"], sums)
            continue
        out["lists"] += ids * (wide + 4 * train) + 12 * rows
        out["list gradients"] += 4 * ids * train * (not isinstance(plan.network.populations[name], Input))
    return out


def _working(
    plan: Plan,
    name: str,
    n: int,
    n_tiles: int,
    n_read: Mapping[ConnectionPlan, int],
    lengths: Mapping[str, Lengths],
) -> dict[str, int]:
    """Memory of a layer of `n` neurons while it runs, which the next layer reuses; `n_read`: weights as the engine reads them."""
    population, incoming = plan.network.populations[name], plan.incoming(name)
    rows, train, width = plan.n_steps * plan.n_samples, int(plan.trains), tile_width(plan.network, name)
    of_maps = plan.runs_by_row(name)
    loops = [c for c in incoming if c.recurrent]
    padded, chunk = n_tiles * width, min(rows, chunk_rows(plan))
    back = min(plan.n_steps, max((plan.reach(c) for c in loops), default=0)) * train
    by_core = fires(population) and not any(map(plan.is_compressed, incoming)) and not loops
    columns = width * min(n_tiles, plan.target.tiles) if by_core else padded
    masks = lengths[name].listed * rows * 4 * (2 + _fields(population) * train) if of_maps else 16 * n_tiles * rows
    packed = [w for c, w in n_read.items() if c.recurrent or not train or _as_they_are(plan, c)]
    sums = waiting_sums(plan)
    per_weight = {c: min(plan.n_samples, 64) if plan.is_windows(c) else sums for c in incoming}
    return {
        "packed": (2 if plan.weight_dtype == "half" else 4) * sum(packed),
        "state": 4 * plan.n_samples * padded * (_states(population) + back),
        "masks": 0 if is_readout(population) else math.ceil(masks),
        "state gradient": 4 * chunk * columns * train * (not of_maps),
        "waiting sums": 4 * sum(per_weight[c] * w for c, w in n_read.items()) * train,
        "shares": sum(_shares(plan, c, chunk, n_tiles, lengths[c.pre]) for c in incoming) * train,
        "sorting": sum(_sorted(plan, c, lengths[c.pre]) for c in incoming if not plan.is_windows(c)) * train,
    }


def chunk_rows(plan: Plan) -> int:
    """Rows (t, b) in a chunk of the backward pass, at most: groups of samples stay whole up to twice that."""
    most = CHUNK_ROWS * FEW_CORES // max(FEW_CORES, plan.target.tiles)
    return max(most, min(2 * most, GROUP_SAMPLES * plan.n_steps))


def _as_they_are(plan: Plan, c: ConnectionPlan) -> bool:
    """Whether the engine reads the weights of a connection in place, not in tiles."""
    return plan.is_windows(c) or plan.is_compressed(c)


def _states(population: Input | Neuron) -> int:
    """The number of states per neuron."""
    return 0 if isinstance(population, Input) else len(population.states)


def _fields(population: Input | Neuron) -> int:
    """The number of values kept for the backward pass, per listed neuron."""
    if not fires(population):
        return 0
    recorded = population.activity == "fixed" or not population.detach_reset
    resets_by_state = any(name[0] == "R" for name in population.structure.entries)
    return 1 + (recorded and resets_by_state) + n_learnt(population)


def _moved(plan: Plan, c: ConnectionPlan, lengths: Lengths) -> int:
    """Lists of a connection with axonal delays as they arrive, host/src/transforms/delay.cpp."""
    delays = plan.axonal(c)
    if delays is None:
        return 0
    n, rows = plan.populations[c.pre].n, plan.n_steps * plan.n_samples
    steps, ids = np.floor(delays.first(n)), rows * lengths.listed

    def arrives(later: int) -> float:
        """The share of entries that arrive before the end."""
        return float(np.maximum(0, plan.n_steps - steps - later).mean()) / plan.n_steps

    # the later part of an entry merges with the earlier part of the neuron's next entry, if it has one
    moved = ids * (arrives(0) + delays.learn * arrives(1) * (1 - lengths.listed / n))
    gives = plan.trains and (delays.learn or c.pre not in plan.network.inputs)  # a gradient
    each = (4 if n > 65536 else 2) + 4 * (gives or delays.learn) + 4 * gives
    return math.ceil(moved * each + 4 * ids * (1 + delays.learn) * gives + 12 * rows)


def waiting_sums(plan: Plan) -> int:
    """The number of buffers of a weight gradient's size, in addition to it, for its sum over groups of samples."""

    def waiting(n_groups: int) -> int:
        if n_groups <= LEAF_GROUPS:
            return 0
        first = (n_groups + 1) // 2
        return max(waiting(first), 1 + waiting(n_groups - first))  # the first half waits while the second is added up

    return waiting(-(-plan.n_samples // GROUP_SAMPLES)) + (GROUP_SAMPLES * plan.n_steps > chunk_rows(plan))


def _shares(plan: Plan, c: ConnectionPlan, n_rows: int, n_tiles: int, lengths: Lengths) -> int:
    """The tiles' shares of the gradients of a connection's lists. None if most senders are listed (one product gives the
    gradients) or in a loop (added up sample by sample); sparse synapses add up over all tiles."""
    if (
        c.recurrent
        or c.pre in plan.network.inputs
        or plan.is_windows(c)
        or 2 * lengths.listed > plan.populations[c.pre].n
    ):
        return 0
    return math.ceil(n_rows * lengths.listed * 4.5 * (1 if plan.is_compressed(c) else n_tiles))


def _sorted(plan: Plan, c: ConnectionPlan, lengths: Lengths) -> int:
    """Own lists of a recurrent layer and the input's are sorted for the weight gradient only: spikes."""
    each = 4 * lengths.spikes if c.recurrent or c.pre in plan.network.inputs else 8 * lengths.listed
    return math.ceil(plan.n_steps * plan.n_samples * each)
