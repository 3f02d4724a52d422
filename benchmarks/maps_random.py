"""Random networks of convolutions and pools on the CPU engine against PyTorch's convolution and the reference.

    ./dev bench maps-random 300               networks of seeds 0 to 299
    ./dev bench maps-random 1 --first 17      the network of seed 17 again

Three runs of each network, from the same weights on the same spikes: the engine in float32, on 1 and 3 threads and two
instruction sets, which must agree bit for bit; `dense` in float32, step by step, PyTorch's convolution under autograd; and
the reference in float64. Lists must be equal, and the gradients of every parameter and of the input's values differ by
at most 1e-5 of the largest of their array. A larger difference, but as far from float64 as PyTorch's, is the order of
sums; if a potential is so close to a threshold that float32 cannot decide, lists may differ: a tie. Everything else is
a fault, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsesnn import _core
from sparsesnn.delays import Delays
from sparsesnn.engines.module import Model
from sparsesnn.errors import DescriptionError
from sparsesnn.layers import LI, LIF, AdLIF, CubaLIF, Input, Resonator
from sparsesnn.layers.ad_lif import ORDERS
from sparsesnn.network import Connection, Network
from sparsesnn.output import Output
from sparsesnn.parameters import DELAYS
from sparsesnn.reference import Parameters, network_backward, network_forward, to_lists
from sparsesnn.spikes import SpikeBatch
from sparsesnn.surrogate import KINDS, Surrogate
from sparsesnn.synapses import Conv1d, Conv2d, Dense, Pool, Series, Sparse, Synapses

#: largest difference of gradients, relative to the largest of their array
TOLERANCE = 1e-5
#: the distance from a threshold within which float32 cannot decide on which side a potential is
TIE = 1e-5
VERDICTS = ("equal", "order of sums", "tie", "fault")
#: the most neurons of a population, because the reference is slow; a larger network is drawn again
MOST_NEURONS = 6000
CHANNELS = (1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 31, 33, 64, 65, 127, 130)


@dataclass(frozen=True)
class Case:
    """A network and its input.

    Args:
        rate: input spikes per neuron and step.
        graded: whether input spikes are counts of 1 to 3.
        scale: factor on the initial weights.
    """

    seed: int
    network: Network
    n_steps: int
    n_samples: int
    rate: float
    graded: bool
    scale: float

    def spikes(self) -> Tensor:
        g = torch.Generator().manual_seed(self.seed)
        n = self.network.populations[self.network.inputs[0]].n
        fired = (torch.rand(self.n_steps, self.n_samples, n, generator=g) < self.rate).float()
        return fired * torch.randint(1, 4, fired.shape, generator=g) if self.graded else fired

    def model(self, backend: str) -> Model:
        model = Model(
            self.network, backend=backend, seed=self.seed, dense_mode="step" if backend == "dense" else "auto"
        )
        with torch.no_grad():
            for name, p in model.named_parameters():
                if name.endswith(DELAYS):
                    p.add_(0.3)
                elif "->" in name:
                    p.mul_(self.scale)
                elif name.endswith("bias"):
                    p.copy_(torch.linspace(-0.05, 0.1, p.numel()))
        return model


@dataclass(frozen=True)
class Finding:
    """The result of one network: a verdict, the worst gradient's distance and name, the spikes of all populations."""

    seed: int
    verdict: str
    worst: float
    where: str
    n_spikes: int

    def line(self) -> str:
        return f"seed {self.seed:5} {self.verdict:13} {self.n_spikes:8,} spikes, worst {self.worst:.1e} {self.where}"


# ---- networks ----------------------------------------------------------------------------------------------------------


def random_case(seed: int) -> Case:
    """The case of a seed."""
    r = random.Random(seed)
    while True:
        try:
            network = _network(r)
        except DescriptionError:  # maps become empty, or groups do not divide: draw again
            continue
        if max(p.n for p in network.populations.values()) <= MOST_NEURONS:
            break
    n_steps, n_samples = r.choice(((1, 1), (5, 3), (9, 2), (12, 9), (20, 4), (7, 17), (140, 2)))
    rate = r.choice((0.003, 0.03, 0.1, 0.3))
    return Case(seed, network, n_steps, n_samples, rate, r.random() < 0.3, r.uniform(1.0, 5.0))


