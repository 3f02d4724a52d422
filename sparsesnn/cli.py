"""The command line: `sparsesnn train`, `sparsesnn eval`, `sparsesnn bench`, `sparsesnn info`.

Exit codes: 0 done, 1 an error, 2 a wrong option or configuration, 128 + signal when stopped (130 for Ctrl-C).
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparsesnn.errors import ConfigError, DescriptionError, SparseSnnError

TRAIN_EXAMPLES = """\
examples:
  sparsesnn train digits                                    needs no download; about a minute
  sparsesnn train shd --data ~/data --net 700-256r-20       one recurrent hidden layer of 256 neurons
  sparsesnn train --config configs/digits.toml --out runs/a a recipe from a file
  sparsesnn train digits --set optim.lr=2e-3 --set net.surrogate.slope=25
  sparsesnn train digits --print-config > mine.toml         all options, to edit; train --config mine.toml runs it
  sparsesnn train --resume --out runs/a                     go on after Ctrl-C, a crash or a power cut, bit for bit
  sparsesnn train digits --seeds 0,1,2 --out runs/three     mean and spread

precedence: defaults of the data set < --config < options here.
net text: sizes joined by '-'; r after a size: recurrent, c: current-based neurons (CubaLIF); the last size is the
  readout, with s a spiking one; 'auto' as first or last size is that of the data.
the run folder (--out) holds: result.json, metrics.jsonl, config.toml, curves.png, activity.png, raster.png,
  checkpoint.json with its .safetensors files, tensorboard/.
the epoch is chosen on the validation part alone; the test part is looked at once, at the end."""

EVAL_EXAMPLES = """\
examples:
  sparsesnn eval runs/a                      test accuracy of the epoch that validation chose
  sparsesnn eval runs/a --weights last --split valid --json"""


BENCH_EXAMPLES = """\
examples:
  sparsesnn bench step
  sparsesnn bench step --net 700-1024r-20 --backend dense --json"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 2
    try:
        with warnings.catch_warnings():  # puts back how warnings are shown, which the next line changes
            warnings.showwarning = _warn  # type: ignore[assignment]
            return int(options.run(options))
    except (ConfigError, DescriptionError) as error:
        return _fail(error, 2)
    except SparseSnnError as error:
        # a run stopped by a signal carries its number
        number = getattr(error, "signal", 0)
        return _fail(error, 128 + number if number else 1, kind="" if number else "error: ")
    except KeyboardInterrupt:
        return _fail("stopped by Ctrl-C", 130, kind="")
    except BrokenPipeError:  # the reader of our output, such as head, has gone
        sys.stderr.close()
        return 1


def _warn(message: Warning | str, *_: Any) -> None:
    """A warning in one line, without the file and line of the source that a user of the command cannot change."""
    print(f"sparsesnn: warning: {message}", file=sys.stderr)


def _fail(message: object, code: int, kind: str = "error: ") -> int:
    print(f"sparsesnn: {kind}{message}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sparsesnn",
        description="Trains spiking neural networks at a cost proportional to the spikes that happen.",
        epilog="sparsesnn COMMAND --help explains a command, with examples.",
    )
    parser.add_argument("--version", action=_Version, help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_train(commands)
    _add_eval(commands)
    _add_bench(commands)
    _add_info(commands)
    return parser


class _Version(argparse.Action):
    """Prints the version; the package is imported only then, so that --help answers at once."""

    def __init__(self, option_strings: Sequence[str], dest: str, **more: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **more)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from sparsesnn import __version__

        print(f"sparsesnn {__version__}")
        parser.exit()


# ---- train -----------------------------------------------------------------------------------------------------


def _add_train(commands: Any) -> None:
    parser = commands.add_parser(
        "train",
        help="train a network on a data set",
        description="Trains a network and leaves everything about it in a run folder.",
        epilog=TRAIN_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_train)
    parser.add_argument("dataset", nargs="?", metavar="DATASET", help="digits, shd, ssc or synthetic")
    what = parser.add_argument_group("what to train")
    what.add_argument("--config", type=Path, metavar="FILE", help="TOML file; see --print-config")
    what.add_argument("--data", metavar="DIR", help="folder of the data set's files")
    what.add_argument("--download", action="store_true", default=None, help="fetch files that are missing")
    what.add_argument("--net", metavar="TEXT", help="the network, such as 700-256r-20")
    what.add_argument(
        "--valid",
        metavar="HOW",
        help="validation part, taken from the training part: speakers:4,5 (held-out speakers), random:0.1, own, none",
    )
    how = parser.add_argument_group("how")
    how.add_argument("--backend", metavar="NAME", help="cpu (event-sparse engine) or dense (PyTorch baseline)")
    how.add_argument("--epochs", type=int, metavar="N", help="passes through the training part")
    how.add_argument("--batch", type=int, metavar="N", help="samples per step")
    how.add_argument("--lr", type=float, metavar="RATE", help="learning rate")
    how.add_argument("--seed", type=int, metavar="N", help="of initial weights, order and augmentation")
    how.add_argument("--seeds", metavar="0,1,2", help="several runs, in OUT/seed-0 …, and OUT/summary.json")
    how.add_argument("--threads", type=int, metavar="N", help="worker threads; 0: all cores")
    how.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any other option, such as optim.clip_norm=1"
    )
    run = parser.add_argument_group("the run")
    run.add_argument("--out", type=Path, metavar="DIR", help="run folder (default: runs/DATASET-DATE-TIME)")
    run.add_argument(
        "--resume", action="store_true", help="go on from the checkpoint in --out; starts anew if there is none"
    )
    run.add_argument("--print-config", action="store_true", help="print the whole configuration as TOML and exit")
    run.add_argument("--no-tensorboard", action="store_true", help="write no TensorBoard files")
    run.add_argument("--no-plots", action="store_true", help="draw no pictures")
    run.add_argument("--quiet", action="store_true", help="print errors only")


