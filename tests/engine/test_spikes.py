from __future__ import annotations

import copy
import io
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import sparsesnn as ss
import sparsesnn.poptorch as spt
from sparsesnn import ipu, spike_checks
from sparsesnn.datasets import bin_events
from sparsesnn.engines import Batch, Training, make_engine
from sparsesnn.engines.module import Model
from sparsesnn.errors import DescriptionError, ShapeError, SpikeListError
from sparsesnn.host.comm import make_grid, simulate
from sparsesnn.ids import id_dtype
from sparsesnn.partition.planner import make_plan
from sparsesnn.partition.target import parse_target
from sparsesnn.spikes import SpikeBatch


def with_near_spikes() -> SpikeBatch:
    """T = 2, B = 2, N = 5: list 0 fires 1, 3 and nearly 0, 4; list 1 is empty; list 2 fires 2; list 3 nearly 2."""
    return SpikeBatch(
        offsets=torch.tensor([0, 4, 4, 5, 6]),
        ids=torch.from_numpy(np.array([1, 3, 0, 4, 2, 2], np.uint16)),
        n_spikes=torch.tensor([2, 0, 1, 0], dtype=torch.int32),
        n_steps=2,
        n_samples=2,
        n_neurons=5,
        dropped=torch.tensor([0, 3, 1, 0], dtype=torch.int32),
    )


@st.composite
def dense_spikes(draw: st.DrawFn) -> torch.Tensor:
    shape = [draw(st.integers(0, 5)), draw(st.integers(0, 4)), draw(st.integers(1, 9))]
    size = int(np.prod(shape))
    return torch.tensor(draw(st.lists(st.booleans(), min_size=size, max_size=size))).float().reshape(shape)


# ---- Constructors -----------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(dense_spikes())
def test_dense_round_trip(dense: torch.Tensor) -> None:
    batch = SpikeBatch.from_dense(dense)
    assert torch.equal(batch.to_dense(), dense)
    assert torch.equal(batch.counts(), dense.sum(0))
    assert batch.n_spikes.sum() == dense.sum()
    assert len(batch) == dense.shape[1]
    assert batch.activity() == pytest.approx(float(dense.mean()) if dense.numel() else 0)


@settings(max_examples=100, deadline=None)
@given(dense_spikes())
def test_lists_round_trip(dense: torch.Tensor) -> None:
    lists = [[dense[t, b].nonzero().flatten().tolist()[::-1] for t in range(len(dense))] for b in range(dense.shape[1])]
    batch = SpikeBatch.from_lists(lists, dense.shape[2])
    want = dense if dense.shape[1] else dense[:0]  # without a sample, lists say nothing of the steps
    assert torch.equal(batch.to_dense(), want)


def test_batch_first_and_non_contiguous() -> None:
    dense = (torch.rand(5, 3, 7) < 0.4).float()
    want = SpikeBatch.from_dense(dense)
    for got in (
        SpikeBatch.from_dense(dense.transpose(0, 1).contiguous(), batch_first=True),
        SpikeBatch.from_dense(dense.repeat_interleave(2, dim=2)[..., ::2]),
        SpikeBatch.from_dense(dense.bool()),
        SpikeBatch.from_dense(dense.to(torch.int64)),
    ):
        assert torch.equal(got.offsets, want.offsets)
        assert torch.equal(got.ids.int(), want.ids.int())


