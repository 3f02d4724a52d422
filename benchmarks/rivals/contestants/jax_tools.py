"""Shared by all JAX contestants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from rivals.task import BETA, LEARNING_RATE, SLOPE, Task


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    loss: jax.Array = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    return loss


def step_of(
    logits: Callable[[Any, jax.Array], jax.Array], parameters: Any, spikes: jax.Array, task: Task
) -> Callable[[], float]:
    """Forward, loss, backward, Adam, compiled together; the new parameters reuse the memory of the old."""
    optimizer = optax.adam(LEARNING_RATE)
    labels = jnp.asarray(task.labels)

    def update(parameters: Any, state: Any, x: jax.Array) -> tuple[Any, Any, jax.Array]:
        loss, gradient = jax.value_and_grad(lambda p: cross_entropy(logits(p, x), labels))(parameters)
        change, state = optimizer.update(gradient, state, parameters)
        return optax.apply_updates(parameters, change), state, loss

    state = optimizer.init(parameters)
    compiled = jax.jit(update, donate_argnums=(0, 1)).lower(parameters, state, spikes).compile()
    held = [parameters, state]

    def step() -> float:
        held[0], held[1], loss = compiled(held[0], held[1], spikes)
        jax.block_until_ready(held)
        return float(loss)

    return step


def integrate(currents: jax.Array) -> jax.Array:
    """[T, B, N]: v[t] = β·v[t-1] + i[t]."""

    def leak(v: jax.Array, i: jax.Array) -> tuple[jax.Array, jax.Array]:
        v = BETA * v + i
        return v, v

    return jax.lax.scan(leak, jnp.zeros_like(currents[0]), currents)[1]


def _spike(x: jax.Array) -> jax.Array:
    return (x > 0).astype(x.dtype)


#: s = x > 0; the gradient is (slope·|x| + 1)⁻²
fast_sigmoid = jax.custom_vjp(_spike)
fast_sigmoid.defvjp(lambda x: (_spike(x), x), lambda x, d_s: (d_s / jnp.square(SLOPE * jnp.abs(x) + 1),))
