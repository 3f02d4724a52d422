"""Spiking neural networks, trained at a cost proportional to the number of spikes.

A `Network` describes populations and connections, `Model` runs and trains it as a `torch.nn.Module`, a `SpikeBatch`
is its input. Data sets are in `sparsesnn.datasets`, losses in `sparsesnn.loss`; the command line is `sparsesnn --help`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from sparsesnn import errors, startup
from sparsesnn.delays import Delays
from sparsesnn.layers import LI, LIF, AdLIF, CubaLI, CubaLIF, Input, NeuronArrays, Resonator, decays, parameter
from sparsesnn.layers import PerNeuron as PerNeuron
from sparsesnn.layers.neuron import OpenNeuron as Neuron
from sparsesnn.network import Connection, Network, parse_net
from sparsesnn.surrogate import Surrogate, atan, boxcar, exponential, fast_sigmoid, sigmoid, straight_through, triangle
from sparsesnn.synapses import Conv1d, Conv2d, Dense, Pool, Series, Sparse

_missing = ""  # why networks can be described and planned here, but not run
if sys.version_info >= (3, 10):  # noqa: UP036
    try:
        from sparsesnn._core import version as __version__
    except ModuleNotFoundError as error:
        if error.name != "sparsesnn._core":
            raise
        _missing = (
            f"needs the compiled engine (sparsesnn._core), which {__path__[0]} does not have; without it sparsesnn only describes "
            "and plans networks. In the source tree run: pip install -e . (or ./dev test), which builds it; if sparsesnn is "
            "installed already, this folder hides the installation: start Python from another directory"
        )
    except (ImportError, UnicodeDecodeError) as error:
        startup.refuse(error)
    else:
        from sparsesnn import encode
        from sparsesnn.adam import Adam, AdamW
        from sparsesnn.conversion import convert
        from sparsesnn.datasets.event_set import EventSet
        from sparsesnn.engines.live import LiveModel
        from sparsesnn.engines.module import Layer, Model
        from sparsesnn.engines.sequential import Sequential
        from sparsesnn.host.stream import Stream
        from sparsesnn.model_card import ModelCard
        from sparsesnn.operations import count_operations
        from sparsesnn.output import LayerState, Output
        from sparsesnn.runtime import build_info, num_threads, set_isa, set_num_threads
        from sparsesnn.spikes import SpikeBatch
else:  # PopTorch's Python 3.8
    _missing = (
        f"needs Python 3.10 and torch 2.6; this is Python {sys.version.split()[0]}, where sparsesnn only describes networks and "
        "trains them through sparsesnn.poptorch"
    )


__all__ = [
    # describe
    "Network",
    "Connection",
    "Delays",
    "Dense",
    "Sparse",
    "parse_net",
    "Input",
    "LIF",
    "AdLIF",
    "CubaLI",
    "CubaLIF",
    "Resonator",
    "LI",
    "decays",
    "Neuron",
    "NeuronArrays",
    "parameter",
    "Conv1d",
    "Conv2d",
    "Pool",
    "Series",
    "Surrogate",
    "fast_sigmoid",
    "straight_through",
    "sigmoid",
    "atan",
    "triangle",
    "boxcar",
    "exponential",
    # run and train
    "Model",
    "LiveModel",
    "Layer",
    "Sequential",
    "LayerState",
    "Output",
    "SpikeBatch",
    "EventSet",
    "Stream",
    "encode",
    "count_operations",
    "ModelCard",
    "Adam",
    "AdamW",
    "convert",
    # the engine
    "build_info",
    "num_threads",
    "set_num_threads",
    "set_isa",
    "errors",
    "__version__",
]

if TYPE_CHECKING:
    from sparsesnn import bench as bench
    from sparsesnn import config as config
    from sparsesnn import conversion as conversion
    from sparsesnn import datasets as datasets
    from sparsesnn import dense as dense
    from sparsesnn import host as host
    from sparsesnn import init as init
    from sparsesnn import integers as integers
    from sparsesnn import ipu as ipu
    from sparsesnn import layers as layers
    from sparsesnn import loss as loss
    from sparsesnn import neurobench as neurobench
    from sparsesnn import nir as nir
    from sparsesnn import onnx as onnx
    from sparsesnn import partition as partition
    from sparsesnn import poptorch as poptorch
    from sparsesnn import reference as reference
    from sparsesnn import traces as traces
    from sparsesnn import train as train
else:
    #: modules imported on first use
    _modules = (
        *(
            "bench",
            "config",
            "conversion",
            "datasets",
            "dense",
            "host",
            "init",
            "integers",
            "ipu",
            "layers",
            "loss",
            "neurobench",
            "nir",
        ),
        *("onnx", "partition", "poptorch", "reference", "traces", "train"),
    )

    def __getattr__(name: str) -> Any:
        if _missing and name in (*__all__, "_core"):
            raise ImportError(f"sparsesnn.{name} {_missing}")
        if name in _modules:
            import importlib

            return importlib.import_module(f"sparsesnn.{name}")
        raise AttributeError(f"module 'sparsesnn' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *_modules})
