"""Convolution and pooling through NIR: round trips, graphs of other libraries, and refusals."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sparsesnn as ss
from sparsesnn import LI, LIF, Conv1d, Conv2d, CubaLIF, Dense, Input, Network, Pool, Series
from sparsesnn.errors import DescriptionError
from sparsesnn.nir import from_nir, read, readers, to_nir, write

nir = pytest.importorskip("nir", reason="needs the package nir, in the extra 'nir'")

T, B = 40, 3
#: channels, height, width, none of them equal
SHAPE = (2, 11, 9)
Library = Callable[[str], Any]


@pytest.fixture
def x() -> Tensor:
    """[T, B, channels, height, width]."""
    return (torch.rand(T, B, *SHAPE, generator=torch.Generator().manual_seed(5)) < 0.15).float()


def chain(*parts: Any) -> Network:
    return Network.chain(Input(shape=(SHAPE[1], SHAPE[2], SHAPE[0]), channels_first=True), *parts)


def lif(**options: Any) -> LIF:
    return LIF(**{"beta": 0.8, "reset": "zero", **options})


def model_of(network: Network, gain: float = 3.0, seed: int = 1) -> ss.Model:
    model = ss.Model(network, seed=seed, backend="dense")
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(gain) if p.ndim > 1 else p.add_(0.02)
    return model


def spikes_of(model: ss.Model, x: Tensor) -> dict[str, Tensor]:
    """[T, B, n] of each population that fires, and the readout's potentials under its name."""
    with torch.no_grad():
        out = model(ss.SpikeBatch.from_dense(x.flatten(2)))
    found = {name: s.to_dense() for name, s in out.spikes.items() if s is not None and name != "input"}
    assert all(0.001 < float(s.mean()) < 0.9 for s in found.values()), "a population says nothing"
    return found | ({} if out.potentials is None else {"potentials": out.potentials})


def maps_first(spikes: Tensor, shape: Any) -> Tensor:
    """Spikes [T, B, n] of maps (height, width, channels) as [T, B, channels, height, width]."""
    return spikes.unflatten(-1, shape).movedim(-1, 2)


NETWORKS = {
    "strides": chain(Conv2d(5, (3, 2), (2, 1), (1, 0)), lif(), Conv2d(3, 2, dilation=(1, 2)), lif(bias=False), Dense(), lif(n=7)),
    "pools": chain(Pool("sum", 2), Conv2d(4, 3), lif(), Pool("average", (2, 1), 1), Dense(), lif(n=5), LI(3)),
    "groups": chain(Conv2d(6, 3, groups=2, padding=1), lif(beta=1.0), Conv2d(6, (1, 3), groups=6), lif(), Pool("sum", 3, 2), Dense(), LI(4)),
    "currents": chain(Series((Conv2d(4, 3), Pool("sum", 2))), lif(bias=True), LI(3, bias=True)),
    "synaptic": chain(Conv2d(3, 4), CubaLIF(alpha=0.5, beta=0.8, reset="zero", gain=0.5), LI(3)),
    "flat": chain(lif(n=13), LI(3)),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("through_file", [False, True])
def test_there_and_back(name: str, through_file: bool, x: Tensor, tmp_path: Path) -> None:
    model = model_of(NETWORKS[name])
    graph = to_nir(model, dt=1e-3)
    if through_file:
        write(tmp_path / "net.nir", graph)
        graph = read(tmp_path / "net.nir")
    back = from_nir(graph, source="nir", dt=1e-3, backend="dense")
    assert [c.synapses for c in back.network.connections] == [c.synapses for c in model.network.connections]
    for expected, found in zip(spikes_of(model, x).values(), spikes_of(back, x).values(), strict=True):
        if expected.unique().tolist() == [0, 1]:
            assert torch.equal(found, expected)
        else:
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_channels_last_input_is_written_channels_first(x: Tensor) -> None:
    """NIR has one order: the same maps of spikes, wherever the channels lie here."""
    last = Network.chain(Input(shape=(11, 9, 2)), Conv2d(4, 3), lif(), lif(n=6))
    model = model_of(last)
    flat_last = x.movedim(2, -1).contiguous()
    back = from_nir(to_nir(model, dt=1e-3), source="nir", dt=1e-3, backend="dense")
    assert back.network.populations["input"] == Input(shape=(11, 9, 2), channels_first=True)
    for a, b in zip(spikes_of(model, flat_last).values(), spikes_of(back, x).values(), strict=True):
        assert torch.equal(a, b)
    dense = model_of(Network.chain(Input(shape=(11, 9, 2)), lif(n=6), lif(n=5)))
    back = from_nir(to_nir(dense, dt=1e-3), source="nir", dt=1e-3)
    for a, b in zip(spikes_of(dense, flat_last).values(), spikes_of(back, x).values(), strict=True):
        assert torch.equal(a, b)


def test_integer_weights_have_a_scale_per_filter(x: Tensor) -> None:
    network = chain(Conv2d(4, 3), lif(), lif(n=6))
    model = ss.Model(network, seed=3, backend="dense", weight_dtype="int4")
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3)
    graph = to_nir(model, dt=1e-3)
    conv = graph.nodes["input_to_hidden"]
    assert conv.metadata["scale"].shape == (4,)
    numbers = conv.weight / conv.metadata["scale"][:, None, None, None]
    np.testing.assert_allclose(numbers, np.round(numbers), atol=1e-4)
    back = from_nir(graph, source="nir", dt=1e-3, backend="dense")
    for a, b in zip(spikes_of(model, x).values(), spikes_of(back, x).values(), strict=True):
        assert torch.equal(a, b)


