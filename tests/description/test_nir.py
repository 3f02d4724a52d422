"""NIR graphs made by hand: their networks, refusals, and files."""

from __future__ import annotations

import math
import os
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.nn.utils import parametrizations, prune

import sparsesnn as ss
from sparsesnn.cli import main
from sparsesnn.errors import DataError, DescriptionError, MissingDependencyError
from sparsesnn.layers import LI, LIF, CubaLIF
from sparsesnn.nir import CONVENTIONS, from_nir, read, readers, readers_text, to_nir, write
from sparsesnn.nir import files as nir_files
from sparsesnn.nir import reading as nir_reading

nir = pytest.importorskip("nir", reason="needs the package nir, in the extra 'nir'")

RNG = np.random.default_rng(0)


def lif(n: int, tau: float = 1e-3, **changes: Any) -> Any:
    values = {"tau": tau, "r": 1.0, "v_leak": 0.0, "v_threshold": 1.0, "v_reset": 0.0} | changes
    return nir.LIF(**{name: np.full(n, value) if np.ndim(value) == 0 else value for name, value in values.items()})


def cuba(n: int, tau_syn: float = 5e-4, tau_mem: float = 1e-3, **changes: Any) -> Any:
    values = {
        "tau_syn": tau_syn,
        "tau_mem": tau_mem,
        "r": 1.0,
        "v_leak": 0.0,
        "v_threshold": 1.0,
        "w_in": 1.0,
    } | changes
    return nir.CubaLIF(**{name: np.full(n, value) for name, value in values.items()})


def linear(post: int, pre: int) -> Any:
    return nir.Linear(RNG.standard_normal((post, pre)).astype(np.float32))


def affine(post: int, pre: int) -> Any:
    return nir.Affine(linear(post, pre).weight, RNG.standard_normal(post).astype(np.float32))


@dataclass(eq=False)
class Odd(nir.NIRNode):  # type: ignore[misc]
    """A node that NIR does not have."""

    def __post_init__(self) -> None:
        self.input_type, self.output_type = {"input": np.array([3])}, {"output": np.array([3])}


def graph(n_in: int, edges: str, **nodes: Any) -> Any:
    """`"input>a>lif>output lif>b>lif"`; input and output nodes are made."""
    pairs = [pair for chain in edges.split() for pair in zip(chain.split(">"), chain.split(">")[1:], strict=False)]
    nodes = {"input": nir.Input({"input": np.array([n_in])}), **nodes}
    nodes.setdefault("output", nir.Output({"output": np.array([1])}))
    return nir.NIRGraph(nodes=nodes, edges=pairs, type_check=False)


def simulate(weight: Any, x: Any, step: Any) -> Any:
    """Spikes [T, N] of one sample x [T, M]; `step(state, current)` returns spikes and state."""
    state, spikes = None, []
    for current in x @ weight.T:
        fired, state = step(state, current)
        spikes.append(fired)
    return np.array(spikes)


def spikes_of(model: ss.Model, x: Any, name: str = "output") -> Any:
    with torch.no_grad():
        out = model(ss.SpikeBatch.from_dense(torch.as_tensor(x, dtype=torch.float32)[:, None]))
    return out.spikes[name].to_dense()[:, 0].numpy()  # type: ignore[union-attr]


# ---- conventions ----------------------------------------------------------------------------------------------------


def test_nir_by_euler() -> None:
    model = from_nir(graph(3, "input>w>n>output", w=linear(2, 3), n=lif(2, 1e-3, r=2.5)), source="nir", dt=1e-4)
    population = model.network.populations["output"]
    assert isinstance(population, LIF)
    assert (population.beta, population.gain, population.reset) == (0.9, 0.25, "zero")
    assert population.grad_threshold == 0.9


def test_surrogate_and_grad_threshold_are_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(nir_reading, "_reported", False)
    of_lif = graph(3, "input>w>n>output", w=linear(2, 3), n=lif(2, v_threshold=2.0))
    of_li = graph(3, "input>w>n>output", w=linear(2, 3), n=nir.LI(np.full(2, 1e-3), np.ones(2), np.zeros(2)))
    chosen: dict[str, Any] = {"surrogate": ss.atan(3), "grad_threshold": -math.inf}
    from_nir(of_li, source="nir", dt=1e-4)
    population: Any = from_nir(of_lif, source="nir", dt=1e-4, **chosen).network.populations["output"]
    assert (population.surrogate, population.grad_threshold) == (ss.atan(3), -math.inf)
    assert caplog.messages == []
    for _ in range(2):
        population = from_nir(of_lif, source="nir", dt=1e-4).network.populations["output"]
    assert (population.surrogate, population.grad_threshold) == (ss.fast_sigmoid(10), 1.8)
    (message,) = caplog.messages
    for fact in ("surrogate is fast_sigmoid(slope=10)", "grad_threshold is 0.9 times", "atan(alpha=2)"):
        assert fact in message
    population = from_nir(
        of_lif, source="nir", dt=1e-4, surrogate=ss.boxcar(2), grad_threshold="exact"
    ).network.populations["output"]
    assert population.grad_threshold == "exact"


def test_surrogate_and_grad_threshold_are_checked() -> None:
    of_lif = graph(3, "input>w>n>output", w=linear(2, 3), n=lif(2))
    with pytest.raises(DescriptionError, match=r"surrogate is 'atan'; give a Surrogate, such as sparsesnn.atan\(2\)"):
        from_nir(of_lif, source="nir", dt=1e-4, surrogate="atan")  # type: ignore[arg-type]
    with pytest.raises(DescriptionError, match="grad_threshold is 'some'"):
        from_nir(of_lif, source="nir", dt=1e-4, grad_threshold="some")


