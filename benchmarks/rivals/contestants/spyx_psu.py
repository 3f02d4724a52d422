"""Spyx's `PSU_LIF`: all steps of a layer at once, as an associative scan; its neurons have no reset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from spyx.experimental import PSU_LIF

from rivals.contestants.jax_tools import step_of
from rivals.contestants.spyx_net import ACTIVATION, _linear
from rivals.task import BETA, THRESHOLD, Task


def make(task: Task) -> Callable[[], float]:
    rngs = nnx.Rngs(0)
    modules = nnx.List()
    for weight in task.weights[:-1]:
        modules.append(_linear(weight, rngs))
        modules.append(PSU_LIF(weight.shape[1:], beta=BETA, threshold=THRESHOLD, activation=ACTIVATION, rngs=rngs))
    modules.append(_linear(task.weights[-1], rngs))
    graph, parameters, rest = nnx.split(modules, nnx.Param, ...)

    def logits(parameters: Any, x: jax.Array) -> jax.Array:
        *hidden, readout = nnx.merge(graph, parameters, rest)
        for module in hidden:
            x = module.parallel(x) if isinstance(module, PSU_LIF) else module(x)
        return _leak(readout(x)).mean(0)

    return step_of(logits, parameters, jnp.asarray(task.dense()), task)


def _leak(currents: jax.Array) -> jax.Array:
    """v[t] = β·v[t-1] + i[t], by the same scan: Spyx's own `LI` goes step by step."""

    def joined(first: Any, second: Any) -> Any:
        return first[0] * second[0], second[0] * first[1] + second[1]

    v: jax.Array = jax.lax.associative_scan(joined, (jnp.full_like(currents, BETA), currents))[1]
    return v
