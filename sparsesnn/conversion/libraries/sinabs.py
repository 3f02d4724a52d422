"""Neurons of Sinabs: decay, add, fire at v ≥ θ, reset in the same step; MembraneSubtract carries a gradient.

    LIF      v = α·v + (1 - α)·i, or α·v + i without norm_input, α = exp(-1/τ); with tau_syn: i = α_syn·(i + x)
    IAF      v = v + i
    ExpLeak  the same without spikes

Source: Sinabs 3.1.
"""

from __future__ import annotations

from typing import Any

import torch
from sinabs import layers
from sinabs.activation import MembraneReset, MembraneSubtract, SingleSpike
from torch import Tensor

from sparsesnn.conversion.libraries.spec import Spec, as_tensor, number, refuse
from sparsesnn.conversion.neurons import Leak, ScaledCubaLIF, ScaledLIF
from sparsesnn.conversion.surrogates import match_surrogate

_KNOWN = (layers.LIF, layers.LIFSqueeze, layers.IAF, layers.IAFSqueeze, layers.ExpLeak, layers.ExpLeakSqueeze)


def spec_of(module: Any, where: str) -> Spec | None:
    """See `sparsesnn.conversion.libraries.spec_of`."""
    if not isinstance(module, layers.StatefulLayer):
        return None
    kind = type(module)
    if kind not in _KNOWN:
        raise refuse(where, "the neuron", kind.__name__, ", ".join(x.__name__ for x in _KNOWN), "use one of these")
    if module.min_v_mem is not None:
        raise refuse(where, "min_v_mem", number(module.min_v_mem), "None", "leave it out")
    squeezed = hasattr(module, "squeeze_forward")
    layout = "bt flat" if squeezed else "bt"
    leaks = kind in (layers.ExpLeak, layers.ExpLeakSqueeze)
    scale, options = 1.0, {}
    if not leaks:
        if module.spike_fn is not SingleSpike:
            name = getattr(module.spike_fn, "__name__", type(module.spike_fn).__name__)
            raise refuse(
                where, "spike_fn", name, "SingleSpike, one spike a step", "give spike_fn=sinabs.activation.SingleSpike"
            )
        reset = module.reset_fn
        theta = number(module.spike_threshold)
        subtracts = isinstance(reset, MembraneSubtract) and reset.subtract_value in (None, theta)
        if not subtracts and not (isinstance(reset, MembraneReset) and reset.reset_value == 0):
            raise refuse(where, "reset_fn", reset, "MembraneSubtract(), MembraneReset()", "use one of these")
        surrogate, scale = match_surrogate(
            lambda x: module.surrogate_grad_fn(x + theta, torch.tensor(theta)) + torch.zeros_like(x), where
        )
        options = {
            "surrogate": surrogate,
            "reset": "subtract" if subtracts else "zero",
            "reset_decays": subtracts,
            "detach_reset": not subtracts,  # MembraneReset compares spikes with 0
        }
    has_current = module.alpha_syn_calculated is not None

    def tensors() -> dict[str, Tensor]:
        beta = as_tensor(module.alpha_mem_calculated)
        gain = (1 - beta) if module.norm_input else as_tensor(1.0)
        found = {"beta": beta, "scale": gain * scale}
        if not leaks:
            found["threshold"] = as_tensor(module.spike_threshold) * scale
        if has_current:
            alpha = as_tensor(module.alpha_syn_calculated)
            found |= {"alpha": alpha, "jump": alpha}
        elif leaks:
            found["alpha"] = as_tensor(0.0)
        return found

    model = Leak if leaks else ScaledCubaLIF if has_current else ScaledLIF
    spec = Spec(model, options, tensors, ("v" if leaks else "spikes",), layout, lambda: _clear(module), None, scale)
    if squeezed:
        spec.times = lambda rows: (
            module.num_timesteps if (module.num_timesteps or -1) > 0 else rows // module.batch_size
        )
    return spec


def _clear(module: Any) -> None:
    for name in ("v_mem", "i_syn"):
        if isinstance(getattr(module, name, None), Tensor):
            module.register_buffer(name, torch.zeros(0))
