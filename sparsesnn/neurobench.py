"""Our models in NeuroBench's harness, `neurobench.benchmarks.Benchmark`.

    from sparsesnn.neurobench import NeuroBenchModel
    Benchmark(NeuroBenchModel(model), loader, [], [ChooseMaxCount()], [[Footprint], [SynapticOperations]]).run()

Its metrics read hooks on `nn.Linear`, `nn.Conv2d` and activation modules; a `Model` has none of these. So this wrapper has a hook for
each connection and each spiking population, and fills them after a pass. Without the harness,
`sparsesnn.count_operations` gives the same numbers.

Written for NeuroBench 2.3 (https://neurobench.readthedocs.io), with the methods of its class `NeuroBenchModel`; this file does not import it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from sparsesnn.currents import Currents
from sparsesnn.engines.module import Model
from sparsesnn.engines.runner import as_tensor, delayed_tensor
from sparsesnn.errors import ShapeError
from sparsesnn.layers import LIF, CubaLIF, Neuron, fires
from sparsesnn.operations import fan_out, in_evaluation, n_pairs
from sparsesnn.output import Output
from sparsesnn.parameters import Incoming, incoming_of
from sparsesnn.spikes import SpikeBatch

__all__ = ["NeuroBenchModel"]

#: the neurons of snnTorch with the same step, whose operations NeuroBench knows
_NAMES = {LIF: "Leaky", CubaLIF: "Synaptic"}


class NeuroBenchModel:
    """A `Model` that NeuroBench runs and measures.

    A batch is spikes [B, T, N], or [B, T, height, width, channels] in the order of the network's input ([B, T, channels, height, width] if
    that is `channels_first`), or a `SpikeBatch`; of a network with `Input(currents=True)`, currents [B, T, N]. Entries other than 0 and 1 are graded spikes, which NeuroBench counts as
    multiply-accumulates. The result is what it compares with the targets, or passes on to the first postprocessor: spikes [B, T, N] of the last
    population, or potentials [B, T, N] of a readout.

    These metrics are right: `Footprint`, `ParameterCount`, `ConnectionSparsity`, `ActivationSparsity`, `SynapticOperations` and
    `MembraneUpdates`. `NeuronOperations` is right only for networks of `LIF` and `CubaLIF` without a readout, because NeuroBench
    has no numbers for other neurons.

    Args:
        model: any model of one process; it runs in evaluation.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self._net = _Net(model)
        self.connection_hooks: list[_Connection] = []
        self.activation_hooks: list[_Population] = []

    def __net__(self) -> _Net:
        return self._net

    def __call__(self, batch: Any) -> Tensor:
        spikes: Any = batch if isinstance(batch, (SpikeBatch, Currents)) else self._inputs(batch)
        with in_evaluation(self.model):
            output = self.model(spikes)
        sent = {self.model.source: spikes.to_dense(), **{name: as_tensor(x) for name, x in output.spikes.items()}}
        for connection in self.connection_hooks:
            connection.inputs.append(connection.arriving(sent))
        for population in self.activation_hooks:
            population.ran(sent[population.name], spikes)
        return _result(output).transpose(0, 1)

    def register_hooks(self) -> None:
        """Called by the harness if a metric reads hooks."""
        network = self.model.network
        for name, population in network.receivers().items():
            if fires(population):
                self.activation_hooks.append(_Population(self.model, name, population))
            senders = {c.name: c.pre for c in network.incoming(name)}
            for c in incoming_of(network, name):
                if not c.synapses.gives_currents:
                    self.connection_hooks.append(_Connection(self.model.layers[name], c, senders[c.name]))

    def reset_hooks(self) -> None:
        """Called by the harness after each batch."""
        for connection in self.connection_hooks:
            connection.reset()
        for population in self.activation_hooks:
            population.reset()

    def cleanup_hooks(self) -> None:
        """Called by the harness at the end."""
        self.connection_hooks.clear()
        self.activation_hooks.clear()

    close_hooks = cleanup_hooks

    def _inputs(self, batch: Any) -> SpikeBatch | Currents:
        n = self.model.network.populations[self.model.source].n
        given = torch.as_tensor(batch)
        if given.ndim < 3 or given.shape[2:].numel() != n:
            raise ShapeError(
                f"NeuroBenchModel: a batch is {list(given.shape)}; the network has {n} inputs: give [B, T, {n}], by a preprocessor that "
                "turns (data, targets) into (spikes, targets)"
            )
        flat = given.detach().flatten(2)
        if self.model.reads_currents:
            return Currents.of(flat.transpose(0, 1), None, "NeuroBenchModel", n)
        is_graded = not bool(((flat == 0) | (flat == 1)).all())
        return SpikeBatch.from_dense(flat, batch_first=True, graded=is_graded)


