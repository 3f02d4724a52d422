"""The loop: a run and its result, choosing by validation, stopping, resuming, and being killed."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from sparsesnn.config.tables import merge
from sparsesnn.datasets import EventSet
from sparsesnn.engines import Training, make_engine
from sparsesnn.errors import CheckpointError, ConfigError, DataError, NotFiniteError, NumericError
from sparsesnn.network import Network, parse_net
from sparsesnn.train import Config, Report, Result, StoppedError, evaluate, evaluate_run, load_run, loop, prepare, train
from sparsesnn.train.checkpoint import CheckpointStore
from sparsesnn.train.files import locked
from sparsesnn.train.loop import Run
from sparsesnn.train.metrics import Tally, read_metrics

BACKENDS = ("cpu", "dense")


def make_config(**sections: dict[str, Any]) -> Config:
    """A run of a second: 59 training samples of 17 neurons in batches of 8, so the last batch is smaller."""
    small = {
        "data": {
            "name": "synthetic", "n_neurons": 17, "n_classes": 3, "n_steps": 11, "n_samples": 70, "activity": 0.2,
            "valid": "random:0.15",
        },
        "net": {"text": "auto-9r-auto"},
        "init": {"activity": 0.1, "tolerance": 0.5},
        "augment": {"event_drop": 0.1, "time_jitter": 0.5},
        "optim": {"lr": 0.02},
        "train": {"epochs": 4, "batch": 8, "tensorboard": False, "plots": False},
    }  # fmt: skip
    return Config.resolve(small, sections)


def without_times(folder: Path) -> list[dict[str, Any]]:
    timed = ("seconds", "waited_s", "wait_share", "valid_seconds", "samples_per_s")
    return [{k: v for k, v in record.items() if k not in timed} for record in read_metrics(folder)]


class StopAt(Report):
    """Sends a signal to this process after a number of batches."""

    def __init__(self, n_batches: int, number: int = signal.SIGINT) -> None:
        super().__init__(quiet=True)
        self.left, self.number = n_batches, number

    def batch(self, tally: Tally) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), self.number)


class Lines(Report):
    """Keeps what would be printed."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


# ---- a run and its result --------------------------------------------------------------------------------------


