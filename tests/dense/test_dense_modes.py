"""The modes of the dense baseline compute the same: each against the reference, and the special cases of `fused`."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from sparsesnn import _core, reference, set_num_threads
from sparsesnn.engines.dense import DenseSpikes, SpikesByName, choose_mode, fused, layer
from sparsesnn.engines.module import Layer, Model
from sparsesnn.errors import DescriptionError, MissingDependencyError, ShapeError
from sparsesnn.layers import LI, LIF, CubaLIF, Input, Neuron
from sparsesnn.network import Connection, Network, parse_net
from sparsesnn.spikes import SpikeBatch
from sparsesnn.surrogate import KINDS, Surrogate

EAGER = ["step", "hoist", "fused"]
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
RESETS = [("subtract", False), ("subtract", True), ("zero", False), ("none", False)]


@pytest.fixture
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of three steps, so that short sequences cross their borders."""
    for device in DEVICES:
        monkeypatch.setattr(fused.kit_of(torch.device(device)), "ROWS", 1)
        monkeypatch.setattr(fused.kit_of(torch.device(device)), "MIN_STEPS", 3)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """The processor, and a GPU if there is one."""
    return str(request.param)


def random_spikes(n_steps: int, n_samples: int, n: int, seed: int = 0, rate: float = 0.3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(n_steps, n_samples, n, generator=generator) < rate).double()


def learning_layer(population: Neuron, mode: str, delays: tuple[int, ...] = (0, 2)) -> Layer:
    """Weights large enough that the population fires often."""
    generator = torch.Generator().manual_seed(3)
    layer = Layer(population, [7, 5], delays=delays, backend="dense", dense_mode=mode, generator=generator).double()
    with torch.no_grad():
        for weight in layer.weights:
            weight.mul_(2.5)
        if layer.bias is not None:
            layer.bias.copy_(torch.linspace(-0.1, 0.1, population.n))
    return layer


def check_against_reference(
    layer: Layer, n_steps: int = 11, n_samples: int = 3, tolerance: float = 1e-9, device: str = "cpu"
) -> None:
    """Output and all gradients; with delays 0 and 2 the second source arrives late."""
    sources = [random_spikes(n_steps, n_samples, m, seed=m).requires_grad_() for m in (7, 5)]
    p = reference.Parameters.from_layer(layer.cpu())
    layer.to(device)
    record = reference.layer_forward(p, [x.detach().numpy() for x in sources])
    d_out = torch.randn(n_steps, n_samples, layer.population.n, dtype=torch.float64)
    out, state = layer(sources)
    want_out = record.v if isinstance(layer.population, LI) else record.spikes
    np.testing.assert_allclose(out.detach().cpu().numpy(), want_out[:-1], rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(state.v.cpu().numpy(), record.v[n_steps - 1], rtol=1e-12, atol=1e-13)
    out.backward(d_out.to(device))
    want = reference.layer_backward(p, record, d_out.numpy())
    pairs = {
        **{f"weight {k}": (w.grad, g) for k, (w, g) in enumerate(zip(layer.sender_weights, want.weights, strict=True))},
        **{f"source {k}": (x.grad, g) for k, (x, g) in enumerate(zip(sources, want.inputs, strict=True))},
    }
    if layer.loop_weight is not None:
        pairs["loop"] = (layer.loop_weight.grad, want.loops[0])
    for name, gradient in {"bias": want.bias, **want.neuron}.items():
        if isinstance(getattr(layer, name, None), torch.nn.Parameter):
            pairs[name] = (getattr(layer, name).grad, gradient)
    for name, (got, gradient) in pairs.items():
        assert np.abs(gradient).max() > 0 or n_steps <= 2, name
        scale = max(np.abs(gradient).max(), 1e-12)
        assert np.abs(got.cpu().numpy() - gradient).max() <= tolerance * scale, (name, layer.population)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("reset", "reset_decays"), RESETS)
