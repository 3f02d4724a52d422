"""The compiled engine's settings: its build, the instruction set in use, and the number of threads."""

from __future__ import annotations

from typing import TypedDict, cast

from sparsesnn import _core
from sparsesnn.errors import ConfigError
from sparsesnn.options import whole


class BuildInfo(TypedDict):
    """The result of `build_info`.

    version: of sparsesnn; compiler: name and version; flags: for all files, then for each instruction set;
    isa_built: instruction sets in this build, simplest first; isa_supported: those supported by this machine;
    isa: the one in use; threads: number of threads of the engine.
    """

    version: str
    compiler: str
    flags: str
    isa_built: list[str]
    isa_supported: list[str]
    isa: str
    threads: int


def build_info() -> BuildInfo:
    """The build and the settings in use, as plain data for logs and bug reports."""
    return cast(BuildInfo, _core.build_info())


def num_threads() -> int:
    """Number of the engine's threads; by default one per processor available to this process, or `SPARSESNN_THREADS`."""
    return _core.num_threads()


def set_num_threads(n: int) -> None:
    """Sets the number of threads; results do not depend on it, bit for bit.

    Args:
        n: number of threads, 1 to 1024. The call waits for passes that run in other threads.

    Errors: `ConfigError` for anything else.
    """
    number = whole(n)
    if number is None or not 1 <= number <= 1024:
        raise ConfigError(f"set_num_threads: n is {n!r}; give a whole number from 1 to 1024")
    _core.set_num_threads(number)


def set_isa(name: str) -> None:
    """Chooses the instruction set, like the environment variable `SPARSESNN_ISA`; all give the same bits.

    Args:
        name: one of `build_info()["isa_supported"]`, such as "base", "avx2" or "avx512".

    Errors: `ConfigError` if it is not built or not supported by this machine.
    """
    try:
        _core.set_isa(name)
    except (TypeError, ValueError) as error:
        allowed = ", ".join(_core.build_info()["isa_supported"])
        message = str(error) if isinstance(error, ValueError) else f"isa is {name!r}; allowed here: {allowed}"
        raise ConfigError(f"set_isa: {message}") from None
