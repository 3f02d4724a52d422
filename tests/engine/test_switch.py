"""Training steps of the engine `cpu` take dense products where a network is busy: when, with which gradients, and where never."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch

from sparsesnn.engines import Batch, Options, Training, make_engine
from sparsesnn.engines.cpu import switch as rule
from sparsesnn.engines.cpu.engine import CpuEngine
from sparsesnn.engines.cpu.switch import BEGIN, END, MAPS, MATRICES, Shares, Switch, goes_dense
from sparsesnn.engines.dense import pieces
from sparsesnn.engines.ranks.engine import RanksEngine
from sparsesnn.host.comm import Communicator, make_grid, simulate
from sparsesnn.layers import LI, LIF, Input, Population
from sparsesnn.network import Connection, Network, parse_net
from sparsesnn.runtime import num_threads, set_num_threads
from sparsesnn.spikes import SpikeBatch

MAPS_NET = "2x9x7:3C5p-MP2-7-4"


@pytest.fixture(autouse=True)
def small_steps_too(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Networks of a test are too small to gain anything; PyTorch has one thread, as in training."""
    monkeypatch.setattr(rule, "LEAST_PRODUCTS", 0)
    threads, mine = torch.get_num_threads(), num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    set_num_threads(mine)


def engine_of(
    network: Network, lists: str = "auto", weight_dtype: str = "float32", decoding: str = "mean"
) -> CpuEngine:
    made = make_engine("cpu", network, Training(4, decoding, options=Options(lists=lists, weight_dtype=weight_dtype)))
    assert isinstance(made, CpuEngine)
    return made


def switch_of(engine: CpuEngine) -> Switch:
    assert engine.switch is not None
    return engine.switch


def batch_of(network: Network, share: float, n_steps: int = 7, n_samples: int = 5, seed: int = 1) -> Batch:
    g = torch.Generator().manual_seed(seed)
    shape = (n_steps, n_samples, network.populations["input"].n)
    fired = torch.rand(shape, generator=g).lt(share).float()
    return Batch(SpikeBatch.from_dense(fired), torch.randint(0, 4, (n_samples,), generator=g))


# ---- the rule ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cost", "fired", "near", "dense"),
    [
        (MAPS, 0.15, 0.01, False),  # N-MNIST, 5 % fired: 0.4 to 0.6 of the time of dense products
        (MAPS, 0.15, 0.65, True),  # the same with every neuron listed: 1.6 to 2.3
        (MAPS, 0.35, 0.01, False),  # 15 % fired: 0.8 to 1.0
        (MAPS, 0.71, 0.01, True),  # DVS Gesture, 30 % fired: 1.1 to 1.3
        (MATRICES, 0.02, 0.59, False),  # 700-1024-1024-20, every neuron listed: 0.5
        (MATRICES, 0.30, 0.0, False),  # half of the neurons fired, none more listed: 0.7
        (MATRICES, 0.38, 0.25, True),  # 56 % fired, all listed: 1.0 to 1.1
        (MATRICES, 0.60, 0.0, True),  # all fired: 1.4
    ],
)
def test_the_break_even_is_where_it_was_measured(cost: rule.Cost, fired: float, near: float, dense: bool) -> None:
    assert goes_dense(False, cost, Shares(fired, near)) == dense


@pytest.mark.parametrize("cost", [MAPS, MATRICES])
def test_a_choice_stays_until_activity_has_moved_on(cost: rule.Cost) -> None:
    between = Shares((0.5 * (BEGIN + END) - cost.still) / cost.fired, 0.0)
    assert [goes_dense(dense, cost, between) for dense in (False, True)] == [False, True]
    less, more = Shares(0.8 * between.fired, 0.0), Shares(1.3 * between.fired, 0.0)
    assert not goes_dense(True, cost, less)
    assert goes_dense(False, cost, more)


def test_shares_are_weighted_by_the_products_that_spikes_save() -> None:
    network = parse_net("11-13-4", grad_threshold=-torch.inf)
    engine, batch = engine_of(network), batch_of(network, 0.4)
    output = engine.run(batch)
    activity = {"input": batch.spikes.activity(), **output.activity()}
    switch = switch_of(engine)
    fired = (11 * 13 * activity["input"] + 13 * 4 * activity["hidden"]) / (11 * 13 + 13 * 4)
    near = 13 * 4 * (1 - activity["hidden"]) / (11 * 13 + 13 * 4)
    found = switch._shares(activity, output)
    assert (found.fired, found.near) == pytest.approx((fired, near))
    assert switch.listed == pytest.approx(1), "of the neurons that do not fire, all are listed"