@pytest.mark.parametrize("mode", EAGER)
@pytest.mark.usefixtures("short_chunks")
def test_every_model_is_the_reference(mode: str, reset: str, reset_decays: bool, kind: str, device: str) -> None:
    slope = {"fast_sigmoid": 3.0, "straight_through": 1.0, "triangle": 0.4, "boxcar": 0.3}.get(kind, 2.0)
    for model, recurrent, detach, grad_threshold, bias in [
        (LIF, False, True, 0.4, True),
        (LIF, True, False, -math.inf, False),
        (CubaLIF, False, False, -math.inf, False),
        (CubaLIF, True, True, 0.4, True),
    ]:
        more = {"alpha": 0.6, "learn_alpha": True} if model is CubaLIF else {}
        population = model(
            9,
            beta=tuple(np.linspace(0.6, 0.95, 9)) if recurrent else 0.8,
            threshold=0.7,
            grad_threshold=grad_threshold,
            reset=reset,
            reset_decays=reset_decays,
            detach_reset=detach,
            surrogate=Surrogate(kind, slope),
            recurrent=recurrent,
            bias=bias,
            gain=0.9,
            learn_beta=True,
            learn_threshold=True,
            **more,
        )
        check_against_reference(learning_layer(population, mode), device=device)


def negative_thresholds(layer: Layer) -> Layer:
    """As they can become where they learn: the potential 0 before the first step lies above half of them."""
    with torch.no_grad():
        layer.threshold = torch.nn.Parameter(torch.linspace(-0.6, 1.0, layer.population.n, dtype=layer.threshold.dtype))
    return layer


@pytest.mark.parametrize("mode", EAGER)
@pytest.mark.parametrize(("reset", "reset_decays"), RESETS)
@pytest.mark.usefixtures("short_chunks")
def test_nobody_has_fired_before_the_first_step(mode: str, reset: str, reset_decays: bool, device: str) -> None:
    """Outputs and gradients of the reference, of short sequences too, and of one fed in parts."""
    for model, recurrent, detach in [(LIF, False, True), (LIF, True, False), (CubaLIF, False, False)]:
        population = model(
            9, grad_threshold=-1.0, reset=reset, reset_decays=reset_decays, detach_reset=detach,
            recurrent=recurrent, learn_beta=True, learn_threshold=True,
        )  # fmt: skip
        layer = negative_thresholds(learning_layer(population, mode))
        check_against_reference(layer, device=device)
        for parameter in layer.parameters():
            parameter.grad = None
        # the loop has no graph without an arrival
        check_against_reference(layer, n_steps=3 if mode == "step" else 1, device=device)
        sources = [random_spikes(11, 3, m, seed=m) for m in (7, 5)]
        with torch.no_grad():
            whole, end = layer(sources)
            late = torch.cat([torch.zeros_like(sources[1][:2]), sources[1]])
            first, state = layer([sources[0][:1], sources[1][:1]])
            second, state = layer([sources[0][1:], late[1:13]], state)
        torch.testing.assert_close(torch.cat([first, second]), whole, rtol=1e-12, atol=0)
        torch.testing.assert_close(state.v, end.v, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("mode", EAGER)
def test_the_engine_agrees_where_a_threshold_is_negative(mode: str) -> None:
    network = Network.chain(Input(13), LIF(9, grad_threshold=-math.inf, learn_threshold=True), LI(5))
    dense, engine = (Model(network, backend=b, seed=1) for b in ("dense", "cpu"))
    dense.layers["hidden"].dense_mode = mode
    spikes = SpikeBatch.from_dense(random_spikes(9, 3, 13).float())
    outputs = []
    for model in (dense, engine):
        negative_thresholds(model.layers["hidden"])
        outputs.append(model(spikes).potentials)
        outputs[-1].square().mean().backward()
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-5, atol=1e-6)
    for name, parameter in dense.named_parameters():
        want = engine.get_parameter(name).grad
        assert (parameter.grad - want).abs().max() <= 1e-4 * want.abs().max(), name


