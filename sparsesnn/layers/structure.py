"""The structure of a model's arrays: which entries exist, and which parameters they depend on, whatever their values.

This file must work in Python 3.8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Dict, Mapping, Sequence, Tuple  # noqa: UP035

import numpy as np

from sparsesnn.errors import DescriptionError
from sparsesnn.layers.arrays import MATRICES, MAX_STATES, arrays_of, is_one


@dataclass(frozen=True)
class Structure:
    """The structure of a population's arrays, which does not depend on the values of its parameters.

    Args:
        n_states: number of states S, 1 to 4.
        fires: whether its neurons fire.
        sequential: see `NeuronArrays`.
        entries: names of the entries that exist, such as "A01", "R00", "r0", "f1", "B0", "c0": A by rows, then R, r, f, B, c.
        ones: names of the entries of B that are literally 1.
        depends: for each parameter, in the model's order, the names of the entries that depend on it.
    """

    n_states: int
    fires: bool
    sequential: bool
    entries: Tuple[str, ...]  # noqa: UP006
    ones: Tuple[str, ...]  # noqa: UP006
    depends: Tuple[Tuple[str, Tuple[str, ...]], ...]  # noqa: UP006

    @property
    def step_entries(self) -> Tuple[str, ...]:  # noqa: UP006
        """The entries that a step and its adjoint read: u = r + f in place of r; of rows with f, r and f as well."""
        fed = {name[1:] for name in self.entries if name[0] == "f"}
        found: Dict[str, None] = {}  # noqa: UP006
        for name in self.entries:
            if name[0] in "rf":
                found[f"u{name[1:]}"] = None
            if name[0] != "r" or name[1:] in fed:
                found[name] = None
        return tuple(found)

    def reads(self, states: Sequence[str]) -> Mapping[str, Tuple[str, ...]]:  # noqa: UP006
        """By parameter, the values of every step, besides the first state, that its gradient reads: `states`; "i": the current."""
        found = {}
        for parameter, names in self.depends:
            columns = {int(name[2]) for name in names if name[0] in MATRICES}
            read = [state for k, state in enumerate(states) if k and k in columns]
            read += ["i"] if any(name[0] == "B" for name in names) else []
            if read:
                found[parameter] = tuple(read)
        return found

    @property
    def operations(self) -> Tuple[int, int]:  # noqa: UP006
        """Floating-point operations of a step and of its adjoint, for one neuron, beyond a decay of each state; a prediction.

        Free are a coefficient per state, one of the input current, and the reset of one state. A further coefficient costs a load, a
        multiplication and an addition, a further addend (r + f together, or c) a load and an addition. The adjoint also adds
        up f·λ for spikes.
        """
        names = set(self.entries)
        coefficients = sum(name[0] in "AB" for name in names) - len(self.ones) - self.n_states - 1
        jumps = [row for row in range(self.n_states) if {f"R{row}0", f"r{row}", f"f{row}"} & names]
        coefficients = max(0, coefficients) + sum(f"R{row}0" in names for row in jumps[1:])
        coefficients += sum(name[0] == "R" and name[2] != "0" for name in names)
        addends = sum(bool({f"r{row}", f"f{row}"} & names) for row in jumps[1:]) + sum(name[0] == "c" for name in names)
        step = 3 * coefficients + 2 * addends
        return step, step + 2 * sum(name[0] == "f" for name in names)


_N = 5
_SEED = 20


def structure_of(population: Any) -> Structure:
    """The structure of a population's arrays; cached.

    It is found by evaluating `arrays` in float64, for random parameters of 5 neurons within their ranges.

    Errors: `DescriptionError` where `arrays_of` raises it; for entries of a neuron that depend on other neurons' parameters or on its
    position; for a structure that depends on the parameters' values; for a reset that reads another state than the first,
    unless it is detached.
    """
    ours = {"n", "grad_threshold", *(q.name for q in population.parameters)}
    options = tuple((f.name, getattr(population, f.name)) for f in fields(population) if f.name not in ours)
    key = (type(population), tuple((q.low, q.high) for q in population.parameters), options)
    try:
        known = _KNOWN.get(key)
    except TypeError:  # an option of a user's class is a list or a table
        return _found(population)
    if known is None:
        if len(_KNOWN) > 4096:
            _KNOWN.clear()
        known = _KNOWN[key] = _found(population)
    return known


#: cache of `structure_of`
_KNOWN: Dict[Any, Structure] = {}  # noqa: UP006


def _found(population: Any) -> Structure:
    model, states = type(population).__name__, tuple(population.states)
    if not 1 <= len(states) <= MAX_STATES or len(set(states)) < len(states) or "i" in states:
        raise DescriptionError(
            f"{model}: states is {states!r}; give the names of 1 to {MAX_STATES} states, each once, and none called i"
        )
    random = np.random.default_rng(_SEED)
    p = {q.name: _draw(q, random) for q in population.parameters}
    with np.errstate(all="ignore"):
        arrays = arrays_of(population, p)
        entries = dict(arrays.entries())
        _check_neurons(population, p, entries, random)
        depends = []
        for q in population.parameters:
            moved = dict(arrays_of(population, {**p, q.name: _draw(q, random)}).entries())
            changed = tuple(name for name, x in entries.items() if not np.array_equal(x, moved[name], equal_nan=True))
            depends.append((q.name, changed))
    if not getattr(population, "detach_reset", True):
        for name in entries:
            if name[0] == "R" and name[2] != "0":
                raise DescriptionError(
                    f"{model}: R[{name[1]}][{name[2]}] makes the reset read the state {states[int(name[2])]!r}; with detach_reset=False it "
                    f"may read {states[0]!r} alone; give detach_reset=True, or leave the entry out"
                )
    ones = tuple(name for name, x in entries.items() if name[0] == "B" and is_one(x))
    return Structure(len(states), population.fires, arrays.sequential, tuple(entries), ones, tuple(depends))


def _range(q: Any) -> Tuple[float, float]:  # noqa: UP006
    """A parameter's range; an unbounded end is replaced by an arbitrary one."""
    low = q.low if math.isfinite(q.low) else (q.high - 2 if math.isfinite(q.high) else 0.3)
    return float(low), float(q.high if math.isfinite(q.high) else low + 2)


