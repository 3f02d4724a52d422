"""A target: the description of the machine for a plan. Numbers only; never read from a live device.

| name | machine |
|---|---|
| `ipu-mk2`, `ipu-mk2:4` | 1 or 4 Graphcore Mk2 (GC200) IPUs of 1,472 tiles |
| `ipu-bow:16` | 16 Bow IPUs: the same tiles at a higher clock |
| `ipu-mk2:2x64` | 64 of the 1,472 tiles of each of 2 IPUs: small plans for emulation and tests |
| `cpu`, `cpu:8` | one process on 1 or 8 cores |
| `mpi:64x16` | 64 ranks of 16 cores |
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeVar

from sparsesnn.errors import ConfigError
from sparsesnn.options import plain
from sparsesnn.wording import meant, powers_of_two_near

KINDS = ("ipu", "cpu")
#: limits of a target: devices or ranks, tiles of a device or cores of a rank
MAX_DEVICES, MAX_TILES = 4096, 65_536
Described = TypeVar("Described", "Exchange", "Links", "Target")


@dataclass(frozen=True)
class Exchange:
    """The exchange of data between the tiles of one device.

    Args:
        bytes_per_cycle: bytes that one tile can receive, and send, per cycle. 4 on Mk2: 8 TB/s over 1,472 tiles at 1.33 GHz,
            any pattern (derived from published figures).
        sync_cycles: one bulk-synchronous barrier of a device. 200 on Mk2 is an assumption: no figure is published.
    """

    bytes_per_cycle: float = 4.0
    sync_cycles: int = 200


@dataclass(frozen=True)
class Links:
    """The links between devices, or ranks.

    Args:
        bytes_per_s: bytes that one device can receive, and send, per second. 160e9 on Mk2: 320 GB/s an IPU, both directions
            together.
        latency_s: one barrier over all devices, or one message between ranks. 1 µs is an assumption.
    """

    bytes_per_s: float = 160e9
    latency_s: float = 1e-6


@dataclass(frozen=True)
class Target:
    """The description of one machine.

    Args:
        name: as given to `parse_target`.
        kind: "ipu" (private memory a tile, bulk-synchronous) or "cpu" (tiles are cores that share a rank's memory).
        devices: devices; for `cpu` and `mpi`, ranks.
        tiles: tiles that a plan uses on each device; for `cpu` and `mpi`, cores per rank.
        bytes_per_tile: memory of a tile; for `cpu` and `mpi`, the part of a core's L2 cache that a slab should fill.
        workers_per_tile: hardware threads of a tile that share its issue slots.
        clock_hz: cycles per second.
        exchange: between tiles of a device.
        links: between devices.
        host_bytes_per_s: bytes that the host streams to one device per second.
        bytes_per_device: memory of a rank, or None: unknown. For IPUs it is tiles × bytes_per_tile.
        tiles_per_device: number of tiles of a device, which determines their numbering. 1,472 on Mk2 and Bow. None: the
            same as `tiles`.
    """

    name: str
    kind: str
    devices: int
    tiles: int
    bytes_per_tile: int
    workers_per_tile: int
    clock_hz: float
    exchange: Exchange
    links: Links
    host_bytes_per_s: float
    bytes_per_device: int | None = None
    tiles_per_device: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"target {self.name!r}: kind is {self.kind!r}; allowed: {', '.join(KINDS)}")
        for name in ("devices", "tiles", "bytes_per_tile", "workers_per_tile"):
            value = plain(getattr(self, name))
            most = {"devices": MAX_DEVICES, "tiles": MAX_TILES}.get(name, 1 << 40)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
                raise ConfigError(
                    f"target {self.name!r}: {name} is {value!r}; allowed: whole numbers from 1 to {most:,}"
                )
            object.__setattr__(self, name, value)
        has = self.tiles_per_device
        if has is not None and (
            not isinstance(has, int) or isinstance(has, bool) or not self.tiles <= has <= MAX_TILES
        ):
            raise ConfigError(
                f"target {self.name!r}: tiles is {self.tiles} and tiles_per_device {has!r}; a plan uses 1 to all tiles of "
                "a device"
            )
        if self.kind == "ipu" and (near := powers_of_two_near(self.devices)):
            raise ConfigError(f"target {self.name!r}: {self.devices} IPUs; IPUs come in powers of two: give {near}")
        for where, name in (
            (self, "clock_hz"),
            (self, "host_bytes_per_s"),
            (self.exchange, "bytes_per_cycle"),
            (self.links, "bytes_per_s"),
        ):
            value = plain(getattr(where, name))
            if not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise ConfigError(f"target {self.name!r}: {name} is {value!r}; give a number above 0")
            object.__setattr__(where, name, value)

    @property
    def n_tiles(self) -> int:
        """Tiles that a plan may use, over all devices."""
        return self.devices * self.tiles

    @property
    def stride(self) -> int:
        """The number of tiles of a device: device d owns tiles [d·stride, (d+1)·stride), and a plan uses the first `tiles` of them."""
        return self.tiles_per_device or self.tiles

    @property
    def all_tiles(self) -> int:
        """Tiles of all devices, used or not: the length of an array with an entry per tile."""
        return self.devices * self.stride

    def tile_number(self, k: int) -> int:
        """The number of the k-th tile that a plan may use."""
        device, tile = divmod(k, self.tiles)
        return device * self.stride + tile

    def device_of(self, tile: int) -> int:
        return tile // self.stride

    def with_devices(self, devices: int) -> Target:
        """The same machine with another number of devices, or ranks, and its name for `parse_target`."""
        name, _, size = self.name.partition(":")
        _, times, tiles = size.partition("x")
        return replace(self, name=f"{name}:{devices}{times}{tiles}", devices=devices)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Target:
        """The inverse of `to_dict`. Errors: `ConfigError` for missing or unknown keys and invalid values."""
        return _build(
            cls,
            {
                **data,
                "exchange": _build(Exchange, data.get("exchange", {}), "exchange"),
                "links": _build(Links, data.get("links", {}), "links"),
            },
            "target",
        )


def _build(cls: type[Described], data: Any, what: str) -> Described:
    known = {f.name for f in fields(cls)}
    if not isinstance(data, Mapping) or set(data) - known:
        raise ConfigError(f"{what}: is {data!r}; allowed keys: {', '.join(sorted(known))}")
    try:
        return cls(**data)
    except TypeError as error:
        raise ConfigError(f"{what}: {error}; needed: {', '.join(sorted(known))}") from None


#: GC200: 1,472 tiles of 624 KiB and six workers; 1.33 GHz from profiles that give both cycles and seconds. Host: 64 GB/s
#: nominal PCIe, but pods share 100 Gbit/s network cards among 4 IPUs: an IPU gets 12.5 GB/s at most.
IPU_MK2 = Target(
    name="ipu-mk2",
    kind="ipu",
    devices=1,
    tiles=1472,
    bytes_per_tile=624 * 1024,
    workers_per_tile=6,
    clock_hz=1.33e9,
    exchange=Exchange(bytes_per_cycle=4.0, sync_cycles=200),
    links=Links(bytes_per_s=160e9, latency_s=1e-6),
    host_bytes_per_s=12.5e9,
    tiles_per_device=1472,
)
#: Bow: the same die at 1.85 GHz (350 against 250 TFLOP/s); links and host unchanged.
IPU_BOW = replace(IPU_MK2, name="ipu-bow", clock_hz=1.85e9)
#: A server core. Plans for cores and ranks count bytes; of these numbers only the links are used, by a dry run without measured
#: ones: 100 Gbit/s network, 2 µs a message, both assumptions.
CPU = Target(
    name="cpu",
    kind="cpu",
    devices=1,
    tiles=1,
    bytes_per_tile=512 * 1024,
    workers_per_tile=1,
    clock_hz=3.0e9,
    exchange=Exchange(bytes_per_cycle=4.0, sync_cycles=15_000),
    links=Links(bytes_per_s=12.5e9, latency_s=2e-6),
    host_bytes_per_s=10e9,
)

ALLOWED = "ipu-mk2, ipu-bow, cpu or mpi; with a size: ipu-mk2:4 (IPUs), ipu-mk2:2x64 (IPUs × tiles), cpu:8 (cores), mpi:64x16 (ranks × cores)"


def parse_target(text: str) -> Target:
    """`"ipu-mk2:4"` → four Mk2 IPUs; this module's docstring lists the names.

    Errors: `ConfigError` for an unknown name or an invalid size.
    """
    match = re.fullmatch(r"(ipu-mk2|ipu-bow|cpu|mpi)(?::([1-9][0-9]{0,6})(?:x([1-9][0-9]{0,6}))?)?", text.strip())
    if match is None:
        raise ConfigError(f"target {text!r}: {meant(text, ('ipu-mk2', 'ipu-bow'))}allowed: {ALLOWED}")
    name, first, second = match[1], match[2], match[3]
    one, two = (None if x is None else int(x) for x in (first, second))
    if name == "cpu":
        if two is not None:
            raise ConfigError(f"target {text!r}: cpu takes only cores, cpu:{two}; for ranks write mpi:{one}x{two}")
        return replace(CPU, name=text, tiles=one or 1)
    if name == "mpi":
        if one is None:
            raise ConfigError(f"target {text!r}: give ranks and cores a rank, such as mpi:64x16")
        return replace(CPU, name=text, devices=one, tiles=two or 1)
    base = IPU_MK2 if name == "ipu-mk2" else IPU_BOW
    return replace(base, name=text, devices=one or 1, tiles=two or base.tiles)
