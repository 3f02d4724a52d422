"""The work of one tile: cycles by phase, from assumed instruction counts.

The counts are those of the emulated machine (host/src/emulator/work.h), under the same names: its counts differ from a
prediction only because of the assumed activity. A tile takes as long as its longest worker, times the six workers that
take turns (a tile issues one bundle a cycle); it has one vertex a phase, whatever it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sparsesnn.layers import Input
from sparsesnn.layers.declaration import fires
from sparsesnn.partition.ipu.memory import mask_words, padded
from sparsesnn.partition.lengths import NEAR_PER_SPIKE, Lengths
from sparsesnn.partition.plan import Plan


@dataclass(frozen=True)
class CycleAssumptions:
    """The assumptions of a prediction. Bundles are issue slots of one worker: one load or store with one float operation.

    Args:
        vertex: start of a worker: fetch state, pointers, loop bounds. 30: poplibs' estimators charge 25 to 33.
        supervisor: start of a vertex on its tile, in cycles. 25: poplibs charges 11, and 6 to 20 of set-up.
        deliver_list: one list of one sample: its counts and pointers.
        deliver_id: load id, address, loop. With `deliver_pair` an id of a two-neuron shard costs 6; 4 to 6 are
            expected of compiled code.
        deliver_pair: load two weights, add them to two currents.
        step_sample, step_pair: decay, reset, add, two comparisons, masks and the history, for two neurons;
            step_state: each further state. operation: on floats, for one neuron, in a step or its adjoint, beyond a decay for each
            state.
        select_word: both mask words of a sample.
        compact_list: counts, capacity and rotation of one list.
        compact_count: load a mask word, count its bits, add; each worker does this for all words. A word that holds both
            masks of up to 16 neurons takes as long if it is empty, and three times as long if not.
        compact_word: look for candidates in one mask word; compact_walks: the share of the words that a worker searches:
            from the sixth of them with its first slot to its last slot, of spikes or of near-spikes; compact_id:
            find the bit, write the id.
        fetch_list, fetch_id: send a kept list again: two ids; or put a spike into its bucket (id modulo 6).
        state_sample, state_pair: decay of ∂L/∂v, current gradient; state_search: finding the shard's part of the own
            list by bisection, per halving; state_id: σ', gradient of one listed neuron.
        share_list, share_id, share_pair: dot product of a row of weights and the current gradient; the id's part is
            the sum over lanes and the store.
        weight_list, weight_id, weight_pair: load, add and store two weight gradients. poplibs' scatter-add: 11 + 3 an
            element for scalars; here ids come in buckets, no bounds are searched.
        reduce_row, reduce_pair: one row of shares: load two, add two.
        adam_pair, sgd_pair: one update of two weights; Adam has a square root and a division each.
        norm_pair: two squares of the gradient's norm.
        loss_value: one potential or count: exponential, division.
        host_transfers: streams a batch between host and devices, each with a barrier over all: input lists, targets,
            settings, seeds; norm, losses, logits, counts of spikes.
        near_per_spike: near-spikes listed per spike. 0.64: measured by `sparsesnn bench step` at threshold 1,
            grad_threshold 0.9, activity 2 %.
        worker_spread: by how many standard deviations the busiest of six workers exceeds the mean, if neurons fire
            independently: 1.27 for six of a normal distribution. Samples of real data differ more.
        list_spread: the same for the longest list of a batch, which its collector waits for: 2.2 for the largest of 48.
        host_overlap: share of the host's streaming that overlaps with computing.
    """

    vertex: int = 30
    supervisor: int = 25
    deliver_list: int = 15
    deliver_id: int = 4
    deliver_pair: int = 2
    step_sample: int = 10
    step_pair: int = 20
    step_state: int = 5
    operation: int = 1
    select_word: int = 4
    compact_list: int = 90
    compact_count: int = 3
    compact_word: int = 5
    compact_walks: float = 1 / 3
    compact_id: int = 10
    fetch_list: int = 20
    fetch_id: int = 5
    state_sample: int = 15
    state_pair: int = 8
    state_search: int = 8
    state_id: int = 20
    share_list: int = 15
    share_id: int = 8
    share_pair: int = 2
    weight_list: int = 12
    weight_id: int = 5
    weight_pair: int = 3
    reduce_row: int = 6
    reduce_pair: int = 2
    adam_pair: int = 40
    sgd_pair: int = 4
    norm_pair: int = 3
    loss_value: int = 20
    host_transfers: int = 8
    near_per_spike: float = NEAR_PER_SPIKE
    worker_spread: float = 1.27
    list_spread: float = 2.2
    host_overlap: float = 0.0


ASSUMPTIONS = CycleAssumptions()

FORWARD = ("deliver", "step", "select", "compact")


def turns(bundles: float, a: CycleAssumptions, workers: int) -> float:
    """Cycles of a vertex whose longest worker takes `bundles`: the workers of a tile take turns."""
    return a.supervisor + workers * (a.vertex + bundles)


def shard_cycles(
    plan: Plan,
    name: str,
    n: int,
    lengths: Mapping[str, Lengths],
    a: CycleAssumptions = ASSUMPTIONS,
    arrivals: Callable[[str, int], Lengths] | None = None,
) -> dict[str, float]:
    """Cycles a step, by phase, of a shard of `n` neurons; samples are dealt to the workers.

    `arrivals` gives the lists of a sender that arrive after a delay; None: all steps are equal, with its `lengths`.
    "list gradient" and "weight gradient" are those of connections from spiking populations, "input gradient" the weight
    gradient of the input's connections, which has its own superstep.
    """
    population = plan.network.populations[name]
    assert not isinstance(population, Input), "the host owns the input's neurons"
    workers = plan.target.workers_per_tile
    samples = -(-plan.n_samples // workers)
    pairs = padded(n, plan.weight_dtype) // 2
    spiking = fires(population)
    deliver: float = 0
    for c in plan.incoming(name):
        length = arrivals(c.pre, c.delay) if arrivals else lengths[c.pre]
        spikes, _ = length.of_worker(samples, a.worker_spread)
        deliver += a.deliver_list + spikes * (a.deliver_id + a.deliver_pair * pairs)
    step: float = a.step_sample + pairs * (a.step_pair + a.step_state * (len(population.states) - 1))
    step += a.operation * population.operations[0] * n
    step += 0 if spiking else pairs * a.reduce_pair  # decoding
    cycles = {"deliver": turns(samples * deliver, a, workers), "step": workers * samples * step}
    if spiking:
        cycles["select"] = workers * samples * a.select_word * mask_words(n)
    if not plan.trains:
        return cycles
    state: float = a.state_sample + pairs * a.state_pair + a.operation * population.operations[1] * n
    if spiking:
        own = lengths[name]
        halvings = np.ceil(np.log2(1 + own.spikes)) + np.ceil(np.log2(1 + own.listed - own.spikes))
        state += float(a.state_search * halvings) + a.state_id * own.listed * n / population.n
    cycles["state gradient"] = turns(samples * state, a, workers)
    inputs = plan.inputs
    from_spiking = [c.pre for c in plan.incoming(name) if c.pre not in inputs]
    cycles |= gradient_cycles(plan, n, from_spiking, lengths, a)
    from_input = [c.pre for c in plan.incoming(name) if c.pre in inputs]
    if from_input:
        cycles["input gradient"] = sum(gradient_cycles(plan, n, from_input, lengths, a).values())
    return cycles


def gradient_cycles(
    plan: Plan, n: int, senders: Sequence[str], lengths: Mapping[str, Lengths], a: CycleAssumptions = ASSUMPTIONS
) -> dict[str, float]:
    """Cycles a step that a shard of `n` neurons spends on the lists received from `senders`, in one superstep."""
    workers = plan.target.workers_per_tile
    samples = -(-plan.n_samples // workers)
    pairs = padded(n, plan.weight_dtype) // 2
    share = weight = 0.0
    for pre in senders:
        length = lengths[pre]
        # buckets of ids: each worker processes its own bucket of every sample
        bucket = length.of_bucket(workers, plan.n_samples, a.worker_spread)
        weight += a.weight_list + bucket * (a.weight_id + a.weight_pair * pairs)
        if pre not in plan.inputs:
            _, listed = length.of_worker(samples, a.worker_spread)
            share += a.share_list + listed * (a.share_id + a.share_pair * pairs)
    if not senders:
        return {}
    cycles = {"weight gradient": turns(plan.n_samples * weight, a, workers)}
    return {"list gradient": workers * samples * share, **cycles} if share else cycles


def collector_cycles(
    plan: Plan,
    name: str,
    n_samples: int,
    n_words: int,
    n_packed: int,
    n_sums: int,
    lengths: Mapping[str, Lengths],
    a: CycleAssumptions = ASSUMPTIONS,
) -> dict[str, float]:
    """Cycles a step of a collector that receives `n_words` mask words, `n_packed` of which hold both masks of a shard, and
    `n_sums` sums a sample; slots are dealt to the workers. "fetch" is that of the forward pass for an input, "refetch" that of the backward pass."""
    if name not in plan.inputs and not fires(plan.network.populations[name]):
        return {}
    workers = plan.target.workers_per_tile
    length = lengths[name].longest(n_samples, a.list_spread)
    mine = np.ceil(np.ceil(length.listed / 2) / workers)  # pairs of slots of one worker
    sent = a.fetch_list + a.fetch_id * float(mine)
    lags = len({c.delay for c in plan.outgoing(name)})
    cycles = {}
    if name in plan.inputs:
        cycles["fetch"] = cycles["again"] = turns(n_samples * max(1, lags) * sent, a, workers)
    else:
        cycles["again"] = turns(n_samples * max(1, lags) * sent, a, workers)
        full = (
            n_packed * (1 - np.exp(-length.listed / n_packed)) if n_packed else 0.0
        )  # packed words that hold a candidate
        looks = a.compact_count * (n_words + 2 * float(full)) + a.compact_walks * a.compact_word * (n_words + n_packed)
        each = a.compact_list + looks + a.compact_id * 2 * float(mine)
        cycles["compact"] = turns(n_samples * (each + max(0, lags - 1) * sent), a, workers)
    if plan.trains:
        cycles["refetch"] = turns(n_samples * (sent + 2 * a.fetch_id * length.spikes), a, workers)
        if n_sums:
            cycles["sum"] = turns(n_samples * reduction(n_sums, length.listed, workers, a), a, workers)
    return cycles


def reduction(rows: int, slots: float, workers: int, a: CycleAssumptions) -> float:
    """Bundles of the longest worker for adding `rows` rows of `slots` shares; slots are dealt in pairs."""
    return rows * (a.reduce_row + a.reduce_pair * float(np.ceil(np.ceil(slots / 2) / workers)))


def optimizer_cycles(plan: Plan, name: str, n: int, a: CycleAssumptions = ASSUMPTIONS) -> float:
    """Cycles a batch of the update of a shard's weights, and of its part of the gradient's norm."""
    if not plan.trains:
        return 0.0
    pair = {"adam": a.adam_pair, "sgd": a.sgd_pair}[plan.optimizer]
    workers = plan.target.workers_per_tile
    n_pairs = sum(plan.populations[c.pre].n for c in plan.incoming(name)) * padded(n, plan.weight_dtype) // 2
    mine = -(-n_pairs // workers)
    return turns(mine * pair, a, workers) + turns(mine * a.norm_pair, a, workers)
