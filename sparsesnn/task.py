"""The task of a data set: its samples have a class or values, each as a whole or step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

NO_LABEL = -1


@dataclass(frozen=True)
class Task:
    """A class or values, for each sample or for each of its steps.

    | labels of n samples | a class | K values |
    |---|---|---|
    | for each sample | int64[n] | float32[n, K] |
    | for each step | whole numbers [n, T]; -1: no label | float32[n, T, K]; NaN: no value |

    Batches have the same forms, with time first: int64[B], float32[B, K], int64[T, B], float32[T, B, K].

    Args:
        has_values: whether samples teach values instead of a class.
        per_step: whether each step has its own.
    """

    has_values: bool = False
    per_step: bool = False

    @classmethod
    def of(cls, labels: Any) -> Task:
        """The task of the labels of a data set, an array of one of the forms above."""
        has_values = labels.dtype.kind == "f"
        return cls(has_values, labels.ndim == (3 if has_values else 2))

    @classmethod
    def named(cls, name: str) -> Task:
        """The inverse of `name`; `ValueError` for another text."""
        by_name = {task.name: task for task in (cls(a, b) for a in (False, True) for b in (False, True))}
        if name not in by_name:
            raise ValueError(f"task is {name!r}; allowed: {', '.join(by_name)}")
        return by_name[name]

    @property
    def name(self) -> str:
        """Such as `class per step`."""
        return ("values" if self.has_values else "class") + (" per step" if self.per_step else "")

    def __str__(self) -> str:
        return self.name

    @property
    def is_plain(self) -> bool:
        """Whether it is a class per sample, the task that every engine trains."""
        return not self.has_values and not self.per_step

    def n_labels(self, labels: Any) -> int:
        """The number of labels, or values, in a batch: a tensor or array of one of the forms above."""
        if self.has_values:
            return int((labels == labels).sum())  # without NaN
        return int((labels != NO_LABEL).sum()) if self.per_step else len(labels)


#: a class per sample
PLAIN = Task()
