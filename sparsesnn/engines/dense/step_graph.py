"""A training step as one CUDA graph: forward pass, loss, backward pass, clipping and optimizer in one launch.

The first batch of a shape runs directly, which compiles kernels; the second is recorded, and later ones replay the recording on the same
memory: spikes, labels and learning rates go to the device in one copy, the loss and the counts come back in another, for which the host waits.

A graph cannot branch. If the loss or the norm of the gradients is not finite, the optimizer's kernels leave the weights as they are (`found_inf`),
and the host raises the error when it sees the numbers.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sparsesnn.decoding import decode
from sparsesnn.engines import optimizers
from sparsesnn.engines.dense.fused import spike_dtype_of
from sparsesnn.engines.dense.graphs import apart, capture
from sparsesnn.engines.dense.layer import mode_of
from sparsesnn.engines.dense.parcel import Parcel
from sparsesnn.engines.dense.spikes import DenseSpikes, no_memory, places_of
from sparsesnn.engines.entries import has_formula
from sparsesnn.engines.hooks import any_hooks
from sparsesnn.engines.runner import weights_like
from sparsesnn.layers import fires
from sparsesnn.output import KnownCounts, Output, at_least_float32
from sparsesnn.spikes import SpikeBatch

if TYPE_CHECKING:
    from sparsesnn.engines.base import Batch
    from sparsesnn.engines.dense.engine import DenseEngine

#: devices on which steps are graphs
DEVICES = ("cuda",)
#: most shapes of batches with a graph; the least recently used is dropped. Graphs share the memory of their intermediate tensors
LIMIT = 8


class StepGraphs:
    """The graphs of an engine, by the shape of their batches.

    Args:
        engine: its model, optimizer and settings are those of the steps.
    """

    def __init__(self, engine: DenseEngine) -> None:
        self.engine = engine
        self.found: OrderedDict[Hashable, StepGraph] = OrderedDict()
        self.stream: Any = None
        self.pool: Any = None

    def graph_of(self, batch: Batch) -> StepGraph | None:
        """The graph for a batch; None if PyTorch must run it operation by operation."""
        if not self._suits(batch):
            return None
        if self.pool is None and self.engine.device.type == "cuda":
            self.stream, self.pool = torch.cuda.Stream(self.engine.device), torch.cuda.graph_pool_handle()
        key = (batch.spikes.shape, batch.labels.shape, batch.labels.dtype, batch.n_whole)
        n_spikes, addresses = batch.spikes.ids.numel(), self._addresses()
        graph = self.found.get(key)
        if graph is None or graph.room < n_spikes or graph.addresses != addresses:
            # batches of a shape differ in their number of spikes: half as many more fit
            room = max(1024, n_spikes + n_spikes // 2)
            graph = StepGraph(self, batch, room, addresses, is_compiled=graph is not None and graph.is_compiled)
            self.found[key] = graph
        self.found.move_to_end(key)
        while len(self.found) > LIMIT:
            self.found.popitem(last=False)
        return graph

    def _suits(self, batch: Batch) -> bool:
        """Whether a graph can hold the step of a batch.

        The first step of an engine makes the optimizer's state. Dropout draws its numbers on the host, hooks and tensors computed from others run
        Python, ranks exchange gradients, and only the mode "fused" runs without reading numbers on the host.
        """
        engine, spikes = self.engine, batch.spikes
        if engine.device.type not in DEVICES or engine.replicated is not None or batch.heard is not None:
            return False
        if not isinstance(spikes, SpikeBatch) or spikes.values is not None or spikes.repeats:
            return False
        if spikes.device.type != "cpu" or batch.labels.device.type != "cpu":
            return False
        if not 0 < math.prod(spikes.shape) < 2**31 - 1:
            return False
        if engine.training.updates.state_keys and not engine.optimizer.state:
            return False
        layers = self._layers()
        return (
            all(mode_of(layer) == "fused" and has_formula(layer.population) for layer in layers)
            and not any_hooks((engine.model, *layers))
            and not any(layer._modules for layer in layers)  # parametrizations
            and not any(_has_hooks(p) for layer in layers for p in layer._parameters.values())
        )

    def _layers(self) -> list[Any]:
        return list(self.engine.model.layers._modules.values())

    def _addresses(self) -> tuple[int, ...]:
        """The addresses of the tensors that a graph reads and writes: a loaded checkpoint replaces the optimizer's."""
        tables = [table for layer in self._layers() for table in (layer._parameters, layer._buffers)]
        tables += self.engine.optimizer.state.values()
        return tuple(x.data_ptr() for table in tables for x in table.values() if isinstance(x, Tensor))


