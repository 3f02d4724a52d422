"""Does the IPU program compute the right numbers here? For users with IPUs; please send us the report.

    python -m sparsesnn.ipu.selftest                     all machines that this installation has
    python -m sparsesnn.ipu.selftest --backend ipu --json report.json

Trains small networks that together use every codelet, for a few steps, on each machine and on the CPU engine, and
compares lists, losses and weights. Machines: `ipu-model` (our emulated IPU, always available), `sdk-model` (the SDK's model)
and `ipu` (hardware), the latter two if the package was built with the Poplar SDK. The case "two replicas" needs two free
IPUs; all others need one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor

import sparsesnn as ss
from sparsesnn import Model
from sparsesnn.ipu import IpuProgram, Optimizer, Regularizer
from sparsesnn.ipu.backends import MACHINES, present_machines
from sparsesnn.loss import activity_regularizer, cross_entropy
from sparsesnn.output import Output
from sparsesnn.partition.planner import make_plan
from sparsesnn.partition.target import parse_target
from sparsesnn.selftest import (
    N_SAMPLES,
    N_STEPS,
    Case,
    cases,
    difference,
    parser,
    random_spikes,
    report,
    run,
    set_weights,
)

#: largest difference of a weight after the last step, relative to the largest weight of its array
TOLERANCE = 1e-5


def compare(case: Case, backend: str, tiles: int, n_batches: int = 5) -> tuple[float, dict[str, float]]:
    """Runs the same batches on the CPU engine and on `backend`: the share of lists that differ, and relative differences of the loss and of
    the weights by name."""
    generator = torch.Generator().manual_seed(0)
    host, device = Model(case.network), Model(case.network)
    set_weights(host, generator)
    device.load_state_dict(host.state_dict())
    o = Optimizer(**case.optimizer)
    regularizer = None if case.regularizer is None else Regularizer(**case.regularizer)
    plan = make_plan(
        case.network,
        N_SAMPLES // case.replicas,
        N_STEPS,
        parse_target(f"ipu-mk2:1x{case.tiles or tiles}"),
        max_activity=1.0,
        optimizer="sgd" if o.kind == "sgd" else "adam",
        weight_dtype="half" if case.half else "float32",
        replicas=case.replicas,
        regularizes=regularizer is not None,
        keep_every=case.keep_every,
    )
    n_classes = case.n_classes or case.network.populations[case.network.output].n
    decoding = case.decoded_by()
    program = IpuProgram(
        plan,
        device,
        o,
        decoding=decoding,
        n_classes=n_classes,
        regularizer=regularizer,
        backend=backend,
        checks="always",
    )
    optimizer = torch_optimizer(host, o)
    n_differ, differences = 0, {"loss": 0.0}
    for _ in range(n_batches):
        spikes = ss.SpikeBatch.from_dense(random_spikes(generator))
        labels = torch.randint(0, n_classes, (N_SAMPLES,), generator=generator)
        optimizer.zero_grad()
        with _rounded(host) if case.half else nullcontext():
            output = host(spikes)
            loss = cross_entropy(output, labels, decoding, n_classes)
            (loss + _regularizer(output, regularizer)).backward()
        if o.clip_norm:
            torch.nn.utils.clip_grad_norm_(host.parameters(), o.clip_norm)
        optimizer.step()
        trained = program.train_step(spikes, labels)
        differences["loss"] = max(differences["loss"], difference(torch.tensor(trained.loss), loss))
        for name, got in program.lists().items():
            wanted = output.spikes[name]
            assert isinstance(wanted, ss.SpikeBatch)
            n_differ += not (torch.equal(got.ids, wanted.ids) and torch.equal(got.n_spikes, wanted.n_spikes))
    program.save()
    trained_here = dict(host.named_parameters())
    differences.update({name: difference(p, trained_here[name]) for name, p in device.named_parameters()})
    return float(n_differ), differences


def _regularizer(output: Output, r: Regularizer | None) -> Tensor:
    if r is None:
        return torch.zeros(())
    return activity_regularizer(
        output, lower=r.lower, upper=r.upper, strength_lower=r.strength_lower, strength_upper=r.strength_upper
    )


@contextmanager
def _rounded(model: Model) -> Iterator[None]:
    """Rounds the weights to halves within the context, as the device reads them."""
    kept = {p: p.detach().clone() for p in model.parameters() if p.ndim == 2}
    with torch.no_grad():
        for p, value in kept.items():
            p.copy_(value.half().float())
    yield
    with torch.no_grad():
        for p, value in kept.items():
            p.copy_(value)


def torch_optimizer(model: Model, o: Optimizer) -> torch.optim.Optimizer:
    """PyTorch's optimizer with the settings of the device's."""
    weights = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    groups = [{"params": weights, "weight_decay": o.weight_decay}, {"params": others, "weight_decay": 0.0}]
    groups = [g for g in groups if g["params"]]
    if o.kind == "sgd":
        return torch.optim.SGD(groups, lr=o.lr, momentum=o.momentum)
    kind = torch.optim.AdamW if o.kind == "adamw" else torch.optim.Adam
    return kind(groups, lr=o.lr, betas=(o.beta1, o.beta2), eps=o.eps)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the cases; 0 if all passed."""
    known = parser("python -m sparsesnn.ipu.selftest", __doc__, "64; 1472 on hardware")
    known.add_argument("--backend", choices=tuple(MACHINES), action="append", help="one machine; may be given again")
    a = known.parse_args(arguments)
    findings = []
    for backend in a.backend or present_machines():
        tried = partial(compare, backend=backend, tiles=a.tiles or MACHINES[backend].tiles)
        findings += run(cases(), backend, tried, TOLERANCE)
    return report(findings, a.json, sparsesnn=ss.__version__)


if __name__ == "__main__":
    sys.exit(main())