def test_a_run_says_its_times_in_milliseconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = prepare.load_split

    def with_dt(config: Any, split: str) -> EventSet:
        made = load(config, split)
        return dataclasses.replace(made, description={**made.description, "dt_us": 2500.0})

    monkeypatch.setattr(prepare, "load_split", with_dt)
    config = make_config(net={"tau_ms": 20.0, "readout_tau_ms": 5.0}, train={"epochs": 1})
    report = Lines()
    result = train(config, out=tmp_path / "run", report=report)
    assert result.dt_ms == 2.5
    assert result.tau_ms == {"hidden": {"beta": pytest.approx([20, 20])}, "output": {"beta": pytest.approx([5, 5])}}
    assert "time    2.5 ms per step; time constants: hidden 20 ms, output 5 ms" in report.lines
    assert Result.read(tmp_path / "run") == result


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_run_learns_and_leaves_its_result(tmp_path: Path, backend: str) -> None:
    config = make_config(
        train={"backend": backend, "epochs": 12}, data={"n_samples": 300, "contrast": 1.0}, augment={"event_drop": 0.0}
    )
    report = Lines()
    result = train(config, out=tmp_path / "run", report=report)
    text = (tmp_path / "run" / "result.json").read_text()
    assert Result.read(tmp_path / "run") == result
    assert "NaN" not in text
    assert result.test_accuracy > 0.6, "chance is a third"
    assert result.valid_accuracy is not None
    assert 1 <= result.best_epoch <= 12
    assert 0 < result.activity["hidden"] < 1
    assert (result.n_test, result.n_valid, result.n_train) == (300, 45, 255)
    assert result.samples_per_s > 0
    assert result.config == config.to_dict()
    assert result.n_parameters == 17 * 9 + 9 * 9 + 9 * 3
    records = read_metrics(tmp_path / "run")
    assert [r["epoch"] for r in records] == list(range(1, 13))
    assert {"loss", "accuracy", "valid_loss", "valid_accuracy", "samples_per_s", "activity", "dropped", "lr", "n_lost",
            "seconds", "waited_s", "wait_share"} <= set(records[0])  # fmt: skip
    assert result.wait_share == pytest.approx(sum(r["waited_s"] for r in records) / sum(r["seconds"] for r in records))
    assert 0 < result.wait_share < 1
    assert records[-1]["loss"] < records[0]["loss"]
    assert Config.from_toml((tmp_path / "run" / "config.toml").read_text()) == config
    shown = "\n".join(report.lines)
    assert shown.count("waited ") == 12
    assert "17 → hidden 9 recurrent → output 3" in shown
    assert shown.count("epoch  ") == 12
    assert f"test    {100 * result.test_accuracy:.2f} %" in shown


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_same_configuration_gives_the_same_bits(tmp_path: Path, backend: str) -> None:
    config = make_config(train={"backend": backend})
    first, second = (train(config, out=tmp_path / name) for name in "ab")
    torch.manual_seed(999)  # the state of the global generator has no part in it
    torch.rand(3)
    printed = Config.from_toml(config.to_toml())
    third = train(printed, out=tmp_path / "c")
    other = train(config.with_values({"train": {"seed": 1}}), out=tmp_path / "d")
    assert first.weights_sha256 == second.weights_sha256 == third.weights_sha256 != other.weights_sha256
    assert without_times(tmp_path / "a") == without_times(tmp_path / "c")


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_default_dtype_of_pytorch_changes_nothing(tmp_path: Path, backend: str) -> None:
    config = make_config(train={"backend": backend, "epochs": 2}, optim={"ema": 0.9})
    wanted = train(config, out=tmp_path / "a")
    torch.set_default_dtype(torch.float64)
    try:
        found = train(config, out=tmp_path / "b")
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.weights_sha256 == wanted.weights_sha256
    assert without_times(tmp_path / "b") == without_times(tmp_path / "a")


def test_threads_and_prefetching_do_not_change_the_bits(tmp_path: Path) -> None:
    config = make_config()
    results = [
        train(config.with_values({"train": values}), out=tmp_path / str(k))
        for k, values in enumerate(({"threads": 1, "prefetch": 0}, {"threads": 2, "prefetch": 3}))
    ]
    assert results[0].weights_sha256 == results[1].weights_sha256


# ---- choosing -----------------------------------------------------------------------------------------------------


def test_validation_chooses_and_the_test_part_does_not(tmp_path: Path) -> None:
    config = make_config(train={"epochs": 8}, optim={"lr": 0.1})
    result = train(config, out=tmp_path)
    records = read_metrics(tmp_path)
    best = max(records, key=lambda r: (r["valid_accuracy"], -r["valid_loss"], -r["epoch"]))
    assert result.best_epoch == best["epoch"]
    assert result.valid_accuracy == best["valid_accuracy"]
    assert result.valid_loss == best["valid_loss"]
    for weights, wanted in (("best", result.test_accuracy), ("last", result.test_accuracy_last)):
        assert evaluate_run(tmp_path, weights=weights)["accuracy"] == wanted
    assert evaluate_run(tmp_path / "checkpoint.json", split="valid")["accuracy"] == result.valid_accuracy
    assert evaluate_run(tmp_path, split="train")["n_samples"] == result.n_train
    assert evaluate_run(tmp_path, backend="dense")["accuracy"] == pytest.approx(result.test_accuracy, abs=0.05)
    assert load_run(tmp_path, weights="last").engine.weights_sha256() == result.weights_sha256


