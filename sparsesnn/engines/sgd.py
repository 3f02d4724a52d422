"""SGD with momentum, as a `torch.optim.Optimizer`, with the same bits on every processor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


class SGD(torch.optim.Optimizer):
    """d ← d + λ·w;  m ← μ·m + d;  w ← w - lr·m, with m = 0 at first. Without momentum m is d.

    The same updates as those of `torch.optim.SGD` up to rounding. Each product and each sum is rounded by itself, so the bits depend
    neither on the instruction set nor on how ranks share the neurons; PyTorch's `fused` contracts some of them on some processors.

    Args:
        params: tensors, or groups of them, as everywhere in `torch.optim`.
        lr: learning rate.
        momentum: μ; 0: none.
        weight_decay: λ.

    Its state has the key of `torch.optim.SGD`: momentum_buffer, if there is momentum.
    """

    def __init__(self, params: Iterable[Any], lr: float, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is not None:
                    self._update(w, w.grad, group["lr"], group["momentum"], group["weight_decay"])
        return loss

    def _update(self, w: torch.Tensor, d: torch.Tensor, lr: float, momentum: float, weight_decay: float) -> None:
        if weight_decay:
            d = d + weight_decay * w
        if momentum:
            state = self.state[w]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(w)
            d = state["momentum_buffer"].mul_(momentum).add_(d)
        w.sub_(lr * d)
