"""The specification: forward and backward of one population and of a network, in plain NumPy, for any float dtype.

Every fast path is compared with this file. Masks represent lists: `spikes` [T, B, N] are the sent spikes, `listed` adds
the near-spikes. Traces have T + 1 rows; row -1 is the state before the first step, so `v[t - 1]` is right at t = 0. `spikes` has T + D rows
for the D steps before, D being the longest delay of a loop, at least 1.

    i[t] = bias + x[t] + Σ_k Σ_{m in pre_k[t-d_k]} W_k[m,:] + Σ_l Σ_{m in own[t-d_l]} V_l[m,:]     rows added one by one in this order
                                          x: given currents, the first source if its synapses are `OneToOne`
                                          with axonal delays a: m in own[t-d_l-a_m], see `sparsesnn.delays`
    z[t] = step(z[t-1], s[t-1], i[t])                    the model's step, see sparsesnn/layers; its first state is x
    s[t] = x[t] > θ          near[t] = x[t] > θ_grad and not s[t]

    e[t] = d_out[t] + Σ_l V_l·d_i[t+d_l]                  d_out: the list gradients from readers and the loss; for neuron m
                                                          with an axonal delay, d_i[t+d_l+a_m]
    d_z[t] = gradient of z[t] from `pull` of step t+1, and for x[t] also σ'(x[t]-θ)·(e[t] + the same pull's gradient of s[t])·[listed]
             (without the part through the reset's spikes if detach_reset), and the gradient of the potential x[t] if it is an output
    d_i[t] = gradient of i[t] from `pull` of step t
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from sparsesnn.layers import Neuron, fires, is_readout
from sparsesnn.layers.equations import Pulled
from sparsesnn.network import Network
from sparsesnn.rotation import list_seed, population_seed, rotation
from sparsesnn.synapses import Dense, Synapses

Array = np.ndarray[Any, Any]


def rounded_weight(weight: Array, n_bits: int) -> tuple[Array, Array]:
    """Integers q [..., N] and scales s [N] of a float32 weight [..., N], used as q·s; see `sparsesnn.rounding`."""
    limit = 2 ** (n_bits - 1) - 1
    most = np.abs(weight).reshape(-1, weight.shape[-1]).max(0)
    mantissa, exponent = np.frexp(most / np.float32(limit))
    scale = np.ldexp(np.ceil(mantissa * 2**16), exponent - 16).astype(np.float32)  # up to 16 bits
    return np.rint(weight / np.where(scale == 0, np.float32(1), scale)).clip(-limit, limit).astype(np.int8), scale


@dataclass(frozen=True)
class Parameters:
    """A population and its numbers.

    Args:
        weights, delays: for each source, [M, N].
        bias: [N] or None.
        loops, loop_delays: for each recurrent connection, [N, N].
        loop_synapses: likewise; empty: matrices.
        neuron: the model's parameters by name, [] or [N].
        grad_threshold: [] or [N]; None for a readout.
        synapses: for each source; empty: matrices [M, N].
        axonal: by source, or "loop 0", …, additional delay in steps of each sender's spikes, [M], whole or not; none: 0.
        masks: by source (0, 1, … or "loop 0", …), 1 for existing synapses, else 0, [M, N]; none: all synapses exist.
    """

    population: Neuron
    weights: tuple[Array, ...]
    delays: tuple[int, ...]
    bias: Array | None
    neuron: Mapping[str, Array]
    grad_threshold: Any = None
    synapses: tuple[Synapses, ...] = ()
    axonal: Mapping[int | str, Array] = field(default_factory=dict)
    masks: Mapping[int | str, Array] = field(default_factory=dict)
    loops: tuple[Array, ...] = ()
    loop_delays: tuple[int, ...] = ()
    loop_synapses: tuple[Synapses, ...] = ()

    def kinds(self) -> tuple[Synapses, ...]:
        """The kind of synapses of each source."""
        return self.synapses or (Dense(),) * len(self.weights)

    def loop_kinds(self) -> tuple[Synapses, ...]:
        """The kind of synapses of each loop."""
        return self.loop_synapses or (Dense(),) * len(self.loops)

    @property
    def fires(self) -> bool:
        return not is_readout(self.population)

    @classmethod
    def from_layer(cls, layer: Any, dtype: type = np.float64) -> Parameters:
        """The numbers of a `sparsesnn.engines.module.Layer`; parameters as read by its forward pass, within their range.

        `layer_backward` returns their gradients; `sparsesnn.bounds` turns these into gradients of the parameters.
        """

        def array(value: Any) -> Any:
            return None if value is None else value.detach().cpu().numpy().astype(dtype)

        connections: dict[int | str, Any] = dict(enumerate(layer.senders))
        connections.update({f"loop {k}": c for k, c in enumerate(layer.loops)})
        masks = {k: array(layer.mask(c)) for k, c in connections.items() if layer.columns(c) is not None}
        return cls(
            population=layer.population,
            weights=tuple(array(w) for w in layer.sender_matrices),
            delays=tuple(layer.delays),
            bias=array(layer.tensor("bias")),
            neuron={name: array(layer.tensor(name)).clip(low, high) for name, low, high in layer.population.parameters},
            grad_threshold=array(layer.tensor("grad_threshold")),
            synapses=tuple(Dense() if c.synapses.is_matrix else c.synapses for c in layer.senders),
            axonal={k: array(layer.axonal_delays(c)) for k, c in connections.items() if c.axonal},
            masks=masks,
            loops=tuple(array(w) for w in layer.loop_matrices),
            loop_delays=tuple(layer.loop_delays),
            loop_synapses=tuple(Dense() if c.synapses.is_matrix else c.synapses for c in layer.loops),
        )

    @property
    def n_before(self) -> int:
        """Number of steps before the first whose spikes matter."""
        late = (float(self.axonal.get(f"loop {k}", np.zeros(1)).max()) for k in range(len(self.loops)))
        return max((1, *(delay + math.ceil(most) for delay, most in zip(self.loop_delays, late, strict=True))))


class State(NamedTuple):
    """After the last step: the model's states [B, N], the spikes of the last steps [D, B, N], and the number of steps so far."""

    states: tuple[Array, ...]
    spikes: Array
    step: int = 0