@pytest.mark.parametrize("beta", [0.1, 0.3, 0.5, 0.7, 0.8187, 0.9, 0.95, 0.99, 0.999, 0.0])
def test_decays_come_back_through_float32(beta: float) -> None:
    """As snnTorch writes them: tau = dt / (1 - beta) in float32, r = tau / dt."""
    stored = np.float32(1e-4) / (np.float32(1) - np.float32(beta))
    node = lif(2, tau=stored.astype(np.float32), r=(stored / np.float32(1e-4)).astype(np.float32))
    model = from_nir(graph(3, "input>w>n>output", w=linear(2, 3), n=node), source="snntorch", reset="subtract")
    population: Any = model.network.populations["output"]
    assert np.float32(population.beta) == np.float32(beta)
    assert population.gain == 1.0


def test_norse_writes_dt_times_tau() -> None:
    """Norse's `to_nir` gives dt / tau_mem_inv as tau, and numbers without a shape; a current jumps by its input."""
    node = nir.CubaLIF(
        tau_syn=torch.tensor(1e-3) / torch.tensor(200.0),
        tau_mem=torch.tensor(1e-3) / torch.tensor(100.0),
        r=torch.tensor(1.0),
        v_leak=torch.tensor(0.0),
        v_threshold=torch.tensor(0.7),
    )
    model = from_nir(graph(3, "input>w>n>output", w=linear(2, 3), n=node), source="norse")
    population: Any = model.network.populations["output"]
    assert isinstance(population, CubaLIF)
    assert population.alpha == pytest.approx(0.8, abs=1e-7)
    assert population.beta == pytest.approx(0.9, abs=1e-7)
    assert population.gain == pytest.approx(0.1, rel=1e-6)
    assert population.threshold == pytest.approx(0.7)
    # what Norse's from_nir reads, and newer versions may write: seconds
    seconds = from_nir(graph(3, "input>w>n>output", w=linear(2, 3), n=lif(2, 1e-2)), source="norse")
    assert seconds.network.populations["output"].beta == 0.9  # type: ignore[union-attr]


def test_sinabs_decays_exponentially() -> None:
    g = graph(3, "input>w>n>output", w=linear(2, 3), n=lif(2, 10.0))
    population: Any = from_nir(g, source="sinabs", reset="subtract").network.populations["output"]
    assert population.beta == math.exp(-0.1)
    assert population.gain == pytest.approx(1 - math.exp(-0.1), rel=1e-6)
    assert population.reset_decays
    assert from_nir(g, source="sinabs", reset="zero", gain="unit").network.populations["output"].gain == 1.0  # type: ignore[union-attr]


def test_rockpool_against_its_loop() -> None:
    """Its order: the input joins the current, both decay, the membrane adds the current; several spikes are not ours."""
    dt, tau_syn, tau_mem = 1e-3, 5e-3, 20e-3
    weight = RNG.uniform(-0.1, 0.3, (7, 11)).astype(np.float32)
    node = cuba(7, tau_syn, tau_mem, r=tau_mem * math.exp(-dt / tau_mem) / dt)
    model = from_nir(
        graph(11, "input>w>n>output", w=nir.Linear(weight), n=node), source="rockpool", dt=dt, reset="subtract"
    )
    alpha, beta = math.exp(-dt / tau_mem), math.exp(-dt / tau_syn)

    def step(state: Any, current: Any) -> Any:
        v, i = state if state is not None else (np.zeros(7), np.zeros(7))
        i = (i + current) * beta
        v = v * alpha + i
        fired = np.floor(np.where(v >= 1, v, 0.0))
        return fired, (v - fired, i)

    x = (RNG.random((300, 11)) < 0.05).astype(np.float32)
    theirs = simulate(weight, x, step)
    assert theirs.max() == 1.0
    assert theirs.sum() > 10
    np.testing.assert_array_equal(spikes_of(model, x), theirs)


def test_spyx_fires_a_step_later() -> None:
    beta, n = 0.8, 6
    w1, w2 = (1.5 * RNG.standard_normal(s).astype(np.float32) for s in ((n, 9), (5, n)))

    def step(v: Any, current: Any) -> Any:
        v = np.zeros(len(current)) if v is None else v
        fired = (v > 1).astype(np.float64)
        return fired, beta * v + current - fired

    x = (RNG.random((80, 9)) < 0.2).astype(np.float32)
    first = simulate(w1, x, step)
    second = simulate(w2, first, step)
    g = graph(9, "input>a>h>b>o>output", a=nir.Linear(w1), h=lif(n, 1 / (1 - beta), r=beta), b=nir.Linear(w2),
              o=lif(5, 1 / (1 - beta), r=beta))  # fmt: skip
    model = from_nir(g, source="spyx", reset="subtract")
    assert [c.delay for c in model.network.connections] == [0, 1]
    np.testing.assert_array_equal(spikes_of(model, x, "hidden")[:-1], first[1:])
    np.testing.assert_array_equal(spikes_of(model, x)[:-1], second[1:])
    assert second.sum() > 10


def test_spyx_writes_the_input_of_a_loop_into_its_weights() -> None:
    """As its exporter does: input → w_rec → lif; it runs input → lif."""
    n = 6
    w, v = 1.5 * RNG.standard_normal((n, 9)), 0.5 * RNG.standard_normal((n, n))
    inner = graph(n, "input>w>n>w n>output", w=nir.Linear(v.astype(np.float32)), n=lif(n, 5.0, r=0.8))
    g = graph(9, "input>a>rnn>output", a=nir.Linear(w.astype(np.float32)), rnn=inner)
    layer: Any = from_nir(g, source="spyx", reset="subtract").layers["output"]
    np.testing.assert_array_equal(layer.weights[0].detach().numpy(), w.astype(np.float32).T)
    np.testing.assert_array_equal(layer.loop_weight.detach().numpy(), v.astype(np.float32).T)


def test_spikingjelly_resets_to_its_rest() -> None:
    node = lif(2, 5e-4, v_leak=0.1, v_reset=0.1, r=5.0)
    population: Any = from_nir(graph(3, "input>w>n>output", w=linear(2, 3), n=node), source="spikingjelly").network.populations["output"]  # fmt: skip
    assert (population.threshold, population.gain, population.reset) == (pytest.approx(0.9), 1.0, "zero")


