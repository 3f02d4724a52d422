"""The runner of the engine `dense`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from sparsesnn.currents import Currents
from sparsesnn.engines.dense.layer import choose_mode, run_layer
from sparsesnn.engines.dense.spikes import DenseSpikes, SpikesByName
from sparsesnn.engines.runner import Runner, weights_like
from sparsesnn.output import LayerState


class DenseRunner(Runner):
    """Takes and returns tensors; between layers of the mode "fused" it passes one byte per spike."""

    @property
    def is_traceable(self) -> bool:
        return self.options.dense_mode in ("step", "hoist")  # the fused loop is no operation of PyTorch

    def read(self, model: Any, spikes: Any) -> Tensor | DenseSpikes | Currents:
        if isinstance(spikes, (DenseSpikes, Currents)):
            return spikes
        like = weights_like(model)
        mode = choose_mode(self.options.dense_mode, like.device, like.dtype) if spikes.values is None else ""
        return (
            DenseSpikes.from_lists(spikes, like.dtype, like.device) if mode == "fused" else super().read(model, spikes)
        )

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
