"""What a network needs to be converted, in messages."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import torch

from sparsesnn.errors import DescriptionError

#: folders whose lines are not the person's own
_INSIDE = (str(Path(torch.__file__).parent), str(Path(__file__).parent))


class Refusal(DescriptionError):
    """A module or a line of a network that has no equal here."""


def own_line() -> str:
    """The file and line, outside PyTorch and this package, that is running now: `net.py:31`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_INSIDE) and "site-packages" not in name:
            return f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back
    return "an unknown line"