@pytest.mark.parametrize("backend", ["cpu", "dense"])
@pytest.mark.parametrize("gradient", ["fired", "all"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_gradients_of_layers_before(backend: str, gradient: str, batch_first: bool) -> None:
    """Against the dense backend, which reads the same spikes as a tensor."""
    n_steps, n_samples, n_neurons = 6, 5, 13
    spikes = (torch.rand(n_steps, n_samples, n_neurons) < 0.3).float()
    network = ss.Network.chain(ss.Input(n_neurons), ss.LIF(11, recurrent=True, grad_threshold=-np.inf), ss.LI(3))
    model = ss.Model(network, backend=backend)
    weight = torch.randn(n_steps, n_samples, 3)

    before = spikes.clone().requires_grad_()
    layer, readout = ss.Model(network, backend="dense", dense_mode="step").layers.values()
    (readout(layer(before)[0])[0] * weight).sum().backward()
    want = before.grad

    before = (spikes.transpose(0, 1) if batch_first else spikes).clone().requires_grad_()
    batch = SpikeBatch.from_dense(before, batch_first=batch_first, gradient=gradient).validate()
    assert torch.equal(batch.to_dense(), spikes)
    assert batch.ids.numel() == (spikes.numel() if gradient == "all" else spikes.sum())
    (model(batch).potentials * weight).sum().backward()
    found = before.grad.transpose(0, 1) if batch_first else before.grad
    torch.testing.assert_close(found, want if gradient == "all" else want * spikes, rtol=1e-4, atol=1e-6)


def test_gradients_of_layers_before_are_not_cut_without_a_warning() -> None:
    spikes = torch.ones(2, 3, 4, requires_grad=True)
    with pytest.raises(SpikeListError, match=r"require a gradient.*'none'.*gradient='all' or 'fired'.*detach"):
        SpikeBatch.from_dense(spikes)
    with pytest.raises(SpikeListError, match="gradient is 'some'; allowed: 'none', 'fired', 'all'"):
        SpikeBatch.from_dense(spikes, gradient="some")
    for batch in (SpikeBatch.from_dense(spikes.detach()), SpikeBatch.from_dense(spikes.detach(), gradient="all")):
        assert batch.values is None
    with torch.no_grad():
        assert SpikeBatch.from_dense(spikes).values is None
        assert SpikeBatch.from_dense(spikes, gradient="all").values is None


def test_ids_are_uint16_while_they_fit() -> None:
    for n, dtype in [(65_536, torch.uint16), (65_537, torch.int32)]:
        batch = SpikeBatch.from_lists([[[n - 1, 0]]], n)
        assert batch.ids.dtype == id_dtype(n) == dtype
        assert batch.ids.tolist() == [0, n - 1]
        assert batch.to_dense()[0, 0, -1] == 1


def test_from_events() -> None:
    """dt = 1 ms: before 0 and after the end is left out, double events make one spike, an edge starts a step."""
    first = (np.array([-0.1, 0.0, 999.9, 1000.0, 2500.0, 2600.0, 3000.0]), np.array([1, 2, 0, 3, 4, 4, 1]))
    second = (np.array([]), np.array([], dtype=int))
    batch = SpikeBatch.from_events([first, second], n_steps=3, n_neurons=5, dt_us=1000.0)
    assert batch.n_spikes.tolist() == [2, 0, 1, 0, 1, 0]
    assert batch.ids.tolist() == [0, 2, 3, 4]
    assert SpikeBatch.from_events([], n_steps=3, n_neurons=5, dt_us=1.0).to_dense().shape == (3, 0, 5)


def test_errors_of_the_constructors() -> None:
    with pytest.raises(ShapeError, match=r"from_lists: samples have \[1, 2\] steps; .*pad"):
        SpikeBatch.from_lists([[[0]], [[0], []]], 3)
    with pytest.raises(SpikeListError, match="spike ids run from 0 to 3; allowed: 0 to 2"):
        SpikeBatch.from_lists([[[0, 3]]], 3)
    with pytest.raises(SpikeListError, match="spike ids run from -1 to 2; allowed: 0 to 2"):
        SpikeBatch.from_lists([[[-1, 2]]], 3)
    with pytest.raises(SpikeListError, match="list 1 does not ascend: id 1 after 1; .*without duplicates"):
        SpikeBatch.from_lists([[[0], [1, 1]]], 3)
    for lists in ([0, 1], [[0, 1]]):
        with pytest.raises(ShapeError, match="from_lists: sample 0 is .*; give for each sample a list of steps"):
            SpikeBatch.from_lists(lists, 5)  # type: ignore[arg-type]
    t_us = np.arange(3)
    for events in ((t_us, t_us), [t_us], [3]):
        with pytest.raises(ShapeError, match=r"from_events: sample 0 is an .*; give a pair of arrays \(t_us, unit\)"):
            SpikeBatch.from_events(events, n_steps=3, n_neurons=3, dt_us=1)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"from_dense: spikes are a tensor of shape \[3, 4\]"):
        SpikeBatch.from_dense(torch.zeros(3, 4))
    for bad in (2.0, 0.5, float("nan"), -1.0):
        with pytest.raises(SpikeListError, match="entries must be 0 or 1"):
            SpikeBatch.from_dense(torch.full((1, 1, 1), bad))


@pytest.mark.parametrize("of", [np.int64, np.uint16, np.array, torch.tensor, lambda n: np.array(n, object)])
def test_whole_numbers_of_other_libraries_are_sizes(of: Any) -> None:
    lists = [[[0, 3], [1]], [[], [2]]]
    plain = SpikeBatch.from_lists(lists, 4)
    found = SpikeBatch.from_lists([[[of(n) for n in row] for row in sample] for sample in lists], of(4))
    assert (type(found.n_neurons), found.n_neurons) == (int, 4)
    assert torch.equal(found.to_dense(), plain.to_dense())
    rows = [[np.array(row, object) for row in sample] for sample in lists]
    assert torch.equal(SpikeBatch.from_lists(rows, 4).to_dense(), plain.to_dense())
    events = [(np.array([0.5, 1], object), np.array([0, 3], object)), ([1], [np.uint64(2)])]
    binned = SpikeBatch.from_events(events, n_steps=of(2), n_neurons=of(4), dt_us=of(1))
    assert (binned.to_dense().sum(), binned.n_steps) == (3, 2)
    assert torch.equal(plain[of(1)].to_dense(), plain[1].to_dense())
    assert plain.steps(of(0), of(1)).n_steps == 1
    assert plain.silence(of(3)).shape == (3, 2, 4)
    made = SpikeBatch(plain.offsets, plain.ids, plain.n_spikes, of(2), of(2), of(4))
    assert torch.equal(made.to_dense(), plain.to_dense())


@pytest.mark.parametrize("wrong", [4.0, np.float64(4), True, "4", None, [4], 0, -1])
def test_sizes_that_are_none_are_named(wrong: Any) -> None:
    with pytest.raises(ShapeError, match="from_lists: n_neurons is .*; give a whole number from 1"):
        SpikeBatch.from_lists([[[0]]], wrong)
    with pytest.raises(ShapeError, match="from_events: n_neurons is .*; give a whole number from 1"):
        SpikeBatch.from_events([], n_steps=2, n_neurons=wrong, dt_us=1.0)


def test_rows_of_several_types_are_whole_numbers() -> None:
    rows = [[np.array([2, 0], np.uint64), [1]], [{2, 1}, range(3)]]
    assert SpikeBatch.from_lists(rows, 3).ids.tolist() == [0, 2, 1, 2, 1, 0, 1, 2]
    with pytest.raises(SpikeListError, match=r"ids are float64, such as 0\.5"):
        SpikeBatch.from_lists([[[0], [0.5]]], 3)


def test_padding_is_named_and_how_to_remove_it() -> None:
    padded = torch.tensor([[[0, 3, -1], [1, -1, -1]]])  # [B, T, K], ids
    with pytest.raises(
        SpikeListError, match=r"-1 to 3; allowed: 0 to 3; -1 looks like padding: remove it first, as in ids\[ids >= 0\]"
    ):
        SpikeBatch.from_lists(padded, 4)  # type: ignore[arg-type]
    rows = [[ids[ids >= 0] for ids in sample] for sample in padded]
    assert SpikeBatch.from_lists(rows, 4).n_listed.tolist() == [2, 1]
    for spikes in (padded, torch.tensor([[[0.0, 1.0, -1.0]]])):
        with pytest.raises(SpikeListError, match=r"-1 looks like padding, .* row\[row >= 0\].* spikes.clamp\(min=0\)"):
            SpikeBatch.from_dense(spikes)
    with pytest.raises(SpikeListError, match="for counts or other values give graded=True"):
        SpikeBatch.from_dense(torch.tensor([[[0.0, 2.0, -1.5]]]))
    with pytest.raises(
        SpikeListError, match=r"units -1 to 1; allowed: 0 to 1; -1 looks like padding.*unit\[unit >= 0\]"
    ):
        SpikeBatch.from_events([(np.array([0.0, -1.0]), np.array([1, -1]))], n_steps=1, n_neurons=2, dt_us=1.0)


@pytest.mark.parametrize("make", [SpikeBatch.from_events, bin_events])
def test_times_in_another_unit_are_noticed(make: Any) -> None:
    """Of a second of events in 100 steps of 10 ms."""
    seconds = np.random.default_rng(0).uniform(0, 1, 70)

    def binned(*times: Any) -> Any:
        events = [(t, np.arange(len(t)) % 7) for t in times]
        return make(events, n_steps=100, dt_us=1e4, n_neurons=7)

    for factor in (1, 1e3):
        with pytest.warns(
            UserWarning, match="all 70 events.* fall into the first of 100 steps of 10000 us.*microseconds"
        ):
            binned(seconds[:30] * factor, seconds[30:] * factor)
    for times in (seconds * 1e9 + 1e6, seconds * 1e6 - 2e6):
        with pytest.warns(UserWarning, match="all 70 events.* lie outside the window of 100 steps"):
            binned(times)
    binned(seconds * 1e6, seconds)  # the set as a whole is plausible
    binned(seconds[:5])  # too few for a warning
    binned(np.zeros(70))  # one time: a still picture
    binned()


def test_errors_of_events() -> None:
    def make(t_us: list[float], unit: list[int]) -> SpikeBatch:
        good = (np.zeros(1), np.zeros(1, int))
        return SpikeBatch.from_events([good, (np.array(t_us), np.array(unit))], n_steps=3, n_neurons=5, dt_us=10.0)

    with pytest.raises(ShapeError, match=r"sample 1 has t_us \(2,\) and unit \(1,\); give equal lengths"):
        make([1, 2], [0])
    for bad in (float("nan"), float("inf")):
        with pytest.raises(SpikeListError, match="sample 1 has times that are NaN or infinite"):
            make([bad], [0])
    with pytest.raises(SpikeListError, match="sample 1 has units 0 to 5; allowed: 0 to 4"):
        make([1, 2], [0, 5])
    with pytest.raises(SpikeListError, match="sample 1 has units -1 to -1"):
        make([1], [-1])
    with pytest.raises(SpikeListError, match="sample 1 has units of type float64; give integers"):
        make([1], [1.5])  # type: ignore[list-item]
    with pytest.raises(SpikeListError, match="dt_us is 0; give"):
        SpikeBatch.from_events([], n_steps=3, n_neurons=5, dt_us=0)


# ---- Queries -----------------------------------------------------------------------------------------------------


def test_near_spikes_are_listed_but_do_not_count() -> None:
    batch = with_near_spikes().validate()
    assert batch.n_listed.tolist() == [4, 0, 1, 1]
    assert batch.list_index().tolist() == [0, 0, 0, 0, 2, 3]
    assert batch.fired().tolist() == [True, True, False, False, True, False]
    dense = batch.to_dense()
    assert dense.nonzero().tolist() == [[0, 0, 1], [0, 0, 3], [1, 0, 2]]
    assert batch.counts().tolist() == [[0, 1, 1, 1, 0], [0, 0, 0, 0, 0]]
    assert batch.activity() == pytest.approx(3 / 20)
    assert batch.n_dropped() == 4


def test_gradients_flow_to_all_listed_neurons() -> None:
    batch = with_near_spikes()
    values = batch.entry_values().requires_grad_()
    batch = replace(batch, values=values)
    weight = torch.arange(20.0).reshape(2, 2, 5)
    (batch.to_dense() * weight).sum().backward()
    assert values.grad.tolist() == [1, 3, 0, 4, 12, 17]
    values.grad = None
    (batch.counts() * weight[0]).sum().backward()
    assert values.grad.tolist() == [1, 3, 0, 4, 2, 7]
    assert not batch.detach().values.requires_grad


# ---- Slices and copies -----------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(dense_spikes(), st.data())
def test_samples_and_steps(dense: torch.Tensor, data: st.DataObject) -> None:
    n_steps, n_samples, _ = dense.shape
    batch = SpikeBatch.from_dense(dense)
    start = data.draw(st.integers(0, n_steps))
    stop = data.draw(st.integers(start, n_steps))
    assert torch.equal(batch.steps(start, stop).validate().to_dense(), dense[start:stop])
    part = batch.steps(start, stop)  # separate memory: changes of the whole do not reach it
    for whole, own in ((batch.offsets, part.offsets), (batch.ids, part.ids), (batch.n_spikes, part.n_spikes)):
        assert not own.numel() or own.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr()
    joined = batch.steps(0, start).then(batch.steps(start, n_steps)).validate()
    assert torch.equal(joined.to_dense(), dense)
    assert torch.equal(joined.offsets, batch.offsets)
    chosen = data.draw(st.lists(st.integers(-n_samples, n_samples - 1), max_size=6)) if n_samples else []
    index = torch.tensor(chosen, dtype=torch.int64)
    assert torch.equal(batch.samples(chosen).validate().to_dense(), dense[:, index])
    assert torch.equal(batch[::2].to_dense(), dense[:, ::2])
    assert batch.silence(3).validate().to_dense().shape == (3, *dense.shape[1:])
    assert batch.silence(3).n_spikes.sum() == 0


def test_masks_choose_samples_and_other_numbers_are_refused() -> None:
    dense = (torch.arange(30) % 4 == 0).float().view(2, 3, 5)
    batch = SpikeBatch.from_dense(dense)
    mask = torch.arange(batch.n_samples) % 2 == 0
    assert torch.equal(batch[mask].to_dense(), dense[:, mask])
    assert batch[[]].n_samples == 0
    for wrong in ([1.5], [True] * (batch.n_samples + 1)):
        with pytest.raises(ShapeError, match=f"give numbers of samples, or a mask of {batch.n_samples}"):
            batch[wrong]
    with pytest.raises(SpikeListError, match=r"ids are float64, such as 1\.7; give whole numbers"):
        SpikeBatch.from_lists([[[1.7]]], 4)


def test_slices_keep_near_spikes_values_and_dropped() -> None:
    batch = with_near_spikes()
    batch = replace(batch, values=batch.entry_values().requires_grad_())
    part = batch.samples([1, 0]).validate()
    assert part.ids.tolist() == [1, 3, 0, 4, 2, 2]
    assert part.n_spikes.tolist() == [0, 2, 0, 1]
    assert part.dropped.tolist() == [3, 0, 0, 1]
    assert part.values.requires_grad
    assert part.values.tolist() == [1, 1, 0, 0, 0, 1]
    assert batch[-1].n_samples == 1
    assert batch[-1].ids.tolist() == [2]
    later = batch.steps(1, 2)
    assert later.dropped.tolist() == [1, 0]
    assert later.n_listed.tolist() == [1, 1]
    both = batch.detach().then(later.detach())
    assert both.n_steps == 3
    assert both.dropped.tolist() == [0, 3, 1, 0, 1, 0]
    plain = SpikeBatch.from_dense(torch.ones(1, 2, 5))
    mixed = plain.then(batch)
    assert mixed.values.tolist() == [1] * 10 + [1, 1, 0, 0, 1, 0]


@settings(max_examples=100, deadline=None)
@given(dense_spikes(), st.data())
def test_cat(dense: torch.Tensor, data: st.DataObject) -> None:
    batch = SpikeBatch.from_dense(dense)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(batch)), max_size=4)))
    parts = [batch[a:b] for a, b in zip([0, *cuts], [*cuts, len(batch)], strict=True)]
    joined = SpikeBatch.cat(parts).validate()
    assert joined.shape == batch.shape == dense.shape
    for name in ("offsets", "ids", "n_spikes"):
        assert torch.equal(getattr(joined, name).int(), getattr(batch, name).int())


