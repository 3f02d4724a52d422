"""Random networks over random grids of ranks against one process, bit for bit.

    mpirun -n 16 python benchmarks/ranks_random.py 100               networks of seeds 0 to 99, on grids of these 16 ranks
    ./dev bench ranks-random 100 --ranks 7        on 7 ranks that are threads of this process
    ./dev bench ranks-random 1 --first 17 --ranks 7 --verbose

Rank 0 trains the network alone, and sends the results to the others: lists of every population, dropped spikes, activity,
potentials, gradients, and the lists of the next step. Each rank compares its part. The exit code is 1 if one differs.
"""

from __future__ import annotations

import argparse
import os
import pickle
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsesnn import _core
from sparsesnn.delays import Delays
from sparsesnn.engines.dropout import Heard
from sparsesnn.engines.module import Model
from sparsesnn.errors import DescriptionError
from sparsesnn.host.comm import Communicator, Grid, make_grid, simulate
from sparsesnn.host.shared_memory import CommonWeights
from sparsesnn.layers import LI, LIF, AdLIF, CubaLIF, Input, Resonator
from sparsesnn.network import Connection, Network, parse_net
from sparsesnn.output import Output
from sparsesnn.parameters import DELAYS, NEURONS
from sparsesnn.spikes import SpikeBatch
from sparsesnn.synapses import Dense, Sparse

GROUP = _core.group_samples


@dataclass(frozen=True)
class Case:
    """A network, its input and its grid.

    Args:
        rate: input spikes per neuron and step; the first `silent` neurons never fire.
        graded: input spikes are counts of 1 to 3.
        replicas, shards: the grid.
        options: arguments of `Model`.
        drops: with dropout of spikes.
        hooked: ranks and layers with a hook: that rank then runs layer by layer.
    """

    network: Network
    replicas: int
    shards: int
    n_steps: int = 13
    n_samples: int = 19
    rate: float = 0.2
    silent: int = 0
    graded: bool = False
    options: tuple[tuple[str, Any], ...] = ()
    drops: bool = False
    hooked: tuple[tuple[int, str], ...] = ()

    def heard(self, first: int) -> Heard | None:
        """Which spikes of the samples from `first` on stay: four in five; None: all."""

        def stays(population: int, step: Any, sample: Any, neuron: Any) -> Any:
            return (7 * step + 13 * (sample + first) + 31 * neuron + population) % 5 != 0

        return stays if self.drops else None

    def on_rank(self, grid: Grid) -> Model:
        """The model of one rank, with its hooks."""
        model = self.model(grid=grid)
        for rank, layer in self.hooked:
            if rank == grid.world.rank:
                model.layers[layer].register_forward_hook(lambda *_: None)
        return model

    @property
    def ranks(self) -> int:
        return self.replicas * self.shards

    def model(self, **more: Any) -> Model:
        """The model, with weights at which neurons fire."""
        model = Model(self.network, seed=1, **dict(self.options), **more)
        strengthen(model)
        return model

    def spikes(self) -> SpikeBatch:
        n = self.network.populations[self.network.inputs[0]].n
        return random_spikes(self.n_steps, self.n_samples, n, rate=self.rate, silent=self.silent, graded=self.graded)


@dataclass(frozen=True)
class Expected:
    """The results of one process.

    Args:
        lists, next_lists: of every population, in this step and the next one.
        gradients: of every parameter, its value and its gradient.
        silent: populations that did not fire.
    """

    lists: dict[str, SpikeBatch]
    next_lists: dict[str, SpikeBatch]
    potentials: Tensor | None
    gradients: dict[str, tuple[Tensor, Tensor]]
    silent: tuple[str, ...]


def random_spikes(
    n_steps: int, n_samples: int, n: int, *, rate: float = 0.2, silent: int = 0, graded: bool = False
) -> SpikeBatch:
    """Each neuron fires in a share `rate` of all steps; the first `silent` neurons never do."""
    generator = torch.Generator().manual_seed(n_steps)
    fired = (torch.rand(n_steps, n_samples, n, generator=generator) < rate).float()
    fired[:, :, :silent] = 0
    if graded:
        fired *= torch.randint(1, 4, fired.shape, generator=generator)
    return SpikeBatch.from_dense(fired, graded=graded)


