"""Bytes per tile, item by item: what a plan puts into the private memory of each IPU tile.

Shapes: T steps, B samples, M presynaptic neurons of a connection, n neurons of the shard, K capacity. Rows of weights
hold the n columns of the shard, padded to the 8 bytes that a tile loads at once.

| item | bytes | whose |
|---|---|---|
| weights | Σ M·n·w, w = 4, or 2 in half precision | shard |
| masters | Σ M·n·4 where weights are half and train | shard |
| gradient | Σ M·n·4 | shard |
| optimiser | Adam 2·Σ M·n·4; SGD 0 | shard |
| parameters | α, β, θ, θ_grad, bias as they apply: n·4; four times that for those that learn | shard |
| state | v, i_syn and their gradients, derivative traces of learnt parameters: B·n·4 each | shard |
| history | v of all steps, T·B·n·4, and as much per learnt parameter: the backward pass reads σ'(v - θ) there | shard |
| lists | incoming lists of one step, Σ B·(2K + 4); the own list with its gradient, B·(6K + 4) | shard |
| shares | the shard's share of the gradient of incoming lists, Σ B·K·4 | shard |
| masks | fired and listed bits, 8 B per 32 neurons and sample | shard |
| collector | lists of all steps T·(2K + 4), masks in, sums of groups in, per sample | collector |
| reducer | shares in and their sum out | reducer |
| code, reserved | estimates, see `MemoryAssumptions` | every tile in use |

A list is K ids of 2 bytes and two counts of 2 bytes (`n_spikes`, `n_listed`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sparsesnn.layers import LI, CubaLIF, Input
from sparsesnn.partition.plan import Plan

ITEMS = (
    "weights",
    "masters",
    "gradient",
    "optimiser",
    "parameters",
    "state",
    "history",
    "lists",
    "shares",
    "masks",
    "collector",
    "reducer",
    "code",
    "reserved",
)


@dataclass(frozen=True)
class MemoryAssumptions:
    """What cannot be derived from the network; none of it is measured on an IPU.

    Args:
        code_bytes: codelets, their library calls and stacks of six workers, on each tile in use.
        exchange_code_bytes: instructions of one exchange, per superstep of the program: Poplar unrolls them.
        reserved_bytes: Poplar's own constants, counters and copies that it keeps alive.
        vertex_bytes: state of one vertex: pointers, lengths, scalars.
        vertices_per_shard: vertices that a shard needs, one a phase, forward and backward.
    """

    code_bytes: int = 24 * 1024
    exchange_code_bytes: int = 512
    reserved_bytes: int = 16 * 1024
    vertex_bytes: int = 96
    vertices_per_shard: int = 10


ASSUMPTIONS = MemoryAssumptions()
#: programs of one time step that move data, forward and backward: lists, masks; lists and gradients, shares, groups
EXCHANGES_PER_STEP = 6


def padded(n: int, weight_dtype: str) -> int:
    """Columns of a row of weights: n, up to a multiple of 8 bytes."""
    width = 2 if weight_dtype == "float32" else 4
    return -(-n // width) * width


def mask_words(n: int) -> int:
    """32-bit words of both masks of n neurons and one sample."""
    return 2 * (-(-n // 32))


def list_bytes(capacity: int) -> int:
    """One list: K ids of 2 bytes, padded to whole words, and two counts of 2 bytes."""
    return 4 * (-(-capacity // 2)) + 4


def shard_items(plan: Plan, name: str, n: int, a: MemoryAssumptions = ASSUMPTIONS) -> dict[str, int]:
    """Bytes of a shard of `n` neurons of population `name`; `plan` needs no shards yet."""
    population = plan.network.populations[name]
    assert not isinstance(population, Input), "the host owns the input's neurons"
    b, t, trains = plan.n_samples, plan.n_steps, plan.trains
    half = plan.weight_dtype == "half"
    incoming = plan.incoming(name)
    n_weights = sum(plan.populations[c.pre].n for c in incoming) * padded(n, plan.weight_dtype)
    spiking = not isinstance(population, LI)
    cuba = isinstance(population, CubaLIF)
    learnt = sum(bool(getattr(population, f"learn_{x}", False)) for x in ("alpha", "beta", "threshold"))
    n_parameters = 1 + cuba + 2 * spiking
    n_trained = population.bias + learnt
    capacity = plan.populations[name].capacity
    lists = sum(b * list_bytes(plan.populations[c.pre].capacity) for c in incoming)
    shares = sum(b * plan.populations[c.pre].capacity * 4 for c in incoming if _is_fed_back(plan, c.pre))
    state = (1 + cuba) * (2 if trains else 1) + (2 * learnt if trains else 0)
    per_step = b * n * 4
    optimiser = {"adam": 2, "sgd": 0, "none": 0}[plan.optimizer]
    return {
        "weights": n_weights * (2 if half else 4),
        "masters": n_weights * 4 if half and trains else 0,
        "gradient": n_weights * 4 if trains else 0,
        "optimiser": n_weights * 4 * optimiser,
        "parameters": 4 * n * (n_parameters + n_trained * (2 + optimiser if trains else 1)),
        "state": state * per_step,
        "history": t * per_step * (1 + learnt) if trains else 0,
        "lists": lists + (b * (list_bytes(capacity) + 4 * capacity) if spiking and trains else 0),
        "shares": shares if trains else 0,
        "masks": 4 * b * mask_words(n) if spiking else 0,
        "code": a.vertices_per_shard * a.vertex_bytes,
    }


def shard_bytes(plan: Plan, name: str, n: int, a: MemoryAssumptions = ASSUMPTIONS) -> int:
    """Sum of `shard_items`, with what a tile in use needs whatever lives on it."""
    return sum(shard_items(plan, name, n, a).values()) + tile_overhead(a)


def tile_overhead(a: MemoryAssumptions = ASSUMPTIONS) -> int:
    return a.code_bytes + EXCHANGES_PER_STEP * a.exchange_code_bytes + a.reserved_bytes


def collector_bytes(plan: Plan, name: str, n_samples: int) -> int:
    """Bytes of a collector of `n_samples` samples of population `name`."""
    p = plan.populations[name]
    population = plan.network.populations[name]
    if isinstance(population, LI):  # potentials of one sample, and their gradient
        return n_samples * p.n * 4 * 2
    kept = plan.n_steps if plan.trains or isinstance(population, Input) else 1 + plan.network.history(name)
    total = kept * list_bytes(p.capacity)
    total += 4 * sum(mask_words(s.n) for s in p.shards)
    if plan.trains and not isinstance(population, Input):
        groups = sum(n_groups(plan, c.pre, c.post) for c in plan.outgoing(name))
        total += 4 * p.capacity * (groups + 1)
    return n_samples * total


def n_groups(plan: Plan, pre: str, post: str) -> int:
    """Sums that reach a collector of `pre` from `post`: groups of its shards, or the shards themselves."""
    c = next(c for c in plan.connections if (c.pre, c.post) == (pre, post))
    if c.reducers:
        return len({r.first_shard for r in c.reducers})
    return len(plan.populations[post].shards)


def _is_fed_back(plan: Plan, name: str) -> bool:
    """Whether anybody needs the gradient of a population's lists: the input's nobody."""
    return not isinstance(plan.network.populations[name], Input)


def tile_bytes(plan: Plan, a: MemoryAssumptions = ASSUMPTIONS) -> dict[str, np.ndarray]:
    """item → int64[n_tiles]: bytes on every tile of every device. Tiles that hold nothing count 0."""
    out = {item: np.zeros(plan.target.n_tiles, np.int64) for item in ITEMS}
    used = np.zeros(plan.target.n_tiles, bool)
    for name, p in plan.populations.items():
        items: dict[int, Mapping[str, int]] = {n: shard_items(plan, name, n, a) for n in {s.n for s in p.shards}}
        for n, by_item in items.items():
            tiles = np.array([s.tile for s in p.shards if s.n == n])
            used[tiles] = True
            for item, size in by_item.items():
                np.add.at(out[item], tiles, size)
        sizes = {n: collector_bytes(plan, name, n) for n in {c.n for c in p.collectors}}
        for c in p.collectors:
            out["collector"][c.tile] += sizes[c.n]
            used[c.tile] = True
    for connection in plan.connections:
        capacity = plan.populations[connection.pre].capacity
        for r in connection.reducers:
            out["reducer"][r.tile] += 4 * capacity * r.n_samples * (r.n_shards + 1)
            used[r.tile] = True
    out["code"][used] += a.code_bytes + EXCHANGES_PER_STEP * a.exchange_code_bytes
    out["reserved"][used] = a.reserved_bytes
    return out


def tile_totals(plan: Plan, a: MemoryAssumptions = ASSUMPTIONS) -> np.ndarray:
    """int64[n_tiles]: bytes on every tile, all items together."""
    total = np.zeros(plan.target.n_tiles, np.int64)
    for size in tile_bytes(plan, a).values():
        total += size
    return total
