"""Decays per step from time constants in milliseconds, and back: decay = exp(-dt / τ).

This file must work in Python 3.8, like the neuron models that use it.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import fields
from typing import Any, Dict, Tuple, Type, TypeVar  # noqa: UP035

from sparsesnn.errors import DescriptionError
from sparsesnn.options import number, plain

_Model = TypeVar("_Model", bound="HasDecays")

#: the decay for each time constant
DECAYS = {"tau": "beta", "tau_syn": "alpha"}


class HasDecays:
    """A population that can be defined by time constants."""

    @classmethod
    def from_ms(cls: Type[_Model], n: int, *, tau: Any, dt: float, tau_syn: Any = None, **arguments: Any) -> _Model:  # noqa: UP006
        """The population with time constants in milliseconds: `LIF.from_ms(256, tau=20, dt=5)` has beta = exp(-5/20).

        Args:
            n: number of neurons.
            tau: time constant of the membrane, above 0, inf: no decay; one number or one per neuron. It sets `beta`.
            dt: width of a step, above 0: that of the data.
            tau_syn: time constant of the synaptic current, for models with an `alpha`, which it sets.
            arguments: all others of the model.

        Errors: `DescriptionError` for invalid times, and for decays given in addition.
        """
        what, known = f"{cls.__name__}.from_ms", {f.name for f in fields(cls)}  # type: ignore[arg-type]
        for name, value in (("tau", tau), ("tau_syn", tau_syn)):
            decay = DECAYS[name]
            if value is None:
                continue
            if decay not in known:
                raise DescriptionError(
                    f"{what}: {name} is {value!r}, but {cls.__name__} has no {decay}; leave {name} out"
                )
            if decay in arguments:
                raise DescriptionError(f"{what}: got {name} and {decay}, which it sets; leave one of them out")
            arguments[decay] = decay_of(value, dt, what, name)
        return cls(n, **arguments)  # type: ignore[call-arg]


def decay_of(tau: Any, dt: float, what: str = "decay_of", name: str = "tau") -> Any:
    """exp(-dt / tau), for a number or for each number in a sequence.

    Args:
        tau, dt: in the same unit.
        what, name: of the argument, for messages.
    """
    dt = plain(dt)
    if not _is_number(dt) or not 0 < dt < math.inf:
        raise DescriptionError(f"{what}: dt is {dt!r}; give the width of a step in milliseconds, above 0")
    tau = plain(tau)
    if isinstance(tau, (list, tuple)):
        return tuple(decay_of(x, dt, what, name) for x in tau)
    if not _is_number(tau) or not tau > 0:
        raise DescriptionError(f"{what}: {name} is {tau!r}; give a time constant in milliseconds, above 0")
    if tau < dt / 20:
        warnings.warn(
            f"{what}: {name} is {tau:g} ms, but a step is {dt:g} ms long: a state would decay to 0 in one step. Time constants are "
            "in milliseconds: multiply seconds by 1e3; or give a smaller dt",
            UserWarning,
            stacklevel=3,
        )
    return math.exp(-dt / tau)


def tau_of(decay: float, dt: float) -> float:
    """The time constant of a decay per step: -dt / log(decay); 0 for a decay of 0, infinite for one of 1."""
    if decay <= 0:
        return 0.0
    return math.inf if decay >= 1 else -dt / math.log(decay)


def time_constants(population: Any, dt: float) -> Dict[str, Tuple[float, float]]:  # noqa: UP006
    """The lowest and highest time constant of each decay (`beta`, `alpha`) of a population, in the unit of `dt`."""
    constants = {}
    for decay in DECAYS.values():
        values = getattr(population, decay, None)
        values = values if isinstance(values, tuple) else (values,)
        if values[0] is not None:
            constants[decay] = (tau_of(min(values), dt), tau_of(max(values), dt))
    return constants


def _is_number(x: Any) -> bool:
    return number(x) is not None
