"""The cost model: its parts against sums done by hand, and the directions in which it must move."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sparsesnn.engines.module import Model
from sparsesnn.init import init_activity
from sparsesnn.ipu import IpuProgram, Optimizer, Regularizer
from sparsesnn.layers import LI, LIF, AdLIF, CubaLIF, Input
from sparsesnn.network import Connection, Network
from sparsesnn.partition.ipu import memory, sweep_tables, sweeps
from sparsesnn.partition.ipu.cost import predict
from sparsesnn.partition.ipu.memory import (
    collector_bytes,
    collector_receives,
    list_bytes,
    mask_words,
    padded,
    shard_items,
    shard_receives,
    tile_bytes,
    tile_totals,
)
from sparsesnn.partition.ipu.vertices import n_vertices
from sparsesnn.partition.ipu.work import ASSUMPTIONS, CycleAssumptions, collector_cycles, gradient_cycles, shard_cycles
from sparsesnn.partition.lengths import Lengths, expected_lengths
from sparsesnn.partition.plan import Plan
from sparsesnn.partition.planner import make_plan
from sparsesnn.partition.target import parse_target
from sparsesnn.spikes import SpikeBatch


def chain(*sizes: int, delay: int = 1, **arguments: Any) -> Network:
    network = Network.chain(Input(sizes[0]), *(LIF(n, **arguments) for n in sizes[1:]), delay=delay)
    first = network.connections[0]
    return Network(network.populations, (replace(first, delay=0), *network.connections[1:]))


def planned(network: Network, target: str = "ipu-mk2:1x64", b: int = 8, t: int = 10, **more: Any) -> Plan:
    return make_plan(network, b, t, parse_target(target), **more)


# ---- memory --------------------------------------------------------------------------------------------------------


def test_bytes_of_a_shard_by_hand() -> None:
    """5 neurons of 40 that read 30 inputs and themselves; B=7, T=11, Adam: rows are padded to 6 columns."""
    network = Network.chain(Input(30), LIF(40, recurrent=True, capacity=9, bias=True), LI(3))
    plan = planned(network, b=7, t=11, capacity={"input": 5})
    items = shard_items(plan, "hidden", 5)
    m = 30 + 40
    assert items["weights"] == items["gradient"] == 4 * m * 6
    assert items["optimizer"] == 2 * 4 * m * 6
    assert items["masters"] == 0
    # A, u, B, threshold, grad_threshold, bias; the bias gradient of six workers, two moments
    assert items["parameters"] == 4 * 6 * (6 + 6 + 2)
    assert items["state"] == 3 * 7 * 6 * 4  # ∂L/∂v, and ∂L/∂i of two steps: recurrent lists come one step later
    assert items["history"] == 11 * 7 * 6 * 4
    own, of_input = 2 * 10 + 4, 2 * 6 + 4  # ids padded to whole words, two counts
    own_buckets, input_buckets = 2 * (12 + 16), 2 * (12 + 12)
    assert shard_receives(plan, "hidden") == {
        "lists": 7 * (of_input + own),
        "gradients": 7 * (own + own_buckets),
        "input gradients": 7 * (of_input + input_buckets),
        "states": 7 * (own + 4 * 10),
    }
    assert items["buffers"] == 7 * (own + own_buckets)
    assert items["shares"] == 7 * 10 * 4  # the input needs no gradient
    assert items["masks"] == 7 * 4


def test_bytes_of_models_and_modes() -> None:
    network = Network(
        {"input": Input(10), "a": CubaLIF(6, learn_alpha=True), "out": LI(3)},
        (Connection("input", "a"), Connection("a", "out")),
    )
    train, infer = planned(network), planned(network, optimizer="none")
    half, sgd = planned(network, weight_dtype="half"), planned(network, optimizer="sgd")
    n, per_step = 3, 8 * 4 * 4
    # i_syn, ∂L/∂i_syn, ∂L/∂v, ∂L/∂i
    assert shard_items(train, "a", n)["state"] == 4 * per_step
    assert shard_items(train, "a", n)["history"] == 10 * 2 * per_step  # v and i_syn
    assert shard_items(infer, "a", n)["gradient"] == 0
    assert shard_items(infer, "a", n)["history"] == 2 * per_step
    assert shard_items(infer, "a", n)["state"] == per_step
    assert shard_items(infer, "out", n)["history"] == 2 * per_step  # decoded as it runs
    assert shard_items(half, "a", n)["weights"] == 10 * 4 * 2
    assert shard_items(half, "a", n)["masters"] == 10 * 4 * 4
    assert shard_items(sgd, "a", n)["optimizer"] == 0
    assert shard_items(train, "out", n)["masks"] == 0


@pytest.mark.parametrize(("n", "words"), [(1, 1), (16, 1), (17, 2), (32, 2), (33, 4), (64, 4), (65, 6)])
def test_mask_words(n: int, words: int) -> None:
    assert mask_words(n) == words


def test_padding() -> None:
    assert [padded(n, "float32") for n in (1, 2, 3)] == [2, 2, 4]
    assert [padded(n, "half") for n in (1, 4, 5)] == [2, 4, 6]
    assert [list_bytes(k) for k in (1, 2, 3)] == [8, 8, 12]


def test_bytes_of_helpers_by_hand() -> None:
    """3 samples, capacity 6; 40 neurons on 20 tiles read 30: 20 shares go through 4 groups of reducers."""
    plan = planned(
        chain(9, 30, 40), "ipu-mk2:1x64", b=3, t=11, capacity={"hidden": 6}, strategy="even", layout="contiguous"
    )
    (connection,) = (c for c in plan.connections if c.reducers)
    assert {(r.n_shards, r.n_samples) for r in connection.reducers} == {(5, 1)}
    one, slots = 2 * 6 + 4, 6 * 4
    # lists of 11 steps, one sent; buckets; ∂L/∂s; dropped, and totals; pointers to 15 shards
    assert collector_bytes(plan, "hidden", 1) == 12 * one + 2 * (12 + 12) + slots + 4 * 11 + 8 + 8 * 15
    assert collector_receives(plan, "hidden", 1) == {"masks": 15 * 4, "sums": 4 * slots}
    by_item = tile_bytes(plan)
    r = connection.reducers[0]
    assert by_item["reducer"][r.tile] == slots + 4 * 5 + memory.ASSUMPTIONS.vertex_bytes
    free = [x.tile for x in connection.reducers if x.tile not in plan.tile_to_shards()]
    assert free
    assert all(by_item["buffers"][t] >= 5 * slots for t in free)


def test_the_sum_over_tiles_is_the_sum_over_shards() -> None:
    plan = planned(chain(20, 33, 17, 5))
    by_item = tile_bytes(plan)
    for item in ("weights", "history", "masks"):
        expected = sum(shard_items(plan, name, s.n)[item] for name, p in plan.populations.items() for s in p.shards)
        assert by_item[item].sum() == expected
    used = sum(by_item.values()) > 0
    assert (by_item["reserved"][used] == memory.ASSUMPTIONS.reserved_bytes).all()
    assert (by_item["reserved"][~used] == 0).all()


# ---- cycles --------------------------------------------------------------------------------------------------------


def test_cycles_of_a_shard_by_hand() -> None:
    """4 neurons, 20 inputs that fire 0.1 each: 2 spikes a list; 12 samples are 2 a worker."""
    a = CycleAssumptions(worker_spread=1.5)
    plan = planned(chain(20, 8), b=12, activity={"input": 0.1}, optimizer="none")
    cycles = shard_cycles(plan, "output", 4, expected_lengths(plan, a.near_per_spike), a)
    busiest = 2 + 1.5 * math.sqrt(2 / 2)  # 2 lists of 2 spikes: 4 spikes ± 2
    a_list = a.deliver_list + busiest * (a.deliver_id + 2 * a.deliver_pair)
    assert cycles["deliver"] == pytest.approx(a.supervisor + 6 * (a.vertex + 2 * a_list))
    assert cycles["step"] == 6 * 2 * (a.step_sample + 2 * a.step_pair)
    assert cycles["select"] == 6 * 2 * a.select_word
    assert set(cycles) == {"deliver", "step", "select"}


def test_cycles_of_a_collector_by_hand() -> None:
    """2 samples, 10 ids listed of which 8 fired: 5 pairs, one a worker; 7 mask words, 3 of them with both masks; 3 sums."""
    a = CycleAssumptions(list_spread=0)
    plan = planned(chain(20, 100, 8), b=12)
    cycles = collector_cycles(plan, "hidden", 2, 7, 3, 3, {"hidden": Lengths(8, 10)}, a)
    sent = a.fetch_list + a.fetch_id

    def turns(bundles: float) -> float:
        return a.supervisor + 6 * (a.vertex + bundles)

    full = 3 * (1 - math.exp(-10 / 3))  # of three words that share ten candidates, hardly one is empty
    looks = a.compact_count * (7 + 2 * full) + a.compact_walks * a.compact_word * (4 + 2 * 3)
    walk = a.compact_list + looks + a.compact_id * 2
    assert cycles["compact"] == pytest.approx(turns(2 * walk))
    assert cycles["refetch"] == turns(2 * (sent + a.fetch_id * 2 * 8))
    assert cycles["sum"] == turns(2 * 3 * (a.reduce_row + a.reduce_pair))
    assert collector_cycles(plan, "input", 2, 0, 0, 0, {"input": Lengths(10, 10)}, a)["fetch"] == turns(2 * sent)


def test_weight_gradient_by_hand() -> None:
    """Every worker walks its bucket, a sixth of the spikes, of all 12 samples."""
    a = CycleAssumptions(worker_spread=0)
    plan = planned(chain(20, 8), b=12, activity={"input": 0.3})
    cycles = shard_cycles(plan, "output", 4, expected_lengths(plan, a.near_per_spike), a)
    walk = 12 * (a.weight_list + 6 / 6 * (a.weight_id + 2 * a.weight_pair))
    assert cycles["input gradient"] == pytest.approx(a.supervisor + 6 * (a.vertex + walk))
    assert "list gradient" not in cycles  # the input needs none


def test_list_gradient_by_hand() -> None:
    """Every list of a spiking population has 5 listed, 3 fired; 2 samples a worker."""
    a = CycleAssumptions(worker_spread=0)
    plan = planned(chain(20, 50, 8), b=12)
    found = gradient_cycles(plan, 4, ["hidden"], {"hidden": Lengths(3, 5)}, a)
    assert found["list gradient"] == 6 * 2 * (a.share_list + 5 * (a.share_id + 2 * a.share_pair))
    walk = 12 * (a.weight_list + 3 / 6 * (a.weight_id + 2 * a.weight_pair))
    assert found["weight gradient"] == pytest.approx(a.supervisor + 6 * (a.vertex + walk))


def test_expected_lengths() -> None:
    network = Network(
        {
            "input": Input(100),
            "near": LIF(100, capacity=30),
            "fixed": LIF(100, capacity=12, activity="fixed"),
            "all": LIF(10, grad_threshold=float("-inf")),
        },
        (Connection("input", "near"), Connection("near", "fixed", 1), Connection("fixed", "all", 1)),
    )
    plan = planned(network, activity=0.1)
    found = expected_lengths(plan, near_per_spike=0.5)
    assert (found["input"].spikes, found["input"].listed) == (10, 10)
    assert [found[k].busiest(10, 1, 2.0) for k in ("fixed", "near")] == [12, 10 + 2 * math.sqrt(10)]
    assert (found["near"].spikes, found["near"].listed) == (10, 15)
    assert (found["fixed"].spikes, found["fixed"].listed) == (12, 12)
    assert (found["all"].spikes, found["all"].listed) == (1, 10)
    # more than fits: the capacity
    assert expected_lengths(planned(network, activity=0.5))["near"].listed == 30


def test_stages_follow_delays_of_zero() -> None:
    assert planned(chain(5, 4, 3, 2, delay=1)).stages == {"input": 0, "hidden1": 0, "hidden2": 0, "output": 0}
    assert planned(chain(5, 4, 3, 2, delay=0)).stages == {"input": 0, "hidden1": 0, "hidden2": 1, "output": 2}


def test_one_superstep_serves_all_layers_only_with_delay_1() -> None:
    def supersteps(delay: int) -> list[str]:
        plan = planned(chain(50, 40, 30, 20, delay=delay), layout="contiguous", strategy="even")
        return [s.name for s in predict(plan).per_step]

    once = ["nothing", "lists", "masks", "nothing", "lists and buckets", "shares", "sums", "lists and gradients"]
    assert supersteps(1) == [*once, "lists and buckets"]
    # three rounds of six, fetches and the input's gradient; the output has no lists to be read
    assert len(supersteps(0)) == 3 * 6 + 3 - 3


def test_exchange_bytes_by_hand() -> None:
    """One population of 4 shards on 4 tiles, 2 samples, inference: lists in, masks out."""
    plan = planned(chain(20, 8), "ipu-mk2:1x4", b=2, optimizer="none", capacity={"input": 6}, strategy="even")
    assert [s.n for s in plan.populations["output"].shards] == [2, 2, 2, 2]
    fetch, lists, masks = predict(plan).per_step
    assert fetch.exchange_bytes == 0
    assert lists.exchange_bytes == 4 * 2 * list_bytes(6)
    assert lists.exchange == 2 * list_bytes(6) / 4
    # each of 2 collectors gets 4 bytes from each of the 3 tiles that it is not itself
    assert masks.exchange_bytes == 2 * 3 * 4
    assert lists.link_bytes == masks.link_bytes == 0


def test_lists_cross_a_link_once_a_device() -> None:
    plan = planned(chain(20, 64, 64), "ipu-mk2:2x16", b=4, layout="contiguous", strategy="even")
    prediction = predict(plan)
    assert {s.device for s in plan.populations["hidden"].shards} == {0}
    assert {s.device for s in plan.populations["output"].shards} == {1}
    lists = prediction.per_step[1]
    assert lists.link_bytes == 4 * list_bytes(plan.populations["hidden"].capacity)
    assert lists.link > 0
    one = predict(planned(chain(20, 64, 64), "ipu-mk2:1x32", b=4, layout="contiguous", strategy="even"))
    assert one.link_bytes_per_step == 0
    assert prediction.link_bytes_per_step > 0


def test_more_activity_costs_more_and_silence_costs_little() -> None:
    network = chain(700, 200, 200, 20, delay=1)
    speeds = [
        predict(planned(network, activity=x, max_activity=0.5, b=48, t=100, target="ipu-mk2")).samples_per_s
        for x in (0.0, 0.01, 0.05, 0.2, 0.5)
    ]
    assert speeds == sorted(speeds, reverse=True)
    assert speeds[0] > 5 * speeds[-1]


def test_fixed_activity_is_no_faster_than_natural() -> None:
    def speed(activity: str) -> float:
        return predict(planned(chain(100, 200, 50, activity=activity, capacity=20), b=24)).samples_per_s

    assert speed("fixed") < speed("natural")


def test_a_bow_is_faster_by_its_clock() -> None:
    network = chain(100, 64, 64)
    mk2, bow = (predict(planned(network, f"ipu-{name}:1x64")) for name in ("mk2", "bow"))
    assert bow.cycles_per_step == mk2.cycles_per_step
    assert 1.2 < bow.samples_per_s / mk2.samples_per_s < 1.4


def test_phases_add_up_to_the_batch() -> None:
    plan = planned(chain(50, 40, 30, 20))
    p = predict(plan)
    assert sum(p.phases().values()) == pytest.approx(p.batch_s * p.clock_hz / p.n_steps)
    assert p.samples_per_s == pytest.approx(8 / p.batch_s)
    assert p.to_dict()["cycles_per_step_by_phase"] == p.phases()


@pytest.mark.parametrize("name", [f.name for f in fields(CycleAssumptions)])
def test_every_assumption_counts(name: str) -> None:
    """A named assumption that moves no figure would be a lie."""
    recurrent = Network(
        {"input": Input(60), "a": CubaLIF(60, recurrent=True), "b": AdLIF(40), "out": LIF(4)},
        (Connection("input", "a"), Connection("a", "b", 1), Connection("b", "out", 1)),
    )
    a = ASSUMPTIONS
    value = getattr(a, name)
    changes: dict[str, Any] = {name: 0.5 if name == "host_overlap" else 2 * value}
    changed = replace(a, **changes)

    def batch(assumptions: CycleAssumptions) -> float:
        optimizer = "sgd" if name.startswith("sgd") else "adam"
        return predict(planned(recurrent, b=20, optimizer=optimizer, strategy="even"), assumptions).batch_s

    assert batch(changed) != batch(a)


def test_a_docstring_names_every_assumption() -> None:
    for cls in (CycleAssumptions, memory.MemoryAssumptions):
        for f in fields(cls):
            assert f.name in (cls.__doc__ or ""), f.name


# ---- against the emulated machine ------------------------------------------------------------------------------------


def test_a_prediction_is_what_the_emulated_machine_counts() -> None:
    """At the activity that the network then had; the remaining difference is due to samples that fire more than others."""
    plan = planned(
        chain(200, 90, 90, 20),
        "ipu-mk2:1x150",
        b=48,
        t=8,
        capacity={"input": 12, "hidden1": 24, "hidden2": 24, "output": 20},
        strategy="even",
    )
    generator = torch.Generator().manual_seed(4)
    spikes = SpikeBatch.from_dense((torch.rand(8, 48, 200, generator=generator) < 0.015).float())
    torch.manual_seed(3)
    model = Model(plan.network)
    init_activity(model, [spikes], 0.06)
    program = IpuProgram(plan, model, Optimizer("adam", lr=0.0), decoding="count", checks="never")
    program.reset_counts()
    program.train_step(spikes, torch.zeros(48, dtype=torch.int64))
    report = program.report()  # before the lists are read, which takes time too
    lists = {"input": spikes, **program.lists()}
    n_spikes = {name: float(x.n_spikes.float().mean()) for name, x in lists.items()}
    assert min(n_spikes.values()) > 0.3
    n_listed = {name: x.ids.numel() / (8 * 48) for name, x in lists.items()}
    fired = [k for k in n_spikes if k != "input"]
    near = sum(n_listed[k] - n_spikes[k] for k in fired) / sum(n_spikes[k] for k in fired)
    activity = {name: n / plan.populations[name].n for name, n in n_spikes.items()}
    predicted = predict(replace(plan, activity=activity), replace(ASSUMPTIONS, near_per_spike=near))

    counted = {p.name: p for p in report.phases}
    names = (
        "forward/fetch",
        "forward/0/step",
        "forward/0/compact",
        "backward/fetch",
        "backward/0/list gradient",
        "backward/0/reduce",
        "backward/0/sum",
        "backward/0/state gradient",
        "backward/input/list gradient",
    )
    for superstep, name in zip(predicted.per_step, names, strict=True):
        phase = counted[name]
        assert superstep.exchange * 8 == pytest.approx(phase.exchange, rel=0.03), name
        assert superstep.exchange_bytes * 8 == pytest.approx(phase.exchange_bytes, rel=0.03), name
        assert superstep.sync * 8 == phase.sync, name
        assert sum(superstep.compute.values()) * 8 == pytest.approx(phase.compute, rel=0.15), name
    assert predicted.batch_s == pytest.approx(report.seconds, rel=0.05)
    assert tile_totals(plan).max() == pytest.approx(max(report.tile_bytes), rel=0.15)


@pytest.mark.parametrize("layout", ["contiguous", "split"])
def test_bytes_between_ipus_are_what_the_emulated_machine_counts(layout: str) -> None:
    """Of two IPUs that use 40 of their tiles each."""
    plan = planned(
        chain(30, 70, 60, 20), "ipu-mk2:2x40", b=6, t=4, strategy="even", layout=layout, activity=0.1, max_activity=1.0
    )
    program = IpuProgram(plan, Model(plan.network), Optimizer("adam"), decoding="count", checks="never")
    program.reset_counts()
    spikes = SpikeBatch.from_dense(torch.zeros(4, 6, 30))
    program.train_step(spikes, torch.zeros(6, dtype=torch.int64))
    predicted, counted = predict(plan), {p.name: p for p in program.report().phases}
    names = ("step", "compact", "list gradient", "reduce", "sum", "state gradient")
    steps = [s for s in predicted.per_step if s.exchange_bytes]
    phases = [counted[f"{'forward' if name in names[:2] else 'backward'}/0/{name}"] for name in names]
    phases.append(counted["backward/input/list gradient"])
    for superstep, phase in zip(steps, phases, strict=True):
        # the counts of a list, which its reducers read, are left out of the prediction
        counts = 4 * plan.n_samples * plan.n_steps * 4 if phase.name == "backward/0/reduce" else 0
        assert 0 <= phase.link_bytes - superstep.link_bytes * 4 <= counts, phase.name
        assert superstep.exchange_bytes * 4 == pytest.approx(phase.exchange_bytes, rel=0.03), phase.name
    assert sum(p.link_bytes > 0 for p in phases) >= 3
    squares = next(s for s in predicted.per_batch if s.name == "squares")
    assert squares.link_bytes == counted["device norms"].link_bytes == 0
    assert squares.exchange_bytes == counted["device norms"].exchange_bytes


@pytest.mark.parametrize("delay", [0, 1])
def test_steps_that_run_again_cost_what_the_emulated_machine_counts(delay: int) -> None:
    network = chain(100, 60, 40, 10, delay=delay)
    plan = planned(network, "ipu-mk2:1x120", b=7, t=11, max_activity=1.0, keep_every=4, strategy="even")
    model = Model(network)
    generator = torch.Generator().manual_seed(4)
    spikes = SpikeBatch.from_dense((torch.rand(11, 7, 100, generator=generator) < 0.1).float())
    init_activity(model, [spikes], 0.1)
    program = IpuProgram(plan, model, Optimizer("adam", lr=0.0), decoding="count", checks="never")
    assert program.report().n_vertices == n_vertices(plan) > n_vertices(replace(plan, keep_every=1))
    program.reset_counts()
    program.train_step(spikes, torch.zeros(7, dtype=torch.int64))
    counted = {p.name: p for p in program.report().phases}
    activity = {"input": spikes.activity(), **{k: x.activity() for k, x in program.lists().items()}}
    predicted = predict(replace(plan, activity=activity))
    assert plan.n_again == 8
    start = 1  # behind the loss
    n_rounds = 3 if delay == 0 else 1
    for r in range(n_rounds):
        fetch, lists = predicted.per_batch[start + 2 * r : start + 2 * r + 2]
        phase = counted["again/fetch" if r == 0 else f"again/{r - 1}/fetch"]
        assert phase.executions == 8
        assert sum(fetch.compute.values()) == pytest.approx(phase.compute, rel=0.25)
        step = counted[f"forward/{r}/step"]
        assert step.executions == 11 + 8
        assert sum(lists.compute.values()) * 19 / 8 == pytest.approx(step.compute, rel=0.25)
        assert lists.exchange * 19 / 8 == pytest.approx(step.exchange, rel=0.05)
        assert lists.sync * 19 / 8 == step.sync
    all_kept = replace(plan, keep_every=1)
    rows = tile_bytes(plan)["history"].sum() / tile_bytes(all_kept)["history"].sum()
    assert rows == pytest.approx((4 + 2) / 11)
    assert predict(all_kept).batch_s < predicted.batch_s


@pytest.mark.parametrize(
    "hidden",
    [
        LIF(70, bias=True, grad_threshold=0.3, learn_beta=True),
        LIF(70, recurrent=True, bias=True, grad_threshold=0.3, learn_beta=True),
        AdLIF(70, beta=0.5, threshold=0.1, grad_threshold=0.03, learn_rho=True, learn_a=True, learn_threshold=True),
    ],
    ids=["LIF", "recurrent", "AdLIF"],
)
def test_replicas_and_a_regularizer_cost_what_the_emulated_machine_counts(hidden: Any) -> None:
    network = Network.chain(Input(60), hidden, LIF(20), delay=1)
    plan = planned(network, "ipu-mk2:1x80", b=5, t=8, max_activity=1.0, replicas=2, regularizes=True)
    model = Model(network)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3.0)
    program = IpuProgram(
        plan, model, Optimizer("adam"), decoding="count", regularizer=Regularizer(0.3, 0.1), checks="never"
    )
    assert program.report().n_vertices == n_vertices(plan) > n_vertices(replace(plan, regularizes=False))
    generator = torch.Generator().manual_seed(4)
    spikes = SpikeBatch.from_dense((torch.rand(8, 10, 60, generator=generator) < 0.1).float())
    program.reset_counts()
    program.train_step(spikes, torch.zeros(10, dtype=torch.int64))
    counted = {p.name: p for p in program.report().phases}
    activity = {"input": spikes.activity(), **{k: x.activity() for k, x in program.lists().items()}}
    assert activity["hidden"] > 0.02
    predicted = predict(replace(plan, activity=activity))
    names = ("activity", "counts of replicas", "regularizer", "gradients of replicas")
    steps = [s for s in predicted.per_batch if s.name in ("nothing", "counts", "replicas")]
    for superstep, name in zip(steps, names, strict=True):
        phase = counted[name]
        assert sum(superstep.compute.values()) == pytest.approx(phase.compute, rel=0.35), name
        assert superstep.exchange == pytest.approx(phase.exchange, rel=0.1, abs=15), name  # settings are not counted
        assert superstep.link == pytest.approx(phase.link, rel=1e-3), name
        assert superstep.sync == pytest.approx(phase.sync, rel=1e-6), name
        assert superstep.link_bytes == pytest.approx(phase.link_bytes, rel=1e-3), name
    alone = predict(replace(plan, replicas=1, activity=activity))
    assert predicted.n_samples == 2 * alone.n_samples
    assert alone.batch_s < predicted.batch_s
    assert 1.4 * alone.samples_per_s < predicted.samples_per_s < 2 * alone.samples_per_s
    assert tile_totals(plan).max() > tile_totals(replace(plan, regularizes=False)).max()


# ---- sweeps ----------------------------------------------------------------------------------------------------------


def test_the_networks_of_the_sweeps() -> None:
    assert sweeps.equal_layers(2922, 3) == [974, 974, 974]
    assert sum(sweeps.equal_layers(2922, 5)) == 2922
    network = sweeps.spiking_chain([974] * 3, 0.05, 1, fixed=True)
    assert network.n_weights() == 700 * 974 + 2 * 974**2 + 974 * 20
    assert [c.delay for c in network.connections] == [1, 1, 1, 1]
    assert [getattr(p, "capacity", None) for p in network.populations.values()] == [None, 49, 49, 49, None]


@pytest.fixture(scope="module")
def activity_rows() -> list[sweeps.Row]:
    return list(sweeps.activity_sweep(delay=1))


@pytest.mark.slow
def test_fixed_activity_is_the_lower_bound_of_a_sweep(activity_rows: list[sweeps.Row]) -> None:
    rows = {(r.series, r.x): r for r in activity_rows}
    for (series, x), row in rows.items():
        assert row.n_neurons == 2942
        assert row.bytes_share <= 1
        if series.endswith("natural"):
            assert row.samples_per_s >= rows[series.replace("natural", "fixed"), x].samples_per_s
    for n_layers in (2, 3, 4, 5):
        fixed = [rows[f"{n_layers} hidden layers, fixed", x].samples_per_s for x in sweeps.MAX_ACTIVITIES]
        assert fixed == sorted(fixed, reverse=True)


def test_the_page_says_what_the_model_says(activity_rows: list[sweeps.Row]) -> None:
    """After a change of the model: ./dev bench ipu-predictions"""
    page = (Path(__file__).parents[2] / "benchmarks" / "results" / "ipu-predictions.md").read_text(encoding="utf-8")
    few = sweep_tables.scaling_table(list(sweeps.weak_scaling((1,))))
    assert sweep_tables.activity_table(activity_rows) in page
    assert sweep_tables.sensitivity_table(*sweeps.sensitivity(delay=1)) in page
    assert sweep_tables.assumptions_table() in page
    assert [line for line in few.splitlines() if line not in page] == []
