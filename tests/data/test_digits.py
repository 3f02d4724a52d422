from __future__ import annotations

import sys

import numpy as np
import pytest

from sparsesnn.datasets import digits, load
from sparsesnn.errors import ConfigError, MissingDependencyError

sklearn_datasets = pytest.importorskip("sklearn.datasets")


FIRST_TEST_LABELS = [2, 9, 3, 4, 5, 9, 1, 6, 0, 6, 8, 9, 4, 7, 3, 7, 8, 7, 7, 6]
FIRST_TEST_IMAGES = [2, 9, 13, 14, 15, 19, 21, 26]


def test_the_split_is_fixed_stratified_and_covers_all_images():
    train, test = load("digits"), load("digits", split="test")
    assert (len(train), len(test)) == (1347, 450)
    assert train.n_neurons == test.n_neurons == 128
    assert train.n_classes == test.n_classes == 10
    for label in range(10):
        n_train, n_test = (train.labels == label).sum(), (test.labels == label).sum()
        assert abs(n_test - (n_train + n_test) / 4) <= 0.5
    # figures are compared on these very images: the split must never change
    assert test.labels[:20].tolist() == FIRST_TEST_LABELS
    assert np.flatnonzero(digits._is_test(sklearn_datasets.load_digits().target))[:8].tolist() == FIRST_TEST_IMAGES


@pytest.mark.parametrize("n_steps", [8, 24, 33])
def test_the_images_can_be_read_back_from_the_spikes(n_steps):
    event_set = load("digits", split="test", n_steps=n_steps)
    images, labels = sklearn_datasets.load_digits(return_X_y=True)
    is_test = digits._is_test(labels)
    dense = event_set.batch(range(450)).validate().to_dense().numpy() > 0
    last = n_steps - 1 - n_steps // 4
    for neurons, strength in ((slice(0, 64), images[is_test] / 16), (slice(64, 128), 1 - images[is_test] / 16)):
        spikes = dense[:, :, neurons]
        assert (spikes.sum(0) == (strength > 0)).all()
        time = spikes.argmax(0)
        # round to the nearest step: half a step off at most
        assert (np.abs(time - (1 - strength) * last)[strength > 0] <= 0.5).all()
    assert not dense[last + 1 :].any()
    np.testing.assert_array_equal(event_set.labels, labels[is_test])
    assert event_set.n_lost == 0


def test_one_image():
    image = np.zeros((8, 8))
    image[0, 1], image[7, 7] = 16, 4
    step, neuron = digits.encode(image, 24)
    fired = dict(zip(neuron.tolist(), step.tolist(), strict=True))
    assert len(fired) == 65  # the brightest pixel has no OFF spike, the dark ones no ON spike
    assert fired[1] == 0
    assert 64 + 1 not in fired
    assert fired[64] == 0
    assert fired[63] == round(0.75 * 17)
    assert fired[64 + 63] == round(0.25 * 17)


def test_a_linear_readout_of_spike_times_tells_the_digits_apart():
    train, test = load("digits"), load("digits", split="test")

    def features(event_set):
        dense = event_set.batch(range(len(event_set))).to_dense().numpy()
        weight = np.arange(event_set.n_steps, 0, -1.0)[:, None, None]
        x = (dense * weight).sum(0)
        return np.concatenate([x, np.ones((len(x), 1))], axis=1)

    x, target = features(train), np.eye(10)[train.labels]
    weight = np.linalg.solve(x.T @ x + 100.0 * np.eye(x.shape[1]), x.T @ target)
    accuracy = ((features(test) @ weight).argmax(1) == test.labels).mean()
    assert accuracy > 0.9


@pytest.mark.parametrize(
    ("n_steps", "message"),
    [(7, "n_steps is 7; allowed: whole numbers, 8 to"), (0, "n_steps is 0"), (9.0, "n_steps is 9.0")],
)
def test_windows_without_meaning_are_errors(n_steps, message):
    with pytest.raises(ConfigError, match=message):
        load("digits", n_steps=n_steps)


def test_without_scikit_learn_the_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingDependencyError, match=r"needs the package 'scikit-learn'.*sparsesnn\[digits\]"):
        load("digits")
