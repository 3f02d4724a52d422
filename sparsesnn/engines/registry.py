"""The available engines: built-in ones, and those of installed packages. Each is imported on first use.

A package registers its engine in pyproject.toml; the class extends `sparsesnn.engines.base.Engine`:

    [project.entry-points."sparsesnn.engines"]
    mine = "my_package.engine:MyEngine"
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Mapping
from dataclasses import field, make_dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsesnn import wording
from sparsesnn.errors import ConfigError, DescriptionError
from sparsesnn.options import Option, options_of

if TYPE_CHECKING:
    from sparsesnn.engines.base import Engine
    from sparsesnn.engines.runner import Runner
    from sparsesnn.host.comm import Grid
    from sparsesnn.network import Network

GROUP = "sparsesnn.engines"
#: the built-in engines by name; not read from the installed metadata, which may be missing or older than the sources
OURS = {
    "cpu": "sparsesnn.engines.cpu.engine:CpuEngine",
    "gpu": "sparsesnn.engines.gpu.engine:GpuEngine",
    "dense": "sparsesnn.engines.dense.engine:DenseEngine",
    "ipu-model": "sparsesnn.engines.ipu.engine:IpuEngine",
    "ipu": "sparsesnn.engines.ipu.engine:IpuEngine",
}
#: the class that runs an engine's networks on several ranks, if the engine does not do so itself
OVER_RANKS = {"cpu": "sparsesnn.engines.ranks.engine:RanksEngine"}


@functools.cache
def _offered() -> Mapping[str, EntryPoint]:
    found = {name: EntryPoint(name, place, GROUP) for name, place in OURS.items()}
    for point in entry_points(group=GROUP):
        if is_installed(point):
            found.setdefault(point.name, point)
    return found


def is_installed(point: EntryPoint) -> bool:
    """False for packages in the current folder, which `python -m` searches first: it may hold untrusted files."""
    if point.dist is None or not sys.path or Path(sys.path[0] or ".").absolute() != Path.cwd():
        return True
    return Path(str(point.dist.locate_file(""))).absolute() != Path.cwd()


def names() -> tuple[str, ...]:
    """The names of all engines, built-in ones first."""
    return tuple(_offered())


@functools.cache
def engine_class(name: str) -> type[Engine]:
    """The class of the engine called `name`, on one rank.

    Errors: `ConfigError` for an unknown name, or for another package's engine that cannot be imported.
    """
    if name not in _offered():
        raise ConfigError(f"backend: is {name!r}; allowed: {', '.join(names())}")
    point = _offered()[name]
    if name in OURS:
        return _load(point)
    try:
        kind = _load(point)
        options_of(kind.Options)
    except Exception as error:  # whatever the package raises
        package = f" of {point.dist.name}" if point.dist else ""
        raise ConfigError(
            f"backend: {name!r}, the entry point {point.value}{package}, cannot be loaded: {type(error).__name__}: {error}; repair or "
            "remove that package"
        ) from error
    return kind


def class_over_ranks(name: str) -> type[Engine]:
    """The class of the engine called `name`, on several ranks."""
    return _load(EntryPoint(name, OVER_RANKS[name], GROUP)) if name in OVER_RANKS else engine_class(name)


def _load(point: EntryPoint) -> type[Engine]:
    kind: type[Engine] = point.load()
    return kind


@functools.cache
def classes() -> Mapping[str, type[Engine]]:
    """All engines that can be imported, by name; warns about the others."""
    found = {}
    for name in names():
        try:
            found[name] = engine_class(name)
        except ConfigError as error:
            warnings.warn(str(error), stacklevel=2)
    return found


# ---- options -------------------------------------------------------------------------------------------------------


@functools.cache
def options() -> Mapping[str, Option]:
    """The options of all engines, by name; an option that several share has the choices of all of them."""
    found: dict[str, Option] = {}
    for kind in classes().values():
        for name, known in options_of(kind.Options).items():
            first = found.setdefault(name, known)
            choices = tuple(dict.fromkeys([*first.texts, *known.texts])) if first.texts and known.texts else ()
            found[name] = replace(first, choices=choices)
    return found


@functools.cache
def options_class() -> Any:
    """A frozen dataclass with the options of all engines."""
    made = []
    for name, known in options().items():
        default: Any = (
            {"default_factory": type(known.default)} if callable(known.default) else {"default": known.default}
        )
        made.append((name, known.type, field(metadata={"option": known}, **default)))
    return make_dataclass("EngineOptions", made, frozen=True)


def takes(name: str, option: str, value: Any) -> bool:
    """Whether an engine accepts this value of an option; a default is always accepted."""
    known = options_of(engine_class(name).Options).get(option)
    if known is None:
        return bool(value == _elsewhere(option).default)
    return not known.texts or value in known.texts


def _elsewhere(option: str) -> Option:
    """An option of any engine; looks in the built-in ones first, to avoid importing others needlessly."""
    for name in OURS:
        if known := options_of(engine_class(name).Options).get(option):
            return known
    if option not in options():
        raise ConfigError(wording.unknown("option of an engine", option, options()))
    return options()[option]


def check_options(
    name: str,
    given: Mapping[str, Any],
    place: str = "{}:",
    error: type[Exception] = ConfigError,
    of_layers: bool = False,
) -> None:
    """Refuses an option that the engine does not read, or a value that no engine accepts.

    Args:
        place: prefix of the message, with {} for the option's name, such as "train.{}:".
        error: the exception class to raise.
        of_layers: name only engines that run layers for `Model` and `Layer` in the message.
    """
    for option, value in given.items():
        if takes(name, option, value):
            continue
        others = runners() if of_layers else classes()
        readers = [other for other in others if takes(other, option, value)]
        if not readers:
            of_all = [options_of(other.Options).get(option) for other in others.values()]
            texts = [text for known in of_all if known for text in known.texts]
            values = dict.fromkeys([options()[option].default, *texts])
            raise error(f"{place.format(option)} is {value!r}; allowed: {', '.join(map(str, values))}")
        raise error(
            f"{place.format(option)} is {value!r} with backend {name!r}; "
            f"only backend {' or '.join(map(repr, readers))} reads it; remove it, or change the backend"
        )


def options_for(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The given options, without those that the engine does not read."""
    known = options_of(engine_class(name).Options)
    return {option: value for option, value in given.items() if option in known and takes(name, option, value)}


