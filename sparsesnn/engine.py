"""Runs layers on the event-sparse CPU engine and joins them to PyTorch's autograd.

Between layers travel spike lists; their `values` tensor (1 for spikes, 0 for near-spikes) is what autograd sees. The
gradient of a value is ∂L/∂s of that neuron at that step, defined at listed neurons only: the sparse gradient of
Finkbeiner et al. 2024 is the ordinary gradient of this graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sparsesnn import _core
from sparsesnn.errors import ShapeError
from sparsesnn.layers import LI, CubaLIF
from sparsesnn.partition.plan import cpu_tile_width
from sparsesnn.spikes import SpikeBatch
from sparsesnn.surrogate import KINDS

if TYPE_CHECKING:
    from sparsesnn.module import Layer, LayerState

_RESETS = {"subtract": 0, "zero": 2, "none": 3}  # 1: subtract, then decay


def run_layer(
    layer: Layer, sources: Sequence[SpikeBatch], state: LayerState | None
) -> tuple[SpikeBatch | Tensor, LayerState]:
    """One layer over one chunk of a sequence; see `sparsesnn.module.Layer.forward`."""
    from sparsesnn.module import LayerState, last_steps

    delays = layer.delays if state is None else (0,) * len(sources)
    extra = (0,) * len(sources) if state is None else layer.delays
    n_steps, n_samples = sources[0].n_steps - extra[0], sources[0].n_samples
    for source, n_pre, more in zip(sources, layer.n_pre, extra, strict=True):
        if (source.n_steps - more, source.n_samples, source.n_neurons) != (n_steps, n_samples, n_pre):
            raise ShapeError(
                f"input has T={source.n_steps - more}, B={source.n_samples}, N={source.n_neurons}; "
                f"this layer needs T={n_steps}, B={n_samples}, N={n_pre}"
            )
    parameters = _parameters(layer)
    inputs: list[Tensor | None] = [*(s.values for s in sources), *parameters.values()]
    save = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)
    call = _Call(
        spec=_spec(layer, save, parameters, 0 if state is None else state.step),
        n_steps=n_steps,
        n_samples=n_samples,
        sources=tuple(s.detach() for s in sources),
        delays=delays,
        names=tuple(parameters),
        v=None if state is None else _array(state.v, "state v"),
        i_syn=None if state is None or state.i_syn is None else _array(state.i_syn, "state i_syn"),
        own_before=_own_before(layer, state),
    )
    if save:
        result: Tensor = _RunLayer.apply(call, *inputs)
    else:
        result = call.run([x.detach() if x is not None else None for x in inputs])
    i_syn = call.result["i_syn"]
    after = LayerState(
        v=torch.from_numpy(call.result["v"]),
        i_syn=None if i_syn is None else torch.from_numpy(i_syn),
        step=n_steps if state is None else state.step + n_steps,
    )
    if isinstance(layer.population, LI):
        return result, after
    out = replace(call.lists(), values=result if save else None)
    if layer.n_history:
        before = state.history if state is not None else None
        after = replace(after, history=last_steps(before, out, layer.n_history))
    return out, after


@dataclass
class _Call:
    """One call of a layer: what the engine is given, and after `run` what it gave back."""

    spec: _core.LayerSpec
    n_steps: int
    n_samples: int
    sources: tuple[SpikeBatch, ...]
    delays: tuple[int, ...]
    names: tuple[str, ...]
    v: np.ndarray | None
    i_syn: np.ndarray | None
    own_before: _core.Lists | None
    result: Any = None

    def layer_call(self, parameters: Sequence[Tensor | None]) -> _core.LayerCall:
        """The engine's view of the call; `parameters` in the order of `names`."""
        arrays = {name: None if x is None else _array(x, name) for name, x in zip(self.names, parameters, strict=True)}
        sources = [
            _core.Source(_lists(source), source.n_neurons, delay, _present(arrays[f"weight{k}"]))
            for k, (source, delay) in enumerate(zip(self.sources, self.delays, strict=True))
        ]
        return _core.LayerCall(
            self.spec,
            self.n_steps,
            self.n_samples,
            sources,
            arrays["recurrent_weight"],
            arrays["alpha"],
            arrays["beta"],
            arrays["threshold"],
            arrays["grad_threshold"],
            arrays["bias"],
            self.v,
            self.i_syn,
            self.own_before,
        )

    def run(self, inputs: Sequence[Tensor | None]) -> Tensor:
        """Runs the engine; returns list values (none if nothing is saved), or the potentials of a readout."""
        self.result = _core.forward(self.layer_call(inputs[len(self.sources) :]))
        out = self.result["values"] if self.result["potentials"] is None else self.result["potentials"]
        return torch.empty(0) if out is None else torch.from_numpy(out)

    def lists(self) -> SpikeBatch:
        """The lists the layer put out, without values."""
        dropped = self.result["dropped"]
        return SpikeBatch(
            offsets=torch.from_numpy(self.result["offsets"]),
            ids=torch.from_numpy(self.result["ids"]),
            n_spikes=torch.from_numpy(self.result["n_spikes"]),
            n_steps=self.n_steps,
            n_samples=self.n_samples,
            n_neurons=self.spec.n,
            dropped=None if dropped is None else torch.from_numpy(dropped),
        )


