"""Weights rounded to integers: q·s, a whole number per synapse and one scale per receiving neuron.

    s = max |w| / L over the neuron's weights, rounded up to 16 bits;   q = round(w / s), -L <= q <= L

L is 127 for int8 and 7 for int4. With 16 bits in s the product is exact in float32, and rounding q·s again gives the same q
and s. The forward pass uses q·s; the gradient passes to w unchanged (straight-through, Bengio et al. 2013).

Also works in Python 3.8 and torch 2.0, for `sparsesnn.poptorch`.
"""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple  # noqa: UP035

import torch
from torch import Tensor

#: number of bits by kind
BITS: Mapping[str, int] = {"int8": 8, "int4": 4}
#: bits of a float32 not used by a scale
_UNUSED = 0xFF


class Integers(NamedTuple):
    """The weights of a connection as integers.

    Args:
        numbers: int8, shaped like the weight; a 4-bit number takes a byte.
        scales: float32[n], one per receiving neuron; for a convolution, one per filter.
    """

    numbers: Tensor
    scales: Tensor


class Receivers(NamedTuple):
    """The receivers of weights with one number for each synapse.

    Args:
        n: number of receiving neurons.
        ids: int64[synapses], the receiving neuron of each.
    """

    n: int
    ids: Tensor


def integers(weight: Tensor, kind: str, receivers: Receivers | None = None) -> Integers:
    """Rounds a weight.

    Args:
        weight: the last axis counts receivers; or [synapses].
        kind: "int8" or "int4".
        receivers: for a weight [synapses].
    """
    with torch.no_grad():
        limit = 2 ** (BITS[kind] - 1) - 1
        size = weight.detach().abs()
        if receivers is None:
            most = size.reshape(-1, size.shape[-1]).amax(0)
        else:
            most = size.new_zeros(receivers.n).scatter_reduce(0, receivers.ids, size, "amax")
        bits = (most / limit).float().view(torch.int32)
        scales = ((bits + _UNUSED) & ~_UNUSED).view(torch.float32)
        divisor = torch.where(scales == 0, torch.ones_like(scales), scales).to(weight.dtype)
        numbers = (weight.detach() / _spread(divisor, receivers)).round().clamp(-limit, limit)
        return Integers(numbers.to(torch.int8), scales)


def product(found: Integers, receivers: Receivers | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
    """The weights q·s."""
    return found.numbers.to(dtype) * _spread(found.scales.to(dtype), receivers)


def rounded(weight: Tensor, kind: str, receivers: Receivers | None = None) -> Tensor:
    """The weights q·s; their gradient passes unchanged to `weight`. Arguments: see `integers`."""
    result: Tensor = _Rounded.apply(weight, kind, receivers)
    return result


def _spread(per_receiver: Tensor, receivers: Receivers | None) -> Tensor:
    return per_receiver if receivers is None else per_receiver[receivers.ids]


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, kind: str, receivers: Receivers | None) -> Tensor:
        return product(integers(weight, kind, receivers), receivers, weight.dtype)

    @staticmethod
    def backward(ctx: Any, d_weight: Tensor) -> tuple[Tensor, None, None]:
        return d_weight, None, None
