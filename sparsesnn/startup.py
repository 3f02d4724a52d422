"""The start of the command `sparsesnn`: while its modules are imported, Ctrl-C and bad settings end it without a traceback.

PyTorch alone takes seconds to import. This module is imported before it and takes effect at once; programs that import the
package keep Python's own behavior.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from typing import Any, NoReturn


def _program() -> str:
    """Our module that this process runs: "sparsesnn" for the command; "" in other processes, and in those that they spawn."""
    name = sys.argv[0] if getattr(sys, "argv", None) else ""
    words = getattr(sys, "orig_argv", [])
    if name == "-m":  # while Python searches for the module
        match = re.search(r" -\w*m ?(sparsesnn[\w.]*)", " ".join(words))
        return match[1] if match else ""
    return "sparsesnn" if name in words and name.rpartition("/")[2] == "sparsesnn" else ""


def _stop(*_: Any) -> NoReturn:
    # not an exception: imports of compiled modules turn some of them into others
    os.write(2, b"sparsesnn: stopped by Ctrl-C\n")
    os._exit(130)


def end() -> None:
    """Called once the command line handles Ctrl-C itself."""
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def refuse(error: ImportError | UnicodeDecodeError) -> NoReturn:
    """Raises the engine's error about an invalid environment variable; our own programs end with its message."""
    # a value that is not UTF-8 makes the message undecodable
    text = str(error) if isinstance(error, ImportError) else error.object.decode(errors="backslashreplace")
    if not text.startswith("SPARSESNN_"):
        raise error
    if _program():
        print(f"sparsesnn: error: {text}", file=sys.stderr)
        sys.exit(2)
    raise ImportError(text) from None


if _program() in ("sparsesnn", "sparsesnn.cli") and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _stop)
