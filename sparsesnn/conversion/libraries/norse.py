"""Neurons of Norse: Euler's step of τ·dv/dt = v_leak - v + i, fire at v > v_th, reset in the same step; the reset carries a gradient.

    LIFBoxCell      v = v + dt/τ·(i - v)
    LIFCell, LIF    i_syn = i_syn + i, v = v + dt/τ_mem·(i_syn - v), then i_syn decays by 1 - dt/τ_syn
    LICell, LI      the same without spikes;  LIBoxCell: without a current

Source: Pehle & Pedersen 2021; Norse 1.1.0.
"""

from __future__ import annotations

from typing import Any

from norse.torch.functional import reset as resets
from norse.torch.functional.threshold import threshold
from norse.torch.module import iaf, leaky_integrator, leaky_integrator_box, lif, lif_box
from norse.torch.module.snn import SNN, SNNCell, SNNRecurrent, SNNRecurrentCell
from torch import Tensor

from sparsesnn.conversion.libraries.spec import Spec, as_tensor, number, refuse
from sparsesnn.conversion.neurons import Leak, ScaledCubaLIF, ScaledLIF
from sparsesnn.conversion.surrogates import by_autograd, match_surrogate

_BOX = (lif_box.LIFBoxCell,)
_CUBA = (lif.LIFCell, lif.LIF)
_LEAK = (leaky_integrator.LICell, leaky_integrator.LI)
_LEAK_BOX = (leaky_integrator_box.LIBoxCell,)
_IAF = (iaf.IAFCell, iaf.IAF)
_KNOWN = (*_BOX, *_CUBA, *_LEAK, *_LEAK_BOX, *_IAF)


def spec_of(module: Any, where: str) -> Spec | None:
    """See `sparsesnn.conversion.libraries.spec_of`."""
    if not isinstance(module, (SNN, SNNCell, SNNRecurrent, SNNRecurrentCell)):
        return None
    kind = type(module)
    if kind not in _KNOWN:
        names = ", ".join(x.__name__ for x in _KNOWN)
        raise refuse(
            where, "the neuron", kind.__name__, names, "use one of these, with a separate Linear for recurrence"
        )
    if getattr(module, "record_states", False):
        raise refuse(
            where, "record_states", True, "False", "leave it out; convert(..., record=[...]) records potentials"
        )
    p, dt = module.p, module.dt
    for name in ("v_leak", "v_reset"):
        if hasattr(p, name) and number(getattr(p, name)) != 0:
            raise refuse(where, name, number(getattr(p, name)), "0", "measure potentials from the rest")
    layout = "tb" if isinstance(module, SNN) else "step"
    if kind in (*_LEAK, *_LEAK_BOX):

        def leak() -> dict[str, Tensor]:
            share = as_tensor(dt * p.tau_mem_inv)
            if kind in _LEAK_BOX:
                return {"beta": 1 - share, "scale": share, "alpha": as_tensor(0.0)}
            return {"beta": 1 - share, "scale": share, "alpha": as_tensor(1 - dt * p.tau_syn_inv)}

        states = 1 if kind in _LEAK_BOX else 2
        return Spec(Leak, {}, leak, ("v", *["state"] * states), layout, _nothing)
    surrogate, scale = match_surrogate(by_autograd(lambda x: threshold(x, p.method, p.alpha)), where)
    method = getattr(p, "reset_method", resets.reset_value)
    if method not in (resets.reset_value, resets.reset_subtract):
        raise refuse(
            where,
            "reset_method",
            getattr(method, "__name__", method),
            "reset_value, reset_subtract",
            "use one of these",
        )
    hard = method is resets.reset_value
    options = {
        "surrogate": surrogate,
        "reset": "zero" if hard else "subtract",
        "reset_decays": not hard,
        "detach_reset": False,
    }

    def tensors() -> dict[str, Tensor]:
        if kind in _IAF:
            return {"beta": as_tensor(1.0), "scale": as_tensor(scale), "threshold": as_tensor(p.v_th) * scale}
        share = as_tensor(dt * p.tau_mem_inv)
        found = {"beta": 1 - share, "scale": share * scale, "threshold": as_tensor(p.v_th) * scale}
        if kind in _CUBA:
            found |= {"alpha": as_tensor(1 - dt * p.tau_syn_inv), "jump": as_tensor(1.0)}
        return found

    model = ScaledCubaLIF if kind in _CUBA else ScaledLIF
    return Spec(
        model, options, tensors, ("spikes", *["state"] * (2 if kind in _CUBA else 1)), layout, _nothing, None, scale
    )


def _nothing() -> None:
    """Norse's modules keep no state."""
