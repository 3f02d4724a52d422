"""A fake PopTorch for tests: models run eagerly, custom ops on the emulated machine.

It has only the functions used in sparsesnn's examples and docs, with the names and checks of PopTorch 3.4: a
missing one fails with an attribute error. Properties of the real one that it keeps:

- a model is static: no value of a tensor may be read while it is traced, and shapes never change;
- a batch is cut along the first dimension into device iterations, accumulation steps and replicas;
- gradients are the mean (or sum) over accumulation and replicas; the optimizer steps once a device iteration;
- training returns only the outputs of the last accumulation step, one part a replica, unless options say otherwise.
"""

from __future__ import annotations

from poptorch import optim
from poptorch.dataloader import DataLoader
from poptorch.executor import PoplarExecutor, inferenceModel, isRunningOnIpu, trainingModel
from poptorch.ops import BeginBlock, Block, custom_op, identity_loss
from poptorch.options import Options, OutputMode, ReductionType

__version__ = "3.4.0+fake"


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:  # noqa: N802
    return False


__all__ = [
    "BeginBlock",
    "Block",
    "DataLoader",
    "Options",
    "OutputMode",
    "PoplarExecutor",
    "ReductionType",
    "custom_op",
    "identity_loss",
    "inferenceModel",
    "ipuHardwareIsAvailable",
    "isRunningOnIpu",
    "optim",
    "trainingModel",
]
