"""The arrays of a neuron model: one linear step between spikes, the same formulas for all models and engines.

    z ← A·z + s·(R·z + r) + s·f + B·i + c          S states z before the step, s = [z₀ > θ] of the step before

Entries are absent (None, or the literal number 0), one number for all neurons, or one per neuron, [N]. With `sequential`,
rows are computed from last to first, and an entry of A right of the diagonal reads the new state of that row; R reads
the states before the step.

Order of operations within row r, which every engine keeps, so that bits are equal (u = r + f; absent entries cost nothing):

    ((A[r][r]·z_r + where(s, R[r][0]·z₀ + R[r][k]·z_k + u_r)) + the other A[r][k]·z_k) + B_r·i + c_r          k ascending

`step` and `pull` run on NumPy arrays (the reference) and PyTorch tensors (the dense engine). This file must work in
Python 3.8, and without PyTorch, except for `derivatives`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Mapping, Sequence, Tuple  # noqa: UP035

import numpy as np

from sparsesnn.errors import DescriptionError
from sparsesnn.layers.equations import Pulled

#: most states of a model
MAX_STATES = 4
MATRICES = ("A", "R")
VECTORS = ("r", "f", "B", "c")


@dataclass(frozen=True, eq=False)
class NeuronArrays:
    """The arrays of a linear step, see the module.

    An entry is None or the literal number 0 (absent), another number, or a NumPy array or tensor of shape [] or [N]. The
    literal whole number 1 in B means the input current itself, without a multiplication.

    Args:
        A: S rows of S entries: the states' decays and couplings.
        R: the same: the part of a reset proportional to the states; absent: none.
        r: S entries: the constant part of a reset, such as -θ.
        f: S entries: a spike's drive of the states. `detach_reset` cuts the gradient through s in s·(R·z + r), never in s·f.
        B: S entries: the effect of the input current.
        c: S entries: a constant.
        sequential: rows are computed from last to first, see the module.
    """

    A: Any = None
    R: Any = None
    r: Any = None
    f: Any = None
    B: Any = None
    c: Any = None
    sequential: bool = False

    def __post_init__(self) -> None:
        for name in MATRICES:
            rows = getattr(self, name)
            object.__setattr__(self, name, rows if rows is None else _tuple(_tuple(row) for row in _listed(rows)))
        for name in VECTORS:
            entries = getattr(self, name)
            object.__setattr__(self, name, entries if entries is None else _tuple(entries))

    def entries(self) -> Iterator[Tuple[str, Any]]:  # noqa: UP006
        """The entries that exist, by name, such as "A01" or "r0"; for arrays in full shape."""
        for name in MATRICES:
            for r, row in enumerate(getattr(self, name)):
                yield from ((f"{name}{r}{k}", x) for k, x in enumerate(row) if x is not None)
        for name in VECTORS:
            yield from ((f"{name}{r}", x) for r, x in enumerate(getattr(self, name)) if x is not None)

    def map(self, function: Callable[[str, Any], Any]) -> NeuronArrays:
        """The arrays with `function`, of its name and value, in place of every entry that exists; for arrays in full shape."""

        def mapped(name: str, x: Any) -> Any:
            return None if x is None else function(name, x)

        def row(name: str, entries: Sequence[Any]) -> Sequence[Any]:
            return [mapped(f"{name}{k}", x) for k, x in enumerate(entries)]

        return NeuronArrays(
            **{
                name: [row(f"{name}{r}", entries) for r, entries in enumerate(getattr(self, name))] for name in MATRICES
            },
            **{name: row(name, getattr(self, name)) for name in VECTORS},
            sequential=self.sequential,
        )


def _listed(rows: Any) -> Any:
    return rows if isinstance(rows, (list, tuple)) else (rows,)


def _tuple(entries: Any) -> Any:
    """A list as a tuple, without literal zeros; anything else unchanged, to be refused where the model's name is known."""
    if isinstance(entries, (str, bytes)) or not hasattr(entries, "__iter__") or hasattr(entries, "ndim"):
        return entries
    return tuple(None if type(x) in (int, float) and x == 0 else x for x in entries)


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