def strengthen(model: nn.Module) -> None:
    """Sets weights with which neurons fire."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "->" in name and not name.endswith(DELAYS):
                parameter.mul_(3)


def loss_of(output: Output, first: int, n_all: int) -> Tensor:
    """Part of a sum over the samples of a batch, by logits and by the spikes of every population."""
    logits = output.counts() if output.potentials is None else output.potentials.amax(0)
    wanted = torch.linspace(-1, 1, n_all * logits.shape[1]).view(n_all, -1)[first : first + len(logits)]
    loss = (logits * wanted).sum() / n_all
    for name in output.spikes:
        loss = loss + 0.01 * (output.counts(name) ** 2).sum() / n_all
    return loss


def samples_of(replica: int, n_replicas: int, n_all: int) -> tuple[int, int]:
    """First and last + 1 sample of a replica: whole groups."""
    n_groups = -(-n_all // GROUP)
    first, last = (-(-r * n_groups // n_replicas) * GROUP for r in (replica, replica + 1))
    return min(first, n_all), min(last, n_all)


def lists_of(output: Output) -> list[tuple[str, SpikeBatch]]:
    """The lists of every spiking population, as on the cpu engine."""
    return [(name, lists) for name, lists in output.spikes.items() if isinstance(lists, SpikeBatch)]


def alone(case: Case) -> Expected:
    """The case in one process."""
    model, spikes = case.model(), case.spikes()
    output = model(spikes, heard=case.heard(0))
    loss_of(output, 0, case.n_samples).backward()
    following = model(
        spikes, heard=case.heard(0)
    )  # of the next training step, in which full lists keep other candidates
    return Expected(
        {name: replace(lists, values=None) for name, lists in lists_of(output)},
        {name: replace(lists, values=None) for name, lists in lists_of(following)},
        None if output.potentials is None else output.potentials.detach(),
        {name: (p.detach(), p.grad) for name, p in model.named_parameters() if p.grad is not None},
        tuple(name for name, rate in output.activity().items() if not rate),
    )


def compare(case: Case, expected: Expected, world: Communicator) -> None:
    """Compares this rank's part. Errors: `AssertionError` if it differs."""
    grid = make_grid(world, case.replicas, case.shards)
    first, last = samples_of(grid.replicas.rank, case.replicas, case.n_samples)
    spikes = case.spikes()[first:last]
    own, heard = case.on_rank(grid), case.heard(first)
    output = own(spikes, heard=heard, first_sample=first)
    loss_of(output, first, case.n_samples).backward()
    own.finish_backward()
    compare_step(case, expected, own, spikes, first, output)
    own = case.on_rank(grid)
    _, output = own.learn(spikes, lambda out: loss_of(out, first, case.n_samples), heard=heard, first_sample=first)
    own.finish_backward()
    compare_step(case, expected, own, spikes, first, output)


