"""What schedulers say of a job, and what none says."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsesnn.errors import ConfigError
from sparsesnn.launch.allocation import Allocation, find_allocation

SLURM = {"SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "2"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"NSLOTS": "3"}, None),  # a name that others use too
        (SLURM, Allocation("SLURM_JOB_NUM_NODES", 2, 2)),
        ({**SLURM, "SLURM_NTASKS_PER_NODE": "4"}, Allocation("SLURM_NTASKS_PER_NODE", 8, 2)),
        ({**SLURM, "SLURM_NTASKS": "6", "SLURM_CPUS_PER_TASK": "16"}, Allocation("SLURM_NTASKS", 6, 2, 16)),
        ({**SLURM, "SLURM_NTASKS": "6", "SLURM_CPUS_ON_NODE": "5"}, Allocation("SLURM_NTASKS", 6, 2, None, 5)),
        ({"LSB_MCPU_HOSTS": "a 4 b 3"}, Allocation("LSB_MCPU_HOSTS", 7, 2)),
        ({"NSLOTS": "9", "NHOSTS": "3"}, Allocation("NSLOTS", 9, 3)),
    ],
)
def test_what_schedulers_say(environ: dict[str, str], expected: Allocation | None) -> None:
    assert find_allocation(environ) == expected


def test_pbs_writes_a_line_a_rank(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes"
    nodes.write_text("a\na\nb\nb\nb\n")
    assert find_allocation({"PBS_NODEFILE": str(nodes)}) == Allocation("PBS_NODEFILE", 5, 2)
    nodes.write_text("\n")
    with pytest.raises(ConfigError, match="names no host; give --ranks and --hosts"):
        find_allocation({"PBS_NODEFILE": str(nodes)})
    with pytest.raises(ConfigError, match=r"PBS_NODEFILE: .*/gone cannot be read: .* give --ranks"):
        find_allocation({"PBS_NODEFILE": str(tmp_path / "gone")})


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({**SLURM, "SLURM_NTASKS": "many"}, "SLURM_NTASKS: is 'many'; .* give --ranks"),
        ({**SLURM, "SLURM_CPUS_PER_TASK": "0"}, "SLURM_CPUS_PER_TASK: is '0'"),
        ({"LSB_MCPU_HOSTS": "a 4 b"}, "LSB_MCPU_HOSTS: is 'a 4 b'; LSF writes it as 'a 4 b 4'"),
        ({"LSB_MCPU_HOSTS": ""}, "LSB_MCPU_HOSTS: is ''"),
    ],
)
def test_what_no_scheduler_says(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_allocation(environ)
