"""Under Lightning and Accelerate, where they are installed: the examples, checkpoints, and Fabric."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
needs_lightning = pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="lightning is not installed")

ROOT = Path(__file__).resolve().parents[2]


def python(*arguments: str) -> str:
    """The output of a program, in a separate process, whose warnings are Lightning's."""
    environment = {**os.environ, "SPARSESNN_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=600, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_lightning
@pytest.mark.parametrize("options", [[], ["--precision", "bf16-mixed"], ["--devices", "2"]])
def test_the_example_learns(options: list[str], tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    example = ROOT / "examples" / "lightning_digits.py"
    printed = python(str(example), "--epochs", "3", "--out", str(tmp_path), *options)
    accuracy = float(printed.split("accuracy ")[-1].split(" %")[0])
    assert accuracy > 75  # chance is 10
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    again = f"""
import sys; sys.path.insert(0, {str(example.parent)!r})
from lightning_digits import Classifier, Digits, collate
classifier = Classifier.load_from_checkpoint({str(checkpoint)!r}, weights_only=True)
digits = Digits("test")
spikes, labels = collate([digits[k] for k in range(len(digits))])
found = (classifier.model(spikes).potentials.amax(0).argmax(1) == labels).float().mean()
print(f"{{100 * float(found):.1f}}")
"""
    found = float(python("-c", again))
    # two processes see an even number of samples each: some are counted twice
    assert found == pytest.approx(accuracy, abs=0.05 if "--devices" not in options else 1)


@needs_lightning
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("backend", ["cpu", "dense"])
def test_fabric(precision: str, backend: str) -> None:
    program = f"""
import torch
import sparsesnn as ss
from lightning.fabric import Fabric
fabric = Fabric(accelerator="cpu", devices=1, precision={precision!r})
net = ss.Model(ss.parse_net("30-20r-5"), backend={backend!r})
model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
before = [p.clone() for p in net.parameters()]
spikes = fabric.to_device(ss.SpikeBatch.from_dense((torch.rand(7, 3, 30) < 0.5).float()))
output = model(spikes)
fabric.backward(output.potentials.sum() + output.counts("hidden").sum())
optimizer.step()
assert all((p != q).any() for p, q in zip(net.parameters(), before))
print(output)
"""
    assert "Output(potentials [7, 3, 5], activity hidden" in python("-c", program)


@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed")
@pytest.mark.parametrize("options", [[], ["--precision", "bf16"]])
def test_the_example_of_accelerate_learns(options: list[str]) -> None:
    pytest.importorskip("sklearn")
    printed = python(str(ROOT / "examples" / "accelerate_digits.py"), "--epochs", "3", *options)
    assert float(printed.split("accuracy ")[-1].split(" %")[0]) > 75  # chance is 10
