"""Tests that need a cluster: `./dev cluster-tests` starts one. In an ordinary run they are skipped, and counted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "SPARSESNN_CLUSTER" in os.environ:
        return
    skip = pytest.mark.skip(reason="needs real Slurm and Open MPI on two virtual nodes: ./dev cluster-tests (root)")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(skip)
