"""The check for a machine with a GPU, as a dry run on the emulated device: it passes, and finds faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gpu_check
import pytest
from gpu_checks import bits, devices, networks, speed
from gpu_checks.report import FaultError, Part, Report

from sparsesnn.engines.gpu import cubins, weights
from sparsesnn.engines.gpu.engine import GpuEngine
from sparsesnn.errors import DeviceError

pytestmark = pytest.mark.usefixtures("emulated")


@pytest.fixture(autouse=True)
def no_sanitizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine may have one, which would find no GPU."""
    monkeypatch.setattr(bits, "find_sanitizer", lambda: None)


def parts_of(folder: Path, what: str = "bits") -> dict[str, Any]:
    report = json.loads((folder / f"{what}.json").read_text())
    return {part["name"]: part for part in report["parts"]}


@pytest.mark.slow
def test_bits(tmp_path: Path) -> None:
    assert gpu_check.main(["bits", "--device", "emulated", "--out", str(tmp_path)]) == 0
    parts = parts_of(tmp_path)
    assert [part["verdict"] for part in parts.values()] == [
        "passed",
        "passed",
        "skipped",
        "skipped",
        "passed",
        "passed",
        "passed",
    ]
    assert "gpu_check.py bits: passed" in (tmp_path / "bits.txt").read_text()


@pytest.mark.slow
def test_wrong_bits_stop_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adam with another learning rate: the first network differs, and the report says where."""
    right = weights.adam_numbers

    def wrong(group: Any, step: float, scale: float) -> Any:
        numbers = right(group, step, scale)
        numbers[6] *= 1.001
        return numbers

    monkeypatch.setattr(weights, "adam_numbers", wrong)
    assert gpu_check.main(["bits", "--device", "emulated", "--out", str(tmp_path)]) == 1
    parts = parts_of(tmp_path)
    assert list(parts) == ["device", "small networks"]
    (line,) = parts["small networks"]["lines"]
    assert "weights" in line
    assert "differ from the engine cpu; " in line
    assert ": cpu " in line


@pytest.mark.slow
def test_speed(tmp_path: Path) -> None:
    arguments = ["speed", "--device", "emulated", "--out", str(tmp_path), "--no-rivals", "--seconds", "2000"]
    assert gpu_check.main(arguments) == 0
    parts = parts_of(tmp_path, "speed")
    kernels = parts["kernels alone: W2, batch 3, 5.0%"]
    names = {row["kernel"] for row in kernels["kernels"]}
    assert {"step", "step_grad", "senders", "weight_grad", "adam"} <= names
    assert all(row["us"] > 0 for row in kernels["kernels"])
    steps = parts["whole steps: W1, batch 3"]
    assert [row["who"] for row in steps["rows"]][:2] == ["lists, float32", "dense, float32"]
    assert steps["rows"][0]["bytes"] > 10_000
    assert steps["host_alone_s"] > 0
    assert "a dry run" in parts["result"]["lines"][0]
    assert "times the best dense float32" in "\n".join(parts["result"]["lines"])


def test_bytes_of_kernels_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, watched = speed._gpu("cuda", networks.DRY, "W2", 3, 0.05)
    data = speed._batch(networks.DRY.nets["W2"], networks.DRY, 3)
    watched.ran.clear()
    with devices.replaced(lambda: watched):
        engine.step(data, 1e-12)
        count = speed._bytes_of(engine, data)
    lists = engine.program.passes.lists("hidden")[0]
    fired, listed, given = int(lists.n_spikes.sum()), lists.ids.numel(), data.spikes.ids.numel()
    hidden, output = (engine.program.layers[name] for name in ("hidden", "output"))
    found = {(launch.kernel.name, launch.what): count(launch) for launch in watched.ran}
    assert found["step", "hidden"] == 4 * hidden.n_padded * (given + fired)
    assert found["step", "output"] == 4 * output.n_padded * fired
    assert found["step_grad", "hidden"] == 4 * hidden.n_padded * (2 * listed + 6 * 3)
    assert found["list_grad", "hidden -> output"] == 8 * output.n_padded * listed
    assert found["weight_grad", "layers.hidden.input->hidden"] == 4 * hidden.n_padded * (given + 40)
    assert fired > 0
    engine.close()
    assert watched.n_bytes == 0


def test_a_part_that_fails_stops_the_rest(tmp_path: Path) -> None:
    report = Report("bits", tmp_path, 100)

    def passes(part: Part) -> None:
        part.say("fine")

    def fails(part: Part) -> None:
        raise FaultError("a list differs")

    report.run("one", passes)
    report.run("two", fails, stops=False)
    report.run("long", passes, needs=1000)
    report.run("three", fails)
    report.run("four", passes)
    assert report.end() == 1
    parts = parts_of(tmp_path)
    assert {name: part["verdict"] for name, part in parts.items()} == {
        "one": "passed",
        "two": "failed",
        "long": "skipped",
        "three": "failed",
    }
    text = (tmp_path / "bits.txt").read_text()
    assert "a list differs" in text
    assert "stopped after: three" in text


def test_a_device_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise DeviceError("device 'cuda': there is no NVIDIA driver")

    monkeypatch.setattr("sparsesnn.engines.gpu.choose.open_device", missing)
    assert gpu_check.main(["bits", "--out", str(tmp_path)]) == 2
    assert "there is no NVIDIA driver" in (tmp_path / "bits.txt").read_text()


def test_an_idle_device_compiles_what_a_step_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(devices, "load_nvrtc", lambda: (None, (13, 0)))
    monkeypatch.setattr(cubins, "cached", lambda key, compile: asked.append(key))
    with devices.replaced(lambda: devices.Idle("sm_90")):
        engine = networks.make_engine(GpuEngine, "gpu", "5-8r-2", 2, {})
        engine.step(networks.batch_of("5-8r-2", networks.DRY, 2), 1e-3)
    assert len(set(asked)) > 3
    assert bits.SANITIZERS.keys() == {"memcheck", "racecheck"}
