"""Synaptic operations of a network, under the names of NeuroBench.

Source: Yik et al. 2025, "The neurobench framework for benchmarking neuromorphic computing algorithms and systems", and the
keys that its harness prints. A model execution is one sample with all its steps. `sparsesnn.neurobench` runs that harness.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from sparsesnn.currents import Currents
from sparsesnn.engines.module import Model
from sparsesnn.errors import DescriptionError, ShapeError
from sparsesnn.host.comm import Grid
from sparsesnn.layers import fires
from sparsesnn.output import Output
from sparsesnn.parameters import incoming_of
from sparsesnn.spikes import SpikeBatch
from sparsesnn.synapses import Synapses

#: NeuroBench's names of scores
_NEUROBENCH = {"accuracy": "classification_accuracy"}


def count_operations(model: Model, batches: SpikeBatch | Iterable[Any]) -> dict[str, Any]:
    """Runs a model on spikes, and returns its synaptic operations, sparsities and size under the names of NeuroBench 2.

    Args:
        model: any model; it runs in evaluation, without gradients, and is left as it was.
        batches: a `SpikeBatch`, or several; from a tuple such as (spikes, labels), the first entry. For a network with
            `Input(currents=True)`: currents float32[T, B, N], which pass no synapses and cost no operation.

    Returns:
        `SynapticOperations`, numbers per sample: `Effective_ACs`, one for each synapse with a nonzero weight that a spike reaches within
        the sequence; `Effective_MACs`, the same for spikes with values; `Dense`, all synapses in every step.
        `ActivationSparsity`: 1 - spikes per neuron and step, over all spiking populations. `ConnectionSparsity`: the share of pairs of
        neurons without a synapse or with a zero weight. `ParameterCount`; `Footprint`: bytes of parameters and buffers.

    Errors: `ShapeError` for anything but spikes, and for no samples; `DescriptionError` for a model over ranks.
    """
    if model.parts:
        raise DescriptionError("count_operations: the model is divided over ranks; give a model of one process")
    counted = Operations(model)
    with in_evaluation(model):
        for batch in [batches] if isinstance(batches, (SpikeBatch, Currents, Tensor)) else batches:
            spikes = batch[0] if isinstance(batch, (tuple, list)) else batch
            if model.reads_currents:
                n_inputs = model.network.populations[model.source].n
                spikes = Currents.of(spikes, None, "count_operations", n_inputs)
            elif not isinstance(spikes, SpikeBatch):
                kind = type(spikes).__name__
                raise ShapeError(
                    f"count_operations: a batch is a {kind}; give SpikeBatch.from_dense(spikes), or several"
                )
            given: Any = spikes
            counted.add(spikes, model(given))
    found = counted.neurobench({})
    if not found:
        raise ShapeError("count_operations: got no samples; give at least one batch of spikes")
    return {
        "Footprint": found["footprint"],
        "ParameterCount": sum(p.numel() for p in model.parameters()),
        "ConnectionSparsity": found["connection_sparsity"],
        "ActivationSparsity": found["activation_sparsity"],
        "SynapticOperations": found["synaptic_operations"],
    }


@contextmanager
def in_evaluation(model: torch.nn.Module) -> Iterator[None]:
    """Context in which a model runs in evaluation, without gradients; then its modules train again as before."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


