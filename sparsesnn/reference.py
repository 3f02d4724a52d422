"""The specification: forward and backward of one population and of a network, in plain NumPy, for any float dtype.

Every fast path is compared with this file. Masks stand for lists: `spikes` [T, B, N] is what is sent, `listed` adds
the near-spikes. Traces have T + 1 rows; row -1 is the state before the first step, so `v[t - 1]` is right at t = 0.

    i[t] = bias + Σ_k Σ_{m in pre_k[t-d_k]} W_k[m,:] + Σ_{m in own[t-1]} V[m,:]     rows added one by one in this order
    LIF      v[t] = ρ(v[t-1]) + g·i[t]
    CubaLIF  i_syn[t] = α·i_syn[t-1] + i[t] ;  v[t] = ρ(v[t-1]) + g·i_syn[t]
    LI       v[t] = β·v[t-1] + g·i[t]
    s[t] = v[t] > θ          near[t] = v[t] > θ_grad and not s[t]

    e[t] = d_out[t] + V·d_i[t+1]                         d_out: what readers and the loss send back to the lists
    q[t] = σ'(v[t]-θ)·e[t]·[listed]
    δ[t] = γ[t]·δ[t+1] + q[t]                            γ = ∂ρ/∂v, plus ∂ρ/∂s·σ'·[listed] unless detach_reset
    d_i[t] = g·δ[t] (LIF, LI)    or    d_i[t] = α·d_i[t+1] + g·δ[t] (CubaLIF)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sparsesnn.layers import LI, CubaLIF, Population
from sparsesnn.network import Network
from sparsesnn.surrogate import Surrogate

Array = np.ndarray[Any, Any]

MASK_64 = 2**64 - 1


@dataclass(frozen=True)
class Parameters:
    """A population and the numbers it runs with: floats[M, N], [N, N], [N], and [] or [N] for β, α, θ, θ_grad.

    What a model does not have is None (α of LIF, θ of LI).
    """

    population: LI | Population
    weights: tuple[Array, ...]
    delays: tuple[int, ...]
    recurrent_weight: Array | None
    bias: Array | None
    beta: Array
    alpha: Any = None
    threshold: Any = None
    grad_threshold: Any = None

    @classmethod
    def from_layer(cls, layer: Any, dtype: type = np.float64) -> Parameters:
        """The numbers of a `sparsesnn.module.Layer`; β and α as its forward reads them, within [0, 1].

        `layer_backward` gives the gradients of these; what a parameter gets of them: `sparsesnn.bounds`.
        """

        def array(name: str) -> Any:
            value = getattr(layer, name, None)
            return None if value is None else value.detach().cpu().numpy().astype(dtype)

        alpha = array("alpha")
        return cls(
            population=layer.population,
            weights=tuple(w.detach().cpu().numpy().astype(dtype) for w in layer.sender_weights),
            delays=tuple(layer.delays),
            recurrent_weight=None
            if layer.loop_weight is None
            else layer.loop_weight.detach().cpu().numpy().astype(dtype),
            bias=array("bias"),
            beta=array("beta").clip(0, 1),
            alpha=None if alpha is None else alpha.clip(0, 1),
            threshold=array("threshold"),
            grad_threshold=array("grad_threshold"),
        )


class State(NamedTuple):
    """After the last step: v, i_syn, and the spikes sent in it, each [B, N]; and how many steps have run."""

    v: Array
    i_syn: Array
    spikes: Array
    step: int = 0


@dataclass(frozen=True)
class Record:
    """Everything a forward pass computed.

    Args:
        inputs: per source its spikes, as given.
        shifts: per source, row t - shift arrives at step t.
        v, i_syn, s, spikes: [T + 1, B, N]; row -1 is the state before. `s` is v > θ, `spikes` is what was sent.
        listed: bool[T, B, N], spikes and near-spikes that found a slot.
        dropped: int32[T, B], candidates that did not.
        first_step: steps that ran before this chunk.
    """

    inputs: tuple[Array, ...]
    shifts: tuple[int, ...]
    v: Array
    i_syn: Array
    s: Array
    spikes: Array
    listed: Array
    dropped: Array
    first_step: int = 0

    def state(self) -> State:
        """To pass to the next chunk."""
        last = len(self.listed) - 1
        return State(self.v[last], self.i_syn[last], self.spikes[last], self.first_step + last + 1)


class Gradients(NamedTuple):
    """Shaped like the parameters (None: there is no such parameter); `inputs[k]` like source k, valid where listed."""

    weights: tuple[Array, ...]
    recurrent_weight: Array | None
    bias: Array | None
    beta: Array
    alpha: Array | None
    threshold: Array | None
    inputs: tuple[Array, ...]


# ---- one population ------------------------------------------------------------------------------------------------


def layer_forward(
    p: Parameters,
    inputs: Sequence[Array],
    state: State | None = None,
    *,
    seed: int = 0,
    smooth: bool = False,
    held: Array | None = None,
) -> Record:
    """Runs T steps; per step: decay, add, compare, list.

    Args:
        inputs: per source its spikes [T, B, M]; with a state and a delay d, [T + d, B, M], the d earlier steps first.
        state: from the chunk before; None: zero potentials, no past spikes.
        seed: of the rotation that chooses among candidates when a list is full.
        smooth: the smooth twin: s = S(v - θ) with S' = σ' instead of the hard step, so that central differences see
            the derivative that `layer_backward` computes. Lists every neuron.
        held: [T + 1, B, N], values that stand for s in the reset: the twin of a detached reset.
    """
    population, dtype = p.population, p.weights[0].dtype
    shifts = p.delays if state is None else (0,) * len(p.delays)
    n_steps = len(inputs[0]) if state is None else len(inputs[0]) - p.delays[0]
    shape = (n_steps + 1, inputs[0].shape[1], population.n)
    v, i_syn, s, spikes = (np.zeros(shape, dtype) for _ in range(4))
    listed, dropped = np.zeros((n_steps, *shape[1:]), bool), np.zeros((n_steps, shape[1]), np.int32)
    first_step = 0
    if state is not None:
        v[-1], i_syn[-1], spikes[-1], first_step = state
        s[-1] = v[-1] > p.threshold if p.threshold is not None else 0
    for t in range(n_steps):
        i = np.zeros(shape[1:], dtype) + (0 if p.bias is None else p.bias)
        for x, weight, shift in zip(inputs, p.weights, shifts, strict=True):
            if t >= shift:
                add_rows(i, x[t - shift], weight)
        if p.recurrent_weight is not None:
            add_rows(i, spikes[t - 1], p.recurrent_weight)
        if isinstance(population, CubaLIF):
            i = i_syn[t] = p.alpha * i_syn[t - 1] + i
        v[t] = rho(p, v[t - 1], (s if held is None else held)[t - 1]) + population.gain * i
        if isinstance(population, LI):
            continue
        if smooth:
            s[t] = spikes[t] = smooth_step(population.surrogate, v[t] - p.threshold)
            listed[t] = True
        else:
            s[t] = v[t] > p.threshold
            step = first_step + t
            spikes[t], listed[t], dropped[t] = make_lists(population, v[t], s[t] == 1, p.grad_threshold, seed, step)
    return Record(tuple(inputs), shifts, v, i_syn, s, spikes, listed, dropped, first_step)


def layer_backward(p: Parameters, r: Record, d_out: Array) -> Gradients:
    """Gradients of a loss whose derivative with respect to the list values (LI: the potentials) is `d_out` [T, B, N].

    A state passed in to `layer_forward` carries no gradient.
    """
    population = p.population
    n_steps = len(r.listed)
    delta, d_i = np.zeros_like(r.v), np.zeros_like(r.v)  # row -1 = row T is the zero after the last step
    d_beta, d_alpha, d_theta = (np.zeros(r.v.shape[1:], r.v.dtype) for _ in range(3))
    for t in reversed(range(n_steps)):
        rho_v, rho_s, _, _ = rho_derivatives(p, r.v[t], r.s[t])
        if isinstance(population, LI):
            delta[t] = rho_v * delta[t + 1] + d_out[t]
        else:
            e = d_out[t] + (0 if p.recurrent_weight is None else d_i[t + 1] @ p.recurrent_weight.T)
            sigma = surrogate_derivative(population.surrogate, r.v[t] - p.threshold) * r.listed[t]
            q = sigma * e
            through_reset = 0 if population.detach_reset else rho_s * sigma
            delta[t] = (rho_v + through_reset) * delta[t + 1] + q
            d_theta -= q + through_reset * delta[t + 1]
        d_i[t] = population.gain * delta[t]
        if isinstance(population, CubaLIF):
            d_i[t] += p.alpha * d_i[t + 1]
            d_alpha += d_i[t] * r.i_syn[t - 1]
        _, _, rho_beta, rho_theta = rho_derivatives(p, r.v[t - 1], r.s[t - 1])
        d_beta += delta[t] * rho_beta
        d_theta += delta[t] * rho_theta
    d_weights, d_inputs = [], []
    for x, weight, shift in zip(r.inputs, p.weights, r.shifts, strict=True):
        d_arrived = d_i[shift:n_steps]  # d_i at the step in which x[t - shift] arrives
        used = np.asarray(x[: len(d_arrived)], weight.dtype)
        d_weights.append(np.einsum("tbm,tbn->mn", used, d_arrived))
        d_inputs.append(np.zeros(x.shape, weight.dtype))
        d_inputs[-1][: len(d_arrived)] = d_arrived @ weight.T
    own = np.roll(r.spikes, 1, axis=0)[:-1]  # own[t] = spikes[t - 1]
    return Gradients(
        weights=tuple(d_weights),
        recurrent_weight=None if p.recurrent_weight is None else np.einsum("tbm,tbn->mn", own, d_i[:-1]),
        bias=None if p.bias is None else d_i.sum((0, 1)),
        beta=_sum_to(d_beta, p.beta),
        alpha=None if p.alpha is None else _sum_to(d_alpha, p.alpha),
        threshold=None if p.threshold is None else _sum_to(d_theta, p.threshold),
        inputs=tuple(d_inputs),
    )


def add_rows(i: Array, spikes: Array, weight: Array) -> None:
    """i[b] += weight[m] for every m that fired in sample b, m ascending; one addition after the other."""
    for b, m in zip(*np.nonzero(spikes), strict=True):
        i[b] += spikes[b, m] * weight[m]


def rho(p: Parameters, v: Array, s: Array) -> Any:
    """Decay and reset of the potential of the step before."""
    population, beta, threshold = p.population, p.beta, p.threshold
    if isinstance(population, LI) or population.reset == "none":
        return beta * v
    if population.reset == "zero":
        return beta * v * (1 - s)
    return beta * (v - threshold * s) if population.reset_decays else beta * v - threshold * s


def rho_derivatives(p: Parameters, v: Array, s: Array) -> tuple[Any, Any, Any, Any]:
    """∂ρ/∂v, ∂ρ/∂s, ∂ρ/∂β, ∂ρ/∂θ."""
    population, beta, threshold = p.population, p.beta, p.threshold
    if isinstance(population, LI) or population.reset == "none":
        return beta, 0, v, 0
    if population.reset == "zero":
        return beta * (1 - s), -beta * v, v * (1 - s), 0
    if population.reset_decays:
        return beta, -beta * threshold, v - threshold * s, -beta * s
    return beta, -threshold, v, -s


def _sum_to(x: Array, parameter: Array) -> Array:
    return x.sum(0) if parameter.ndim else np.asarray(x.sum())


# ---- lists ---------------------------------------------------------------------------------------------------------


def make_lists(
    population: Population, v: Array, fired: Array, grad_threshold: Array, seed: int, step: int
) -> tuple[Array, Array, Array]:
    """One step's lists as masks [B, N]: what is sent, what is listed; and int[B], the candidates dropped.

    Fired neurons come first, near-spikes take what slots remain. With activity="fixed" silent neurons fill the rest,
    and all K entries are sent as spikes.
    """
    near = (v > grad_threshold) & ~fired
    if population.capacity is None:
        return fired, fired | near, np.zeros(len(v), np.int32)
    spikes, listed = np.zeros_like(fired), np.zeros_like(fired)
    for b in range(len(v)):
        turn = rotation(seed, step, b)
        groups = [fired[b], near[b]]
        if population.activity == "fixed":
            groups.append(~fired[b] & ~near[b])
        free = population.capacity
        for group in groups:
            kept = choose(np.flatnonzero(group), free, turn)
            free -= len(kept)
            listed[b, kept] = True
        spikes[b] = listed[b] & (fired[b] | (population.activity == "fixed"))
    return spikes, listed, ((fired | near) & ~listed).sum(1).astype(np.int32)


def choose(ids: Array, slots: int, turn: int) -> Array:
    """All `ids` if they fit, else `slots` of them, read as a ring from position turn mod n; ascending."""
    if len(ids) <= slots:
        return ids
    return np.sort(ids[(turn % len(ids) + np.arange(slots)) % len(ids)])


def rotation(seed: int, step: int, sample: int) -> int:
    """Where the scan of a full list starts: a 64-bit hash, so that no id is favoured and every run repeats."""
    return mix(mix(mix(seed) ^ step) ^ sample)


def mix(z: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014)."""
    z = (z + 0x9E3779B97F4A7C15) & MASK_64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK_64
    return z ^ (z >> 31)


