"""The cores that this process may use, as launchers count them when they bind."""

from __future__ import annotations

import os
from pathlib import Path

TOPOLOGY = Path("/sys/devices/system/cpu")


def usable_cores(topology: Path = TOPOLOGY) -> int:
    """Number of cores with at least one processor in this process's affinity; hardware threads of a core count once.

    If the system does not report which processors share a core, each processor counts.
    """
    cores = set()
    for processor in os.sched_getaffinity(0):
        folder = topology / f"cpu{processor}" / "topology"
        try:
            package, core = ((folder / name).read_text().strip() for name in ("physical_package_id", "core_id"))
        except OSError:
            package, core = "processor", str(processor)
        cores.add((package, core))
    return len(cores)
