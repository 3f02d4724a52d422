"""Joint operations of the ranks of a run: agree, and compare."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from sparsesnn.config.tables import flatten, plain
from sparsesnn.engines import Engine
from sparsesnn.errors import CheckpointError, ConfigError, DataError, SparseSnnError
from sparsesnn.host.comm import Communicator, Traffic

#: the kinds of a rank's reply in `together`, before its text
_DONE, _FAILED = "+", "-"


def name_of(rank: int, size: int) -> str:
    """The name of a rank in messages."""
    return f"rank {rank}/{size}"


def together(world: Communicator, action: Callable[[], str], *, of_first: bool = False) -> list[str]:
    """Calls `action` on every rank and returns all results.

    Args:
        of_first: only the first rank has work to do, so that a message needs no rank's name.

    Errors: if actions raised errors of sparsesnn, the first such rank's error, on all ranks; its message names that rank,
    unless all ranks report the same.
    """
    if world.size == 1:
        return [action()]
    try:
        reply = _DONE + action()
    except SparseSnnError as failure:
        reply = f"{_FAILED}{type(failure).__name__} {failure}"
    replies = world.all_texts(reply)
    failed = [r for r, text in enumerate(replies) if text[0] == _FAILED]
    if not failed:
        return [text[1:] for text in replies]
    kind, _, message = replies[failed[0]][1:].partition(" ")
    error = {e.__name__: e for e in (CheckpointError, ConfigError, DataError)}.get(kind, SparseSnnError)
    raise error(message if of_first or len(set(replies)) == 1 else f"{name_of(failed[0], world.size)}: {message}")


def check_equal(world: Communicator, what: str, table: Mapping[str, Any], hint: str) -> None:
    """`ConfigError` on all ranks, naming the first rank whose table differs from that of rank 0, and the key."""
    if world.size == 1:
        return
    tables = [json.loads(text) for text in world.all_texts(json.dumps(plain(table), sort_keys=True, default=str))]
    for r, other in enumerate(tables[1:], start=1):
        if other == tables[0]:
            continue
        before, after = flatten(tables[0]), flatten(other)
        name = next(k for k in [*before, *after] if before.get(k) != after.get(k))
        raise ConfigError(
            f"{name_of(r, world.size)}: {what} differs from that of rank 0: {name} is {after.get(name)!r}, "
            f"there {before.get(name)!r}; {hint}"
        )


def agree(world: Communicator, numbers: Sequence[int]) -> list[list[int]]:
    """Returns the numbers of every rank."""
    if world.size == 1:
        return [list(numbers)]
    return [[int(n) for n in part] for part in world.all_gather(np.array(numbers, np.int64))]


def rank_traffic(world: Communicator, before: Traffic) -> dict[str, list[float]]:
    """The traffic of each rank since `before`: seconds, bytes_sent, bytes_received, n_messages."""
    own = asdict(world.traffic.since(before))
    parts = world.all_gather(np.array(list(own.values()), np.float64))
    return {key: [float(part[k]) if key == "seconds" else int(part[k]) for part in parts] for k, key in enumerate(own)}


def check_replicas(engine: Engine) -> None:
    """`ConfigError` on all ranks, naming the first one whose weights differ from those of the first replica."""
    grid = engine.grid
    if grid.world.size == 1:
        return
    digest = hashlib.sha256()
    for _, tensor in sorted(engine.weights().items()):
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    of_replicas = grid.replicas.all_texts(digest.hexdigest())
    differ = [int(of_replicas[grid.replicas.rank] != of_replicas[0])]
    strange = [r for r, (flag,) in enumerate(agree(grid.world, differ)) if flag]
    if strange:
        raise ConfigError(
            f"{name_of(strange[0], grid.world.size)}: its weights differ from those of the first replica; "
            "start all ranks with the same version, configuration and checkpoint"
        )
