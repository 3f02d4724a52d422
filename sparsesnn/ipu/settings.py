"""Settings of an IPU program besides the network: the optimizer on the device, bounds of activity."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsesnn.errors import ConfigError

#: numbers of `Optimizer` in host/src/ipu/spec.h
OPTIMIZERS = {"none": 0, "sgd": 1, "adam": 2, "adamw": 3}


@dataclass(frozen=True)
class Optimizer:
    """The optimizer on the device, with the settings of `torch.optim.SGD`, `Adam` and `AdamW`.

    Args:
        kind: "sgd", "adam", "adamw", or "none": inference only.
        lr: learning rate; can be changed with every step.
        weight_decay: for weights, not for biases.
        momentum: for sgd.
        beta1, beta2, eps: for adam and adamw.
        clip_norm: highest norm of all gradients together; 0: no limit.
    """

    kind: str = "adam"
    lr: float = 1e-3
    weight_decay: float = 0.0
    momentum: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    clip_norm: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in OPTIMIZERS:
            raise ConfigError(f"optimizer: kind is {self.kind!r}; allowed: {', '.join(OPTIMIZERS)}")

    @property
    def keeps_first_moment(self) -> bool:
        return self.kind in ("adam", "adamw") or (self.kind == "sgd" and self.momentum > 0)

    @property
    def keeps_second_moment(self) -> bool:
        return self.kind in ("adam", "adamw")

    def settings(self, step: int, lr: float, n_samples: int) -> np.ndarray:
        """float32[12], in the order of `Setting` in codelets/ipu/vertex.h; `step` counts from 1."""
        correction1, correction2 = 1 - self.beta1**step, 1 - self.beta2**step
        betas = (1 - self.beta1, self.beta2, 1 - self.beta2)
        values = (lr, self.weight_decay, self.momentum, *betas, self.eps)
        return np.array([*values, correction1, correction2**0.5, self.clip_norm, 1 / n_samples, n_samples], np.float32)


@dataclass(frozen=True)
class Regularizer:
    """Bounds of activity, as in `sparsesnn.loss.activity_regularizer`, for all spiking populations; 0: no bound."""

    lower: float = 0.0
    upper: float = 0.0
    strength_lower: float = 1.0
    strength_upper: float = 1.0

    @property
    def bounds(self) -> bool:
        """Whether there is any bound."""
        return self.lower > 0 or self.upper > 0
