"""The runner of the engine `dense`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from sparsesnn.currents import Currents
from sparsesnn.engines.dense.fused import spike_dtype_of
from sparsesnn.engines.dense.layer import choose_mode, run_layer
from sparsesnn.engines.dense.spikes import DenseSpikes, SpikesByName
from sparsesnn.engines.runner import Runner, as_tensor, weights_like
from sparsesnn.output import LayerState
from sparsesnn.spikes import SpikeBatch


class DenseRunner(Runner):
    """Takes and returns tensors, and `DenseSpikes` between layers of the mode "fused"."""

    @property
    def is_traceable(self) -> bool:
        return self.options.dense_mode in ("step", "hoist")  # the fused loop is not an operation of PyTorch

    def read(self, model: Any, spikes: Any) -> Tensor | DenseSpikes | Currents:
        if isinstance(spikes, (DenseSpikes, Currents)):
            return spikes
        like = weights_like(model)
        if not isinstance(spikes, SpikeBatch) or spikes.values is not None:
            return as_tensor(super().read(model, spikes))
        if choose_mode(self.options.dense_mode, like.device, like.dtype) == "fused":
            return DenseSpikes.from_lists(spikes, like.dtype, like.device, spike_dtype_of(like))
        return DenseSpikes.from_lists(spikes, like.dtype, like.device, like.dtype).fired

    def by_name(self, fired: Mapping[str, Any]) -> Mapping[str, Any]:
        return SpikesByName(fired) if any(isinstance(x, DenseSpikes) for x in fired.values()) else fired

    def run_layer(
        self,
        layer: Any,
        sources: Sequence[Any],
        state: LayerState | None,
        *,
        packed: bool,
        first_sample: int,
        potentials: bool = False,
    ) -> tuple[Any, LayerState, Tensor | None]:
        return run_layer(layer, layer.arrived(sources, state), state, packed=packed, potentials=potentials)
