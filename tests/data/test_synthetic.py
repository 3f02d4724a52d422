from __future__ import annotations

import numpy as np
import pytest

from sparsesnn.datasets import load
from sparsesnn.errors import ConfigError


def same(one, other) -> bool:
    return one.ids.tolist() == other.ids.tolist() and one.n_spikes.tolist() == other.n_spikes.tolist()


def test_follows_its_seed_and_the_parts_share_no_sample():
    small = {"n_samples": 20, "n_neurons": 33, "n_steps": 7, "n_classes": 3, "activity": 0.1}
    base = load("synthetic", **small)
    base.batch(range(20)).validate()
    assert same(base, load("synthetic", **small))
    assert not same(base, load("synthetic", **small, seed=1))
    assert not same(base, load("synthetic", **small, split="test"))
    # more samples leave the first ones as they are
    more = load("synthetic", **{**small, "n_samples": 30})
    assert same(base, type(base)(more.ids[: base.ids.size], more.n_spikes[:20], more.labels[:20], 33, 3))
    assert base.labels.tolist() == [s % 3 for s in range(20)]
    assert (base.n_neurons, base.n_steps, base.n_classes) == (33, 7, 3)


@pytest.mark.parametrize("activity", [0.005, 0.03])
def test_activity_is_what_was_asked_for(activity):
    event_set = load("synthetic", activity=activity, n_samples=200)
    n_places = event_set.n_spikes.size * event_set.n_neurons
    # E[1 - exp(-r)] falls short of E[r] by E[r²]/2, and E[r²] = (0.2² + 2·0.2·0.8 + 0.8²·2)·activity² = 1.64·activity²
    # over many patterns; half as much again for these few
    assert event_set.activity() < activity + 5 * (activity / n_places) ** 0.5
    assert event_set.activity() > activity - 1.2 * activity**2 - 5 * (activity / n_places) ** 0.5


def accuracy(**parameters) -> float:
    """Of the nearest class mean over neurons and five blocks of time, on the test part."""

    def features(split):
        event_set = load("synthetic", split=split, n_samples=300, **parameters)
        dense = event_set.batch(range(300)).to_dense().numpy().transpose(1, 0, 2)
        return dense.reshape(300, 5, -1, dense.shape[2]).sum(2).reshape(300, -1), event_set.labels

    (x, labels), (x_test, labels_test) = features("train"), features("test")
    means = np.stack([x[labels == c].mean(0) for c in range(10)])
    distance = ((x_test[:, None] - means[None]) ** 2).sum(2)
    return float((distance.argmin(1) == labels_test).mean())


def test_the_classes_can_be_told_apart_as_far_as_they_differ():
    assert accuracy() > 0.9
    # five standard errors above chance
    assert accuracy(contrast=0.0) < 0.1 + 5 * (0.1 * 0.9 / 300) ** 0.5


def test_one_of_everything():
    event_set = load(
        "synthetic", n_neurons=1, n_classes=1, n_steps=1, n_samples=1, n_blocks=1, activity=0.999, contrast=0.0
    )
    event_set.batch([0]).validate()
    assert len(event_set) == 1


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_neurons": 0}, "n_neurons is 0; allowed: whole numbers, 1 to 100"),
        ({"n_samples": 2.0}, "n_samples is 2.0"),
        ({"n_steps": 0}, "n_steps is 0"),
        ({"activity": 0.0}, "activity is 0.0"),
        ({"activity": 1.0}, "activity is 1.0"),
        ({"contrast": 1.5}, "contrast is 1.5; allowed: 0 to 1"),
        ({"contrast": float("nan")}, "contrast is nan"),
    ],
)
def test_parameters_without_meaning_are_errors(parameters, message):
    with pytest.raises(ConfigError, match=message):
        load("synthetic", **parameters)
