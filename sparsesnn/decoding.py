"""Decoding: from the output of a network to one logit, or value, per class and sample, or per class, sample and step.

Everything is differentiable in PyTorch and works on the output of every engine; T steps, B samples, N neurons, C classes.
With a population code the last population has N = k·C neurons, class by class: neurons c·k to c·k + k - 1 are class c.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from sparsesnn.arguments import named
from sparsesnn.errors import DescriptionError, ShapeError
from sparsesnn.options import whole
from sparsesnn.output import Output


def steps_last(v: Tensor) -> Tensor:
    """[T, B, C] as [B, C, T] in memory: a sum over steps then has an order that does not depend on B."""
    return v.permute(1, 2, 0).contiguous()


class _Maximum(torch.autograd.Function):
    """max_t v[t]; steps with the maximum share its gradient equally, while PyTorch's own maxima differ for ties.

    A readout without input is 0 at every step, so ties are common.
    """

    @staticmethod
    def forward(ctx: Any, v: Tensor) -> Tensor:
        most = v.amax(0)
        ctx.save_for_backward(v, most)
        return most

    @staticmethod
    def backward(ctx: Any, *d: Tensor) -> Any:
        v, most = ctx.saved_tensors
        holds = v == most
        return d[0] * holds / holds.sum(0)


def _softmax_sum(v: Tensor) -> Tensor:
    return steps_last(v.softmax(-1)).sum(-1)


def _maximum(v: Tensor) -> Tensor:
    most: Tensor = _Maximum.apply(v)
    return most


#: reductions of an LI readout's potentials [T, B, C] to logits [B, C]; "step" keeps the steps
OVER_TIME: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "max": _maximum,
        "mean": lambda v: steps_last(v).mean(-1),
        "sum": lambda v: steps_last(v).sum(-1),
        "last": lambda v: v[-1],
        "softmax_sum": _softmax_sum,
        "step": lambda v: v,
    }
)
DECODINGS = (*OVER_TIME, "count")


@named
def decode(output: Output, decoding: str, n_classes: int) -> Tensor:
    """Returns the logits of an output, float32[B, C], or float32[T, B, C] for the decoding "step".

        max, mean, sum, last    logit[b,c] = reduce over t of (1/k)·Σ_j v[t, b, c·k+j]     an LI readout
        softmax_sum             logit[b,c] = Σ_t softmax_c(v[t, b])                        an LI readout
        step                    logit[t,b,c] = (1/k)·Σ_j v[t, b, c·k+j]                    an LI readout, with a label for each step
        count                   logit[b,c] = Σ_t Σ_j s[t, b, c·k+j]                        a spiking readout (rate code)

    The gradient of "max" goes to the step of the maximum (shared equally among ties).

    Args:
        output: of the model.
        decoding: "max", "mean", "sum", "last", "softmax_sum" or "step" for a network that ends in LI; "count" for one that ends in
            spikes.
        n_classes: C; the last population has C neurons, or k·C for a population code.

    Errors: `DescriptionError` if the decoding is unknown or does not fit the readout; `ShapeError` if N is not a multiple
    of C, or there are no steps.
    Source: max over time, Cramer et al. 2022 (Heidelberg spiking datasets), eq. 5; sum of softmax, Bittar & Garner 2022; rate code, Eshraghian et al. 2023.
    """
    n_classes = check_decoding(decoding, n_classes)
    name = output.output
    if decoding == "count":
        if output.potentials is not None:
            raise DescriptionError(
                f"decoding 'count' reads spikes, but {name!r} is an LI readout; use {', '.join(OVER_TIME)}, "
                "or end the network in a spiking population"
            )
        counts = _by_class(output.counts(), name, n_classes)
        return counts if counts.ndim == 2 else counts.sum(-1)
    if output.potentials is None:
        raise DescriptionError(
            f"decoding {decoding!r} reads potentials, but {name!r} fires; use 'count', or end the network in LI"
        )
    if not len(output.potentials):
        raise ShapeError(f"decoding {decoding!r}: {name!r} has 0 time steps; give a sequence of at least one")
    potentials = _by_class(output.potentials, name, n_classes)
    return OVER_TIME[decoding](potentials if potentials.ndim == 3 else potentials.mean(-1))


def check_decoding(decoding: str, n_classes: int) -> int:
    """The number of classes."""
    if decoding not in DECODINGS:
        raise DescriptionError(f"decoding is {decoding!r}; allowed: {', '.join(DECODINGS)}")
    number = whole(n_classes)
    if number is None or number < 1:
        raise DescriptionError(f"decode: n_classes is {n_classes!r}; give a whole number, at least 1")
    return number


def _by_class(x: Tensor, name: str, n_classes: int) -> Tensor:
    """[..., N] as [..., C, k]; unchanged if k is 1."""
    n = x.shape[-1]
    if n % n_classes:
        raise ShapeError(
            f"decode: {name!r} has {n} neurons for {n_classes} classes; give it {n_classes}, or k·{n_classes} "
            "for a population code"
        )
    return x if n == n_classes else x.reshape(*x.shape[:-1], n_classes, n // n_classes)
