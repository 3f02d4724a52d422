"""Sums that parts of a batch, or of a layer, can add up to the bits of the whole."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pytest
import torch

from sparsesnn import _core
from sparsesnn.engines.cpu.chain_pass import ChainPass
from sparsesnn.engines.cpu.lists import engine_lists
from sparsesnn.engines.module import Model
from sparsesnn.errors import ShapeError
from sparsesnn.host.comm import Local
from sparsesnn.host.comm.exchange import make_exchange
from sparsesnn.network import parse_net
from sparsesnn.spikes import SpikeBatch

GROUP = _core.group_samples


def random_spikes(n_steps: int, n_samples: int, n: int) -> SpikeBatch:
    generator = torch.Generator().manual_seed(n_steps)
    return SpikeBatch.from_dense((torch.rand(n_steps, n_samples, n, generator=generator) < 0.2).float())


def strong_model(net: str, **rules: Any) -> Model:
    model = Model(parse_net(net, bias=True, **rules), seed=1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "->" in name:
                parameter.mul_(3)
    return model


def backward_calls(
    model: Model, spikes: SpikeBatch, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[tuple[Any, ...], dict[str, np.ndarray]]]:
    """Arguments and result of every call of `ChainPass.backward_node`, last layer first."""
    calls: list[tuple[tuple[Any, ...], dict[str, np.ndarray]]] = []
    backward = ChainPass.backward_node

    def record(*arguments: Any) -> Any:
        result = backward(*arguments)
        calls.append((arguments, copy.deepcopy(result[0])))  # autograd adds to the array that it receives
        return result

    with monkeypatch.context() as patch:
        patch.setattr(ChainPass, "backward_node", record)
        counts = model(spikes).counts()
        weights = torch.linspace(-1, 1, counts.shape[-1]) / 48
        (counts**2 * weights).sum().backward()
    return calls


def folded(groups: np.ndarray) -> np.ndarray:
    total: np.ndarray = np.zeros_like(groups[0])
    for group in groups:
        total += group
    return total


@pytest.mark.parametrize(
    ("n_steps", "n_groups", "edges"),
    [
        (3, 21, [5, 11, 16]),  # several groups a chunk, several leaves, cut within and between
        (40, 9, [5]),  # one group a chunk; each half is a leaf
        (40, 12, [6, 9]),
        (150, 3, [1, 2]),  # several chunks a group
        (300, 2, [1]),
    ],
)
@pytest.mark.parametrize("net", ["30-75-40-10s", "30-75cr-40r-10s"])
def test_groups_add_up_to_the_gradient(
    net: str, n_steps: int, n_groups: int, edges: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = strong_model(net, learn_beta=True, learn_threshold=True, reset="zero" if n_steps == 40 else "subtract")
    n_samples = n_groups * GROUP - 5
    spikes = random_spikes(n_steps, n_samples, 30)
    whole = backward_calls(model, spikes, monkeypatch)
    branches = _core.find_branches(n_groups, edges)
    parts = [backward_calls(model, spikes[lo * GROUP : hi * GROUP], monkeypatch) for lo, hi, _ in branches]
    for k, ((this, *arguments), result) in enumerate(whole):
        separate, *_ = this.chain.chain.backward_node(this.made, *arguments[:3], n_samples)
        for (name, total), own in zip(result.items(), separate, strict=True):
            if name.startswith(("weight", "loop")):
                assert own.shape == (1, *total.shape)  # the whole batch is one branch
                assert own.tobytes() == total.tobytes()
                sums = [part[k][1][name] for part in parts]
                added = np.empty_like(total)
                _core.add_branches(sums, [folds for _, _, folds in branches], added)
                assert added.tobytes() == total.tobytes()
            else:
                assert own.shape == (n_groups, *total.shape)
                assert folded(own).tobytes() == total.tobytes()
        assert any(np.any(total) for total in result.values())


def test_branches() -> None:
    assert _core.find_branches(8, []) == [(0, 8, 0)]
    assert _core.find_branches(12, [6]) == [(0, 6, 0), (6, 12, 1)]
    assert _core.find_branches(9, [5]) == [(0, 5, 0), (5, 9, 1)]
    # a cut leaf: what lies before the cut in one piece, then group by group
    assert _core.find_branches(6, [3]) == [(0, 3, 0), (3, 4, 1), (4, 5, 1), (5, 6, 1)]
    assert _core.find_branches(24, [6, 12, 18]) == [(0, 6, 0), (6, 12, 1), (12, 18, 0), (18, 24, 2)]
    assert _core.find_branches(0, [0, 0]) == []
    for n_groups in (1, 7, 17, 40, 131):
        for edges in ([1], [n_groups // 3, 2 * n_groups // 3], list(range(0, n_groups + 1, 5)), [0, 0, n_groups]):
            branches = _core.find_branches(n_groups, edges)
            assert [lo for lo, _, _ in branches] == [0, *(hi for _, hi, _ in branches[:-1])]
            assert branches[-1][1] == n_groups
            assert sum(1 - folds for _, _, folds in branches) == 1
            assert not any(lo < edge < hi for lo, hi, _ in branches for edge in edges)


def test_sums_that_do_not_fit() -> None:
    one, total = np.ones(3, np.float32), np.empty(3, np.float32)
    for sums, folds in ([[one], [1]], [[one, one], [0, 0]], [[one, one[:2]], [0, 1]], [[], []], [[one], [0, 1]]):
        with pytest.raises(ShapeError, match="add_branches: give as many sums as folds"):
            _core.add_branches(sums, folds, total)
    _core.add_branches([one, 2 * one, 3 * one], [0, 0, 2], total)
    assert total.tolist() == [6, 6, 6]


@pytest.mark.parametrize("n", [16, 40, 70, 199, 256, 400])
def test_tiles_of_several_ranks_add_up_to_those_of_one(n: int) -> None:
    """∂L/∂(values of a source), of which each rank has the sums of its blocks of tiles."""
    n_pre, width = 33, 16
    n_tiles = -(-n // width)
    lists = random_spikes(20, 11, n_pre)
    numbers = np.random.default_rng(n)
    weight = numbers.normal(size=(n_pre, n)).astype(np.float32)
    d_potentials = numbers.normal(size=(20, 11, n)).astype(np.float32)

    def d_value(first: int, last: int, ranks: _core.LayerRanks | None) -> np.ndarray:
        """Of tiles first to last - 1; of several ranks [K, entries]."""
        columns = slice(width * first, min(n, width * last))
        size = columns.stop - columns.start
        given = engine_lists(lists)
        source = _core.Source(n_pre, 0, np.ascontiguousarray(weight[:, columns]))
        beta = np.full(size, 0.9, np.float32)
        spec = readout_spec(size, width, n, columns.start)
        call = _core.LayerCall(
            spec,
            states=["v"],
            sources=[source],
            entries=[beta, np.ones(size, np.float32)],
            derivatives=[],
            ranks=ranks,
        )
        chain = _core.Chain([True])
        chain.add_layer("", call, [0], [True], [], [], False)
        made = chain.forward([given], 20, 11, [(0, 0, None, None, None, None, False)])
        d_out = np.ascontiguousarray(d_potentials[:, :, columns])
        found: np.ndarray = chain.backward_node(made, 0, d_out, [True])[1][0]
        return found if ranks is None else found.reshape(-1, len(lists.ids))

    whole = d_value(0, n_tiles, None)

    def pairwise(first: int, size: int) -> np.ndarray:
        if size == 1:
            return d_value(first, first + 1, None)
        return pairwise(first, size // 2) + pairwise(first + size // 2, size // 2)

    sizes = [1 << k for k in reversed(range(10)) if n_tiles >> k & 1]
    blocks = [pairwise(first, size) for first, size in zip(np.cumsum([0, *sizes[:-1]]), sizes, strict=True)]
    for _ in sizes[1:]:
        last = blocks.pop()
        blocks[-1] = blocks[-1] + last
    assert whole.tobytes() == blocks[0].tobytes()

    ranks = _core.LayerRanks(make_exchange(Local()), [0, n])
    for n_ranks in (1, 2, 3, 5, n_tiles):
        edges = [0, *sorted(numbers.integers(0, n_tiles + 1, n_ranks - 1).tolist()), n_tiles]
        folds = _core.tile_folds(edges)
        parts = [d_value(first, last, ranks) for first, last in itertools.pairwise(edges) if last > first]
        assert [len(part) for part in parts] == [len(of_rank) for of_rank in folds if of_rank]
        total = np.empty_like(whole)
        _core.add_branches(
            [row for part in parts for row in part], [fold for of_rank in folds for fold in of_rank], total
        )
        assert total.tobytes() == whole.tobytes()


def test_edges_of_tiles_ascend() -> None:
    assert _core.tile_folds([0, 8, 13]) == [[0], [0, 2]]
    assert _core.tile_folds([0, 0, 3, 4, 4]) == [[], [0, 0], [2], []]
    for edges in ([], [1, 2], [0, 3, 2]):
        with pytest.raises(ShapeError, match="tile_folds: edges must ascend from 0"):
            _core.tile_folds(edges)


def readout_spec(n: int, tile_width: int, population: int, first: int) -> _core.LayerSpec:
    return _core.LayerSpec(
        shape="readout",
        fires=False,
        n_trained=0,
        detach_reset=True,
        surrogate="straight_through",
        slope=1.0,
        n=n,
        tile_width=tile_width,
        capacity=0,
        fixed=False,
        bf16=False,
        save=True,
        seed=0,
        first_step=0,
        population=population,
        first=first,
    )