def _network(r: random.Random) -> Network:
    one_axis = r.random() < 0.25
    shape = (r.randint(1, 40),) if one_axis else (r.randint(1, 14), r.randint(1, 14))
    first = Input(shape=(*shape, r.choice(CHANNELS[:9])), channels_first=r.random() < 0.5)
    populations: dict[str, Any] = {"input": first}
    connections: list[Connection] = []
    before, n_maps = "input", r.randint(1, 3)
    side = r.random() < 0.3
    if side:
        populations["side"] = _neuron(r, r.randint(1, 20))
        connections.append(Connection("input", "side", r.choice((0, 0, 2))))
    for k in range(n_maps):
        name = f"maps{k}"
        populations[name] = _neuron(r)
        kind = _kind(r, one_axis)
        connections.append(Connection(before, name, r.choice((0, 0, 1, 3)), kind))
        if r.random() < 0.15:
            connections.append(Connection(before, name, 5, kind))
        if side and r.random() < 0.4:
            connections.append(Connection("side", name, r.choice((0, 1)), r.choice((Dense(), Sparse(0.3, seed=k)))))
        if r.random() < 0.2:
            delays = Delays(3, learn=r.random() < 0.5, seed=1) if r.random() < 0.3 else None
            connections.append(Connection(name, name, r.randint(1, 3), r.choice((Dense(), Sparse(0.1))), delays))
        before = name
    last = r.choice(("dense", "dense", "maps", "fires"))
    populations["out"] = _neuron(r, 5) if last == "fires" else LI(learn_beta=True) if last == "maps" else LI(4)
    kinds = [_pool(r, one_axis)] if r.random() < 0.4 else []
    end = _convolution(r, one_axis) if last == "maps" else Dense()
    connections.append(Connection(before, "out", r.choice((0, 2)), Series((*kinds, end)) if kinds else end))
    return Network(populations, tuple(connections))


def _neuron(r: random.Random, n: Any = None) -> Any:
    model = r.choice((LIF, LIF, LIF, CubaLIF, AdLIF, Resonator))
    threshold = r.choice((0.3, 0.5, 1.0))
    surrogate = r.choice(KINDS)
    options: dict[str, Any] = {
        "beta": r.choice((0.3, 0.8, 0.95)),
        "threshold": threshold,
        "grad_threshold": r.choice((float("-inf"), 0.3 * threshold, 0.9 * threshold, threshold)),
        "detach_reset": r.random() < 0.7,
        "bias": r.random() < 0.5,
        "gain": r.choice((1.0, 0.7)),
        "learn_beta": r.random() < 0.3,
        "learn_threshold": r.random() < 0.3,
        "surrogate": Surrogate(surrogate, 2.0) if surrogate != "straight_through" else Surrogate(surrogate),
        "capacity": r.randint(1, 20) if r.random() < 0.1 else None,
    }
    if model is Resonator:
        options |= {"turn": 0.3, "learn_turn": r.random() < 0.5}
    elif model is AdLIF:
        options |= {"order": r.choice(ORDERS), "q": 2.0, "rho": 0.9, "learn_a": r.random() < 0.5, "beta": 0.5}
        options["reset"] = "subtract" if options["order"] == "sparch" else r.choice(("zero", "subtract"))
    else:
        options["reset"] = r.choice(("subtract", "zero", "none"))
        options["reset_decays"] = options["reset"] == "subtract" and r.random() < 0.3
        if model is CubaLIF:
            options |= {"alpha": 0.7, "learn_alpha": r.random() < 0.5}
    return model(n, **options)


def _kind(r: random.Random, one_axis: bool) -> Synapses:
    """A convolution or a pool, or a convolution after pools."""
    pools = [_pool(r, one_axis) for _ in range(r.choice((0, 0, 0, 1, 1, 2)))]
    if len(pools) == 1 and r.random() < 0.3:
        return pools[0]
    end = _convolution(r, one_axis)
    return Series((*pools, end)) if pools else end


def _pair(r: random.Random, values: Sequence[int], one_axis: bool) -> Any:
    first = r.choice(values)
    return first if one_axis or r.random() < 0.6 else (first, r.choice(values))


