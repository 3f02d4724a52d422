from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from sparsesnn import _core
from sparsesnn.engines.module import Model
from sparsesnn.errors import DescriptionError, ShapeError
from sparsesnn.loss import DECODINGS, IN_ENGINE, CrossEntropy, activity_regularizer, cross_entropy, decode
from sparsesnn.network import parse_net
from sparsesnn.output import Output
from sparsesnn.spikes import SpikeBatch


def leaky(potentials: Tensor) -> Output:
    return Output(potentials, {}, {}, "output")


def spiking(**spikes: Tensor | SpikeBatch) -> Output:
    return Output(None, spikes, {}, list(spikes)[-1])


V = torch.tensor([[[0.0, 3.0, -1.0, 1.0]], [[2.0, 1.0, 5.0, 0.5]], [[1.0, 0.0, 2.0, -4.0]]])  # [T=3, B=1, N=4]


@pytest.mark.parametrize(
    ("decoding", "want"),
    [
        ("max", [2.0, 3.0, 5.0, 1.0]),
        ("mean", [1.0, 4 / 3, 2.0, -2.5 / 3]),
        ("sum", [3.0, 4.0, 6.0, -2.5]),
        ("last", [1.0, 0.0, 2.0, -4.0]),
        ("softmax_sum", [0.3318290929280908, 0.937806332950608, 1.6059674863406088, 0.1243970877806926]),
    ],
)
def test_over_time(decoding: str, want: list[float]) -> None:
    torch.testing.assert_close(decode(leaky(V), decoding, 4), torch.tensor([want]))


def test_steps_that_hold_the_maximum_share_its_gradient() -> None:
    """Three, two and one of three steps; a readout of several neurons a class shares by their mean."""
    v = torch.tensor([[[0.0, 1.0, 2.0]], [[0.0, 0.5, 3.0]], [[0.0, 1.0, 1.0]]], requires_grad=True)
    decode(leaky(v), "max", 3).backward(torch.tensor([[3.0, -2.0, 5.0]]))
    assert v.grad.tolist() == [[[1, -1, 0]], [[1, 0, 5]], [[1, -1, 0]]]
    v = torch.tensor([[[1.0, 3.0]], [[2.0, 2.0]], [[0.0, 3.9]]], requires_grad=True)
    decode(leaky(v), "max", 1).sum().backward()
    assert v.grad.tolist() == [[[0.25, 0.25]], [[0.25, 0.25]], [[0, 0]]]


def test_population_code_averages_potentials_before_time() -> None:
    """Classes are neurons 0, 1 and 2, 3: means (1.5, 0), (1.5, 2.75), (0.5, -1)."""
    torch.testing.assert_close(decode(leaky(V), "max", 2), torch.tensor([[1.5, 2.75]]))
    torch.testing.assert_close(decode(leaky(V), "last", 2), torch.tensor([[0.5, -1.0]]))


def test_counts_and_population_code_of_spikes() -> None:
    dense = torch.tensor([[[1.0, 1, 0, 0, 0, 1]], [[1, 0, 0, 1, 0, 0]]])
    for spikes in (dense, SpikeBatch.from_dense(dense)):
        assert decode(spiking(output=spikes), "count", 6).tolist() == [[2, 1, 0, 1, 0, 1]]
        assert decode(spiking(output=spikes), "count", 3).tolist() == [[3, 1, 1]]


@pytest.mark.parametrize("backend", ["cpu", "dense"])
@pytest.mark.parametrize("decoding", DECODINGS)
def test_gradients_reach_the_network(decoding: str, backend: str) -> None:
    net = "6-8-10s" if decoding == "count" else "6-8-10"
    model = Model(parse_net(net, grad_threshold=-math.inf), backend=backend)
    output = model(SpikeBatch.from_dense((torch.rand(9, 3, 6) < 0.5).float()))
    labels = torch.tensor([0, 4, 2])
    loss = cross_entropy(output, labels.expand(9, 3) if decoding == "step" else labels, decoding, 5)
    loss.backward()
    assert loss.ndim == 0
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_cross_entropy_by_hand() -> None:
    loss = cross_entropy(leaky(V), torch.tensor([2]), "max", 4)
    want = -5 + math.log(math.exp(2) + math.exp(3) + math.exp(5) + math.exp(1))
    assert float(loss) == pytest.approx(want, rel=1e-6)
    smoothed = cross_entropy(leaky(V), torch.tensor([2]), "max", 4, label_smoothing=0.2)
    assert float(smoothed) == pytest.approx(want + 5 - 0.8 * 5 - 0.05 * 11, rel=1e-6)


