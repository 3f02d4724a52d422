"""A training step's gradients in one call of the engine: forward, the loss, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsesnn.engines.cpu.chain import Chain
from sparsesnn.engines.cpu.chain_pass import ChainPass
from sparsesnn.loss import CrossEntropy
from sparsesnn.output import LayerState, Lazily, Output
from sparsesnn.spikes import SpikeBatch
from sparsesnn.tracers import recorded


def learns_alone(chain: Chain, output: str) -> bool:
    """Whether `learn` is equivalent to autograd: trained tensors are not computed from others, and no hook observes gradients."""
    return (
        chain.is_plain
        and chain.saves(output)
        and not any(
            not x.is_leaf or x._backward_hooks or getattr(x, "_post_accumulate_grad_hooks", None)
            for node in chain.nodes
            for x in node.learnt.values()
        )
    )


def learn(
    this: ChainPass,
    loss: Callable[[Output], Tensor],
    output: str,
    input_state: Callable[[], dict[str, LayerState]],
) -> tuple[Tensor, Output]:
    """The loss of a network's output, and the backward pass: gradients are added to the parameters.

    PyTorch's graph begins at the outputs of the layers and holds the loss alone; if the engine differentiates the loss, there is no graph, and
    the output carries no gradient. The bits are those of autograd.

    Args:
        this: the forward pass, whose inputs are hidden.
        output: the last layer.
        input_state: the state of the input.

    Returns: the loss, detached, and the output.
    """
    chain, run = this.chain, this.run(output)
    potentials: Any = run.potentials  # None if the last layer fires, unless they are an output too
    in_engine = loss if isinstance(loss, CrossEntropy) and loss.is_whole() and loss.fits_engine(potentials) else None
    fires = output in chain.fires
    leaves: dict[str, Tensor] = {}

    def leaf(name: str, x: Tensor) -> Tensor:
        leaves[name] = x.requires_grad_(chain.saves(name))
        return x

    def lists(name: str) -> SpikeBatch:
        learns = chain.saves(name) and not in_engine
        return this.lists(name, leaf(name, torch.from_numpy(this.run(name).values)) if learns else None)

    def state(name: str) -> LayerState:
        if name not in chain.layers:
            return input_state()[name]
        return this.state(name, fired.get(name))

    # no function of an output may hold it: a reference cycle would keep all arrays until Python looks for cycles
    fired = Lazily(lists, chain.fires)
    made = Output(
        potentials=None if potentials is None else torch.from_numpy(potentials),
        spikes=fired,
        state={} if chain.part else Lazily(state, [*chain.layers, *input_state()]),
        output=output,
    )
    of_potentials: np.ndarray | None = None  # of a last layer that fires, in addition to those of its list values
    if in_engine:
        value, gradient = in_engine.of_potentials(potentials)
        arrived = {} if fires else {output: gradient(1.0)}
        of_potentials = gradient(1.0) if fires else None
    else:
        if made.potentials is not None and fires:
            made.potentials.requires_grad_()
        elif made.potentials is not None:
            leaf(output, made.potentials)
        for given in this.inputs:
            given.show()
        value = loss(made)
        value.backward()
        arrived = {
            name: x.grad.contiguous().numpy() for name, x in leaves.items() if x.grad is not None and x.requires_grad
        }
        if fires and made.potentials is not None and made.potentials.grad is not None:
            of_potentials = made.potentials.grad.contiguous().numpy()
    d_out = [arrived.get(node.layer) if node.transform is None else None for node in chain.nodes]

    def take(k: int, gradients: list[np.ndarray]) -> None:
        """Adds gradients. While sums over replicas travel, the backward pass continues with earlier layers."""
        learnt = chain.nodes[k].learnt
        if chain.part is None and chain.nodes[k].transform is None:
            _add_gradients(learnt.values(), gradients)
        else:
            found = this.of_node(k, gradients)
            _add_gradients([learnt[name] for name in found], found.values())

    d_potentials = (
        []
        if of_potentials is None
        else [of_potentials if k == chain.layer_nodes[output] else None for k in range(len(chain.nodes))]
    )
    with recorded("sparsesnn.backward"):
        chain.chain.backward(this.made, d_out, take, this.n_batch, d_potentials)
    if chain.shards:
        chain.shards.count_traffic()
    return value.detach(), made


def _add_gradients(parameters: Iterable[Tensor], gradients: Iterable[Any]) -> None:
    for parameter, array in zip(parameters, gradients, strict=True):
        more = torch.from_numpy(array)
        parameter.grad = more if parameter.grad is None else parameter.grad.add_(more)
