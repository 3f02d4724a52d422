"""The flags --neuron, which loads a neuron model from a user's file, and --net-neuron, which uses one in a network's text."""

from __future__ import annotations

import argparse
from typing import Any

from sparsesnn.errors import ConfigError, DescriptionError


class _Load(argparse.Action):
    """Runs the file while the command line is read, so that configurations find the class by its name."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, place: Any, *_: Any) -> None:
        from sparsesnn.layers.own_file import load_model

        try:
            load_model(place)
        except DescriptionError as error:
            raise ConfigError(f"--neuron {error}") from error
        setattr(namespace, self.dest, [*(getattr(namespace, self.dest) or []), place])


def add_flag(parser: Any) -> None:
    """Adds --neuron to a parser or a group."""
    parser.add_argument(
        "--neuron",
        action=_Load,
        metavar="FILE.py:CLASS",
        help="your own neuron model: a Python file and a class in it, which networks then call CLASS; may be repeated. The file is run. "
        "Its path is not stored: repeat the option in every command that reads the run",
    )


def add_net_flag(parser: Any) -> None:
    """Adds --neuron, and --net-neuron for commands with --net that read no configuration."""
    add_flag(parser)
    parser.add_argument(
        "--net-neuron",
        metavar="CLASS",
        help="the class of hidden populations without a letter in --net (default: LIF)",
    )