def test_a_pool_hands_on_more_than_its_neurons_fire() -> None:
    network = parse_net(MAPS_NET)
    switch = switch_of(engine_of(network))
    (first, second, third), spikes = switch.senders, batch_of(network, 0.1).spikes
    assert [s.window for s in switch.senders] == [1, 4, 1]
    assert [s.n_products for s in switch.senders] == [9 * 7 * 5 * 18, 4 * 3 * 5 * 7, 7 * 4]
    found = switch._shares({"input": 0.1, "hidden1": 0.2, "hidden2": 0.0}, switch.dense(spikes))
    wanted = first.n_products * 0.1 + second.n_products * (1 - 0.8**4) + third.n_products * 0
    assert found.fired == pytest.approx(wanted / switch.n_products)


def test_small_and_very_large_steps_take_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    network = parse_net("11-13-4")
    engine, spikes = engine_of(network), batch_of(network, 0.5).spikes
    switch = switch_of(engine)
    switch.is_dense = True
    products, numbers = 35 * (11 * 13 + 13 * 4), 35 * (11 + 13 + 4)
    for least, most, dense in (
        (products, numbers, True),
        (products + 1, numbers, False),
        (products, numbers - 1, False),
    ):
        monkeypatch.setattr(rule, "LEAST_PRODUCTS", least)
        monkeypatch.setattr(rule, "MOST_NUMBERS", most)
        assert (switch.model_for(spikes) is switch.dense) == dense


# ---- the same step -------------------------------------------------------------------------------------------------

