"""The loading benchmark races equal results, and refuses to race different ones; speed itself is not tested."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from sparsesnn import datasets
from sparsesnn.cli import main
from sparsesnn.datasets import Augment
from sparsesnn.errors import ConfigError, DataError, MissingDependencyError
from sparsesnn.network import parse_net
from studies.__main__ import parser
from studies.loading import bench_loading

pytestmark = pytest.mark.slow

h5py = pytest.importorskip("h5py")
pytest.importorskip("tonic")

WAYS = ["tonic", "disk cache", "stream", "frames"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """13 samples in SHD's format and 11 in N-MNIST's."""
    made = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    events = [
        (np.sort(rng.uniform(0, 0.9, n)).astype(np.float16), rng.integers(0, 700, n).astype(np.uint16))
        for n in rng.integers(20, 300, 13)
    ]
    (made / "SHD").mkdir()
    with h5py.File(made / "SHD" / "shd_train.h5", "w") as file:
        for k, key in enumerate(("spikes/times", "spikes/units")):
            dataset = file.create_dataset(key, (13,), h5py.vlen_dtype(events[0][k].dtype))
            for s, sample in enumerate(events):
                dataset[s] = sample[k]
        file["labels"] = (np.arange(13) % 3).astype(np.uint16)
        file["extra/speaker"] = np.zeros(13, np.uint16)
        file["extra/keys"] = np.array([b"zero", b"one", b"two"])
    for s in range(11):
        path = made / "NMNIST" / "Train" / str(s % 10) / f"{s:05}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        t_us = np.sort(rng.integers(0, 300_000, 200))
        xyp = rng.integers(0, (34, 34, 2), (200, 3))
        columns = [xyp[:, 0], xyp[:, 1], (xyp[:, 2] << 7) | (t_us >> 16), (t_us >> 8) & 255, t_us & 255]
        path.write_bytes(np.stack(columns, axis=1).astype(np.uint8).tobytes())
    return made


def test_all_ways_load_the_same_and_training_waits_a_share_of_its_time(folder: Path, tmp_path: Path) -> None:
    result = bench_loading(
        "shd",
        folder,
        cache_dir=tmp_path,
        parameters={"n_steps": 50, "pool": 7},
        batch=5,
        n_workers=0,
        rounds=3,
        network=lambda n_neurons, n_classes: parse_net(f"{n_neurons}-16-{n_classes}"),
        augment=Augment(event_drop=0.1, mix=0.5),
        train_epochs=2,
    )
    assert list(result.epoch_s) == WAYS
    assert all(len(seconds) == 3 and min(seconds) > 0 for seconds in result.epoch_s.values())
    for way, seconds in result.epoch_s.items():
        if way != "stream":
            assert result.faster[way] == pytest.approx(median(seconds) / median(result.epoch_s["stream"]))
    assert (result.n_samples, result.n_steps, result.n_neurons, result.net) == (13, 50, 100, "100-16-3")
    assert result.prepare_s["disk cache"] > 0
    assert list(result.training) == ["not augmented", "augmented"]
    for found in result.training.values():
        assert 0 < found["wait_share"] < 1
        assert found["samples_per_s"] > 0
    assert "augment_share" in result.training["augmented"]
    text = result.table()
    assert [line.split("  ")[0].strip() for line in text.splitlines()[2:6]] == WAYS
    assert text.count("training 100-16-3") == 2
    assert "augmentation costs" in text


def test_images_and_their_pooling(folder: Path, tmp_path: Path) -> None:
    chosen = {"pool": 3, "stabilise": True, "saccade": 1, "n_steps": 20}
    with pytest.warns(UserWarning, match="11 of the 60,000 recordings"):
        result = bench_loading("nmnist", folder, cache_dir=tmp_path, parameters=chosen, n_workers=0, rounds=1)
    assert (result.n_samples, result.n_neurons) == (11, 2 * 12 * 12)
    assert result.training == {}


def test_worker_processes(folder: Path, tmp_path: Path) -> None:
    """In a separate process: this one has threads, which Python does not like to fork."""
    command = [sys.executable, "-m", "studies", "loading", "shd", "--data", str(folder), "--cache"]
    more = [str(tmp_path), "--workers", "2", "--rounds", "1", "--hidden", "none", "--json"]
    benchmarks = Path(__file__).parents[2] / "benchmarks"
    done = subprocess.run([*command, *more], cwd=benchmarks, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    assert (result["n_workers"], result["n_samples"], result["batch"]) == (2, 13, 48)


def test_the_command_takes_a_recipe(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        '[data]\nname = "shd"\nn_steps = 40\npool = 10\n[net]\ntext = "70-8r-3"\n[train]\nbatch = 4\n'
        "[augment]\nevent_drop = 0.2\n"
    )
    arguments = ["loading", "--config", str(recipe), "--data", str(folder), "--cache", str(tmp_path)]
    assert main([*arguments, "--workers", "0", "--rounds", "1", "--json"], parser()) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["net"], result["batch"], result["n_steps"]) == ("70-8r-3", 4, 40)
    assert set(result["training"]) == {"not augmented", "augmented"}


def test_different_spikes_are_not_raced(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"sample \d+ of Tonic is not in our data"):
        bench_loading("shd", folder, cache_dir=tmp_path, parameters={"duplicates": "count:1"}, n_workers=0)
    other = tmp_path / "other"
    shutil.copytree(folder / "SHD", other / "SHD")
    with h5py.File(other / "SHD" / "shd_train.h5", "r+") as file:
        for key in list(file["spikes"]):
            column = file[f"spikes/{key}"][:12]
            del file[f"spikes/{key}"]
            dataset = file.create_dataset(f"spikes/{key}", (12,), h5py.vlen_dtype(column[0].dtype))
            for s in range(12):
                dataset[s] = column[s]
        for key in ("labels", "extra/speaker"):
            values = file[key][:12]
            del file[key]
            file[key] = values
    smaller = datasets.load("shd", split="train", data_dir=other, cache_dir=tmp_path)
    monkeypatch.setattr(datasets, "load", lambda *_, **__: smaller)
    with pytest.raises(DataError, match="Tonic has 13 samples, our cache 12"):
        bench_loading("shd", folder, n_workers=0)


def test_what_cannot_be_raced(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="'digits' cannot be raced; allowed: nmnist, shd, ssc"):
        bench_loading("digits", folder)
    datasets.load("shd", split="train", data_dir=folder, cache_dir=tmp_path)
    monkeypatch.setitem(sys.modules, "tonic", None)
    with pytest.raises(MissingDependencyError, match="the benchmark of loading needs the package 'tonic'"):
        bench_loading("shd", folder, cache_dir=tmp_path)


def test_the_command_says_what_is_missing(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('[data]\nname = "shd"\n')
    for arguments, message in (
        ([], "which data set? give shd, ssc or nmnist, or --config FILE"),
        (["nmnist", "--config", str(recipe)], "'nmnist' and a configuration of 'shd'; give one of them"),
        (["--config", str(tmp_path / "none.toml")], "--config: .*none.toml cannot be read"),
    ):
        assert main(["loading", *arguments, "--data", str(folder)], parser()) == 2
        error = capsys.readouterr().err
        assert message.split(".*")[-1] in error
