"""The race on event cameras: its tasks, and contestants that compute the same network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from rivals.cameras import VARIANTS, Camera, layers_of, make_task
from rivals.catalog import GROUPS, RIVALS, SEMANTICS, WORKLOADS
from rivals.contestants import cameras, ours
from rivals.results import agrees
from rivals.task import Task

#: no two sizes are equal; the matrices read pooled maps, and neurons without maps
CAMERA = Camera("2x11x9:3C4s2p-MP2-2C6p-SP2-7-5", "nmnist", 1.0, n_steps=9, n_samples=3, hidden_activity=0.1, rate=0.3)


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Task:
    monkeypatch.delenv("SPARSESNN_TEST_DATA", raising=False)
    return make_task(CAMERA)


def test_layers_for_those_who_do_not_know_sparsesnn() -> None:
    assert layers_of(CAMERA.net) == [
        ["conv", 2, 1],
        ["pool", "max", 2],
        ["conv", 1, 1],
        ["pool", "sum", 2],
        ["dense"],
        ["dense"],
    ]


def test_the_task_survives_its_file(tmp_path: Path, task: Task) -> None:
    assert [w.shape for w in task.weights] == [(4, 2, 3, 3), (6, 4, 2, 2), (12, 7), (7, 5)]
    assert set(task.losses) == set(VARIANTS) < set(SEMANTICS)
    task.save(tmp_path / "task.npz")
    found = Task.load(tmp_path / "task.npz")
    assert found.maps == task.maps
    assert found.maps is not None
    assert (found.maps.shape, found.maps.origin) == ((2, 11, 9), "random events")
    assert all(np.array_equal(a, b) for a, b in zip(found.weights, task.weights, strict=True))


@pytest.mark.parametrize("backend", ["cpu", "dense"])
def test_sparsesnn_reads_the_weights_back(backend: str, task: Task) -> None:
    assert agrees(ours.make(task, 0.9, backend)(), task.losses["subtract"])


@pytest.mark.parametrize(
    ("library", "semantics", "module"),
    [
        ("fused", "subtract", "torch"),
        ("snntorch", "subtract", "snntorch"),
        ("norse", "zero", "norse"),
        ("spikingjelly", "at once", "spikingjelly"),
        ("sinabs", "at once", "sinabs"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # of the libraries
def test_contestants_compute_the_network(library: str, semantics: str, module: str, task: Task) -> None:
    pytest.importorskip(module, reason=f"needs {module}")
    assert agrees(cameras.make(task, library)(), task.losses[semantics])
    (rival,) = [rival for rival in RIVALS if rival.name == library]
    assert (rival.semantics, rival.cameras) == (semantics, "maps")


def test_gradients_by_hand_are_those_of_autograd() -> None:
    """The time loop of `fused` on maps; in float64, where no potential ends on the other side of a threshold."""
    from rivals.contestants.compiled import lif

    currents = torch.randn(7, 3, 2, 5, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 0.5
    found = []
    for fire in (cameras.LIBRARIES["fused"](), lambda i: lif(i, None)):
        i = currents.clone().requires_grad_()
        (fire(i) * torch.arange(currents.numel()).view_as(currents)).sum().backward()
        found.append(i.grad)
    torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=1e-12)


def test_who_takes_part() -> None:
    known = {"sparsesnn", "sparsesnn-exact", "sparsesnn-dense", "fused", "snntorch", "spikingjelly", "norse", "sinabs"}
    for name in GROUPS["cameras"]:
        assert {rival.name for rival in RIVALS if rival.takes_part(name)} == known
        assert WORKLOADS[name].recording in ("nmnist", "dvsgesture")
