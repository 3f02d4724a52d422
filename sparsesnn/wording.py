"""Numbers in sentences."""

from __future__ import annotations


def count(n: int, noun: str) -> str:
    """`1 thread`, `1,200 samples`; `noun` in the singular, with a plural in -s, or in -es as classes and batches."""
    plural = f"{noun}es" if noun.endswith(("s", "tch")) else f"{noun}s"
    return f"{n:,} {noun if n == 1 else plural}"
