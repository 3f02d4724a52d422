"""The inputs of a layer call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparsesnn.errors import ShapeError


def layer_sources(inputs: Any, n_sources: int, model: str) -> list[Any]:
    """The spikes of each source.

    Args:
        inputs: the spikes of a single source, or a sequence with those of each.
        model: name of the layer's neuron model, for messages.

    Errors: `ShapeError` for anything else, such as the output and state that a layer returns.
    """
    if _are_spikes(inputs):
        inputs = [inputs]
    if not isinstance(inputs, Sequence) or not all(map(_are_spikes, inputs)):
        kinds = f"({', '.join(type(x).__name__ for x in inputs)})" if isinstance(inputs, (list, tuple)) else ""
        raise ShapeError(
            f"{model}: got a {type(inputs).__name__}{kinds}; give the spikes of its source, or a list of those of each. "
            "A layer returns its output and its state: pass on `out` of `out, state = layer(spikes)`. Layers cannot stand "
            "in nn.Sequential; a Network with a Model joins them"
        )
    if len(inputs) != n_sources:
        raise ShapeError(
            f"{model}: got the spikes of {len(inputs)} sources; it has {n_sources} (n_pre): give a list of as many"
        )
    return list(inputs)


def _are_spikes(x: Any) -> bool:
    """Whether `x` is spikes: lists, a tensor, or an engine's own form."""
    return hasattr(x, "to_dense")
