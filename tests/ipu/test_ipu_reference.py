"""The IPU program against the NumPy specification alone.

The CPU engine shares the neurons' headers with the codelets, so that a fault in them is equal on both; the specification
shares nothing with either.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import sparsesnn as ss
from sparsesnn import ipu, reference
from sparsesnn.layers import MODELS, Neuron
from sparsesnn.layers.ad_lif import ORDERS
from sparsesnn.network import Network
from sparsesnn.partition.planner import make_plan
from sparsesnn.partition.target import parse_target
from sparsesnn.reference import Gradients, Parameters, Record

Array = np.ndarray[Any, Any]
#: w - RATE·g in place of w, so that g outweighs w
RATE = 2.0**14
T, B, N_CLASSES = 8, 7, 3


def program_for(model: ss.Model, b: int = B, t: int = T, **more: Any) -> ipu.IpuProgram:
    target = parse_target(f"ipu-mk2:1x{more.pop('tiles', 16)}")
    target = replace(target, bytes_per_tile=more.pop("bytes_per_tile", target.bytes_per_tile))
    plan = make_plan(model.network, b, t, target, max_activity=1.0, optimizer="sgd", **more)
    return ipu.IpuProgram(plan, model, ipu.Optimizer("sgd", lr=RATE), n_classes=N_CLASSES, checks="always")


def specified(
    model: ss.Model, spikes: ss.SpikeBatch, labels: torch.Tensor, training_step: int
) -> tuple[dict[str, Record], dict[str, Gradients], float]:
    """Records, gradients and loss of the mean cross-entropy, from the specification; LI potentials are averaged over time."""
    network = model.network
    parameters = {name: Parameters.from_layer(layer, np.float32) for name, layer in model.layers.items()}
    records = reference.network_forward(
        network, parameters, spikes.to_dense().numpy(), seed=SEED, training_step=training_step
    )
    v = records[network.output].v[:-1].astype(np.float64)
    n_steps, n_samples = v.shape[:2]
    logits = v.mean(0)
    shares = np.exp(logits - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    hot = np.eye(N_CLASSES)[labels.numpy()]
    loss = float(-np.log((shares * hot).sum(1)).mean())
    d_out = np.broadcast_to((shares - hot) / (n_samples * n_steps), v.shape).astype(np.float32)
    return records, reference.network_backward(network, parameters, records, {network.output: d_out}), loss


SEED = 3


def assert_same_lists(found: Mapping[str, ss.SpikeBatch], records: Mapping[str, Record]) -> None:
    for name, lists in found.items():
        wanted = reference.to_lists(records[name])
        np.testing.assert_array_equal(lists.offsets.numpy(), wanted.offsets, err_msg=name)
        np.testing.assert_array_equal(lists.ids.numpy(), wanted.ids, err_msg=name)
        np.testing.assert_array_equal(lists.n_spikes.numpy(), wanted.n_spikes, err_msg=name)
        assert lists.dropped is not None
        np.testing.assert_array_equal(lists.dropped.numpy(), wanted.dropped, err_msg=name)


def check(
    model: ss.Model, spikes: ss.SpikeBatch, labels: torch.Tensor, tolerance: float = 2e-5, **more: Any
) -> dict[str, Record]:
    """One training step on the device: its lists, its loss and its change of every parameter."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    program = program_for(model, spikes.n_samples, spikes.n_steps, **more)
    records, wanted, loss = specified(model, spikes, labels, training_step=1)
    trained = program.train_step(spikes, labels)
    assert_same_lists(program.lists(), records)
    assert trained.loss == pytest.approx(loss, rel=1e-5)
    program.save()
    n_checked = 0
    for name, layer in model.layers.items():
        g, steps = wanted[name], dict(layer.named_parameters())
        named = {id(p): key for key, p in model.named_parameters()}
        pairs: list[tuple[Any, Any]] = [
            *zip(layer.sender_weights, g.weights, strict=True),
            *((steps[key], value) for key, value in g.neuron.items() if key in steps),
        ]
        if layer.loop_weight is not None:
            pairs.append((layer.loop_weight, g.loops[0]))
        if layer.bias is not None:
            pairs.append((layer.bias, g.bias))
        for p, expected in pairs:
            found = ((before[named[id(p)]] - p.detach()) / RATE).numpy()
            scale = np.abs(expected).max()
            assert scale > 0, f"{named[id(p)]}: no gradient"
            worst = float(np.abs(found - expected).max() / scale)
            assert worst <= (tolerance if expected.ndim else 1e-4), f"{named[id(p)]}: {worst:.1e}"
            n_checked += 1
    assert n_checked == len(before)
    return records


