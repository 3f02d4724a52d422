"""The host runtime: feeds an engine with data and runs it on a machine."""

if not __name__.startswith("sparsesnn."):
    raise ImportError(
        f"this folder holds sparsesnn's host runtime, imported as '{__name__}'; import sparsesnn.host instead "
        "(it lies next to the package in the source tree and is installed inside it)"
    )
