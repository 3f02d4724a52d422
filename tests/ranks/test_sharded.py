"""A network over several ranks against the same network on one: lists, gradients and weights, bit for bit."""

from __future__ import annotations

import gc
import threading
import weakref
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from ranks_random import (
    GROUP,
    Case,
    alone,
    compare,
    compare_step,
    loss_of,
    random_case,
    random_spikes,
    samples_of,
    strengthen,
)

from sparsesnn import _core
from sparsesnn.delays import Delays
from sparsesnn.engines.module import Model
from sparsesnn.engines.ranks.shards import make_shards
from sparsesnn.errors import DescriptionError, ShapeError, SpikeListError
from sparsesnn.host import shared_memory
from sparsesnn.host.comm import Communicator, Grid, make_grid, simulate
from sparsesnn.layers import LI, LIF, AdLIF, CubaLIF, Input, Neuron, NeuronArrays, PerNeuron, Resonator, parameter
from sparsesnn.network import Connection, Network, parse_net
from sparsesnn.synapses import Conv2d, Dense, Pool, Series, Sparse, Synapses, sparse

GRIDS = [(1, 2), (2, 1), (1, 3), (3, 1), (2, 2), (1, 4), (4, 1)]


@pytest.fixture(autouse=True)
def _small_weights_are_common_too(monkeypatch):
    monkeypatch.setattr(shared_memory.CommonWeights, "LEAST", 0)
    monkeypatch.setattr(sparse, "DENSEST", 1 / 32)


def check(network: Network, n_replicas: int, n_shards: int, **of_case: Any) -> None:
    """A network over ranks that are threads has the bits of one process."""
    case = Case(network, n_replicas, n_shards, **of_case)
    expected = alone(case)
    assert not expected.silent
    simulate(case.ranks, lambda world: compare(case, expected, world))


FEED_FORWARD = {
    "plain": ("30-75-40-10", {}),
    "learnt": ("30-130-90-10s", {"bias": True, "learn_beta": True, "learn_threshold": True}),
    "capacity": ("30-140-40-10", {"capacity": 9}),
    "capacity-zero": ("30-75-40-10", {"capacity": 9, "reset": "zero"}),
    "fixed": ("30-75-140-10", {"capacity": 9, "activity": "fixed"}),
    "reset-gradient": ("30-150-100-10", {"capacity": 19, "learn_beta": True, "detach_reset": False}),
    "current-based": ("30-140c-70c-10", {"learn_alpha": True}),
    "all-listed": ("30-140-210-10", {"grad_threshold": -float("inf")}),
    "sparse": ("30-140p0.2-240p0.02-10", {"bias": True}),
    "sparse-capacity": ("30-240-140p0.02-10", {"capacity": 19}),
    "decays-at-their-ends": ("30-140c-70c-10", {"alpha": 0.0, "beta": 1.0, "learn_alpha": True, "learn_beta": True}),
}
RECURRENT = {
    "plain": ("30-75r-40c-10", {}),
    "learnt": ("30-150cr-100r-10s", {"bias": True, "learn_beta": True, "reset": "zero"}),
    "capacity": ("30-150r-40-10", {"capacity": 9}),
    "fixed-zero": ("30-150r-90-10", {"capacity": 9, "reset": "zero", "activity": "fixed"}),
    "reset-gradient": ("30-150r-100-10", {"capacity": 19, "learn_beta": True, "detach_reset": False}),
    "sparse": ("30-240rp0.02-90p0.3-10", {}),
    "sparse-capacity": ("30-150rp0.02-90crp0.02-10", {"capacity": 29, "reset": "zero"}),
    "all-listed": ("30-100r-10", {"grad_threshold": -float("inf")}),
}


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: f"{grid[0]}x{grid[1]}")
@pytest.mark.parametrize("name", FEED_FORWARD)
def test_feed_forward(name, grid):
    net, rules = FEED_FORWARD[name]
    check(parse_net(net, **rules), *grid)


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: f"{grid[0]}x{grid[1]}")
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent(name, grid):
    net, rules = RECURRENT[name]
    check(parse_net(net, **rules), *grid)


