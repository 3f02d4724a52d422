"""brainevent: `BinaryArray` products skip silent neurons forward; its gradient of them is dense. Time as in `jax_scan`."""

from __future__ import annotations

from collections.abc import Callable

import brainevent
import jax
import jax.numpy as jnp

from rivals.contestants.jax_scan import Weights, lif
from rivals.contestants.jax_tools import integrate, step_of
from rivals.task import Task


def make(task: Task) -> Callable[[], float]:
    brainevent.config.set_numba_parallel(True)
    parameters = (
        [jnp.asarray(w) for w in task.weights],
        [None if w is None else jnp.asarray(w) for w in task.recurrent],
    )

    def product(x: jax.Array, weight: jax.Array) -> jax.Array:
        found: jax.Array = (brainevent.BinaryArray(x.reshape(-1, x.shape[-1])) @ weight).reshape(*x.shape[:2], -1)
        return found

    def logits(parameters: Weights, x: jax.Array) -> jax.Array:
        weights, recurrent = parameters
        for weight, own in zip(weights[:-1], recurrent, strict=True):
            # its event product of one step's spikes is slower than the dense one, so the recurrent product stays dense
            x = lif(product(x, weight), own)
        return integrate(product(x, weights[-1])).mean(0)

    return step_of(logits, parameters, jnp.asarray(task.dense()), task)
