"""Numbers and names in sentences. This file must work in Python 3.8, like the neuron models that use it."""

from __future__ import annotations

import difflib
import unicodedata
from typing import Iterable  # noqa: UP035


def count(n: int, noun: str) -> str:
    """`1 thread`, `1,200 samples`; `noun` in the singular, with a plural in -s, or in -es as classes and batches."""
    plural = f"{noun}es" if noun.endswith(("s", "tch")) else f"{noun}s"
    return f"{n:,} {noun if n == 1 else plural}"


def a_type(value: object) -> str:
    """`an int`, `a list`: the type of a value with its article; `None` for None."""
    name = type(value).__name__
    if value is None:
        return "None"
    return f"{'an' if name.lower().startswith(('a', 'e', 'i', 'o', 'nd')) else 'a'} {name}"


def printable(text: object, keep: str = "") -> str:
    """Foreign text, such as names of files and classes, for a terminal or a picture: control characters become escapes.

    A terminal would obey them: `\\x1b[2J` clears its screen, and others hide text or reverse its direction.

    Args:
        keep: characters to keep, such as line breaks.
    """

    def stays(c: str) -> bool:
        return c.isprintable() or c in keep or unicodedata.category(c) == "Zs"

    return "".join(c if stays(c) else c.encode("unicode_escape").decode() for c in str(text))


def powers_of_two_near(n: int) -> str:
    """`2 or 4` for 3: the powers of two on either side of a number; "" if it is one itself."""
    below = 1 << (max(1, n).bit_length() - 1)
    return "" if n == below else f"{below} or {2 * below}"


def nearest(word: object, known: Iterable[str], cutoff: float = 0.6) -> str:
    """'beta' for 'bta': the nearest known name; "" if none is near."""
    return next(iter(difflib.get_close_matches(str(word), list(known), n=1, cutoff=cutoff)), "")


def meant(word: object, known: Iterable[str], cutoff: float = 0.6) -> str:
    """`did you mean 'beta'? ` for 'bta', or ""."""
    near = nearest(word, known, cutoff)
    return f"did you mean {near!r}? " if near else ""


def unknown(what: str, word: object, known: Iterable[str]) -> str:
    """`unknown key 'bta'; did you mean 'beta'? allowed: beta, threshold`."""
    known = list(known)
    return f"unknown {what} {word!r}; {meant(word, known)}allowed: {', '.join(known)}"
