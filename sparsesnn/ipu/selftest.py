"""Does the IPU program compute the right numbers here? For people with IPUs; the report is what we would like to see.

    python -m sparsesnn.ipu.selftest                     all machines that this installation has
    python -m sparsesnn.ipu.selftest --backend ipu --json report.json

Trains small networks that between them use every codelet, for a few steps, on each machine and on the CPU engine, and
compares lists, losses and weights. Machines: `ipu-model` (our emulated IPU, always there), `sdk-model` (the SDK's model)
and `ipu` (hardware), the latter two if the package was built with the Poplar SDK. The case "two replicas" needs two free
IPUs; all others need one.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import sparsesnn as ss
from sparsesnn import Model
from sparsesnn.errors import SparseSnnError
from sparsesnn.ipu import IpuProgram, Optimiser, Regulariser
from sparsesnn.ipu.backends import MACHINES, present_machines
from sparsesnn.loss import activity_regulariser, cross_entropy
from sparsesnn.network import Network
from sparsesnn.output import Output
from sparsesnn.partition.planner import make_plan
from sparsesnn.partition.target import parse_target

#: largest difference of a weight after the last step, relative to the largest weight of its array
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Case:
    """A network, how it is decoded, what updates it, and what else is asked of the program.

    Args:
        half: weights are read as halves.
        tiles: in use, in place of what the machine has: few make rounds share their vertices.
        replicas: on as many IPUs.
        n_classes: groups of the output's neurons; None: each is a class.
        keep_every: potentials of so many steps are kept at a time.
    """

    name: str
    network: Network
    decoding: str = "mean"
    optimiser: Optimiser = field(default_factory=Optimiser)
    regulariser: Regulariser | None = None
    half: bool = False
    tiles: int | None = None
    replicas: int = 1
    n_classes: int | None = None
    keep_every: int = 1


@dataclass(frozen=True)
class Finding:
    """How one case ended on one machine; `error` is empty where it ran."""

    case: str
    backend: str
    passed: bool
    lists_equal: bool
    worst_loss: float
    worst_weight: float
    seconds: float
    error: str = ""

    def line(self) -> str:
        what = self.error or (
            f"lists {'equal' if self.lists_equal else 'DIFFER'}, loss off by {self.worst_loss:.1e}, "
            f"weights by {self.worst_weight:.1e}, {self.seconds:.1f} s"
        )
        return f"{'ok  ' if self.passed else 'FAIL'} {self.backend:10} {self.case:34} {what}"


def cases() -> tuple[Case, ...]:
    """Together they use every codelet: models of one state and of two, readout and counts, sums in one and two stages, and
    what can be asked for besides."""
    lif: dict[str, Any] = {"grad_threshold": 0.3, "beta": 0.9}
    return (
        Case("feed-forward LIF, delay 0", Network.chain(ss.Input(11), ss.LIF(13, **lif), ss.LIF(10, **lif), ss.LI(3))),
        Case(
            "recurrent LIF, delay 1, two stages",
            Network.chain(
                ss.Input(11), ss.LIF(20, recurrent=True, bias=True, **lif), ss.LIF(38, **lif), ss.LI(3), delay=1
            ),
            optimiser=Optimiser("adamw", weight_decay=0.1, clip_norm=0.5),
        ),
        Case(
            "synaptic currents, maximum over time",
            ss.parse_net("11-13c-3", reset="zero", grad_threshold=0.2),
            decoding="max",
        ),
        Case(
            "full lists, spiking output, SGD",
            Network.chain(ss.Input(11), ss.LIF(40, capacity=5, **lif), ss.LIF(6, grad_threshold=-math.inf)),
            decoding="count",
            optimiser=Optimiser("sgd", lr=0.05, momentum=0.9),
        ),
        Case(
            "learnt decays and thresholds",
            Network.chain(
                ss.Input(11),
                ss.LIF(13, learn_beta=True, learn_threshold=True, recurrent=True, **lif),
                ss.CubaLIF(9, alpha=(0.8,) * 9, learn_alpha=True, grad_threshold=0.2),
                ss.LI(3, learn_beta=True),
            ),
        ),
        Case(
            "adaptation and rotation, learnt",
            Network.chain(
                ss.Input(11),
                ss.AdLIF(
                    13,
                    beta=0.7,
                    q=3.0,
                    threshold=0.3,
                    grad_threshold=0.1,
                    recurrent=True,
                    learn_beta=True,
                    learn_rho=True,
                ),
                ss.Resonator(9, turn=0.3, grad_threshold=0.2, learn_turn=True),
                ss.LI(3),
            ),
        ),
        Case(
            "activity regulariser",
            Network.chain(ss.Input(11), ss.LIF(13, **lif), ss.LI(3)),
            regulariser=Regulariser(0.3, 0.1, 100.0, 50.0),
        ),
        Case(
            "half-precision weights",
            Network.chain(ss.Input(11), ss.LIF(13, recurrent=True, **lif), ss.LI(3)),
            half=True,
        ),
        Case(
            "rounds that share vertices",
            Network.chain(ss.Input(11), ss.LIF(13, **lif), ss.LIF(10, **lif), ss.LIF(9, **lif), ss.LI(3)),
            tiles=2,
        ),
        Case(
            "two replicas, activity regulariser",
            Network.chain(ss.Input(11), ss.LIF(13, bias=True, **lif), ss.LI(3)),
            optimiser=Optimiser("sgd", lr=0.05),
            regulariser=Regulariser(0.3, 0.1, 100.0, 50.0),
            replicas=2,
        ),
        Case(
            "population code, steps run again",
            Network.chain(ss.Input(11), ss.CubaLIF(13, recurrent=True, grad_threshold=0.2), ss.LIF(9, **lif), ss.LI(6)),
            decoding="max",
            n_classes=3,
            keep_every=4,
        ),
    )


def run_case(case: Case, backend: str, *, tiles: int = 64, n_batches: int = 5) -> Finding:
    """The same batches through the CPU engine and through `backend`."""
    started = time.perf_counter()
    try:
        lists_equal, worst_loss, worst_weight = _compare(case, backend, tiles, n_batches)
    except (SparseSnnError, RuntimeError) as error:
        seconds = time.perf_counter() - started
        return Finding(
            case.name, backend, False, False, math.inf, math.inf, seconds, f"{type(error).__name__}: {error}"
        )
    passed = lists_equal and worst_weight < TOLERANCE
    return Finding(case.name, backend, passed, lists_equal, worst_loss, worst_weight, time.perf_counter() - started)


def _compare(case: Case, backend: str, tiles: int, n_batches: int) -> tuple[bool, float, float]:
    n_samples, n_steps = 8, 9
    host, device = _model(case.network), _model(case.network)
    o = case.optimiser
    kind = "sgd" if o.kind == "sgd" else "adam"
    target = parse_target(f"ipu-mk2:1x{case.tiles or tiles}")
    plan = make_plan(
        case.network,
        n_samples // case.replicas,
        n_steps,
        target,
        max_activity=1.0,
        optimizer=kind,
        weight_dtype="half" if case.half else "float32",
        replicas=case.replicas,
        regularises=case.regulariser is not None,
        keep_every=case.keep_every,
    )
    n_classes = case.n_classes or case.network.populations[case.network.output].n
    program = IpuProgram(
        plan,
        device,
        o,
        decoding=case.decoding,
        n_classes=n_classes,
        regulariser=case.regulariser,
        backend=backend,
        checks="always",
    )
    optimizer = torch_optimiser(host, o)
    generator = torch.Generator().manual_seed(0)
    lists_equal, worst_loss = True, 0.0
    for _ in range(n_batches):
        spikes = ss.SpikeBatch.from_dense((torch.rand(n_steps, n_samples, 11, generator=generator) < 0.2).float())
        labels = torch.randint(0, n_classes, (n_samples,), generator=generator)
        optimizer.zero_grad()
        with _rounded(host) if case.half else nullcontext():
            output = host(spikes)
            loss = cross_entropy(output, labels, case.decoding, n_classes)
            (loss + _regulariser(output, case.regulariser)).backward()
        if o.clip_norm:
            torch.nn.utils.clip_grad_norm_(host.parameters(), o.clip_norm)
        optimizer.step()
        trained = program.train_step(spikes, labels)
        worst_loss = max(worst_loss, abs(trained.loss - float(loss.detach())))
        for name, found in program.lists().items():
            wanted = output.spikes[name]
            assert isinstance(wanted, ss.SpikeBatch)
            lists_equal &= torch.equal(found.ids, wanted.ids) and torch.equal(found.n_spikes, wanted.n_spikes)
    program.save()
    worst = max(
        float(((a - b).abs().max() / a.abs().max()).detach())
        for a, b in zip(host.parameters(), device.parameters(), strict=True)
    )
    return lists_equal, worst_loss, worst


def _regulariser(output: Output, r: Regulariser | None) -> Tensor:
    if r is None:
        return torch.zeros(())
    return activity_regulariser(
        output, lower=r.lower, upper=r.upper, strength_lower=r.strength_lower, strength_upper=r.strength_upper
    )


@contextmanager
def _rounded(model: Model) -> Iterator[None]:
    """The weights as halves for a while, as the device reads them."""
    kept = {p: p.detach().clone() for p in model.parameters() if p.ndim == 2}
    with torch.no_grad():
        for p, value in kept.items():
            p.copy_(value.half().float())
    yield
    with torch.no_grad():
        for p, value in kept.items():
            p.copy_(value)


def _model(network: Network) -> Model:
    model = Model(network)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 or name.endswith("bias"):
                parameter.mul_(3.0).add_(0.09)  # enough current to fire
    return model


def torch_optimiser(model: Model, o: Optimiser) -> torch.optim.Optimizer:
    """Of torch, with the numbers of the device's."""
    weights = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    groups = [{"params": weights, "weight_decay": o.weight_decay}, {"params": others, "weight_decay": 0.0}]
    groups = [g for g in groups if g["params"]]
    if o.kind == "sgd":
        return torch.optim.SGD(groups, lr=o.lr, momentum=o.momentum)
    kind = torch.optim.AdamW if o.kind == "adamw" else torch.optim.Adam
    return kind(groups, lr=o.lr, betas=(o.beta1, o.beta2), eps=o.eps)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the cases; 0 where all passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=tuple(MACHINES), action="append", help="one machine; may be given again")
    parser.add_argument("--tiles", type=int, help="tiles in use (default: 64; 1472 on hardware)", metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there")
    options = parser.parse_args(arguments)
    findings = []
    for backend in options.backend or present_machines():
        for case in cases():
            finding = run_case(case, backend, tiles=options.tiles or MACHINES[backend].tiles)
            findings.append(finding)
            print(finding.line(), flush=True)
    if options.json is not None:
        report = {"version": ss.__version__, "machine": platform.platform(), "findings": [asdict(f) for f in findings]}
        options.json.write_text(json.dumps(report, indent=2))
    return 0 if all(f.passed for f in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
