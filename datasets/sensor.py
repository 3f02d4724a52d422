"""The grid of a camera's neurons: how a pixel and a polarity make an id.

    id = (polarity · height + y) · width + x

which is the place in a row-major frame [polarity, y, x], as Tonic's `ToFrame` makes it: a batch's dense spikes
[T, B, N] become frames by `.view(T, B, n_polarities, height, width)`. The description of a camera's data set has an
entry `description["sensor"] = [width, height, n_polarities]`, after pooling; others have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparsesnn.errors import DataError
from sparsesnn.options import plain, whole
from sparsesnn.wording import count

#: the entry of `EventSet.description`
KEY = "sensor"


@dataclass(frozen=True)
class Sensor:
    """Size of the grid: width and height in pixels, polarities (channels) per pixel."""

    width: int
    height: int
    n_polarities: int = 1

    @property
    def n_neurons(self) -> int:
        """N = n_polarities · height · width."""
        return self.n_polarities * self.height * self.width

    @classmethod
    def described(cls, description: Mapping[str, Any], n_neurons: int) -> Sensor | None:
        """The sensor named in a description; None if there is none.

        Raises:
            DataError: the entry is not three positive whole numbers whose product is `n_neurons`.
        """
        entry = description.get(KEY)
        if entry is None:
            return None
        entry = plain(entry)
        sizes = [whole(size) or 0 for size in entry] if isinstance(entry, (list, tuple)) else []
        if len(sizes) == 3 and min(sizes) > 0:
            sensor = cls(*sizes)
            if sensor.n_neurons == n_neurons:
                return sensor
        raise DataError(
            f"description: {KEY} is {entry!r} for {count(n_neurons, 'neuron')}; "
            "give [width, height, n_polarities], whose product is the number of neurons"
        )

    def entry(self) -> list[int]:
        """The sensor's entry in a description."""
        return [self.width, self.height, self.n_polarities]
