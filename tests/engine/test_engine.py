"""Links 3 and 4 of the gradient chain: the engine against PyTorch and against the reference; and its promises."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from sparsesnn import _core, reference
from sparsesnn.delays import Delays
from sparsesnn.engines.cpu import chain_pass, runner, transforms
from sparsesnn.engines.cpu import lists as engine
from sparsesnn.engines.module import Layer, Model
from sparsesnn.errors import DescriptionError, NumericError, ShapeError, SpikeListError
from sparsesnn.layers import LI, LIF, CubaLIF, Input
from sparsesnn.network import Connection, Network, parse_net
from sparsesnn.output import Output
from sparsesnn.reference import Parameters
from sparsesnn.spikes import SpikeBatch
from sparsesnn.surrogate import KINDS, Surrogate

SLOPES = {
    "fast_sigmoid": 5.0,
    "straight_through": 1.0,
    "sigmoid": 4.0,
    "atan": 2.0,
    "triangle": 1.0,
    "boxcar": 0.7,
    "exponential": 3.0,
}
RESETS = [("subtract", False), ("subtract", True), ("zero", False), ("none", False)]


def random_spikes(seed: int, n_steps: int, n_samples: int, n: int, rate: float = 0.2) -> SpikeBatch:
    generator = torch.Generator().manual_seed(seed)
    return SpikeBatch.from_dense((torch.rand(n_steps, n_samples, n, generator=generator) < rate).float())


def strong_model(network: Network, seed: int, backend: str = "cpu", scale: float = 3.0) -> Model:
    """A model whose weights are large enough, and whose biases are uneven enough, to make all layers fire."""
    model = Model(network, seed=seed, backend=backend)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "->" in name:
                parameter.mul_(scale)
            if name.endswith("bias"):
                parameter.copy_(torch.linspace(-0.1, 0.2, parameter.numel()))
    return model


def loss_of(output: Output, seed: int = 0) -> torch.Tensor:
    """A loss with its own weight for every spike count and every potential."""
    generator = torch.Generator().manual_seed(seed)
    total = torch.zeros(())
    if output.potentials is not None:
        total = total + (output.potentials * torch.randn(output.potentials.shape, generator=generator)).mean()
    for name in output.spikes:
        counts = output.counts(name)
        total = total + (counts * torch.randn(counts.shape, generator=generator)).mean()
    return total


def restart(model: torch.nn.Module) -> None:
    """Counts training steps from 0 again, so that full lists keep the same candidates as in the first one."""
    for name, buffer in model.named_buffers():
        if name.endswith("training_steps"):
            buffer.zero_()


def gradients(model: Model, spikes: SpikeBatch) -> dict[str, torch.Tensor]:
    loss_of(model(spikes)).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got - want).norm() / want.norm().clamp_min(1e-12))


# ---- link 3: no capacity limit, every neuron listed, against PyTorch autograd --------------------------------------


@pytest.mark.parametrize(("reset", "reset_decays"), RESETS)
@pytest.mark.parametrize("model", [LIF, CubaLIF])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_equal_pytorch(model: type, reset: str, reset_decays: bool, kind: str) -> None:
    for case, (detach, delay, recurrent) in enumerate(itertools.product([True, False], [0, 1], [False, True])):
        arguments = {
            "grad_threshold": -math.inf,
            "reset": reset,
            "reset_decays": reset_decays,
            "detach_reset": detach,
            "surrogate": Surrogate(kind, SLOPES.get(kind, 2.0)),
            "bias": bool(case % 2),
        }
        network = Network.chain(
            Input(19), model(37, recurrent=recurrent, **arguments), model(21, **arguments), LI(5), delay=delay
        )
        spikes = random_spikes(case, 9, 3, 19)
        sparse, dense = strong_model(network, case), strong_model(network, case, "dense")
        with torch.no_grad():
            for name, lists in sparse(spikes).spikes.items():
                assert torch.equal(lists.to_dense(), dense(spikes).spikes[name]), (
                    "choose other weights: a spike hangs on one ulp"
                )
        got, want = gradients(sparse, spikes), gradients(dense, spikes)
        assert got.keys() == want.keys()
        for name in want:
            assert relative_error(got[name], want[name]) <= 1e-5, (case, name)


# ---- link 4: real thresholds, full lists, learnt parameters, against the reference in float32 ----------------------

LIST_RULES = [
    {"grad_threshold": 0.9},
    {"grad_threshold": 0.2, "capacity": 7},
    {"grad_threshold": -0.5, "capacity": 3},
    {"grad_threshold": 1.0},
    {"grad_threshold": 0.7, "capacity": 11, "activity": "fixed"},
]


def assert_equals_reference(network: Network, module: Model, spikes: SpikeBatch, case: int) -> Output:
    """Lists exactly, gradients to rounding; `case` names what failed and seeds rotation and gradient."""
    output = module(spikes)
    parameters = {name: Parameters.from_layer(layer, np.float32) for name, layer in module.layers.items()}
    counted = [int(layer.training_steps) for layer in module.layers.values() if layer.training_steps is not None]
    records = reference.network_forward(
        network, parameters, spikes.to_dense().numpy(), seed=case, training_step=max(counted, default=0)
    )
    for name, lists in output.spikes.items():
        want = reference.to_lists(records[name])
        np.testing.assert_array_equal(lists.ids.numpy(), want.ids, err_msg=f"{case} {name}")
        np.testing.assert_array_equal(lists.offsets.numpy(), want.offsets)
        np.testing.assert_array_equal(lists.n_spikes.numpy(), want.n_spikes)
        if lists.dropped is not None:
            np.testing.assert_array_equal(lists.dropped.numpy(), want.dropped)
    # Any gradient of the list values and potentials will do; the same on both sides.
    rng = np.random.default_rng(case)
    d_out = {name: rng.normal(size=(8, 3, network.populations[name].n)).astype(np.float32) for name in records}
    loss = (output.potentials * torch.from_numpy(d_out[network.output])).sum()
    for name, lists in output.spikes.items():
        loss = loss + (lists.to_dense() * torch.from_numpy(d_out[name])).sum()
    loss.backward()
    want_all = reference.network_backward(network, parameters, records, d_out)
    for name, layer in module.layers.items():
        want = want_all[name]
        pairs = [(w.grad, d) for w, d in zip(layer.sender_weights, want.weights, strict=True)]
        if layer.loop_weight is not None and layer.loop_weight.requires_grad:
            pairs.append((layer.loop_weight.grad, want.loops[0]))
        pairs += [
            (getattr(layer, key).grad, gradient)
            for key, gradient in {"bias": want.bias, **want.neuron}.items()
            if isinstance(getattr(layer, key, None), torch.nn.Parameter) and getattr(layer, key).requires_grad
        ]
        for k, (got, expected) in enumerate(pairs):
            # one number for all neurons is a float32 sum of terms of both signs over all steps, samples and neurons
            tolerance = 2e-5 if got.ndim else 1e-4
            assert relative_error(got, torch.as_tensor(expected)) <= tolerance, (case, name, k)
    return output


@pytest.mark.parametrize("rules", LIST_RULES, ids=str)
def test_several_connections_between_two_populations(rules: dict) -> None:
    populations = {"i": Input(19), "a": LIF(33, **rules), "b": CubaLIF(20, recurrent=True, **rules), "o": LI(5)}
    delays = {("i", "a"): (0, 2, 5), ("a", "b"): (1, 0), ("b", "o"): (0, 3)}
    connections = [Connection(*pair, delay) for pair, all_ in delays.items() for delay in all_]
    network = Network(populations, tuple(connections))
    model = strong_model(network, 3)
    assert_equals_reference(network, model, random_spikes(3, 8, 3, 19), 3)


@pytest.mark.parametrize("rules", LIST_RULES, ids=str)
@pytest.mark.parametrize(("reset", "reset_decays"), RESETS)
@pytest.mark.parametrize("model", [LIF, CubaLIF])
def test_lists_and_gradients_equal_reference(model: type, reset: str, reset_decays: bool, rules: dict) -> None:
    for case, (detach, delay, recurrent, n) in enumerate(
        [(True, 0, False, 33), (False, 1, True, 70), (True, 2, True, 17), (False, 0, False, 130), (True, 1, True, 64)]
    ):
        learns = {"learn_beta": True, "learn_threshold": True, **({"learn_alpha": True} if model is CubaLIF else {})}
        population = model(
            n,
            reset=reset,
            reset_decays=reset_decays,
            detach_reset=detach,
            recurrent=recurrent,
            bias=True,
            gain=0.8,
            **rules,
            **learns,
        )
        network = Network(
            {
                "a": Input(23),
                "b": population,
                "c": model(n + 3, beta=0.9, **rules),
                "d": LI(5, learn_beta=True, bias=True),
            },
            (Connection("a", "b", delay), Connection("a", "c", 1), Connection("b", "c"), Connection("c", "d", delay)),
        )
        module = strong_model(network, seed=case)
        assert_equals_reference(network, module, random_spikes(case, 8, 3, 23), case)


@pytest.mark.parametrize("more", [{}, {"detach_reset": False}, {"recurrent": True}, {"capacity": 9}], ids=str)
@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize(("reset", "reset_decays"), RESETS)
@pytest.mark.parametrize("model", [LIF, CubaLIF])
def test_nobody_has_fired_before_the_first_step(
    model: type, reset: str, reset_decays: bool, learns: bool, more: dict
) -> None:
    """A threshold may learn to be negative: the potential 0 before step 0 is above it, but was no spike."""
    population = model(
        37, grad_threshold=0.2, reset=reset, reset_decays=reset_decays, bias=True, learn_threshold=True, **more
    )
    network = Network.chain(Input(23), population, LI(5))
    module = strong_model(network, seed=3)
    layer = module.layers["hidden"]
    with torch.no_grad():
        layer.threshold = torch.nn.Parameter(torch.linspace(-0.6, 1.0, 37), requires_grad=learns)
    assert_equals_reference(network, module, random_spikes(3, 8, 3, 23), case=3)
    assert_chunks_equal_one_call(module, random_spikes(2, 12, 3, 23))


def test_gradient_by_input_values_equals_reference() -> None:
    layer = Layer(LIF(50, grad_threshold=0.5), n_pre=30)
    with torch.no_grad():
        layer.weights[0].mul_(4)
    spikes = random_spikes(3, 7, 2, 30)
    values = torch.ones(spikes.ids.numel(), requires_grad=True)
    out, _ = layer(SpikeBatch(**{**vars(spikes), "values": values}))
    d_out = torch.randn(7, 2, 50, generator=torch.Generator().manual_seed(1))
    (out.to_dense() * d_out).sum().backward()
    p = Parameters.from_layer(layer, np.float32)
    record = reference.layer_forward(p, [spikes.to_dense().numpy()])
    want = reference.layer_backward(p, record, d_out.numpy()).inputs[0].reshape(-1)
    index = spikes.list_index() * 30 + spikes.ids.long()
    assert relative_error(values.grad, torch.from_numpy(want)[index]) <= 1e-5


def test_loss_curve_equals_pytorch() -> None:
    network = parse_net("40-60r-10", grad_threshold=-math.inf)
    labels = torch.tensor([0, 3, 9, 1, 1])
    curves = []
    for backend in ("cpu", "dense"):
        model = strong_model(network, 0, backend)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        curve = []
        for step in range(20):
            optimizer.zero_grad()
            potentials = model(random_spikes(step % 4, 12, 5, 40)).potentials
            loss = torch.nn.functional.cross_entropy(potentials.mean(0), labels)
            loss.backward()
            optimizer.step()
            curve.append(loss.item())
        curves.append(curve)
    np.testing.assert_allclose(curves[0], curves[1], rtol=1e-4)
    assert curves[0][-1] < curves[0][0]


# ---- bit for bit ---------------------------------------------------------------------------------------------------


def assert_bit_equal(got: torch.Tensor, want: torch.Tensor) -> None:
    assert bits(got) == bits(want)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().numpy().tobytes()


@pytest.mark.parametrize("net", ["50-130-37-10", "50-130r-70cr-10s", "700-1030c-20"])
@pytest.mark.parametrize("capacity", [None, 9])
def test_bit_equal_across_threads_isa_and_repeats(net: str, capacity: int | None) -> None:
    network = parse_net(net, capacity=capacity, reset="zero", learn_beta=True, learn_threshold=True, bias=True)
    spikes = random_spikes(0, 30, 13, network.populations["input"].n, 0.05)
    model = strong_model(network, 0)

    def run() -> list[torch.Tensor]:
        model.zero_grad()
        restart(model)
        output = model(spikes)
        loss_of(output).backward()
        tensors = [p.grad for p in model.parameters()]
        tensors += [t for lists in output.spikes.values() for t in (lists.ids, lists.offsets, lists.n_spikes)]
        return [*tensors, *([] if output.potentials is None else [output.potentials.detach()])]

    _core.set_num_threads(1)
    _core.set_isa("base")
    want = [t.clone() for t in run()]
    assert all(lists.n_spikes.sum() > 0 for lists in model(spikes).spikes.values())
    for isa, threads in itertools.product(_core.build_info()["isa_supported"], (1, 2, 7)):  # 7: more than tiles
        _core.set_isa(isa)
        _core.set_num_threads(threads)
        for _ in range(2):
            for got, expected in zip(run(), want, strict=True):
                assert_bit_equal(got, expected)


@pytest.mark.parametrize("net", ["50-130-37-10", "50-131r-70cr-10s"])
def test_bfloat16_weights_are_float32_weights_rounded(net: str) -> None:
    network, spikes = parse_net(net, grad_threshold=0.4), random_spikes(3, 23, 7, 50, 0.1)
    rounded, half = (strong_model(network, 5) for _ in range(2))
    with torch.no_grad():
        for name, parameter in rounded.named_parameters():
            if "->" in name:
                parameter.copy_(parameter.bfloat16())
    for layer in half.layers.values():
        layer.weight_dtype = "bfloat16"
    want_output, want = rounded(spikes), gradients(rounded, spikes)
    for isa in _core.build_info()["isa_supported"]:
        _core.set_isa(isa)
        half.zero_grad()
        output, got = half(spikes), gradients(half, spikes)
        for name in want_output.spikes:
            assert_bit_equal(output.spikes[name].ids, want_output.spikes[name].ids)
        for name in want:
            assert_bit_equal(got[name], want[name])
    assert any(not torch.equal(a, b) for a, b in zip(half.parameters(), rounded.parameters(), strict=True))


def test_bfloat16_is_for_the_engine() -> None:
    with pytest.raises(
        DescriptionError, match="weight_dtype is 'bfloat16' with backend 'dense'; only backend 'cpu' or 'gpu' reads it"
    ):
        Model(parse_net("3-4-2"), backend="dense", weight_dtype="bfloat16")
    with pytest.raises(DescriptionError, match="weight_dtype is 'half'; allowed: float32, bfloat16"):
        Model(parse_net("3-4-2"), weight_dtype="half")


@pytest.mark.parametrize("weight_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("graded", [False, True])
def test_several_delays_read_source_by_source_give_the_same_bits(graded: bool, weight_dtype: str) -> None:
    """Senders whose weights do not fit a cache are read one after the other; silent senders do not change a sum."""
    n_steps, n_samples, n_few, n_many = 37, 97, 45, 9100  # several blocks of steps, the last ones not whole
    spikes = random_spikes(3, n_steps, n_samples, n_few).to_dense()
    if graded:
        spikes *= torch.linspace(0.5, 1.5, n_few)
    found = []
    for n in (n_few, n_many):
        chain = Network.chain(Input(n), LIF(37, grad_threshold=0.5, bias=True), LI(5)).with_delays([2, 0, 3])
        model = Model(chain, seed=0, weight_dtype=weight_dtype)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for weight in model.layers["hidden"].weights:
                weight[:n_few] = 0.3 * torch.randn(n_few, 37, generator=generator)
            model.layers["hidden"].bias.copy_(torch.linspace(-0.1, 0.2, 37))
            model.layers["output"].weights[0].copy_(torch.randn(37, 5, generator=generator))
        wide = torch.zeros(n_steps, n_samples, n)
        wide[..., :n_few] = spikes
        output = model(SpikeBatch.from_dense(wide, graded=graded))
        loss_of(output).backward()
        gradients = [weight.grad[:n_few] for weight in model.layers["hidden"].weights]
        found.append([output.potentials.detach(), *gradients])
    assert all(x.any() for x in found[0])
    assert all(torch.equal(few, many) for few, many in zip(*found, strict=True))


@pytest.mark.parametrize("net", ["20-40-30-5", "20-40cr-30r-5", "20-40r-6s"])
@pytest.mark.parametrize("delay", [0, 1, 3])
@pytest.mark.parametrize("capacity", [None, 4])
@pytest.mark.parametrize("backend", ["cpu", "dense"])
def test_chunks_equal_one_call(net: str, delay: int, capacity: int | None, backend: str) -> None:
    if backend == "dense" and capacity:
        pytest.skip("the dense backend has no lists that could be full")
    network = parse_net(net, capacity=capacity)
    network = network.with_delay(delay)
    model = strong_model(network, 1, backend)
    spikes = random_spikes(2, 12, 3, 20)
    assert_chunks_equal_one_call(model, spikes)


def assert_chunks_equal_one_call(model: Model, spikes: SpikeBatch) -> None:
    restart(model)
    whole = model(spikes)
    restart(model)
    state, parts = None, []
    for start, stop in [(0, 1), (1, 3), (3, 10), (10, 12)]:
        parts.append(model(spikes.steps(start, stop), state))
        state = parts[-1].state
    for name, lists in whole.spikes.items():
        pieces = [p.spikes[name] for p in parts]
        if model.backend == "dense":
            assert torch.equal(torch.cat(pieces), lists)
        else:
            assert torch.equal(torch.cat([p.ids.int() for p in pieces]), lists.ids.int())
            assert torch.equal(torch.cat([p.n_spikes for p in pieces]), lists.n_spikes)
    # A matrix product of other height may sum in another order; the engine never does.
    equal = torch.testing.assert_close if model.backend == "dense" else assert_bit_equal
    if whole.potentials is not None:
        equal(torch.cat([p.potentials for p in parts]), whole.potentials)
    for name, after in whole.state.items():
        assert after.states.keys() == state[name].states.keys()
        for x, value in after.states.items():
            equal(value, state[name].states[x])


# ---- the choice among candidates of a full list ---------------------------------------------------------------------


def always_firing(n: int, capacity: int) -> Model:
    """Two populations whose neurons all fire in every step."""
    model = Model(Network.chain(Input(3), LIF(n, capacity=capacity), LIF(n, capacity=capacity), LI(2)), seed=5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(9.0)
    return model


def listed(model: Model, spikes: SpikeBatch) -> tuple[bytes, ...]:
    return tuple(bits(lists.ids) for lists in model(spikes).spikes.values())


def test_training_lists_every_neuron_and_layers_drop_different_ones() -> None:
    model, spikes = always_firing(61, 16), SpikeBatch.from_dense(torch.ones(4, 2, 3))
    seen: dict[str, set[int]] = {"hidden1": set(), "hidden2": set()}
    for _ in range(20):
        out = model(spikes)
        one, two = out.spikes["hidden1"], out.spikes["hidden2"]
        assert one.n_dropped() == two.n_dropped() == 4 * 2 * (61 - 16)
        assert bits(one.ids) != bits(two.ids)
        for name, lists in out.spikes.items():
            seen[name] |= set(lists.ids.tolist())
    assert seen == {"hidden1": set(range(61)), "hidden2": set(range(61))}


def test_evaluation_repeats_and_training_goes_on_where_it_was() -> None:
    model, spikes = always_firing(61, 16), SpikeBatch.from_dense(torch.ones(4, 2, 3))
    first = [listed(model, spikes) for _ in range(3)]
    assert len(set(first)) == 3
    with torch.no_grad():
        quiet = listed(model, spikes)
    resumed = always_firing(61, 16)
    resumed.load_state_dict(model.state_dict())
    assert int(resumed.layers["hidden1"].training_steps) == 3
    for module in (model, resumed):
        module.eval()
        assert listed(module, spikes) == listed(module, spikes) == quiet
        module.train()
    assert listed(resumed, spikes) == listed(model, spikes) not in first
    restart(model)
    assert [listed(model, spikes) for _ in range(3)] == first
    old = {name: x for name, x in model.state_dict().items() if "training_steps" not in name}
    resumed.load_state_dict(old)  # of a version that did not count
    assert listed(resumed, spikes) == first[0]


def test_only_layers_with_a_capacity_count() -> None:
    assert not any("training_steps" in name for name in Model(parse_net("4-5-2")).state_dict())
    alone = Layer(LIF(5, capacity=2), n_pre=4)
    alone(random_spikes(0, 3, 2, 4))
    assert int(alone.state_dict()["training_steps"]) == 1


# ---- odd shapes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_steps", "n_samples", "net"),
    [(1, 1, "1-1-1"), (1, 1, "1-1r-1s"), (5, 1, "3-65-2"), (0, 3, "4-5-2"), (4, 0, "4-5r-2"), (2, 7, "129-127-33")],
)
def test_odd_shapes(n_steps: int, n_samples: int, net: str) -> None:
    network = parse_net(net, grad_threshold=0.0)
    n = network.populations["input"].n
    for rate in (0.0, 0.5, 1.0):
        model, dense = strong_model(network, 0), strong_model(network, 0, "dense")
        spikes = random_spikes(0, n_steps, n_samples, n, rate)
        got, want = model(spikes), dense(spikes)
        for name, lists in got.spikes.items():
            assert torch.equal(lists.to_dense(), want.spikes[name])
        if got.potentials is not None:
            torch.testing.assert_close(got.potentials, want.potentials)
        sum(got.counts(name).sum() for name in got.spikes).backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_more_than_65536_neurons_use_wider_ids() -> None:
    population = LIF(65_537, beta=0.5)
    first, second = Layer(population, n_pre=3), Layer(LI(4), n_pre=65_537)
    with torch.no_grad():
        first.weights[0].fill_(0.1)
        first.weights[0][:, -2:] = 2.0
        first.weights[0][:, 0] = 2.0
    out, _ = first(SpikeBatch.from_lists([[[0, 2], []]], 3))
    assert out.ids.dtype == torch.int32
    assert out.ids.tolist()[:3] == [0, 65_535, 65_536]
    potentials, _ = second(out)
    torch.testing.assert_close(potentials[0, 0], second.weights[0][[0, 65_535, 65_536]].sum(0))
    potentials.sum().backward()
    assert second.weights[0].grad[65_536].abs().sum() > 0
    assert first.weights[0].grad[2, 65_536] != 0


# ---- what autograd users expect ------------------------------------------------------------------------------------


def test_no_grad_stores_nothing_and_fires_the_same() -> None:
    model = strong_model(parse_net("20-50r-5"), 0)
    spikes = random_spikes(0, 10, 4, 20)
    with torch.no_grad():
        silent = model(spikes)
    trained = model(spikes)
    lists = silent.spikes["hidden"]
    assert lists.values is None
    assert int(lists.offsets[-1]) == int(lists.n_spikes.sum()), "near-spikes are of no use without a backward pass"
    assert torch.equal(lists.to_dense(), trained.spikes["hidden"].to_dense())
    assert torch.equal(silent.potentials, trained.potentials)


def test_gradients_accumulate_and_split_over_samples() -> None:
    model = strong_model(parse_net("20-50r-5"), 0)
    spikes = random_spikes(0, 10, 6, 20)
    model(spikes).potentials.sum().backward()
    whole = {k: p.grad.clone() for k, p in model.named_parameters()}
    model.zero_grad()
    for half in (spikes[:2], spikes[2:]):
        model(half).potentials.sum().backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, whole[name], rtol=1e-5, atol=1e-5)


def test_writing_weights_between_forward_and_backward_is_caught() -> None:
    model = strong_model(parse_net("20-50-5"), 0)
    loss = model(random_spikes(0, 10, 6, 20)).potentials.sum()
    with torch.no_grad():
        model.layers["hidden"].weights[0].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("array", ["ids", "offsets", "n_spikes"])
@pytest.mark.parametrize("whose", ["input", "hidden", "output", "state history"])
def test_lists_that_change_between_forward_and_backward_are_refused(
    whose: str, array: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network.chain(Input(37), LIF(70, recurrent=True), LIF(33, grad_threshold=-1.0))
    model = strong_model(network, 0)
    spikes, more = random_spikes(0, 12, 3, 37), random_spikes(1, 5, 3, 37)
    state = model(spikes).state
    read: list[SpikeBatch] = []
    engine_lists = engine.engine_lists
    for module in (chain_pass, engine, runner, transforms):
        monkeypatch.setattr(module, "engine_lists", lambda lists: read.append(lists) or engine_lists(lists))
    output = model(more, state)
    (history,) = [one for one in read if one.n_steps == 1]
    changed = {"input": more, "state history": history, **output.spikes}[whose]
    loss = output.counts().sum() + output.counts("hidden").sum()
    getattr(changed, array).numpy()[:] = np.iinfo(np.uint16).max
    with pytest.raises(SpikeListError, match=rf"{array} of the spike lists changed after the forward pass"):
        loss.backward()


def test_buffers_refilled_with_other_lists_before_backward_are_refused() -> None:
    model = strong_model(parse_net("37-70-5"), 0)
    spikes = SpikeBatch.from_lists([[[0, 1, 2], [5]], [[7], []]], 37)
    other = SpikeBatch.from_lists([[[0, 1, 3], [5]], [[7], []]], 37)
    loss = model(spikes).potentials.sum()
    spikes.ids.numpy()[:] = other.ids.numpy()
    with pytest.raises(SpikeListError, match="input: ids of the spike lists changed"):
        loss.backward()
    loss = model(spikes).potentials.sum()  # a new pass reads their new content
    spikes.ids.set_(torch.zeros(3, dtype=torch.uint16))  # the tensor has other memory now; the pass keeps the old one
    loss.backward()
    got = model.layers["hidden"].weights[0].grad.clone()
    model.zero_grad()
    model(other).potentials.sum().backward()
    assert_bit_equal(got, model.layers["hidden"].weights[0].grad)


def test_frozen_weights_get_no_gradient() -> None:
    model = strong_model(parse_net("20-50-30-5"), 0)
    model.layers["hidden1"].weights[0].requires_grad_(False)
    model(random_spikes(0, 10, 6, 20)).potentials.sum().backward()
    assert model.layers["hidden1"].weights[0].grad is None
    assert model.layers["hidden2"].weights[0].grad.abs().sum() > 0


def test_non_contiguous_weights_are_read_right() -> None:
    layer = Layer(LIF(8), n_pre=5)
    spikes = random_spikes(0, 6, 2, 5, 0.6)
    weight = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
    setattr(layer, layer.incoming[0].name, torch.nn.Parameter(weight.T))
    assert not layer.weights[0].is_contiguous()
    out, _ = layer(spikes)
    straight = Layer(LIF(8), n_pre=5)
    setattr(straight, layer.incoming[0].name, torch.nn.Parameter(weight.T.contiguous()))
    assert torch.equal(out.to_dense(), straight(spikes)[0].to_dense())


# ---- hostile input -------------------------------------------------------------------------------------------------


def broken(spikes: SpikeBatch, **changes: object) -> SpikeBatch:
    return SpikeBatch(**{**vars(spikes), **changes})


def test_hostile_lists_are_refused() -> None:
    layer = Layer(LIF(8), n_pre=5)
    good = SpikeBatch.from_lists([[[0, 2, 4], [1]]], 5)
    ids = good.ids.clone()
    ids[2] = 5
    with pytest.raises(SpikeListError, match="list 0 holds id 5; allowed: 0 to 4"):
        layer(broken(good, ids=ids))
    ids = good.ids.clone()
    ids[1] = 0
    with pytest.raises(SpikeListError, match="list 0 does not ascend: id 0 after 0"):
        layer(broken(good, ids=ids))
    with pytest.raises(SpikeListError, match="list 1 has 1 ids but says 2 spikes"):
        layer(broken(good, n_spikes=torch.tensor([3, 2], dtype=torch.int32)))
    with pytest.raises(SpikeListError, match="offsets"):
        layer(broken(good, offsets=torch.tensor([0, 9, 4])))
    with pytest.raises(SpikeListError, match="offsets"):
        layer(broken(good, offsets=torch.tensor([0, 3, 1 << 60])))
    with pytest.raises(ShapeError, match=r"n_spikes is torch\.int32 \[3\]; T=2, B=1"):
        layer(broken(good, n_spikes=torch.tensor([3, 1, 0], dtype=torch.int32)))
    with pytest.raises(ShapeError, match=r"ids is torch\.int32 \[4\]; .*torch\.uint16"):
        layer(broken(good, ids=good.ids.int()))


def test_weights_that_are_not_finite_are_refused() -> None:
    layer = Layer(LIF(8, recurrent=True), n_pre=5)
    spikes = random_spikes(0, 3, 2, 5)
    with torch.no_grad():
        layer.weights[0][3, 7] = math.nan
    with pytest.raises(NumericError, match=r"weight holds NaN at \[3, 7\]"):
        layer(spikes)
    with torch.no_grad():
        layer.weights[0].zero_()
        layer.loop_weight[0, 2] = math.inf
    with pytest.raises(NumericError, match=r"recurrent_weight holds infinity at \[0, 2\]"):
        layer(spikes)


def test_seeds_of_initial_weights() -> None:
    """A model's weights follow from its seed alone; with None, and those of a layer, from PyTorch's generator."""
    network = parse_net("5-4r-3", capacity=2)

    def weights(torch_seed: int, **arguments: Any) -> torch.Tensor:
        torch.manual_seed(torch_seed)
        return torch.cat([p.detach().flatten() for p in Model(network, **arguments).parameters()])

    assert torch.equal(weights(1), weights(2))
    assert torch.equal(weights(1), weights(1, seed=0))
    assert not torch.equal(weights(1), weights(1, seed=1))
    assert torch.equal(weights(1, seed=None), weights(1, seed=None))
    assert not torch.equal(weights(1, seed=None), weights(2, seed=None))
    layers = []
    for torch_seed in (1, 1, 2):
        torch.manual_seed(torch_seed)
        layers.append(Layer(LIF(4), n_pre=5).weights[0])
    assert torch.equal(layers[0], layers[1])
    assert not torch.equal(layers[0], layers[2])


@pytest.mark.parametrize("backend", ["cpu", "dense"])
def test_what_a_layer_returns_is_refused_as_its_input(backend: str) -> None:
    chain = torch.nn.Sequential(Layer(LIF(8), n_pre=5, backend=backend), Layer(LI(3), n_pre=8, backend=backend))
    spikes = random_spikes(0, 3, 2, 5)
    given = spikes if backend == "cpu" else spikes.to_dense()
    kind = "SpikeBatch" if backend == "cpu" else "Tensor"
    with pytest.raises(
        ShapeError, match=rf"LI: got a tuple\({kind}, LayerState\).*its output and its state.*Sequential"
    ):
        chain(given)
    for bad, name in (
        (None, "NoneType"),
        ("spikes", "str"),
        (np.zeros(3), "ndarray"),
        ([spikes, 3], r"list\(SpikeBatch, int\)"),
    ):
        with pytest.raises(ShapeError, match=f"LIF: got a {name}; give the spikes"):
            chain[0](bad)


@pytest.mark.parametrize("backend", ["cpu", "dense"])
@pytest.mark.parametrize(
    "connections",
    [
        (Connection("input", "a", 2), Connection("a", "out")),
        (Connection("input", "a"), Connection("a", "a", 3), Connection("a", "out", 2)),
        (Connection("input", "a", axonal=Delays(3)), Connection("a", "out", axonal=Delays(2))),
        (Connection("input", "a"), Connection("a", "a", axonal=Delays(2)), Connection("a", "out")),
    ],
)
@pytest.mark.parametrize("live", [False, True])
def test_a_state_of_other_samples_is_refused(backend: str, connections: tuple[Connection, ...], live: bool) -> None:
    populations = {"input": Input(10), "a": LIF(6), "out": LI(3)}
    model = Model(Network(populations, connections), backend=backend)
    state = model(random_spikes(0, 5, 4, 10)).state
    run: Any = model
    if live:
        run = model.live()
        run.state = state
    for n_samples in (1, 3, 8):
        with pytest.raises(ShapeError, match=f"(?s)state.*4.*{n_samples}"):
            run(random_spikes(1, 5, n_samples, 10), *([] if live else [state]))
    assert run(random_spikes(1, 5, 4, 10), *([] if live else [state])).potentials.shape == (5, 4, 3)


def test_wrong_shapes_and_dtypes_are_refused() -> None:
    layer = Layer(LIF(8), n_pre=5)
    with pytest.raises(ShapeError, match="input has T=3, B=2, N=6; this layer needs T=3, B=2, N=5"):
        layer(random_spikes(0, 3, 2, 6))
    with pytest.raises(ShapeError, match=r"LIF: got the spikes of 2 sources; it has 1 \(n_pre\)"):
        layer([random_spikes(0, 3, 2, 5)] * 2)
    with pytest.raises(ShapeError, match="is torch.float64 on cpu; the cpu engine computes in float32"):
        layer.double()(random_spikes(0, 3, 2, 5))
    model = Model(parse_net("6-5-2"))
    with pytest.raises(ShapeError, match="input has 5 neurons; the network's 'input' has 6"):
        model(random_spikes(0, 3, 2, 5))
    state = model(random_spikes(0, 3, 2, 6)).state
    with pytest.raises(ShapeError, match="state v has shape"):
        model(random_spikes(0, 3, 4, 6), state)
    with pytest.raises(
        ShapeError, match=r"input is a tensor \[3, 2, 6\]; give spike lists: SpikeBatch.from_dense\(spikes\)"
    ):
        model(torch.zeros(3, 2, 6))  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="input is a list; give a SpikeBatch"):
        model([])  # type: ignore[arg-type]
    with pytest.raises(DescriptionError, match="network is '6-5-2'; give a Network, such as parse_net"):
        Model("6-5-2")  # type: ignore[arg-type]
    with pytest.raises(DescriptionError, match="'hidden2' is not a spiking population; allowed: hidden"):
        model(random_spikes(0, 3, 2, 6)).counts("hidden2")


def test_a_model_is_copied_with_its_network() -> None:
    model = Model(parse_net("6-5r-2"), seed=1)
    spikes = random_spikes(0, 3, 2, 6)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert copied.network == model.network
        assert copied.layers["hidden"].weights[0] is not model.layers["hidden"].weights[0]
        assert torch.equal(copied(spikes).potentials, model(spikes).potentials)


def test_what_a_session_shows() -> None:
    model = Model(parse_net("6-5-2", threshold=0.01, grad_threshold=-math.inf))
    spikes = SpikeBatch.from_dense(torch.ones(3, 2, 6))
    assert repr(spikes) == "SpikeBatch(T=3, B=2, N=6: 36 spikes, activity 100 %)"
    output = model(spikes)
    hidden = output.spikes["hidden"]
    assert isinstance(hidden, SpikeBatch)
    n, near = int(hidden.n_spikes.sum()), 30 - int(hidden.n_spikes.sum())
    assert repr(hidden) == f"SpikeBatch(T=3, B=2, N=5: {n} spikes, {near} near-spikes, activity {100 * n / 30:.3g} %)"
    assert repr(output) == f"Output(potentials [3, 2, 2], activity hidden {100 * n / 30:.3g} %)"


def test_gradients_of_many_senders() -> None:
    """More senders than are sorted at a time: those of some neurons are the same where these are the only ones."""
    some = torch.arange(7_900, 8_500)
    gradients = []
    for of in (torch.arange(17_001), some):
        model = Model(parse_net(f"3-{len(of)}-5", grad_threshold=0.2), seed=1)
        generator = torch.Generator().manual_seed(2)
        drawn = {
            "hidden": torch.rand(3, 17_001, generator=generator),
            "output": torch.rand(17_001, 5, generator=generator),
        }
        weights = {name.split("->")[-1]: p for name, p in model.named_parameters() if "->" in name}
        with torch.no_grad():
            weights["hidden"].copy_(drawn["hidden"][:, of])
            weights["output"].copy_(drawn["output"][of])
        output = model(random_spikes(3, 5, 11, 3))
        assert output.potentials is not None
        times = torch.rand(5, 11, 5, generator=torch.Generator().manual_seed(4))
        (output.potentials * times).sum().backward()
        rows = slice(None) if len(of) == len(some) else some
        found = [weights["hidden"].grad, weights["output"].grad]
        assert found[0] is not None
        assert found[1] is not None
        gradients.append((found[0][:, rows], found[1][rows]))
    for of_all, alone in zip(*gradients, strict=True):
        assert alone.abs().sum() > 0
        assert torch.equal(of_all, alone)
