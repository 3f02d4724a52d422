"""Augmentation of spike lists: moved, shifted, stretched and dropped spikes, vectorised over a whole batch.

What happens to a sample depends on (seed, epoch, sample) alone: not on the batch it is in, nor on the thread or rank
that makes it. Every random number is a hash of those three, of what it is for and of the spike's number in its sample.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from sparsesnn.datasets import hashing
from sparsesnn.errors import ConfigError

Ints = npt.NDArray[np.int64]

# what a random number is for; a number here is part of the results: never change one, add new ones at the end
_DROP, _TIME_STRETCH, _TIME_SHIFT, _TIME_JITTER, _WITHIN_STEP, _CHANNEL_SHIFT, _CHANNEL_JITTER = range(7)


@dataclass(frozen=True)
class Augment:
    """How strongly each sample is changed; 0 switches a change off.

    For spike (t, n) of a sample, with u uniform in [0, 1) and z normal, drawn anew for each spike, and f, Δt, Δn drawn
    once for each sample and epoch:

        t' = floor((t + u)·f + Δt + time_jitter·z)        n' = n + Δn + round(channel_jitter·z)

    Spikes that leave the window or the population are left out; those that meet in one place become one.

    Args:
        time_jitter: standard deviation, steps, of each spike's move in time.
        time_shift: largest move of the whole sample, steps; Δt is uniform in the integers -time_shift .. time_shift.
        time_stretch: largest change of speed; f is uniform in [1 - time_stretch, 1 + time_stretch]; below 1.
        channel_shift: largest move of the whole sample over the channels (after pooling); uniform in the integers.
        channel_jitter: standard deviation, channels, of each spike's move.
        event_drop: probability that a spike is left out, 0 to 1.

    Raises:
        ConfigError: a strength is negative, not finite or too large to mean anything.
    """

    time_jitter: float = 0.0
    time_shift: int = 0
    time_stretch: float = 0.0
    channel_shift: int = 0
    channel_jitter: float = 0.0
    event_drop: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
                raise ConfigError(f"augment: {field.name} is {value!r}; give a number that is 0 (off) or larger")
        for name in ("time_shift", "channel_shift"):
            if int(getattr(self, name)) != getattr(self, name):
                raise ConfigError(f"augment: {name} is {getattr(self, name)}; give a whole number of steps or channels")
            object.__setattr__(self, name, int(getattr(self, name)))
        for name, limit in (("time_stretch", "below 1"), ("event_drop", "at most 1")):
            value = getattr(self, name)
            if value > 1 or (value == 1 and name == "time_stretch"):
                raise ConfigError(f"augment: {name} is {value}; allowed: 0 to {limit}")

    def __bool__(self) -> bool:
        """False when every strength is 0, so that nothing would change."""
        return any(getattr(self, field.name) for field in fields(self))

    def apply(
        self,
        sample: Ints,
        step: Ints,
        unit: Ints,
        *,
        indices: Ints,
        n_steps: int,
        n_neurons: int,
        seed: int,
        epoch: int,
    ) -> tuple[Ints, Ints, Ints]:
        """The changed spikes `(sample, step, unit)`, those outside left out, in the order they came; none merged yet.

        Args:
            sample: int64[S], position in the batch, 0 .. B-1, ascending: each sample's spikes lie together.
            step, unit: int64[S], where each spike is.
            indices: int64[B], number of each sample in its data set: what the randomness is tied to.
            n_steps, n_neurons: T, N.
            seed, epoch: what else it is tied to.
        """
        starts = np.searchsorted(sample, np.arange(indices.size))
        number = np.arange(sample.size) - starts[sample]

        def per_sample(purpose: int) -> hashing.UInt64s:
            return hashing.keys(seed, epoch, indices, purpose)

        def per_spike(purpose: int) -> hashing.UInt64s:
            return per_sample(purpose)[sample]

        keep = np.ones(sample.size, bool)
        if self.event_drop:
            keep &= hashing.uniform(per_spike(_DROP), number) >= self.event_drop
        if self.time_stretch or self.time_jitter:
            # a step is an interval: without the place within it, a stretch leaves every tenth step empty or doubled
            time = step + hashing.uniform(per_spike(_WITHIN_STEP), number)
            if self.time_stretch:
                u = hashing.uniform(per_sample(_TIME_STRETCH), 0)
                time *= (1.0 - self.time_stretch + 2.0 * self.time_stretch * u)[sample]
            if self.time_jitter:
                time += self.time_jitter * hashing.normal(per_spike(_TIME_JITTER), number)
            step = np.floor(time).astype(np.int64)
        if self.time_shift:
            step = step + self._shifts(per_sample(_TIME_SHIFT), self.time_shift)[sample]
        if self.channel_shift:
            unit = unit + self._shifts(per_sample(_CHANNEL_SHIFT), self.channel_shift)[sample]
        if self.channel_jitter:
            move = self.channel_jitter * hashing.normal(per_spike(_CHANNEL_JITTER), number)
            unit = unit + np.rint(move).astype(np.int64)
        keep &= (step >= 0) & (step < n_steps) & (unit >= 0) & (unit < n_neurons)
        return sample[keep], step[keep], unit[keep]

    @staticmethod
    def _shifts(key: hashing.UInt64s, largest: int) -> Ints:
        """int64[B], uniform in -largest .. largest."""
        return np.floor(hashing.uniform(key, 0) * (2 * largest + 1)).astype(np.int64) - largest
