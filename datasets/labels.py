"""The labels of a data set in their four forms (`sparsesnn.task.Task`): checks, reading, and steps that move."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sparsesnn.errors import DataError
from sparsesnn.options import whole
from sparsesnn.task import NO_LABEL
from sparsesnn.typed import typed
from sparsesnn.wording import count

if TYPE_CHECKING:
    from sparsesnn.datasets.event_set import EventSet

Array = npt.NDArray[Any]

#: the arrays that hold labels, and their shapes
FORMS: Mapping[str, str] = {
    "labels": "[n], a class for each sample",
    "step_labels": "[n, T], a class for each step, -1 for none",
    "targets": "[n, K], values for each sample",
    "step_targets": "[n, T, K], values for each step, NaN for none",
}


def label_text(event_set: EventSet, sample: int, shown: Callable[[str], str] = str) -> str:
    """Such as `class 3 (left)`, or the task if labels are not single classes; `shown`: makes a name fit to be shown."""
    if not event_set.task.is_plain:
        return event_set.task.name
    label, names = int(event_set.labels[sample]), event_set.classes
    return f"class {label}" + (f" ({shown(names[label])})" if label < len(names) and names[label] != str(label) else "")


def check_labels(labels: Array, n: int, n_steps: int, n_classes: int) -> None:
    """`DataError` unless these are labels of n samples of `n_steps` steps, in one of the four forms."""
    has_values, got = labels.dtype.kind == "f", f"{labels.dtype}{list(labels.shape)}"
    allowed = (
        {(np.dtype(np.float32), (n, *labels.shape[1:2])), (np.dtype(np.float32), (n, n_steps, *labels.shape[2:3]))}
        if has_values
        else {(np.dtype(np.int64), (n,)), *((np.dtype(f"int{bits}"), (n, n_steps)) for bits in (8, 16, 32, 64))}
    )
    if (labels.dtype, labels.shape) not in allowed or (has_values and (labels.ndim < 2 or not labels.shape[-1])):
        raise DataError(
            f"EventSet: labels is {got}; for {count(n, 'sample')} of {count(n_steps, 'step')} give int64[{n}], int8 to int64[{n}, {n_steps}], "
            f"float32[{n}, K] or float32[{n}, {n_steps}, K]"
        )
    if has_values:
        if np.isinf(labels).any() or (labels.ndim == 2 and np.isnan(labels).any()):
            raise DataError(
                "EventSet: labels holds values that are not finite; allowed: finite numbers, and NaN for a step without a value"
            )
        return
    least = NO_LABEL if labels.ndim == 2 else 0
    if labels.size and not least <= int(labels.min()) <= int(labels.max()) < n_classes:
        raise DataError(
            f"EventSet: labels run from {labels.min()} to {labels.max()}; allowed: {least} to {n_classes - 1}"
        )


def one_form(forms: Mapping[str, Any], n: int, n_steps: Any, what: str) -> tuple[str, Array]:
    """The one form of labels that is given, and its array; labels of samples are returned as an empty array, for `classes.numbered`.

    Args:
        forms: the argument of each form in `FORMS`; None: not given.
        n, n_steps: samples, and steps of a sample.
        what: for messages.

    Raises:
        DataError: none or several are given; another shape; values that are not finite; labels below -1.
    """
    chosen = [name for name, given in forms.items() if given is not None]
    if len(chosen) != 1:
        listed = "; ".join(f"{name} {shape}" for name, shape in FORMS.items())
        raise DataError(f"{what}: has {' and '.join(chosen) or 'no labels'}; give one of {listed}")
    (name,) = chosen
    if name == "labels":
        return name, np.empty(0, np.int64)
    if name == "targets":
        return name, sample_values(forms[name], n, f"{what}: {name}")
    steps = whole(n_steps)
    if steps is None or steps < 1:
        raise DataError(f"{what}: n_steps is {n_steps!r}; give a whole number from 1")
    read = step_classes if name == "step_labels" else step_values
    return name, read(_padded(forms[name], steps, f"{what}: {name}"), n, steps, f"{what}: {name}")


def step_classes(given: Array, n: int, n_steps: int, what: str) -> Array:
    """The classes of steps [n, T] in the smallest type that holds them, -1: no label; `DataError` for another shape or numbers."""
    if given.ndim == 3 and given.shape[:2] == (n, n_steps):
        raise DataError(
            f"{what} has the shape {list(given.shape)}; give [{n}, {n_steps}]: for one-hot labels a, np.where(a.any(-1), a.argmax(-1), -1)"
        )
    if given.shape != (n, n_steps):
        raise DataError(
            f"{what} has the shape {list(given.shape)}; {count(n, 'sample')} of {count(n_steps, 'step')} need [{n}, {n_steps}]"
        )
    numbers = given
    if given.dtype.kind == "f":  # as after padding with NaN
        numbers = np.where(np.isnan(given), NO_LABEL, given)
        if (numbers != np.floor(numbers)).any():
            raise DataError(f"{what} holds numbers that are not whole; for values give targets of steps")
    elif given.dtype.kind not in "iu":
        raise DataError(f"{what} is {given.dtype}; give whole numbers from 0, and -1 for no label")
    low, high = (int(x) for x in (numbers.min(initial=0), numbers.max(initial=0)))
    if low < NO_LABEL:
        raise DataError(f"{what} runs from {low} to {high}; allowed: numbers from 0, and -1 for no label")
    bits = next((bits for bits in (8, 16, 32) if high < 1 << (bits - 1)), 64)
    return numbers.astype(f"int{bits}")


def sample_values(given: Any, n: int, what: str) -> npt.NDArray[np.float32]:
    """Values of samples, float32[n, K]."""
    values = typed(given)
    if values.dtype.kind not in "biuf" or values.ndim not in (1, 2) or len(values) != n:
        raise DataError(f"{what} is {values.dtype}{list(values.shape)}; give numbers [{n}, K], a row for each sample")
    return _finite(values.reshape(n, -1), what, holes=False)


def step_values(given: Array, n: int, n_steps: int, what: str) -> npt.NDArray[np.float32]:
    """Values of steps, float32[n, T, K]; NaN: no value."""
    if given.dtype.kind not in "biuf" or given.ndim not in (2, 3) or given.shape[:2] != (n, n_steps):
        raise DataError(
            f"{what} is {given.dtype}{list(given.shape)}; {count(n, 'sample')} of {count(n_steps, 'step')} need numbers "
            f"[{n}, {n_steps}, K]; NaN: no value"
        )
    return _finite(given.reshape(n, n_steps, -1), what, holes=True)


def _finite(values: Array, what: str, *, holes: bool) -> npt.NDArray[np.float32]:
    if not values.shape[-1]:
        raise DataError(f"{what} has the shape {list(values.shape)}; give at least one value")
    found = values.astype(np.float32)
    if np.isinf(found).any() or (not holes and np.isnan(found).any()):
        raise DataError(f"{what} holds values that are not finite; remove the samples, or correct the values")
    return found


def _padded(given: Any, n_steps: int, what: str) -> Array:
    """An array, or arrays of different lengths as one array, whose missing steps have NaN."""
    if not isinstance(given, (list, tuple)) or not given:
        return typed(given)
    rows = [typed(row) for row in given]
    if any(row.ndim == 0 or row.dtype.kind not in "biuf" for row in rows):
        return typed(given)
    if longer := [k for k, row in enumerate(rows) if len(row) > n_steps]:
        raise DataError(
            f"{what}[{longer[0]}] has {len(rows[longer[0]]):,} steps, a sample {n_steps:,}; cut it, or raise n_steps"
        )
    if len({row.shape[1:] for row in rows}) > 1:
        raise DataError(f"{what}: its arrays have the shapes {sorted({row.shape for row in rows})}; give all K values")
    whole = np.full((len(rows), n_steps, *rows[0].shape[1:]), np.nan)
    for k, row in enumerate(rows):
        whole[k, : len(row)] = row
    return whole


def moved_labels(labels: Array, source: Array | None) -> Array:
    """Labels of steps [B, T] or [B, T, K] after each step took the label of its source step.

    Args:
        source: int64[B, T], the step before the move; outside the window: no label. None: nothing moves.
    """
    if source is None:
        return labels
    inside = (source >= 0) & (source < labels.shape[1])
    rows = np.arange(len(labels))[:, None]
    moved = labels[rows, np.where(inside, source, 0)]
    if labels.ndim == 2:
        return np.where(inside, moved, labels.dtype.type(NO_LABEL))
    return np.where(inside[:, :, None], moved, labels.dtype.type(np.nan))
