"""Neuron models by name, letter and options, and populations as plain data.

Files hold a model's name. `find_model` finds it among ours, the classes that this process has defined, and those of installed
packages, which register theirs in pyproject.toml:

    [project.entry-points."sparsesnn.neurons"]
    ALIF = "my_package.neurons:ALIF"
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, fields
from importlib import metadata
from pathlib import Path
from typing import Any, Union

from sparsesnn.errors import DescriptionError, UnknownModelError
from sparsesnn.layers import MODELS, Input, Neuron
from sparsesnn.layers.neuron import DEFINED, is_abstract
from sparsesnn.options import Option, options_of
from sparsesnn.subclasses import as_described
from sparsesnn.surrogate import Surrogate
from sparsesnn.wording import meant, unknown

AnyPopulation = Union[Input, Neuron]  # noqa: UP007  evaluated under Python 3.8 by sparsesnn.poptorch
GROUP = "sparsesnn.neurons"


def firing_models() -> dict[str, type[Neuron]]:
    """Our models that fire, by name."""
    return {name: model for name, model in MODELS.items() if issubclass(model, Neuron) and model.fires}


def neuron_options() -> dict[str, Option]:
    """The arguments of all spiking models, by name; shared names mean the same in all of them."""
    return {name: known for model in firing_models().values() for name, known in options_of(model).items()}


def model_letters() -> str:
    """Explains the letters for neuron models in a network's text."""
    return ", ".join(
        f"{letter}: {model.letter[1]} ({model.__name__})" for letter, model in by_letter().items() if letter
    )


def by_letter() -> dict[str, type[Neuron]]:
    models: dict[str, type[Neuron]] = {}
    for model in firing_models().values():
        models.setdefault(model.letter[0], model)
    return models


# ---- models by name ----------------------------------------------------------------------------------------------------


def find_model(name: Any) -> type[Any]:
    """The class of the model called `name`: ours, the newest that this process has defined, or one of an installed package.

    Errors: `DescriptionError` for an unknown name, or for a package whose class cannot be imported.
    """
    if name in MODELS:
        return MODELS[name]
    if name in DEFINED:
        return DEFINED[name]
    for point in _entry_points():
        if point.name == name:
            return _load(point)
    known, firing = [*MODELS, *DEFINED], firing_models()
    others = [model for model in MODELS if model not in firing and model != "Input"]
    raise UnknownModelError(
        f"is {name!r}; {meant(name, known)}allowed: {', '.join(firing)}; as a readout {', '.join(others)}; Input; your own class is found once its file is loaded: give "
        f"--neuron FILE.py:{name}, or in Python import it first"
    )


def _entry_points() -> list[Any]:
    """Those of installed packages; not of packages in the current folder, which `python -m` searches first: it may hold untrusted files."""
    found: Any = metadata.entry_points()
    points = found.select(group=GROUP) if hasattr(found, "select") else found.get(GROUP, ())  # Python 3.8, 3.9: a dict
    is_here = bool(sys.path) and Path(sys.path[0] or ".").absolute() == Path.cwd()
    return [p for p in points if not (is_here and _folder(p) == Path.cwd())]


def _folder(point: Any) -> Path | None:
    package = getattr(point, "dist", None)
    return None if package is None else Path(str(package.locate_file(""))).absolute()


def _load(point: Any) -> type[Any]:
    try:
        model = point.load()
    except Exception as error:  # whatever the package raises
        raise DescriptionError(
            f"is {point.name!r}, the entry point {point.value}, which cannot be loaded: {type(error).__name__}: {error}; repair or remove "
            "that package"
        ) from error
    check_model(model, f"is {point.name!r}, the entry point {point.value}, which")
    return model  # type: ignore[no-any-return]


def check_model(model: Any, what: str) -> None:
    """`DescriptionError`, which begins with `what`, if an object is not the class of a neuron model."""
    if not isinstance(model, type) or not issubclass(model, Neuron):
        raise DescriptionError(f"{what} is not a class that extends sparsesnn.Neuron")
    if is_abstract(model):
        raise DescriptionError(f"{what} is a base class, without arrays")


