"""Recorded training steps: what is copied where, with a recorder that runs the function again instead of a graph."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from sparsesnn.bench import Workload
from sparsesnn.bench.step import train_step
from sparsesnn.dense.graphs import CapturedStep
from sparsesnn.errors import DescriptionError, ShapeError
from sparsesnn.module import Model


def run_again(run: Callable[[], None]) -> Callable[[], None]:
    return run


@pytest.mark.filterwarnings("ignore:init_activity")  # a small batch need not reach the target
@pytest.mark.parametrize("mode", ["step", "hoist", "fused"])
@pytest.mark.parametrize("net", ["20-30r-5", "1x4x5:3C2b-6-5"])
def test_recorded_steps_are_the_steps(net: str, mode: str) -> None:
    """Three batches, learning: losses and weights are those of steps that were not recorded."""
    batches = [
        Workload(net=net, n_steps=16, n_samples=8, input_activity=0.3, hidden_activity=0.1, seed=seed)
        for seed in range(3)
    ]
    data = [(w.spikes(), w.labels()) for w in batches]
    plain, recorded = (batches[0].model("dense", data[0][0]) for _ in range(2))
    for model in (plain, recorded):
        model.dense_mode = mode
        for layer in model.layers.values():
            layer.dense_mode = mode
    adams = [torch.optim.Adam(model.parameters(), lr=0.01) for model in (plain, recorded)]
    captured = CapturedStep(recorded, adams[1], *data[0], record=run_again)
    losses = [captured(*batch).item() for batch in data]
    assert losses == pytest.approx([train_step(plain, adams[0], *batch)[1] for batch in data], rel=1e-5)
    assert len(set(losses)) == 3
    for a, b in zip(plain.parameters(), recorded.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_recorded_is_refused() -> None:
    workload = Workload(net="20-30-5", n_steps=6, n_samples=4)
    spikes, labels = workload.spikes(), workload.labels()
    model = Model(workload.network(), backend="dense")
    adam = torch.optim.Adam(model.parameters())
    with pytest.raises(DescriptionError, match="CUDA graphs: the model is on cpu in the mode 'auto'"):
        CapturedStep(model, adam, spikes, labels)
    compiled = Model(workload.network(), backend="dense", dense_mode="compile")
    with pytest.raises(DescriptionError, match="in the mode 'compile'"):
        CapturedStep(compiled, adam, spikes, labels, record=run_again)
    captured = CapturedStep(model, adam, spikes, labels, record=run_again)
    shorter = Workload(net="20-30-5", n_steps=5, n_samples=4)
    with pytest.raises(ShapeError, match=r"the batch is \(5, 4, 20\), recorded was \(6, 4, 20\)"):
        captured(shorter.spikes(), labels)


def test_the_engine_reads_no_dense_spikes() -> None:
    workload = Workload(net="20-30-5", n_steps=6, n_samples=4)
    captured = CapturedStep(
        Model(workload.network(), backend="dense"),
        torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))]),
        workload.spikes(),
        workload.labels(),
        record=run_again,
    )
    with pytest.raises(ShapeError, match="backend 'cpu' reads spike lists but got DenseSpikes"):
        Model(workload.network())(captured.spikes)
