"""Runs a command on all ranks started by mpirun, srun or another launcher; on one rank MPI is not used at all."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

from sparsesnn.errors import ConfigError, DescriptionError, SparseSnnError

if TYPE_CHECKING:
    from sparsesnn.host.comm import Communicator
    from sparsesnn.host.comm.environment import Place


def run_on_ranks(work: Callable[[Communicator | None], int]) -> int:
    """Calls `work(world)` on every rank, `work(None)` if there is only one; returns the exit code.

    If a rank fails or is killed, all ranks end within seconds, and one message names the rank and the reason.
    Errors: `ConfigError` if the launcher and MPI disagree on the number of ranks; those of `work` on one rank.
    """
    from sparsesnn.host.comm.environment import find_place

    place = find_place(os.environ)
    if place.size == 1:
        return work(None)
    if place.launcher == "torchrun":
        return _under_torchrun(work, place)
    from sparsesnn.host.comm import Lifeline, mpi_world

    world = mpi_world()
    lifeline = Lifeline(world)
    if world.rank:
        warnings.simplefilter("ignore")  # one rank warns
    try:
        code = work(world)
        world.barrier()
    except BaseException as error:
        code = exit_code(error)
        if not (isinstance(error, SparseSnnError) and code > 128):
            if type(error).__module__.startswith("mpi4py"):
                lifeline.suspect(code, str(error))
            if not isinstance(error, (SparseSnnError, KeyboardInterrupt)):
                traceback.print_exc()
            lifeline.fail(code, f"{error or type(error).__name__}")
        # stopped by a signal, all together: the checkpoint is written
        world.barrier()
        lifeline.close()
        if world.rank == 0:
            raise
        return code
    lifeline.close()
    return code


def exit_code(error: BaseException) -> int:
    """2 for a wrong option or configuration, 128 + signal if a signal stopped the run, else 1."""
    if isinstance(error, KeyboardInterrupt):
        return 130
    number = int(getattr(error, "signal", 0)) if isinstance(error, SparseSnnError) else 0
    if number:
        return 128 + number
    return 2 if isinstance(error, (ConfigError, DescriptionError)) else 1


def _under_torchrun(work: Callable[[Communicator | None], int], place: Place) -> int:
    """The same if torchrun started the ranks: it ends all of them if one fails."""
    import torch.distributed as dist

    from sparsesnn.host.comm.torch_group import torch_world

    world = torch_world(place.local_rank, place.local_size)
    if world.rank:
        warnings.simplefilter("ignore")  # one rank warns
    try:
        code = work(world)
        world.barrier()
        return code
    finally:
        dist.destroy_process_group()
