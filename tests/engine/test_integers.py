"""Weights rounded to integers: the rounding, training, and files of integers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sparsesnn as ss
from sparsesnn import integers, reference
from sparsesnn.errors import CheckpointError, ConfigError, DescriptionError
from sparsesnn.rounding import BITS, Receivers, product, rounded
from sparsesnn.rounding import integers as integers_of

KINDS = sorted(BITS)
NETS = ["13-11r-5", "13-7p0.4-5", "13-17-9s"]


def spikes_of(n: int = 13, n_steps: int = 9) -> ss.SpikeBatch:
    generator = torch.Generator().manual_seed(3)
    return ss.SpikeBatch.from_dense((torch.rand(n_steps, 5, n, generator=generator) < 0.4).float())


def loss_of(model: ss.Model, spikes: ss.SpikeBatch) -> torch.Tensor:
    output = model(spikes)
    if output.potentials is not None:
        return output.potentials.square().sum()
    return output.counts(output.output).square().sum()


# ---- numbers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, 1), (13, 7), (3, 3, 2, 5)])
def test_the_reference_gives_the_same_integers(kind: str, shape: tuple[int, ...]) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(5)) * torch.logspace(-9, 3, shape[-1])
    found = integers_of(weight, kind)
    numbers, scales = reference.rounded_weight(weight.numpy(), BITS[kind])
    assert np.array_equal(found.numbers.numpy(), numbers)
    assert np.array_equal(found.scales.numpy(), scales)
    limit = 2 ** (BITS[kind] - 1) - 1
    flat = found.numbers.reshape(-1, shape[-1]).abs().amax(0)
    assert (flat == limit).all(), "the largest weight of each neuron has the largest integer"
    error = (product(found) - weight).abs()
    assert (error <= 0.5001 * found.scales).all()


@pytest.mark.parametrize("kind", KINDS)
def test_rounding_twice_changes_nothing(kind: str) -> None:
    weight = torch.randn(301, 37, generator=torch.Generator().manual_seed(7)) * torch.logspace(-20, 20, 37)
    weight[:, 5] = 0
    once = integers_of(weight, kind)
    exact = once.numbers.double() * once.scales.double()
    assert torch.equal(product(once).double(), exact), "integer times scale is exact in float32"
    twice = integers_of(product(once), kind)
    assert torch.equal(once.numbers, twice.numbers)
    assert torch.equal(once.scales, twice.scales)


def test_synapses_of_a_list_have_the_scale_of_their_receiver() -> None:
    matrix = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    matrix[:, 3] = 0
    ids = torch.arange(4).repeat(6)
    flat = integers_of(matrix.reshape(-1), "int4", Receivers(4, ids))
    whole = integers_of(matrix, "int4")
    assert torch.equal(flat.numbers, whole.numbers.reshape(-1))
    assert torch.equal(flat.scales, whole.scales)


def test_the_gradient_passes_to_the_float_weight() -> None:
    weight = torch.randn(5, 3, requires_grad=True)
    d = torch.randn(5, 3)
    rounded(weight, "int4").backward(d)
    assert weight.grad is not None
    assert torch.equal(weight.grad, d)


# ---- networks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ["cpu", "dense"])
@pytest.mark.parametrize("net", NETS)
def test_a_network_reads_integers_times_scales_and_learns_straight_through(net: str, backend: str, kind: str) -> None:
    network, spikes = ss.parse_net(net), spikes_of()
    model = ss.Model(network, backend=backend, weight_dtype=kind)
    plain = ss.Model(network, backend=backend)
    for name, layer in model.layers.items():
        for c in layer.incoming:
            found = layer.integers(c, kind)
            with torch.no_grad():
                getattr(plain.layers[name], c.name).copy_(product(found, layer.receivers(c)))
    losses = [loss_of(m, spikes) for m in (model, plain)]
    assert losses[0].item() == losses[1].item()
    for loss in losses:
        loss.backward()
    for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad), name
        if "->" in name:
            assert not torch.equal(p, q), name


@pytest.mark.parametrize("kind", KINDS)
def test_engine_dense_and_reference_agree(kind: str) -> None:
    network, spikes = ss.parse_net("13-11r-5"), spikes_of()
    outputs = [ss.Model(network, backend=b, weight_dtype=kind)(spikes).potentials for b in ("cpu", "dense")]
    assert torch.allclose(*outputs, atol=1e-5)
    layer = ss.Model(network, weight_dtype=kind).layers["hidden"]
    p = reference.Parameters.from_layer(layer, np.float32)
    numbers, scales = reference.rounded_weight(layer.weights[0].detach().numpy(), BITS[kind])
    assert np.array_equal(p.weights[0], numbers * scales)


def test_a_convolution_has_a_scale_per_filter() -> None:
    network = ss.parse_net("2x7x7:3C5-3")
    model = ss.Model(network, backend="dense", weight_dtype="int4")
    layer = next(iter(model.layers.values()))
    assert layer.integers(layer.incoming[0], "int4").scales.shape == (5,)
    x = ss.SpikeBatch.from_dense((torch.rand(4, 2, 98) < 0.3).float())
    model(x).potentials.sum().backward()
    assert layer.weights[0].grad.abs().sum() > 0


def test_traces_and_live_models_read_the_same(tmp_path: Path) -> None:
    model, spikes = ss.Model(ss.parse_net("13-11r-5"), weight_dtype="int4"), spikes_of()
    output = model(spikes, record=["hidden"])
    assert torch.equal(output.potentials, model.live()(spikes).potentials)
    fired = output.traces["hidden"].v > output.traces["hidden"].threshold
    assert torch.equal(fired.float(), output.spikes["hidden"].to_dense())


# ---- files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("net", NETS)
def test_a_file_gives_the_same_numbers(net: str, kind: str, tmp_path: Path) -> None:
    model, spikes = ss.Model(ss.parse_net(net), weight_dtype=kind), spikes_of()
    integers.save(model, tmp_path / "a.safetensors")
    for backend in ("cpu", "dense"):
        again = integers.load(tmp_path / "a.safetensors", backend=backend)
        same = ss.Model(ss.parse_net(net), backend=backend, weight_dtype=kind)
        assert loss_of(again, spikes).item() == loss_of(same, spikes).item()
    integers.save(again, tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.safetensors", "b.safetensors"]
    saved = integers.read(tmp_path / "a.safetensors")
    assert (saved.network, saved.weight_dtype) == (model.network, kind)


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    model = ss.Model(ss.parse_net("13-11r-5"))
    path = tmp_path / "a.safetensors"
    with pytest.raises(DescriptionError, match="weight_dtype is 'float32'; allowed: int8, int4"):
        integers.save(model, path)
    with pytest.raises(ConfigError, match="nowhere.*cannot be written"):
        integers.save(model, tmp_path / "nowhere" / "a", "int8")
    with pytest.raises(CheckpointError, match=r"a\.safetensors: no such file"):
        integers.read(path)
    integers.save(model, path, "int8")
    whole = path.read_bytes()
    for hostile in (b"", whole[:100], whole[:-3], b"\xff" * 64, whole.replace(b"int8", b"int9")):
        path.write_bytes(hostile)
        with pytest.raises(CheckpointError, match=r"a\.safetensors: is damaged or not a file with integer weights"):
            integers.load(path)


# ---- other libraries -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["nir", "norse"])
def test_nir_holds_integers_times_the_scale_in_the_metadata(target: str, tmp_path: Path) -> None:
    pytest.importorskip("nir", reason="nir is optional")
    from sparsesnn.nir import from_nir, read, to_nir, write

    network = ss.parse_net("13-11-5", reset="zero", bias=True)
    model = ss.Model(network, weight_dtype="int8")
    arguments: dict[str, Any] = {"dt": 1e-3} if target == "nir" else {"readout": "linear"}
    write(tmp_path / "a.nir", to_nir(model, target=target, **arguments))
    graph = read(tmp_path / "a.nir")
    nodes = [graph.nodes[f"{c.pre}_to_{c.post}"] for c in network.connections]
    for node, layer in zip(nodes, model.layers.values(), strict=True):
        scale = node.metadata["scale"]
        numbers = layer.integers(layer.incoming[0], "int8").numbers.numpy()
        assert np.array_equal(node.weight, (numbers * scale).T)
        assert np.abs(np.rint(node.weight / scale[:, None])).max() == 127
    if target == "nir":
        again = from_nir(tmp_path / "a.nir", source="nir", dt=1e-3, reset="zero")
        assert torch.allclose(again(spikes_of()).potentials, model(spikes_of()).potentials, atol=1e-4)
