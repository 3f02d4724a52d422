"""A run becomes a folder to share, with the weights that it evaluates."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import sparsesnn as ss
from sparsesnn.cli import main
from sparsesnn.config.tables import read_toml
from sparsesnn.train import Config, evaluate_run, load_run, train


@dataclass(frozen=True)
class Slow(ss.Neuron):
    """Not a model of the package."""

    beta: ss.PerNeuron = ss.parameter(0.9, "decay", low=0, high=1)
    states: ClassVar = ("x",)

    def arrays(self, p: Any) -> ss.NeuronArrays:
        return ss.NeuronArrays(A=[[p["beta"]]], r=[-p["threshold"]], B=[1])


def trained(out: Path, **sections: dict[str, Any]) -> Any:
    small = {
        "data": {"name": "synthetic", "n_neurons": 17, "n_classes": 3, "n_steps": 11, "n_samples": 70, "activity": 0.2,
                 "valid": "random:0.15"},
        "net": {"text": "auto-9r-auto"},
        "init": {"activity": 0.1, "tolerance": 0.5},
        "optim": {"lr": 0.02},
        "train": {"epochs": 3, "batch": 8, "tensorboard": False, "plots": False},
    }  # fmt: skip
    return train(Config.resolve(small, sections), out=out)


@pytest.mark.parametrize(
    "sections",
    [
        {"optim": {"lr": 0.02, "ema": 0.8}, "dropout": {"spikes": 0.3}, "data": {"cache_dir": "CACHE"}},
        {"net": {"text": "auto-9r-auto", "capacity": 2}, "train": {"seed": 4}},
        {"net": {"text": "auto-9-auto", "neuron": "Slow", "learn_beta": True}},
    ],
    ids=["average", "capacity", "own neuron"],
)
@pytest.mark.parametrize("weights", ["best", "last"])
def test_the_saved_model_is_the_one_that_is_evaluated(
    sections: dict[str, dict[str, Any]], weights: str, tmp_path: Path
) -> None:
    sections = json.loads(json.dumps(sections).replace("CACHE", str(tmp_path / "private")))
    result = trained(tmp_path / "run", **sections)
    run = load_run(tmp_path / "run", weights=weights, neurons=[Slow])
    run.save(tmp_path / "model")
    model = ss.Model.load(tmp_path / "model", neurons=[Slow]).eval()
    spikes = ss.SpikeBatch.from_dense((torch.rand(11, 6, 17) < 0.3).float())
    expected = run.model.eval()(spikes)
    found = model(spikes)
    assert torch.equal(found.potentials, expected.potentials)
    assert (found.activity(), found.dropped()) == (expected.activity(), expected.dropped())
    text = (tmp_path / "model" / "README.md").read_text()
    accuracy = evaluate_run(tmp_path / "run", weights=weights)["accuracy"]
    assert f"| accuracy | {accuracy:.6g} |" in text
    assert f"the weights after epoch {run.epoch}" in text
    assert str(tmp_path) not in text
    config = read_toml(text.split("```toml\n")[1].split("```")[0], "the card")
    assert config["train"]["epochs"] == 3
    assert Config.resolve(config).net == run.config.net
    if weights == "best":
        assert (
            f"| hidden | {'Slow' if 'neuron' in sections.get('net', {}) else 'LIF'} | 9 | {result.activity['hidden']:.4f} |"
            in text
        )


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(tmp_path / "run")
    words = ["save", str(tmp_path / "run"), str(tmp_path / "model")]
    assert main(words) == 0
    assert "261 weights after epoch" in capsys.readouterr().out
    assert ss.Model.load(tmp_path / "model").network.n_weights() == 17 * 9 + 81 + 27
    assert main(words) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main([*words, "--overwrite", "--weights", "last"]) == 0
    assert "after epoch 3" in capsys.readouterr().out
    assert main(["save", str(tmp_path / "nothing"), str(tmp_path / "other")]) == 1
    assert not (tmp_path / "other").exists()


def test_a_run_that_is_not_finished_has_no_score(tmp_path: Path) -> None:
    trained(tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    load_run(tmp_path / "run").save(tmp_path / "model", card=None)
    text = (tmp_path / "model" / "README.md").read_text()
    assert "accuracy |" not in text
    assert "model-index" not in text
    load_run(tmp_path / "run").save(tmp_path / "other", card=ss.ModelCard(name="Mine"))
    assert "# Mine" in (tmp_path / "other" / "README.md").read_text()