def _result(output: Output) -> Tensor:
    return as_tensor(output.spikes[output.output]) if output.potentials is None else output.potentials


class _Net:
    """The model as static metrics read it: its parameters and buffers, and a layer of NeuroBench's kind for each connection."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.model.parameters()

    def buffers(self) -> Iterator[Tensor]:
        return self.model.buffers()

    def children(self) -> Iterator[nn.Module]:
        for name in self.model.network.receivers():
            layer: Any = self.model.layers[name]
            for c in layer.incoming:
                if layer.has_weights(c):
                    yield _Weights(layer.matrix(c).detach() if c.synapses.is_matrix else layer.weight(c).detach())

    def to(self, device: Any) -> _Net:
        """As `torch.nn.Module.to`."""
        self.model.to(device)
        return self


class _Weights(nn.Linear):
    """A connection's weights, whose zeros are counted."""

    def __init__(self, weight: Tensor) -> None:
        nn.Module.__init__(self)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.register_parameter("bias", None)


class _Synapses(nn.Linear):
    """A layer whose result adds up to the number of synaptic operations of its input.

    NeuroBench copies a layer, sets its nonzero weights to 1, or all of them, likewise the entries of the input, and sums the result.
    `weight` here is [1, 0], and tells the two cases apart.

    Args:
        paths: int64[n_pre], the synapses with nonzero weights of each sender.
        n_pairs: operations of one step of one sample if all senders fire and no weight is 0.
    """

    def __init__(self, paths: Tensor, n_pairs: int) -> None:
        nn.Module.__init__(self)
        self.paths, self.n_pairs = paths, n_pairs
        self.weight = nn.Parameter(torch.tensor([1.0, 0.0]), requires_grad=False)
        self.register_parameter("bias", None)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.weight[1] == 1:
            return torch.tensor(len(inputs) * self.n_pairs)
        return inputs.sum(0).round().long().cpu() @ self.paths


class _Connection:
    """A connection, in the place of `neurobench.hooks.layer.LayerHook`.

    Attributes:
        inputs: of every pass since the last reset, the spikes [T·B, n_pre] as they arrive; those that arrive after the last step are missing.
    """

    def __init__(self, owner: Any, c: Incoming, sender: str) -> None:
        self.owner, self.c, self.sender = owner, c, sender
        self.layer = _Synapses(fan_out(owner, c), n_pairs(c.synapses, c.n_pre, owner.population.n))
        self.inputs: list[Tensor] = []
        self.hook = self

    def arriving(self, sent: dict[str, Tensor]) -> Tensor:
        """The spikes of this connection's sender as they arrive."""
        spikes = sent[self.sender]
        if delay := self.c.delay:
            spikes = torch.cat([torch.zeros_like(spikes[:delay]), spikes[:-delay]])
        if self.c.axonal:
            spikes = delayed_tensor(spikes, self.owner.axonal_delays(self.c), between=False)
        return spikes.flatten(0, 1)

    def reset(self) -> None:
        self.inputs.clear()

    def register_hook(self) -> None:
        """NeuroBench removes hooks while it runs a layer; nothing runs this one."""

    def remove(self) -> None:
        """See `register_hook`."""


class _Population:
    """A spiking population, in the place of `neurobench.hooks.neuron.NeuronHook`.

    Attributes:
        activation_outputs: the spikes [T, B, N] of every pass since the last reset.
    """

    def __init__(self, model: Model, name: str, population: Neuron) -> None:
        self.model, self.name = model, name
        kind = type(population)
        self.layer: Any = type(_NAMES.get(kind, kind.__name__), (), {})()
        self.layer._reset_mechanism = getattr(population, "reset", None)
        self.activation_outputs: list[Tensor] = []
        self._inputs: list[Any] = []  # `SpikeBatch` or `Currents`

    def ran(self, spikes: Tensor, inputs: SpikeBatch | Currents) -> None:
        """Keeps the spikes of a pass, and the network's input."""
        self.activation_outputs.append(spikes)
        self._inputs.append(inputs)

    @property
    def post_fire_mem_potential(self) -> list[Tensor]:
        """The potentials [B, N] after each step, computed again from the spikes, because engines keep none."""
        with in_evaluation(self.model):
            return [v for x in self._inputs for v in self.model(x, record=[self.name]).traces[self.name].v]

    @property
    def pre_fire_mem_potential(self) -> list[Tensor]:
        """The potentials before each step, as snnTorch's neurons hold them: the first entry is not read."""
        after = self.post_fire_mem_potential
        return [torch.zeros_like(v) for v in after[:1]] + after[:-1]

    def reset(self) -> None:
        self.activation_outputs.clear()
        self._inputs.clear()
