"""Runs a population: reads and checks the call, and chooses the mode that computes it."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sparsesnn.bounds import bounded
from sparsesnn.currents import Currents
from sparsesnn.engines.dense import fused, unrolled
from sparsesnn.engines.dense.call import Axonal, Call, Loop, Source
from sparsesnn.engines.dense.neuron import Neuron
from sparsesnn.engines.dense.spikes import DenseSpikes
from sparsesnn.errors import DescriptionError, MissingDependencyError, ShapeError
from sparsesnn.layers import fires
from sparsesnn.output import LayerOutput, LayerState, last_steps
from sparsesnn.parameters import Incoming
from sparsesnn.wording import count

if TYPE_CHECKING:
    from sparsesnn.engines.module import Layer

MODES = ("auto", "step", "hoist", "fused")
#: the first version of Triton, that of PyTorch 2.8, which takes tuples of tensors
MIN_TRITON = (3, 4)


def run_layer(
    layer: Layer,
    sources: Sequence[LayerOutput | DenseSpikes | Currents],
    state: LayerState | None,
    *,
    packed: bool = False,
    potentials: bool = False,
) -> tuple[Tensor | DenseSpikes, LayerState, Tensor | None]:
    """Runs one population for T steps: decay, add, compare, as `sparsesnn.reference` specifies it.

    Works in the dtype and on the device of the weights.

    Args:
        layer: description, parameters, and the mode (`layer.dense_mode`).
        sources: per source its spikes [T, B, M], 0 or 1. With a state, a source of delay d is [T + d, B, M]: row t
            arrives at step t. Without a state it is shifted here, and nothing arrives in its first d steps.
        state: from the previous call; None: zero potentials, no past spikes. It receives no gradient.
        packed: return `DenseSpikes` if the mode is "fused".
        potentials: those of neurons that fire are the third result, else None. The mode "fused" keeps none: "hoist" computes them.

    Returns: spikes [T, B, N] (potentials for LI), the state after the last step, and potentials [T, B, N].
    Errors: `DescriptionError` if a capacity is set, or if the mode does not support these weights; `ShapeError` for sources
    or states that do not fit.
    """
    population = layer.population
    if fires(population) and population.capacity is not None:
        raise DescriptionError(
            f"{type(population).__name__}: capacity is {population.capacity}, but the backend 'dense' has no lists "
            "that could fill up; allowed: capacity=None; change that, or use backend='cpu'"
        )
    mode = mode_of(layer, potentials=potentials)
    sources = [x.to_dense() if isinstance(x, Currents) else x for x in sources]
    if mode != "fused":
        sources = [x.to_dense() if isinstance(x, DenseSpikes) else x for x in sources]
    call = _call(layer, sources, state)
    out: Tensor | DenseSpikes
    found: Tensor | None = None
    if mode == "fused" and packed and fires(population):
        out, after = fused.run_packed(call)
        recent = out.fired[max(0, call.n_steps - layer.n_history) :].to(call.v.dtype)
    else:
        if mode == "fused":
            out, after = fused.run(call)
        else:
            out, after, found = unrolled.run(call, hoisted=mode == "hoist", potentials=potentials)
        recent = out
    before = state.history if state else None
    history = last_steps(before, recent, layer.n_history) if layer.n_history else None
    step = (state.step if state else 0) + call.n_steps
    states = {name: x.detach() for name, x in zip(population.states, after, strict=True)}
    return out, LayerState(states, history, step), found


def check_mode(mode: str) -> None:
    """Raises `DescriptionError` for an unknown mode."""
    if mode not in MODES:
        raise DescriptionError(f"dense_mode is {mode!r}; allowed: {', '.join(MODES)}")


def choose_mode(mode: str, device: torch.device, dtype: torch.dtype) -> str:
    """The mode used for weights of a device and dtype: "auto" becomes the fastest one.

    Errors: `DescriptionError` if "fused" is requested but does not run there, `MissingDependencyError` without Triton.
    """
    mixed = device.type == "cpu" and torch.is_autocast_enabled("cpu")
    able = dtype in (torch.float32, torch.float64) and (
        device.type == "cpu" or (device.type == "cuda" and has_triton())
    )
    if mode == "auto":  # torch.compile cannot trace the fused loop
        return "fused" if able and not mixed and not torch.compiler.is_compiling() else "hoist"
    if mode == "fused" and not able:
        if device.type == "cuda" and dtype in (torch.float32, torch.float64):
            package = f"triton>={'.'.join(map(str, MIN_TRITON))}"
            raise MissingDependencyError(package, "cuda", "dense_mode 'fused' on CUDA")
        raise DescriptionError(
            f"dense_mode is 'fused', but the weights are {dtype} on {device}; it runs on cpu and cuda in float32 and "
            "float64 (mixed precision: torch.autocast); use 'hoist' there"
        )
    return mode


def mode_of(layer: Layer, *, potentials: bool = False) -> str:
    """The mode that runs a layer; "fused" supports neurons that are linear between spikes, with one recurrent matrix of delay 1."""
    mode = choose_mode(layer.dense_mode, layer.like.device, layer.like.dtype)
    one_loop = layer.loop_delays in ((), (1,)) and all(c.synapses.is_matrix and not c.axonal for c in layer.loops)
    return "hoist" if mode == "fused" and (potentials or not (one_loop and layer.population.linear)) else mode


@functools.cache
def has_triton() -> bool:
    """Whether Triton is installed, in a version that can compile our kernels."""
    if importlib.util.find_spec("triton") is None:
        return False
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:  # PyTorch's nightly builds bring it under other names
        return True
    return tuple(int(part) for part in version.split(".")[:2]) >= MIN_TRITON


def _call(layer: Layer, sources: Sequence[LayerOutput | DenseSpikes | Currents], state: LayerState | None) -> Call:
    population = layer.population
    read, n_steps, n_samples = _sources(layer, sources, shift=state is None)
    like, shape = layer.like, (n_samples, population.n)
    given = [None] * len(population.states) if state is None else state.of(population.states)
    states = tuple(_from_state(z, name, like, shape) for name, z in zip(population.states, given, strict=True))
    before = state.history if state else None
    own: tuple[Tensor, ...] = ()
    if layer.loops:
        longest = layer.loop_reach
        if state is not None and not isinstance(before, Tensor):
            raise ShapeError(
                f"{type(population).__name__}: recurrent, but the state's history is {type(before).__name__}; "
                f"allowed: the last spikes [{longest} or more, B, N]; pass the state that this layer returned"
            )
        if isinstance(before, Tensor) and len(before) < longest:
            raise ShapeError(
                f"{type(population).__name__}: the state's history has {count(len(before), 'step')}; this layer receives its "
                f"own spikes {longest} steps later; pass the state that this layer returned"
            )
        past = before[len(before) - longest :] if isinstance(before, Tensor) else [None] * longest
        if any(c.axonal for c in layer.loops):  # part of a spike may arrive one step after the longest delay
            past = [None, *past]
        own = tuple(_from_state(one, "history", like, shape) for one in past)
    return Call(
        neuron=Neuron(
            population,
            tuple(bounded(layer.tensor(name), low, high) for name, low, high in population.parameters),
            grad_threshold=layer.tensor("grad_threshold"),
        ),
        sources=read,
        loops=tuple(
            Loop(weight, c.delay, c.synapses, _axonal(layer, c))
            for weight, c in zip(layer.loop_matrices, layer.loops, strict=True)
        ),
        bias=layer.tensor("bias"),
        n_steps=n_steps,
        n_samples=n_samples,
        n=population.n,
        state=states,
        own=own,
        fresh=state is None,
    )


def _axonal(layer: Layer, c: Incoming) -> Axonal | None:
    if not c.axonal:
        return None
    delays = layer.axonal_delays(c).to(layer.like.dtype)
    return Axonal.of(delays, between=layer.between_steps(c))


def _sources(
    layer: Layer, sources: Sequence[LayerOutput | DenseSpikes | Currents], *, shift: bool
) -> tuple[tuple[Source, ...], int, int]:
    """The sources in the dtype and on the device of the weights, with T and B."""
    model = type(layer.population).__name__
    shape: tuple[int, int] | None = None
    read = []
    for k, (source, weight, c) in enumerate(zip(sources, layer.sender_matrices, layer.senders, strict=True)):
        delay = c.delay
        if not isinstance(source, (Tensor, DenseSpikes)):
            raise ShapeError(
                f"{model}: source {k} is a {type(source).__name__}; the backend 'dense' reads tensors [T, B, M]; "
                "give spikes.to_dense()"
            )
        if source.ndim != 3 or source.shape[2] != c.n_pre:
            raise ShapeError(f"{model}: source {k} is {tuple(source.shape)}; give [T, B, {c.n_pre}]")
        n_steps = source.shape[0] if shift else source.shape[0] - delay
        if n_steps < 0:
            raise ShapeError(
                f"{model}: source {k} has {count(source.shape[0], 'step')} and the delay is {delay}; with a state, "
                f"give the {count(delay, 'step')} before the chunk in front of it"
            )
        if shape is None:
            shape = (n_steps, source.shape[1])
        if (n_steps, source.shape[1]) != shape:
            raise ShapeError(
                f"{model}: source {k} brings T, B = {(n_steps, source.shape[1])}, source 0 brings {shape}; "
                "make them equal" + ("" if shift else " (with a state, a source of delay d begins d steps earlier)")
            )
        spikes = source.to(weight.device, weight.dtype) if isinstance(source, Tensor) else source
        read.append(Source(spikes, weight, delay if shift else 0, c.synapses))
    assert shape is not None, "a layer has at least one source"
    return tuple(read), *shape


def _from_state(value: Tensor | None, name: str, like: Tensor, shape: tuple[int, int]) -> Tensor:
    """A state's tensor, detached, in the dtype and on the device of `like`; zeros if there is none."""
    if value is None:
        return like.new_zeros(shape)
    if tuple(value.shape) != shape:
        raise ShapeError(
            f"state.{name} is {tuple(value.shape)}; the sources and the population need {shape}; "
            "pass the state of the same layer and the same number of samples"
        )
    return value.detach().to(like.device, like.dtype).contiguous()