def test_equal_accuracies_go_to_the_lower_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = iter([(3, 2.0), (5, 2.0), (5, 1.0), (5, 1.0), (4, 0.1)])

    def scripted(self: Run, part: prepare.Part, stop: Any, *_: Any) -> Tally:
        n_correct, loss = next(given, (0, 1.0))
        return Tally(n_samples=10, n_correct=n_correct, loss_sum=10 * loss)

    monkeypatch.setattr(Run, "_evaluate", scripted)
    assert train(make_config(train={"epochs": 5}), out=tmp_path).best_epoch == 3


def test_without_validation_the_last_epoch_is_tested(tmp_path: Path) -> None:
    result = train(make_config(data={"valid": "none"}), out=tmp_path)
    assert (result.best_epoch, result.valid_accuracy, result.n_valid) == (4, None, 0)
    assert result.test_accuracy == result.test_accuracy_last
    assert read_metrics(tmp_path)[0]["valid_accuracy"] is None
    with pytest.raises(ConfigError, match="no validation part"):
        evaluate_run(tmp_path, split="valid")


def test_evaluation_counts_every_sample_once(tmp_path: Path) -> None:
    config = make_config()
    parts = prepare.load_parts(config.data)
    network = prepare.make_network(config, parts)
    engine = make_engine("cpu", network, prepare.make_training(config, network, 3))
    tallies = [
        evaluate(engine, prepare.eval_stream(c, parts.test))
        for c in (config, config.with_values({"train": {"batch": 1}}))
    ]
    assert [t.n_samples for t in tallies] == [70, 70]
    assert tallies[0].n_correct == tallies[1].n_correct
    assert tallies[0].loss == pytest.approx(tallies[1].loss, rel=1e-5)
    assert all(p.grad is None for p in engine.model.parameters())


# ---- options that must have an effect ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"loss": {"label_smoothing": 0.3}},
        {"loss": {"upper": 0.001, "strength_upper": 1e4}},
        {"loss": {"lower": 0.9, "strength_lower": 10.0}},
        {"loss": {"decoding": "mean"}},
        {"optim": {"clip_norm": 1e-3, "name": "sgd"}},
        {"optim": {"weight_decay": 0.5}},
        {"optim": {"warmup_epochs": 2.0}},
        {"optim": {"schedule": "constant"}},
        {"augment": {"event_drop": 0.5}},
        {"augment": {"time_crop": 0.5}},
        {"augment": {"mix": 0.5}},
        {"augment": {"blend": 0.5}},
        {"augment": {"time_mask": 0.5}},
        {"train": {"bucket_batches": 3}},
        {"train": {"drop_last": True}},
        {"init": {"activity": 0.0}},
        {"init": {"layers": {"hidden": 0.3}}},
        {"init": {"readout_std": 0.0}},
        {"net": {"grad_threshold": 0.2}},
        {"optim": {"schedule": "onecycle"}},
        {"dropout": {"neurons": 0.25}},
        {"dropout": {"spikes": 0.25}},
        {"optim": {"lr_factors": {"readout": 0.5}}},
        {"optim": {"weight_decays": {"recurrent": 0.5}}},
        {"loss": {"decoding": "softmax_sum"}},
    ],
    ids=lambda c: "-".join(f"{s}.{k}" for s, values in c.items() for k in values),
)
def test_options_change_the_outcome(tmp_path: Path, changes: dict[str, Any], default_run: Result) -> None:
    changed = make_config(train={"epochs": 1}).with_values(changes)
    assert train(changed, out=tmp_path).weights_sha256 != default_run.weights_sha256


