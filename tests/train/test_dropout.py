"""Dropout: which spikes are dropped, gradients against the reference with dense masks, and evaluation with smaller weights."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sparsesnn.datasets import hashing
from sparsesnn.engines import Batch, Training, make_engine
from sparsesnn.engines.cpu.single import thinned
from sparsesnn.engines.dropout import Dropout
from sparsesnn.engines.module import Model
from sparsesnn.engines.runner import thinned_tensor
from sparsesnn.errors import ConfigError
from sparsesnn.network import parse_net
from sparsesnn.spikes import SpikeBatch
from sparsesnn.train import Config, evaluate_run, load_run, prepare, train


def make_config(**sections: dict[str, Any]) -> Config:
    small = {
        "data": {"name": "synthetic", "n_neurons": 17, "n_classes": 3, "n_steps": 11, "n_samples": 70, "activity": 0.2,
                 "valid": "random:0.15"},
        "net": {"text": "auto-9r-7-auto"},
        "init": {"activity": 0.1, "tolerance": 0.5},
        "dropout": {"neurons": 0.3, "spikes": 0.1},
        "train": {"epochs": 2, "batch": 8, "tensorboard": False, "plots": False},
    }  # fmt: skip
    return Config.resolve(small, sections)


def drawn(samples: list[int], *, seed: int = 3, epoch: int = 1, **p: float) -> prepare.DrawnDropout:
    return prepare.DrawnDropout(Dropout(**p), seed, epoch, np.array(samples))


GRID = np.ogrid[:50, :4, :200]


def test_neurons_are_silent_for_a_sequence_and_spikes_by_themselves() -> None:
    heard = drawn([5, 9, 2, 7], neurons=0.3)(1, *GRID)
    assert (heard == heard[:1]).all(), "the same at every step"
    assert heard.mean() == pytest.approx(0.7, abs=0.05)
    assert not (heard[0, 0] == heard[0, 1]).all(), "other neurons in another sample"
    single = drawn([5, 9, 2, 7], spikes=0.3)(1, *GRID)
    assert single.mean() == pytest.approx(0.7, abs=0.01)
    assert 0 < single.any(0).mean() == 1, "no neuron is silent throughout"
    both = drawn([5, 9, 2, 7], neurons=0.3, spikes=0.3)(1, *GRID)
    assert (both == (heard & single)).all()


def test_what_is_heard_depends_on_seed_epoch_sample_and_population_alone() -> None:
    want = drawn([5, 9, 2, 7], neurons=0.5, spikes=0.5)(1, *GRID)
    assert (drawn([2, 5], neurons=0.5, spikes=0.5)(1, *np.ogrid[:50, :2, :200]) == want[:, [2, 0]]).all()
    others = [
        drawn([5, 9, 2, 7], epoch=2, neurons=0.5)(1, *GRID),
        drawn([5, 9, 2, 7], seed=4, neurons=0.5)(1, *GRID),
        drawn([5, 9, 2, 7], neurons=0.5)(2, *GRID),
    ]
    assert all((x != drawn([5, 9, 2, 7], neurons=0.5)(1, *GRID)).any() for x in others)


@pytest.mark.parametrize("p", [1e-300, 2.0**-53, 0.1, 1 / 3, 1 - 2.0**-53])
def test_draws_are_limits_of_uniform_numbers(p: float) -> None:
    """A device compares whole numbers, which is the same as comparing fractions with p."""
    heard = drawn([5, 9], neurons=p, spikes=p)
    (least, *keys), single = heard.draws(1)
    assert least == single[0] == heard.draws(2)[0, 0]
    numbers = np.uint64(least) + np.arange(-1, 2).astype(np.uint64)
    assert (numbers * 2.0**-53 >= p).tolist() == [False, True, True]
    assert (np.array(keys, np.uint64) == hashing.keys(3, 1, np.array([5, 9]), prepare._NEURONS, 1)).all()
    kept = hashing.uniform(hashing.keys(3, 1, 9, prepare._SPIKES, 1), (3 << 32) + 7) >= p
    kept &= hashing.uniform(hashing.keys(3, 1, 9, prepare._NEURONS, 1), 7) >= p
    assert heard(1, np.array([3]), np.array([1]), np.array([7])) == kept


def test_lists_lose_what_is_not_heard() -> None:
    dense = (torch.rand(13, 3, 21, generator=torch.Generator().manual_seed(0)) < 0.3).float()
    heard = drawn([1, 0, 4], neurons=0.2, spikes=0.3)
    mask = torch.from_numpy(heard(1, *np.ogrid[:13, :3, :21]))
    lists = thinned(SpikeBatch.from_dense(dense).validate(), 1, heard)
    assert torch.equal(lists.validate().to_dense(), dense * mask)
    assert torch.equal(thinned_tensor(dense, 1, heard), dense * mask)


@pytest.mark.parametrize("grad_threshold", [-math.inf, 0.5])
@pytest.mark.parametrize("dropout", [{"neurons": 0.3}, {"neurons": 0.2, "spikes": 0.4}])
def test_lists_and_dense_give_the_same_gradient(dropout: dict[str, float], grad_threshold: float) -> None:
    network = parse_net("17-33r-19-5", grad_threshold=grad_threshold).with_delays([0, 3])
    spikes = SpikeBatch.from_dense((torch.rand(21, 6, 17, generator=torch.Generator().manual_seed(1)) < 0.4).float())
    gradients = []
    for backend in ("cpu", "dense"):
        model = Model(network, backend=backend)
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(3)
        output = model(spikes, heard=drawn([3, 1, 4, 1, 5, 9], **dropout))
        assert output.spikes["hidden1"].n_neurons if backend == "cpu" else True
        output.potentials.square().sum().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
        counts = output.counts("hidden1").sum()
        assert counts == model(spikes).counts("hidden1").sum(), "its own spikes are all there"
    for name, x in gradients[0].items():
        torch.testing.assert_close(x, gradients[1][name], rtol=2e-4, atol=2e-4 * float(x.abs().max()), msg=name)


@pytest.mark.parametrize("backend", ["cpu", "dense"])
def test_weights_are_smaller_where_they_are_evaluated(backend: str, tmp_path: Path) -> None:
    network = parse_net("5-4r-3-2")
    training = Training(n_classes=2, decoding="mean", dropout=Dropout(neurons=0.5, spikes=0.2))
    engine = make_engine(backend, network, training)
    before = engine.weights()
    with engine.evaluated():
        shown = engine.weights()
        assert all(torch.equal(x, before[name]) for name, x in engine.state().items() if name in before)
    factors = {name: float((shown[name] / before[name]).mean()) for name in before if "->" in name}
    assert factors == {
        "model/layers.hidden1.hidden1->hidden1": 1,
        "model/layers.hidden1.input->hidden1": 1,
        "model/layers.hidden2.hidden1->hidden2": pytest.approx(0.4),
        "model/layers.output.hidden2->output": pytest.approx(0.4),
    }
    assert all(torch.equal(x, before[name]) for name, x in engine.weights().items())
    config = make_config(train={"backend": backend})
    result = train(config, out=tmp_path)
    assert evaluate_run(tmp_path)["accuracy"] == result.test_accuracy
    assert evaluate_run(tmp_path, weights="last")["accuracy"] == result.test_accuracy_last
    with load_run(tmp_path, weights="last").engine.evaluated():
        pass


def test_initial_weights_are_right_where_they_are_evaluated(tmp_path: Path) -> None:
    network = parse_net("17-9r-7-3")
    spikes = SpikeBatch.from_dense((torch.rand(40, 6, 17, generator=torch.Generator().manual_seed(1)) < 0.4).float())
    engines = [
        make_engine("cpu", network, Training(n_classes=3, decoding="mean", dropout=Dropout(neurons=p)))
        for p in (0, 0.5)
    ]
    for engine in engines:
        engine.initialize([spikes], {"hidden1": 0.1, "hidden2": 0.1}, tolerance=0.3, mean_shift=0.0, readout_std=1.0)
    with engines[1].evaluated():
        logits = [e.infer(Batch(spikes, torch.zeros(6, dtype=torch.int64))).loss for e in engines]
    assert logits[0] == logits[1]


def test_backends_without_dropout_refuse_it() -> None:
    from sparsesnn.engines.ipu.engine import IpuEngine

    training = Training(n_classes=3, decoding="mean", dropout=Dropout(neurons=0.25))
    with pytest.raises(ConfigError, match="dropout: is Dropout.neurons=0.25.*backend 'ipu-model' does not support"):
        IpuEngine.check("ipu-model", parse_net("5-4-3"), training)
