"""The replicas of an IPU program that this process drives: all of them, or under PopRun those of one instance.

PopRun has reserved the IPUs, so its numbers take precedence. The options of a run must agree with them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from sparsesnn.errors import ConfigError
from sparsesnn.host.comm.environment import find_replicas
from sparsesnn.ipu.backends import MACHINES
from sparsesnn.partition.target import Target
from sparsesnn.wording import count, powers_of_two_near


@dataclass(frozen=True)
class Instance:
    """The replicas of one process.

    Args:
        total: number of replicas of the program, over all processes.
        own: number of replicas of this process.
        first: index of the first of them, among all.
        poprun: whether PopRun chose them, and the device that they run on.
    """

    total: int = 1
    own: int = 1
    first: int = 0
    poprun: bool = False

    @property
    def is_part(self) -> bool:
        """Whether other processes have replicas too."""
        return self.own < self.total

    def samples(self, batch: int) -> int:
        """Samples of a whole batch of `batch` in this process; the replicas have equal parts, rounded up."""
        return self.own * -(-batch // self.total)


def find_instance(
    backend: str, target: Target, replicas: int = 0, environ: Mapping[str, str] | None = None
) -> Instance:
    """The replicas of this process.

    Args:
        backend: a key of `MACHINES`.
        target: the IPUs of one replica.
        replicas: `parallel.replicas`; 0: PopRun's number, or one without PopRun.
        environ: None: `os.environ`.

    Errors: `ConfigError` if PopRun has another number of replicas or of IPUs a replica, and for several processes of an emulated IPU.
    """
    available = find_replicas(os.environ if environ is None else environ)
    if available is None:
        if near := powers_of_two_near(max(1, replicas)):
            raise ConfigError(
                f"parallel.replicas: is {replicas} with backend {backend!r}; IPUs come in powers of two: give {near}"
            )
        return Instance(max(1, replicas), max(1, replicas))
    if replicas not in (0, available.total):
        raise ConfigError(
            f"parallel.replicas: is {replicas}, but PopRun has {count(available.total, 'replica')} "
            f"(POPDIST_NUM_TOTAL_REPLICAS); leave it at 0, or give poprun --num-replicas={replicas}"
        )
    if near := powers_of_two_near(available.total):
        raise ConfigError(
            f"POPDIST_NUM_TOTAL_REPLICAS: is {available.total} with backend {backend!r}; IPUs come in powers of two: give poprun "
            f"--num-replicas {near}"
        )
    if target.devices != available.ipus:
        raise ConfigError(
            f"train.target (--target): is {target.name!r}, a replica on {count(target.devices, 'IPU')}, but PopRun has "
            f"{count(available.ipus, 'IPU')} a replica (POPDIST_NUM_IPUS_PER_REPLICA); give a target of {available.ipus}, or poprun "
            f"--ipus-per-replica={target.devices}"
        )
    if available.n_instances > 1 and not MACHINES[backend].poprun:
        raise ConfigError(
            f"train.backend: is {backend!r} in {count(available.n_instances, 'instance')} of PopRun; "
            f"{'an emulated IPU' if MACHINES[backend].emulated else 'the model of an IPU'} adds up gradients in one process "
            "only: give poprun --num-instances=1 (sparsesnn launch --ranks 1), or use backend 'ipu'"
        )
    return Instance(available.total, available.own, available.first, poprun=True)
