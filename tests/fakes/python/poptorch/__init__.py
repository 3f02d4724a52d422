"""A fake PopTorch for tests: models run eagerly, custom ops on the emulated machine.

It has what sparsesnn's examples and docs use, under the names and with the checks of PopTorch 3.4, and nothing else: a
call that is not here fails as an attribute error does. What it keeps of the real one:

- a model is static: no value of a tensor may be looked at while it is traced, and shapes stay as they were first;
- a batch is cut along the first dimension into device iterations, accumulation steps and replicas;
- gradients are the mean (or sum) over accumulation and replicas; the optimizer steps once a device iteration;
- training returns the outputs of the last accumulation step alone, one part a replica, unless options say otherwise.
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
