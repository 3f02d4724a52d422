"""`Model.learn` leaves the gradients of `loss(model(spikes)).backward()`, to the bit, in one call of the engine each way where it can."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from sparsesnn import LI, LIF, Connection, Input, Layer, Model, Network, Output, SpikeBatch, parse_net
from sparsesnn.engines.cpu.chain import learns_as_read
from sparsesnn.errors import ShapeError, SpikeListError
from sparsesnn.loss import CrossEntropy
from sparsesnn.parameters import Incoming
from sparsesnn.synapses import Sparse

T, B = 13, 3


def spikes_for(n: int, n_samples: int = B) -> SpikeBatch:
    return SpikeBatch.from_dense(
        (torch.rand(T, n_samples, n, generator=torch.Generator().manual_seed(n)) < 0.2).float()
    )


def branches(**out: Any) -> Network:
    """Several readers of one population, one of them twice, with delays, loops, a capacity, and one that nothing reads."""
    lif: dict[str, Any] = {"threshold": 0.3, "grad_threshold": 0.1, "bias": True}
    return Network(
        {
            "in": Input(37),
            "a": LIF(29, **lif),
            "b": LIF(70, recurrent=True, **lif),
            "c": LIF(11, capacity=3, **lif),
            "unread": LIF(5, **lif),
            "out": LI(7, **out),
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


def loss_of(output: Output) -> Tensor:
    """Reads potentials and the spikes of hidden populations, some of them twice."""
    assert output.potentials is not None
    loss = output.potentials.square().sum() + output.counts("a").square().mean()
    for name, lists in output.spikes.items():
        assert isinstance(lists, SpikeBatch)
        if lists.values is not None and lists.values.requires_grad and name != "unread":
            loss = loss + (lists.values * torch.linspace(-1, 1, len(lists.values))).sum()
    return loss


def plainly(model: Model, spikes: SpikeBatch, loss: Callable[[Output], Tensor]) -> tuple[Tensor, Output]:
    output = model(spikes)
    value = loss(output)
    value.backward()
    return value, output


def trained(network: Network, run: Callable[..., Any], prepare: Callable[[Model], Any] = lambda _: None) -> list[Any]:
    """Losses, gradients, lists and weights of a few updates with gradients of two batches each."""
    model = Model(network, seed=3)
    prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    found: list[Any] = []
    n = network.populations["in"].n if "in" in network.populations else network.populations["input"].n
    for _ in range(3):
        optimizer.zero_grad()
        for n_samples in (B, 2 * B):
            loss, output = run(model, spikes_for(n, n_samples), loss_of)
            found += [loss, *(x.ids for x in output.spikes.values()), output.potentials]
            found += [x for state in output.state.values() for x in state.states.values()]
        found += [p.grad.clone() if p.grad is not None else None for p in model.parameters()]
        optimizer.step()
    return [*found, *model.state_dict().values()]


def check_equal(network: Network, prepare: Callable[[Model], Any] = lambda _: None) -> None:
    plain, learnt = (trained(network, run, prepare) for run in (plainly, Model.learn))
    assert len(plain) == len(learnt)
    for one, other in zip(plain, learnt, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Passes whose layers are nodes of PyTorch's graph."""
    found: list[str] = []
    forward = Model.forward

    def seen(self: Model, *arguments: Any, **named: Any) -> Any:
        found.append("forward")
        return forward(self, *arguments, **named)

    monkeypatch.setattr(Model, "forward", seen)
    return found


def test_gradients_have_the_bits_of_autograd(passes):
    check_equal(branches())
    assert len(passes) == 6, "learn goes its own way"


@pytest.mark.parametrize("frozen", [("a",), ("b", "c"), ("out",), ("a", "b", "c", "unread")])
def test_frozen_layers_get_no_gradient_and_others_the_same(frozen):
    def freeze(model: Model) -> None:
        for name in frozen:
            model.layers[name].requires_grad_(False)

    check_equal(branches(), freeze)


