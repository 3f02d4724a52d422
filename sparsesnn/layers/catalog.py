"""The neuron models of `MODELS` by their letters and options, and populations as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Union

from sparsesnn.errors import DescriptionError
from sparsesnn.layers import LI, MODELS, Input, Population
from sparsesnn.options import Option, options_of
from sparsesnn.subclasses import as_described
from sparsesnn.surrogate import Surrogate
from sparsesnn.wording import unknown

AnyPopulation = Union[Input, LI, Population]  # noqa: UP007  evaluated under Python 3.8 by sparsesnn.poptorch


def neuron_options() -> dict[str, Option]:
    """The arguments of all spiking models, by name; shared names mean the same in all of them."""
    models = [model for model in MODELS.values() if issubclass(model, Population)]
    return {name: known for model in models for name, known in options_of(model).items()}


def model_letters() -> str:
    """Explains the letters for neuron models in a network's text."""
    return ", ".join(
        f"{letter}: {model.letter[1]} ({model.__name__})" for letter, model in by_letter().items() if letter
    )


def by_letter() -> dict[str, type[Population]]:
    models: dict[str, type[Population]] = {}
    for model in MODELS.values():
        if issubclass(model, Population):
            models.setdefault(model.letter[0], model)
    return models


def described(population: AnyPopulation, where: str) -> AnyPopulation:
    """A population in the form that engines run, see `as_described`. Errors: `DescriptionError`, which begins with `where`."""
    result: AnyPopulation = as_described(population, MODELS.values(), where, "neuron model")
    return result


def population_to_dict(population: AnyPopulation) -> dict[str, Any]:
    """Numbers, strings, lists and dicts; infinity is the string "inf"."""
    left_out = ("shape", "channels_first") if getattr(population, "shape", 0) is None else ("recurrent",)
    arguments = {k: _plain(v) for k, v in asdict(population).items() if k not in left_out}
    return {"model": type(population).__name__, **arguments}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value


def population_from_dict(name: str, data: Mapping[str, Any]) -> AnyPopulation:
    """The inverse of `population_to_dict`; `name` is for messages. Errors: `DescriptionError`."""
    if not isinstance(data, Mapping):
        raise DescriptionError(f"population {name!r} is {data!r}; give an object with 'model' and its arguments")
    arguments = dict(data)
    model = arguments.pop("model", None)
    if not isinstance(model, str) or model not in MODELS:
        raise DescriptionError(f"population {name!r}: model is {model!r}; allowed: {', '.join(MODELS)}")
    allowed = {f.name for f in fields(MODELS[model])}
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
        population: AnyPopulation = MODELS[model](**arguments)
    except TypeError as error:
        raise DescriptionError(f"population {name!r} ({model}): {error}") from None
    return population
