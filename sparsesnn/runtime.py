"""The compiled engine's settings: what was built, which instruction set runs, how many threads share the work."""

from __future__ import annotations

from typing import TypedDict, cast

from sparsesnn import _core
from sparsesnn.errors import ConfigError
from sparsesnn.options import whole


class BuildInfo(TypedDict):
    """What `build_info` returns.

    version: of sparsesnn; compiler: name and version; flags: those of every file, then those of each instruction set;
    isa_built: instruction sets in this build, plainest first; isa_supported: those this machine runs;
    isa: the one in use; threads: how many share the engine's work.
    """

    version: str
    compiler: str
    flags: str
    isa_built: list[str]
    isa_supported: list[str]
    isa: str
    threads: int


def build_info() -> BuildInfo:
    """What was built and what is in use, as plain data for logs and bug reports."""
    return cast(BuildInfo, _core.build_info())


def num_threads() -> int:
    """Threads that share the engine's work; at first the processors this process may use, or `SPARSESNN_THREADS`."""
    return _core.num_threads()


def set_num_threads(n: int) -> None:
    """Sets the number of threads; results do not depend on it, to the last bit.

    Args:
        n: 1 to 1024; waits for passes that run in other threads.

    Errors: `ConfigError` for anything else.
    """
    found = whole(n)
    if found is None or not 1 <= found <= 1024:
        raise ConfigError(f"set_num_threads: n is {n!r}; give a whole number from 1 to 1024")
    _core.set_num_threads(found)


def set_isa(name: str) -> None:
    """Chooses the instruction set, as the environment variable `SPARSESNN_ISA` does; all give the same bits.

    Args:
        name: one of `build_info()["isa_supported"]`, such as "base", "avx2" or "avx512".

    Errors: `ConfigError` where it is not built or this machine cannot run it.
    """
    try:
        _core.set_isa(name)
    except (TypeError, ValueError) as error:
        allowed = ", ".join(_core.build_info()["isa_supported"])
        message = str(error) if isinstance(error, ValueError) else f"isa is {name!r}; allowed here: {allowed}"
        raise ConfigError(f"set_isa: {message}") from None
