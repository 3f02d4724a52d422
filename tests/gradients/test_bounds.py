"""The gradient of a decay at the ends of its range: one rule, whatever PyTorch's `clamp` does there."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from sparsesnn import ipu, reference
from sparsesnn.bounds import bounded, gate, ungated
from sparsesnn.engines.dense.replicas import Replicated
from sparsesnn.engines.module import Layer, Model
from sparsesnn.host.comm.torch_group import torch_world
from sparsesnn.ipu.selftest import torch_optimizer
from sparsesnn.layers import LI, CubaLIF, Input
from sparsesnn.loss import cross_entropy
from sparsesnn.network import Network, parse_net
from sparsesnn.partition.planner import make_plan
from sparsesnn.partition.target import parse_target
from sparsesnn.spikes import SpikeBatch

#: decays, and whether a gradient below and above 0 reaches them
CASES = {-0.5: (True, False), 0.0: (True, False), 0.3: (True, True), 1.0: (False, True), 1.5: (False, True)}
#: one of each case, for populations of five
VALUES = tuple(CASES)


@pytest.mark.parametrize(("value", "passes"), CASES.items())
def test_the_rule(value: float, passes: tuple[bool, bool]) -> None:
    x = torch.full((3,), value, requires_grad=True)
    y = bounded(x, 0.0, 1.0)
    assert torch.equal(y, torch.full((3,), min(max(value, 0.0), 1.0)))
    y.backward(torch.tensor([-0.7, 0.0, 0.7]))
    assert x.grad.tolist() == pytest.approx([-0.7 * passes[0], 0.0, 0.7 * passes[1]])


def test_the_rule_looks_at_the_sum_over_neurons() -> None:
    """One decay for three neurons, of which two want it higher; together they want it lower."""
    x = torch.tensor(1.0, requires_grad=True)
    bounded(x, 0.0, 1.0).expand(3).backward(torch.tensor([-1.0, -1.0, 2.5]))
    assert x.grad == 0.5


def test_nan_is_not_hidden() -> None:
    x = torch.tensor([1.5, 0.0, math.nan], requires_grad=True)
    bounded(x, 0.0, 1.0).backward(torch.tensor([math.nan, math.nan, 1.0]))
    assert x.grad.isnan().tolist() == [True, True, False]


def test_other_ranges_and_their_corner() -> None:
    x = torch.tensor([-3.0, -2.0, 7.0, 9.0], requires_grad=True)
    y = bounded(x, -2.0, 7.0)
    assert y.tolist() == [-2, -2, 7, 7]
    y.sum().backward()
    assert x.grad.tolist() == [0, 0, 1, 1]
    point = torch.tensor([2.0, 2.0], requires_grad=True)
    bounded(point, 2.0, 2.0).backward(torch.tensor([1.0, -1.0]))
    assert point.grad.tolist() == [0, 0]


def test_parts_of_a_sum_pass_and_the_sum_is_gated() -> None:
    """Two parts that differ in sign: each gated by itself, their sum would be another."""
    x = torch.tensor(1.0, requires_grad=True)
    with ungated():
        y = bounded(x, 0.0, 1.0)
    y.backward(torch.tensor(-3.0))
    assert x.grad == -3
    bounded(x, 0.0, 1.0).backward(torch.tensor(2.0))  # gated again outside
    assert x.grad == -1
    assert gate(x.detach(), x.grad, 0.0, 1.0) == 0


def random_spikes(n_steps: int, n_samples: int, n: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(n_steps, n_samples, n, generator=generator) < 0.4).double()


def set_decays(module: torch.nn.Module, *, beta: object, alpha: object) -> None:
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            for last, value in (("beta", beta), ("alpha", alpha)):
                if name.endswith(last):
                    parameter.copy_(torch.as_tensor(value))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("backend", ["cpu", "step", "hoist", "fused"])
@pytest.mark.parametrize("model", [CubaLIF, LI])
def test_every_backend_has_it(model: type, backend: str, sign: int) -> None:
    """At, below, between and above the ends, against the reference's gradient of the clamped value that the network reads."""
    more = {"alpha": (0.5,) * 5, "learn_alpha": True, "grad_threshold": -math.inf} if model is CubaLIF else {}
    population = model(5, beta=(0.5,) * 5, learn_beta=True, **more)
    dense = {} if backend == "cpu" else {"backend": "dense", "dense_mode": backend}
    layer = Layer(population, 7, generator=torch.Generator().manual_seed(3), **dense)
    with torch.no_grad():
        layer.weights[0].abs_()
    set_decays(layer, beta=VALUES, alpha=VALUES[::-1])
    spikes = random_spikes(6, 3, 7)
    p = reference.Parameters.from_layer(layer)
    record = reference.layer_forward(p, [spikes.numpy()])
    d_out = sign * np.ones((6, 3, 5))
    want = reference.layer_backward(p, record, d_out)
    if backend == "cpu":
        output = layer(SpikeBatch.from_dense(spikes.float()))[0]
        out = output.to_dense() if isinstance(output, SpikeBatch) else output
        d_listed = torch.from_numpy(d_out).float()
        (output.values.sum() * sign if isinstance(output, SpikeBatch) else (out * d_listed).sum()).backward()
    else:
        layer(spikes.float())[0].backward(torch.from_numpy(d_out).float())
    for name in ("beta", "alpha") if model is CubaLIF else ("beta",):
        parameter = layer.get_parameter(name)
        raw = torch.from_numpy(want.neuron[name]).float()
        assert raw.abs().min() > 1e-3, (name, raw)
        passes = [CASES[round(float(x), 3)][int(d > 0)] for x, d in zip(parameter.detach(), raw, strict=True)]
        torch.testing.assert_close(parameter.grad, raw * torch.tensor(passes), rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("mode", ["step", "hoist", "fused"])
def test_convolutions_have_it(mode: str) -> None:
    """Every parameter at an end with an outward gradient has none; a little inside it has that gradient."""
    found = []
    for inside in (0.0, 1e-3):
        network = parse_net("1x6x6:3C4-5s", threshold=0.5, grad_threshold=-math.inf, learn_beta=True)
        model = Model(network, backend="dense", dense_mode=mode, seed=1).double()
        set_decays(model, beta=1 - inside, alpha=0)
        images = torch.rand(5, 2, 36, generator=torch.Generator().manual_seed(0)) < 0.5
        (-model(SpikeBatch.from_dense(images.float())).counts().sum()).backward()
        found.append({name: p.grad.item() for name, p in model.named_parameters() if name.endswith("beta")})
    at, near = found
    assert at.keys() == near.keys()
    assert min(near.values()) < 0
    for name, gradient in at.items():
        assert gradient == 0 if near[name] < 0 else gradient > 0, (name, at, near)


@pytest.mark.parametrize("end", [0.0, 1.0])
@pytest.mark.parametrize("backend", ["cpu", "dense"])
def test_a_decay_at_an_end_returns_and_goes_no_further(backend: str, end: float) -> None:
    layer = Layer(LI(2, beta=end, learn_beta=True), 3, backend=backend)
    with torch.no_grad():
        layer.weights[0].fill_(1.0)
    optimizer = torch.optim.SGD([layer.beta], lr=0.01)
    spikes = SpikeBatch.from_dense(torch.ones(4, 1, 3))
    given = spikes if backend == "cpu" else spikes.to_dense()
    for factor in (1.0, -1.0):  # at 1, less is better, then more; at 0 the other way round
        before = layer.beta.item()
        optimizer.zero_grad()
        (layer(given)[0].sum() * factor).backward()
        optimizer.step()
        moves = factor == (1.0 if end else -1.0)
        assert (layer.beta.item() != before) == moves, (factor, before, layer.beta)
        assert 0 <= layer.beta.item() <= 1
        with torch.no_grad():
            layer.beta.fill_(end)


TORCHRUN = f"""
import os
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_bounds import check_replicas
check_replicas(int(os.environ["LOCAL_RANK"]))
"""


def check_replicas(local_rank: int) -> None:
    """Two ranks whose gradients of a decay at 1 differ in sign, and in size: the sum decides, as in one process."""
    world = torch_world(local_rank, 2)
    for factors in ([3.0, -1.0], [1.0, -3.0]):
        network = Network.chain(Input(3), LI(2, beta=1.0, learn_beta=True))
        whole, own = (Model(network, backend="dense", seed=1) for _ in range(2))
        for model in (whole, own):
            with torch.no_grad():
                model.layers["output"].weights[0].fill_(1.0)
        replicated, scale = Replicated(own, world), torch.tensor(factors).view(1, 2, 1)
        spikes = SpikeBatch.from_dense(torch.ones(4, 2, 3))
        (whole(spikes).potentials * scale).sum().backward()
        r = world.rank
        (replicated(spikes[r : r + 1]).potentials * scale[:, r : r + 1]).sum().backward()
        want, got = (m.layers["output"].beta.grad.item() for m in (whole, own))
        assert (got == 0) == (factors[0] < -factors[1]), (got, factors)
        assert got == want, (got, want, factors)
    torch.distributed.destroy_process_group()
    print("well", flush=True)


@pytest.mark.slow
@pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="PyTorch without gloo"
)
def test_ranks_gate_the_sum_of_their_gradients(tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(TORCHRUN)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "SPARSESNN_THREADS": "1"}
    process = subprocess.run(
        [sys.executable, *launcher, str(tmp_path / "ranks.py")],
        capture_output=True, text=True, check=False, env=environment, timeout=300,
    )  # fmt: skip
    assert process.stdout.count("well") == 2, process.stderr[-3000:]


