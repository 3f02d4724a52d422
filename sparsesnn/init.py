"""Initial weights from data: scale every population to the wanted activity (similar to LSUV)."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsesnn.arguments import named
from sparsesnn.errors import DescriptionError, NumericError
from sparsesnn.layers import fires, is_readout
from sparsesnn.options import option, plain
from sparsesnn.output import LayerOutput
from sparsesnn.parameters import Incoming
from sparsesnn.rotation import population_seed
from sparsesnn.spikes import SpikeBatch
from sparsesnn.synapses import Dense


@dataclass(frozen=True)
class Recurrence:
    """The distribution of initial recurrent weights."""

    recurrent: str = option(
        "uniform",
        "initial recurrent weights: uniform, or orthogonal, which takes neurons³ operations: seconds for 1,000 neurons",
        choices=("uniform", "orthogonal"),
    )
    recurrent_gain: float = option(
        1.0,
        "factor on initial recurrent weights, U(±1/√n) or orthogonal; activity then scales them with the others",
        low=0,
    )


@torch.no_grad()
def init_recurrent(model: Any, recurrence: Recurrence, seed: int) -> None:
    """Redraws the recurrent weights of a model according to `recurrence`; several copies share the fan-in.

    Args:
        model: a `sparsesnn.Model`, or a network over several ranks, each of which draws all weights and keeps its columns.
        seed: of the orthogonal matrices, which are the same on every machine.

    Errors: `DescriptionError` for orthogonal weights of a connection that is not dense.
    """
    for place, layer in enumerate(model.layers.values()):
        for c in layer.incoming:
            weight = getattr(layer, c.name)
            if not c.is_recurrent:
                continue
            layer.check_plain(f"init_recurrent: {c.name}")
            if recurrence.recurrent == "orthogonal":
                if not isinstance(c.synapses, Dense):
                    raise DescriptionError(
                        f"{c.name}: synapses are {type(c.synapses).__name__}; orthogonal recurrent weights need Dense; give "
                        "recurrent = 'uniform'"
                    )
                whole = orthogonal(c.n_pre, population_seed(seed, place) + c.delay) / math.sqrt(c.n_copies)
                begin, end = layer.neurons
                weight.copy_(torch.from_numpy(whole[:, begin:end].astype(np.float32)))
            if recurrence.recurrent_gain != 1:
                weight.mul_(recurrence.recurrent_gain)


def orthogonal(n: int, seed: int) -> npt.NDArray[np.float64]:
    """float64[n, n], random with orthonormal rows and columns: a product of n - 1 reflections.

    Every sum runs over rows in order, and vectors are drawn exactly, so the matrix is the same on every machine; linear
    algebra libraries add in other orders. Source: Stewart 1980, with vectors that are uniform in a cube.
    """
    draw = random.Random(seed).random
    q = np.eye(n)
    for size in range(2, n + 1):
        v = np.array([2 * draw() - 1 for _ in range(size)])
        rows = q[n - size :]
        along = np.zeros(n)
        for x, row in zip(v, rows, strict=True):
            along += x * row
        rows -= np.outer(v * (2 / math.fsum(v * v)), along)
    signs = np.array([1.0 if draw() < 0.5 else -1.0 for _ in range(n)])
    q *= signs
    return q


#: gains are searched between 1 / MAX_GAIN and MAX_GAIN times the current weights
MAX_GAIN = 2.0**20


@named
@torch.no_grad()
def init_activity(
    model: Any,
    batches: Iterable[SpikeBatch],
    target: float | Mapping[str, float],
    *,
    tolerance: float = 0.1,
    max_passes: int = 40,
    mean_shift: float = 0.0,
    readout_std: float | None = 1.0,
) -> dict[str, float]:
    """Scales the weights in place, population by population, until each has the wanted activity on the data.

    Incoming and recurrent weights of a population are multiplied by one gain, found by bisection on its logarithm:
    activity rises with the gain, in expectation. Earlier populations are finished first and their output is kept, so
    one trial costs one pass through one population. An LI readout is scaled so that its potentials, over all steps,
    samples and neurons, have standard deviation `readout_std`; the bias is not changed.

    Args:
        model: a `sparsesnn.Model` of either backend, or a network over several ranks, which must then call this together,
            with the same data.
        batches: data to measure on; all of it is kept in memory, so give a few batches.
        target: spikes per neuron and step, above 0 and below 1, for all spiking populations; or a dict for named ones,
            while the others keep their weights.
        tolerance: allowed relative distance from the target.
        max_passes: most passes through one population; then the closest gain is used, with a warning.
        mean_shift: before scaling, adds this many standard deviations to every incoming (not recurrent) weight. Above
            0 it gives the neurons a common drive, so that fewer of them stay silent.
        readout_std: None does not change the readout.

    Returns: the activity reached, per spiking population.
    Errors: `DescriptionError` if there is no data, a population receives no spikes, its weights are all zero, or no
    gain reaches the target; `NumericError` for weights that are NaN or infinite. Warns if the activity jumps over
    the target. After an error, populations before the named one are already scaled.
    Source: Mishkin & Matas 2016 (LSUV); Rossbroich, Gygax, Zenke 2022 (fluctuation-driven initialization).
    """
    network = model.network
    data = list(batches)
    if not data or not any(batch.n_samples and batch.n_steps for batch in data):
        raise DescriptionError(f"init_activity: {len(data)} batches without a sample or step; give data to measure on")
    spiking = [name for name, p in network.populations.items() if fires(p)]
    targets = dict(target) if isinstance(target, Mapping) else dict.fromkeys(spiking, target)
    for name, value in targets.items():
        if name not in spiking:
            raise DescriptionError(f"init_activity: {name!r} is not a spiking population; spiking ones: {spiking}")
        if not isinstance(plain(value), (int, float)) or not 0 < value < 1:
            raise DescriptionError(f"init_activity: target of {name!r} is {value!r}; allowed: above 0, below 1")
    reached: dict[str, float] = {}
    first: list[LayerOutput] = [model.readable(x) for x in data]
    outputs: dict[str, list[LayerOutput]] = {network.inputs[0]: first}
    for name, layer in model.layers.items():
        sources = [outputs[c.pre] for c in network.senders(name)]
        inputs = list(zip(*sources, strict=True))
        reads = is_readout(layer.population)
        # pooling alone has no gain; a rank without neurons of a population still takes part
        scalable = any(layer.has_weights(c) for c in layer.senders)
        if scalable and (name in targets or (reads and readout_std is not None)):
            layer.check_plain(f"init_activity: {name}")
            _check_input(name, layer, sources)
            if mean_shift:
                for c, weight in zip(layer.senders, layer.sender_weights, strict=True):
                    if layer.has_weights(c):
                        weight.add_(mean_shift * _spread(layer, c, weight))
        if not scalable:
            pass
        elif reads and readout_std is not None:
            _scale_readout(name, layer, inputs, readout_std)
        elif name in targets:
            _bisect(name, layer, inputs, targets[name], tolerance, max_passes)
        outputs[name] = [layer(x)[0] for x in inputs]
        if not reads:
            reached[name] = _activity(outputs[name])
    return reached


def _bisect(
    name: str,
    layer: Any,
    inputs: Sequence[tuple[LayerOutput, ...]],
    target: float,
    tolerance: float,
    max_passes: int,
) -> None:
    """Sets the layer's gain to the one whose activity is closest to the target."""
    weights = layer.weights
    originals = [weight.clone() for weight in weights]

    def activity(log_gain: float) -> float:
        _set(weights, originals, 2.0**log_gain)
        return _activity([layer(x)[0] for x in inputs])

    limit = math.log2(MAX_GAIN)
    low, high = -limit, limit
    log_gain, stride = 0.0, 1.0
    tried: list[tuple[float, float, float]] = []  # distance, log gain, activity
    bounded = {"below": False, "above": False}
    for _ in range(max_passes):
        reached = activity(log_gain)
        tried.append((abs(reached - target), log_gain, reached))
        if abs(reached - target) <= tolerance * target:
            return
        if reached < target:
            low, bounded["below"] = log_gain, True
        else:
            high, bounded["above"] = log_gain, True
        if all(bounded.values()):
            log_gain = (low + high) / 2
        elif abs(log_gain) >= limit:
            break
        else:  # bounded on one side only so far: double the stride
            log_gain = min(max(log_gain + (stride if bounded["below"] else -stride), -limit), limit)
            stride *= 2
    _, best, reached = min(tried)
    if not all(bounded.values()):
        _set(weights, originals, 1.0)
        _, gains, activities = zip(*tried, strict=True)
        raise DescriptionError(
            f"init_activity: {name!r} should reach activity {target:g}, but gains from {2 ** min(gains):g} to "
            f"{2 ** max(gains):g} give {min(activities):g} to {max(activities):g}; change the target, its threshold, "
            "bias or capacity, or try mean_shift above 0"
        )
    _set(weights, originals, 2.0**best)
    warnings.warn(
        f"init_activity: {name!r} reached activity {reached:g}, not {target:g} ± {tolerance:.0%}, in {len(tried)} "
        "passes: it jumps over the target; give more data, or a wider tolerance",
        UserWarning,
        stacklevel=3,
    )


