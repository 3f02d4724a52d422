"""Sparse tensors of PyTorch and arrays of JAX as spike lists, compared with the dense ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sparsesnn as ss
from sparsesnn.errors import ShapeError, SpikeListError
from sparsesnn.spikes import SpikeBatch

SHAPE = (5, 3, 7)


def spikes(seed: int = 0, share: float = 0.3) -> Tensor:
    return (torch.rand(SHAPE, generator=torch.Generator().manual_seed(seed)) < share).float()


def coo(places: list[list[int]], values: Any, shape: tuple[int, ...] = (2, 2, 4)) -> Tensor:
    """A tensor that is not coalesced, of entries (t, b, n)."""
    indices = torch.tensor(places, dtype=torch.int64).T.reshape(len(shape), -1)
    return torch.sparse_coo_tensor(indices, torch.as_tensor(values), shape, check_invariants=False)


def assert_same(a: SpikeBatch, b: SpikeBatch) -> None:
    for name in ("offsets", "ids", "n_spikes"):
        assert torch.equal(getattr(a, name), getattr(b, name)), name
    assert (a.n_steps, a.n_samples, a.n_neurons, a.graded) == (b.n_steps, b.n_samples, b.n_neurons, b.graded)
    torch.testing.assert_close(a.values, b.values, rtol=0, atol=0)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float64])
def test_the_lists_are_those_of_the_dense_tensor(share: float, batch_first: bool, dtype: torch.dtype) -> None:
    dense = spikes(1, share).to(dtype)
    for make in (SpikeBatch.from_sparse, SpikeBatch.from_dense):
        assert_same(
            make(dense.to_sparse(), batch_first=batch_first), SpikeBatch.from_dense(dense, batch_first=batch_first)
        )


def test_entries_in_any_order_and_zeros_among_them() -> None:
    dense = spikes(2)
    given = dense.to_sparse()
    order = torch.randperm(given._nnz(), generator=torch.Generator().manual_seed(3))
    places = torch.cat([given.indices()[:, order], torch.tensor([[0], [0], [int((dense[0, 0] == 0).nonzero()[0])]])], 1)
    values = torch.cat([given.values()[order], torch.zeros(1)])
    assert_same(
        SpikeBatch.from_sparse(torch.sparse_coo_tensor(places, values, SHAPE, check_invariants=False)),
        SpikeBatch.from_dense(dense),
    )


def test_the_dense_tensor_is_never_made() -> None:
    """10^14 numbers would not fit."""
    batch = SpikeBatch.from_dense(coo([[9_999, 9_999, 999_999], [0, 3, 5]], [1.0, 1.0], (10_000, 10_000, 1_000_000)))
    assert batch.ids.tolist() == [5, 999_999]
    assert batch.n_spikes[[3, -1]].tolist() == [1, 1]


def test_repeated_places_are_counts() -> None:
    given = coo([[1, 0, 2], [0, 1, 3], [1, 0, 2]], [1.0, 1.0, 1.0])
    counted = SpikeBatch.from_sparse(given, graded=True)
    assert (counted.ids.tolist(), counted.entry_values().tolist()) == ([3, 2], [1.0, 2.0])
    with pytest.raises(
        SpikeListError, match=r"spikes hold 2; entries must be 0 or 1; 1 entries .* repeat others.*graded=True"
    ):
        SpikeBatch.from_sparse(given)


def test_gradients_pass_to_the_values() -> None:
    network = ss.Network.chain(ss.Input(SHAPE[2]), ss.LIF(4, grad_threshold=-float("inf")), ss.LI(2))
    model = ss.Model(network, seed=1)
    dense = spikes(4)
    sparse = dense.to_sparse().requires_grad_()
    outputs = [
        model(SpikeBatch.from_sparse(sparse, gradient="fired")),
        model(SpikeBatch.from_dense(dense.requires_grad_(), gradient="fired")),
    ]
    assert outputs[0].potentials is not None
    weight = torch.randn(outputs[0].potentials.shape, generator=torch.Generator().manual_seed(0))
    for output in outputs:
        (output.potentials * weight).sum().backward()  # type: ignore[operator]
    assert sparse.grad is not None
    assert dense.grad is not None
    assert dense.grad.abs().sum() > 0
    torch.testing.assert_close(sparse.grad.to_dense(), dense.grad, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("given", "options", "error", "message"),
    [
        (torch.ones(2, 2, 4), {}, ShapeError, r"layout torch.strided; give .*COO.*for dense arrays use from_dense"),
        ([[0, 1]], {}, ShapeError, "spikes are a list; give"),
        (torch.ones(2, 4).to_sparse(), {}, ShapeError, r"spikes have 2 axes \[2, 4\]; give three"),
        (torch.ones(2, 2, 4, 3).to_sparse(3), {}, ShapeError, r"4 axes \[2, 2, 4, 3\], the last 1 of them dense"),
        (torch.ones(2, 2, 4, dtype=torch.complex64).to_sparse(), {}, ShapeError, "are torch.complex64; give real numbers"),
        (coo([[0, 0, 1]], [float("nan")]), {}, SpikeListError, "entries are NaN or infinite"),
        (coo([[0, 0, 1]], [float("inf")]), {"graded": True}, SpikeListError, "entries are NaN or infinite"),
        (coo([[0, 0, 1]], [0.5]), {}, SpikeListError, "spikes hold 0.5; entries must be 0 or 1; .*graded=True"),
        (coo([[0, 0, 1]], [-1]), {}, SpikeListError, "spikes hold -1; .* padding"),
        (spikes().to_sparse(), {"gradient": "all"}, SpikeListError, "gradient is 'all'; allowed: 'none', 'fired'"),
        (spikes().to_sparse().requires_grad_(), {}, SpikeListError, "gradient is 'none'.*gradient='fired' to pass it on"),
    ],
)  # fmt: skip
def test_refusals(given: Any, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"from_sparse: .*{message}"):
        SpikeBatch.from_sparse(given, **options)


# ---- JAX ----------------------------------------------------------------------------------------------------------------


@dataclass
class BCOO:
    """The attributes of jax.experimental.sparse.BCOO that are read."""

    data: Any
    indices: Any
    shape: tuple[int, ...]
    n_batch: int = 0
    n_dense: int = 0

    @property
    def n_sparse(self) -> int:
        return len(self.shape) - self.n_batch - self.n_dense


BCOO.__module__ = "jax.experimental.sparse.bcoo"


def test_padding_of_bcoo_is_left_out_and_other_places_are_refused() -> None:
    places = np.array([[1, 0, 3], [2, 2, 4], [0, 1, 0], [2, 2, 4]], np.int32)
    batch = SpikeBatch.from_sparse(BCOO(np.ones(4, np.float32), places, (2, 2, 4)))
    assert (batch.ids.tolist(), batch.n_spikes.tolist()) == ([0, 3], [0, 1, 1, 0])
    with pytest.raises(SpikeListError, match=r"places on axis 2 run from 3 to 4; the shape \[2, 2, 4\] allows 0 to 3"):
        SpikeBatch.from_sparse(BCOO(np.ones(2), np.array([[1, 0, 3], [1, 0, 4]]), (2, 2, 4)))
    with pytest.raises(SpikeListError, match=r"places on axis 0 run from -1 to -1"):
        SpikeBatch.from_sparse(BCOO(np.ones(1), np.array([[-1, 0, 3]]), (2, 2, 4)))
    with pytest.raises(ShapeError, match=r"1 batch axes \(n_batch\); give one without"):
        SpikeBatch.from_sparse(BCOO(np.ones((2, 1)), np.zeros((2, 1, 2), int), (2, 2, 4), n_batch=1))


@pytest.fixture
def jax() -> Any:
    return pytest.importorskip("jax", reason="needs the package jax")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "int8"])
def test_arrays_of_jax(jax: Any, dtype: str) -> None:
    dense = spikes(5)
    given = jax.numpy.asarray(dense.numpy()).astype(dtype)
    assert_same(SpikeBatch.from_dense(given), SpikeBatch.from_dense(dense))
    from jax.experimental import sparse

    with_padding = sparse.BCOO.fromdense(given, nse=int(dense.sum()) + 3)
    for make in (SpikeBatch.from_sparse, SpikeBatch.from_dense):
        assert_same(make(with_padding, batch_first=True), SpikeBatch.from_dense(dense, batch_first=True))


def test_lists_events_and_constants_of_jax(jax: Any) -> None:
    array = jax.numpy.asarray
    assert SpikeBatch.from_lists([[array([3, 1]), array([0])]], 4).ids.tolist() == [1, 3, 0]
    events = SpikeBatch.from_events([(array([0.0, 1500.0]), array([2, 1]))], n_steps=2, n_neurons=4, dt_us=1000)
    assert events.ids.tolist() == [2, 1]
    assert SpikeBatch.constant(array([[0.0, 0.5]]), 3).entry_values().tolist() == [0.5]


def test_jax_arrays_under_jit_are_refused(jax: Any) -> None:
    with pytest.raises(ShapeError, match="from_dense: spikes: got a .*Tracer; give a tensor, or an array"):
        jax.jit(lambda x: SpikeBatch.from_dense(x).n_steps)(jax.numpy.ones(SHAPE))