def define(model: Any, what: str = "") -> None:
    """Makes a class the one that is found by its name. Errors: `DescriptionError`, which begins with `what`, if it is not a model."""
    check_model(model, what or f"{model!r}")
    if model.__name__ in MODELS and MODELS[model.__name__] is not model:
        raise DescriptionError(f"{what or model.__name__} has the name of one of ours; give the class another name")
    DEFINED[model.__name__] = model


def own_model(population: Any) -> type[Any] | None:
    """The class that defines the arrays (or the nonlinear step) of a population whose model is none of ours; else None."""
    for cls in type(population).__mro__:
        if cls in MODELS.values():
            return None
        if issubclass(cls, Neuron) and "arrays" in vars(cls) and not is_abstract(cls):
            return cls
    return None


def described(population: AnyPopulation, where: str) -> AnyPopulation:
    """A population in the form that engines run, see `as_described`. Errors: `DescriptionError`, which begins with `where`."""
    own = own_model(population)
    if own is not None and own.__name__ in MODELS:
        raise DescriptionError(
            f"{where} is of your own class {own.__name__}, which has the name of one of ours; give the class another name"
        )
    known = [*MODELS.values(), *([] if own is None else [own])]
    result: AnyPopulation = as_described(population, known, where, "neuron model")
    return result


# ---- populations as plain data -----------------------------------------------------------------------------------------


def population_to_dict(population: AnyPopulation) -> dict[str, Any]:
    """Numbers, strings, lists and dicts; infinity is the string "inf"."""
    left_out = ["shape", "channels_first"] if getattr(population, "shape", 0) is None else ["recurrent"]
    if not getattr(population, "currents", True):
        left_out.append("currents")
    model = type(population).__name__
    arguments = {k: _plain(v, f"{model}: {k}") for k, v in asdict(population).items() if k not in left_out}
    return {"model": model, **arguments}


def _plain(value: Any, where: str) -> Any:
    if isinstance(value, (tuple, list)):
        return [_plain(v, where) for v in value]
    if isinstance(value, Mapping):
        return {key: _plain(v, where) for key, v in value.items()}
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value is not None and not isinstance(value, (bool, int, float, str)):
        raise DescriptionError(
            f"{where} is {value!r}, which a file cannot hold; allowed: numbers, texts, true and false, lists and tables of them"
        )
    return value


def population_from_dict(name: str, data: Mapping[str, Any]) -> AnyPopulation:
    """The inverse of `population_to_dict`; `name` is for messages. Errors: `DescriptionError`."""
    if not isinstance(data, Mapping):
        raise DescriptionError(f"population {name!r} is {data!r}; give an object with 'model' and its arguments")
    arguments = dict(data)
    model = arguments.pop("model", None)
    try:
        found = find_model(model if isinstance(model, str) else None)
    except DescriptionError as error:
        if not isinstance(model, str):
            raise DescriptionError(f"population {name!r}: model is {model!r}; allowed: {', '.join(MODELS)}") from None
        raise type(error)(f"population {name!r}: model {error}") from None
    allowed = {f.name for f in fields(found) if f.init}
    if others := set(arguments) - allowed:
        raise DescriptionError(f"population {name!r} ({model}): {unknown('argument', min(others), sorted(allowed))}")
    for key, value in arguments.items():
        if key == "surrogate" and isinstance(value, Mapping):
            try:
                arguments[key] = Surrogate(**value)
            except TypeError as error:
                raise DescriptionError(f"population {name!r}: surrogate: {error}") from None
        elif value in ("inf", "-inf"):
            arguments[key] = float(value)
        elif isinstance(value, list):
            arguments[key] = tuple(float(v) if v in ("inf", "-inf") else v for v in value)
    try:
        population: AnyPopulation = found(**arguments)
    except TypeError as error:
        raise DescriptionError(f"population {name!r} ({model}): {error}") from None
    return population
