"""Fake `poptorch.DataLoader`: combined batches, and a share of the data set for each process."""

from __future__ import annotations

from typing import Any

import torch

from poptorch.options import Options


class DataLoader(torch.utils.data.DataLoader):
    """Batches of batch_size × device iterations × replicas × gradient accumulation samples."""

    def __init__(
        self,
        options: Options,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool | None = None,
        num_workers: int = 0,
        drop_last: bool = True,
        auto_distributed_partitioning: bool = True,
        **others: Any,
    ) -> None:
        if not isinstance(options, Options):
            raise AssertionError(f"the first argument of poptorch.DataLoader is poptorch.Options, not {type(options)}")
        options._freeze()
        self.combined_batch_size = batch_size * options.n_micro_batches
        generator = None
        n_processes = options.Distributed.numProcesses
        if n_processes > 1 and auto_distributed_partitioning:
            if shuffle and options.random_seed is None:
                raise AssertionError(
                    "When using auto_distributed_partitioning you must set poptorch.Options.randomSeed() to ensure that "
                    "tensors are in the same order in all processes."
                )
            order = torch.arange(len(dataset))
            if shuffle:
                order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(options.random_seed))
            n = self.combined_batch_size * (len(dataset) // (self.combined_batch_size * n_processes))
            first = options.Distributed.processId * n
            dataset = torch.utils.data.Subset(dataset, order[first : first + n].tolist())
            shuffle = False
        elif shuffle and options.random_seed is not None:
            generator = torch.Generator().manual_seed(options.random_seed)
        super().__init__(
            dataset,
            batch_size=self.combined_batch_size,
            shuffle=bool(shuffle),
            num_workers=num_workers,
            drop_last=drop_last,
            generator=generator,
            **others,
        )

    @property
    def combinedBatchSize(self) -> int:  # noqa: N802
        return self.combined_batch_size
