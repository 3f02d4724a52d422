"""Results of a neuron model's equations, and equations shared by models with a membrane potential.

`step` of a model uses only arithmetic, so that it runs on NumPy arrays (the reference) and on PyTorch tensors (the dense
engine, whose autograd checks `pull`).
"""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Tuple  # noqa: UP035


class Pulled(NamedTuple):
    """Gradients of a loss with respect to the inputs of `step`, from its gradients with respect to the results.

    Args:
        states: with respect to the states before the step.
        reset: to the spikes as read by the reset.
        spikes: to the spikes as read by everything else.
        current: to the input current.
        parameters: to the parameters, one number per neuron and sample.
    """

    states: Tuple[Any, ...]  # noqa: UP006  evaluated under Python 3.8 by sparsesnn.poptorch
    reset: Any
    spikes: Any
    current: Any
    parameters: Dict[str, Any]  # noqa: UP006


def rho(reset: str, beta: Any, theta: Any, v: Any, s: Any) -> Any:
    """ρ(v): the potential after decay and reset; `reset` is a name of `Population.reset_rule`."""
    if reset == "none":
        return beta * v
    if reset == "zero":
        return beta * v * (1 - s)
    return beta * (v - theta * s) if reset == "subtract_decays" else beta * v - theta * s


def rho_derivatives(reset: str, beta: Any, theta: Any, v: Any, s: Any) -> tuple[Any, Any, Any, Any]:
    """∂ρ/∂v, ∂ρ/∂s, ∂ρ/∂β, ∂ρ/∂θ."""
    if reset == "none":
        return beta, 0, v, 0
    if reset == "zero":
        return beta * (1 - s), -beta * v, v * (1 - s), 0
    if reset == "subtract_decays":
        return beta, -beta * theta, v - theta * s, -beta * s
    return beta, -theta, v, -s
