"""The IPU program against the CPU engine on random networks.

    ./dev bench ipu-random 300              networks of seeds 0 to 299 on the emulated IPU
    ./dev bench ipu-random 1 --first 17     the network of seed 17 again

Each network is trained for 20 steps on both, from the same weights and on the same batches. The criterion: weights differ by
at most 1e-5 of the largest of their array. A network that fails it is checked again, step by step from *equal*
weights: lists must then be equal, and gradients must differ by rounding only. The two add in different orders (tiles
hold other neurons, see docs/ipu.md), so weights differ in their last bits from the first step on. How far that can grow
is determined by training the engine alone a few more times, with samples added one by one in another order, their gradients
off by a last bit, and with weights that are off by a last bit in each pass: if the engine deviates from itself by a
tenth of that or more, the network cannot distinguish the order of sums from an error. Everything else is a fault.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from ipu_cases import Case, random_case
from sparsesnn.engines.module import Model
from sparsesnn.errors import NumericError
from sparsesnn.ipu import IpuProgram, Optimizer
from sparsesnn.ipu.selftest import torch_optimizer
from sparsesnn.loss import activity_regularizer, decode
from sparsesnn.output import Output
from sparsesnn.partition.plan import Plan
from sparsesnn.spikes import SpikeBatch

#: largest difference of a weight after the last step, relative to the largest weight of its array
TOLERANCE = 1e-5
#: largest difference of gradients from equal weights, relative to the largest of their array and to the sum of absolute terms
GRADIENT_TOLERANCE = 2e-5
N_BATCHES = 20
VERDICTS = ("equal", "order of sums", "not finite", "fault")
#: learning rate of the program from which gradients are read: w - lr·g replaces w, so that g dominates
_PROBE_LR = 2.0**14


@dataclass(frozen=True)
class Finding:
    """The result of one network.

    Args:
        worst: difference of a weight after the last step, relative to the largest of its array.
        first_other_lists: the first batch with different lists; None: never.
        verdict: "equal" within the criterion; "order of sums" if the engine deviates from itself by a tenth of that or more;
            "not finite" if both diverge; "fault".
        worst_gradient: difference from equal weights, in the worst step; nan if not checked.
        control: how far the engine deviated from itself.
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
        more = f", gradients by {self.worst_gradient:.1e}, engine from itself {self.control:.1e}"
        text = f"seed {self.seed:5} {self.verdict:13} weights by {self.worst:.1e}, {lists}"
        return text + (more if self.verdict != "equal" else "") + "".join(f"; {n}" for n in self.notes)


class _Host:
    """The CPU engine with torch's optimizer.

    Args:
        weights_off: seed of last bits by which weights are off while gradients are computed; None: exact weights.
        samples_off: seed of the order in which gradients of samples are added, and of last bits by which they are off;
            None: all samples at once.
    """

    def __init__(self, case: Case, *, weights_off: int | None = None, samples_off: int | None = None) -> None:
        self.case = case
        self.model = initial_model(case)
        self.optimizer = torch_optimizer(self.model, case.optimizer)
        self._weights_off = None if weights_off is None else torch.Generator().manual_seed(weights_off)
        self._samples_off = None if samples_off is None else torch.Generator().manual_seed(samples_off)

    def step(self, spikes: SpikeBatch, labels: Tensor) -> Output:
        case = self.case
        output = self.gradients(spikes, labels)
        if case.optimizer.clip_norm:
            nn.utils.clip_grad_norm_(self.model.parameters(), case.optimizer.clip_norm)
        self.optimizer.step()
        return output

    def gradients(self, spikes: SpikeBatch, labels: Tensor) -> Output:
        """Computes gradients into `grad`, before clipping."""
        self.optimizer.zero_grad()
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
        """The scale of rounding: by parameter the sum over samples of the absolute gradient, as large as it would be if
        shares of classes were not almost equal to the targets."""
        case = self.case
        sums = [torch.zeros_like(p) for p in self.model.parameters()]
        wanted = (1 - case.label_smoothing) * functional.one_hot(
            labels, case.n_classes
        ) + case.label_smoothing / case.n_classes
        with self._weights_as_read():
            for b in range(spikes.n_samples):
                self.optimizer.zero_grad()
                output = self.model(spikes)
                shares = decode(output, case.decoding, case.n_classes)[b].detach().softmax(0)
                self._loss(output, labels, b).backward()
                left = float((shares - wanted[b]).abs().max())
                for total, p in zip(sums, self.model.parameters(), strict=True):
                    total += 0 if p.grad is None or not left else p.grad.abs() / left
        return sums

    def _loss(self, output: Output, labels: Tensor, sample: int | None = None) -> Tensor:
        """The loss of the batch, or a sample's part of it; the regularizer belongs to the first sample."""
        case = self.case
        logits = decode(output, case.decoding, case.n_classes)
        losses = functional.cross_entropy(logits, labels, label_smoothing=case.label_smoothing, reduction="none")
        loss = losses.mean() if sample is None else losses[sample] / len(labels)
        if case.regularizer is None or sample:
            return loss
        r = case.regularizer
        return loss + activity_regularizer(
            output,
            lower=r.lower or None,
            upper=r.upper or None,
            strength_lower=r.strength_lower,
            strength_upper=r.strength_upper,
        )

    @contextmanager
    def _weights_as_read(self) -> Iterator[None]:
        """Within the context, weights are halves, as the device reads them, or have other last bits."""
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
    """A model with weights large enough to make most populations fire."""
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


