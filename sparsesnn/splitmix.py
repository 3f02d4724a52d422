"""splitmix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014), the hash of every random choice.

codelets/splitmix.h has the same numbers. Also works in Python 3.8, for `sparsesnn.poptorch`.
"""

from __future__ import annotations

from typing import Any

MASK = 2**64 - 1
STEP = 0x9E3779B97F4A7C15


def finalized(z: Any) -> Any:
    """The finalizer, a bijection of the numbers below 2^64; `z` is an int or an array of uint64."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def splitmix(z: int) -> int:
    """The hash of one number."""
    return int(finalized((z + STEP) & MASK))
