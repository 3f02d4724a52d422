from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsesnn.errors import DescriptionError
from sparsesnn.layers import LI, LIF, MODELS, CubaLIF, Input, Neuron, decays
from sparsesnn.network import Connection, Network, parse_net
from sparsesnn.surrogate import KINDS, Surrogate, fast_sigmoid


def branched() -> Network:
    return Network(
        {"input": Input(7), "a": LIF(9, recurrent=True), "b": CubaLIF(5), "out": LI(3)},
        (Connection("input", "a", 2), Connection("a", "b"), Connection("input", "b", 1), Connection("b", "out")),
    )


# ---- populations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Input(0), "Input: n is 0; give a whole number of neurons"),
        (lambda: LIF(2.0), "LIF: n is 2.0"),
        (lambda: LI(True), "LI: n is True"),
        (lambda: LIF(3, beta=1.1), r"LIF: beta is 1\.1; allowed: 0 to 1"),
        (lambda: LIF(3, beta=math.nan), "LIF: beta is nan"),
        (lambda: LIF(3, beta="slow"), "LIF: beta is 'slow'; allowed: 0 to 1"),
        (lambda: LIF(3, beta=(0.1, 0.2)), r"LIF: beta has 2 values; give one number, or one per neuron \(3\)"),
        (lambda: CubaLIF(3, alpha=-0.1), r"CubaLIF: alpha is -0\.1; allowed: 0 to 1"),
        (lambda: LIF(3, threshold=0.0), "LIF: threshold is 0"),
        (lambda: LIF(3, grad_threshold=math.inf), "LIF: grad_threshold is inf"),
        (lambda: LIF(3, reset="soft"), "LIF: reset is 'soft'; allowed: subtract, zero, none"),
        (lambda: LIF(3, activity="forced"), "LIF: activity is 'forced'; allowed: natural, fixed"),
        (lambda: LIF(3, gain=math.inf), "LIF: gain is inf; allowed: finite numbers"),
        (
            lambda: LIF(3, surrogate="atan"),
            "LIF: surrogate is 'atan'; allowed: a Surrogate .*, such as Surrogate\\(kind='fast_sigmoid'",
        ),
        (lambda: LIF(3, reset="zero", reset_decays=True), "reset_decays works only with reset='subtract'"),
        (lambda: LIF(3, capacity=4), "LIF: capacity is 4; allowed: 1 to 3"),
        (lambda: LIF(3, capacity=0), "LIF: capacity is 0"),
        (lambda: LIF(3, activity="fixed"), "activity='fixed' fills lists to a capacity; set capacity"),
        (lambda: LI(3, gain=math.nan), "LI: gain is nan"),
    ],
)
def test_populations_that_have_no_meaning(make: Any, message: str) -> None:
    with pytest.raises(DescriptionError, match=message):
        make()


@pytest.mark.parametrize(
    "number",
    [np.float32(0.9), np.float64(0.9), np.array(0.9), torch.tensor(0.9), torch.tensor([0.9]), np.array([0.9]), [0.9]],
    ids=repr,
)
def test_numbers_of_numpy_and_torch(number: Any) -> None:
    for population in (LIF(3, beta=number), CubaLIF(3, alpha=number, beta=number), LI(3, beta=number)):
        assert type(population.beta) is float
        assert population.beta == pytest.approx(0.9, rel=1e-7)
    assert (
        LIF(np.int64(3), gain=np.float32(0.9), threshold=number, grad_threshold=-np.inf, bias=np.bool_(True)).bias
        is True
    )
    if np.ndim(number) == 0:
        assert parse_net("5-4-3", beta=number).populations["output"].beta == pytest.approx(0.9, rel=1e-7)
    network = Network.chain(Input(np.int32(5)), LIF(torch.tensor(4), capacity=np.uint8(2)), delay=np.int64(1))
    assert Network.from_json(network.to_json()) == network
    assert fast_sigmoid(np.float32(0.9)).slope == pytest.approx(0.9, rel=1e-7)


