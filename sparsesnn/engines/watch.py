"""Warnings for custom training loops: populations that never fire, swapped axes, gradients that are not summed over processes.

`sparsesnn.train` has its own reports (`sparsesnn/train/health.py`) and uses none of this.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from sparsesnn.layers import Neuron, fires
from sparsesnn.network import Network

#: training steps without a spike before a population is reported; while all fire, only every 20th step is checked
SILENT_STEPS = 20
#: passes with almost no spikes at the beginning of training before the input is reported
FIRST_PASSES = 3
#: an input with more samples per time step than this may have swapped axes
SAMPLES_PER_STEP = 4
#: there are almost no spikes if every population has fewer than this per sample, on average
SPIKES_PER_SAMPLE = 0.25


class Watch:
    """Counts the training steps of a model; each warning is given once.

    Args:
        network: the model's network. Populations of fixed activity are not counted: their lists are full by definition.
    """

    def __init__(self, network: Network) -> None:
        self._fires = {name: p for name, p in network.populations.items() if fires(p)}
        self._silent = {name: 0 for name, p in self._fires.items() if p.activity != "fixed"}
        self._n_steps = self._next_look = 0
        self._n_passes = 0 if self._fires else FIRST_PASSES
        self._on_ranks = False

    def learns(self) -> None:
        """Called before each `Model.learn`."""
        if self._n_steps < self._next_look or self._on_ranks or not torch.distributed.is_available():
            return
        if torch.distributed.is_initialized() and (size := torch.distributed.get_world_size()) > 1:
            self._on_ranks = True
            _warn(
                f"Model.learn: torch.distributed has {size} processes, but learn leaves each with the gradients of its own samples, also "
                "inside DistributedDataParallel; write loss(ddp(spikes)).backward() instead, where ddp = "
                "DistributedDataParallel(model), which averages the gradients"
            )

    def ran(self, spikes: Any, activity: Callable[[], Mapping[str, float]]) -> None:
        """Called after a training pass that begins a sequence; checks only the first few.

        Args:
            spikes: the input.
            activity: gives the activity of all spiking populations.
        """
        if self._n_passes >= FIRST_PASSES:
            return
        n_steps, n_samples = int(spikes.shape[0]), int(spikes.n_samples)
        if (
            n_steps == 1
            or n_samples <= SAMPLES_PER_STEP * n_steps
            or any(share * n_steps * self._fires[name].n >= SPIKES_PER_SAMPLE for name, share in activity().items())
        ):
            self._n_passes = FIRST_PASSES
            return
        self._n_passes += 1
        if self._n_passes == FIRST_PASSES:
            _warn(
                f"Model: nearly no neuron fired in the first {FIRST_PASSES} training steps, and the input has T={n_steps} steps of "
                f"B={n_samples:,} samples; if the tensor is [batch, time, neurons], give SpikeBatch.from_dense(x, batch_first=True)"
            )

    def learned(self, activity: Callable[[], Mapping[str, float]]) -> None:
        """Called after each `Model.learn`."""
        self._n_steps += 1
        if self._n_steps < self._next_look:
            return
        found = activity()
        for name in list(self._silent):
            self._silent[name] = 0 if found[name] else self._silent[name] + 1
            if self._silent[name] == SILENT_STEPS:
                del self._silent[name]
                _warn(_silence(name, self._fires[name]))
        if not any(self._silent.values()):
            self._next_look = self._n_steps + SILENT_STEPS


def _warn(message: str) -> None:
    """Warns at the line of the user's program."""
    ours = str(Path(__file__).parents[1]), str(Path(torch.__file__).parent)
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(ours):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def _silence(name: str, population: Neuron) -> str:
    now = {x: getattr(population, x) for x in ("threshold", "grad_threshold")}
    shown = {x: f" (now {value:g})" if isinstance(value, float) else "" for x, value in now.items()}
    return (
        f"Model.learn: {name!r} fired no spike in {SILENT_STEPS} training steps, so it learns little or nothing; give it larger weights, "
        f"such as those of sparsesnn.init.init_activity, a lower threshold{shown['threshold']}, or a lower "
        f"grad_threshold{shown['grad_threshold']}"
    )
