"""Training runs on the emulated IPU: the same run as on the CPU engine, and one that was stopped resumes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sparsesnn.cli import main
from sparsesnn.engines import Batch
from sparsesnn.engines.ipu.engine import IpuEngine
from sparsesnn.errors import CheckpointError, ConfigError, DescriptionError
from sparsesnn.host.comm import Grid
from sparsesnn.ipu import IpuProgram, backends
from sparsesnn.train import Config, prepare, train

SMALL = {
    "data": {"name": "synthetic", "n_neurons": 30, "n_steps": 12, "n_classes": 3, "n_samples": 60, "n_blocks": 3},
    "net": {"text": "auto-16r-auto", "grad_threshold": 0.5},
    "optim": {"lr": 5e-3, "schedule": "constant", "clip_norm": 1.0},
    "train": {"epochs": 2, "batch": 8, "plots": False, "tensorboard": False, "prefetch": 0},
}

IPU = {"backend": "ipu-model", "target": "ipu-mk2:1x48"}


def config(**train_more: object) -> Config:
    return Config.resolve(SMALL, {"train": train_more})


def test_a_run_ends_where_the_cpu_engine_ends(tmp_path: Path) -> None:
    device = train(config(backend="ipu-model", target="ipu-mk2:1x16"), out=tmp_path / "device")
    host = train(config(), out=tmp_path / "host")
    assert device.test_accuracy == host.test_accuracy
    assert device.test_loss == pytest.approx(host.test_loss, rel=1e-4)
    assert device.activity["hidden"] == pytest.approx(host.activity["hidden"], rel=1e-3)
    lines = [
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("device", "host")
    ]
    for a, b in zip(*lines, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)
        assert a["gradient_norm"] == pytest.approx(b["gradient_norm"], rel=1e-3)
        assert a["valid_loss"] == pytest.approx(b["valid_loss"], rel=1e-4)


def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole = train(config(backend="ipu-model", target="ipu-mk2:1x16"), out=tmp_path / "whole")
    train(config(backend="ipu-model", target="ipu-mk2:1x16", epochs=1), out=tmp_path / "parts")
    resumed = train(config(backend="ipu-model", target="ipu-mk2:1x16"), out=tmp_path / "parts", resume=True)
    assert resumed.weights_sha256 == whole.weights_sha256


WIDE = {"text": "auto-90-50-auto", "grad_threshold": 0.5}


@pytest.mark.parametrize(
    ("delay", "replicas", "rel"),
    [(0, 0, 0.02), (1, 0, 0.02), (0, 4, 0.03)],  # lists of few samples are walked less evenly
)
def test_lists_are_measured_and_the_plan_predicts_the_cycles_of_training(
    tmp_path: Path, delay: int, replicas: int, rel: float
) -> None:
    more = {"net": {**WIDE, "delay": delay}, "train": {"epochs": 1, "batch": 40}}
    on_device = {"train": IPU, "parallel": {"replicas": replicas}}
    device = train(Config.resolve(SMALL, more, on_device), out=tmp_path / "device")
    slots = device.machine["lists"]
    assert list(slots) == ["hidden1", "hidden2"]
    assert 16 <= slots["hidden1"] < 90
    assert device.dropped == {"hidden1": 0, "hidden2": 0}
    assert device.machine["predicted"] == pytest.approx(device.machine["counted"], rel=rel)
    host = train(Config.resolve(SMALL, more), out=tmp_path / "host")
    assert device.test_loss == pytest.approx(host.test_loss, rel=1e-4)


def test_a_resumed_run_keeps_the_lists_that_were_measured(tmp_path: Path) -> None:
    net = {"net": WIDE}
    whole = train(Config.resolve(SMALL, net, {"train": IPU}), out=tmp_path / "whole")
    train(Config.resolve(SMALL, net, {"train": {**IPU, "epochs": 1}}), out=tmp_path / "parts")
    resumed = train(Config.resolve(SMALL, net, {"train": IPU}), out=tmp_path / "parts", resume=True)
    assert resumed.machine["lists"] == whole.machine["lists"]
    assert resumed.weights_sha256 == whole.weights_sha256


@pytest.mark.parametrize(("capacity", "slots"), [(0, 90), (40, 40)])
def test_a_given_capacity_is_not_measured(capacity: int, slots: int) -> None:
    engine, batches = engine_and_batches({**WIDE, "capacity": capacity})
    assert engine.prepare(batch.spikes for batch in batches) == ""
    engine.step(batches[0], 1e-3)
    assert engine.program.plan.populations["hidden1"].capacity == slots
    assert engine.machine()["lists"] == {}


def test_the_first_dropped_spike_is_reported_once() -> None:
    engine, batches = engine_and_batches(WIDE)
    text = engine.prepare(batch.spikes for batch in batches)
    assert f"hidden1 {engine.capacity['hidden1']} of 90" in text
    assert "net.capacity" in text
    engine.capacity["hidden1"] = 1
    warnings = [engine.step(batch, 1e-3).warning for batch in batches[:3]]
    assert "hidden1" in warnings[0]
    assert "net.capacity" in warnings[0]
    assert warnings[1:] == ["", ""]


def test_lists_stay_on_the_device_until_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, batches = engine_and_batches(WIDE)
    first = engine.step(batches[0], 1e-3)  # whose cycles are compared, by its lists
    fetched: list[int] = []
    fetch = IpuProgram.lists
    monkeypatch.setattr(IpuProgram, "lists", lambda self, n=None: fetched.append(n) or fetch(self, n))
    step, (output, _) = engine.step(batches[1], 1e-3), engine.run_decoded(batches[2])
    assert fetched == []
    assert set(step.activity) == set(first.activity) == {"hidden1", "hidden2"}
    assert output.activity() == {name: lists.activity() for name, lists in output.spikes.items()}
    assert output.dropped() == {"hidden1": 0, "hidden2": 0}
    assert fetched == [len(batches[2].labels)]
    late = engine.run_decoded(batches[0])[0]
    engine.run_decoded(batches[1])
    with pytest.raises(DescriptionError, match="hidden1: the device has run another batch"):
        late.spikes["hidden1"]
    assert "absent" not in late.spikes
    with pytest.raises(KeyError):
        late.spikes["absent"]


def engine_and_batches(net: Mapping[str, Any]) -> tuple[IpuEngine, list[Batch]]:
    settings = Config.resolve(SMALL, {"net": net}, {"train": IPU})
    parts = prepare.load_parts(settings.data)
    network = prepare.make_network(settings, parts)
    engine = IpuEngine("ipu-model", network, prepare.make_training(settings, network, 3), Grid.alone())
    stream = prepare.train_stream(settings, parts.train)
    return engine, [Batch(spikes, labels) for spikes, labels in stream.epoch(0)]


def test_potentials_kept_in_part_train_to_the_same_bits(tmp_path: Path) -> None:
    runs = [
        train(config(backend="ipu-model", target="ipu-mk2:1x16", epochs=1, keep_every=n), out=tmp_path / str(n))
        for n in (1, 4)
    ]
    assert runs[0].weights_sha256 == runs[1].weights_sha256


def test_replicas_repeat_themselves_and_go_on_as_many_as_they_were(tmp_path: Path) -> None:
    def run(out: str, replicas: int, *, epochs: int = 2, resume: bool = False) -> Any:
        parallel = {"parallel": {"replicas": replicas}, "train": {"backend": "ipu-model", "target": "ipu-mk2:1x16"}}
        settings = Config.resolve(SMALL, parallel, {"train": {"epochs": epochs, "batch": 7}})
        return train(settings, out=tmp_path / out, resume=resume)

    whole = run("whole", 4)  # batches of 7: the last replica has one sample
    run("parts", 4, epochs=1)
    with pytest.raises(CheckpointError, match="parallel.replicas: 4 → 2"):
        run("parts", 2, resume=True)
    assert run("parts", 4, resume=True).weights_sha256 == whole.weights_sha256
    host = train(config(batch=7), out=tmp_path / "host")
    assert host.test_loss == pytest.approx(whole.test_loss, rel=1e-4)


@pytest.mark.parametrize(
    "more",
    [
        {"augment": {"mix": 0.5}},
        {"loss": {"upper": 0.02, "lower": 0.05}},
        {"net": {"text": "auto-16r-auto", "grad_threshold": 0.5, "learn_beta": True, "learn_threshold": True}},
        {"train": {"weight_dtype": "float16"}},
        {"parallel": {"replicas": 4}, "loss": {"upper": 0.02, "lower": 0.05}},
    ],
    ids=["mixed labels", "regularizer", "learnt parameters", "half-precision weights", "replicas"],
)
def test_what_a_run_may_ask_for_besides(more: dict[str, Any], tmp_path: Path) -> None:
    on_device = {"train": {"backend": "ipu-model", "target": "ipu-mk2:1x16"}}
    device = train(Config.resolve(SMALL, more, on_device), out=tmp_path / "device")
    host_only = {k: v for k, v in more.items() if k not in ("train", "parallel")}
    host = train(Config.resolve(SMALL, host_only), out=tmp_path / "host")
    # float16 weights are others than the engine's: about the same loss; else the same
    assert device.test_loss == pytest.approx(host.test_loss, rel=0.05 if "train" in more else 1e-4)


def test_what_the_device_does_not_do_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="train.target: is 'cpu:4'; give an IPU"):
        config(backend="ipu-model", target="cpu:4")
    with pytest.raises(
        ConfigError, match="train.keep_every: is 3 with backend 'cpu'; only backend 'ipu-model' or 'ipu' reads it"
    ):
        config(keep_every=3)
    with pytest.raises(ConfigError, match="'float16' with backend 'cpu'; only backend 'ipu-model' or 'ipu' reads it"):
        config(weight_dtype="float16")
    with pytest.raises(ConfigError, match="backend 'ipu' needs the Poplar SDK"):
        train(config(backend="ipu"), out=tmp_path / "ipu")


def test_an_installation_without_the_emulated_ipu(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(f"No module named '{name}'", name=name)

    monkeypatch.setattr(backends.importlib, "import_module", absent)
    with pytest.raises(ModuleNotFoundError):  # it is there and cannot be imported: the reason must be seen
        backends.native_module("ipu-model")
    monkeypatch.setattr(backends, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"'ipu-model' needs the emulated IPU.* ./dev run sparsesnn"):
        backends.native_module("ipu-model")


def test_the_benchmark_prints_what_was_counted(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "ipu-model", "--net", "40-30-5", "--delay", "1", "--steps", "6", "--batch", "5"]
    assert main([*arguments, "--target", "ipu-mk2:2x16", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["samples_per_s"] > 0
    assert result["report"]["n_vertices"] > 0
    assert {p["name"] for p in result["report"]["phases"]} >= {"forward/0/step", "backward/0/state gradient", "update"}
    assert main([*arguments, "--replicas", "2", "--json"]) == 0
    of_two = json.loads(capsys.readouterr().out)
    assert of_two["activity"] == pytest.approx(result["activity"], rel=1e-6)
    assert "gradients of replicas" in {p["name"] for p in of_two["report"]["phases"]}
    assert main([*arguments, "--replicas", "0"]) == 2
    assert "replicas is 0; give a whole number, at least 1" in capsys.readouterr().err
    assert main(arguments) == 0
    assert "not measured on an IPU" in capsys.readouterr().out
