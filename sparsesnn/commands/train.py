"""`sparsesnn train`: train a network on a data set."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsesnn.commands.ranks import run_on_ranks
from sparsesnn.errors import ConfigError

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
  sparsesnn train --resume --out runs/a                     go on after Ctrl-C, a crash or a power cut, bit for bit
  sparsesnn train digits --seeds 0,1,2 --out runs/three     mean and spread
  sparsesnn train digits --backend ipu-model --set parallel.replicas=2      two copies, on two emulated IPUs, share a batch
  mpirun -n 2 sparsesnn train digits                        two ranks, each with half of every batch: the same numbers
  mpirun -n 4 sparsesnn train digits --set parallel.shards=2    2 replicas, each over 2 ranks that share its neurons

precedence: defaults of the data set < --config < options here.
net text: sizes joined by '-'; r after a size: recurrent, c: current-based neurons (CubaLIF); the last size is the
  readout, with s a spiking one; 'auto' as first or last size is that of the data.
the run folder (--out) holds: result.json, metrics.jsonl, config.toml, curves.png, activity.png, raster.png,
  checkpoint.json with its .safetensors files, tensorboard/.
the epoch is chosen on the validation part alone; the test part is looked at once, at the end."""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "train",
        help="train a network on a data set",
        description="Trains a network and leaves everything about it in a run folder.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_train)
    parser.add_argument(
        "dataset", nargs="?", metavar="DATASET", help="digits, dvsgesture, nmnist, shd, ssc or synthetic"
    )
    what = parser.add_argument_group("what to train")
    what.add_argument("--config", type=Path, metavar="FILE", help="TOML file; see --print-config")
    what.add_argument("--data", metavar="DIR", help="folder of the data set's files")
    what.add_argument("--download", action="store_true", default=None, help="fetch files that are missing")
    what.add_argument("--net", metavar="TEXT", help="the network, such as 700-256r-20")
    what.add_argument(
        "--valid",
        metavar="HOW",
        help="validation part, taken from the training part: speakers:0,1 (held-out speakers), random:0.1, own, none",
    )
    how = parser.add_argument_group("how")
    how.add_argument(
        "--backend", metavar="NAME", help="cpu (event-sparse engine), dense (PyTorch baseline), ipu-model or ipu"
    )
    how.add_argument(
        "--dense-mode", metavar="MODE", help="how 'dense' computes: step, hoist, fused, compile, or auto (the fastest)"
    )
    how.add_argument("--device", metavar="NAME", help="of 'dense': cpu, cuda, cuda:0, …")
    how.add_argument("--precision", metavar="P", help="of the products of 'dense': float32, bfloat16")
    how.add_argument("--target", metavar="MACHINE", help="of the IPU backends: ipu-mk2, ipu-mk2:1x64 (IPUs × tiles), …")
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
        "--resume",
        nargs="?",
        const="yes",
        metavar="auto",
        help="go on from the checkpoint in --out; starts anew if there is none. With 'auto' the command line may stay the "
        "same each time a scheduler starts it: the first time, again after a fault, and once more when all is done",
    )
    run.add_argument("--print-config", action="store_true", help="print the whole configuration as TOML and exit")
    run.add_argument("--no-tensorboard", action="store_true", help="write no TensorBoard files")
    run.add_argument("--no-plots", action="store_true", help="draw no pictures")
    run.add_argument("--quiet", action="store_true", help="print errors only")


def _train(options: argparse.Namespace) -> int:
    if options.resume not in (None, "yes", "auto"):  # --resume digits: what follows is the data set
        if options.dataset is not None:
            raise ConfigError(f"--resume: is {options.resume!r}; allowed: auto, or nothing")
        options.dataset, options.resume = options.resume, "yes"
    if options.print_config:
        print(_resolve(options).to_toml(), end="")
        return 0
    return run_on_ranks(lambda world: _train_on(options, world))


def _train_on(options: argparse.Namespace, world: Communicator | None) -> int:
    """On one rank of `world`; None: the only one."""
    from sparsesnn.train import Report, train

    config = _resolve(options)
    if options.resume and options.out is None:
        raise ConfigError("--resume: which run? give its folder with --out DIR")
    report = Report(quiet=options.quiet or (world is not None and world.rank > 0))
    if options.seeds is None:
        train(config, out=options.out, resume=bool(options.resume), report=report, world=world)
    else:
        _train_seeds(config, options, report, world)
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
        ("train", "target"): options.target,
        ("train", "dense_mode"): options.dense_mode,
        ("train", "device"): options.device,
        ("train", "precision"): options.precision,
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
    layers = [read_config(options.config)] if options.config is not None else []
    if not layers and options.dataset is None:
        if not options.resume:
            raise ConfigError(
                "train: which data set? give digits, dvsgesture, nmnist, shd, ssc or synthetic, or --config FILE"
            )
        layers = [_config_of_run(options.out)]
    return Config.resolve(*layers, given)


def read_config(path: Path) -> dict[str, Any]:
    from sparsesnn.train.schema import read_toml

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"--config: {path} cannot be read: {reason}; give a TOML file") from None
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
            return read_config(place / CONFIG)
    raise ConfigError(f"--resume: {folder} holds no run; name a data set or --config FILE to start one there")


def _train_seeds(config: Any, options: argparse.Namespace, report: Any, world: Communicator | None) -> None:
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
    if world is not None:
        out = Path(world.all_texts(str(out))[0])
    results = [
        train(
            config.with_values({"train": {"seed": seed}}),
            out=out / f"seed-{seed}",
            resume=bool(options.resume),
            report=report,
            world=world,
        )
        for seed in seeds
    ]
    if world is not None and world.rank:
        return
    for line in write_summary(out, seeds, results):
        report.note(line)
