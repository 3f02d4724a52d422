"""Currents as input, and the potentials of neurons that fire, over ranks: the bits of one process, on every rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks_random import samples_of, strengthen
from torch import Tensor

from sparsesnn import encode
from sparsesnn.engines.module import Model
from sparsesnn.host.comm import Communicator, make_grid, simulate
from sparsesnn.layers import LIF, Input
from sparsesnn.network import Connection, Network, parse_net
from sparsesnn.output import Output
from sparsesnn.parameters import NEURONS

T, B = 9, 19
GRIDS = [(1, 2), (2, 1), (1, 3), (2, 2), (1, 4)]
LISTED: dict[str, Any] = {"grad_threshold": 0.3, "threshold": 0.5}


def branches() -> Network:
    """Currents into two populations, one of them recurrent, and a population that fires at the end."""
    populations = {
        "in": Input(130, currents=True),
        "a": LIF(130, bias=True, learn_beta=True, **LISTED),
        "b": LIF(130, recurrent=True, **LISTED),
        "out": LIF(70, recurrent=True, detach_reset=False, **LISTED),
    }
    ends = [("in", "a"), ("a", "b"), ("in", "b"), ("b", "out"), ("a", "out")]
    return Network(populations, [Connection(*c) for c in ends])


NETS: dict[str, Network] = {
    "plain": parse_net("currents-150-75-10", **LISTED),
    "recurrent": parse_net("currents-150r-70-10s", bias=True, **LISTED),
    "capacity": parse_net("currents-150r-40-70s", capacity=9, reset="zero", **LISTED),
    "branches": branches(),
    "readout": parse_net("currents-70"),
}


def loss_of(output: Output, first: int) -> Tensor:
    """A sum over the samples of a batch, of potentials and of the spikes of every population."""
    assert output.potentials is not None
    v = output.potentials
    wanted = torch.linspace(-1, 1, T * B * v.shape[2]).view(T, B, -1)[:, first : first + v.shape[1]]
    loss = (v * wanted).sum() / B
    for name in output.spikes:
        loss = loss + 0.01 * (output.counts(name) ** 2).sum() / B
    return loss


@pytest.mark.parametrize("learns", [False, True], ids=["autograd", "learn"])
@pytest.mark.parametrize("constant", [False, True], ids=["changing", "constant"])
@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: f"{grid[0]}x{grid[1]}")
@pytest.mark.parametrize("name", NETS)
def test_bits_of_one_process(name: str, grid: tuple[int, int], constant: bool, learns: bool) -> None:
    net = NETS[name]
    n = net.populations[net.inputs[0]].n
    shape = (B, n) if constant else (T, B, n)
    x = 1.5 * torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    n_steps = T if constant else None
    model = Model(net, seed=1)
    strengthen(model)
    given = x.clone().requires_grad_()
    output = model(given, n_steps=n_steps, potentials=True)
    loss_of(output, 0).backward()
    assert all(output.activity().values())
    assert output.potentials is not None
    assert given.grad is not None
    assert float(given.grad.abs().max()) > 0
    potentials, d_currents = output.potentials.detach(), given.grad
    gradients = {k: p.grad for k, p in model.named_parameters()}

    def work(world: Communicator) -> None:
        ranks = make_grid(world, *grid)
        first, last = samples_of(ranks.replicas.rank, grid[0], B)
        own = Model(net, seed=1, grid=ranks)
        strengthen(own)
        mine = x[..., first:last, :].clone()
        if learns and any(p.requires_grad for p in own.parameters()):
            _, found = own.learn(
                mine, lambda out: loss_of(out, first), n_steps=n_steps, potentials=True, first_sample=first
            )
        else:
            mine.requires_grad_()
            found = own(mine, n_steps=n_steps, potentials=True, first_sample=first)
            own.runner.begin_backward(last - first, first)
            loss_of(found, first).backward()
            assert mine.grad is not None
            assert torch.equal(mine.grad, d_currents[..., first:last, :]), "currents"
        own.finish_backward()
        assert found.potentials is not None
        assert torch.equal(found.potentials.detach(), potentials[:, first:last]), "potentials"
        assert own.parts is not None
        for k, p in own.named_parameters():
            shards, expected = own.parts.shards_of(k), gradients[k]
            assert expected is not None
            if expected.ndim:
                axis, edge = own.parts.cuts.get(k, NEURONS)
                expected = expected.narrow(axis, edge(shards.begin), edge(shards.end) - edge(shards.begin))
            assert p.grad is not None
            assert torch.equal(p.grad, expected), k

    simulate(grid[0] * grid[1], work)


def test_a_rank_that_owns_no_neurons_gets_the_whole_gradient() -> None:
    """16 neurons are one tile, which lies on one rank."""
    net = Network.chain(Input(16, currents=True), LIF(16, **LISTED), LIF(3, **LISTED))
    x = 2 * torch.randn(T, B, 16, generator=torch.Generator().manual_seed(1))
    grads = []

    def run(model: Model) -> Tensor:
        strengthen(model)
        given = x.clone().requires_grad_()
        loss_of(model(given, potentials=True), 0).backward()
        assert given.grad is not None
        return given.grad

    expected = run(Model(net, seed=1))

    def work(world: Communicator) -> None:
        model = Model(net, seed=1, grid=make_grid(world, 1, 3))
        grads.append(run(model))

    simulate(3, work)
    assert len(grads) == 3
    assert all(torch.equal(g, expected) for g in grads)


@pytest.mark.parametrize("grid", [(1, 2), (2, 2)], ids=lambda grid: f"{grid[0]}x{grid[1]}")
@pytest.mark.parametrize("net", ["64-150r-70-10s", "64-150p0.2-10s", "64-70-70s"])
def test_lists_that_repeat(net: str, grid: tuple[int, int]) -> None:
    """The same for one list for each sample, whose current is computed once."""
    network = parse_net(net, bias=True, **LISTED)
    x = torch.rand(B, 64, generator=torch.Generator().manual_seed(1))
    once = encode.direct(x * (x > 0.5), T)
    model = Model(network, seed=1)
    strengthen(model)
    output = model(once, potentials=True)
    loss_of(output, 0).backward()
    gradients = {k: p.grad for k, p in model.named_parameters()}
    assert output.potentials is not None
    potentials = output.potentials.detach()

    def work(world: Communicator) -> None:
        ranks = make_grid(world, *grid)
        first, last = samples_of(ranks.replicas.rank, grid[0], B)
        own = Model(network, seed=1, grid=ranks)
        strengthen(own)
        mine = once[first:last]
        assert mine.repeats
        _, found = own.learn(mine, lambda out: loss_of(out, first), potentials=True, first_sample=first)
        own.finish_backward()
        assert found.potentials is not None
        assert torch.equal(found.potentials.detach(), potentials[:, first:last])
        assert own.parts is not None
        for k, p in own.named_parameters():
            shards, expected = own.parts.shards_of(k), gradients[k]
            assert expected is not None
            if expected.ndim:
                axis, edge = own.parts.cuts.get(k, NEURONS)
                expected = expected.narrow(axis, edge(shards.begin), edge(shards.end) - edge(shards.begin))
            assert p.grad is not None
            assert torch.equal(p.grad, expected), k

    simulate(grid[0] * grid[1], work)
