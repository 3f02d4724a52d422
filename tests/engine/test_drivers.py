"""Every way to run a network has the bits of one: a table of drivers × networks against one oracle.

The oracle is one call of the model, with its layers as nodes of autograd's graph; the chain of trust compares that with the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from ranks_random import Case, alone, compare_step, loss_of, samples_of
from torch import Tensor

from sparsesnn import LI, LIF, AdLIF, Connection, CubaLIF, Delays, Input, Network, Output, Resonator, Sparse, parse_net
from sparsesnn.engines.module import Layer, Model
from sparsesnn.errors import SpikeListError
from sparsesnn.host.comm import Communicator, make_grid, simulate
from sparsesnn.spikes import SpikeBatch

LIF_RULES: dict[str, Any] = {"threshold": 0.3, "grad_threshold": 0.1}


def branches() -> Network:
    """Two readers of one population, one of them twice, with delays, loops and a population that nothing reads."""
    return Network(
        {
            "in": Input(37),
            "a": LIF(29, learn_beta=True, **LIF_RULES),
            "b": LIF(70, recurrent=True, **LIF_RULES),
            "c": LIF(11, capacity=3, **LIF_RULES),
            "unread": LIF(5, **LIF_RULES),
            "out": LI(7, learn_beta=True),
        },
        [
            Connection("in", "a"),
            Connection("a", "b", delay=2),
            Connection("in", "b"),
            Connection("a", "c"),
            Connection("b", "c", delay=1),
            Connection("a", "unread"),
            Connection("a", "out"),
            Connection("a", "out", delay=3),
            Connection("b", "out"),
            Connection("c", "out"),
        ],
    )


def one(population: Any, first: Mapping[str, Any] | None = None, loops: tuple[Connection, ...] = ()) -> Network:
    """Input, this population, readout; `first`: of the connection into it."""
    return Network(
        {"in": Input(37), "a": population, "out": LI(5)},
        (Connection("in", "a", **(first or {})), Connection("a", "out", delay=1), *loops),
    )


NETWORKS: dict[str, Network] = {
    "feed-forward": parse_net("37-70-33-5", **LIF_RULES),
    "recurrent": parse_net("37-70r-5", bias=True, **LIF_RULES),
    "branches": branches(),
    "spiking readout": parse_net("37-40-6s", **LIF_RULES),
    "capacity": parse_net("37-70r-33-5", capacity=7, **LIF_RULES),
    "fixed": parse_net("37-70-33-5", capacity=9, activity="fixed", **LIF_RULES),
    "every neuron listed": parse_net("37-70-5", threshold=0.3, grad_threshold=-float("inf")),
    "current": one(CubaLIF(40, reset="zero", learn_alpha=True, **LIF_RULES)),
    "adaptive": one(AdLIF(40, gain=8.0, **LIF_RULES)),
    "resonator": one(Resonator(40, **LIF_RULES)),
    "sparse": one(LIF(70, **LIF_RULES), {"synapses": Sparse(0.03, seed=1)}),
    "half of the synapses": one(LIF(70, **LIF_RULES), {"synapses": Sparse(0.5, seed=1)}),
    "axonal delays": one(LIF(40, **LIF_RULES), {"axonal": Delays(5, seed=2), "delay": 2}),
    "trained delays": one(
        LIF(40, **LIF_RULES),
        {"axonal": Delays(5, learn=True, seed=2)},
        (Connection("a", "a", 2, axonal=Delays(3, learn=True, seed=4)),),
    ),
    "maps": parse_net("2x12x9:3C5-4C2-6", **LIF_RULES),
    "pools": parse_net("2x12x9:MP2-3C5-AP2-20-6", **LIF_RULES),
}


@dataclass(frozen=True)
class Found:
    loss: Tensor
    output: Output
    model: Model


def forward(case: Case, model: Model, spikes: SpikeBatch) -> Found:
    output = model(spikes, heard=case.heard(0))
    loss = loss_of(output, 0, case.n_samples)
    loss.backward()
    return Found(loss, output, model)


def learn(case: Case, model: Model, spikes: SpikeBatch) -> Found:
    loss, output = model.learn(spikes, lambda out: loss_of(out, 0, case.n_samples), heard=case.heard(0))
    return Found(loss, output, model)


def one_hook(case: Case, model: Model, spikes: SpikeBatch) -> Found:
    next(iter(model.layers.values())).register_forward_hook(lambda *_: None)
    return learn(case, model, spikes)


def hooks(case: Case, model: Model, spikes: SpikeBatch) -> Found:
    for layer in model.layers.values():
        layer.register_forward_pre_hook(lambda *_: None)
    return forward(case, model, spikes)


ONE_PROCESS: dict[str, Callable[[Case, Model, SpikeBatch], Found]] = {
    "learn": learn,
    "one hook": one_hook,
    "hooks": hooks,
}


def case_of(name: str, **more: Any) -> Case:
    return Case(NETWORKS[name], 1, 1, n_steps=13, n_samples=9, **more)


def gradients(model: Model) -> dict[str, Tensor | None]:
    return {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("drops", [False, True], ids=["", "dropout"])
@pytest.mark.parametrize("driver", ONE_PROCESS)
@pytest.mark.parametrize("network", NETWORKS)
def test_in_one_process(network: str, driver: str, drops: bool) -> None:
    case = case_of(network, drops=drops)
    want = forward(case, case.model(), case.spikes())
    got = ONE_PROCESS[driver](case, case.model(), case.spikes())
    assert torch.equal(want.loss, got.loss)
    assert any(lists.n_spikes.sum() for lists in want.output.spikes.values())
    for name, lists in want.output.spikes.items():
        assert torch.equal(lists.offsets, got.output.spikes[name].offsets)
        assert torch.equal(lists.ids, got.output.spikes[name].ids)
    for name, gradient in gradients(want.model).items():
        other = gradients(got.model)[name]
        assert (gradient is None) == (other is None), name
        assert gradient is None or torch.equal(gradient, other), name
    for name, state in want.output.state.items():
        for x in state.states:
            assert torch.equal(state.states[x], got.output.state[name].states[x])


@pytest.mark.parametrize("driver", ["state", "state, layer by layer", "live"])
@pytest.mark.parametrize("network", NETWORKS)
def test_in_pieces(network: str, driver: str) -> None:
    """A sequence that is cut into pieces of 1, 5 and 7 steps."""
    case = case_of(network)
    model, spikes = case.model().eval(), case.spikes()
    with torch.no_grad():
        want = model(spikes)
    if driver != "live" and "layer" in driver:
        next(iter(model.layers.values())).register_forward_hook(lambda *_: None)
    live, state, outputs = model.live(), None, []
    with torch.no_grad():
        for begin, end in ((0, 1), (1, 6), (6, 13)):
            piece = spikes.steps(begin, end)
            outputs.append(live(piece) if driver == "live" else model(piece, state))
            state = outputs[-1].state
    for name, lists in want.spikes.items():
        joined = outputs[0].spikes[name].then(outputs[1].spikes[name]).then(outputs[2].spikes[name])
        assert torch.equal(joined.ids, lists.ids)
        assert torch.equal(joined.offsets, lists.offsets)
    if want.potentials is not None:
        assert torch.equal(torch.cat([x.potentials for x in outputs]), want.potentials)


@pytest.mark.parametrize("hooked", [(), ((0, "first"),)], ids=["", "a hook on rank 0"])
@pytest.mark.parametrize("drops", [False, True], ids=["", "dropout"])
@pytest.mark.parametrize("grid", [(1, 2), (2, 1), (2, 2)], ids=str)
@pytest.mark.parametrize("network", NETWORKS)
def test_over_ranks(network: str, grid: tuple[int, int], drops: bool, hooked: tuple[tuple[int, str], ...]) -> None:
    first = next(iter(NETWORKS[network].receivers()))
    case = Case(NETWORKS[network], *grid, n_samples=19, drops=drops, hooked=tuple((rank, first) for rank, _ in hooked))
    expected = alone(case)

    def run(world: Communicator) -> None:
        ranks = make_grid(world, *grid)
        begin, end = samples_of(ranks.replicas.rank, case.replicas, case.n_samples)
        spikes, own = case.spikes()[begin:end], case.on_rank(ranks)
        _, output = own.learn(
            spikes, lambda out: loss_of(out, begin, case.n_samples), heard=case.heard(begin), first_sample=begin
        )
        own.finish_backward()
        compare_step(case, expected, own, spikes, begin, output)

    simulate(case.ranks, run)


# ---- which driver runs -----------------------------------------------------------------------------------------------


@pytest.fixture
def alone_ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The layers that ran by themselves."""
    names: list[str] = []
    run = Layer.forward

    def seen(self: Layer, *arguments: object, **named: object) -> object:
        names.append(type(self.population).__name__)
        return run(self, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Layer, "forward", seen)
    return names


