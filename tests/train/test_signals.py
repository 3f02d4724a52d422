"""Signals that stop a run: noted once, however often they are sent at once."""

from __future__ import annotations

import signal
import threading

import pytest

from sparsesnn.train import signals
from sparsesnn.train.signals import stop_on_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_several_at_once_are_one_request(number: int) -> None:
    before = signal.getsignal(number)
    with stop_on_signals() as stop:
        assert not stop
        for again in (number, number, signal.SIGTERM):
            signal.raise_signal(again)
        assert stop.signal == number
    assert signal.getsignal(number) is before


def test_one_that_comes_later_acts_as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "MOMENT_S", 0.0)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background SIGINT is ignored
    try:
        with stop_on_signals() as stop:
            signal.raise_signal(signal.SIGTERM)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            assert stop.name == "SIGTERM"
    finally:
        signal.signal(signal.SIGINT, before)


def test_outside_the_main_thread_nothing_is_noted() -> None:
    before, found = signal.getsignal(signal.SIGINT), []

    def run() -> None:
        with stop_on_signals() as stop:
            found.append((bool(stop), signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert found == [(False, before)]