def _draw(q: Any, random: Any) -> Any:
    """Five different values of a parameter within its range."""
    low, high = _range(q)
    return random.permutation(low + (high - low) * (np.arange(_N) + random.uniform(0.1, 0.9, _N)) / _N)


def _check_neurons(population: Any, p: Mapping[str, Any], entries: Mapping[str, Any], random: Any) -> None:
    """Checks that an entry of a neuron depends on the parameters of that neuron alone, and the structure on none of them."""
    model, some = type(population).__name__, ", ".join(p)

    def again(values: Mapping[str, Any]) -> Mapping[str, Any]:
        found = arrays_of(population, values)
        others = dict(found.entries())
        differing = set(others) ^ set(entries)
        differing |= {name for name in others if name in entries and is_one(others[name]) != is_one(entries[name])}
        if differing:
            name = min(differing)
            raise DescriptionError(
                f"{model}: the entry {_shown(name)} exists for some values of {some} only; decide by options, never by the parameters' values"
            )
        return others

    for end in (0, 1):  # of the ranges, and one number for all neurons
        again({q.name: np.full(_N, _range(q)[end]) for q in population.parameters})
        again({q.name: np.asarray(_range(q)[end], np.float64) for q in population.parameters})
    rolled = again({name: np.roll(x, 1) for name, x in p.items()})
    redrawn = again({q.name: np.append(p[q.name][:1], _draw(q, random)[1:]) for q in population.parameters})
    for name, x in entries.items():
        per_neuron = getattr(x, "ndim", 0) == 1
        first = slice(0, 1) if per_neuron else ()
        moves_along = _close(np.roll(x, 1) if per_neuron else x, rolled[name])
        if not moves_along or not _close(np.asarray(x)[first], np.asarray(redrawn[name])[first]):
            raise DescriptionError(
                f"{model}: {_shown(name)} of a neuron depends on other neurons' parameters, or on its number; allowed: on its own {some}, "
                "elementwise (no sums, no positions)"
            )


def _close(a: Any, b: Any) -> bool:
    """Equal, except for rounding: a function may be computed in another way at another place of an array."""
    return np.shape(a) == np.shape(b) and bool(np.allclose(a, b, rtol=1e-12, atol=0, equal_nan=True))


def _shown(name: str) -> str:
    """`A[0][1]` for "A01"."""
    return name[0] + "".join(f"[{k}]" for k in name[1:])
