"""Every neuron model on the IPU program, against the CPU engine: lists to the last bit, gradients by rounding."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import sparsesnn as ss
from ipu_cases import with_shards_of
from sparsesnn import ipu
from sparsesnn.errors import DescriptionError
from sparsesnn.layers import catalog
from sparsesnn.layers.ad_lif import AdLIF
from sparsesnn.layers.declaration import fires, kept_states
from sparsesnn.layers.resonator import Resonator
from sparsesnn.loss import decode
from sparsesnn.network import Network
from sparsesnn.partition.ipu.memory import shard_items, tile_bytes, tile_totals
from sparsesnn.partition.plan import Plan
from sparsesnn.partition.planner import make_plan
from sparsesnn.partition.target import parse_target

N_INPUT, N, T, B = 11, 13, 9, 7
#: w - RATE·g in place of w, so that g outweighs w
RATE = 2.0**14


def learns(population: Any) -> dict[str, bool]:
    return {f"learn_{q.name}": True for q in population.parameters}


def models() -> Iterator[tuple[str, Any]]:
    """Each model with each of its resets and orders, exact and detached, parameters per neuron or one for all."""
    spread = {"beta": tuple(np.linspace(0.6, 0.97, N)), "threshold": tuple(np.linspace(0.4, 1.1, N))}
    adaptive = {"q": 3.0, "a": 0.4, "b": 0.6, "rho": 0.9, "grad_threshold": 0.1}
    for order, reset in (("symplectic", "zero"), ("symplectic", "subtract"), ("explicit", "zero"), ("explicit", "subtract"),
                         ("sparch", "subtract")):  # fmt: skip
        for detach in (True, False):
            more = (
                spread
                if detach
                else {
                    "beta": 0.7,
                    "threshold": 0.3,
                    "gain": 0.7,
                    "surrogate": ss.sigmoid(5.0),
                    "grad_threshold": -math.inf,
                }
            )
            yield (
                f"AdLIF {order} {reset} {detach}",
                AdLIF(N, order=order, reset=reset, detach_reset=detach, recurrent=detach, **{**adaptive, **more}),
            )
    yield (
        "Resonator",
        Resonator(N, turn=tuple(np.linspace(0.05, 0.9, N)), recurrent=True, bias=True, grad_threshold=0.2),
    )
    yield "Resonator exact", Resonator(N, turn=0.3, detach_reset=False, grad_threshold=0.0, gain=1.3)
    yield "CubaLIF", ss.CubaLIF(N, alpha=0.7, reset="zero", detach_reset=False, grad_threshold=0.2)
    yield "LIF", ss.LIF(N, reset_decays=True, detach_reset=False, grad_threshold=0.2)


MODELS = dict(models())


def network(hidden: Any) -> Network:
    return Network.chain(ss.Input(N_INPUT), hidden, ss.LIF(5, beta=0.8, grad_threshold=0.2), ss.LI(3))


def loud(net: Network) -> ss.Model:
    model = ss.Model(net, seed=3)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 2 and name.partition("->")[0].endswith("input"):
                p.mul_(8.0).add_(0.3)
            elif p.ndim == 2:
                p.mul_(2.0).add_(0.1)
    return model


def batch(k: int) -> tuple[ss.SpikeBatch, torch.Tensor]:
    generator = torch.Generator().manual_seed(k)
    spikes = (torch.rand(T, B, N_INPUT, generator=generator) < 0.25).float()
    return ss.SpikeBatch.from_dense(spikes), torch.randint(0, 3, (B,), generator=generator)


def plan_for(net: Network, **more: Any) -> Plan:
    return make_plan(net, B, T, parse_target("ipu-mk2:1x16"), max_activity=1.0, **{"optimizer": "sgd", **more})


def loss_of(output: ss.Output, labels: torch.Tensor) -> torch.Tensor:
    """In single precision, as the device's: where large terms cancel, as in the gradient of rho, a softmax in double is 1.5e-5 apart."""
    return torch.nn.functional.cross_entropy(decode(output, "mean", 3), labels)


def gradients(net: Network, plan: Plan) -> dict[str, torch.Tensor]:
    """From the device, by a step of SGD; and whether its lists are the engine's."""
    device = loud(net)
    before = {name: p.detach().clone() for name, p in device.named_parameters()}
    program = ipu.IpuProgram(plan, device, ipu.Optimizer("sgd", lr=RATE), checks="always")
    program.train_step(*batch(0))
    program.save()
    return {name: (before[name] - p.detach()) / RATE for name, p in device.named_parameters()}


def assert_same_gradients(found: dict[str, torch.Tensor], host: ss.Model) -> None:
    for name, p in host.named_parameters():
        assert p.grad is not None
        worst = float((found[name] - p.grad).abs().max() / p.grad.abs().max())
        assert worst <= 1e-5, f"{name}: {worst:.1e}"


