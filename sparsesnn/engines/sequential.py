"""A chain of layers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import nn

from sparsesnn.engines.module import Layer
from sparsesnn.errors import DescriptionError
from sparsesnn.layers import Input, Neuron, is_readout
from sparsesnn.output import LayerState


class Sequential(nn.Sequential):
    """A chain of `Layer`s and any other modules, such as an encoder in front or a `Linear` at the end.

    `out, states = Sequential(Layer(LIF(256), 700), Layer(LI(20), 256))(spikes)`; chunks: pass `states` on. For delays, branches or
    `sparsesnn.train`, describe a `Network` instead. A layer without `n_pre` is driven by currents, the output of the module in front:
    `Sequential(nn.Linear(784, 1000), Layer(LIF(1000)), Layer(LI(10), 1000))(images, n_steps=25)`.

    Args:
        modules: run in this order; a `Layer` has one source and passes its spikes to the next, other modules take and return
            one value.

    Errors: `DescriptionError` if neighboring layers do not fit, or if an `LI`, which does not fire, feeds another layer.
    """

    def __init__(self, *modules: nn.Module) -> None:
        for k, module in enumerate(modules):
            if not isinstance(module, nn.Module):
                raise DescriptionError(f"Sequential: module {k} is {_advice(module)}")
            if isinstance(module, Layer) and len(module.n_pre) != 1:
                raise DescriptionError(f"Sequential: layer {k} has {len(module.n_pre)} sources; give layers with one")
        for k, (first, second) in enumerate(pairwise(modules)):
            if not isinstance(first, Layer) or not isinstance(second, Layer):
                continue
            if is_readout(first.population):
                raise DescriptionError(f"Sequential: layer {k} is an LI, which does not fire; put it last")
            if second.given:
                raise DescriptionError(
                    f"Sequential: layer {k + 1} reads currents, but layer {k} sends spikes; put a torch.nn.Linear between them, or "
                    f"give layer {k + 1} the number of neurons before it as n_pre"
                )
            if second.n_pre[0] != first.population.n:
                raise DescriptionError(
                    f"Sequential: layer {k} has {first.population.n} neurons, but layer {k + 1} reads {second.n_pre[0]}; "
                    "make them equal"
                )
        super().__init__(*modules)

    def forward(
        self, x: Any, states: Sequence[LayerState | None] | None = None, *, n_steps: int | None = None
    ) -> tuple[Any, list[LayerState | None]]:
        """Runs T steps.

        Args:
            x: the input of the first module: a `SpikeBatch` (a tensor [T, B, N] with backend "dense").
            states: from the previous call; None: zero potentials.
            n_steps: T, if the first `Layer` is driven by currents [B, N], the same at all steps.

        Returns: the output of the last module, and the state of every module (None if it has none).
        """
        if states is not None and len(states) != len(self):
            raise DescriptionError(
                f"Sequential: {len(states)} states for {len(self)} modules; pass on those it returned"
            )
        after: list[LayerState | None] = []
        for module, before in zip(self, states or [None] * len(self), strict=True):
            if not isinstance(module, Layer):
                x, state = module(x), None
            elif n_steps is None:
                x, state = module(x, before)
            else:
                x, state = module(x, before, n_steps=n_steps)
                n_steps = None  # the layers behind read its spikes
            after.append(state)
        return x, after


def _advice(given: Any) -> str:
    """The rest of the message about an object that is not a module."""
    if isinstance(given, (Input, Neuron)):
        return f"{type(given).__name__}(n={given.n}, …), a description; wrap it in a Layer"
    return f"{given!r}; give a Layer or another torch.nn.Module"