@pytest.mark.parametrize("delay", [1, 3])
def test_large_recurrent_layers_hear_their_sources_first(delay):
    """Large weights and many rows: tile by tile, for some steps of a half of the samples at a time."""
    loop = (Connection("a", "b"), Connection("b", "b", delay), Connection("b", "c"))
    network = Network({"a": Input(60), "b": LIF(1100, bias=True), "c": LI(10)}, loop)
    check(network, 1, 2, n_steps=19, n_samples=60)


LOOPS = {
    "plain": ((Dense(), Dense()), (1, 5), LIF(150, bias=True)),
    "capacity": ((Dense(),), (2,), LIF(150, capacity=9, grad_threshold=0.5)),
    "late": ((Dense(), Dense()), (3, 14), CubaLIF(100, reset="zero", detach_reset=False, learn_beta=True)),
    "sparse": ((Sparse(0.02), Dense(), Sparse(0.2)), (1, 4, 2), LIF(210, learn_beta=True)),
    "slabs": ((Dense(), Dense()), (4, 7), LIF(150, bias=True)),
    "slabs-capacity": ((Dense(),), (3,), LIF(150, capacity=9, reset="zero")),
    "slabs-fixed": ((Dense(),), (5,), LIF(150, capacity=9, activity="fixed")),
    "slabs-sparse": ((Sparse(0.2), Sparse(0.05)), (6, 12), LIF(210, learn_threshold=True)),
    "slabs-traces": ((Dense(),), (2,), LIF(150, capacity=9, grad_threshold=0.2, learn_beta=True, detach_reset=False)),
    "slabs-adaptive": ((Dense(), Sparse(0.2)), (7, 2), AdLIF(150, capacity=19, gain=8.0, learn_rho=True)),
    "one-slab": ((Dense(),), (14,), LIF(100)),
}


@pytest.mark.parametrize("grid", [(1, 3), (2, 2)], ids=lambda grid: f"{grid[0]}x{grid[1]}")
@pytest.mark.parametrize("name", LOOPS)
def test_loops_with_delays(name, grid):
    kinds, delays, hidden = LOOPS[name]
    loops = [Connection("b", "b", delay, synapses=kind) for kind, delay in zip(kinds, delays, strict=True)]
    populations = {"a": Input(30), "b": hidden, "c": LIF(70), "d": LI(10)}
    check(Network(populations, (Connection("a", "b"), *loops, Connection("b", "c"), Connection("c", "d"))), *grid)


AXONAL: dict[str, dict[str, Any]] = {
    "between": {"learn": True},
    "whole": {"learn": False},
    "capacity": {"learn": True, "capacity": 9},
    "sparse": {"learn": True, "synapses": Sparse(0.02)},
}


def axonal_network(learn: bool, synapses: Synapses | None = None, **arguments: Any) -> Network:
    """Axonal delays from the input, between populations, and of recurrent connections."""
    return Network(
        {"input": Input(30), "a": LIF(140, **arguments), "b": LIF(33, bias=True), "out": LI(10)},
        (
            Connection("input", "a", axonal=Delays(4, learn=learn, seed=1)),
            Connection("a", "a", 2, synapses or Dense(), Delays(3, learn=learn, seed=2)),
            Connection("a", "a", 3),
            Connection("a", "b", axonal=Delays(2, learn=learn, seed=3)),
            Connection("b", "b", 1, axonal=Delays(5, learn=learn, seed=4)),
            Connection("b", "out", axonal=Delays(1, learn=learn, seed=5)),
        ),
    )


@pytest.mark.parametrize("name", AXONAL)
@pytest.mark.parametrize("grid", [(1, 2), (2, 1), (1, 3), (3, 2)], ids=lambda grid: f"{grid[0]}x{grid[1]}")
def test_axonal_delays(name, grid):
    check(axonal_network(**AXONAL[name]), *grid)


