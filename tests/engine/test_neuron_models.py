"""The declarations of neuron models, and the engine's compiled shapes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from sparsesnn import _core, reference
from sparsesnn.engines.cpu import wiring as engine
from sparsesnn.engines.module import Layer, Model
from sparsesnn.errors import DescriptionError, ShapeError
from sparsesnn.layers import LI, LIF, AdLIF, CubaLI, CubaLIF, Input, Neuron, Resonator, shapes
from sparsesnn.layers.shapes import shape_of
from sparsesnn.layers.structure import Structure
from sparsesnn.network import Network
from sparsesnn.options import options_of
from sparsesnn.spikes import SpikeBatch
from sparsesnn.surrogate import KINDS, Surrogate

DESCRIBED = [
    LI(3),
    CubaLI(3, gain=0.7),
    *(model(3, reset=reset) for model in (LIF, CubaLIF) for reset in ("subtract", "zero", "none")),
    *(model(3, reset="subtract", reset_decays=True) for model in (LIF, CubaLIF)),
    *(AdLIF(3, order=o, reset=r, q=3.0, gain=15.0) for o in ("symplectic", "explicit") for r in ("zero", "subtract")),
    AdLIF(3, order="sparch", q=3.0, gain=15.0),
    Resonator(3),
]


def name_of(population: Neuron) -> str:
    """The name of a case: the model, and the options that choose its arrays."""
    options = [str(getattr(population, name, "")) for name in ("order", "reset_rule")]
    return "-".join([type(population).__name__, *filter(None, options)])


@pytest.mark.parametrize("population", DESCRIBED, ids=name_of)
def test_every_entry_has_a_place_in_the_shape(population: Neuron) -> None:
    shape, arrays = shape_of(population), population.structure
    for name in set(arrays.entries) - set(arrays.ones):
        assert name in shape.entries or (name[0] == "r" and f"u{name[1:]}" in shape.entries), name


def test_the_shapes_are_those_of_the_engine() -> None:
    """They are declared twice, because a plan needs no compiled engine."""
    assert {shape.name: shape.entries for shape in shapes.SHAPES} == _core.neuron_shapes()
    assert [shape.name for shape in shapes.SHAPES] == list(_core.neuron_shapes())


@pytest.mark.parametrize(
    ("n_states", "fires", "in_order", "entries", "ones", "name"),
    [
        (1, True, False, ("A00", "r0", "B0"), (), "subtract"),
        (1, True, False, ("A00", "R00", "B0"), ("B0",), "zero"),
        (1, True, False, ("A00", "R00", "B0", "c0"), (), "any 1"),
        (1, False, False, ("A00", "B0"), (), "readout"),
        (1, False, False, ("A00", "B0", "c0"), (), "any 1"),
        (2, True, True, ("A00", "A01", "A11", "r0", "B1"), ("B1",), "current.subtract"),
        (2, True, True, ("A00", "A01", "A11", "r0", "B1"), (), "any 2"),
        (2, True, False, ("A00", "A01", "A11", "r0", "B1"), ("B1",), "any 2"),
        (3, False, True, ("A00", "B2"), (), "any 3"),
    ],
)
def test_a_model_takes_the_smallest_shape(
    n_states: int, fires: bool, in_order: bool, entries: tuple[str, ...], ones: tuple[str, ...], name: str
) -> None:
    """The same cases as in tests/cpp/test_neuron.cpp, for the PopART op chooses in C++."""
    shape = shapes.find_shape(Structure(n_states, fires, in_order, entries, ones, ()))
    assert (shape.name, shape.fires, shape.in_order) == (name, fires, in_order)


def test_models_of_ours_have_shapes_of_their_own() -> None:
    """The shapes with every entry are for other models; a CubaLI, a few neurons at the end of a network, takes one."""
    own = [p for p in DESCRIBED if getattr(p, "order", "") != "explicit" and not isinstance(p, CubaLI)]
    used = {name_of(p): shape_of(p).name for p in own}
    assert not [name for name, shape in used.items() if shape.startswith("any")], used


@pytest.mark.parametrize("population", DESCRIBED, ids=name_of)
def test_what_an_option_trains_is_a_parameter(population: Neuron) -> None:
    """A model without β removes the inherited `beta` and `learn_beta`, which would be ignored."""
    trains = {name.removeprefix("learn_") for name in options_of(type(population)) if name.startswith("learn_")}
    assert trains == {p.name for p in population.parameters}


def test_every_surrogate_is_built_in() -> None:
    """In this order: engines pass a surrogate's place."""
    assert tuple(_core.surrogates()) == KINDS


def spec(**change: Any) -> _core.LayerSpec:
    arguments = engine.spec_arguments(Layer(CubaLIF(17), n_pre=5), save=True, learnt=())
    return _core.LayerSpec(**{**arguments, **change})


def test_unknown_names() -> None:
    with pytest.raises(DescriptionError, match=r"shape is 'half'; allowed: readout, .*, any 4"):
        spec(shape="half")
    with pytest.raises(DescriptionError, match=r"surrogate is 'step'; allowed: fast_sigmoid, .*, boxcar"):
        spec(surrogate="step")
    with pytest.raises(ShapeError, match=r"fires is true; the shape 'readout' allows the opposite"):
        spec(shape="readout")
    with pytest.raises(ShapeError, match=r"n_trained is 17; allowed: 0 to 16"):
        spec(n_trained=17)


