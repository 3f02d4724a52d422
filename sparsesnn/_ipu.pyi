"""The IPU program; use it through sparsesnn.ipu."""

from collections.abc import Sequence


class Population:
    """One population of a plan; see host/src/ipu/spec.h."""

    def __init__(self, *, name: str, shape: str, fires: bool, n: int, capacity: int, shards: Sequence[tuple[int, int, int]], collectors: Sequence[tuple[int, int, int]], detach_reset: bool, surrogate: int, slope: float, fixed: bool, bias: bool, kept: int, operations: tuple[int, int], entries: Sequence[float], parameters: Sequence[tuple[str, bool, bool, float, float]], terms: Sequence[tuple[int, int, int]], entries_of_parameters: tuple[Sequence[float], Sequence[tuple[int, int, int]], Sequence[int]], d_parameters: tuple[Sequence[float], Sequence[tuple[int, int, int]], Sequence[int]]) -> None: ...

class Connection:
    """One connection: indices of pre and post, delay, reducers."""

    def __init__(self, *, pre: int, post: int, delay: int, reducers: Sequence[tuple[int, int, int, int, int]]) -> None: ...

class Spec:
    """The complete description of a program for the graph builder."""

    def __init__(self, *, devices: int, tiles: int, n_samples: int, n_steps: int, optimizer: int, momentum: bool, decoding: int, n_classes: int, loops_rounds: bool, half_weights: bool, replicas: int, first_replica: int, own_replicas: int, keep_every: int, populations: Sequence[Population], connections: Sequence[Connection], regularizer: tuple[float, float, float, float]) -> None: ...

class MachineOptions:
    """Numbers of the emulated machine, and its checks."""

    def __init__(self, *, checks: str, bytes_per_tile: int, exchange_bytes_per_cycle: float, sync_cycles: float, external_sync_cycles: float, link_bytes_per_cycle: float, host_bytes_per_cycle: float) -> None: ...

class Program:
    """A compiled IPU program with its host arrays."""

    def __init__(self, spec: Spec, machine: MachineOptions) -> None: ...

    def report(self) -> dict:
        """
        Cycles, bytes and memory of the emulated machine since the last reset_counts.
        """

    def vertices(self) -> list:
        """Compute set, class and tile of every vertex."""

    def reset_counts(self) -> None: ...

    def run(self, program: str) -> None:
        """Runs 'load', 'train', 'infer', 'save' or 'lists'."""

    def array(self, name: str) -> object:
        """The host's memory of a stream, as a flat NumPy array."""

    def names(self) -> list[str]: ...

has_sdk: bool = ...

def set_num_threads(n: int) -> None:
    """Number of threads that share the emulation."""