def compare_step(case: Case, expected: Expected, own: Model, spikes: SpikeBatch, first: int, output: Output) -> None:
    """Compares the results of a forward and backward pass."""
    parts, last = own.parts, first + spikes.n_samples
    assert parts is not None
    following = own(spikes, heard=case.heard(first), first_sample=first)
    assert [name for name, _ in lists_of(output)] == list(expected.lists) == list(output.spikes)
    for name, lists in lists_of(following):
        assert np.array_equal(lists.ids.numpy(), expected.next_lists[name][first:last].ids.numpy()), f"{name}: next"
    for name, lists in lists_of(output):
        part = expected.lists[name][first:last]
        assert torch.equal(lists.offsets, part.offsets), name
        assert torch.equal(lists.n_spikes, part.n_spikes), name
        assert np.array_equal(lists.ids.numpy(), part.ids.numpy()), name
        assert output.dropped()[name] == part.n_dropped(), name
        assert output.activity()[name] == part.activity(), name
    if expected.potentials is not None:
        assert output.potentials is not None
        assert torch.equal(output.potentials, expected.potentials[:, first:last]), "potentials"
    assert [name for name, _ in own.named_parameters()] == list(expected.gradients)
    for name, parameter in own.named_parameters():
        shards, (value, gradient) = parts.shards_of(name), expected.gradients[name]
        if value.ndim:
            axis, edge = parts.cuts.get(name, NEURONS)
            begin, end = edge(shards.begin), edge(shards.end)
            value, gradient = (x.narrow(axis, begin, end - begin) for x in (value, gradient))
        assert torch.equal(parameter, value), f"{name}: value"
        assert parameter.grad is not None, name
        assert torch.equal(parameter.grad, gradient), f"{name}: gradient"


# ---- networks ---------------------------------------------------------------------------------------------------


def random_case(seed: int, n_ranks: int) -> Case:
    """Any rules, delays, synapses and sizes, on any grid of this many ranks."""
    r = random.Random(seed)
    while True:
        try:
            network = random_maps(r) if r.random() < 0.2 else random_network(r)
        except DescriptionError:  # two equal connections, or maps that are too small: draw again
            continue
        break
    replicas = r.choice([n for n in range(1, n_ranks + 1) if n_ranks % n == 0])
    most = 40 if network.is_matrices else 25
    hooked = [(rank, name) for rank in range(n_ranks) for name in network.receivers() if r.random() < 0.3]
    return Case(
        network,
        replicas,
        n_ranks // replicas,
        n_steps=r.choice((1, 2, 7, 13, most)),
        n_samples=r.choice((1, 9, 20, 8 * replicas, r.choice((67, 129)))),
        rate=r.choice((0.05, 0.2)),
        silent=r.choice((0, 0, 10)),
        graded=r.random() < 0.2,
        options=(("weight_dtype", "bfloat16"),) if r.random() < 0.1 and network.is_matrices else (),
        drops=r.random() < 0.3,
        hooked=tuple(hooked) if r.random() < 0.4 else (),
    )


def _rules(r: random.Random) -> dict[str, Any]:
    rules: dict[str, Any] = {
        "bias": r.random() < 0.5,
        "detach_reset": r.random() < 0.7,
        "learn_beta": r.random() < 0.3,
        "learn_threshold": r.random() < 0.2,
        "threshold": 0.3,
        "grad_threshold": r.choice((-0.2, 0.1, -float("inf"))),
    }
    return rules


def _population(r: random.Random, n: int) -> Any:
    kind, rules = r.choice((LIF, LIF, CubaLIF, AdLIF, Resonator)), _rules(r)
    if kind is not Resonator:
        rules["reset"] = r.choice(("subtract", "zero", "none"))
    if kind is AdLIF:
        rules |= {"gain": 8.0, "order": r.choice(("symplectic", "explicit", "sparch")), "learn_rho": r.random() < 0.5}
    if r.random() < 0.5:
        rules |= {"capacity": r.randint(1, n), "activity": r.choice(("natural", "natural", "fixed"))}
    return kind(n, **rules)


def _delays(r: random.Random) -> Delays | None:
    return Delays(r.randint(1, 8), learn=r.random() < 0.5, seed=r.randint(0, 99)) if r.random() < 0.3 else None


