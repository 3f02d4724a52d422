"""The neurons of a population as the IPU program reads them: the entries of their arrays, and the formulas by which trained
parameters become entries, and gradients of entries those of parameters."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsesnn.layers import Neuron
from sparsesnn.layers.arrays import MAX_STATES, arrays_of
from sparsesnn.layers.declaration import THRESHOLD, fires, learnt, trained_entries
from sparsesnn.layers.recorded import Recording, entries_with_u
from sparsesnn.layers.shapes import shape_of

#: places of the values of a step, see `EntryTerm` in codelets/ipu/records.h
_BEFORE, _AFTER, _CURRENT, _ONE, _BY_THRESHOLD = 0, MAX_STATES, 2 * MAX_STATES, 2 * MAX_STATES + 1, MAX_STATES
_NO_FORMULA: tuple[list[float], list[Any], list[int]] = ([], [], [])
#: `training_fields` if no parameter is trained
NO_TRAINING = {"parameters": [], "terms": [], "entries_of_parameters": _NO_FORMULA, "d_parameters": _NO_FORMULA}


def neuron_entries(layer: Any) -> np.ndarray:
    """float32[rows, N]: the entries of a layer's neurons, from its parameters within their ranges, then θ_grad if they fire."""
    p = layer.population
    values = parameter_rows(layer)
    rows = _in_order(p, entries_with_u(arrays_of(p, values)), values)
    if fires(p):
        rows.append(layer.grad_threshold.detach().float().numpy())
    found: np.ndarray = np.stack([np.broadcast_to(np.asarray(row, np.float32), p.n) for row in rows])
    return found


def parameter_rows(layer: Any) -> dict[str, np.ndarray]:
    """The parameters of a layer's model by name, float32[N] each, within their ranges."""
    p = layer.population
    return {
        q.name: getattr(layer, q.name).detach().float().clamp(q.low, q.high).expand(p.n).numpy() for q in p.parameters
    }


def _in_order(population: Neuron, entries: Any, parameters: Any) -> list[Any]:
    """The entries of a population's shape in its order; those that the model lacks are 0."""
    shape = shape_of(population)
    more = {"order": float(shape.in_order), THRESHOLD.name: parameters.get(THRESHOLD.name, 0.0)}
    return [entries.get(name, more.get(name, 0.0)) for name in shape.entries]


def training_fields(layer: Any) -> dict[str, Any]:
    """The fields of the graph builder's population (host/src/ipu/spec.h) about trained parameters; empty if there are none.

    Errors: `DescriptionError` with the model's name if its arrays need more than + - × ÷.
    """
    p = layer.population
    names = learnt(p)
    if not names:
        return dict(NO_TRAINING)
    recording = Recording(p)
    parameters = list(recording.parameters.values())
    recording.entries[THRESHOLD.name] = recording.parameters.get(THRESHOLD.name, 0.0)
    needed = trained_entries(p)
    gradients = {name: recording.input(("gradient", name)) for name in needed}
    d_parameters = [recording.gradient(recording.parameters[name], gradients) for name in names]
    entries = _in_order(p, recording.entries, recording.parameters)
    return {
        "parameters": [
            (q.name, q.name in names, q.name in names and not getattr(layer, q.name).ndim, q.low, q.high)
            for q in p.parameters
        ],
        "terms": [_term(name, p.structure.sequential) for name in needed],
        "entries_of_parameters": tuple(recording.formula(entries, parameters)),
        "d_parameters": tuple(recording.formula(d_parameters, [*parameters, *gradients.values()])),
    }


def check_trained(population: Neuron) -> None:
    """Raises `DescriptionError` if the device cannot compute the arrays of a population from its trained parameters."""
    if learnt(population):
        Recording(population)


def _term(name: str, sequential: bool) -> tuple[int, int, int]:
    """Row of ∂L/∂z, value of the step, and whether it counts after a spike alone: of the gradient of an entry."""
    if name == THRESHOLD.name:
        return _BY_THRESHOLD, _ONE, 0
    kind, row = name[0], int(name[1])
    if kind in "AR":
        column = int(name[2])
        return row, (_AFTER if kind == "A" and sequential and column > row else _BEFORE) + column, int(kind == "R")
    return row, _CURRENT if kind == "B" else _ONE, int(kind == "u")
