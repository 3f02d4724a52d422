"""Augmentation of spike lists: moved, shifted, stretched, dropped, blended and mixed spikes, vectorized over a batch.

The changes to a sample depend on (seed, epoch, sample) alone: not on its batch, nor on the thread or rank that makes
it. Every random number is a hash of those three, of its purpose and of the spike's number in its sample.

This is the specification, in NumPy; `host/src/data/batch.cpp` makes the same batches, bit for bit, in a tenth of the time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsesnn.datasets import direct, hashing
from sparsesnn.datasets.sensor import Sensor
from sparsesnn.errors import ConfigError
from sparsesnn.options import check, option, options_of
from sparsesnn.task import PLAIN, Task

Ints = npt.NDArray[np.int64]

# purposes of random numbers; these values determine the results: never change one, add new ones at the end
_DROP, _TIME_STRETCH, _TIME_SHIFT, _TIME_JITTER, _WITHIN_STEP, _CHANNEL_SHIFT, _CHANNEL_JITTER = range(7)
_TIME_CROP, _MIX, _SPATIAL_SHIFT, _FLIP, _ROTATION = range(7, 12)
_BLEND, _BLEND_SPIKES, _TIME_MASK, _CHANNEL_MASK = range(12, 16)

_SPATIAL = ("spatial_shift", "flip", "rotation")
_CHANNELS = ("channel_shift", "channel_jitter", "channel_mask")


@dataclass(frozen=True)
class Augment:
    """How strongly each sample is changed; 0 turns a change off.

    For spike (t, n) of a sample, or each event that a spike counts, with u uniform in [0, 1) and z normal, drawn again for
    each spike, and f, Δt, Δn drawn once for each sample and epoch, in this order: spikes come from two samples (`blend`
    or `mix`), those outside the crop or inside a mask are left out, spikes are dropped, and the others move:

        t' = floor((t + u)·f + time_jitter·z) + Δt        n' = n + Δn + round(channel_jitter·z)

    For cameras n' is the neuron of the same polarity at the rotated, mirrored and shifted pixel. Spikes that leave the
    window or the population are left out; spikes that coincide become one, whose value counts them if spikes have
    values. Δt, Δn, shifts and angles are uniform in the integers between -strength and strength; f is uniform in
    [1 - time_stretch, 1 + time_stretch]. A crop removes a uniform number of steps, up to its share of the window, split at a
    uniform place between beginning and end. A mask (SpecAugment, Park et al. 2019) silences a uniform number of neighboring steps or channels at a uniform place.

    `blend` combines two samples of one class, as Nowotny et al. 2022 do for SHD: both move towards each other by half
    the distance between their centers, in time and across channels (cameras: in time), then each spike of either is kept
    with probability one half. The label stays. A sample without a partner (alone in its class, silent, or drawn with
    itself) stays as it is; a blended sample is not mixed.

    `mix` is CutMix (Yun et al. 2019) along time: the label becomes soft, and each of the two classes gets the share of
    spikes from its sample, counted before anything else changes. Spikes are counted rather than steps because a silent
    section of a recording says nothing about its class.

    If each step has a label, the labels move with their steps (`label_steps`), and a section that `mix` replaces brings its own.

    Raises:
        ConfigError: a strength is negative, not finite or too large.
    """

    time_jitter: float = option(0.0, "standard deviation, in steps, of each spike's move in time", low=0)
    time_shift: int = option(0, "largest move of the whole sample in time, steps", low=0, high=10**9)
    time_stretch: float = option(0.0, "largest relative change of speed", low=0, below=1)
    time_crop: float = option(0.0, "largest share of the window silenced at its ends", low=0, below=1)
    channel_shift: int = option(
        0, "largest move of the whole sample over channels, after pooling; not for cameras", low=0, high=10**9
    )
    channel_jitter: float = option(
        0.0, "standard deviation, in channels, of each spike's move over channels; not for cameras", low=0
    )
    event_drop: float = option(0.0, "probability of dropping a spike", low=0, high=1)
    time_mask: float = option(0.0, "largest share of the window silenced at a random place", low=0, high=1)
    channel_mask: int = option(
        0, "largest number of neighboring channels silenced, after pooling; not for cameras", low=0, high=10**9
    )
    blend: float = option(
        0.0, "probability of combining two samples of the same class, half the spikes of each", low=0, high=1
    )
    mix: float = option(0.0, "probability of replacing a section of the window by another sample's", low=0, high=1)
    spatial_shift: int = option(
        0, "largest move of the image along x and along y, pixels; for cameras", low=0, high=10**9
    )
    flip: float = option(
        0.0, "probability of mirroring the image left to right; not for digits, letters or hands", low=0, high=1
    )
    rotation: int = option(0, "largest angle, whole degrees, about the center; for cameras", low=0, high=180)

    def __post_init__(self) -> None:
        check(self, "augment.{}:", ConfigError)

    def __bool__(self) -> bool:
        """False if every strength is 0, so that nothing changes."""
        return any(getattr(self, name) for name in options_of(Augment))

    def check(self, sensor: Sensor | None, task: Task = PLAIN, description: Mapping[str, Any] | None = None) -> None:
        """Raises `ConfigError` if a change does not apply to the data: image changes need a sensor, channel changes none; changes
        that combine samples need labels that can be combined; direct encoding allows none."""
        for name, fits in (("blend", task.is_plain), ("mix", task.per_step or not task.has_values)):
            if getattr(self, name) and not fits:
                raise ConfigError(
                    f"augment: {name} combines samples of classes, but the task of this data is: {task}; set it to 0"
                )
        if self and direct.steps_of(description or {}) is not None:
            raise ConfigError(
                f"augment: is {self}, which moves or drops spikes, but direct encoding gives every step the same numbers; set all to 0, or "
                "choose another data.encoding"
            )
        for name in _SPATIAL if sensor is None else _CHANNELS:
            if getattr(self, name):
                change = "is for the images of a camera" if sensor is None else "is for rows of channels"
                others = f"time_*, event_drop, blend, mix, {', '.join(_CHANNELS if sensor is None else _SPATIAL)}"
                size = "neurons without an image" if sensor is None else f"{sensor.width} × {sensor.height} pixels"
                raise ConfigError(f"augment: {name} {change}; this data set has {size}; set it to 0; allowed: {others}")

    def blending(self, indices: Ints, *, labels: Ints, partners: Ints, seed: int, epoch: int) -> Ints:
        """int64[B], the sample to blend each one with; its own number if it is not blended.

        Args:
            indices: int64[B], number of each sample in its data set.
            labels: int64[n_samples], class of every sample of the data set.
            partners: int64[n], samples to blend with: the training part, the same on every rank.
            seed, epoch: see `apply`.
        """
        if not self.blend:
            return indices
        by_class, spans = classmates(labels, partners)
        first, stop = spans[indices].T
        key = hashing.keys(seed, epoch, indices, _BLEND)
        blended = (hashing.uniform(key, 0) < self.blend) & (first < stop)
        mates: Ints = indices.copy()
        mates[blended] = by_class[(first + _below(stop - first, key, 1))[blended]]
        return mates

    def label_steps(self, indices: Ints, *, n_steps: int, seed: int, epoch: int) -> Ints | None:
        """int64[B, T], for each step of a changed sample the step whose label it takes; outside 0 to T - 1: none. None: labels stay.

        Labels move as whole samples do, by `time_stretch` and `time_shift`, and a step takes the label of the moment at its middle;
        `time_jitter` moves single spikes only.

        Args:
            indices, n_steps, seed, epoch: see `apply`.
        """
        if not self.time_stretch and not self.time_shift:
            return None
        step = np.arange(n_steps)
        shift = _shift(self.time_shift, hashing.keys(seed, epoch, indices, _TIME_SHIFT))[:, None]
        u = hashing.uniform(hashing.keys(seed, epoch, indices, _TIME_STRETCH), 0)
        speed = (1.0 - self.time_stretch + 2.0 * self.time_stretch * u)[:, None]
        sources: Ints = np.floor((step - shift + 0.5) / speed).astype(np.int64)
        return sources

    def merge(
        self,
        own: tuple[Ints, Ints, Ints],
        theirs: tuple[Ints, Ints, Ints],
        *,
        indices: Ints,
        n_steps: int,
        n_neurons: int,
        seed: int,
        epoch: int,
        sensor: Sensor | None = None,
    ) -> tuple[Ints, Ints, Ints]:
        """The spikes `(sample, step, unit)` of blended samples: those of each sample, then those of its partner.

        Args:
            own, theirs: `(sample, step, unit)`, int64[S] each, spikes of the samples and of the partners that `blending`
                chose, sample ascending; partners' spikes only for blended samples.
            indices, n_steps, n_neurons, seed, epoch, sensor: see `apply`.
        """
        n_samples = indices.size
        n_own, n_theirs = (np.bincount(part[0], minlength=n_samples) for part in (own, theirs))
        blended = (n_own > 0) & (n_theirs > 0)
        moved: list[Ints] = []
        for axis in (1, 2):
            centers = [
                np.bincount(part[0], part[axis], n_samples) / np.maximum(1, n)
                for part, n in ((own, n_own), (theirs, n_theirs))
            ]
            apart = np.rint(centers[1] - centers[0]).astype(np.int64)
            if axis == 2 and sensor is not None:
                apart = np.zeros_like(apart)
            half = np.where(blended, apart >> 1, 0)
            moved.append(np.concatenate([own[axis] + half[own[0]], theirs[axis] + (half - apart)[theirs[0]]]))
        sample = np.concatenate([own[0], theirs[0]])
        order = np.argsort(sample, kind="stable")
        sample, step, unit = sample[order], moved[0][order], moved[1][order]
        number = np.arange(sample.size) - np.searchsorted(sample, np.arange(n_samples))[sample]
        half_of_them = hashing.uniform(hashing.keys(seed, epoch, indices, _BLEND_SPIKES)[sample], number) < 0.5
        keep = np.where(blended[sample], half_of_them, order < own[0].size)
        keep &= (step >= 0) & (step < n_steps) & (unit >= 0) & (unit < n_neurons)
        return sample[keep], step[keep], unit[keep]

    def mixing(self, indices: Ints, *, partners: Ints, n_steps: int, seed: int, epoch: int) -> tuple[Ints, Ints, Ints]:
        """The section of each sample that a partner replaces: `(partner, start, stop)`, int64[B] each, steps [start, stop).

        Args:
            indices: int64[B], number of each sample in its data set.
            partners: int64[n], samples to take sections from: the training part, the same on every rank.
            n_steps, seed, epoch: see `apply`.
        """
        if not self.mix:
            return indices, np.zeros_like(indices), np.zeros_like(indices)
        key = hashing.keys(seed, epoch, indices, _MIX)
        mixed = hashing.uniform(key, 0) < self.mix
        partner = partners[_below(partners.size, key, 1)]
        length = _below(n_steps + 1, key, 2)
        start = _below(n_steps - length + 1, key, 3)
        return np.where(mixed, partner, indices), np.where(mixed, start, 0), np.where(mixed, start + length, 0)

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
        sensor: Sensor | None = None,
    ) -> tuple[Ints, Ints, Ints]:
        """The changed spikes `(sample, step, unit)` in their given order, without those outside; none merged yet.

        Args:
            sample: int64[S], position in the batch, 0 .. B-1, ascending: each sample's spikes lie together.
            step, unit: int64[S], place of each spike.
            indices: int64[B], number of each sample in its data set; with `seed` and `epoch` it determines the randomness.
            n_steps, n_neurons: T, N.
            seed, epoch: see `indices`.
            sensor: the camera's; None for other data.
        """
        starts = np.searchsorted(sample, np.arange(indices.size))
        number = np.arange(sample.size) - starts[sample]

        def per_sample(purpose: int) -> hashing.UInt64s:
            return hashing.keys(seed, epoch, indices, purpose)

        def per_spike(purpose: int) -> hashing.UInt64s:
            return per_sample(purpose)[sample]

        keep = np.ones(sample.size, bool)
        if self.time_crop:
            key = per_sample(_TIME_CROP)
            cut = _below(int(self.time_crop * n_steps) + 1, key, 0)
            start = _below(cut + 1, key, 1)
            keep &= (step >= start[sample]) & (step < (start + n_steps - cut)[sample])
        for mask, axis, most in (
            (_TIME_MASK, step, int(self.time_mask * n_steps)),
            (_CHANNEL_MASK, unit, min(self.channel_mask, n_neurons)),
        ):
            if most:
                key, size = per_sample(mask), n_steps if axis is step else n_neurons
                length = _below(most + 1, key, 0)
                start = _below(size - length + 1, key, 1)
                keep &= (axis < start[sample]) | (axis >= (start + length)[sample])
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
            step = step + _shift(self.time_shift, per_sample(_TIME_SHIFT))[sample]
        if sensor is not None and (self.spatial_shift or self.flip or self.rotation):
            unit = self._moved_images(sensor, per_sample)[sample, unit]
            keep &= unit >= 0
        if self.channel_shift:
            unit = unit + _shift(self.channel_shift, per_sample(_CHANNEL_SHIFT))[sample]
        if self.channel_jitter:
            move = self.channel_jitter * hashing.normal(per_spike(_CHANNEL_JITTER), number)
            unit = unit + np.rint(move).astype(np.int64)
        keep &= (step >= 0) & (step < n_steps) & (unit >= 0) & (unit < n_neurons)
        return sample[keep], step[keep], unit[keep]

    def _moved_images(self, sensor: Sensor, per_sample: Callable[[int], hashing.UInt64s]) -> Ints:
        """int64[B, N], for each sample and neuron, the neuron its spikes move to; -1 outside."""
        n_pixels = sensor.width * sensor.height
        angle = _below(2 * self.rotation + 1, per_sample(_ROTATION), 0)
        mirrored = hashing.uniform(per_sample(_FLIP), 0) < self.flip
        dx, dy = (_shift(self.spatial_shift, per_sample(_SPATIAL_SHIFT), counter) for counter in (0, 1))
        pixel = rotations(sensor.width, sensor.height, self.rotation)[angle]
        y, x = np.divmod(pixel.astype(np.int64), sensor.width)
        x = np.where(mirrored[:, None], sensor.width - 1 - x, x) + dx[:, None]
        y = y + dy[:, None]
        inside = (pixel >= 0) & (x >= 0) & (x < sensor.width) & (y >= 0) & (y < sensor.height)
        planes = np.arange(sensor.n_polarities)[:, None] * n_pixels
        to = np.where(inside, y * sensor.width + x, -1)[:, None, :]
        return np.where(to < 0, -1, planes + to).reshape(len(pixel), sensor.n_neurons)


def classmates(labels: Ints, partners: Ints) -> tuple[Ints, Ints]:
    """The partners class by class, int64[n], and the range in it with each sample's class, int64[n_samples, 2]."""
    by_class = partners[np.argsort(labels[partners], kind="stable")]
    ends = [np.searchsorted(labels[by_class], labels, side) for side in ("left", "right")]
    return by_class, np.stack(ends, axis=1).astype(np.int64)


