"""A network that runs on and on with the weights that it has now."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from sparsesnn.engines.cpu.chain import Chain
from sparsesnn.engines.cpu.layer import Snapshot
from sparsesnn.engines.cpu.one_call import any_hooks
from sparsesnn.engines.dense import DenseSpikes
from sparsesnn.errors import NumericError, ShapeError
from sparsesnn.output import LayerState, Output, check_state
from sparsesnn.parameters import computed_by
from sparsesnn.spikes import SpikeBatch
from sparsesnn.wording import count


class LiveModel:
    """A network that runs on and on, a step or a few at a time: `live = model.live(); output = live(spikes)`.

    Each call goes on where the last one ended, with the numbers of `model(spikes, state)` in evaluation, bit for bit, and without
    gradients. The weights are those that the model had when this was made, in the order in which the engine reads them, so that a
    step costs what its spikes cost. Later changes of the model, of whatever kind, do not arrive here: make another.

    Memory: as much again as the model's weights.

    Attributes: `state`, per population, as `Output.state`; None at the beginning. It can be set.
    """

    def __init__(self, model: Any) -> None:
        self.reset()
        self._chain: Chain | None = None
        if model.backend != "cpu":
            self._model = copy.deepcopy(model).eval()
            return
        layers = nn.ModuleDict()
        with model.settled():
            for name, layer in model.layers.items():
                layers[name] = _still(name, layer)
        self._model = copy.copy(model)
        self._model._modules = {**model._modules, "layers": layers}
        self._model.eval()
        if not any_hooks([model]) and Chain.fits(model.network, dict(layers)):
            self._chain = Chain(model.network, dict(layers))

    @property
    def state(self) -> Mapping[str, LayerState] | None:
        return self._state

    @state.setter
    def state(self, state: Mapping[str, LayerState] | None) -> None:
        check_state(state)
        self._state = state
        self._n_samples: int | None = None  # whoever sets a state may change it

    def __call__(self, spikes: SpikeBatch | DenseSpikes) -> Output:
        """Runs the next T steps of B samples; B is that of the first call."""
        if isinstance(spikes, (SpikeBatch, DenseSpikes)) and self._n_samples not in (None, spikes.n_samples):
            raise ShapeError(
                f"live: {count(spikes.n_samples, 'sample')} cannot go on where {self._n_samples} ended; begin again with reset()"
            )
        with torch.no_grad():
            if self._chain and isinstance(spikes, SpikeBatch) and spikes.n_neurons == self._chain.n_input:
                output = self._chain(spikes, self.state)
            else:
                output = self._model(spikes, self.state)
        self._state, self._n_samples = output.state, spikes.n_samples
        return output

    def reset(self) -> None:
        """Begins again: zero potentials, no past spikes."""
        self.state = None

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: a copy makes its own chain."""
        return {**self.__dict__, "_chain": self._chain is not None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        network, layers = self._model.network, dict(self._model.layers)
        self._chain = Chain(network, layers) if state["_chain"] else None


def _still(name: str, layer: Any) -> Any:
    """A layer as it is now. It shares the weights, of which the engine reads the shapes alone."""
    still = copy.copy(layer)
    # PyTorch computes nothing here: neither a parametrization, which is a property of the class, nor a hook before the pass
    still.__class__ = parametrize.type_before_parametrizations(layer)
    still._modules = {k: x for k, x in layer._modules.items() if k != "parametrizations"}
    still._forward_pre_hooks = OrderedDict((k, h) for k, h in layer._forward_pre_hooks.items() if not computed_by(h))
    weights = {c.name for c in layer.incoming}
    for kind in ("_parameters", "_buffers"):
        tensors = getattr(layer, kind).items()
        setattr(still, kind, {k: x if x is None or k in weights else x.detach().clone() for k, x in tensors})
    for k in layer.computed:
        still.__dict__.pop(k, None)
        still._buffers[k] = layer.tensor(k).detach()
    training, layer.training = layer.training, False  # its numbers are those of evaluation
    try:
        still.snapshot = Snapshot.of(layer)
    except NumericError as error:
        raise NumericError(f"{name}: {error}") from None
    finally:
        layer.training = training
    return still