@pytest.mark.parametrize(("density", "n_forward"), [(0.5, 2), (0.01, 1)])
def test_sparse_synapses_learn_by_rows_or_as_masks(density, n_forward, passes):
    populations = {"in": Input(300), "a": LIF(200, threshold=0.1, grad_threshold=0.0), "out": LI(7)}
    network = Network(populations, [Connection("in", "a", synapses=Sparse(density)), Connection("a", "out")])
    found = []
    for run in (plainly, Model.learn):
        model = Model(network, seed=1)
        run(model, spikes_for(300), lambda output: output.potentials.square().sum())
        found.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert len(passes) == n_forward, "masked matrices are spread by PyTorch"


def test_convolutions_learn_so_too(passes):
    network = parse_net("2x9x8:3C3-4C2-4")
    found = []
    for run in (plainly, Model.learn):
        model = Model(network, seed=1)
        run(model, spikes_for(144), lambda output: output.potentials.square().sum())
        found.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert len(passes) == 1


@pytest.mark.parametrize("decoding", ["mean", "max", "softmax_sum"])
def test_cross_entropy_has_the_same_gradients_without_a_graph(decoding, passes):
    found = []
    for run in (plainly, Model.learn):
        model, loss = Model(branches(), seed=3), CrossEntropy(torch.arange(B), decoding, 7, label_smoothing=0.1)
        value, output = run(model, spikes_for(37), loss)
        found.append([value.detach(), loss.logits, loss.losses, *(p.grad for p in model.parameters())])
    assert (output.potentials.grad_fn, passes) == (None, ["forward"])
    for one, other in zip(*found, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)


def add_hook(model: Model) -> None:
    model.layers["b"].register_forward_hook(lambda *_: None)


def watch_model(model: Model) -> None:
    model.register_forward_pre_hook(lambda *_: None)


def halve_gradient(model: Model) -> None:
    model.layers["a"].weights[0].register_hook(lambda gradient: gradient / 2)


def see_gradient(model: Model) -> None:
    def halve(parameter: Tensor) -> None:
        parameter.grad.mul_(0.5)

    model.layers["a"].weights[0].register_post_accumulate_grad_hook(halve)


def test_what_a_subclass_adds_to_a_loss_is_learned() -> None:
    class Louder(CrossEntropy):
        def __call__(self, output: Output) -> Tensor:
            return 3 * super().__call__(output)

    network, labels = branches(), torch.arange(B)
    found = []
    for run in (plainly, Model.learn):
        model = Model(network, seed=3)
        loss, _ = run(model, spikes_for(37), Louder(labels, "mean", 7))
        found.append([loss, *(p.grad for p in model.parameters() if p.grad is not None)])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("prepare", [add_hook, watch_model, halve_gradient, see_gradient])
def test_who_wants_to_see_layers_or_gradients_does(prepare, passes):
    check_equal(branches(), prepare)
    assert len(passes) == 12, "both ways through autograd"


def test_learnt_constants_go_through_autograd(passes):
    check_equal(branches(learn_beta=True))
    assert len(passes) == 12


def test_weights_that_are_computed_go_through_autograd(passes):
    def prepare(model: Model) -> None:
        torch.nn.utils.parametrizations.weight_norm(model.layers["b"], "in->b")

    check_equal(branches(), prepare)
    assert len(passes) == 12


def test_weights_that_are_replaced_or_moved_are_read_where_they_lie():
    model, spikes = Model(parse_net("37-20-7"), seed=3), spikes_for(37)
    weight = model.layers["hidden"].weights[0]

    def loss() -> Tensor:
        return model.learn(spikes, lambda output: output.potentials.square().sum())[0]

    before = loss()
    values = weight.detach().clone()
    weight.data = values * 2  # other memory
    assert torch.equal(loss(), model(spikes).potentials.square().sum())
    assert not torch.equal(loss(), before)
    weight.data = values.t().contiguous().t()  # a view that is not contiguous
    assert torch.equal(loss(), before)
    weight.detach().numpy()[:] *= 2  # without a new version
    assert not torch.equal(loss(), before)
    model.layers["hidden"].beta.fill_(3.0)  # beyond its range: read as 1
    assert torch.equal(loss(), model(spikes).potentials.square().sum())
    above = loss()
    model.layers["hidden"].beta.fill_(1.0)
    assert torch.equal(loss(), above)


