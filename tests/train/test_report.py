"""The report on the screen: a bar in a terminal, lines elsewhere, nothing when quiet."""

from __future__ import annotations

import io
from typing import Any

import pytest

from sparsesnn.train import report as report_module
from sparsesnn.train.metrics import Tally
from sparsesnn.train.report import Report

RECORD: dict[str, Any] = {
    "epoch": 3, "loss": 0.5, "accuracy": 0.25, "valid_accuracy": 0.5, "samples_per_s": 1234.5, "wait_share": 0.0125,
    "activity": {"hidden1": 0.02, "hidden2": 0.03}, "dropped": {"hidden1": 0, "hidden2": 12345},
}  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def show(report: Report) -> None:
    report.note("before")
    report.begin_epoch(3, 9, 1, 4)
    tally = Tally(
        n_samples=4, n_correct=1, loss_sum=2.0, activity_sum={"hidden": 0.5}, dropped={"hidden": 7}, seconds=2
    )
    for _ in range(3):
        report.batch(tally)
    report.end_epoch(RECORD, best=True)


def test_lines_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    show(Report(stream=stream))
    assert stream.getvalue().splitlines() == [
        "before",
        "epoch   3  loss 0.5000  accuracy 25.00 %  valid 50.00 % *  1,234 samples/s  waited 1.25 %  "
        "activity hidden1 0.0200 hidden2 0.0300  dropped hidden1 0 hidden2 12,345",
    ]


def test_a_bar_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_module, "UPDATE_S", 0)
    monkeypatch.setenv("COLUMNS", "150")
    stream = Terminal()
    show(Report(stream=stream))
    text = stream.getvalue()
    assert "epoch 3/9 100% |" in text
    assert "loss 0.500, accuracy 25.00 %, 2 samples/s, activity hidden 0.125, dropped hidden 7" in text
    assert text.endswith("dropped hidden1 0 hidden2 12,345\n"), "the bar gives way to the line of the epoch"


def test_quiet() -> None:
    stream = Terminal()
    show(Report(quiet=True, stream=stream))
    assert stream.getvalue() == ""


def test_nothing_dropped_is_one_zero() -> None:
    stream = io.StringIO()
    Report(stream=stream).end_epoch({**RECORD, "dropped": {"hidden1": 0}, "valid_accuracy": None}, best=False)
    assert stream.getvalue().endswith("dropped 0\n")
    assert "valid" not in stream.getvalue()


def test_control_characters_of_names_do_not_reach_the_terminal() -> None:
    stream = io.StringIO()
    Report(stream=stream).note("data    a\x1b[2J, b\nerror \u202e, ä 日本")
    assert stream.getvalue() == "data    a\\x1b[2J, b\\nerror \\u202e, ä 日本\n"
