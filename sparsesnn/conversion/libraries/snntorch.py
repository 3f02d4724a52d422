"""Neurons of snnTorch: decay, add, compare; the reset acts at the next step and is detached.

    Leaky      v[t] = β·v[t-1] + i[t] - θ·s[t-1]           zero: β·(1 - s[t-1])·v[t-1] + i[t]
    Synaptic   i_syn[t] = α·i_syn[t-1] + i[t], and i_syn in place of i
    RLeaky, RSynaptic: i[t] includes recurrent(s[t-1])

Source: Eshraghian et al. 2023; snnTorch 1.0.0. Decays are clamped to 0 … 1 when they are read, as here.
"""

from __future__ import annotations

from typing import Any

import snntorch
import torch
from torch import Tensor

from sparsesnn.conversion.libraries.spec import Spec, as_tensor, number, refuse
from sparsesnn.conversion.neurons import AlphaNeuron, SelfLIF
from sparsesnn.conversion.surrogates import by_autograd, match_surrogate
from sparsesnn.layers import LIF, CubaLIF

#: the tensors that a module returns, and its states
_PORTS = {
    "Leaky": ("spikes", "v"),
    "RLeaky": ("spikes", "v"),
    "Synaptic": ("spikes", "state", "v"),
    "RSynaptic": ("spikes", "state", "v"),
    "Alpha": ("spikes", "state", "state", "v"),
}
_STATES = ("spk", "syn", "syn_exc", "syn_inh", "mem")


def spec_of(module: Any, where: str) -> Spec | None:
    """See `sparsesnn.conversion.libraries.spec_of`."""
    if not isinstance(module, snntorch.SpikingNeuron):
        return None
    kind = type(module).__name__
    if kind not in _PORTS:
        raise refuse(where, "the neuron", kind, ", ".join(_PORTS), "use one of these")
    reset = module.reset_mechanism
    if module.state_quant or module.inhibition:
        raise refuse(where, "state_quant or inhibition", "set", "neither", "leave them out")
    if number(module.graded_spikes_factor) != 1 or module.graded_spikes_factor.requires_grad:
        raise refuse(
            where,
            "graded_spikes_factor",
            number(module.graded_spikes_factor),
            "1",
            "put the factor into the next weights",
        )
    if not getattr(module, "reset_delay", True):
        raise refuse(where, "reset_delay", False, "True", "reset at the next step, the default")
    if kind == "Alpha" and reset != "none":
        raise refuse(
            where,
            "reset_mechanism of Alpha",
            repr(reset),
            "'none', because the others discard input",
            "use Synaptic or 'none'",
        )
    if kind not in ("Leaky", "Alpha") and reset == "zero":
        raise refuse(
            where,
            f"reset_mechanism of {kind}",
            "'zero', which discards the input after a spike",
            "'subtract', 'none'",
            "use 'subtract'",
        )
    surrogate, scale = match_surrogate(by_autograd(module.spike_grad), where)
    loop = getattr(module, "recurrent", None)
    own = loop is not None and not hasattr(loop, "weight")
    options: dict[str, Any] = {"surrogate": surrogate}
    if kind != "Alpha":
        options["reset"] = reset

    def tensors() -> dict[str, Tensor]:
        found = {"beta": as_tensor(module.beta), "threshold": as_tensor(module.threshold) * scale}
        if kind in ("Synaptic", "RSynaptic", "Alpha"):
            found["alpha"] = as_tensor(module.alpha)
        if kind == "Alpha":
            a, b = (torch.log(found[x].clamp(0, 1)) for x in ("alpha", "beta"))
            found["height"] = (a / (b - a) + 1) * scale
        if own:
            found["V"] = as_tensor(module.V) * scale
        return found

    model = {"Leaky": LIF, "RLeaky": LIF, "Synaptic": CubaLIF, "RSynaptic": CubaLIF, "Alpha": AlphaNeuron}[kind]
    if own:
        if kind != "RLeaky" or scale != 1:
            raise refuse(
                where, "all_to_all", False, f"True in {kind}, and a surrogate of height 1", "use all_to_all=True"
            )
        model = SelfLIF
    elif kind != "Alpha":
        options["gain"] = scale

    def clear() -> None:
        for name in _STATES:
            if isinstance(getattr(module, name, None), Tensor):
                setattr(module, name, torch.zeros(0))

    alone = module.init_hidden and not module.output
    ports = ("spikes",) if alone else _PORTS[kind]
    return Spec(model, options, tensors, ports, "step", clear, None if own else loop, scale)