def test_cat_keeps_near_spikes_values_and_dropped() -> None:
    batch = with_near_spikes()
    values = batch.entry_values().requires_grad_()
    plain = SpikeBatch.from_dense(torch.ones(2, 1, 5))
    joined = SpikeBatch.cat([batch[[1]], plain, replace(batch, values=values)[[0]]]).validate()
    assert joined.ids.tolist() == [0, 1, 2, 3, 4, 1, 3, 0, 4, 2, 0, 1, 2, 3, 4, 2]
    assert joined.n_spikes.tolist() == [0, 5, 2, 0, 5, 1]
    assert joined.dropped is not None
    assert joined.dropped.tolist() == [3, 0, 0, 0, 0, 1]
    assert joined.values is not None
    assert joined.values.tolist() == [1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1, 1]
    joined.values.sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [1, 1, 1, 1, 1, 0]
    assert batch.then(replace(batch, dropped=None)).dropped.tolist() == [0, 3, 1, 0, 0, 0, 0, 0]


def test_errors_of_cat() -> None:
    with pytest.raises(ShapeError, match="cat: got no batches"):
        SpikeBatch.cat([])
    for other, found in ((torch.ones(3, 1, 5), "T=3, N=5"), (torch.ones(2, 1, 6), "T=2, N=6")):
        with pytest.raises(ShapeError, match=f"cat: batch 1 has {found}, but batch 0 has T=2, N=5"):
            SpikeBatch.cat([with_near_spikes(), SpikeBatch.from_dense(other)])


