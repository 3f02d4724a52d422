"""Run by tests/ranks/test_mpi.py on every rank: `mpirun -n R python tests/ranks/mpi_programs.py NAME`."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from ranks_random import Case, alone, compare

from sparsesnn.host.comm import Communicator, mpi_world


def communicator() -> None:
    from test_comm import check_communicator

    world = mpi_world()
    check_communicator(world)
    assert world.ranks_on_host == world.size
    if world.rank == 0:
        print(f"{world.size} ranks agree")


def networks() -> None:
    from test_sharded import learn_with_hooks_of_rank_0

    from sparsesnn.host.comm import mpi
    from sparsesnn.host.shared_memory import CommonWeights, HostMemory
    from sparsesnn.network import parse_net

    world = mpi_world()
    CommonWeights.LEAST = 0  # small ones too
    for grid in [(1, world.size), (world.size, 1)]:
        for net in ("30-130-75-10", "30-150cr-70-10s"):
            case = Case(parse_net(net, bias=True, capacity=20), *grid)
            compare(case, alone(case), world)
    assert HostMemory(world).ranks == tuple(range(world.size))
    for net in (parse_net("30-150cr-70r-10"), parse_net("30-150r-70r-10", capacity=20, activity="fixed")):
        case = Case(net, 1, world.size)
        by_engine = traffic_of(case, world)
        with patch.object(mpi.Mpi, "engine_calls", lambda self: None):
            assert traffic_of(case, world) == by_engine
        with patch.object(mpi, "LONGEST", 16):  # the engine sends pieces
            assert traffic_of(case, world) == by_engine
    for net in ("30-140-70-10", "30-140r-70-10"):
        hooked = Case(parse_net(net), 1, world.size)
        learn_with_hooks_of_rank_0(world, hooked, alone(hooked))
    world.ranks_on_host, mpi.LARGE = 1, 0  # as on separate hosts, with messages that the engine looks at
    for n_samples in (19, 129):
        case = Case(parse_net("30-130-75r-10", bias=True), world.size, 1, n_samples=n_samples, silent=10)
        compare(case, alone(case), world)
    if world.rank == 0:
        print("bit for bit")


def traffic_of(case: Case, world: Communicator) -> tuple[int, int, int]:
    """Of a comparison of the case with one rank: bytes sent and received, and messages."""
    before = world.traffic.copy()
    compare(case, alone(case), world)
    found = world.traffic.since(before)
    return found.bytes_sent, found.bytes_received, found.n_messages


if __name__ == "__main__":
    {"communicator": communicator, "networks": networks}[sys.argv[1]]()
