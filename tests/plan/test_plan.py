from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsesnn.engines.cpu.wiring import tile_width
from sparsesnn.engines.module import Layer
from sparsesnn.errors import ConfigError, PlanError
from sparsesnn.layers import LI, LIF, CubaLIF, Input
from sparsesnn.network import Connection, Network, parse_net
from sparsesnn.partition.cpu.memory import rank_bytes
from sparsesnn.partition.ipu import strategies
from sparsesnn.partition.ipu.cost import predict
from sparsesnn.partition.ipu.layout import LAYOUTS, crossing
from sparsesnn.partition.ipu.memory import shard_bytes, tile_totals
from sparsesnn.partition.ipu.strategies import STRATEGIES, Sizing
from sparsesnn.partition.ipu.work import ASSUMPTIONS
from sparsesnn.partition.plan import Plan
from sparsesnn.partition.planner import make_plan
from sparsesnn.partition.report import notes
from sparsesnn.partition.target import parse_target
from sparsesnn.placement import CPU_TILE_WIDTHS, cpu_tile_width


def branched(delay: int = 1) -> Network:
    return Network(
        {"input": Input(7), "a": LIF(9, recurrent=True), "b": CubaLIF(5), "out": LI(3)},
        (
            Connection("input", "a"),
            Connection("a", "b", delay),
            Connection("input", "b", 1),
            Connection("b", "out", delay),
        ),
    )


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 70), min_size=2, max_size=4),
    n_samples=st.integers(1, 13),
    tiles=st.integers(1, 90),
    optimizer=st.sampled_from(["adam", "sgd", "none"]),
    weight_dtype=st.sampled_from(["float32", "half"]),
)
def test_a_plan_covers_each_neuron_once_and_its_maps_invert(
    sizes: list[int], n_samples: int, tiles: int, optimizer: str, weight_dtype: str
) -> None:
    network = Network.chain(Input(11), *(LIF(n) for n in sizes), delay=1)
    target = parse_target(f"ipu-mk2:1x{tiles}")
    plan = make_plan(network, n_samples, 5, target, optimizer=optimizer, weight_dtype=weight_dtype)
    seen = {name: np.zeros(p.n, int) for name, p in plan.populations.items()}
    for tile, shards in plan.tile_to_shards().items():
        for name, k in shards:
            s = plan.populations[name].shards[k]
            assert s.tile == tile
            seen[name][s.first : s.first + s.n] += 1
            assert (plan.gid_to_tile(name)[s.first : s.first + s.n] == tile).all()
            assert (plan.gid_to_shard(name)[s.first : s.first + s.n] == k).all()
            assert plan.gid_to_lid(name)[s.first : s.first + s.n].tolist() == list(range(s.n))
    assert not seen.pop("input").any()
    assert all((counts == 1).all() for counts in seen.values())
    assert tile_totals(plan).max() <= target.bytes_per_tile
    assert Plan.from_json(plan.to_json()) == plan


def test_json_is_plain_rows_of_whole_numbers() -> None:
    data = json.loads(make_plan(branched(), 5, 4, parse_target("ipu-mk2:1x8")).to_json())
    a = data["populations"][1]
    assert (a["name"], a["model"], a["n"]) == ("a", "LIF", 9)
    assert all(len(row) == 6 and all(type(x) is int for x in row) for row in a["shards"])
    assert [(c["pre"], c["post"], c["delay"]) for c in data["connections"]] == [
        ("input", "a", 0),
        ("a", "b", 1),
        ("input", "b", 1),
        ("b", "out", 1),
        ("a", "a", 1),
    ]


