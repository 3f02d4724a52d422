"""Runs a user's `forward` once and follows tensors from module to module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sparsesnn.conversion.labels import Tracing, tensors_in
from sparsesnn.conversion.leaves import Call, Leaf, find_leaves, pool_of, replaced
from sparsesnn.conversion.lines import own_line


@dataclass
class Trace:
    """One call of a network.

    Args:
        leaves: all modules.
        tracing: labels of their outputs.
        example: the arguments.
    """

    leaves: list[Leaf]
    tracing: Tracing
    example: tuple[Any, ...]

    def of(self, kind: str) -> list[Leaf]:
        """The leaves of a kind that were called."""
        return [leaf for leaf in self.leaves if leaf.kind == kind and leaf.calls]


def trace(network: nn.Module, forward: Callable[..., Any], example: tuple[Any, ...]) -> Trace:
    """Calls `forward(*example)`; the network, its buffers and PyTorch's random numbers are then unchanged, but neurons start at zero."""
    leaves = find_leaves(network)
    tracing = Tracing(lambda *call: _pooled(leaves, tracing, *call))
    buffers = {id(m): {k: None if x is None else x.clone() for k, x in m._buffers.items()} for m in network.modules()}

    def follow(leaf: Leaf, own: Callable[..., Any]) -> Callable[..., Any]:
        return _followed(leaf, own, tracing) if leaf.kind != "other" else _named(leaf, own, tracing)

    _start(leaves)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), replaced([*leaves], follow), tracing:
            result = forward(*example)
    finally:
        _start(leaves)
        for m in network.modules():
            for name, x in buffers[id(m)].items():
                now = m._buffers.get(name)
                if x is not None and now is not None and now.shape == x.shape:
                    now.copy_(x)
    tracing.need(result)
    inside = {id(m) for leaf in leaves for m in leaf.module.modules()}
    for m in network.modules():
        if id(m) not in inside:
            tracing.need(
                {name: x for name, x in vars(m).items() if not name.startswith("_")}
            )  # records that forward keeps
    return Trace(leaves, tracing, example)


def _start(leaves: list[Leaf]) -> None:
    for leaf in leaves:
        if leaf.spec:
            leaf.spec.reset()


def _followed(leaf: Leaf, own: Callable[..., Any], tracing: Tracing) -> Callable[..., Any]:
    """Calls a known module, and labels its output."""

    def forward(given: Tensor, *args: Any, **kwargs: Any) -> Any:
        others = list(tensors_in((list(args), kwargs)))
        tracing.paused = True
        try:
            states = [(tracing.signal(x), not bool((x != 0).any())) for x in others]
            call = Call(leaf, len(leaf.calls), own_line(), given, tracing.signal(given), states)
            made = own(given, *args, **kwargs)
            leaf.calls.append(call)
            call.output = made
            names = leaf.spec.ports if leaf.spec else ("currents",)
            call.ports = [tracing.label(call, name, x) for name, x in zip(names, tensors_in(made), strict=True)]
        finally:
            tracing.paused = False
        return made

    return forward


def _named(leaf: Leaf, own: Callable[..., Any], tracing: Tracing) -> Callable[..., Any]:
    """Calls any other module, and names it if its function is neither a view nor a sum."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        made = own(*args, **kwargs)
        for x in tensors_in(made):
            found = tracing.signal(x)
            if found and found.problem and not found.problem.startswith(leaf_text(leaf)):
                came_in = [tracing.signal(y) for y in tensors_in((list(args), kwargs))]
                if not any(y and y.problem for y in came_in):
                    found.problem = f"{leaf_text(leaf)} ({found.problem})"
        return made

    return forward


def _pooled(
    leaves: list[Leaf], tracing: Tracing, name: str, args: Any, kwargs: Any, given: Tensor, made: Tensor
) -> bool:
    """Registers a call of a function that pools as one of a module; whether it is known."""
    module = pool_of(name, args, kwargs, given)
    if module is None:
        return False
    line = own_line()
    leaf = next(
        (x for x in leaves if x.name == name and x.calls[0].line == line and repr(x.module) == repr(module)), None
    )
    if leaf is None:
        leaf = Leaf(name, module, "synapses")
        leaves.append(leaf)
    call = Call(leaf, len(leaf.calls), line, given, tracing.signal(given))
    leaf.calls.append(call)
    call.output = made
    call.ports = [tracing.label(call, "currents", made)]
    return True


def leaf_text(leaf: Leaf) -> str:
    return f"{leaf.name} ({type(leaf.module).__name__})"
