"""Engines run a network in whole training steps. They share one interface (`base.Engine`) and are found by name (`registry`).

    base.py          the interface; a run's settings (Training), input (Batch) and result (Step)
    registry.py      the available engines and their options; runner.py: the part of an engine that Model and Layer hold
    module.py        Layer for one population, Model for the network; live.py: networks that run continuously
    torch_engine.py  base class of engines whose network is a torch.nn.Module
    objective.py     the loss; optimizers.py: updates; tensors.py: weights and moments by name
    cpu/ dense/ ranks/ ipu/
        engine.py    the engine and its options
        runner.py    how it runs layers and networks; `ipu` has none: it only runs whole networks (its program is `sparsesnn.ipu`)

`ranks` is the engine `cpu` over several ranks; `ipu` and `ipu-model` are the same engine on two machines.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from sparsesnn.engines import registry
from sparsesnn.engines.base import Batch, Engine, Step, Training
from sparsesnn.engines.objective import Objective
from sparsesnn.engines.optimizers import Updates
from sparsesnn.engines.registry import class_over_ranks, engine_class, names, options_class, options_for, unused_options
from sparsesnn.errors import ConfigError
from sparsesnn.host.comm import Communicator, Grid, make_grid
from sparsesnn.host.comm.environment import find_replicas
from sparsesnn.network import Network
from sparsesnn.runtime import set_num_threads

#: PyTorch's default: all cores, or OMP_NUM_THREADS
ALL_TORCH_THREADS = torch.get_num_threads()


def make_engine(name: str, network: Network, training: Training, grid: Grid | None = None) -> Engine:
    """Makes the engine called `name`, with the network's initial weights.

    Args:
        name: see `names`.
        network: the description.
        training: the settings of the run.
        grid: the ranks, see `engine_grid`; None: this process alone.

    Errors: `ConfigError` or `DescriptionError` that names the unsupported part.
    """
    check_options(name, training.options)
    grid = grid or Grid.alone()
    _check_launcher(name, grid.world)
    kind = engine_class(name) if grid.world.size == 1 else class_over_ranks(name)
    return kind(name, network, training, grid)


def engine_grid(name: str, world: Communicator, n_replicas: int = 0, n_shards: int = 0) -> Grid:
    """How ranks share the work of an engine; 0: as many as the ranks allow.

    Errors: `ConfigError` for ranks that the engine does not run on, or if replicas × shards is not the number of ranks.
    """
    kind = engine_class(name)
    _check_launcher(name, world)
    grid = make_grid(world, 0 if kind.makes_replicas else n_replicas, n_shards)
    if grid.n_shards > 1 and not kind.takes_shards:
        raise ConfigError(
            f"parallel: {n_replicas} replicas × {n_shards} shards on {world.size} ranks are {grid.n_shards} shards with "
            f"backend {name!r}, whose network is not cut; set parallel.shards to 1 and parallel.replicas to 0"
        )
    return grid


def check_options(name: str, options: Mapping[str, Any], place: str = "{}:") -> None:
    """Raises `ConfigError` for an option that the engine does not read, or a value that no engine accepts.

    Args:
        place: prefix of the message, with {} for the option's name, such as "train.{}:".
    """
    registry.check_options(name, options, place)
    kind = engine_class(name)
    kind.check_options(kind.Options(**options_for(name, options)), place)


def options_to_evaluate(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a run that also apply when its trained network is evaluated."""
    return {option: value for option, value in options.items() if option not in engine_class(name).only_trains}


def on_host(name: str) -> str:
    """The engine that runs this engine's networks layer by layer, on any machine."""
    return engine_class(name).on_host or name


def have_same_bits(one: str, other: str) -> bool:
    """Whether two engines promise the same bits, so that a run may change from one to the other."""
    bits_of = engine_class(one).bits_of
    return bool(bits_of) and bits_of == engine_class(other).bits_of


def samples_of_rank(name: str, batch: int, n_ranks: int) -> int:
    """See `Engine.samples_of_rank`."""
    return engine_class(name).samples_of_rank(batch, n_ranks)


def replicas_count(name: str) -> bool:
    """Whether the last bits of weights depend on the number of replicas."""
    return engine_class(name).makes_replicas


def set_threads(
    name: str,
    n_threads: int,
    options: Mapping[str, Any] | None = None,
    ranks_on_host: int = 1,
) -> None:
    """Sets the engine's worker threads in this process; 0: all cores, shared by the ranks of this host.

    Next to the event-sparse engine or our own dense products, PyTorch runs on one thread. Its remaining work costs less
    than restarting its threads after every pass (host/src/machine/openmp.h), and the sums of its reductions would depend on
    the number of threads. Convolutions are PyTorch's, on the engine's threads (sparsesnn/engines/dense/pieces.py).
    """
    kind = engine_class(name)
    by_torch = kind.uses_torch_threads(kind.Options(**options_for(name, options or {})))
    torch.set_num_threads((n_threads or ALL_TORCH_THREADS) if by_torch else 1)
    mine = len(os.sched_getaffinity(0))
    if mine == os.cpu_count():  # else the launcher bound this rank to its own cores
        mine = max(1, mine // ranks_on_host)
    if n_threads or ranks_on_host > 1:
        set_num_threads(n_threads or mine)


def _check_launcher(name: str, world: Communicator) -> None:
    """Raises `ConfigError` for ranks that the engine does not run on, and for PopRun replicas that it would ignore."""
    kind = engine_class(name)
    given = find_replicas(os.environ)
    if given is not None and given.own > 1 and not kind.makes_replicas:
        raise ConfigError(
            f"train.backend: is {name!r}, but PopRun gives this process {given.own} replicas (POPDIST_NUM_LOCAL_REPLICAS), "
            f"which need IPUs; use backend {' or '.join(repr(x) for x in registry.classes() if engine_class(x).makes_replicas)}, or start "
            "with mpirun (sparsesnn launch without --num-replicas)"
        )
    if world.size == 1 or world.launcher in kind.launchers_of(name):
        return
    starters = {other: kind.launchers_of(other) for other, kind in registry.classes().items()}
    allowed = [f"{other!r} on ranks of {' or '.join(found)}" for other, found in starters.items() if found]
    raise ConfigError(
        f"train.backend: is {name!r} on {world.size} ranks of {world.launcher}; allowed: {', '.join(allowed)}, others on "
        "one rank; change the backend, or start it that way"
    )


__all__ = [
    "Batch",
    "Engine",
    "Objective",
    "Step",
    "Training",
    "Updates",
    "check_options",
    "engine_class",
    "engine_grid",
    "have_same_bits",
    "make_engine",
    "names",
    "on_host",
    "options_class",
    "options_for",
    "options_to_evaluate",
    "replicas_count",
    "samples_of_rank",
    "set_threads",
    "unused_options",
]
