"""Neuron models in a user's file: how a class is declared, refusals by name, and how it is found again."""

from __future__ import annotations

import ast
import copy
import json
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import sparsesnn as ss
from sparsesnn.errors import DescriptionError
from sparsesnn.layers import LI, LIF, MODELS, Neuron, catalog, fires, is_readout
from sparsesnn.layers import arrays as linear_step
from sparsesnn.layers.declaration import Parameter
from sparsesnn.layers.neuron import DEFINED


@dataclass(frozen=True)
class Raised(ss.Neuron):
    """A threshold that rises with every spike."""

    beta: ss.PerNeuron = ss.parameter(0.9, "decay of the potential", low=0, high=1)
    rho: ss.PerNeuron = ss.parameter(0.97, "decay of the adaptation", low=0, high=1)
    strength: float = 1.8
    states: ClassVar = ("x", "a")

    def arrays(self, p: Mapping[str, Any]) -> ss.NeuronArrays:
        k, b, r = self.strength, p["beta"], p["rho"]
        return ss.NeuronArrays(
            A=[[b, k * (b - r)], [0, r]], R=[[0, -k], [0, 0]], r=[-p["threshold"], 0], f=[-k * (1 - r), 1 - r], B=[1, 0]
        )


def test_a_model_of_ones_own_has_what_ours_have() -> None:
    population = Raised(8, learn_rho=True, rho=np.full(8, 0.8), capacity=4)
    assert population.learn_rho
    assert not population.learn_beta
    assert population.rho == (0.8,) * 8
    assert population.parameters == (Parameter("beta", 0, 1), Parameter("rho", 0, 1), Parameter("threshold"))
    assert fires(population)
    assert not is_readout(population)
    assert population.linear
    assert Raised.from_ms(3, tau=20, dt=1).beta == pytest.approx(np.exp(-1 / 20))
    assert replace(population, strength=1).strength == 1.0
    assert copy.deepcopy(population) == pickle.loads(pickle.dumps(population)) == population
    with pytest.raises(DescriptionError, match=r"Raised: rho is 1\.5; allowed: 0 to 1"):
        Raised(8, rho=1.5)
    with pytest.raises(DescriptionError, match=r"Raised: rho has 3 values; .*\(8\)"):
        Raised(8, rho=[0.1, 0.2, 0.3])
    with pytest.raises(DescriptionError, match=r"Raised: strength is 'much'; allowed: numbers"):
        Raised(8, strength="much")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="learn_strength"):
        Raised(8, learn_strength=True)


def test_it_runs_and_trains() -> None:
    network = ss.Network.chain(ss.Input(12), Raised(9, learn_rho=True, recurrent=True), ss.LI(3))
    assert network.populations["hidden"].learn_rho  # type: ignore[union-attr]
    model = ss.Model(network, backend="dense", dense_mode="step", seed=1)
    spikes = ss.SpikeBatch.from_dense((torch.rand(9, 4, 12, generator=torch.Generator().manual_seed(1)) < 0.4).float())
    output = model(spikes)
    assert output.potentials is not None
    output.potentials.sum().backward()
    assert float(model.layers["hidden"].rho.grad.abs()) > 0
    assert isinstance(model.layers["hidden"].beta, torch.Tensor)


def test_it_is_stored_by_name() -> None:
    network = ss.Network.chain(ss.Input(12), Raised(9, learn_rho=True, rho=[0.5] * 9), ss.LI(3))
    data = json.loads(network.to_json())
    assert data["populations"]["hidden"]["model"] == "Raised"
    assert data["populations"]["hidden"]["learn_rho"] is True
    assert ss.Network.from_json(network.to_json()) == network
    for name, value in (("learn_tau", True), ("tau", 0.5)):
        changed = json.loads(network.to_json())
        changed["populations"]["hidden"][name] = value
        with pytest.raises(DescriptionError, match=rf"'hidden' \(Raised\): unknown argument '{name}'"):
            ss.Network.from_dict(changed)
    data["populations"]["hidden"]["model"] = "BLIF"
    with pytest.raises(DescriptionError, match=r"'hidden': model is 'BLIF'; .*LIF, .*--neuron FILE\.py:BLIF"):
        ss.Network.from_dict(data)


def test_a_subclass_that_changes_defaults_is_the_model_it_extends() -> None:
    @dataclass(frozen=True)
    class Slow(Raised):
        rho: ss.PerNeuron = 0.99  # type: ignore[assignment]
        learn_rho: bool = True

    assert Slow(3).parameters == Raised(3).parameters
    network = ss.Network.chain(ss.Input(3), Slow(4), ss.LI(2))
    assert network.populations["hidden"] == Raised(4, rho=0.99, learn_rho=True)