def test_numbers_of_other_libraries_make_the_same_plan() -> None:
    target = parse_target("ipu-mk2:1x8")
    plain = make_plan(branched(), 5, 4, target, capacity={"a": 3}, keep_every=2)
    counted = replace(target, devices=np.int64(1), tiles=np.int64(8), clock_hz=np.float32(target.clock_hz))
    sizes: Any = {"capacity": {"a": np.int64(3)}, "keep_every": np.int64(2), "replicas": np.int64(1)}
    assert make_plan(branched(), np.int64(5), np.array(4), counted, **sizes).to_json() == plain.to_json()  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="plan: steps is 4.0; allowed: whole numbers"):
        make_plan(branched(), 5, 4.0, target)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(version=9), "version is 9; this version of sparsesnn reads 2: make the plan again"),
        (
            lambda d: d.update(version=1),
            r"version is 1; .* reads 2: make the plan again .*version 1 numbers the tiles",
        ),
        (lambda d: d.update(version=[1]), r"version is \[1\]; .* reads 2"),
        (lambda d: d.update(format="other"), "the file is not a plan"),
        (lambda d: d.pop("network"), "key 'network' is missing"),
        (lambda d: d.update(n_samples="5"), "n_samples is '5'; allowed: whole numbers"),
        (lambda d: d.update(optimizer="lbfgs"), "optimizer is 'lbfgs'; allowed: adam, sgd, none"),
        (lambda d: d["populations"][1]["shards"].pop(), "a: shards must cover neurons 0 to 8 in order"),
        (lambda d: d["populations"][1]["shards"][0].pop(0), "a: shards"),
        (lambda d: d["populations"][1]["shards"][0].append(1), "a row does not fit Shard"),
        (lambda d: d["populations"][1]["shards"][0].__setitem__(0, 99), "tile 99, device 0"),
        (lambda d: d["populations"][1]["shards"][0].__setitem__(0, 8), "tile 8, device 0; .*1 device of 8 tiles"),
        (lambda d: d["populations"][1]["shards"][0].__setitem__(0, -1), "whole, from 0 to 2,147,483,647"),
        (lambda d: d["populations"][1].update(capacity=10), "a: capacity is 10; allowed: 0 to 9"),
        (lambda d: d["populations"][1].update(n=8), "the network has"),
        (lambda d: d["populations"][1].update(activity=1.5), "a: activity is 1.5"),
        (lambda d: d.update(populations=3), "wrong type"),
    ],
)
def test_a_damaged_plan_is_refused(change: Any, message: str) -> None:
    data = json.loads(make_plan(branched(), 5, 4, parse_target("ipu-mk2:1x8")).to_json())
    change(data)
    with pytest.raises(ConfigError, match=message):
        Plan.from_json(json.dumps(data))


def test_text_that_is_no_json_is_refused() -> None:
    with pytest.raises(ConfigError, match="plan: not JSON"):
        Plan.from_json("{")


# ---- strategies ------------------------------------------------------------------------------------------------------


