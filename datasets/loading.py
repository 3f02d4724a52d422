"""Data sets by name: the list of sets, the parameters of each, and loading."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from sparsesnn.arguments import current_names
from sparsesnn.datasets.event_set import EventSet
from sparsesnn.errors import CodeError, ConfigError
from sparsesnn.event_times import MIN_EVENTS
from sparsesnn.options import Option, former_names, options_of
from sparsesnn.wording import count, unknown

#: modules by the names that `load` accepts; each has `SPLITS`, `Options`, `RECIPE`, `LICENSE`, `CITATION` and
#: `load(split=, options=, data_dir=, cache_dir=, download=, n_workers=)`; sets without files use only the first two
_MODULES = {
    "digits": "digits",
    "dvsgesture": "dvs_gesture",
    "events": "events",
    "mnist": "mnist",
    "nmnist": "nmnist",
    "qtdb": "qtdb",
    "shd": "shd",
    "ssc": "ssc",
    "synthetic": "synthetic",
    "yin_yang": "yin_yang",
}
NAMES = tuple(_MODULES)
#: sets that read no files
BUILT_IN = ("digits", "synthetic")


def split_names(name: str) -> tuple[str, ...]:
    """The parts of a data set, such as ("train", "test")."""
    return tuple(_module(name).SPLITS)


def defaults(name: str) -> Mapping[str, Any]:
    """The parameters of a data set and their defaults."""
    return MappingProxyType({key: known.default for key, known in options(name).items()})


def options(name: str) -> Mapping[str, Option]:
    """The same parameters with their meanings and allowed values."""
    return options_of(_module(name).Options)


def recipe(name: str) -> Mapping[str, Mapping[str, Any]]:
    """The settings, by section of a configuration, that differ from the defaults for training on this data set."""
    return MappingProxyType(_module(name).RECIPE)


def about(name: str) -> str:
    """The documentation of a data set's module: its contents and the numbering of its units, its license and citation."""
    module = _module(name)
    return "\n".join([(module.__doc__ or "").strip(), "", f"License: {module.LICENSE}.", f"Cite: {module.CITATION}."])


def load(
    name: str,
    *,
    split: str = "train",
    data_dir: str | Path | None = None,
    cache_dir: str | Path | None = None,
    download: bool = False,
    n_workers: int | None = None,
    runs_code: bool = True,
    **parameters: Any,
) -> EventSet:
    """One part of a data set as spike lists.

    Args:
        name: one of `NAMES`.
        split: one of `split_names(name)`.
        data_dir: folder of the files; for "events" a file, a folder or FILE.py:FUNCTION. None for "digits" and "synthetic",
            which read no files.
        cache_dir: folder for converted sets; None means $SPARSESNN_CACHE or ~/.cache/sparsesnn.
        download: let Tonic fetch missing files.
        n_workers: processes that convert a set missing from the cache; None: chosen by cores and size.
        runs_code: False refuses a `data_dir` FILE.py:FUNCTION, which runs code; for paths that come from a file.
        parameters: those of `options(name)`; None means the default.

    Raises:
        ConfigError: an unknown name, split or parameter, or an invalid value.
        CodeError: `data_dir` is code, and `runs_code` is False.
        DataError: files that are missing, damaged or in another format.
        MissingDependencyError: the package that reads this set is not installed.
    """
    module = _module(name)
    if split not in module.SPLITS:
        hint = "; for a validation part give data.valid = random:0.1 (--valid), which takes it from the training part"
        raise ConfigError(
            f"load: {name} has no split {split!r}; allowed: {', '.join(module.SPLITS)}{hint if split == 'valid' else ''}"
        )
    if data_dir is not None and name in BUILT_IN:
        others = ", ".join(other for other in NAMES if other not in BUILT_IN)
        raise ConfigError(
            f"data.dir: is {str(data_dir)!r}, but the data set {name} is built in and reads no files; leave --data out, or name the "
            f"data set of these files: {others}"
        )
    if not runs_code and name == "events" and data_dir is not None and module.function_of(Path(data_dir).expanduser()):
        raise CodeError(str(data_dir))
    known = options(name)
    parameters = current_names(parameters, former_names(known), f"load: {name}", warn=2)
    for key in parameters:
        if key not in known:
            raise ConfigError(f"load: {name}: {unknown('parameter', key, known)}")
    given = {key: value for key, value in parameters.items() if value is not None}
    chosen = {key: known[key].check(value, f"{name}: {{}}", ConfigError) for key, value in given.items()}
    loaded: EventSet = module.load(
        split=split,
        data_dir=None if data_dir is None else Path(data_dir).expanduser(),
        cache_dir=None if cache_dir is None else Path(cache_dir).expanduser(),
        download=download,
        n_workers=n_workers,
        options=module.Options(**chosen),
    )
    if name != "events":  # its recordings have their own checks
        _warn_of_window(name, loaded)
    return loaded


def _warn_of_window(name: str, loaded: EventSet) -> None:
    """Warns if all events are lost or lie in the first step, whether or not the set comes from the cache."""
    if loaded.n_events < MIN_EVENTS:
        return
    if loaded.n_lost == loaded.n_events:
        wrong = f"all {loaded.n_events:,} events lie outside the window"
    elif loaded.n_steps > 1 and 2 * loaded.n_merged > loaded.n_events and not loaded.n_spikes[:, 1:].any():
        wrong = f"all {loaded.ids.size:,} spikes lie in the first step of the window"
    else:
        return
    more = ", or data.start=first" if "start" in options(name) else ""
    warnings.warn(
        f"{name}: {wrong} of {count(loaded.n_steps, 'step')} of {loaded.dt_us} us. Change data.dt_ms or data.n_steps{more}",
        UserWarning,
        stacklevel=3,
    )


def absolute_place(place: str | Path) -> str:
    """`place` with an absolute path if it is FILE.py:FUNCTION, so that its meaning does not depend on the current folder."""
    function = _module("events").function_of(place)
    return str(place) if function is None else f"{function[0]}:{function[1]}"


def _module(name: str) -> ModuleType:
    if name not in NAMES:
        raise ConfigError(f"datasets: {unknown('data set', name, NAMES)}")
    return importlib.import_module(f"sparsesnn.datasets.{_MODULES[name]}")
