"""Predicted cost of a plan on the CPU engine: one process, or R ranks that exchange spike lists over MPI.

Work is counted in additions of a spike to a neuron ("synaptic events"), neurons updated and ids listed; the rates were
fitted to one measurement. A layer runs over the whole sequence before the next one starts. Its cores share tiles and blocks of
samples forward, tiles backward, or parts of tiles where these are few; a recurrent layer's share samples. A layer takes as
long as the core with the most of them.

Between ranks, for a population with S listed ids a step over the batch of B, of N neurons, which O of R ranks own
(`sparsesnn/engines/ranks/layer.py`); w bytes hold a count of up to N/O neurons, 1, 2 or 4:

    lists      every owner sends its part to all others, ids of 2 bytes and two counts a list; the first one, with a
               capacity, what was dropped; a rank receives                         2·S·(R-1)/R + 2·w·B·(R-1) + 4·B
    events     the same, sorted for the layer that hears them first: a row an id, and two counts a neuron and
               chunk of a batch (C of them, host/src/cpu/chunks.h)                     2·S·(R-1)/R + 4·N·C·(R-1)/R a batch
    capacity   a total and a prefix of the counts of candidates, in log2(O) messages                8·B·log2(O)
    potentials of a readout, to all                                                      4·N·B·(R-1)/R
    gradients  of lists, summed over K blocks of the tiles that a rank of the layer that reads owns, K = 1 where these
               are a power of two, go to the owners of the ids; a rank receives     4·S·K·(R-1)/R
    norm       of the gradients: a square for each neuron and parameter of it, to all    8·N·(R-1)/R a batch

and of a recurrent one also once in as many steps as its shortest delay, in two halves of the samples:

    forward    the ids that fired, and a count a list (two with a capacity)         2·(O-1)/O a spike + w·B·(O-1)
    backward   the same sums as above                                               4·K·(O-1)/O a listed id

The engine itself exchanges counts and what loops need, in the time that the links take. Every other exchange and message is also
work for Python, on top of that.

Replicas of a grid (data parallel) are copies of the plan, each with a part of the batch, and one sum of gradients.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from sparsesnn.layers import LI
from sparsesnn.layers.declaration import n_learnt
from sparsesnn.partition.cpu.sorting import chunk_of, n_chunks, sorts_for_all
from sparsesnn.partition.cpu.tiles import n_blocks, tile_width
from sparsesnn.partition.lengths import NEAR_PER_SPIKE, Lengths, expected_lengths
from sparsesnn.partition.plan import ConnectionPlan, Plan
from sparsesnn.partition.prediction import Prediction, Superstep


@dataclass(frozen=True)
class CpuAssumptions:
    """Rates of one core, fitted to `sparsesnn bench step` of 700-1024-1024-20, T=100, batch 48 at commit fab4f01: 23.5 ms
    on two cores of an AMD EPYC (AVX-512), split as its phase timers split it.

    Args:
        deliver_per_cycle: synaptic events, forward.
        gradient_per_cycle: synaptic events, for the weight gradient and for the shares of list gradients.
        step_cycles, state_cycles: a neuron and step, forward and backward.
        list_cycles: an id listed, where its neuron lives: from masks and records to the list.
        sort_cycles: an id that a rank sorts by sender, for its own backward pass or for that of all ranks; with the sum of shares.
        adam_cycles, sgd_cycles: a weight; norm_cycles: a weight, whose gradient is squared and summed.
        framework_s: PyTorch around the engine, a batch and layer, on one core.
        merge_cycles: an id of a population that several ranks own, on each of them: lists joined, gradients cut for their owners.
        shared_s: of such a population, what Python and mpi4py do more a batch. It and merge_cycles are fitted to processor time
            of 1024-1024-1024-1024-1024-20 on two ranks at commit 25893ac.
        exchange_s, message_s: what Python and the bindings do for an exchange between ranks, and for each message that a rank sends
            in it, without MPI itself. One over a communicator that sends nothing took 9, 22, 46 and 92 µs with 1, 3, 7 and 15 messages,
            on a core that was 1.5 times as slow as this model's; since then a message takes 2.5 µs less (a faster stopwatch around
            MPI). There norm_cycles was timed too, with 2 and 4 million weights.
    """

    deliver_per_cycle: float = 8.0
    gradient_per_cycle: float = 8.0
    step_cycles: float = 1.3
    state_cycles: float = 1.2
    list_cycles: float = 36.0
    sort_cycles: float = 21.0
    adam_cycles: float = 3.1
    sgd_cycles: float = 1.3
    norm_cycles: float = 1.5
    framework_s: float = 3.2e-3 / 3
    merge_cycles: float = 14.0
    shared_s: float = 0.3e-3
    exchange_s: float = 2e-6
    message_s: float = 2.3e-6


ASSUMPTIONS = CpuAssumptions()


def predict_cpu(plan: Plan, a: CpuAssumptions = ASSUMPTIONS, *, near_per_spike: float = NEAR_PER_SPIKE) -> Prediction:
    """Cost of a plan for `cpu` or `mpi`; near_per_spike: near-spikes listed per spike."""
    target = plan.target
    lengths = expected_lengths(plan, near_per_spike)
    rows = plan.n_steps * plan.n_samples
    per_batch = []
    for name, p in plan.populations.items():
        if name in plan.network.inputs:
            continue
        incoming = plan.incoming(name)
        width = tile_width(plan, name)
        work = {c: plan.synapses(c).relative_work(plan.populations[c.pre].n, p.n) for c in incoming}
        ranks = n_tiles(plan, name)
        slowest = max(range(target.devices), key=ranks.__getitem__)
        samples = math.ceil(plan.n_samples / target.tiles) / plan.n_samples  # of the core with the most samples
        forward, backward = (width * n for n in _tiles_of_core(ranks[slowest], plan.n_samples, target.tiles))
        if any(c.recurrent for c in incoming):
            forward = samples * width * ranks[slowest]
        spikes = sum(lengths[c.pre].spikes * work[c] for c in incoming)
        sent = [c for c in incoming if c.pre not in plan.network.inputs]
        products = sum(lengths[c.pre].listed * work[c] for c in sent)
        own = 0.0 if isinstance(plan.network.populations[name], LI) else lengths[name].listed
        compute = {
            "deliver": rows * spikes * forward / a.deliver_per_cycle,
            "step": rows * forward * a.step_cycles,
            "compact": rows * own * ranks[slowest] / sum(ranks) / target.tiles * a.list_cycles,
        }
        if plan.trains:
            pair = {"adam": a.adam_cycles, "sgd": a.sgd_cycles}[plan.optimizer]
            compute["state gradient"] = rows * samples * width * ranks[slowest] * a.state_cycles
            sorted_here = sum(lengths[c.pre].listed * _sorted_share(plan, c) for c in sent)
            compute["sort"] = rows * sorted_here * a.sort_cycles / target.tiles
            compute["list gradient"] = rows * products * backward / a.gradient_per_cycle
            compute["weight gradient"] = rows * spikes * backward / a.gradient_per_cycle
            compute["optimiser"] = sum(plan.n_weights(c) for c in incoming) / p.n * backward * (pair + a.norm_cycles)
        if target.devices > 1:
            compute["merge"] = rows * own * a.merge_cycles + a.shared_s * target.clock_hz
        per_batch.append(_superstep(plan, name, compute, slowest=slowest))
    for name in plan.populations:
        for exchange, n in _exchanges(plan, name, lengths):
            cycles = target.clock_hz * (n * a.exchange_s + exchange.messages * a.message_s)
            per_batch.append(replace(exchange, compute={"messages": cycles}) if n else exchange)
    if plan.trains and target.devices > 1:
        per_batch.append(_gather(plan, "gradient norm", _squares_bytes(plan)))
    framework = a.framework_s * (len(plan.populations) - len(plan.network.inputs)) * target.clock_hz
    per_batch.append(_superstep(plan, "framework", {"framework": framework}))
    per_batch += _replicas(plan, per_batch)
    inputs = sum(lengths[k].listed for k in plan.network.inputs)
    return Prediction(
        per_step=(),
        per_batch=tuple(per_batch),
        n_steps=plan.n_steps,
        n_samples=plan.replicas * plan.n_samples,
        clock_hz=target.clock_hz,
        host_s=0.0,  # batches are read by a thread of their own
        host_bytes=math.ceil(plan.replicas * rows * (2 * inputs + 12)),
    )


def _exchanges(plan: Plan, name: str, lengths: Mapping[str, Lengths]) -> list[tuple[Superstep, int]]:
    """What ranks tell one another of a population in a batch, and in how many exchanges by Python; every rank reads its input from
    its own copy of the cache."""
    population, n_ranks = plan.network.populations[name], plan.target.devices
    if name in plan.network.inputs or n_ranks == 1:
        return []
    own = _owned(plan, name)
    owners = [r for r in range(n_ranks) if own[r]]
    rows = plan.n_steps * plan.n_samples
    if isinstance(population, LI):
        return [(_gather(plan, f"{name} potentials", [4.0 * rows * n for n in own]), 1)]
    id_bytes = 4 if sum(own) > 65536 else 2
    spikes, ids = (rows * n / sum(own) for n in (lengths[name].spikes, lengths[name].listed))  # of one neuron
    limited = getattr(population, "capacity", None) is not None
    fixed = getattr(population, "activity", "natural") == "fixed"
    sizes = [n * id_bytes * ids + 2 * count_bytes(n) * rows * (n > 0) for n in own]
    sizes[owners[0]] += 4 * rows * limited
    for c in plan.outgoing(name):
        if plan.trains and sorts_for_all(plan, c):
            n_rows = math.prod(chunk_of(plan))
            arrive = ids * max(0, plan.n_steps - c.delay) / plan.n_steps
            each = (
                2 * count_bytes(n_rows) * n_chunks(plan.n_steps, plan.n_samples, plan.target.tiles)
                + (2 if n_rows <= 65536 else 4) * arrive
            )
            sizes = [size + n * each for size, n in zip(sizes, own, strict=True)]
    found = [(_gather(plan, f"{name} lists", sizes), 1)]
    loops = [c for c in plan.outgoing(name) if c.recurrent]
    n_halves = min(2, plan.n_samples)
    if limited and len(owners) > 1 and (fixed or not loops):
        n_scans = n_halves * plan.n_steps if loops else 1
        found.append((_scan(plan, name, len(owners), 8 * rows, n_scans), 0))
    if plan.trains:
        found += [(_list_gradients(plan, c, own, 4 * ids), 1) for c in plan.outgoing(name) if not c.recurrent]
    if not loops or len(owners) == 1:
        return found
    slab = min(plan.n_steps, *(c.delay for c in loops))
    n_slabs = -(-plan.n_steps // slab)
    late = limited and not fixed
    n_sent = n_slabs if late else n_slabs - 1
    share = min(1.0, n_sent * slab / plan.n_steps)
    sizes = [share * (n * id_bytes * spikes + (1 + late) * count_bytes(n) * rows) for n in own if n]
    others = len(owners) - 1
    found.append((_gather(plan, f"{name} spikes", sizes, n_halves * n_sent * others), 0))
    if plan.trains:
        heard = sum(max(0, plan.n_steps - c.delay) for c in loops) / plan.n_steps
        sums = _list_gradients(plan, loops[0], own, 4 * ids * heard, n_halves * (n_slabs - 1) * others)
        found.append((replace(sums, name=f"{name} sums"), 0))
    return found


def _sorted_share(plan: Plan, c: ConnectionPlan) -> float:
    """Of the ids that a connection brings to a rank, the part that it sorts itself."""
    own = _owned(plan, c.pre)
    return max(own) / sum(own) if sorts_for_all(plan, c) else 1.0


def _gather(plan: Plan, name: str, sizes: Sequence[float], messages: int | None = None) -> Superstep:
    """What each rank has, of these sizes, goes to all the others.

    Args:
        messages: of a rank, one after the other; None: one collective operation, in which the sizes go ahead.
    """
    return _superstep(
        plan,
        name,
        bytes_in=sum(sizes) - min(sizes),
        rounds=2 * math.ceil(math.log2(len(sizes))) if messages is None else messages,
        messages=len(sizes) - 1 if messages is None else messages,
        total=(len(sizes) - 1) * sum(sizes),
    )


def _squares_bytes(plan: Plan) -> list[float]:
    """Of each rank, the squares of gradients that the norm takes (`gradient_norm` of sparsesnn/engines/cpu/engine.py)."""
    sizes = [0.0] * plan.target.devices
    for name in plan.network.receivers():
        population = plan.network.populations[name]
        numbers = len(plan.incoming(name)) + bool(getattr(population, "bias", False)) + n_learnt(population)
        for rank, n in enumerate(_owned(plan, name)):
            sizes[rank] += 8 * numbers * n
    return sizes


def count_bytes(most: int) -> int:
    """Of a number that is at most so large, on its way; `count_bytes` of host/src/ranks/shard_lists.h."""
    return 1 if most < 256 else 2 if most < 65536 else 4


def _owned(plan: Plan, name: str) -> list[int]:
    """Neurons of a population on each rank."""
    return [sum(shard.n for shard in shards) for shards in plan.shards_of_ranks(name)]


def _scan(plan: Plan, name: str, n_ranks: int, n_bytes: float, n_scans: int) -> Superstep:
    """Of numbers of `n_bytes` in all, in `n_scans` parts (`Communicator.scan`)."""
    rounds = n_ranks.bit_length() - 1
    extra = n_ranks - (1 << rounds)
    most = rounds + (extra > 0)
    return _superstep(
        plan,
        f"{name} counts",
        bytes_in=most * n_bytes,
        rounds=n_scans * (most + (extra > 0)),
        messages=n_scans * most,
        total=n_bytes * ((1 << rounds) * rounds + 3 * extra),
    )


def _list_gradients(
    plan: Plan, c: ConnectionPlan, own: Sequence[int], n_bytes: float, n: int | None = None
) -> Superstep:
    """From the ranks that own neurons of post to those that own pre's: a sum for each of their blocks of tiles.

    Args:
        own: neurons of pre on each rank.
        n_bytes: of the sums of one neuron of pre and one block.
        n: messages of a rank; None: one to each owner.
    """
    blocks = tile_blocks(plan, c.post)
    received = [n_bytes * size * (sum(blocks) - of_rank) for size, of_rank in zip(own, blocks, strict=True)]
    n = sum(size > 0 for size in own) - 1 if n is None else n
    rounds = 1 if not c.recurrent else n
    return _superstep(
        plan, f"{c.pre} gradients", bytes_in=max(received), rounds=rounds, messages=n, total=sum(received)
    )


def n_tiles(plan: Plan, name: str) -> list[int]:
    """Tiles of a population on each rank."""
    return [len(shards) for shards in plan.shards_of_ranks(name)]


def _tiles_of_core(n: int, n_samples: int, cores: int) -> tuple[float, float]:
    """Of n tiles, the work of the core with the most, forward (`run_by_tile` of host/src/cpu/forward.cpp) and backward."""
    blocks = -(-n_samples // min(16, -(-n_samples // 6)))
    return -(-n * blocks // cores) / blocks, -(-n // cores) if n >= cores else n / cores


def tile_blocks(plan: Plan, name: str) -> list[int]:
    """Over how many blocks of a population's tiles each rank sums list gradients; see host/src/training/tile_sums.h."""
    tiles = n_tiles(plan, name)
    if max(tiles) == sum(tiles):
        return [min(1, n) for n in tiles]
    bounds = [0, *itertools.accumulate(tiles)]
    return [n_blocks(begin, end) for begin, end in itertools.pairwise(bounds)]


