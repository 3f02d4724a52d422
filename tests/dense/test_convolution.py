"""Convolution and pooling: the reference against PyTorch's autograd, the modes of the dense engine against each other."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from sparsesnn import LI, LIF, AdLIF, Connection, CubaLIF, Input, Layer, Model, Network, SpikeBatch, parse_net
from sparsesnn.bench import Workload
from sparsesnn.bench.baselines import bench_baselines
from sparsesnn.engines.dense import on_cpu
from sparsesnn.engines.dense.spikes import DenseSpikes
from sparsesnn.errors import ConfigError, DescriptionError
from sparsesnn.init import init_activity
from sparsesnn.onnx import StepModule
from sparsesnn.reference import Parameters, network_backward, network_forward
from sparsesnn.synapses import Conv2d, Dense, Pool, Series, Synapses
from studies.sweep import Settings, bench_sweep

#: odd sizes, channels last; each is bound to maps of 9 × 7 with 4 channels
KINDS = [
    Conv2d(6, 3),
    Conv2d(6, 3, stride=2, padding=1),
    Conv2d(5, 1),
    Conv2d(1, 3),
    Conv2d(6, 3, padding=2, dilation=2, groups=2),
    Conv2d(8, (2, 3), stride=(1, 3), padding=(0, 2), groups=4),
    Conv2d(4, 5, stride=3, padding=4, dilation=(1, 2)),
    Pool("sum", 2),
    Pool("average", (3, 2), stride=1),
    Pool("max", 3, stride=2),
    Series((Pool("average", 2), Conv2d(3, 2))),
    Series((Conv2d(3, 2, padding=1), Pool("max", 2))),
    Series((Pool("sum", 2), Conv2d(4, 2, groups=2), Pool("max", 2, stride=1))),
]
SHAPE = (9, 7, 4)


def bound(kind: Synapses, channels_first: bool = False) -> Any:
    return kind.bound(SHAPE, channels_first)


def draw(kind: Any, *, rows: int = 5) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Values, a weight and how many neurons receive."""
    generator = torch.Generator().manual_seed(0)
    n_post = math.prod(kind.post_shape)
    spikes = torch.rand(rows, math.prod(SHAPE), generator=generator, dtype=torch.float64)
    weight = torch.randn(kind.weight_shape(math.prod(SHAPE), n_post), generator=generator, dtype=torch.float64)
    return spikes, weight, n_post


@pytest.mark.parametrize("channels_first", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_products_and_gradients_are_those_of_autograd(kind: Synapses, channels_first: bool) -> None:
    """NumPy's product, and both gradients by hand, of values that need not be spikes."""
    known = bound(kind, channels_first)
    spikes, weight, n_post = draw(known)
    spikes.requires_grad_()
    weight.requires_grad_()
    made = known.product(spikes, weight)
    d = torch.linspace(-1, 2, made.numel(), dtype=torch.float64).sin().view_as(made)
    made.backward(d)
    assert made.shape == (5, n_post)
    i = np.zeros((5, n_post))
    known.add(i, spikes.detach().numpy(), weight.detach().numpy())
    np.testing.assert_allclose(i, made.detach().numpy(), rtol=0, atol=1e-12)
    d_spikes, d_weight = known.pull(
        spikes.detach().numpy()[None], weight.detach().numpy(), d.numpy()[None].reshape(1, 5, -1)
    )
    np.testing.assert_allclose(d_spikes[0], spikes.grad.numpy(), rtol=0, atol=1e-12)
    by_hand = known.product_grad(spikes.detach(), weight.detach(), d, (True, weight.numel() > 0))
    torch.testing.assert_close(by_hand[0], spikes.grad, rtol=0, atol=1e-12)
    if weight.numel():
        np.testing.assert_allclose(d_weight, weight.grad.numpy(), rtol=0, atol=1e-11)
        torch.testing.assert_close(by_hand[1], weight.grad, rtol=0, atol=1e-11)
        assert known.product_grad(spikes.detach(), weight.detach(), d, (False, True))[0] is None


@pytest.mark.parametrize("kind", KINDS[:6], ids=repr)
def test_the_fan_out_counts_weights_that_are_not_zero(kind: Synapses) -> None:
    """As the matrix of what single spikes bring has them."""
    known = bound(kind)
    _, weight, n_post = draw(known)
    weight[0, 0] = 0
    matrix = known.product(torch.eye(math.prod(SHAPE), dtype=torch.float64), weight)
    assert known.fan_out(weight, torch.ones(n_post, dtype=torch.float64)).tolist() == matrix.count_nonzero(1).tolist()


def test_the_product_is_that_of_a_convolution_layer() -> None:
    """Of `torch.nn.Conv2d`, with its weight [after, before, y, x] and channels before height and width."""
    kind = bound(Conv2d(6, 3, stride=2, padding=1, groups=2))
    layer = torch.nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2, bias=False, dtype=torch.float64)
    images = torch.rand(3, 4, 9, 7, dtype=torch.float64)
    rows = kind.product(images.permute(0, 2, 3, 1).flatten(1), layer.weight.permute(2, 3, 1, 0))
    torch.testing.assert_close(rows.view(3, 5, 4, 6).permute(0, 3, 1, 2), layer(images), rtol=0, atol=1e-12)
    pooled = bound(Pool("max", 2)).product(images.permute(0, 2, 3, 1).flatten(1), torch.empty(0))
    assert torch.equal(pooled.view(3, 4, 3, 4).permute(0, 3, 1, 2), functional.max_pool2d(images, 2))


