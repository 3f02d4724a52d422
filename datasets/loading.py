"""Data sets by name: which there are, what parameters each takes, and loading them."""

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

#: modules by the names that `load` knows; each has `SPLITS`, `Options`, `RECIPE`, `LICENSE`, `CITATION` and
#: `load(split=, options=, data_dir=, cache_dir=, download=, n_workers=)`, of which sets without files read the first two
_MODULES = {
    "digits": "digits",
    "dvsgesture": "dvs_gesture",
    "events": "events",
    "nmnist": "nmnist",
    "shd": "shd",
    "ssc": "ssc",
    "synthetic": "synthetic",
}
NAMES = tuple(_MODULES)
#: those that read no files
BUILT_IN = ("digits", "synthetic")


def split_names(name: str) -> tuple[str, ...]:
    """The parts that a data set comes in, such as ("train", "test")."""
    return tuple(_module(name).SPLITS)


def defaults(name: str) -> Mapping[str, Any]:
    """The parameters that a data set takes, with the values it has when none are given."""
    return MappingProxyType({key: known.default for key, known in options(name).items()})


def options(name: str) -> Mapping[str, Option]:
    """The same parameters with what each means and which values it allows."""
    return options_of(_module(name).Options)


def recipe(name: str) -> Mapping[str, Mapping[str, Any]]:
    """The sections of a configuration in which training on this data set differs from the defaults."""
    return MappingProxyType(_module(name).RECIPE)


def about(name: str) -> str:
    """What the data set is, how its units are numbered, its license and citation: the text of its module."""
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
        data_dir: folder of the files; None for `BUILT_IN` sets, which read none.
        cache_dir: where converted sets are kept; None means $SPARSESNN_CACHE or ~/.cache/sparsesnn.
        download: let Tonic fetch files that are missing.
        n_workers: processes that convert what is not in the cache; None: as many as pay.
        runs_code: False refuses a `data_dir` FILE.py:FUNCTION, which runs code; for one that was read from a file.
        parameters: those of `options(name)`; None means the default.

    Raises:
        ConfigError: a name, split, parameter or value that does not exist.
        CodeError: `data_dir` is code that may not run.
        DataError: files that are missing, damaged or in another format.
        MissingDependencyError: the package that reads this set is not installed.
    """
    module = _module(name)
    if split not in module.SPLITS:
        raise ConfigError(f"load: {name} has no split {split!r}; allowed: {', '.join(module.SPLITS)}")
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
    if name != "events":  # whose samples and clock are known, and looked at
        _warn_of_window(name, loaded)
    return loaded


def _warn_of_window(name: str, loaded: EventSet) -> None:
    """Warns, whether or not the set comes from the cache, if all events are lost, or lie in the first step."""
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
        f"{name}: {wrong} of {count(loaded.n_steps, 'step')} of {loaded.dt_us} us. Give another data.dt_ms or data.n_steps{more}",
        UserWarning,
        stacklevel=3,
    )


def absolute_place(place: str | Path) -> str:
    """`place` with the absolute path if it is FILE.py:FUNCTION, so that no other folder can give it another meaning."""
    function = _module("events").function_of(place)
    return str(place) if function is None else f"{function[0]}:{function[1]}"


def _module(name: str) -> ModuleType:
    if name not in NAMES:
        raise ConfigError(f"datasets: {unknown('data set', name, NAMES)}")
    return importlib.import_module(f"sparsesnn.datasets.{_MODULES[name]}")
