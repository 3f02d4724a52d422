"""A `Network` over several ranks: as `Model`, with the same parameters' names and the same bits.

Each rank of a replica owns whole tiles of every population (`sharded_layer.py`); replicas own groups of samples
(`reduction.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sparsesnn.engines.dropout import Heard, heard_by
from sparsesnn.engines.ranks.layer import ShardedLayer
from sparsesnn.engines.ranks.reduction import Reduction
from sparsesnn.engines.ranks.shards import ShardedSpikes, Shards, make_shards, whole_values
from sparsesnn.errors import DescriptionError, NumericError, ShapeError
from sparsesnn.host.comm import Grid
from sparsesnn.network import Network
from sparsesnn.output import CountedSpikes, LayerState, Output
from sparsesnn.parameters import NEURONS, cuts, incoming_of
from sparsesnn.rotation import population_seed
from sparsesnn.spikes import SpikeBatch

#: numbers of a layer that are drawn, or gathered, at once, at most
AT_ONCE = 1 << 17


class WholeSpikes(CountedSpikes):
    """The lists of every spiking population by name; their gradients go to the ranks that own the neurons.

    An entry is made when it is asked for: most losses ask for one at most.
    """

    def __init__(self, lists: Mapping[str, ShardedSpikes]) -> None:
        self.lists = lists
        self.made: dict[str, SpikeBatch] = {}

    def __getitem__(self, name: str) -> SpikeBatch:
        if name not in self.made:
            self.made[name] = whole_values(self.lists[name])
        return self.made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.lists)

    def __len__(self) -> int:
        return len(self.lists)

    def activity(self) -> dict[str, float]:
        return {name: lists.activity() for name, lists in self.lists.items()}

    def dropped(self) -> dict[str, int]:
        return {name: lists.n_dropped() for name, lists in self.lists.items()}


class ShardedModel(nn.Module):
    """A `Network` that runs and learns on all ranks of a grid; see `sparsesnn.Model`, whose parameters it holds parts of.

    Args:
        network: the description.
        grid: the ranks.
        seed: of the initial weights, which are those of `Model`.
        weight_dtype: see `sparsesnn.Layer`.

    After `loss.backward()` call `finish_backward()`: only then the gradients are those of the whole batch.
    """

    backend = "cpu"

    def __init__(self, network: Network, grid: Grid, *, seed: int = 0, weight_dtype: str = "float32") -> None:
        super().__init__()
        if moved := [c.name for c in network.connections if c.axonal]:
            raise DescriptionError(f"{', '.join(moved)}: axonal delays do not run over ranks yet: use one rank")
        receivers = network.receivers()
        self.network, self.grid, self.cuts = network, grid, cuts(network)
        self.shards = make_shards(network, grid.n_shards, grid.shards.rank)
        self.reduction = Reduction(grid.replicas) if grid.n_replicas > 1 else None
        generator = torch.Generator().manual_seed(seed)
        room = torch.empty(AT_ONCE)
        self.layers = nn.ModuleDict()
        for name, population in receivers.items():
            layer = ShardedLayer(
                population,
                incoming_of(network, name),
                self.shards[name],
                grid,
                weight_dtype=weight_dtype,
                generator=generator,
                room=room,
            )
            layer.rotation_seed = population_seed(seed, list(network.populations).index(name))
            self.layers[name] = layer

    def forward(self, spikes: SpikeBatch, first_sample: int = 0, heard: Heard | None = None) -> Output:
        """Runs this replica's samples, whole sequences, which follow `first_sample` others of the batch."""
        if not isinstance(first_sample, int):
            raise TypeError(
                f"first_sample is {type(first_sample).__name__}; give the samples of other replicas before these, an int. "
                "A network over ranks takes no state: run whole sequences, or chunks of them on one rank"
            )
        source = self.network.inputs[0]
        n_input = self.network.populations[source].n
        if spikes.n_neurons != n_input:
            raise ShapeError(f"input has {spikes.n_neurons} neurons; the network's {source!r} has {n_input}")
        outputs: dict[str, Any] = {source: spikes}
        thin: dict[str, Any] = {}
        for name, layer in self.layers.items():
            read = heard_by(self.network, name, outputs, thin, heard)
            inputs = [read(c.pre) for c in self.network.senders(name)]
            try:
                outputs[name] = layer(inputs, first_sample, self.reduction)[0]
            except NumericError as error:
                raise NumericError(f"{name}: {error}") from None
        lists = {name: x for name, x in outputs.items() if isinstance(x, ShardedSpikes)}
        last = outputs[self.network.output]
        state: dict[str, LayerState] = {}
        return Output(
            potentials=last if isinstance(last, Tensor) else None,
            spikes=WholeSpikes(lists),
            state=state,
            output=self.network.output,
        )

    def readable(self, spikes: SpikeBatch) -> SpikeBatch:
        """Spikes in the form that single layers read."""
        return spikes

    # ---- the whole, of which this rank holds a part ------------------------------------------------------------

    @property
    def columns(self) -> dict[str, tuple[int, int]]:
        """Of each population, first and last + 1 of the neurons of this rank."""
        return {name: (shards.begin, shards.end) for name, shards in self.shards.items()}

    def shards_of(self, name: str) -> Shards:
        """Of the population that a parameter, `layers.<population>.…`, belongs to."""
        return self.shards[name.split(".")[1]]

    def edges(self, name: str) -> tuple[int, list[int]]:
        """The axis of a parameter or buffer that shards cut, and where: [R + 1]."""
        axis, edge = self.cuts.get(name, NEURONS)
        return axis, [edge(n) for n in self.shards_of(name).first]

    def whole_shape(self, name: str, tensor: Tensor) -> list[int]:
        """The shape of a parameter or buffer on one rank."""
        shape = list(tensor.shape)
        if shape:
            axis, edges = self.edges(name)
            shape[axis] = edges[-1]
        return shape

    def n_parameters(self) -> int:
        """Of the whole network."""
        return sum(math.prod(self.whole_shape(name, p)) for name, p in self.named_parameters())

    def whole_rows(self, name: str, tensor: Tensor) -> Iterator[npt.NDArray[Any]]:
        """A parameter or buffer of the whole network, some rows at a time; all ranks must go through it together."""
        array = tensor.detach().numpy()
        if not array.ndim or self.grid.n_shards == 1:
            yield np.ascontiguousarray(array)
            return
        axis, edges = self.edges(name)
        inner = math.prod(array.shape[axis:][1:])
        sizes = inner * np.diff(edges)
        rows = array.reshape(math.prod(array.shape[:axis]), sizes[self.grid.shards.rank])
        step = max(1, AT_ONCE // max(1, int(sizes.sum())))
        for row in range(0, len(rows), step):
            parts = self.grid.shards.all_gather(np.ascontiguousarray(rows[row : row + step]).reshape(-1))
            height = min(step, len(rows) - row)
            yield np.concatenate([p.reshape(height, n) for p, n in zip(parts, sizes, strict=True)], axis=1)

    def whole_neurons(self, named: Mapping[str, npt.NDArray[np.float64]]) -> dict[str, npt.NDArray[np.float64]]:
        """Numbers of this rank's neurons, [n] by parameter, with those of the other ranks: [N]."""
        if self.grid.n_shards == 1 or not named:
            return dict(named)
        parts = self.grid.shards.all_gather(np.concatenate(list(named.values())))
        whole: dict[str, list[Any]] = {name: [] for name in named}
        for r, part in enumerate(parts):
            start = 0
            for name in named:
                first = self.shards_of(name).first
                n = first[r + 1] - first[r]
                whole[name].append(part[start : start + n])
                start += n
        return {name: np.concatenate(found) for name, found in whole.items()}

    def finish_backward(self) -> None:
        """Completes the sums over replicas."""
        if self.reduction is not None:
            self.reduction.finish()
