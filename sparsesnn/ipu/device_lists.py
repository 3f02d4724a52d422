"""The lists of a batch that the device still holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sparsesnn.errors import DescriptionError
from sparsesnn.output import KnownCounts
from sparsesnn.spikes import SpikeBatch

if TYPE_CHECKING:
    from sparsesnn.ipu.program import IpuProgram


class DeviceLists(KnownCounts):
    """Spike lists by population. Counts come with each batch; lists are fetched on first access, all of them at once.

    Args:
        program: the program that ran this batch last.
        n_samples: B, samples of that batch.

    Errors: `DescriptionError` when lists are read after the program has run another batch, which overwrites them.
    """

    def __init__(self, program: IpuProgram, n_samples: int) -> None:
        self._program, self._n_samples, self._batch = program, n_samples, program.n_batches
        self._lists: Mapping[str, SpikeBatch] | None = None
        plan = program.plan
        places = plan.n_steps * n_samples
        super().__init__(
            {name: (*counts, places * plan.populations[name].n) for name, counts in program.counts(n_samples).items()}
        )

    def __getitem__(self, name: str) -> SpikeBatch:
        if name not in self._counts:
            raise KeyError(name)
        if self._lists is None:
            if self._program.n_batches != self._batch:
                raise DescriptionError(
                    f"lists of {name}: the device has run another batch since; read output.spikes before the next batch"
                )
            self._lists = self._program.lists(self._n_samples)
        return self._lists[name]
