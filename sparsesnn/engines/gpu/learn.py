"""A forward pass, its loss, and the backward pass: in one graph if the device computes the loss, else the host does in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
from torch import Tensor

from sparsesnn.currents import Currents
from sparsesnn.engines.gpu.loss import fits
from sparsesnn.engines.gpu.output import gradients_of, output_of
from sparsesnn.engines.gpu.program import Program
from sparsesnn.output import Output
from sparsesnn.spikes import SpikeBatch


def learn(
    program: Program,
    given: SpikeBatch | Currents,
    tensors: Mapping[str, Mapping[str, Tensor]],
    choices: Mapping[str, npt.NDArray[np.uint64]],
    loss_of: Callable[[Output], Tensor],
    output: str,
) -> tuple[Tensor, Output]:
    """Runs checked input forward, its loss, and backward; the gradients of weights stay on the device.

    Args:
        tensors: of each layer, see `GpuLayer.tensors`; those that learn get their gradients.
        choices: see `Program.choices`.
        output: the last population.

    Returns: the loss, detached, and the output.
    """
    in_kernel = fits(loss_of, program.layers[output].n) and program.layers[output].is_readout
    passes = program.forward(given, tensors, choices, saves=True, loss=loss_of if in_kernel else None)  # type: ignore[arg-type]
    made = output_of(passes, output, learns=not in_kernel)
    if in_kernel:
        value = program.take_loss(passes, loss_of)  # type: ignore[arg-type]
    else:
        value = loss_of(made)
        value.backward()
        passes.backward(gradients_of(made))
        program.device.synchronize()
    for name, layer in program.layers.items():
        found = passes.neuron_gradients(layer)
        bias = layer.layer.tensor("bias")
        if bias is not None and bias.requires_grad:
            bias.backward(found["bias"].to(bias.device))
        for key in layer.learnt:
            tensors[name][key].backward(found[key].to(tensors[name][key].device))
    return value.detach(), made
