"""Spyx: its layers in `spyx.nn.Sequential`, run over time by `spyx.nn.run`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from spyx import axn, nn

from rivals.contestants.jax_tools import step_of
from rivals.task import BETA, SLOPE, THRESHOLD, Task

ACTIVATION = axn.superspike(k=SLOPE)


def make(task: Task) -> Callable[[], float]:
    rngs = nnx.Rngs(0)
    layers: list[Any] = []
    for weight, own in zip(task.weights[:-1], task.recurrent, strict=True):
        n = weight.shape[1]
        layers.append(_linear(weight, rngs))
        kind = nn.LIF if own is None else nn.RLIF
        neuron = kind((n,), beta=BETA, threshold=THRESHOLD, activation=ACTIVATION, rngs=rngs)
        if own is not None:
            neuron.recurrent_w[...] = jnp.asarray(own)
        layers.append(neuron)
    n = task.weights[-1].shape[1]
    model = nn.Sequential(*layers, _linear(task.weights[-1], rngs), nn.LI((n,), beta=BETA, rngs=rngs))
    graph, parameters, rest = nnx.split(model, nnx.Param, ...)

    def logits(parameters: Any, x: jax.Array) -> jax.Array:
        found: jax.Array = nn.run(nnx.merge(graph, parameters, rest), x)[0].mean(0)
        return found

    return step_of(logits, parameters, jnp.asarray(task.dense()), task)


def _linear(weight: Any, rngs: nnx.Rngs) -> nnx.Linear:
    layer = nnx.Linear(*weight.shape, use_bias=False, rngs=rngs)
    layer.kernel[...] = jnp.asarray(weight)
    return layer
