"""The runner of the engine `cpu` over ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sparsesnn.engines.cpu.runner import CpuRunner
from sparsesnn.engines.cpu.single import thinned
from sparsesnn.engines.cpu.wiring import layer_tensors
from sparsesnn.engines.ranks.parts import AT_ONCE, Parts
from sparsesnn.host.comm import Grid
from sparsesnn.network import Network

if TYPE_CHECKING:
    from sparsesnn.engines.dropout import Heard


class RanksRunner(CpuRunner):
    """Runs layers and networks over ranks; all ranks call its methods together."""

    parts: Parts
    numbers_drawn = AT_ONCE

    def __init__(self, name: str, options: Any, network: Network, grid: Grid) -> None:
        super().__init__(name, options, network, grid)
        self.parts = Parts(network, grid)

    def thinned(self, population: str, number: int, spikes: Any, heard: Heard) -> Any:
        return thinned(spikes, number, heard, self.parts.around(population))

    def packed(self, layers: Mapping[str, Any]) -> contextlib.AbstractContextManager[None]:
        return self.parts.packed(layers)

    @contextlib.contextmanager
    def layers_run(self, layers: Mapping[str, Any]) -> Iterator[None]:
        """Reads the tensors of all layers first, as a chain of the whole network does. Reading some of them, and their backward pass,
        exchanges messages, and other ranks may run that chain."""
        for layer in layers.values():
            layer.tensors_read = layer_tensors(layer)
        try:
            with self.packed(layers):
                yield
        finally:
            for layer in layers.values():
                layer.tensors_read = None

    def begin_backward(self, n_samples: int, first_sample: int) -> None:
        if self.parts.reduction:
            self.parts.reduction.begin(n_samples, first_sample)

    def finish_backward(self) -> None:
        if self.parts.reduction:
            self.parts.reduction.finish()