@dataclass(frozen=True)
class Record:
    """All results of a forward pass.

    Args:
        inputs: the spikes of each source, as given.
        shifts: for each source, row t - shift arrives at step t.
        states, s: [T + 1, B, N]; row -1 is the state before. `s` is x > θ.
        spikes: [T + D, B, N], the sent spikes; rows -D to -1 are the steps before.
        current: [T, B, N].
        listed: bool[T, B, N], spikes and near-spikes with a slot.
        dropped: int32[T, B], number of candidates without one.
        first_step: number of steps before this chunk.
    """

    inputs: tuple[Array, ...]
    shifts: tuple[int, ...]
    states: tuple[Array, ...]
    current: Array
    s: Array
    spikes: Array
    listed: Array
    dropped: Array
    first_step: int = 0

    @property
    def v(self) -> Array:
        """The first state: compared with the threshold, or a readout's potential."""
        return self.states[0]

    def state(self) -> State:
        """The state for the next chunk."""
        last = len(self.listed) - 1
        n_before = len(self.spikes) - len(self.listed)
        sent = np.roll(self.spikes, n_before, axis=0)[-n_before:]  # in the order of steps
        return State(tuple(z[last] for z in self.states), sent, self.first_step + last + 1)

    @property
    def sent(self) -> Array:
        """`spikes` of the T steps."""
        return self.spikes[: len(self.listed)]


class Gradients(NamedTuple):
    """Shaped like the parameters (None: no such parameter); `inputs[k]` like source k, valid for listed neurons."""

    weights: tuple[Array, ...]
    loops: tuple[Array, ...]
    bias: Array | None
    neuron: dict[str, Array]
    inputs: tuple[Array, ...]
    axonal: dict[int | str, Array]


# ---- one population ------------------------------------------------------------------------------------------------


