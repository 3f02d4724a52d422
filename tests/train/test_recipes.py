"""Every recipe in configs/ describes a network, has a plan for the CPU and trains, on made-up data of the right shape."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsesnn import datasets
from sparsesnn.config import Config, DataConfig
from sparsesnn.datasets import EventSet
from sparsesnn.datasets.sensor import Sensor
from sparsesnn.partition import make_plan, parse_target
from sparsesnn.train import prepare, train

RECIPES = sorted((Path(__file__).resolve().parents[2] / "configs").glob("*.toml"))
CLASSES = {"digits": 10, "mnist": 10, "shd": 20, "ssc": 35, "nmnist": 10, "dvsgesture": 11, "yin_yang": 3, "qtdb": 6}
#: neurons of data sets without a camera
N_UNITS = {"digits": 128, "mnist": 784, "yin_yang": 5, "qtdb": 4}
SIDES = {"nmnist": 34, "dvsgesture": 128}
N_SAMPLES = 37


def made_up(config: DataConfig, recipe: str, seed: int) -> EventSet:
    """Samples with 30 events per step, over the classes and over people whom recipes hold out."""
    rng, options, sensor = np.random.default_rng(seed), config.options, None
    n_classes = 10 if recipe.startswith("fsdd") else CLASSES[config.name]
    if config.name in SIDES:
        sensor = Sensor(SIDES[config.name] // options["pool"], SIDES[config.name] // options["pool"], 2)
    if config.name in N_UNITS:
        n_units = N_UNITS[config.name]
    else:
        n_units = sensor.n_neurons if sensor else math.ceil(700 / options["pool"])
    n_steps = options["n_steps"]
    events = [(rng.uniform(0, n_steps, 30 * n_steps), rng.integers(0, n_units, 30 * n_steps)) for _ in range(N_SAMPLES)]
    labels: dict[str, Any] = {"labels": np.arange(N_SAMPLES) % n_classes}
    if config.name == "qtdb":
        labels = {"step_labels": rng.integers(-1, n_classes, (N_SAMPLES, n_steps))}
    made = EventSet.from_events(
        events,
        **labels,
        n_neurons=n_units,
        n_steps=n_steps,
        dt_us=1.0,
        n_classes=n_classes,
        duplicates=options.get("duplicates", "binary"),
    )
    people = np.arange(N_SAMPLES) % 5
    description = {} if sensor is None else {"sensor": sensor.entry()}
    if "dt_ms" in options:
        description["dt_us"] = 1000 * options["dt_ms"]
    return replace(
        made,
        description=description,
        groups={"speakers": people, "users": people + 20, "windows": np.arange(N_SAMPLES) % 24},
    )


@pytest.mark.filterwarnings("ignore:the training part has no samples of class")  # a dozen samples of random classes
@pytest.mark.filterwarnings("ignore:the (validation|test) part has no samples of class")
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_has_a_plan_and_trains(path, tmp_path, monkeypatch):
    config = Config.from_toml(path.read_text(encoding="utf-8"), path.name)
    config = config.with_values(
        {
            "train": {"epochs": 1, "batch": 13, "tensorboard": False, "plots": False},
            "init": {"n_batches": 1, "tolerance": 0.5},
            "data": {"dir": ""},
        }
    )
    loaded = []

    def load(name, *, split, **_):
        loaded.append(split)
        return made_up(config.data, path.stem, len(loaded))

    monkeypatch.setattr(datasets, "load", load)
    parts = prepare.load_parts(config.data)
    network = prepare.make_network(config, parts)
    plan = make_plan(network, 13, config.data.options["n_steps"], parse_target("cpu:2"))
    planned = {name for name, population in plan.populations.items() if population.shards}
    assert planned == set(network.populations) - set(network.inputs)
    result = train(config, out=tmp_path / "run")
    assert result.n_epochs == 1
    assert math.isfinite(result.test_loss)
    assert result.n_parameters > 1000
    assert all(0 < activity < 0.5 for activity in result.activity.values())


@pytest.mark.parametrize("path", [p for p in RECIPES if p.stem.startswith(("shd", "ssc"))], ids=lambda path: path.stem)
def test_a_recipe_of_a_whole_speech_set_says_that_it_was_not_run_and_holds_out_speakers(path):
    text = path.read_text(encoding="utf-8")
    config = Config.from_toml(text, path.name)
    assert config.data.valid == ("own" if config.data.name == "ssc" else "speakers:0,1")
    assert "not run here" in text or "have not been tuned" in text