def _program(case: Case, model: Model, backend: str, optimizer: Optimizer, plan: Plan, checks: str) -> IpuProgram:
    return IpuProgram(
        plan,
        model,
        optimizer,
        decoding=case.decoding,
        n_classes=case.n_classes,
        label_smoothing=case.label_smoothing,
        regularizer=case.regularizer,
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
    """The largest difference of two models' weights, relative to the largest of its array."""
    worst = 0.0
    for x, y in zip(a.parameters(), b.parameters(), strict=True):
        if not bool(x.isfinite().all() and y.isfinite().all()):
            return math.inf
        worst = max(worst, float((x - y).detach().abs().max() / x.detach().abs().max().clamp_min(1e-30)))
    return worst


def run_case(case: Case, backend: str = "ipu-model", *, n_batches: int = N_BATCHES, checks: str = "first") -> Finding:
    """Trains on both, and if the results differ determines why."""
    host, device = _Host(case), initial_model(case)
    program = _program(case, device, backend, case.optimizer, case.plan, checks)
    first_other = None
    snapshots: list[list[Tensor]] = []
    for k in range(n_batches):
        spikes, labels = batch(case, k)
        before = [p.detach().clone() for p in host.model.parameters()]
        try:
            output = host.step(spikes, labels)
        except NumericError:  # weights have diverged
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
    """Whether weights are out of the device's range: halves end at 65,504."""
    half = case.plan.weight_dtype == "half"
    return not all(bool((p.half() if half and p.ndim == 2 else p).isfinite().all()) for p in model.parameters())


def _from_equal_weights(case: Case, backend: str, snapshots: list[list[Tensor]]) -> tuple[float, list[str]]:
    """Step by step with the engine's weights: the largest difference of a gradient, and notes on other differences."""
    host, device = _Host(case), initial_model(case)
    plan = replace(case.plan, optimizer="sgd")
    program = _program(case, device, backend, Optimizer("sgd", lr=_PROBE_LR), plan, "never")
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
    """The difference between the engine's gradient and the device's, computed from its change of weights, less its rounding."""
    if p.grad is None:
        return 0.0
    gradient = (before.double() - after.detach().double()) / _PROBE_LR
    rounding = float(before.abs().max()) * 2.0**-24 / _PROBE_LR
    return max(0.0, float((gradient - p.grad.double()).abs().max()) - rounding)


def _others(case: Case) -> Iterator[_Host]:
    """The engine with different roundings."""
    for seed in range(4):
        yield _Host(case, samples_off=seed)
    for seed in range(4):
        yield _Host(case, weights_off=seed)


def _control(case: Case, model: Model, n_batches: int, other: _Host) -> float:
    """How far the engine deviates from itself."""
    try:
        for k in range(n_batches):
            other.step(*batch(case, k))
    except NumericError:
        return math.inf
    return difference(model, other.model)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the networks of a range of seeds; 0 if none has a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("n", type=int, help="networks")
    parser.add_argument("--first", type=int, default=0, help="first seed (default: %(default)s)")
    parser.add_argument("--backend", default="ipu-model", help="ipu-model, sdk-model or ipu (default: %(default)s)")
    parser.add_argument("--checks", default="never", help="checks of the emulated machine (default: %(default)s)")
    parser.add_argument("--verbose", action="store_true", help="print every network")
    options = parser.parse_args(arguments)
    started, findings = time.perf_counter(), []
    for seed in range(options.first, options.first + options.n):
        case = random_case(seed)
        if options.verbose:
            print(case.describe(), flush=True)
        findings.append(run_case(case, options.backend, checks=options.checks))
        if options.verbose or findings[-1].verdict != "equal":
            print(findings[-1].line(), flush=True)
    verdicts = {v: sum(f.verdict == v for f in findings) for v in VERDICTS}
    print(
        f"{len(findings)} networks in {time.perf_counter() - started:.0f} s:",
        ", ".join(f"{n} {v}" for v, n in verdicts.items()),
    )
    return int(verdicts["fault"] > 0)


if __name__ == "__main__":
    sys.exit(main())
