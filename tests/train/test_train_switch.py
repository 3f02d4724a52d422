"""A run whose network is busy goes on with dense products by itself, says so, and resumes with the same bits."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from sparsesnn.engines.cpu import switch as rule
from sparsesnn.errors import ConfigError
from sparsesnn.train import Config, Report, StoppedError, evaluate_run, train
from sparsesnn.train.metrics import Tally, read_metrics

pytest.importorskip("sklearn", reason="the digits are scikit-learn's")


@pytest.fixture(autouse=True)
def small_runs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The digits are few and rather quiet: the break-even is where a penalty can reach it."""
    for name, value in (("LEAST_PRODUCTS", 0), ("BEGIN", 0.75), ("END", 0.7)):
        monkeypatch.setattr(rule, name, value)


class Heard(Report):
    """Keeps what is said, and asks the run to stop after a number of batches."""

    def __init__(self, n_batches: int = -1) -> None:
        super().__init__(quiet=True)
        self.left, self.said = n_batches, list[str]()

    def note(self, text: str) -> None:
        self.said.append(text)

    def batch(self, tally: Tally) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGINT)


def make_config(**sections: dict[str, Any]) -> Config:
    """A third of the neurons fire at first; a penalty brings that down."""
    busy = {
        "data": {"name": "digits", "n_steps": 8, "valid": "random:0.2"},
        "net": {"text": "2x8x8:3C6p-3C6p-MP2-auto", "grad_threshold": 0.2},
        "init": {"activity": 0.4, "tolerance": 0.5},
        "loss": {"upper": 0.01, "strength_upper": 100.0},
        "optim": {"lr": 0.1},
        "train": {"epochs": 2, "batch": 100, "tensorboard": False, "plots": False},
    }
    return Config.resolve(busy, sections)


def changes(said: list[str]) -> list[str]:
    return [text.rpartition("go on with ")[2] for text in said if "training steps go on with" in text]


def test_a_busy_run_switches_resumes_and_goes_back(tmp_path: Path) -> None:
    config, heard = make_config(), Heard()
    whole = train(config, out=tmp_path / "whole", report=heard)
    assert changes(heard.said) == ["dense products", "lists"]
    records = read_metrics(tmp_path / "whole")
    notes = [text for record in records for text in record["notes"]]
    assert changes(notes) == ["dense products", "lists"]
    assert notes[0].startswith("epoch 1, batch 1: ")
    for n_batches in (1, 3):
        out = tmp_path / f"parts{n_batches}"
        with pytest.raises(StoppedError):
            train(config, out=out, report=Heard(n_batches))
        parts = train(config, out=out, resume=True, report=Report(quiet=True))
        assert parts.weights_sha256 == whole.weights_sha256
        assert [record["notes"] for record in read_metrics(out)] == [record["notes"] for record in records]
    assert evaluate_run(tmp_path / "whole")["loss"] == whole.test_loss


def test_threads_leave_the_bits(tmp_path: Path) -> None:
    found = set()
    for threads in (1, 2):
        config = make_config(train={"epochs": 1, "threads": threads}, loss={"upper": 0.0})
        heard = Heard()
        found.add(train(config, out=tmp_path / str(threads), report=heard).weights_sha256)
        assert changes(heard.said) == ["dense products"]
    assert len(found) == 1


def test_always_keeps_lists(tmp_path: Path) -> None:
    heard = Heard()
    train(make_config(train={"lists": "always", "epochs": 1}), out=tmp_path / "run", report=heard)
    assert not changes(heard.said)
    assert read_metrics(tmp_path / "run")[0]["notes"] == []


def test_other_values_and_backends_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"train.lists.*is 'never'.*auto.*always"):
        make_config(train={"lists": "never"})
    with pytest.raises(ConfigError, match=r"train.lists.*is 'always' with backend 'dense'.*'cpu'"):
        make_config(train={"lists": "always", "backend": "dense"})