@pytest.mark.parametrize("delay", [1, 2, 4, 13])
@pytest.mark.parametrize("capacity", [None, 9])
def test_spikes_travel_once_in_a_delay(delay, capacity):
    """13 steps in slabs of the delay, in two halves of the samples, there and back; the last slab's spikes reach no neuron."""
    hidden = LIF(100, capacity=capacity)
    loop, none = Connection("b", "b", delay), Connection("a", "b")
    populations = {"a": Input(30), "b": hidden, "d": LI(10)}

    def messages(world: Communicator, *loops: Connection) -> int:
        network = Network(populations, (none, *loops, Connection("b", "d")))
        model = Model(network, grid=make_grid(world, 1, 2), seed=1)
        strengthen(model)
        before = world.traffic.n_messages
        loss_of(model(random_spikes(13, 19, 30)), 0, 19).backward()
        return world.traffic.n_messages - before

    n_slabs = -(-13 // delay)
    forward = n_slabs if capacity else n_slabs - 1  # a capacity asks for counts of all
    scans = 1 if capacity else 0  # without a loop
    with_loop, without = (simulate(2, lambda world, loops=loops: messages(world, *loops)) for loops in ((loop,), ()))
    assert with_loop == [n - scans + 2 * (forward + n_slabs - 1) for n in without]


ADAPTIVE = {
    "symplectic": {"reset": "zero", "recurrent": True},
    "explicit": {"reset": "subtract", "detach_reset": False, "capacity": 31},
    "sparch": {"reset": "subtract", "recurrent": True, "detach_reset": False},
}


@pytest.mark.parametrize("grid", [(1, 2), (2, 1), (1, 3), (2, 2)], ids=lambda grid: f"{grid[0]}x{grid[1]}")
@pytest.mark.parametrize("order", ADAPTIVE)
def test_adaptive_neurons(order, grid):
    learns = {f"learn_{name}": True for name in ("beta", "rho", "a", "b", "threshold")}
    beta = tuple(np.linspace(0.7, 0.95, 140))
    hidden = AdLIF(140, beta=beta, order=order, gain=8.0, q=6.0, **ADAPTIVE[order], **learns)
    check(Network.chain(Input(30), hidden, LI(10)), *grid)


@pytest.mark.parametrize("grid", [(1, 2), (2, 2)], ids=lambda grid: f"{grid[0]}x{grid[1]}")
def test_resonators(grid):
    hidden = Resonator(140, recurrent=True, detach_reset=False, learn_turn=True, learn_beta=True)
    check(Network.chain(Input(30), hidden, LI(10)), *grid)


@dataclass(frozen=True)
class Tiring(Neuron):
    """Three states: a synaptic current, and an adaptation of the threshold, which the reset reads too."""

    beta: PerNeuron = parameter(0.9, "decay of the potential", low=0, high=1)
    rho: PerNeuron = parameter(0.9, "decay of the adaptation", low=0, high=1)
    states: ClassVar = ("x", "j", "a")

    def arrays(self, p: Any) -> NeuronArrays:
        b, r = p["beta"], p["rho"]
        return NeuronArrays(
            A=[[b, 1, b - r], [0, 0.8, 0], [0, 0, r]],
            R=[[0, 0, -1], [0, 0, 0], [0, 0, 0]],
            r=[-p["threshold"], 0, 0],
            f=[r - 1, 0, 1 - r],
            B=[0, 1, 0],
            sequential=True,
        )


@dataclass(frozen=True)
class Filtered(Neuron):
    """A readout of two states."""

    beta: PerNeuron = parameter(0.9, "decay of both states", low=0, high=1)
    fires: ClassVar = False
    states: ClassVar = ("out", "v")

    def arrays(self, p: Any) -> NeuronArrays:
        b = p["beta"]
        return NeuronArrays(A=[[b, 1 - b], [0, b]], B=[0, 1 - b])


@pytest.mark.parametrize("grid", [(1, 2), (2, 1), (2, 2), (1, 4)], ids=lambda grid: f"{grid[0]}x{grid[1]}")
def test_models_of_ones_own(grid):
    """A readout of many neurons, so that it has tiles on several ranks."""
    learns = {"learn_beta": True, "learn_rho": True, "learn_threshold": True}
    hidden = Tiring(140, beta=tuple(np.linspace(0.7, 0.95, 140)), recurrent=True, capacity=40, **learns)
    check(Network.chain(Input(30), hidden, Filtered(150, learn_beta=True, bias=True), delay=1), *grid)


def on_hosts(monkeypatch: pytest.MonkeyPatch, n_hosts: int) -> None:
    """Simulated ranks, dealt out to hosts in turn, that see no memory of other hosts."""
    own_file, open_file = shared_memory._own_file, shared_memory._open

    def host() -> str:
        return str(int(threading.current_thread().name.rsplit("-", 1)[1]) % n_hosts)

    def open_near(text: str) -> Any:
        where, _, file = text.partition(" ")
        return open_file(file) if where == host() else None

    monkeypatch.setattr(shared_memory, "_own_file", lambda: f"{host()} {own_file()}")
    monkeypatch.setattr(shared_memory, "_open", open_near)


@pytest.mark.parametrize("n_hosts", [2, 4])
@pytest.mark.parametrize("grid", [(2, 1), (3, 1), (2, 2), (4, 1)], ids=lambda grid: f"{grid[0]}x{grid[1]}")
def test_replicas_on_several_hosts(grid, n_hosts, monkeypatch):
    on_hosts(monkeypatch, n_hosts)
    check(parse_net("30-75-40-10"), *grid)
    check(parse_net("30-75r-40c-10", bias=True), *grid, n_samples=100)


@pytest.mark.parametrize(("n_replicas", "n_samples"), [(2, 129), (4, 256), (8, 511)])
def test_even_replicas_send_one_sum(n_replicas, n_samples, monkeypatch):
    """Each has one branch of the tree of groups: to each other replica a message of rows forth and back, and one that says which."""
    on_hosts(monkeypatch, n_replicas)
    network = Network.chain(Input(30), LIF(75, recurrent=True), LI(10))
    check(network, n_replicas, 1, n_steps=5, n_samples=n_samples, silent=10)

    def messages(world: Communicator) -> int:
        grid = make_grid(world, n_replicas, 1)
        model = Model(network, grid=grid, seed=1)
        strengthen(model)
        first, last = samples_of(world.rank, n_replicas, n_samples)
        loss_of(model(random_spikes(5, n_samples, 30)[first:last], first_sample=first), first, n_samples).backward()
        before = world.traffic.n_messages
        model.finish_backward()
        return world.traffic.n_messages - before

    # three weights, of which the first two have ended some rounds while others ran backwards
    assert max(simulate(n_replicas, messages)) <= 3 * 2 * 2 * (n_replicas - 1)


def test_the_first_rank_alone_sees_whole_weights():
    network = parse_net("30-140r-75-10")
    expected = {name: x.detach().numpy() for name, x in Model(network, seed=1).named_parameters()}

    def run(world: Communicator) -> int:
        model = Model(network, grid=make_grid(world, 1, 3), seed=1)
        before = world.traffic.copy()
        for name, x in model.named_parameters():
            blocks = list(model.parts.whole_rows(name, x))
            if world.rank == 0:
                assert np.array_equal(np.concatenate(blocks).ravel(), expected[name].ravel())
            else:
                assert blocks == []
        return world.traffic.since(before).bytes_received

    first, *others = simulate(3, run)
    assert others == [0, 0]
    assert 0 < first < sum(x.nbytes for x in expected.values())


def test_even_replicas_of_which_some_share_a_host(monkeypatch):
    on_hosts(monkeypatch, 3)
    check(Network.chain(Input(30), LIF(75), LI(10)), 4, 1, n_steps=5, n_samples=256)


@pytest.mark.parametrize("net", ["30-40-10", "30-40r-10"])
def test_a_pass_that_failed_does_not_count(net):
    """The next one may have other samples; wrong ones are found before anything runs."""
    spikes = random_spikes(5, 3 * GROUP, 30)

    def learn(model: Model, first: int, last: int, n_samples: int) -> list[torch.Tensor]:
        model.learn(spikes[first:last], lambda out: loss_of(out, first, n_samples), first_sample=first)
        model.finish_backward()
        return [x.grad for x in model.parameters()]

    def fails(output: Any) -> torch.Tensor:
        raise ValueError("no loss")

    expected = learn(Model(parse_net(net), seed=1), 0, 3 * GROUP, 3 * GROUP)

    def run(world: Communicator) -> None:
        model, r = Model(parse_net(net), grid=make_grid(world, 2, 1), seed=1), world.rank
        with pytest.raises(ValueError, match="no loss"):
            model.learn(spikes[r * GROUP : (r + 1) * GROUP], fails, first_sample=r * GROUP)
        first, last = (0, 2 * GROUP) if r == 0 else (2 * GROUP, 3 * GROUP)
        for grad, wanted in zip(learn(model, first, last, 3 * GROUP), expected, strict=True):
            assert torch.equal(grad, wanted)
        with pytest.raises(ShapeError, match=f"replica 1: first_sample is {GROUP + 1}" if r else "replica 0"):
            model.learn(spikes[:GROUP], fails, first_sample=r * (GROUP + 1) or 1)

    simulate(2, run)


@pytest.mark.parametrize("n_hosts", [1, 2])
@pytest.mark.parametrize("n_samples", [3, 8, 61, 75, 200])
def test_few_and_many_groups_and_silent_inputs(n_samples, n_hosts, monkeypatch):
    """Replicas without samples, sums of single groups, of leaves and of branches; inputs that never fire."""
    on_hosts(monkeypatch, n_hosts)
    network = Network.chain(Input(30), LIF(75, recurrent=True), LI(10))
    check(network, 4, 1, n_samples=n_samples, silent=10)


@pytest.mark.parametrize("n_hosts", [1, 2])
def test_a_replica_without_samples_sends_no_sums(n_hosts, monkeypatch):
    """Sums of a batch that one replica has no samples of are not taken for those of the next batch."""
    on_hosts(monkeypatch, n_hosts)
    batches = [random_spikes(5, n * GROUP, 30) for n in (1, 2)]

    def learn(model: Model, rank: int, n_ranks: int) -> list[torch.Tensor]:
        found = []
        for spikes in batches:
            first, last = samples_of(rank, n_ranks, spikes.n_samples)
            n = spikes.n_samples
            model.learn(spikes[first:last], lambda out, first=first, n=n: loss_of(out, first, n), first_sample=first)
            model.finish_backward()
            found += [parameter.grad.clone() for parameter in model.parameters()]
            model.zero_grad()
        return found

    network = parse_net("30-40-10")
    expected = learn(Model(network, seed=1), 0, 1)

    def run(world: Communicator) -> None:
        found = learn(Model(network, grid=make_grid(world, 2, 1), seed=1), world.rank, 2)
        for grad, wanted in zip(found, expected, strict=True):
            assert torch.equal(grad, wanted)

    simulate(2, run)


@pytest.mark.parametrize("grid", [(1, 3), (2, 2)])
def test_layers_that_are_read_twice_and_late(grid):
    network = Network(
        {
            "input": Input(21),
            "a": LIF(70, recurrent=True, beta=tuple(np.linspace(0.5, 0.95, 70)), learn_beta=True),
            "b": CubaLIF(131, bias=True),
            "c": LIF(33),
            "output": LI(7, learn_beta=True, bias=True),
        },
        (
            Connection("input", "a"),
            Connection("a", "b", delay=1),
            Connection("input", "b"),
            Connection("a", "c"),
            Connection("b", "c", delay=2),
            Connection("c", "output"),
            Connection("a", "output", delay=1),
            Connection("b", "output"),
        ),
    )
    check(network, *grid)


@pytest.mark.parametrize("seed", range(24))
def test_networks_that_nobody_chose(seed):
    """Any rules, synapses, delays and sizes, on any grid; benchmarks/ranks_random.py has thousands, over processes too."""
    case = random_case(seed, n_ranks=(2, 3, 4, 6)[seed % 4])
    expected = alone(case)
    simulate(case.ranks, lambda world: compare(case, expected, world))


@pytest.mark.parametrize(("n_steps", "n_samples"), [(1, 1), (1, 9), (150, 2), (300, 9)])
@pytest.mark.parametrize("grid", [(1, 2), (2, 2)])
def test_odd_shapes(grid, n_steps, n_samples):
    if n_steps == 1:  # a recurrent layer that has no next step
        check(
            Network.chain(Input(30), LIF(75, recurrent=True, threshold=0.2, grad_threshold=0.1), LI(5)),
            *grid,
            n_steps=1,
            n_samples=n_samples,
        )
    else:
        check(parse_net("12-70r-35-3"), *grid, n_steps=n_steps, n_samples=n_samples)


def test_bfloat16_weights():
    check(parse_net("30-75r-140-10"), 1, 2, options=(("weight_dtype", "bfloat16"),))


def test_without_gradients_nothing_is_kept():
    network = parse_net("30-75r-40-10", capacity=9)
    spikes = random_spikes(9, 3, 30)
    model = Model(network, seed=1)
    strengthen(model)
    with torch.no_grad():
        expected = model(spikes)

    def run(world: Communicator) -> None:
        own = Model(network, grid=make_grid(world, 1, 2), seed=1)
        strengthen(own)
        with torch.no_grad():
            output = own(spikes)
        assert torch.equal(output.potentials, expected.potentials)
        assert output.dropped() == expected.dropped()
        assert all(lists.values is None for lists in output.spikes.values())

    simulate(2, run)


@pytest.mark.parametrize("net", ["30-140-70-10", "30-140r-70p0.2-10"])
@pytest.mark.parametrize("grid", [(2, 1), (1, 2), (2, 2)])
def test_hooks_of_one_rank_alone_hold_nobody_up(grid, net):
    """It goes layer by layer then, the others in one call."""
    case = Case(parse_net(net), *grid)
    expected = alone(case)
    simulate(case.ranks, lambda world: learn_with_hooks_of_rank_0(world, case, expected))


def learn_with_hooks_of_rank_0(world: Communicator, case: Case, expected: Any) -> None:
    """`expected` by one rank alone."""
    own, seen = case.model(grid=make_grid(world, case.replicas, case.shards)), []
    if world.rank == 0:
        own.layers["hidden1"].register_forward_hook(lambda *_: seen.append(1))
    first, last = samples_of(own.parts.grid.replicas.rank, case.replicas, case.n_samples)
    spikes = case.spikes()[first:last]
    _, output = own.learn(spikes, lambda out: loss_of(out, first, case.n_samples), first_sample=first)
    own.finish_backward()
    assert (not own.runner.chains) == bool(seen) == (world.rank == 0)
    compare_step(case, expected, own, spikes, first, output)


@pytest.mark.parametrize("hooked", [True, False])
@pytest.mark.parametrize("net", ["30-75r-40-10", "30-75-40-10"])
@pytest.mark.parametrize("grid", [(1, 2), (2, 1)])
def test_a_step_is_freed_without_a_search_for_circles(grid, net, hooked):
    """Or the next steps get fresh pages from the system, which take longer than many a kernel."""
    spikes = random_spikes(9, GROUP, 30)

    def run(world: Communicator) -> list[Any]:
        own = Model(parse_net(net), grid=make_grid(world, *grid), seed=1)
        if hooked:
            own.layers["output"].register_forward_hook(lambda *_: None)
        first = GROUP * own.parts.grid.replicas.rank
        _, output = own.learn(spikes, lambda out: out.potentials.sum(), first_sample=first)
        assert (not own.runner.chains) == hooked
        own.finish_backward()
        return [weakref.ref(lists.ids) for lists in dict(output.spikes).values()]

    gc.collect()
    gc.disable()
    try:
        found = simulate(2, run)
        assert [ref() for refs in found for ref in refs] == [None] * 4
    finally:
        gc.enable()


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 7])
def test_shards_cover_each_neuron_once(n_ranks):
    network = parse_net("700-1000r-130-20")
    for rank in range(n_ranks):
        for name, shards in make_shards(network, n_ranks, rank).items():
            assert shards.first[0] == 0
            assert shards.n_all == network.populations[name].n
            assert shards.begin <= shards.end
            assert sum(b - a for a, b in zip(shards.first, shards.first[1:], strict=False)) == shards.n_all
            assert all(first % 16 == 0 for first in shards.first[:-1] if first < shards.n_all)
            assert shards.owners