@pytest.fixture(scope="module")
def default_run(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return train(make_config(train={"epochs": 1}), out=tmp_path_factory.mktemp("default"))


def test_a_regularizer_lowers_the_activity(tmp_path: Path) -> None:
    plain = make_config(train={"epochs": 6})
    quiet = plain.with_values({"loss": {"upper": 0.01, "strength_upper": 1e4}})
    results = [train(config, out=tmp_path / str(k)) for k, config in enumerate((plain, quiet))]
    assert results[1].activity["hidden"] < 0.7 * results[0].activity["hidden"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_plots_and_tensorboard_land_in_the_folder(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is optional")
    pytest.importorskip("tensorboard", reason="TensorBoard is optional")
    train(make_config(train={"epochs": 1, "plots": True, "tensorboard": True}), out=tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    pictures = {"curves.png", "activity.png", "confusion.png", "raster.png"}
    assert pictures | {"tensorboard", "result.json", "metrics.jsonl"} <= names
    assert not [name for name in names if name.endswith(".tmp")]


def test_missing_matplotlib_is_said_and_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    report = Lines()
    train(make_config(train={"epochs": 1, "plots": True}), out=tmp_path, report=report)
    assert any(r"pip install 'sparsesnn[plot]'" in line for line in report.lines)


# ---- failures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path, backend: str) -> None:
    config = make_config(optim={"lr": 1e38, "name": "sgd", "schedule": "constant"}, train={"backend": backend})
    with pytest.raises(NumericError, match=r"in epoch 1, batch \d.*Try a lower optim\.lr \(1e\+38\)"):
        train(config, out=tmp_path)
    store = CheckpointStore(tmp_path)
    assert all(torch.isfinite(t).all() for t in store.tensors(store.read().tensors).values())


class BreakAt(Report):
    """Makes one number of the engine NaN or infinite after a number of batches, in a run that trains."""

    def __init__(self, n_batches: int, tensor: str, monkeypatch: pytest.MonkeyPatch, value: float = math.nan) -> None:
        super().__init__(quiet=True)
        self.left, self.tensor, self.value, self.engine = n_batches, tensor, value, None
        make = loop.engines.make_engine

        def kept(*arguments: Any) -> Any:
            self.engine = make(*arguments)
            return self.engine

        monkeypatch.setattr(loop.engines, "make_engine", kept)

    def batch(self, tally: Tally) -> None:
        self.left -= 1
        if self.left == 0:
            parameters = dict(self.engine.model.named_parameters())
            with torch.no_grad():
                parameters[self.tensor].view(-1)[-1] = self.value


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("valid", ["random:0.15", "none"])
def test_weights_that_are_not_finite_overwrite_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, valid: str, value: float
) -> None:
    name = "layers.hidden.input->hidden"
    n_batches = 16 if valid != "none" else 18
    config = make_config(data={"valid": valid}, train={"backend": "dense"}, optim={"lr": 1e-6})
    with pytest.raises(NotFiniteError, match=rf"model/{name} is {value} in epoch 2, .*optim\.lr \(1e-06\)") as caught:
        train(config, out=tmp_path, report=BreakAt(n_batches, name, monkeypatch, value))
    assert caught.value.what == f"model/{name}"
    store = CheckpointStore(tmp_path)
    saved = store.read()
    assert saved.progress["epoch"] == 1
    for files in (saved.tensors, saved.best or ()):
        assert all(torch.isfinite(t).all() for t in store.tensors(files).values() if t.is_floating_point())


def test_a_state_of_the_optimizer_that_is_not_finite_is_no_checkpoint(tmp_path: Path) -> None:
    engine = make_engine("dense", parse_net("11-9-3"), Training(3, "max"))
    state = {**engine.state(), "optim/layers.output.hidden->output/exp_avg": torch.tensor([1.0, -math.inf])}
    with pytest.raises(NotFiniteError, match=r"optim/layers\.output\.hidden->output/exp_avg is -inf"):
        engine.check_state(state)
    engine.check_state({**engine.state(), "model/layers.hidden.grad_threshold": torch.tensor(-math.inf)})


def test_a_run_that_diverges_says_so_and_what_to_change(tmp_path: Path) -> None:
    report = Lines()
    config = make_config(optim={"lr": 1e6, "name": "sgd", "schedule": "constant"}, net={"text": "auto-auto"})
    result = train(config, out=tmp_path, report=report)
    said = [line for line in report.lines if line.startswith("warning the loss is")]
    assert len(said) == 1, "once, not every epoch"
    assert re.search(r"1,000 times that of the first step \([\d.]+\).*optim\.lr", said[0])
    records = read_metrics(tmp_path)
    assert [len(record["warnings"]) for record in records] == [1, 0, 0, 0]
    assert result.n_epochs == 4


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"net": {"threshold": 1e6, "grad_threshold": 1.0}, "init": {"activity": 0.0}},
            r"no spike in (\d+) of \1 batches",
        ),
        (
            {"init": {"activity": 0.57, "mean_shift": 0.2, "tolerance": 0.05}},
            r"fires 0\.[56]\d\d spikes per neuron and step, more than 0\.5",
        ),
    ],
    ids=["silent", "runs away"],
)
def test_populations_that_are_silent_or_run_away_are_named(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    report = Lines()
    still = {
        "train": {"epochs": 2},
        "optim": {"lr": 1e-6},
        "net": {"text": "auto-9-auto"},
        "augment": {"event_drop": 0.0},
    }
    train(make_config(**merge(still, changes)), out=tmp_path, report=report)
    lines = [line for line in report.lines if line.startswith("warning hidden")]
    assert len(lines) == 1, "once, not every epoch"
    assert re.search(said, lines[0])
    assert "init.activity" in lines[0]


def test_fixed_activity_does_not_run_away(tmp_path: Path) -> None:
    report = Lines()
    net = {"text": "auto-9-auto", "capacity": 9, "activity": "fixed"}
    train(make_config(net=net, init={"activity": 0.0}, train={"epochs": 1}), out=tmp_path, report=report)
    assert not [line for line in report.lines if line.startswith("warning")]
    assert read_metrics(tmp_path)[0]["activity"]["hidden"] > 0.5


def test_an_augmentation_or_a_batch_that_does_not_fit_the_data(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="augment: rotation is for the images of a camera"):
        train(make_config(augment={"rotation": 5}), out=tmp_path / "a")
    with pytest.raises(ConfigError, match=r"drop_last: leaves no batch of 60 .* train\.batch \(61\) to at most 60"):
        train(make_config(train={"drop_last": True, "batch": 61}), out=tmp_path / "b")


def test_data_and_network_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"write --net 17-9r-3$"):
        train(make_config(net={"text": "700-9r-20"}), out=tmp_path / "a")
    with pytest.raises(ConfigError, match="valid: 'speakers:1'"):
        train(make_config(data={"valid": "speakers:1"}), out=tmp_path / "b")
    with pytest.raises(ConfigError, match="valid"):
        train(make_config(data={"valid": "own"}), out=tmp_path / "c")