@pytest.mark.parametrize("make", [torch.tensor, np.array, tuple, lambda x: [torch.tensor(v) for v in x]])
def test_arrays_of_a_number_per_neuron(make: Any) -> None:
    population = LIF(3, beta=make([0.25, 0.5, 0.75]), grad_threshold=make([-math.inf, 0.5, 1.0]))
    assert population.beta == (0.25, 0.5, 0.75)
    assert population.grad_threshold == (-math.inf, 0.5, 1.0)
    assert hash(population) == hash(LIF(3, beta=(0.25, 0.5, 0.75), grad_threshold=(-math.inf, 0.5, 1.0)))


@pytest.mark.parametrize(
    ("beta", "message"),
    [
        (torch.tensor([0.9, 0.8]), r"beta has 2 values; give one number, or one per neuron \(3\)"),
        (np.full((3, 1), 0.9), r"beta is \[0\.9\]; allowed: 0 to 1, or a list of them"),
        (torch.tensor(1.5), r"beta is 1\.5; allowed: 0 to 1"),
        (np.array([0.9, np.nan, 0.9]), "beta is nan; allowed: 0 to 1"),
        (torch.tensor(True), r"beta is True; allowed: 0 to 1"),
        (torch.tensor(0.9, requires_grad=True), "beta is a tensor that requires a gradient.*learn_"),
    ],
)
def test_arrays_that_have_no_meaning(beta: Any, message: str) -> None:
    with pytest.raises(DescriptionError, match=f"LIF: {message}"):
        LIF(3, beta=beta)


def test_populations_are_values() -> None:
    assert LIF(3, beta=[0.1, 0.2, 0.3]) == LIF(3, beta=(0.1, 0.2, 0.3))
    assert hash(LIF(3)) == hash(LIF(3))
    assert LIF(3) != CubaLIF(3)
    with pytest.raises(AttributeError):
        LIF(3).n = 4  # type: ignore[misc]


# ---- networks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("populations", "connections", "message"),
    [
        ({"a": LIF(3)}, [], r"no Input population; put Input\(n\) before 'a'"),
        ({}, [], "no Input population"),
        ({"i": Input(3), "out": LI(3)}, [("i", "outt")], "i->outt: unknown population 'outt'; did you mean 'out'"),
        ({"1st": Input(3)}, [], "population name '1st'"),
        ({"a-b": Input(3)}, [], "population name 'a-b'"),
        (
            {"i": Input(3), "a": "LIF"},
            [],
            f"population 'a' is 'LIF'; allowed: {', '.join(MODELS)}",
        ),
        ({"i": Input(3)}, [("i", "x")], "connection i->x: unknown population 'x'; allowed: i"),
        ({"i": Input(3), "j": Input(3)}, [("i", "j")], "i->j: an Input receives nothing"),
        (
            {"i": Input(3), "o": LI(3), "p": LI(3)},
            [("i", "o"), ("o", "p")],
            "o->p: 'o' is an LI readout, which never fires; put it last",
        ),
        ({"i": Input(3), "o": LI(3)}, [("i", "o"), ("o", "o")], "o->o: 'o' is an LI readout.*; remove this connection"),
        ({"i": Input(3), "a": LIF(3)}, [("a", "a")], "'a' has no incoming connection"),
        ({"i": Input(3), "a": LIF(3), "b": LIF(3)}, [("i", "a"), ("i", "b"), ("b", "a")], "b->a points backwards"),
        ({"i": Input(3), "a": LIF(3)}, [("i", "a"), ("i", "a")], "connection i->a: exists twice.*different delays"),
    ],
)
def test_networks_that_have_no_meaning(populations: Any, connections: Any, message: str) -> None:
    with pytest.raises(DescriptionError, match=message):
        Network(populations, tuple(Connection(*c) for c in connections))


