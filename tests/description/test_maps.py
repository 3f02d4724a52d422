"""Descriptions of convolution and pooling: shapes, texts, JSON, and refusals."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from sparsesnn import LI, LIF, Connection, Conv2d, CubaLIF, Dense, Input, Network, Pool, Series, parse_net
from sparsesnn.errors import DescriptionError
from sparsesnn.nir import readers_text


def test_the_network_of_the_ipu_paper() -> None:
    """28 → 24 → 12 → 8 → 4: 64 · 4 · 4 elements for the readout."""
    network = parse_net("1x28x28:5C12+MP2-5C64+MP2-10")
    assert [network.shape(name) for name in network.populations] == [(28, 28, 1), (12, 12, 12), (4, 4, 64), None]
    assert [p.n for p in network.populations.values()] == [784, 1728, 1024, 10]
    assert network.n_weights() == 12 * 25 + 64 * 12 * 25 + 10 * 1024
    assert [type(c.synapses) for c in network.connections] == [Series, Series, Dense]
    pooled_spikes = parse_net("1x28x28:5C12-MP2-5C64-MP2-10")
    assert [network.shape(name) for name in pooled_spikes.populations] == [(28, 28, 1), (12, 12, 12), (4, 4, 64), None]
    assert [p.n for p in pooled_spikes.populations.values()] == [784, 24 * 24 * 12, 8 * 8 * 64, 10]


def test_letters() -> None:
    network = parse_net("3x32x32:3C128p-5C8c-4C8s2d3g4p2-16r-10s", beta=0.5, alpha=0.25)
    kinds = [c.synapses for c in network.senders("hidden1") + network.senders("hidden2") + network.senders("hidden3")]
    assert [(k.kernel, k.stride, k.padding, k.dilation, k.groups) for k in kinds] == [
        (3, 1, 1, 1, 1),
        (5, 1, 0, 1, 1),
        (4, 2, 2, 3, 4),
    ]
    assert [type(p) for p in network.populations.values()] == [Input, LIF, CubaLIF, LIF, LIF, LIF]
    assert network.is_recurrent("hidden4")
    assert {p.beta for name, p in network.populations.items() if name != "input"} == {0.5}
    assert network.populations["input"].channels_first


def test_chains_without_ceremony() -> None:
    network = Network.chain(
        Input(shape=(34, 34, 2)),
        Conv2d(8, 3, stride=2),
        LIF(),
        Pool("sum", 2),
        Conv2d(16, 3),
        CubaLIF(),
        LIF(7),
        LI(10),
    )
    assert [network.shape(name) for name in network.populations] == [(34, 34, 2), (16, 16, 8), (6, 6, 16), None, None]
    for other in (Network.from_json(network.to_json()), pickle.loads(pickle.dumps(network))):
        assert other == network
    assert network.with_population("hidden1", beta=0.5).populations["hidden1"].n == 16 * 16 * 8
    depthwise = Network.chain(Input(shape=(5, 4, 6)), Conv2d(6, (1, 3), groups=6), LIF())
    assert depthwise.n_weights() == 3 * 6


def test_who_reads_convolutions() -> None:
    assert readers_text(parse_net("1x5x5:3C2-4", reset="zero")) == (
        "through NIR, this network can be read by nir, snntorch, norse, spikingjelly"
    )
    assert readers_text(parse_net("1x5x5:3C2-MP2-4", reset="zero")).startswith(
        "no other library reads this network through NIR: no max pooling"
    )


def test_a_network_without_maps_is_written_as_before() -> None:
    assert parse_net("700-20").to_dict()["populations"]["input"] == {"model": "Input", "n": 700}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5C12-10", "write sizes joined by '-'"),
        ("5C12:10", "write the input's channels, height and width, a colon"),
        ("1x28x28:", "'' is not a layer"),
        ("0x28x28:10", r"Input: shape is \(28, 28, 0\).*each at least 1"),
        ("1x28x28:5C12", "'5C12' is not a layer"),
        ("1x28x28:5C12-XP2-10", "'XP2' is not a layer"),
        ("1x28x28:5C12+XP2-10", r"'5C12\+XP2' is not a layer"),
        ("1x28x28:5C12-10s-10", "'s' is allowed only for the last size"),
        ("1x28x28:29C2-10", r"input->hidden: Conv2d.*maps of \(28, 28, 1\) become empty"),
        ("1x28x28:5C2-MP64-10", r"hidden->output: Pool.*become empty"),
        ("9x9999x9999:3C9999-10", r"Input: n is 899820009; .*from 1 to 268,435,456"),
        ("3x8x8:3C4g2-10", "groups is 2, but the sender's channels are 3"),
        ("4x8x8:3C5g2-10", "groups is 2, but channels are 5"),
    ],
)
def test_a_text_that_is_no_network_is_refused(text: str, message: str) -> None:
    with pytest.raises(DescriptionError, match=message):
        parse_net(text)


def test_arguments_of_kinds_are_checked() -> None:
    wrong: list[tuple[Any, str]] = [
        (lambda: Conv2d(0, 3), r"Conv2d: channels is 0; allowed: whole numbers, 1 or more"),
        (lambda: Conv2d(4, (3, 3, 3)), r"Conv2d: kernel is \(3, 3, 3\); allowed"),
        (lambda: Conv2d(4, 3, padding=-1), r"Conv2d: padding is -1; allowed: whole numbers, 0 or more"),
        (lambda: Conv2d(4, 3, stride=1.5), r"Conv2d: stride is 1.5"),
        (lambda: Pool("median", 2), "Pool: reduction is 'median'; allowed: sum, average, max"),
        (lambda: Pool("max", 0), "Pool: size is 0"),
        (lambda: Series((Dense(), Pool("max", 2))), r"Series: Dense\(\) is not the last member"),
        (lambda: Series((Dense(),)), "give two or more kinds"),
        (lambda: Input(), "Input: n is None, shape None"),
        (lambda: Input(5, shape=(2, 2, 1)), r"Input: n is 5, but shape \(2, 2, 1\) has 4 neurons"),
        (
            lambda: Input(shape=(2, 2, 2, 2)),
            r"Input: shape is \(2, 2, 2, 2\); give \(height, width, channels\) or \(length",
        ),
        (lambda: Input(4, channels_first=True), "channels_first True; give n or shape"),
        (lambda: Conv2d(4, 3).pre_shape, "does not know its sender's shape"),
    ]
    for make, message in wrong:
        with pytest.raises(DescriptionError, match=message):
            make()


def test_populations_that_do_not_fit_are_refused() -> None:
    maps = Input(shape=(5, 5, 2))
    wrong: list[tuple[Any, str]] = [
        ((maps, Conv2d(3, 3), LIF(5)), r"'output': n is 5, but its synapses make maps of \(3, 3, 3\), 27 neurons"),
        ((Input(50), Conv2d(3, 3), LIF()), r"input->output: Conv2d: reads maps, but its sender has no shape"),
        ((Input(50), LIF(), LI(3)), "'hidden': n is None, and no convolution or pooling sets it"),
        (
            (maps, Conv2d(3, 3, shape=(5, 5, 3)), LIF()),
            r"shape is \(5, 5, 3\), but its sender has the shape \(5, 5, 2\)",
        ),
        ((maps, Conv2d(3, 3), Conv2d(3, 3), LIF()), "has several members with weights; put neurons between them"),
        ((Conv2d(3, 3), maps), "a chain begins with Conv2d"),
        ((maps, Conv2d(3, 3)), "a chain ends with Conv2d"),
    ]
    for parts, message in wrong:
        with pytest.raises(DescriptionError, match=message):
            Network.chain(*parts)
    with pytest.raises(DescriptionError, match=r"b->c: makes maps of \(2, 2, 3\), another connection into 'c' maps of"):
        Network(
            {"a": maps, "b": LIF(), "c": LIF()},
            (Connection("a", "b", 0, Conv2d(2, 3)), Connection("a", "c", 0, Conv2d(3, 3)),
             Connection("b", "c", 0, Conv2d(3, 2))),
        )  # fmt: skip
