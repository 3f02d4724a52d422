"""The machines that run a program: the emulated IPU, the SDK's model of one, hardware; a compiled module for each."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from types import MappingProxyType, ModuleType
from typing import Any

from sparsesnn.errors import ConfigError
from sparsesnn.partition.target import Target
from sparsesnn.runtime import num_threads


@dataclass(frozen=True)
class Machine:
    """A machine that runs a program.

    Args:
        module: the package's compiled module with the program.
        emulated: whether this project emulates it.
        tiles: the tiles that a self-test uses.
        poprun: whether PopRun can run it in several processes.
    """

    module: str
    emulated: bool = False
    tiles: int = 64
    poprun: bool = False


#: the emulated IPU, the SDK's own model of an IPU, and hardware
MACHINES: Mapping[str, Machine] = MappingProxyType(
    {
        "ipu-model": Machine("_ipu", emulated=True),
        "sdk-model": Machine("_ipu_sdk"),
        "ipu": Machine("_ipu_sdk", tiles=1472, poprun=True),
    }
)
#: when the emulated machine checks for faults
CHECKS = ("always", "first", "never")


def machine_arguments(
    native: ModuleType, backend: str, target: Target, checks: str, *, poprun: bool = False
) -> tuple[Any, ...]:
    """Arguments of a compiled program that describe its machine; `poprun`: whether PopDist chooses the IPUs."""
    if not MACHINES[backend].emulated:
        return "poprun" if poprun and MACHINES[backend].poprun else backend, codelets()
    if checks not in CHECKS:
        raise ConfigError(f"checks is {checks!r}; allowed: {', '.join(CHECKS)}")
    native.set_num_threads(num_threads())  # like the engine
    options = native.MachineOptions(
        checks=checks,
        bytes_per_tile=target.bytes_per_tile,
        exchange_bytes_per_cycle=target.exchange.bytes_per_cycle,
        sync_cycles=target.exchange.sync_cycles,
        external_sync_cycles=target.links.latency_s * target.clock_hz,
        link_bytes_per_cycle=target.links.bytes_per_s / target.clock_hz,
        host_bytes_per_cycle=target.host_bytes_per_s / target.clock_hz,
    )
    return (options,)


def native_module(backend: str) -> ModuleType:
    """The compiled program for a machine; `ConfigError` if this installation has none."""
    if backend not in MACHINES:
        raise ConfigError(f"backend is {backend!r}; allowed: {', '.join(MACHINES)}")
    name = f"sparsesnn.{MACHINES[backend].module}"
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        if MACHINES[backend].emulated:
            if problem.name != name or find_spec(name):
                raise
            raise ConfigError(
                f"backend {backend!r} needs the emulated IPU, which this installation was built without (./dev demo leaves "
                "it out); in a clone run ./dev run sparsesnn …, else install sparsesnn again"
            ) from None
        raise ConfigError(
            f"backend {backend!r} needs the Poplar SDK (3.3 or 3.4), and this installation was built without it; source the "
            "SDK's enable.sh (it sets POPLAR_SDK_ENABLED), then install sparsesnn from source again; "
            "backend 'ipu-model' runs the same program on an emulated IPU"
        ) from None


def present_machines() -> tuple[str, ...]:
    """The machines that this installation has; hardware and the SDK's model only if it was built with the SDK."""
    return tuple(
        name for name, machine in MACHINES.items() if machine.emulated or find_spec(f"sparsesnn.{machine.module}")
    )


def codelets() -> str:
    """Path of the codelets that popc compiled, installed with the package."""
    from importlib.resources import files

    return str(files("sparsesnn") / "codelets" / "ipu.gp")
