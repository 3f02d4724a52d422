"""Random numbers as a function of their purpose: the same on every machine, in any order, for any batch.

SplitMix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014) read as a counter-based
generator: number c of the stream with key k is finalized(k + (c + 1)·step). There is no generator state, so the number
for event 7 of sample 12 in epoch 3 does not depend on the batch, thread or rank that computes it.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from sparsesnn.splitmix import STEP, finalized

UInt64s = npt.NDArray[np.uint64]

_STEP = np.uint64(STEP)

#: quantiles of the normal distribution in 4,096 bins of equal probability. A table, because log, sqrt and cos differ by
#: an ulp between machines, and after rounding to a step an ulp becomes another spike train.
NORMAL = np.array([NormalDist().inv_cdf((i + 0.5) / 4096) for i in range(4096)])


def _finalized(z: UInt64s) -> UInt64s:
    """SplitMix64's finalizer, for arrays only: scalars would warn on overflow."""
    mixed: UInt64s = finalized(z)
    return mixed


def keys(seed: int, *words: int | npt.ArrayLike) -> UInt64s:
    """uint64[n], one key for each value of the words, which are integers or integer arrays that broadcast."""
    key = _finalized(_as_uint64(seed) + _STEP)
    for word in words:
        key = _finalized((key ^ _as_uint64(word)) + _STEP)
    return key


def bits(key: UInt64s, counter: npt.ArrayLike) -> UInt64s:
    """uint64[n], number `counter` of the stream `key`."""
    return _finalized(key + (_as_uint64(counter) + np.uint64(1)) * _STEP)


def uniform(key: UInt64s, counter: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """float64[n] in [0, 1), a multiple of 2^-53."""
    fraction: npt.NDArray[np.float64] = (bits(key, counter) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return fraction


def normal(key: UInt64s, counter: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """float64[n], mean 0 and variance 0.9994: one of 4,096 quantiles of the normal distribution."""
    quantile: npt.NDArray[np.float64] = NORMAL[(bits(key, counter) >> np.uint64(52)).astype(np.intp)]
    return quantile


def permutation(n: int, key: UInt64s) -> npt.NDArray[np.int64]:
    """int64[n], a permutation of 0 .. n-1; unlike NumPy's, it does not depend on a library's version.

    The sorted numbers are distinct because `bits` is a bijection of the counter.
    """
    return np.argsort(bits(key, np.arange(n)), kind="stable").astype(np.int64, copy=False)


def _as_uint64(value: int | npt.ArrayLike) -> UInt64s:
    if isinstance(value, int):
        return np.array([value & 0xFFFF_FFFF_FFFF_FFFF], dtype=np.uint64)
    array = np.atleast_1d(np.asarray(value))
    return array if array.dtype == np.uint64 else array.astype(np.int64, copy=False).view(np.uint64)