def test_wrong_numbers_of_entries_derivatives_and_states() -> None:
    n = np.ones(17, np.float32)
    lists = _core.Lists(np.zeros(2, np.int64), np.empty(0, np.uint16), np.zeros(1, np.int32))
    source = _core.Source(5, 0, np.zeros((5, 17), np.float32))

    def call(state: list[Any] | None, states: tuple[str, ...] = ("v", "i_syn"), **change: Any) -> None:
        arrays = {"entries": [n] * 5, "derivatives": [], **change}
        layer = _core.LayerCall(spec(), states=states, sources=[source], grad_threshold=n, **arrays)
        chain = _core.Chain([False])
        chain.add_layer("", layer, [0], [False], [], [], False)
        chain.forward([lists], 1, 1, [(0, 0, state, None, None, None, False)])

    with pytest.raises(ShapeError, match=r"2 entries are given; the shape 'current.subtract' has 5"):
        call(None, entries=[n, n])
    with pytest.raises(ShapeError, match=r"2 derivatives are given; the shape 'current.subtract' has 5"):
        call(None, derivatives=[[n, n]])
    with pytest.raises(ShapeError, match=r"got derivatives by 1 parameters; 0 are trained"):
        call(None, derivatives=[[None] * 5])
    with pytest.raises(ShapeError, match=r"states has 1 names; allowed: 2"):
        call(None, states=("v",))
    with pytest.raises(ShapeError, match=r"1 states are given; .* has 2"):
        call([n[None]])
    with pytest.raises(ShapeError, match=r"state i_syn has shape \[2, 17\]; give \[1, 17\]"):
        call([n[None], np.ones((2, 17), np.float32)])
    call([n[None], n[None]])


# ---- every model on every path -----------------------------------------------------------------------------------------


def network_of(population: Neuron, detach: bool) -> Network:
    """Two populations of the model, the first one recurrent; all parameters learn, and all neurons are listed."""
    known = options_of(type(population))

    def learning(n: int, **more: Any) -> Any:
        """One number per neuron: a sum over neurons may cancel out."""
        for p in population.parameters:
            more |= {p.name: (getattr(population, p.name),) * n, f"learn_{p.name}": True}
        return replace(population, n=n, **more)

    if not population.fires:
        return Network.chain(Input(19), LIF(21, grad_threshold=-math.inf), learning(5, bias=True))
    more: dict[str, Any] = {"grad_threshold": -math.inf} if "grad_threshold" in known else {}
    more |= {"detach_reset": detach, "surrogate": Surrogate("fast_sigmoid", 3.0)}
    return Network.chain(
        Input(19), learning(37, recurrent=True, bias=True, **more), learning(21, **more), LI(5), delay=int(detach)
    )


def gradients_of(network: Network, spikes: SpikeBatch, **options: Any) -> tuple[Model, dict[str, torch.Tensor]]:
    """Spikes, and every gradient of a loss that spikes and potentials enter."""
    model = Model(network, seed=1, **options)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "->" in name:
                parameter.mul_(2).add_(0.02)
    output, found = model(spikes), {}
    assert output.potentials is not None
    generator = torch.Generator().manual_seed(1)
    loss = (output.potentials * torch.randn(output.potentials.shape, generator=generator)).sum()
    for name, lists in output.spikes.items():
        dense = lists.to_dense() if isinstance(lists, SpikeBatch) else lists
        loss = loss + (dense * torch.randn(dense.shape, generator=generator)).sum()
        found[name] = dense.detach()
    loss.backward()
    return model, {**found, **{name: p.grad for name, p in model.named_parameters() if p.grad is not None}}


@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize("population", DESCRIBED, ids=name_of)
def test_gradients_of_every_path_are_those_of_autograd(population: Neuron, detach: bool) -> None:
    network = network_of(population, detach)
    generator = torch.Generator().manual_seed(2)
    spikes = SpikeBatch.from_dense((torch.rand(13, 3, 19, generator=generator) < 0.3).float())
    _, want = gradients_of(network, spikes, backend="dense", dense_mode="hoist")
    rates = [float(x.mean()) for name, x in want.items() if name in network.populations]
    assert 0.01 < min(rates) <= max(rates) < 0.9, rates
    for options in ({"backend": "cpu"}, *({"backend": "dense", "dense_mode": mode} for mode in ("step", "fused"))):
        _, found = gradients_of(network, spikes, **options)
        assert found.keys() == want.keys()
        for name, x in want.items():
            assert float((found[name] - x).norm()) <= 1e-5 * float(x.norm()), (options, name)


@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize("population", DESCRIBED, ids=name_of)
def test_gradients_are_those_of_the_reference(population: Neuron, detach: bool) -> None:
    network = network_of(population, detach)
    generator = torch.Generator().manual_seed(2)
    spikes = SpikeBatch.from_dense((torch.rand(13, 3, 19, generator=generator) < 0.3).float())
    model, found = gradients_of(network, spikes)
    parameters = {name: reference.Parameters.from_layer(layer) for name, layer in model.layers.items()}
    records = reference.network_forward(network, parameters, spikes.to_dense().double().numpy())
    generator = torch.Generator().manual_seed(1)
    names = [network.output, *(name for name in network.populations if name in found)]
    shapes = {name: (13, 3, network.populations[name].n) for name in names}
    d_out = {name: torch.randn(shapes[name], generator=generator).double().numpy() for name in names}
    gradients = reference.network_backward(network, parameters, records, d_out)
    for name, layer in model.layers.items():
        assert isinstance(layer, Layer)
        want: dict[str, Any] = {**gradients[name].neuron, "bias": gradients[name].bias}
        want |= dict(zip((c.name for c in layer.senders), gradients[name].weights, strict=True))
        want |= dict(zip((c.name for c in layer.loops), gradients[name].loops, strict=True))
        for key, parameter in layer.named_parameters():
            assert parameter.grad is not None
            error = float(np.linalg.norm(parameter.grad.numpy() - want[key]))
            assert error <= 1e-5 * float(np.linalg.norm(want[key])), (name, key)