def labels_for(n_samples: int) -> torch.Tensor:
    return torch.arange(n_samples) % N_CLASSES


def random_spikes(n: int, rate: float = 0.25, n_samples: int = B, n_steps: int = T) -> ss.SpikeBatch:
    generator = torch.Generator().manual_seed(0)
    return ss.SpikeBatch.from_dense((torch.rand(n_steps, n_samples, n, generator=generator) < rate).float())


# ---- every model -----------------------------------------------------------------------------------------------------


def variants() -> dict[str, Neuron]:
    """Each spiking model, with each of its resets and orders, exact and detached, all parameters learnt."""
    found: dict[str, Neuron] = {}
    for key, kind in MODELS.items():
        if not issubclass(kind, Neuron) or not kind.fires:
            continue
        some = kind(13, grad_threshold=0.2)
        choices: list[dict[str, Any]] = [{"reset": reset} for reset in ("subtract", "zero", "none")]
        if key == "AdLIF":
            often = {"q": 3.0, "beta": 0.7, "threshold": 0.3, "grad_threshold": 0.1}
            choices = [{"order": o, "reset": r, **often} for o in ORDERS for r in ("subtract", "zero")]
            choices.remove({"order": "sparch", "reset": "zero", **often})
        elif key == "Resonator":
            choices = [{}]
        else:
            choices.append({"reset": "subtract", "reset_decays": True})
        for k, choice in enumerate(choices):
            learns = {f"learn_{q.name}": True for q in some.parameters if k % 2 == 0}
            detach = {} if key == "Resonator" and k else {"detach_reset": k % 2 == 1}
            words = " ".join(f"{x}" for key, x in choice.items() if isinstance(x, (str, bool)))
            found[f"{key} {words}".strip()] = replace(
                some, recurrent=k % 2 == 0, bias=True, **choice, **learns, **detach
            )
    return found


VARIANTS = variants()


@pytest.mark.parametrize("name", VARIANTS)
def test_lists_and_gradients_of_every_model(name: str) -> None:
    network = Network.chain(ss.Input(11), VARIANTS[name], ss.LIF(6, beta=0.8, grad_threshold=0.2), ss.LI(3, bias=True))
    model = loud(ss.Model(network, seed=SEED))
    records = check(model, random_spikes(11), labels_for(B))
    assert records["hidden1"].s.sum() > 20, "hardly anything fires"


def loud(model: ss.Model) -> ss.Model:
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 2 and name.partition("->")[0].endswith("input"):
                p.mul_(8.0).add_(0.3)
            elif p.ndim == 2:
                p.mul_(2.0).add_(0.1)
    return model


@pytest.mark.parametrize("activity", ["natural", "fixed"])
def test_full_lists(activity: str) -> None:
    network = Network.chain(
        ss.Input(11), ss.LIF(40, capacity=5, activity=activity, grad_threshold=0.2, recurrent=True), ss.LI(3), delay=1
    )
    records = check(loud(ss.Model(network, seed=SEED)), random_spikes(11), labels_for(B))
    assert records["hidden"].dropped.sum() > 0