def arrays_of(population: Any, p: Mapping[str, Any]) -> NeuronArrays:
    """The arrays of a population in full shape: A and R with S rows of S entries, the others with S entries.

    Args:
        population: with `arrays`, `states` and `parameters`.
        p: its parameters by name, each [] or [N], NumPy arrays or tensors; other names are ignored.

    Errors: `DescriptionError` with the class and the entry, such as "ALIF: R[0][1]", for a wrong shape or no number.
    """
    model, n_states = type(population).__name__, len(population.states)
    parameters = {q.name: p[q.name] for q in population.parameters}
    try:
        made = population.arrays(parameters)
    except DescriptionError:
        raise
    except Exception as error:  # whatever a person's class raises
        known = ", ".join(parameters)
        raise DescriptionError(
            f"{model}: arrays raised {type(error).__name__}: {error}{_line_of(error)}; its parameters are {known}"
        ) from error
    if not isinstance(made, NeuronArrays):
        raise DescriptionError(f"{model}: arrays returned a {type(made).__name__}; allowed: NeuronArrays")
    sizes = {x.shape[0] for x in parameters.values() if getattr(x, "ndim", 0) == 1}
    full: Dict[str, Any] = {}  # noqa: UP006
    for name in MATRICES:
        rows = _of_length(model, name, getattr(made, name), population.states, required=name == "A")
        full[name] = [
            _of_length(model, f"{name}[{r}]", row, population.states, required=made.A is not None and name == "A")
            for r, row in enumerate(rows)
        ]
    for name in VECTORS:
        full[name] = _of_length(model, name, getattr(made, name), population.states, required=name == "B")
    if type(made.sequential) is not bool:
        raise DescriptionError(f"{model}: sequential is {made.sequential!r}; allowed: True, False")
    for name in (*MATRICES, *VECTORS):
        for r in range(n_states):
            row = full[name][r] if name in MATRICES else (full[name][r],)
            for k, x in enumerate(row):
                where = f"{model}: {name}[{r}][{k}]" if name in MATRICES else f"{model}: {name}[{r}]"
                _check_entry(where, x, sizes)
                if x is not None and not population.fires and name in ("R", "r", "f"):
                    raise DescriptionError(f"{where} is given, but {model} never fires (fires = False); leave it out")
    return NeuronArrays(**full, sequential=made.sequential)


def _line_of(error: BaseException) -> str:
    """Where the last call in a person's file raised: " (alif.py, line 12)"."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        place = f" ({trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return place


def _of_length(model: str, name: str, given: Any, states: Sequence[str], required: bool) -> Sequence[Any]:
    """A row of entries, or of rows: one per state."""
    n, names = len(states), ", ".join(states)
    if given is None:
        if required:
            raise DescriptionError(f"{model}: {name} is missing; give a list with one entry per state ({names})")
        return (None,) * n
    if not isinstance(given, tuple) or len(given) != n:
        found = f"has {len(given)} entries" if isinstance(given, tuple) else f"is {given!r}"
        raise DescriptionError(f"{model}: {name} {found}; give a list with one entry per state: {n} ({names})")
    return given


def _check_entry(where: str, x: Any, sizes: Any) -> None:
    if x is None or (type(x) in (int, float) and math.isfinite(x)):
        return
    shape, dtype = getattr(x, "shape", None), str(getattr(x, "dtype", ""))
    if shape is None or not any(kind in dtype for kind in ("float", "int")):
        raise DescriptionError(f"{where} is {x!r}; allowed: None, a number, or an array or tensor of them, [] or [N]")
    if len(shape) > 1 or (len(shape) == 1 and sizes and shape[0] not in sizes):
        n = f"[{max(sizes)}]" if sizes else "[N]"
        raise DescriptionError(f"{where} has the shape {list(shape)}; allowed: [] or {n}, an entry per neuron")


# ---- the step and its adjoint ------------------------------------------------------------------------------------------


def step(arrays: NeuronArrays, states: Sequence[Any], reset: Any, s: Any, i: Any) -> Tuple[Any, ...]:  # noqa: UP006
    """The states after a step, in the order of operations that the module gives.

    Args:
        arrays: in full shape, see `arrays_of`.
        states: [B, N] each, before the step.
        reset: [B, N], the spikes of the step before, as s·(R·z + r) reads them (detached, or not).
        s: [B, N], the same spikes for s·f; None: the neurons never fire.
        i: [B, N], the input current.
    """
    n = len(states)
    before, after = list(states), list(states)
    read = after if arrays.sequential else before
    for r in reversed(range(n)):
        z = [read[k] if k > r else before[k] for k in range(n)]
        value = _product(arrays.A[r][r], z[r])
        if s is not None:
            value = _sum(value, _jump(arrays, r, before, reset, s))
        for k in range(n):
            if k != r:
                value = _sum(value, _product(arrays.A[r][k], z[k]))
        value = _sum(value, _product(arrays.B[r], i))
        value = _sum(value, arrays.c[r])
        after[r] = _shaped(value, before[r])
    return tuple(after)


def _shaped(value: Any, like: Any) -> Any:
    """A row's value in the shape of a state, also if it is constant or absent."""
    if getattr(value, "shape", None) == like.shape:
        return value
    return 0 * like + (0 if value is None else value)


