"""A training step recorded once and replayed: with CUDA graphs a step costs no launches from Python.

What is replayed reads and writes the same memory each time, so input and labels are copied to their places, and their
shapes stay what they were when the step was recorded.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from sparsesnn.dense.device import autocast
from sparsesnn.dense.image_model import ImageModel
from sparsesnn.dense.spikes import DenseSpikes
from sparsesnn.errors import DescriptionError, ShapeError
from sparsesnn.module import Model
from sparsesnn.spikes import SpikeBatch

#: records a function and gives what replays it
Recorder = Callable[[Callable[[], None]], Callable[[], None]]

#: steps before the one that is recorded: kernels are compiled and libraries choose their algorithms
WARM_UP = 3


def record_on_cuda(run: Callable[[], None]) -> Callable[[], None]:
    """As a CUDA graph, on a stream of its own as PyTorch asks for."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


class CapturedStep:
    """Forward, cross-entropy of the time-mean of the readout, backward, update; `step(spikes, labels)` gives the loss.

    Args:
        model: on a CUDA device; not in the mode "compile", which records graphs of its own.
        optimiser: whose update can be recorded: made with `capturable=True`.
        spikes, labels: a batch of the shape that all have.
        precision: of products, see `sparsesnn.dense.device`.
        record: how the step is recorded.

    Recording runs some steps: they change the weights.
    Errors: `DescriptionError` for a model on a CPU or in the mode "compile".
    """

    def __init__(
        self,
        model: Model | ImageModel,
        optimiser: torch.optim.Optimizer,
        spikes: SpikeBatch,
        labels: Tensor,
        *,
        precision: str = "float32",
        record: Recorder = record_on_cuda,
    ) -> None:
        weight = next(model.parameters())
        if (record is record_on_cuda and weight.device.type != "cuda") or model.dense_mode == "compile":
            raise DescriptionError(
                f"CUDA graphs: the model is on {weight.device} in the mode {model.dense_mode!r}; give one on a CUDA device, "
                "in the mode step, hoist, fused or auto"
            )
        self.model, self.optimiser, self.precision = model, optimiser, precision
        self.spikes = DenseSpikes.from_lists(spikes, weight.dtype, weight.device)
        self.labels = labels.to(weight.device, copy=True)
        self.loss = torch.zeros((), device=weight.device)
        self.optimiser.zero_grad(set_to_none=True)
        self._replay = record(self._run)

    def _run(self) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        with autocast(self.labels.device, self.precision):
            output = self.model(self.spikes)
        logits = output.counts() if output.potentials is None else output.potentials.mean(0)
        loss = functional.cross_entropy(logits.float(), self.labels)
        loss.backward()
        self.optimiser.step()
        self.loss.copy_(loss.detach())

    def __call__(self, spikes: SpikeBatch, labels: Tensor) -> Tensor:
        """The loss of the batch, float32[] on the device; read it before the next step."""
        fired = DenseSpikes.from_lists(spikes, torch.float32, torch.device("cpu")).fired
        if fired.shape != self.spikes.shape or labels.shape != self.labels.shape:
            raise ShapeError(
                f"CUDA graphs: the batch is {tuple(fired.shape)}, recorded was {tuple(self.spikes.shape)}; give batches of "
                "one shape (drop_last), or a step that is not recorded"
            )
        self.spikes.fired.copy_(fired)
        self.labels.copy_(labels)
        self._replay()
        return self.loss