# ---- other libraries -----------------------------------------------------------------------------------------------------


def run(modules: nn.Sequential, x: Tensor, stateful: bool = False) -> list[Tensor]:
    """Outputs [T, B, …] of every module."""
    seen: list[list[Tensor]] = [[] for _ in modules]
    states: list[Any] = [None] * len(modules)
    with torch.no_grad():
        for t in range(T):
            h = x[t]
            for k, module in enumerate(modules):
                if stateful and type(module).__module__.startswith("norse"):
                    h, states[k] = module(h, states[k])
                else:
                    h = module(h)
                    h = h[0] if isinstance(h, tuple) else h
                seen[k].append(h)
    return [torch.stack(outputs) for outputs in seen]


def check(model: ss.Model, x: Tensor, theirs: list[Tensor]) -> None:
    """Equal spikes in each population that fires."""
    ours = spikes_of(model, x)
    assert len(ours) == len(theirs)
    for (name, found), expected in zip(ours.items(), theirs, strict=True):
        shape = model.network.shape(name)
        found = found if shape is None else maps_first(found, shape)
        assert found.shape == expected.shape
        different = int((found != expected).sum())
        assert different == 0, f"{name}: {different} of {int(expected.sum())} spikes differ"


def scaled(module: Any, gain: float) -> Any:
    with torch.no_grad():
        module.weight *= gain
    return module


def test_from_snntorch(x: Tensor, library: Library) -> None:
    snn, export = library("snntorch"), library("snntorch.export_nir").export_to_nir

    def leaky(*shape: int) -> Any:
        return snn.Leaky(beta=torch.full(shape, 0.8), threshold=torch.ones(shape), init_hidden=True)

    module = nn.Sequential(
        scaled(nn.Conv2d(2, 6, 3, stride=2, padding=1, groups=2), 3), leaky(6, 6, 5),
        nn.AvgPool2d(2, 1), scaled(nn.Conv2d(6, 4, 2, dilation=2, bias=False), 5), leaky(4, 3, 2),
        nn.Flatten(), scaled(nn.Linear(24, 7), 3), leaky(7),
    )  # fmt: skip
    graph = export(module, torch.randn(1, *SHAPE), ignore_dims=[0])
    for k in (1, 4, 7):
        module[k].reset_mem()
    theirs = run(module, x)
    model = from_nir(graph, source="snntorch", reset="subtract", backend="dense")
    assert isinstance(model.network.connections[1].synapses, Series)
    check(model, x, [theirs[1], theirs[4], theirs[7]])
    check(from_nir(graph, source="snntorch", reset="subtract"), x, [theirs[1], theirs[4], theirs[7]])  # event-sparse