@pytest.mark.parametrize("channels_first", [False, True])
@pytest.mark.parametrize(("shape", "kind"), [((4, 4, 1), Conv2d(8, 3, stride=(1, 2))), ((5, 2, 1), Conv2d(4, (2, 3), stride=(1, 2), padding=1))])  # fmt: skip
def test_one_channel_in_float32(shape: tuple[int, int, int], kind: Synapses, channels_first: bool) -> None:
    """oneDNN took a view of such maps for another order, and read what lay behind them."""
    known: Any = kind.bound(shape, channels_first)
    spikes = torch.randint(0, 2, (100, math.prod(shape))).float()
    weight = torch.rand(known.weight_shape(math.prod(shape), math.prod(known.post_shape)))
    want = np.zeros((100, math.prod(known.post_shape)))
    known.add(want, spikes.double().numpy(), weight.double().numpy())
    for n in (64, 300, 1600):
        torch.full((n,), 7.0)  # memory that is given back
        np.testing.assert_allclose(known.product(spikes, weight), want, rtol=0, atol=1e-5)


# ---- networks ----------------------------------------------------------------------------------------------------------

LIKELY = {"threshold": 0.5, "grad_threshold": 0.1, "learn_beta": True, "learn_threshold": True, "bias": True}
TEXTS = [
    "2x9x8:3C4-MP2-6",
    "1x12x12:5C3+MP2-3C5p-AP2-20-7c-10s",
    "3x8x8:3C4pc-3C6+AP2-5",
    "1x4x5:6",
    "2x9x7:3C4s2p1d2g2-1C6-SP2-6r-5",
    "2x19:3C4s2p-SP2-2C6d2+MP2-7-5",
]


def networks() -> dict[str, Network]:
    found = {text: parse_net(text, reset="zero", detach_reset=False, **LIKELY) for text in TEXTS}
    found["delays"] = Network(
        {
            "input": Input(shape=(6, 5, 2)),
            "a": CubaLIF(**LIKELY),
            "b": AdLIF(beta=0.5, q=2.0, learn_rho=True, **LIKELY),
            "out": LI(3),
        },
        (
            Connection("input", "a", 2, Conv2d(3, 3)),
            Connection("input", "b", 1, Conv2d(4, 3, padding=1, stride=2)),
            Connection("a", "b", 0, Conv2d(4, (2, 1))),
            Connection("a", "b", 3, Conv2d(4, (2, 1))),
            Connection("b", "out", 1),
            Connection("input", "out", 0, Series((Pool("sum", 2), Dense()))),
        ),
    )
    found["recurrent"] = Network(
        {"input": Input(shape=(5, 6, 2)), "a": LIF(reset="zero", detach_reset=False, **LIKELY), "output": LI(3)},
        (
            Connection("input", "a", 1, Conv2d(4, 3, 2, 1)),
            Connection("a", "a", 3, Conv2d(4, (1, 3), 1, (0, 1), groups=2)),
            Connection("a", "a", 1, Conv2d(4, 3, padding=1)),
            Connection("a", "a", 2, Pool("max", 1)),
            Connection("a", "output"),
        ),
    )
    found["pools alone"] = Network.chain(
        Input(shape=(7, 6, 3)), Pool("sum", 2), LIF(threshold=1.5), Pool("max", 2), LI()
    )
    return found


def spikes_of(network: Network, n_steps: int = 7, n_samples: int = 3) -> SpikeBatch:
    generator = torch.Generator().manual_seed(0)
    n = network.populations["input"].n
    return SpikeBatch.from_dense((torch.rand(n_steps, n_samples, n, generator=generator) < 0.4).float())


