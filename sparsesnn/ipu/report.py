"""The emulated IPU's counts: cycles by phase, bytes moved, memory per tile. Predicted, never measured on an IPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sparsesnn.partition.plan import Plan


@dataclass(frozen=True)
class Phase:
    """All executions of one compute set or copy.

    Args:
        name: the graph builder's, such as "forward/0/step".
        executions: the number of times it ran.
        compute, exchange, sync, link, host: cycles; the slowest tile counts.
        exchange_bytes, link_bytes, host_bytes: bytes received, over all tiles, devices and streams.
    """

    name: str
    executions: int
    compute: float
    exchange: float
    sync: float
    link: float
    host: float
    exchange_bytes: int
    link_bytes: int
    host_bytes: int

    @property
    def cycles(self) -> float:
        return self.compute + self.exchange + self.sync + self.link + self.host


@dataclass(frozen=True)
class MachineReport:
    """Counts of the emulated machine.

    Args:
        phases: those that ran.
        n_vertices, n_compute_sets: of the program.
        tile_bytes: memory of each tile: variables, vertex state, the largest exchange buffer, code (assumed).
        n_tiles, bytes_per_tile, clock_hz, target: of the machine.
    """

    phases: tuple[Phase, ...]
    n_vertices: int
    n_compute_sets: int
    tile_bytes: tuple[int, ...]
    n_tiles: int
    bytes_per_tile: int
    clock_hz: float
    target: str

    @classmethod
    def from_native(cls, data: Mapping[str, Any], plan: Plan) -> MachineReport:
        phases = tuple(
            Phase(
                name=s["name"],
                executions=s["executions"],
                **{k: s[f"{k}_cycles"] for k in ("compute", "exchange", "sync", "link", "host")},
                **{k: s[k] for k in ("exchange_bytes", "link_bytes", "host_bytes")},
            )
            for s in data["steps"]
            if s["executions"]
        )
        return cls(
            phases=phases,
            n_vertices=data["n_vertices"],
            n_compute_sets=data["n_compute_sets"],
            tile_bytes=tuple(data["tile_bytes"]),
            n_tiles=plan.target.n_tiles,
            bytes_per_tile=plan.target.bytes_per_tile,
            clock_hz=plan.target.clock_hz,
            target=plan.target.name,
        )

    @property
    def cycles(self) -> float:
        return sum(p.cycles for p in self.phases)

    @property
    def seconds(self) -> float:
        return self.cycles / self.clock_hz

    def table(self) -> str:
        """The report as a text table."""
        lines = [
            f"{self.target}, emulated: {self.n_vertices:,} vertices ({self.n_vertices / self.n_tiles:.1f} a tile) in "
            f"{self.n_compute_sets} compute sets; fullest tile {max(self.tile_bytes):,} of {self.bytes_per_tile:,} bytes",
            f"{'phase':34} {'runs':>7} {'compute':>12} {'exchange':>12} {'sync':>10} {'links':>10} {'host':>10} cycles",
        ]
        for p in self.phases:
            lines.append(
                f"{p.name:34} {p.executions:7,} {p.compute:12,.0f} {p.exchange:12,.0f} {p.sync:10,.0f} {p.link:10,.0f} "
                f"{p.host:10,.0f}"
            )
        exchanged, linked = sum(p.exchange_bytes for p in self.phases), sum(p.link_bytes for p in self.phases)
        lines.append(
            f"predicted {self.cycles:,.0f} cycles, {1e3 * self.seconds:.2f} ms at {self.clock_hz / 1e9:.2f} GHz; "
            f"{exchanged:,} bytes exchanged, {linked:,} over links"
        )
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "cycles": self.cycles, "seconds": self.seconds}