def test_eval_of_other_data(tmp_path: Path) -> None:
    train(make_config(train={"epochs": 1}), out=tmp_path)
    store = CheckpointStore(tmp_path)
    saved = store.read()
    body = {**vars(saved), "tensors": None}
    store.write(
        config={**saved.config, "data": {**saved.config["data"], "n_neurons": 19}},
        progress=body["progress"], network=body["network"], data=body["data"], step=99,
        tensors=store.tensors(saved.tensors), best=saved.best, version="1",
    )  # fmt: skip
    with pytest.raises(DataError, match="has 19 neurons and 3 classes, the network 17 and 3"):
        evaluate_run(tmp_path)


def test_out_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be created"):
        train(make_config(), out=tmp_path / "file" / "run")


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(ConfigError, match="in use by another training run"):
        train(make_config(), out=tmp_path)


# ---- stopping and resuming ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=BACKENDS)
def undisturbed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Config, Path, Result]:
    config = make_config(train={"backend": request.param})
    folder = tmp_path_factory.mktemp("undisturbed")
    return config, folder, train(config, out=folder)


@pytest.mark.parametrize(
    ("optimizer", "changes"),
    [
        ("adamw", {}),
        ("sgd", {}),
        ("adamw", {"augment": {"mix": 0.7, "time_crop": 0.2}, "train": {"bucket_batches": 3}}),
        ("adamw", {"augment": {"blend": 0.7, "time_mask": 0.4, "channel_mask": 5}}),
        ("adamw", {"train": {"drop_last": True}}),
        ("adamw", {"net": {"capacity": 2}}),
        (
            "adamw",
            {
                "optim": {"ema": 0.9, "schedule": "onecycle", "lr_factors": {"recurrent": 0.5}},
                "dropout": {"neurons": 0.2},
            },
        ),
        ("adamw", {"optim": {"schedule": "plateau", "plateau_patience": 1, "lr": 0.5}}),
        ("adamw", {"net": {"axonal_delays": 4, "learn_axonal_delays": True}}),  # of 17 senders to 9 neurons
    ],
    ids=[
        "adamw",
        "sgd",
        "mixed and bucketed",
        "blended and masked",
        "without the last batch",
        "full lists",
        "averaged, dropout",
        "plateau",
        "axonal delays",
    ],
)
def test_stopping_after_any_batch_changes_nothing(tmp_path: Path, optimizer: str, changes: dict[str, Any]) -> None:
    """Every batch of the run, over and over: stop after one more batch and resume."""
    config = make_config(optim={"name": optimizer}, train={"epochs": 2}).with_values(changes)
    whole = train(config, out=tmp_path / "whole")
    batches = math.floor if config.train.drop_last else math.ceil
    parts, n_stops = tmp_path / "parts", 0
    while True:
        try:
            result = train(config, out=parts, resume=True, report=StopAt(1))
            break
        except StoppedError:
            n_stops += 1
    assert n_stops == 2 * batches(whole.n_train / 8)
    assert result.weights_sha256 == whole.weights_sha256
    assert without_times(parts) == without_times(tmp_path / "whole")
    assert (result.best_epoch, result.test_accuracy) == (whole.best_epoch, whole.test_accuracy)


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_a_signal_ends_with_a_checkpoint_and_says_how_to_go_on(
    tmp_path: Path, undisturbed: tuple[Config, Path, Result], number: int, name: str
) -> None:
    config, _, whole = undisturbed
    handler = signal.getsignal(number)
    with pytest.raises(StoppedError, match=rf"stopped by {name} after epoch 1, batch 3; .*--resume --out") as caught:
        train(config, out=tmp_path, report=StopAt(math.ceil(whole.n_train / 8) + 3, number))
    assert caught.value.signal == number
    assert signal.getsignal(number) is handler
    assert CheckpointStore(tmp_path).read().progress["batch"] == 3
    assert not (tmp_path / "result.json").exists()
    assert train(config, out=tmp_path, resume=True).weights_sha256 == whole.weights_sha256


