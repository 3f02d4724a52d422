"""Losses of tasks other than a class per sample: labels of steps and values, against PyTorch in double precision."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from sparsesnn.decoding import decode
from sparsesnn.engines.module import Model
from sparsesnn.errors import DescriptionError, ShapeError
from sparsesnn.loss import CrossEntropy, RegressionLoss, cross_entropy
from sparsesnn.network import parse_net
from sparsesnn.output import Output
from sparsesnn.spikes import SpikeBatch


def leaky(potentials: Tensor) -> Output:
    return Output(potentials, {}, {}, "output")


def labeled(n_steps: int, n_samples: int, n_classes: int) -> tuple[Tensor, Tensor]:
    """Potentials [T, B, C] and labels [T, B], some of which are missing."""
    generator = torch.Generator().manual_seed(n_steps)
    v = torch.randn(n_steps, n_samples, n_classes, generator=generator) * 3
    labels = torch.randint(-1, n_classes, (n_steps, n_samples), generator=generator)
    labels[0, 0] = -1
    return v.requires_grad_(), labels


@pytest.mark.parametrize("weights", [None, [0.5, 0.0, 2.0]])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("shape", [(13, 5, 3), (1, 1, 3), (70, 17, 3)])
def test_the_engine_computes_the_cross_entropy_of_steps_as_pytorch_does(shape, smoothing, weights) -> None:
    v, labels = labeled(*shape)
    n = 2 * int((labels >= 0).sum()) + 1
    loss = CrossEntropy(labels, "step", 3, label_smoothing=smoothing, class_weights=weights, n_samples=n)
    assert loss.in_engine(leaky(v))
    value = loss(leaky(v))
    (3 * value).backward()
    exact = v.detach().double().requires_grad_()
    losses = functional.cross_entropy(
        exact.flatten(0, 1),
        labels.flatten(),
        None if weights is None else torch.tensor(weights, dtype=torch.float64),
        ignore_index=-1,
        label_smoothing=smoothing,
        reduction="none",
    ).reshape(shape[:2])
    (3 * losses.sum() / n).backward()
    torch.testing.assert_close(loss.losses, losses.detach().sum(0).float(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(loss.logits, v.detach(), rtol=0, atol=0)
    torch.testing.assert_close(value.double(), losses.sum() / n, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(v.grad, exact.grad.float(), rtol=1e-4, atol=1e-7)
    assert not v.grad[labels < 0].any()


def test_one_sample_has_the_same_loss_in_any_batch() -> None:
    v, labels = labeled(40, 19, 5)
    whole = CrossEntropy(labels, "step", 5)
    whole(leaky(v))
    alone = CrossEntropy(labels[:, 7:8], "step", 5)
    alone(leaky(v[:, 7:8].contiguous()))
    assert torch.equal(whole.losses[7:8], alone.losses)


def test_a_batch_without_labels_has_no_loss() -> None:
    v = torch.randn(4, 2, 3, requires_grad=True)
    loss = CrossEntropy(torch.full((4, 2), -1), "step", 3)(leaky(v))
    loss.backward()
    assert float(loss.detach()) == 0
    assert not v.grad.any()


def test_a_population_code_with_labels_of_steps_goes_through_pytorch() -> None:
    v = torch.randn(4, 2, 6, requires_grad=True)
    labels = torch.tensor([[0, 1], [2, -1], [-1, -1], [1, 1]])
    want = functional.cross_entropy(v.reshape(4, 2, 3, 2).mean(-1).flatten(0, 1), labels.flatten(), ignore_index=-1)
    torch.testing.assert_close(cross_entropy(leaky(v), labels, "step", 3), want)


def test_class_weights_of_samples_are_pytorchs() -> None:
    v = torch.randn(9, 4, 3)
    labels, weights = torch.tensor([2, 0, 1, 1]), torch.tensor([0.1, 3.0, 1.0])
    losses = functional.cross_entropy(decode(leaky(v), "mean", 3), labels, weights, reduction="none")
    torch.testing.assert_close(cross_entropy(leaky(v), labels, "mean", 3, class_weights=weights), losses.mean())
    shares = torch.rand(4, 3).softmax(1)
    losses = functional.cross_entropy(decode(leaky(v), "mean", 3), shares, weights, reduction="none")
    torch.testing.assert_close(cross_entropy(leaky(v), shares, "mean", 3, class_weights=weights), losses.mean())


@pytest.mark.parametrize("error", ["mse", "mae", "huber"])
@pytest.mark.parametrize("decoding", ["mean", "last", "step"])
def test_errors_of_values_are_pytorchs_over_the_targets_that_are_given(error: str, decoding: str) -> None:
    v = (2 * torch.randn(11, 4, 3)).requires_grad_()
    targets = torch.randn(11, 4, 3) if decoding == "step" else torch.randn(4, 3)
    missing = torch.rand_like(targets) < 0.3
    loss = RegressionLoss(targets.masked_fill(missing, math.nan), decoding, error)
    value = loss(leaky(v))
    value.backward()
    exact = v.detach().clone().requires_grad_()
    function = {"mse": functional.mse_loss, "mae": functional.l1_loss, "huber": functional.huber_loss}[error]
    want = function(decode(leaky(exact), decoding, 3)[~missing], targets[~missing])
    want.backward()
    torch.testing.assert_close(value, want)
    torch.testing.assert_close(v.grad, exact.grad)
    assert loss.losses.shape == (4,)
    assert float(loss.losses.sum() / (~missing).sum()) == pytest.approx(float(want.detach()), rel=1e-5)


@pytest.mark.parametrize("backend", ["cpu", "dense"])
def test_learning_from_labels_of_steps_gives_the_gradients_of_autograd(backend: str) -> None:
    model = Model(parse_net("6-20r-3", grad_threshold=-math.inf), backend=backend, seed=1)
    spikes = SpikeBatch.from_dense((torch.rand(30, 5, 6, generator=torch.Generator().manual_seed(2)) < 0.4).float())
    labels = torch.randint(-1, 3, (30, 5), generator=torch.Generator().manual_seed(3))
    model.learn(spikes, CrossEntropy(labels, "step", 3))
    found = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    logits = model(spikes).potentials
    functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-1).backward()
    for a, p in zip(found, model.parameters(), strict=True):
        assert a.abs().sum() > 0
        torch.testing.assert_close(a, p.grad, rtol=1e-4, atol=1e-6)


def test_errors() -> None:
    v = torch.zeros(4, 2, 3)
    with pytest.raises(ShapeError, match=r"shape \(2,\).*'step' needs whole numbers with shape \(4, 2\)"):
        cross_entropy(leaky(v), torch.tensor([0, 1]), "step", 3)
    with pytest.raises(ShapeError, match=r"labels run from -2 to 3; allowed: 0 to 2, and -1 for no label"):
        cross_entropy(leaky(v), torch.tensor([[0, 3]] * 3 + [[-2, 0]]), "step", 3)
    with pytest.raises(ShapeError, match="class_weights have the shape"):
        cross_entropy(leaky(v), torch.tensor([0, 1]), "mean", 3, class_weights=[1.0, 2.0])
    with pytest.raises(ShapeError, match="finite numbers from 0"):
        cross_entropy(leaky(v), torch.tensor([0, 1]), "mean", 3, class_weights=[1.0, 2.0, -1.0])
    with pytest.raises(DescriptionError, match="error is 'rmse'; allowed: mse, mae, huber"):
        RegressionLoss(torch.zeros(2, 3), "mean", "rmse")
    with pytest.raises(ShapeError, match=r"targets have the shape \(4, 2, 3\); give \[B, K\]"):
        RegressionLoss(torch.zeros(4, 2, 3), "mean")
    with pytest.raises(ShapeError, match=r"targets have the shape \(3, 3\), the decoded output \(2, 3\)"):
        RegressionLoss(torch.zeros(3, 3), "mean")(leaky(v))
    with pytest.raises(AttributeError, match="only after a call"):
        _ = RegressionLoss(torch.zeros(2, 3), "mean").losses