class StepGraph:
    """The training step of batches of one shape.

    Args:
        graphs: of the engine.
        batch: the first one.
        room: spikes that fit.
        addresses: those of the model's and the optimizer's tensors.
        is_compiled: whether such a step has run before.

    Attributes:
        sent: places of the batch's spikes, labels, their number, and learning rates.
        found: the results: loss and norm of the gradients before clipping, decoded values, spikes of each population.
    """

    def __init__(
        self, graphs: StepGraphs, batch: Batch, room: int, addresses: tuple[int, ...], *, is_compiled: bool
    ) -> None:
        engine = self.engine = graphs.engine
        training, device, spikes = engine.training, engine.device, batch.spikes
        self.graphs, self.room, self.addresses, self.is_compiled = graphs, room, addresses, is_compiled
        self.shape, self.n_whole = spikes.shape, batch.n_whole
        self.n_places = math.prod(self.shape)
        criterion = engine._criterion(batch, 1, trains=True)
        answers = criterion.answers
        groups = engine.optimizer.param_groups
        self.sent = Parcel(
            {
                "places": (torch.int32, (room,)),
                "answers": (answers.dtype, tuple(answers.shape)),
                "n_labels": (torch.float32, ()),
                "rates": (torch.float32, (len(groups),)),
            },
            device,
        )
        self.criterion = criterion.with_answers(self.sent.there["answers"])
        per_step = self.shape[:2] if training.decoding == "step" else self.shape[1:2]
        populations = engine.network.populations
        self.sizes = {name: populations[name].n for name in engine.model.layers if fires(populations[name])}
        self.found = Parcel(
            {
                "loss_norm": (torch.float32, (2,)),
                "decoded": (torch.float32, (*per_step, training.n_classes)),
                "fired": (torch.int64, (len(self.sizes),)),
            },
            device,
        )
        with engine._precision():
            dtype = spike_dtype_of(weights_like(engine.model))
        # unused entries of `sent["places"]` name the last place
        self.spikes = torch.zeros(self.n_places + 1, dtype=dtype, device=device)
        self.parameters = [p for group in groups for p in group["params"]]
        self.gradients: list[Tensor | None] = []
        self.replay: Callable[[], None] | None = None
        self._places, self._rates = (self.sent.here[name].numpy() for name in ("places", "rates"))

    def run(self, batch: Batch, answers: Tensor, n_labels: int, lr: float) -> None:
        """A training step; `found.here` has its results.

        Args:
            answers: labels or targets, checked.
            n_labels: their number in the whole batch.
        """
        places = places_of(batch.spikes.validate(), np.int32)
        self._places[: len(places)] = places
        self._places[len(places) :] = self.n_places
        self._rates[:] = [lr * group["lr_factor"] for group in self.engine.optimizer.param_groups]
        self.sent.here["answers"].copy_(answers)
        self.sent.here["n_labels"].fill_(max(1, n_labels))
        self.sent.send()
        self._launch()
        self.found.fetch()

    def _launch(self) -> None:
        """Runs the step on the device: directly the first time, later by the graph."""
        if not self.is_compiled:
            apart(self._work, self.graphs.stream)
            self.is_compiled = True
            return
        if self.replay is None:
            self.replay = capture(self._work, self.graphs.stream, self.graphs.pool)
            self.gradients = [p.grad for p in self.parameters]
        self.replay()
        for p, gradient in zip(self.parameters, self.gradients, strict=True):
            p.grad = gradient  # of this graph; between two of its steps another one may have run

    def _work(self) -> None:
        """The step on the device, without reading a number on the host."""
        engine, sent, found = self.engine, self.sent.there, self.found.there
        model, training = engine.model, engine.training
        self.spikes.zero_().index_fill_(0, sent["places"].long(), 1)
        fired = self.spikes[:-1].view(self.shape)
        engine.optimizer.zero_grad(set_to_none=True)
        with engine._precision():
            output = model(DenseSpikes(fired, no_memory(self.shape, weights_like(model).dtype, fired.device)))
        decoded = at_least_float32(decode(output, training.decoding, training.n_classes))
        loss = self.criterion.losses_of(decoded).sum() / sent["n_labels"]
        if training.objective.regularizes:
            loss = loss + training.objective.regularizer(output, n_samples=self.n_whole)
        loss.backward()
        with torch.no_grad():
            gradients = list(optimizers.gradients_of(model).values())
            norm = optimizers.norm_of(gradients)
            torch.stack([loss, norm], out=found["loss_norm"])
            optimizers.clip_in_place(gradients, norm, training.updates.clip_norm)
            found["decoded"].copy_(decoded)
            counts = getattr(output.spikes, "packed", {})
            if self.sizes:
                torch.stack([counts[name].fired.count_nonzero() for name in self.sizes], out=found["fired"])
        self._update((~found["loss_norm"].isfinite().all()).float())

    def _update(self, not_finite: Tensor) -> None:
        """A step of the optimizer, which does nothing if `not_finite` is 1."""
        optimizer: Any = self.engine.optimizer
        before = [group["lr"] for group in optimizer.param_groups]
        optimizer.found_inf = not_finite
        for group, rate in zip(optimizer.param_groups, self.sent.there["rates"].unbind(), strict=True):
            group["lr"] = rate
        try:
            optimizer.step()
        finally:
            del optimizer.found_inf
            for group, rate in zip(optimizer.param_groups, before, strict=True):
                group["lr"] = rate

    def output(self) -> Output:
        """The output of the last step: counts alone."""
        fired = zip(self.sizes.items(), self.found.here["fired"].tolist(), strict=True)
        counts = {name: (count, 0, self.shape[0] * self.shape[1] * n) for (name, n), count in fired}
        return Output(None, KnownCounts(counts), {}, self.engine.network.output)


def _has_hooks(p: Tensor | None) -> bool:
    return p is not None and bool(p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None))