@pytest.mark.parametrize("delay", [-1, 1.0, True, "1", 2**20 + 1, 2**31, 2**64])
def test_delays_that_have_no_meaning(delay: Any) -> None:
    with pytest.raises(DescriptionError, match=r"connection a->b: delay is .*; allowed: .* from 0 to 1,048,576"):
        Connection("a", "b", delay)


def test_looking_at_a_network() -> None:
    network = branched()
    assert network.inputs == ("input",)
    assert network.output == "out"
    assert [c.pre for c in network.incoming("b")] == ["a", "input"], "in the order of their description"
    assert {name: network.history(name) for name in network.populations} == {"input": 2, "a": 1, "b": 0, "out": 0}
    assert network.n_weights() == 7 * 9 + 9 * 9 + 9 * 5 + 7 * 5 + 5 * 3
    with pytest.raises(TypeError):
        network.populations["a"] = LIF(3)  # type: ignore[index]


def test_chain() -> None:
    one = Network.chain(Input(3), LIF(4), LI(2), delay=1)
    assert list(one.populations) == ["input", "hidden", "output"]
    assert one.connections == (Connection("input", "hidden", 1), Connection("hidden", "output", 1))
    assert list(Network.chain(Input(3), LIF(4), LIF(4), LI(2)).populations) == ["input", "hidden1", "hidden2", "output"]
    assert list(Network.chain(Input(3), LI(2)).populations) == ["input", "output"]
    with pytest.raises(DescriptionError, match="a chain begins with LIF; put an Input before it"):
        Network.chain(LIF(3), LI(2))
    with pytest.raises(DescriptionError, match="a chain needs an Input and at least one more"):
        Network.chain(Input(3))


def test_with_population() -> None:
    network = branched().with_population("a", beta=0.5, capacity=3)
    assert network.populations["a"] == LIF(9, beta=0.5, capacity=3)
    assert network.is_recurrent("a")
    assert network.populations["b"] == CubaLIF(5)
    assert network.connections == branched().connections
    assert not network.with_population("a", recurrent=False).is_recurrent("a")
    with pytest.raises(DescriptionError, match="unknown population 'c'; allowed: "):
        branched().with_population("c", beta=0.5)
    with pytest.raises(DescriptionError, match="a: unknown argument 'alpha'; .*allowed: n, .*beta"):
        branched().with_population("a", alpha=0.5)


# ---- JSON ----------------------------------------------------------------------------------------------------------

decay = st.floats(0, 1)


@st.composite
def populations(draw: st.DrawFn) -> Neuron:
    n = draw(st.integers(1, 4))
    model = draw(st.sampled_from([LIF, CubaLIF]))
    reset = draw(st.sampled_from(["subtract", "zero", "none"]))
    capacity = draw(st.none() | st.integers(1, n))
    arguments: dict[str, Any] = {
        "beta": draw(decay | st.tuples(*[decay] * n)),
        "threshold": draw(st.floats(0.01, 1e6)),
        "grad_threshold": draw(st.just(-math.inf) | st.floats(-5, 5) | st.tuples(*[st.floats(-5, 5)] * n)),
        "reset": reset,
        "reset_decays": draw(st.booleans()) and reset == "subtract",
        "detach_reset": draw(st.booleans()),
        "surrogate": Surrogate(draw(st.sampled_from(KINDS)), draw(st.floats(0.1, 100))),
        "recurrent": draw(st.booleans()),
        "bias": draw(st.booleans()),
        "gain": draw(st.floats(-10, 10)),
        "capacity": capacity,
        "activity": "natural" if capacity is None else draw(st.sampled_from(["natural", "fixed"])),
        "learn_beta": draw(st.booleans()),
        "learn_threshold": draw(st.booleans()),
    }
    if model is CubaLIF:
        arguments |= {"alpha": draw(decay), "learn_alpha": draw(st.booleans())}
    return model(n, **arguments)


