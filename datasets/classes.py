"""Classes and groups: whole numbers are kept; texts are numbered by a list of names, or in sorted order."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsesnn.errors import DataError
from sparsesnn.options import number
from sparsesnn.task import NO_LABEL
from sparsesnn.typed import typed
from sparsesnn.wording import count, meant

Array = npt.NDArray[Any]

#: the readout has one neuron per class
MAX_CLASSES = 100_000
#: most names listed in a message
_MOST_NAMES = 12


def numbered(
    values: npt.ArrayLike,
    what: str,
    names: Sequence[Any] | None = None,
    *,
    argument: str = "classes",
    only_texts: bool = False,
) -> tuple[npt.NDArray[np.int64], list[str]]:
    """int64[n], and the names that the numbers stand for; none if the values are numbers already.

    Args:
        values: [n], whole numbers or texts.
        what: the owner of the values, for messages.
        names: of the numbers 0, 1, …. A text becomes its place in this list; whole numbers are places already, unless
            the names are whole numbers too. None: texts are numbered in sorted order.
        argument: the name of `names`, for messages.
        only_texts: `names` does not apply to whole numbers.

    Raises:
        DataError: another shape; floats, which would be truncated; numbers beyond int64; a value missing from `names`.
    """
    given = _one_each(values, what)
    if given.dtype.kind == "S":
        given = np.char.decode(given, "utf-8", "replace")
    if given.dtype.kind == "f" and np.isnan(given).any():
        raise DataError(f"{what}: holds NaN; give each sample a whole number from 0, or a text")
    if given.size and given.dtype.kind not in "biuU":
        holds = (
            f"holds {strange_entry(given)}"
            if given.dtype.kind in ("O", "T")
            else f"is {given.dtype}, such as {given[0]}"
        )
        raise DataError(f"{what}: {holds}; give whole numbers from 0, or texts")
    if given.dtype == np.uint64 and given.size and int(given.max()) >= 1 << 63:
        raise DataError(f"{what}: holds {given.max()}; allowed: numbers below 2^63")
    if names is not None and not (only_texts and given.dtype.kind != "U"):
        return _by_name(given, what, names, argument)
    if given.dtype.kind == "U":
        found, numbers = np.unique(given, return_inverse=True)
        return numbers.astype(np.int64).reshape(-1), [str(name) for name in found]
    return given.astype(np.int64), []


def count_classes(labels: Array, names: list[str], what: str) -> int:
    """The number of classes: the number of names, or the largest label plus one; 0 if labels are values.

    Raises:
        DataError: labels that are negative (except -1 for a step without a label), or too large for a readout.
    """
    if labels.dtype.kind == "f":
        return 0
    if labels.ndim == 2:
        labels = labels[labels != NO_LABEL]
    if labels.size and not 0 <= int(labels.min()) <= int(labels.max()) < MAX_CLASSES:
        raise DataError(
            f"{what}: labels run from {labels.min()} to {labels.max()}; allowed: 0 to {MAX_CLASSES - 1:,}; give texts if "
            "the numbers are names"
        )
    return max(len(names), int(labels.max(initial=-1)) + 1)


def shape_advice(shape: Sequence[int]) -> str:
    """Advice for labels with several axes."""
    return (
        f"give one label for each sample, [{shape[0] if shape else 'samples'}]; labels of steps, [samples, steps], are called step_labels "
        "(in a file step_label)"
    )


def one_label_each(n_labels: int, n_events: Sequence[int], what: str, n_steps: int | None = None) -> None:
    """`DataError` unless every sample has one label.

    Args:
        n_events: of each sample.
        n_steps: of a sample.
    """
    n = len(n_events)
    if n_labels == n:
        return
    which = {sum(n_events): "events", n * (n_steps or 0): "steps"}.get(n_labels) if n_labels else None
    each = f", as many as there are {which} in total" if which else ""
    raise DataError(f"{what}: has {n_labels:,} entries for {count(n, 'sample')}{each}; {shape_advice([n])}")


# ---- several sets --------------------------------------------------------------------------------------------------

#: the texts of all sets in this process, in the order of their numbers
_seen: list[list[str]] = []
#: whether classes are matched by name later, so that their numbers may differ
_matched: ContextVar[bool] = ContextVar("_matched", default=False)


def warn_of_other_texts(names: list[str], what: str, *, chosen: bool, stacklevel: int) -> None:
    """Warns if an earlier set had other texts: the same number may then stand for different classes.

    Args:
        names: in the order of their numbers.
        what: the owner of the names, for messages.
        chosen: the order was given and is not the sorted one. Such a set does not warn; later ones are compared with it.
    """
    if not names or names in _seen or _matched.get():
        return
    earlier = _seen[-1] if _seen else names
    _seen.append(names)
    if not chosen and earlier != names:
        warnings.warn(
            f"{what}: labels are texts, numbered in sorted order: {listed(names)}. An earlier set had {listed(earlier)}; there a number "
            "may stand for another class. If one network reads both sets, give both the same classes=, such as "
            "classes=train.classes",
            UserWarning,
            stacklevel=stacklevel,
        )


@contextmanager
def matched_by_name() -> Iterator[None]:
    """Inside, new sets may number classes differently, because classes are matched by name later."""
    token = _matched.set(True)
    try:
        yield
    finally:
        _matched.reset(token)


def listed(names: Sequence[str]) -> str:
    """`cat, dog, owl`; long lists are shortened."""
    return ", ".join(names[:_MOST_NAMES]) + (", …" if len(names) > _MOST_NAMES else "")


# ---- values --------------------------------------------------------------------------------------------------------


def _one_each(values: Any, what: str) -> Array:
    """The values as a flat array."""
    try:
        given = typed(values)
    except ValueError:  # lists of different lengths
        raise DataError(f"{what}: has lists of different lengths; {shape_advice([len(values)])}") from None
    if given.ndim == 2 and given.size and given.dtype.kind in "biuf":
        if given.shape[1] == 1:
            raise DataError(f"{what}: has the shape {list(given.shape)}; give a flat array, labels.reshape(-1)")
        if np.isin(given, (0, 1)).all() and (given.sum(axis=1) == 1).all():
            raise DataError(
                f"{what}: has the shape {list(given.shape)} with a single 1 in each row; for one-hot labels give labels.argmax(axis=1); "
                f"{shape_advice(given.shape)}"
            )
    if given.ndim != 1:
        raise DataError(f"{what}: has the shape {list(given.shape)}; {shape_advice(given.shape)}")
    return given


def names_of(names: Any, what: str) -> tuple[list[str], bool]:
    """Names of classes, or of the members of a group, as texts, and whether they are whole numbers.

    Args:
        names: in the order of their numbers; or the number of each, such as {"cat": 0, "dog": 1}.
        what: the owner of the names, for messages.

    Raises:
        DataError: another type, or a name given twice.
    """
    if isinstance(names, Mapping) and sorted(names.values(), key=str) == sorted(range(len(names)), key=str):
        names = sorted(names, key=lambda name: names[name])
    given = None if isinstance(names, (str, bytes, Mapping, Set)) else typed(names)
    if given is not None and given.dtype.kind == "S":
        given = np.char.decode(given, "utf-8", "replace")
    if given is None or given.ndim != 1 or (given.size and given.dtype.kind not in "iuU"):
        raise DataError(
            f"{what}: is {names!r:.200}; give a list of texts in the order of their numbers, such as ['cat', 'dog']"
        )
    texts = [str(name) for name in given.tolist()]
    if len(set(texts)) < len(texts):
        twice = next(name for k, name in enumerate(texts) if name in texts[:k])
        raise DataError(f"{what}: holds {twice!r} twice; give each name once")
    return texts, bool(given.size) and given.dtype.kind != "U"


def strange_entry(given: Array) -> str:
    """The entry that keeps an array of Python objects from being numbers or texts."""
    entries = given.astype(object).reshape(-1)
    for x in entries:
        if not isinstance(x, (str, bytes)) and number(x) is None:
            return f"a {type(x).__name__}, {x!r}"
    if texts := [x for x in entries if isinstance(x, (str, bytes))]:
        return f"texts and numbers, such as {texts[0]!r} and {next(x for x in entries if not isinstance(x, (str, bytes)))!r}"
    return f"{max(entries, key=abs)!r}, which int64 cannot hold"


def _by_name(given: Array, what: str, names: Any, argument: str) -> tuple[npt.NDArray[np.int64], list[str]]:
    known, are_numbers = names_of(names, f"{what}: {argument}")
    if given.dtype.kind != "U" and not are_numbers:
        numbers = given.astype(np.int64)
        if known and numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(known):
            raise DataError(
                f"{what}: run from {numbers.min()} to {numbers.max()}; {argument} has {len(known)} names, so 0 to {len(known) - 1} are allowed"
            )
        return numbers, known
    texts, places = np.unique(given.astype(np.int64) if given.dtype.kind == "b" else given, return_inverse=True)
    place_of = {name: k for k, name in enumerate(known)}
    if strange := [str(text) for text in texts if str(text) not in place_of]:
        raise DataError(
            f"{what}: holds {strange[0]!r}, which {argument} lacks; {meant(strange[0], known)}allowed: {listed(known) or 'none'}"
        )
    numbers = np.array([place_of[str(text)] for text in texts], np.int64)
    return numbers[places.reshape(-1)] if texts.size else np.empty(0, np.int64), known