class Lists(NamedTuple):
    """The fields of a `SpikeBatch`, in its layout: list t·B + b, spikes first, then near-spikes, each ascending."""

    offsets: Array
    ids: Array
    n_spikes: Array
    dropped: Array


def to_lists(r: Record) -> Lists:
    """A record's masks as lists, to compare with an engine's exactly."""
    n_steps, n_samples, n = r.listed.shape
    sent = (r.spikes[:-1] != 0).reshape(-1, n)
    listed = r.listed.reshape(-1, n)
    rows = [np.concatenate([np.flatnonzero(a), np.flatnonzero(b & ~a)]) for a, b in zip(sent, listed, strict=True)]
    offsets = np.cumsum([0, *(len(row) for row in rows)]).astype(np.int64)
    ids = np.concatenate([np.empty(0, np.int64), *rows]).astype(np.uint16 if n <= 65_536 else np.int32)
    return Lists(offsets, ids, sent.sum(1).astype(np.int32), r.dropped.reshape(n_steps * n_samples))


# ---- surrogates ----------------------------------------------------------------------------------------------------


def surrogate_derivative(surrogate: Surrogate, x: Array) -> Any:
    """σ'(x), the table in `sparsesnn.surrogate`."""
    k = surrogate.slope
    if surrogate.kind == "fast_sigmoid":
        return (k * np.abs(x) + 1) ** -2
    if surrogate.kind == "straight_through":
        return np.ones_like(x)
    if surrogate.kind == "sigmoid":
        s = 0.5 * (1 + np.tanh(0.5 * k * x))
        return k * s * (1 - s)
    if surrogate.kind == "atan":
        return k / 2 / (1 + (np.pi / 2 * k * x) ** 2)
    if surrogate.kind == "triangle":
        return np.maximum(0, 1 - k * np.abs(x))
    return k * (np.abs(x) < 0.5 / k).astype(x.dtype)


