"""A time step as a module and as an ONNX file: the numbers of the model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import sparsesnn as ss
from sparsesnn.cli import main
from sparsesnn.onnx import StepModule, export
from sparsesnn.train import Config, train

T, B = 13, 3


def loud(network: ss.Network, backend: str = "cpu") -> ss.Model:
    model = ss.Model(network, backend=backend)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(4)
    return model


def everything() -> ss.Network:
    return ss.Network(
        {
            "input": ss.Input(17),
            "first": ss.AdLIF(11, recurrent=True, gain=8.0),
            "second": ss.CubaLIF(9, bias=True, reset="zero"),
            "output": ss.LI(5),
        },
        (
            ss.Connection("input", "first", 2),
            ss.Connection("input", "first"),
            ss.Connection("first", "second"),
            ss.Connection("second", "output", 1),
            ss.Connection("first", "output", 0, ss.Sparse(0.4)),
        ),
    )


def some_spikes(n: int = 17) -> torch.Tensor:
    return (torch.rand(T, B, n, generator=torch.Generator().manual_seed(0)) < 0.3).float()


def delayed() -> ss.Network:
    return ss.Network(
        {"input": ss.Input(17), "hidden": ss.LIF(11), "output": ss.LI(5)},
        (
            ss.Connection("input", "hidden", 1, axonal=ss.Delays(4, given=tuple(m % 5 for m in range(17)))),
            ss.Connection("hidden", "output", 1),
        ),
    )


@pytest.mark.parametrize(
    ("network", "backend"),
    [
        (everything(), "cpu"),
        (ss.parse_net("17-11r-5s"), "cpu"),
        (delayed(), "cpu"),
        (ss.parse_net("2x8x8:3C3s2-MP2-5"), "dense"),
    ],
    ids=["everything", "spiking readout", "axonal delays", "convolution"],
)
def test_steps_are_those_of_the_model(network: ss.Network, backend: str) -> None:
    model, x = loud(network, backend), some_spikes(network.populations["input"].n)
    step = StepModule(model)
    states, outputs = step.first_states(B), []
    for t in range(T):
        output, *states = step(x[t], *states)
        outputs.append(output)
    whole = model(ss.SpikeBatch.from_dense(x))
    assert min(whole.activity().values()) > 0.02
    expected = whole.spikes["output"].to_dense() if whole.potentials is None else whole.potentials
    torch.testing.assert_close(torch.stack(outputs), expected.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_the_file_runs_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="needs onnx and onnxscript, in the extra 'onnx'")
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    model, x = loud(everything()), some_spikes()
    step = export(model, tmp_path / "step.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["step.onnx"]
    session = onnxruntime.InferenceSession(str(tmp_path / "step.onnx"))
    assert [i.name for i in session.get_inputs()] == ["spikes", *step.state_names]
    assert [o.name for o in session.get_outputs()] == ["output", *(f"next_{name}" for name in step.state_names)]
    states, outputs = [z.numpy() for z in step.first_states(B)], []
    for t in range(T):
        output, *states = session.run(
            None, {"spikes": x[t].numpy(), **dict(zip(step.state_names, states, strict=True))}
        )
        outputs.append(torch.from_numpy(output))
    expected = model(ss.SpikeBatch.from_dense(x)).potentials
    assert expected is not None
    torch.testing.assert_close(torch.stack(outputs), expected.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxscript", reason="needs onnx and onnxscript, in the extra 'onnx'")
    small = {"name": "synthetic", "n_neurons": 17, "n_classes": 3, "n_steps": 11, "n_samples": 40, "activity": 0.2}
    options = {"epochs": 1, "batch": 8, "tensorboard": False, "plots": False}
    config = Config.resolve({"data": small, "net": {"text": "auto-9-auto"}, "init": {"activity": 0}, "train": options})
    train(config, out=tmp_path / "run")
    assert main(["onnx", str(tmp_path / "run"), str(tmp_path / "step.onnx")]) == 0
    out = capsys.readouterr().out
    assert "spikes [B, 17]" in out
    assert "hidden.v [B, 9], returned as next_hidden.v" in out
    assert main(["onnx", str(tmp_path / "run"), str(tmp_path / "absent" / "step.onnx")]) == 2
    assert "step.onnx cannot be written: No such file or directory" in capsys.readouterr().err