def test_neurons_that_do_not_leak() -> None:
    g = graph(3, "input>w>n>output", w=linear(2, 3), n=nir.IF(r=np.full(2, 1e4), v_threshold=np.ones(2)))
    population: Any = from_nir(g, source="spikingjelly").network.populations["output"]
    assert (population.beta, population.gain) == (1.0, 1.0)
    endless = lif(2, np.inf, r=np.inf)  # snnTorch's beta=1
    population = from_nir(graph(3, "input>w>n>output", w=linear(2, 3), n=endless), source="snntorch", reset="none").network.populations["output"]  # fmt: skip
    assert (population.beta, population.gain) == (1.0, 1.0)


def test_a_gain_for_each_neuron_goes_into_the_weights() -> None:
    w, loop = affine(2, 3), linear(2, 2)
    g = graph(3, "input>w>n>output n>loop>n", w=w, loop=loop, n=lif(2, 1e-3, r=np.array([1.0, 3.0])))
    model = from_nir(g, source="nir", dt=1e-4)
    layer: Any = model.layers["output"]
    assert layer.population.gain == 1.0
    factor = np.array([0.1, 0.3])
    np.testing.assert_allclose(layer.weights[0].detach().numpy(), w.weight.T * factor, rtol=1e-6)
    np.testing.assert_allclose(layer.loop_weight.detach().numpy(), loop.weight.T * factor, rtol=1e-6)
    np.testing.assert_allclose(layer.bias.detach().numpy(), w.bias * factor, rtol=1e-6)


def test_an_assumed_reset_is_said() -> None:
    g = graph(3, "input>w>n>output", w=linear(2, 3), n=lif(2))
    with pytest.warns(UserWarning, match="graphs of snntorch .* `reset=subtract`, .* is assumed: give `reset`$"):
        assert from_nir(g, source="snntorch").network.populations["output"].reset == "subtract"  # type: ignore[union-attr]
    assert from_nir(g, source="norse").network.populations["output"].reset == "zero"  # type: ignore[union-attr]


# ---- graphs ---------------------------------------------------------------------------------------------------------


def test_what_lies_between_neurons_becomes_one_matrix() -> None:
    a, b, scale = linear(4, 3), affine(5, 4), nir.Scale(np.arange(1.0, 6.0))
    g = graph(
        3,
        "input>flat>a>b>scale>n>output",
        flat=nir.Flatten({"input": np.array([3])}, 0),
        a=a,
        b=b,
        scale=scale,
        n=lif(5),
    )
    layer: Any = from_nir(g, source="nir", dt=1e-4).layers["output"]
    expected = scale.scale[:, None] * (b.weight.astype(float) @ a.weight)
    np.testing.assert_allclose(layer.weights[0].detach().numpy(), expected.T, rtol=1e-6)
    np.testing.assert_allclose(layer.bias.detach().numpy(), scale.scale * b.bias, rtol=1e-6)


def test_skips_delays_loops_and_a_plain_sum_at_the_end() -> None:
    nodes = {
        "a": affine(4, 3), "h1": lif(4), "b": linear(5, 4), "late": nir.Delay(np.full(4, 3e-4)), "h2": cuba(5),
        "skip": linear(5, 3), "loop": affine(5, 5), "c": affine(2, 5), "d": linear(2, 4),
    }  # fmt: skip
    g = graph(3, "input>a>h1>late>b>h2>c>output input>skip>h2>loop>h2 h1>d>output", **nodes)
    model = from_nir(g, source="nir", dt=1e-4)
    network = model.network
    assert list(network.populations) == ["input", "hidden1", "hidden2", "output"]
    found = {(c.pre, c.post): c.delay for c in network.connections if not c.is_recurrent}
    assert found == {("input", "hidden1"): 0, ("input", "hidden2"): 0, ("hidden1", "hidden2"): 3,
                     ("hidden2", "output"): 0, ("hidden1", "output"): 0}  # fmt: skip
    assert isinstance(network.populations["output"], LI)
    assert network.populations["output"].beta == 0.0
    layers: Any = model.layers
    np.testing.assert_array_equal(layers["hidden2"].bias.detach().numpy(), nodes["loop"].bias)
    np.testing.assert_array_equal(layers["hidden2"].loop_weight.detach().numpy(), nodes["loop"].weight.T)
    by_source = dict(zip([c.pre for c in network.senders("hidden2")], layers["hidden2"].sender_weights, strict=True))
    np.testing.assert_array_equal(by_source["input"].detach().numpy(), nodes["skip"].weight.T)
    np.testing.assert_array_equal(by_source["hidden1"].detach().numpy(), nodes["b"].weight.T)
    x = (RNG.random((30, 3)) < 0.3).astype(np.float32)
    with torch.no_grad():
        out = model(ss.SpikeBatch.from_dense(torch.as_tensor(x)[:, None]))
    assert out.potentials is not None
    hidden = [out.spikes[k].to_dense()[:, 0].numpy() for k in ("hidden1", "hidden2")]  # type: ignore[union-attr]
    expected = hidden[1] @ nodes["c"].weight.T + nodes["c"].bias + hidden[0] @ nodes["d"].weight.T
    np.testing.assert_allclose(out.potentials[:, 0].numpy(), expected, atol=1e-5)


def test_inner_graphs_are_taken_apart() -> None:
    inner = graph(4, "input>n>output n>w>n", n=lif(4), w=linear(4, 4), output=nir.Output({"output": np.array([4])}))
    g = graph(3, "input>a>rnn>b>o>output", a=affine(4, 3), rnn=inner, b=linear(2, 4), o=lif(2))
    model = from_nir(g, source="nir", dt=1e-4)
    assert model.network.is_recurrent("hidden")
    assert [(c.pre, c.post) for c in model.network.connections if not c.is_recurrent] == [
        ("input", "hidden"),
        ("hidden", "output"),
    ]


