"""The event-sparse engine over several processes, which divide samples (replicas) and neurons (shards) among them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from sparsesnn.engines.base import Batch, totals_over
from sparsesnn.engines.cpu.engine import CpuEngine
from sparsesnn.engines.module import Model
from sparsesnn.engines.ranks.parts import Parts
from sparsesnn.engines.ranks.runner import RanksRunner
from sparsesnn.engines.tensors import sha256
from sparsesnn.output import Output


class RanksEngine(CpuEngine):
    """The engine `cpu` on the ranks of mpirun; results equal those of one rank, bit for bit."""

    model: Model
    runner = RanksRunner

    @property
    def parts(self) -> Parts:
        parts: Parts = self.model.parts
        return parts

    def _make_model(self) -> nn.Module:
        return Model(self.network, seed=self.training.seed, weight_dtype=self.options.weight_dtype, grid=self.grid)

    def run(self, batch: Batch) -> Output:
        output: Output = self.model(batch.spikes, first_sample=batch.first_sample, heard=batch.heard)
        return output

    def finish_backward(self) -> float:
        self.model.finish_backward()
        return super().finish_backward()

    def _totals(self, output: Output, counts: Sequence[int]) -> tuple[list[int], dict[str, float], dict[str, int]]:
        lists: Mapping[str, Any] = output.spikes
        dropped = output.dropped()
        fired = {name: (int(x.n_spikes.sum()), dropped[name]) for name, x in lists.items()}
        places = {name: x.n_steps * x.n_neurons for name, x in lists.items()}
        return totals_over(self.grid.replicas, counts, fired, places)

    @property
    def columns(self) -> Mapping[str, tuple[int, int]]:
        return self.parts.columns

    @property
    def n_parameters(self) -> int:
        return sum(math.prod(self.parts.whole_shape(name, p)) for name, p in self.model.named_parameters())

    def weights_sha256(self) -> str:
        """SHA-256 of the whole tensors: it does not depend on the number of ranks."""
        parts = self.parts
        found = sha256(
            self.model.state_dict(),
            self.network,
            lambda name, x: (parts.whole_shape(name, x), parts.whole_rows(name, x)),
        )
        return self.grid.shards.all_texts(found)[0]  # only a replica's first rank has the whole rows
