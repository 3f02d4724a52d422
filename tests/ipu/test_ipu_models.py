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


def assert_same_gradients(found: dict[str, torch.Tensor], host: ss.Model, tolerance: float = 1e-5) -> None:
    for name, p in host.named_parameters():
        assert p.grad is not None
        worst = float((found[name] - p.grad).abs().max() / p.grad.abs().max())
        assert worst <= tolerance, f"{name}: {worst:.1e}"


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


# ---- users' own models -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ALIF(ss.Neuron):
    """A threshold that rises with every spike, as a current that pulls the potential down."""

    beta: ss.PerNeuron = ss.parameter(0.9, "decay of the potential", low=0, high=1)
    rho: ss.PerNeuron = ss.parameter(0.97, "decay of the adaptation", low=0, high=1)
    strength: float = 1.8
    learn_rho: bool = False
    learn_beta: bool = False
    states: ClassVar = ("x", "a")

    def arrays(self, p: Any) -> ss.NeuronArrays:
        k, b, r = self.strength, p["beta"], p["rho"]
        return ss.NeuronArrays(
            A=[[b, k * (b - r)], [0, r]],
            R=[[0, -k], [0, 0]],
            r=[-p["threshold"], 0],
            f=[-k * (1 - r), 1 - r],
            B=[1, 0],
        )


@dataclass(frozen=True)
class Filtered(ss.Neuron):
    """The input passes two filters before it reaches the potential; a leak pulls it up, the reset acts on two states."""

    beta: ss.PerNeuron = ss.parameter(0.8, "decay of the potential", low=0, high=1)
    alpha: ss.PerNeuron = ss.parameter(0.6, "decay of both filters", low=0, high=1)
    gradients: ss.PerNeuron = ss.parameter(0.7, "gain between the filters")  # also the name of an array of the device
    learn_beta: bool = False
    learn_alpha: bool = False
    learn_gradients: bool = False
    sequential: bool = True
    states: ClassVar = ("v", "slow", "fast")

    def arrays(self, p: Any) -> ss.NeuronArrays:
        b, a, g = p["beta"], p["alpha"], p["gradients"]
        return ss.NeuronArrays(
            A=[[b, g, 0], [0, a * a, g / (1 + g)], [-0.1 * g, 0, a]],
            R=[[-b / 2, 0, 0], [-a / 8, 0, 0], [0, 0, 0]],
            r=[-p["threshold"] / 2, 0, 0],
            f=[0, 0, 0.1 * (1 - a)],
            B=[0.1, 0, 1],
            c=[0.02 * (1 - b), 0, 0],
            sequential=self.sequential,
        )


@dataclass(frozen=True)
class Smoothed(ss.Neuron):
    """A readout of three states."""

    beta: ss.PerNeuron = ss.parameter(0.8, "decay of all states", low=0, high=1)
    learn_beta: bool = False
    fires: ClassVar = False
    states: ClassVar = ("v", "m", "n")

    def arrays(self, p: Any) -> ss.NeuronArrays:
        b = p["beta"]
        return ss.NeuronArrays(
            A=[[b, 1 - b, 0], [0, b, 0.5], [0.1, 0, b]], B=[0, 0.2, 1], c=[0, 0.1, 0], sequential=True
        )


OWN = {
    "ALIF": ALIF(N, grad_threshold=0.2, rho=0.8, recurrent=True),
    "ALIF per neuron": ALIF(N, grad_threshold=0.2, rho=tuple(np.linspace(0.5, 0.95, N))),
    "Filtered": Filtered(N, grad_threshold=0.1, detach_reset=False, bias=True),
    "Filtered at once": Filtered(N, grad_threshold=0.1, sequential=False, beta=tuple(np.linspace(0.5, 0.9, N))),
}


@pytest.mark.parametrize("trains", [False, True], ids=["weights", "parameters"])
@pytest.mark.parametrize("readout", [ss.LI(3), Smoothed(3)], ids=["LI", "three states"])
@pytest.mark.parametrize("name", OWN)
def test_a_model_of_ones_own_is_that_of_the_engine(name: str, readout: Any, trains: bool) -> None:
    hidden = OWN[name]
    if trains:
        hidden, readout = replace(hidden, **learns(hidden)), replace(readout, **learns(readout))
    net = Network.chain(ss.Input(N_INPUT), hidden, readout)
    host = loud(net)
    spikes, labels = batch(0)
    output = host(spikes)
    loss_of(output, labels).backward()
    assert int(output.spikes["hidden"].n_spikes.sum()) > 20, "hardly anything fires"
    assert_same_gradients(gradients(net, plan_for(net)), host, 2e-5)
    kept, again = (gradients(net, plan_for(net, keep_every=every)) for every in (1, 2))
    assert all(torch.equal(kept[key], again[key]) for key in kept)
    program = ipu.IpuProgram(plan_for(net), loud(net), ipu.Optimizer("sgd"), decoding="max", checks="always")
    logits = program.infer(spikes)
    assert torch.equal(program.lists()["hidden"].ids, output.spikes["hidden"].ids)
    assert float((logits - decode(output, "max", 3)).detach().abs().max()) < 1e-5


