"""Runs a user's script on a rank: `python -m sparsesnn.launch.script FILE …`, or `-m MODULE …`.

Uses mpi4py's runner: an exception on one rank ends all, which would otherwise wait for its messages in MPI's finalization.
In addition, when the script imports mpi4py.MPI, MPI's number of ranks is compared with the launcher's.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

from sparsesnn.errors import ConfigError
from sparsesnn.host.comm.mpi import check_count


class CheckedImport(MetaPathFinder):
    """Finds mpi4py.MPI as usual, and checks it once it is loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "mpi4py.MPI":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None:
            spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
        return spec


class _Loader:
    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def exec_module(self, module: Any) -> None:
        self.loader.exec_module(module)
        try:
            check_count(module, os.environ)
        except ConfigError as error:
            print(f"sparsesnn: error: {error}", file=sys.stderr, flush=True)
            sys.exit(2)


def main() -> None:
    from mpi4py import run

    sys.meta_path.insert(0, CheckedImport())
    run.main()


if __name__ == "__main__":
    main()
