"""Device-neutral C++ kernels: one file per pass, the forward pass next to its gradient."""

if not __name__.startswith("sparsesnn."):
    raise ImportError(
        f"this folder holds sparsesnn's C++ kernels, imported as '{__name__}'; import sparsesnn.codelets instead "
        "(it lies next to the package in the source tree and is installed inside it)"
    )