@settings(max_examples=100, deadline=None)
@given(st.lists(populations(), max_size=3), st.integers(0, 3))
def test_json_round_trip(hidden: list[Neuron], delay: int) -> None:
    network = Network.chain(Input(3), *hidden, LI(2, beta=(0.25, 0.5), bias=True, learn_beta=True), delay=delay)
    assert Network.from_json(network.to_json()) == network
    assert Network.from_json(network.to_json(indent=None)) == network
    assert Network.from_dict(json.loads(json.dumps(network.to_dict()))) == network


def test_json_defaults_and_infinity() -> None:
    text = """{"populations": {"i": {"model": "Input", "n": 3},
                               "h": {"model": "LIF", "n": 4, "grad_threshold": "-inf"}},
               "connections": [{"pre": "i", "post": "h"}]}"""
    assert Network.from_json(text).populations["h"] == LIF(4, grad_threshold=-math.inf)
    assert '"-inf"' in Network.from_json(text).to_json()


def changed(path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    data = branched().to_dict()
    here: Any = data
    for key in path[:-1]:
        here = here[key]
    here[path[-1]] = value
    return data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"populations": {}}, r"keys are \['populations'\]; give 'populations' and 'connections'"),
        (changed(("version",), 1), "keys are .*'version'"),
        (
            changed(("populations", "a", "model"), "Lif"),
            "population 'a': model is 'Lif'; allowed: LIF, CubaLIF, Resonator, AdLIF; as a readout LI, CubaLI; Input",
        ),
        (changed(("populations",), []), r"network: 'populations' is \[\]; give an object"),
        (changed(("connections",), 3), "network: 'connections' is 3; give a list"),
        (changed(("populations", "a"), 3), "population 'a' is 3; give an object with 'model'"),
        (changed(("populations", "a", "model"), []), r"population 'a': model is \[\]; allowed: Input"),
        (changed(("populations", "a", "recurrent"), "no"), "LIF: recurrent is 'no'; allowed: true or false"),
        (changed(("populations", "b", "learn_alpha"), 1), "CubaLIF: learn_alpha is 1; allowed: true or false"),
        (changed(("populations", "out", "bias"), None), "LI: bias is None; allowed: true or false"),
        (changed(("populations", "a", "capacity"), "2"), "LIF: capacity is '2'; allowed: whole numbers, 1 or more"),
        (changed(("populations", "a", "capacity"), 2.0), r"LIF: capacity is 2\.0; allowed: whole numbers"),
        (changed(("populations", "a", "capacity"), True), "LIF: capacity is True; allowed: whole numbers"),
        (changed(("populations", "a", "beta"), ["x"] * 9), "LIF: beta is 'x'; allowed: 0 to 1"),
        (changed(("populations", "a", "beta"), [[1]] * 9), r"LIF: beta is \[1\]; allowed: 0 to 1"),
        (changed(("connections", 0, "pre"), []), r"connection \[\]->a: \[\] is not a population's name"),
        (
            changed(("populations", "a", "tau"), 3),
            r"population 'a' \(LIF\): unknown argument 'tau'; .*allowed: activity",
        ),
        (changed(("populations", "a"), {"model": "LIF"}), "population 'a': n is None"),
        (changed(("populations", "a", "beta"), "fast"), "LIF: beta"),
        (
            changed(("populations", "a", "surrogate"), {"kind": "atan", "width": 1}),
            "population 'a': surrogate: .*'width'",
        ),
        (changed(("populations", "a", "surrogate"), {"kind": "step"}), "surrogate: kind is 'step'"),
        (changed(("connections", 0, "weight"), 3), "connection: .*'weight'; allowed: pre, post, delay"),
        (changed(("connections", 0), {"pre": "input"}), "connection: .*'post'"),
        (changed(("connections", 0, "delay"), 1.5), r"connection input->a: delay is 1\.5"),
    ],
)
def test_dicts_that_have_no_meaning(data: dict[str, Any], message: str) -> None:
    with pytest.raises(DescriptionError, match=message):
        Network.from_dict(data)


