from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from sparsesnn.datasets import files
from sparsesnn.errors import DataError, MissingDependencyError


def test_files_are_listed_in_order(tmp_path):
    for name in ("b/2.bin", "b/10.bin", "a/3.bin", "1.bin", "a/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert files.list_files(tmp_path, ".bin") == ["1.bin", "a/3.bin", "b/10.bin", "b/2.bin"]
    with pytest.raises(DataError, match=r"holds no \.npy files; check that the data set was unpacked there"):
        files.list_files(tmp_path, ".npy")
    with pytest.raises(DataError, match="absent: cannot be read"):
        files.list_files(tmp_path / "absent", ".bin")


def test_hidden_files_and_folders_are_skipped(tmp_path):
    names = (
        "b/2.bin",
        "b/._2.bin",
        ".bin",
        ".trash/1.bin",
        "__MACOSX/b/._2.bin",
        "b/.ipynb_checkpoints/2-checkpoint.bin",
    )
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert files.list_files(tmp_path, ".bin") == ["b/2.bin"]
    (tmp_path / "b" / "2.bin").unlink()
    with pytest.raises(DataError, match=r"holds no \.bin files"):
        files.list_files(tmp_path, ".bin")
    assert files.list_files(tmp_path / ".trash", ".bin") == ["1.bin"], "a hidden folder that is asked for"


def test_rows_of_many_files_come_as_one_array(tmp_path):
    contents = [b"", bytes(range(9)), b"", bytes(range(3))]
    paths = []
    for k, content in enumerate(contents):
        paths.append(tmp_path / f"{k}.bin")
        paths[-1].write_bytes(content)
    rows, n_rows = files.read_rows(paths, 3)
    assert rows.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 1, 2]]
    assert n_rows.tolist() == [0, 3, 0, 1]
    assert files.read_rows([], 3)[0].shape == (0, 3)
    with pytest.raises(DataError, match=r"1\.bin: has 9 bytes, which is not a multiple of the 5 bytes of an event"):
        files.read_rows(paths, 5)
    with pytest.raises(DataError, match=r"absent: cannot be read .No such file"):
        files.read_rows([tmp_path / "absent"], 3)


def test_a_part_of_a_set_warns_with_its_count():
    with pytest.warns(
        UserWarning, match="toy: 1,200 of the 60,000 clips of the test part are in here; continuing with"
    ):
        files.warn_if_partial("toy", "test", 1200, 60_000, "clips", Path("here"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        files.warn_if_partial("toy", "test", 60_000, 60_000, "clips", Path("here"))


def test_a_download_needs_tonic(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tonic", None)
    monkeypatch.setitem(sys.modules, "tonic.datasets", None)
    with pytest.raises(MissingDependencyError, match=r"'toy' needs the package 'tonic'.*sparsesnn\[data\]"):
        files.find_folder("toy", "Toy", "Train", tmp_path, download=True)
    (tmp_path / "Toy" / "Train").mkdir(parents=True)
    assert files.find_folder("toy", "Toy", "Train", tmp_path, download=True) == tmp_path / "Toy" / "Train"
    assert files.find_folder("toy", "Toy", "Train", tmp_path / "Toy", download=False) == tmp_path / "Toy" / "Train"


@pytest.mark.parametrize("error", [OSError("no route"), RuntimeError("File not found"), EOFError("end")])
def test_a_download_that_fails_says_what_to_do(tmp_path, monkeypatch, error):
    tonic = pytest.importorskip("tonic")

    def fails(self):
        raise error

    monkeypatch.setattr(tonic.datasets.DVSGesture, "download", fails)
    message = (
        rf"dvsgesture: Tonic could not download .*{error}.; try again, or fetch and unpack .* in {tmp_path}/DVSGest"
    )
    with pytest.raises(DataError, match=message):
        files.find_folder("dvsgesture", "DVSGesture", "ibmGestureTest", tmp_path, download=True)
    with pytest.raises(DataError, match="data.test takes one from the training part"):
        files.find_folder("dvsgesture", "DVSGesture", "ibmGestureTest", tmp_path, download=False)


def test_arrays_are_bytes_of_the_files(tmp_path):
    content = np.random.default_rng(0).integers(0, 256, 5000).astype(np.uint8)
    (tmp_path / "a.bin").write_bytes(content.tobytes())
    rows, _ = files.read_rows([tmp_path / "a.bin"], 5)
    np.testing.assert_array_equal(rows.reshape(-1), content)


def test_pipes_folders_and_huge_files_are_no_recordings(tmp_path):
    os.mkfifo(tmp_path / "a.bin")  # opening it would wait for ever
    with pytest.raises(DataError, match=r"a\.bin: is a pipe; give a file"):
        files.read_rows([tmp_path / "a.bin"], 5)
    with pytest.raises(DataError, match=r"a\.bin: is a pipe; give a file"):
        files.map_npy(tmp_path / "a.bin")
    with pytest.raises(DataError, match="zero: is a device; give a file"):
        files.read_rows([Path("/dev/zero")], 5)
    with pytest.raises(DataError, match="is a folder; give a file"):
        files.map_npy(tmp_path)
    with (tmp_path / "b.bin").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(DataError, match=r"b\.bin: has 1,099,511,627,776 bytes; at most 268,435,456 are read"):
        files.read_rows([tmp_path / "b.bin"], 5)