def test_a_folder_with_a_run_is_not_overwritten(undisturbed: tuple[Config, Path, Result]) -> None:
    config, folder, _ = undisturbed
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ConfigError, match=r"already has a run .*add --resume"):
        train(config, out=folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"} == {
        name: data for name, data in before.items() if name != ".lock"
    }


def test_a_run_that_does_not_begin_leaves_no_folder(tmp_path: Path) -> None:
    config = Config.resolve({"data": {"name": "shd", "dir": str(tmp_path)}})
    (tmp_path / "mine").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    for name in ("new", "mine", "other"):
        with pytest.raises(DataError, match="shd: neither"):
            train(config, out=tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "other"]
    assert (tmp_path / "other" / "notes.txt").exists()


def test_a_finished_run_is_not_tested_again(undisturbed: tuple[Config, Path, Result]) -> None:
    config, folder, result = undisturbed
    report = Lines()
    assert train(config, out=folder, resume=True, report=report) == result
    assert any("is finished" in line for line in report.lines)


def test_resume_without_a_checkpoint_starts_and_says_so(tmp_path: Path) -> None:
    report = Lines()
    train(make_config(train={"epochs": 1}), out=tmp_path, resume=True, report=report)
    assert any("no checkpoint yet, starting from the beginning" in line for line in report.lines)


