"""Predicted cost of a plan on the CPU engine: one process, or R ranks that exchange spike lists over MPI.

Work is counted in additions of a spike to a neuron ("synaptic events"), neurons updated and ids listed; the rates were
fitted to one measurement. A layer runs over the whole sequence before the next one starts, and its tiles are dealt to the
cores: it takes as long as the core with the most tiles.

Between ranks, for a population that another rank reads:

    forward    every rank receives the lists it lacks, once a sequence                        S·(2 + …)·(R-1)/R
    backward   the owner receives every other rank's sums of shares                          S·4·(R-1)/R a rank
    recurrent  the same once a step: T times a message's latency, twice, times log₂ R

Replicas of a grid (data parallel) are planned as several plans with a part of the batch each, plus one sum of gradients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sparsesnn.layers import LI
from sparsesnn.partition.cost import expected_lengths
from sparsesnn.partition.plan import Plan, cpu_tile_width
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
        sort_cycles: an id received, backward: sorting by sender, sum of shares.
        adam_cycles, sgd_cycles: a weight.
        framework_s: PyTorch around the engine, a batch, on one core.
    """

    deliver_per_cycle: float = 8.0
    gradient_per_cycle: float = 8.0
    step_cycles: float = 1.3
    state_cycles: float = 1.2
    list_cycles: float = 36.0
    sort_cycles: float = 21.0
    adam_cycles: float = 3.1
    sgd_cycles: float = 1.3
    framework_s: float = 3.2e-3


ASSUMPTIONS = CpuAssumptions()


def predict_cpu(plan: Plan, a: CpuAssumptions = ASSUMPTIONS) -> Prediction:
    """Cost of a plan for `cpu` or `mpi`."""
    target = plan.target
    lengths = expected_lengths(plan)
    rows = plan.n_steps * plan.n_samples
    per_batch, per_step = [], []
    for name, p in plan.populations.items():
        if name in plan.network.inputs:
            continue
        incoming = plan.incoming(name)
        n_pre = sum(plan.populations[c.pre].n for c in incoming)
        width = cpu_tile_width(p.n, n_pre)
        ranks = [sum(s.rank == r for s in p.shards) for r in range(target.devices)]
        slowest = max(range(target.devices), key=ranks.__getitem__)
        n = width * math.ceil(ranks[slowest] / target.tiles)  # neurons of the core with the most tiles
        spikes = sum(lengths[c.pre].spikes for c in incoming)
        listed = sum(lengths[c.pre].listed for c in incoming if c.pre not in plan.network.inputs)
        own = 0.0 if isinstance(plan.network.populations[name], LI) else lengths[name].listed
        samples = math.ceil(plan.n_samples / target.tiles) / plan.n_samples  # of the core with the most samples
        compute = {
            "deliver": rows * spikes * n / a.deliver_per_cycle,
            "step": rows * n * a.step_cycles,
            "compact": rows * own * ranks[slowest] / sum(ranks) / target.tiles * a.list_cycles,
        }
        if plan.trains:
            pair = {"adam": a.adam_cycles, "sgd": a.sgd_cycles}[plan.optimizer]
            compute["state gradient"] = rows * samples * width * ranks[slowest] * a.state_cycles
            compute["list gradient"] = rows * listed * (n / a.gradient_per_cycle + a.sort_cycles / target.tiles)
            compute["weight gradient"] = rows * spikes * n / a.gradient_per_cycle
            compute["optimiser"] = n_pre * n * pair
        per_batch.append(_superstep(plan, f"{name}", compute, 0.0, 0, 0, slowest))
    for name in plan.populations:
        readers = {s.rank for c in plan.outgoing(name) for s in plan.populations[c.post].shards}
        owners = {s.rank for s in plan.populations[name].shards}
        from_data = name in plan.network.inputs  # every rank reads its input from its own copy of the cache
        if from_data or not readers or len(readers | owners) == 1:
            continue
        ids = plan.n_samples * lengths[name].listed  # of one step
        share = 1 - 1 / len(readers | owners)
        n_bytes = share * (ids * 2 + 8 * plan.n_samples + (ids * 4 if plan.trains else 0))
        recurrent = any(c.recurrent for c in plan.outgoing(name))
        messages = math.ceil(math.log2(len(readers | owners))) * (2 if plan.trains else 1)
        if recurrent:
            total = math.ceil(n_bytes * len(readers))
            per_step.append(_superstep(plan, f"{name} lists", {}, n_bytes, messages, total, 0))
        else:
            total = math.ceil(n_bytes * plan.n_steps * len(readers))
            per_batch.append(_superstep(plan, f"{name} lists", {}, n_bytes * plan.n_steps, messages, total, 0))
    per_batch.append(_superstep(plan, "framework", {"framework": a.framework_s * target.clock_hz}, 0.0, 0, 0, 0))
    inputs = sum(lengths[k].listed for k in plan.network.inputs)
    return Prediction(
        per_step=tuple(per_step),
        per_batch=tuple(per_batch),
        n_steps=plan.n_steps,
        n_samples=plan.n_samples,
        clock_hz=target.clock_hz,
        host_s=0.0,  # batches are read by a thread of their own
        host_bytes=math.ceil(rows * (2 * inputs + 12)),
    )


def _superstep(
    plan: Plan, name: str, compute: dict[str, float], bytes_in: float, messages: int, total: int, slowest: int
) -> Superstep:
    """A rank's compute, and `bytes_in` that it receives in `messages` rounds; a barrier of the thread pool per phase."""
    target = plan.target
    return Superstep(
        name=name,
        compute=compute,
        exchange=0.0,  # cores of a rank share its memory
        sync=len(compute) * target.exchange.sync_cycles * (target.tiles > 1),
        link=(bytes_in / target.links.bytes_per_s + messages * target.links.latency_s) * target.clock_hz,
        exchange_bytes=0,
        link_bytes=total,
        slowest_tile=slowest,
    )
