"""Numbers in sentences."""

from __future__ import annotations


def count(n: int, noun: str) -> str:
    """`1 thread`, `1,200 samples`; `noun` in the singular, with a plural in -s, or in -es as classes and batches."""
    plural = f"{noun}es" if noun.endswith(("s", "tch")) else f"{noun}s"
    return f"{n:,} {noun if n == 1 else plural}"


def powers_of_two_near(n: int) -> str:
    """`2 or 4` for 3: the powers of two on either side of a number, or nothing where it is one itself."""
    below = 1 << (max(1, n).bit_length() - 1)
    return "" if n == below else f"{below} or {2 * below}"