def chain(*sizes: int, delay: int = 1, **arguments: Any) -> Network:
    """The input's connection has delay 0, the others `delay`."""
    network = Network.chain(Input(sizes[0]), *(LIF(n, **arguments) for n in sizes[1:]), delay=delay)
    first = network.connections[0]
    return Network(network.populations, (replace(first, delay=0), *network.connections[1:]))


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 12), min_size=2, max_size=3),
    spare=st.integers(0, 8),
    strategy=st.sampled_from(["bytes", "work"]),
)
def test_the_fullest_tile_is_as_empty_as_can_be(sizes: list[int], spare: int, strategy: str) -> None:
    """Against every choice of sizes there is."""
    plan = make_plan(chain(9, *sizes), 5, 4, parse_target("ipu-mk2:1x4"))
    names = [k for k in plan.populations if k != "input"]
    sizing = Sizing(plan, 638_976, len(sizes) + spare, ASSUMPTIONS)

    def level(chosen: dict[str, int]) -> float:
        if strategy == "bytes":
            return max(shard_bytes(plan, k, n) for k, n in chosen.items())
        return max(sum(sizing.cycles(k, n).values()) for k, n in chosen.items())

    choices = product(*(range(2, 2 * -(-plan.populations[k].n // 2) + 1, 2) for k in names))
    best = min(level(c) for c in (dict(zip(names, n, strict=True)) for n in choices) if sizing.feasible(c))
    found = sizing.sizes(strategy)
    assert found is not None
    assert sizing.feasible(found)
    assert level(found) == pytest.approx(best, rel=2e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_and_layout_gives_a_whole_plan(strategy: str, layout: str) -> None:
    network = chain(70, 130, 61, 7)
    plan = make_plan(network, 7, 6, parse_target("ipu-mk2:2x40"), strategy=strategy, layout=layout)
    assert plan.strategy == f"{strategy}, {layout}"
    assert Plan.from_json(plan.to_json()) == plan
    assert tile_totals(plan).max() <= plan.target.bytes_per_tile
    shares = [len(v) for v in plan.tile_to_shards().values()]
    assert max(shares) == 1 or layout == "shared"


def test_search_is_no_slower_than_where_it_started() -> None:
    network = chain(700, 300, 900, 120, 20)
    target = parse_target("ipu-mk2:1x256")
    speed = {
        s: predict(make_plan(network, 24, 50, target, strategy=s, layout="contiguous")).samples_per_s
        for s in STRATEGIES
    }
    assert speed["search"] >= 0.999 * max(speed.values())


def test_an_active_layer_gets_more_tiles_than_a_silent_one_of_its_size() -> None:
    network = chain(100, 400, 400, 400, 10)
    activity = {"hidden2": 0.2, "hidden1": 0.001, "hidden3": 0.001}
    plan = make_plan(
        network,
        24,
        50,
        parse_target("ipu-mk2:1x200"),
        activity=activity,
        max_activity=0.3,
        strategy="work",
        layout="contiguous",
    )
    n_tiles = {k: len(p.shards) for k, p in plan.populations.items()}
    assert n_tiles["hidden3"] > 1.5 * n_tiles["hidden2"]  # reads the active one


def test_layouts_over_devices() -> None:
    target = parse_target("ipu-mk2:4x32")
    network = chain(50, 64, 64, 64, 64)
    contiguous = make_plan(network, 8, 6, target, layout="contiguous", strategy="even")
    assert [sorted({s.device for s in p.shards}) for p in contiguous.populations.values()] == [[], [0], [1], [2], [3]]
    split = make_plan(network, 8, 6, target, layout="split", strategy="even")
    for name, p in split.populations.items():
        if name != "input":
            assert [sum(s.n for s in p.shards if s.device == d) for d in range(4)] == [16] * 4
    assert predict(split).link_bytes_per_step > predict(contiguous).link_bytes_per_step > 0
    shared = make_plan(network, 8, 6, parse_target("ipu-mk2:1x32"), layout="shared")
    assert {len(v) for v in shared.tile_to_shards().values()} == {4}


@pytest.mark.parametrize("layout", ["contiguous", "split", "shared"])
def test_tiles_are_numbered_by_those_that_a_device_has(layout: str) -> None:
    """A real IPU has 1,472, however few of them a plan uses."""
    plan = make_plan(chain(50, 64, 64, 64, 64), 8, 6, parse_target("ipu-mk2:4x32"), layout=layout, strategy="even")
    rows = [row for p in plan.populations.values() for row in (*p.shards, *p.collectors)]
    rows += [r for c in plan.connections for r in c.reducers]
    assert {row.device for row in rows} == {0, 1, 2, 3}
    for row in rows:
        assert 1472 * row.device <= row.tile < 1472 * row.device + 32
    totals = tile_totals(plan)
    assert len(totals) == 4 * 1472
    assert set(np.flatnonzero(totals)) == {row.tile for row in rows}
    assert Plan.from_json(plan.to_json()) == plan
    # the same plan, of devices that have no tiles but those: only the numbers differ
    small = make_plan(
        plan.network,
        8,
        6,
        replace(plan.target, tiles_per_device=None),
        layout=layout,
        strategy="even",
    )
    assert predict(small).phases() == predict(plan).phases()
    for name, p in plan.populations.items():
        assert [s.tile % 1472 + 32 * s.device for s in p.shards] == [s.tile for s in small.populations[name].shards]


def test_a_layer_may_span_devices() -> None:
    plan = make_plan(chain(50, 400, 10), 8, 6, parse_target("ipu-mk2:4x64"), layout="contiguous", strategy="even")
    assert {s.device for s in plan.populations["hidden"].shards} == {0, 1, 2, 3}


def test_helpers_cover_all_samples_and_shards() -> None:
    plan = make_plan(chain(70, 160, 160, 160, 10), 7, 6, parse_target("ipu-mk2:2x128"), layout="split", strategy="even")
    for c in plan.connections:
        if not c.reducers:
            continue
        shards = plan.populations[c.post].shards
        covered = np.zeros((len(shards), plan.n_samples), int)
        for r in c.reducers:
            covered[r.first_shard : r.first_shard + r.n_shards, r.first_sample : r.first_sample + r.n_samples] += 1
            assert {s.device for s in shards[r.first_shard : r.first_shard + r.n_shards]} == {r.device}
        assert (covered == 1).all()
    assert sum(bool(c.reducers) for c in plan.connections) == 2
    per_tile = np.bincount([r.tile for c in plan.connections for r in c.reducers])
    assert per_tile.max() == 1


# ---- delays --------------------------------------------------------------------------------------------------------


def test_delay_0_between_devices_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"connection hidden1->hidden2 has delay 0, but its neurons are on devices .*give delay=1"
    ):
        make_plan(chain(50, 150, 150, 10, delay=0), 8, 6, parse_target("ipu-mk2:2x64"), layout="split")


def test_layers_joined_by_delay_0_stay_together_while_they_fit() -> None:
    network = Network(
        {"input": Input(20), "a": LIF(80), "b": LIF(40), "c": LIF(40), "out": LI(4)},
        (
            Connection("input", "a"),
            Connection("a", "b", 1),
            Connection("b", "c"),
            Connection("c", "out", 1),
        ),
    )
    plan = make_plan(network, 8, 6, parse_target("ipu-mk2:4x64"), layout="contiguous", strategy="even")
    assert crossing(plan) is None
    (b,), (c,) = ({s.device for s in plan.populations[k].shards} for k in "bc")
    assert b == c


def test_a_network_of_delay_0_leaves_other_devices_alone_and_says_so() -> None:
    plan = make_plan(chain(20, 30, 30, 5, delay=0), 8, 6, parse_target("ipu-mk2:2x64"))
    assert {s.device for p in plan.populations.values() for s in p.shards} == {0}
    assert notes(plan) == ["1 of 2 devices have no neurons; layers joined by delay 0 stay on one device: give delay 1"]


def test_layers_beyond_the_last_step_are_pointed_out() -> None:
    plan = make_plan(chain(20, 30, 30, 30, 5), 8, 2, parse_target("ipu-mk2:1x64"))
    assert notes(plan)[0].startswith(
        "2 of 5 populations, from hidden3 on, cannot receive a spike within T=2: delays add up to 3"
    )


# ---- refusal -------------------------------------------------------------------------------------------------------


def test_too_much_for_the_target_is_refused_with_numbers() -> None:
    message = (
        r"hidden2 \(62 neurons\): needs [0-9,]+ bytes on tile [0-9]+ but target 'ipu-mk2:1x48' has 638,976; most of it "
    )
    with pytest.raises(PlanError, match=message) as e:
        make_plan(chain(700, 974, 974, 974, 20), 48, 100, parse_target("ipu-mk2:1x48"), strategy="even")
    assert e.value.needed > e.value.available == 638_976


@pytest.mark.parametrize("layout", ["auto", "contiguous"])
def test_every_proposal_works(layout: str) -> None:
    """A proposal that would be refused again is worse than none."""
    network = chain(700, 700, 700, 20)
    given: dict[str, Any] = {"n_samples": 48, "n_steps": 200, "optimizer": "adam"}
    target = parse_target("ipu-mk2:1x36")
    with pytest.raises(PlanError) as e:
        make_plan(network, target=target, layout=layout, **given)
    proposals = str(e.value).rsplit("; ", 1)[1].split(" or ")
    assert len(proposals) >= 3
    for text in proposals:
        words = text.split()
        if text.startswith("use ipu-mk2"):
            make_plan(network, target=parse_target(words[1]), layout=layout, **given)
        elif text.startswith("lower batch"):
            make_plan(network, target=target, layout=layout, **{**given, "n_samples": int(words[3])})
        elif text.startswith("lower steps"):
            make_plan(network, target=target, layout=layout, **{**given, "n_steps": int(words[3])})
        elif "sgd" in text:
            make_plan(network, target=target, layout=layout, **{**given, "optimizer": "sgd"})
        elif "half-precision" in text:
            make_plan(network, target=target, layout=layout, weight_dtype="half", **given)
        else:
            assert text.startswith("halve capacities")
            capacity = {
                k: -(-p.capacity // 2) for k, p in make_plan(network, 1, 1, target).populations.items() if p.capacity
            }
            make_plan(network, target=target, layout=layout, capacity=capacity, **given)


def test_more_devices_are_proposed_with_the_delay_that_they_need() -> None:
    network = chain(700, 700, 700, 20, delay=0)
    with pytest.raises(PlanError) as e:
        make_plan(network, 48, 200, parse_target("ipu-mk2:1x36"))
    (target,) = re.findall(r"use (ipu-mk2:\S+) with delay 1", str(e.value))
    make_plan(network.with_delay(1), 48, 200, parse_target(target))
    assert "lower batch" in str(e.value)


def test_more_layers_than_tiles_share_them() -> None:
    network = chain(5, 4, 3, 2)
    with pytest.raises(
        PlanError, match=r"3 populations do not fit 'ipu-mk2:1x2' with layout 'contiguous'; use layout 'shared'"
    ):
        make_plan(network, 2, 3, parse_target("ipu-mk2:1x2"), layout="contiguous")
    plan = make_plan(network, 2, 3, parse_target("ipu-mk2:1x2"))
    assert plan.strategy == "search, shared"


def test_unknown_words_are_refused() -> None:
    network, target = chain(5, 4, 3), parse_target("ipu-mk2:1x4")
    for word, allowed in (("strategy", "even, bytes, work, search"), ("layout", "auto, contiguous, split, shared")):
        with pytest.raises(ConfigError, match=f"{word} is 'best'; allowed: {allowed}"):
            make_plan(network, 2, 3, target, **{word: "best"})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="optimizer is 'lion'; allowed: adam, sgd, none"):
        make_plan(network, 2, 3, target, optimizer="lion")
    with pytest.raises(ConfigError, match="weight_dtype is 'int8'; allowed: float32, half"):
        make_plan(network, 2, 3, target, weight_dtype="int8")


# ---- capacities ------------------------------------------------------------------------------------------------------


def test_capacities() -> None:
    network = Network(
        {
            "input": Input(700),
            "own": LIF(500, capacity=33),
            "free": LIF(500),
            "small": LIF(7),
            "all": LIF(40, grad_threshold=float("-inf")),
            "out": LI(3),
        },
        tuple(
            Connection(a, b, 1)
            for a, b in (("input", "own"), ("own", "free"), ("free", "small"), ("small", "all"), ("all", "out"))
        ),
    )
    target = parse_target("ipu-mk2")
    plan = make_plan(network, 2, 3, target)
    assert [p.capacity for p in plan.populations.values()] == [35, 33, 25, 7, 40, 0]
    plan = make_plan(network, 2, 3, target, max_activity=1)
    assert [p.capacity for p in plan.populations.values()] == [700, 33, 500, 7, 40, 0]
    plan = make_plan(network, 2, 3, target, max_activity=0.1, capacity={"own": 20, "input": 48})
    assert [p.capacity for p in plan.populations.values()] == [48, 20, 50, 7, 40, 0]


def test_capacity_from_activity() -> None:
    network = chain(700, 1000, 1000, 10)
    activity = {"input": 0.01, "hidden1": 0.02, "hidden2": 0.0}
    plan = make_plan(network, 2, 3, parse_target("ipu-mk2"), activity=activity, max_activity=None)
    near = ASSUMPTIONS.near_per_spike
    listed = 20 * (1 + near)
    assert [p.capacity for p in plan.populations.values()] == [
        math.ceil(7 + 4 * math.sqrt(7)),
        math.ceil(listed + 4 * math.sqrt(listed)),
        16,
        10,
    ]


# ---- cpu -------------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(1, 900), min_size=2, max_size=4), ranks=st.integers(1, 9), cores=st.integers(1, 5))
def test_ranks_get_slabs_of_the_engine(sizes: list[int], ranks: int, cores: int) -> None:
    network = Network.chain(Input(11), *(LIF(n) for n in sizes))
    plan = make_plan(network, 3, 4, parse_target(f"mpi:{ranks}x{cores}"))
    assert Plan.from_json(plan.to_json()) == plan
    for name, p in plan.populations.items():
        if name == "input":
            continue
        n_pre = max(plan.populations[c.pre].n for c in plan.incoming(name))
        width = cpu_tile_width(p.n, n_pre)
        slabs = [(k, first, min(width, p.n - first)) for k, first in enumerate(range(0, p.n, width))]
        assert [(s.tile, s.first, s.n) for s in p.shards] == slabs
        owners = [s.rank for s in p.shards]
        assert owners == sorted(owners)  # each rank's neurons are one range
        counts = np.bincount(owners, minlength=ranks)
        assert counts.max() - counts.min() <= 1
        assert all(0 <= s.worker < cores for s in p.shards)


@pytest.mark.parametrize("n_pre", [1, 700, 1000, 1024, 2048, 4096, 10_000])
def test_the_width_of_a_slab_is_a_function_of_the_network(n_pre: int) -> None:
    for n in (1, 8, 9, 16, 17, 32, 33, 1000):
        plan = make_plan(Network.chain(Input(n_pre), LIF(n)), 3, 4, parse_target("mpi:3x2"))
        shards = plan.populations["output"].shards
        widths = {s.n for s in shards[:-1]} or {16}
        assert widths == {cpu_tile_width(n, n_pre)} or len(shards) == 1
        assert widths <= set(CPU_TILE_WIDTHS)
        assert sum(s.n for s in shards) == n


@pytest.mark.parametrize(("n_pre", "width"), [(4096, 64), (4097, 32), (8193, 16)])
def test_copies_with_delays_leave_the_width_of_a_slab_alone(n_pre: int, width: int) -> None:
    """The engine reads one connection after the other. In a plan and without one."""
    network = Network.chain(Input(n_pre), LIF(129, recurrent=True), LI(3)).with_delays((0, 2, 7))
    shards = make_plan(network, 3, 4, parse_target("mpi:1x1")).populations["hidden"].shards
    assert {s.n for s in shards[:-1]} == {width}
    layer = Layer(LIF(129, recurrent=True), n_pre=[n_pre] * 3, delays=[0, 2, 7])
    assert tile_width(layer) == width


def test_populations_of_maps_are_whole_on_one_rank() -> None:
    network = parse_net("2x34x34:5C16s2-3C32s2-140-10")
    plan = make_plan(network, 8, 9, parse_target("mpi:3x2"))
    ranks = {name: {shard.rank for shard in p.shards} for name, p in plan.populations.items()}
    assert [len(ranks[name]) for name in ("hidden1", "hidden2", "hidden3")] == [1, 1, 3]
    assert ranks["hidden1"] != ranks["hidden2"]
    assert "hidden1, hidden2, with maps as input, whole on one" in plan.strategy
    assert sum(sum(items.values()) > 0 for items in rank_bytes(plan)) == 3


# ---- requirements ------------------------------------------------------------------------------------------------------


def test_a_plan_needs_no_compiled_engine(tmp_path: Path) -> None:
    """Neither the engine nor the emulated IPU: whoever has only a description of a machine can plan for it."""
    code = """
import sys
for module in ("_core", "_ipu", "_ipu_sdk"):
    sys.modules[f"sparsesnn.{module}"] = None
from sparsesnn.errors import ConfigError
from sparsesnn.network import parse_net
from sparsesnn.partition import Plan, make_plan, parse_target, predict
from sparsesnn.partition import drawing
from sparsesnn.partition.report import table
for target in ("ipu-mk2:2x64", "cpu:3", "mpi:5x2"):
    plan = make_plan(parse_net("31-97r-53-7"), 5, 9, parse_target(target))
    assert Plan.from_json(plan.to_json()) == plan
    text = table(plan)
    try:
        print(target, predict(plan).samples_per_s > 0, "predict" in text)
    except ConfigError as error:
        print(target, f"'{target}'" in str(error), "dry-run" in str(error) and "dry-run" in text)
import sparsesnn
try:
    sparsesnn.Model
except ImportError as error:
    print(error)
"""
    found = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[:3] == [f"{k} True True" for k in ("ipu-mk2:2x64", "cpu:3", "mpi:5x2")]
    assert "sparsesnn.Model needs the compiled engine (sparsesnn._core)" in found.stdout


def test_layers_that_are_alike_are_weighed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network of hundreds of equal layers takes hardly longer to size than one of a few."""
    calls = []
    monkeypatch.setattr(strategies, "shard_bytes", lambda *given: calls.append(given[1:]) or shard_bytes(*given))

    def weighed(depth: int) -> set[tuple[str, int]]:
        calls.clear()
        network = Network.chain(Input(31), *(LIF(97) for _ in range(depth)), LI(5), delay=1)
        sizes = Sizing(make_plan(network, 3, 5, parse_target("ipu-mk2")), 600_000, 1472, ASSUMPTIONS).by_bytes()
        assert sizes is not None
        assert len({sizes[k] for k in list(sizes)[1:-2]}) == 1
        return {name for name, _ in calls}

    assert len(weighed(40)) == len(weighed(5)) == 3  # the first hidden layer, the others, the readout
