"""The IPU program against the CPU engine on random networks.

    python -m sparsesnn.launch.ipu_random 300              networks of seeds 0 to 299 on the emulated IPU
    python -m sparsesnn.launch.ipu_random 1 --first 17     the network of seed 17 again

Each network is trained for 20 steps on both, from the same weights and on the same batches. The bar: weights differ by
at most 1e-5 of the largest of their array. A network that misses it is looked at again, step by step from *equal*
weights: lists must then be equal, and gradients must differ by rounding only. The two add in different orders (tiles
hold other neurons, see docs/ipu.md), so weights differ in their last bits from the first step on. What that can grow to
is found by training the engine alone a few times more, with samples added up one by one in another order, their gradients
off by a last bit, and with weights that are off by a last bit in each pass: where the engine departs from itself by a
tenth as much or more, the network does not tell the order of sums from an error. Everything else is a fault.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsesnn.errors import ConfigError, NumericError, PlanError
from sparsesnn.ipu import IpuProgram, Optimiser, Regulariser
from sparsesnn.launch.ipu_selftest import torch_optimiser
from sparsesnn.layers import LI, LIF, CubaLIF, Input
from sparsesnn.loss import activity_regulariser, decode
from sparsesnn.module import Model, Output
from sparsesnn.network import AnyPopulation, Connection, Network
from sparsesnn.partition.layout import crossing, place_helpers
from sparsesnn.partition.memory import tile_totals
from sparsesnn.partition.plan import Plan, Shard
from sparsesnn.partition.planner import make_plan
from sparsesnn.partition.target import parse_target
from sparsesnn.partition.vertices import loops_rounds
from sparsesnn.spikes import SpikeBatch
from sparsesnn.surrogate import Surrogate

#: largest difference of a weight after the last step, relative to the largest weight of its array
TOLERANCE = 1e-5
#: of gradients from equal weights, relative to the largest of their array and to what was added up
GRADIENT_TOLERANCE = 2e-5
N_BATCHES = 20
VERDICTS = ("equal", "order of sums", "not finite", "fault")
#: learning rate of the program that gradients are read from: w - lr·g in place of w, so that g outweighs w
_PROBE_LR = 2.0**14


@dataclass(frozen=True)
class Case:
    """A network with all that is asked of the program.

    Args:
        seed: that it was made from.
        plan: with `plan.n_samples` samples a replica.
        n_classes: of the output's neurons, or groups of them.
        rate: of the input's spikes, by neuron and step.
        scale: factor on the initial weights.
    """

    seed: int
    plan: Plan
    decoding: str
    n_classes: int
    optimiser: Optimiser
    label_smoothing: float
    regulariser: Regulariser | None
    rate: float
    scale: float

    @property
    def network(self) -> Network:
        return self.plan.network

    @property
    def n_samples(self) -> int:
        return self.plan.replicas * self.plan.n_samples

    def describe(self) -> str:
        o, p = self.optimiser, self.plan
        return (
            f"seed {self.seed}: {self.network.populations} {self.network.connections} on {p.target.name} ({p.strategy}), "
            f"B={p.n_samples}x{p.replicas} T={p.n_steps}, {p.weight_dtype}, keep every {p.keep_every}, {self.decoding} of {self.n_classes}, {o}, "
            f"smoothing {self.label_smoothing}, {self.regulariser}, rate {self.rate:.2f}, scale {self.scale:.2f}"
        )


@dataclass(frozen=True)
class Finding:
    """How one network ended.

    Args:
        worst: difference of a weight after the last step, relative to the largest of its array.
        first_other_lists: the batch from which on lists differ; None: they never did.
        verdict: "equal" within the bar; "order of sums" where the engine departs from itself a tenth as far or more;
            "not finite" where both diverge; "fault".
        worst_gradient: from equal weights, in the worst of all steps; nan where that was not asked.
        control: how far the engine departed from itself.
    """

    seed: int
    worst: float
    first_other_lists: int | None
    verdict: str
    worst_gradient: float = math.nan
    control: float = math.nan
    notes: tuple[str, ...] = field(default=())

    def line(self) -> str:
        lists = "lists equal" if self.first_other_lists is None else f"lists differ from batch {self.first_other_lists}"
        more = f", gradients by {self.worst_gradient:.1e}, engine by itself {self.control:.1e}"
        text = f"seed {self.seed:5} {self.verdict:13} weights by {self.worst:.1e}, {lists}"
        return text + (more if self.verdict != "equal" else "") + "".join(f"; {n}" for n in self.notes)


# ---- random networks -----------------------------------------------------------------------------------------------


def random_case(seed: int) -> Case:
    """The case of a seed."""
    r = random.Random(seed)
    while True:
        try:
            return _draw(r, seed)
        except (PlanError, ConfigError):  # does not fit, or crosses devices without a delay: draw again
            continue


def _draw(r: random.Random, seed: int) -> Case:
    counts = r.random() < 0.25
    n_classes = r.randint(2, 5)
    per_class = r.choice((1, 1, 2, 3))
    network = _network(r, n_classes * per_class, counts)
    n_samples, n_steps = r.choice((1, 2, 5, 7, 8, 11, 13)), r.choice((1, 2, 5, 9, 12))
    replicas = r.choice((1, 1, 1, 1, 2, 3))
    kind = r.choice(("sgd", "adam", "adam", "adamw"))
    devices = r.choice((1, 1, 2, 3))
    tiles = r.choice((2, 5, 16, 16, 64))
    plan = make_plan(
        network,
        n_samples,
        n_steps,
        parse_target(f"{r.choice(('ipu-mk2', 'ipu-bow'))}:{devices}x{tiles}"),
        max_activity=1.0,
        optimizer="adam" if kind == "adamw" else kind,
        weight_dtype=r.choice(("float32",) * 4 + ("half",)),
        strategy=r.choice(("search", "even", "bytes", "work")),
        layout=r.choice(("auto", "contiguous", "split", "shared")) if devices > 1 else "auto",
    )
    if r.random() < 0.5:
        plan = with_shards_of(plan, r.choice((1, 3, 5))) or plan
    optimiser = Optimiser(
        kind,
        lr=r.choice((1e-3, 1e-2)) if kind != "sgd" else r.choice((0.02, 0.1)),
        weight_decay=r.choice((0.0, 0.0, 0.01, 0.1)),
        momentum=r.choice((0.0, 0.9)) if kind == "sgd" else 0.0,
        clip_norm=r.choice((0.0, 0.0, 0.5)),
    )
    bounds = r.choice(((0.0, 0.0),) * 3 + ((0.3, 0.0), (0.0, 0.1), (0.3, 0.1)))
    regulariser = Regulariser(*bounds, 20.0, 10.0) if any(bounds) else None
    plan = replace(plan, replicas=replicas, regularises=regulariser is not None)
    decoding = "count" if counts else r.choice(("mean", "sum", "last", "max"))
    case = Case(
        seed,
        plan,
        decoding,
        n_classes,
        optimiser,
        r.choice((0.0, 0.1)),
        regulariser,
        rate=r.uniform(0.05, 0.4),
        scale=r.uniform(1.0, 4.0),
    )
    kept = replace(plan, keep_every=r.choice((1, 1, 2, 3)))
    return replace(case, plan=kept) if kept.keep_every < n_steps and not loops_rounds(kept) else case


def _network(r: random.Random, n_out: int, counts: bool) -> Network:
    n_hidden = r.randint(0 if counts else 1, 3)
    names = [f"hidden{k}" for k in range(n_hidden)]
    populations: dict[str, AnyPopulation] = {"input": Input(r.randint(3, 23))}
    for name in names:
        populations[name] = _population(r, r.randint(1, 40), may_drop=True)
    populations["output"] = _population(r, n_out, may_drop=False) if counts else _readout(r, n_out)
    chain = ["input", *names, "output"]
    joined = [(chain[k], chain[k + 1]) for k in range(len(chain) - 1)]
    for pre in range(len(chain) - 2):
        for post in range(pre + 2, len(chain)):
            if r.random() < 0.2:
                joined.append((chain[pre], chain[post]))
    delays = r.choice(((0,), (1,), (0, 1), (0, 1, 2, 3)))
    return Network(populations, tuple(Connection(pre, post, r.choice(delays)) for pre, post in joined))


def _per_neuron(r: random.Random, n: int, low: float, high: float) -> float | tuple[float, ...]:
    if r.random() < 0.5:
        return r.uniform(low, high)
    return tuple(r.uniform(low, high) for _ in range(n))


def _population(r: random.Random, n: int, *, may_drop: bool) -> LIF | CubaLIF:
    reset = r.choice(("subtract", "subtract", "zero", "none"))
    limited = may_drop and r.random() < 0.25
    kind = r.choice(("fast_sigmoid", "fast_sigmoid", "straight_through", "sigmoid", "atan", "triangle", "boxcar"))
    learns = r.random() < 0.3
    common = {
        "beta": _per_neuron(r, n, 0.5, 1.0),
        "threshold": _per_neuron(r, n, 0.5, 1.5),
        "grad_threshold": r.choice((-math.inf, 0.0, 0.3, 0.5)),
        "reset": reset,
        "reset_decays": reset == "subtract" and r.random() < 0.3,
        "detach_reset": r.random() < 0.6,
        "surrogate": Surrogate(kind, 1.0 if kind == "straight_through" else r.uniform(1.0, 8.0)),
        "recurrent": r.random() < 0.4,
        "bias": r.random() < 0.4,
        "gain": r.choice((1.0, 1.0, 0.7)),
        "capacity": r.randint(1, n) if limited else None,
        "activity": "fixed" if limited and r.random() < 0.4 else "natural",
        "learn_beta": learns and r.random() < 0.7,
        "learn_threshold": learns and r.random() < 0.7,
    }
    if r.random() < 0.4:
        return CubaLIF(n, alpha=_per_neuron(r, n, 0.3, 0.95), learn_alpha=learns and r.random() < 0.7, **common)  # type: ignore[arg-type]
    return LIF(n, **common)  # type: ignore[arg-type]


def _readout(r: random.Random, n: int) -> LI:
    return LI(
        n,
        beta=_per_neuron(r, n, 0.5, 1.0),
        learn_beta=r.random() < 0.3,
        bias=r.random() < 0.4,
        gain=r.choice((1.0, 2.0)),
    )


def with_shards_of(plan: Plan, n: int) -> Plan | None:
    """The same plan with `n` neurons a shard, one shard a tile; None where it has too few tiles, or may not cross
    devices."""
    tile, tiles = 0, plan.target.tiles
    populations = dict(plan.populations)
    for name, p in plan.populations.items():
        if not p.shards:
            continue
        firsts = range(0, p.n, n)
        shards = (Shard(tile + k, first, min(n, p.n - first), (tile + k) // tiles) for k, first in enumerate(firsts))
        populations[name] = replace(p, shards=tuple(shards))
        tile += len(firsts)
    if tile > plan.target.n_tiles:
        return None
    cut = place_helpers(replace(plan, populations=populations, strategy=f"{n} neurons a tile"))
    return cut if crossing(cut) is None and tile_totals(cut).max() <= plan.target.bytes_per_tile else None


# ---- training on both ----------------------------------------------------------------------------------------------


class _Host:
    """The CPU engine with torch's optimiser.

    Args:
        weights_off: seed of last bits by which weights are off while gradients are computed; None: they are not.
        samples_off: seed of the order in which gradients of samples are added up, and of last bits by which they are off;
            None: all samples at once.
    """

    def __init__(self, case: Case, *, weights_off: int | None = None, samples_off: int | None = None) -> None:
        self.case = case
        self.model = initial_model(case)
        self.optimiser = torch_optimiser(self.model, case.optimiser)
        self._weights_off = None if weights_off is None else torch.Generator().manual_seed(weights_off)
        self._samples_off = None if samples_off is None else torch.Generator().manual_seed(samples_off)

    def step(self, spikes: SpikeBatch, labels: Tensor) -> Output:
        case = self.case
        output = self.gradients(spikes, labels)
        if case.optimiser.clip_norm:
            nn.utils.clip_grad_norm_(self.model.parameters(), case.optimiser.clip_norm)
        self.optimiser.step()
        return output

    def gradients(self, spikes: SpikeBatch, labels: Tensor) -> Output:
        """Leaves them in `grad`, before clipping."""
        self.optimiser.zero_grad()
        with self._weights_as_read():
            if self._samples_off is None:
                output: Output = self.model(spikes)
                self._loss(output, labels).backward()
                return output
            for b in torch.randperm(spikes.n_samples, generator=self._samples_off).tolist():
                output = self.model(spikes)
                loss = self._loss(output, labels, b) * (1 + _last_bits((), self._samples_off))
                loss.backward()
        return output

    def terms(self, spikes: SpikeBatch, labels: Tensor) -> list[Tensor]:
        """What rounding goes by: by parameter the sum over samples of the absolute gradient, as large as it would be if
        shares of classes were not almost those that are wanted."""
        case = self.case
        sums = [torch.zeros_like(p) for p in self.model.parameters()]
        wanted = (1 - case.label_smoothing) * functional.one_hot(
            labels, case.n_classes
        ) + case.label_smoothing / case.n_classes
        with self._weights_as_read():
            for b in range(spikes.n_samples):
                self.optimiser.zero_grad()
                output = self.model(spikes)
                shares = decode(output, case.decoding, case.n_classes)[b].detach().softmax(0)
                self._loss(output, labels, b).backward()
                left = float((shares - wanted[b]).abs().max())
                for total, p in zip(sums, self.model.parameters(), strict=True):
                    total += 0 if p.grad is None or not left else p.grad.abs() / left
        return sums

    def _loss(self, output: Output, labels: Tensor, sample: int | None = None) -> Tensor:
        """Of the batch, or a sample's part of it; what regularises belongs to the first sample."""
        case = self.case
        logits = decode(output, case.decoding, case.n_classes)
        losses = functional.cross_entropy(logits, labels, label_smoothing=case.label_smoothing, reduction="none")
        loss = losses.mean() if sample is None else losses[sample] / len(labels)
        if case.regulariser is None or sample:
            return loss
        r = case.regulariser
        return loss + activity_regulariser(
            output,
            lower=r.lower or None,
            upper=r.upper or None,
            strength_lower=r.strength_lower,
            strength_upper=r.strength_upper,
        )

    @contextmanager
    def _weights_as_read(self) -> Iterator[None]:
        """For a while weights are halves, as the device reads them, or last bits are other ones."""
        kept = [(p, p.detach().clone()) for p in self.model.parameters()]
        with torch.no_grad():
            for p, _ in kept:
                if self._weights_off is not None:
                    p.mul_(1 + _last_bits(p.shape, self._weights_off))
                if self.case.plan.weight_dtype == "half" and p.ndim == 2:
                    p.copy_(p.half().float())
        yield
        with torch.no_grad():
            for p, value in kept:
                p.copy_(value)