def test_a_subclass_of_ours_with_arrays_is_a_model_of_its_own() -> None:
    @dataclass(frozen=True)
    class Doubled(ss.LIF):
        def arrays(self, p: Mapping[str, Any]) -> ss.NeuronArrays:
            return ss.NeuronArrays(A=[[p["beta"]]], r=[-p["threshold"]], B=[2.0])

    network = ss.Network.chain(ss.Input(3), Doubled(4), ss.LI(2))
    assert type(network.populations["hidden"]) is Doubled
    assert ss.Network.from_json(network.to_json()) == network


def test_the_name_of_one_of_ours_is_refused() -> None:
    mine = dataclass(frozen=True)(type("LIF", (Raised,), {"arrays": Raised.arrays, "__module__": __name__}))
    with pytest.raises(DescriptionError, match="'hidden' is of your own class LIF.*another name"):
        ss.Network.chain(ss.Input(3), mine(4), ss.LI(2))
    assert catalog.find_model("LIF") is ss.LIF


def test_the_newest_of_a_name_wins_and_base_classes_do_not_count() -> None:
    def define(strength: float) -> Any:
        own = {
            "strength": strength,
            "__annotations__": {"strength": float},
            "arrays": Raised.arrays,
            "__module__": __name__,
        }
        return dataclass(frozen=True)(type("Again", (Raised,), own))

    define(1.0)
    newest = define(2.0)
    assert catalog.find_model("Again") is newest
    assert "Membrane" not in DEFINED
    assert "Neuron" not in DEFINED
    assert all(catalog.find_model(name) is model for name, model in MODELS.items())


def test_models_of_installed_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint("Packaged", f"{__name__}:Raised", catalog.GROUP),
        EntryPoint("Broken", "sparsesnn.no_such_module:Raised", catalog.GROUP),
        EntryPoint("Wrong", "sparsesnn.layers:Input", catalog.GROUP),
    ]
    monkeypatch.setattr(catalog, "_entry_points", lambda: points)
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or type(sys)(__name__))
    monkeypatch.setattr(sys.modules[__name__], "Raised", Raised, raising=False)
    assert catalog.find_model("Packaged") is Raised
    with pytest.raises(
        DescriptionError, match=r"'Broken', the entry point sparsesnn\.no_such_module:Raised.*ModuleNotFound"
    ):
        catalog.find_model("Broken")
    with pytest.raises(DescriptionError, match=r"'Wrong'.*extends sparsesnn\.Neuron"):
        catalog.find_model("Wrong")


# ---- readouts ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slope(ss.Neuron):
    """A readout with a synaptic current."""

    beta: ss.PerNeuron = ss.parameter(0.9, "decay", low=0, high=1)
    fires: ClassVar = False
    states: ClassVar = ("v", "j")

    def arrays(self, p: Mapping[str, Any]) -> ss.NeuronArrays:
        return ss.NeuronArrays(A=[[p["beta"], 1], [0, 0.5]], B=[0, 1], sequential=True)


def test_a_readout_has_nothing_of_spikes() -> None:
    assert [f.name for f in fields(Slope)] == ["n", "bias", "beta", "learn_beta"]
    assert {f.name for f in fields(LI)} == {"n", "bias", "beta", "gain", "learn_beta"}
    assert Slope(3).parameters == (Parameter("beta", 0, 1),)
    assert is_readout(Slope(3))
    assert not hasattr(Slope(3), "threshold")
    with pytest.raises(AttributeError, match="Slope has no capacity: it never fires"):
        _ = Slope(3).capacity
    for name, value in (("threshold", 1.0), ("capacity", 3), ("surrogate", ss.atan()), ("recurrent", True)):
        with pytest.raises(TypeError, match=f"Slope: {name} is .*never fires"):
            Slope(3, **{name: value})
    network = ss.Network.chain(ss.Input(4), ss.LIF(5), Slope(3, learn_beta=True))
    output = ss.Model(network, backend="dense", dense_mode="hoist")(ss.SpikeBatch.from_dense(torch.ones(6, 2, 4)))
    assert output.potentials is not None
    with pytest.raises(DescriptionError, match="never fires"):
        ss.Network.chain(ss.Input(4), Slope(3), ss.LI(2))


def test_a_readout_that_declares_something_of_spikes_is_refused() -> None:
    own = {"fires": False, "__annotations__": {"fires": "ClassVar", "threshold": float}, "threshold": 1.0}
    with pytest.raises(DescriptionError, match="Odd: has threshold, but never fires"):
        type("Odd", (ss.Neuron,), {**own, "__module__": __name__})


