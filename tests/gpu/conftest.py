"""Tests of the engine `gpu` run its kernels on the emulated device."""

from __future__ import annotations

import pytest


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device of this test is emulated."""
    monkeypatch.setenv("SPARSESNN_GPU", "emulated")
