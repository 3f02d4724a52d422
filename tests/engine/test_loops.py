"""Recurrent connections with delays, several to a population, on the engine, against autograd and the reference."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from sparsesnn import _core, reference, set_num_threads
from sparsesnn.delays import Delays
from sparsesnn.engines.cpu.wiring import spec_arguments
from sparsesnn.engines.module import Model
from sparsesnn.errors import ShapeError
from sparsesnn.layers import LI, LIF, AdLIF, CubaLIF, Input, Neuron, Resonator
from sparsesnn.network import Connection, Network
from sparsesnn.reference import Parameters
from sparsesnn.spikes import SpikeBatch
from sparsesnn.synapses import Dense, Sparse, sparse

DELAYS = [(1, 5), (3,), (2, 7, 1), (40, 2)]
#: Loops this strong and a slope of 10 amplify rounding: the reference in float32 is up to 2e-5 from that in float64, and so
#: are the engine and dense products, which add in different orders; PyTorch's depend on the processor.
ROUNDING = 1e-4
MODELS: list[tuple[type[Neuron], dict[str, Any]]] = [
    (LIF, {}),
    (LIF, {"reset": "zero", "detach_reset": False}),
    (CubaLIF, {"learn_alpha": True}),
    (AdLIF, {"q": 5.0, "gain": 5.0, "learn_a": True}),
    (Resonator, {"learn_turn": True}),
]


def network_of(delays: tuple[int, ...], population: Neuron) -> Network:
    loops = tuple(Connection("b", "b", delay) for delay in delays)
    return Network(
        {"a": Input(19), "b": population, "c": LI(5)}, (Connection("a", "b", 1), *loops, Connection("b", "c"))
    )


def model_of(network: Network, seed: int = 0, **options: Any) -> Model:
    model = Model(network, seed=seed, **options)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "->" in name:
                parameter.mul_(4)
    return model


def spikes_of(seed: int, n_steps: int = 13, n_samples: int = 3) -> SpikeBatch:
    generator = torch.Generator().manual_seed(seed)
    return SpikeBatch.from_dense((torch.rand(n_steps, n_samples, 19, generator=generator) < 0.3).float())


def gradients_of(model: Model, spikes: SpikeBatch) -> dict[str, torch.Tensor]:
    """Of a loss that spikes and potentials enter; with the spikes."""
    model.zero_grad()
    output = model(spikes)
    lists = output.spikes["b"]
    dense = lists.to_dense() if isinstance(lists, SpikeBatch) else lists
    assert output.potentials is not None
    generator = torch.Generator().manual_seed(1)
    loss = sum((x * torch.randn(x.shape, generator=generator)).sum() for x in (dense, output.potentials))
    loss.backward()  # type: ignore[union-attr]
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"spikes": dense.detach(), **found}


@pytest.mark.parametrize("delays", DELAYS, ids=str)
@pytest.mark.parametrize(("kind", "more"), MODELS, ids=str)
def test_the_engine_gives_the_gradients_of_autograd(
    kind: type[Neuron], more: dict[str, Any], delays: tuple[int, ...]
) -> None:
    for seed, n in enumerate((37, 70)):
        network = network_of(delays, kind(n, grad_threshold=-math.inf, learn_beta=True, bias=True, **more))
        want = gradients_of(model_of(network, seed, backend="dense", dense_mode="hoist"), spikes_of(seed))
        assert 0.02 < float(want["spikes"].mean()) < 0.6
        got = gradients_of(model_of(network, seed), spikes_of(seed))
        assert torch.equal(got["spikes"], want["spikes"])
        assert got.keys() == want.keys()
        for name, x in want.items():
            cancels = 10 if x.numel() == 1 else 1  # one number for all neurons and steps: terms of either sign
            assert float((got[name] - x).norm()) <= ROUNDING * cancels * float(x.norm()), name


SPARSE_LOOPS = [[Sparse(0.02), Dense(), Sparse(0.2)], [Sparse(mask=np.eye(133, k=3) > 0)], [Dense(), Sparse(0.015)]]


@pytest.mark.parametrize("kinds", SPARSE_LOOPS, ids=lambda kinds: "-".join(type(k).__name__ for k in kinds))
@pytest.mark.parametrize("weight_dtype", ["float32", "bfloat16"])
def test_sparse_loops_give_the_bits_of_matrices(
    kinds: list[Any], weight_dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loops = tuple(Connection("b", "b", 1 + 3 * k, synapses=kind) for k, kind in enumerate(kinds))
    population = LIF(133, grad_threshold=0.2, reset="zero", detach_reset=False)
    network = Network(
        {"a": Input(19), "b": population, "c": LI(5)}, (Connection("a", "b"), *loops, Connection("b", "c"))
    )
    found = []
    for densest in (1 / 32, 0.0):
        monkeypatch.setattr(sparse, "DENSEST", densest)
        model = model_of(network, weight_dtype=weight_dtype)
        found.append(gradients_of(model, spikes_of(5)))
        assert bool(model.layers["b"].wiring.rows) == (densest > 0)
    assert found[0].keys() == found[1].keys()
    for name, x in found[0].items():
        assert x.abs().max() > 0, name
        assert torch.equal(x, found[1][name]), name


def test_threads_give_the_same_bits() -> None:
    network = network_of((2, 7, 1), AdLIF(70, q=5.0, gain=5.0, learn_a=True, capacity=11))
    found = []
    try:
        for threads in (1, 3):
            set_num_threads(threads)
            found.append(gradients_of(model_of(network), spikes_of(1, 140, 11)))
    finally:
        set_num_threads(1)
    for name, x in found[0].items():
        assert torch.equal(x, found[1][name]), name


@pytest.mark.parametrize("weight_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("graded", [False, True])
def test_a_large_layer_gives_a_sample_the_bits_that_it_has_alone(graded: bool, weight_dtype: str) -> None:
    """Large weights and many rows: sources go first, tile by tile, in blocks of samples, or of steps where these are many."""
    loops = (Connection("b", "b", 3), Connection("b", "b", axonal=Delays(4, learn=True)))
    sources = (Connection("a", "b", 2), Connection("a", "b"))
    network = Network(
        {"a": Input(200), "b": LIF(430, bias=True, grad_threshold=0.5), "c": LI(5)},
        (*sources, *loops, Connection("b", "c")),
    )
    model = Model(network, seed=0, weight_dtype=weight_dtype)
    with torch.no_grad():
        model.layers["b"].bias.copy_(torch.linspace(-0.1, 0.2, 430))
    generator = torch.Generator().manual_seed(0)

    def output_of(spikes: torch.Tensor) -> tuple[torch.Tensor, SpikeBatch]:
        output = model(SpikeBatch.from_dense(spikes, graded=graded))
        lists = output.spikes["b"]
        assert isinstance(lists, SpikeBatch)
        assert output.potentials is not None
        return output.potentials, lists

    try:
        for threads, n_steps, n_samples in ((1, 37, 17), (3, 37, 17), (2, 600, 1), (2, 520, 2)):
            set_num_threads(threads)
            spikes = (torch.rand(n_steps, n_samples, 200, generator=generator) < 0.05).float()
            if graded:
                spikes *= torch.linspace(0.5, 1.5, 200)
            potentials, lists = output_of(spikes)
            assert 0.01 < lists.activity() < 0.5
            alone = [output_of(spikes[:64, b : b + 1]) for b in range(n_samples)]  # too few rows for that
            n = min(64, n_steps)
            assert torch.equal(potentials[:n], torch.cat([x for x, _ in alone], 1))
            for b, (_, of_sample) in enumerate(alone):
                whole = lists.samples([b]).steps(0, n)
                assert torch.equal(whole.ids, of_sample.ids)
                assert torch.equal(whole.n_spikes, of_sample.n_spikes)
            if n_steps > n:  # the rest equals the second part of a sequence in two calls
                first = model(SpikeBatch.from_dense(spikes[:500], graded=graded))
                rest = model(SpikeBatch.from_dense(spikes[500:], graded=graded), first.state)
                assert rest.potentials is not None
                assert torch.equal(potentials[500:], rest.potentials)
    finally:
        set_num_threads(1)


@pytest.mark.parametrize("delays", DELAYS, ids=str)
@pytest.mark.parametrize(
    "rules", [{"capacity": 9}, {"grad_threshold": 0.5}, {"capacity": 7, "activity": "fixed"}], ids=str
)
def test_lists_and_gradients_are_those_of_the_reference(delays: tuple[int, ...], rules: dict[str, Any]) -> None:
    for seed, more in enumerate(({}, {"reset": "zero", "detach_reset": False, "learn_beta": True})):
        network = network_of(delays, LIF(33, bias=True, **{"grad_threshold": 0.2, **rules}, **more))
        model, spikes = model_of(network, seed), spikes_of(seed)
        output = model(spikes)
        lists = output.spikes["b"]
        assert isinstance(lists, SpikeBatch)
        parameters = {name: Parameters.from_layer(layer, np.float32) for name, layer in model.layers.items()}
        step = getattr(model.layers["b"], "training_steps", None)
        records = reference.network_forward(
            network, parameters, spikes.to_dense().numpy(), seed=seed, training_step=0 if step is None else int(step)
        )
        want = reference.to_lists(records["b"])
        np.testing.assert_array_equal(lists.ids.numpy(), want.ids)
        np.testing.assert_array_equal(lists.offsets.numpy(), want.offsets)
        d_out = np.random.default_rng(seed).normal(size=(13, 3, 5)).astype(np.float32)
        assert output.potentials is not None
        (output.potentials * torch.from_numpy(d_out)).sum().backward()
        gradients = reference.network_backward(network, parameters, records, {"c": d_out})["b"]
        layer = model.layers["b"]
        pairs = [*zip(layer.loop_matrices, gradients.loops, strict=True)]  # type: ignore[arg-type]
        pairs += [*zip(layer.sender_weights, gradients.weights, strict=True), (layer.bias, gradients.bias)]  # type: ignore[arg-type]
        for k, (parameter, expected) in enumerate(pairs):
            error = np.linalg.norm(parameter.grad.numpy() - expected)
            assert error <= 1e-5 * max(1e-12, float(np.linalg.norm(expected))), (seed, k)


@pytest.mark.parametrize("delays", DELAYS, ids=str)
def test_chunks_equal_one_call(delays: tuple[int, ...]) -> None:
    model, spikes = model_of(network_of(delays, LIF(40))), spikes_of(3)
    with torch.no_grad():
        whole, state, parts = model(spikes), None, []
        for first, last in ((0, 4), (4, 6), (6, 13)):
            output = model(spikes.steps(first, last), state)
            state = output.state
            parts.append(output.potentials)
    assert torch.equal(torch.cat(parts), whole.potentials)  # type: ignore[arg-type]


def test_the_gradient_of_a_later_chunk_counts_the_spikes_before_it() -> None:
    found = {}
    for backend in ("cpu", "dense"):
        model = model_of(network_of((1, 5), LIF(40, grad_threshold=-math.inf)), backend=backend)
        with torch.no_grad():
            state = model(spikes_of(3).steps(0, 8)).state
        output = model(spikes_of(3).steps(8, 13), state)
        output.potentials.square().sum().backward()  # type: ignore[union-attr]
        found[backend] = [weight.grad for weight in model.layers["b"].loop_matrices]
    for got, want in zip(found["cpu"], found["dense"], strict=True):
        assert got is not None
        assert want is not None
        assert float((got - want).norm()) <= ROUNDING * float(want.norm())


def test_a_history_that_is_too_short_is_refused() -> None:
    model = model_of(network_of((1, 5), LIF(40)))
    state = model(spikes_of(3)).state
    state["b"].history = state["b"].history.steps(1, 5)
    with pytest.raises(ShapeError, match="4 steps; this layer receives spikes 5 steps later"):
        model(spikes_of(3), state)


def test_a_loop_without_delay_is_refused() -> None:
    layer = model_of(network_of((1,), LIF(16))).layers["b"]
    lists = _core.Lists(np.zeros(2, np.int64), np.empty(0, np.uint16), np.zeros(1, np.int32))
    number = np.ones(16, np.float32)
    call = _core.LayerCall(
        _core.LayerSpec(**spec_arguments(layer, False, set())),  # type: ignore[arg-type]
        sources=[_core.Source(19, 0, np.zeros((19, 16), np.float32))],
        states=["v"],
        entries=4 * [number],
        derivatives=[],
        grad_threshold=number,
        loops=[_core.Loop(np.zeros((16, 16), np.float32), 0)],
    )
    chain = _core.Chain([False])
    chain.add_layer("b", call, [0], [False], [False], [False], False)
    with pytest.raises(ShapeError, match="a loop has delay 0; allowed: 1 or more"):
        chain.forward([lists], 1, 1, [(0, 0, None, None, None, None, False)])
