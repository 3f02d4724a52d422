"""jaxpike: `Sequential`, whose products run before the scan, or `Graph` for a recurrent layer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxpike as jp

from rivals.contestants.jax_tools import step_of
from rivals.task import BETA, SLOPE, THRESHOLD, Task

TAU = -1 / math.log(BETA)


def make(task: Task) -> Callable[[], float]:
    parameters, static = eqx.partition(_net(task), eqx.is_inexact_array)

    def logits(parameters: Any, x: jax.Array) -> jax.Array:
        found: jax.Array = jp.unroll(eqx.combine(parameters, static), x)[0].mean(0)
        return found

    return step_of(logits, parameters, jnp.asarray(task.dense()), task)


def _net(task: Task) -> Any:
    if all(own is None for own in task.recurrent):
        layers = [layer for weight in task.weights[:-1] for layer in (_dense(weight), _lif())]
        return jp.Sequential(*layers, _dense(task.weights[-1]), jp.LeakyIntegrator(tau=TAU))
    nodes: dict[str, Any] = {}
    edges, last = [], "input"
    for k, (weight, own) in enumerate(zip(task.weights[:-1], task.recurrent, strict=True)):
        nodes |= {f"product{k}": _dense(weight), f"hidden{k}": _lif()}
        edges += [(last, f"product{k}"), (f"product{k}", f"hidden{k}")]
        last = f"hidden{k}"
        if own is not None:
            nodes[f"own{k}"] = _dense(own)
            edges += [(last, f"own{k}"), (f"own{k}", last)]
    nodes |= {"product": _dense(task.weights[-1]), "readout": jp.LeakyIntegrator(tau=TAU)}
    return jp.Graph(nodes=nodes, edges=[*edges, (last, "product"), ("product", "readout")], output="readout")


def _lif() -> Any:
    return jp.LIF(tau=TAU, threshold=THRESHOLD, reset="subtract", surrogate=jp.FastSigmoid(slope=SLOPE))


def _dense(weight: Any) -> Any:
    """A layer whose weights undo the neurons' factor 1 - β on their input."""
    layer = jp.Dense(*weight.shape, key=jax.random.key(0), use_bias=False)
    return eqx.tree_at(lambda d: d.weight, layer, jnp.asarray(weight.T) / (1 - BETA))
