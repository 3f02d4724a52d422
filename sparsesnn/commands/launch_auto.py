"""`sparsesnn launch --auto -- train …`: the plan chooses how many ranks run, as replicas × shards."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from sparsesnn.errors import ConfigError


def choose(words: Sequence[str], ranks: int, threads: int) -> tuple[list[str], int]:
    """The words of the command with the grid that the plan predicts to be fastest, and its ranks; the choice is printed.

    The network, the batch and the input's activity are those of the training, whose data is read for them. Links are those
    that a series of `sparsesnn launch weak-scaling` measured here, if there is one.

    Args:
        words: of the command, such as ["train", "digits"].
        ranks: at most so many; threads: of each.

    Errors: `ConfigError` for another command, another engine, and a grid that was given.
    """
    from sparsesnn.commands import train
    from sparsesnn.launch.links import measured_links
    from sparsesnn.partition.cpu.grids import best_grid, grid_text, search_grids
    from sparsesnn.partition.plan import Plan
    from sparsesnn.partition.target import parse_target
    from sparsesnn.train import prepare

    if words[:1] != ["train"]:
        raise ConfigError(
            f"--auto: the command is {' '.join(words[:1])!r}; only train has grids: give --ranks without --auto"
        )
    parser = argparse.ArgumentParser(prog="sparsesnn train")
    train.add_arguments(parser)
    config = train.resolve(parser.parse_args(words[1:]))
    if config.train.backend != "cpu":
        raise ConfigError(
            f"--auto: train.backend is {config.train.backend!r}; only 'cpu' has replicas and shards to choose"
        )
    if config.parallel.replicas or config.parallel.shards:
        raise ConfigError(
            f"--auto: parallel.replicas is {config.parallel.replicas} and parallel.shards {config.parallel.shards}; leave "
            "them at 0, or leave --auto out"
        )
    parts = prepare.load_parts(config.data)
    network, events = prepare.make_network(config, parts), parts.train.event_set
    target = parse_target(f"mpi:{ranks}x{threads}")
    found = measured_links()
    if found is not None:
        target = replace(target, links=found[0])

    def plan(replicas: int, shards: int, n_samples: int) -> Plan:
        return prepare.make_rank_plan(config, network, events, target.with_devices(shards), replicas, n_samples)

    rows = search_grids(plan, ranks, [config.train.batch])
    best = best_grid(rows)
    where = "assumed links" if found is None else f"links of {found[1]}"
    print(f"sparsesnn: launch --auto: {grid_text(best)}; of at most {ranks}, {where}", file=sys.stderr)
    grid = ["--set", f"parallel.replicas={best.replicas}", "--set", f"parallel.shards={best.shards}"]
    return [*words, *grid], best.ranks