def test_neurons_without_weights_before_them() -> None:
    model = from_nir(graph(4, "input>n>m>output", n=lif(4), m=lif(4)), source="nir", dt=1e-4)
    layer: Any = model.layers["output"]
    np.testing.assert_array_equal(layer.weights[0].detach().numpy(), np.eye(4))


def test_the_input_may_carry_a_batch_axis() -> None:
    g = graph(3, "input>w>n>output", w=linear(2, 3), n=lif(2))
    g.nodes["input"] = nir.Input({"input": np.array([16, 3])})
    assert from_nir(g, source="nir", dt=1e-4).network.populations["input"].n == 3


@pytest.mark.parametrize(
    ("edges", "nodes", "options", "message"),
    [
        ("input>w>n>output", {}, {"source": "brian"}, "`source` is 'brian'; give the library that wrote the graph: nir, snn"),
        ("input>w>n>output", {}, {"source": "nir"}, "`dt`: graphs of 'nir' have no default step; give `dt`"),
        ("input>w>n>output", {}, {"dt": -1.0}, "`dt` is -1.0; give a step above 0"),
        ("input>w>n>output", {}, {"dt": 1.0}, r"node 'n' \(LIF\): tau is 0.001 with a step dt of 1 \(nir\)"),
        ("input>w>n>output", {"n": lif(2, 0.0)}, {}, "tau is 0 with a step"),
        ("input>w>n>output", {}, {"reset": "subtract"}, "`reset` is 'subtract'; allowed for nir: zero"),
        ("input>w>n>output", {}, {"gain": "double"}, "gain is 'double'; give 'unit'"),
        ("input>w>n>output", {"n": lif(2, v_leak=0.3)}, {}, "neuron 0 rests at v_leak = 0.3 and is reset to v_reset = 0"),
        ("input>w>n>output", {"n": lif(2, v_threshold=np.array([1.0, np.nan]))}, {}, "a parameter is NaN"),
        ("input>w>n>output", {"n": lif(3)}, {}, "node 'n': has 3 values for 2 neurons"),
        ("input>w>n>output", {"w": Odd()}, {}, "node 'w': is a Odd; known: LIF"),
        ("input>w>n>output", {"w": nir.Threshold(np.ones(3))}, {}, "node 'n': has 2 neurons, but reads 3 without weights"),
        ("input>w>n>w", {}, {}, "node 'n': its weights imply both 2 and 3 neurons"),
        ("input>w>n>u>w", {"u": linear(3, 2)}, {}, None),
        ("w>v>w input>w>n>output", {"v": linear(3, 2)}, {}, "feeds itself through weights alone"),
        ("input>w>n>u>m>v>n m>output", {"u": linear(2, 2), "m": lif(2), "v": linear(2, 2)}, {}, "feed one another in a loop"),
        ("input>w>n>d>u>n n>output", {"d": nir.Delay(np.full(2, 1e-4)), "u": linear(2, 2)}, {}, "its recurrent path has a delay"),
        ("input>d>w>n>output", {"d": nir.Delay(np.full(3, 1.5e-4))}, {}, "a delay of 0.00015 is not a whole number of steps"),
        ("input>d>w>n>output", {"d": nir.Delay(np.arange(3.0))}, {}, "a connection here has one delay"),
        ("input>w>n>output input>d>w", {"d": nir.Delay(np.full(3, 1e-4))}, {}, "receives .* with delays .* and"),
        ("input>w>n>u>n n>output", {"n": nir.LI(np.full(2, 1.0), np.ones(2), np.zeros(2)), "u": linear(2, 2)}, {}, "has a recurrent path for its potential"),
        ("input>w>n>output", {"second": nir.Input({"input": np.array([3])})}, {}, "the graph has 2 Input nodes"),
        ("input>w>n>output", {"w": nir.Affine(np.ones((2, 3)), np.ones(5))}, {}, "node 'w': 5 biases for 2 rows"),
        ("input>w>w2>n>output", {"w2": linear(2, 7)}, {}, "node 'w2': has 7 columns for 2 inputs"),
        ("input>w>n>output u>m>u", {"u": linear(2, 2), "m": lif(2)}, {}, "node 'm': its only input is itself"),
    ],
)  # fmt: skip
def test_refused(edges: str, nodes: dict[str, Any], options: dict[str, Any], message: str | None) -> None:
    g = graph(3, edges, **({"w": linear(2, 3), "n": lif(2)} | nodes))
    options = {"source": "nir", "dt": 1e-4} | options
    if options["source"] != "nir" or message == "`dt`: graphs of 'nir' have no default step; give `dt`":
        del options["dt"]
    if message is None:  # a loop over one neuron and two matrices is a recurrent population
        assert from_nir(g, **options).network.is_recurrent("output")
        return
    with pytest.raises(DescriptionError, match=message):
        from_nir(g, **options)


@pytest.mark.parametrize(
    ("nodes", "edges", "options", "message"),
    [
        ({"n": cuba(2)}, "", {"reset": "zero"}, r"node 'n' \(CubaLIF\): snnTorch's Synaptic, .* discard the input"),
        (
            {"n": lif(2), "v": linear(2, 2)},
            " n>v>n",
            {"reset": "zero"},
            "RLeaky and RSynaptic with reset_mechanism='zero'",
        ),
        (
            {"n": lif(2)},
            "",
            {"reset": "subtract", "reset_delay": False},
            "'subtract' with reset_delay=False undoes",
        ),
    ],
)
def test_resets_of_snntorch_that_have_no_equal(nodes: Any, edges: str, options: Any, message: str) -> None:
    g = graph(3, "input>w>n>output" + edges, w=linear(2, 3), **nodes)
    with pytest.raises(DescriptionError, match=message):
        from_nir(g, source="snntorch", **options)


