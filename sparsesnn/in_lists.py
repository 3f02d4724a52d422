"""Which synapses the event-sparse engine has, and in which company."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sparsesnn.errors import DescriptionError
from sparsesnn.layers import LI


def check_in_lists(population: Any, connections: Iterable[Any], who: str) -> None:
    """`DescriptionError` where a population hears synapses that `who`, the engine or its plan, does not have, or not so."""
    heard = list(connections)
    maps = []
    for c in heard:
        found = c.synapses.in_lists(0)
        if found is None:
            raise DescriptionError(
                f"connection {c.name}: its synapses are {c.synapses!r}, which {who} does not have; allowed: matrices, Conv2d, and "
                "pools of spikes before one of them; pool spikes (MP2 in place of +MP2), or use the backend 'dense'"
            )
        if found.kind.window_shape():
            maps.append(c)
    if not maps:
        return
    others = [c.name for c in heard if c not in maps]
    learnt = [p.name for p in population.parameters if getattr(population, f"learn_{p.name}", False)]
    for is_so, what, change in (
        (others, f"it also hears {', '.join(others)}", "let it hear maps alone"),
        (isinstance(population, LI), "it is a readout", "put spiking neurons between the two"),
        (getattr(population, "activity", "") == "fixed", "its activity is fixed", "use activity='natural'"),
        (
            learnt and getattr(population, "capacity", None),
            f"it has a capacity, and learns {learnt}",
            "remove one of them",
        ),
    ):
        if is_so:
            raise DescriptionError(
                f"connection {maps[0].name}: its synapses are windows over maps, into a population that {who} does not run: "
                f"{what}; {change}, or use the backend 'dense'"
            )
