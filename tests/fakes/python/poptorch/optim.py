"""Fake `poptorch.optim`: torch's optimizers, with PopTorch's additional arguments."""

from __future__ import annotations

from typing import Any

import torch


class Adam(torch.optim.Adam):
    def __init__(self, params: Any, lr: float = 1e-3, *, loss_scaling: float = 1.0, **others: Any) -> None:
        self.loss_scaling = loss_scaling
        super().__init__(params, lr=lr, **others)


class SGD(torch.optim.SGD):
    def __init__(self, params: Any, lr: float, *, loss_scaling: float = 1.0, **others: Any) -> None:
        self.loss_scaling = loss_scaling
        super().__init__(params, lr=lr, **others)