def random_network(r: random.Random) -> Network:
    names = ["input", *"abc"[: r.randint(1, 3)], "output"]
    sizes = {name: r.choice((17, 33, 65, 130, 200, 257, 512, 700)) for name in names[1:-1]}
    populations: dict[str, Any] = {"input": Input(40), **{k: _population(r, n) for k, n in sizes.items()}}
    n_out = r.choice((3, 70))
    last = LIF(n_out, **{**_rules(r), "grad_threshold": -float("inf")}) if r.random() < 0.2 else LI(n_out)
    populations["output"] = last
    connections = []
    for k, post in enumerate(names[1:], 1):
        before = [names[k - 1], *(name for name in names[: k - 1] if r.random() < 0.2)]
        for pre in before:
            for delay in r.sample((0, 0, 1, 3, 8), r.choice((1, 1, 1, 2))):
                connections.append(Connection(pre, post, delay, _synapses(r), _delays(r)))
        if post != "output" and r.random() < 0.5:
            for delay in r.sample(range(1, 9), r.choice((1, 1, 2))):
                connections.append(Connection(post, post, delay, _synapses(r), _delays(r)))
    return Network(populations, tuple(connections))


def _synapses(r: random.Random) -> Dense | Sparse:
    return Sparse(r.choice((0.02, 0.2)), seed=r.randint(0, 9)) if r.random() < 0.25 else Dense()


def random_maps(r: random.Random) -> Network:
    words = []
    for _ in range(r.randint(1, 2)):
        words.append(f"{r.choice((3, 5))}C{r.choice((3, 8, 17))}{r.choice(('', 'p', 's2', 'p'))}")
        words += r.choice(((), ("MP2",), ("AP2",), ("SP2",)))
    text = "-".join([*words, *r.choice(((), ("75",), ("70r",))), "10"])
    rules = _rules(r)
    if r.random() < 0.4:
        rules |= {"capacity": r.choice((9, 60)), "activity": r.choice(("natural", "fixed"))}
    return parse_net(f"{r.choice((1, 2, 4))}x{r.choice((11, 14))}x{r.choice((9, 12))}:{text}", **rules)


# ---- the program ------------------------------------------------------------------------------------------------------


def told(world: Communicator, made: Any) -> Any:
    """Rank 0's object, on every rank."""
    data = np.frombuffer(b"" if world.rank else pickle.dumps(made), np.uint8)
    return pickle.loads(world.all_gather(data)[0].tobytes())


def run(world: Communicator, options: argparse.Namespace) -> int:
    """The networks of a range of seeds on the ranks of `world`; returns the number that differ, on rank 0."""
    CommonWeights.LEAST = 0  # small weights too
    n_wrong, n_silent, started = 0, 0, time.perf_counter()
    for seed in range(options.first, options.first + options.n):
        case = random_case(seed, world.size)
        if options.verbose and world.rank == 0:
            print(f"seed {seed}: {case}", flush=True)
        expected = told(world, alone(case) if world.rank == 0 else None)
        wrong = ""
        try:
            compare(case, expected, world)
        except AssertionError as error:
            wrong = f"rank {world.rank} of {case.replicas} × {case.shards}: {str(error).splitlines()[0]}"
        reports = [text for text in world.all_texts(wrong) if text]
        n_wrong += bool(reports)
        n_silent += bool(expected.silent)
        if reports and world.rank == 0:
            print(f"seed {seed} of {world.size} ranks differs: {'; '.join(reports[:4])}", flush=True)
    if world.rank == 0:
        print(
            f"{options.n} networks on {world.size} ranks in {time.perf_counter() - started:.0f} s: {n_wrong} differ, "
            f"{n_silent} have a silent population",
            flush=True,
        )
    return n_wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 if all networks have the bits of one process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("n", type=int, help="networks")
    parser.add_argument("--first", type=int, default=0, help="first seed (default: %(default)s)")
    parser.add_argument("--ranks", type=int, help="use this many threads of this process instead of MPI processes")
    parser.add_argument("--verbose", action="store_true", help="print every network")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if options.ranks:
        return int(max(simulate(options.ranks, lambda world: run(world, options))) > 0)
    from sparsesnn.host.comm.on_ranks import run_on_ranks

    def work(world: Communicator | None) -> int:
        if world is None:
            raise SystemExit("ranks_random: has only one rank; start it with mpirun, or give --ranks")
        return int(run(world, options) > 0)

    return run_on_ranks(work)


if __name__ == "__main__":
    os.environ.setdefault("SPARSESNN_THREADS", "1")
    sys.exit(main())