def _last_bits(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    return 2.0**-23 * torch.randint(-1, 2, tuple(shape), generator=generator)


def initial_model(case: Case) -> Model:
    """Weights large enough to make most populations fire."""
    model = Model(case.network, seed=case.seed)
    generator = torch.Generator().manual_seed(case.seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                parameter.mul_(case.scale).add_(0.03 * case.scale)
            elif name.endswith("bias"):
                parameter.uniform_(-0.05, 0.1, generator=generator)
    return model


def batch(case: Case, k: int) -> tuple[SpikeBatch, Tensor]:
    """The k-th batch; every third lacks a sample, if there are several."""
    generator = torch.Generator().manual_seed(1000 * case.seed + k)
    n = max(1, case.n_samples - (k % 3 == 2))
    n_input = case.network.populations[case.network.inputs[0]].n
    spikes = torch.rand(case.plan.n_steps, n, n_input, generator=generator) < case.rate
    return SpikeBatch.from_dense(spikes.float()), torch.randint(0, case.n_classes, (n,), generator=generator)


def _program(case: Case, model: Model, backend: str, optimiser: Optimiser, plan: Plan, checks: str) -> IpuProgram:
    return IpuProgram(
        plan,
        model,
        optimiser,
        decoding=case.decoding,
        n_classes=case.n_classes,
        label_smoothing=case.label_smoothing,
        regulariser=case.regulariser,
        backend=backend,
        checks=checks,
    )


def _same_lists(found: dict[str, SpikeBatch], output: Output) -> bool:
    for name, lists in found.items():
        wanted = output.spikes[name]
        assert isinstance(wanted, SpikeBatch)
        if not (torch.equal(lists.ids, wanted.ids) and torch.equal(lists.n_spikes, wanted.n_spikes)):
            return False
        if wanted.dropped is not None and lists.dropped is not None and not torch.equal(lists.dropped, wanted.dropped):
            return False
    return True


def difference(a: Model, b: Model) -> float:
    """The largest of two models' weights, relative to the largest of its array."""
    worst = 0.0
    for x, y in zip(a.parameters(), b.parameters(), strict=True):
        if not bool(x.isfinite().all() and y.isfinite().all()):
            return math.inf
        worst = max(worst, float((x - y).detach().abs().max() / x.detach().abs().max().clamp_min(1e-30)))
    return worst


def run_case(case: Case, backend: str = "ipu-model", *, n_batches: int = N_BATCHES, checks: str = "first") -> Finding:
    """Trains on both, and where they end apart finds out why."""
    host, device = _Host(case), initial_model(case)
    program = _program(case, device, backend, case.optimiser, case.plan, checks)
    first_other = None
    snapshots: list[list[Tensor]] = []
    for k in range(n_batches):
        spikes, labels = batch(case, k)
        before = [p.detach().clone() for p in host.model.parameters()]
        try:
            output = host.step(spikes, labels)
        except NumericError:  # weights have grown beyond all bounds
            program.save()
            both = _is_lost(case, host.model) and _is_lost(case, device)
            return Finding(case.seed, math.nan, first_other, "not finite" if both else "fault", notes=(f"batch {k}",))
        snapshots.append(before)
        program.train_step(spikes, labels)
        if first_other is None and not _same_lists(program.lists(spikes.n_samples), output):
            first_other = k
    program.save()
    worst = difference(host.model, device)
    if worst <= TOLERANCE:
        return Finding(case.seed, worst, first_other, "equal")
    gradient, notes = _from_equal_weights(case, backend, snapshots)
    control = max(_control(case, host.model, n_batches, other) for other in _others(case))
    sensitive = control > 0.1 * worst
    verdict = "order of sums" if sensitive and not notes else "fault"
    return Finding(case.seed, worst, first_other, verdict, gradient, control, tuple(notes))


def _is_lost(case: Case, model: Model) -> bool:
    """Whether weights are beyond what is read of them: halves end at 65,504."""
    half = case.plan.weight_dtype == "half"
    return not all(bool((p.half() if half and p.ndim == 2 else p).isfinite().all()) for p in model.parameters())


def _from_equal_weights(case: Case, backend: str, snapshots: list[list[Tensor]]) -> tuple[float, list[str]]:
    """Step by step with the engine's weights: the largest difference of a gradient, and what else is not equal."""
    host, device = _Host(case), initial_model(case)
    plan = replace(case.plan, optimizer="sgd")
    program = _program(case, device, backend, Optimiser("sgd", lr=_PROBE_LR), plan, "never")
    worst, notes = 0.0, []
    for k, values in enumerate(snapshots):
        with torch.no_grad():
            for model in (host.model, device):
                for p, value in zip(model.parameters(), values, strict=True):
                    p.copy_(value)
        spikes, labels = batch(case, k)
        output = host.gradients(spikes, labels)
        program.load()
        program.train_step(spikes, labels)
        if not _same_lists(program.lists(spikes.n_samples), output):
            notes.append(f"other lists from equal weights in batch {k}")
        program.save()
        apart = [
            _apart(p, value, q)
            for p, value, q in zip(host.model.parameters(), values, device.parameters(), strict=True)
        ]
        sizes = [0.0 if p.grad is None else float(p.grad.abs().max()) for p in host.model.parameters()]
        if any(a > GRADIENT_TOLERANCE * size for a, size in zip(apart, sizes, strict=True)):
            sizes = [float(x.max()) for x in host.terms(spikes, labels)]
        for (name, p), a, size in zip(host.model.named_parameters(), apart, sizes, strict=True):
            share = (
                a / (size if p.ndim else 5 * size) if a else 0.0
            )  # one value for all neurons: signs differ within a sample
            worst = max(worst, share)
            if share > GRADIENT_TOLERANCE:
                notes.append(f"gradient of {name} off by {share:.1e} in batch {k}")
    return worst, notes


def _apart(p: Tensor, before: Tensor, after: Tensor) -> float:
    """How far the gradient that brought the device from weights to others is from the engine's, but for its rounding."""
    if p.grad is None:
        return 0.0
    found = (before.double() - after.detach().double()) / _PROBE_LR
    rounding = float(before.abs().max()) * 2.0**-24 / _PROBE_LR
    return max(0.0, float((found - p.grad.double()).abs().max()) - rounding)


def _others(case: Case) -> Iterator[_Host]:
    """The engine with other roundings."""
    for seed in range(4):
        yield _Host(case, samples_off=seed)
    for seed in range(4):
        yield _Host(case, weights_off=seed)


def _control(case: Case, model: Model, n_batches: int, other: _Host) -> float:
    """How far the engine departs from itself."""
    try:
        for k in range(n_batches):
            other.step(*batch(case, k))
    except NumericError:
        return math.inf
    return difference(model, other.model)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the networks of a range of seeds; 0 where none has a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("n", type=int, help="networks")
    parser.add_argument("--first", type=int, default=0, help="seed of the first one (default: %(default)s)")
    parser.add_argument("--backend", default="ipu-model", help="ipu-model, sdk-model or ipu (default: %(default)s)")
    parser.add_argument("--checks", default="never", help="of the emulated machine (default: %(default)s)")
    parser.add_argument("--verbose", action="store_true", help="say what each network is")
    options = parser.parse_args(arguments)
    started, found = time.perf_counter(), []
    for seed in range(options.first, options.first + options.n):
        case = random_case(seed)
        if options.verbose:
            print(case.describe(), flush=True)
        found.append(run_case(case, options.backend, checks=options.checks))
        if options.verbose or found[-1].verdict != "equal":
            print(found[-1].line(), flush=True)
    verdicts = {v: sum(f.verdict == v for f in found) for v in VERDICTS}
    print(
        f"{len(found)} networks in {time.perf_counter() - started:.0f} s:",
        ", ".join(f"{n} {v}" for v, n in verdicts.items()),
    )
    return int(verdicts["fault"] > 0)


if __name__ == "__main__":
    sys.exit(main())
