"""Hand-written JAX: products of all steps at once, one `lax.scan` a layer, everything compiled together."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from rivals.contestants.jax_tools import fast_sigmoid, integrate, step_of
from rivals.task import BETA, THRESHOLD, Task

Weights = tuple[list[jax.Array], list[jax.Array | None]]


def make(task: Task) -> Callable[[], float]:
    parameters = (
        [jnp.asarray(w) for w in task.weights],
        [None if w is None else jnp.asarray(w) for w in task.recurrent],
    )

    def logits(parameters: Weights, x: jax.Array) -> jax.Array:
        weights, recurrent = parameters
        for weight, own in zip(weights[:-1], recurrent, strict=True):
            x = lif(x @ weight, own)
        return integrate(x @ weights[-1]).mean(0)

    return step_of(logits, parameters, jnp.asarray(task.dense()), task)


def lif(currents: jax.Array, own: jax.Array | None) -> jax.Array:
    """Spikes [T, B, N], reset by subtraction, detached."""

    def move(state: tuple[jax.Array, jax.Array], i: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        v, s = state
        v = BETA * v + i - THRESHOLD * jax.lax.stop_gradient(s)
        if own is not None:
            v = v + s @ own
        s = fast_sigmoid(v - THRESHOLD)
        return (v, s), s

    zeros = jnp.zeros_like(currents[0])
    return jax.lax.scan(move, (zeros, zeros), currents)[1]