def test_not_a_graph() -> None:
    with pytest.raises(DescriptionError, match="graph is a dict; give a nir.NIRGraph, or the path of a NIR file"):
        from_nir({}, source="nir", dt=1.0)


# ---- out and back ---------------------------------------------------------------------------------------------------


def trained(**changes: Any) -> ss.Model:
    """A model with every kind of population, and weights and thresholds other than the defaults."""
    options: dict[str, Any] = {"reset": "zero", "bias": True, "gain": 0.25} | changes
    hidden = LIF(
        9, beta=tuple(np.linspace(0.5, 0.95, 9)), threshold=0.8, learn_threshold=True, recurrent=True, **options
    )
    cuba_lif = CubaLIF(7, alpha=0.8, beta=0.9, **options)
    network = ss.Network(
        {"input": ss.Input(11), "a": hidden, "b": cuba_lif, "out": LI(3, beta=0.75, gain=0.5)},
        (
            ss.Connection("input", "a"),
            ss.Connection("a", "b", 2),
            ss.Connection("input", "b"),
            ss.Connection("b", "out"),
        ),
    )
    model = ss.Model(network, seed=3)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(8.0) if p.ndim == 2 else p.add_(0.03)
    return model


def test_round_trip(tmp_path: Path) -> None:
    model = trained()
    write(tmp_path / "net.nir", to_nir(model, dt=1e-3))
    again = from_nir(tmp_path / "net.nir", source="nir", dt=1e-3)
    x = (torch.rand(100, 4, 11, generator=torch.Generator().manual_seed(0)) < 0.15).float()
    with torch.no_grad():
        first, second = (m(ss.SpikeBatch.from_dense(x)) for m in (model, again))
    for ours, theirs in (("a", "hidden1"), ("b", "hidden2")):
        expected = first.spikes[ours].to_dense()  # type: ignore[union-attr]
        assert expected.sum() > 50
        assert torch.equal(expected, second.spikes[theirs].to_dense())  # type: ignore[union-attr]
    assert first.potentials is not None
    assert second.potentials is not None
    torch.testing.assert_close(first.potentials, second.potentials, rtol=1e-5, atol=1e-5)


def test_weights_make_up_for_a_gain_that_the_reader_ignores() -> None:
    network = ss.Network.chain(ss.Input(5), LIF(4, beta=0.9, gain=0.3, reset="zero"))
    g = to_nir(ss.Model(network), target="norse")
    np.testing.assert_allclose(g.nodes["output"].r, 1.0)
    np.testing.assert_allclose(g.nodes["output"].tau, 1e-2, rtol=1e-6)
    weight = ss.Model(network).layers["output"].weights[0].detach().numpy()  # type: ignore[index,union-attr]
    np.testing.assert_allclose(g.nodes["input_to_output"].weight, weight.T * 3.0, rtol=1e-6)


@pytest.mark.parametrize("target", ["sinabs", "spikingjelly"])
def test_targets_come_back_by_their_conventions(target: str) -> None:
    reset: Any = {"reset": "subtract", "reset_decays": True} if target == "sinabs" else {"reset": "zero"}
    network = ss.Network.chain(ss.Input(5), LIF(4, beta=0.9, gain=0.1, **reset), LIF(3, beta=1.0, **reset))
    model = ss.Model(network)
    again = from_nir(
        to_nir(model, target=target), source=target, reset=reset["reset"], gain="unit" if target == "sinabs" else None
    )
    for name in ("hidden", "output"):
        first, second = model.layers[name], again.layers[name]
        torch.testing.assert_close(second.beta, first.beta)
        gains = [layer.population.gain for layer in (first, second)]
        torch.testing.assert_close(second.weights[0] * gains[1], first.weights[0] * gains[0])  # type: ignore[index]


@pytest.mark.parametrize(
    ("population", "options", "message"),
    [
        (LIF(4), {}, "output: its reset is 'subtract', that of nir is 'zero', and NIR has no other"),
        (LIF(4, reset_decays=True), {"target": "norse"}, "its reset is 'subtract' before the decay, that of norse"),
        (LIF(4, reset="zero", capacity=2), {}, "output: has a capacity of 2, which drops candidates; NIR has none"),
        (
            LIF(4, reset="zero", recurrent=True),
            {"target": "norse"},
            "is recurrent, and norse does not read loops from NIR",
        ),
        (
            LI(4),
            {"target": "snntorch", "readout": "li"},
            "output: is a LI, which snntorch does not support; it supports LIF, CubaLIF",
        ),
        (LIF(4, reset="zero", beta=1.0), {"target": "snntorch"}, "a decay of 1 has no time constant in snntorch"),
        (CubaLIF(4, reset="zero", alpha=1.0), {}, "a decay of 1 has no time constant, and NIR's CubaLIF needs one"),
        (LI(4), {"readout": "spikes"}, "`readout` is 'spikes'; give one of li, membrane, linear"),
        (
            LIF(4, reset="zero"),
            {"target": "brian"},
            "`target` is 'brian'; give the library that will read the graph: nir, snntorch",
        ),
        (LIF(4, reset="zero"), {"dt": 0.0}, "`dt` is 0.0; give the step of the graph's reader"),
    ],
)
def test_what_cannot_be_written(population: Any, options: dict[str, Any], message: str) -> None:
    options = {"dt": 1e-3} | options if options.get("target", "nir") == "nir" else options
    with pytest.raises(DescriptionError, match=message):
        to_nir(ss.Model(ss.Network.chain(ss.Input(5), population)), **options)


def test_a_reset_is_kept_where_that_is_asked_for() -> None:
    model = ss.Model(ss.Network.chain(ss.Input(5), LIF(4)))
    again = from_nir(to_nir(model, target="snntorch", keep_reset=True), source="snntorch", reset="subtract")
    assert again.network.populations["output"] == model.network.populations["output"]


# ---- files and commands ---------------------------------------------------------------------------------------------