def test_lists_that_the_loss_changes_are_an_error():
    model, spikes = Model(parse_net("37-20-7"), seed=3), spikes_for(37)

    def loss(output: Output) -> Tensor:
        spikes.ids.numpy()[0] += 1
        return output.potentials.sum()

    with pytest.raises(SpikeListError, match="changed after the forward pass"):
        model.learn(spikes, loss)


def test_lists_carry_a_gradient_only_where_a_loss_might_read_them():
    model, spikes = Model(parse_net("37-20-7"), seed=3), spikes_for(37)
    _, output = model.learn(spikes, CrossEntropy(torch.arange(B), "mean", 7))
    assert output.spikes["hidden"].values is None
    assert torch.equal(output.spikes["hidden"].ids, model(spikes).spikes["hidden"].ids)
    spikes.ids.numpy()[0] += 1  # nothing will read them again
    _, output = model.learn(spikes, lambda output: output.counts("hidden").sum())
    values = output.spikes["hidden"].values
    assert values is not None
    assert values.grad is not None


def test_dense_and_data_that_want_gradients_go_through_autograd(passes):
    network = parse_net("37-20-7")
    dense = Model(network, seed=3, backend="dense")
    loss, output = dense.learn(spikes_for(37), lambda output: output.potentials.square().sum())
    assert not loss.requires_grad
    assert output.potentials is not None
    data = (torch.rand(T, B, 37) < 0.2).float().requires_grad_()
    Model(network, seed=3).learn(
        SpikeBatch.from_dense(data, gradient="all"), lambda output: output.potentials.square().sum()
    )
    assert data.grad is not None
    assert len(passes) == 2


def test_without_gradients_autograd_says_so():
    model, spikes = Model(parse_net("37-20-7"), seed=3), spikes_for(37)
    assert learns_as_read(model.layers.values())
    losses = [lambda output: output.potentials.sum(), CrossEntropy(torch.arange(B), "max", 7)]
    for loss in losses:
        with torch.no_grad(), pytest.raises(RuntimeError, match="does not require grad"):
            model.learn(spikes, loss)
    model.requires_grad_(False)
    for loss in losses:
        with pytest.raises(RuntimeError, match="does not require grad"):
            model.learn(spikes, loss)


def test_other_inputs_are_refused():
    with pytest.raises(ShapeError, match="5 neurons.*37"):
        Model(parse_net("37-20-7")).learn(spikes_for(5), lambda output: output.potentials.sum())


def test_an_output_is_freed_when_nobody_has_it_any_more():
    """No circle keeps a step's arrays until Python looks for circles."""
    model, spikes = Model(branches(), seed=3), spikes_for(37)
    losses: list[Callable[[Output], Tensor]] = [CrossEntropy(torch.arange(B), "max", 7), loss_of]
    gc.collect()
    gc.disable()
    try:
        for loss in losses:
            _, output = model.learn(spikes, loss)
            assert output.state["b"].v.shape == (B, 70)
            assert output.activity()["b"] > 0
            held = [weakref.ref(x) for x in (output, output.spikes["b"], output.state["b"])]
            del output
            assert [x() for x in held] == [None, None, None]
    finally:
        gc.enable()


class Doubled(Layer):
    def forward(self, *arguments: Any, **named: Any) -> Any:
        out, state = super().forward(*arguments, **named)
        return 2 * out, state


class DoubledModel(Model):
    def forward(self, *arguments: Any, **named: Any) -> Output:
        output = super().forward(*arguments, **named)
        output.potentials = 2 * output.potentials
        return output


@pytest.mark.parametrize("of_layer", [True, False])
def test_a_forward_of_ones_own_is_run_by_whoever_runs_the_model(of_layer: bool) -> None:
    network, data = parse_net("13-9-3"), SpikeBatch.from_dense((torch.rand(7, 4, 13) < 0.4).float())
    plain = Model(network)
    model = plain if of_layer else DoubledModel(network)
    wanted = 2 * plain(data).potentials.detach()
    if of_layer:
        layer = Doubled(LI(3), [Incoming("hidden->output", 9)])
        layer.load_state_dict(plain.layers["output"].state_dict())
        model.layers["output"] = layer
    assert torch.equal(model(data).potentials, wanted)
    assert torch.equal(model.live()(data).potentials, wanted)
    assert torch.equal(model.learn(data, lambda output: output.potentials.sum())[0], wanted.sum())
