"""A forward pass, a loss on the host, and the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from sparsesnn.engines.gpu.output import gradients_of, output_of
from sparsesnn.engines.gpu.passes import Passes
from sparsesnn.engines.gpu.program import Program
from sparsesnn.loss import CrossEntropy
from sparsesnn.output import Output
from sparsesnn.spikes import SpikeBatch


def learn(
    program: Program,
    spikes: SpikeBatch,
    tensors: Mapping[str, Mapping[str, Tensor]],
    loss_of: Callable[[Output], Tensor],
    output: str,
) -> tuple[Tensor, Output, Passes]:
    """Runs checked lists forward, their loss, and backward; the gradients of weights stay on the device.

    Args:
        tensors: of each layer, see `GpuLayer.tensors`; those that learn get their gradients.
        output: the last population.

    Returns: the loss, detached; the output; the passes, which hold the gradients.
    """
    passes = program.forward(spikes, tensors, saves=True)
    made = output_of(passes, output, learns=True)
    value, d_out = _in_engine(loss_of, made)
    if d_out is None:
        value = loss_of(made)
        value.backward()
        d_out = gradients_of(made)
    passes.backward(d_out)
    program.device.synchronize()
    for name, layer in program.layers.items():
        found = passes.neuron_gradients(layer)
        bias = layer.layer.tensor("bias")
        if bias is not None and bias.requires_grad:
            bias.backward(found["bias"].to(bias.device))
        for key in layer.learnt:
            tensors[name][key].backward(found[key].to(tensors[name][key].device))
    return value.detach(), made, passes


def _in_engine(loss_of: Any, output: Output) -> tuple[Any, Any]:
    """A loss that needs no graph of PyTorch's, and its gradient; None, None for others. The bits are the same."""
    v = output.potentials
    if v is None or not isinstance(loss_of, CrossEntropy) or not loss_of.is_whole():
        return None, None
    array = v.detach().numpy()
    if not loss_of.fits_engine(array):
        return None, None
    value, gradient = loss_of.of_potentials(array)
    return value, {output.output: (gradient(1.0), None)}
