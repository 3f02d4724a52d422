"""The IPU program on the emulated machine against the CPU engine and the reference."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import sparsesnn as ss
from sparsesnn import ipu
from sparsesnn.errors import ConfigError, DescriptionError, PlanError, ShapeError, SpikeListError
from sparsesnn.loss import cross_entropy
from sparsesnn.network import Connection, Network
from sparsesnn.partition.plan import Plan
from sparsesnn.partition.planner import make_plan
from sparsesnn.partition.target import parse_target
from sparsesnn.reference import Parameters, network_forward, to_lists


def random_spikes(n_steps: int, n_samples: int, n: int, rate: float, seed: int) -> ss.SpikeBatch:
    generator = torch.Generator().manual_seed(seed)
    return ss.SpikeBatch.from_dense((torch.rand(n_steps, n_samples, n, generator=generator) < rate).float())


def make_model(network: Network, seed: int = 0, scale: float = 1.0) -> ss.Model:
    model = ss.Model(network, seed=seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(scale).add_(0.03 * scale)
            else:
                parameter.uniform_(-0.05, 0.05, generator=torch.Generator().manual_seed(seed))
    return model


def plan_for(
    network: Network, b: int, t: int, target: str = "ipu-mk2:1x16", optimizer: str = "adam", **more: object
) -> Plan:
    return make_plan(network, b, t, parse_target(target), optimizer=optimizer, **{"max_activity": 1.0, **more})  # type: ignore[arg-type]


def train_both(
    network: Network,
    *,
    b: int = 7,
    t: int = 9,
    n_batches: int = 20,
    target: str = "ipu-mk2:1x16",
    optimiser: ipu.Optimiser | None = None,
    decoding: str = "mean",
    n_classes: int | None = None,
    rate: float = 0.2,
    scale: float = 3.0,
    checks: str = "first",
    **plan_more: object,
) -> tuple[ss.Model, ss.Model, ipu.IpuProgram]:
    """The same batches through the CPU engine with torch's optimiser and through the device; weights must agree."""
    optimiser = optimiser or ipu.Optimiser("adam", lr=1e-3)
    host, device = make_model(network, scale=scale), make_model(network, scale=scale)
    kind = "adam" if optimiser.kind == "adamw" else optimiser.kind
    plan = plan_for(network, b, t, target, kind, **plan_more)
    program = ipu.IpuProgram(
        plan, device, optimiser, decoding=decoding, n_classes=n_classes, checks=checks, label_smoothing=0.1
    )
    classes = n_classes or network.populations[network.output].n
    torch_optimiser = make_torch_optimiser(host, optimiser)
    n_input = network.populations[network.inputs[0]].n
    for k in range(n_batches):
        spikes = random_spikes(t, b, n_input, rate, seed=k)
        labels = torch.randint(0, classes, (b,), generator=torch.Generator().manual_seed(k))
        torch_optimiser.zero_grad()
        output = host(spikes)
        loss = cross_entropy(output, labels, decoding, classes, label_smoothing=0.1)
        loss.backward()
        norm = float(torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in host.parameters()])))
        if optimiser.clip_norm:
            torch.nn.utils.clip_grad_norm_(host.parameters(), optimiser.clip_norm)
        torch_optimiser.step()
        trained = program.train_step(spikes, labels)
        assert trained.loss == pytest.approx(float(loss.detach()), rel=1e-5)
        assert trained.gradient_norm == pytest.approx(norm, rel=1e-4)
        if k == 0:
            assert_same_lists(program.lists(), output)
    program.save()
    return host, device, program


def make_torch_optimiser(model: ss.Model, o: ipu.Optimiser) -> torch.optim.Optimizer:
    weights = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    groups = [{"params": weights, "weight_decay": o.weight_decay}, {"params": others, "weight_decay": 0.0}]
    groups = [g for g in groups if g["params"]]
    if o.kind == "sgd":
        return torch.optim.SGD(groups, lr=o.lr, momentum=o.momentum)
    kind = torch.optim.Adam if o.kind == "adam" else torch.optim.AdamW
    return kind(groups, lr=o.lr, betas=(o.beta1, o.beta2), eps=o.eps)


def assert_same_lists(found: dict[str, ss.SpikeBatch], output: ss.module.Output) -> None:
    for name, lists in found.items():
        wanted = output.spikes[name]
        assert torch.equal(lists.offsets, wanted.offsets), name
        assert torch.equal(lists.ids, wanted.ids), name
        assert torch.equal(lists.n_spikes, wanted.n_spikes), name


def assert_same_weights(host: ss.Model, device: ss.Model, before: ss.Model | None = None) -> None:
    for (name, a), b in zip(host.named_parameters(), device.parameters(), strict=True):
        worst = float((a - b).abs().max() / a.abs().max())
        assert worst < 1e-5, f"{name}: {worst:.2e}"


def lif(n: int, **more: object) -> ss.LIF:
    return ss.LIF(n, **{"grad_threshold": 0.3, "beta": 0.9, **more})  # type: ignore[arg-type]


CHAINS = {
    "feed-forward": Network.chain(ss.Input(11), lif(13), lif(10), ss.LI(3)),
    "recurrent, bias": Network.chain(ss.Input(11), lif(13, recurrent=True, bias=True), ss.LI(3, bias=True)),
    "cuba, zero reset": Network.chain(ss.Input(11), ss.CubaLIF(13, grad_threshold=0.2, reset="zero"), ss.LI(3)),
    "exact reset, decays, sigmoid": Network.chain(
        ss.Input(11),
        lif(13, detach_reset=False, reset_decays=True, surrogate=ss.sigmoid(5.0)),
        lif(9, detach_reset=False, reset="zero", surrogate=ss.atan()),
        ss.LI(3),
    ),
    "delay 1": Network.chain(ss.Input(11), lif(13, recurrent=True), lif(10), ss.LI(3), delay=1),
    "per-neuron decays, no reset, gain": Network.chain(
        ss.Input(11), lif(13, beta=tuple(np.linspace(0.5, 0.99, 13)), reset="none", gain=0.5), ss.LI(3, gain=2.0)
    ),
    "skip connections and delays": Network(
        {"input": ss.Input(11), "a": lif(13), "b": ss.CubaLIF(9, recurrent=True, grad_threshold=0.2), "out": ss.LI(3)},
        (
            Connection("input", "a", 1),
            Connection("input", "b", 0),
            Connection("a", "b", 2),
            Connection("a", "out", 3),
            Connection("b", "out", 0),
        ),
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_twenty_steps_leave_the_weights_of_the_cpu_engine(name: str) -> None:
    host, device, _ = train_both(CHAINS[name])
    assert_same_weights(host, device)


@pytest.mark.parametrize("per_tile", [1, 3, 5])
def test_odd_numbers_of_neurons_on_a_tile(per_tile: int) -> None:
    network = CHAINS["delay 1"]
    plan = plan_for(network, 7, 9)
    assert plan is not None
    host, device, program = train_both(network, target=f"ipu-mk2:1x{-(-26 // per_tile)}", n_batches=20)
    assert_same_weights(host, device)
    assert program.plan.target.n_tiles == -(-26 // per_tile)
