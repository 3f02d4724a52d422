"""Networks with integer weights in a file: int8 numbers and a float32 scale per receiving neuron, in safetensors.

    sparsesnn.integers.save(model, "net.safetensors")      a model with weight_dtype "int8" or "int4"
    model = sparsesnn.integers.load("net.safetensors")     the same spikes, bit for bit

A weight `layers.hidden.input->hidden` is int8 under its name, its scales are float32[n] under the name and `:scales`; everything
else is as in `model.state_dict()`. The metadata contain `network` and `weight_dtype` (JSON, under `sparsesnn`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from sparsesnn.engines.module import Layer, Model
from sparsesnn.errors import CheckpointError, ConfigError, DescriptionError
from sparsesnn.network import Network
from sparsesnn.parameters import Incoming
from sparsesnn.regular_file import check_regular
from sparsesnn.rounding import BITS, Integers, product
from sparsesnn.synapses.one_to_one import check_no_currents
from sparsesnn.whole_file import whole_file

__all__ = ["Saved", "load", "read", "save"]

#: suffix of the names of scales, after the weight's name
SCALES = ":scales"


@dataclass(frozen=True)
class Saved:
    """The content of a file.

    Args:
        network: the description.
        weight_dtype: "int8" or "int4".
        tensors: by the names of `model.state_dict()`; weights are integer times scale.
    """

    network: Network
    weight_dtype: str
    tensors: dict[str, Tensor]


def save(model: Model, path: str | Path, weight_dtype: str | None = None) -> None:
    """Writes a model with its weights rounded.

    Args:
        model: any model.
        path: the file; it appears whole or not at all.
        weight_dtype: "int8" or "int4"; None: the model's own.

    Errors: `DescriptionError` for another type, `ConfigError` if the file cannot be written.
    """
    check_no_currents(model.network, "a file with integer weights")
    kind = weight_dtype or model.weight_dtype
    if kind not in BITS:
        raise DescriptionError(
            f"weight_dtype is {kind!r}; allowed: {', '.join(BITS)}; give one, or a model that has one"
        )
    tensors: dict[str, Tensor] = {}
    with model.settled():
        for population, layer in model.layers.items():
            assert isinstance(layer, Layer)
            for own in layer.tensor_names:
                if own not in layer._non_persistent_buffers_set:
                    tensors[f"layers.{population}.{own}"] = layer.tensor(own).detach()
            for name, c in _weights(population, layer):
                tensors[name], tensors[name + SCALES] = layer.integers(c, kind)
    tensors = {name: x.cpu().contiguous() for name, x in tensors.items()}
    about = json.dumps({"weight_dtype": kind, "network": model.network.to_dict()})
    data = to_bytes(tensors, {"sparsesnn": about})  # one key: safetensors gives several a random order
    path = Path(path)
    try:
        with whole_file(path) as temporary:
            temporary.write_bytes(data)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be written: {os.strerror(error.errno or 0)}; give a file in an existing folder"
        ) from None


def read(path: str | Path) -> Saved:
    """Reads a file written by `save`.

    Args:
        path: the file.

    Errors: `CheckpointError` for a file that is missing, damaged, or of another kind.
    """
    tensors: dict[str, Tensor] = {}
    check_regular(path, CheckpointError)
    try:
        # safetensors accepts only names in UTF-8
        with Path(path).open("rb") as opened, safe_open(f"/dev/fd/{opened.fileno()}", "pt") as file:
            about = json.loads((file.metadata() or {})["sparsesnn"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
        network, kind = Network.from_dict(about["network"]), about["weight_dtype"]
        model = Model(network, weight_dtype=kind)
        for population, layer in model.layers.items():
            assert isinstance(layer, Layer)
            for name, c in _weights(population, layer):
                rounded = Integers(tensors[name], tensors.pop(name + SCALES))
                tensors[name] = product(rounded, layer.receivers(c))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file; give one written by `sparsesnn quantize`") from None
    except (SafetensorError, OSError, KeyError, ValueError, RuntimeError, TypeError) as error:
        raise CheckpointError(
            f"{path}: is damaged or not a file with integer weights ({error}); give one written by `sparsesnn quantize`"
        ) from None
    return Saved(network, kind, tensors)


def load(path: str | Path, *, backend: str = "cpu") -> Model:
    """The model in a file; its float32 weights start as integer times scale.

    Args:
        path: the file.
        backend: "cpu" or "dense".

    Errors: see `read`.
    """
    saved = read(path)
    model = Model(saved.network, backend=backend, weight_dtype=saved.weight_dtype)
    try:
        model.load_state_dict(saved.tensors)
    except RuntimeError as error:
        raise CheckpointError(f"{path}: does not hold the weights of its network: {error}") from None
    return model


def _weights(population: str, layer: Layer) -> Iterator[tuple[str, Incoming]]:
    """The names and connections of a layer's weights."""
    return ((f"layers.{population}.{c.name}", c) for c in layer.incoming if layer.has_weights(c))
