from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparsesnn import datasets
from sparsesnn.datasets.sensor import Sensor
from sparsesnn.errors import ConfigError
from sparsesnn.task import Task
from sparsesnn.train import Config
from sparsesnn.train.prepare import held_out_by


def test_built_in_sets_take_no_folder() -> None:
    for name in datasets.loading.BUILT_IN:
        with pytest.raises(
            ConfigError, match=f"data.dir: is '/nowhere', but the data set {name} .*leave --data out.*events"
        ):
            datasets.load(name, data_dir="/nowhere")


@pytest.mark.parametrize("name", datasets.NAMES)
def test_every_data_set_says_what_it_takes(name):
    assert set(datasets.split_names(name)) >= {"train", "test"}
    assert "n_steps" in datasets.defaults(name)
    with pytest.raises(TypeError):
        datasets.defaults(name)["n_steps"] = 3
    with pytest.raises(ConfigError, match=f"{name} has no split 'validation'; allowed: train"):
        datasets.load(name, split="validation")
    with pytest.raises(ConfigError, match=f"{name}: unknown parameter 'steps'.*allowed: .*n_steps"):
        datasets.load(name, steps=3)


@pytest.mark.parametrize(
    ("name", "asked", "valid"),
    [
        ("ssc", {}, "own"),
        ("shd", {}, "random:0.1"),
        ("ssc", {"valid": "none"}, "none"),
        ("synthetic", {}, "random:0.1"),
    ],
)
def test_validation_is_by_the_part_that_the_data_has(name: str, asked: dict[str, str], valid: str) -> None:
    config = Config().with_values({"data": {"name": name, **asked}}).data
    assert held_out_by(config, datasets.load("synthetic", n_samples=3)) == ("own", valid)


def test_none_means_the_default():
    one = datasets.load("synthetic", n_samples=3, n_steps=None)
    assert one.n_steps == datasets.defaults("synthetic")["n_steps"]


def test_unknown_names_are_errors():
    for call in (datasets.load, datasets.split_names, datasets.defaults):
        with pytest.raises(
            ConfigError,
            match=f"unknown data set 'nmnst'; did you mean 'nmnist'. allowed: {', '.join(datasets.NAMES)}",
        ):
            call("nmnst")


def test_the_folder_refuses_to_be_imported_bare():
    assert datasets.__file__ is not None
    spec = importlib.util.spec_from_file_location("datasets", Path(datasets.__file__))
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(ImportError, match="imported as 'datasets'; import sparsesnn.datasets instead"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_importing_loads_no_optional_package(tmp_path):
    program = (
        "import sys, sparsesnn.datasets, sparsesnn.host.stream\n"
        "print(sorted({'tonic', 'h5py', 'sklearn', 'matplotlib', 'tensorboard'} & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, cwd=tmp_path, check=True
    )
    assert ended.stdout == "[]\n"


CONFIGS = sorted((Path(__file__).resolve().parents[2] / "configs").glob("*.toml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_recipe_describes_a_network_for_its_data(path):
    config = Config.from_toml(path.read_text(encoding="utf-8"), path.name)
    sizes = {
        "digits": (128, 10),
        "fsdd_cochlea": (70, 10),
        "shd": (70, 20),
        "ssc": (70, 35),
        "mnist": (28 * 28, 10),
        "nmnist": (34 * 34 * 2, 10),
        "dvsgesture": (32 * 32 * 2, 11),
        "yin_yang": (5, 3),
        "qtdb": (4, 6),
    }
    images = {"nmnist_subset_conv": (34, 34, 2), "dvsgesture_clips_conv": (32, 32, 2)}
    name = max((known for known in sizes if path.stem.startswith(known)), key=len)
    n_neurons, n_classes = sizes[name]
    if config.data.name in ("shd", "ssc"):
        n_neurons = 700 // config.data.options["pool"]
    network = config.net.network(n_neurons, n_classes, config.data.options.get("dt_ms"), images.get(path.stem))
    config.loss.decoding_for(network, Task(per_step=name == "qtdb"))
    sensor = Sensor(n_neurons, 1, 1) if config.data.name in ("nmnist", "dvsgesture") else None
    config.augment.check(sensor)
    assert config.data.name == ("shd" if name == "fsdd_cochlea" else name)
    assert f"--config configs/{path.name}" in path.read_text(encoding="utf-8")


def test_there_is_a_recipe_for_every_data_set_with_files():
    names = {path.stem for path in CONFIGS}
    assert names >= {*datasets.NAMES, "nmnist_subset"} - {
        "synthetic",
        "events",
    }  # a user's own events have a recipe in their module alone