def test_the_maximum_of_means_reads_the_potentials_of_a_readout_of_three_states() -> None:
    net = Network.chain(ss.Input(N_INPUT), OWN["ALIF"], Smoothed(6, learn_beta=True))
    host, device = loud(net), loud(net)
    spikes, labels = batch(0)
    loss = torch.nn.functional.cross_entropy(decode(host(spikes), "max", 3), labels)
    loss.backward()
    program = ipu.IpuProgram(
        plan_for(net), device, ipu.Optimizer("sgd", lr=RATE), decoding="max", n_classes=3, checks="always"
    )
    before = {name: p.detach().clone() for name, p in device.named_parameters()}
    assert program.train_step(spikes, labels).loss == pytest.approx(float(loss.detach()), rel=1e-5)
    program.save()
    found = {name: (before[name] - p.detach()) / RATE for name, p in device.named_parameters()}
    assert_same_gradients(found, host, 2e-5)


def test_a_trained_model_of_ones_own_follows_the_engine() -> None:
    """The arrays that the device computes from its parameters after each update have the bits of the host's."""
    hidden = replace(OWN["ALIF per neuron"], learn_rho=True)
    net = Network.chain(ss.Input(N_INPUT), hidden, ss.LI(3))
    host, device = loud(net), loud(net)
    program = ipu.IpuProgram(plan_for(net), device, ipu.Optimizer("sgd", lr=0.5), checks="always")
    optimizer = torch.optim.SGD(host.parameters(), lr=0.5)
    for k in range(5):
        spikes, labels = batch(k)
        optimizer.zero_grad()
        loss_of(host(spikes), labels).backward()
        optimizer.step()
        program.train_step(spikes, labels)
    program.save()
    rho = device.layers["hidden"].rho.detach()
    assert float((rho - torch.tensor(hidden.rho)).abs().max()) > 1e-3, "rho has not moved"
    for (name, a), b in zip(host.named_parameters(), device.parameters(), strict=True):
        assert float((a - b).detach().abs().max() / a.detach().abs().max()) < 2e-5, name
    program.infer(batch(7)[0])
    before = program.lists()["hidden"]
    program.load()  # from the host's numbers
    program.infer(batch(7)[0])
    after = program.lists()["hidden"]
    assert torch.equal(before.ids, after.ids)
    assert torch.equal(before.offsets, after.offsets)


@dataclass(frozen=True)
class Timed(ss.Neuron):
    """Its parameter is a time constant."""

    tau: ss.PerNeuron = ss.parameter(5.0, "time constant in steps", low=1, high=100)
    learn_tau: bool = False
    states: ClassVar = ("v",)

    def arrays(self, p: Any) -> ss.NeuronArrays:
        exp = np.exp if isinstance(p["tau"], np.ndarray) else torch.exp
        return ss.NeuronArrays(A=[[exp(-1 / p["tau"])]], r=[-p["threshold"]], B=[1])


def test_an_operation_that_the_device_does_not_have_is_refused_where_it_is_trained() -> None:
    net = network(Timed(N))
    program = ipu.IpuProgram(plan_for(net), loud(net), ipu.Optimizer("sgd"))
    program.train_step(*batch(0))
    wanted = loud(net)
    net = network(Timed(N, learn_tau=True))
    plan = plan_for(net)
    with pytest.raises(DescriptionError, match=r"Timed: arrays uses torch\.exp; .*\+ - \* /"):
        ipu.IpuProgram(plan, loud(net), ipu.Optimizer("sgd"))
    assert wanted.network != net


@dataclass(frozen=True)
class Rectified(ss.Neuron):
    """Not linear between spikes."""

    arrays: ClassVar[None] = None
    states: ClassVar = ("v",)

    def step(self, p: Any, states: Any, reset: Any, s: Any, i: Any) -> Any:
        return (abs(states[0]) * 0.5 + i,)


def test_a_model_that_is_not_linear_is_refused_by_name() -> None:
    net = network(ss.LIF(N))
    model, plan = ss.Model(net), plan_for(net)
    other = Network({**net.populations, "hidden1": Rectified(N)}, net.connections)
    object.__setattr__(model, "network", other)
    with pytest.raises(DescriptionError, match=r"hidden1: Rectified is not linear.*dense"):
        ipu.IpuProgram(replace(plan, network=other), model)