def _scale_readout(name: str, layer: Any, inputs: Sequence[tuple[LayerOutput, ...]], wanted: float) -> None:
    """Potentials are linear in the weights, so one division is enough (up to the bias)."""
    std = _std([layer(x)[0] for x in inputs])
    if std == 0:
        raise DescriptionError(
            f"init_activity: potentials of {name!r} do not vary, so no gain gives them a standard deviation of "
            f"{wanted:g}; set other initial weights, or readout_std=None"
        )
    for weight in layer.weights:
        weight.mul_(wanted / std)


def _check_input(name: str, layer: Any, sources: Sequence[Sequence[LayerOutput]]) -> None:
    if not any(_activity(batches) for batches in sources):
        raise DescriptionError(
            f"init_activity: {name!r} receives no spikes in {len(sources[0])} batches, so no gain makes it fire; "
            "give data with spikes, or a target for the populations before it"
        )
    weights = list(zip(layer.senders, layer.sender_weights, strict=True))

    def anywhere(c: Incoming, found: Tensor) -> bool:
        return bool(layer.whole_neurons(torch.from_numpy(layer.per_receiver(c, found.cpu().numpy()))).any())

    if any(anywhere(c, ~weight.isfinite()) for c, weight in weights):
        raise NumericError(f"init_activity: weights into {name!r} hold NaN or infinity; set finite initial weights")
    if not any(anywhere(c, weight != 0) for c, weight in weights):
        raise DescriptionError(
            f"init_activity: weights into {name!r} are all zero; set initial weights that a gain can scale"
        )