def layer_forward(
    p: Parameters,
    inputs: Sequence[Array],
    state: State | None = None,
    *,
    seed: int = 0,
    index: int = 0,
    training_step: int = 0,
    smooth: bool = False,
    held: Array | None = None,
) -> Record:
    """Runs T steps; per step: decay, add, compare, list.

    Args:
        inputs: the spikes of each source [T, B, M]; with a state and a delay d, [T + d, B, M], the d earlier steps first.
        state: from the previous chunk; None: zero potentials, no past spikes.
        seed, index, training_step: for the rotation that chooses among candidates for a full list: the model's seed,
            the population's index in the network, the number of training's forward passes including this one (0 in evaluation).
        smooth: the smooth twin: s = S(v - θ) with S' = σ' instead of the hard step, so that central differences have
            the derivative computed by `layer_backward`. Lists every neuron.
        held: [T + 1, B, N], values used for s in the reset: the twin of a detached reset.
    """
    population, dtype = p.population, p.weights[0].dtype
    shifts = p.delays if state is None else (0,) * len(p.delays)
    n_steps = len(inputs[0]) if state is None else len(inputs[0]) - p.delays[0]
    shape = (n_steps + 1, inputs[0].shape[1], population.n)
    states = tuple(np.zeros(shape, dtype) for _ in population.states)
    current, s = np.zeros((n_steps, *shape[1:]), dtype), np.zeros(shape, dtype)
    spikes = np.zeros((n_steps + p.n_before, *shape[1:]), dtype)
    listed, dropped = np.zeros((n_steps, *shape[1:]), bool), np.zeros((n_steps, shape[1]), np.int32)
    theta = p.neuron.get("threshold")
    of_lists = list_seed(population_seed(seed, index), training_step)
    first_step = 0
    if state is not None:
        for z, before in zip(states, state.states, strict=True):
            z[-1] = before
        spikes[n_steps:], first_step = state.spikes, state.step
        s[-1] = states[0][-1] > theta if p.fires else 0
    arriving = [arrive(x, p.axonal.get(k)) for k, x in enumerate(inputs)]
    for t in range(n_steps):
        i = current[t]
        i += 0 if p.bias is None else p.bias
        for x, kind, weight, shift in zip(arriving, p.kinds(), p.weights, shifts, strict=True):
            if t >= shift:
                kind.add(i, x[t - shift], weight)
        for k, (kind, weight, delay) in enumerate(zip(p.loop_kinds(), p.loops, p.loop_delays, strict=True)):
            kind.add(i, _taps(spikes, t - delay, p.axonal.get(f"loop {k}"), -1, -p.n_before), weight)
        reset = (s if held is None else held)[t - 1]
        after = population.step(p.neuron, [z[t - 1] for z in states], reset, s[t - 1], i)
        for z, value in zip(states, after, strict=True):
            z[t] = value
        if not fires(population):
            continue
        x = states[0][t]
        if smooth:
            s[t] = spikes[t] = population.surrogate.smooth_step(x - theta)
            listed[t] = True
        else:
            s[t] = x > theta
            spikes[t], listed[t], dropped[t] = make_lists(
                population, x, s[t] == 1, p.grad_threshold, of_lists, first_step + t
            )
    return Record(tuple(inputs), shifts, states, current, s, spikes, listed, dropped, first_step)


