"""Results of a neuron model's equations."""

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