def test_from_norse(x: Tensor, library: Library) -> None:
    norse = library("norse.torch")
    modules = [
        scaled(nn.Conv2d(2, 5, (3, 2), stride=(2, 1)), 20), norse.LIFBoxCell(),
        scaled(nn.Conv2d(5, 3, 3), 20), norse.LIFBoxCell(),
    ]  # fmt: skip
    graph = norse.to_nir(norse.SequentialState(*modules), torch.randn(1, *SHAPE))
    theirs = run(nn.Sequential(*modules), x, stateful=True)
    check(from_nir(graph, source="norse"), x, [theirs[1], theirs[3]])


def test_from_spikingjelly(x: Tensor, library: Library) -> None:
    neuron = library("spikingjelly.activation_based.neuron")
    functional = library("spikingjelly.activation_based.functional")
    export = library("spikingjelly.activation_based.nir_exchange").export_to_nir
    module = nn.Sequential(
        scaled(nn.Conv2d(2, 5, 3, padding=1), 8), neuron.LIFNode(tau=3.0),
        nn.AvgPool2d(2), scaled(nn.Conv2d(5, 4, 3, dilation=1), 12), neuron.IFNode(),
        nn.Flatten(), scaled(nn.Linear(4 * 3 * 2, 7), 8), neuron.LIFNode(tau=2.0),
    )  # fmt: skip
    graph = export(module, torch.randn(1, *SHAPE))
    functional.reset_net(module)
    theirs = run(module, x)
    check(from_nir(graph, source="spikingjelly"), x, [theirs[1], theirs[4], theirs[7]])


def test_from_sinabs(x: Tensor, library: Library) -> None:
    """IAF, as on DynapCNN, and LIF, each with one spike per step."""
    layers, activation, sums = (
        library("sinabs.layers"),
        library("sinabs.activation"),
        library("sinabs.layers").SumPool2d,
    )
    export = library("sinabs.nir").to_nir
    how = {"spike_fn": activation.SingleSpike, "batch_size": B, "min_v_mem": None}
    module = nn.Sequential(
        scaled(nn.Conv2d(2, 5, 3, stride=(2, 1), bias=False), 1.5), layers.IAFSqueeze(**how),
        sums(2), scaled(nn.Conv2d(5, 4, 2, padding=(1, 0)), 1.5), layers.LIFSqueeze(tau_mem=5.0, norm_input=False, **how),
        nn.Flatten(), scaled(nn.Linear(4 * 3 * 2, 7), 3), layers.IAFSqueeze(**how),
    )  # fmt: skip
    h, theirs = x.transpose(0, 1).flatten(0, 1), []
    with torch.no_grad():
        for layer in module:
            h = layer(h)
            theirs.append(h.unflatten(0, (B, T)).transpose(0, 1))
    graph = export(module, x.transpose(0, 1).flatten(0, 1))
    check(from_nir(graph, source="sinabs", reset="subtract", gain="unit"), x, [theirs[1], theirs[4], theirs[7]])


WRITTEN = (Conv2d(5, (3, 2), (2, 1), (1, 0)), lif(bias=True), "pool", Conv2d(3, 2), lif(), Dense(), lif(n=7))


def written(reduction: str, **options: Any) -> ss.Model:
    parts = [Pool(reduction, 2, 1) if part == "pool" else part for part in WRITTEN]
    return model_of(chain(*(lif(n=p.n, bias=p.bias, **options) if isinstance(p, LIF) else p for p in parts)), gain=4)


def last_of(module: Any, x: Tensor) -> Tensor:
    """Spikes [T, n] of a module, one sample after the other, maps without a batch."""
    theirs, state = [], None
    with torch.no_grad():
        for t in range(T):
            found = module(x[t, 0], state) if state is not None else module(x[t, 0])
            h, state = found if isinstance(found, tuple) else (found, None)
            theirs.append(h)
    return torch.stack(theirs)


