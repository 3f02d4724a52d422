"""A library's network and its conversion: the same output and the same gradients."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import sparsesnn as ss


def spikes(*shape: int, share: float = 0.3, seed: int = 0) -> Tensor:
    """0 and 1."""
    return (torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < share).float()


def linear(n_in: int, n_out: int, gain: float = 3.0, bias: bool = True) -> nn.Linear:
    """Weights that make most neurons fire."""
    layer = nn.Linear(n_in, n_out, bias=bias)
    with torch.no_grad():
        layer.weight *= gain
    return layer


def outputs_of(network: Any, x: Tensor, reset: Callable[[], Any]) -> tuple[list[Tensor], list[Tensor]]:
    """Output tensors, and gradients of a weighted sum of them by all parameters."""
    reset()
    made = network(x)
    tensors = list(made) if isinstance(made, tuple) else [made]
    generator = torch.Generator().manual_seed(1)
    loss = functools.reduce(torch.add, [(y * torch.randn(y.shape, generator=generator)).sum() for y in tensors])
    parameters = [p for p in network.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [y.detach() for y in tensors], [
        torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)
    ]


def compare(
    network: nn.Module,
    x: Tensor,
    example: Tensor | None = None,
    *,
    reset: Callable[[], Any] = lambda: None,
    tolerance: float = 1e-4,
    **options: Any,
) -> tuple[Any, list[Tensor]]:
    """Checks outputs (spikes: every one) and gradients (relative to each parameter's largest) against the library's; returns the converted
    network and its outputs."""
    converted = ss.convert(network, x if example is None else example, **options)
    theirs, d_theirs = outputs_of(network, x, reset)
    ours, d_ours = outputs_of(converted, x, reset)
    assert [y.shape for y in ours] == [y.shape for y in theirs]
    for a, b in zip(ours, theirs, strict=True):
        if bool(((b == 0) | (b == 1)).all()):
            assert torch.equal(a, b), f"{int((a != b).sum())} of {int(b.sum())} spikes differ"
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    least = max(
        1e-4, *(1e-3 * float(b.abs().max()) for b in d_theirs)
    )  # smaller numbers are rounding, the library's too
    names = [name for name, p in network.named_parameters() if p.requires_grad]
    for k, (a, b) in enumerate(zip(d_ours, d_theirs, strict=True)):
        worst = _distance(a, b, least)
        if not worst < tolerance:  # the library's sums are rounded too: ours may be nearer to those in double precision
            reset()
            try:
                exact = outputs_of(copy.deepcopy(network).double(), x.double(), lambda: None)[1][k]
            except RuntimeError:  # snnTorch's spikes are float32, so its networks do not run in double precision
                assert worst < 10 * tolerance, f"{names[k]}: {worst:.1e}"
                continue
            assert _distance(a, exact, least) < min(tolerance, _distance(b, exact, least)), f"{names[k]}: {worst:.1e}"
    return converted, ours


def _distance(a: Tensor, b: Tensor, least: float) -> float:
    """The largest difference, relative to the largest number."""
    return float((a - b).abs().max() / b.abs().max().clamp(min=least))
