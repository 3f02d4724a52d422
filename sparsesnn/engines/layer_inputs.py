"""The inputs of a layer call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparsesnn.currents import Currents
from sparsesnn.errors import ShapeError


def layer_sources(inputs: Any, layer: Any, n_steps: int | None) -> list[Any]:
    """The spikes of each source; checked `Currents` for a source that gives currents.

    Args:
        inputs: the spikes of a single source, or a sequence with those of each.
        layer: a `Layer`.
        n_steps: of currents [B, N]; None for others.

    Errors: `ShapeError` for anything else, such as the output and state that a layer returns.
    """
    n_sources, model = len(layer.n_pre), type(layer.population).__name__
    if _are_spikes(inputs):
        inputs = [inputs]
    if not isinstance(inputs, Sequence) or not all(map(_are_spikes, inputs)):
        kinds = f"({', '.join(type(x).__name__ for x in inputs)})" if isinstance(inputs, (list, tuple)) else ""
        raise ShapeError(
            f"{model}: got a {type(inputs).__name__}{kinds}; give the spikes of its source, or a list with those of each "
            "source. A layer returns its output and its state: pass on `out` of `out, state = layer(spikes)`. Layers do not "
            "work in nn.Sequential; use a Network with a Model to join them"
        )
    if len(inputs) != n_sources:
        raise ShapeError(
            f"{model}: got the spikes of {len(inputs)} sources; it has {n_sources} (n_pre): give a list of {n_sources}"
        )
    if layer.given is None:
        if n_steps is not None:
            raise ShapeError(
                f"{model}: n_steps is {n_steps!r}, but its sources are spikes, which set the number of steps; leave it out"
            )
        return list(inputs)
    currents = Currents.of(inputs[0], n_steps, model, layer.population.n)
    return [currents, *inputs[1:]]


def _are_spikes(x: Any) -> bool:
    """Whether `x` is spikes: lists, a tensor, or an engine's own form."""
    return hasattr(x, "to_dense")