class Operations:
    """Counts the operations for the spikes of evaluated batches; whole numbers, so that sums do not depend on ranks.

    A spike that arrives counts one accumulate operation for each synapse of its sender with a nonzero weight; a spike with a
    value, one multiply-accumulate. A spike whose delay ends after the last step costs nothing. Each rank counts its own samples and its own neurons' synapses.

    Args:
        model: its weights must not change between batches.
        grid: the ranks that run it together; None: this process alone.
    """

    def __init__(self, model: Model, grid: Grid | None = None) -> None:
        self.model, self.network, self.grid = model, model.network, grid or Grid.alone()
        self.n_samples = self.effective = self.multiplied = self.dense = self.n_spikes = self.n_places = 0
        self.countable = True
        self.fan_out: dict[str, Tensor] = {}
        for name in self.network.receivers():
            for c in incoming_of(self.network, name):
                self.fan_out[f"{name}/{c.name}"] = fan_out(model.layers[name], c)

    def add(self, inputs: SpikeBatch | Currents, output: Output) -> None:
        """Counts one batch; if an engine, such as an IPU, does not return spikes, nothing is counted."""
        first = self.network.inputs[0]
        n_steps, n_samples = inputs.n_steps, inputs.n_samples
        spikes: dict[str, Any] = {first: inputs.expanded() if isinstance(inputs, SpikeBatch) else inputs}
        for name, population in self.network.populations.items():
            if fires(population):
                packed = getattr(output.spikes, "packed", {})
                found = packed[name].fired if name in packed else output.spikes.get(name)
                if not isinstance(found, (SpikeBatch, Tensor)):
                    self.countable = False
                    return
                spikes[name] = found
        for name in self.network.receivers():
            n = self.network.populations[name].n
            for c in incoming_of(self.network, name):
                if c.synapses.gives_currents:
                    continue
                sender = next(k.pre for k in self.network.incoming(name) if k.name == c.name)
                layer: Any = self.model.layers[name]
                delay: int | Tensor = c.delay
                if c.axonal:
                    delay = c.delay + layer.axonal_delays(c).detach().round().long().cpu()
                n_operations = int((_arrivals(spikes[sender], delay) * self.fan_out[f"{name}/{c.name}"]).sum())
                if getattr(spikes[sender], "graded", False):
                    self.multiplied += n_operations
                else:
                    self.effective += n_operations
                if self.grid.shards.rank == 0:
                    self.dense += n_samples * n_steps * n_pairs(c.synapses, c.n_pre, n)
        if self.grid.shards.rank == 0:
            self.n_samples += n_samples
            fired = [x for name, x in spikes.items() if name != first]
            self.n_spikes += sum(int(_arrivals(x, 0).sum()) for x in fired)
            self.n_places += (
                n_steps * n_samples * sum(self.network.populations[name].n for name in spikes if name != first)
            )

    def neurobench(self, scores: Mapping[str, float | None]) -> dict[str, Any]:
        """NeuroBench's keys, of all ranks together; empty if the engine returned no spikes. `scores`: such as {"accuracy": 0.9}."""
        grid, model = self.grid, self.model
        tensors = [*model.parameters(), *model.buffers()] if grid.replicas.rank == 0 else []
        own = [x for x in tensors if x.ndim or grid.shards.rank == 0]
        weights = list(self.fan_out.values()) if grid.replicas.rank == 0 else []
        counts = {
            "countable": int(self.countable),
            "samples": self.n_samples,
            "effective": self.effective,
            "multiplied": self.multiplied,
            "dense": self.dense,
            "spikes": self.n_spikes,
            "places": self.n_places,
            "bytes": sum(x.numel() * x.element_size() for x in own),
            "not_zero": sum(int(x.sum()) for x in weights),
            "weights": sum(n_pairs(c.synapses, *self.network.ends(c)) for c in self.network.connections)
            if grid.is_first
            else 0,
        }
        ranks = [json.loads(text) for text in grid.world.all_texts(json.dumps(counts))]
        total = {key: sum(rank[key] for rank in ranks) for key in counts}
        if total["countable"] < len(ranks) or not total["samples"]:
            return {}
        return {
            "footprint": total["bytes"],
            "connection_sparsity": 1 - total["not_zero"] / max(1, total["weights"]),
            **{_NEUROBENCH.get(name, name): score for name, score in scores.items()},
            "activation_sparsity": 1 - total["spikes"] / max(1, total["places"]),
            "synaptic_operations": {
                "Effective_MACs": total["multiplied"] / total["samples"],
                "Effective_ACs": total["effective"] / total["samples"],
                "Dense": total["dense"] / total["samples"],
            },
        }


def n_pairs(kind: Synapses, n_pre: int, n_post: int) -> int:
    """Pairs of neurons that a connection joins, with or without a synapse; for a convolution those in its windows."""
    return n_pre * n_post if kind.is_matrix else kind.n_products(n_pre, n_post)


def fan_out(layer: Any, c: Any) -> Tensor:
    """int64[n_pre], the synapses with nonzero weights of each sender, to this rank's neurons."""
    weight: Tensor = layer.weight(c).detach().cpu()
    if not weight.numel():  # only pools, or another rank's
        return torch.zeros(c.n_pre, dtype=torch.int64, device="cpu")
    if not c.synapses.is_matrix:
        paths: Tensor = c.synapses.fan_out(
            weight, torch.ones(layer.population.n, dtype=torch.float64, device=weight.device)
        )
        return paths.round().long()
    if (existing := layer.columns(c)) is None:
        return torch.count_nonzero(weight, 1)
    return torch.bincount(torch.from_numpy(existing[1])[weight != 0].long(), minlength=c.n_pre)


def _arrivals(spikes: SpikeBatch | Tensor, delay: int | Tensor) -> Tensor:
    """int64[N], the spikes of each neuron that arrive within the sequence; `delay`: in steps, one or int64[N]."""
    if isinstance(spikes, Tensor):
        arrives = torch.arange(len(spikes), device="cpu")[:, None] + delay < len(spikes)  # [T, 1] or [T, N]
        return (spikes.detach().cpu().count_nonzero(dim=1) * arrives).sum(0)
    ids, step = spikes.ids.long(), spikes.list_index() // max(1, spikes.n_samples)
    late = delay[ids] if isinstance(delay, Tensor) else delay
    return torch.bincount(ids[spikes.fired() & (step + late < spikes.n_steps)], minlength=spikes.n_neurons)


def note(found: Mapping[str, Any]) -> str:
    """A summary of `neurobench` in one line."""
    operations = found["synaptic_operations"]
    return (
        f"{operations['Effective_ACs'] + operations['Effective_MACs']:,.0f} synaptic operations per sample ({operations['Dense']:,.0f} if every neuron fired), "
        f"activation sparsity {found['activation_sparsity']:.4f}"
    )
