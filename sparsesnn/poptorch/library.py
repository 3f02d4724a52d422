"""Finds and loads the library of PopART ops, and its codelets."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from sparsesnn.errors import ConfigError

#: names the folder of the library and the codelets, if it is not the default of `build`
FOLDER_VARIABLE = "SPARSESNN_POPTORCH_OPS"
LIBRARY, CODELETS = "libsparsesnn_popart.so", "ipu.gp"

_loaded: str | None = None


def default_folder() -> Path:
    """The output folder of `python -m sparsesnn.poptorch.build`."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "sparsesnn" / "poptorch"


def codelets() -> str:
    """Loads the ops on the first call (PopART then knows them); returns the path of their codelets.

    Errors: `ConfigError` if they have not been built.
    """
    global _loaded
    if _loaded is None:
        folder = Path(os.environ.get(FOLDER_VARIABLE) or default_folder())
        for name in (LIBRARY, CODELETS):
            if not (folder / name).is_file():
                raise ConfigError(
                    f"sparsesnn.poptorch: {folder} has no {name}; source the Poplar SDK's enable.sh and run "
                    f"python -m sparsesnn.poptorch.build, or set {FOLDER_VARIABLE} to the folder that has it"
                )
        ctypes.CDLL(str(folder / LIBRARY), mode=ctypes.RTLD_GLOBAL)
        _loaded = str(folder / CODELETS)
    return _loaded
