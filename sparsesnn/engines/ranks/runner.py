"""How the engine `cpu` runs layers and networks over ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from sparsesnn.engines.cpu.runner import CpuRunner
from sparsesnn.engines.ranks.arrival import ShardMove
from sparsesnn.engines.ranks.parts import AT_ONCE, Parts, WholeSpikes
from sparsesnn.host.comm import Grid
from sparsesnn.network import Network
from sparsesnn.output import LayerState
from sparsesnn.spikes import SpikeBatch


class RanksRunner(CpuRunner):
    """Every rank calls it together with the others."""

    parts: Parts
    numbers_drawn = AT_ONCE

    def __init__(self, name: str, options: Any, network: Network, grid: Grid) -> None:
        super().__init__(name, options, network, grid)
        self.parts = Parts(network, grid)

    def delayed(self, layer: Any, c: Any, x: Any, first_step: int) -> Any:
        if not isinstance(x, SpikeBatch):
            return x
        shared = layer.part.shared(x)
        return ShardMove(
            layer.part, shared, layer.axonal_delays(c), between=layer.between_steps(c), first_step=first_step
        ).moved(shared)

    def by_name(self, fired: Mapping[str, Any]) -> WholeSpikes:
        return WholeSpikes(fired)

    def run_lists(
        self,
        layer: Any,
        sources: Sequence[SpikeBatch],
        state: LayerState | None,
        training_step: int,
        first_sample: int,
    ) -> tuple[Any, LayerState]:
        result: tuple[Any, LayerState] = layer.part.run_layer(layer, sources, training_step, first_sample)
        return result

    def layers_run(self, layers: Mapping[str, Any]) -> contextlib.AbstractContextManager[None]:
        return self.parts.packed(layers)

    def begin_backward(self, n_samples: int, first_sample: int) -> None:
        if self.parts.reduction:
            self.parts.reduction.begin(n_samples, first_sample)

    def finish_backward(self) -> None:
        if self.parts.reduction:
            self.parts.reduction.finish()
