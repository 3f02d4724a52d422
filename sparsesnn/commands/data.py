"""`sparsesnn data`: describe and convert data sets, check and remove cached files, draw a sample."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsesnn.commands import data_check
from sparsesnn.errors import CacheError, ConfigError
from sparsesnn.wording import count, printable

if TYPE_CHECKING:
    from sparsesnn.config import Config
    from sparsesnn.datasets import EventSet
    from sparsesnn.datasets.cache import Entry

DESCRIPTION = """\
A data set is converted once, from raw events to spike lists, and kept in the event cache: one file for each data set,
split and choice of options. Training converts missing parts automatically; these commands convert ahead of time, and
maintain the cache, which is in $SPARSESNN_CACHE, or else in ~/.cache/sparsesnn."""

EXAMPLES = """\
examples:
  sparsesnn data info                                list cached files and their sizes
  sparsesnn data info nmnist                         describe N-MNIST: unit order, options, license, citation
  sparsesnn data build shd --data ~/data             convert the parts that 'sparsesnn train shd' needs
  sparsesnn data build nmnist --data ~/data --set data.pool=2 --workers 8
  sparsesnn data check events.npz                    summarize your own event file, with a picture
  sparsesnn data verify                              compare every file with its checksum
  sparsesnn data show dvsgesture --data ~/data --sample 3 --out wave.gif
  sparsesnn data show events.npz --sample 3
  sparsesnn data clear shd                           remove the cached files of SHD"""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "data",
        help="check your own data, convert data sets, maintain the event cache, draw samples",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_subparsers(dest="action", metavar="WHAT", required=True)

    info = what.add_parser(
        "info",
        help="describe a data set; list cached files",
        description="Describes a data set and its options, or lists the cached files; changes nothing.",
    )
    info.add_argument(
        "dataset", nargs="?", metavar="DATASET", help="describe this data set (default: list all cached files)"
    )
    info.add_argument("--json", action="store_true", help="print JSON")
    info.set_defaults(run=_info)

    build = what.add_parser(
        "build",
        help="convert a data set into the cache",
        description="Converts the parts that training with the same options reads; cached parts are kept.",
    )
    build.fill = _add_source
    build.add_argument("--split", metavar="NAME", help="only this part (default: all parts that training reads)")
    build.add_argument("--workers", type=int, metavar="N", help="processes (default: chosen by cores and size)")
    build.set_defaults(run=_build)

    verify = what.add_parser(
        "verify",
        help="compare cached files with their checksums",
        description="Compares every cached file with its checksum; ends with exit code 1 if a file is damaged.",
    )
    verify.add_argument("dataset", nargs="?", metavar="DATASET", help="only this data set")
    verify.set_defaults(run=_verify)

    clear = what.add_parser(
        "clear",
        help="remove cached files",
        description="Removes files of the cache, and nothing else; they can be made again from the data set's own files.",
    )
    clear.add_argument("dataset", nargs="?", metavar="DATASET", help="only this data set")
    clear.set_defaults(run=_clear)

    data_check.register(what)

    show = what.add_parser(
        "show",
        help="draw a sample",
        description="Draws the network's input: a raster for sound; for cameras frames, and an animation.",
    )
    show.fill = _add_source
    show.add_argument("--split", default="train", metavar="NAME", help="default: %(default)s")
    show.add_argument("--sample", type=int, default=0, metavar="N", help="number of the sample (default: %(default)s)")
    show.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="png, svg, pdf, or gif for the animation (default: DATASET-SPLIT-N.png, .gif)",
    )
    show.set_defaults(run=_show)

    for one in (info, verify, clear):
        one.add_argument(
            "--cache",
            default="",
            metavar="DIR",
            help="folder of the cache (default: $SPARSESNN_CACHE, else ~/.cache/sparsesnn)",
        )


def _add_source(parser: argparse.ArgumentParser) -> None:
    from sparsesnn.config.flags import add_flags

    parser.add_argument(
        "dataset",
        nargs="?",
        metavar="DATASET",
        help="name of the data set, or your own event file (.npz, .h5); may be left out with --config",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="take the options of a training configuration")
    add_flags(parser, ("data",))


# ---- the commands --------------------------------------------------------------------------------------------------


def _info(options: argparse.Namespace) -> int:
    from sparsesnn import datasets
    from sparsesnn.datasets import cache

    folder = _folder(options.cache)
    kept = cache.entries(folder, _known(options.dataset))
    if options.json:
        print(json.dumps({"folder": str(folder), "files": [_plain(entry) for entry in kept]}, allow_nan=False))
        return 0
    if options.dataset is not None:
        print(datasets.about(options.dataset))
        print(f"\nParts: {', '.join(datasets.split_names(options.dataset))}.")
        print("Options, with their defaults:")
        for name, known in datasets.options(options.dataset).items():
            print(f"  data.{name} = {json.dumps(known.default)}   {known.help}")
        print()
    size = sum(entry.n_bytes for entry in kept)
    print(f"{count(len(kept), 'cached file')}, {_megabytes(size)}, in {folder}")
    for entry in kept:
        print(printable(_line(entry), keep="\n"))
    return 0


def _build(options: argparse.Namespace) -> int:
    from sparsesnn import datasets
    from sparsesnn.datasets import cache
    from sparsesnn.train.prepare import own_parts

    data = _resolve(options).data
    splits = [options.split] if options.split else ["train"]
    before = {entry.path: entry.made_at for entry in cache.entries(_folder(data.cache_dir), data.name)}
    for split in splits:
        start = time.perf_counter()
        event_set = datasets.load(
            data.name,
            split=split,
            data_dir=data.dir or None,
            cache_dir=data.cache_dir or None,
            download=data.download,
            n_workers=options.workers,
            runs_code=data.runs_code,
            **data.options,
        )
        seconds = time.perf_counter() - start
        if options.split is None and split == "train":
            splits += own_parts(data, event_set)
        print(_summary(split, event_set))
        if event_set.path is None:
            print(f"  not cached: made again each time, in {seconds:.1f} s")
            continue
        stat = event_set.path.stat()
        made = before.get(event_set.path) != stat.st_mtime
        source = event_set.description.get("source", {}).get("size")
        share = f", {stat.st_size / source:.2f} of its source" if source else ""
        print(f"  {'made' if made else 'cached already'}, {seconds:.1f} s; {_megabytes(stat.st_size)}{share}")
        print(f"  {event_set.path}")
    return 0


def _verify(options: argparse.Namespace) -> int:
    from sparsesnn.datasets import cache

    folder = _folder(options.cache)
    kept = cache.entries(folder, _known(options.dataset))
    faults = 0
    for entry in kept:
        try:
            cache.verify(entry.path)
            print(f"whole    {entry.path.name}")
        except CacheError as error:
            faults += 1
            print(f"damaged  {entry.path.name}: {error}")
    if faults:
        raise CacheError(
            f"{folder}: {faults} of {len(kept)} cached files are damaged; remove them, and they will be made again when needed"
        )
    print(f"{count(len(kept), 'file')} in {folder}")
    return 0


def _clear(options: argparse.Namespace) -> int:
    from sparsesnn.datasets import cache

    folder = _folder(options.cache)
    removed = cache.clear(folder, _known(options.dataset))
    for entry in removed:
        print(f"removed  {entry.path.name}")
    size = sum(entry.n_bytes for entry in removed)
    print(f"{count(len(removed), 'file')}, {_megabytes(size)}, of {folder}")
    return 0


def _show(options: argparse.Namespace) -> int:
    from sparsesnn.datasets.labels import label_text
    from sparsesnn.train import plots
    from sparsesnn.train.prepare import load_split

    config = _resolve(options)
    event_set = load_split(config.data, options.split)
    if not 0 <= options.sample < len(event_set):
        raise ConfigError(
            f"--sample: is {options.sample}; the part {options.split!r} has {count(len(event_set), 'sample')}, 0 to "
            f"{len(event_set) - 1:,}"
        )
    stem = f"{config.data.name}-{options.split}-{options.sample}"
    kinds = ("png", "gif") if event_set.sensor else ("png",)
    title = f"{config.data.name}, {options.split} sample {options.sample}"
    for out in [options.out] if options.out else [Path(f"{stem}.{kind}") for kind in kinds]:
        more = ""
        try:
            if out.suffix.lower() != ".gif":
                plots.plot_sample(event_set, options.sample, out, title=title)
            elif event_set.sensor:
                slower = plots.animate_sample(event_set, options.sample, out)
                more = f", {slower:.3g} times slower than real time" if slower > 1.05 else ""
            else:
                raise ConfigError(
                    f"--out: is {out}; only data from a camera can be animated, not {config.data.name}; use .png, .svg or .pdf"
                )
        except OSError as error:
            raise ConfigError(f"--out: {out} cannot be written ({error.strerror}); give another file") from None
        print(printable(f"{title}: {label_text(event_set, options.sample)}, drawn to {out}{more}"))
    return 0


# ---- helpers -------------------------------------------------------------------------------------------------------


def _resolve(options: argparse.Namespace) -> Config:
    """The configuration of training with these options."""
    from sparsesnn.commands.train import read_config
    from sparsesnn.config.flags import resolve

    if options.dataset is None and options.config is None:
        raise ConfigError(f"data {options.action}: the data set is missing; name one, or give --config FILE")
    named = {} if options.dataset is None else {"data": {"name": options.dataset}}
    if options.dataset is not None and Path(options.dataset).suffix.lower() in (".npz", ".h5", ".hdf5"):
        named = {"data": {"name": "events", "dir": options.dataset}}
    return resolve(options, *([] if options.config is None else [read_config(options.config)]), named)


def _folder(given: str) -> Path:
    from sparsesnn.datasets import cache

    try:
        return Path(given).expanduser() if given else cache.default_dir()
    except RuntimeError:
        raise ConfigError("--cache: this user has no home folder; give --cache DIR or set SPARSESNN_CACHE") from None


def _known(name: str | None) -> str | None:
    from sparsesnn import datasets

    if name is not None:
        datasets.split_names(name)  # raises for an unknown name
    return name


def _plain(entry: Entry) -> dict[str, Any]:
    return {
        "file": entry.path.name,
        "name": entry.name,
        "split": entry.split,
        "n_bytes": entry.n_bytes,
        "made_at": entry.made_at,
        "n_samples": entry.n_samples,
        "n_steps": entry.n_steps,
        "n_spikes": entry.n_spikes,
        **(entry.numbers or {}),
        "description": entry.description,
        "fault": entry.fault,
    }


def _line(entry: Entry) -> str:
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.made_at))
    head = f"\n{entry.path.name}  {_megabytes(entry.n_bytes)}  {made}\n"
    if entry.fault is not None or entry.numbers is None or entry.description is None:
        return f"{head}  cannot be read: {entry.fault}"
    numbers = entry.numbers
    known = ("name", "split", "source", "classes", "license", "lights")
    chosen = [f"{key} {json.dumps(value)}" for key, value in entry.description.items() if key not in known]
    return (
        f"{head}  {count(entry.n_samples, 'sample')}, {count(entry.n_steps, 'step')}, "
        f"{count(numbers['n_neurons'], 'neuron')}, {count(entry.n_spikes, 'spike')}; "
        f"{count(numbers['n_lost'], 'event')} lost, {numbers['n_merged']:,} merged\n"
        f"  {', '.join(chosen)}"
    )


def _summary(split: str, event_set: EventSet) -> str:
    from sparsesnn.train.start import outputs_text

    return (
        f"{split}: {count(len(event_set), 'sample')}, {count(event_set.n_steps, 'step')}, "
        f"{count(event_set.n_neurons, 'neuron')}, {outputs_text(event_set)}, "
        f"activity {event_set.activity():.4f}\n"
        f"  {count(event_set.n_events, 'event')}: {count(event_set.ids.size, 'spike')}"
        + (f" that count {event_set.n_counted:,}" if event_set.values is not None else "")
        + f", {event_set.n_lost:,} lost, {event_set.n_merged:,} merged"
    )


def _megabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:,.1f} MB"
