"""The memory that passes need on a device, before anything is allocated."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from sparsesnn.engines.gpu.layers import GpuLayer
from sparsesnn.engines.gpu.layout import GROUP, Wave, count_slots, make_waves

#: entries per sample that lists have room for at first, as a share of N·T
FIRST_ROOM = 0.05
#: the factor on the largest need when room is made
MORE_ROOM = 1.25


def first_room(n: int, n_steps: int) -> int:
    """Entries of a sample's lists for which there is room at first."""
    return min(n * n_steps, max(64, int(FIRST_ROOM * n * n_steps)))


@dataclass(frozen=True)
class Shape:
    """The shape of batches that buffers are made for.

    Args:
        n_steps, n_samples: T, B.
        n_input: room for entries of the input's lists.
        rooms: by population that fires, entries per sample that its lists have room for.
        saves: whether a backward pass may follow.
        graded: whether the input's spikes have values.
        thinned: the populations whose lists dropout thins for the layers that read them.
        n_given: steps of given currents, 1 if they are the same at all steps; None: the input is lists.
        learns_input: whether the gradient of given currents is wanted.
    """

    n_steps: int
    n_samples: int
    n_input: int
    rooms: Mapping[str, int]
    saves: bool
    graded: bool = False
    thinned: Collection[str] = ()
    n_given: int | None = None
    learns_input: bool = False

    @property
    def n_lists(self) -> int:
        return self.n_steps * self.n_samples

    @property
    def n_groups(self) -> int:
        return -(-self.n_samples // GROUP)

    @property
    def n_words(self) -> int:
        """Words of 32 bits for the events of a sender in a group of samples."""
        return -(-self.n_steps * GROUP // 32)

    @cached_property
    def waves(self) -> list[Wave]:
        """Of the backward pass."""
        return make_waves(self.n_samples)

    @property
    def n_slots(self) -> int:
        """Slots for the sums of leaves in each gradient of a weight."""
        return count_slots(self.waves)


def saving(layers: Mapping[str, GpuLayer], shape: Shape) -> frozenset[str]:
    """The layers that a backward pass comes through: they list near-spikes, and keep what their gradients need."""
    found: set[str] = set()
    for name, layer in layers.items():
        given = layer.is_given and shape.learns_input
        if shape.saves and (layer.learns or given or any(link.pre in found for link in layer.sources)):
            found.add(name)
    return frozenset(found)


def buffers(layers: Mapping[str, GpuLayer], shape: Shape) -> dict[str, int]:
    """Bytes of each buffer of a shape, by name."""
    lists = shape.n_lists
    found: dict[str, int] = {}
    if shape.n_given is None:
        found |= {"input, lists": 12 * lists, "input, ids": 2 * shape.n_input}
    if shape.graded:
        found["input, values"] = 4 * shape.n_input
    most_samples = max(wave.n_samples for wave in shape.waves)
    n_words = n_currents = 0
    saved = saving(layers, shape)
    for name, layer in layers.items():
        saves = name in saved
        if layer.is_given:
            n_bytes = 4 * (shape.n_given or 0) * shape.n_samples * layer.n
            found["input, currents"] = n_bytes
            if shape.learns_input:
                found["input, gradient"] = n_bytes
        found[f"{name}, numbers"] = 4 * layer.n_numbers * layer.n_padded
        n_learnt = len(layer.learnt)
        if layer.fires:
            slots = shape.n_samples * shape.rooms[name]
            found[f"{name}, lists"] = 4 * layer.n_counts * lists
            found[f"{name}, needed"] = 4 * shape.n_samples
            found[f"{name}, ids"] = 2 * slots
            if layer.capacity:
                found[f"{name}, rotation"] = 16
            if name in shape.thinned:
                found[f"{name}, draws"] = 16 * (1 + shape.n_samples)
                found[f"{name}, thinned lists"] = 8 * lists
                found[f"{name}, thinned ids"] = 2 * slots
            if saves:
                found[f"{name}, fields"] = 4 * slots * layer.n_fields
                found[f"{name}, gradients of values"] = 4 * slots
                if name in shape.thinned:
                    found[f"{name}, gradients of thinned values"] = 4 * slots
        else:
            found[f"{name}, potentials"] = 4 * lists * layer.n
            if saves:
                found[f"{name}, gradient of potentials"] = 4 * lists * layer.n
                if n_learnt:
                    found[f"{name}, rows"] = 4 * lists * layer.n_padded * (layer.n_states + 1)
        if not saves:
            continue
        if layer.has_bias:
            found[f"{name}, gradient of bias"] = 4 * shape.n_groups * layer.n_padded
        if n_learnt:
            rows = shape.n_groups if layer.fires else shape.n_samples
            found[f"{name}, gradient of parameters"] = 4 * n_learnt * layer.n_padded * rows
        n_currents = max(n_currents, layer.n_padded)
        n_words = max([n_words, *(-(-most_samples // GROUP) * link.n_pre * shape.n_words for link in layer.links)])
    if shape.saves:
        found["gradient of currents"] = 4 * shape.n_steps * most_samples * n_currents
        found["events by sender"] = 4 * n_words
        found["leaves"] = 12 * sum(len(wave.leaves) for wave in shape.waves)
        found["pairs of leaves"] = 8 * sum(len(wave.pairs) for wave in shape.waves)
    return found
