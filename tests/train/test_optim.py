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


def test_onecycle_rises_and_falls_as_cosines() -> None:
    """PyTorch's, up to where it ends."""
    import torch

    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.5)
    theirs = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=70, pct_start=22 / 70, final_div_factor=4)
    want = []
    for _ in range(70):
        want.append(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()
    got = rates(OptimConfig(lr=0.5, schedule="onecycle", warmup_epochs=3.0, final_lr_factor=0.01))
    assert got == pytest.approx(want, rel=1e-9)
    assert max(got) == 0.5
    assert got.index(max(got)) == 21
    assert rates(OptimConfig(schedule="onecycle")).index(1e-3) == 21, "30 % of the run"


def test_plateau_is_constant_but_for_its_factor() -> None:
    config = OptimConfig(lr=0.5, schedule="plateau")
    assert [learning_rate(config, 33, 7, 10, factor) for factor in (1.0, 0.25)] == [0.5, 0.125]


@pytest.mark.parametrize(("n_epochs", "per_epoch"), [(1, 1), (1, 2), (2, 1)])
def test_very_short_runs_have_a_rate(n_epochs: int, per_epoch: int) -> None:
    for config in (
        OptimConfig(),
        OptimConfig(schedule="onecycle"),
        OptimConfig(warmup_epochs=5.0),
        OptimConfig(warmup_epochs=1.0),
    ):
        assert all(0 < lr <= config.lr for lr in rates(config, n_epochs, per_epoch))
