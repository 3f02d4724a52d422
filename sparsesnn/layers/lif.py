"""Leaky integrate-and-fire neurons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Optional, Tuple  # noqa: UP035

from sparsesnn.documented import documented
from sparsesnn.errors import DescriptionError
from sparsesnn.layers.checks import PerNeuron, PerNeuronOrText, check_population
from sparsesnn.layers.declaration import BETA, THRESHOLD, Parameter
from sparsesnn.layers.equations import Pulled, rho, rho_derivatives
from sparsesnn.layers.units import HasDecays
from sparsesnn.options import option
from sparsesnn.surrogate import KINDS, Surrogate, fast_sigmoid

RESETS = ("subtract", "zero", "none")
ACTIVITIES = ("natural", "fixed")


@dataclass(frozen=True)
class Population(HasDecays):
    """A spiking population: a threshold, a reset and a surrogate derivative; neuron models add dynamics.

    A parameter (`beta`, `threshold`, …) is one number for all neurons or one per neuron, and is trained in that form. A
    decay that leaves [0, 1] in training is read as 0 or 1; `sparsesnn.bounds` has its gradient there. With `reset_decays`
    a spike leads to β·(v - θ·s), as in SpikingJelly, Sinabs and NIR; without it to β·v - θ·s, as in snnTorch.
    """

    n: int = None  # type: ignore[assignment]  # a number once a network is created
    beta: PerNeuron = option(0.95, "membrane decay per step", low=0, high=1)
    threshold: PerNeuron = option(1.0, "a neuron fires when v > threshold, strictly", above=0, high=3e38)
    grad_threshold: PerNeuronOrText = option(
        0.9,
        "a neuron with v > grad_threshold is listed and receives a gradient; -inf: all neurons, equal to threshold: spikes only, "
        "exact: all with a nonzero surrogate derivative. If neither the population nor anything before it learns, spikes only, even at -inf",
        low=-math.inf,
        high=3e38,
        choices=("exact",),
    )
    reset: str = option("subtract", "effect of a spike on the state at the next step", choices=RESETS)
    reset_decays: bool = option(False, "with reset 'subtract': decay after the subtraction instead of before")
    detach_reset: bool = option(True, "no gradient through the reset; false adds its exact term at listed neurons")
    surrogate: Surrogate = option(fast_sigmoid, "derivative used in place of the spike's")
    recurrent: bool = option(False, "weights from the population to itself, delivered one step later")
    bias: bool = option(False, "a trainable constant current per neuron")
    gain: float = option(1.0, "factor on the input current")
    capacity: Optional[int] = option(  # noqa: UP045
        None,
        "maximum number of ids per list; candidates that do not fit are dropped and counted; 0: no limit",
        low=1,
        none=0,
    )
    activity: str = option(
        "natural", "fixed: every list is sent filled to its capacity, for benchmarks", choices=ACTIVITIES
    )
    learn_beta: bool = option(False, "train beta")
    learn_threshold: bool = option(False, "train threshold")

    def __post_init__(self) -> None:
        check_population(self)
        model = type(self).__name__
        if self.reset_decays and self.reset != "subtract":
            raise DescriptionError(f"{model}: reset_decays works only with reset='subtract', not {self.reset!r}")
        if self.capacity is not None and self.n is not None and self.capacity > self.n:
            raise DescriptionError(
                f"{model}: capacity is {self.capacity!r}; allowed: 1 to {self.n} (its neurons), or None"
            )
        if self.activity == "fixed" and self.capacity is None:
            raise DescriptionError(f"{model}: activity='fixed' fills lists to a capacity; set capacity")
        _ = self.listed_above  # raises its errors

    @property
    def listed_above(self) -> float | tuple[float, ...]:
        """`grad_threshold` in numbers, one for all neurons or one per neuron.

        "exact" is the highest value that keeps the gradient complete: below it σ' is 0. Rounding may list an extra neuron, with σ' = 0.
        """
        given: object = self.grad_threshold
        if given != "exact":
            return self.grad_threshold
        width = self.surrogate.half_width
        if math.isinf(width) and self.surrogate.kind != "straight_through":
            compact = [kind for kind in KINDS if not math.isinf(Surrogate(kind).half_width)]
            raise DescriptionError(
                f"{type(self).__name__}: grad_threshold='exact' needs a surrogate that is 0 away from the threshold, or 1 "
                f"everywhere, not {self.surrogate.kind!r}; allowed: {', '.join(compact)}, straight_through; -inf lists all neurons"
            )
        if self.learn_threshold and not math.isinf(width):
            raise DescriptionError(
                f"{type(self).__name__}: grad_threshold='exact' does not follow a trained threshold; give "
                "learn_threshold=False, or grad_threshold=-inf"
            )
        own = self.threshold if isinstance(self.threshold, tuple) else (self.threshold,)
        below = tuple(theta - width - 1e-6 * (theta + width) for theta in own)
        return below if isinstance(self.threshold, tuple) else below[0]

    #: letter after a size in the text of a network, and its meaning
    letter: ClassVar[Tuple[str, str]] = ("", "")  # noqa: UP006
    states: ClassVar[Tuple[str, ...]]  # noqa: UP006
    parameters: ClassVar[Tuple[Parameter, ...]]  # noqa: UP006

    @property
    def kernel(self) -> str:
        """Name of the C++ model, see codelets/neuron."""
        raise NotImplementedError

    @property
    def constants(self) -> tuple[float, ...]:
        """Numbers of the C++ model that are the same for all neurons."""
        return (self.gain,)

    @property
    def reset_rule(self) -> str:
        """The reset with its order: "subtract", "subtract_decays", "zero" or "none"."""
        return "subtract_decays" if self.reset_decays else self.reset

    def step(self, p: Mapping[str, Any], states: Sequence[Any], reset: Any, s: Any, i: Any) -> tuple[Any, ...]:
        """The states after a step, the first of which is compared with the threshold.

        Args:
            p: parameters by name, [] or [N].
            states: [B, N] each, before the step.
            reset: [B, N], the spikes of the step before, as the reset reads them (detached, or not).
            s: [B, N], the same spikes for everything else.
            i: [B, N], the input current.
        """
        raise NotImplementedError

    def pull(self, p: Mapping[str, Any], states: Sequence[Any], reset: Any, s: Any, i: Any, d: Sequence[Any]) -> Pulled:
        """Gradients of the arguments of `step` from those of its results, `d`; derived by hand, for the reference."""
        raise NotImplementedError


@documented(n="number of neurons; None: set by convolutions or pooling before them.")
@dataclass(frozen=True)
class LIF(Population):
    """Leaky integrate-and-fire: v[t] = ρ(v[t-1]) + gain·i[t], with the reset inside ρ.

    ρ(v) = β·v - θ·s (subtract), β·(v - θ·s) (subtract with reset_decays), β·v·(1 - s) (zero), β·v (none), where
    s = v > θ. Source: snnTorch's `Leaky`; Eshraghian et al. 2023, eq. 4.
    """

    states: ClassVar[Tuple[str, ...]] = ("v",)  # noqa: UP006
    parameters: ClassVar[Tuple[Parameter, ...]] = (BETA, THRESHOLD)  # noqa: UP006

    @property
    def kernel(self) -> str:
        """Name of the C++ model, see codelets/neuron."""
        return f"lif.{self.reset_rule}"

    def step(self, p: Mapping[str, Any], states: Sequence[Any], reset: Any, s: Any, i: Any) -> tuple[Any, ...]:
        return (rho(self.reset_rule, p["beta"], p["threshold"], states[0], reset) + self.gain * i,)

    def pull(self, p: Mapping[str, Any], states: Sequence[Any], reset: Any, s: Any, i: Any, d: Sequence[Any]) -> Pulled:
        by_v, by_s, by_beta, by_theta = rho_derivatives(self.reset_rule, p["beta"], p["threshold"], states[0], reset)
        parameters = {"beta": d[0] * by_beta, "threshold": d[0] * by_theta}
        return Pulled((d[0] * by_v,), d[0] * by_s, 0, self.gain * d[0], parameters)
