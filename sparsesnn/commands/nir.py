"""`sparsesnn nir`: exchange networks with other libraries, in NIR files."""

from __future__ import annotations

import argparse
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sparsesnn import surrogate
from sparsesnn.commands import neuron_files
from sparsesnn.errors import ConfigError, DescriptionError
from sparsesnn.surrogate import KINDS, Surrogate

EXAMPLES = """\
examples:
  sparsesnn nir export runs/a net.nir --dt 0.001             NIR's own equations, steps of 1 ms; neurons must reset to
                                                             zero (train --set net.reset=zero), or add --keep-reset
  sparsesnn nir export runs/a net.nir --target snntorch      for snntorch.import_nir.import_from_nir
  sparsesnn nir export runs/a net.nir --readout linear       the readout as weighted sums, which the reader integrates
  sparsesnn nir show net.nir                                 print the contents of a file
  sparsesnn nir show net.nir --source snntorch --reset subtract
  sparsesnn nir import net.nir weights.safetensors --source norse --network net.json
                                                             then: sparsesnn plan --network net.json

NIR holds time constants, not steps: name the library that will read a file (--target) or wrote it (--source);
docs/nir.md has a table of their conventions. Needs the package nir: pip install 'sparsesnn[nir]'."""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "nir",
        help="exchange networks with other libraries (NIR files)",
        description="Exchanges networks with snnTorch, Norse, SpikingJelly, Sinabs, Rockpool and Spyx through NIR.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=lambda _: parser.print_help() or 2)
    what = parser.add_subparsers(dest="what", metavar="WHAT")
    export = what.add_parser(
        "export", help="write a trained network as a NIR file", description="Writes a trained network as a NIR file."
    )
    export.set_defaults(run=_export)
    export.add_argument("checkpoint", type=Path, metavar="RUN", help="a run folder, or the checkpoint.json in it")
    export.add_argument("file", type=Path, metavar="FILE", help="file to write")
    neuron_files.add_flag(export)
    export.add_argument(
        "--target", default="nir", metavar="WHO", help="nir (default), snntorch, norse, spikingjelly, sinabs"
    )
    export.add_argument(
        "--dt",
        type=float,
        metavar="S",
        help="width of a step in the library that reads the file, in the unit of its time constants (default: that of --target; for nir "
        "the run's, in seconds, if its data has one)",
    )
    export.add_argument("--weights", choices=("best", "last"), default="best", help="default: best")
    export.add_argument(
        "--keep-reset", action="store_true", help="export the neurons even if the reader has no such reset"
    )
    export.add_argument(
        "--readout",
        metavar="HOW",
        help="form of an LI readout: li, membrane (a neuron that never fires), linear (weighted sums); default: li if the reader has it",
    )
    for name, run, text in (
        ("show", _show, "print the network that sparsesnn makes of a NIR file"),
        ("import", _import, "convert a NIR file to weights and network"),
    ):
        reader = what.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        reader.set_defaults(run=run)
        reader.add_argument("file", type=Path, metavar="FILE", help="a NIR file")
        if name == "import":
            reader.add_argument(
                "weights", type=Path, metavar="OUT", help="file to write: Model.state_dict() as safetensors"
            )
            reader.add_argument("--network", type=Path, metavar="OUT", help="file to write: the network as JSON")
        reader.add_argument(
            "--source",
            required=name == "import",
            metavar="WHO",
            help="snntorch, norse, spikingjelly, sinabs, …, nir"
            + ("; default: the file is not converted" if name == "show" else ""),
        )
        reader.add_argument("--dt", type=float, metavar="S", help="the step (default: the library's)")
        reader.add_argument("--reset", metavar="HOW", help="the neurons' reset at a spike: subtract, zero or none")
        reader.add_argument(
            "--no-reset-delay", action="store_true", help="the neurons had snnTorch's reset_delay=False"
        )
        reader.add_argument(
            "--surrogate",
            metavar="KIND[:SLOPE]",
            help=f"for training: {', '.join(KINDS)}; atan:2 is snnTorch's default (default: fast_sigmoid:10)",
        )
        reader.add_argument(
            "--grad-threshold",
            metavar="X",
            help="for training: neurons with v > X receive a gradient; exact, or --grad-threshold=-inf for all "
            "(default: 0.9 times each neuron's threshold)",
        )


