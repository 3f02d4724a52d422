"""Leaky integrate-and-fire neurons."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from sparsesnn.errors import DescriptionError
from sparsesnn.layers.checks import PerNeuron, check_choice, check_finite, check_flags, check_size, per_neuron
from sparsesnn.surrogate import Surrogate, fast_sigmoid

RESETS = ("subtract", "zero", "none")
ACTIVITIES = ("natural", "fixed")


@dataclass(frozen=True)
class Population:
    """What every spiking population has; `LIF` and `CubaLIF` add their dynamics.

    Args:
        n: neurons.
        beta: membrane decay per step, in [0, 1]; one number, or one per neuron.
        threshold: fires when `v > threshold`, strictly; above 0.
        grad_threshold: secondary gradient threshold. A neuron with `v > grad_threshold` is listed and receives a
            gradient; -inf lists every neuron (dense BPTT), `threshold` lists spikes only. Absolute, not relative.
        reset: what a spike does to the state at the next update: "subtract" the threshold, set to "zero", or "none".
        reset_decays: with "subtract", decay after the subtraction, β·(v - θ·s), as SpikingJelly, Sinabs and NIR;
            default β·v - θ·s, as snnTorch.
        detach_reset: no gradient through the reset (snnTorch); False adds its exact term (at listed neurons).
        surrogate: derivative used for the spike, see `sparsesnn.surrogate`.
        recurrent: adds weights from the population to itself, delivered one step later.
        bias: adds a trainable constant current per neuron.
        gain: factor on the input current.
        capacity: at most this many ids per list; None: no limit. What does not fit is dropped and counted.
        activity: "natural", or "fixed": every list is filled to `capacity` and all of it is sent on. For benchmarks.
        learn_beta, learn_threshold: train them (one value if `beta` is one number, else per neuron). A decay that leaves
            [0, 1] is read as 0 or 1; its gradient there: `sparsesnn.bounds`.
    """

    n: int
    beta: PerNeuron = 0.95
    threshold: PerNeuron = 1.0
    grad_threshold: PerNeuron = 0.9
    reset: str = "subtract"
    reset_decays: bool = False
    detach_reset: bool = True
    surrogate: Surrogate = field(default_factory=fast_sigmoid)
    recurrent: bool = False
    bias: bool = False
    gain: float = 1.0
    capacity: int | None = None
    activity: str = "natural"
    learn_beta: bool = False
    learn_threshold: bool = False

    def __post_init__(self) -> None:
        model = type(self).__name__
        check_size(model, self.n)
        tiny = 5e-324  # math.nextafter(0, 1), which Python 3.8 does not have
        for name, low, high in (
            ("beta", 0.0, 1.0),
            ("threshold", tiny, 3.0e38),
            ("grad_threshold", -math.inf, 3.0e38),
        ):
            object.__setattr__(self, name, per_neuron(model, name, getattr(self, name), self.n, low, high))
        check_choice(model, "reset", self.reset, RESETS)
        check_choice(model, "activity", self.activity, ACTIVITIES)
        check_finite(model, "gain", self.gain)
        if not isinstance(self.surrogate, Surrogate):
            raise DescriptionError(f"{model}: surrogate is {self.surrogate!r}; use sparsesnn.fast_sigmoid(slope=10)")
        if self.reset_decays and self.reset != "subtract":
            raise DescriptionError(
                f"{model}: reset_decays has a meaning only with reset='subtract', not {self.reset!r}"
            )
        flags = ("reset_decays", "detach_reset", "recurrent", "bias", "learn_beta", "learn_threshold")
        check_flags(model, **{name: getattr(self, name) for name in flags})
        if self.capacity is not None and (
            not isinstance(self.capacity, int) or isinstance(self.capacity, bool) or not 1 <= self.capacity <= self.n
        ):
            raise DescriptionError(
                f"{model}: capacity is {self.capacity!r}; allowed: 1 to {self.n} (its neurons), or None"
            )
        if self.activity == "fixed" and self.capacity is None:
            raise DescriptionError(f"{model}: activity='fixed' fills lists to a capacity; set capacity")


@dataclass(frozen=True)
class LIF(Population):
    """Leaky integrate-and-fire: v[t] = ρ(v[t-1]) + gain·i[t], with the reset inside ρ.

    ρ(v) = β·v - θ·s (subtract), β·(v - θ·s) (subtract with reset_decays), β·v·(1 - s) (zero), β·v (none), where
    s = v > θ. Arguments: see `Population`. Source: snnTorch's `Leaky`; Eshraghian et al. 2023, eq. 4.
    """
