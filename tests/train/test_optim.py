"""Learning rates, weight decay and clipping."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from sparsesnn.layers import LI, LIF, Input
from sparsesnn.module import Model
from sparsesnn.network import Network
from sparsesnn.train.config import OptimConfig
from sparsesnn.train.optim import gradient_norm, learning_rate, make_optimiser, state_keys


def make_model() -> Model:
    hidden = LIF(5, recurrent=True, bias=True, learn_beta=True, learn_threshold=True)
    return Model(Network.chain(Input(7), hidden, LI(3)), backend="dense")


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


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd"])
def test_weight_decay_acts_on_weights_only(name: str) -> None:
    model = make_model()
    optimiser = make_optimiser(model, OptimConfig(name=name, weight_decay=0.5))
    decayed = {id(p) for group in optimiser.param_groups if group["weight_decay"] for p in group["params"]}
    every = {id(p) for group in optimiser.param_groups for p in group["params"]}
    names = {n for n, p in model.named_parameters() if id(p) in decayed}
    assert names == {"layers.hidden.input->hidden", "layers.hidden.hidden->hidden", "layers.output.hidden->output"}
    assert every == {id(p) for p in model.parameters()}


@pytest.mark.parametrize("config", [OptimConfig(name="adamw"), OptimConfig(name="adam"), OptimConfig(name="sgd")])
def test_state_keys_are_those_that_the_optimiser_makes(config: OptimConfig) -> None:
    model = make_model()
    optimiser = make_optimiser(model, config)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimiser.step()
    for parameter in model.parameters():
        assert {k for k, v in optimiser.state[parameter].items() if v is not None} == state_keys(config)


def test_clipping_scales_all_gradients_to_the_norm() -> None:
    model = make_model()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 2.0)
    n = sum(p.numel() for p in model.parameters())
    assert gradient_norm(model, 0.0) == pytest.approx(2 * math.sqrt(n))
    assert gradient_norm(model, 1e6) == pytest.approx(2 * math.sqrt(n)), "below the limit nothing is scaled"
    assert gradient_norm(model, 0.5) == pytest.approx(2 * math.sqrt(n)), "the norm before clipping is returned"
    assert gradient_norm(model, 0.0) == pytest.approx(0.5)
    assert gradient_norm(Model(Network.chain(Input(2), LI(1)), backend="dense"), 1.0) == 0.0
