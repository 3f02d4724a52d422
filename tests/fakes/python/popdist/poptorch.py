"""Fake `popdist.poptorch.Options`: replication and process are poprun's, so setting them is refused."""

from __future__ import annotations

from typing import Any, NoReturn

import poptorch

import popdist


class Options(poptorch.Options):
    def __init__(self, ipus_per_replica: int = 1) -> None:
        super().__init__()
        if not popdist.checkNumIpusPerReplica(ipus_per_replica):
            raise RuntimeError(
                f"popdist: poprun was given {popdist.getNumIpusPerReplica()} IPUs a replica; the program uses {ipus_per_replica}"
            )
        super().replicationFactor(popdist.getNumLocalReplicas())
        self.Distributed.configureProcessId(popdist.getInstanceIndex(), popdist.getNumInstances())
        for name in ("disable", "setEnvVarNames", "configureProcessId"):
            self.Distributed.__dict__[name] = _refusal(f"Distributed.{name}")
        for name in ("useIpuId", "replicationFactor"):
            self.__dict__[name] = _refusal(name)


def _refusal(name: str) -> Any:
    def refuse(*_: object) -> NoReturn:
        raise RuntimeError(f"Cannot call `{name}` with popdist.poptorch.Options")

    return refuse