def test_resume_with_another_configuration(tmp_path: Path) -> None:
    config = make_config(optim={"schedule": "constant"}, train={"epochs": 2})
    train(config, out=tmp_path)
    with pytest.raises(CheckpointError, match=r"another configuration: optim.lr: 0.02 → 0.5; train.batch: 8 → 4"):
        train(config.with_values({"optim": {"lr": 0.5}, "train": {"batch": 4}}), out=tmp_path, resume=True)
    longer = train(config.with_values({"train": {"epochs": 4, "threads": 1}}), out=tmp_path, resume=True)
    straight = train(config.with_values({"train": {"epochs": 4}}), out=tmp_path / "straight")
    assert longer.weights_sha256 == straight.weights_sha256
    assert [r["epoch"] for r in read_metrics(tmp_path)] == [1, 2, 3, 4]


def test_resume_of_exact_lists_that_were_written_in_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = {"grad_threshold": "exact", "surrogate": {"kind": "boxcar", "slope": 2.0}}
    config = make_config(net=exact, optim={"schedule": "constant"})
    whole = train(config, out=tmp_path / "whole")
    as_it_is = Network.to_dict

    def in_numbers(network: Network) -> dict[str, Any]:
        return as_it_is(prepare.in_numbers(network))

    with monkeypatch.context() as older:
        older.setattr(Network, "to_dict", in_numbers)
        train(config.with_values({"train": {"epochs": 1}}), out=tmp_path / "parts")
    assert train(config, out=tmp_path / "parts", resume=True).weights_sha256 == whole.weights_sha256


def test_resume_with_other_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config()
    with pytest.raises(StoppedError):
        train(config, out=tmp_path, report=StopAt(3))
    original = prepare.Parts.fingerprint
    monkeypatch.setattr(prepare.Parts, "fingerprint", lambda self: {**original(self), "n_spikes": 7})
    with pytest.raises(CheckpointError, match=r"made with other data \(n_spikes: \d+ then, 7 now\)"):
        train(config, out=tmp_path, resume=True)


def test_checkpoints_within_an_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    positions: list[tuple[int, int]] = []
    original = Run._save

    def noted(self: Run, *arguments: Any) -> None:
        positions.append((self.progress.epoch, self.progress.batch))
        original(self, *arguments)

    monkeypatch.setattr(Run, "_save", noted)
    train(make_config(train={"epochs": 1, "checkpoint_batches": 3}), out=tmp_path / "a")
    assert positions == [(0, 0), (0, 3), (0, 6), (1, 0)]
    positions.clear()
    train(make_config(train={"epochs": 1, "checkpoint_seconds": 1e-9}), out=tmp_path / "b")
    assert positions == [(0, 0), *((0, k) for k in range(1, 8)), (1, 0)]


def test_a_disk_that_fills_up_costs_the_run_but_not_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: tuple[Config, Path, Result]
) -> None:
    config, folder, whole = undisturbed
    calls = 0
    original = Path.open

    def full(self: Path, mode: str = "r", *arguments: Any, **more: Any) -> Any:
        nonlocal calls
        if "w" in mode and "ckpt" in self.name:
            calls += 1
            if calls == 3:
                raise OSError(28, "No space left on device")
        return original(self, mode, *arguments, **more)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(CheckpointError, match=r"No space left on device; the checkpoint before it is intact"):
        train(config, out=tmp_path)
    assert train(config, out=tmp_path, resume=True).weights_sha256 == whole.weights_sha256
    assert without_times(tmp_path) == without_times(folder)


# ---- killed --------------------------------------------------------------------------------------------------------