def _spread(layer: Any, c: Incoming, weight: Tensor) -> float:
    """Standard deviation of a weight; first summed by neuron, as ranks that share the neurons do."""
    array = weight.detach().cpu().numpy()
    both = np.stack([layer.per_receiver(c, array), layer.squares_per_receiver(c.name, array)])
    mean, mean_square = layer.whole_neurons(torch.from_numpy(both)).numpy().sum(axis=1) / c.synapses.n_weights(
        c.n_pre, layer.population.n
    )
    return math.sqrt(max(0.0, mean_square - mean * mean))


def _set(weights: Sequence[Tensor], originals: Sequence[Tensor], gain: float) -> None:
    for weight, original in zip(weights, originals, strict=True):
        weight.copy_(original * gain)


def _activity(outputs: Sequence[LayerOutput]) -> float:
    """Spikes per neuron and step over all batches."""
    n_spikes = sum(float(x.n_spikes.sum()) if isinstance(x, SpikeBatch) else float(x.sum()) for x in outputs)
    size = sum(x.n_steps * x.n_samples * x.n_neurons if isinstance(x, SpikeBatch) else x.numel() for x in outputs)
    return n_spikes / max(1, size)


def _std(outputs: Sequence[LayerOutput]) -> float:
    """Standard deviation of the potentials of all batches."""
    potentials = torch.cat([x.flatten() for x in outputs if isinstance(x, Tensor)])
    return float(potentials.std(correction=0))
