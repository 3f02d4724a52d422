"""Kernels that the tests compile."""

from __future__ import annotations

import shutil
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def sources_with(folder: Path, kernel: str) -> Path:
    """A folder with the codelets and one more file of kernels among them, from next to this one."""
    shutil.copytree(ROOT / "codelets", folder / "sources" / "codelets")
    shutil.copy(HERE / kernel, folder / "sources" / "codelets" / "gpu")
    return folder / "sources"
