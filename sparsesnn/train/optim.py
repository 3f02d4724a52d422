"""The learning rate as a function of the step: only the step itself needs saving."""

from __future__ import annotations

import math

from sparsesnn.config import OptimConfig

#: share of the run in which onecycle rises, and its initial factor: those of `torch.optim.lr_scheduler.OneCycleLR`
ONECYCLE_RISE, ONECYCLE_START = 0.3, 1 / 25


def learning_rate(
    config: OptimConfig, step: int, steps_per_epoch: int, n_epochs: int, plateau_factor: float = 1.0
) -> float:
    """Learning rate of step 0, 1, 2, …

    Warm-up: rises linearly over the first `warmup_epochs`. Then "constant", "cosine" from `lr` to `final_lr_factor`·`lr`
    at the last step (Loshchilov & Hutter 2017, without restarts), or "plateau", `lr` times `plateau_factor`. With
    "onecycle" it rises as a cosine too, from lr/25 (Smith & Topin 2018).

    Args:
        plateau_factor: product of the factors by which validation has lowered the rate so far.
    """
    warmup = config.warmup_epochs * steps_per_epoch
    if config.schedule == "onecycle":
        warmup = warmup or ONECYCLE_RISE * n_epochs * steps_per_epoch
        if step < warmup:
            return config.lr * (1 - (1 - ONECYCLE_START) * (1 + math.cos(math.pi * step / warmup)) / 2)
    elif step < warmup:
        return config.lr * (step + 1) / (warmup + 1)
    if config.schedule in ("constant", "plateau"):
        return config.lr * plateau_factor
    done = (step - warmup) / max(1.0, n_epochs * steps_per_epoch - 1 - warmup)
    low = config.final_lr_factor
    return config.lr * (low + (1 - low) * (1 + math.cos(math.pi * min(1.0, done))) / 2)
