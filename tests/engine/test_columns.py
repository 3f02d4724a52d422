"""The columns of a tile that a worker packs: the same numbers for any number of threads, and always of the weights as they are."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable, Iterator

import pytest
import torch

from sparsesnn import Adam, _core
from sparsesnn.engines.module import Layer, Model
from sparsesnn.errors import NumericError
from sparsesnn.layers import LI, LIF, Input
from sparsesnn.network import Connection, Network
from sparsesnn.spikes import SpikeBatch

T, B, M, N = 9, 11, 23, 333  # tiles and rows that nothing divides
THREADS = (1, 2, 3, 5, 40)  # workers pack tiles; from 5 on there are too few


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = _core.num_threads()
    yield
    _core.set_num_threads(before)


def network() -> Network:
    """Two copies of a connection into one population."""
    a = LIF(N, grad_threshold=0.5, bias=True)
    return Network(
        {"input": Input(M), "a": a, "out": LI(3)},
        (*(Connection("input", "a", delay) for delay in (0, 2)), Connection("a", "out")),
    )


def made(weight_dtype: str = "float32") -> tuple[Model, SpikeBatch]:
    generator = torch.Generator().manual_seed(3)
    model = Model(network(), weight_dtype=weight_dtype)
    with torch.no_grad():
        for weight in weights_of(model):
            weight.mul_(4)
    return model, SpikeBatch.from_dense((torch.rand(T, B, M, generator=generator) < 0.2).float())


def weights_of(model: Model) -> tuple[torch.nn.Parameter, ...]:
    layer = model.layers["a"]
    assert isinstance(layer, Layer)
    return layer.weights


def ran(model: Model, spikes: SpikeBatch) -> list[torch.Tensor]:
    """Potentials, spikes and gradients."""
    model.zero_grad()
    output = model(spikes)
    assert output.potentials is not None
    output.potentials.square().mean().backward()
    ids = output.spikes["a"].ids.int()  # type: ignore[union-attr]
    return [output.potentials.detach(), ids, *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("weight_dtype", ["float32", "bfloat16"])
def test_any_number_of_threads(weight_dtype: str) -> None:
    model, spikes = made(weight_dtype)
    _core.set_num_threads(1)
    expected = ran(model, spikes)
    assert expected[1].numel() > N
    for threads in THREADS:
        _core.set_num_threads(threads)
        assert same(ran(model, spikes), expected), threads


@pytest.mark.parametrize("threads", THREADS)
def test_the_first_weight_that_is_not_finite_is_named(threads: int) -> None:
    """Whichever worker finds which first."""
    model, spikes = made()
    first, second = weights_of(model)[:2]
    with torch.no_grad():
        second[0, 0] = math.inf
        first[M - 1, 5] = math.inf
        first[2, N - 1] = math.nan
    _core.set_num_threads(threads)
    for _ in range(3):
        with pytest.raises(NumericError, match=rf"a: weight holds NaN at \[2, {N - 1}\]"):
            model(spikes)


CHANGES: dict[str, Callable[[Model], object]] = {
    "data": lambda model: weights_of(model)[0].data.mul_(-1),
    "data of an entry": lambda model: weights_of(model)[1].data[:, 7].add_(1),
    "detached": lambda model: weights_of(model)[0].detach().mul_(-1),
    "NumPy": lambda model: weights_of(model)[0].detach().numpy().__imul__(-1),
    "another storage": lambda model: setattr(weights_of(model)[0], "data", -weights_of(model)[0].detach()),
    "state_dict": lambda model: model.load_state_dict({k: -x for k, x in model.state_dict().items()}, strict=True),
    "Adam": lambda model: Adam(model.parameters(), lr=0.3).step(),
    "PyTorch": lambda model: torch.optim.SGD(model.parameters(), lr=30.0).step(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_weights_are_read_as_they_are(change: str) -> None:
    """Whoever wrote them, with or without PyTorch's knowledge."""
    model, spikes = made()
    before = ran(model, spikes)
    assert same(ran(model, spikes), before)
    CHANGES[change](model)
    fresh = Model(network())
    fresh.load_state_dict({name: x.clone() for name, x in model.state_dict().items()})
    after = ran(model, spikes)
    assert not same(after, before)
    assert same(after, ran(fresh, spikes))


def test_copies_have_weights_of_their_own() -> None:
    model, spikes = made()
    before = ran(model, spikes)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert same(ran(copied, spikes), before)
        weights_of(copied)[0].data.mul_(-1)
        assert not same(ran(copied, spikes), before)
        assert same(ran(model, spikes), before)
