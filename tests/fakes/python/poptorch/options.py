"""Fake `poptorch.Options`: chained setters; refuses unknown options, and changes after first use."""

from __future__ import annotations

import enum
import os
from typing import Any


class OutputMode(enum.IntEnum):
    Final = 0
    EveryN = 1
    All = 2
    Sum = 3
    Default = 4


class ReductionType(enum.IntEnum):
    Sum = 0
    Mean = 1
    NoReduction = 2


class _Group:
    """Options of one group; only existing names can be set, and only before their first use."""

    def __init__(self, **defaults: Any) -> None:
        self.__dict__["_values"] = defaults
        self.__dict__["_is_frozen"] = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._values:
            raise AttributeError(f"Invalid option {name}, valid options are {list(self._values)}")
        return self._values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self.set(**{name: value})

    def set(self, **values: Any) -> None:
        for name, value in values.items():
            self.checkIsFrozen()
            if name not in self._values:
                raise AttributeError(f"Invalid option {name}, valid options are {list(self._values)}")
            expected = type(self._values[name])
            if not isinstance(value, expected):
                raise AssertionError(f"Unexpected type {type(value)} for option {name}. Expected {expected}")
            self._values[name] = value

    def checkIsFrozen(self) -> None:  # noqa: N802
        if self._is_frozen:
            raise AttributeError("Can't modify frozen Options")

    def exists(self, name: str) -> bool:
        return name in self._values


class _Training(_Group):
    def gradientAccumulation(self, n: int) -> _Training:  # noqa: N802
        self.set(gradient_accumulation=n)
        return self

    def accumulationAndReplicationReductionType(self, kind: ReductionType) -> _Training:  # noqa: N802
        if kind not in (ReductionType.Mean, ReductionType.Sum):
            raise ValueError(
                "accumulationAndReplicationReductionType must be set to poptorch.ReductionType.Mean or "
                "poptorch.ReductionType.Sum"
            )
        self.set(accumulation_and_replication_reduction_type=kind)
        return self


class _Distributed(_Group):
    def configureProcessId(self, process_id: int, num_processes: int) -> _Distributed:  # noqa: N802
        self.set(distributed_process_id=process_id, num_distributed_processes=num_processes)
        return self

    def setEnvVarNames(self, num_processes: str, process_id: str) -> _Distributed:  # noqa: N802
        return self.configureProcessId(int(os.environ.get(process_id, "0")), int(os.environ.get(num_processes, "1")))

    def disable(self) -> _Distributed:
        return self.configureProcessId(0, 1)

    @property
    def processId(self) -> int:  # noqa: N802
        return int(self.distributed_process_id)

    @property
    def numProcesses(self) -> int:  # noqa: N802
        return int(self.num_distributed_processes)


class Options(_Group):
    def __init__(self) -> None:
        super().__init__(
            device_iterations=1, replication_factor=1, output_mode=OutputMode.Default, output_return_period=1,
            use_ipu_model=False, random_seed=None, executable_cache="",
        )  # fmt: skip
        training = _Training(gradient_accumulation=1, accumulation_and_replication_reduction_type=ReductionType.Mean)
        distributed = _Distributed(num_distributed_processes=1, distributed_process_id=0)
        distributed.setEnvVarNames("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")
        self.__dict__.update(Training=training, Distributed=distributed)

    def deviceIterations(self, n: int) -> Options:  # noqa: N802
        self.set(device_iterations=n)
        return self

    def replicationFactor(self, n: int) -> Options:  # noqa: N802
        self.set(replication_factor=n)
        return self

    def useIpuModel(self, use: bool) -> Options:  # noqa: N802
        self.set(use_ipu_model=use)
        return self

    def useIpuId(self, ipu_id: int) -> Options:  # noqa: N802
        return self

    def enableExecutableCaching(self, path: str) -> Options:  # noqa: N802
        self.set(executable_cache=path)
        return self

    def randomSeed(self, seed: int) -> Options:  # noqa: N802
        self.checkIsFrozen()
        self._values["random_seed"] = seed
        return self

    def outputMode(self, mode: OutputMode, output_return_period: int | None = None) -> Options:  # noqa: N802
        if (mode == OutputMode.EveryN) != (output_return_period is not None):
            raise ValueError("output_return_period must be given with OutputMode.EveryN, and only then")
        self.set(output_mode=mode, output_return_period=output_return_period or 1)
        return self

    def _freeze(self) -> None:
        for group in (self, self.Training, self.Distributed):
            group.__dict__["_is_frozen"] = True

    # the parts of one step of the host
    @property
    def n_micro_batches(self) -> int:
        return int(self.device_iterations * self.Training.gradient_accumulation * self.replication_factor)
