"""The loss of a batch that replicas share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsesnn.host.comm import Communicator
from sparsesnn.loss import ERRORS, CrossEntropy, RegressionLoss, activity_regularizer
from sparsesnn.options import option
from sparsesnn.output import Output

#: the loss of a batch, see `sparsesnn.loss`
Criterion = CrossEntropy | RegressionLoss


@dataclass(frozen=True)
class Objective:
    """What training minimizes: cross-entropy of classes or the error of values, plus the activity regularizer if a bound is set."""

    error: str = option(
        "mse", "error of values: mean squared, mean absolute, or Huber's with a threshold of 1", choices=tuple(ERRORS)
    )
    class_weights: str = option(
        "none",
        "weights of classes in the loss; balanced: in inverse proportion to the number of training labels, 1 on average over labels",
        choices=("none", "balanced"),
    )
    label_smoothing: float = option(0.0, "share of the target that is spread evenly over the classes", low=0, below=1)
    lower: float = option(0.0, "lower bound of the activity, spikes per neuron and step; 0: none", low=0, high=1)
    upper: float = option(0.0, "upper bound of the activity; 0: none", low=0, high=1)
    strength_lower: float = option(100.0, "weight of the penalty below the lower bound", low=0)
    strength_upper: float = option(100.0, "weight of the penalty above the upper bound", low=0)

    @property
    def regularizes(self) -> bool:
        """Whether a bound is set."""
        return bool(self.lower or self.upper)

    def regularizer(self, output: Output, **batch: Any) -> Tensor:
        """The penalty on the activities of all populations, float32[], which is added to the loss.

        Args:
            batch: n_samples and over_batch of `sparsesnn.loss.activity_regularizer`.
        """
        return activity_regularizer(
            output,
            lower=self.lower or None,
            upper=self.upper or None,
            strength_lower=self.strength_lower,
            strength_upper=self.strength_upper,
            **batch,
        )


def gather(comm: Communicator, x: Tensor) -> Tensor:
    """The parts [b] of all ranks, concatenated; no gradient."""
    if comm.size == 1:
        return x.detach()
    return torch.from_numpy(np.concatenate(comm.all_gather(x.detach().cpu().contiguous().numpy())))


def gather_rows(comm: Communicator, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The parts [b, …] of all ranks, concatenated."""
    if comm.size == 1:
        return x
    return np.concatenate([part.reshape(-1, *x.shape[1:]) for part in comm.all_gather(x.reshape(-1))])


def sum_whole(comm: Communicator, counts: Tensor) -> Tensor:
    """The sum over ranks of whole numbers, exact in float32 below 2²⁴; the same on every rank."""
    if comm.size == 1:
        return counts
    total: Tensor = _SumWhole.apply(counts, comm)
    return total


class _SumWhole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, counts: Tensor, comm: Communicator) -> Tensor:
        parts = comm.all_gather(counts.detach().cpu().contiguous().numpy().reshape(-1))
        return torch.from_numpy(np.sum(parts, axis=0, dtype=np.float32)).reshape(counts.shape).to(counts.device)

    @staticmethod
    def backward(ctx: Any, d_total: Tensor) -> tuple[Tensor, None]:
        return d_total, None
