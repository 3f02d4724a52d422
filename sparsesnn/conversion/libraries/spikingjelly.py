"""Neurons of SpikingJelly: charge, fire at v ≥ θ, reset in the same step; the reset carries a gradient unless `detach_reset`.

    LIFNode            v = v + (x - v) / τ, or v·(1 - 1/τ) + x without decay_input
    IFNode             v = v + x
    ParametricLIFNode  1/τ = sigmoid(w)

A hard reset to v_reset other than 0 is the same in v - v_reset. Source: Fang et al. 2023; SpikingJelly 2.0.0 and 0.0.0.0.14.
"""

from __future__ import annotations

from typing import Any

from spikingjelly.activation_based import neuron
from torch import Tensor

from sparsesnn.conversion.libraries.spec import Spec, as_tensor, refuse
from sparsesnn.conversion.neurons import ScaledLIF
from sparsesnn.conversion.surrogates import by_autograd, match_surrogate


def spec_of(module: Any, where: str) -> Spec | None:
    """See `sparsesnn.conversion.libraries.spec_of`."""
    if not isinstance(module, neuron.BaseNode):
        return None
    kind = type(module).__name__
    if kind not in ("LIFNode", "IFNode", "ParametricLIFNode"):
        raise refuse(where, "the neuron", kind, "LIFNode, IFNode, ParametricLIFNode", "use one of these")
    surrogate, scale = match_surrogate(by_autograd(module.surrogate_function), where)
    hard = module.v_reset is not None
    rest = module.v_reset or 0.0
    if not module.v_threshold > rest:
        raise refuse(where, "v_threshold", module.v_threshold, f"above v_reset, {rest}", "raise it")
    options = {
        "surrogate": surrogate,
        "reset": "zero" if hard else "subtract",
        "reset_decays": not hard,
        "detach_reset": module.detach_reset,
    }

    def tensors() -> dict[str, Tensor]:
        if kind == "IFNode":
            decay, gain = 0.0, 1.0
        else:
            decay = 1 / module.tau if kind == "LIFNode" else module.w.sigmoid()
            gain = decay if module.decay_input else 1.0
        return {
            "beta": as_tensor(1 - decay),
            "scale": as_tensor(gain * scale),
            "threshold": as_tensor((module.v_threshold - rest) * scale),
        }

    layout = "step" if module.step_mode == "s" else "tb"
    return Spec(ScaledLIF, options, tensors, ("spikes",), layout, module.reset, None, scale)
