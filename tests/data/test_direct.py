"""Direct encoding: a list for each sample, whose values hold at every step; in batches, streams and runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from sparsesnn import datasets
from sparsesnn.config import Config
from sparsesnn.datasets import EventSet
from sparsesnn.datasets.augment import Augment
from sparsesnn.errors import ConfigError, DataError
from sparsesnn.host.stream import Stream
from sparsesnn.train import train

T = 9


@pytest.fixture(scope="module")
def digits() -> EventSet:
    return datasets.load("digits", split="train", encoding="direct", n_steps=T)


def test_values_are_the_brightness_of_the_pixels(digits: EventSet) -> None:
    images, labels = load_digits(return_X_y=True)
    batch = digits.batch([5, 0, 3])
    assert (digits.n_steps, digits.n_neurons, len(digits.n_spikes[0])) == (T, 64, 1)
    assert batch.repeats
    assert batch.shape == (T, 3, 64)
    dense = batch.to_dense()
    assert torch.equal(dense[0], dense[-1])
    found = {tuple(np.rint(16 * x.numpy()).astype(int)) for x in dense[0]}
    known = {tuple(image.astype(int)) for image in images}
    assert found <= known
    assert float(dense.max()) == 1.0
    assert digits.activity() == pytest.approx(
        float((digits.batch(range(len(digits))).to_dense()[0] != 0).float().mean())
    )
    both = len(digits) + len(datasets.load("digits", split="test", encoding="direct", n_steps=T))
    assert both == len(labels)


def test_streams_make_the_batches_of_the_specification(digits: EventSet) -> None:
    stream = Stream(digits, None, 32, shuffle=True, seed=3)
    for k, (spikes, labels) in enumerate(stream.epoch(0)):
        samples = stream.batch_samples(0, k)
        expected = digits.batch(samples)
        assert spikes.repeats
        assert torch.equal(spikes.to_dense(), expected.to_dense())
        assert labels.tolist() == digits.labels[samples].tolist()


def test_augmentation_and_broken_sets_are_refused(digits: EventSet) -> None:
    change = Augment(event_drop=0.1)
    for call in (
        lambda: Stream(digits, None, 32, shuffle=True, seed=3, augment=change),
        lambda: digits.batch([0], (1, 2), change),
    ):
        with pytest.raises(
            ConfigError, match=r"augment: is .*event_drop=0\.1.*direct encoding gives every step the same"
        ):
            call()
    described = {"direct": {"n_steps": T, "unit": 0.5}}
    given: dict[str, Any] = {"ids": digits.ids, "labels": digits.labels, "n_neurons": 64, "n_classes": 10}
    with pytest.raises(DataError, match=r"direct encoding with n_spikes \[\d+, 1\] and no values; give one list"):
        EventSet(**given, n_spikes=digits.n_spikes, description=described)


def config(backend: str, net: str, **data: Any) -> Config:
    return Config.resolve(
        {
            "data": {"name": "digits", "n_steps": T, "encoding": "direct", **data},
            "net": {"text": net, "threshold": 0.5},
            "train": {"epochs": 1, "batch": 64, "backend": backend},
            "optim": {"lr": 5e-3},
        }
    )


@pytest.mark.parametrize("net", ["auto-40-auto", "currents-64r-10"])
@pytest.mark.parametrize("backend", ["cpu", "dense"])
def test_runs_learn(tmp_path: Path, backend: str, net: str) -> None:
    result = train(config(backend, net), out=tmp_path / "run")
    assert result.test_accuracy > 0.3  # chance: 0.1


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"input is currents.*digits gives spikes.*128-10.*data\.encoding = 'direct'"):
        train(config("cpu", "currents-128-10", encoding="latency"), out=tmp_path / "a")
    with pytest.raises(ConfigError, match=r"data\.encoding: gives spikes values.*backend cpu or dense"):
        train(config("ipu-model", "auto-40-auto"), out=tmp_path / "b")


def write_mnist(folder: Path, n: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Random images in MNIST's files, for both splits; those of the test part."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    rng = np.random.default_rng(1)
    for stem in ("train", "t10k"):
        pixels = rng.integers(0, 256, (n, 28, 28)).astype(np.uint8) * (rng.random((n, 28, 28)) < 0.3)
        labels = np.arange(n, dtype=np.uint8) % 10
        pixels[np.arange(n), labels] = 255  # a row of each class
        head = bytes([0, 0, 8, 3]) + np.array([n, 28, 28], ">u4").tobytes()
        (raw / f"{stem}-images-idx3-ubyte").write_bytes(head + pixels.astype(np.uint8).tobytes())
        head = bytes([0, 0, 8, 1]) + np.array([n], ">u4").tobytes()
        (raw / f"{stem}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())
    return pixels.reshape(n, -1), labels


def test_mnist_files(tmp_path: Path) -> None:
    pixels, labels = write_mnist(tmp_path, 60)
    found = datasets.load("mnist", split="test", data_dir=tmp_path)
    dense = found.batch(range(60)).to_dense()
    assert found.n_steps == 25
    assert torch.equal(dense[7], torch.from_numpy(pixels.astype(np.float32) * np.float32(1 / 255)))
    assert found.labels.tolist() == labels.tolist()
    late = datasets.load("mnist", split="test", data_dir=tmp_path, encoding="latency", n_steps=6)
    spikes = late.batch(range(60)).to_dense()
    step = np.rint((1 - pixels / 255) * 5)
    for t in range(6):
        assert np.array_equal(spikes[t].numpy(), (step == t) & (pixels > 0))
    with pytest.raises(ConfigError, match=r"mnist: data\.dir is None, data\.download False; give the folder"):
        datasets.load("mnist")
    settings = {
        "data": {"name": "mnist", "dir": str(tmp_path), "valid": "random:0.2"},
        "net": {"text": "auto-30-auto"},
        "train": {"epochs": 1},
    }
    assert train(Config.resolve(settings), out=tmp_path / "run").n_test == 60