def test_errors_of_decode() -> None:
    with pytest.raises(
        DescriptionError, match="decoding is 'median'; allowed: max, mean, sum, last, softmax_sum, step, count"
    ):
        decode(leaky(V), "median", 4)
    with pytest.raises(DescriptionError, match="'count' reads spikes, but 'output' is an LI readout"):
        decode(leaky(V), "count", 4)
    with pytest.raises(DescriptionError, match="'max' reads potentials, but 'output' fires; use 'count'"):
        decode(spiking(output=torch.zeros(2, 1, 4)), "max", 4)
    with pytest.raises(ShapeError, match=r"'output' has 4 neurons for 3 classes; give it 3, or k·3"):
        decode(leaky(V), "max", 3)
    with pytest.raises(ShapeError, match="has 4 neurons for 5 classes"):
        decode(spiking(output=torch.zeros(2, 1, 4)), "count", 5)
    with pytest.raises(ShapeError, match="'output' has 0 time steps"):
        decode(leaky(torch.zeros(0, 1, 4)), "max", 4)
    for n_classes in (0, -2, 2.0, True):
        with pytest.raises(DescriptionError, match="n_classes is"):
            decode(leaky(V), "max", n_classes)  # type: ignore[arg-type]


def test_errors_of_labels() -> None:
    for labels in (
        torch.tensor([1, 2]),
        torch.tensor([1.0]),
        torch.tensor([[1]]),
        torch.tensor([True]),
    ):
        with pytest.raises(ShapeError, match=r"labels are torch\.\w+ with shape .* give int64 with shape \(1,\)"):
            cross_entropy(leaky(V), labels, "max", 4)
    for label in (-1, 4, -100):
        with pytest.raises(ShapeError, match=f"labels run from {label} to {label}; allowed: 0 to 3"):
            cross_entropy(leaky(V), torch.tensor([label]), "max", 4)
    with pytest.raises(ShapeError, match="0 samples"):
        cross_entropy(leaky(torch.zeros(3, 0, 4)), torch.zeros(0, dtype=torch.int64), "max", 4)


@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning")
@pytest.mark.parametrize("decoding", ["max", "softmax_sum"])
def test_labels_of_every_kind(decoding: str) -> None:
    output, shares = leaky(V.expand(-1, 2, -1)), torch.tensor([[0.0, 0.5, 0.5, 0.0], [1.0, 0.0, 0.0, 0.0]])
    labels = torch.tensor([3, 0])
    for plain, given in (
        (
            labels,
            [labels.tolist(), (3, 0), labels.numpy(), labels.to_sparse(), np.array([3, 0], ">i2"), [np.int8(3), 0]],
        ),
        (labels, [labels.to(dtype) for dtype in (torch.int32, torch.uint8, torch.uint16)]),
        (shares, [shares.tolist(), shares.numpy(), shares.double(), shares.to_sparse(), shares.to_sparse_csr()]),
    ):
        wanted = cross_entropy(output, plain, decoding, 4)
        for other in given:
            assert torch.equal(cross_entropy(output, other, decoding, 4), wanted), other  # type: ignore[arg-type]
            smoothed = CrossEntropy(other, decoding, 4, label_smoothing=np.float32(0.5), n_samples=np.int64(2))  # type: ignore[arg-type]
            assert torch.equal(smoothed(output), cross_entropy(output, plain, decoding, 4, label_smoothing=0.5))
    for names, match in (
        ({"label_smoothing": "0.1"}, "label_smoothing is '0.1'"),
        ({"n_samples": 1.5}, "n_samples is 1.5"),
    ):
        with pytest.raises(DescriptionError, match=match):
            CrossEntropy(labels, decoding, 4, **names)  # type: ignore[arg-type]