def test_single_samples_become_batches_in_a_data_loader() -> None:
    dense = (torch.rand(5, 7, 70_000) < 1e-3).float()
    batch = SpikeBatch.from_dense(dense)
    found = list(DataLoader([batch[k] for k in range(7)], batch_size=3, collate_fn=SpikeBatch.cat, num_workers=2))
    assert [len(x) for x in found] == [3, 3, 1]
    assert torch.equal(SpikeBatch.cat(found).to_dense(), dense)


@pytest.mark.parametrize("n_neurons", [5, 65_537])
def test_to_another_device(n_neurons: int) -> None:
    """On the device meta, which computes shapes alone."""
    batch = replace(with_near_spikes(), n_neurons=n_neurons)
    batch = replace(batch, ids=batch.ids.to(id_dtype(n_neurons)), values=batch.entry_values())
    assert batch.device == torch.device("cpu")
    assert batch.to("cpu") is batch
    moved = batch.to(torch.device("meta"), non_blocking=True)
    assert moved.device.type == "meta"
    assert moved.shape == batch.shape == (2, 2, n_neurons)
    for name in ("offsets", "ids", "n_spikes", "values", "dropped"):
        before, after = getattr(batch, name), getattr(moved, name)
        assert (after.device.type, after.dtype, after.shape) == ("meta", before.dtype, before.shape)
    with pytest.raises(ShapeError, match=r"SpikeBatch\.to: got torch\.float16"):
        batch.to(torch.float16)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="spike lists are on meta"):
        ss.Layer(ss.LIF(3), n_pre=n_neurons)(moved)