@contextmanager
def _in_options() -> Iterator[None]:
    """Errors and warnings of `sparsesnn.nir` name its arguments, `target=nir`; here they name options, --target nir."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
    except DescriptionError as error:
        raise DescriptionError(_with_options(str(error))) from None
    finally:
        for warning in caught:
            warnings.warn(_with_options(str(warning.message)), warning.category, stacklevel=3)


def _with_options(text: str) -> str:
    """`target`, `target=nir`, `keep_reset=True`, `reset_delay=False` as options."""

    def option(match: re.Match[str]) -> str:
        name, value = match[1].replace("_", "-"), match[2]
        if value in ("True", "False"):
            return f"--{name}" if value == "True" else f"--no-{name}"
        return f"--{name}" if value is None else f"--{name} {value}"

    return re.sub(r"`(\w+)(?:=(\w+))?`", option, text)


def _export(options: argparse.Namespace) -> int:
    from sparsesnn.nir import to_nir, write
    from sparsesnn.train.evaluation import load_run

    saved = load_run(options.checkpoint, weights=options.weights)
    dt = options.dt
    if dt is None and options.target == "nir":
        dt = _step_of_run(options.checkpoint)
    with _in_options():
        graph = to_nir(
            saved.model, target=options.target, dt=dt, keep_reset=options.keep_reset, readout=options.readout
        )
    write(options.file, graph)
    print(f"{options.file}: {len(graph.nodes)} nodes, the weights after epoch {saved.epoch}, for {options.target}")
    return 0


def _step_of_run(checkpoint: Path) -> float | None:
    """Width of a step in seconds, if the run is finished and its data has one."""
    from sparsesnn.train.metrics import RESULT, Result

    folder = checkpoint if checkpoint.is_dir() else checkpoint.parent
    dt_ms = Result.read(folder).dt_ms if (folder / RESULT).exists() else None
    return None if dt_ms is None else dt_ms / 1e3


def _read(options: argparse.Namespace) -> Any:
    from sparsesnn.nir import from_nir

    with _in_options():
        return from_nir(
            options.file,
            source=options.source,
            dt=options.dt,
            reset=options.reset,
            reset_delay=not options.no_reset_delay,
            surrogate=None if options.surrogate is None else _surrogate(options.surrogate),
            grad_threshold=None if options.grad_threshold is None else _potential(options.grad_threshold),
        )


def _surrogate(text: str) -> Surrogate:
    """Parses `atan:2`, or `atan` with that kind's default slope."""
    kind, _, slope = text.partition(":")
    if kind not in KINDS:
        raise ConfigError(f"--surrogate: is {text!r}; allowed: {', '.join(KINDS)}, with a slope as in atan:2")
    try:
        return Surrogate(kind, float(slope)) if slope else getattr(surrogate, kind)()
    except (ValueError, DescriptionError):
        raise ConfigError(f"--surrogate: is {text!r}; give a slope above 0, as in atan:2") from None


def _potential(text: str) -> float | str:
    if text == "exact":
        return text
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"--grad-threshold: is {text!r}; allowed: numbers, -inf, exact") from None


def _show(options: argparse.Namespace) -> int:
    if options.source is None:
        return _show_nodes(options)
    network = _read(options).network
    for name, population in network.populations.items():
        incoming = ", ".join(c.pre + (f" (delay {c.delay})" if c.delay else "") for c in network.senders(name))
        values = {
            key: _short(getattr(population, key, None))
            for key in ("alpha", "beta", "threshold", "reset", "gain", "surrogate", "grad_threshold")
        }
        arguments = " ".join(f"{key}={value}" for key, value in values.items() if value is not None)
        loop = ", itself" if network.is_recurrent(name) else ""
        print(
            f"{name}: {type(population).__name__}({population.n}) {arguments}{f' <- {incoming}{loop}' if incoming else ''}"
        )
    print(f"{network.n_weights():,} weights")
    return 0


def _show_nodes(options: argparse.Namespace) -> int:
    """Prints the graph as it is in the file."""
    import numpy as np

    from sparsesnn.nir import read
    from sparsesnn.nir.graphs import flatten

    for option in ("dt", "reset", "surrogate", "grad_threshold"):
        if getattr(options, option) is not None:
            raise ConfigError(
                f"--{option.replace('_', '-')}: has an effect only with --source; name the library that wrote the file"
            )
    graph = flatten(read(options.file))
    for name, node in graph.nodes.items():
        values = []
        for key, value in vars(node).items():
            if not isinstance(value, np.ndarray) or not value.size or value.dtype.kind not in "if":
                continue
            low, high = float(value.min()), float(value.max())
            span = f"{low:.4g}" if low == high else f"{low:.4g}…{high:.4g}"
            values.append(f"{key}{list(value.shape)} {span}")
        before = ", ".join(graph.before.get(name, ()))
        print(f"{name}: {type(node).__name__} {', '.join(values)}".rstrip() + (f" <- {before}" if before else ""))
    print("give --source (the library that wrote it) to see the network that it becomes here")
    return 0


def _short(value: Any) -> str | None:
    if isinstance(value, Surrogate):
        return f"{value.kind}:{value.slope:g}"
    if isinstance(value, tuple):
        return f"{min(value):.4g}…{max(value):.4g}"
    return f"{value:.6g}" if isinstance(value, float) else value


def _import(options: argparse.Namespace) -> int:
    from safetensors.torch import save

    from sparsesnn.whole_file import write_atomically

    model = _read(options)
    files = [(options.weights, save({k: v.contiguous() for k, v in model.state_dict().items()}))]
    if options.network is not None:
        files.append((options.network, model.network.to_json().encode()))
    for path, data in files:
        try:
            write_atomically(path, data)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror}; give another path") from None
        print(path)
    return 0
