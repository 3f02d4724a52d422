"""The data sets of small files: qtdb, a class for each step, and yin_yang, points as spike times."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsesnn import datasets
from sparsesnn.datasets import qtdb, yin_yang
from sparsesnn.errors import DataError
from sparsesnn.task import Task

DATA = Path(os.environ.get("SPARSESNN_TEST_DATA", ""))


def segments(n: int, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    x = (rng.random((n, 1301, 4)) < 0.08).astype(np.int16)
    x[:, -1] = -1
    labels = rng.integers(-1, 6, (n, 1301))
    return {"x": x, "y": (labels[:, :, None] == np.arange(6)).astype(np.uint8), "t": np.zeros((n, 1301), np.uint16)}


def save(path: Path, arrays: dict[str, Any]) -> None:
    pytest.importorskip("scipy.io").savemat(path, arrays, do_compression=True)


def test_qtdb_has_the_spikes_and_classes_of_its_file(tmp_path: Path) -> None:
    found = segments(3)
    save(tmp_path / "QTDB_train.mat", found)
    event_set = datasets.load("qtdb", split="train", data_dir=tmp_path)
    assert event_set.task == Task(per_step=True)
    assert (len(event_set), event_set.n_steps, event_set.n_neurons, event_set.n_classes) == (3, 1300, 4, 6)
    assert event_set.dt_us == 4000
    assert event_set.classes == ["P", "PQ", "QR", "RS", "ST", "TP"]
    dense = event_set.batch([2, 0]).to_dense().numpy()
    np.testing.assert_array_equal(dense, found["x"][[2, 0], :1300].swapaxes(0, 1))
    one_hot = (event_set.labels[:, :, None] == np.arange(6)).astype(np.uint8)
    np.testing.assert_array_equal(one_hot, found["y"][:, :1300])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.zeros((3, 1301, 5), np.int16)}, r"x has the shape \[3, 1301, 5\]; it must be \[segments, 1301, 4\]"),
        ({"y": np.zeros((2, 1301, 6), np.uint8)}, "3 segments of spikes and 2 of classes"),
        ({"x": np.full((3, 1301, 4), 2, np.int16)}, "x must hold 0 and 1"),
        ({"y": np.ones((3, 1301, 6), np.uint8)}, "y must hold 0 and 1, one class for each step at most"),
        ({"y": "text"}, "y has the shape"),
    ],
)
def test_qtdb_files_of_another_form_are_errors(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    save(tmp_path / "QTDB_train.mat", {**segments(3), **change})
    with pytest.raises(DataError, match=message):
        datasets.load("qtdb", split="train", data_dir=tmp_path)


def test_damaged_qtdb_files_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "QTDB_train.mat"
    with pytest.raises(DataError, match="QTDB_train.mat: is not a file; give the folder"):
        datasets.load("qtdb", split="train", data_dir=tmp_path)
    with pytest.raises(DataError, match="no folder was given"):
        datasets.load("qtdb", split="train")
    save(path, segments(3))
    content = path.read_bytes()
    rng, messages = np.random.default_rng(0), list[str]()
    for k in range(40):
        damaged = bytearray(content[: rng.integers(0, len(content))] if k % 2 else content)
        for place in rng.integers(0, max(1, min(len(damaged), 600)), 4):
            if damaged:
                damaged[place] = int(rng.integers(256))
        path.write_bytes(bytes(damaged))
        try:
            datasets.load("qtdb", split="train", data_dir=tmp_path)
        except DataError as error:
            messages.append(str(error))
    assert len(messages) > 10
    assert all("QTDB_train.mat" in message for message in messages)


def test_yin_yang_encodes_numbers_as_times(tmp_path: Path) -> None:
    points = np.array([[0.0, 1.0, 1.0, 0.0], [0.25, 0.5, 0.75, 0.5]])
    np.save(tmp_path / "validation_samples.npy", points)
    np.save(tmp_path / "validation_labels.npy", np.array([2, 0]))
    event_set = datasets.load("yin_yang", split="valid", data_dir=tmp_path, n_steps=41)
    assert event_set.labels.tolist() == [2, 0]
    assert event_set.classes == ["yin", "yang", "dot"]
    dense = event_set.batch([0, 1]).to_dense()
    assert dense.sum(0).tolist() == [[1] * 5] * 2  # each neuron fires once
    assert dense.argmax(0).tolist() == [[0, 30, 30, 0, 0], [8, 15, 22, 15, 0]]


@pytest.mark.parametrize(
    ("samples", "labels", "message"),
    [
        (np.zeros((2, 3)), [0, 1], r"samples are float64\[2, 3\]"),
        (np.zeros((2, 4)), [0, 3], "labels are int64, from 0 to 3; allowed: 0 to 2"),
        (np.full((2, 4), 1.5), [0, 1], "numbers outside 0 to 1"),
        (np.full((2, 4), np.nan), [0, 1], "outside 0 to 1, or NaN"),
        (np.zeros((2, 4)), [0], r"labels int64\[1\]"),
    ],
)
def test_yin_yang_files_of_another_form_are_errors(tmp_path: Path, samples: Any, labels: Any, message: str) -> None:
    np.save(tmp_path / "train_samples.npy", samples)
    np.save(tmp_path / "train_labels.npy", np.array(labels))
    with pytest.raises(DataError, match=message):
        datasets.load("yin_yang", split="train", data_dir=tmp_path)


@pytest.mark.skipif(not (DATA / "qtdb").is_dir(), reason="needs the recordings ($SPARSESNN_TEST_DATA)")
def test_the_real_files() -> None:
    train, test = (datasets.load("qtdb", split=split, data_dir=DATA / "qtdb") for split in qtdb.SPLITS)
    assert (len(train), len(test)) == (498, 120)
    assert train.activity() == pytest.approx(0.077, abs=0.001)
    labeled = train.labels >= 0
    assert labeled.mean() == pytest.approx(0.918, abs=0.001)
    assert np.bincount(train.labels[labeled]).argmax() == qtdb.CLASSES.index("TP")
    points = datasets.load("yin_yang", split="train", data_dir=DATA / "yin_yang")
    assert len(points) == 5000
    assert points.n_neurons == len(yin_yang.encode([0, 0, 0, 0], 10)[1])
