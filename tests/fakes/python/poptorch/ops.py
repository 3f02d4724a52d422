"""Fake `poptorch.custom_op`, `identity_loss` and blocks."""

from __future__ import annotations

from typing import Any

import fake_popart
import torch
from torch import Tensor

from poptorch import executor

_compiled: dict[Any, fake_popart.Op] = {}


def custom_op(
    inputs: Any,
    name: str,
    domain: str,
    domain_version: int,
    example_outputs: Any,
    attributes: dict[str, Any] | None = None,
) -> list[Tensor]:
    """The op, on the emulated machine; on a CPU the example outputs, like the real one."""
    attributes = dict(attributes or {})
    for key, value in attributes.items():
        if not isinstance(key, str):
            raise ValueError("All attribute keys must be strings.")
        if not isinstance(value, (float, int, str, list, tuple)):
            raise ValueError(
                "Attribute values must be floats, ints, strings or a list/tuple of float, ints of strings."
            )
        several = list(value) if isinstance(value, (list, tuple)) else [value]
        if not all(isinstance(x, type(several[0])) for x in several):
            raise ValueError("The types in a list/tuple attribute must all be the same.")
        for text in [key, *several]:
            if isinstance(text, str) and not text.isascii():
                raise ValueError(f"{text} contains non-ASCII characters.")
        if not several:
            raise IndexError("list index out of range")  # the real result of an empty list
        attributes[key] = tuple(several) if isinstance(value, (list, tuple)) else value
    inputs, examples = list(inputs), list(example_outputs)
    if not executor.isRunningOnIpu():
        return [torch.zeros_like(x) for x in examples]
    for x in [*inputs, *examples]:
        if x.dtype not in (torch.float32, torch.int32):
            raise fake_popart.PopartError(
                f"{domain}::{name}: a tensor is {x.dtype}; the fake supports float32 and int32"
            )
    outputs: tuple[Tensor, ...] = _Run.apply((domain, name, domain_version, attributes), len(examples), *inputs)
    for k, got in enumerate(outputs):
        example = examples[k]
        if (got.shape, got.dtype) != (example.shape, example.dtype):
            raise fake_popart.PopartError(
                f"{domain}::{name}: output {k} is {got.dtype} {tuple(got.shape)} by setup, but its example is "
                f"{example.dtype} {tuple(example.shape)}"
            )
    return list(outputs)


class _Run(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, what: Any, n_outputs: int, *inputs: Tensor) -> tuple[Tensor, ...]:
        domain, name, version, attributes = what
        trains = executor.is_training()
        key = (
            *(domain, name, version, n_outputs, trains, tuple(sorted(fake_popart.machine.items()))),
            tuple(sorted(attributes.items(), key=lambda item: item[0])),
            tuple((tuple(x.shape), x.dtype) for x in inputs),
        )
        if key not in _compiled:
            _compiled[key] = fake_popart.Op(domain, name, version, attributes, list(inputs), n_outputs, trains)
        ctx.op = _compiled[key]
        outputs = tuple(ctx.op.forward(list(inputs)))
        ctx.call = ctx.op.calls
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(x for x in outputs if not x.is_floating_point()))
        ctx.save_for_backward(*inputs)
        return outputs

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor | None) -> tuple[Any, ...]:
        inputs = list(ctx.saved_tensors)
        if ctx.op.calls != ctx.call:  # the device holds the outputs of another layer with the same op
            ctx.op.forward(inputs)
            ctx.call = ctx.op.calls
        gradients = ctx.op.backward(list(d_outputs), inputs)
        return (None, None, *gradients)


def identity_loss(x: Tensor, reduction: str) -> Tensor:
    if reduction not in ("sum", "mean", "none"):
        raise AssertionError("Unsupported reduction type!")
    loss = x.sum() if reduction == "sum" else x.mean() if reduction == "mean" else x * 1
    executor.mark_loss(loss)
    return loss


class Block:
    """A stage of a pipeline; does nothing here, as on a CPU."""

    def __init__(self, user_id: str | None = None, ipu_id: int | None = None) -> None:
        self.user_id, self.ipu_id = user_id, ipu_id

    def __enter__(self) -> Block:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def BeginBlock(layer: torch.nn.Module, user_id: str | None = None, ipu_id: int | None = None) -> torch.nn.Module:  # noqa: N802
    return layer
