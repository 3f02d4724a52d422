"""`sparsesnn train`: train a network on a data set."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsesnn.commands import neuron_files
from sparsesnn.errors import CodeError, ConfigError
from sparsesnn.host.comm.on_ranks import run_on_ranks
from sparsesnn.utf8 import print_file, read_text, to_file

if TYPE_CHECKING:
    from sparsesnn.host.comm import Communicator

EXAMPLES = """\
examples:
  sparsesnn train digits                                    needs no download; less than a minute
  sparsesnn train shd --data ~/data --net 700-256r-20       one recurrent hidden layer of 256 neurons
  sparsesnn train --config configs/digits.toml --out runs/a a recipe from a file
  sparsesnn train nmnist --data ~/data --set data.stabilise=true
  sparsesnn train digits --set optim.lr=2e-3 --set net.surrogate.slope=25
  sparsesnn train digits --print-config > mine.toml         all options, to edit; train --config mine.toml runs it
  sparsesnn train --resume --out runs/a                     resume after Ctrl-C, a crash or a power cut, bit for bit
  sparsesnn train --resume --out runs/a --epochs 40         extend a finished run to 40 epochs in all
  sparsesnn train digits --init-from runs/a --out runs/b    start with the weights of another run
  sparsesnn train digits --quiet --json | jq .test_accuracy the result as one line of JSON, on standard output
  sparsesnn train digits --seeds 0,1,2 --out runs/three     mean and spread
  sparsesnn train digits --neuron alif.py:ALIF --net-neuron ALIF    hidden neurons of your own model, see docs/networks.md
  sparsesnn train digits --backend ipu-model --set parallel.replicas=2      two copies, on two emulated IPUs, share a batch
  sparsesnn train digits --backend dense --device cuda:0    full matrices, on the first GPU
  mpirun -n 2 sparsesnn train digits                        two processes (ranks), each with half of every batch: the same result
  mpirun -n 4 sparsesnn train digits --set parallel.shards=2    2 replicas, each over 2 ranks that share its neurons
  sparsesnn train digits --net auto-65536-auto --set parallel.shards=64 --comm dry-run:64
                          simulates one of 64 ranks on this machine: its memory, its messages and the time of a step

precedence: defaults of the data set < --config < options here.
the run folder (--out) gets: result.json, metrics.jsonl, config.toml, curves.png, activity.png, confusion.png, raster.png,
  checkpoint.json with its .safetensors files, tensorboard/.
