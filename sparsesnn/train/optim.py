"""The learning rate as a function of the step: nothing to save but the step itself."""

from __future__ import annotations

import math

from sparsesnn.config import OptimConfig


def learning_rate(config: OptimConfig, step: int, steps_per_epoch: int, n_epochs: int) -> float:
    """Learning rate of step 0, 1, 2, …

    Warm-up: rises in a line over the first `warmup_epochs`. Then "constant", or "cosine" from `lr` to
    `final_lr_factor`·`lr` at the last step (Loshchilov & Hutter 2017, without restarts).
    """
    warmup = config.warmup_epochs * steps_per_epoch
    if step < warmup:
        return config.lr * (step + 1) / (warmup + 1)
    if config.schedule == "constant":
        return config.lr
    done = (step - warmup) / max(1.0, n_epochs * steps_per_epoch - 1 - warmup)
    low = config.final_lr_factor
    return config.lr * (low + (1 - low) * (1 + math.cos(math.pi * min(1.0, done))) / 2)