def test_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "net.nir"
    with pytest.raises(DataError, match="net.nir: no such file; give one written by a NIR export"):
        read(path)
    path.write_bytes(b"not HDF5 at all" * 100)
    with pytest.raises(DataError, match="net.nir: is damaged or not an HDF5 file"):
        read(path)
    write(path, to_nir(ss.Model(ss.Network.chain(ss.Input(5), LIF(4, reset="zero"))), dt=1.0))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="net.nir: is damaged or not an HDF5 file"):
        read(path)


def test_a_file_that_declares_too_much(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "huge.nir"
    with h5py.File(path, "w") as file:
        file.create_dataset("node/weight", shape=(1 << 20, 1 << 20), dtype="f4", chunks=(1024, 1024))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(
        DataError,
        match=r"node/weight claims 1,099,511,627,776 entries.* in a file of \d,\d+ bytes; allowed: 134,\d+,\d+ bytes",
    ):
        read(path)


def test_a_file_stays_within_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    h5py = pytest.importorskip("h5py")
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")  # opening it would wait for ever
    layout = h5py.VirtualLayout((4, 5), "f4")
    layout[:] = h5py.VirtualSource("pipe", "x", (4, 5))
    changes = {
        "weight is a link to another file, 'pipe'": lambda node: node.update(
            {"weight": h5py.ExternalLink("pipe", "/x")}
        ),
        "weight lies in another file, '/dev/zero'": lambda node: node.create_dataset(
            "weight", (4, 5), "f4", external=[("/dev/zero", 0, 80)]
        ),
        "weight consists of arrays of other files, such as 'pipe'": lambda node: node.create_virtual_dataset(
            "weight", layout
        ),
        "more is a link to a group that contains it": lambda node: node.update({"more": node.parent}),
        "weight claims 1,000,000,000 entries": lambda node: node.create_dataset("weight", (10**9,), "f4"),
        r"is more than 64 groups deep": lambda node: node.create_group("/".join("a" * 100)),
        r"has more than 1,\d+ groups and arrays": lambda node: [
            node.file.require_group("held").update({str(k): k}) or node.update({f"k{k}": h5py.SoftLink("/held")})
            for k in range(50)
        ],
        "weight is object; allowed: numbers and texts": lambda node: node.create_dataset(
            "weight", (2,), h5py.ref_dtype
        ),
        r"entry named .*which is not printable text": lambda node: node.update({b"a\xff": 1}),
    }
    for message, change in changes.items():
        write("net.nir", graph(5, "input>w>n>output", w=linear(4, 5), n=lif(4)))
        with h5py.File("net.nir", "r+") as file:
            node = file["node/nodes/w"]
            if "weight" in message:
                del node["weight"]
            change(node)
        with pytest.raises(DataError, match=rf"net\.nir: .*{message}"):
            read("net.nir")
    write("net.nir", graph(5, "input>w>n>output", w=linear(4, 5), n=lif(4)))
    with h5py.File("net.nir", "r+") as file:
        file.move("node/nodes/w/weight", "held")
        file["node/nodes/w/weight"] = h5py.SoftLink("/held")
    assert from_nir("net.nir", source="nir", dt=1e-3).network.n_weights() == 20
    with pytest.raises(DataError, match="pipe: is a pipe; give a file"):
        read("pipe")


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("many", "the Input node 'input': shape is 'many'; give .* whole numbers"),
        (np.array([np.nan]), r"shape is '\[nan\]'"),
        (np.array([np.inf]), r"shape is '\[inf\]'"),
        (np.array([2.5]), r"shape is '\[2.5\]'"),
        (np.array([1 << 62]), "shape is .*each from"),
        (np.array([1 << 27]), "the Input node: has 134,217,728 neurons; allowed: 1 to 16,777,216"),
        (
            np.array([1 << 14]),
            "reach their counterparts one by one, makes a matrix of 16,384 x 16,384",
        ),
        (np.array([-4]), "the Input node has shape"),
    ],
)
def test_shapes_of_an_input(tmp_path: Path, shape: Any, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    h5py = pytest.importorskip("h5py")
    write(tmp_path / "net.nir", graph(4, "input>n>output", n=lif(1)))
    with h5py.File(tmp_path / "net.nir", "r+") as file:
        del file["node/nodes/input/shape"]
        file["node/nodes/input/shape"] = shape
    assert main(["nir", "show", str(tmp_path / "net.nir"), "--source", "nir", "--dt", "0.001"]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_numbers_of_nodes_have_bounds() -> None:
    for made, message in (
        (graph(4, "input>d>n>output", d=nir.Delay(np.array([np.inf])), n=lif(4)), "has a delay of inf; give a finite"),
        (
            graph(
                1,
                "input>a>b>n>output",
                a=nir.Linear(np.ones((9000, 1))),
                b=nir.Linear(np.ones((9000, 9000))[:, :1]),
                n=lif(9000),
            ),
            "has 1 columns for 9000 inputs",
        ),
        (
            graph(
                9000,
                "input>a>b>n>output",
                a=nir.Linear(np.ones((1, 9000))),
                b=nir.Linear(np.ones((9000, 1))),
                n=lif(9000),
            ),
            "makes a matrix of 9,000 x 9,000; allowed: 67,108,864 elements",
        ),
        (graph(9000, "input>a>n>output", a=nir.Scale(np.ones(9000)), n=lif(9000)), "makes a matrix of 9,000 x 9,000"),
    ):
        with pytest.raises(DescriptionError, match=message):
            from_nir(made, source="nir", dt=1e-3)


def test_paths_that_part_and_meet_many_times_end() -> None:
    n = 40
    nodes = {f"{side}{k}": nir.Linear(np.eye(2, dtype=np.float32) / 2) for k in range(n) for side in "ab"}
    edges = ["input>a0", "input>b0", f"a{n - 1}>n>output", f"b{n - 1}>n"]
    edges += [f"{x}{k}>{y}{k + 1}" for k in range(n - 1) for x in "ab" for y in "ab"]
    model = from_nir(graph(2, " ".join(edges), n=lif(2), **nodes), source="nir", dt=1e-3)
    np.testing.assert_array_equal(model.state_dict()["layers.output.input->output"], np.eye(2))


def test_a_graph_that_nir_cannot_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:  # as some versions do where Norse leaves a number in place of an array
        raise TypeError("Scalar datasets don't support chunk/filter options")

    monkeypatch.setattr(nir, "write", refuse)
    bad = graph(3, "input>w>n>output", w=linear(2, 3), n=lif(2))
    with pytest.raises(DataError, match="net.nir: nir could not write the graph: Scalar datasets"):
        write(tmp_path / "net.nir", bad)
    assert not (tmp_path / "net.nir").exists()


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "nir", None)
    with pytest.raises(MissingDependencyError, match=r"needs the package 'nir', .* pip install 'sparsesnn\[nir\]'"):
        nir_files.nir_package()


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, file = tmp_path / "run", tmp_path / "net.nir"
    options = ["--set", "data.n_samples=40", "--set", "train.epochs=1", "--set", 'net.reset="zero"', "--quiet"]
    assert (
        main(
            [
                "train",
                "synthetic",
                "--net",
                "auto-9r-auto",
                "--no-plots",
                "--no-tensorboard",
                *options,
                "--out",
                str(run),
            ]
        )
        == 0
    )
    assert main(["nir", "export", str(run), str(file), "--dt", "0.001"]) == 0
    assert "for nir" in capsys.readouterr().out
    assert main(["nir", "show", str(file), "--source", "nir", "--dt", "0.001"]) == 0
    shown = capsys.readouterr().out
    assert "hidden: LIF(9) " in shown
    assert "<- input, itself" in shown
    weights, network = tmp_path / "w.safetensors", tmp_path / "net.json"
    assert (
        main(["nir", "import", str(file), str(weights), "--network", str(network), "--source", "nir", "--dt", "0.001"])
        == 0
    )
    from safetensors.torch import load_file

    model = ss.Model(ss.Network.from_json(network.read_text()))
    model.load_state_dict(load_file(weights))
    assert main(["nir", "show", str(file), "--source", "nir"]) == 2
    assert "error: --dt: graphs of 'nir' have no default step; give --dt" in capsys.readouterr().err
    assert main(["nir", "show", str(tmp_path / "none"), "--source", "norse"]) == 1
    assert main(["nir", "export", str(run), str(tmp_path / "no" / "x.nir"), "--dt", "1"]) == 1
    assert main(["nir"]) == 2
    capsys.readouterr()
    # messages about arguments name the options
    for arguments, said in (
        (["export", str(run), str(file)], "error: --dt is missing: the target 'nir' has no default, and a run"),
        (
            ["export", str(run), str(file), "--target", "me"],
            "error: --target is 'me'; give the library that will read the graph: nir",
        ),
        (
            ["export", str(run), str(file), "--target", "snntorch"],
            "is recurrent, and snntorch does not read loops from NIR correctly; use --target nir",
        ),
        (["show", str(file), "--source", "me"], "error: --source is 'me'; give the library that wrote the graph"),
        (
            ["show", str(file), "--source", "norse", "--reset", "x"],
            "error: --reset is 'x'; allowed for norse: zero",
        ),
        (["show", str(file), "--source", "norse", "--dt", "0"], "error: --dt is 0.0; give a step above 0"),
        (["show", str(file), "--source", "snntorch", "--reset", "zero"], "there, and give --no-reset-delay"),
    ):
        assert main(["nir", *arguments]) == 2
        assert said in capsys.readouterr().err
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["nir", "show", str(file), "--source", "snntorch", "--dt", "1e-4"]) == 0
    said = capsys.readouterr().err
    assert "sparsesnn: warning: graphs of snntorch" in said
    assert "--reset subtract, the library's default, is assumed: give --reset\n" in said


