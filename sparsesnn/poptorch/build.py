"""Builds the PopART ops with the Poplar SDK: `python -m sparsesnn.poptorch.build`.

It calls the SDK's compilers on the sources of this project: popc for the codelets, g++ for the library. Needs a source
tree (the sources of the ops are not part of the wheel) and an SDK whose enable.sh files for Poplar and PopART have been
sourced. Runs under Python 3.8.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import List  # noqa: UP035

from sparsesnn.errors import ConfigError
from sparsesnn.poptorch.library import CODELETS, LIBRARY, default_folder

#: PopART is built with ONNX in this namespace
DEFINITIONS = ("-DONNX_NAMESPACE=onnx", "-DSPARSESNN_POPLAR_SDK")


def commands(source: Path, folder: Path) -> List[List[str]]:  # noqa: UP006
    """The two command lines: codelets, then library."""
    codelets = sorted(str(p) for p in (source / "codelets" / "ipu").glob("*.cpp"))
    ops = sorted(str(p) for p in (source / "host" / "src" / "popart").glob("*.cpp"))
    builder = sorted(str(p) for p in (source / "host" / "src" / "ipu").glob("*.cpp") if "_module" not in p.name)
    if not codelets or not ops:
        raise ConfigError(
            f"sparsesnn.poptorch.build: {source} has no codelets/ipu and host/src/popart; give --source, the root of "
            "a source tree of sparsesnn"
        )
    target = "--target=ipu2,ipu21,cpu"
    return [
        ["popc", "-O3", target, "-I", str(source), *codelets, "-o", str(folder / CODELETS)],
        [
            *("g++", "-std=c++17", "-O2", "-fPIC", "-shared", "-ffp-contract=off", *DEFINITIONS, "-I", str(source)),
            *(*ops, *builder, "-o", str(folder / LIBRARY), "-lpopart", "-lpoplar", "-lpopops", "-lgcl"),
        ],
    ]


def build(source: Path, folder: Path) -> None:
    """Runs the commands; their output is moved into place once both have succeeded.

    Errors: `ConfigError` if a compiler is missing or fails.
    """
    for tool in ("popc", "g++"):
        if shutil.which(tool) is None:
            raise ConfigError(f"sparsesnn.poptorch.build: no {tool} on PATH; source the Poplar SDK's enable.sh first")
    new = folder.with_name(f"{folder.name}.{os.getpid()}.new")
    new.mkdir(parents=True)
    try:
        for command in commands(source, new):
            print(" ".join(command))
            if subprocess.run(command, check=False).returncode:
                raise ConfigError(f"sparsesnn.poptorch.build: {command[0]} failed, see above")
        folder.mkdir(parents=True, exist_ok=True)
        for name in (LIBRARY, CODELETS):
            (new / name).replace(folder / name)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sparsesnn.poptorch.build", description=__doc__)
    root = Path(__file__).resolve().parents[2]
    parser.add_argument(
        "--source", type=Path, default=root, help="root of a source tree (default: the one of this file)"
    )
    parser.add_argument(
        "--folder", type=Path, default=default_folder(), help="destination of the build (default: %(default)s)"
    )
    options = parser.parse_args()
    try:
        build(options.source, options.folder)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"built {options.folder / LIBRARY}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
