"""Neuron models in a user's own file: the flag --neuron, [net] neuron, and runs whose network names such a class."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sparsesnn as ss
from sparsesnn.cli import main
from sparsesnn.config import Config, NetConfig
from sparsesnn.errors import CheckpointError, ConfigError, DescriptionError, UnknownModelError
from sparsesnn.layers import catalog
from sparsesnn.layers.neuron import DEFINED
from sparsesnn.layers.own_file import load_model
from sparsesnn.train import load_run

FILE = '''
from __future__ import annotations
from dataclasses import dataclass
from typing import ClassVar
import sparsesnn as ss

runs = []


@dataclass(frozen=True)
class Adaptive(ss.Neuron):
    """A threshold that rises with every spike."""

    beta: ss.PerNeuron = ss.parameter(0.9, "decay of the potential", low=0, high=1)
    rho: ss.PerNeuron = ss.parameter(0.97, "decay of the adaptation", low=0, high=1)
    strength: float = 1.8
    states: ClassVar = ("x", "a")

    def arrays(self, p):
        k, b, r = self.strength, p["beta"], p["rho"]
        return ss.NeuronArrays(
            A=[[b, k * (b - r)], [0, r]], R=[[0, -k], [0, 0]], r=[-p["threshold"], 0], f=[-k * (1 - r), 1 - r], B=[1, 0]
        )


class Other:
    pass
'''


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Path]:
    """A file with the class Adaptive, which this process does not know yet."""
    path = tmp_path / "adaptive.py"
    path.write_text(FILE)
    yield path
    DEFINED.pop("Adaptive", None)


def test_a_class_of_a_file_is_found_by_its_name(own: Path) -> None:
    with pytest.raises(UnknownModelError, match=r"'Adaptive'; .*--neuron FILE\.py:Adaptive"):
        catalog.find_model("Adaptive")
    model = load_model(f"{own}:Adaptive")
    assert catalog.find_model("Adaptive") is model
    assert load_model(f"{own}:Adaptive") is model, "the file is run once"
    assert model(3, learn_rho=True).learn_rho
    assert sys.modules[model.__module__].runs == []


def test_wrong_files_are_refused(own: Path) -> None:
    for place, message in (
        ("adaptive.py", r"give FILE\.py:CLASS"),
        (f"{own.parent}/none.py:Adaptive", "none.py is not a file"),
        (f"{own}:Missing", "adaptive.py has no class Missing"),
        (f"{own}:Other", r"Other is not a class that extends sparsesnn\.Neuron"),
        (f"{own}:dataclass", r"dataclass is not a class"),
    ):
        with pytest.raises(DescriptionError, match=message):
            load_model(place)
    broken = own.parent / "broken.py"
    for text, message in (
        ("x = 1\n\n1 / 0\n", r"ZeroDivisionError: .* \(line 3 of .*broken\.py\)"),
        ("x = (\n", r"SyntaxError: .* \(line 1 of .*broken\.py\)"),
    ):
        broken.write_text(text)
        with pytest.raises(DescriptionError, match=message):
            load_model(f"{broken}:Adaptive")


def test_hidden_populations_without_a_letter_are_of_the_class(own: Path) -> None:
    model = load_model(f"{own}:Adaptive")
    network = ss.parse_net("7-9-8c-5r-3", neuron="Adaptive", strength=0.5, grad_threshold=0.7)
    kinds = [type(p).__name__ for p in network.populations.values()]
    assert kinds == ["Input", "Adaptive", "CubaLIF", "Adaptive", "LI"]
    assert network.populations["hidden1"] == model(9, strength=0.5, grad_threshold=0.7)
    assert network.is_recurrent("hidden3")
    assert type(ss.parse_net("7-9-3s", neuron=model).populations["output"]) is ss.LIF
    with pytest.raises(DescriptionError, match="unknown argument 'stren'; did you mean 'strength'"):
        ss.parse_net("7-9-3", neuron=model, stren=0.5)
    with pytest.raises(UnknownModelError, match="net: neuron is 'Missing'"):
        ss.parse_net("7-9-3", neuron="Missing")
    for name in ("LI", "CubaLI", "Input"):
        with pytest.raises(
            DescriptionError, match=f"net.neuron is {name!r}, which cannot be a hidden population; allowed: LIF"
        ):
            ss.parse_net("5-6-2", neuron=name)
    with pytest.raises(DescriptionError, match="net.neuron is .*, which is not a class"):
        ss.parse_net("7-9-3", neuron=int)  # type: ignore[arg-type]


def test_the_section_net(own: Path) -> None:
    load_model(f"{own}:Adaptive")

    def network(**net: Any) -> ss.Network:
        return Config.resolve({"data": {"name": "digits"}, "net": net}).net.network(7, 3)

    given = {"text": "auto-9-auto", "neuron": "Adaptive"}
    hidden: Any = network(**given, neuron_options={"strength": 0.5, "learn_rho": True}).populations["hidden"]
    assert (hidden.strength, hidden.learn_rho, hidden.beta) == (0.5, True, 0.9)
    hidden = network(**given, beta=0.8, threshold=0.6).populations["hidden"]
    assert (hidden.beta, hidden.threshold) == (0.8, 0.6)
    with pytest.raises(ConfigError, match=r"net\.beta and net\.neuron_options\.beta: both are given"):
        network(**given, beta=0.8, neuron_options={"beta": 0.7})
    with pytest.raises(ConfigError, match=r"net: Adaptive: unknown argument 'streng'; did you mean 'strength'"):
        network(**given, neuron_options={"streng": 1.0})
    with pytest.raises(ConfigError, match=r"net: Adaptive: strength is 'x'"):
        network(**given, neuron_options={"strength": "x"})
    with pytest.raises(ConfigError, match=r"net\.neuron_options: is .*net\.neuron is empty"):
        network(text="auto-9-auto", neuron_options={"strength": 0.5})
    with pytest.raises(ConfigError, match=r"net\.neuron: is 'Missing'.*--neuron FILE\.py:Missing"):
        network(text="auto-9-auto", neuron="Missing")
    assert NetConfig().neuron == ""


@pytest.mark.slow
def test_a_run_names_the_class_and_never_the_file(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = own.parent / "run"
    flags = ["--neuron", f"{own}:Adaptive"]
    arguments = ["train", "digits", "--net", "auto-8-auto", "--net-neuron", "Adaptive", "--epochs", "1", "--quiet"]
    arguments += ["--backend", "dense", "--set", "train.dense_mode=hoist", "--set", "net.neuron_options.learn_rho=true"]
    assert main([*arguments, "--out", str(out), *flags]) == 0
    texts = [path.read_text() for path in out.iterdir() if path.suffix in (".json", ".toml", ".jsonl")]
    assert any("Adaptive" in text for text in texts)
    assert not any("adaptive.py" in text for text in texts)
    model = DEFINED.pop("Adaptive")
    assert main(["eval", str(out)]) == 1
    assert "--neuron FILE.py:Adaptive" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match="'Adaptive'.*neurons="):
        load_run(out)
    assert type(load_run(out, neurons=[model]).network.populations["hidden"]) is model
    with pytest.raises(DescriptionError, match="is not a class that extends"):
        load_run(out, neurons=[int])  # type: ignore[list-item]
    DEFINED.pop("Adaptive")
    assert main(["eval", str(out), *flags]) == 0
    assert main(["show", str(out), *flags]) == 0
    assert main(["train", "--resume", "--out", str(out), "--epochs", "2", "--quiet", *flags]) == 0
    assert main(["plan", "--net", "64-32-10", "--target", "cpu", "--net-neuron", "Adaptive", *flags]) == 0
    assert main(["eval", str(out), "--neuron", f"{own}:Missing"]) == 2
    assert "--neuron" in capsys.readouterr().err
