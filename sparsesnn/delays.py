"""Axonal delays: one for each sending neuron of a connection, fixed or trained.

    i[t, n] += Σ_m s[t - delay - d_m, m] · weight[m, n]                                    d_m whole
    s[t - d - 1, m]·f + s[t - d, m]·(1 - f)   instead of   s[t - d_m, m]                   d_m = d + f, in training

In evaluation every d_m is rounded to the nearest whole step (halves to the even one).

    ∂L/∂d_m = Σ_t s[t, m]·(∂L/∂s'[t + d + 1, m] - ∂L/∂s'[t + d, m])                        s': arriving spikes

`delay` is 1 or more on a recurrent connection, so a spike never arrives in its own step. The sum over samples adds up groups of
samples (`group_samples`), each over its lists in order or, on a recurrent connection, sample by sample.

Source of the two taps: Hammouamri et al. 2024 (triangular kernels of width 1), Sun et al. 2023 (axonal delays).
"""

# This file must work in Python 3.8, like network.py.

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Dict, Optional, Tuple  # noqa: UP035

import numpy as np

from sparsesnn.arguments import named
from sparsesnn.errors import DescriptionError
from sparsesnn.options import plain

#: longest delay, in steps: a state keeps the spikes of that many steps
MAX_DELAY = 2**20


@named
@dataclass(frozen=True)
class Delays:
    """One delay for each sending neuron, in steps, in addition to the delay of the connection.

    Args:
        longest: the upper limit, 1 to 2^20; delays are between 0 and this, also in training.
        learn: train them; they may then be fractions of steps. Otherwise they are whole steps.
        seed: of the initial delays, drawn evenly from 0 to `longest`.
        given: the initial delays, one for each sender, instead of drawn ones.

    Errors: `DescriptionError`.
    """

    longest: int
    learn: bool = False
    seed: int = 0
    given: Optional[Tuple[float, ...]] = None  # noqa: UP006, UP045

    def __post_init__(self) -> None:
        for name, least, most in (("longest", 1, MAX_DELAY), ("seed", 0, 2**63 - 1)):
            value = plain(getattr(self, name))
            if type(value) is not int or not least <= value <= most:
                raise DescriptionError(f"Delays: {name} is {value!r}; allowed: whole numbers from {least} to {most:,}")
            object.__setattr__(self, name, value)
        object.__setattr__(self, "learn", plain(self.learn))
        if not isinstance(self.learn, bool):
            raise DescriptionError(f"Delays: learn is {self.learn!r}; allowed: True, False")
        if self.given is None:
            return
        try:
            given = tuple(float(d) for d in (self.given.to_dense() if hasattr(self.given, "to_dense") else self.given))
        except (TypeError, ValueError):
            raise DescriptionError(f"Delays: given is {self.given!r}; give a number of steps for each sender") from None
        wrong = [d for d in given if not 0 <= d <= self.longest or not (self.learn or d == round(d))]
        if wrong:
            whole = "" if self.learn else "whole "
            raise DescriptionError(
                f"Delays: given holds {wrong[0]!r}; allowed: {whole}numbers from 0 to {self.longest}"
            )
        object.__setattr__(self, "given", given)

    def check(self, where: str, n_pre: int) -> None:
        """`DescriptionError`, which begins with `where`, if the number of delays does not fit the sender."""
        if self.given is not None and len(self.given) != n_pre:
            raise DescriptionError(
                f"{where}: Delays: given has {len(self.given)} numbers, but the sender has {n_pre} neurons; give one for each"
            )

    def first(self, n_pre: int) -> np.ndarray:
        """float32[n_pre], the delays before training."""
        if self.given is not None:
            return np.array(self.given, np.float32)
        source = np.random.PCG64(np.random.SeedSequence([self.seed, n_pre, self.longest]))
        raw = np.asarray(source.random_raw(n_pre), np.uint64)
        share = (raw >> np.uint64(11)) * 2.0**-53  # in [0, 1)
        return np.asarray(share * self.longest if self.learn else np.floor(share * (self.longest + 1)), np.float32)

    def to_dict(self) -> Dict[str, Any]:  # noqa: UP006
        """Plain data."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items() if v is not None}