def _superstep(
    plan: Plan,
    name: str,
    compute: Mapping[str, float] = MappingProxyType({}),
    *,
    bytes_in: float = 0.0,
    rounds: float = 0,
    messages: int = 0,
    total: float = 0.0,
    slowest: int = 0,
) -> Superstep:
    """A rank's compute, with a barrier of the thread pool per phase, and what it exchanges.

    Args:
        bytes_in: received by the rank that receives most.
        rounds: of messages that a rank waits for, one after the other.
        messages: that it sends.
        total: bytes that all ranks of a replica receive.
    """
    target = plan.target
    latency = rounds * target.links.latency_s * target.clock_hz
    return Superstep(
        name=name,
        compute=compute,
        exchange=0.0,  # cores of a rank share its memory
        sync=len(compute) * target.exchange.sync_cycles * (target.tiles > 1),
        link=bytes_in / target.links.bytes_per_s * target.clock_hz + latency,
        exchange_bytes=0,
        link_bytes=math.ceil(plan.replicas * total),
        slowest_tile=slowest,
        latency=latency,
        messages=messages,
    )


def _replicas(plan: Plan, before: Iterable[Superstep]) -> list[Superstep]:
    """The sum of weight gradients over the replicas of a plan.

    Each replica adds up some rows, which all others send to it, and sends the total back to them. While a layer's sum travels
    the layers before it run backwards, so only the longer of the two is waited for. All rows are counted; those whose source
    was silent stay behind.
    """
    n = plan.replicas
    if n == 1 or not plan.trains:
        return []
    links, n_connections = plan.target.links, len(plan.network.connections)
    n_bytes = 4 * plan.network.n_weights() / plan.target.devices
    backward = sum(
        s.compute.get(phase, 0.0)
        for s in before
        for phase in ("state gradient", "sort", "list gradient", "weight gradient")
    ) / plan.target.clock_hz  # fmt: skip
    moving, latency = n_bytes * 2 / links.bytes_per_s, 2 * (n - 1) * n_connections * links.latency_s
    hidden = min(1.0, backward / (moving + latency))
    largest = max(plan.network.n_weights_of(c) for c in plan.network.connections)
    last = 4 * largest / plan.target.devices * 2
    sent = 2 * n_bytes * (n - 1) / n
    return [
        _superstep(
            plan,
            "replicas",
            bytes_in=(1 - hidden) * 2 * n_bytes + last,
            rounds=(1 - hidden) * 2 * (n - 1) * n_connections,
            messages=4 * (n - 1) * n_connections,  # which rows, and the rows, forth and back
            total=plan.target.devices * sent,
        )
    ]
