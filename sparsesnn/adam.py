"""Adam and AdamW on the engine's threads, as `torch.optim.Optimizer`s.

The same updates as PyTorch's (`torch.optim.Adam`, `AdamW`), up to rounding, in one pass over a weight and its moments.
Bit-equal for any number of threads and any instruction set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.optim import optimizer

from sparsesnn import _core
from sparsesnn.arguments import named
from sparsesnn.errors import DescriptionError, ShapeError
from sparsesnn.options import number, plain


@named
class Adam(torch.optim.Optimizer):
    """Adam on the engine's threads: the updates of `torch.optim.Adam`, up to rounding.

    `optimizer = sparsesnn.Adam(model.parameters(), lr=1e-3)`

    Args:
        params: float32 tensors on the CPU, or groups of them, as everywhere in `torch.optim`.
        lr: learning rate.
        betas: decay of the two moments per step.
        eps: added to the root of the second moment.
        weight_decay: multiple of the weight added to its gradient.

    Its state has the keys of `torch.optim.Adam`: step, exp_avg, exp_avg_sq.
    Errors: `DescriptionError` for numbers out of range; `ShapeError` for tensors of another dtype, device or layout.
    Source: Kingma & Ba 2015, algorithm 1.
    """

    decoupled = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        if isinstance(params, torch.nn.Module):
            raise DescriptionError(
                f"{type(self).__name__}: params is a {type(params).__name__}; give the tensors: model.parameters()"
            )
        lr, eps, weight_decay = _own(lr), _own(eps), _own(weight_decay)
        betas = cast("tuple[float, float]", tuple(_own(beta) for beta in betas))
        if (
            not all(_is_number(x) for x in (lr, eps, weight_decay, *betas))
            or not lr >= 0
            or not eps > 0
            or not weight_decay >= 0
            or not all(0 <= beta < 1 for beta in betas)
        ):
            raise DescriptionError(
                f"{type(self).__name__}: lr={lr!r}, betas={betas}, eps={eps!r}, weight_decay={weight_decay!r}; "
                "allowed: lr and weight_decay at least 0 (numbers), betas from 0 to below 1, eps above 0"
            )
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        #: for each parameter, the addresses of its data and state, and their NumPy views
        self._arrays: dict[Tensor, tuple[tuple[Any, ...], list[Any]]] = {}

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates every parameter that has a gradient.

        Without hooks and outside PyTorch's profiler it skips the profiler region that other optimizers open, which takes up to 0.3 ms
        after a pass that filled the caches.
        """
        hooks = (
            self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks,
            optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks,
        )  # fmt: skip
        if any(hooks) or torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            return _step_with_hooks(self, closure)
        return self._step(closure)

    step.hooked = True  # type: ignore[attr-defined]  # without it PyTorch wraps `step` itself

    def _step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            learning = [weight for weight in group["params"] if weight.grad is not None]
            beta1, beta2 = group["betas"]
            _core.adam(
                [self._update_of(weight, weight.grad) for weight in learning],
                lr=float(group["lr"]),
                beta1=beta1,
                beta2=beta2,
                eps=group["eps"],
                weight_decay=group["weight_decay"],
                decoupled=self.decoupled,
            )
            increment_version(learning)  # tells autograd that they changed
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As PyTorch's, but without its profiler region, which takes about 50 µs per step."""
        if not set_to_none:
            super().zero_grad(set_to_none=False)
            return
        for group in self.param_groups:
            for weight in group["params"]:
                weight.grad = None

    def _update_of(self, weight: Tensor, gradient: Tensor) -> tuple[Any, ...]:
        """A parameter's weight, moments, number of steps and gradient, as NumPy arrays."""
        state = self.state[weight]
        kept = self._arrays.get(weight) if state else None
        if kept is None or kept[0] != _place(weight, state):
            kept = self._arrays[weight] = self._arrays_of(weight, state)
        plain = gradient.detach() if gradient.requires_grad else gradient
        return (*kept[1], plain.contiguous().numpy())

    def _arrays_of(self, weight: Tensor, state: dict[str, Tensor]) -> tuple[tuple[Any, ...], list[Any]]:
        """The addresses of a parameter and its state, and their NumPy views; creates a missing state."""
        if weight.dtype != torch.float32 or weight.device.type != "cpu" or not weight.is_contiguous():
            raise ShapeError(
                f"{type(self).__name__}: a parameter of shape {tuple(weight.shape)} is {weight.dtype} on {weight.device}"
                f"{'' if weight.is_contiguous() else ', not contiguous'}; give contiguous float32 on the cpu, or use torch.optim"
            )
        for name, none in (
            ("exp_avg", weight),
            ("exp_avg_sq", weight),
            ("step", torch.tensor(0.0, dtype=torch.float32, device="cpu")),
        ):
            tensor = state[name] if name in state else torch.zeros_like(none)
            state[name] = tensor.to(torch.float32).contiguous()  # otherwise the engine would update a copy
        tensors = [weight, *map(state.__getitem__, ("exp_avg", "exp_avg_sq", "step"))]
        return _place(weight, state), [x.detach().numpy() for x in tensors]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._arrays = {}


def _place(weight: Tensor, state: dict[str, Tensor]) -> tuple[Any, ...]:
    first, second, step = state["exp_avg"], state["exp_avg_sq"], state["step"]
    return (
        weight.data_ptr(), weight.dtype, weight.is_contiguous(), first.data_ptr(), second.data_ptr(), step.data_ptr()
    )  # fmt: skip


_step_with_hooks = torch.optim.Optimizer.profile_hook_step(Adam._step)


@named
class AdamW(Adam):
    """Adam with decoupled weight decay: each step multiplies a weight by 1 - lr·weight_decay, without effect on its moments.

    The arguments are those of `Adam`; the default of `weight_decay` is 0.01.

    Source: Loshchilov & Hutter 2019, algorithm 2.
    """

    decoupled = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)


def _own(x: Any) -> Any:
    """NumPy numbers as Python numbers; a tensor, such as a rate that changes in place, stays one."""
    return x if isinstance(x, Tensor) else plain(x)


def _is_number(x: Any) -> bool:
    return isinstance(x, Tensor) or number(x) is not None