class _RunLayer(torch.autograd.Function):
    """forward(call, values of each source…, parameters…) → values of the layer's lists, or readout potentials."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *inputs: Tensor | None) -> Tensor:
        out = call.run(inputs)
        ctx.call = call
        ctx.save_for_backward(*inputs[len(call.sources) :])
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Any, ...]:
        call: _Call = ctx.call
        parameters = ctx.saved_tensors
        n_sources = len(call.sources)
        needs = dict(zip(call.names, ctx.needs_input_grad[1 + n_sources :], strict=True))
        d_array = _array(d_out, "gradient")
        readout = call.result["potentials"] is not None
        grads = _core.backward(
            call.layer_call(parameters),
            call.result,
            None if readout else d_array,
            d_array if readout else None,
            [needs[f"weight{k}"] for k in range(n_sources)],
            list(ctx.needs_input_grad[1 : 1 + n_sources]),
            needs["recurrent_weight"],
            needs["bias"],
        )
        found = {f"weight{k}": grads["weight"][k] for k in range(n_sources)}
        for name in call.names:
            found.setdefault(name, grads.get(name))
        d_values = [_tensor(g) if n else None for g, n in zip(grads["value"], ctx.needs_input_grad[1:], strict=False)]
        return (None, *d_values, *(_tensor(found[name]) if needs[name] else None for name in call.names))


def _parameters(layer: Layer) -> dict[str, Tensor | None]:
    """All tensors that define the layer, under the engine's names; per-neuron ones as [N]."""
    n = layer.population.n

    def per_neuron(name: str, decay: bool = False) -> Tensor | None:
        value: Tensor | None = getattr(layer, name, None)
        if value is None:
            return None
        return (value.clamp(0, 1) if decay else value).expand(n)

    return {
        **{f"weight{k}": weight for k, weight in enumerate(layer.weights)},
        "recurrent_weight": layer.recurrent_weight,
        "bias": layer.bias,
        "alpha": per_neuron("alpha", decay=True),
        "beta": per_neuron("beta", decay=True),
        "threshold": per_neuron("threshold"),
        "grad_threshold": per_neuron("grad_threshold"),
    }


def _spec(layer: Layer, save: bool, parameters: dict[str, Tensor | None], first_step: int) -> _core.LayerSpec:
    return _core.LayerSpec(**spec_arguments(layer, save, parameters, first_step))


def spec_arguments(
    layer: Layer, save: bool, parameters: dict[str, Tensor | None], first_step: int = 0
) -> dict[str, Any]:
    """What the engine must know of a layer beside its arrays."""
    population = layer.population
    n_pre = sum(layer.n_pre) + (population.n if layer.recurrent_weight is not None else 0)

    def learns(name: str) -> bool:
        value = parameters[name]
        return save and value is not None and value.requires_grad

    common: dict[str, Any] = {
        "gain": population.gain,
        "n": population.n,
        "tile_width": cpu_tile_width(population.n, n_pre),
        "bf16": layer.weight_dtype == "bfloat16",
        "save": save,
        "learn_alpha": learns("alpha"),
        "learn_beta": learns("beta"),
        "learn_threshold": learns("threshold"),
        "seed": layer.rotation_seed,
        "first_step": first_step,
    }
    if isinstance(population, LI):
        readout = {"model": 2, "reset": 3, "detach_reset": True, "surrogate": 0, "slope": 1.0, "capacity": 0}
        return {**common, **readout, "fixed": False}
    return {
        **common,
        "model": 1 if isinstance(population, CubaLIF) else 0,
        "reset": 1 if population.reset_decays else _RESETS[population.reset],
        "detach_reset": population.detach_reset,
        "surrogate": KINDS.index(population.surrogate.kind),
        "slope": population.surrogate.slope,
        "capacity": population.capacity or 0,
        "fixed": population.activity == "fixed",
    }


def _own_before(layer: Layer, state: LayerState | None) -> _core.Lists | None:
    if layer.recurrent_weight is None or state is None or not isinstance(state.history, SpikeBatch):
        return None
    return _lists(state.history.steps(state.history.n_steps - 1, state.history.n_steps))


def _lists(spikes: SpikeBatch) -> _core.Lists:
    return _core.Lists(spikes.offsets.numpy(), spikes.ids.numpy(), spikes.n_spikes.numpy())


def _array(x: Tensor, name: str) -> np.ndarray:
    """The tensor's memory as a contiguous float32 array; copied only where it is not contiguous."""
    if x.dtype != torch.float32 or x.device.type != "cpu":
        raise ShapeError(f"{name} is {x.dtype} on {x.device}; the cpu engine computes in float32 on the cpu")
    return x.detach().contiguous().numpy()


def _present(array: np.ndarray | None) -> np.ndarray:
    assert array is not None, "every source has a weight"
    return array


def _tensor(array: np.ndarray | None) -> Tensor | None:
    return None if array is None else torch.from_numpy(array)