@pytest.mark.parametrize(("target", "reduction"), [("snntorch", "average"), ("norse", "sum")])
def test_others_read_what_is_written(target: str, reduction: str, x: Tensor, library: Library) -> None:
    model = written(reduction)
    graph = to_nir(model, target=target)
    if target == "snntorch":
        module = library("snntorch.import_nir").import_from_nir(graph)
    else:
        module = library("norse.torch").from_nir(graph)
    theirs = last_of(module, x)
    ours = spikes_of(model, x[:, :1])["output"][:, 0]
    assert torch.equal(theirs.reshape(ours.shape), ours)


def test_spikingjelly_reads_what_is_written(x: Tensor, library: Library) -> None:
    module = library("spikingjelly.activation_based.nir_exchange").import_from_nir(
        to_nir(model := written("average"), target="spikingjelly")
    )
    theirs, state = [], None
    with torch.no_grad():
        for t in range(T):
            h, state = module(x[t], state)
            theirs.append(h)
    assert torch.equal(torch.stack(theirs), spikes_of(model, x)["output"])


# ---- graphs made by hand ---------------------------------------------------------------------------------------------------


def neurons(*shape: int, **changes: Any) -> Any:
    values = {"tau": 1e-3, "r": 1.0, "v_leak": 0.0, "v_threshold": 1.0, "v_reset": 0.0} | changes
    return nir.LIF(**{k: np.full(shape, v) if np.ndim(v) == 0 else v for k, v in values.items()})


def conv(shape: tuple[int, ...] = (4, 2, 3, 3), input_shape: Any = None, **changes: Any) -> Any:
    values = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, "bias": np.zeros(shape[0])} | changes
    return nir.Conv2d(input_shape, np.random.default_rng(0).standard_normal(shape), **values)


def pool(kind: str = "SumPool2d", size: int = 2, padding: int = 0) -> Any:
    return getattr(nir, kind)(np.array([size, size]), np.array([size, size]), np.array([padding, padding]))


def graph(*nodes: Any, shape: Any = SHAPE) -> Any:
    names = ["input", *(f"n{k}" for k in range(len(nodes))), "output"]
    found = dict(zip(names, [nir.Input(np.array(shape)), *nodes, nir.Output(np.array([1]))], strict=True))
    return nir.NIRGraph(found, list(itertools.pairwise(names)), type_check=False)


def brought(*nodes: Any, **options: Any) -> ss.Model:
    return from_nir(graph(*nodes, **options), source="nir", dt=1e-4, backend="dense")


def test_padding_in_words() -> None:
    same = brought(conv(padding="same"), neurons(4, 11, 9))
    assert same.network.connections[0].synapses == Conv2d(
        4, (3, 3), padding=(1, 1), shape=(11, 9, 2), channels_first=True
    )
    assert brought(conv(padding="valid"), neurons(4, 9, 7)).network.shape("output") == (9, 7, 4)


def test_parameters_of_maps_are_ours_in_order() -> None:
    thresholds = np.random.default_rng(1).uniform(0.5, 1, (4, 9, 7))
    model = brought(conv(), neurons(4, 9, 7, v_threshold=thresholds, v_reset=np.zeros((4, 9, 7))))
    found = model.layers["output"].threshold.view(9, 7, 4)  # type: ignore[union-attr, operator]
    torch.testing.assert_close(found, torch.from_numpy(thresholds).permute(1, 2, 0).float())
    per_channel = brought(conv(), neurons(4, 1, 1, v_threshold=thresholds[:, :1, :1]))
    assert torch.equal(
        per_channel.layers["output"].threshold.view(9, 7, 4)[3, 5],  # type: ignore[union-attr, operator]
        torch.from_numpy(thresholds[:, 0, 0]).float(),
    )