def _product(coefficient: Any, x: Any) -> Any:
    """None if the coefficient is absent; x itself if it is literally 1."""
    if coefficient is None:
        return None
    return x if _is_one(coefficient) else coefficient * x


def _is_one(x: Any) -> bool:
    return type(x) is int and x == 1


def _sum(a: Any, b: Any) -> Any:
    """a + b, where None is absent."""
    if a is None or b is None:
        return b if a is None else a
    return a + b


def _reset(arrays: NeuronArrays, r: int, z: Sequence[Any]) -> Any:
    """Row r of R·z, columns ascending; None if absent."""
    value = None
    for k, x in enumerate(z):
        value = _sum(value, _product(arrays.R[r][k], x))
    return value


def _jump(arrays: NeuronArrays, r: int, z: Sequence[Any], reset: Any, s: Any) -> Any:
    """s·(R·z + r) + s·f of row r. Where both spikes have one value it is s·(R·z + u), with the bits of the engines."""
    f = arrays.f[r]
    to_add = _sum(_reset(arrays, r, z), _sum(arrays.r[r], f))
    if to_add is None:
        return None
    jump = reset * to_add
    return jump if f is None or reset is s else jump + (s - reset) * f


def pull(
    arrays: NeuronArrays,
    derivatives: Mapping[str, NeuronArrays],
    states: Sequence[Any],
    reset: Any,
    s: Any,
    i: Any,
    d: Sequence[Any],
) -> Pulled:
    """Gradients of the arguments of `step` from those of its results, `d`.

    Args:
        arrays, states, reset, s, i: those of `step`.
        derivatives: by parameter, see `derivatives`.
        d: [B, N], one for each state.
    """
    n = len(states)
    after = step(arrays, states, reset, s, i) if arrays.sequential else states
    by_old: List[Any] = [0] * n  # noqa: UP006
    by_new = list(d)
    by_reset: Any = 0
    by_spike: Any = 0
    current: Any = 0
    parameters: Dict[str, Any] = dict.fromkeys(derivatives, 0)  # noqa: UP006
    for r in range(n):  # a row is complete once those that read its new state, the ones before it, are
        later = range(r + 1, n) if arrays.sequential else ()
        z = [after[k] if k in later else states[k] for k in range(n)]
        e = by_new[r]
        for k in range(n):
            by = by_new if k in later else by_old
            if arrays.A[r][k] is not None:
                by[k] = by[k] + arrays.A[r][k] * e
            if arrays.R[r][k] is not None and s is not None:
                by_old[k] = by_old[k] + reset * arrays.R[r][k] * e
        if s is not None:
            through = _sum(_reset(arrays, r, states), arrays.r[r])
            by_reset = by_reset if through is None else by_reset + through * e
            by_spike = by_spike if arrays.f[r] is None else by_spike + arrays.f[r] * e
        current = current if arrays.B[r] is None else current + _product(arrays.B[r], e)
        for name, by_p in derivatives.items():
            moved = _moved(by_p, r, z, states, reset, s, i)
            parameters[name] = parameters[name] if moved is None else parameters[name] + moved * e
    return Pulled(tuple(by_old), by_reset, by_spike, current, parameters)