@pytest.mark.parametrize("network", NETWORKS)
def test_layers_run_by_themselves_if_hooks_look_at_them(network: str, alone_ran: list[str]) -> None:
    case = case_of(network)
    model, spikes = case.model(), case.spikes()
    state = model(spikes).state
    model(spikes, state)
    model(spikes, record=list(case.network.populations)[1:2])
    model.learn(spikes, lambda out: loss_of(out, 0, case.n_samples), heard=case_of(network, drops=True).heard(0))
    assert not alone_ran
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        model(spikes)
    finally:
        handle.remove()
    assert len(alone_ran) == len(model.layers)
    model(spikes)
    assert len(alone_ran) == len(model.layers)


# ---- gradients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frozen", [("a",), ("b", "c"), ("out",), ("a", "b", "c", "unread")])
def test_frozen_layers_get_no_gradient_and_others_the_same(frozen: tuple[str, ...]) -> None:
    case = case_of("branches")
    found = []
    for run in (forward, hooks):
        model = case.model()
        for name in frozen:
            model.layers[name].requires_grad_(False)
        found.append(gradients(run(case, model, case.spikes()).model))
    for name, gradient in found[0].items():
        other, still = found[1][name], name.split(".")[1] in (*frozen,)
        assert (gradient is None) == (other is None) == still, name
        assert gradient is None or torch.equal(gradient, other)