def test_gains_per_channel_go_into_the_filters(x: Tensor) -> None:
    """So do a Scale's factors, and a bias passes through pools."""
    gains = np.array([1.0, 2.0, 0.5, 3.0])[:, None, None] * np.ones((4, 4, 3))
    bias = np.array([0.1, -0.2, 0.3, 0.0])
    factors = torch.tensor([1.0, 2.0, 0.5, 3.0])
    plain = brought(conv(bias=bias), pool(), neurons(4, 4, 3))
    gained = brought(conv(bias=bias), pool(), neurons(4, 4, 3, r=gains))
    scale = brought(conv(bias=bias), nir.Scale(np.broadcast_to(gains[:, :1, :1], (4, 9, 7))), pool(), neurons(4, 4, 3))
    kept, gained_weights, scale_weights = (model.layers["output"].weights[0] for model in (plain, gained, scale))
    torch.testing.assert_close(scale_weights, kept * factors)
    # tau / dt = 10: our gain is 0.1 times r, and equal gains stay out of the weights
    torch.testing.assert_close(gained_weights, kept * factors * 0.1)
    biases = [model.layers["output"].bias.view(4, 3, 4) for model in (plain, gained, scale)]  # type: ignore[union-attr, operator]
    torch.testing.assert_close(biases[0][2, 1], torch.from_numpy(4 * bias).float())
    torch.testing.assert_close(biases[1], biases[0] * factors * 0.1)
    torch.testing.assert_close(biases[2], biases[0] * factors)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ((conv(), conv((3, 4, 2, 2)), neurons(3, 8, 6)), "'n1'.*two layers of weights need neurons between them"),
        ((pool(padding=1), neurons(2, 6, 5)), r"'n0' \(SumPool2d\).*padding is \(1, 1\).*use 0"),
        ((conv(padding="same", stride=2), neurons(4, 6, 5)), r"'n0' \(Conv2d\).*padding is 'same'.*stride \(2, 2\)"),
        ((conv((4, 3, 3, 3)), neurons(4, 9, 7)), "'n0'.*reads 3 channels.*its input has 2"),
        ((conv((4, 2, 12, 3)), neurons(4, 1, 7)), r"'n0' \(Conv2d\).*maps of \(11, 9, 2\) become empty"),
        ((pool("AvgPool2d"), nir.Scale(np.full((2, 5, 4), 2.0)), neurons(2, 5, 4)), "'n1'.*scales pools"),
        ((conv(), neurons(4, 9, 7, r=np.random.default_rng(0).random((4, 9, 7)))), "its gain differs within channel"),
        ((pool(), neurons(2, 5, 4, r=np.arange(1.0, 3)[:, None, None] * np.ones((2, 5, 4)))), "pools have no weights"),
        ((conv(), neurons(4, 9, 7), nir.Linear(np.ones((3, 99))), neurons(3)), "'n1'.*both 252 and 99 neurons"),
    ],
)  # fmt: skip
def test_refusals(nodes: Any, message: str) -> None:
    with pytest.raises(DescriptionError, match=message):
        brought(*nodes)


def test_unknown_shapes_and_kinds() -> None:
    with pytest.raises(DescriptionError, match=r"'n0' \(SumPool2d\).*shape.*is unknown.*Input"):
        brought(pool(), neurons(2, 5, 4), shape=(198,))
    known = brought(conv(input_shape=(11, 9)), neurons(4, 9, 7), shape=(198,))
    assert known.network.populations["input"] == Input(shape=(11, 9, 2), channels_first=True)


@pytest.mark.parametrize(
    ("target", "parts", "message"),
    [
        ("nir", (Pool("max", 2), lif()), "input->output.*by max.*NIR.*it has sum, average"),
        ("norse", (Pool("average", 2), lif(bias=False)), "input->output.*by average.*norse.*it has sum"),
        ("snntorch", (Conv2d(4, 3, groups=2), lif()), "input->output.*groups are 2.*target=nir"),
        ("nir", (Pool("sum", 2), lif(bias=True)), "input->output.*no place for the bias"),
        ("sinabs", (Conv2d(4, 3), lif(reset="subtract", reset_decays=True)), "output.*leaks on maps.*beta=1"),
    ],
)
def test_what_is_not_written(target: str, parts: Any, message: str) -> None:
    model = ss.Model(chain(*parts), backend="dense")
    with pytest.raises(DescriptionError, match=message):
        to_nir(model, target=target, dt=1e-3)
    assert readers(model.network)[target]


