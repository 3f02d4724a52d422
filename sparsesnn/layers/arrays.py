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
from dataclasses import dataclass
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
    """The arrays of one linear step of a neuron model:

        z ← A·z + s·(R·z + r) + s·f + B·i + c

    z: the S states before the step; s: whether the neuron fired in the step before (z₀ > θ); i: its input current.

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
    except Exception as error:  # any error that a user's class raises
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
    """Where the last call in a user's file raised: " (alif.py, line 12)"."""
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
    return x if is_one(coefficient) else coefficient * x


def is_one(x: Any) -> bool:
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
    """s·(R·z + r) + s·f of row r. If both spikes are one value, it is s·(R·z + u), with the bits of the engines."""
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
    depends = dict(population.structure.depends)

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