def test_shares_of_classes() -> None:
    """A share of 1 is a label; shares weigh the labels' losses."""
    v = V.expand(-1, 3, -1)

    def loss(labels: torch.Tensor) -> float:
        return float(cross_entropy(leaky(v), labels, "max", 4))

    one, other = torch.tensor([0, 1, 2]), torch.tensor([3, 1, 0])
    sharp = torch.nn.functional.one_hot(one, 4).float()
    assert loss(sharp) == pytest.approx(loss(one))
    mixed = 0.25 * sharp + 0.75 * torch.nn.functional.one_hot(other, 4).float()
    assert loss(mixed) == pytest.approx(0.25 * loss(one) + 0.75 * loss(other))
    for wrong, message in (
        (mixed * 0.5, r"sum to 0.5 to 0.5 per sample; allowed: from 0, with the sum 1"),
        (torch.tensor([[2.0, -1, 0, 0]] * 3), "run from -1"),
        (torch.full((3, 4), torch.nan), "run from nan"),
        (mixed[:, :3], r"float32 with shape \(3, 3\); .* or float32 with shape \(3, 4\)"),
    ):
        with pytest.raises(ShapeError, match=message):
            loss(wrong)


def test_activity_regularizer_by_hand() -> None:
    """T = 2, B = 2: activities 1, 0.25 and 0; mean 5/12."""
    spikes = torch.tensor([[[1.0, 1, 0], [1, 0, 0]], [[1, 0, 0], [1, 0, 0]]])
    for s in (spikes, SpikeBatch.from_dense(spikes)):
        output = spiking(hidden=s)
        lower = activity_regularizer(output, lower=0.5, strength_lower=2.0)
        assert float(lower) == pytest.approx(2 * (0.25**2 + 0.5**2) / 3)
        upper = activity_regularizer(output, upper=0.25, strength_upper=3.0)
        assert float(upper) == pytest.approx(3 * (5 / 12 - 0.25) ** 2)
        assert float(activity_regularizer(output, lower=0.5, upper=0.25)) == pytest.approx(
            float(lower) / 2 + float(upper) / 3
        )
        assert float(activity_regularizer(output, upper=0.5)) == 0


def test_activity_regularizer_sums_populations_and_takes_dicts() -> None:
    output = spiking(a=torch.ones(2, 1, 3), b=torch.zeros(2, 1, 5))
    assert float(activity_regularizer(output, lower=0.1)) == pytest.approx(0.01)
    assert float(activity_regularizer(output, lower={"a": 0.1}, upper={"b": 0.5})) == 0
    assert float(activity_regularizer(output, upper={"a": 0.5})) == pytest.approx(0.25)


@pytest.mark.parametrize("backend", ["cpu", "dense"])
def test_activity_regularizer_pushes_activity(backend: str) -> None:
    """A gradient step on the lower bound raises the activity, one on the upper bound reduces it."""
    for bounds, sign in [({"lower": 0.5}, 1), ({"upper": 0.01}, -1)]:
        torch.manual_seed(0)
        model = Model(parse_net("20-30-2", grad_threshold=-math.inf), backend=backend)
        with torch.no_grad():
            model.layers["hidden"].weights[0].mul_(3)
        x = SpikeBatch.from_dense((torch.rand(20, 4, 20) < 0.3).float())
        before = model(x)
        activity_regularizer(before, **bounds).backward()
        weight = model.layers["hidden"].weights[0]
        with torch.no_grad():
            weight -= 0.1 * weight.grad / weight.grad.abs().max()
        assert sign * (model(x).activity()["hidden"] - before.activity()["hidden"]) > 0


def test_errors_of_the_regularizer() -> None:
    output = spiking(hidden=torch.zeros(2, 1, 3))
    with pytest.raises(DescriptionError, match="lower and upper are both None"):
        activity_regularizer(output)
    with pytest.raises(DescriptionError, match=r"lower: 'out' is not a spiking population; spiking ones: \['hidden'\]"):
        activity_regularizer(output, lower={"out": 0.1})
    with pytest.raises(DescriptionError, match=r"upper: 'hidden' has 1\.5; allowed: 0 to 1"):
        activity_regularizer(output, upper=1.5)
    with pytest.raises(DescriptionError, match="no spiking population"):
        activity_regularizer(leaky(V), lower=0.1)


