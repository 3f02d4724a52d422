from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsesnn.errors import ConfigError, PlanError
from sparsesnn.layers import LI, LIF, CubaLIF, Input
from sparsesnn.network import Connection, Network, parse_net
from sparsesnn.partition.memory import tile_totals
from sparsesnn.partition.plan import Plan
from sparsesnn.partition.planner import make_plan
from sparsesnn.partition.target import parse_target


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(version=9), "version is 9; this copy reads 1"),
        (lambda d: d.update(format="other"), "the file is no plan"),
        (lambda d: d.pop("network"), "key 'network' is missing"),
        (lambda d: d.update(n_samples="5"), "n_samples is '5'; give a whole number"),
        (lambda d: d.update(optimizer="lbfgs"), "optimizer is 'lbfgs'; allowed: adam, sgd, none"),
        (lambda d: d["populations"][1]["shards"].pop(), "a: shards must cover neurons 0 to 8 in order"),
        (lambda d: d["populations"][1]["shards"][0].pop(0), "a: shards"),
        (lambda d: d["populations"][1]["shards"][0].append(1), "a row does not fit Shard"),
        (lambda d: d["populations"][1]["shards"][0].__setitem__(0, 99), "tile 99, device 0"),
        (lambda d: d["populations"][1]["shards"][0].__setitem__(0, -1), "whole and not negative"),
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


def test_too_much_for_the_target_is_refused_with_numbers() -> None:
    with pytest.raises(
        PlanError, match=r"needs [0-9,]+ bytes on tile [0-9]+ but target 'ipu-mk2:1x4' has 638,976"
    ) as e:
        make_plan(parse_net("700-1024-20"), 48, 100, parse_target("ipu-mk2:1x4"))
    assert e.value.needed > e.value.available == 638_976