@pytest.mark.parametrize("mode", EAGER)
@pytest.mark.parametrize("learn_beta", [True, False])
@pytest.mark.usefixtures("short_chunks")
def test_readout_is_the_reference(mode: str, learn_beta: bool, device: str) -> None:
    check_against_reference(learning_layer(LI(4, bias=True, gain=1.3, learn_beta=learn_beta), mode), device=device)


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (2, 3), (3, 1), (30, 2)])
@pytest.mark.usefixtures("short_chunks")
def test_fused_at_odd_lengths(shape: tuple[int, int], device: str) -> None:
    """One step, a chunk less one, a chunk exactly, many; fewer steps than the delay."""
    for recurrent in (False, True):
        population = CubaLIF(9, alpha=0.5, grad_threshold=0.2, threshold=0.6, recurrent=recurrent, learn_beta=True)
        check_against_reference(learning_layer(population, "fused"), *shape, device=device)


def deep_network() -> Network:
    """Delays, a skip connection, recurrence, both models."""
    return Network(
        {
            "input": Input(13),
            "a": LIF(33, recurrent=True, grad_threshold=0.5, bias=True, learn_beta=True),
            "b": CubaLIF(17, alpha=0.7, reset="zero", grad_threshold=0.5, learn_threshold=True),
            "out": LI(3, beta=0.8),
        },
        (
            Connection("input", "a", 2),
            Connection("input", "b"),
            Connection("a", "b", 1),
            Connection("a", "out", 3),
            Connection("b", "out"),
        ),
    )


def loss_and_gradients(model: Model, spikes: SpikeBatch) -> tuple[float, dict[str, torch.Tensor]]:
    """Of a loss on potentials and on hidden spikes."""
    output = model(spikes)
    loss = output.potentials.square().mean() + (output.counts("a") - 2).square().mean() + output.spikes["b"].mean()
    loss.backward()
    return loss.item(), {name: p.grad.cpu() for name, p in model.named_parameters()}


def strong(network: Network, mode: str, dtype: torch.dtype) -> Model:
    model = Model(network, backend="dense", dense_mode=mode, seed=1).to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "->" in name:
                parameter.mul_(2)
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mode", ["hoist", "fused"])
@pytest.mark.usefixtures("short_chunks")
def test_networks_agree(mode: str, dtype: torch.dtype, device: str) -> None:
    """Loss and gradients within 1e-5, relative to the largest, of the plain loop's."""
    spikes = SpikeBatch.from_dense(random_spikes(23, 5, 13))
    want_loss, want = loss_and_gradients(strong(deep_network(), "step", dtype), spikes)
    loss, got = loss_and_gradients(strong(deep_network(), mode, dtype).to(device), spikes)
    assert loss == pytest.approx(want_loss, rel=1e-5)
    for name, gradient in want.items():
        assert gradient.abs().max() > 0, name
        assert (got[name] - gradient).abs().max() <= 1e-5 * gradient.abs().max(), name


# ---- fused -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("short_chunks")
def test_fused_output_is_packed_until_asked_for() -> None:
    model = strong(deep_network(), "auto", torch.float32)
    spikes = SpikeBatch.from_dense(random_spikes(9, 2, 13))
    output = model(spikes)
    assert isinstance(output.spikes, SpikesByName)
    assert list(output.spikes) == ["a", "b"]
    assert len(output.spikes) == 2
    dense = strong(deep_network(), "hoist", torch.float32)(spikes)
    assert output.activity() == pytest.approx(dense.activity())
    assert output.dropped() == {"a": 0, "b": 0}
    for name in ("a", "b"):
        assert output.spikes[name].dtype == torch.float32
        assert output.spikes[name] is output.spikes[name]
        torch.testing.assert_close(output.spikes[name], dense.spikes[name])
        torch.testing.assert_close(output.counts(name), dense.counts(name))


