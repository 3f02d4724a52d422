"""A network whose layers run in one call has the bits of the same layers one by one, forward and backward."""

from __future__ import annotations

import pytest
import torch

from sparsesnn import LI, LIF, Connection, Input, Model, Network, SpikeBatch, parse_net
from sparsesnn.engines.module import Layer
from sparsesnn.errors import SpikeListError

T, B = 13, 3


def spikes_for(n: int, seed: int = 0) -> SpikeBatch:
    return SpikeBatch.from_dense((torch.rand(T, B, n, generator=torch.Generator().manual_seed(seed)) < 0.2).float())


def branches() -> Network:
    """Two readers of one population, one of them twice, with delays, loops and a population that nothing reads."""
    lif = {"threshold": 0.3, "grad_threshold": 0.1}
    return Network(
        {
            "in": Input(37),
            "a": LIF(29, learn_beta=True, **lif),
            "b": LIF(70, recurrent=True, **lif),
            "c": LIF(11, capacity=3, **lif),
            "unread": LIF(5, **lif),
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


def run(network: Network, one_by_one: bool, frozen: tuple[str, ...] = (), data: SpikeBatch | None = None):
    """Losses of potentials and of hidden spikes, all gradients, what was fired, and the states."""
    model = Model(network, seed=3)
    for name in frozen:
        model.layers[name].requires_grad_(False)
    if one_by_one:
        model.layers["out"].register_forward_hook(lambda *_: None)
    data = data or spikes_for(network.populations["in"].n)
    output = model(data)
    if output.spikes["a"].values is not None:
        output.spikes["a"].values.retain_grad()
    loss = output.potentials.square().sum()
    for name, lists in output.spikes.items():
        if lists.values is not None and name != "unread":
            loss = loss + (lists.values * torch.linspace(-1, 1, len(lists.values))).sum()
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    if output.spikes["a"].values is not None:
        assert output.spikes["a"].values.grad.abs().max() > 1  # more than the loss sends by itself
        gradients["values"] = output.spikes["a"].values.grad
    states = [x for state in output.state.values() for x in state.states.values()]
    return loss, gradients, [x.ids for x in output.spikes.values()], states


def check_equal(network: Network, **changes: object) -> dict[str, torch.Tensor | None]:
    one, several = run(network, False, **changes), run(network, True, **changes)
    assert torch.equal(one[0], several[0])
    assert one[1].keys() == several[1].keys()
    for name, gradient in several[1].items():
        found = one[1][name]
        assert (gradient is None) == (found is None), name
        assert gradient is None or torch.equal(gradient, found), name
    for mine, other in zip(one[2] + one[3], several[2] + several[3], strict=True):
        assert torch.equal(mine, other)
    return one[1]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The layers that ran by themselves."""
    found: list[str] = []
    forward = Layer.forward

    def seen(self: Layer, *arguments: object, **named: object) -> object:
        found.append(type(self.population).__name__)
        return forward(self, *arguments, **named)

    monkeypatch.setattr(Layer, "forward", seen)
    return found


def test_branches_delays_and_loops_have_the_bits_of_single_layers():
    gradients = check_equal(branches())
    assert [name for name, g in gradients.items() if g is None] == ["layers.unread.a->unread"]


@pytest.mark.parametrize("frozen", [("a",), ("b", "c"), ("out",), ("a", "b", "c", "unread")])
def test_frozen_layers_get_no_gradient_and_others_the_same(frozen):
    gradients = check_equal(branches(), frozen=frozen)
    for name, gradient in gradients.items():
        if name == "values":
            continue
        assert (gradient is None) == (name.split(".")[1] in (*frozen, "unread")), name


def test_convolutions_run_in_one_call_too(calls):
    network = parse_net("2x9x8:3C3-4C2-4")
    model = Model(network, seed=1)
    data = spikes_for(144)
    model(data).potentials.sum().backward()
    assert not calls
    hooked = Model(network, seed=1)
    for layer in hooked.layers.values():
        layer.register_forward_pre_hook(lambda *_: None)
    hooked(data).potentials.sum().backward()
    assert len(calls) == len(hooked.layers)
    for mine, other in zip(model.parameters(), hooked.parameters(), strict=True):
        assert torch.equal(mine.grad, other.grad)


def test_the_input_learns():
    found = []
    for one_by_one in (False, True):
        dense = spikes_for(37).to_dense().requires_grad_()
        run(branches(), one_by_one, data=SpikeBatch.from_dense(dense, gradient="all"))
        found.append(dense.grad)
    assert found[0].abs().max() > 0
    assert torch.equal(*found)


def test_layers_run_by_themselves_where_somebody_looks_at_them(calls):
    network, data = parse_net("37-11-5"), spikes_for(37)
    model = Model(network)
    state = model(data).state
    assert not calls
    model(data, state)
    model(data, record=list(network.populations)[1:2])
    assert not calls
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        model(data)
    finally:
        handle.remove()
    assert len(calls) == 2
    model(data)
    assert len(calls) == 2


def test_a_second_backward_pass_gives_the_same():
    model = Model(parse_net("37-11r-5"))
    loss = model(spikes_for(37)).potentials.sum()
    first, second = (torch.autograd.grad(loss, list(model.parameters()), retain_graph=True) for _ in range(2))
    assert all(map(torch.equal, first, second))


def test_lists_that_change_before_the_backward_pass_are_seen():
    for change in ("input", "hidden"):
        data = spikes_for(37)
        output = Model(parse_net("37-31-5"))(data)
        lists = data if change == "input" else next(iter(output.spikes.values()))
        lists.n_spikes[0] += 1
        with pytest.raises(SpikeListError, match="n_spikes of the spike lists changed"):
            output.potentials.sum().backward()


def test_weights_that_change_before_the_backward_pass_are_seen():
    model = Model(parse_net("37-31-5"))
    loss = model(spikes_for(37)).potentials.sum()
    with torch.no_grad():
        next(model.parameters()).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
