"""AdLIF on every path: reference, autograd, fused dense mode and engine give one another's numbers and gradients."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

from sparsesnn import reference
from sparsesnn.config.net import NetConfig
from sparsesnn.config.tables import build
from sparsesnn.engines.module import Layer, Model
from sparsesnn.errors import DescriptionError
from sparsesnn.layers import LI, AdLIF, Input
from sparsesnn.network import Connection, Network, parse_net
from sparsesnn.partition import make_plan, parse_target
from sparsesnn.reference import Parameters
from sparsesnn.spikes import SpikeBatch
from sparsesnn.surrogate import Surrogate

KINDS = [("symplectic", "zero"), ("symplectic", "subtract"), ("explicit", "zero"), ("explicit", "subtract")]
KINDS.append(("sparch", "subtract"))
LEARNS = {f"learn_{name}": True for name in ("beta", "rho", "a", "b", "threshold")}
RULES: list[dict[str, Any]] = [
    {"grad_threshold": -math.inf},
    {"grad_threshold": 0.2},
    {"grad_threshold": 0.2, "capacity": 7},
    {"grad_threshold": 0.7, "capacity": 11, "activity": "fixed"},
]


def neurons(n: int, **more: Any) -> AdLIF:
    """Neurons that differ, a third of which spikes now and then."""
    even = np.linspace(0, 1, n)
    return AdLIF(
        n,
        beta=tuple(0.7 + 0.25 * even),
        rho=tuple(0.9 + 0.09 * even[::-1]),
        a=tuple(0.1 + 0.5 * even),
        b=tuple(0.5 + even),
        threshold=tuple(0.8 + 0.4 * even[::-1]),
        q=6.0,
        gain=4.0,
        bias=True,
        surrogate=Surrogate("fast_sigmoid", 3.0),
        **more,
    )


def model_of(network: Network, seed: int, backend: str = "cpu", mode: str = "auto", scale: float = 3.0) -> Model:
    model = Model(network, seed=seed, backend=backend, dense_mode=mode)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "->" in name:
                parameter.mul_(scale)
            if name.endswith("bias"):
                parameter.copy_(torch.linspace(-0.1, 0.2, parameter.numel()))
    return model


def spikes_of(seed: int, n_steps: int, n_samples: int, n: int) -> SpikeBatch:
    generator = torch.Generator().manual_seed(seed)
    return SpikeBatch.from_dense((torch.rand(n_steps, n_samples, n, generator=generator) < 0.3).float())


def run(model: Model, spikes: SpikeBatch) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Spikes and potentials as dense tensors, and every gradient of a loss that all of them enter."""
    output = model(spikes)
    assert output.potentials is not None
    found = {"potentials": output.potentials}
    for name, lists in output.spikes.items():
        found[name] = lists.to_dense() if isinstance(lists, SpikeBatch) else lists
    generator = torch.Generator().manual_seed(1)
    loss = sum((x * torch.randn(x.shape, generator=generator).to(x.dtype)).sum() for x in found.values())
    loss.backward()  # type: ignore[union-attr]
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: x.detach() for name, x in found.items()}, gradients


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got - want).norm() / want.norm().clamp_min(1e-12))


@pytest.mark.parametrize(("order", "reset"), KINDS)
@pytest.mark.parametrize("detach", [True, False])
def test_gradients_of_every_path_are_those_of_autograd(order: str, reset: str, detach: bool) -> None:
    for case, (recurrent, delay, n) in enumerate(itertools.product([False, True], [0, 1], [37, 70])):
        more = {"order": order, "reset": reset, "detach_reset": detach, "grad_threshold": -math.inf, **LEARNS}
        network = Network.chain(
            Input(19), neurons(n, recurrent=recurrent, **more), neurons(21, **more), LI(5), delay=delay
        )
        spikes = spikes_of(case, 11, 3, 19)
        want, want_gradients = run(model_of(network, case, "dense", "hoist"), spikes)
        activity = float(want["hidden1"].mean())
        assert 0.02 < activity < 0.6, activity
        for backend, mode in (("cpu", "auto"), ("dense", "fused"), ("dense", "step")):
            got, gradients = run(model_of(network, case, backend, mode), spikes)
            for name, x in want.items():
                if name != "potentials":
                    assert torch.equal(got[name], x), (
                        backend,
                        mode,
                        name,
                        "choose other weights: a spike hangs on one ulp",
                    )
            assert gradients.keys() == want_gradients.keys()
            assert len(gradients) >= 10 + 3
            for name, x in want_gradients.items():
                assert error(gradients[name], x) <= 1e-5, (backend, mode, case, name)