def test_a_readout_without_a_reset() -> None:
    with pytest.raises(DescriptionError, match=r"Mine: r\[0\] is given, but Mine never fires"):
        model(lambda self, p: ss.NeuronArrays(A=[[p["beta"]]], r=[-1.0], B=[1]), fires=False)(3)


# ---- refusals ----------------------------------------------------------------------------------------------------------


def model(arrays: Callable[..., Any], **own: Any) -> Any:
    """A model with one parameter, `beta`."""
    body: dict[str, Any] = {"states": ("v",), "arrays": arrays, "__module__": __name__, **own}
    body |= {"beta": ss.parameter(0.9, "decay", low=0, high=1), "__annotations__": {"beta": ss.layers.PerNeuron}}
    return dataclass(frozen=True)(type("Mine", (ss.Neuron,), body))


def test_matching_arrays_are_accepted() -> None:
    assert model(lambda self, p: ss.NeuronArrays(A=[[p["beta"]]], B=[1]))(3).structure.entries == ("A00", "B0")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (lambda self, p: ss.NeuronArrays(B=[1]), r"A is missing; .*one entry per state \(v\)"),
        (lambda self, p: ss.NeuronArrays(A=[[p["beta"]]]), "B is missing"),
        (lambda self, p: ss.NeuronArrays(A=[[p["beta"], 0]], B=[1]), r"A\[0\] has 2 entries; .*: 1"),
        (lambda self, p: ss.NeuronArrays(A=[p["beta"]], B=[1]), r"A\[0\] is .*; give a list"),
        (lambda self, p: ss.NeuronArrays(A=[[p["beta"]]], B=[1, 0]), "B has 2 entries"),
        (lambda self, p: ss.NeuronArrays(A=[[p["beta"]]], R=[[0], [0]], B=[1]), "R has 2 entries"),
        (lambda self, p: ss.NeuronArrays(A=[[p["beta"]]], R=[["no"]], B=[1]), r"R\[0\]\[0\] is 'no'; allowed: None, a number"),
        (lambda self, p: ss.NeuronArrays(A=[[p["beta"]]], B=[True]), r"B\[0\] is True"),
        (lambda self, p: ss.NeuronArrays(A=[[float("nan")]], B=[1]), r"A\[0\]\[0\] is nan"),
        (lambda self, p: ss.NeuronArrays(A=[[np.ones((2, 5))]], B=[1]), r"A\[0\]\[0\] has the shape \[2, 5\]"),
        (lambda self, p: ss.NeuronArrays(A=[[np.ones(3) * 0.5]], B=[1]), r"A\[0\]\[0\] has the shape \[3\]; .*\[5\]"),
        (lambda self, p: ss.NeuronArrays(A=[[p["beta"]]], B=[1], sequential=1), "sequential is 1; allowed: True, False"),
        (lambda self, p: [[p["beta"]]], "arrays returned a list; allowed: NeuronArrays"),
        (lambda self, p: ss.NeuronArrays(A=[[p["bta"]]], B=[1]), r"arrays raised KeyError: 'bta' \(.*test_neurons.py, line \d+\)"),
        # neurons that know one another, or where they are
        (lambda self, p: ss.NeuronArrays(A=[[p["beta"].mean()]], B=[1]), r"A\[0\]\[0\] of a neuron depends on other neurons"),
        (lambda self, p: ss.NeuronArrays(A=[[p["beta"] / p["beta"].sum()]], B=[1]), r"A\[0\]\[0\] of a neuron depends on other"),
        (lambda self, p: ss.NeuronArrays(A=[[p["beta"] * np.arange(p["beta"].size)]], B=[1]), r"A\[0\]\[0\] .*number"),
        (lambda self, p: ss.NeuronArrays(A=[[p["beta"][::-1] if p["beta"].ndim else p["beta"]]], B=[1]), r"A\[0\]\[0\]"),
        # a structure that depends on values
        (
            lambda self, p: ss.NeuronArrays(A=[[p["beta"]]], c=[1.0 if np.mean(p["beta"]) > 0.9 else 0], B=[1]),
            r"the entry c\[0\] exists for some values of beta, threshold only",
        ),
    ],
)  # fmt: skip
def test_arrays_are_refused_by_class_and_entry(arrays: Callable[..., Any], message: str) -> None:
    with pytest.raises(DescriptionError, match=f"Mine: {message}"):
        model(arrays)(3)


