"""Files of every kind that were changed at random: they are read, or refused by an error of sparsesnn, within limits.

`SPARSESNN_MUTATIONS=5000 pytest tests/data/test_mutations.py` tries more of each kind; a test that fails names the change, and
`python tests/data/mutations.py KIND 1 NUMBER` repeats it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("h5py")
pytest.importorskip("nir")

SCRIPT = Path(__file__).with_name("mutations.py")
N = int(os.environ.get("SPARSESNN_MUTATIONS", "12"))
KINDS = (
    *(
        "npz",
        "npz-array",
        "h5",
        "h5-latest",
        "shd",
        "shd-blocks",
        "nir",
        "cache",
        "checkpoint",
        "body",
        "tensors",
        "integers",
    ),
    *("clip", "bin", "network", "plan", "toml"),
)


def test_changed_files_are_read_or_refused() -> None:
    ended = subprocess.run(
        [sys.executable, str(SCRIPT), ",".join(KINDS), str(N)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [row["kind"] for row in found] == list(KINDS)
    for row in found:
        assert row["refused"] + row["read"] == N
        assert row["refused"], row
