"""Shared by all PyTorch contestants."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from rivals.task import BETA, LEARNING_RATE, SLOPE, Task


def tensor(array: NDArray[Any]) -> Tensor:
    """A tensor on PyTorch's default device: that of the race, while a contestant is made."""
    return torch.from_numpy(array).to(torch.get_default_device())


def fused_adam(parameters: list[Tensor]) -> torch.optim.Optimizer:
    """PyTorch's fastest Adam."""
    return torch.optim.Adam(parameters, lr=LEARNING_RATE, fused=True)


def step_of(
    logits: Callable[[], Tensor],
    parameters: Iterable[Tensor],
    labels: NDArray[np.int64],
) -> Callable[[], float]:
    """Forward, loss, backward, Adam."""
    targets = tensor(labels)

    def learn() -> Tensor:
        loss = functional.cross_entropy(logits(), targets)
        loss.backward()
        return loss

    return learning_step(learn, parameters, fused_adam)


def learning_step(
    learn: Callable[[], Tensor],
    parameters: Iterable[Tensor],
    adam: Callable[[list[Tensor]], torch.optim.Optimizer],
) -> Callable[[], float]:
    """`learn`, which adds gradients to the parameters and returns the loss, and Adam."""
    parameters = list(parameters)
    optimizer = adam(parameters)
    for parameter in parameters:  # creates Adam's state before the first step, so that memory is counted without it
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = learn()
        optimizer.step()
        return loss.item()

    return step


def parameters_of(task: Task) -> tuple[list[torch.nn.Parameter], list[torch.nn.Parameter | None]]:
    """Weights [n_pre, n_post] and recurrent weights."""
    weights = [torch.nn.Parameter(tensor(w.copy())) for w in task.weights]
    recurrent = [None if w is None else torch.nn.Parameter(tensor(w.copy())) for w in task.recurrent]
    return weights, recurrent


def all_of(weights: Iterable[Tensor], recurrent: Iterable[Tensor | None]) -> list[Tensor]:
    """All parameters for the optimizer."""
    return [*weights, *(own for own in recurrent if own is not None)]


def delayed(x: Tensor, delay: int) -> Tensor:
    """x [T, B, N] shifted by `delay` steps, zeros first."""
    return functional.pad(x, (0, 0, 0, 0, delay, 0))[: len(x)] if delay else x


def linear(weight: NDArray[np.float32], scale: float = 1.0) -> torch.nn.Linear:
    """An `nn.Linear` with these weights [n_pre, n_post]."""
    n_pre, n = weight.shape
    layer = torch.nn.Linear(n_pre, n, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight.T * np.float32(scale)))
    return layer


def mean_of_potentials(currents: Tensor) -> Tensor:
    """[B, N]: time-mean of v[t] = β·v[t-1] + i[t], for [T, B, N]; the readout of the hand-written contestants.

    The mean is linear in the currents: i[t] counts 1 + β + … + β^(T-1-t) times.
    """
    n_steps = len(currents)
    left = torch.arange(n_steps, 0, -1, dtype=torch.float64, device=currents.device)
    share = ((1 - BETA**left) / (1 - BETA) / n_steps).to(currents.dtype)
    mean: Tensor = torch.tensordot(share, currents, dims=([0], [0]))
    return mean


def integrate(currents: Tensor) -> Tensor:
    """[T, B, N]: v[t] = β·v[t-1] + i[t], step by step; for libraries without a readout that integrates."""
    v = torch.zeros_like(currents[0])
    potentials = []
    for i in currents.unbind(0):
        v = BETA * v + i
        potentials.append(v)
    return torch.stack(potentials)


class FastSigmoid(torch.autograd.Function):
    """s = x > 0; the gradient is (slope·|x| + 1)⁻²."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *d_s: Tensor) -> Tensor:
        x: Tensor = ctx.saved_tensors[0]
        return d_s[0] / (SLOPE * x.abs() + 1).square()