def _moved(by_p: NeuronArrays, r: int, z: Sequence[Any], before: Sequence[Any], reset: Any, s: Any, i: Any) -> Any:
    """The derivative of row r of a step by a parameter; None if there is none. z: the states as A reads them."""
    value = None
    for k, x in enumerate(z):
        value = _sum(value, _product(by_p.A[r][k], x))
    if s is not None:
        value = _sum(value, _product(_sum(_reset(by_p, r, before), by_p.r[r]), reset))
        value = _sum(value, _product(by_p.f[r], s))
    return _sum(_sum(value, _product(by_p.B[r], i)), by_p.c[r])


# ---- derivatives by parameters -----------------------------------------------------------------------------------------


def derivatives(population: Any, p: Mapping[str, Any], names: Sequence[str]) -> Dict[str, NeuronArrays]:  # noqa: UP006
    """The arrays differentiated by each of the named parameters, by PyTorch's automatic differentiation.

    An entry that does not depend on a parameter is absent from its arrays, see `Structure.depends`. Entries carry no gradient, and have
    the type (NumPy or PyTorch) and dtype of the parameters; they are [] if all parameters are, else [N].

    It is reverse mode, of the sum over an entry's neurons, which gives each its own derivative because neurons do not mix. (Forward
    mode would take one pass per parameter instead of one per entry, but PyTorch needs two seconds to load it.)

    Args:
        p: as for `arrays_of`, floating point.
        names: of parameters.
    """
    import torch

    given = {q.name: p[q.name] for q in population.parameters}
    is_tensor = any(isinstance(x, torch.Tensor) for x in given.values())
    with torch.inference_mode(False), torch.enable_grad():
        n = max((x.shape[0] for x in given.values() if getattr(x, "ndim", 0) == 1), default=None)
        leaves = {name: _leaf(torch, x, n) for name, x in given.items()}
        arrays = arrays_of(population, leaves)
        wanted = [leaves[name] for name in names]
        found: Dict[str, Any] = {}  # noqa: UP006
        for entry, x in arrays.entries():
            if wanted and isinstance(x, torch.Tensor) and x.requires_grad:
                found[entry] = torch.autograd.grad(x.sum(), wanted, retain_graph=True, allow_unused=True)
    depends = dict(structure(population).depends)

    def derivative(k: int, entry: str, x: Any) -> Any:
        if entry not in depends[names[k]]:
            return None
        by = found[entry][k] if entry in found else None
        by = torch.zeros_like(wanted[k]) if by is None else by
        return by.detach() if is_tensor else by.detach().numpy()

    return {name: arrays.map(partial(derivative, k)) for k, name in enumerate(names)}


def _leaf(torch: Any, x: Any, n: Any) -> Any:
    """A copy that requires a gradient, [n] if n is a number."""
    if not isinstance(x, torch.Tensor):
        x = torch.from_numpy(np.array(x, copy=True))  # also of a NumPy scalar, and of read-only memory
    x = x.detach().clone()
    return (x if n is None else x.expand(n).clone()).requires_grad_()


# ---- the structure -----------------------------------------------------------------------------------------------------

_N = 5
_SEED = 20


def structure(population: Any) -> Structure:
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
    except TypeError:  # an option of a person's class is a list or a table
        return _found(population)
    if known is None:
        if len(_KNOWN) > 4096:
            _KNOWN.clear()
        known = _KNOWN[key] = _found(population)
    return known


#: cache of `structure`
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
    ones = tuple(name for name, x in entries.items() if name[0] == "B" and _is_one(x))
    return Structure(len(states), population.fires, arrays.sequential, tuple(entries), ones, tuple(depends))


def _range(q: Any) -> Tuple[float, float]:  # noqa: UP006
    """A parameter's range; an arbitrary end where there is none."""
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
        differing |= {name for name in others if name in entries and _is_one(others[name]) != _is_one(entries[name])}
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