@pytest.mark.parametrize(
    ("populations", "connections", "message"),
    [
        ([Input(3)], [], "populations is a list; give a dict"),
        (3, 2, "populations is an int; give a dict"),
        (None, None, "populations is None; give a dict"),
        ("3-4", [], r"populations is a str; .*parse_net\('3-4'\)"),
        ({"i": Input(3), "o": LI(3)}, Connection("i", "o"), "connections is a Connection; give a list"),
        ({"i": Input(3), "o": LI(3)}, [("i", "o")], r"connections\[0\] is \('i', 'o'\); give Connection\('i', 'o'\)"),
        ({"i": Input(3), "o": LI(3)}, ["i->o"], r"connections\[0\] is 'i->o'; give Connection\('i', 'o'\)"),
    ],
)
def test_arguments_of_another_type(populations: Any, connections: Any, message: str) -> None:
    with pytest.raises(DescriptionError, match=f"Network: {message}"):
        Network(populations, connections)


def test_text_that_is_no_network() -> None:
    with pytest.raises(
        DescriptionError, match=r"network: .* is not JSON \(line 1, column 17\); give what Network.to_json\(\) writes"
    ):
        Network.from_json('{"populations": ')
    with pytest.raises(DescriptionError, match="the JSON is a list; give an object"):
        Network.from_json("[]")
    for text in ("[" * 100_000, '{"populations": ' + "9" * 5000 + "}"):
        with pytest.raises(DescriptionError, match="is not JSON"):
            Network.from_json(text)


# ---- parse_net -----------------------------------------------------------------------------------------------------


def test_parse_net() -> None:
    assert parse_net("700-256r-20") == Network.chain(Input(700), LIF(256, recurrent=True), LI(20))
    assert parse_net(" 3-4c-5rc-2 ", beta=0.5, alpha=0.25, capacity=2) == Network.chain(
        Input(3),
        CubaLIF(4, beta=0.5, alpha=0.25, capacity=2),
        CubaLIF(5, beta=0.5, alpha=0.25, capacity=2, recurrent=True),
        LI(2, beta=0.5),
    )
    assert parse_net("3-4-2", alpha=0.25).populations["hidden"] == LIF(4), "LIF has no alpha"
    last = LIF(2, reset="zero", grad_threshold=-math.inf)
    assert parse_net("3-4-2s", reset="zero", grad_threshold=0.5, capacity=2).populations["output"] == last
    assert parse_net("3-4-2sc").populations["output"] == CubaLIF(2, grad_threshold=-math.inf)
    assert parse_net("3-2") == Network.chain(Input(3), LI(2))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("700", "write sizes joined by '-'"),
        ("", "write sizes joined by '-'"),
        ("700-0-20", "write sizes joined by '-'"),
        ("700-x-20", "write sizes joined by '-'"),
        ("700--20", "write sizes joined by '-'"),
        ("700-256q-20", "'256q' has the unknown letter 'q'; allowed: r .*, c: .*, s .*, p0.1"),
        ("auto-256-20", "'auto' is a size of the data, .*; write a number"),
        ("700r-256-20", "the first size is the input and allows no letter"),
        ("700-256s-20", "'s' is allowed only for the last size"),
        ("700-256-20r", "the readout allows only the letter 's'"),
    ],
)
def test_texts_that_describe_no_net(text: str, message: str) -> None:
    with pytest.raises(DescriptionError, match=message):
        parse_net(text)


def test_unknown_defaults() -> None:
    with pytest.raises(DescriptionError, match="net: unknown argument 'tau'; .*allowed: a, a_range"):
        parse_net("3-4-2", tau=3)


def test_replace_checks_again() -> None:
    with pytest.raises(DescriptionError, match="capacity is 9"):
        replace(LIF(4), capacity=9)


def test_decays_spread_time_constants_on_a_logarithmic_scale() -> None:
    betas = decays((8, 128), 4)
    tau = [-1 / math.log(beta) for beta in betas]
    assert tau == pytest.approx([8 * 2**0.5, 16 * 2**0.5, 32 * 2**0.5, 64 * 2**0.5])
    with pytest.raises(DescriptionError, match=r"tau_range is \[5, 2\]; give 0 < low <= high"):
        decays((5, 2), 3)