def unused_options(name: str) -> set[str]:
    """Options of other packages' engines that this engine does not read: files with these options require those packages."""
    used = {option for other in (*OURS, name) for option in options_of(engine_class(other).Options)}
    return set(options()) - used


# ---- runners -------------------------------------------------------------------------------------------------------


def runners() -> Mapping[str, type[Engine]]:
    """The engines that run layers for `Model` and `Layer`, by name."""
    return {name: kind for name, kind in classes().items() if kind.runner is not None}


def make_runner(
    name: str, given: Mapping[str, Any], network: Network | None = None, grid: Grid | None = None
) -> Runner:
    """Makes the runner of a `Model` or a `Layer`.

    Args:
        given: options of engines; those that this engine does not read must have their defaults.
        network, grid: see `Runner`.

    Errors: `DescriptionError` for an engine that is unknown or has no runner, and for options that it does not read.
    """
    if name not in names() or engine_class(name).runner is None:
        hint = ""
        if name in ("cuda", "mps"):
            hint = f"; {name} is a device: give backend='dense', then model.to({name!r})"
            hint += "; or backend='gpu'" if name == "cuda" else ""
        raise DescriptionError(f"backend is {name!r}; allowed: {', '.join(runners())}{hint}")
    if grid is not None and name not in OVER_RANKS:
        raise DescriptionError(f"Model: backend is {name!r} on a grid of ranks; allowed: {', '.join(OVER_RANKS)}")
    check_options(name, given, "{}", DescriptionError, of_layers=True)
    kind = engine_class(name) if grid is None else class_over_ranks(name)
    assert kind.runner is not None
    return kind.runner(name, kind.Options(**options_for(name, given)), network, grid)
