"""One tile goes back list by list; with more senders than fit into a cache they are sorted: the same bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from sparsesnn import _core
from sparsesnn.engines.module import Layer
from sparsesnn.layers import LI, LIF
from sparsesnn.spikes import SpikeBatch

M, T = 97, 11
#: senders of which the weights and their gradient do not stay in cache, for a tile of 16 neurons
MANY = 5000


def heard(n_samples: int, graded: bool) -> SpikeBatch:
    """Spikes and near-spikes that want a gradient, of the first neurons of many."""
    generator = torch.Generator().manual_seed(n_samples)
    shape = (T, n_samples, M)
    fired = torch.rand(shape, generator=generator) < 0.15
    dense = torch.where(fired, torch.randint(1, 4 if graded else 2, shape, generator=generator), 0).float()
    batch = SpikeBatch.from_dense(dense.requires_grad_(), gradient="all", graded=graded)
    keep = torch.rand(len(batch.ids), generator=generator) < 0.3  # lists of different lengths
    keep |= batch.values.detach() != 0
    lengths = torch.cat([torch.zeros(1, dtype=torch.int64), keep.cumsum(0)])[batch.offsets]
    assert batch.values is not None
    values = batch.values.detach()[keep].requires_grad_()
    ids = torch.from_numpy(batch.ids.numpy()[keep.numpy()])  # old versions of PyTorch do not index uint16
    return replace(batch, offsets=lengths, ids=ids, values=values).validate()


def gradients(n_pre: int, n: int, n_samples: int, graded: bool, delay: int, weight_dtype: str) -> list[torch.Tensor]:
    layer = Layer(LI(n, learn_beta=True, bias=True), n_pre, delays=[delay], weight_dtype=weight_dtype)
    with torch.no_grad():
        weight = torch.randn(M, n, generator=torch.Generator().manual_seed(1))
        layer.weights[0].zero_()[:M] = weight
    spikes = replace(heard(n_samples, graded), n_neurons=n_pre)
    potentials, _ = layer(spikes)
    (potentials.square().sum() + potentials[-1].sin().sum()).backward()
    assert spikes.values is not None
    assert spikes.values.grad is not None
    others = [p.grad for name, p in layer.named_parameters() if "->" not in name]
    assert len(others) == 2
    return [potentials.detach(), layer.weights[0].grad[:M], spikes.values.grad, *others]


@pytest.mark.parametrize("n", [1, 10, 16])
@pytest.mark.parametrize(
    ("n_samples", "graded", "delay"), [(1, False, 0), (8, True, 2), (71, False, 1), (140, True, 0)]
)
@pytest.mark.parametrize("weight_dtype", ["float32", "bfloat16"])
def test_list_by_list_has_the_bits_of_sorting(n: int, n_samples: int, graded: bool, delay: int, weight_dtype: str):
    few = gradients(M, n, n_samples, graded, delay, weight_dtype)
    many = gradients(MANY, n, n_samples, graded, delay, weight_dtype)
    for one, other in zip(few, many, strict=True):
        assert torch.equal(one, other)
    assert few[1].abs().sum() > 0
    assert few[2].abs().sum() > 0


FIRING: dict[str, dict[str, Any]] = {
    "subtract": {},
    "zero": {"reset": "zero", "detach_reset": False},
    "attached": {"detach_reset": False, "grad_threshold": -float("inf")},
    "capacity": {"capacity": 5, "reset": "zero"},
}


@pytest.mark.parametrize("potentials", [False, True])
@pytest.mark.parametrize(("n_samples", "graded", "delay"), [(1, False, 0), (8, True, 2), (71, False, 1)])
@pytest.mark.parametrize("name", FIRING)
def test_neurons_that_fire_have_the_bits_of_sorting(
    name: str, n_samples: int, graded: bool, delay: int, potentials: bool
) -> None:
    found = []
    for n_pre in (M, MANY):
        layer = Layer(LIF(10, bias=True, **{"grad_threshold": 0.3, **FIRING[name]}), n_pre, delays=[delay])
        with torch.no_grad():
            layer.weights[0].zero_()[:M] = torch.randn(M, 10, generator=torch.Generator().manual_seed(1))
        spikes = replace(heard(n_samples, graded), n_neurons=n_pre)
        out, _, *more = layer(spikes, potentials=potentials)
        loss = (out.counts() * torch.linspace(-1, 1, 10)).sum()
        if potentials:
            loss = loss + more[0].square().sum()
        loss.backward()
        assert spikes.values is not None
        assert layer.bias is not None
        found.append([layer.weights[0].grad[:M], spikes.values.grad, layer.bias.grad])
        assert float(out.activity()) > 0
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_threads_decide_nothing():
    found = []
    before = _core.num_threads()
    try:
        for threads in (1, 2, 5):
            _core.set_num_threads(threads)
            found.append(gradients(M, 10, 71, False, 1, "float32"))
    finally:
        _core.set_num_threads(before)
    for others in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], others, strict=True))


@pytest.mark.parametrize("n_pre", [M, MANY])
@pytest.mark.parametrize("n", [10, 100])
def test_a_gradient_that_is_the_same_at_all_steps_may_be_there_once(n: int, n_pre: int):
    layer = Layer(LI(n, learn_beta=True, bias=True), n_pre, delays=[1], generator=torch.Generator().manual_seed(1))
    once = torch.randn(1, 9, n, generator=torch.Generator().manual_seed(2))
    found = []
    for d in (once.expand(T, 9, n), once.repeat(T, 1, 1)):
        layer.zero_grad()
        spikes = replace(heard(9, False), n_neurons=n_pre)
        layer(spikes)[0].backward(d)
        assert spikes.values is not None
        found.append([spikes.values.grad, *(p.grad for p in layer.parameters())])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
        assert one.abs().sum() > 0
