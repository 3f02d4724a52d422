"""Derivatives of gradients: right where PyTorch computes them, an error where an engine would leave its part out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import grad
from torch.autograd.functional import hessian
from torch.func import functional_call

import sparsesnn as ss
from sparsesnn.errors import SecondDerivativeError
from sparsesnn.loss import CrossEntropy, cross_entropy

LABELS = torch.tensor([0, 1, 2, 1])
LOSSES: dict[str, Callable[[Any], Tensor]] = {
    "sum": lambda output: output.potentials.sum(),
    "square": lambda output: output.potentials.square().mean(),
    "CrossEntropy": CrossEntropy(LABELS, "mean", 3),
    "cross_entropy": lambda output: cross_entropy(output, LABELS, "softmax_sum", 3),
    "counts": lambda output: output.counts("hidden").square().sum(),
}
ENGINES = [("cpu", "auto"), ("dense", "auto"), ("dense", "fused")]


def network(**changes: Any) -> ss.Network:
    hidden = ss.LIF(7, recurrent=True, surrogate=ss.fast_sigmoid(2.0), **changes)
    return ss.Network.chain(ss.Input(12), hidden, ss.LI(3))


def spikes(n_neurons: int = 12) -> ss.SpikeBatch:
    drawn = torch.rand(9, 4, n_neurons, generator=torch.Generator().manual_seed(0))
    return ss.SpikeBatch.from_dense((drawn < 0.4).float())


def second(model: nn.Module, loss: Callable[[Any], Tensor], by: list[Tensor] | None = None) -> list[Tensor | None]:
    """Derivatives of a gradient penalty."""
    parameters = list(model.parameters())
    first = grad(loss(model(spikes())), parameters, create_graph=True, allow_unused=True)
    penalty = sum(x.square().sum() for x in first if x is not None)
    return list(grad(penalty, by or parameters, allow_unused=True))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("backend", "mode"), ENGINES)
def test_a_second_derivative_through_an_engine_raises(backend: str, mode: str, loss: str) -> None:
    model = ss.Model(network(), backend=backend, dense_mode=mode)
    with pytest.raises(SecondDerivativeError, match=rf"'{backend}'.*create_graph.*'dense'.*'hoist'"):
        second(model, LOSSES[loss])
    one = [model.layers["hidden"].weights[0]]  # for one tensor PyTorch leaves out nodes that do not lead to it
    with pytest.raises(SecondDerivativeError, match=backend):
        second(model, LOSSES[loss], one)


@pytest.mark.parametrize(
    ("changes", "connection"),
    [
        ({"learn_beta": True, "learn_threshold": True, "bias": True}, {}),
        ({}, {"axonal": ss.Delays(3, learn=True)}),
        ({}, {"synapses": ss.Sparse(0.5)}),
    ],
)
@pytest.mark.parametrize(("backend", "mode"), ENGINES)
def test_it_raises_with_learnt_constants_delays_and_sparse_synapses(
    backend: str, mode: str, changes: Any, connection: Any
) -> None:
    populations = network(**changes).populations
    connections = [
        ss.Connection("input", "hidden", **connection),
        ss.Connection("hidden", "hidden"),
        ss.Connection("hidden", "output", **connection),
    ]
    model = ss.Model(ss.Network(populations, tuple(connections)), backend=backend, dense_mode=mode)
    for p in model.parameters():
        with pytest.raises(SecondDerivativeError):
            second(model, LOSSES["sum"], [p])


@pytest.mark.parametrize(("backend", "mode"), ENGINES)
def test_maml_and_hessians_raise(backend: str, mode: str) -> None:
    model, data, loss = ss.Model(network(), backend=backend, dense_mode=mode), spikes(), LOSSES["CrossEntropy"]
    weights = dict(model.named_parameters())
    gradients = grad(loss(functional_call(model, weights, (data,))), list(weights.values()), create_graph=True)
    steps = zip(weights.items(), gradients, strict=True)
    adapted = {name: w - 0.1 * g for (name, w), g in steps}
    with pytest.raises(SecondDerivativeError):
        loss(functional_call(model, adapted, (data,))).backward()
    name, w = next(iter(weights.items()))
    with pytest.raises(SecondDerivativeError):
        hessian(lambda w: loss(functional_call(model, {name: w}, (data,))), w.detach())


@pytest.mark.parametrize(("backend", "mode"), ENGINES)
def test_second_derivatives_of_other_layers_pass(backend: str, mode: str) -> None:
    torch.manual_seed(0)
    model, head = ss.Model(network(), backend=backend, dense_mode=mode), nn.Linear(3, 2)
    output = model(spikes()).potentials
    loss = head(output).square().mean()
    own = grad(loss, list(head.parameters()), create_graph=True)
    (loss + sum(g.square().sum() for g in own)).backward()
    found = [p.grad for p in model.parameters()]
    # the same with the network's output as a constant, and its gradient passed on
    x = output.detach().requires_grad_()
    loss = head(x).square().mean()
    own = grad(loss, list(head.parameters()), create_graph=True)
    (d_x,) = grad(loss + sum(g.square().sum() for g in own), x)
    wanted = grad(model(spikes()).potentials, list(model.parameters()), d_x)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")
@pytest.mark.parametrize(("backend", "mode"), ENGINES)
def test_gradients_that_are_never_differentiated_again_are_used_as_ever(backend: str, mode: str) -> None:
    model = ss.Model(network(), backend=backend, dense_mode=mode)
    parameters = list(model.parameters())
    wanted = grad(LOSSES["square"](model(spikes())), parameters)
    LOSSES["square"](model(spikes())).backward(create_graph=True)
    for p, g in zip(parameters, wanted, strict=True):
        assert torch.equal(p.grad, g)
    nn.utils.clip_grad_norm_(parameters, 0.1)
    torch.optim.SGD(parameters, 0.1).step()
    model.zero_grad(set_to_none=False)
    for p in parameters:
        p.grad = None  # it holds the graph, which holds the parameter


@pytest.mark.parametrize("mode", ["hoist", "step"])
@pytest.mark.parametrize("synapses", [ss.Dense(), ss.Sparse(0.5)])
def test_dense_products_with_autograd_have_second_derivatives(mode: str, synapses: Any) -> None:
    """Of a readout alone, which is linear in its weights: those of the loss, by hand."""
    model = ss.Model(
        ss.Network({"input": ss.Input(12), "out": ss.LI(3)}, (ss.Connection("input", "out", synapses=synapses),)),
        backend="dense",
        dense_mode=mode,
    )
    (weight,) = model.parameters()
    found = second(model, lambda output: output.potentials.square().sum() / 2)[0]
    ones = torch.eye(weight.numel()).view(-1, *weight.shape)
    rows = [functional_call(model, {"layers.out.input->out": one}, (spikes(),)).potentials.flatten() for one in ones]
    jacobian = torch.stack(rows)  # potentials = jacobianᵀ·w
    square = jacobian @ jacobian.T
    wanted = 2 * square @ square @ weight.flatten()
    torch.testing.assert_close(found, wanted.view(weight.shape), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("mode", ["hoist", "step"])
def test_hidden_layers_on_dense_have_second_derivatives(mode: str) -> None:
    model = ss.Model(network(), backend="dense", dense_mode=mode)
    assert all(x is not None and bool(x.any()) for x in second(model, LOSSES["square"]))


@pytest.mark.parametrize("decoding", ["mean", "sum", "last", "max"])
def test_the_second_derivative_of_cross_entropy_is_that_of_pytorch(decoding: str) -> None:
    potentials = torch.rand(5, 4, 3)
    over_time = {
        "mean": lambda v: v.mean(0),
        "sum": lambda v: v.sum(0),
        "last": lambda v: v[-1],
        "max": lambda v: v.amax(0),
    }
    wanted = hessian(lambda v: nn.functional.cross_entropy(over_time[decoding](v), LABELS), potentials)
    found = hessian(lambda v: CrossEntropy(LABELS, decoding, 3)(ss.output.Output(v, {}, {}, "out")), potentials)
    torch.testing.assert_close(found, wanted)


class Halved(CrossEntropy):
    """The engine's loss, changed: PyTorch's formula is not that of its gradient."""

    def of_potentials(self, v: Any) -> Any:
        value, gradient = super().of_potentials(v)
        return value / 2, lambda d: gradient(d) / 2


def test_a_loss_with_a_gradient_of_its_own_has_no_second_one() -> None:
    with pytest.raises(SecondDerivativeError, match="of_potentials"):
        hessian(lambda v: Halved(LABELS, "mean", 3)(ss.output.Output(v, {}, {}, "out")), torch.rand(5, 4, 3))


@pytest.mark.parametrize("backend", ["cpu", "dense"])
def test_transforms_of_torch_func_are_refused_by_name(backend: str) -> None:
    model = ss.Model(network(), backend=backend)
    weights, data = {name: p.detach() for name, p in model.named_parameters()}, spikes()
    with pytest.raises(SecondDerivativeError, match=r"torch\.func.*functional_call"):
        torch.func.grad(lambda w: functional_call(model, w, (data,)).potentials.sum())(weights)
    with pytest.raises(SecondDerivativeError, match=r"from_dense.*torch\.func"):
        torch.func.grad(lambda x: ss.SpikeBatch.from_dense(x, gradient="all").counts().sum())(data.to_dense())
    potentials = model(spikes()).potentials
    with pytest.raises(SecondDerivativeError, match="vectorize"):
        grad(potentials, list(model.parameters()), torch.ones(2, *potentials.shape), is_grads_batched=True)