@pytest.mark.parametrize("sizes", [(20, 40, 2), (39, 40, 2), (40, 40, 1), (40, 20, 2)], ids=str)
def test_gradients_of_later_chunks(sizes: tuple[int, int, int]) -> None:
    """With a state, a source that is delayed has more rows than steps."""
    m, n, delay = sizes
    every = {"grad_threshold": -math.inf}
    network = Network(
        {"input": Input(10), "a": LIF(m, **every), "b": LIF(n, **every), "out": LI(2)},
        [Connection("input", "a"), Connection("a", "b", delay), Connection("b", "out")],
    )
    x, found = SpikeBatch.from_dense(random_spikes(13, 6, 10)), []
    for mode in ("step", "fused"):
        model = Model(network, seed=1, backend="dense", dense_mode=mode).double()
        model(x.steps(5, 13), model(x.steps(0, 5)).state).potentials.square().sum().backward()
        found.append([p.grad for p in model.parameters()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


def test_data_with_a_gradient_keeps_it() -> None:
    """Lists whose values carry a gradient, such as another model's output."""
    x = random_spikes(5, 2, 7).float()
    values = torch.ones(int(x.sum()), requires_grad=True)
    model = Model(parse_net("7-9-3", grad_threshold=-math.inf), backend="dense")
    model(replace(SpikeBatch.from_dense(x), values=values)).potentials.sum().backward()
    assert values.grad.abs().max() > 0


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.usefixtures("short_chunks")
def test_a_graph_can_be_used_twice(recurrent: bool, dtype: torch.dtype) -> None:
    """The first backward pass uses up the current's memory (one source is as wide as the population, one is not)."""
    layer = Layer(LIF(7, recurrent=recurrent, grad_threshold=0.2, bias=True), [7, 9], backend="dense").to(dtype)
    sources = [random_spikes(10, 2, n).to(dtype).requires_grad_() for n in (7, 9)]
    out, _ = layer(sources)
    wanted = [layer.weights[0], layer.weights[1], layer.bias, *sources]
    first, second = (torch.autograd.grad(out.sum(), wanted, retain_graph=True) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert a.abs().max() > 0
        assert torch.equal(a, b)


@pytest.mark.usefixtures("short_chunks")
def test_inference_equals_training() -> None:
    layer = learning_layer(CubaLIF(9, recurrent=True), "fused")
    sources = [random_spikes(10, 2, 7), random_spikes(10, 2, 5)]
    with torch.no_grad():
        out, state = layer(sources)
    trained, after = layer(sources)
    assert out.grad_fn is None
    assert torch.equal(out, trained)
    assert torch.equal(state.i_syn, after.i_syn)


def run_kernels(n_steps: int = 6, n_samples: int = 7, n: int = 3001) -> list[np.ndarray]:
    """Forward and backward in float32, large enough that threads share the work, odd enough for every tail."""
    rng = np.random.default_rng(0)
    spec = _core.DenseSpec(shape="current.subtract", fires=True, detach_reset=False, surrogate="sigmoid", slope=7.0)
    f32 = np.float32
    names = _core.neuron_shapes()["current.subtract"]
    assert names == ("A00", "A01", "A11", "u0", "threshold")
    alpha, beta = (rng.uniform(0.5, 1, n).astype(f32) for _ in range(2))
    entries = np.stack([beta, np.full(n, 1.1, f32), alpha, np.full(n, -1, f32), np.ones(n, f32)])
    by = np.zeros((3, *entries.shape), f32)
    by[0, names.index("A00")] = by[1, names.index("A11")] = by[2, names.index("threshold")] = 1
    by[2, names.index("u0")] = -1
    neuron = {"entries": entries, "grad_threshold": np.full(n, 0.5, f32)}
    current, d_out = (rng.normal(0, 0.7, (n_steps, n_samples, n)).astype(f32) for _ in range(2))
    rows = [np.empty((n_steps + 1, n_samples, n), f32) for _ in range(2)]
    state, d_state = ([np.zeros((n_samples, n), f32) for _ in range(2)] for _ in range(2))
    d_bias, *d_parameters = (np.zeros((n_samples, n), f32) for _ in range(4))
    out, d_current = np.empty_like(current), np.empty_like(current)
    _core.dense_forward(spec, current, **neuron, state=state, out=out, fired=None, rows=rows)
    gradients = {"d_state": d_state, "d_current": d_current, "d_bias": d_bias, "d_parameters": d_parameters}
    _core.dense_backward(spec, d_out, **neuron, derivatives=by, rows=rows, **gradients, current=current)
    return [out, d_current, *rows, *state, *d_state, d_bias, *d_parameters]


def test_kernels_are_bit_equal_over_threads_and_instruction_sets(isa: str, threads: int) -> None:
    got = run_kernels()
    set_num_threads(1)
    _core.set_isa("base")
    for a, b in zip(got, run_kernels(), strict=True):
        assert a.tobytes() == b.tobytes()
    assert 0.01 < got[0].mean() < 0.5
    assert np.abs(got[1]).max() > 0


def test_arrays_that_do_not_fit_are_refused() -> None:
    spec = _core.DenseSpec(shape="subtract", fires=True, detach_reset=True, surrogate="fast_sigmoid", slope=1.0)
    entries = np.zeros((4, 4), np.float32)
    current, row, v = np.zeros((2, 3, 4), np.float32), np.zeros(4, np.float32), np.zeros((3, 4), np.float32)

    def forward(**changes: object) -> None:
        arrays = {"entries": entries, "grad_threshold": row, "state": [v], "rows": []}
        _core.dense_forward(spec, current, **{**arrays, "out": None, "fired": None, **changes})

    forward()
    with pytest.raises(ShapeError, match=r"entries has another shape; give \[4, 4\]"):
        forward(entries=np.zeros((4, 5), np.float32))
    with pytest.raises(ShapeError, match="state has 2 arrays; these neurons have 1"):
        forward(state=[v, v])
    with pytest.raises(ShapeError, match="grad_threshold is None; this model needs it"):
        forward(grad_threshold=None)
    with pytest.raises(ShapeError, match=r"rows 0 has another shape; give \[3, 3, 4\]"):
        forward(rows=[np.zeros((2, 3, 4), np.float32)])
    with pytest.raises(TypeError, match="incompatible function arguments"):
        forward(state=[v.astype(np.float64)])
    with pytest.raises(TypeError, match="incompatible function arguments"):
        forward(state=[np.zeros((4, 3), np.float32).T])  # a copy would take the result with it


def test_lists_become_fired_bytes() -> None:
    x = random_spikes(4, 3, 11)
    spikes = DenseSpikes.from_lists(SpikeBatch.from_dense(x), torch.float32, torch.device("cpu"))
    assert torch.equal(spikes.fired, x.bool())
    assert torch.equal(spikes.to_dense(), x.float())
    assert (len(spikes), spikes.ndim, tuple(spikes.shape)) == (4, 3, (4, 3, 11))


# ---- the choice ------------------------------------------------------------------------------------------------------


def test_mode_is_chosen_by_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda", 0)
    assert choose_mode("auto", cpu, torch.float32) == "fused"
    assert choose_mode("auto", cpu, torch.float64) == "fused"
    assert choose_mode("auto", cpu, torch.bfloat16) == "hoist"
    assert choose_mode("step", gpu, torch.float32) == "step"
    monkeypatch.setattr(layer, "has_triton", lambda: True)
    assert choose_mode("auto", gpu, torch.float32) == "fused"
    assert choose_mode("auto", gpu, torch.bfloat16) == "hoist"
    with pytest.raises(DescriptionError, match=r"'fused', but the weights are torch.bfloat16 on cuda:0.*use 'hoist'"):
        choose_mode("fused", gpu, torch.bfloat16)
    monkeypatch.setattr(layer, "has_triton", lambda: False)
    assert choose_mode("auto", gpu, torch.float32) == "hoist"
    with pytest.raises(
        MissingDependencyError, match=r"'fused' on CUDA needs the package 'triton>=3.4'.*sparsesnn\[cuda\]"
    ):
        choose_mode("fused", gpu, torch.float32)


def test_modes_that_mean_nothing_are_refused() -> None:
    with pytest.raises(DescriptionError, match="dense_mode is 'slow'; allowed: auto, step, hoist, fused"):
        Model(parse_net("3-4-2"), backend="dense", dense_mode="slow")
    with pytest.raises(
        DescriptionError, match="dense_mode is 'fused' with backend 'cpu'; only backend 'dense' reads it"
    ):
        Layer(LIF(3), 2, dense_mode="fused")