@pytest.mark.parametrize("trains", [False, True], ids=["weights", "parameters"])
@pytest.mark.parametrize("name", MODELS)
def test_lists_and_gradients_are_those_of_the_engine(name: str, trains: bool) -> None:
    hidden = MODELS[name]
    net = network(replace(hidden, **learns(hidden)) if trains else hidden)
    plan = plan_for(net)
    plan = with_shards_of(plan, 3) or plan if trains else plan
    host = loud(net)
    spikes, labels = batch(0)
    output = host(spikes)
    loss_of(output, labels).backward()
    assert int(output.spikes["hidden1"].n_spikes.sum()) > 20, "hardly anything fires"
    assert_same_gradients(gradients(net, plan), host)
    program = ipu.IpuProgram(plan, loud(net), ipu.Optimizer("sgd"), checks="always")
    for k in range(3):
        spikes, _ = batch(k)
        program.infer(spikes)
        wanted = host(spikes)
        for key, lists in program.lists().items():
            assert torch.equal(lists.offsets, wanted.spikes[key].offsets), key
            assert torch.equal(lists.ids, wanted.spikes[key].ids), key
            assert torch.equal(lists.n_spikes, wanted.spikes[key].n_spikes), key


@pytest.mark.parametrize("name", ["AdLIF explicit zero True", "AdLIF sparch subtract False", "Resonator", "CubaLIF"])
def test_steps_that_run_again_end_with_the_same_bits(name: str) -> None:
    hidden = MODELS[name]
    for net in (network(hidden), network(replace(hidden, **learns(hidden)))):
        kept, again = (gradients(net, plan_for(net, keep_every=every)) for every in (1, 2))
        assert all(torch.equal(kept[key], again[key]) for key in kept)


@pytest.mark.parametrize("name", ["AdLIF symplectic zero True", "Resonator", "LIF"])
def test_a_neuron_that_fired_without_a_slot_is_reset_in_the_gradient_too(name: str) -> None:
    net = network(replace(MODELS[name], capacity=3, recurrent=False))
    host = loud(net)
    spikes, labels = batch(0)
    output = host(spikes)
    assert int(output.spikes["hidden1"].dropped.sum()) > 0
    loss_of(output, labels).backward()
    assert_same_gradients(gradients(net, plan_for(net)), host)


def test_a_parameter_beyond_its_range_is_read_at_the_end_of_it() -> None:
    hidden = AdLIF(
        N, q=3.0, grad_threshold=0.1, a_range=(0.2, 0.6), a=(0.4,) * N, learn_a=True, learn_rho=True, rho=0.9
    )
    net = network(hidden)
    host, device = loud(net), loud(net)
    for model in (host, device):
        with torch.no_grad():
            model.layers["hidden1"].a.copy_(torch.linspace(0.0, 0.8, N))
    program = ipu.IpuProgram(plan_for(net), device, ipu.Optimizer("sgd", lr=0.1), checks="always")
    optimizer = torch.optim.SGD(host.parameters(), lr=0.1)
    for k in range(4):
        spikes, labels = batch(k)
        optimizer.zero_grad()
        loss_of(host(spikes), labels).backward()
        optimizer.step()
        program.train_step(spikes, labels)
    program.save()
    for (name, a), b in zip(host.named_parameters(), device.parameters(), strict=True):
        assert float((a - b).detach().abs().max() / a.detach().abs().max()) < 1e-5, name


def test_the_plan_counts_the_states_that_a_model_declares() -> None:
    """Of an AdLIF that learns β, w and the current of every step as well; of the Resonator, y where turn learns."""
    wide = {"grad_threshold": 0.1, "q": 3.0}
    for hidden, more_history in (
        (AdLIF(N, **wide), 0),
        (AdLIF(N, learn_a=True, **wide), 0),
        (AdLIF(N, learn_rho=True, **wide), 1),
        (AdLIF(N, learn_beta=True, **wide), 2),
        (Resonator(N, learn_turn=True), 1),
        (ss.CubaLIF(N, learn_alpha=True), 1),
        (ss.CubaLIF(N, learn_beta=True), 0),
    ):
        net = network(hidden)
        plan = plan_for(net)
        row = 4 * (N + N % 2)
        items = shard_items(plan, "hidden1", N)
        assert items["history"] == row * B * T * (1 + more_history), hidden
        assert len(kept_states(hidden)) == more_history
        assert tile_bytes(plan)["history"].sum() > 0
        program = ipu.IpuProgram(plan, loud(net), ipu.Optimizer("sgd"), checks="always")
        program.train_step(*batch(0))
        assert tile_totals(plan).max() == pytest.approx(max(program.report().tile_bytes), rel=0.2)


def test_an_input_and_a_readout_do_not_fire() -> None:
    assert [fires(p) for p in (ss.Input(3), ss.LI(3), ss.LIF(3), AdLIF(3), Resonator(3))] == [
        False,
        False,
        True,
        True,
        True,
    ]


@dataclass(frozen=True)
class Unknown(ss.LIF):
    """A model that has no C++."""

    letter: ClassVar[tuple[str, str]] = ("", "")

    @property
    def kernel(self) -> str:
        return "unknown"


def test_a_model_without_a_codelet_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "MODELS", {**catalog.MODELS, "Unknown": Unknown})
    net = network(ss.LIF(N))
    model = ss.Model(net)
    plan = plan_for(net)
    other = Network({**net.populations, "hidden1": Unknown(N)}, net.connections)
    object.__setattr__(model, "network", other)
    with pytest.raises(DescriptionError, match=r"'unknown'.*lif\.subtract"):
        ipu.IpuProgram(replace(plan, network=other), model)
