"""Potentials, currents and other states of chosen neurons over time.

Engines keep no potentials. Recordings are recomputed, only for the chosen neurons, from the engine's spikes: by the model's
own `step` and with sums in the order of the reference. So the numbers are those of the CPU engine bit for bit, and those of
the dense engine up to the order of its sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sparsesnn.errors import DescriptionError
from sparsesnn.layers import fires
from sparsesnn.spikes import SpikeBatch
from sparsesnn.tensor_like import plain_tensor

if TYPE_CHECKING:
    from sparsesnn.network import Network
    from sparsesnn.output import LayerState

#: names of populations, or for each name the ids of its neurons (None: all of them)
Record = Sequence[str] | Mapping[str, Sequence[int] | Tensor | None]

#: number of spikes whose weights are gathered at a time
_CHUNK = 1 << 15


@dataclass(eq=False)
class Traces:
    """States of chosen neurons of one population over time; carries no gradient. K is their number.

    Args:
        neurons: int64[K], their ids.
        current: float32[T, B, K], the input current of each step: bias and arriving spikes.
        states: for each state of the neuron model, such as `v`, `i_syn` or `w`: float32[T, B, K], after each step and before
            the reset applied by the next step.
        threshold: float32[K]; None for a readout.
    """

    neurons: Tensor
    current: Tensor
    states: Mapping[str, Tensor]
    threshold: Tensor | None

    @property
    def v(self) -> Tensor:
        """float32[T, B, K], the first state, which is compared with the threshold: the membrane potential."""
        return next(iter(self.states.values()))

    def __repr__(self) -> str:
        n_steps, n_samples, k = self.current.shape
        return f"Traces(T={n_steps}, B={n_samples}, K={k}: current, {', '.join(self.states)})"


def chosen_neurons(network: Network, record: Record) -> dict[str, Tensor]:
    """int64[K] for each population to record. Errors: `DescriptionError` for unknown names and ids out of range."""
    if isinstance(record, str):
        raise DescriptionError(f"record is {record!r}; give a list of names such as [{record!r}]")
    wanted = dict(record) if isinstance(record, Mapping) else dict.fromkeys(record)
    receivers, found = network.receivers(), {}
    for name, ids in wanted.items():
        if name not in receivers:
            raise DescriptionError(f"record: no population {name!r} has a state; allowed: {', '.join(receivers)}")
        n = receivers[name].n
        neurons = (
            torch.arange(n, device="cpu") if ids is None else plain_tensor(ids, f"record: neurons of {name!r}").cpu()
        )
        whole = not neurons.is_floating_point() and neurons.dtype != torch.bool
        if neurons.ndim != 1 or (len(neurons) and (not whole or int(neurons.min()) < 0 or int(neurons.max()) >= n)):
            raise DescriptionError(f"record: {name!r}: neurons are {ids!r}; give a list of ids from 0 to {n - 1}")
        found[name] = neurons.long()
    return found


@torch.no_grad()
def replay(layer: Any, arrived: Sequence[Any], sent: Any, state: LayerState | None, neurons: Tensor) -> Traces:
    """Runs the chosen neurons of a layer again.

    Args:
        layer: a `sparsesnn.Layer`.
        arrived: the spikes of every sender as they reach the layer, after axonal delays.
        sent: its output.
        state: passed to the layer.
        neurons: int64[K].
    """
    population = layer.population
    n_steps, n_samples = _shape(sent)
    dtype = torch.empty((), dtype=layer.like.dtype, device="cpu").numpy().dtype
    current = np.zeros((n_steps * n_samples, len(neurons)), dtype)
    if (bias := layer.tensor("bias")) is not None:
        current += _numpy(bias)[neurons]
    for source, incoming in zip(arrived, layer.senders, strict=True):
        _add_arriving(current, layer, source, incoming, neurons, incoming.delay if state is None else 0)
    for incoming in layer.loops:
        own, n_before = layer.own_delayed(incoming, sent, state)
        _add_arriving(current, layer, own, incoming, neurons, incoming.delay - n_before)
    i = torch.from_numpy(current).view(n_steps, n_samples, -1)
    p = {q.name: _each(layer.tensor(q.name), neurons).clamp(q.low, q.high) for q in population.parameters}
    if state is None:
        states = tuple(i.new_zeros(i.shape[1:]) for _ in population.states)
    else:
        states = tuple(z.detach().cpu()[:, neurons] for z in state.of(population.states))
    traces = {x: torch.empty_like(i) for x in population.states}
    spiking = fires(population)
    s = torch.zeros_like(states[0]) if state is None or not spiking else (states[0] > p["threshold"]).to(i.dtype)
    fired = _fired(sent, neurons, i.dtype) if fires(population) and population.capacity is None else None
    for t in range(n_steps):
        states = population.step(p, states, s if spiking else None, s if spiking else None, i[t])
        for x, value in zip(population.states, states, strict=True):
            traces[x][t] = value
        if spiking:  # a spike dropped from a full list still resets its neuron
            s = (states[0] > p["threshold"]).to(i.dtype) if fired is None else fired[t]
    return Traces(neurons, i, traces, p.get("threshold"))


def _shape(x: Any) -> tuple[int, int]:
    """T and B of lists, spikes in bytes, or a tensor."""
    return (x.n_steps, x.n_samples) if isinstance(x, SpikeBatch) else (x.shape[0], x.shape[1])


def _entries(x: Any) -> tuple[np.ndarray[Any, Any], ...]:
    """The index t·B + b, the neuron and the value of every spike, in the order of lists."""
    if isinstance(x, SpikeBatch):
        x = x.expanded()
        fired = x.fired()
        values = x.entry_values().detach()[fired]
        return x.list_index()[fired].numpy(), x.ids.numpy()[fired.numpy()].astype(np.int64), values.numpy()
    dense = getattr(x, "fired", x).detach()
    dense = dense.reshape(-1, dense.shape[2])
    rows, ids = torch.nonzero(dense, as_tuple=True)
    return rows.cpu().numpy(), ids.cpu().numpy(), dense[rows, ids].float().cpu().numpy()


def _add_arriving(
    current: np.ndarray[Any, Any], layer: Any, spikes: Any, incoming: Any, neurons: Tensor, delay: int
) -> None:
    """Adds the contributions of spikes through a connection; row t of `spikes` arrives at step t + delay."""
    if incoming.synapses.gives_currents:
        given = spikes.to_dense() if hasattr(spikes, "to_dense") else spikes
        current += _numpy(given)[:, :, neurons].reshape(current.shape).astype(current.dtype)
        return
    weight = layer.weight(incoming)
    if incoming.synapses.is_matrix:
        _add(current, spikes, _columns(layer, incoming, weight, neurons), delay)
    else:
        _add_products(current, spikes, incoming, weight, neurons, delay)


def _add(current: np.ndarray[Any, Any], spikes: Any, columns: np.ndarray[Any, Any], delay: int) -> None:
    """The same through a matrix: adds the rows of the spikes, one after the other."""
    rows, ids, values = _entries(spikes)
    rows = rows + delay * _shape(spikes)[1]
    arrive = (rows >= 0) & (rows < len(current))
    rows, ids, values = rows[arrive], ids[arrive], values[arrive].astype(current.dtype)
    for k in range(0, len(rows), _CHUNK):
        part = slice(k, k + _CHUNK)
        np.add.at(current, rows[part], values[part, None] * columns[ids[part]])


def _add_products(
    current: np.ndarray[Any, Any], spikes: Any, incoming: Any, weight: Tensor, neurons: Tensor, delay: int
) -> None:
    """The same through other synapses, step by step."""
    rows, ids, values = _entries(spikes)
    n_steps, n_samples = _shape(spikes)
    weight = weight.detach().cpu()
    for t in range(max(0, -delay), min(n_steps, len(current) // max(1, n_samples) - delay)):
        part = slice(*np.searchsorted(rows, [t * n_samples, (t + 1) * n_samples]))
        step = torch.zeros(n_samples, incoming.n_pre, dtype=weight.dtype, device="cpu")
        step[rows[part] - t * n_samples, ids[part]] = torch.from_numpy(values[part]).to(weight.dtype)
        begin = (t + delay) * n_samples
        current[begin : begin + n_samples] += incoming.synapses.product(step, weight)[:, neurons].numpy()


def _columns(layer: Any, incoming: Any, weight: Tensor, neurons: Tensor) -> np.ndarray[Any, Any]:
    """[n_pre, K], the chosen neurons' weights as used by the engine."""
    read = weight.detach().cpu()
    if layer.weight_dtype == "bfloat16":
        read = read.bfloat16().float()
    matrix = np.zeros((incoming.n_pre, len(neurons)), read.numpy().dtype)
    if (existing := layer.columns(incoming)) is None:
        matrix[:] = read[:, neurons].numpy()
    else:
        starts, senders = existing
        for k, n in enumerate(neurons.tolist()):
            matrix[senders[starts[n] : starts[n + 1]], k] = read[int(starts[n]) : int(starts[n + 1])].numpy()
    return matrix


def _fired(sent: Any, neurons: Tensor, dtype: torch.dtype) -> Tensor:
    """[T, B, K], the engine's spikes."""
    n_steps, n_samples = _shape(sent)
    if not isinstance(sent, SpikeBatch):
        spikes: Tensor = getattr(sent, "fired", sent).detach().cpu()[:, :, neurons].to(dtype)
        return spikes
    place = torch.full((sent.n_neurons,), -1, device="cpu")
    place[neurons] = torch.arange(len(neurons), device="cpu")
    rows, ids, _ = (torch.from_numpy(x) for x in _entries(sent))
    columns = place[ids]
    out = torch.zeros(n_steps * n_samples, len(neurons), dtype=dtype, device="cpu")
    out[rows[columns >= 0], columns[columns >= 0]] = 1
    return out.view(n_steps, n_samples, -1)[:, :, place[neurons]]


def _each(value: Tensor, neurons: Tensor) -> Tensor:
    value = value.detach().cpu()
    return value[neurons] if value.ndim else value


def _numpy(x: Tensor) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = x.detach().cpu().numpy()
    return array
