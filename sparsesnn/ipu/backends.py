"""The machines that run a program: the emulated IPU, the SDK's model of one, hardware; each a compiled module."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from sparsesnn.errors import ConfigError
from sparsesnn.partition.target import Target
from sparsesnn.runtime import num_threads

#: the emulated IPU, hardware, and the SDK's own model of an IPU
BACKENDS = ("ipu-model", "ipu", "sdk-model")
#: when the emulated machine looks for faults
CHECKS = ("always", "first", "never")


def machine_options(native: ModuleType, target: Target, checks: str) -> Any:
    if checks not in CHECKS:
        raise ConfigError(f"checks is {checks!r}; allowed: {', '.join(CHECKS)}")
    native.set_num_threads(num_threads())  # as the engine
    return native.MachineOptions(
        checks=checks,
        bytes_per_tile=target.bytes_per_tile,
        exchange_bytes_per_cycle=target.exchange.bytes_per_cycle,
        sync_cycles=target.exchange.sync_cycles,
        external_sync_cycles=target.links.latency_s * target.clock_hz,
        link_bytes_per_cycle=target.links.bytes_per_s / target.clock_hz,
        host_bytes_per_cycle=target.host_bytes_per_s / target.clock_hz,
    )


def native_module(backend: str) -> ModuleType:
    """The compiled program for a machine; `ConfigError` where this installation has none."""
    if backend not in BACKENDS:
        raise ConfigError(f"backend is {backend!r}; allowed: {', '.join(BACKENDS)}")
    if backend == "ipu-model":
        from sparsesnn import _ipu

        return _ipu
    try:
        from sparsesnn import _ipu_sdk  # type: ignore[attr-defined]
    except ImportError:
        raise ConfigError(
            f"backend {backend!r} needs the Poplar SDK (3.3 or 3.4), and this installation was built without it; source the "
            "SDK's enable.sh (it sets POPLAR_SDK_ENABLED), then install sparsesnn from source again; "
            "backend 'ipu-model' runs the same program on an emulated IPU"
        ) from None
    native: ModuleType = _ipu_sdk
    return native


def codelets() -> str:
    """The codelets that popc compiled, installed with the package."""
    from importlib.resources import files

    return str(files("sparsesnn") / "codelets" / "ipu.gp")