@functools.lru_cache(maxsize=4)
def rotations(width: int, height: int, largest: int) -> npt.NDArray[np.int32]:
    """int32[2·largest + 1, height·width], for the angles -largest .. largest degrees the pixel nearest to each pixel's
    new place, -1 outside; read-only."""
    angle = np.deg2rad(np.arange(-largest, largest + 1, dtype=np.float64))[:, None]
    y, x = np.divmod(np.arange(width * height), width)
    x, y = x - (width - 1) / 2, y - (height - 1) / 2
    # rounded first: if a pixel lands halfway between two, the last bit of a cosine must not decide
    to_x = np.rint(np.round(np.cos(angle) * x - np.sin(angle) * y + (width - 1) / 2, 9)).astype(np.int64)
    to_y = np.rint(np.round(np.sin(angle) * x + np.cos(angle) * y + (height - 1) / 2, 9)).astype(np.int64)
    inside = (to_x >= 0) & (to_x < width) & (to_y >= 0) & (to_y < height)
    table: npt.NDArray[np.int32] = np.where(inside, to_y * width + to_x, -1).astype(np.int32)
    table.setflags(write=False)
    return table


def _below(n: int | Ints, key: hashing.UInt64s, counter: int) -> Ints:
    """int64[B], uniform in 0 .. n-1."""
    return np.floor(hashing.uniform(key, counter) * n).astype(np.int64)


def _shift(largest: int, key: hashing.UInt64s, counter: int = 0) -> Ints:
    """int64[B], uniform in -largest .. largest."""
    return _below(2 * largest + 1, key, counter) - largest
