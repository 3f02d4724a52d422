"""Functions in PyTorch's graph whose gradient cannot be differentiated again.

An engine computes gradients, not their derivatives. Without a guard PyTorch would treat such a gradient as a constant: the second
derivative in a gradient penalty or MAML would silently be incomplete.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from sparsesnn.errors import SecondDerivativeError

Backward = Callable[..., Any]


def first_order(who: str) -> Callable[[Backward], Backward]:
    """Decorator of `backward`: its gradients raise if they are differentiated again, and only then.

    They are tied to every tensor that the function read: the incoming gradient, the saved tensors, and those in `ctx.read`. So a second
    derivative with respect to any of these, or any tensor before them, passes through the guard.

    Args:
        who: name of the function that computes the gradients, for the message.
    """

    def decorate(backward: Backward) -> Backward:
        @functools.wraps(backward)
        def once(ctx: Any, *d: Tensor) -> Any:
            check_transforms(who, d)
            with torch.no_grad():
                found = backward(ctx, *(x.detach() for x in d))
            if not torch.is_grad_enabled():  # it is enabled only with create_graph=True
                return found
            read = [x for x in (*d, *ctx.saved_tensors, *getattr(ctx, "read", ())) if isinstance(x, Tensor)]
            gradients = [x for x in found if isinstance(x, Tensor)]
            guarded = iter(_Guard.apply(who, len(gradients), *gradients, *read))
            return tuple(next(guarded) if isinstance(x, Tensor) else x for x in found)

        return once

    return decorate


class _Guard(torch.autograd.Function):
    """forward(who, n, gradients…, tensors that they depend on…) → the gradients."""

    @staticmethod
    def forward(ctx: Any, who: str, n: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.who = who
        return tuple(x.clone() for x in tensors[:n])

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise SecondDerivativeError(
            f"a second derivative passes through {ctx.who}, which computes first derivatives only (create_graph=True, as in a gradient "
            "penalty, MAML or a Hessian). Use Model(..., backend='dense', dense_mode='hoist' or 'step'), whose second derivative is that of "
            "the surrogate gradient; or detach() the gradients of these layers, for a first-order method"
        )


def check_transforms(who: str, gradients: Iterable[Tensor] = (), read: Iterable[Tensor] = ()) -> None:
    """`SecondDerivativeError` within a transform of `torch.func`, or for batches of gradients, which cannot trace into an engine.

    Without gradients the engine may run within a transform, unless the transform wraps one of the tensors that it reads.
    """
    functorch = torch._C._functorch
    batched = any(functorch.is_functorch_wrapped_tensor(x) or functorch.is_legacy_batchedtensor(x) for x in gradients)
    if batched or (
        torch._C._are_functorch_transforms_active()
        and (torch.is_grad_enabled() or any(functorch.is_functorch_wrapped_tensor(x) for x in read))
    ):
        raise SecondDerivativeError(
            f"{who} cannot run within a transform of torch.func, such as grad, vmap or jacrev, or with vectorize=True or "
            "is_grads_batched=True; use torch.autograd.grad with torch.func.functional_call, and vectorize=False"
        )
