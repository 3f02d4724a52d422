"""A fake PopDist for tests: what poprun told this instance, from the environment."""

from __future__ import annotations

import os


def isPopdistEnvSet() -> bool:  # noqa: N802
    return "POPDIST_NUM_TOTAL_REPLICAS" in os.environ


def init() -> None:
    if not isPopdistEnvSet():
        raise RuntimeError("popdist: the environment was not set by poprun")


def _number(name: str, default: str) -> int:
    return int(os.environ.get(f"POPDIST_{name}", default))


def getNumTotalReplicas() -> int:  # noqa: N802
    return _number("NUM_TOTAL_REPLICAS", "1")


def getNumLocalReplicas() -> int:  # noqa: N802
    return _number("NUM_LOCAL_REPLICAS", "1")


def getNumIpusPerReplica() -> int:  # noqa: N802
    return _number("NUM_IPUS_PER_REPLICA", "1")


def getLocalInstanceIndex() -> int:  # noqa: N802
    return _number("LOCAL_INSTANCE_INDEX", "0")


def getInstanceIndex() -> int:  # noqa: N802
    return _number("REPLICA_INDEX_OFFSET", "0") // getNumLocalReplicas()


def getNumInstances() -> int:  # noqa: N802
    return getNumTotalReplicas() // getNumLocalReplicas()


def checkNumIpusPerReplica(n: int) -> None:  # noqa: N802
    if n != getNumIpusPerReplica():
        raise RuntimeError(f"popdist: poprun was given {getNumIpusPerReplica()} IPUs a replica; the program uses {n}")
