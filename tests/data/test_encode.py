"""Numbers as spikes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import sparsesnn as ss
from sparsesnn.errors import NumericError, ShapeError, SparseSnnError


def test_rate_fires_as_often_as_the_values_say() -> None:
    x = torch.tensor([[0.0, 0.25, 1.0], [0.5, 0.75, 0.0]])
    spikes = ss.encode.rate(x, 2000, generator=torch.Generator().manual_seed(0))
    assert spikes.shape == (2000, 2, 3)
    found = spikes.counts() / 2000
    torch.testing.assert_close(found, x, rtol=0, atol=0.05)  # over four standard deviations
    assert torch.equal(found[x == 0], torch.zeros(2))
    assert float(found[0, 2]) == 1
    again = ss.encode.rate(x, 2000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(spikes.ids, again.ids)


def test_latency_fires_once_large_values_first() -> None:
    spikes = ss.encode.latency(np.array([[[1.0, 0.5], [0.01, 0.02]]]), 5).to_dense()
    assert spikes.shape == (5, 1, 4)
    assert spikes[:, 0].nonzero().tolist() == [[0, 0], [2, 1], [4, 3]]
    assert ss.encode.latency(torch.rand(3, 7), 1, threshold=0.0).to_dense().sum() == 21


def test_delta_fires_where_the_level_has_changed() -> None:
    x = torch.tensor([0.0, 0.4, 0.6, 0.9, 0.2, 0.2]).reshape(6, 1, 1)
    spikes = ss.encode.delta(x, 0.5).to_dense()
    assert spikes[:, 0].tolist() == [[0, 0], [0, 0], [1, 0], [0, 0], [0, 0], [0, 0]]  # the level is 0.6 from then on
    assert ss.encode.delta(x, 0.4).to_dense()[:, 0].tolist() == [[0, 0], [1, 0], [0, 0], [1, 0], [0, 1], [0, 0]]
    assert ss.encode.delta(x, 0.4, off=False).to_dense()[:, 0, 0].tolist() == [0, 1, 0, 1, 0, 0]
    assert ss.encode.delta(torch.zeros(0, 3, 2), 1.0).shape == (0, 3, 4)


@pytest.mark.parametrize("of", [np.int64, np.array, torch.tensor])
def test_whole_numbers_of_other_libraries(of: Any) -> None:
    x = torch.ones(2, 3)
    assert ss.encode.rate(x, of(4)).shape == ss.encode.latency(x, of(4), threshold=of(0)).shape == (4, 2, 3)


@pytest.mark.parametrize(
    ("made", "error", "facts"),
    [
        (lambda: ss.encode.rate(torch.tensor([[0.5, 1.5]]), 3), NumericError, "rate: x runs from 0.5 to 1.5.*0 to 1"),
        (lambda: ss.encode.rate(torch.tensor([[float("nan")]]), 3), NumericError, "rate: x holds NaN"),
        (lambda: ss.encode.rate(torch.rand(3), 3), ShapeError, r"rate: x has shape \[3\].*\[B, ...\]"),
        (lambda: ss.encode.latency(torch.rand(3, 2), 0), ShapeError, "latency: n_steps is 0"),
        (lambda: ss.encode.rate(torch.rand(3, 2), np.float64(2)), ShapeError, "rate: n_steps is 2.0; .*whole number"),
        (lambda: ss.encode.latency(torch.rand(3, 2), 2, threshold=2), NumericError, "latency: threshold is 2"),
        (lambda: ss.encode.delta(torch.rand(3, 2), 1), ShapeError, r"delta: x has shape \[3, 2\].*\[T, B, ...\]"),
        (lambda: ss.encode.delta(torch.rand(3, 2, 1), 0), NumericError, "delta: threshold is 0"),
        (lambda: ss.encode.delta(torch.full((3, 2, 1), torch.inf), 1), NumericError, "delta: x holds NaN or infinity"),
    ],
)
def test_refused(made: Any, error: type[SparseSnnError], facts: str) -> None:
    with pytest.raises(error, match=facts):
        made()
