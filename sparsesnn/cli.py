"""The command line; its commands are the modules of `sparsesnn.commands`.

Exit codes: 0 done, 1 an error, 2 a wrong option or configuration, 128 + signal when stopped (130 for Ctrl-C).
"""

from __future__ import annotations

import argparse
import difflib
import io
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from sparsesnn import startup
from sparsesnn.commands import bench, data, evaluate, info, launch, nir, onnx, plan, quantize, save, show, train
from sparsesnn.errors import CodeError, ConfigError, DescriptionError, SparseSnnError
from sparsesnn.wording import meant, printable

#: characters kept in messages of several lines with names of files and classes
_KEPT = "\n\t"
#: our names of options that other libraries call otherwise
_USUAL = {"--learning-rate": "--lr", "--batch-size": "--batch", "--n-epochs": "--epochs"}


def main(arguments: Sequence[str] | None = None, parser: argparse.ArgumentParser | None = None) -> int:
    """Runs one command of this command line, or of `parser`; returns the exit code."""
    _escape_output()
    try:
        startup.end()
        return _run(parser or _parser(), arguments)
    except (ConfigError, DescriptionError) as error:
        return _fail(error, 2)
    except SparseSnnError as error:
        # the error of a run stopped by a signal has its number
        number = getattr(error, "signal", 0)
        return _fail(error, 128 + number if number else 1, kind="" if number else "error: ")
    except MemoryError as error:
        return _out_of_memory(str(error))
    except RuntimeError as error:
        if "alloc_cpu" not in str(error):  # PyTorch's error if memory runs out
            raise
        return _out_of_memory()
    except KeyboardInterrupt:
        return _fail("stopped by Ctrl-C", 130, kind="")
    except UnicodeEncodeError as error:
        if error.encoding.lower() == "utf-8":
            raise
        return _fail(
            f"{error.object!r}: file names are {error.encoding} here (LC_ALL, PYTHONUTF8); set LC_ALL=C.UTF-8 or PYTHONUTF8=1",
            1,
        )
    except BrokenPipeError:  # the reader of our output, such as head, has closed it
        sys.stderr.close()
        return 1
    except OSError as error:  # such as a full disk or missing permissions
        place = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, (str, bytes, os.PathLike)) else ""
        return _fail(f"{place}{error.strerror or error}", 1)


def _run(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    options, unknown = parser.parse_known_args(words)
    options.words = [parser.prog, *words]
    if unknown:
        print(printable(_unknown(parser, options, unknown[0])), file=sys.stderr)
        return 2
    if options.command is None:
        parser.print_help()
        return 2
    with warnings.catch_warnings():  # restores showwarning, which the next line replaces
        warnings.showwarning = _warn  # type: ignore[assignment]
        try:
            return int(options.run(options))
        except CodeError as error:
            return _fail(error.with_command(options.words), 2)


def _escape_output() -> None:
    """Makes standard output and error print characters missing in their encoding, and undecodable names, as \\u2026 or \\udce4."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _warn(message: Warning | str, *_: Any) -> None:
    """Prints a warning in one line, without the source file and line, which do not help the user of a command."""
    print(f"sparsesnn: warning: {printable(message, keep=_KEPT)}", file=sys.stderr)


def _out_of_memory(what: str = "") -> int:
    hint = "use less of it: smaller batches, fewer steps or neurons, fewer worker processes"
    return _fail(f"memory ran out{f' ({what})' if what else ''}; {hint}", 1)


def _fail(message: object, code: int, kind: str = "error: ") -> int:
    print(f"sparsesnn: {kind}{printable(message, keep=_KEPT)}", file=sys.stderr)
    return code


class Parser(argparse.ArgumentParser):
    """Adds arguments when it parses, so that a command's help does not import modules of other commands.

    Attributes:
        fill: adds the arguments; set by commands whose arguments come from other modules.
    """

    fill: Callable[[argparse.ArgumentParser], None] | None = None

    def error(self, message: str) -> NoReturn:
        """Ends with a message about the missing or unknown argument; without the list of all options."""
        for action in self._actions:
            name = action.metavar or action.dest
            if action.required and name in message.partition("are required: ")[2].split(", "):
                known = f"one of {', '.join(map(str, action.choices))}" if action.choices else action.help
                message = f"give {name}, {known}"
                break
        self.exit(2, f"{self.prog}: error: {message.removeprefix('argument ')}; `{self.prog} --help` explains it\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            text = f"is {str(value)!r}; {meant(value, known)}allowed: {', '.join(known)}"
            raise argparse.ArgumentError(action, text)

    def _get_value(self, action: argparse.Action, text: str) -> Any:
        try:
            return super()._get_value(action, text)
        except argparse.ArgumentError as error:
            kind = {int: "whole numbers", float: "numbers"}.get(action.type)  # type: ignore[call-overload]
            if kind is None:
                raise
            raise argparse.ArgumentError(action, f"is {text!r}; allowed: {kind}") from error

    def parse_known_args(self, *arguments: Any, **more: Any) -> Any:
        fill, self.fill = self.fill, None
        if fill is not None:
            fill(self)
        return super().parse_known_args(*arguments, **more)


def _parser() -> Parser:
    parser = Parser(
        prog="sparsesnn",
        description="Trains spiking neural networks with lists of spikes: the cost of synapses follows the number of spikes.",
        epilog="Start with: sparsesnn train digits. sparsesnn COMMAND --help explains a command; data, bench and nir have commands of their own.",
    )
    parser.add_argument("--version", action=_Version, help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for command in (
        train,
        evaluate,
        show,
        launch,
        data,
        bench,
        plan,
        save,
        nir,
        onnx,
        quantize,
        info,
    ):  # the order of --help
        command.register(commands)
    return parser


def _unknown(parser: argparse.ArgumentParser, options: argparse.Namespace, argument: str) -> str:
    """The message for an unknown argument: the command, and the option that was probably meant."""
    words, known = [parser.prog], list[str]()
    while True:
        known += parser._option_string_actions
        below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        chosen = [(name, action.choices[name]) for action in below if (name := getattr(options, action.dest, None))]
        if not chosen:
            break
        words.append(chosen[0][0])
        parser = chosen[0][1]
    command = " ".join(words)
    option = argument.partition("=")[0]
    usual = _USUAL.get(option.replace("_", "-"), option)
    close = difflib.get_close_matches(usual, known, n=1, cutoff=0.75) if option.startswith("-") else []
    meant = f"; did you mean {close[0]}?" if close else ";"
    if option.rpartition(".")[0] in known:  # a key of a table, which is an option
        meant = f"; give --set {option.removeprefix('--')}=VALUE;"
    return f"{command}: error: {argument!r} is unknown{meant} `{command} --help` lists its arguments"


class _Version(argparse.Action):
    """Prints the version; the package is imported only then, so that --help answers at once."""

    def __init__(self, option_strings: Sequence[str], dest: str, **more: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **more)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from sparsesnn import __version__

        print(f"sparsesnn {__version__}")
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
