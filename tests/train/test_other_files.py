"""Other parts and files than those that trained a network: classes are matched by name, steps stay as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sparsesnn.datasets import EventSet, load
from sparsesnn.errors import CheckpointError, ConfigError, DataError
from sparsesnn.train import Config, evaluate_run, load_run, train
from sparsesnn.train.prepare import with_classes_of

UNITS = {"a": 0, "b": 4, "c": 8}


def events(names: str, *, n: int = 12, seed: int = 0, last_ms: float = 100.0) -> dict[str, np.ndarray]:
    """Samples of the classes in turn, each class with its own units; the last event is at `last_ms`, of unit 11."""
    rng = np.random.default_rng(seed)
    label = np.array([names[k % len(names)] for k in range(n * len(names))])
    sample = np.repeat(np.arange(label.size), 30)
    unit = np.array([UNITS[name] for name in label])[sample] + rng.integers(0, 4, sample.size)
    t_ms = rng.random(sample.size) * 90
    return {
        "t_ms": np.append(t_ms, last_ms), "unit": np.append(unit, 11), "sample": np.append(sample, 0), "label": label,
    }  # fmt: skip


def config_for(place: Path | str, **more: Any) -> Config:
    small = {
        "data": {"name": "events", "dir": str(place), "n_steps": 20},
        "net": {"text": "auto-16-auto"},
        "optim": {"lr": 0.02, "schedule": "constant"},
        "train": {"epochs": 8, "batch": 9, "plots": False, "tensorboard": False},
    }
    return Config.resolve(small, more)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    np.savez(tmp_path / "abc.npz", **events("abc"))
    train(config_for(tmp_path / "abc.npz"), out=tmp_path / "run")
    return tmp_path / "run"


def test_classes_of_another_file_go_by_their_names(run: Path) -> None:
    np.savez(run.parent / "bc.npz", **events("bc", seed=1))
    assert evaluate_run(run, data_dir=run.parent / "bc.npz", split="train")["accuracy"] > 0.9
    np.savez(run.parent / "numbers.npz", **{**events("abc"), "label": np.arange(36) % 3})
    evaluate_run(run, data_dir=run.parent / "numbers.npz", split="train")  # numbers are not matched by name
    strange = {**events("bc"), "label": np.array(["b", "d"] * 12)}
    np.savez(run.parent / "bd.npz", **strange)
    with pytest.raises(DataError, match="has the class 'd'; training had a, b, c"):
        evaluate_run(run, data_dir=run.parent / "bd.npz", split="train")


def test_steps_and_sizes_of_another_file_are_those_of_training(run: Path) -> None:
    short = {name: array[:-1] if name != "label" else array for name, array in events("abc", seed=2).items()}
    np.savez(run.parent / "short.npz", **short)  # ends earlier, and does not reach the last unit perhaps
    assert evaluate_run(run, data_dir=run.parent / "short.npz", split="train")["accuracy"] > 0.9
    np.savez(run.parent / "long.npz", **events("abc", seed=2, last_ms=900.0))
    assert evaluate_run(run, data_dir=run.parent / "long.npz", split="train")["accuracy"] > 0.9


@pytest.mark.parametrize("pool", [1, 2])
def test_sizes_of_another_file_of_a_camera(tmp_path: Path, pool: int) -> None:
    for name, width, seed in (("wide", 12, 0), ("narrow", 11, 1)):
        table = events("ab", seed=seed)
        x = np.append(table.pop("unit")[:-1], width - 1)
        np.savez(tmp_path / f"{name}.npz", **table, x=x, y=np.arange(x.size) % 5, p=np.arange(x.size) % 2)
    train(config_for(tmp_path / "wide.npz", data={"pool": pool}), out=tmp_path / "run")
    assert evaluate_run(tmp_path / "run", data_dir=tmp_path / "narrow.npz", split="train")["accuracy"] > 0.9


def made(names: str, dt_us: float = 5000.0) -> EventSet:
    rng = np.random.default_rng(3)
    label = [names[k % len(names)] for k in range(12 * len(names))]
    recordings = [(rng.random(40) * 1e5, UNITS[name] + rng.integers(0, 4, 40)) for name in label]
    return EventSet.from_events(recordings, label, n_steps=20, dt_us=dt_us, n_neurons=12)


def test_parts_that_were_made_apart(tmp_path: Path) -> None:
    text = (
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom test_other_files import made\n"
        "def named(): return {'train': made('abc'), 'test': made('bc')}\n"
        "def slow(): return {'train': made('abc'), 'test': made('abc'), 'valid': made('abc', 1e4)}\n"
    )
    (tmp_path / "own.py").write_text(text)
    own = str(tmp_path / "own.py")
    with pytest.warns(UserWarning, match="the test part has no samples of class a, "):
        result = train(config_for("", data={"test": "own"}), f"{own}:named", out=tmp_path / "run")
    assert result.test_accuracy > 0.9
    with pytest.raises(DataError, match=r"steps of us is 5000\.0 in the part train, 10000\.0 in valid"):
        train(config_for("", data={"test": "own", "valid": "own"}), f"{own}:slow", out=tmp_path / "other")
    assert with_classes_of({"classes": ["c", "b", "a"]}, made("ab"), "x").labels[:2].tolist() == [2, 1]


def test_other_held_out_samples_are_other_data(tmp_path: Path) -> None:
    held_out = tmp_path / "held_out.txt"
    held_out.write_text("\n".join(map(str, range(100))))
    config = Config.resolve(
        {
            "data": {"name": "digits", "valid": f"file:{held_out}"},
            "net": {"text": "auto-8-auto"},
            "optim": {"schedule": "constant"},
            "train": {"epochs": 1, "plots": False, "tensorboard": False},
        }
    )
    train(config, out=tmp_path / "run")
    held_out.write_text("\n".join(map(str, range(100, 200))))
    with pytest.raises(CheckpointError, match="was made with other data.*samples_sha256"):
        train(config.with_values({"train": {"epochs": 2}}), out=tmp_path / "run", resume=True)


def test_files_that_swap_their_parts_are_read_again(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    for name, unit in (("a_train", 3), ("b_test", 7)):
        table = events("ab")
        np.savez(folder / f"{name}.npz", **{**table, "unit": np.full(table["unit"].size, unit)})
    how: dict[str, Any] = {"data_dir": folder, "cache_dir": tmp_path / "cache", "n_steps": 10, "n_neurons": 12}
    assert set(load("events", split="train", **how).ids.tolist()) == {3}
    (folder / "a_train.npz").rename(folder / "a_test.npz")
    (folder / "b_test.npz").rename(folder / "b_train.npz")
    assert set(load("events", split="train", **how).ids.tolist()) == {7}


@pytest.mark.parametrize("valid", ["random:0.2", "none"])
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_weights_of_a_run_with_dropout_are_taken_as_they_were_evaluated(
    tmp_path: Path, valid: str, share: float
) -> None:
    np.savez(tmp_path / "abc.npz", **events("abc"))
    net = {"net": {"text": "auto-16-16-auto"}, "data": {"valid": valid}}
    train(config_for(tmp_path / "abc.npz", **net, dropout={"neurons": 0.25}), out=tmp_path / "first")
    still = {"optim": {"lr": 0.0}, "init": {"from_run": str(tmp_path / "first")}, "dropout": {"neurons": share}}
    train(config_for(tmp_path / "abc.npz", **net, **still), out=tmp_path / "second")
    before, after = (dict(load_run(tmp_path / name).model.named_parameters()) for name in ("first", "second"))
    for name, weight in before.items():
        torch.testing.assert_close(after[name], weight, rtol=1e-6, atol=0)


def test_runs_of_several_seeds_resume_with_their_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from sparsesnn.cli import main

    np.savez(tmp_path / "abc.npz", **events("abc"))
    train(config_for(tmp_path / "abc.npz"), out=tmp_path / "all" / "seed-0")
    assert main(["train", "--resume", "--out", str(tmp_path / "all")]) == 2
    assert "holds runs of several seeds; give them as well, --seeds 0,1,2" in capsys.readouterr().err
    command = ["train", "events", "--data", str(tmp_path / "abc.npz"), "--out", str(tmp_path / "new")]
    assert main([*command, "--seeds", "0,-1"]) == 2
    assert not (tmp_path / "new").exists(), "a seed was trained before the next one was refused"
    with pytest.raises(ConfigError, match="seed"):
        config_for(tmp_path / "abc.npz").with_values({"train": {"seed": -1}})
