"""The command line of the studies: `./dev bench sweep --help`."""

from __future__ import annotations

import sys

from sparsesnn.cli import Parser, main
from studies import convergence_options, loading_options, roofline_options, sweep_options


def parser() -> Parser:
    """The parser with a command for each study."""
    made = Parser(prog="./dev bench", description="Studies of sparsesnn itself; they take minutes to hours.")
    commands = made.add_subparsers(dest="command", metavar="STUDY")
    convergence_options.register(commands)
    sweep_options.register(commands)
    loading_options.register(commands)
    roofline_options.register(commands)
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], parser()))
