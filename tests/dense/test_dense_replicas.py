"""Training of the backend dense over ranks of torchrun: two processes, gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sparsesnn.host.comm.environment import Place, find_place

torchrun = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="PyTorch without gloo"
)


def run(*command: str, ranks: int) -> subprocess.CompletedProcess[str]:
    """`python command…`, on torchrun's ranks if there are several; warnings are errors."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "SPARSESNN_THREADS": "1"}
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    return subprocess.run(
        [sys.executable, *launcher, *command], capture_output=True, text=True, check=False, env=environment, timeout=300
    )


def train(out: Path, ranks: int, *more: str) -> subprocess.CompletedProcess[str]:
    options = "--net 40-24r-5 --epochs 2 --batch 15 --no-plots --no-tensorboard --backend dense"
    options += " --set data.n_neurons=40 --set data.n_classes=5 --set data.n_steps=20 --set data.n_samples=80"
    return run("-m", "sparsesnn", "train", "synthetic", *options.split(), "--out", str(out), *more, ranks=ranks)


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    checkpoint = json.loads((folder / "checkpoint.json").read_text())
    files = checkpoint["body"]["tensors"]
    names = [files["file"]] if isinstance(files, dict) else [f["file"] for f in files]
    return {name: x for file in names for name, x in load_file(folder / file).items() if name.startswith("model/")}


@torchrun
@pytest.mark.slow
def test_two_ranks_train_what_one_trains(tmp_path: Path) -> None:
    """The same batches, loss and weights, but for the order of sums; the last batch is odd, so parts differ in size."""
    done = {ranks: train(tmp_path / str(ranks), ranks) for ranks in (1, 2)}
    for ranks, process in done.items():
        # the rank's own message comes before the long report of torchrun
        assert process.returncode == 0, (ranks, process.stderr)
    lines = {
        ranks: [json.loads(line) for line in (tmp_path / str(ranks) / "metrics.jsonl").read_text().splitlines()]
        for ranks in (1, 2)
    }
    assert len(lines[1]) == len(lines[2]) == 2
    for one, two in zip(lines[1], lines[2], strict=True):
        for key in ("loss", "gradient_norm", "valid_loss", "accuracy"):
            assert two[key] == pytest.approx(one[key], rel=1e-3), key
        assert two["activity"]["hidden"] == pytest.approx(one["activity"]["hidden"], rel=1e-3)
    one, two = tensors_of(tmp_path / "1"), tensors_of(tmp_path / "2")
    assert set(one) == set(two)
    for name, x in one.items():
        torch.testing.assert_close(two[name], x, rtol=1e-3, atol=1e-4, msg=name)


@torchrun
@pytest.mark.slow
def test_backends_know_their_launcher(tmp_path: Path) -> None:
    process = train(tmp_path, 2, "--backend", "cpu")
    assert process.returncode != 0
    assert "is 'cpu' on 2 ranks of torchrun; allowed: 'cpu' on ranks of mpirun" in process.stderr


COMMUNICATOR = """
import os
import numpy as np
from sparsesnn.host.comm.torch_group import torch_world
import torch.distributed as dist

world = torch_world(int(os.environ["LOCAL_RANK"]), 2)
r, other = world.rank, 1 - world.rank
assert (world.size, world.ranks_on_host) == (2, 2)
assert world.all_texts("ab" * r) == ["", "ab"]
assert [list(x) for x in world.all_gather(np.arange(r + 1))] == [[0], [0, 1]]
request = world.send(np.arange(5.0) + r, other, 3)
if r == 0:
    assert (world.take(1, 3).view(np.float64) == np.arange(5.0) + 1).all()
else:
    into = np.empty(5)
    assert world.receive(into, 0, 3).wait() == 40
    assert (into == np.arange(5.0)).all()
assert request.wait() == 40
assert world.sum_counts([1, r]) == [2, 1]
assert (world.split([0, 1]).size, world.split([0, 0]).size) == (1, 2)
assert world.traffic.n_messages > 0
world.barrier()
dist.destroy_process_group()
print("well", flush=True)
"""


@pytest.mark.slow
@torchrun
def test_ranks_exchange_arrays(tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(COMMUNICATOR)
    process = run(str(tmp_path / "ranks.py"), ranks=2)
    assert process.stdout.count("well") == 2, process.stderr  # the lines of two ranks may mix


def test_the_place_that_torchrun_gives() -> None:
    environment = {
        "TORCHELASTIC_RUN_ID": "x",
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
    }
    assert find_place(environment) == Place("torchrun", 3, 4, 1, 2)
    assert find_place({"RANK": "3", "WORLD_SIZE": "4"}) == Place()
