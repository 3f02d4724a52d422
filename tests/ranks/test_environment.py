"""The environment of each launcher, and environments that make no sense."""

from __future__ import annotations

import itertools
import re

import pytest

from sparsesnn.errors import ConfigError
from sparsesnn.host.comm.environment import Place, Replicas, find_place, find_replicas

OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "3", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}
CRAY = {"PMI_RANK": "7", "PMI_SIZE": "16", "PMI_LOCAL_RANK": "3", "PMI_LOCAL_SIZE": "4"}
SLURM = {
    "SLURM_PROCID": "9",
    "SLURM_NTASKS": "99",
    "SLURM_STEP_NUM_TASKS": "11",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2),3",
}
POPDIST = {
    "POPDIST_NUM_TOTAL_REPLICAS": "8",
    "POPDIST_NUM_LOCAL_REPLICAS": "2",
    "POPDIST_REPLICA_INDEX_OFFSET": "6",
    "POPDIST_LOCAL_INSTANCE_INDEX": "1",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({}, Place("none", 0, 1, 0, 1)),
        ({"PATH": "/bin", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, Place("none", 0, 1, 0, 1)),  # a batch script
        (OPENMPI, Place("openmpi", 5, 8, 1, 4)),
        # Open MPI 5 numbers the ranks of a host in its own order
        ({**OPENMPI, "OMPI_COMM_WORLD_RANK": "0"}, Place("openmpi", 0, 8, 1, 4)),
        (HYDRA, Place("pmi", 2, 3, 0, 1)),
        (CRAY, Place("pmi", 7, 16, 3, 4)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, Place("pmi", 1, 2, None, None)),
        (SLURM, Place("slurm", 9, 11, 1, 3)),
        ({**SLURM, "PMI_RANK": "9", "PMI_SIZE": "11"}, Place("slurm", 9, 11, 1, 3)),  # srun --mpi=pmi2
        ({**SLURM, **HYDRA}, Place("pmi", 2, 3, 0, 1)),  # mpirun inside a job, its proxies started by srun
        ({**SLURM, **OPENMPI}, Place("openmpi", 5, 8, 1, 4)),
        (POPDIST, Place("popdist", 3, 4, 1, 2)),
        ({k: v for k, v in POPDIST.items() if k.startswith("POPDIST")}, Place("popdist", 3, 4, 1, None)),
    ],
)
def test_place(environ: dict[str, str], place: Place) -> None:
    assert find_place(environ) == place


@pytest.mark.parametrize(("node", "local_size"), [(0, 2), (1, 2), (2, 1), (3, 5), (4, 5)])
def test_tasks_per_node(node: int, local_size: int) -> None:
    environ = {**SLURM, "SLURM_STEP_TASKS_PER_NODE": "2(x2),1,5(x2)", "SLURM_STEP_NUM_TASKS": "15"}
    environ |= {"SLURM_NODEID": str(node), "SLURM_LOCALID": "0"}
    assert find_place(environ).local_size == local_size


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {**OPENMPI, "OMPI_COMM_WORLD_RANK": "8"},
            "OMPI_COMM_WORLD_RANK: .* says rank 8 of 8, .* to their number minus 1",
        ),
        ({**OPENMPI, "OMPI_COMM_WORLD_LOCAL_RANK": "4"}, "rank 5 of 8, on its host 4 of 4"),
        ({**OPENMPI, "OMPI_COMM_WORLD_SIZE": "-1"}, "OMPI_COMM_WORLD_SIZE: is '-1'; a launcher sets it to a whole"),
        ({**HYDRA, "PMI_RANK": "0x1"}, "PMI_RANK: is '0x1'"),
        ({"PMI_RANK": "3", "PMI_SIZE": "2"}, r"PMI_RANK: the launcher \(pmi\) says rank 3 of 2; ranks go from 0"),
        ({"PMI_RANK": "0"}, "PMI_SIZE: is not set, but related variables are; start with `sparsesnn launch`"),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "4(x2"}, r"SLURM_STEP_TASKS_PER_NODE: is '4\(x2'"),
        ({**SLURM, "SLURM_NODEID": "3"}, "SLURM_NODEID: is 3, but .* names fewer nodes"),
        ({**SLURM, "SLURM_PROCID": "9" * 40}, "SLURM_PROCID: is '9999"),
        ({**POPDIST, "POPDIST_NUM_LOCAL_REPLICAS": "3"}, "8 replicas, 3 in this process, .* that divides --num-repl"),
        ({**POPDIST, "POPDIST_NUM_LOCAL_REPLICAS": "0"}, "0 in this process"),
        ({**POPDIST, "POPDIST_REPLICA_INDEX_OFFSET": "8"}, "POPDIST_REPLICA_INDEX_OFFSET: .* rank 4 of 4"),
    ],
)
def test_nonsense_is_refused(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_place(environ)


def test_every_rank_of_a_job_has_its_own_place() -> None:
    """The places of a whole srun step: ranks are 0 … R-1, and each host's local ranks 0 … its tasks - 1."""
    tasks = [4, 4, 3]
    places = []
    for node, n in enumerate(tasks):
        for local in range(n):
            environ = {**SLURM, "SLURM_PROCID": str(len(places)), "SLURM_LOCALID": str(local)}
            places.append(find_place(environ | {"SLURM_NODEID": str(node)}))
    assert [p.rank for p in places] == list(range(11))
    assert [p.local_size for p in places] == list(itertools.chain(*([n] * n for n in tasks)))


def test_messages_hold_one_line() -> None:
    with pytest.raises(ConfigError) as info:
        find_place({"OMPI_COMM_WORLD_SIZE": "2\n3"})
    assert re.search(r"\n", str(info.value)) is None


def test_replicas_of_popdist() -> None:
    assert find_replicas({}) is None
    assert find_replicas(OPENMPI) is None
    found = find_replicas({**POPDIST, "POPDIST_NUM_IPUS_PER_REPLICA": "4"})
    assert found == Replicas(total=8, own=2, first=6, ipus=4)
    assert found is not None
    assert (found.instance, found.n_instances) == (3, 4)
    with pytest.raises(ConfigError, match="POPDIST_NUM_IPUS_PER_REPLICA: is 'two'"):
        find_replicas({**POPDIST, "POPDIST_NUM_IPUS_PER_REPLICA": "two"})
    with pytest.raises(ConfigError, match="every process must have the same number"):
        find_place({**POPDIST, "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE": "0"})
