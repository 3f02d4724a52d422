"""Bytes per tile, item by item: a plan's use of the private memory of each IPU tile.

Shapes: T steps, B samples, M presynaptic neurons of a connection, n neurons of the shard, K capacity.

| item | bytes | whose |
|---|---|---|
| weights | Σ M·w·4, or 2 in half precision | shard |
| masters | Σ M·w·4 if weights are half and trained | shard |
| gradient | Σ M·w·4 | shard |
| optimizer | Adam 2·Σ M·w·4; SGD 0 | shard |
| parameters | the entries of the neurons' arrays, θ_grad, bias; six rows of bias gradient; moments of a bias; if parameters are trained: all of them, each trained one itself, its gradient and moments, six rows of gradient of each entry that depends on them | shard |
| state | states besides the first, the gradient of each state, ∂L/∂i of the last steps (longest delay + 1): B·w·4 each; a readout's values; a regularizer's terms: (w + 2)·4 | shard |
| history | the first state of all steps, T·B·w·4, of two steps without training, of k + (T - 1) // k if potentials are kept every k steps (`keep_every`); likewise other values read by gradients of trained parameters (`reads` of the model) | shard |
| shares | the shard's share of the gradient of incoming lists, Σ B·K·4 | shard |
| masks | fired and near-spike bits, 8 B per 32 neurons and sample, 4 B for up to 16 neurons | shard |
| collector | lists of all steps, the one sent, buckets, ∂L/∂s; data of the loss; counts of a regularizer: (N + 1)·4 | collector |
| reducer | sum of shares | reducer |
| buffers | the data received in one superstep, the largest: lists; lists and buckets; the own list with its gradient; masks; shares; sums | all |
| code, reserved | estimates, see `MemoryAssumptions` | every tile in use |

w is n, up to a pair. A list is K ids of 2 bytes, K even, and two counts of 2 bytes
(`n_spikes`, `n_listed`). The variables are those of the graph builder (host/src/ipu/variables.cpp).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsesnn.layers import Input
from sparsesnn.layers.declaration import fires, kept_states, n_learnt, trained_entries
from sparsesnn.layers.shapes import shape_of
from sparsesnn.partition.plan import Plan

ITEMS = (
    "weights",
    "masters",
    "gradient",
    "optimizer",
    "parameters",
    "state",
    "history",
    "shares",
    "masks",
    "collector",
    "reducer",
    "buffers",
    "code",
    "reserved",
)


@dataclass(frozen=True)
class MemoryAssumptions:
    """Numbers that cannot be derived from the network; none is measured on an IPU.

    Args:
        code_bytes: codelets, their library calls and stacks of six workers, on each tile in use.
        exchange_code_bytes: instructions of one exchange in which the tile takes part, independent of the number of senders;
            see "Blind spots" in docs/ipu.md.
        reserved_bytes: Poplar's own constants, counters and live copies.
        vertex_bytes: state of one vertex: pointers, lengths, scalars.
        vertices_per_shard: vertices of a shard, one a phase, forward and backward.
    """

    code_bytes: int = 24 * 1024
    exchange_code_bytes: int = 512
    reserved_bytes: int = 16 * 1024
    vertex_bytes: int = 96
    vertices_per_shard: int = 10


ASSUMPTIONS = MemoryAssumptions()
#: share of a tile's memory above which a plan may not fit on a device, because code and exchanges are estimated
MOST_OF_A_TILE = 0.92
#: exchanges of every training program: fetch, loss, norm, update, streams; and those of each round
#: (lists, masks; lists and buckets, shares, sums, gradients); streams of a connection's arrays, and of a population's
EXCHANGES, EXCHANGES_PER_ROUND, EXCHANGES_PER_CONNECTION, EXCHANGES_PER_POPULATION = 24, 6, 7, 5


#: a shard of at most this many neurons has both of its masks in one word
PACKED_NEURONS = 16


def padded(n: int, weight_dtype: str) -> int:
    """Columns of a row of weights: n, up to a pair, whether of floats or of halves."""
    return n + n % 2


def mask_words(n: int) -> int:
    """32-bit words of both masks of n neurons and one sample; up to 16 neurons have both in one."""
    return 1 if n <= PACKED_NEURONS else 2 * (-(-n // 32))


def list_bytes(capacity: int) -> int:
    """One list: K ids of 2 bytes, padded to whole words, and two counts of 2 bytes."""
    return 4 * (-(-capacity // 2)) + 4


def bucket_bytes(capacity: int) -> int:
    """Spikes of one list by id modulo 6: begin and size of each bucket, then ids; buckets begin at even places."""
    return 2 * (12 + 2 * (-(-(capacity + 6) // 2)))


def slots_bytes(capacity: int) -> int:
    """One float per slot of a list."""
    return 8 * (-(-capacity // 2))


def shard_items(plan: Plan, name: str, n: int, a: MemoryAssumptions = ASSUMPTIONS) -> dict[str, int]:
    """Bytes of a shard of `n` neurons of population `name`; `plan` may lack shards."""
    population = plan.network.populations[name]
    assert not isinstance(population, Input), "the host owns the input's neurons"
    b, t, trains = plan.n_samples, plan.n_steps, plan.trains
    half = plan.weight_dtype == "half"
    incoming = plan.incoming(name)
    width = padded(n, plan.weight_dtype)
    n_weights = sum(plan.populations[c.pre].n for c in incoming) * width
    spiking = fires(population)
    more_states, kept = population.states[1:], kept_states(population) if trains else ()
    learnt = n_learnt(population)
    moments = {"adam": 2, "sgd": 0, "none": 0}[plan.optimizer]
    row = 4 * padded(n, "float32")  # one float a neuron
    rows_of_state = len(more_states) + (0 if spiking else 2)
    if trains:
        ring = 1 + max(c.delay for c in incoming)
        rows_of_state += 1 + len(more_states) + ring + (not spiking)
    rows_of_parameters = n_entries(population) + spiking + 1
    if trains:
        rows_of_parameters += 6 + moments * population.bias
    if trains and learnt:
        rows_of_parameters += len(population.parameters) + (2 + moments) * learnt + 6 * len(trained_entries(population))
    steps = 2 if not trains else plan.n_kept if spiking else t
    if trains:  # states that are kept at the ends of segments only
        rows_of_state += sum(x not in kept for x in more_states) * (plan.n_again // plan.keep_every)
    fed_back = [c.pre for c in incoming if c.pre not in plan.inputs]
    shares = sum(b * slots_bytes(plan.populations[pre].capacity) for pre in fed_back)
    streams = EXCHANGES_PER_CONNECTION * len(incoming) + EXCHANGES_PER_POPULATION
    return {
        "weights": n_weights * (2 if half else 4),
        "masters": n_weights * 4 if half and trains else 0,
        "gradient": n_weights * 4 if trains else 0,
        "optimizer": n_weights * 4 * moments,
        "parameters": row * rows_of_parameters,
        "state": row * b * rows_of_state + (row + 8 if plan.regularizes and spiking and trains else 0),
        "history": row * b * steps * (1 + len(kept)),
        "shares": shares if trains else 0,
        "masks": 4 * b * mask_words(n) if spiking else 0,
        "buffers": max(shard_receives(plan, name).values()),
        "code": a.vertices_per_shard * a.vertex_bytes + a.exchange_code_bytes * streams,
    }


def n_entries(population: Any) -> int:
    """Numbers of a neuron's arrays on a tile: the entries of the smallest compiled shape that has all of the model's."""
    return len(shape_of(population).entries)


def shard_receives(plan: Plan, name: str) -> dict[str, int]:
    """Superstep → bytes that a shard of population `name` receives, whatever its size."""
    b, capacity = plan.n_samples, plan.populations[name].capacity
    senders = [(plan.populations[c.pre].capacity, c.pre in plan.inputs) for c in plan.incoming(name)]
    sizes = {"lists": b * sum(list_bytes(k) for k, _ in senders)}
    if plan.trains:
        for what, chosen in (
            ("gradients", [k for k, is_input in senders if not is_input]),
            ("input gradients", [k for k, is_input in senders if is_input]),
        ):
            sizes[what] = b * sum(list_bytes(k) + bucket_bytes(k) for k in chosen)
        spiking = fires(plan.network.populations[name])
        sizes["states"] = b * (list_bytes(capacity) + slots_bytes(capacity)) if spiking else 0
    return sizes


def shard_bytes(plan: Plan, name: str, n: int, a: MemoryAssumptions = ASSUMPTIONS) -> int:
    """Sum of `shard_items` and the fixed bytes of a tile in use."""
    return sum(shard_items(plan, name, n, a).values()) + code_bytes(plan, a) + a.reserved_bytes


def code_bytes(plan: Plan, a: MemoryAssumptions = ASSUMPTIONS) -> int:
    """Code of a tile in use, independent of its items."""
    rounds = 1 + max(plan.stages.values())
    return a.code_bytes + a.exchange_code_bytes * (EXCHANGES + EXCHANGES_PER_ROUND * rounds)


def collector_bytes(plan: Plan, name: str, n_samples: int) -> int:
    """Bytes of a collector of `n_samples` samples of population `name`; for the output including the data of the loss."""
    p = plan.populations[name]
    population = plan.network.populations[name]
    loss = 4 * (2 + 3 * p.n) if name == plan.network.output else 0
    if not (isinstance(population, Input) or fires(population)):
        return n_samples * loss
    one = list_bytes(p.capacity)
    total = loss + plan.n_steps * one + one * len({c.delay for c in plan.outgoing(name)} or {0})
    connected = 8 * len(p.shards)  # a pointer to each shard's masks, and its first neuron
    if plan.trains:
        total += bucket_bytes(p.capacity) + (0 if isinstance(population, Input) else slots_bytes(p.capacity))
    dropped = 0 if isinstance(population, Input) else 4 * plan.n_steps + 8  # for each step; totals with the spikes
    counts = 8 * (-(-(p.n + 1) // 2)) if plan.regularizes and plan.trains and name not in plan.inputs else 0
    return n_samples * total + dropped + connected + counts


def collector_receives(plan: Plan, name: str, n_samples: int) -> dict[str, int]:
    """Superstep → bytes that a collector receives: masks of all shards, sums of all groups, values of a readout."""
    p = plan.populations[name]
    if isinstance(plan.network.populations[name], Input):
        return {}
    if not fires(plan.network.populations[name]):
        return {"values": 4 * n_samples * p.n}
    sizes = {"masks": 4 * n_samples * sum(mask_words(s.n) for s in p.shards)}
    if plan.trains:
        groups = sum(n_groups(plan, c.pre, c.post) for c in plan.outgoing(name))
        sizes["sums"] = n_samples * groups * slots_bytes(p.capacity)
    return sizes


def n_groups(plan: Plan, pre: str, post: str) -> int:
    """Sums that reach a collector of `pre` from `post`: groups of its shards, or the shards themselves."""
    c = next(c for c in plan.connections if (c.pre, c.post) == (pre, post))
    if c.reducers:
        return len({r.first_shard for r in c.reducers})
    return len(plan.populations[post].shards)


def tile_bytes(plan: Plan, a: MemoryAssumptions = ASSUMPTIONS) -> dict[str, np.ndarray]:
    """item → int64[all_tiles]: bytes on every tile of every device. Empty tiles count 0."""
    out = {item: np.zeros(plan.target.all_tiles, np.int64) for item in ITEMS}
    received: dict[str, np.ndarray] = {}
    used = np.zeros(plan.target.all_tiles, bool)

    def receive(tiles: np.ndarray, sizes: Mapping[str, int]) -> None:
        for superstep, size in sizes.items():
            np.add.at(received.setdefault(superstep, np.zeros(plan.target.all_tiles, np.int64)), tiles, size)

    for name, p in plan.populations.items():
        for n in {s.n for s in p.shards}:
            tiles = np.array([s.tile for s in p.shards if s.n == n])
            used[tiles] = True
            for item, size in shard_items(plan, name, n, a).items():
                if item != "buffers":
                    np.add.at(out[item], tiles, size)
            receive(tiles, shard_receives(plan, name))
        for n in {c.n for c in p.collectors}:
            tiles = np.array([c.tile for c in p.collectors if c.n == n])
            used[tiles] = True
            np.add.at(out["collector"], tiles, collector_bytes(plan, name, n))
            receive(tiles, collector_receives(plan, name, n))
    shares = np.zeros(plan.target.all_tiles, np.int64)
    for connection in plan.connections:
        slots = slots_bytes(plan.populations[connection.pre].capacity)
        for r in connection.reducers:
            out["reducer"][r.tile] += slots * r.n_samples + 4 * r.n_shards + a.vertex_bytes
            shares[r.tile] += (slots * r.n_shards + 4) * r.n_samples
            used[r.tile] = True
    out["buffers"] = np.max([shares, *received.values()], axis=0)
    out["code"][used] += code_bytes(plan, a)
    out["reserved"][used] = a.reserved_bytes
    return out


def tile_totals(plan: Plan, a: MemoryAssumptions = ASSUMPTIONS) -> np.ndarray:
    """int64[all_tiles]: bytes on every tile, all items together."""
    total = np.zeros(plan.target.all_tiles, np.int64)
    for size in tile_bytes(plan, a).values():
        total += size
    return total
