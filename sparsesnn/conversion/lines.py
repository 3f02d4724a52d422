"""The line of a user's code that is running."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import torch

#: folders whose lines are not the user's own
_INSIDE = (str(Path(torch.__file__).parent), str(Path(__file__).parent))


def own_line() -> str:
    """The file and line, outside PyTorch and this package, that is running now: `net.py:31`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_INSIDE) and "site-packages" not in name:
            return f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back
    return "an unknown line"