def test_a_bias_that_differs_within_a_channel_is_refused() -> None:
    model = ss.Model(chain(Conv2d(4, 3), lif(bias=True)), backend="dense")
    with torch.no_grad():
        model.layers["output"].bias[5] = 0.5  # type: ignore[index, operator]
    with pytest.raises(DescriptionError, match=r"input->output: the bias differs within channel 1, from 0 to 0\.5"):
        to_nir(model, dt=1e-3)


def test_axonal_delays_are_refused() -> None:
    model = ss.Model(Network.chain(Input(7), lif(n=5), LI(3)).with_axonal_delays(4))
    with pytest.raises(DescriptionError, match="input->hidden.*delay per sender"):
        to_nir(model, dt=1e-3)


def test_delays_go_to_nir_alone() -> None:
    model = ss.Model(Network.chain(Input(7), lif(n=5), LI(3), delay=2))
    for target in ("norse", "snntorch", "spikingjelly", "sinabs"):
        with pytest.raises(
            DescriptionError, match=f"input->hidden: has a delay of 2 steps, and {target} does not read delays"
        ):
            to_nir(model, target=target, readout="membrane", keep_reset=True)


def test_delays_of_maps(x: Tensor) -> None:
    network = Network.chain(Input(shape=(11, 9, 2), channels_first=True), Conv2d(4, 3), lif(), lif(n=6), delay=2)
    model = model_of(network)
    back = from_nir(to_nir(model, dt=1e-3), source="nir", dt=1e-3, backend="dense")
    assert [c.delay for c in back.network.connections] == [2, 2]
    for a, b in zip(spikes_of(model, x).values(), spikes_of(back, x).values(), strict=True):
        assert torch.equal(a, b)


# ---- one axis --------------------------------------------------------------------------------------------------------------

LENGTH = 19
one_axis = Input(shape=(LENGTH, 2), channels_first=True)
ONE_AXIS = {
    "strides": (Conv1d(4, 3, 2, 1), lif(bias=True), Conv1d(6, 2, dilation=2, groups=2), lif(), Dense(), lif(n=5)),
    "synaptic": (Conv1d(5, 4), CubaLIF(alpha=0.5, beta=0.8, reset="zero", gain=0.5), LI(3)),
    "depthwise": (Conv1d(2, 1, groups=2), lif(beta=1.0), LI(3)),
}


def lengths(n: int = LENGTH) -> Tensor:
    return (torch.rand(T, B, 2, n, generator=torch.Generator().manual_seed(3)) < 0.3).float()


@pytest.mark.parametrize("name", ONE_AXIS)
def test_convolutions_over_one_axis_there_and_back(name: str, tmp_path: Path) -> None:
    """Nodes Conv1d over [channels, length], for readers that know these; Conv2d over maps of height 1 for others."""
    model = model_of(Network.chain(one_axis, *ONE_AXIS[name]), gain=4)
    write(tmp_path / "net.nir", to_nir(model, dt=1e-3))
    graph_ = read(tmp_path / "net.nir")
    first = list(model.network.populations)[1]
    assert type(graph_.nodes[f"input_to_{first}"]).__name__ == "Conv1d"
    assert graph_.nodes["input"].input_type["input"].tolist() == [2, LENGTH]
    back = from_nir(graph_, source="nir", dt=1e-3)
    assert back.network.populations["input"] == one_axis
    assert [c.synapses for c in back.network.connections] == [c.synapses for c in model.network.connections]
    x = lengths()
    for expected, found in zip(spikes_of(model, x).values(), spikes_of(back, x).values(), strict=True):
        if expected.unique().tolist() == [0, 1]:
            assert torch.equal(found, expected)
        else:
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_conv1d_is_that_of_pytorch() -> None:
    """A graph made by hand, against torch.nn.Conv1d and NIR's equations of IF and LIF."""
    first = nir.Conv1d(LENGTH, np.random.default_rng(0).standard_normal((4, 1, 3)), 2, "valid", 2, 2, np.full(4, 0.1))
    second = nir.Conv1d(None, np.random.default_rng(1).standard_normal((3, 4, 3)), 1, "same", 1, 1, np.zeros(3))
    thresholds = np.random.default_rng(2).uniform(0.5, 1, (4, 8))
    cells = neurons(4, 8, v_threshold=thresholds), nir.IF(np.full((3, 1), 1e4), np.ones((3, 1)), np.zeros((3, 1)))
    model = from_nir(graph(first, cells[0], second, cells[1], shape=(2, LENGTH)), source="nir", dt=1e-4)
    x, theirs = lengths(), {"hidden": [], "output": []}  # type: ignore[var-annotated]
    v = w = torch.zeros(())
    for step in x:
        f = torch.from_numpy(first.weight).float(), torch.from_numpy(first.bias).float()
        v = v + 0.1 * (nn.functional.conv1d(step, *f, stride=2, dilation=2, groups=2) - v)
        s = (v > torch.from_numpy(thresholds).float()).float()
        w = w + nn.functional.conv1d(s, torch.from_numpy(second.weight).float(), padding=1)
        z = (w > 1).float()
        v, w = v * (1 - s), w * (1 - z)
        theirs["hidden"].append(s)
        theirs["output"].append(z)
    for name, found in spikes_of(model, x).items():
        expected = torch.stack(theirs[name])
        assert torch.equal(found.unflatten(-1, (expected.shape[3], expected.shape[2])).transpose(-1, -2), expected)


