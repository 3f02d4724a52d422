"""Cores of this machine that this process may use, as launchers count them when they bind."""

from __future__ import annotations

import os
from pathlib import Path

TOPOLOGY = Path("/sys/devices/system/cpu")


def usable_cores(topology: Path = TOPOLOGY) -> int:
    """Cores with at least one processor of this process's affinity; two hardware threads of a core are one core.

    Where the system does not say which processors share a core, each counts.
    """
    found = set()
    for processor in os.sched_getaffinity(0):
        folder = topology / f"cpu{processor}" / "topology"
        try:
            package, core = ((folder / name).read_text().strip() for name in ("physical_package_id", "core_id"))
        except OSError:
            package, core = "processor", str(processor)
        found.add((package, core))
    return len(found)
