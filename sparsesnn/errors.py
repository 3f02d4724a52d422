"""Errors state four facts: the name of the argument, its value, the allowed range, and the remedy."""

from __future__ import annotations

import shlex
from typing import Sequence  # noqa: UP035


class SparseSnnError(Exception):
    """Base of every error that sparsesnn raises on purpose."""


class DescriptionError(SparseSnnError, ValueError):
    """The description of a network, population or connection is invalid."""


class UnknownModelError(DescriptionError):
    """A network names a neuron model that is none of ours, and that this process has not loaded."""


class SpikeListError(SparseSnnError, ValueError):
    """Spike lists break their invariants: ids out of range or not ascending, counts that do not add up."""


class ShapeError(SparseSnnError, ValueError):
    """An array has the wrong shape or dtype."""


class NumericError(SparseSnnError, ValueError):
    """NaN or infinity instead of a finite number."""


class NotFiniteError(NumericError):
    """NaN or infinity where training needs a finite number.

    No checkpoint is written. The step leaves the weights as they were, except on an IPU, which has already made it.

    Attributes:
        what: "loss", "norm of the gradients", or the name of a weight or of a state of the optimizer.
        value: the number.
        more: the rest of the message: place and remedy.
    """

    def __init__(self, what: str, value: float, more: str = "") -> None:
        super().__init__(f"the {what} is {value}{more}")
        self.what = what
        self.value = value
        self.more = more


class SecondDerivativeError(SparseSnnError, NotImplementedError):
    """A derivative that an engine cannot take: of one of its gradients, or within a transform of `torch.func`."""


class TraceError(SparseSnnError, NotImplementedError):
    """A tracer that cannot record an engine: `torch.jit.script`, `torch.jit.trace` or `torch.export`."""


class DeviceError(SparseSnnError, RuntimeError):
    """A device is missing, too old, or failed while it ran a kernel.

    Attributes:
        kernel: the kernel that failed; "": none.
        what: the population or connection that it worked for; "": none.
    """

    def __init__(self, message: str, *, kernel: str = "", what: str = "") -> None:
        super().__init__(message)
        self.kernel, self.what = kernel, what


class DeviceMemoryError(DeviceError):
    """A device has too little memory.

    Attributes:
        needed: bytes that were asked for.
        free: bytes that the device has left.
    """

    def __init__(self, message: str, *, needed: int, free: int, what: str = "") -> None:
        super().__init__(message, what=what)
        self.needed, self.free = needed, free


class DataError(SparseSnnError):
    """A data file is missing, damaged or not in the format it claims."""


class CacheError(DataError):
    """An event cache is damaged, half written or made with other parameters."""


class ConfigError(SparseSnnError, ValueError):
    """A run's configuration has an unknown key or an invalid value."""


class CodeError(ConfigError):
    """A configuration or a checkpoint names code as its data. Code runs only if it is named in the command or call.

    Attributes:
        place: FILE.py:FUNCTION.
    """

    def __init__(self, place: str, command: Sequence[str] = (), *, on_ranks: bool = False) -> None:
        python = f"give data_dir={place!r} (to load_run, data=), or on the command line --data {shlex.quote(place)}"
        start = "let all ranks run" if on_ranks else "run"
        trusted = f"{start}: {shlex.join([*command, '--data', place])}" if command else python
        super().__init__(
            f"data.dir: is {place!r} in a configuration or a checkpoint. That is code, which runs only if you name it "
            f"yourself. If you trust that file, {trusted}"
        )
        self.place = place

    def with_command(self, command: Sequence[str], *, on_ranks: bool = False) -> CodeError:
        """The same error with the whole command to type: these words and the code."""
        return CodeError(self.place, command, on_ranks=on_ranks)


class CheckpointError(SparseSnnError, RuntimeError):
    """A checkpoint is missing, damaged or belongs to another network; a `RuntimeError`, as PyTorch's `load_state_dict` raises."""


class PlanError(SparseSnnError):
    """The network does not fit the target; the numbers are attributes.

    Attributes:
        needed: bytes needed.
        available: bytes available.
    """

    def __init__(self, message: str, *, needed: int, available: int) -> None:
        super().__init__(message)
        self.needed = needed
        self.available = available


class PictureError(SparseSnnError):
    """A picture cannot be drawn."""


class MissingDependencyError(SparseSnnError, ImportError):
    """An optional package is absent; the message names the command that installs it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package '{package}', which is not installed; run: pip install 'sparsesnn[{extra}]'"
        )
        self.package = package
        self.extra = extra