@pytest.mark.parametrize("network", NETWORKS)
def test_the_input_and_hidden_values_learn(network: str) -> None:
    case = case_of(network)
    found = []
    for run in (forward, hooks):
        dense = case.spikes().to_dense().requires_grad_()
        model = case.model()
        result = run(case, model, SpikeBatch.from_dense(dense, gradient="all"))
        found.append(dense.grad)
        hidden = next(iter(case.network.receivers()))
        values = model(case.spikes())
        loss = loss_of(values, 0, case.n_samples)
        found.append(torch.autograd.grad(loss, values.spikes[hidden].values)[0])
        assert result.loss.isfinite()
    assert found[0] is not None
    assert found[0].abs().max() > 0
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])


def test_a_second_backward_pass_gives_the_same() -> None:
    case = case_of("recurrent")
    model = case.model()
    loss = loss_of(model(case.spikes()), 0, case.n_samples)
    first, second = (torch.autograd.grad(loss, list(model.parameters()), retain_graph=True) for _ in range(2))
    assert all(map(torch.equal, first, second))


@pytest.mark.parametrize(
    ("network", "changed"),
    [
        ("feed-forward", "input"),
        ("feed-forward", "hidden"),
        ("pools", "hidden"),
        ("axonal delays", "hidden"),
        ("trained delays", "input"),
    ],
)
def test_lists_that_change_before_the_backward_pass_are_seen(network: str, changed: str) -> None:
    case = case_of(network)
    spikes = case.spikes()
    output = case.model()(spikes)
    loss = loss_of(output, 0, case.n_samples)
    lists = spikes if changed == "input" else next(iter(output.spikes.values()))
    lists.n_spikes[0] += 1
    with pytest.raises(SpikeListError, match="n_spikes of the spike lists changed"):
        loss.backward()


def test_weights_that_change_before_the_backward_pass_are_seen() -> None:
    case = case_of("feed-forward")
    model = case.model()
    loss = loss_of(model(case.spikes()), 0, case.n_samples)
    with torch.no_grad():
        next(model.parameters()).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