def start(config: Path, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sparsesnn", "train", "--config", str(config), "--out", str(out), "--resume"]
    return subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, cwd=config.parent, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )


def wait_for(condition: Any, process: subprocess.Popen[str], seconds: float = 600) -> None:
    end = time.monotonic() + seconds
    while not condition() and process.poll() is None:
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.002)


@pytest.mark.slow
def test_killed_at_random_moments_a_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    config = make_config(train={"epochs": 25, "checkpoint_batches": 2})
    whole = train(config, out=tmp_path / "whole")
    path, out = tmp_path / "config.toml", tmp_path / "killed"
    path.write_text(config.to_toml())
    rng = random.Random(7)
    n_kills, killed_at = 0, []
    for _ in range(4):
        checkpoint = out / "checkpoint.json"
        process = start(path, out)
        try:
            seen = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
            wait_for(lambda at=seen, file=checkpoint: file.exists() and file.stat().st_mtime_ns != at, process)
            time.sleep(rng.uniform(0, 0.15))
            process.kill()
        finally:
            process.kill()
            process.communicate()
        n_kills += process.returncode == -signal.SIGKILL
        killed_at.append(CheckpointStore(out).read().progress["step"])
    assert n_kills >= 3
    assert killed_at == sorted(killed_at)
    assert len(set(killed_at)) >= 2, "each life must get further"
    result = train(config, out=out, resume=True)
    assert result.weights_sha256 == whole.weights_sha256
    assert without_times(out) == without_times(tmp_path / "whole")
    assert (result.best_epoch, result.test_accuracy) == (whole.best_epoch, whole.test_accuracy)
    tensor_files = [p.name for p in out.iterdir() if p.suffix == ".safetensors"]
    assert len(tensor_files) == 2, "the remains of a killed process are removed"


@pytest.mark.slow
def test_ctrl_c_ends_with_code_130(tmp_path: Path) -> None:
    path, out = tmp_path / "config.toml", tmp_path / "run"
    path.write_text(make_config(train={"epochs": 100_000}).to_toml())
    process = start(path, out)
    try:
        wait_for((out / "metrics.jsonl").exists, process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=600)
    finally:
        process.kill()
    assert process.returncode == 130
    assert f"continue with: sparsesnn train --resume --out {out}" in errors
    assert "Traceback" not in errors
    assert json.loads((out / "checkpoint.json").read_text())


# ---- output that a run can do without ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "place", ["sparsesnn.figures.save", "sparsesnn.train.plots.plot_confusion", "sparsesnn.train.plots.read_metrics"]
)
def test_a_picture_that_cannot_be_drawn_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is optional")
    at_that_time: list[bool] = []

    def fail(*_: Any, **__: Any) -> None:
        at_that_time.append((tmp_path / "result.json").exists())
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(place, fail)
    if place.endswith("save"):
        monkeypatch.setattr("sparsesnn.train.plots.save", fail)
    report = Lines()
    with pytest.warns(UserWarning, match="No space left on device"):
        result = train(make_config(train={"epochs": 1, "plots": True}), out=tmp_path, report=report)
    assert at_that_time
    assert all(at_that_time)
    assert json.loads((tmp_path / "result.json").read_text())["test_accuracy"] == result.test_accuracy
    assert any(line.startswith("test ") for line in report.lines)
    if place.endswith("confusion"):
        assert {"curves.png", "activity.png", "raster.png"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize("hook", ["__init__", "append", "close", "_add_picture"])
def test_tensorboard_that_fails_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: str) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is optional")

    def fail(*_: Any) -> None:
        raise ValueError("another protobuf")

    monkeypatch.setattr(f"sparsesnn.train.tensorboard.TensorBoard.{hook}", fail)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        with pytest.warns(UserWarning, match="TensorBoard: ValueError: another protobuf"):
            train(make_config(train={"epochs": 1, "plots": True, "tensorboard": True}), out=tmp_path)
    assert (tmp_path / "result.json").exists()
