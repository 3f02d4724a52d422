"""A fake PopDist for tests: poprun's settings of this instance, from the environment.

The names and results are those of PopDist's reference. Defaults are its own, too: without PopRun there is one replica on one IPU.
"""

from __future__ import annotations

import os

_state = {"initialized": False}


def isPopdistEnvSet() -> bool:  # noqa: N802
    return "POPDIST_NUM_TOTAL_REPLICAS" in os.environ


def init() -> None:
    """Registers and initializes the default backend, once."""
    if not isPopdistEnvSet():
        raise RuntimeError("popdist: the environment was not set by poprun")
    if _state["initialized"]:
        raise RuntimeError("popdist: the backend is initialized already")
    _state["initialized"] = True


def isBackendInitialized() -> bool:  # noqa: N802
    return _state["initialized"]


def finalizeBackend() -> None:  # noqa: N802
    if not _state["initialized"]:
        raise RuntimeError("popdist: the backend is not initialized")
    _state["initialized"] = False


def _number(name: str, default: str) -> int:
    return int(os.environ.get(f"POPDIST_{name}", default))


def getNumTotalReplicas() -> int:  # noqa: N802
    return _number("NUM_TOTAL_REPLICAS", "1")


def getNumLocalReplicas() -> int:  # noqa: N802
    return _number("NUM_LOCAL_REPLICAS", "1")


def getNumIpusPerReplica() -> int:  # noqa: N802
    return _number("NUM_IPUS_PER_REPLICA", "1")


def getReplicaIndexOffset() -> int:  # noqa: N802
    return _number("REPLICA_INDEX_OFFSET", "0")


def getLocalInstanceIndex() -> int:  # noqa: N802
    return _number("LOCAL_INSTANCE_INDEX", "0")


def _uniform() -> None:
    if _number("UNIFORM_REPLICAS_PER_INSTANCE", "1") != 1:
        raise RuntimeError("popdist: instances have different numbers of replicas")


def getInstanceIndex() -> int:  # noqa: N802
    _uniform()
    return getReplicaIndexOffset() // getNumLocalReplicas()


def getNumInstances() -> int:  # noqa: N802
    _uniform()
    return getNumTotalReplicas() // getNumLocalReplicas()


def checkNumIpusPerReplica(n: int) -> bool:  # noqa: N802
    """Whether PopRun has the same number; callers raise the error."""
    return n == getNumIpusPerReplica()