def layer_backward(p: Parameters, r: Record, d_out: Array, d_potentials: Array | None = None) -> Gradients:
    """Gradients of a loss whose derivative with respect to the list values (LI: the potentials) is `d_out` [T, B, N], and of neurons
    that fire with respect to their potentials `d_potentials`; that of given currents is in `inputs[0]`.

    A state passed to `layer_forward` carries no gradient.
    """
    population, dtype = p.population, p.weights[0].dtype.type
    n_steps, like = len(r.listed), np.zeros_like(r.s[0])
    d_i = np.zeros_like(r.spikes)  # rows from T on are the zeros after the last step
    d_arriving = [np.zeros_like(r.spikes) for _ in p.loops]  # gradients through each loop
    d_loops = [np.zeros_like(w) for w in p.loops]
    n_before = len(r.spikes) - n_steps
    own = np.roll(r.spikes, n_before, axis=0)  # in the order of steps
    arriving = []
    for k, delay in enumerate(p.loop_delays):
        row = n_before - delay  # row + t arrives at step t
        arriving.append(np.asarray(arrive(own, p.axonal.get(f"loop {k}"))[row : row + n_steps], dtype))
    d_neuron = {name: np.zeros_like(like) for name in p.neuron}
    pulled = Pulled((like,) * len(r.states), like, like, like, {})
    for t in reversed(range(n_steps)):
        d = list(pulled.states)
        if is_readout(population):
            d[0] = d[0] + d_out[t]
        else:
            e = d_out[t] + sum(
                _taps(d, t + delay, p.axonal.get(f"loop {k}"), 1, 0)
                for k, (d, delay) in enumerate(zip(d_arriving, p.loop_delays, strict=True))
            )
            sigma = population.surrogate.derivative(r.v[t] - p.neuron["threshold"]) * r.listed[t]
            q = sigma * (e + pulled.spikes + (0 if population.detach_reset else pulled.reset))
            d[0] = d[0] + q + (0 if d_potentials is None else d_potentials[t])
            d_neuron["threshold"] -= q
        before = [z[t - 1] for z in r.states]
        pulled = population.pull(p.neuron, before, r.s[t - 1], r.s[t - 1], r.current[t], d)
        d_i[t] = pulled.current
        for k, (kind, w) in enumerate(zip(p.loop_kinds(), p.loops, strict=True)):
            (d_arriving[k][t],), d_weight = kind.pull(arriving[k][t : t + 1], w, d_i[t : t + 1])
            d_loops[k] += d_weight
        for name, value in pulled.parameters.items():
            d_neuron[name] += value
    d_axonal: dict[int | str, Array] = {}
    d_weights, d_inputs = [], []
    for k, (x, kind, weight, shift) in enumerate(zip(r.inputs, p.kinds(), p.weights, r.shifts, strict=True)):
        d_arrived = d_i[shift:n_steps]  # d_i at the step in which x[t - shift] arrives
        used = np.asarray(arrive(x, p.axonal.get(k))[: len(d_arrived)], weight.dtype)
        d_inputs.append(np.zeros(x.shape, weight.dtype))
        d_inputs[-1][: len(d_arrived)], d_weight = kind.pull(used, weight, d_arrived)
        d_weights.append(d_weight * p.masks.get(k, dtype(1)))
        if k in p.axonal:
            d_inputs[-1], d_axonal[k] = arrive_grad(x, p.axonal[k], d_inputs[-1])
    for k, (of_loop, delay) in enumerate(zip(d_arriving, p.loop_delays, strict=True)):
        axonal = p.axonal.get(f"loop {k}")
        if axonal is not None:
            d_arrived = np.concatenate([np.zeros_like(of_loop[: n_before - delay]), of_loop])[: len(own)]
            d_axonal[f"loop {k}"] = arrive_grad(own, axonal, d_arrived)[1]
    return Gradients(
        weights=tuple(d_weights),
        loops=tuple(d * p.masks.get(f"loop {k}", dtype(1)) for k, d in enumerate(d_loops)),
        bias=None if p.bias is None else d_i.sum((0, 1)),
        neuron={name: _sum_to(d, p.neuron[name]) for name, d in d_neuron.items()},
        inputs=tuple(d_inputs),
        axonal=d_axonal,
    )


def arrive(x: Array, delays: Array | None) -> Array:
    """Spikes [T, B, M] as they arrive after `delays` [M]; arrivals between two steps are split between both."""
    if delays is None:
        return x
    out = np.zeros(x.shape, delays.dtype)
    for m, (d, f) in enumerate(zip(*_whole_and_rest(delays), strict=True)):
        out[d:, :, m] += (1 - f) * x[: max(0, len(x) - d), :, m]
        out[d + 1 :, :, m] += f * x[: max(0, len(x) - d - 1), :, m]
    return out


def arrive_grad(x: Array, delays: Array, d_out: Array) -> tuple[Array, Array]:
    """Gradients of the spikes and of the delays, from that of the arrivals."""
    d_x, d_delays = np.zeros_like(d_out), np.zeros_like(delays)
    after = np.concatenate([d_out, np.zeros((1, *d_out.shape[1:]), d_out.dtype)])
    for m, (d, f) in enumerate(zip(*_whole_and_rest(delays), strict=True)):
        n = max(0, len(x) - d)
        earlier, later = after[d : d + n, :, m], after[d + 1 : d + 1 + n, :, m]
        d_x[:n, :, m] = (1 - f) * earlier + f * later
        d_delays[m] = (x[:n, :, m] * (later - earlier)).sum()
    return d_x, d_delays


