"""`sparsesnn info`: the build of this copy and its machine."""

from __future__ import annotations

import argparse
import json
from typing import Any


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "info",
        help="print how this copy was built and what it runs on",
        description="Prints version, compiler, instruction sets built and chosen, and threads: add it to a bug report.",
    )
    parser.set_defaults(run=_info)
    parser.add_argument("--json", action="store_true", help="print JSON")


def _info(options: argparse.Namespace) -> int:
    from sparsesnn import build_info

    info = build_info()
    if options.json:
        print(json.dumps(info, default=str))
        return 0
    width = max(map(len, info))
    for key, value in info.items():
        print(f"{key:<{width}}  {', '.join(map(str, value)) if isinstance(value, (list, tuple)) else value}")
    return 0
