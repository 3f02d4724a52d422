"""The contestants' common task, as a file between environments: spikes, labels, weights, and the losses to reach."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: too small to move a weight, so that all steps do the same work; not 0, which a compiler could use
LEARNING_RATE = 1e-12
BETA = 0.95  # membrane decay of all populations
THRESHOLD = 1.0
SLOPE = 10.0  # of the fast sigmoid, for contestants that have it


@dataclass(frozen=True)
class Maps:
    """A network with convolutions; the input's neurons are in the order channels, height, width.

    Args:
        net: in sparsesnn's format.
        layers: for other libraries, see `cameras.layers_of`.
        origin: of the spikes.
    """

    net: str
    layers: list[list[Any]]
    origin: str

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the input."""
        channels, height, width = map(int, self.net.partition(":")[0].split("x"))
        return channels, height, width


@dataclass(frozen=True)
class Task:
    """One training step.

    Args:
        spikes: uint8[T, B, N], 0 or 1.
        labels: int64[B].
        weights: float32[n_pre, n_post] per layer, the readout last; of hidden layers with delays float32[n_delays, n_pre, n_post];
            of convolutions float32[channels, channels before, height, width].
        recurrent: per hidden layer float32[n, n], or None.
        losses: by kind of semantics (`catalog.SEMANTICS`), the expected cross-entropy of the first step.
        activity: spikes per neuron and step of each population, with kind "subtract".
        delays: steps; a weight of a hidden layer for each. Empty: one weight, without delay.
        maps: for a network with convolutions.
        unreset: like `activity`, with kind "none"; empty if unknown.
    """

    spikes: NDArray[np.uint8]
    labels: NDArray[np.int64]
    weights: list[NDArray[np.float32]]
    recurrent: list[NDArray[np.float32] | None]
    losses: dict[str, float]
    activity: dict[str, float]
    delays: tuple[int, ...] = ()
    maps: Maps | None = None
    unreset: dict[str, float] = field(default_factory=dict)

    @property
    def n_steps(self) -> int:
        return int(self.spikes.shape[0])

    @property
    def n_samples(self) -> int:
        return int(self.spikes.shape[1])

    def taps(self, layer: int) -> list[tuple[int, NDArray[np.float32]]]:
        """Each delay of a layer's input, in steps, and its weight [n_pre, n_post]."""
        weight = self.weights[layer]
        return [(0, weight)] if weight.ndim == 2 else list(zip(self.delays, weight, strict=True))

    def dense(self) -> NDArray[np.float32]:
        """float32[T, B, N]."""
        return self.spikes.astype(np.float32)

    def save(self, path: Path) -> None:
        arrays: dict[str, Any] = {"spikes": np.packbits(self.spikes, axis=-1), "labels": self.labels}
        arrays |= {f"weight{k}": weight for k, weight in enumerate(self.weights)}
        arrays |= {f"recurrent{k}": w for k, w in enumerate(self.recurrent) if w is not None}
        about = {
            "n_input": self.spikes.shape[-1],
            "losses": self.losses,
            "activity": self.activity,
            "delays": self.delays,
            "unreset": self.unreset,
            "maps": None if self.maps is None else asdict(self.maps),
        }
        arrays["about"] = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
        with path.open("wb") as file:
            np.savez(file, **arrays)

    @classmethod
    def load(cls, path: Path) -> Task:
        """Reads a task. Errors: `ValueError` for other files."""
        with np.load(path, allow_pickle=False) as file:
            missing = {"about", "spikes", "labels", "weight0"} - set(file.files)
            if missing:
                raise ValueError(f"{path}: has no {sorted(missing)}; give a file of Task.save")
            about = json.loads(file["about"].tobytes())
            n_layers = sum(name.startswith("weight") for name in file.files)
            spikes = np.unpackbits(file["spikes"], axis=-1, count=about["n_input"])
            weights = [file[f"weight{k}"] for k in range(n_layers)]
            recurrent = [file[name] if (name := f"recurrent{k}") in file.files else None for k in range(n_layers - 1)]
            losses, activity, delays = about["losses"], about["activity"], tuple(about["delays"])
            maps = about["maps"] and Maps(**about["maps"])
            return cls(spikes, file["labels"], weights, recurrent, losses, activity, delays, maps, about["unreset"])