@pytest.mark.parametrize("name", ["input", "hidden", "output"])
@pytest.mark.parametrize("n_shards", [1, 2])
def test_lists_that_change_between_forward_and_backward_are_refused(n_shards, name):
    network = Network.chain(Input(30), LIF(70), LIF(130, recurrent=True, grad_threshold=-1.0))

    def run(world: Communicator) -> None:
        model = Model(network, grid=make_grid(world, 1, n_shards), seed=1)
        strengthen(model)
        spikes = random_spikes(7, 3, 30)
        output = model(spikes)
        loss = output.counts().sum() + output.counts("hidden").sum()
        lists = {"input": spikes, **output.spikes}[name]
        lists.ids.numpy()[:] = 65535
        loss.backward()

    with pytest.raises(SpikeListError, match="ids of the spike lists changed after the forward pass"):
        simulate(n_shards, run)


def test_errors_name_the_shapes():
    model = Model(parse_net("30-40-10"), grid=Grid.alone())
    with pytest.raises(ShapeError, match="input has 29 neurons; the network's 'input' has 30"):
        model(random_spikes(2, 2, 29))
    with pytest.raises(TypeError, match="A network over ranks takes no state"):
        model(random_spikes(2, 2, 30), {})
    two = Network({"x": Input(3), "y": Input(3), "out": LI(2)}, (Connection("x", "out"), Connection("y", "out")))
    with pytest.raises(DescriptionError, match="one Input population"):
        Model(two, grid=Grid.alone())


