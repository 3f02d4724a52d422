"""The dense baseline; see `sparsesnn.engines.dense`."""

from sparsesnn.engines.dense import (
    MODES,
    DenseSpikes,
    Spike,
    SpikesByName,
    check_mode,
    choose_mode,
    products_are_ours,
    run_layer,
    surrogate_derivative,
)

__all__ = [
    "MODES",
    "DenseSpikes",
    "Spike",
    "SpikesByName",
    "check_mode",
    "choose_mode",
    "products_are_ours",
    "run_layer",
    "surrogate_derivative",
]