@pytest.mark.parametrize("decoding", IN_ENGINE)
def test_the_engine_computes_the_same_bits_on_all_instruction_sets(decoding: str) -> None:
    supported = _core.build_info()["isa_supported"]
    for n_classes in (1, 7, 20, 33):
        generator = torch.Generator().manual_seed(n_classes)
        v = torch.randn(9, 5, n_classes, generator=generator) * torch.tensor([1.0, 30, 500, 1e4, 1])[:, None]
        for x, value in enumerate((math.inf, -math.inf, math.nan)):
            v[x, 4 - x, 0] = value
        labels = torch.arange(5) % n_classes
        if decoding == "step":
            labels = labels.repeat(9, 1)
            labels[2, 3] = -1
        found = []
        try:
            for isa in supported:
                _core.set_isa(isa)
                loss = CrossEntropy(labels, decoding, n_classes, label_smoothing=0.1)
                value, gradient = loss.of_potentials(v.numpy())
                arrays = (value, loss.logits, loss.losses, torch.from_numpy(gradient(1.0)))
                found.append([x.numpy().tobytes() for x in arrays])
        finally:
            _core.set_isa(supported[-1])
        assert all(one == found[0] for one in found), n_classes


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("decoding", ["mean", "sum", "last", "max"])
@pytest.mark.parametrize(
    ("shape", "scale"), [((100, 48, 20), 1.0), ((7, 5, 3), 30.0), ((3, 2, 4), 500.0), ((1, 1, 1), 1.0)]
)
def test_the_engine_computes_cross_entropy_as_pytorch_does(shape, scale, decoding, shares):
    generator = torch.Generator().manual_seed(1)
    _, n_samples, n_classes = shape
    v = (torch.randn(shape, generator=generator) * scale).requires_grad_()
    labels = torch.randint(n_classes, (n_samples,), generator=generator)
    if shares:
        labels = torch.rand(n_samples, n_classes, generator=generator).softmax(1)
    loss = CrossEntropy(labels, decoding, n_classes, label_smoothing=0.1, n_samples=2 * n_samples)
    assert loss.in_engine(leaky(v))
    value = loss(leaky(v))
    (3 * value).backward()
    exact = v.detach().double().requires_grad_()
    logits = decode(leaky(exact), decoding, n_classes)
    target = labels.double() if shares else labels
    losses = torch.nn.functional.cross_entropy(logits, target, label_smoothing=0.1, reduction="none")
    (3 * losses.sum() / (2 * n_samples)).backward()
    torch.testing.assert_close(loss.logits, logits.detach().float(), rtol=1e-6, atol=1e-6 * scale)
    torch.testing.assert_close(loss.losses, losses.detach().float(), rtol=1e-5, atol=1e-6 * scale)
    assert float(value.detach()) == pytest.approx(float(losses.detach().sum()) / (2 * n_samples), rel=1e-5, abs=1e-6)
    # a logit is rounded to float32, which moves its share of the softmax by as much
    torch.testing.assert_close(v.grad, exact.grad.float(), rtol=1e-4, atol=1e-7 * scale * float(exact.grad.abs().max()))


def test_what_the_engine_does_not_decode_goes_through_pytorch():
    labels = torch.tensor([1])
    for output, decoding, n_classes in (
        (leaky(V), "softmax_sum", 4),
        (leaky(V), "mean", 2),
        (leaky(V.double()), "mean", 4),
        (spiking(output=torch.ones(2, 1, 4)), "count", 4),
    ):
        loss = CrossEntropy(labels, decoding, n_classes)
        assert not loss.in_engine(output)
        want = torch.nn.functional.cross_entropy(decode(output, decoding, n_classes), labels)
        assert torch.equal(loss(output), want)


def test_cross_entropy_keeps_what_is_not_finite():
    for value in (math.nan, math.inf):
        v = torch.zeros(3, 1, 4)
        v[1, 0, 2] = value
        for decoding in ("mean", "sum", "max"):
            assert math.isnan(float(cross_entropy(leaky(v), torch.tensor([2]), decoding, 4)))
    far = torch.tensor([[[0.0, -2000.0]]])
    assert float(cross_entropy(leaky(far), torch.tensor([0]), "sum", 2)) == 0
    assert float(cross_entropy(leaky(far), torch.tensor([1]), "sum", 2)) == 2000