def _taps(x: Array, step: int, delays: Array | None, sign: int, low: int) -> Array:
    """Row `step` of x [T, B, M], for each sender moved by `delays` in the direction `sign`, or split between two rows if a delay is not
    whole. 0 outside the rows from `low`; negative rows are the last of x."""
    if delays is None:
        return np.asarray(x[step])
    whole, rest = _whole_and_rest(delays)

    def rows(at: Array) -> Array:
        inside = (at >= low) & (at < low + len(x))
        return np.asarray(np.where(inside, x[np.where(inside, at, 0), :, np.arange(len(at))].T, 0))

    return np.asarray((1 - rest) * rows(step + sign * whole) + rest * rows(step + sign * (whole + 1)))


def _whole_and_rest(delays: Array) -> tuple[Array, Array]:
    whole = np.floor(delays)
    return whole.astype(int), delays - whole


def _sum_to(x: Array, parameter: Array) -> Array:
    return x.sum(0) if parameter.ndim else np.asarray(x.sum())


# ---- lists ---------------------------------------------------------------------------------------------------------


def make_lists(
    population: Neuron, v: Array, fired: Array, grad_threshold: Array, seed: int, step: int
) -> tuple[Array, Array, Array]:
    """One step's lists as masks [B, N]: sent spikes, listed neurons; and int[B], the number of dropped candidates.

    Fired neurons come first, near-spikes take the remaining slots. With activity="fixed" silent neurons fill the rest,
    and all K entries are sent as spikes. `seed`: see `sparsesnn.rotation.list_seed`.
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
    """All `ids` if they fit, else `slots` of them, taken cyclically from position turn mod n; ascending."""
    if len(ids) <= slots:
        return ids
    return np.sort(ids[(turn % len(ids) + np.arange(slots)) % len(ids)])


class Lists(NamedTuple):
    """The fields of a `SpikeBatch`, in its layout: list t·B + b, spikes first, then near-spikes, each ascending."""

    offsets: Array
    ids: Array
    n_spikes: Array
    dropped: Array


def to_lists(r: Record) -> Lists:
    """A record's masks as lists, for exact comparison with an engine's."""
    n_steps, n_samples, n = r.listed.shape
    sent = (r.sent != 0).reshape(-1, n)
    listed = r.listed.reshape(-1, n)
    rows = [np.concatenate([np.flatnonzero(a), np.flatnonzero(b & ~a)]) for a, b in zip(sent, listed, strict=True)]
    offsets = np.cumsum([0, *(len(row) for row in rows)]).astype(np.int64)
    ids = np.concatenate([np.empty(0, np.int64), *rows]).astype(np.uint16 if n <= 65_536 else np.int32)
    return Lists(offsets, ids, sent.sum(1).astype(np.int32), r.dropped.reshape(n_steps * n_samples))


# ---- a network -----------------------------------------------------------------------------------------------------


def network_forward(
    network: Network,
    parameters: Mapping[str, Parameters],
    spikes: Array,
    *,
    seed: int = 0,
    training_step: int = 0,
    smooth: bool = False,
) -> dict[str, Record]:
    """Runs the input's `spikes` or currents [T, B, N] through all populations, in the order of the description."""
    sent = {network.inputs[0]: spikes}
    indices = {name: k for k, name in enumerate(network.populations)}
    records = {}
    for name, p in parameters.items():
        records[name] = layer_forward(
            p,
            [sent[c.pre] for c in network.senders(name)],
            seed=seed,
            index=indices[name],
            training_step=training_step,
            smooth=smooth,
        )
        sent[name] = records[name].sent
    return records


def network_backward(
    network: Network,
    parameters: Mapping[str, Parameters],
    records: Mapping[str, Record],
    d_out: Mapping[str, Array],
    d_potentials: Array | None = None,
) -> dict[str, Gradients]:
    """Gradients of all populations; `d_out[name]` [T, B, N] is the direct derivative of the loss, if it has one; `d_potentials` that by
    the potentials of a last population that fires."""
    sums = {name: np.array(d_out.get(name, np.zeros_like(r.v[:-1]))) for name, r in records.items()}
    gradients = {}
    for name in reversed(list(records)):
        of_potentials = d_potentials if name == network.output else None
        gradients[name] = layer_backward(parameters[name], records[name], sums[name], of_potentials)
        for c, d_input in zip(network.senders(name), gradients[name].inputs, strict=True):
            if c.pre in sums:
                sums[c.pre] += d_input
    return gradients