def _convolution(r: random.Random, one_axis: bool) -> Conv2d:
    kernel = _pair(r, (1, 2, 3, 3, 4, 5), one_axis)
    stride, padding, dilation = (_pair(r, x, one_axis) for x in ((1, 1, 2, 3), (0, 0, 1, 2, 4), (1, 1, 2, 3)))
    kind = Conv1d if one_axis else Conv2d
    return kind(r.choice(CHANNELS), kernel, stride, padding, dilation, r.choice((1, 1, 1, 1, 2, 3, 5)))


def _pool(r: random.Random, one_axis: bool) -> Pool:
    size, stride = (_pair(r, (1, 2, 2, 3), one_axis) for _ in range(2))
    sides = [(1, x) if one_axis else x for x in (size, stride)]
    return Pool(r.choice(("sum", "average", "max")), sides[0], sides[1] if r.random() < 0.5 else None)


# ---- runs --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """Spikes by population [T, B, N] and gradients by name, as NumPy arrays."""

    spikes: dict[str, Any]
    gradients: dict[str, Any]


def _weights_of(output: Output) -> dict[str, Tensor]:
    """The factors of each population's values in the loss, [B, N], the same at each step."""
    values = {k: x for k, x in output.spikes.items() if k != "input"}
    shapes = {k: (x.n_samples, x.n_neurons) if isinstance(x, SpikeBatch) else x.shape[1:] for k, x in values.items()}
    if output.potentials is not None:
        shapes["out"] = output.potentials.shape[1:]
    g = torch.Generator().manual_seed(0)
    return {name: torch.randn(shapes[name], generator=g) for name in sorted(shapes)}


def _loss(output: Output) -> Tensor:
    total = torch.zeros(())
    for name, weight in _weights_of(output).items():
        fires = name != "out" or output.potentials is None
        total = total + ((output.counts(name) if fires else output.potentials.sum(0)) * weight).sum()  # type: ignore[union-attr]
    return total


def on_engine(case: Case) -> tuple[Run, Output, Model]:
    """The engine's run, on one thread with the base instructions. Errors: `AssertionError` if other settings give other bits."""
    runs: list[tuple[Run, Output, Model]] = []
    kept = _core.build_info()["isa"], _core.num_threads()
    isas = _core.build_info()["isa_supported"]
    try:
        for isa, threads in ((isas[0], 1), (isas[case.seed % len(isas)], 3), (isas[-1], 1)):
            _core.set_isa(isa)
            _core.set_num_threads(threads)
            run, output, model = _run(case, "cpu")
            runs.append((run, output, model))
            same = runs[0][0]
            for mine, theirs in ((run.spikes, same.spikes), (run.gradients, same.gradients)):
                for name, x in mine.items():
                    assert x.tobytes() == theirs[name].tobytes(), f"{name}: other bits on {isa} with {threads} threads"
    finally:
        _core.set_isa(kept[0])
        _core.set_num_threads(kept[1])
    return runs[0]


def _run(case: Case, backend: str) -> tuple[Run, Output, Model]:
    model, x = case.model(backend), case.spikes().requires_grad_()
    output = model(SpikeBatch.from_dense(x, gradient="all", graded=case.graded))
    if (loss := _loss(output)).requires_grad:
        loss.backward()
    gradients = {name: p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}
    d_input = torch.zeros_like(x.detach()) if x.grad is None else x.grad  # None: all spikes arrive too late
    gradients["input"] = d_input.numpy()
    spikes = {k: s.to_dense() if isinstance(s, SpikeBatch) else s for k, s in output.spikes.items() if k != "input"}
    return Run({k: s.detach().numpy() for k, s in spikes.items()}, gradients), output, model


