"""`sparsesnn info`: the build of this copy and its machine."""

from __future__ import annotations

import argparse
import json
from typing import Any


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "info",
        help="print how this copy was built and what it runs on",
        description="Prints the versions, the compiler, the instruction sets and the number of threads; paste it into a bug report.",
    )
    parser.set_defaults(run=_info)
    parser.add_argument("--json", action="store_true", help="print JSON")


def versions() -> dict[str, str]:
    """Of Python and PyTorch, and the GPU that PyTorch sees."""
    import platform

    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none that PyTorch can use"
    return {"python": platform.python_version(), "pytorch": torch.__version__, "gpu": gpu}


def _info(options: argparse.Namespace) -> int:
    from sparsesnn import build_info

    info = {**versions(), **build_info()}
    if options.json:
        print(json.dumps(info, default=str))
        return 0
    width = max(map(len, info))
    for key, value in info.items():
        print(f"{key:<{width}}  {', '.join(map(str, value)) if isinstance(value, (list, tuple)) else value}")
    return 0
