"""The display of a run's progress: a progress bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

from tqdm import tqdm

from sparsesnn.figures import one_line
from sparsesnn.train.metrics import Result, Tally
from sparsesnn.wording import printable

#: seconds between two updates of the bar, so that it does not slow training down
UPDATE_S = 0.2


class Report:
    """Writes to `stream` (default: standard error); `quiet` writes nothing."""

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self.quiet = quiet
        self.stream = stream or sys.stderr
        self.bar: tqdm[Any] | None = None

    @property
    def in_terminal(self) -> bool:
        return self.stream.isatty()

    def note(self, text: str) -> None:
        """One line, above the bar."""
        if self.quiet:
            return
        text = printable(text)
        if self.bar is not None:
            self.bar.write(text, file=self.stream)
        else:
            print(text, file=self.stream, flush=True)

    def begin_epoch(self, epoch: int, n_epochs: int, done: int, n_batches: int) -> None:
        if self.quiet or not self.in_terminal:
            return
        size = shutil.get_terminal_size((120, 24))  # tqdm prints nothing if a terminal reports 0 columns
        self.bar = tqdm(
            desc=f"epoch {epoch}/{n_epochs}",
            total=n_batches,
            initial=done,
            bar_format="{desc} {percentage:3.0f}% |{bar:10}| {remaining} left{postfix}",
            file=self.stream,
            leave=False,
            ncols=size.columns,
            nrows=size.lines,
            mininterval=UPDATE_S,
        )

    def batch(self, tally: Tally) -> None:
        if self.bar is None:
            return
        self.bar.set_postfix_str(_summary(tally), refresh=False)
        self.bar.update()

    def end_epoch(self, record: Mapping[str, Any], *, best: bool) -> None:
        """The line of a finished epoch."""
        self.close()
        name = "rmse" if "rmse" in record else "accuracy"
        valid = record[f"valid_{name}"]
        parts = [
            f"epoch {record['epoch']:>3}",
            f"loss {record['loss']:.4f}",
            shown_score(name, record[name]),
            f"valid {shown_score(name, valid, named=False)}{' *' if best else '  '}" if valid is not None else "",
            f"{record['samples_per_s']:,.0f} samples/s",
            f"waited {percent(record['wait_share'])}",
            f"activity {_per_layer(record['activity'], '.4f')}",
            _dropped(record["dropped"]),
        ]
        self.note("  ".join(part for part in parts if part))

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None


@contextmanager
def optional(what: str) -> Iterator[None]:
    """For optional output, such as plots: an error in it becomes a warning, and the run continues."""
    try:
        yield
    except Exception as error:  # of any library, or of a logger
        warnings.warn(f"{what}: {one_line(error)}; continuing without it", UserWarning, stacklevel=3)


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f} %"


def shown_score(name: str, value: float | None, *, named: bool = True) -> str:
    """`accuracy 93.10 %`, `RMSE 0.0312` or `R² 0.981`; without its name if not `named`."""
    text, form = {"rmse": ("RMSE", ".4g"), "r2": ("R²", ".4f")}.get(name, (name, ""))
    number = percent(value) if not form else "-" if value is None else f"{value:{form}}"
    return f"{text} {number}" if named else number


def summarize(result: Result, *, is_chosen: bool) -> str:
    """The scores of a run in one line; `is_chosen`: its epoch was chosen by validation."""
    if result.test_rmse is None:
        name, score, last, valid = "accuracy", result.test_accuracy, result.test_accuracy_last, result.valid_accuracy
        best, tested = "the highest validation accuracy", shown_score(name, score, named=False)
    else:
        name, score, last, valid = "rmse", result.test_rmse, result.test_rmse_last, result.valid_rmse
        best, tested = "the lowest validation RMSE", f"{shown_score(name, score)}, {shown_score('r2', result.test_r2)}"
    by = f"{best}, then the lowest loss" if is_chosen else "being the last"
    valid_text, last_text = (shown_score(name, value, named=False) for value in (valid, last))
    return f"{tested} with epoch {result.best_epoch}, chosen by {by} (valid {valid_text}; last epoch: test {last_text})"


def _summary(tally: Tally) -> str:
    scores = ", ".join(shown_score(name, value) for name, value in tally.scores().items())
    return (
        f"loss {tally.loss:.3f}, {scores}, {tally.samples_per_s:,.0f} samples/s, "
        f"activity {_per_layer(tally.activity, '.3f')}, {_dropped(tally.dropped)}"
    )


def _per_layer(values: Mapping[str, float], form: str) -> str:
    return " ".join(f"{name} {value:{form}}" for name, value in values.items()) or "-"


def _dropped(values: Mapping[str, int]) -> str:
    return f"dropped {_per_layer(values, ',d') if any(values.values()) else 0}"