def test_show_without_a_source_lists_the_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "net.nir"
    write(file, to_nir(ss.Model(ss.parse_net("5-4r-3", reset="zero", beta=0.9)), dt=1e-3))
    assert main(["nir", "show", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    (hidden,) = [line for line in lines if line.startswith("hidden: ")]
    for options, found in (
        ([], "surrogate=fast_sigmoid:10 grad_threshold=0.9 "),
        (["--surrogate", "atan:2", "--grad-threshold=-inf"], "surrogate=atan:2 grad_threshold=-inf "),
        (["--surrogate", "triangle", "--grad-threshold", "exact"], "surrogate=triangle:1 grad_threshold=exact "),
    ):
        assert main(["nir", "show", str(file), "--source", "nir", "--dt", "1e-3", *options]) == 0
        assert found in capsys.readouterr().out
    for option, value, allowed in (
        ("--surrogate", "tan", "fast_sigmoid, straight_through"),
        ("--surrogate", "atan:0", "above 0"),
        ("--grad-threshold", "low", "numbers, -inf, exact"),
    ):
        assert main(["nir", "show", str(file), "--source", "nir", "--dt", "1e-3", option, value]) == 2
        assert re.search(f"{option}: is '{value}'; .*{allowed}", capsys.readouterr().err)
    assert main(["nir", "show", str(file), "--grad-threshold", "1"]) == 2
    assert "--grad-threshold: has an effect only with --source" in capsys.readouterr().err
    assert hidden.startswith("hidden: LIF tau[4] 0.01")
    assert {*hidden.rpartition(" <- ")[2].split(", ")} == {"input_to_hidden", "hidden_recurrent"}
    assert "--source" in lines[-1]
    assert main(["nir", "show", str(file), "--dt", "1"]) == 2
    assert "--dt: has an effect only with --source" in capsys.readouterr().err


def test_linear_readout_is_the_weighted_sum() -> None:
    model = ss.Model(ss.Network.chain(ss.Input(5), LIF(4, reset="zero"), LI(3, gain=2.0, bias=True)))
    graph = to_nir(model, dt=1e-3, readout="linear")
    assert "output" not in graph.nodes
    assert ("hidden_to_output", "output_potentials") in graph.edges
    expected = 2 * getattr(model.layers["output"], "hidden->output").detach().numpy().T
    np.testing.assert_allclose(graph.nodes["hidden_to_output"].weight, expected, rtol=1e-6)


def test_who_reads_a_network() -> None:
    zero = ("only with net.reset=zero",)
    sinabs = ("only with net.reset=subtract, net.reset_decays=true",)
    network = ss.parse_net("5-4-3")
    assert readers(network) == {"nir": zero, "snntorch": zero, "norse": zero, "spikingjelly": zero, "sinabs": sinabs}
    assert "with net.reset=zero by nir, snntorch, norse, spikingjelly" in readers_text(network)
    assert "by nir;" in readers_text(ss.parse_net("5-4r-3", reset="zero")) + ";"
    assert readers(ss.parse_net("5-4-3", reset="zero", capacity=2))["nir"] == ("no capacity",)
    assert "no other library" in readers_text(ss.parse_net("5-4-3", reset="zero", capacity=2))
    assert readers(ss.Network.chain(ss.Input(5), ss.AdLIF(4), LI(3)))["nir"] == ("NIR has no AdLIF",)


def test_a_message_says_the_same_of_arguments_and_of_options() -> None:
    from sparsesnn.commands.nir import _with_options

    with pytest.raises(DescriptionError, match="or give `keep_reset=True` and set") as caught:
        to_nir(ss.Model(ss.Network.chain(ss.Input(5), ss.LIF(3))), dt=1e-3)
    assert "or give --keep-reset and set" in _with_options(str(caught.value))


def test_the_table_of_the_guide_names_every_source() -> None:
    text = (Path(__file__).parents[2] / "docs" / "nir.md").read_text()
    for name, convention in CONVENTIONS.items():
        assert f'| `"{name}"` |' in text
        assert convention.dt is None or f"{convention.dt:g}" in text or "1e-" in text


def test_pruned_weights_are_written_as_a_pass_reads_them() -> None:
    network = ss.Network.chain(ss.Input(5), LIF(4, bias=True, reset="zero"), LI(2))
    model, plain = ss.Model(network), ss.Model(network)
    layer = model.layers["hidden"]
    prune.random_unstructured(layer, "input->hidden", amount=0.5)
    parametrizations.weight_norm(layer, "bias", dim=None)
    with torch.no_grad():
        for p in layer.parameters():
            p.mul_(3).add_(0.1)
    graph = to_nir(model, dt=1e-3)  # before any pass has computed the weights again
    model(ss.SpikeBatch.from_dense(torch.zeros(2, 1, 5)))
    wanted = {name: getattr(layer, name).detach() for name in ("input->hidden", "bias")}
    plain.load_state_dict({**plain.state_dict(), **{f"layers.hidden.{name}": x for name, x in wanted.items()}})
    for name, node in to_nir(plain, dt=1e-3).nodes.items():
        for kind in ("weight", "bias"):
            if hasattr(node, kind):
                np.testing.assert_array_equal(getattr(graph.nodes[name], kind), getattr(node, kind))


# ---- users' own models ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Written(ss.Neuron):
    """A leaky neuron that says how NIR writes it."""

    beta: ss.PerNeuron = ss.parameter(0.9, "decay", low=0, high=1)
    states: ClassVar = ("v",)

    def arrays(self, p: Any) -> ss.NeuronArrays:
        return ss.NeuronArrays(A=[[p["beta"]]], R=[[-p["beta"]]], B=[1])

    def to_nir(self, p: Any, dt: float) -> Any:
        n = len(p["beta"])
        tau, zeros = dt / (1 - p["beta"]), np.zeros(n)
        return nir.LIF(tau=tau, r=tau / dt, v_leak=zeros, v_threshold=p["threshold"], v_reset=zeros)

    @classmethod
    def from_nir(cls, node: Any, dt: float) -> Any:
        return (
            cls(len(node.tau), beta=1 - dt / node.tau, threshold=node.v_threshold)
            if isinstance(node, nir.LIF)
            else None
        )


def test_a_model_of_ones_own_says_how_it_is_written_and_read() -> None:
    network = ss.Network.chain(ss.Input(6), Written(5, beta=[0.5, 0.6, 0.7, 0.8, 0.9], recurrent=True), ss.LI(2))
    options: Any = {"backend": "dense", "dense_mode": "hoist"}
    model = ss.Model(network, seed=1, **options)
    graph = ss.nir.to_nir(model, dt=1.0)
    again = ss.nir.from_nir(graph, source="nir", dt=1.0, neurons=[Written], backend="dense")
    hidden = again.network.populations["hidden"]
    assert type(hidden) is Written
    assert hidden.beta == pytest.approx((0.5, 0.6, 0.7, 0.8, 0.9))
    assert again.network.is_recurrent("hidden")
    for name, tensor in model.state_dict().items():
        if "->" in name:
            torch.testing.assert_close(again.state_dict()[name], tensor)
    with pytest.raises(DescriptionError, match="hidden: its model is Written, which snntorch does not have.*to_nir"):
        ss.nir.to_nir(model, target="snntorch")
    without = ss.Network.chain(ss.Input(6), ss.AdLIF(5), ss.LI(2))
    with pytest.raises(DescriptionError, match="hidden: its model is AdLIF, which NIR does not have.*to_nir"):
        ss.nir.to_nir(ss.Model(without), dt=1.0)
    full = ss.Network.chain(ss.Input(6), Written(5, capacity=2), ss.LI(2))
    with pytest.raises(DescriptionError, match="hidden: has a capacity of 2"):
        ss.nir.to_nir(ss.Model(full), dt=1.0)