def smooth_step(surrogate: Surrogate, x: Array) -> Any:
    """S(x) with S' = σ' and S(0) = 1/2: the step of the smooth twin."""
    k = surrogate.slope
    if surrogate.kind == "fast_sigmoid":
        return 0.5 + x / (k * np.abs(x) + 1)
    if surrogate.kind == "straight_through":
        return 0.5 + x
    if surrogate.kind == "sigmoid":
        return 0.5 * (1 + np.tanh(0.5 * k * x))
    if surrogate.kind == "atan":
        return 0.5 + np.arctan(np.pi / 2 * k * x) / np.pi
    if surrogate.kind == "triangle":
        x = np.clip(x, -1 / k, 1 / k)
        return 0.5 + x - k / 2 * x * np.abs(x)
    return 0.5 + np.clip(k * x, -0.5, 0.5)


# ---- a network -----------------------------------------------------------------------------------------------------


def network_forward(
    network: Network, parameters: Mapping[str, Parameters], spikes: Array, *, seed: int = 0, smooth: bool = False
) -> dict[str, Record]:
    """Runs the input's `spikes` [T, B, N] through all populations, in the order of the description."""
    sent = {network.inputs[0]: spikes}
    records = {}
    for name, p in parameters.items():
        records[name] = layer_forward(p, [sent[c.pre] for c in network.senders(name)], seed=seed, smooth=smooth)
        sent[name] = records[name].spikes[:-1]
    return records


def network_backward(
    network: Network, parameters: Mapping[str, Parameters], records: Mapping[str, Record], d_out: Mapping[str, Array]
) -> dict[str, Gradients]:
    """Gradients of all populations; `d_out[name]` [T, B, N] is the loss's own derivative, absent where it has none."""
    sums = {name: np.array(d_out.get(name, np.zeros_like(r.v[:-1]))) for name, r in records.items()}
    gradients = {}
    for name in reversed(list(records)):
        gradients[name] = layer_backward(parameters[name], records[name], sums[name])
        for c, d_input in zip(network.senders(name), gradients[name].inputs, strict=True):
            if c.pre in sums:
                sums[c.pre] += d_input
    return gradients