def _train(options: argparse.Namespace) -> int:
    from sparsesnn.train import Report, train

    config = _resolve(options)
    if options.print_config:
        print(config.to_toml(), end="")
        return 0
    if options.resume and options.out is None:
        raise ConfigError("--resume: which run? give its folder with --out DIR")
    report = Report(quiet=options.quiet)
    if options.seeds is None:
        train(config, out=options.out, resume=options.resume, report=report)
    else:
        _train_seeds(config, options, report)
    return 0


def _resolve(options: argparse.Namespace) -> Any:
    """Configuration file, then command line; a resumed run without either takes its own configuration."""
    from sparsesnn.train import Config
    from sparsesnn.train.schema import merge, read_assignment

    flags = {
        ("data", "name"): options.dataset,
        ("data", "dir"): options.data,
        ("data", "download"): options.download,
        ("data", "valid"): options.valid,
        ("net", "text"): options.net,
        ("optim", "lr"): options.lr,
        ("train", "backend"): options.backend,
        ("train", "epochs"): options.epochs,
        ("train", "batch"): options.batch,
        ("train", "seed"): options.seed,
        ("train", "threads"): options.threads,
        ("train", "tensorboard"): False if options.no_tensorboard else None,
        ("train", "plots"): False if options.no_plots else None,
    }
    given: dict[str, Any] = {}
    for (section, key), value in flags.items():
        if value is not None:
            given.setdefault(section, {})[key] = value
    for text in options.set:
        given = merge(given, read_assignment(text))
    layers = [_read_config(options.config)] if options.config is not None else []
    if not layers and options.dataset is None:
        if not options.resume:
            raise ConfigError("train: which data set? give digits, shd, ssc or synthetic, or --config FILE")
        layers = [_config_of_run(options.out)]
    return Config.resolve(*layers, given)


def _read_config(path: Path) -> dict[str, Any]:
    from sparsesnn.train.schema import read_toml

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config: {path} cannot be read: {error}") from None
    return read_toml(text, str(path))


def _config_of_run(folder: Path | None) -> dict[str, Any]:
    from sparsesnn.train.checkpoint import CheckpointStore
    from sparsesnn.train.loop import CONFIG

    if folder is None:
        raise ConfigError("--resume: which run? give its folder with --out DIR")
    for place in (folder, *sorted(folder.glob("seed-*"))):
        store = CheckpointStore(place)
        if store.exists():
            return store.read().config
        if (place / CONFIG).exists():
            return _read_config(place / CONFIG)
    raise ConfigError(f"--resume: {folder} holds no run; name a data set or --config FILE to start one there")


