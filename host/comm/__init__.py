"""Communicators: how ranks exchange arrays. One interface (`Communicator`), four forms.

    Local           one rank, nothing to exchange
    simulate(R, f)  R ranks as threads of one process: for tests, and for networks beyond this machine
    mpi_world()     MPI through mpi4py; buffers only, nothing is pickled
    DryRun(R)       one rank of R that is alone, in `dry_run.py`: the other ranks' messages are made up

`environment.py` finds the rank of a process, without MPI. A `Grid` arranges the ranks as replicas × shards. A `Lifeline` ends all ranks if one fails.
"""

from sparsesnn.host.comm.base import Communicator, Request, Traffic
from sparsesnn.host.comm.grid import Grid, make_grid
from sparsesnn.host.comm.lifeline import Lifeline
from sparsesnn.host.comm.local import Local
from sparsesnn.host.comm.mpi import mpi_world
from sparsesnn.host.comm.simulated import simulate

__all__ = ["Communicator", "Request", "Traffic", "Local", "simulate", "mpi_world", "Grid", "make_grid", "Lifeline"]
