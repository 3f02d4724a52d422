"""Learning rates."""

from __future__ import annotations

import itertools

import pytest

from sparsesnn.config import OptimConfig
from sparsesnn.train.optim import learning_rate


def rates(config: OptimConfig, n_epochs: int = 10, per_epoch: int = 7) -> list[float]:
    return [learning_rate(config, step, per_epoch, n_epochs) for step in range(n_epochs * per_epoch)]


def test_constant_rate() -> None:
    assert set(rates(OptimConfig(lr=0.5, schedule="constant"))) == {0.5}


def test_cosine_goes_from_the_rate_to_its_last_share() -> None:
    got = rates(OptimConfig(lr=0.5, final_lr_factor=0.1))
    assert got[0] == 0.5
    assert got[-1] == pytest.approx(0.05, rel=1e-12)
    assert all(a > b for a, b in itertools.pairwise(got))
    assert got[len(got) // 2] == pytest.approx(0.275, rel=0.05)


def test_warm_up_rises_in_a_line_to_the_rate() -> None:
    got = rates(OptimConfig(lr=0.8, warmup_epochs=1.0, schedule="constant"))
    assert got[:7] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7])
    assert set(got[7:]) == {0.8}
    both = rates(OptimConfig(lr=0.8, warmup_epochs=1.5))
    assert max(both) == pytest.approx(0.8, rel=0.01)
    assert both[-1] == pytest.approx(0.008)


@pytest.mark.parametrize(("n_epochs", "per_epoch"), [(1, 1), (1, 2), (2, 1)])
def test_very_short_runs_have_a_rate(n_epochs: int, per_epoch: int) -> None:
    for config in (OptimConfig(), OptimConfig(warmup_epochs=5.0), OptimConfig(warmup_epochs=1.0)):
        assert all(0 < lr <= config.lr for lr in rates(config, n_epochs, per_epoch))
