"""Launching over several processes and machines."""

if not __name__.startswith("sparsesnn."):
    raise ImportError(
        f"this folder holds sparsesnn's launchers, imported as '{__name__}'; import sparsesnn.launch instead "
        "(it lies next to the package in the source tree and is installed inside it)"
    )
