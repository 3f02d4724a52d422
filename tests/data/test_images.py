"""Readers of MNIST and CIFAR-10 files: small ones made here, and hostile ones."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from sparsesnn.datasets import images
from sparsesnn.datasets.images import load_images
from sparsesnn.errors import ConfigError, DataError


def write_mnist(root: Path, pixels: np.ndarray, labels: np.ndarray, stem: str = "train", packed: bool = False) -> Path:
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for name, array in ((f"{stem}-images-idx3-ubyte", pixels), (f"{stem}-labels-idx1-ubyte", labels)):
        data = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()
        (raw / (name + ".gz" * packed)).write_bytes(gzip.compress(data) if packed else data)
    return raw / f"{stem}-images-idx3-ubyte"


@pytest.mark.parametrize("packed", [False, True])
def test_mnist(packed: bool, tmp_path: Path) -> None:
    pixels = np.arange(3 * 5 * 4, dtype=np.uint8).reshape(3, 5, 4)
    write_mnist(tmp_path, pixels, np.array([9, 0, 3], np.uint8), packed=packed)
    write_mnist(tmp_path, pixels[:1], np.array([1], np.uint8), "t10k", packed)
    found = load_images("mnist", tmp_path)
    assert np.array_equal(found.pixels, pixels[:, None])
    assert found.labels.tolist() == [9, 0, 3]
    assert (len(load_images("mnist", tmp_path, "test")), found.n_classes) == (1, 10)


def test_cifar10(tmp_path: Path) -> None:
    place = tmp_path / "cifar-10-batches-bin"
    place.mkdir()
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 10, (7, 3073)).astype(np.uint8)
    for k in range(5):
        (place / f"data_batch_{k + 1}.bin").write_bytes(rows[k : k + 2].tobytes())
    (place / "test_batch.bin").write_bytes(rows[6:].tobytes())
    train, test = load_images("cifar10", tmp_path), load_images("cifar10", tmp_path, "test")
    assert train.pixels.shape == (10, 3, 32, 32)
    assert train.labels.tolist() == [int(rows[k + j, 0]) for k in range(5) for j in range(2)]
    assert np.array_equal(test.pixels[0, 2, 31], rows[6, -32:])


def test_brightness_is_the_probability_of_a_spike() -> None:
    pixels = np.array([0, 64, 255], np.uint8).reshape(1, 1, 1, 3).repeat(2, 0)
    found = images.Images(pixels, np.zeros(2, np.int64))
    spikes = found.spikes(np.array([0, 1]), 4000, seed=1)
    assert spikes.shape == (4000, 2, 1, 1, 3)
    assert spikes[..., 0].mean() == 0
    assert spikes[..., 1].mean() == pytest.approx(64 / 255, abs=0.03)
    assert spikes[..., 2].all()
    assert np.array_equal(spikes, found.spikes(np.array([0, 1]), 4000, seed=1))


def test_files_that_cannot_be_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"is missing, with and without .gz; give the folder that holds MNIST/raw"):
        load_images("mnist", tmp_path)
    pixels, labels = np.zeros((2, 3, 3), np.uint8), np.array([1, 2], np.uint8)
    path = write_mnist(tmp_path, pixels, labels)
    good = path.read_bytes()
    path.write_bytes(good[:-1])
    with pytest.raises(DataError, match=r"has 17 bytes for an array of \(2, 3, 3\); it is cut short"):
        load_images("mnist", tmp_path)
    path.write_bytes(b"\x80\x04pickle")
    with pytest.raises(DataError, match=r"begins with 80047069; an IDX file of 3 axes of bytes begins 00000803"):
        load_images("mnist", tmp_path)
    path.unlink()
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(good)[:-9])
    with pytest.raises(DataError, match="cannot be read: .*get it again"):
        load_images("mnist", tmp_path)
    write_mnist(tmp_path, pixels, np.array([1, 2, 3], np.uint8))
    with pytest.raises(DataError, match="2 images, 3 labels up to 3; the files do not belong together"):
        load_images("mnist", tmp_path)
    write_mnist(tmp_path, pixels, np.array([1, 10], np.uint8))
    with pytest.raises(DataError, match="labels up to 10"):
        load_images("mnist", tmp_path)
    monkeypatch.setattr(images, "MOST_BYTES", 10)
    with pytest.raises(DataError, match="at most 10 are read"):
        load_images("mnist", tmp_path)
    path.unlink()
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(good))
    with pytest.raises(DataError, match="unpacks to more than 10 bytes"):
        load_images("mnist", tmp_path)


def test_pickles_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cifar-10-batches-bin: is missing; unpack the binary version"):
        load_images("cifar10", tmp_path)
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(DataError, match="but its pickles can run code"):
        load_images("cifar10", tmp_path)
    (tmp_path / "cifar-10-batches-bin").mkdir()
    with pytest.raises(DataError, match=r"data_batch_1.bin: cannot be read: No such file"):
        load_images("cifar10", tmp_path)
    (tmp_path / "cifar-10-batches-bin" / "data_batch_1.bin").write_bytes(bytes(3074))
    with pytest.raises(DataError, match="has 3,074 bytes; records have 3073 bytes"):
        load_images("cifar10", tmp_path)
    with pytest.raises(ConfigError, match=r"images: 'svhn', split 'train'; allowed: mnist, cifar10, and train, test"):
        load_images("svhn", tmp_path)