def test_pin_memory_keeps_the_lists() -> None:
    batch = with_near_spikes()
    assert torch.equal(batch.pin_memory().to_dense(), batch.to_dense())


@pytest.mark.parametrize("how", ["pickle", "torch.save", "deepcopy"])
@pytest.mark.parametrize("n_neurons", [5, 65_537])
def test_copies(how: str, n_neurons: int) -> None:
    def copied(x: SpikeBatch) -> SpikeBatch:
        if how == "pickle":
            return pickle.loads(pickle.dumps(x))
        if how == "deepcopy":
            return copy.deepcopy(x)
        file = io.BytesIO()
        torch.save(x, file)
        return torch.load(io.BytesIO(file.getvalue()), weights_only=False)

    batch = replace(with_near_spikes(), n_neurons=n_neurons)
    batch = replace(batch, ids=batch.ids.to(id_dtype(n_neurons)), values=batch.entry_values())
    found = copied(batch).validate()
    assert repr(found) == repr(batch)
    for name in ("offsets", "ids", "n_spikes", "values", "dropped"):
        assert getattr(found, name).tolist() == getattr(batch, name).tolist()
        assert getattr(found, name).dtype == getattr(batch, name).dtype


@pytest.mark.parametrize("backend", ["cpu", "dense"])
def test_an_output_can_be_pickled(backend: str) -> None:
    output = ss.Model(ss.parse_net("7-5r-3"), backend=backend)(SpikeBatch.from_dense(torch.ones(4, 3, 7)))
    found = pickle.loads(pickle.dumps(output))
    assert repr(found) == repr(output)
    assert torch.equal(found.counts("hidden"), output.counts("hidden"))
    assert torch.equal(found.potentials, output.potentials)


@pytest.mark.parametrize("backend", ["cpu", "dense"])
def test_tensors_of_an_output_can_be_exchanged(backend: str) -> None:
    """As Lightning does: each field of a copy is set, each mapping is made again from its new values."""
    output = ss.Model(ss.parse_net("7-5r-3"), backend=backend)(SpikeBatch.from_dense(torch.ones(4, 3, 7)))
    again = copy.copy(output)
    again.spikes = type(output.spikes)(dict(output.spikes))  # type: ignore[call-arg]
    again.potentials = None
    assert output.potentials is not None
    assert again.activity() == output.activity()
    assert again.dropped() == output.dropped()
    assert torch.equal(again.counts("hidden"), output.counts("hidden"))