the epoch is chosen on the validation part alone; the test part is evaluated once, at the end.
exit codes: 0 done, 1 an error, 2 a wrong option or configuration, 128 + signal when stopped (130 Ctrl-C, 143 SIGTERM),
  with a checkpoint to --resume from."""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "train",
        help="train a network on a data set",
        description="Trains a network and writes all results to a run folder.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_train)
    parser.fill = add_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from sparsesnn import datasets
    from sparsesnn.config.flags import add_flags

    parser.add_argument("dataset", nargs="?", metavar="DATASET", help=", ".join(datasets.NAMES))
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file; see --print-config")
    add_flags(parser)
    run = parser.add_argument_group("the run")
    neuron_files.add_flag(run)
    run.add_argument("--out", type=Path, metavar="DIR", help="run folder (default: runs/DATASET-DATE-TIME)")
    run.add_argument(
        "--seeds",
        metavar="0,1,2",
        help="one run per seed, in OUT/seed-0, OUT/seed-1, …; OUT/summary.json has mean and spread",
    )
    run.add_argument(
        "--resume",
        nargs="?",
        const="yes",
        metavar="auto",
        help="resume from the checkpoint in --out, or start if there is none; a finished run keeps its result. So a scheduler can "
        "repeat the same command line. 'auto' means the same",
    )
    run.add_argument(
        "--print-config",
        action="store_true",
        help="print the whole configuration as TOML, with every option explained, and exit",
    )
    run.add_argument(
        "--comm",
        metavar="dry-run:R",
        help="simulate one rank of R on this machine: a few steps, with the other ranks' messages made up from its own; prints "
        "its memory, its messages and the time of a step, and writes nothing",
    )
    run.add_argument(
        "--link",
        metavar="GB/S,US",
        help="for --comm: bandwidth of a rank in GB/s, and latency of a message in µs, such as 12.5,2; or the scaling.json of a series "
        "(default: the newest runs/*/scaling.json, else 12.5,2)",
    )
    run.add_argument(
        "--json", action="store_true", help="print the result (with --seeds: the summary) as one line of JSON"
    )
    run.add_argument("--quiet", action="store_true", help="print errors only")


def _train(options: argparse.Namespace) -> int:
    if options.resume not in (None, "yes", "auto"):  # --resume digits: the word is the data set
        if options.dataset is not None:
            raise ConfigError(f"--resume: is {options.resume!r}; allowed: auto, or nothing")
        options.dataset, options.resume = options.resume, "yes"
    if options.print_config:
        print_file(to_file(resolve(options).to_toml()))
        return 0
    if options.comm is not None:
        return _dry_run(options)
    if options.link is not None:
        raise ConfigError("--link: has no effect without --comm dry-run:R")

    def work(world: Communicator | None) -> int:
        try:
            return _train_on(options, world)
        except CodeError as error:  # one of several ranks prints its message before it ends
            raise error.with_command(options.words, on_ranks=world is not None) from None

    return run_on_ranks(work)


def _dry_run(options: argparse.Namespace) -> int:
    """Simulates one rank of many."""
    from sparsesnn.launch.links import given_links, measured_links
    from sparsesnn.partition.target import CPU
    from sparsesnn.train.dry_run import dry_run

    match = re.fullmatch(r"dry-run:([1-9][0-9]{0,5})", options.comm)
    if match is None or int(match[1]) < 2:
        raise ConfigError(f"--comm: is {options.comm!r}; give dry-run:R with R ranks, at least 2, such as dry-run:64")
    for name in ("out", "resume", "seeds"):
        if getattr(options, name) is not None:
            raise ConfigError(f"--comm {options.comm}: a dry run has no trained network to keep; leave out --{name}")
    if options.link is not None:
        links = given_links(options.link)
    else:
        measured = measured_links()
        links = CPU.links if measured is None else measured[0]
    result = dry_run(resolve(options), int(match[1]), links)
    print(json.dumps(asdict(result), allow_nan=False) if options.json else result.table())
    return 0


def _train_on(options: argparse.Namespace, world: Communicator | None) -> int:
    """Trains as one rank of `world`; None: as the only one."""
    from sparsesnn.train import Report, train

    config = resolve(options)
    if options.resume and options.out is None:
        raise ConfigError("--resume: the run is missing; give its folder with --out DIR")
    report = Report(quiet=options.quiet or (world is not None and world.rank > 0))
    if options.seeds is None:
        result = train(config, out=options.out, resume=bool(options.resume), report=report, world=world)
        if options.json and (world is None or world.rank == 0):
            print(json.dumps(asdict(result), allow_nan=False))
    else:
        _train_seeds(config, options, report, world)
    return 0


def resolve(options: argparse.Namespace) -> Any:
    """The configuration from file and command line; a resumed run without either uses its own configuration."""
    from sparsesnn import datasets
    from sparsesnn.config import flags

    named = {} if options.dataset is None else {"data": {"name": options.dataset}}
    layers = [read_config(options.config)] if options.config is not None else []
    if not layers and options.dataset is None:
        if not options.resume:
            raise ConfigError(
                f"train: the data set is missing; give one of {', '.join(datasets.NAMES)}, or --config FILE"
            )
        layers = [_config_of_run(options.out, options.seeds)]
    return flags.resolve(options, *layers, named)


def read_config(path: Path) -> dict[str, Any]:
    from sparsesnn.config.tables import read_toml

    return read_toml(read_text(path, "--config", "a TOML file"), str(path))


def _config_of_run(folder: Path | None, seeds: str | None) -> dict[str, Any]:
    from sparsesnn.regular_file import inside
    from sparsesnn.train.checkpoint import CheckpointStore
    from sparsesnn.train.folder import CONFIG

    if folder is None:
        raise ConfigError("--resume: the run is missing; give its folder with --out DIR")
    for place in (folder, *sorted(folder.glob("seed-*"))):
        if place != folder and not seeds:
            raise ConfigError(f"--resume: {folder} holds runs of several seeds; give them as well, --seeds 0,1,2")
        store = CheckpointStore(place)
        if store.exists():
            return store.read().config
        if inside(place, CONFIG).exists():
            return read_config(place / CONFIG)
    raise ConfigError(f"--resume: {folder} holds no run; name a data set or --config FILE to start one there")


def _train_seeds(config: Any, options: argparse.Namespace, report: Any, world: Communicator | None) -> None:
    """Trains one run per seed, and reports the mean and the spread of their accuracies."""
    from sparsesnn.train import train
    from sparsesnn.train.folder import default_folder
    from sparsesnn.train.summary import SUMMARY, write_summary

    try:
        seeds = [int(seed) for seed in options.seeds.split(",")]
    except ValueError:
        raise ConfigError(
            f"--seeds: is {options.seeds!r}; give whole numbers joined by commas, such as 0,1,2"
        ) from None
    if len(set(seeds)) != len(seeds):
        raise ConfigError(f"--seeds: {options.seeds} names a seed twice; give each once")
    if vars(options)["train.seed"] is not None:
        raise ConfigError("--seed and --seeds: give one of them")
    out = options.out if options.out is not None else default_folder(config)
    if world is not None:
        out = Path(world.all_texts(str(out))[0])
    configs = [config.with_values({"train": {"seed": seed}}) for seed in seeds]
    results = [
        train(
            of_seed,
            out=out / f"seed-{seed}",
            resume=bool(options.resume),
            report=report,
            world=world,
        )
        for seed, of_seed in zip(seeds, configs, strict=True)
    ]
    if world is not None and world.rank:
        return
    for line in write_summary(out, seeds, results):
        report.note(line)
    if options.json:
        print(json.dumps(json.loads((out / SUMMARY).read_text()), allow_nan=False))