@pytest.mark.parametrize(("order", "reset"), KINDS)
@pytest.mark.parametrize("rules", RULES, ids=str)
def test_lists_and_gradients_are_those_of_the_reference(order: str, reset: str, rules: dict[str, Any]) -> None:
    for case, (detach, recurrent, n) in enumerate([(True, False, 33), (False, True, 70), (True, True, 64)]):
        more = {"order": order, "reset": reset, "detach_reset": detach, **rules, **LEARNS}
        network = Network(
            {"a": Input(23), "b": neurons(n, recurrent=recurrent, **more), "c": LI(5, learn_beta=True)},
            (Connection("a", "b", case % 2), Connection("b", "c")),
        )
        model = model_of(network, case)
        spikes = spikes_of(case, 9, 3, 23)
        output = model(spikes)
        parameters = {name: Parameters.from_layer(layer, np.float32) for name, layer in model.layers.items()}
        counted = [
            int(x) for x in (getattr(layer, "training_steps", None) for layer in model.layers.values()) if x is not None
        ]
        records = reference.network_forward(
            network, parameters, spikes.to_dense().numpy(), seed=case, training_step=max(counted, default=0)
        )
        want = reference.to_lists(records["b"])
        lists = output.spikes["b"]
        assert isinstance(lists, SpikeBatch)
        np.testing.assert_array_equal(lists.ids.numpy(), want.ids)
        np.testing.assert_array_equal(lists.offsets.numpy(), want.offsets)
        rng = np.random.default_rng(case)
        d_out = {name: rng.normal(size=(9, 3, network.populations[name].n)).astype(np.float32) for name in records}
        assert output.potentials is not None
        loss = (output.potentials * torch.from_numpy(d_out["c"])).sum()
        (loss + (lists.to_dense() * torch.from_numpy(d_out["b"])).sum()).backward()
        gradients = reference.network_backward(network, parameters, records, d_out)
        for name, layer in model.layers.items():
            assert isinstance(layer, Layer)
            found = gradients[name]
            pairs: list[tuple[Any, Any]] = list(zip(layer.sender_weights, found.weights, strict=True))
            if layer.loop_weight is not None:
                pairs.append((layer.loop_weight, found.loops[0]))
            pairs += [(getattr(layer, key), value) for key, value in found.neuron.items()]
            for k, (parameter, expected) in enumerate(pairs):
                if parameter.grad is not None:
                    tolerance = 2e-5 if parameter.ndim else 1e-4
                    assert error(parameter.grad, torch.as_tensor(expected)) <= tolerance, (case, name, k)


@pytest.mark.parametrize(("order", "reset"), KINDS)
@pytest.mark.parametrize("backend", ["cpu", "dense"])
def test_chunks_equal_one_call(order: str, reset: str, backend: str) -> None:
    network = Network.chain(Input(23), neurons(40, recurrent=True, order=order, reset=reset), LI(5))
    model, spikes = model_of(network, 0, backend), spikes_of(2, 12, 3, 23)
    with torch.no_grad():
        whole = model(spikes)
        first = model(spikes.steps(0, 5))
        rest = model(spikes.steps(5, 12), first.state)
    for got, want in ((rest.state["hidden"].w, whole.state["hidden"].w), (rest.potentials, whole.potentials)):
        assert got is not None
        assert want is not None
        assert torch.equal(got, want[-len(got) :])


def test_a_text_and_the_section_net_describe_it() -> None:
    network = parse_net("700-20ar-10c-5as", order="explicit", a_range=[0, 0.7])
    first, second, last = (network.populations[name] for name in ("hidden1", "hidden2", "output"))
    assert isinstance(first, AdLIF)
    assert (first.order, first.a_range, network.is_recurrent("hidden1")) == ("explicit", (0.0, 0.7), True)
    assert (type(second).__name__, type(last).__name__) == ("CubaLIF", "AdLIF")
    table = {"text": "30-8a-5", "q": 60, "rho": 0.95, "learn_a": True, "rho_range": [0.9, 0.99]}
    hidden = build(NetConfig, table, "net").network(30, 5).populations["hidden"]
    assert hidden == AdLIF(8, q=60, rho=0.95, learn_a=True, rho_range=(0.9, 0.99))
    with pytest.raises(DescriptionError, match=r"20ac has 2 neuron models; .*a: adaptive \(AdLIF\)"):
        parse_net("700-20ac-5")


def test_network_survives_json() -> None:
    network = Network.chain(Input(4), neurons(6, order="sparch", a_range=(-0.5, 1.0), **LEARNS), LI(2))
    assert Network.from_json(network.to_json()) == network


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ({"reset": "none"}, "reset is 'none'; allowed: zero, subtract"),
        ({"order": "sparch", "reset": "zero"}, "reset is 'zero' with order 'sparch'"),
        ({"reset_decays": True}, "reset_decays has no effect"),
        ({"order": "euler"}, "order is 'euler'"),
        ({"rho_range": (0.5, 1.5)}, "rho_range is 1.5; allowed: .*0 to 1"),
        ({"a_range": (1.0, 0.0)}, r"a_range is \(1.0, 0.0\)"),
        ({"a": 1.5}, "a is 1.5; a_range allows 0 to 1"),
    ],
)
def test_descriptions_that_are_refused(arguments: dict[str, Any], facts: str) -> None:
    with pytest.raises(DescriptionError, match=facts):
        AdLIF(3, **arguments)


def test_plans_hold_it() -> None:
    network = Network.chain(Input(19), AdLIF(70), LI(5))
    for target in ("cpu:2", "mpi:2", "ipu-mk2"):
        plan = make_plan(network, 8, 10, parse_target(target), optimizer="adam", max_activity=1)
        assert set(plan.populations) == set(network.populations)
