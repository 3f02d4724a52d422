"""`./dev bench loading`: one epoch of loading, compared with Tonic and PyTorch."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsesnn.commands.measuring import add_parser
from sparsesnn.commands.train import read_config

if TYPE_CHECKING:
    from sparsesnn.network import Network

EXAMPLES = """\
examples:
  ./dev bench loading shd --data DIR
  ./dev bench loading nmnist --data DIR --rounds 5 --json
  ./dev bench loading --config configs/fsdd_cochlea.toml --data DIR     its time steps, network and augmentation

contestants: Tonic's data set with ToFrame and a DataLoader (tonic), the same from Tonic's DiskCachedDataset (disk
  cache), our stream of spike lists (stream), and our stream as dense frames (frames). Then a network is trained from
  the stream, to measure the share of the time it waits for batches.
DIR is the folder that holds Tonic's folder (SHD, SSC or NMNIST); parts of a set suffice. Needs: pip install
  'sparsesnn[data]'."""


def register(what: Any) -> None:
    text = (
        "one epoch of loading, compared with Tonic and PyTorch: "
        "Times an epoch of loading in every way, interleaved, and how long training waits."
    )
    flags = "threads"
    parser = add_parser(what, "loading", text, EXAMPLES, _loading, flags)
    parser.add_argument("dataset", nargs="?", metavar="DATASET", help="shd, ssc or nmnist")
    parser.add_argument("--data", required=True, metavar="DIR", help="folder of the data set's files")
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="a recipe: its data set, time steps, batch, network and augmentation",
    )
    parser.add_argument("--cache", metavar="DIR", help="folder of our cache (default: the usual one)")
    parser.add_argument("--batch", type=int, metavar="B", help="samples (default: 48, or that of --config)")
    parser.add_argument(
        "--workers", type=int, default=2, metavar="N", help="worker processes of the DataLoader (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="epochs of each (default: %(default)s)")
    parser.add_argument(
        "--hidden",
        metavar="TEXT",
        help="hidden layers to train (default: 1024-1024, or the network of --config); none: no training",
    )


def _loading(options: argparse.Namespace) -> int:
    from sparsesnn.config import Config, NetConfig
    from sparsesnn.engines import set_threads
    from sparsesnn.errors import ConfigError
    from studies.loading import bench_loading

    name, parameters, augment, batch = options.dataset, None, None, 48
    network: Callable[[int, int], Network] | None = NetConfig("auto-1024-1024-auto").network
    if options.config is not None:
        config = Config.resolve(read_config(options.config))
        if name not in (None, config.data.name):
            raise ConfigError(f"bench loading: {name!r} and a configuration of {config.data.name!r}; give one of them")
        name, parameters, augment = config.data.name, config.data.options, config.augment or None
        network = partial(config.net.network, dt_ms=config.data.options.get("dt_ms"))
        batch = config.train.batch
    if options.hidden is not None:
        network = None if options.hidden == "none" else NetConfig(f"auto-{options.hidden}-auto").network
    if name is None:
        raise ConfigError("bench loading: which data set? give shd, ssc or nmnist, or --config FILE")
    set_threads("cpu", options.threads)
    result = bench_loading(
        name,
        options.data,
        cache_dir=options.cache,
        parameters=parameters,
        batch=options.batch or batch,
        n_workers=options.workers,
        rounds=options.rounds,
        network=network,
        augment=augment,
    )
    print(json.dumps(result.to_dict(), allow_nan=False) if options.json else result.table())
    return 0