def model_of(network: Network, mode: str, dtype: torch.dtype = torch.float64) -> Model:
    model = Model(network, backend="dense", dense_mode=mode, seed=1).to(dtype)
    with torch.no_grad():
        for layer in model.layers.values():
            for weight in layer.weights:
                weight.mul_(3)
    return model


def run(network: Network, mode: str, dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    """Loss, gradients of everything, the input's values included, and activity of a network that fires."""
    model = model_of(network, mode, dtype)
    lists = DenseSpikes.from_lists(spikes_of(network), dtype, torch.device("cpu"))
    place = torch.zeros(lists.shape, dtype=dtype, requires_grad=True)
    output = model(DenseSpikes(lists.fired, place))
    readout = output.counts() if output.potentials is None else output.potentials
    loss = readout.square().mean() + sum(output.spikes[name].mean() for name in output.spikes)
    loss.backward()
    found = {name: p.grad for name, p in model.named_parameters()} | {"input": place.grad}
    return {"loss": loss.item(), "grads": found, "activity": output.activity()}


@pytest.mark.parametrize("chunk", [1 << 20, 1])
@pytest.mark.parametrize("name", networks())
def test_modes_agree(name: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """ "step" and "hoist" are plain autograd; "fused" goes chunk by chunk."""
    monkeypatch.setattr(on_cpu, "MAP_NUMBERS", chunk)
    network = networks()[name]
    want = run(network, "step")
    assert all(activity > 0.02 for activity in want["activity"].values())
    for mode in ("hoist", "fused"):
        got = run(network, mode)
        assert got["loss"] == pytest.approx(want["loss"], rel=1e-12)
        for parameter, gradient in want["grads"].items():
            assert gradient.abs().max() > 0, parameter
            worst = (got["grads"][parameter] - gradient).abs().max()
            assert worst <= 1e-9 * gradient.abs().max(), (mode, parameter)


@pytest.mark.parametrize("name", networks())
def test_the_reference_gives_the_same(name: str) -> None:
    network = networks()[name]
    model, spikes = model_of(network, "fused"), spikes_of(network)
    output = model(spikes)
    readout = output.spikes["output"] if output.potentials is None else output.potentials
    d = torch.linspace(-1, 2, readout.numel(), dtype=torch.float64).sin().view_as(readout)
    if readout.requires_grad:
        readout.backward(d)
    parameters = {k: Parameters.from_layer(layer) for k, layer in model.layers.items()}
    records = network_forward(network, parameters, spikes.to_dense().double().numpy())
    gradients = network_backward(network, parameters, records, {network.output: d.numpy()})
    for k, layer in model.layers.items():
        found = (*gradients[k].weights, *gradients[k].loops)
        for c, got in zip((*layer.senders, *layer.loops), found, strict=True):
            weight = getattr(layer, c.name)
            if weight.numel():
                worst = np.abs(got - weight.grad.numpy()).max()
                assert worst <= 1e-9 * np.abs(got).max(), (k, c.name)
    last = records[network.output]
    want = last.spikes[:-1] if output.potentials is None else last.v[:-1]
    np.testing.assert_allclose(readout.detach().numpy(), want, rtol=0, atol=1e-12)


def test_float32_agrees() -> None:
    network = networks()["2x9x8:3C4-MP2-6"]
    want, got = (run(network, mode, torch.float32) for mode in ("step", "fused"))
    assert got["loss"] == pytest.approx(want["loss"], rel=1e-5)
    for name, gradient in want["grads"].items():
        assert (got["grads"][name] - gradient).abs().max() <= 1e-5 * gradient.abs().max(), name


@pytest.mark.parametrize("mode", ["step", "hoist", "fused"])
def test_a_sequence_in_chunks_is_the_sequence(mode: str) -> None:
    network = networks()["delays"]
    model, spikes = model_of(network, mode), spikes_of(network)
    whole = model(spikes).potentials
    state, parts = None, []
    for start, stop in [(0, 1), (1, 1), (1, 5), (5, 7)]:
        output = model(SpikeBatch.from_dense(spikes.to_dense()[start:stop]), state)
        state = output.state
        parts.append(output.potentials)
    torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", ["hoist", "fused"])
def test_chosen_neurons_are_recorded(mode: str) -> None:
    """Currents and states are those of the reference, delays included."""
    network = networks()["delays"]
    model, spikes = model_of(network, mode), spikes_of(network)
    output = model(spikes, record={"b": [35, 3, 0], "out": None})
    parameters = {k: Parameters.from_layer(layer) for k, layer in model.layers.items()}
    records = network_forward(network, parameters, spikes.to_dense().double().numpy())
    for name, chosen in (("b", [35, 3, 0]), ("out", [0, 1, 2])):
        traces = output.traces[name]
        np.testing.assert_allclose(traces.current.numpy(), records[name].current[:, :, chosen], rtol=0, atol=1e-12)
        np.testing.assert_allclose(traces.states["v"].numpy(), records[name].v[:-1][:, :, chosen], rtol=0, atol=1e-12)


def test_one_step_at_a_time_as_exported() -> None:
    network = networks()["2x9x8:3C4-MP2-6"]
    model, spikes = model_of(network, "hoist", torch.float32), spikes_of(network)
    step = StepModule(model)
    states: list[torch.Tensor] = step.first_states(3)
    outputs = []
    for x in spikes.to_dense().unbind(0):
        output, *states = step(x, *states)
        outputs.append(output)
    torch.testing.assert_close(torch.stack(outputs), model(spikes).potentials, rtol=1e-5, atol=1e-5)


def test_weights_are_scaled_until_neurons_fire() -> None:
    network = parse_net("2x12x12:5C3s2-SP2-20-10", bias=True)
    model, spikes = Model(network, backend="dense"), spikes_of(network, n_steps=20)
    reached = init_activity(model, [spikes], 0.05, mean_shift=0.5)
    assert all(0.045 <= activity <= 0.055 for activity in reached.values())
    pools = networks()["pools alone"]
    before = {k: x.clone() for k, x in Model(pools, backend="dense").state_dict().items()}
    model = Model(pools, backend="dense")
    init_activity(model, [spikes_of(pools)], 0.05)
    assert all(torch.equal(x, before[k]) for k, x in model.state_dict().items())


def test_a_layer_alone_needs_a_number_of_neurons() -> None:
    with pytest.raises(DescriptionError, match=r"LIF: n is None"):
        Layer(LIF(), 3)


# ---- the benchmarks ----------------------------------------------------------------------------------------------------


def test_modes_are_raced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsesnn.bench.baselines._peak_elsewhere", lambda *args: 1)
    workload = Workload(net="1x9x9:3C4-MP2-10", n_steps=4, n_samples=3, input_activity=0.3)
    rows = bench_baselines([workload], ["step", "hoist", "fused"], repeats=1)
    assert [row.mode for row in rows] == ["step", "hoist", "fused"]
    assert all(math.isfinite(row.loss) and row.samples_per_s > 0 for row in rows)


def test_convolutions_are_swept(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is optional")
    settings = Settings(
        batch=(2, 3), model=("lif", "cuba_lif"), precision=("float32", "bfloat16"), outputs=(10, 20), backends=("dense",),
        base_batch=2, n_steps=3, repeats=1, input_activity=0.3, hidden_activity=0.2, net="1x9x9:3C4+MP2-10",
    )  # fmt: skip
    rows = bench_sweep(settings, tmp_path)
    assert [(row["factor"], row["value"]) for row in rows] == [
        *(("batch", 2), ("batch", 3), ("model", "lif"), ("model", "cuba_lif")),
        *(("precision", "float32"), ("precision", "bfloat16"), ("outputs", 10), ("outputs", 20)),
    ]
    assert all(0 < row["synapse_share"] <= 1 and row["events_per_s"] > 0 for row in rows)
    with pytest.raises(ConfigError, match="--net is for convolutions.*give --backends dense"):
        Settings(net="1x9x9:10")


def test_real_images(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 9, 9)).astype(np.uint8)
    head = bytes([0, 0, 8, 3]) + np.array(pixels.shape, ">u4").tobytes()
    (raw / "train-images-idx3-ubyte").write_bytes(head + pixels.tobytes())
    (raw / "train-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 0, 2]))
    workload = Workload(net="1x9x9:3C4-10", n_steps=200, n_samples=4, images=("mnist", str(tmp_path)))
    spikes = workload.spikes().to_dense()
    assert workload.labels().tolist() == [7, 0, 2, 7]
    torch.testing.assert_close(
        spikes.mean(0)[3], torch.from_numpy(pixels[0].reshape(-1) / np.float32(255)), rtol=0, atol=0.15
    )
    with pytest.raises(ConfigError, match=r"mnist has images of \(1, 9, 9\), which do not fit net '1x8x8:10'"):
        replace(workload, net="1x8x8:10").spikes()
    with pytest.raises(ConfigError, match="images are given, but net '784-10' has no convolutions"):
        replace(workload, net="784-10")