@pytest.mark.parametrize(
    ("nodes", "shape", "message"),
    [
        ((nir.Conv1d(None, np.ones((4, 2, 3)), 1, 0, 1, 1, np.zeros(4)), neurons(4, 17)), (38,), r"'n0' \(Conv1d\).*shape.*is unknown.*\[channels, length\]"),
        ((nir.Conv1d(None, np.ones((4, 3, 3)), 1, 0, 1, 1, np.zeros(4)), neurons(4, 17)), (2, 19), "'n0'.*reads 3 channels.*its input has 2"),
        ((nir.Conv1d(None, np.ones((4, 2, 3, 3)), 1, 0, 1, 1, np.zeros(4)), neurons(4, 17)), (2, 19), r"'n0' \(Conv1d\).*\(4, 2, 3, 3\).*length\]"),
        ((nir.Conv1d(None, np.ones((4, 2, 30)), 1, 0, 1, 1, np.zeros(4)), neurons(4, 17)), (2, 19), r"'n0' \(Conv1d\).*maps of \(1, 19, 2\) become empty"),
    ],
)  # fmt: skip
def test_refusals_on_one_axis(nodes: Any, shape: Any, message: str) -> None:
    with pytest.raises(DescriptionError, match=message):
        brought(*nodes, shape=shape)


@pytest.mark.parametrize(("target", "pools"), [("nir", True), ("snntorch", False)])
def test_one_axis_is_written_as_maps_of_height_one(target: str, pools: bool) -> None:
    """NIR has no pools over one axis, and other readers no Conv1d."""
    between = (Pool("sum", (1, 2)), Dense()) if pools else ()
    model = model_of(Network.chain(one_axis, Conv1d(4, 3, 2), lif(), *between, lif(n=5)), gain=4)
    graph_ = to_nir(model, target=target, dt=1e-3)
    assert graph_.nodes["input_to_hidden"].weight.shape == (4, 2, 1, 3)
    back = from_nir(graph_, source="nir", dt=1e-3, backend="dense")
    assert back.network.connections[0].synapses == Conv2d(4, (1, 3), (1, 2), shape=(1, 19, 2), channels_first=True)
    x = lengths()
    for a, b in zip(spikes_of(model, x).values(), spikes_of(back, x).values(), strict=True):
        assert torch.equal(a, b)


def test_recurrent_convolutions_are_refused() -> None:
    network = Network(
        {"input": one_axis, "hidden": lif(), "out": LI(3)},
        (
            ss.Connection("input", "hidden", synapses=Conv1d(4, 3, padding=1)),
            ss.Connection("hidden", "hidden", synapses=Conv1d(4, 3, padding=1)),
            ss.Connection("hidden", "out"),
        ),
    )
    with pytest.raises(DescriptionError, match="hidden->hidden: is a recurrent convolution.*Dense"):
        to_nir(ss.Model(network, backend="dense"), dt=1e-3)