DEVICE_NETWORKS = {
    "one value a population": {"alpha": 0.0, "beta": 1.0},
    "one a neuron": {"alpha": (1.0, 0.0, 0.5) * 4, "beta": (0.0, 1.0, 0.9) * 4},
}


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("name", DEVICE_NETWORKS)
def test_the_ipu_program_has_it(name: str, replicas: int) -> None:
    """Step by step from the ends: decays that stay there stay on both, and those that leave take the same step."""
    decays = DEVICE_NETWORKS[name]
    network = Network.chain(
        Input(11),
        CubaLIF(12, grad_threshold=0.2, learn_alpha=True, learn_beta=True, **decays),
        LI(3, beta=(1.0, 0.0, 1.0), learn_beta=True),
    )
    host, device = (Model(network, seed=0) for _ in range(2))
    for model in (host, device):
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 2:
                    parameter.mul_(3).add_(0.09)
    before = {name: p.detach().clone() for name, p in host.named_parameters() if name.endswith(("alpha", "beta"))}
    optimizer = ipu.Optimizer("sgd", lr=0.02)
    plan = make_plan(
        network, 6 // replicas, 9, parse_target("ipu-mk2:1x16"), optimizer="sgd", max_activity=1.0, replicas=replicas
    )
    program = ipu.IpuProgram(plan, device, optimizer, decoding="sum", checks="always")
    on_host = torch_optimizer(host, optimizer)
    for k in range(6):
        spikes = SpikeBatch.from_dense(random_spikes(9, 6, 11, seed=k).float())
        labels = torch.arange(6) % 3
        on_host.zero_grad()
        cross_entropy(host(spikes), labels, "sum", 3).backward()
        norm = float(torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in host.parameters()])))
        on_host.step()
        assert program.train_step(spikes, labels).gradient_norm == pytest.approx(norm, rel=1e-4)
    program.save()
    stayed = {}
    for key, a in host.named_parameters():
        b = device.get_parameter(key)
        assert (a - b).abs().max() <= 1e-5 * a.abs().max(), key
        if key in before:
            stayed[key] = a == before[key]
            assert torch.equal(stayed[key], b == before[key]), key
    whether = torch.cat([x.reshape(-1) for x in stayed.values()])
    assert not whether.all()
    assert name != "one a neuron" or whether.any(), stayed
