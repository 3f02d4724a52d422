"""Networks of images: their description, and their modes against each other."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sparsesnn.bench import Workload
from sparsesnn.bench.baselines import bench_baselines
from sparsesnn.engines.dense import image_fused
from sparsesnn.engines.dense.image_model import ImageModel, scale_to_activity
from sparsesnn.engines.dense.image_network import ImageNetwork, Pool, Stage, is_image_net, parse_image_net
from sparsesnn.errors import ConfigError, DescriptionError, ShapeError
from sparsesnn.layers import LI, LIF, CubaLIF
from sparsesnn.spikes import SpikeBatch
from studies.sweep import Settings, bench_sweep

NETS = ["2x9x8:3C4-MP2-6", "1x12x12:5C3+MP2-3C5pb-AP2-20b-7c-10s", "3x8x8:3C4pbc-3C6b+AP2-5", "1x4x5:6"]


def random_images(network: ImageNetwork, n_steps: int = 7, n_samples: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(n_steps, n_samples, *network.shape, generator=generator) < 0.4


def run(text: str, mode: str, *, train: bool = True, dtype: torch.dtype = torch.float64, **more: object) -> dict:
    """Loss, gradients of everything, buffers and activity of a network that fires."""
    network = parse_image_net(text, threshold=0.5, grad_threshold=0.1, **more)
    model = ImageModel(network, dense_mode=mode, seed=1).to(dtype).train(train)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("weight"):
                parameter.mul_(2)
            if name.endswith("norm_bias"):
                parameter.add_(0.1)
    images = random_images(network).to(dtype).requires_grad_()
    output = model(images)
    readout = output.counts() if output.potentials is None else output.potentials
    loss = readout.square().mean() + sum(output.spikes[name].mean() for name in output.spikes)
    loss.backward()
    found = {name: p.grad for name, p in model.named_parameters()} | {"images": images.grad}
    return {"loss": loss.item(), "grads": found, "buffers": dict(model.named_buffers()), "activity": output.activity()}


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("text", NETS)
@pytest.mark.parametrize("chunk", [1 << 20, 1])
def test_modes_agree(text: str, train: bool, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """ "step" and "hoist" are plain autograd with PyTorch's batch norm; in training and with its running means."""
    monkeypatch.setitem(image_fused.CHUNK_NUMBERS, "cpu", chunk)
    more = {"learn_beta": True, "learn_threshold": True, "bias": True, "reset": "zero", "detach_reset": False}
    want = run(text, "step", train=train, **more)
    assert all(activity > 0.02 for activity in want["activity"].values())
    for mode in ("hoist", "fused"):
        got = run(text, mode, train=train, **more)
        assert got["loss"] == pytest.approx(want["loss"], rel=1e-12)
        assert set(got["grads"]) == set(want["grads"])
        for name, gradient in want["grads"].items():
            assert gradient.abs().max() > 0, name
            assert (got["grads"][name] - gradient).abs().max() <= 1e-9 * gradient.abs().max(), (mode, name)
        for name, buffer in want["buffers"].items():
            torch.testing.assert_close(got["buffers"][name], buffer, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reset_decays", [False, True])
@pytest.mark.parametrize("chunk", [1 << 20, 1])
def test_nobody_has_fired_before_the_first_step(
    chunk: int, reset_decays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A threshold that learns may become negative; the potential 0 before the first step is no spike for it either."""
    monkeypatch.setitem(image_fused.CHUNK_NUMBERS, "cpu", chunk)
    found = []
    for mode in ("hoist", "fused"):
        network = parse_image_net("1x6x6:3C4b-5s", grad_threshold=-1, learn_threshold=True, learn_beta=True,
                                  reset_decays=reset_decays)  # fmt: skip
        model = ImageModel(network, dense_mode=mode, seed=1).double().eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith(("threshold", "norm_bias")):
                    parameter.fill_(-0.3 if name.endswith("threshold") else -0.4)
        silent = torch.zeros(4, 2, *network.shape, dtype=torch.float64)
        assert not model(silent).spikes["hidden1"].any()  # v = i = -0.4 < θ; reset by -θ they would all fire
        images = random_images(network).double()
        output = model(images)
        output.counts().square().mean().backward()
        found.append((output.spikes["hidden1"].detach(), {k: p.grad for k, p in model.named_parameters()}))
    assert torch.equal(found[0][0], found[1][0])
    for name, gradient in found[0][1].items():
        assert (found[1][1][name] - gradient).abs().max() <= 1e-9 * gradient.abs().max(), name


def test_float32_agrees() -> None:
    want, got = (run("2x9x8:3C4b-MP2-11-6", mode, dtype=torch.float32) for mode in ("step", "fused"))
    assert got["loss"] == pytest.approx(want["loss"], rel=1e-5)
    for name, gradient in want["grads"].items():
        assert (got["grads"][name] - gradient).abs().max() <= 1e-5 * gradient.abs().max(), name


def test_lists_and_tensors_are_the_same_images() -> None:
    network = parse_image_net("2x9x8:3C4-MP2-6", threshold=0.5)
    images, model = random_images(network), ImageModel(network)
    lists = SpikeBatch.from_dense(images.flatten(2).float())
    assert torch.equal(model(images).potentials, model(lists).potentials)
    with pytest.raises(ShapeError, match=r"input has 7 neurons; the network's images \(2, 9, 8\) have 144"):
        model(SpikeBatch.from_dense(torch.zeros(2, 1, 7)))
    with pytest.raises(ShapeError, match=r"input is \(7, 3, 144\); give \[T, B, 2, 9, 8\]"):
        model(images.flatten(2))


def test_scaled_until_it_fires() -> None:
    network = parse_image_net("1x12x12:5C3+MP2-20-10")
    model, images = ImageModel(network), random_images(network, n_steps=20)
    scale_to_activity(model, images, 0.05)
    assert all(0.04 < a < 0.06 for a in model(images).activity().values())


# ---- the description ---------------------------------------------------------------------------------------------------


def test_the_network_of_the_ipu_paper() -> None:
    """28 → 24 → 12 → 8 → 4: 64 · 4 · 4 elements for the readout."""
    network = parse_image_net("1x28x28:5C12+MP2-5C64+MP2-10")
    assert [shape for _, shape in network.maps()] == [(12, 12, 12), (64, 4, 4), (10, 1, 1)]
    assert network.n_weights() == 12 * 25 + 64 * 12 * 25 + 10 * 1024
    assert network.n_products() == [24 * 24 * 300, 8 * 8 * 64 * 12 * 25, 10240]
    assert network.names == ["hidden1", "hidden2", "output"]
    assert [s.after for s in network.stages] == [(Pool("max", 2),), (Pool("max", 2),), ()]
    pooled_spikes = parse_image_net("1x28x28:5C12-MP2-5C64-MP2-10", n_outputs=500)
    assert [s.before for s in pooled_spikes.stages] == [(), (Pool("max", 2),), (Pool("max", 2),)]
    assert pooled_spikes.stages[-1].neuron == LI(500)
    assert isinstance(network.with_model(CubaLIF).stages[0].neuron, CubaLIF)
    assert is_image_net("1x28x28:10")
    assert not is_image_net("784-1000-10")


def test_letters() -> None:
    stages = parse_image_net("3x32x32:3C128pb-5C8c-16b-10s", beta=0.5, alpha=0.25).stages
    assert [s.padding for s in stages] == [1, 0, 0, 0]
    assert [s.batch_norm for s in stages] == [True, False, True, False]
    assert [type(s.neuron) for s in stages] == [LIF, CubaLIF, LIF, LIF]
    assert stages[1].neuron.n == 8 * 28 * 28
    assert {s.neuron.beta for s in stages} == {0.5}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5C12-10", "write the image's channels, height and width, a colon"),
        ("1x28x28:", "write the image's channels"),
        ("0x28x28:10", "give C, H, W and a stage"),
        ("1x28x28:5C12", "'5C12' is no layer here"),
        ("1x28x28:5C12-XP2-10", "'XP2' is no layer here"),
        ("1x28x28:5C12+XP2-10", "'XP2' is no pool; write MP2"),
        ("1x28x28:5C12-10s-10", "'10s' is no layer here"),
        ("1x28x28:29C2-10", r"stage 1: nothing is left of maps of \(1, 28, 28\)"),
        ("1x28x28:5C2-MP64-10", "stage 2: nothing is left"),
        ("9x9999x9999:3C9999-10", r"stage 1: has maps of .* allowed: 268,435,456"),
    ],
)
def test_what_is_no_network_is_refused(text: str, message: str) -> None:
    with pytest.raises(DescriptionError, match=message):
        parse_image_net(text)


def test_stages_that_do_not_fit_are_refused() -> None:
    for stages, message in [
        ((Stage(LIF(5), 4),), "stage 1: has 5 neurons for maps of .* give 4"),
        ((Stage(LI(4), 4), Stage(LI(4), 4)), "stage 1: is an LI readout"),
        ((Stage(LIF(4, recurrent=True), 4),), "stage 1: is recurrent or has a capacity"),
        ((), "give C, H, W and a stage"),
    ]:
        with pytest.raises(DescriptionError, match=message):
            ImageNetwork((1, 2, 2), stages)
    with pytest.raises(DescriptionError, match="Pool: 'median' over 2; allowed: max or mean"):
        Pool("median", 2)
    with pytest.raises(DescriptionError, match=r"net: unknown arguments \['tau'\]"):
        parse_image_net("1x2x2:3", tau=3)


def test_the_engine_refuses_images() -> None:
    network = parse_image_net("1x5x5:3C2-4")
    with pytest.raises(DescriptionError, match=r"backend is 'cpu', but convolutions.*have no event lists"):
        ImageModel(network, backend="cpu")
    with pytest.raises(DescriptionError, match="dense_mode is 'slow'"):
        ImageModel(network, dense_mode="slow")
    workload = Workload(net="1x5x5:3C2-4", n_steps=2, n_samples=2)
    with pytest.raises(DescriptionError, match="have no event lists"):
        workload.model("cpu", workload.spikes())


# ---- the benchmarks ----------------------------------------------------------------------------------------------------


def test_modes_are_raced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsesnn.bench.baselines._peak_elsewhere", lambda *args: 1)
    workload = Workload(net="1x9x9:3C4b-MP2-10", n_steps=4, n_samples=3, input_activity=0.3)
    rows = bench_baselines([workload], ["step", "hoist", "fused"], repeats=1)
    assert [row.mode for row in rows] == ["step", "hoist", "fused"]
    assert all(math.isfinite(row.loss) and row.samples_per_s > 0 for row in rows)


def test_images_are_swept(tmp_path: object) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is optional")
    settings = Settings(
        batch=(2, 3), model=("lif", "cuba_lif"), precision=("float32", "bfloat16"), outputs=(10, 20), backends=("dense",),
        base_batch=2, n_steps=3, repeats=1, input_activity=0.3, net="1x9x9:3C4+MP2-10",
    )  # fmt: skip
    rows = bench_sweep(settings, tmp_path)
    assert [(row["factor"], row["value"]) for row in rows] == [
        *(("batch", 2), ("batch", 3), ("model", "lif"), ("model", "cuba_lif")),
        *(("precision", "float32"), ("precision", "bfloat16"), ("outputs", 10), ("outputs", 20)),
    ]
    assert all(0 < row["synapse_share"] <= 1 and row["events_per_s"] > 0 for row in rows)
    with pytest.raises(ConfigError, match="--net describes images.*give --backends dense"):
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
    with pytest.raises(ConfigError, match=r"mnist has images of \(1, 9, 9\), net '1x8x8:10' reads others"):
        replace(workload, net="1x8x8:10").spikes()
    with pytest.raises(ConfigError, match="images are given, but net '784-10' reads none"):
        replace(workload, net="784-10")