def test_errors_of_slicing() -> None:
    batch = with_near_spikes()
    for bad in ([2], [-3], torch.tensor([0, 5])):
        with pytest.raises(IndexError, match="is out of range for a batch of 2"):
            batch.samples(bad)
    with pytest.raises(ShapeError, match=r"index has shape \(1, 1\)"):
        batch.samples(torch.tensor([[0]]))
    for start, stop in [(-1, 1), (2, 1), (0, 3)]:
        with pytest.raises(IndexError, match=f"steps: {start} to {stop} is out of range for a batch with 2 steps"):
            batch.steps(start, stop)
    with pytest.raises(ShapeError, match=r"then: B=1, N=5 cannot follow B=2, N=5"):
        batch.then(batch.samples([0]))


# ---- Validation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"offsets": torch.tensor([0, 4, 4, 5, 6], dtype=torch.int32)}, ShapeError, r"offsets is torch\.int32"),
        ({"offsets": np.array([0, 4, 4, 5, 6])}, ShapeError, r"offsets is a ndarray; give a tensor torch\.int64 \[5\]"),
        ({"ids": torch.tensor([1, 3, 0, 4, 2, 2])}, ShapeError, r"ids is torch\.int64.*torch\.uint16 \[6\]"),
        ({"ids": [1, 3, 0, 4, 2, 2]}, ShapeError, "ids is a list; give a tensor"),
        ({"n_spikes": torch.tensor([[2, 0, 1, 0]], dtype=torch.int32)}, ShapeError, r"n_spikes is .*\[1, 4\].*\[4\]"),
        ({"n_spikes": torch.tensor([2**32 + 2, 0, 1, 0])}, ShapeError, r"n_spikes is torch\.int64 .*torch\.int32"),
        ({"n_spikes": torch.zeros(8, dtype=torch.int32)[::2]}, ShapeError, "not contiguous"),
        ({"n_spikes": None}, ShapeError, "n_spikes is a NoneType"),
        ({"values": torch.ones(5)}, ShapeError, r"values is torch\.float32 \[5\].*6 ids need torch\.float32 \[6\]"),
        ({"dropped": torch.zeros(4)}, ShapeError, r"dropped is torch\.float32 \[4\].*torch\.int32 \[4\]"),
        ({"n_steps": 3}, ShapeError, r"offsets is torch\.int64 \[5\]; T=3, B=2, .* torch\.int64 \[7\]"),
        ({"n_steps": 1}, ShapeError, r"offsets is torch\.int64 \[5\]; T=1, B=2, .* torch\.int64 \[3\]"),
        ({"n_steps": 2.0}, ShapeError, r"n_steps is 2\.0; allowed: 0 to 2147483647"),
        ({"n_samples": -2, "n_steps": -2}, ShapeError, "n_steps is -2; allowed: 0 to"),
        ({"n_neurons": 2**31}, ShapeError, "n_neurons is 2147483648; allowed: 1 to 2147483647"),
        ({"offsets": torch.tensor([0, 4, 3, 5, 6])}, SpikeListError, "list 1 has offsets that do not rise"),
        ({"offsets": torch.tensor([1, 4, 4, 5, 6])}, SpikeListError, "must run from 0 to the number of ids, 6"),
        ({"offsets": torch.tensor([0, 4, 4, 5, 7])}, SpikeListError, "must run from 0"),
        ({"n_spikes": torch.tensor([2, 1, 1, 0], dtype=torch.int32)}, SpikeListError, "list 1 has 0 ids but says 1"),
        ({"n_spikes": torch.tensor([-1, 0, 1, 0], dtype=torch.int32)}, SpikeListError, "list 0 has 4 ids but says -1"),
        ({"n_neurons": 4}, SpikeListError, "list 0 holds id 4; allowed: 0 to 3"),
        ({"n_spikes": torch.tensor([3, 0, 1, 0], dtype=torch.int32)}, SpikeListError, "list 0 does not ascend"),
    ],
)
def test_every_reader_names_what_is_wrong(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    batch = replace(with_near_spikes(), **changes)
    assert error is ShapeError or not spike_checks.holds(batch)  # as lists on another device are checked
    readers: list[Any] = [batch.validate, batch.to_dense, batch.counts, lambda: batch.steps(0, 1), lambda: batch[[0]]]
    if batch.n_neurons in (4, 5):
        network = ss.parse_net(f"{batch.n_neurons}-3-2")
        readers += [lambda: ss.Model(network)(batch), lambda: ss.Model(network, backend="dense")(batch)]
        readers += [lambda: ss.Layer(ss.LIF(3), batch.n_neurons)(batch), lambda: spt.pack(batch)]
        readers += [lambda grid=grid: on_ranks(network, grid, batch) for grid in ((1, 2), (2, 1))]
    for read in readers:
        with pytest.raises(error, match=message):
            read()
    program = ipu_program(ss.parse_net(f"{with_near_spikes().n_neurons}-3-2"))
    for use in (lambda: program.train_step(batch, torch.zeros(2, dtype=torch.int64)), lambda: program.infer(batch)):
        with pytest.raises(error, match=message):
            use()
    assert program.step == 0


@pytest.mark.parametrize("n", [1, 5, 70_000])
def test_good_lists_hold_wherever_they_lie(n: int) -> None:
    """The check of lists on another device, here on the CPU: it must agree with the engine's."""
    generator = torch.Generator().manual_seed(n)
    for density in (0.0, 0.3, 1.0):
        dense = (torch.rand(3, 2, n, generator=generator) < density).float()
        for gradient in ("none", "all"):
            batch = SpikeBatch.from_dense(dense.requires_grad_(gradient == "all"), gradient=gradient)
            assert spike_checks.holds(batch)
            if len(batch.ids) > n + 1 > 2:
                swapped = batch.ids.long().roll(1).to(batch.ids.dtype)
                assert not spike_checks.holds(replace(batch, ids=swapped))
    graded = SpikeBatch.from_dense(2.0 * torch.ones(2, 1, 3), graded=True)
    assert spike_checks.holds(graded)
    assert graded.values is not None
    assert not spike_checks.holds(replace(graded, values=graded.values * torch.inf))


def on_ranks(network: ss.Network, grid: tuple[int, int], batch: SpikeBatch) -> None:
    """A network over replicas × shards reads the batch."""
    simulate(grid[0] * grid[1], lambda world: Model(network, grid=make_grid(world, *grid))(batch))


def ipu_program(network: ss.Network) -> ipu.IpuProgram:
    """On the emulated machine, for T = 2 and B = 2."""
    plan = make_plan(network, 2, 2, parse_target("ipu-mk2:1x4"), optimizer="adam", max_activity=1.0)
    return ipu.IpuProgram(plan, ss.Model(network))


def test_the_ipu_engine_refuses_what_its_program_was_not_built_for() -> None:
    engine = make_engine("ipu-model", ss.parse_net("5-3-2"), Training(2, "max", batch=2))
    labels = torch.zeros(2, dtype=torch.int64)
    for changes, what in (
        ({"n_spikes": torch.tensor([2**32 + 2, 0, 1, 0])}, r"n_spikes is torch\.int64"),
        ({"offsets": None}, "offsets is a NoneType"),
        ({"offsets": torch.tensor([0, 4, 4, 5, 1 << 60])}, "must run from 0 to the number of ids"),
        ({"ids": torch.from_numpy(np.array([1, 3, 0, 4, 2, 9], np.uint16))}, "holds id 9; allowed: 0 to 4"),
    ):
        bad = replace(with_near_spikes(), **changes)
        for read in (lambda b: engine.step(b, 1e-3), engine.infer):
            with pytest.raises((ShapeError, SpikeListError), match=what):
                read(Batch(bad, labels))
    assert engine.program is None


@pytest.mark.parametrize("delay", [2**31, 2**20 + 1])
def test_delays_without_bound_reach_no_engine(delay: int) -> None:
    described = ss.Network.chain(ss.Input(5), ss.LIF(3), ss.LI(2), delay=1).to_dict()
    described["connections"][0]["delay"] = delay
    with pytest.raises(DescriptionError, match=rf"delay is {delay}; allowed: .* from 0 to 1,048,576"):
        ss.Network.from_dict(described)
    with pytest.raises(DescriptionError, match=rf"delay is {delay}; allowed"):
        ss.Layer(ss.LIF(3), n_pre=5, delays=[delay])


def test_negative_ids_of_large_populations_are_named() -> None:
    batch = SpikeBatch.from_lists([[[3, 70_000]]], 70_001)
    batch.ids[0] = -1
    for read in (batch.to_dense, batch.counts, lambda: ss.Layer(ss.LIF(3), n_pre=70_001)(batch)):
        with pytest.raises(SpikeListError, match="list 0 holds id -1; allowed: 0 to 70000"):
            read()


def test_validate_finds_duplicates_among_near_spikes() -> None:
    ids = torch.from_numpy(np.array([1, 3, 4, 4, 2, 2], np.uint16))
    with pytest.raises(SpikeListError, match="list 0 does not ascend: id 4 after 4"):
        replace(with_near_spikes(), ids=ids).validate()


def test_what_is_no_tensor_is_named() -> None:
    with pytest.raises(ShapeError, match=r"from_dense: spikes are an ndarray of shape \[5, 2\]; give \[T, B, N\]"):
        SpikeBatch.from_dense(np.zeros((5, 2)))
    for other, what in (
        ("101", "a str"),
        (None, "None"),
        (np.array([[["a"]]]), "an ndarray"),
        ([[[1], [0, 1]]], "a list"),
        (torch.zeros(5, 2, 3, device="meta"), "on the device meta"),
        (torch.zeros(5, 2, 3, dtype=torch.complex64), "complex64"),
    ):
        with pytest.raises(ShapeError, match=f"from_dense: spikes: got .*{what}.*give"):
            SpikeBatch.from_dense(other)  # type: ignore[arg-type]
    with pytest.raises(SpikeListError, match=r"spikes hold 0\.25; entries must be 0 or 1.*graded=True"):
        SpikeBatch.from_dense(torch.full((1, 1, 3), 0.25))


@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning")
def test_dense_spikes_of_every_kind() -> None:
    wanted = (torch.rand(6, 2, 5, generator=torch.Generator().manual_seed(0)) < 0.4).float()
    array = wanted.numpy()
    for other in (
        *(array.astype(kind) for kind in ("?", "i1", "u2", "i8", "f2", ">f4", "f8", np.longdouble)),
        array[::-1].copy()[::-1],
        np.broadcast_to(array, array.shape),  # must not be written
        array.tolist(),
        wanted.to_sparse(),
        wanted.to_sparse(2),
        wanted.bool().to_sparse(),
        *(wanted.to(dtype) for dtype in (torch.bfloat16, torch.uint16, torch.float8_e4m3fn)),
    ):
        for graded in (False, True):
            assert torch.equal(SpikeBatch.from_dense(other, graded=graded).to_dense(), wanted)
    rows = torch.eye(3).expand(2, 3, 3)
    assert torch.equal(SpikeBatch.from_dense(rows.to_sparse_csr()).to_dense(), rows)
    learns = wanted.to_sparse().requires_grad_()
    SpikeBatch.from_dense(learns, gradient="fired").counts().sum().backward()
    assert learns.grad is not None


def test_samples_are_chosen_by_numbers_and_masks_of_every_kind() -> None:
    spikes = with_near_spikes()
    for index in ([1], (1,), np.array([1]), np.array([1], np.uint16), torch.tensor([1]).to_sparse()):
        assert torch.equal(spikes.samples(index).to_dense(), spikes.samples(slice(1, 2)).to_dense())
    for mask in ([False, True], np.array([False, True]), torch.tensor([False, True]).to_sparse()):
        assert torch.equal(spikes.samples(mask).to_dense(), spikes.samples([1]).to_dense())
    for wrong in ("1", None, [[0], [1, 2]]):
        with pytest.raises(ShapeError, match="samples: numbers: got "):
            spikes.samples(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["cpu", "dense"])
def test_states_of_every_kind(backend: str) -> None:
    model = Model(ss.parse_net("5-4r-3"), backend=backend)
    spikes = SpikeBatch.from_dense(torch.ones(3, 2, 5))
    state = model(spikes).state
    wanted = model(spikes, state).potentials

    def with_states(change: Any) -> dict[str, Any]:
        return {k: replace(x, states={name: change(z) for name, z in x.states.items()}) for k, x in state.items()}

    for change in (
        np.asarray,
        torch.Tensor.tolist,
        torch.Tensor.double,
        torch.Tensor.to_sparse,
        lambda z: z.T.contiguous().T,
    ):
        assert torch.equal(model(spikes, with_states(change)).potentials, wanted)
    steps = {k: replace(x, step=np.int64(x.step), training_step=np.int64(0)) for k, x in state.items()}
    assert torch.equal(model(spikes, steps).potentials, wanted)
    with pytest.raises(ShapeError, match="state: numbers of v: got None"):
        model(spikes, with_states(lambda _: None))


@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning")
def test_numbers_of_numpy_and_sparse_tensors_describe_models() -> None:
    network = ss.parse_net("5-4r-3")
    wanted = Model(network, seed=3).layers["hidden"]
    for seed in (np.int64(3), np.uint8(3), np.array(3), torch.tensor(3)):
        found = Model(network, seed=seed).layers["hidden"]  # type: ignore[arg-type]
        assert torch.equal(found.weights[0], wanted.weights[0])
        assert found.rotation_seed == wanted.rotation_seed
    for wrong in (3.0, True, "3", 2**64, np.array([3])):
        with pytest.raises(DescriptionError, match=r"Model: seed is .*allowed: whole numbers from .* or None"):
            Model(network, seed=wrong)  # type: ignore[arg-type]
    with pytest.raises(DescriptionError, match="history is 2.5; allowed: whole numbers"):
        ss.Layer(ss.LIF(3), 3, history=2.5)  # type: ignore[arg-type]
    assert ss.Layer(ss.LIF(3), np.array([3, 2]), delays=np.array([1, 2]), history=np.int64(1)).delays == (1, 2)  # type: ignore[arg-type]
    mask = torch.eye(3).to_sparse()
    for other in (mask, mask.to_sparse_csr()):
        assert ss.Sparse(mask=other) == ss.Sparse(mask=np.eye(3))
    assert ss.LIF(3, beta=torch.tensor([0.25, 0.5, 0.0]).to_sparse()).beta == (0.25, 0.5, 0.0)
    assert ss.Delays(3, learn=np.bool_(True), given=torch.tensor([1, 2]).to_sparse()).given == (1.0, 2.0)  # type: ignore[arg-type]
    assert ss.Input(shape=np.array([2, 2, 1]), channels_first=np.bool_(True)).channels_first is True  # type: ignore[arg-type]
    model, spikes = Model(network), SpikeBatch.from_dense(torch.ones(3, 2, 5))
    traces = model(spikes, record={"hidden": torch.tensor([0, 1]).to_sparse()}).traces["hidden"]
    assert traces.neurons.tolist() == [0, 1]
