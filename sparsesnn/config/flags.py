"""Command line flags of a configuration: one for each option, `--section.key`, and short ones declared by options."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from sparsesnn.config.run import Config, all_options
from sparsesnn.config.tables import flatten, from_text, merge, nested, read_assignment
from sparsesnn.errors import ConfigError


def add_flags(parser: argparse.ArgumentParser, sections: tuple[str, ...] = ()) -> None:
    """Adds a flag for every option; the help lists the short ones.

    Args:
        sections: only these; empty: all.
    """
    if sections == ("data",):
        where, flag, key = "the section [data]", "--data.n_steps 50", "data.pool=2"
    else:
        where, flag, key = "--print-config", "--optim.clip_norm 1", "net.surrogate.slope=25"
    group = parser.add_argument_group(
        "configuration",
        f"Every option of {where} is a flag, such as {flag}; give keys of nested tables with --set. These options also have short flags:",
    )
    for name, known in all_options().items():
        if sections and name.partition(".")[0] not in sections:
            continue
        help, flags = known.meaning.replace("%", "%%"), [f"--{known.flag}"] if known.flag else []
        if flags and known.type is bool:
            help = f"do not {help}" if known.default else help
            text = "false" if known.default else "true"
            group.add_argument(*flags, dest=name, action="store_const", const=text, help=help)
            flags = []
        shown = help if flags else argparse.SUPPRESS  # without former names
        if known.former:
            flags.append(f"--{name.partition('.')[0]}.{known.former}")
        group.add_argument(*flags, f"--{name}", dest=name, metavar=known.metavar or None, help=shown)
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help=f"any option, such as {key}",
    )


def resolve(options: argparse.Namespace, *layers: Mapping[str, Any]) -> Config:
    """The configuration from some tables, with the command line on top; only the latter may give FILE.py:FUNCTION as data."""
    table = given(options)
    config = Config.resolve(*layers, table)
    place = table.get("data", {}).get("dir")
    return config if place is None else config.with_data_dir(place)


def given(options: argparse.Namespace) -> dict[str, Any]:
    """The table of the options given on the command line."""
    known, table = all_options(), dict[str, Any]()
    for name, text in vars(options).items():
        if name in known and text is not None:
            table = merge(table, nested(name.split("."), from_text(text, known[name])))
    by_flag = flatten(table)
    for text in options.set:
        assigned = read_assignment(text)
        if twice := [name for name in flatten(assigned) if name in by_flag]:
            raise ConfigError(
                f"--set {text}: {twice[0]} is given by a flag as well, as {by_flag[twice[0]]!r}; remove one of them"
            )
        table = merge(table, assigned)
    return table