def test_recurrence_is_a_connection() -> None:
    sugar = Network.chain(Input(3), LIF(4, recurrent=True), CubaLIF(5), LIF(6, recurrent=True), LI(2))
    plain = Network.chain(Input(3), LIF(4), CubaLIF(5), LIF(6), LI(2))
    loops = (Connection("hidden1", "hidden1"), Connection("hidden3", "hidden3", delay=1))
    assert sugar == Network(plain.populations, (loops[1], *plain.connections, loops[0]))
    assert sugar.connections[-2:] == loops
    assert [c.name for c in sugar.incoming("hidden1")] == ["input->hidden1", "hidden1->hidden1"]
    assert [c.name for c in sugar.senders("hidden1")] == ["input->hidden1"]
    assert [sugar.is_recurrent(name) for name in sugar.populations] == [False, True, False, True, False]
    assert sugar.history("hidden1") == 1
    assert sugar.n_weights() == 3 * 4 + 4 * 5 + 5 * 6 + 6 * 2 + 4 * 4 + 6 * 6
    assert Network.from_json(sugar.to_json()) == sugar
    with pytest.raises(DescriptionError, match="delay is 0; allowed: .* from 1 to 1,048,576; .*recurrent"):
        Connection("hidden1", "hidden1", delay=0)
    with pytest.raises(DescriptionError, match="hidden1->hidden1: exists twice"):
        Network({**plain.populations, "hidden1": LIF(4, recurrent=True)}, (*plain.connections, loops[0]))


def test_several_connections_of_different_delays() -> None:
    several = tuple(Connection("i", "a", delay=d) for d in (0, 3, 12))
    network = Network({"i": Input(3), "a": LIF(4), "o": LI(2)}, (*several, Connection("a", "o")))
    assert [c.name for c in network.incoming("a")] == ["i->a", "i->a@3", "i->a@12"]
    assert network.history("i") == 12
    late = network.with_delay(2, from_inputs=False)
    assert [c.delay for c in late.connections] == [0, 3, 12, 2]


def test_a_network_of_version_0_1_is_read() -> None:
    text = (
        '{"populations": {"i": {"model": "Input", "n": 3}, "a": {"model": "LIF", "n": 4, "recurrent": true}, '
        '"o": {"model": "LI", "n": 2}}, "connections": [{"pre": "i", "post": "a", "delay": 0}, '
        '{"pre": "a", "post": "o", "delay": 2}]}'
    )
    wanted = Network(
        {"i": Input(3), "a": LIF(4, recurrent=True), "o": LI(2)}, (Connection("i", "a"), Connection("a", "o", 2))
    )
    assert Network.from_json(text) == wanted


@pytest.mark.parametrize(
    ("synapses", "message"),
    [
        (7, "synapses: is 7; give an object whose 'kind' is one of .*Dense"),
        ({"kind": "Wheel"}, "'Wheel'.*one of .*Dense"),
        ({"kind": "Dense", "size": 3}, "Dense: unknown argument 'size'"),
    ],
)
def test_synapses_that_cannot_be_read(synapses: object, message: str) -> None:
    data = Network.chain(Input(3), LI(2)).to_dict()
    data["connections"][0]["synapses"] = synapses
    with pytest.raises(DescriptionError, match=message):
        Network.from_dict(data)


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("13-7x-3", "net '13-7x-3': '7x' has the unknown letter 'x'; allowed: r"),
        ("13", "net '13': has one size; a network has two or more; write sizes"),
        ("13--3", "net '13--3': '' is not a size"),
        ([13, 7, 3], r"net: is a list, \[13, 7, 3\]; give a text, such as '700-256r-20'"),
    ],
)
def test_a_text_that_is_no_network_is_told_which_part_is_wrong(text: Any, facts: str) -> None:
    with pytest.raises(DescriptionError, match=facts):
        parse_net(text)
