"""Spikes to and from NIR's data, compared with NIR's own conversions and with dense tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sparsesnn as ss
from sparsesnn.errors import ShapeError, SpikeListError
from sparsesnn.nir import from_data, from_nir, output_data, to_data, to_nir

nir = pytest.importorskip("nir", reason="needs the package nir, in the extra 'nir'")

T, B, N = 6, 3, 5


def dense(share: float = 0.3, seed: int = 0) -> torch.Tensor:
    return (torch.rand(T, B, N, generator=torch.Generator().manual_seed(seed)) < share).float()


def events(*samples: list[tuple[int, float]], t_max: float = 1.0, values: Any = None) -> Any:
    """Events (id, time) of each sample, padded."""
    n = max(1, *(len(s) for s in samples))
    idx, time = np.full((len(samples), n), -1), np.full((len(samples), n), np.inf)
    for b, sample in enumerate(samples):
        for k, (unit, t) in enumerate(sample):
            idx[b, k], time[b, k] = unit, t
    if values is None:
        return nir.EventData(idx, time, N, t_max)
    return nir.ValuedEventData(idx=idx, time=time, n_neurons=N, t_max=t_max, value=np.asarray(values, float))


@pytest.mark.parametrize("dt", [1.0, 1e-3, 0.1, 1 / 3])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_there_and_back(dt: float, share: float) -> None:
    spikes = ss.SpikeBatch.from_dense(dense(share))
    for grid in (False, True):
        data = to_data(spikes, dt=dt, grid=grid)
        assert type(data) is (nir.TimeGriddedData if grid else nir.EventData)
        assert torch.equal(from_data(data, dt=dt).to_dense(), dense(share))
    # NIR's own conversion of the events, at the middle of their steps, is the grid
    data = to_data(spikes, dt=dt)
    shifted = nir.EventData(data.idx, data.time + dt / 2, N, T * dt + dt / 2)
    np.testing.assert_array_equal(shifted.to_time_gridded(dt).data, to_data(spikes, dt=dt, grid=True).data)


def test_events_of_nirs_own_conversion() -> None:
    grid = nir.TimeGriddedData(dense().transpose(0, 1).numpy() > 0, 1e-3)
    for shift in (0.0, 4e-4, 9.99e-4):
        assert torch.equal(from_data(grid.to_event(40, shift), dt=1e-3).to_dense(), dense())


def test_the_order_and_padding_of_events() -> None:
    data = to_data(ss.SpikeBatch.from_lists([[[4, 1], [], [0]], [[], [2], []]], N), dt=0.5)
    assert data.idx.tolist() == [[1, 4, 0], [2, -1, -1]]
    assert data.time.tolist() == [[0.0, 0.0, 1.0], [0.5, np.inf, np.inf]]
    assert (data.n_neurons, data.t_max) == (N, 1.5)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 400), st.floats(1e-6, 1e3))
def test_a_time_of_k_steps_is_in_step_k(k: int, dt: float) -> None:
    """Their quotient is rounded, down too: 0.3 / 0.1 is 2.9999999999999996."""
    spikes = from_data(events([(2, k * dt)], t_max=(k + 1) * dt), dt=dt)
    assert (spikes.n_steps, spikes.n_spikes.nonzero().flatten().tolist()) == (k + 1, [k])


def test_near_spikes_and_gradients_are_left_out() -> None:
    given = dense().requires_grad_()
    spikes = ss.SpikeBatch.from_dense(given, gradient="all")
    assert torch.equal(from_data(to_data(spikes, dt=1.0), dt=1.0).to_dense(), dense())


def test_constant_lists() -> None:
    data = to_data(ss.SpikeBatch.constant(torch.tensor([[0.0, 2.0]]), 3), dt=1.0)
    assert (data.idx.tolist(), data.time.tolist(), data.value.tolist()) == ([[1, 1, 1]], [[0, 1, 2]], [[2, 2, 2]])


def test_values() -> None:
    graded = dense() * torch.arange(1, N + 1) * -0.5
    spikes = ss.SpikeBatch.from_dense(graded, graded=True)
    for grid in (False, True):
        data = to_data(spikes, dt=0.2, grid=grid)
        assert type(data) is (nir.TimeGriddedData if grid else nir.ValuedEventData)
        assert torch.equal(from_data(data, dt=0.2).to_dense(), graded)
    # values of one neuron and step are added, and a sum of 0 is not an entry
    data = events([(1, 0.1), (1, 0.2), (3, 0.7), (2, 0.1), (2, 0.3)], values=[[0.5, 2.0, 1.0, 1.0, -1.0]])
    spikes = from_data(data, dt=0.5)
    assert (spikes.ids.tolist(), spikes.entry_values().tolist()) == ([1, 3], [2.5, 1.0])


def test_several_events_of_a_neuron_in_a_step() -> None:
    data = events([(1, 0.1), (1, 0.2), (0, 0.9)])
    assert from_data(data, dt=0.5).to_dense()[:, 0].tolist() == [[0, 1, 0, 0, 0], [1, 0, 0, 0, 0]]
    counted = from_data(data, dt=0.5, graded=True)
    assert counted.to_dense()[:, 0].tolist() == [[0, 2, 0, 0, 0], [1, 0, 0, 0, 0]]


def test_the_number_of_steps() -> None:
    data = events([(1, 0.1), (0, 0.9)], [])
    assert (from_data(data, dt=0.3).n_steps, from_data(data, dt=0.25).n_steps) == (4, 4)
    assert from_data(data, dt=0.3, n_steps=7).n_steps == 7
    with pytest.warns(UserWarning, match="1 spike of 2 after step 2 are left out; give a larger n_steps"):
        assert from_data(data, dt=0.3, n_steps=2).ids.tolist() == [1]
    at_the_end = events([(1, 1.0)])
    assert from_data(at_the_end, dt=0.5).n_spikes.tolist() == [0, 1]
    grid = to_data(ss.SpikeBatch.from_dense(dense(1.0)), dt=1.0, grid=True)
    assert from_data(grid, n_steps=9).n_spikes.tolist() == [N] * T * B + [0] * 3 * B
    with pytest.warns(UserWarning, match="30 spikes of 90 after step 4 are left out"):
        assert from_data(grid, n_steps=4).n_steps == 4
    assert from_data(events([], t_max=0.0), dt=1.0).shape == (0, 1, N)


@pytest.mark.parametrize(
    ("data", "options", "error", "message"),
    [
        (torch.ones(2, 3), {}, ShapeError, "data is a Tensor; allowed: EventData, ValuedEventData, TimeGriddedData"),
        (nir.NIRNodeData({}), {}, ShapeError, "data is a NIRNodeData; .*give one of its nodes' observables"),
        (events([(1, 0.1)]), {}, SpikeListError, "dt is None; events have times"),
        (events([(1, 0.1)]), {"dt": 0.0}, SpikeListError, "dt is 0.0; give the width of a step above 0"),
        (events([(1, 0.1)]), {"dt": float("nan")}, SpikeListError, "dt is nan"),
        (events([(5, 0.1)]), {"dt": 0.1}, SpikeListError, "idx runs from 5 to 5; allowed: 0 to 4, and -1"),
        (events([(-2, 0.1)]), {"dt": 0.1}, SpikeListError, "idx runs from -2 to -2; allowed: 0 to 4"),
        (events([(1, 1.5)]), {"dt": 0.1}, SpikeListError, "times run from 1.5 to 1.5; allowed: 0 to t_max, 1"),
        (events([(1, -0.1)]), {"dt": 0.1}, SpikeListError, "times run from -0.1 to -0.1; allowed"),
        (events([(1, float("nan"))]), {"dt": 0.1}, SpikeListError, "times run from nan"),
        (events([(1, float("inf"))]), {"dt": 0.1}, SpikeListError, "times run from inf to inf; .* set idx to -1"),
        (events([(1, 0.1)], t_max=float("inf")), {"dt": 0.1}, SpikeListError, "t_max is inf; give the end"),
        (events([(1, 0.1)]), {"dt": 0.1, "n_steps": -1}, ShapeError, "n_steps is -1; give a whole number from 0"),
        (nir.EventData(np.ones((2, 3)), np.ones((2, 3)), N, 2.0), {"dt": 0.1}, ShapeError, r"idx is float64\[2, 3\] .*give integers"),
        (nir.EventData(np.ones(3, int), np.ones(3), N, 2.0), {"dt": 0.1}, ShapeError, r"idx is int64\[3\] and time \[3\]"),
        (events([(1, 0.1)], values=[[float("nan")]]), {"dt": 0.1}, SpikeListError, "values are NaN or infinite"),
        (events([(1, 0.1)], values=[[2.0]]), {"dt": 0.1, "graded": False}, SpikeListError, "has the value 2; allowed with graded=False: 1"),
        (nir.TimeGriddedData(np.full((1, 2, 3), np.nan), 1.0), {}, SpikeListError, "entries are NaN or infinite"),
        (nir.TimeGriddedData(np.full((1, 2, 3), 0.5), 1.0), {"graded": False}, SpikeListError, "spikes hold 0.5; entries must be 0 or 1"),
        (nir.TimeGriddedData(np.full((1, 2, 3), "a"), 1.0), {}, ShapeError, r"data of the grid are <U1\[1, 2, 3\]; give numbers"),
        (nir.TimeGriddedData(np.zeros((1, 2, 3)), 1.0), {"dt": 2.0}, SpikeListError, "dt is 2, but the grid has steps of 1; leave dt out"),
        (nir.TimeGriddedData(np.zeros((1, 2, 3)), -1.0), {}, SpikeListError, "the grid's: dt is -1.0"),
    ],
)  # fmt: skip
def test_refusals(data: Any, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"from_(data|dense).*{message}"):
        from_data(data, **options)


def test_the_activity_of_a_network_fits_its_graph(tmp_path: Path) -> None:
    network = ss.Network.chain(ss.Input(N), ss.LIF(4, reset="zero", beta=0.8), ss.LIF(3, reset="none"), ss.LI(2))
    model = ss.Model(network, seed=4)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(4.0)
    output = model(ss.SpikeBatch.from_dense(dense()))
    data = output_data(output, dt=1e-3)
    graph = to_nir(model, dt=1e-3)
    data.check_nodes(graph)  # NIR's own check of names and sizes
    nir.write_data(str(tmp_path / "activity.h5"), data)
    again = nir.read_data(str(tmp_path / "activity.h5"))
    for name in ("hidden1", "hidden2"):
        spikes = from_data(again.nodes[name].observables["spikes"], dt=1e-3)
        assert torch.equal(spikes.to_dense(), output.spikes[name].to_dense())  # type: ignore[union-attr]
    assert spikes.ids.numel() > 5
    potentials = again.nodes["output"].observables["potentials"]
    assert output.potentials is not None
    np.testing.assert_array_equal(potentials.data, output.potentials.detach().transpose(0, 1).numpy())
    # and the graph's reader fires the same
    third = from_nir(graph, source="nir", dt=1e-3)(
        from_data(to_data(ss.SpikeBatch.from_dense(dense()), dt=1e-3), dt=1e-3)
    )
    assert torch.equal(third.spikes["hidden2"].to_dense(), spikes.to_dense())  # type: ignore[union-attr]
    with pytest.raises(
        ShapeError, match="the spikes of hidden1 are a Tensor; give the output of a model with backend='cpu'"
    ):
        output_data(ss.Model(network, backend="dense")(ss.SpikeBatch.from_dense(dense())), dt=1e-3)


def test_lists_for_to_data_are_checked() -> None:
    spikes = ss.SpikeBatch.from_dense(dense())
    spikes.ids = spikes.ids.long().flip(0).to(torch.uint16)
    with pytest.raises(SpikeListError, match="SpikeBatch: list . does not ascend"):
        to_data(spikes, dt=1.0)
    with pytest.raises(SpikeListError, match="to_data: dt is -1"):
        to_data(ss.SpikeBatch.from_dense(dense()), dt=-1)