def _train_seeds(config: Any, options: argparse.Namespace, report: Any) -> None:
    """One run per seed, and the mean and the spread of their accuracies."""
    from sparsesnn.train import train
    from sparsesnn.train.loop import default_folder
    from sparsesnn.train.summary import write_summary

    try:
        seeds = [int(seed) for seed in options.seeds.split(",")]
    except ValueError:
        raise ConfigError(
            f"--seeds: is {options.seeds!r}; give whole numbers joined by commas, such as 0,1,2"
        ) from None
    if len(set(seeds)) != len(seeds):
        raise ConfigError(f"--seeds: {options.seeds} names a seed twice; give each once")
    if options.seed is not None:
        raise ConfigError("--seed and --seeds: give one of them")
    out = options.out if options.out is not None else default_folder(config)
    results = [
        train(
            config.with_values({"train": {"seed": seed}}),
            out=out / f"seed-{seed}",
            resume=options.resume,
            report=report,
        )
        for seed in seeds
    ]
    for line in write_summary(out, seeds, results):
        report.note(line)


# ---- eval ------------------------------------------------------------------------------------------------------


def _add_eval(commands: Any) -> None:
    parser = commands.add_parser(
        "eval",
        help="measure a trained network",
        description="Runs a trained network over one part of its data set.",
        epilog=EVAL_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_eval)
    parser.add_argument("checkpoint", type=Path, metavar="RUN", help="a run folder, or the checkpoint.json in it")
    parser.add_argument("--data", metavar="DIR", help="folder of the data set's files (default: as in training)")
    parser.add_argument("--split", choices=("test", "valid", "train"), default="test", help="default: test")
    parser.add_argument(
        "--weights", choices=("best", "last"), default="best", help="best: those that validation chose (default)"
    )
    parser.add_argument("--backend", metavar="NAME", help="cpu or dense (default: as in training)")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="worker threads; 0: all cores")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _eval(options: argparse.Namespace) -> int:
    from sparsesnn.train.evaluation import evaluate_run
    from sparsesnn.train.report import percent

    result = evaluate_run(
        options.checkpoint,
        data_dir=options.data,
        split=options.split,
        weights=options.weights,
        backend=options.backend,
        threads=options.threads,
    )
    if options.json:
        print(json.dumps(result, allow_nan=False))
        return 0
    of = f"{result['n_samples']:,} samples, after epoch {result['epoch']}"
    print(f"{options.split} accuracy {percent(result['accuracy'])} of {of}")
    print(f"loss {result['loss']:.4f}, {result['samples_per_s']:,.0f} samples/s")
    for name, activity in result["activity"].items():
        print(f"{name}: activity {activity:.4f}, dropped {result['dropped'][name]:,}")
    return 0


# ---- bench -----------------------------------------------------------------------------------------------------


def _add_bench(commands: Any) -> None:
    parser = commands.add_parser("bench", help="measure speed and memory", description="Benchmarks on this machine.")
    what = parser.add_subparsers(dest="bench", metavar="WHAT", required=True)
    step = what.add_parser(
        "step",
        help="one training step",
        description="Times forward, backward and Adam of one batch, and says where the time goes.",
        epilog=BENCH_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    step.set_defaults(run=_bench_step)
    step.add_argument("--net", default="700-1024-1024-20", metavar="TEXT", help="the network (default: %(default)s)")
    step.add_argument("--steps", type=int, default=100, metavar="T", help="time steps (default: %(default)s)")
    step.add_argument("--batch", type=int, default=48, metavar="B", help="samples (default: %(default)s)")
    activity = "spikes per neuron and step (default: %(default)s)"
    step.add_argument("--input-activity", type=float, default=0.015, metavar="A", help=activity)
    step.add_argument(
        "--hidden-activity", type=float, default=0.02, metavar="A", help=activity + ", by scaling weights"
    )
    step.add_argument("--backend", default="cpu", choices=("cpu", "dense"), help="default: %(default)s")
    step.add_argument("--threads", type=int, default=0, metavar="N", help="worker threads; 0: all cores")
    step.add_argument("--repeats", type=int, default=15, metavar="N", help="timed steps (default: %(default)s)")
    step.add_argument("--json", action="store_true", help="print JSON")


def _bench_step(options: argparse.Namespace) -> int:
    from sparsesnn.bench import Workload, bench_step
    from sparsesnn.train.prepare import set_threads

    set_threads(options.threads)
    workload = Workload(
        net=options.net,
        n_steps=options.steps,
        n_samples=options.batch,
        input_activity=options.input_activity,
        hidden_activity=options.hidden_activity,
    )
    result = bench_step(workload, options.backend, repeats=options.repeats)
    print(json.dumps(result.to_dict(), allow_nan=False) if options.json else result.table())
    return 0


# ---- info ------------------------------------------------------------------------------------------------------


def _add_info(commands: Any) -> None:
    parser = commands.add_parser(
        "info",
        help="say how this copy was built and what it runs on",
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


if __name__ == "__main__":
    sys.exit(main())
