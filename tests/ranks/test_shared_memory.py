"""Memory that replicas on one host share: who reaches whose, what lies there, and that nothing of it is left."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from sparsesnn import _core
from sparsesnn.engines.cpu import wiring as engine
from sparsesnn.engines.module import Model
from sparsesnn.errors import NumericError, ShapeError
from sparsesnn.host import shared_memory
from sparsesnn.host.comm import Communicator, make_grid, simulate
from sparsesnn.host.shared_memory import CommonWeights, HostMemory
from sparsesnn.network import parse_net
from sparsesnn.spikes import SpikeBatch

pytestmark = pytest.mark.skipif(_core.shared_memory() is None, reason="this system has no files in memory")

GROUP = _core.group_samples


@pytest.fixture(autouse=True)
def _small_weights_are_common_too(monkeypatch):
    monkeypatch.setattr(CommonWeights, "LEAST", 0)


def matrix(rows: int, columns: int, shared: bool) -> np.ndarray:
    return np.asarray(_core.empty_matrix(rows, columns, shared=shared))


def spikes_of(replica: int) -> SpikeBatch:
    generator = torch.Generator().manual_seed(replica)
    return SpikeBatch.from_dense((torch.rand(9, GROUP, 30, generator=generator) < 0.2).float())


def step(model: Model) -> list[torch.Tensor]:
    """Gradients of one pass over other samples on each replica."""
    replica = model.parts.grid.replicas.rank
    model(spikes_of(replica), first_sample=GROUP * replica).potentials.square().sum().backward()
    model.finish_backward()
    return [parameter.grad for parameter in model.parameters()]


def test_ranks_read_one_another(monkeypatch):
    def run(comm: Communicator) -> tuple[int, ...]:
        memory = HostMemory(comm)
        own = matrix(3, 5, shared=True)
        own[:] = comm.rank
        places = comm.all_gather(np.array([memory.place(own)]))
        for r in set(memory.ranks) - {comm.rank}:
            assert memory.at(r, int(places[r][0]), (3, 5)).tolist() == [[r] * 5] * 3
        comm.barrier()
        assert (memory.group.size, memory.ranks[memory.group.rank]) == (len(memory.ranks), comm.rank)
        return memory.ranks

    assert simulate(3, run) == [(0, 1, 2)] * 3
    files = iter(["", "", ""])
    monkeypatch.setattr(shared_memory, "_own_file", lambda: next(files))
    assert simulate(3, run) == [(0,), (1,), (2,)]


def test_another_host_has_a_file_of_that_number_too():
    size, path, target = shared_memory._own_file().split(" ", 2)
    assert "memfd:sparsesnn-" in target
    mapped = shared_memory._open(f"{size} {path} {target}")
    assert mapped is not None
    assert shared_memory._open(f"{size} {path} {target}") is mapped  # once, for all networks of a process
    assert shared_memory._open(f"{size} {path} {target}-another") is None
    assert shared_memory._open(f"{size} /proc/{2**30}/fd/3 {target}") is None
    assert shared_memory._open("") is None


def test_what_lies_in_shared_memory():
    assert _core.shared_place(matrix(4, 4, shared=False)) == -1
    assert _core.shared_place(np.zeros(4, np.float32)) == -1
    one, two = matrix(700, 900, shared=True), matrix(700, 900, shared=True)
    place = _core.shared_place(one)
    assert place >= 0
    assert abs(_core.shared_place(two) - place) >= one.nbytes
    one[:], two[:] = 1, 2
    del one
    _core.release_memory()
    rooms = [matrix(700, 900, shared=True) for _ in range(50)]  # those that others left come first
    again = next(room for room in rooms if _core.shared_place(room) == place)  # its pages were given back
    again[:] = 3
    assert two.min() == two.max() == 2
    with pytest.raises(MemoryError):
        _core.empty_matrix(1 << 30, 1 << 20, shared=True)


def test_a_child_has_none_of_its_parents():
    program = (
        "import os, numpy as np; from sparsesnn import _core\n"
        "assert _core.shared_memory()\n"
        "mine = np.asarray(_core.empty_matrix(64, 64, shared=True)); mine[:] = 1\n"
        "kept = np.asarray(_core.empty_matrix(64, 64, shared=True)); kept[:] = 1; del kept\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    theirs = np.asarray(_core.empty_matrix(64, 64, shared=True)); theirs[:] = 2\n"
        "    good = _core.shared_memory() is None and _core.shared_place(theirs) == -1\n"
        "    del mine; _core.release_memory(); os._exit(0 if good else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0 and mine.min() == mine.max() == 1 and _core.shared_memory()\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=60)


def test_gradients_are_the_callers_own():
    """Each replica may change its gradients in place, and keep them over the next pass."""

    def run(comm: Communicator) -> None:
        model = Model(parse_net("30-70r-10"), grid=make_grid(comm, 2, 1), seed=1)
        first = step(model)
        expected = [gradient.clone() for gradient in first]
        if comm.rank:
            for gradient in first:
                gradient.zero_()
        comm.barrier()
        again = step(model)
        for own, found, wanted in zip(first, again, expected, strict=True):
            assert torch.equal(found, wanted)
            assert torch.equal(own, torch.zeros_like(own) if comm.rank else wanted)
        assert model.parts.reduction.memory.ranks == (0, 1)

    simulate(2, run)


@pytest.mark.parametrize("learns", [True, False])
def test_weights_change_between_passes(learns):
    """The copy that all replicas read is that of the weights at hand."""

    def run(comm: Communicator) -> None:
        model = Model(parse_net("30-70r-10"), grid=make_grid(comm, 2, 1), seed=1)
        step(model)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(2)
            expected = model(spikes_of(comm.rank)).potentials  # without gradients every replica packs its own
        assert torch.equal(model(spikes_of(comm.rank), first_sample=GROUP * comm.rank).potentials, expected)
        assert list(model.parts.common.rooms) == [("hidden", "weight0"), ("hidden", "loop0")]
        _, output = model.learn(spikes_of(comm.rank), lambda out: out.potentials.sum(), first_sample=GROUP * comm.rank)
        model.finish_backward()
        assert model.runner.chains
        assert torch.equal(output.potentials, expected)
        with torch.no_grad():
            model.layers["hidden"].weights[0][20, 3] = torch.nan  # among the rows that replica 1 packs
        if learns:
            model.learn(spikes_of(comm.rank), lambda out: out.potentials.sum(), first_sample=GROUP * comm.rank)
        else:
            model(spikes_of(comm.rank), first_sample=GROUP * comm.rank)

    with pytest.raises(NumericError, match=r"hidden: weight holds NaN at \[20, 3\]"):
        simulate(2, run)


def test_small_weights_stay_with_each_replica(monkeypatch):
    monkeypatch.setattr(CommonWeights, "LEAST", 1 << 20)

    def run(comm: Communicator) -> None:
        model = Model(parse_net("30-70r-10"), grid=make_grid(comm, 2, 1))
        step(model)
        assert not model.parts.common.rooms

    simulate(2, run)


def n_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def n_maps() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:sparsesnn")


def test_nothing_is_left():
    def run(comm: Communicator) -> None:
        step(Model(parse_net("30-70r-10"), grid=make_grid(comm, 2, 1)))

    simulate(2, run)
    gc.collect()
    files, maps = n_files(), n_maps()
    names = sorted(Path("/dev/shm").glob("*sparsesnn*"))
    for _ in range(3):
        simulate(2, run)
    gc.collect()
    assert n_files() <= files  # fewer if an earlier test's are closed by now
    assert n_maps() <= maps
    assert sorted(Path("/dev/shm").glob("*sparsesnn*")) == names == []


def test_rows():
    branches = [np.random.default_rng(k).normal(size=(150, 7)).astype(np.float32) for k in range(3)]
    active = np.arange(150) % 5 != 2
    active[60:75] = False
    for folds in ([0, 1], [0, 0, 2], [0, 1, 1], [0]):
        some = branches[: len(folds)]
        whole, *rows = np.empty_like(some[0]), *np.full((3, *some[0].shape), 9, np.float32)
        _core.add_branches(some, folds, whole)
        _core.add_branches(some, folds, rows[0], active, rows[1:])
        for each in rows:
            assert np.array_equal(each, np.where(active[:, None], whole, np.float32(9)))
    with pytest.raises(ShapeError, match="add_branches: `active` needs a matrix"):
        _core.add_branches(branches[:2], [0, 1], whole, active[1:])
    for mask, copy in ((active, whole[1:].copy()), (None, rows[1])):
        with pytest.raises(ShapeError, match="add_branches: copies need `active`"):
            _core.add_branches(branches[:2], [0, 1], whole, mask, [copy])


@pytest.mark.parametrize("recurrent", [True, False])
@pytest.mark.parametrize("weight_dtype", ["float32", "bfloat16"])
def test_rows_packed_in_parts(weight_dtype, recurrent):
    """All columns one after another, or tile by tile."""
    layer = next(iter(Model(parse_net("30-70r-10"), weight_dtype=weight_dtype).layers.values()))
    arguments = {**engine.spec_arguments(layer, True, set()), "tile_width": 32}
    spec = _core.LayerSpec(**arguments)
    weight = layer.loop_weight.detach().numpy()
    out = np.full(_core.packed_bytes(spec, 70), 255, np.uint8)
    for begin, end in [(31, 70), (0, 31), (31, 31)]:
        _core.pack_rows(spec, recurrent, weight, begin, end, out, "weight")
    rows = torch.from_numpy(out).view(getattr(torch, weight_dtype)).float()
    rows = rows.view(70, 96) if recurrent else rows.view(3, 70, 32).transpose(0, 1).reshape(70, 96)
    assert torch.equal(rows[:, :70], torch.from_numpy(weight).to(getattr(torch, weight_dtype)).float())
    assert not rows[:, 70:].any()
    with pytest.raises(ShapeError, match=rf"pack_rows: give rows of the weight, and {len(out)} bytes for all of it"):
        _core.pack_rows(spec, recurrent, weight, 0, 71, out, "weight")
    with pytest.raises(ShapeError, match=r"weight has shape \[70, 69\]; give \[70, 70\]"):
        _core.pack_rows(spec, recurrent, np.ascontiguousarray(weight[:, 1:]), 0, 70, out, "weight")
    lists = _core.Lists(np.zeros(2, np.int64), np.empty(0, np.uint16), np.zeros(1, np.int32))
    source = _core.Source(30, 0, np.zeros((30, 70), np.float32), out[:-1])
    numbers = np.zeros(70, np.float32)
    call = _core.LayerCall(
        spec,
        sources=[source],
        states=["v"],
        entries=4 * [numbers],
        derivatives=[],
        grad_threshold=numbers,
        loops=[_core.Loop(weight, 1)],
    )
    chain = _core.Chain([False])
    chain.add_layer("", call, [0], [False], [False], [False], False)
    with pytest.raises(ShapeError, match="a packed weight has .* bytes; pack_rows fills"):
        chain.forward([lists], 1, 1, [(0, 0, None, None, None, None, False)])
