"""`Layer` and `Model` for PopTorch: constructed like those of `sparsesnn`, with the same parameters and `state_dict`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sparsesnn.errors import DescriptionError, ShapeError
from sparsesnn.layers import Input, is_readout
from sparsesnn.layers.arrays import arrays_of
from sparsesnn.layers.declaration import given_entries
from sparsesnn.layers.recorded import entries_with_u
from sparsesnn.network import Connection, Network
from sparsesnn.parameters import Incoming, PopulationModule, incoming, incoming_of, uniform
from sparsesnn.poptorch.backends import on_ipu, run_engine, run_op
from sparsesnn.poptorch.description import check
from sparsesnn.poptorch.spikes import Spikes, from_data
from sparsesnn.rotation import population_seed

#: tiles of an IPU, Mk2 and Bow
TILES = 1472


class Layer(PopulationModule):
    """One population with its incoming weights: `hidden = Layer(LIF(1000), n_pre=784)`, `spikes = hidden(spikes)`.

    On an IPU the op `sparsesnn::Stack`, a stack of one: all T steps, with a hand-written gradient; on a CPU the event-sparse engine.

    Args:
        population: of a linear model.
        n_pre: neurons of the source.
        delays: steps between a spike and its delivery, one number in a sequence.
        generator: source of the random initial weights, U(±1/√n_pre).
        tiles: number of the IPU's tiles over which neurons are spread.

    Parameters: as `sparsesnn.Layer`.
    Errors: `DescriptionError` if the op has no codelet for the layer, on both backends alike.
    """

    def __init__(
        self,
        population: Any,
        n_pre: int | Sequence[int],
        *,
        delays: Sequence[int] | None = None,
        generator: torch.Generator | None = None,
        tiles: int = TILES,
    ) -> None:
        sizes = (n_pre,) if isinstance(n_pre, int) else tuple(n_pre)
        when = (0,) * len(sizes) if delays is None else tuple(delays)
        if len(sizes) != 1 or len(when) != 1:
            raise DescriptionError(
                f"poptorch.Layer: {len(sizes)} sources with {len(when)} delays; the op has only one source; "
                "describe a network of several as sparsesnn.Network and use poptorch.Model"
            )
        super().__init__(population, incoming(population, sizes, when), uniform(generator, population.n))
        self.network = Network(
            {"input": Input(self.n_pre[0]), "output": population}, (Connection("input", "output", self.delays[0]),)
        )
        check(self.network)
        self.tiles = tiles
        self.weight_dtype, self.n_history = "float32", 0  # attributes that the engine reads from every layer

    def extra_repr(self) -> str:
        return f"{self.population}, n_pre={self.n_pre}, delays={self.delays}, tiles={self.tiles}"

    def forward(self, spikes: Spikes) -> Spikes | Tensor:
        """Runs T steps from silence.

        Args:
            spikes: of the source: from `from_data`, or another layer's output.

        Returns: the population's `Spikes`; the potentials float32[T, B, N] of an LI.
        """
        check_source(spikes, self.n_pre[0])
        if not on_ipu():
            return run_engine(self, [spikes])
        out, lists = run_op(
            self.network,
            spikes,
            list(self.weights),
            [] if self.bias is None else [self.bias],
            trained_arrays([self]),
            seeds=[self.rotation_seed],
            saves=self.training,
            tiles=self.tiles,
        )
        return out if is_readout(self.population) else lists["output"]


class Output(NamedTuple):
    """The output of a `Model`.

    Args:
        potentials: float32[T, B, N] of an LI readout; None if the last population fires.
        spikes: of each spiking population. Only those of the last one carry a gradient: for a loss on the others use
            `Layer`s instead of a `Model`.
        output: name of the last population.
    """

    potentials: Tensor | None
    spikes: dict[str, Spikes]
    output: str

    def counts(self, name: str | None = None) -> Tensor:
        """float32[B, N], spikes of a population over the sequence (default: the last)."""
        return self.spikes[name or self.output].counts()


class Model(nn.Module):
    """A whole `Network` as one op, `sparsesnn::Stack`: its lists never leave the tiles between layers.

    Args:
        network: with one `Input`; readouts at the end only; delays, recurrence and skips as usual.
        seed: of the initial weights, which are those of `sparsesnn.Model(network, seed=seed)`.
        tiles: number of the IPU's tiles over which neurons are spread.
        plan: a plan of `sparsesnn.partition.make_plan` for one IPU, instead of an even spread.
    """

    def __init__(self, network: Network, *, seed: int = 0, tiles: int = TILES, plan: Any = None) -> None:
        super().__init__()
        check(network)
        if plan is not None and plan.network != network:
            raise DescriptionError("poptorch.Model: the plan was made for another network; make it again")
        self.network, self.tiles, self.plan = network, tiles, plan
        generator = torch.Generator().manual_seed(seed)
        self.layers = nn.ModuleDict()
        for name, population in network.receivers().items():
            rotation_seed = population_seed(seed, list(network.populations).index(name))
            self.layers[name] = _Part(population, incoming_of(network, name), rotation_seed, generator)

    def forward(self, spikes: Spikes | Tensor) -> Output:
        """Runs T steps from silence; `spikes`: `Spikes`, or data, int32[B, T, 2 + K]."""
        n_input = self.network.populations[self.network.inputs[0]].n
        source = from_data(spikes, n_input) if isinstance(spikes, Tensor) else spikes
        check_source(source, n_input)
        if not on_ipu():
            return self._on_engine(source)
        parts = {name: self._part(name) for name in self.layers}
        biases = [p.bias for p in parts.values() if p.bias is not None]
        out, lists = run_op(
            self.network,
            source,
            [getattr(parts[c.post], c.name) for c in self.network.connections],
            biases,
            trained_arrays(list(parts.values())),
            seeds=[part.rotation_seed for part in parts.values()],
            saves=self.training,
            tiles=self.tiles,
            plan=self.plan,
        )
        readout = is_readout(self.network.populations[self.network.output])
        return Output(out if readout else None, lists, self.network.output)

    def _part(self, name: str) -> _Part:
        part = self.layers[name]
        assert isinstance(part, _Part)
        return part

    def _on_engine(self, source: Spikes) -> Output:
        outputs: dict[str, Any] = {self.network.inputs[0]: source}
        for name, layer in self.layers.items():
            outputs[name] = run_engine(layer, [outputs[c.pre] for c in self.network.senders(name)])
        last = outputs[self.network.output]
        fired = {
            k: v if k == self.network.output else v._replace(values=None)
            for k, v in outputs.items()
            if isinstance(v, Spikes) and k not in self.network.inputs
        }
        return Output(last if isinstance(last, Tensor) else None, fired, self.network.output)


class _Part(PopulationModule):
    """The parameters of one population of a `Model`, and the attributes that the engine reads from a layer."""

    def __init__(
        self, population: Any, connections: Sequence[Incoming], rotation_seed: int, generator: torch.Generator
    ) -> None:
        super().__init__(population, connections, uniform(generator, population.n))
        self.rotation_seed, self.weight_dtype, self.n_history = rotation_seed, "float32", 0


def trained_arrays(parts: Sequence[PopulationModule]) -> list[Tensor]:
    """Of each population with trained parameters: the entries of its neurons' arrays that depend on them, [E, N].

    They are ordinary operations on the parameters, which PopTorch differentiates. A parameter outside its range is read as the
    nearest end, as everywhere, and has the gradient of that end.
    """
    found = []
    for part in parts:
        p = part.population
        names = given_entries(p)
        if not names:
            continue
        values = {q.name: _within(getattr(part, q.name), q.low, q.high) for q in p.parameters}
        entries = {**entries_with_u(arrays_of(p, values)), **values}
        found.append(torch.stack([entries[name].expand(p.n) for name in names]))
    return found


def _within(x: Tensor, low: float, high: float) -> Tensor:
    read: Tensor = x.detach().clamp(low, high) + (x - x.detach())
    return read


def check_source(spikes: Spikes, n: int) -> None:
    if not isinstance(spikes, Spikes):
        raise ShapeError(
            f"the layer got a {type(spikes).__name__}; give Spikes: from sparsesnn.poptorch.from_data or another layer"
        )
    if spikes.n != n:
        raise ShapeError(f"the input has {spikes.n} neurons; the layer reads {n}")
