"""Subclasses of the parts of a description: engines read none of their methods, so they are refused by name."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import sparsesnn as ss
from sparsesnn.errors import DescriptionError
from sparsesnn.layers import MODELS, Neuron
from sparsesnn.parameters import Incoming
from sparsesnn.synapses import Conv2d, Dense, Pool, Series, Sparse, Synapses

CHANGES = {
    "step": lambda *_: (torch.zeros(()),),
    "pull": lambda *_: None,
    "kernel": property(lambda _: "lif.zero"),
    "constants": (2.0,),
    "__getattribute__": object.__getattribute__,
    "helper": lambda _: 3,
}


def subclass(base: type, **own: Any) -> type:
    return type(f"My{base.__name__}", (base,), own)


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("base", MODELS.values())
def test_a_neuron_model_with_methods_of_its_own_is_refused_by_name(base: Any, name: str) -> None:
    mine = subclass(base, **{name: CHANGES[name]})
    chain = (mine(3), ss.LI(2)) if base is ss.Input else (ss.Input(3), mine(4))
    for make in (lambda: ss.Network.chain(*chain), lambda: ss.Layer(mine(4), 3)):
        with pytest.raises(DescriptionError, match=f"My{base.__name__}.*{base.__name__} with its own {name}"):
            make()


def test_a_new_parameter_is_refused_by_name() -> None:
    @dataclass(frozen=True)
    class Slow(ss.LIF):
        tau: float = 20.0

    with pytest.raises(DescriptionError, match=r"population 'hidden'.*Slow.*LIF with its own tau"):
        ss.Network.chain(ss.Input(3), Slow(4), ss.LI(2))


def test_a_default_that_a_class_does_not_give_its_instances_is_refused() -> None:
    """Without `@dataclass` the instances have the beta of LIF, 0.95."""
    with pytest.raises(DescriptionError, match="LIF with its own beta"):
        ss.Network.chain(ss.Input(3), subclass(ss.LIF, beta=0.5)(4), ss.LI(2))


def test_a_model_without_arrays_is_refused_with_the_form_of_one() -> None:
    mine = subclass(Neuron, kernel=property(lambda _: "lif.subtract"))
    with pytest.raises(DescriptionError, match=r"(?s)MyNeuron.*without arrays.*def arrays"):
        mine(4)


@dataclass(frozen=True)
class Fast(ss.LIF):
    """Other defaults, and a check."""

    beta: float = 0.5
    recurrent: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gain > 2:
            raise ValueError("gain")


def test_a_subclass_that_changes_defaults_alone_is_what_it_extends() -> None:
    network = ss.Network.chain(ss.Input(12), Fast(7), ss.LI(3))
    wanted = ss.Network.chain(ss.Input(12), ss.LIF(7, beta=0.5, recurrent=True), ss.LI(3))
    assert network.populations["hidden"] == wanted.populations["hidden"]
    assert [c.name for c in network.connections] == [c.name for c in wanted.connections]
    assert ss.Network.from_json(network.to_json()) == network
    assert copy.deepcopy(network) == network
    assert type(ss.Layer(Fast(7), 12).population) is ss.LIF
    spikes = ss.SpikeBatch.from_dense((torch.rand(9, 4, 12) < 0.4).float())
    for backend in ("cpu", "dense"):
        a, b = (ss.Model(n, backend=backend)(spikes) for n in (network, wanted))
        assert torch.equal(a.potentials, b.potentials)
    with pytest.raises(ValueError, match="gain"):
        Fast(7, gain=3.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda own: ss.Connection("a", "b", synapses=subclass(Dense, product=own)()),
        lambda own: ss.Connection("a", "b", synapses=subclass(Sparse, columns=own)()),
        lambda own: ss.Connection("a", "b", synapses=subclass(Conv2d, fan_in=own)(3, 2)),
        lambda own: ss.Connection("a", "b", synapses=subclass(Pool, add=own)("sum", 2)),
        lambda own: ss.Connection("a", "b", synapses=subclass(Series, product=own)((Pool("sum", 2), Dense()))),
        lambda own: Series((subclass(Pool, product=own)("sum", 2), Dense())),
        lambda own: ss.Connection("a", "b", axonal=subclass(ss.Delays, first=own)(3)),
        lambda own: ss.LIF(3, surrogate=subclass(ss.Surrogate, derivative=own)()),
        lambda own: ss.Layer(ss.LI(2), [Incoming("a->b", 3, synapses=subclass(Dense, product=own)())]),
        lambda own: ss.Network({"a": ss.Input(3), "b": ss.LI(2)}, (subclass(ss.Connection, named=own)("a", "b"),)),
        lambda own: ss.Connection("a", "b", synapses=subclass(Synapses, product=own)()),
    ],
)
def test_other_parts_with_methods_of_their_own_are_refused_by_name(make: Any) -> None:
    with pytest.raises(DescriptionError, match=r"My\w+.* with its own \w+"):
        make(lambda *_: None)


def test_other_parts_with_other_defaults_are_what_they_extend() -> None:
    mine = subclass(Dense)
    connection = ss.Connection("a", "b", synapses=mine(), axonal=subclass(ss.Delays)(3))
    assert connection == ss.Connection("a", "b", axonal=ss.Delays(3))
    assert "MyDense" not in Synapses.kinds
    assert ss.LIF(3, surrogate=subclass(ss.Surrogate)()) == ss.LIF(3)
    network = ss.Network({"a": ss.Input(3), "b": ss.LI(2)}, (subclass(ss.Connection)("a", "b", 2),))
    assert network.connections == (ss.Connection("a", "b", 2),)


def test_a_kind_of_synapses_cannot_take_the_name_of_another() -> None:
    with pytest.raises(DescriptionError, match="Dense.*another name"):
        type("Dense", (Synapses,), {})
    assert Synapses.kinds["Dense"] is Dense