def test_column_squares():
    x = np.random.default_rng(0).normal(size=(37, 301)).astype(np.float32)
    expected = np.zeros(301)
    for row in x.astype(np.float64):
        expected += row * row
    assert np.array_equal(_core.column_squares(x), expected)
    assert np.array_equal(_core.column_squares(np.ascontiguousarray(x[:, 33:70])), expected[33:70])
    with pytest.raises(ShapeError, match="give a matrix"):
        _core.column_squares(x[0])


MAPS = {
    "row by row": ("4x11x10:3C5p-MP2-3C6-AP2-40-10", {"bias": True, "learn_beta": True, "reset": "zero"}),
    "step by step": ("4x7x6:3C6pg2-2C3s2-10", {"activity": "fixed", "capacity": 19}),
    "capacity": ("4x7x6:3C5-SP2-75-40-10s", {"capacity": 9, "reset": "zero"}),
}


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: f"{grid[0]}x{grid[1]}")
@pytest.mark.parametrize("name", MAPS)
def test_maps(name, grid):
    net, rules = MAPS[name]
    check(parse_net(net, **rules), *grid)


@pytest.mark.parametrize("grid", [(2, 2), (3, 1)], ids=lambda grid: f"{grid[0]}x{grid[1]}")
def test_maps_next_to_other_connections(grid):
    network = Network(
        {"input": Input(shape=(7, 6, 2)), "side": LIF(70), "maps": LIF(recurrent=True, bias=True), "out": LI()},
        (
            Connection("input", "side"),
            Connection("input", "maps", 2, Conv2d(3, 3, padding=1)),
            Connection("side", "maps", 1),
            Connection("maps", "out", 0, Series((Pool("sum", 2), Conv2d(4, 2)))),
            Connection("side", "out", 0, Sparse(0.3, seed=1)),
        ),
    )
    check(network, *grid, n_samples=85)