# ---- exactly on a boundary -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("surrogate", [ss.fast_sigmoid(), ss.boxcar(2.0), ss.triangle(2.0)], ids=lambda s: s.kind)
@pytest.mark.parametrize("reset", ["subtract", "zero", "none"])
@pytest.mark.parametrize("kind", ["LIF", "CubaLIF"])
def test_a_potential_on_a_threshold_is_not_above_it(kind: str, reset: str, surrogate: ss.Surrogate) -> None:
    """All weights, decays and thresholds are short binary fractions, so that potentials meet both thresholds exactly."""
    more = {"alpha": 0.5} if kind == "CubaLIF" else {}
    hidden = MODELS[kind](
        13, beta=0.5, threshold=1.0, grad_threshold=0.5, reset=reset, surrogate=surrogate, detach_reset=False, **more
    )
    model = ss.Model(Network.chain(ss.Input(11), hidden, ss.LI(3)), seed=SEED)
    weights = model.layers["hidden"].sender_weights[0]
    with torch.no_grad():
        weights.copy_(torch.randint(-1, 5, weights.shape, generator=torch.Generator().manual_seed(1)) / 4)
    spikes = random_spikes(11, 0.15)
    records = check(model, spikes, labels_for(B))
    v = records["hidden"].v[:-1]
    assert (v == 1.0).sum() > 5
    assert (v == 0.5).sum() > 5
    assert (v > 1.0).any()


def test_a_potential_on_the_surrogates_edge_is_outside() -> None:
    """Half a width from the threshold, the boxcar is 0: |x - θ| < 1 / (2·slope), strictly."""
    hidden = ss.LIF(3, beta=0.5, threshold=1.0, grad_threshold=-math.inf, surrogate=ss.boxcar(2.0))
    model = ss.Model(Network.chain(ss.Input(3), hidden, ss.LI(3)), seed=SEED)
    with torch.no_grad():
        model.layers["hidden"].sender_weights[0].copy_(torch.diag(torch.tensor([0.75, 1.25, 0.875])))
    records = check(model, ss.SpikeBatch.from_dense(torch.ones(1, 2, 3)), labels_for(2))
    assert records["hidden"].v[0, 0].tolist() == [0.75, 1.25, 0.875]


# ---- ids of 16 bits --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_hidden", "tiles"), [(2, 16), (11, 1)], ids=["one pair a tile", "six pairs"])
def test_an_input_of_65536_neurons(n_hidden: int, tiles: int) -> None:
    """Its last id takes all 16 bits; ids next to 2^15 would be others if cut to 15."""
    n = 65536
    model = loud(ss.Model(Network.chain(ss.Input(n), ss.LIF(n_hidden, grad_threshold=0.2), ss.LI(3)), seed=SEED))
    dense = torch.zeros(2, 2, n)
    for row, ids in enumerate([(0, 5, n - 1), (32766, 32767, 32768), (32769, 40000, n - 2), (n - 1,)]):
        dense[row // 2, row % 2, list(ids)] = 1.0
    with torch.no_grad():
        model.layers["hidden"].sender_weights[0].mul_(0.5).add_(torch.arange(n)[:, None] % 7 / 16)
    more = {"capacity": {"input": 8}, "bytes_per_tile": 16 * 2**20, "tiles": tiles}
    records = check(model, ss.SpikeBatch.from_dense(dense), labels_for(2), **more)
    assert records["hidden"].s.sum() > 0


def test_a_population_of_40000_neurons() -> None:
    """Ids beyond 2^15 are made on collectors, travel, and find their rows of weights and gradients."""
    n = 40000
    hidden = ss.LIF(n, grad_threshold=0.5, beta=0.5, capacity=40)
    model = ss.Model(Network.chain(ss.Input(3), hidden, ss.LI(3)), seed=SEED)
    with torch.no_grad():
        weights = model.layers["hidden"].sender_weights[0].zero_()
        for k, ids in enumerate([(0, 7, 32767, 32768, n - 1), (32766, 36000, 39998), (32769, 33333, 34567)]):
            weights[k, list(ids)] = torch.linspace(0.7, 1.3, len(ids))
        model.layers["output"].sender_weights[0].add_(torch.arange(n)[:, None] % 5 / 8)
    dense = torch.zeros(3, 2, 3)
    dense[0, 0, 0] = dense[0, 1, 1] = dense[1, 0, 2] = dense[1, 1, 0] = dense[2, 0, 1] = 1.0
    records = check(model, ss.SpikeBatch.from_dense(dense), labels_for(2), bytes_per_tile=4 * 2**20)
    assert set(np.flatnonzero(records["hidden"].s[:-1].any((0, 1)))) >= {n - 1, 39998, 34567}
