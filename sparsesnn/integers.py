"""Networks with integer weights in a file: int8 numbers and a float32 scale per receiving neuron, in safetensors.

    sparsesnn.integers.save(model, "net.safetensors")      a model with weight_dtype "int8" or "int4"
    model = sparsesnn.integers.load("net.safetensors")     the same spikes, bit for bit

A weight `layers.hidden.input->hidden` is int8 under its name, its scales are float32[n] under the name and `:scales`; everything
else is as in `model.state_dict()`. The metadata hold `network` and `weight_dtype` (JSON, under `sparsesnn`).
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
from sparsesnn.whole_file import whole_file

__all__ = ["Saved", "load", "read", "save"]

#: how the names of scales end, after the weight's
SCALES = ":scales"


@dataclass(frozen=True)
class Saved:
    """What a file holds.

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

    Errors: `DescriptionError` for another type, `ConfigError` where the file cannot be written.
    """
    kind = weight_dtype or model.weight_dtype
    if kind not in BITS:
        raise DescriptionError(
            f"weight_dtype is {kind!r}; allowed: {', '.join(BITS)}; give one, or a model that was made with it"
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
            f"{path}: cannot be written: {os.strerror(error.errno or 0)}; give a file in a folder that is there"
        ) from None


def read(path: str | Path) -> Saved:
    """What `save` wrote.

    Args:
        path: the file.

    Errors: `CheckpointError` for a file that is missing, damaged, or another one.
    """
    tensors: dict[str, Tensor] = {}
    check_regular(path, CheckpointError)
    try:
        # safetensors takes no name that is not UTF-8
        with Path(path).open("rb") as opened, safe_open(f"/dev/fd/{opened.fileno()}", "pt") as file:
            about = json.loads((file.metadata() or {})["sparsesnn"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is no dict
        network, kind = Network.from_dict(about["network"]), about["weight_dtype"]
        model = Model(network, weight_dtype=kind)
        for population, layer in model.layers.items():
            assert isinstance(layer, Layer)
            for name, c in _weights(population, layer):
                found = Integers(tensors[name], tensors.pop(name + SCALES))
                tensors[name] = product(found, layer.receivers(c))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such file; give one that `sparsesnn quantize` wrote") from None
    except (SafetensorError, OSError, KeyError, ValueError, RuntimeError, TypeError) as error:
        raise CheckpointError(
            f"{path}: is damaged, or no file with integer weights ({error}); give one that `sparsesnn quantize` wrote"
        ) from None
    return Saved(network, kind, tensors)


def load(path: str | Path, *, backend: str = "cpu") -> Model:
    """The model in a file; its float32 weights begin as integer times scale.

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
