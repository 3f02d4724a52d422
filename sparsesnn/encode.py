"""Numbers as spikes: rates, times and changes.

    spikes = sparsesnn.encode.rate(images, n_steps=50)     # images [B, ...] between 0 and 1

Each returns a `SpikeBatch`, spike lists on the CPU. T steps, B samples, N values per sample, in the order of the flattened tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsesnn.arguments import named
from sparsesnn.errors import NumericError, ShapeError
from sparsesnn.options import plain
from sparsesnn.spikes import SpikeBatch
from sparsesnn.tensor_like import plain_tensor

__all__ = ["rate", "latency", "delta", "direct"]


@named
def rate(x: Any, n_steps: int, *, generator: torch.Generator | None = None) -> SpikeBatch:
    """Random spikes with the value as probability per step: Pr(s[t, b, n] = 1) = x[b, n], independent draws.

    Args:
        x: float[B, ...], tensor or array, 0 to 1: spikes per step.
        n_steps: T, 1 or more.
        generator: of the draws; None: PyTorch's, which `torch.manual_seed` sets.

    Returns: T = `n_steps`, B, N.
    Errors: `ShapeError` for no sample axis or T below 1; `NumericError` for values outside 0 to 1.
    Source: Poisson rate code in discrete time, as snnTorch's `spikegen.rate`.
    """
    n_steps = plain(n_steps)
    values = _samples(x, n_steps, "rate")
    drawn = (
        torch.rand(values.shape, dtype=torch.float32, device="cpu", generator=generator) < values
        for _ in range(n_steps)
    )
    return _lists(drawn, n_steps, *values.shape)


@named
def latency(x: Any, n_steps: int, *, threshold: float = 0.01) -> SpikeBatch:
    """One spike per value, earlier for larger values: at step round((1 - x)·(T - 1)).

    Args:
        x: float[B, ...], tensor or array, 0 to 1.
        n_steps: T, 1 or more.
        threshold: values up to this one never fire; 0 to 1.

    Returns: T = `n_steps`, B, N.
    Errors: `ShapeError` for no sample axis or T below 1; `NumericError` for values or a threshold outside 0 to 1.
    Source: time to first spike, Thorpe et al. 2001; linear, as snnTorch's `spikegen.latency(linear=True)`.
    """
    n_steps, threshold = plain(n_steps), plain(threshold)
    if not 0 <= threshold <= 1:
        raise NumericError(f"latency: threshold is {threshold!r}; allowed: 0 to 1")
    values = _samples(x, n_steps, "latency")
    when = ((1 - values) * (n_steps - 1)).round().long().masked_fill(values <= threshold, -1)
    return _lists((when == t for t in range(n_steps)), n_steps, *values.shape)


@named
def delta(x: Any, threshold: float, *, off: bool = True) -> SpikeBatch:
    """Spikes at changes of a signal: each value keeps the level of its last spike, initially that of step 0.

        on[t]  = x[t] - level ≥ threshold        off[t] = level - x[t] ≥ threshold        level = x[t] after either

    Args:
        x: float[T, B, ...], tensor or array, finite.
        threshold: the change that makes a spike, in the signal's unit; above 0.
        off: N more neurons, after the others, fire when the signal falls.

    Returns: T, B, and 2·N neurons (N without `off`).
    Errors: `ShapeError` unless there are axes of steps and samples; `NumericError` for NaN, infinity, a threshold of 0 or less.
    Source: send-on-delta sampling, Miskowicz 2006; pixels of an event camera do the same with the logarithm of brightness.
    """
    threshold = plain(threshold)
    if not threshold > 0:
        raise NumericError(f"delta: threshold is {threshold!r}; give a number above 0")
    signal = plain_tensor(x, "delta: x").detach().cpu().float()
    if signal.ndim < 3:
        raise ShapeError(f"delta: x has shape {list(signal.shape)}; give [T, B, ...], such as x[:, :, None]")
    if not bool(signal.isfinite().all()):
        raise NumericError("delta: x holds NaN or infinity; remove them")
    n_steps, n_samples = signal.shape[:2]
    signal = signal.flatten(2)

    def fired() -> Iterable[Tensor]:
        level = signal[:1].sum(0)
        for now in signal:
            up, down = now - level >= threshold, level - now >= threshold
            level = torch.where(up | down, now, level)
            yield torch.cat([up, down], 1) if off else up

    return _lists(fired(), n_steps, n_samples, signal.shape[2] * (2 if off else 1))


@named
def direct(x: Any, n_steps: int) -> SpikeBatch:
    """The values themselves, the same at all steps: no random numbers, and a spike with a value for every number but 0.

    Args:
        x: float[B, ...], tensor or array, finite; 0 makes no spike.
        n_steps: T, 1 or more.

    Returns: a `SpikeBatch` of T = `n_steps`, B, N with one list per sample, see `SpikeBatch.constant`.
    Errors: `ShapeError` for no sample axis or T below 1; `SpikeListError` for NaN and infinity.
    Source: direct encoding, as in Rueckauer et al. 2017 and snnTorch's tutorials, which give an image at every step.
    """
    n_steps = plain(n_steps)
    values = plain_tensor(x, "direct: x").detach().cpu().float()
    if values.ndim < 2:
        raise ShapeError(f"direct: x has shape {list(values.shape)}; give [B, ...], such as x[None] for one sample")
    if type(n_steps) is not int or n_steps < 1:
        raise ShapeError(f"direct: n_steps is {n_steps!r}; give a whole number from 1 up")
    return SpikeBatch.constant(values.flatten(1), n_steps)


def _samples(x: Any, n_steps: int, what: str) -> Tensor:
    """float32[B, N]."""
    values = plain_tensor(x, f"{what}: x").detach().cpu().float()
    if values.ndim < 2:
        raise ShapeError(f"{what}: x has shape {list(values.shape)}; give [B, ...], such as x[None] for one sample")
    if type(n_steps) is not int or n_steps < 1:
        raise ShapeError(f"{what}: n_steps is {n_steps!r}; give a whole number from 1 up")
    if values.numel() and not bool(((values >= 0) & (values <= 1)).all()):
        if bool(values.isnan().any()):
            raise NumericError(f"{what}: x holds NaN; replace or remove it")
        low, high = float(values.min()), float(values.max())
        advice = "divide it by x.max()" if low >= 0 and high < math.inf else "scale it to this range"
        raise NumericError(f"{what}: x runs from {low:g} to {high:g}; allowed: 0 to 1; {advice}")
    return values.flatten(1)


def _lists(steps: Iterable[Tensor], n_steps: int, n_samples: int, n_neurons: int) -> SpikeBatch:
    """Makes lists from a mask [B, N] for every step."""
    ids, lengths = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for fired in steps:
        ids.append(torch.nonzero(fired)[:, 1].numpy())
        lengths.append(fired.sum(1).numpy())
    return SpikeBatch._from_flat(np.concatenate(ids), np.concatenate(lengths), n_steps, n_samples, n_neurons)
