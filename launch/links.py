"""The cost of a message between ranks here: latency and bandwidth, measured, as the `Links` of a dry run."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from sparsesnn import _core
from sparsesnn.errors import ConfigError
from sparsesnn.host.comm import Communicator
from sparsesnn.host.comm.exchange import make_exchange
from sparsesnn.launch.points import KINDS
from sparsesnn.partition.target import Links
from sparsesnn.regular_file import MAX_TEXT_BYTES, check_regular

SMALL, LARGE = 8, 4 << 20  # bytes
TAG = 7


def measure_links(world: Communicator, *, rounds: int = 100) -> Links | None:
    """Times exchanges between ranks r and r + R/2, all pairs at once, as in a pass of a layer; None for one rank.

    Args:
        world: all ranks; a collective call.
        rounds: of small messages; an eighth of that of large ones.

    Returns: for the slowest pair, the median time of an exchange of 8 bytes by the engine (`_core.MpiExchange`), or half of a round
        trip if the engine cannot call MPI; and the bandwidth of 4 MiB travelling both ways at once.
    """
    if world.size < 2:
        return None
    half = world.size // 2
    other = world.rank + half if world.rank < half else world.rank - half
    paired = other < 2 * half and world.rank < 2 * half
    latency = bandwidth = 0.0
    pair = world.split([r % half if r < 2 * half else half for r in range(world.size)])
    world.barrier()
    if paired:
        latency, large = _latency(pair, rounds), np.zeros(LARGE, np.uint8)
        seconds = median(_at_once(world, other, large) for _ in range(max(3, rounds // 8)))
        bandwidth = LARGE / seconds
    slowest = world.all_gather(np.array([latency, bandwidth]))
    pairs = [row for row in slowest if row[1] > 0]
    return Links(bytes_per_s=float(min(row[1] for row in pairs)), latency_s=float(max(row[0] for row in pairs)))


def read_links(path: Path) -> Links | None:
    """The links in the last row of a series measured by `sparsesnn launch weak-scaling`; None: it has none.

    Errors: `ConfigError` for any other file.
    """
    check_regular(path, ConfigError, MAX_TEXT_BYTES)
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
        links = [Links(**row["links"]) for row in rows if row["links"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"{path}: holds no links ({type(error).__name__}: {error}); give the scaling.json of sparsesnn launch "
            "weak-scaling"
        ) from None
    return links[-1] if links else None


def measured_links() -> tuple[Links, Path] | None:
    """The links of the newest series in its default folder, and the path of that series."""
    files = [path for kind in KINDS if (path := Path("runs") / kind / "scaling.json").is_file()]
    for path in sorted(files, key=lambda path: path.stat().st_mtime, reverse=True):
        if (links := read_links(path)) is not None:
            return links, path
    return None


def given_links(text: str) -> Links:
    """Parses `--link`: GB/s and µs, such as 12.5,2, or the scaling.json of a series."""
    if text.endswith(".json"):
        links = read_links(Path(text))
        if links is None:
            raise ConfigError(
                f"--link: {text} is a series of one rank, which has no links; give a series of several ranks"
            )
        return links
    try:
        gigabytes, microseconds = (float(part) for part in text.split(","))
    except ValueError:
        gigabytes = microseconds = -1.0
    if not (0 < gigabytes < 1e6 and 0 <= microseconds < 1e9):
        raise ConfigError(f"--link: is {text!r}; give GB/s and µs, such as 12.5,2, or a scaling.json")
    return Links(bytes_per_s=1e9 * gigabytes, latency_s=1e-6 * microseconds)


def _latency(pair: Communicator, rounds: int) -> float:
    exchange = make_exchange(pair)
    if isinstance(exchange, _core.MpiExchange):
        exchange.time_exchanges(rounds)
        return median(exchange.time_exchanges(10 * rounds))
    array = np.zeros(SMALL, np.uint8)
    return median(_there_and_back(pair, array) for _ in range(rounds)) / 2


def _there_and_back(pair: Communicator, array: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> float:
    start = perf_counter()
    if pair.rank == 0:
        pair.send(array, 1, TAG).wait()
        pair.receive(array, 1, TAG).wait()
    else:
        pair.receive(array, 0, TAG).wait()
        pair.send(array, 0, TAG).wait()
    return perf_counter() - start


def _at_once(world: Communicator, other: int, array: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> float:
    into = np.empty_like(array)
    start = perf_counter()
    sent, received = world.send(array, other, TAG), world.receive(into, other, TAG)
    received.wait()
    sent.wait()
    return perf_counter() - start
