"""A network that runs continuously with its current weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from sparsesnn.currents import Currents
from sparsesnn.errors import ShapeError
from sparsesnn.network import gives_currents
from sparsesnn.output import LayerState, Output, check_state
from sparsesnn.spikes import SpikeBatch
from sparsesnn.tracers import untraced
from sparsesnn.wording import count

if TYPE_CHECKING:
    from sparsesnn.engines.dense import DenseSpikes


class LiveModel:
    """A network that runs continuously, one or a few steps at a time: `live = model.live(); output = live(spikes)`.

    Each call continues where the last one ended. The results equal `model(spikes, state)` in evaluation, bit for bit, and have no
    gradients. It keeps a copy of the weights, made at its creation; on the backend `cpu` in the order in which the engine reads
    them, so that a step need not arrange them again. Later changes to the model have no effect here: make a new `LiveModel`.

    Memory: the size of the model's weights once more.

    Call it with a `SpikeBatch` of T steps and B samples, or with currents (`n_steps`: see `Model.forward`); it returns an
    `Output`. B is that of the first call; another B is a `ShapeError` until `reset()`.

    Attributes:
        state: of each population, as in `Output.state`; None before the first call. It can be set.
    """

    def __init__(self, model: Any) -> None:
        self.reset()
        self._model = model.runner.still(model)
        self._call = self._model.runner.live_call(self._model)
        self._n_input = model.network.populations[model.source].n
        self._reads_currents = gives_currents(model.network)

    @property
    def state(self) -> Mapping[str, LayerState] | None:
        return self._state

    @state.setter
    def state(self, state: Mapping[str, LayerState] | None) -> None:
        check_state(state)
        self._state = state
        self._n_samples: int | None = None  # a new state may have another B

    @untraced
    def __call__(self, spikes: SpikeBatch | DenseSpikes | Any, *, n_steps: int | None = None) -> Output:
        """Runs the next T steps of B samples; B is that of the first call. `n_steps`: T of currents [B, N], see `Model.forward`."""
        if self._reads_currents:
            spikes = Currents.of(spikes, n_steps, "live", self._n_input)
        if hasattr(spikes, "n_samples") and self._n_samples not in (None, spikes.n_samples):
            raise ShapeError(
                f"live: {count(spikes.n_samples, 'sample')} cannot continue a sequence of {self._n_samples}; begin again with reset()"
            )
        with torch.no_grad():
            fits = isinstance(spikes, SpikeBatch) and spikes.n_neurons == self._n_input and not self._reads_currents
            if self._call and (fits or isinstance(spikes, Currents)):
                output: Output = self._call(spikes, self.state)
            else:
                output = self._model(spikes, self.state)
        self._state, self._n_samples = output.state, spikes.n_samples
        return output

    def reset(self) -> None:
        """Starts over: zero potentials, no past spikes."""
        self.state = None

    def __getstate__(self) -> dict[str, Any]:
        """State for copies and pickles; a copy makes its own call."""
        return {**self.__dict__, "_call": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._call = self._model.runner.live_call(self._model)
