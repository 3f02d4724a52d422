"""Devices and precisions of the dense backend, as far as a machine without a GPU can tell."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from sparsesnn.bench import Workload
from sparsesnn.bench.racing import Trainee
from sparsesnn.cli import main
from sparsesnn.engines.dense import device as devices
from sparsesnn.engines.module import Model
from sparsesnn.errors import ConfigError, DescriptionError
from sparsesnn.network import parse_net
from sparsesnn.train import Config


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)


@pytest.mark.usefixtures("two_gpus")
def test_devices_by_name() -> None:
    for text, want in [("cpu", "cpu"), ("cuda", "cuda:1"), ("cuda:0", "cuda:0"), ("cuda:1", "cuda:1")]:
        assert str(devices.find_device(text)) == want
    with pytest.raises(ConfigError, match=r"'cuda:2', but there are 2 CUDA devices; give cuda:0 to cuda:1"):
        devices.find_device("cuda:2")
    for text in ("gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0", ""):
        with pytest.raises(ConfigError, match=rf"device: is '{text}'; allowed: cpu, cuda, cuda:0"):
            devices.find_device(text)


@pytest.mark.usefixtures("no_cuda")
def test_without_cuda_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(ConfigError, match="was built without CUDA; use device cpu"):
        devices.find_device("cuda:0")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(ConfigError, match=r"finds no CUDA device \(driver, visibility\?\); use device cpu"):
        devices.find_device("cuda:0")


@pytest.mark.usefixtures("no_cuda")
@pytest.mark.parametrize(
    "command",
    [
        "bench step --backend dense",
        "bench baselines",
        "bench activity --out OUT",
        "train synthetic --backend dense --no-plots --no-tensorboard --out OUT",
    ],
)
def test_commands_refuse_a_device_that_is_not_there(
    command: str, tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(tmp_path) if word == "OUT" else word for word in command.split()]
    assert main([*arguments, "--device", "cuda:0"]) == 2
    assert "is 'cuda:0', but this PyTorch" in capsys.readouterr().err


def test_configurations_that_mean_nothing_are_refused() -> None:
    def config(**train: str) -> Config:
        return Config.resolve({"data": {"name": "digits"}, "train": train})

    assert config(backend="dense", precision="bfloat16").train.precision == "bfloat16"
    with pytest.raises(ConfigError, match=r"train.device: is 'cuda' with backend 'cpu'; only backend 'gpu' or 'dense'"):
        config(device="cuda")
    with pytest.raises(ConfigError, match="'bfloat16' with backend 'cpu'; only backend 'dense' reads it"):
        config(precision="bfloat16")
    with pytest.raises(ConfigError, match="precision: is 'int8'; allowed: float32, tf32, bfloat16, float16"):
        config(backend="dense", precision="int8")
    assert config(backend="dense", device="cuda:1", precision="tf32").train.precision == "tf32"
    with pytest.raises(ConfigError, match="precision: is 'tf32' with device 'cpu'.*float32, bfloat16; use device cuda"):
        config(backend="dense", precision="tf32")
    with pytest.raises(ConfigError, match="'float16', whose small gradients become 0.*use 'bfloat16'"):
        config(backend="dense", precision="float16")


def test_tf32_needs_a_gpu_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda", 0)
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(ConfigError, match=r"'tf32', but cuda:0 has compute capability 7.5; TF32 needs 8.0"):
        devices.use_precision(gpu, "tf32")
    assert not products.allow_tf32
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with devices.tf32("tf32"):  # which puts the settings back
        products.allow_tf32 = convolutions.allow_tf32 = False
        devices.use_precision(gpu, "tf32")
        assert products.allow_tf32
        assert convolutions.allow_tf32
    assert not products.allow_tf32
    devices.check_tf32(torch.device("cpu"), "tf32")


def test_mixed_precision_on_a_cpu() -> None:
    """ "auto" leaves the fused mode, which computes in float32; loss and gradients stay near those in float32."""
    workload = Workload(net="20-30-5", n_steps=15, n_samples=6, input_activity=0.2, hidden_activity=0.1)
    spikes, labels = workload.spikes(), workload.labels()
    model = workload.model("dense", spikes)
    losses, gradients = {}, {}
    for precision in ("float32", "bfloat16"):
        losses[precision] = Trainee(model, precision=precision).step(spikes, labels)[1]
        gradients[precision] = model.layers["hidden"].weights[0].grad.clone()
        assert gradients[precision].dtype == torch.float32
    assert losses["bfloat16"] != losses["float32"]
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.05)
    similar = torch.nn.functional.cosine_similarity(*(g.flatten() for g in gradients.values()), dim=0)
    assert 0.8 < similar < 1
    fused = Model(parse_net("20-30-5"), backend="dense", dense_mode="fused")
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(DescriptionError, match="use 'hoist' for mixed precision"),
    ):
        fused(spikes)


def test_energy_is_counted_where_nvml_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    class NVMLError(Exception):
        pass

    def consumption(handle: object) -> int:
        if handle == "old":
            raise NVMLError
        return 4_500

    nvml = SimpleNamespace(NVMLError=NVMLError, nvmlDeviceGetTotalEnergyConsumption=consumption)
    cuda = torch.device("cuda", 0)
    for handle, want in [((nvml, "new"), 4.5), ((nvml, "old"), None), (None, None)]:
        monkeypatch.setattr(devices, "_nvml_handle", lambda index, handle=handle: handle)
        assert devices.joules(cuda) == want
    assert devices.joules(torch.device("cpu")) is None