def on_reference(case: Case, model: Any, output: Any) -> tuple[Run, float, bool]:
    """The reference's run in float64; the smallest distance of a potential from a threshold; whether all lists equal the engine's."""
    network, spikes = case.network, case.spikes().double().numpy()
    parameters = {k: Parameters.from_layer(layer) for k, layer in model.layers.items()}
    records = network_forward(network, parameters, spikes, seed=case.seed, training_step=1)
    shape = spikes.shape[:2]
    d = {k: np.broadcast_to(w.double().numpy(), (shape[0], *w.shape)) for k, w in _weights_of(output).items()}
    found = network_backward(network, parameters, records, d)
    gradients: dict[str, Any] = {}
    d_input, close, equal = np.zeros(spikes.shape), np.inf, True
    for name, layer in model.layers.items():
        g, start = found[name], f"layers.{name}."
        for c, d_weight in zip((*layer.senders, *layer.loops), (*g.weights, *g.loops), strict=True):
            if layer.columns(c) is not None:
                d_weight = d_weight.reshape(-1)[layer.places(c).numpy()]
            gradients[start + c.name] = d_weight
        gradients |= {f"{start}{k}": v for k, v in g.neuron.items()} | {f"{start}bias": g.bias}
        gradients |= {f"{start}{layer.loops[int(str(k)[5:])].name}{DELAYS}": v for k, v in g.axonal.items()}
        for c, d_values in zip(network.senders(name), g.inputs, strict=True):
            if c.pre == "input":
                d_input += d_values
        if (lists := output.spikes.get(name)) is None:
            continue
        p, v = parameters[name], records[name].v[:-1]
        edges = [p.neuron["threshold"], np.where(np.isfinite(p.grad_threshold), p.grad_threshold, 1e9)]
        if v.size:
            close = min(close, *(float((np.abs(v - x) / (np.abs(x) + np.abs(v).max())).min()) for x in edges))
        want = to_lists(records[name])
        equal &= bool(
            np.array_equal(want.ids, lists.ids.numpy())
            and np.array_equal(want.offsets, lists.offsets.numpy())
            and np.array_equal(want.n_spikes, lists.n_spikes.numpy())
        )
    gradients["input"] = d_input
    return Run({k: r.sent for k, r in records.items() if r.listed.size}, gradients), close, equal


def distance(mine: Any, theirs: Any) -> float:
    """The distance of two gradients, relative to the largest entry."""
    mine, theirs = np.asarray(mine, np.float64), np.asarray(theirs, np.float64)
    most = np.abs(theirs).max() if theirs.size else 0.0
    if not most:
        return float(np.abs(mine).max(initial=0))
    return float(np.abs(mine.reshape(theirs.shape) - theirs).max() / most)


def run_case(case: Case) -> Finding:
    """Runs a network on the engine, the reference and PyTorch."""
    try:
        ours, output, model = on_engine(case)
    except AssertionError as error:
        return Finding(case.seed, "fault", np.inf, str(error), 0)
    n_spikes = int(sum((s != 0).sum() for s in ours.spikes.values()))
    truth, close, equal = on_reference(case, model, output)
    if not equal:
        return Finding(
            case.seed, "tie" if close < TIE else "fault", np.inf, f"lists, {close:.0e} from a threshold", n_spikes
        )
    drops = any(getattr(p, "capacity", None) for p in case.network.populations.values())
    theirs = None if drops else _run(case, "dense")[0]
    if theirs and any(not np.array_equal(s, theirs.spikes[k]) for k, s in ours.spikes.items()):
        return Finding(case.seed, "tie" if close < TIE else "fault", np.inf, "spikes of PyTorch", n_spikes)
    far = {name: distance(g, truth.gradients[name]) for name, g in ours.gradients.items()}
    name = max(far, key=far.__getitem__)
    verdict = "equal"
    for k, off in far.items():
        if off > TOLERANCE:
            torch_off = distance(theirs.gradients[k], truth.gradients[k]) if theirs else 0.0
            verdict, name = ("order of sums", name) if off <= 4 * max(torch_off, TOLERANCE / 2) else ("fault", k)
            if verdict == "fault":
                break
    if theirs and verdict != "fault":
        missing = [k for k, g in ours.gradients.items() if distance(g, theirs.gradients.get(k, 0 * g)) > 1e-3]
        if missing:
            return Finding(case.seed, "fault", np.inf, f"not as PyTorch: {', '.join(missing)}", n_spikes)
    return Finding(case.seed, verdict, far[name], name, n_spikes)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("n", type=int, help="networks")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--verbose", action="store_true", help="print every network")
    options = parser.parse_args(arguments)
    counts: Counter[str] = Counter()
    began = time.monotonic()
    for seed in range(options.first, options.first + options.n):
        case = random_case(seed)
        finding = run_case(case)
        counts[finding.verdict] += 1
        if options.verbose or finding.verdict == "fault":
            print(finding.line(), flush=True)
        if finding.verdict == "fault":
            print(f"    {case}", flush=True)
    print(
        f"{options.n} networks in {time.monotonic() - began:.0f} s: {', '.join(f'{counts[v]} {v}' for v in VERDICTS)}"
    )
    return int(counts["fault"] > 0)


if __name__ == "__main__":
    sys.exit(main())