NETWORKS = {
    "maps": parse_net(MAPS_NET, grad_threshold=0.2),
    "every neuron listed": parse_net(MAPS_NET, grad_threshold=-torch.inf, bias=True),
    "parameters that learn": parse_net("13-11-4", learn_beta=True, learn_threshold=True, bias=True),
    "recurrent, delays": parse_net("13-11r-7-4", grad_threshold=0.1).with_delays([0, 2]),
    "loops with and without delays": Network(
        {"input": Input(13), "a": LIF(11), "b": LIF(9, recurrent=True), "c": LIF(7), "out": LI(4)},
        [
            *(Connection(pre, post) for pre, post in pairwise(("input", "a", "b", "c", "out"))),
            Connection("a", "a", delay=2),
        ],
    ),
    "spiking readout": Network.chain(Input(13), LIF(11), LIF(4)),
    "synaptic current": parse_net("13-11-4", alpha=0.8),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_both_ways_have_the_same_gradients(name: str) -> None:
    network = NETWORKS[name]
    batch, found = batch_of(network, 0.6, 9, 6), []
    for dense in (False, True):
        engine = engine_of(network, decoding="count" if name == "spiking readout" else "mean")
        with torch.no_grad():
            for p in engine.model.parameters():
                p.mul_(2 if p.ndim > 1 else 1)
        switch_of(engine).is_dense = dense
        step = engine.step(batch, 0.0)
        found.append((step, {k: p.grad.clone() for k, p in engine.model.named_parameters()}))
    (lists, want), (products, got) = found
    assert min(lists.activity.values()) > 0
    assert lists.activity.keys() == {k for k, p in network.populations.items() if isinstance(p, Population)}
    assert (products.activity, products.dropped, products.n_correct) == (
        lists.activity,
        lists.dropped,
        lists.n_correct,
    )
    assert (products.loss, products.gradient_norm) == pytest.approx((lists.loss, lists.gradient_norm), rel=1e-5)
    for key, g in want.items():
        worst = float((got[key] - g).abs().max())
        assert worst <= 1e-5 * float(g.abs().max()), f"{key}: {worst:.2e} of {float(g.abs().max()):.2e}"


def steps_of(engine: CpuEngine, batches: list[Batch]) -> list[bool]:
    """Which steps took dense products."""
    found = []
    for batch in batches:
        found.append(switch_of(engine).is_dense)
        engine.step(batch, 0.01)
    return found


def test_it_begins_says_so_once_and_goes_back() -> None:
    network = parse_net(MAPS_NET, grad_threshold=0.9)
    engine = engine_of(network)
    notes, dense = [], []
    for share in (0.05, 0.9, 0.9, 0.9, 0.05, 0.05):
        dense.append(switch_of(engine).is_dense)
        notes.append(engine.step(batch_of(network, share), 0.0).note)
    assert dense == [False, False, True, True, True, False]
    assert [bool(text) for text in notes] == [False, True, False, False, True, False]
    assert "of the senders fire" in notes[1]
    assert notes[1].endswith("training steps go on with dense products")
    assert notes[4].endswith("training steps go on with lists")


def test_inference_takes_lists_whatever_was_chosen() -> None:
    network = parse_net(MAPS_NET)
    batch, found = batch_of(network, 0.9), []
    for dense in (False, True):
        engine = engine_of(network)
        switch_of(engine).is_dense = dense
        assert isinstance(engine.run(batch).spikes["hidden1"], SpikeBatch)
        found.append(engine.infer(batch))
    assert found[0] == found[1]


def test_a_checkpoint_keeps_the_choice() -> None:
    network = parse_net(MAPS_NET, grad_threshold=0.2)
    batches = [batch_of(network, share, seed=k) for k, share in enumerate((0.9, 0.9, 0.9, 0.0, 0.2))]
    whole, first, second = (engine_of(network) for _ in range(3))
    steps_of(whole, batches)
    steps_of(first, batches[:3])
    second.load(first.state(), "here")
    assert (switch_of(second).is_dense, switch_of(second).listed) == (True, switch_of(first).listed)
    steps_of(second, batches[3:])
    assert second.weights_sha256() == whole.weights_sha256()
    older = {name: x for name, x in first.state().items() if not name.startswith("switch/")}
    second.load(older, "here")
    assert not switch_of(second).is_dense, "a checkpoint of an older version goes on with lists"


@pytest.mark.parametrize("net", [MAPS_NET, "2x16x16:5C8p-3C16p-4", "130-75-4"])
def test_bits_do_not_depend_on_threads(net: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "LEAST_PRODUCTS", 1000)
    network = parse_net(net, grad_threshold=0.2)
    batches = [batch_of(network, 0.9, 11, 9, seed=k) for k in range(4)]
    found = set()
    for threads in (1, 2, 3):
        set_num_threads(threads)
        engine = engine_of(network)
        assert steps_of(engine, batches)[1:] == [True] * 3
        found.add(engine.weights_sha256())
    assert len(found) == 1


# ---- where it never does -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "lists", "weight_dtype"),
    [
        (parse_net("13-11-4"), "always", "float32"),
        (parse_net("13-11-4"), "auto", "bfloat16"),
        (parse_net("13-11-4", capacity=9), "auto", "float32"),
        (parse_net("13-11p0.5-4"), "auto", "float32"),
        (parse_net("13-11-4").with_axonal_delays(2), "auto", "float32"),
    ],
)
def test_lists_alone(network: Network, lists: str, weight_dtype: str) -> None:
    engine = engine_of(network, lists, weight_dtype)
    assert engine.switch is None
    assert not engine.step(batch_of(network, 0.99), 0.01).note
    assert not [name for name in engine.state() if name.startswith("switch/")]


@pytest.mark.parametrize("weight_dtype", ["int8", "int4"])
def test_rounded_weights_are_rounded_for_dense_products_too(weight_dtype: str) -> None:
    network, found = parse_net("13-11-4"), []
    for dense in (False, True):
        engine = engine_of(network, weight_dtype=weight_dtype)
        switch_of(engine).is_dense = dense
        found.append(engine.step(batch_of(network, 0.9), 0.01))
    assert found[1].loss == pytest.approx(found[0].loss, rel=1e-5)
    assert found[1].activity == found[0].activity


def test_ranks_keep_lists_and_their_bits() -> None:
    network = parse_net("13-75-4", grad_threshold=0.2)
    batches = [batch_of(network, 0.95, seed=k) for k in range(3)]

    def on_rank(world: Communicator) -> str:
        engine = make_engine("cpu", network, Training(4, "mean"), make_grid(world, 1, 2))
        assert isinstance(engine, RanksEngine)
        assert engine.switch is None
        engine.start()
        for batch in batches:
            assert not engine.step(batch, 0.01).note
        return engine.weights_sha256()

    always = engine_of(network, "always")
    for batch in batches:
        always.step(batch, 0.01)
    assert set(simulate(2, on_rank)) == {always.weights_sha256()}
    assert steps_of(engine_of(network), batches) == [False, True, True], "one process would switch here"


def test_a_readout_alone_has_no_near_spikes() -> None:
    network = Network.chain(Input(13), LI(4))
    engine = engine_of(network)
    engine.step(batch_of(network, 0.9), 0.01)
    assert switch_of(engine).listed == 0
