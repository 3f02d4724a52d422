"""Spiking neural networks, trained at a cost proportional to the spikes that happen.

A `Network` describes populations and connections, `Model` runs and trains it as a `torch.nn.Module`, a `SpikeBatch`
is what goes in. Data sets are in `sparsesnn.datasets`, losses in `sparsesnn.loss`; the command line is `sparsesnn --help`.
"""

from __future__ import annotations

import sys

if sys.version_info >= (3, 10):  # noqa: UP036
    try:
        from sparsesnn._core import version as __version__
    except ModuleNotFoundError as error:
        if error.name != "sparsesnn._core":
            raise
        raise ImportError(
            f"sparsesnn was imported from {__path__[0]}, which has no compiled engine (sparsesnn._core). In the source "
            "tree run: pip install -e . (or ./dev test), which builds it; if sparsesnn is installed already, this folder hides "
            "the installation: start Python from another directory"
        ) from error

    from sparsesnn import errors
    from sparsesnn.adam import Adam, AdamW
    from sparsesnn.layers import LI, LIF, CubaLIF, Input, decays
    from sparsesnn.module import Layer, LayerState, Model, Output
    from sparsesnn.network import Connection, Network, parse_net
    from sparsesnn.runtime import build_info, num_threads, set_isa, set_num_threads
    from sparsesnn.spikes import SpikeBatch
    from sparsesnn.surrogate import Surrogate, atan, boxcar, fast_sigmoid, sigmoid, straight_through, triangle
else:  # PopTorch's Python 3.8: descriptions, and sparsesnn.poptorch
    from sparsesnn import errors
    from sparsesnn.layers import LI, LIF, CubaLIF, Input, decays
    from sparsesnn.network import Connection, Network, parse_net
    from sparsesnn.surrogate import Surrogate, atan, boxcar, fast_sigmoid, sigmoid, straight_through, triangle

    def __getattr__(name: str) -> None:
        raise AttributeError(
            f"sparsesnn.{name} needs Python 3.10 and torch 2.4; this is Python {sys.version.split()[0]}, where sparsesnn "
            "describes networks and trains them by sparsesnn.poptorch"
        )


__all__ = [
    # describe
    "Network",
    "Connection",
    "parse_net",
    "Input",
    "LIF",
    "CubaLIF",
    "LI",
    "decays",
    "Surrogate",
    "fast_sigmoid",
    "straight_through",
    "sigmoid",
    "atan",
    "triangle",
    "boxcar",
    # run and train
    "Model",
    "Layer",
    "LayerState",
    "Output",
    "SpikeBatch",
    "Adam",
    "AdamW",
    # the engine
    "build_info",
    "num_threads",
    "set_num_threads",
    "set_isa",
    "errors",
    "__version__",
]