def test_states_are_one_to_four_names() -> None:
    fine = lambda self, p: ss.NeuronArrays(A=[[p["beta"]]], B=[1])  # noqa: E731
    for states in ((), ("v", "v"), ("a", "b", "c", "d", "e"), ("i",)):
        with pytest.raises(DescriptionError, match="Mine: states is .*1 to 4"):
            model(fine, states=states)(3)


def test_an_attached_reset_reads_the_first_state_alone() -> None:
    with pytest.raises(
        DescriptionError, match=r"Raised: R\[0\]\[1\] .*'a'; with detach_reset=False it may read 'x' alone"
    ):
        Raised(3, detach_reset=False)


def test_the_form_before_arrays_is_refused_with_the_new_one() -> None:
    with pytest.raises(DescriptionError, match=r"(?s)Old: defines step, but no arrays.*def arrays\(self, p\)"):
        type("Old", (ss.Neuron,), {"step": lambda *_: (), "states": ("v",), "__module__": __name__})
    with pytest.raises(ImportError, match="Population is now Neuron"):
        from sparsesnn.layers import Population  # type: ignore[attr-defined]  # noqa: F401


def test_a_forgotten_decorator_is_refused() -> None:
    class Bare(Raised):
        tau: ss.PerNeuron = ss.parameter(0.9, "decay")

    with pytest.raises(DescriptionError, match=r"Bare: is not a dataclass; write @dataclass\(frozen=True\)"):
        Bare(3)


def test_a_parameter_with_the_name_of_an_argument_is_refused() -> None:
    own = {"threshold": ss.parameter(0.9, "θ"), "__annotations__": {"threshold": float}, "__module__": __name__}
    with pytest.raises(DescriptionError, match="Mine: the parameter threshold has the name of an argument of Neuron"):
        type("Mine", (ss.Neuron,), own)


def test_arguments_of_ours_have_names() -> None:
    with pytest.raises(TypeError, match="LIF: got 2 arguments without a name"):
        LIF(3, 0.9)


# ---- models that are not linear ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Quadratic(ss.Neuron):
    """A potential that grows faster the higher it is."""

    gain: float = 0.5
    states: ClassVar = ("v",)
    arrays: ClassVar = None

    def step(self, p: Any, states: Any, reset: Any, s: Any, i: Any) -> tuple[Any, ...]:
        v = states[0] * (1 - reset)
        return (0.8 * v + 0.1 * v * v + self.gain * i,)


def test_a_model_that_is_not_linear_runs_on_dense() -> None:
    population = Quadratic(5)
    assert not population.linear
    assert dict(population.reads) == {}
    with pytest.raises(DescriptionError, match="Quadratic: is not linear between spikes"):
        _ = population.structure
    network = ss.Network.chain(ss.Input(4), population, ss.LI(2))
    assert ss.Network.from_json(network.to_json()) == network
    model = ss.Model(network, backend="dense", dense_mode="step")
    output = model(ss.SpikeBatch.from_dense(torch.ones(6, 2, 4)))
    assert output.potentials is not None
    output.potentials.sum().backward()
    with pytest.raises(DescriptionError, match="Quadratic: .*'dense'"):
        ss.Model(network)(ss.SpikeBatch.from_dense(torch.ones(6, 2, 4)))
    with pytest.raises(DescriptionError, match="Idle: arrays is None; define step"):
        type("Idle", (ss.Neuron,), {"arrays": None, "states": ("v",), "__module__": __name__})


# ---- the module of arrays ----------------------------------------------------------------------------------------------


def test_arrays_need_no_pytorch() -> None:
    """Describing and planning need NumPy alone: nothing in these files imports torch at the top."""
    folder = Path(linear_step.__file__).parent
    for path in folder.glob("*.py"):
        top = [node for node in ast.parse(path.read_text()).body if isinstance(node, (ast.Import, ast.ImportFrom))]
        assert "torch" not in "\n".join(map(ast.unparse, top)), path


def test_derivatives_of_a_few_parameters() -> None:
    p = {"beta": torch.rand(3), "rho": torch.rand(3), "threshold": torch.ones(3)}
    found = linear_step.derivatives(Raised(3), p, ["rho"])
    assert list(found) == ["rho"]
    assert [name for name, _ in found["rho"].entries()] == ["A01", "A11", "f0", "f1"]
    assert linear_step.derivatives(Raised(3), p, []) == {}
    with torch.inference_mode():
        inside = linear_step.derivatives(Raised(3), {k: x.clone() for k, x in p.items()}, ["rho"])
    assert torch.equal(inside["rho"].A[0][1], found["rho"].A[0][1])
    assert isinstance(Raised(3), Neuron)
