"""Conversions between PyTorch and the engine: spike lists, tensors, and results."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsesnn import _core
from sparsesnn.errors import ShapeError
from sparsesnn.output import LayerState
from sparsesnn.parameters import PopulationModule
from sparsesnn.spikes import SpikeBatch


def engine_lists(spikes: SpikeBatch) -> _core.Lists:
    """The engine's view. Detached tensors keep their memory when the batch's own get another (`set_`, `data`)."""
    spikes.check_form()
    if spikes.device.type != "cpu":
        raise ShapeError(
            f"input: spike lists are on {spikes.device}; the cpu engine reads main memory: give spikes.to('cpu')"
        )
    values = to_array(spikes.values, "values") if spikes.graded and spikes.values is not None else None
    offsets, ids, n_spikes = (x.detach().numpy() for x in (spikes.offsets, spikes.ids, spikes.n_spikes))
    return _core.Lists(offsets, ids, n_spikes, values, spikes.repeats)


def as_read(spikes: SpikeBatch, connections: Iterable[Any]) -> SpikeBatch:
    """Lists that repeat in the form in which these connections read them: as they are if all deliver them in their own step, unchanged;
    else expanded."""
    if not spikes.repeats:
        return spikes
    learns = spikes.values is not None and spikes.values.requires_grad
    plain = all(not c.delay and not c.axonal and _has_no_pools(c.synapses) for c in connections)
    return spikes if plain and not learns else spikes.expanded()


def _has_no_pools(synapses: Any) -> bool:
    """Whether lists reach the weights as they are."""
    kind = synapses.in_lists(0)
    return kind is not None and not kind.pools


def spikes_of(run: _core.Run, n_samples: int, n_neurons: int, values: Tensor | None = None) -> SpikeBatch:
    """The lists that a layer or a transform made.

    Args:
        values: those that autograd sees; None: graded lists have their own, others none.
    """
    offsets, ids, n_spikes, dropped = run.offsets, run.ids, run.n_spikes, run.dropped
    if values is None and run.is_graded:
        values = torch.from_numpy(run.values)
    return SpikeBatch(
        torch.from_numpy(offsets),
        torch.from_numpy(ids),
        torch.from_numpy(n_spikes),
        run.n_steps,
        n_samples,
        n_neurons,
        values,
        None if dropped is None else torch.from_numpy(dropped),
        run.is_graded,
    )


def states_of(layer: PopulationModule, state: LayerState) -> list[np.ndarray]:
    """The states of the neuron model, in its order."""
    names = layer.population.states
    return [to_array(z.detach().float(), f"state {x}") for x, z in zip(names, state.of(names), strict=True)]


def own_before(layer: Any, state: LayerState) -> _core.Lists | None:
    """The population's own lists before the pass, which its loops read."""
    if not layer.loops or not isinstance(state.history, SpikeBatch):
        return None
    return engine_lists(last_of(state.history, layer.loop_reach))


def last_of(history: SpikeBatch, n_steps: int) -> SpikeBatch:
    """The last steps of a state's history. Errors: `ShapeError` if it has fewer."""
    if history.n_steps < n_steps:
        raise ShapeError(
            f"state: its history has {history.n_steps} steps; this layer receives spikes {n_steps} steps later; pass the state "
            "that this layer returned"
        )
    return history.steps(history.n_steps - n_steps, history.n_steps)


def as_float32(x: Tensor) -> Tensor:
    """Currents of another floating-point type as float32; the gradient comes back in their own."""
    return x if x.dtype == torch.float32 else x.float()


def to_array(x: Tensor, name: str) -> np.ndarray:
    """The tensor's memory as a contiguous float32 array; copied only if it is not contiguous."""
    if x.dtype != torch.float32 or not x.is_cpu:
        raise ShapeError(
            f"{name} is {x.dtype} on {x.device}; the cpu engine computes in float32 on the cpu: call model.float().cpu(), or use backend 'dense'"
        )
    return (x if x.is_contiguous() else x.contiguous()).detach().numpy()
