"""NIR's CubaLI, I and Threshold, against loops over NIR's equations; and users' own models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import sparsesnn as ss
from sparsesnn.errors import DescriptionError
from sparsesnn.layers import LI, LIF, CubaLI, CubaLIF
from sparsesnn.nir import from_nir, read, readers, to_nir, write

nir = pytest.importorskip("nir", reason="needs the package nir, in the extra 'nir'")

DT = 1e-3
N, M, T = 5, 7, 60
RNG = np.random.default_rng(3)
WEIGHT = (1.5 * RNG.standard_normal((N, M))).astype(np.float32)
X = (RNG.random((T, M)) < 0.3).astype(np.float32)


def graph(edges: str, **nodes: Any) -> Any:
    """`"input>w>n>output"`; input and output nodes are made."""
    pairs = [pair for chain in edges.split() for pair in zip(chain.split(">"), chain.split(">")[1:], strict=False)]
    nodes = {"input": nir.Input({"input": np.array([M])}), "w": nir.Linear(WEIGHT), **nodes}
    nodes["output"] = nir.Output({"output": np.array([N])})
    return nir.NIRGraph(nodes=nodes, edges=pairs, type_check=False)


def each(value: Any) -> Any:
    return np.broadcast_to(np.asarray(value, np.float64), (N,)).copy()


def cuba_li() -> Any:
    return nir.CubaLI(each(4e-3), each(np.linspace(5e-3, 2e-2, N)), each(2.0), each(0.0), each(3.0))


def run(model: ss.Model) -> ss.Output:
    with torch.no_grad():
        return model(ss.SpikeBatch.from_dense(torch.from_numpy(X)[:, None]))


def potentials_of(node: Any) -> Any:
    """float64[T, N], by Euler's step of NIR's equations."""
    kind = type(node).__name__
    v, i_syn, found = np.zeros(N), np.zeros(N), []
    for x in X.astype(np.float64) @ WEIGHT.T.astype(np.float64):
        if kind == "CubaLI":
            i_syn = i_syn + DT / node.tau_syn * (node.w_in * x - i_syn)
            x = i_syn
        if kind == "I":
            v = v + DT * node.r * x
        else:
            v = v + DT / (node.tau if kind == "LI" else node.tau_mem) * (node.v_leak - v + node.r * x)
        found.append(v)
    return np.array(found)


READOUTS = {
    "CubaLI": cuba_li(),
    "LI": nir.LI(each(np.linspace(3e-3, 2e-2, N)), each(4.0), each(0.0)),
    "I": nir.I(each(150.0)),
}


@pytest.mark.parametrize("name", READOUTS)
def test_readouts(name: str, tmp_path: Path) -> None:
    model = from_nir(graph("input>w>n>output", n=READOUTS[name]), source="nir", dt=DT)
    assert isinstance(model.network.populations["output"], CubaLI if name == "CubaLI" else LI)
    expected = potentials_of(READOUTS[name])
    assert np.abs(expected).max() > 0.5
    write(tmp_path / "net.nir", to_nir(model, dt=DT))
    assert type(read(tmp_path / "net.nir").nodes["output"]).__name__ == name
    for each_model in (model, from_nir(tmp_path / "net.nir", source="nir", dt=DT)):
        potentials = run(each_model).potentials
        assert potentials is not None
        np.testing.assert_allclose(potentials[:, 0].numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", READOUTS)
@pytest.mark.parametrize("leak", [0.0, -0.3])
def test_a_readout_before_a_threshold_is_a_neuron_without_a_reset(name: str, leak: float, tmp_path: Path) -> None:
    membrane = READOUTS[name]
    if name != "I":
        values = {k: x for k, x in vars(membrane).items() if isinstance(x, np.ndarray)}
        membrane = type(membrane)(**{**values, "v_leak": each(leak)})
    threshold = each(np.linspace(0.3, 0.9, N))
    expected = potentials_of(membrane)
    if name != "I":  # NIR's membrane begins at rest; v_leak is that rest
        expected = potentials_of(READOUTS[name]) + leak
    model = from_nir(
        graph(
            "input>w>v>fire>output fire>r>v", v=membrane, fire=nir.Threshold(threshold), r=nir.Linear(np.zeros((N, N)))
        ),
        source="nir",
        dt=DT,
    )
    population = model.network.populations["output"]
    assert type(population) is (CubaLIF if name == "CubaLI" else LIF)
    assert population.reset == "none"  # type: ignore[attr-defined]
    assert model.network.is_recurrent("output")
    fired = expected > threshold
    assert 0.1 < fired.mean() < 0.9
    write(tmp_path / "net.nir", to_nir(model, dt=DT))
    written = read(tmp_path / "net.nir")
    assert type(written.nodes["output_membrane"]).__name__ == name
    assert ("output_recurrent", "output_membrane") in written.edges
    for each_model in (model, from_nir(tmp_path / "net.nir", source="nir", dt=DT)):
        spikes = run(each_model).spikes["output"]
        assert isinstance(spikes, ss.SpikeBatch)
        np.testing.assert_array_equal(spikes.to_dense()[:, 0].numpy() > 0, fired)


def test_a_threshold_alone_has_no_memory(tmp_path: Path) -> None:
    threshold = np.linspace(0.1, 2.0, N)
    model = from_nir(graph("input>w>fire>output", fire=nir.Threshold(threshold)), source="nir", dt=DT)
    expected = threshold < X @ WEIGHT.T
    write(tmp_path / "net.nir", to_nir(model, dt=0.5))  # its graph has no time constant
    assert type(read(tmp_path / "net.nir").nodes["output"]) is nir.Threshold
    for each_model in (model, from_nir(tmp_path / "net.nir", source="nir", dt=DT)):
        spikes = run(each_model).spikes["output"]
        assert isinstance(spikes, ss.SpikeBatch)
        np.testing.assert_array_equal(spikes.to_dense()[:, 0].numpy() > 0, expected)


def test_a_threshold_over_maps(tmp_path: Path) -> None:
    conv = ss.Conv2d(3, 3)
    network = ss.Network(
        {"input": ss.Input(shape=(6, 5, 2)), "maps": LIF(beta=0.8, reset="none", threshold=0.7), "out": LI(2)},
        (ss.Connection("input", "maps", synapses=conv), ss.Connection("maps", "out")),
    )
    model = ss.Model(network, seed=2)
    write(tmp_path / "net.nir", to_nir(model, dt=DT))
    again = from_nir(tmp_path / "net.nir", source="nir", dt=DT)
    x = (torch.rand(9, 2, 60, generator=torch.Generator().manual_seed(0)) < 0.6).float()
    first = x.unflatten(-1, (2, 6, 5)).movedim(2, -1).flatten(2)  # channels last
    lists = [model(ss.SpikeBatch.from_dense(first)).spikes["maps"], again(ss.SpikeBatch.from_dense(x)).spikes["hidden"]]
    assert isinstance(lists[0], ss.SpikeBatch)
    assert lists[0].ids.numel() > 20
    assert torch.equal(lists[0].to_dense(), lists[1].to_dense())  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("edges", "nodes", "message"),
    [
        # a potential that something else reads as well
        ("input>w>v>fire>output v>u>m>output", {"u": nir.Linear(np.ones((2, N))), "m": nir.Threshold(np.ones(2))}, "an LI readout, which never fires"),
        ("input>w>fire>output", {"fire": nir.Threshold(np.ones(3))}, "has 3 values for 5 neurons"),
        ("input>w>fire>output", {"fire": nir.Threshold(each([1, 1, -0.5, 1, 1]))}, "node 'fire' .Threshold.: neuron 2 has a threshold of -0.5 above its rest; here it is above 0"),
        ("input>w>fire>output", {"fire": nir.Threshold(np.full(N, np.nan))}, "a parameter is NaN"),
        ("input>w>c>output", {"c": nir.CubaLI(each(1e-4), each(1e-2), each(1), each(0))}, "node 'c' .CubaLI.: tau is 0.0001 with a step"),
        ("input>w>c>output", {"c": nir.CubaLI(each(1e-2), each(1e-2), each(1), each(0.5))}, "node 'c' .CubaLI.: v_leak is 0.5; a readout here rests at 0"),
        ("input>w>c>r>c c>output", {"c": cuba_li(), "r": nir.Linear(np.ones((N, N)))}, "node 'c' .CubaLI.: has a recurrent path for its potential"),
    ],
)  # fmt: skip
def test_refused(edges: str, nodes: dict[str, Any], message: str) -> None:
    given = {"v": READOUTS["LI"], "fire": nir.Threshold(np.ones(N))} | nodes
    used = {name for chain in edges.split() for name in chain.split(">")}
    with pytest.raises(DescriptionError, match=message):
        from_nir(graph(edges, **{k: x for k, x in given.items() if k in used}), source="nir", dt=DT)


def chain(population: Any) -> ss.Model:
    return ss.Model(ss.Network.chain(ss.Input(M), population), seed=0)


@pytest.mark.parametrize("target", ["snntorch", "norse", "spikingjelly"])
def test_libraries_without_a_cuba_li_read_a_membrane_that_never_fires(target: str) -> None:
    node = to_nir(chain(CubaLI(N, alpha=0.8, beta=0.9, gain=0.5)), target=target).nodes["output"]
    assert type(node) is nir.CubaLIF
    assert (node.v_threshold > 1e29).all()
    again = from_nir(
        to_nir(chain(CubaLI(N, alpha=0.8, beta=0.9)), target=target), source=target, reset="zero", reset_delay=False
    )
    population: Any = again.network.populations["output"]
    assert (population.alpha, population.beta) == (pytest.approx(0.8), pytest.approx(0.9))


def test_what_a_library_has_no_node_for() -> None:
    with pytest.raises(DescriptionError, match="is a CubaLI, which sinabs does not support; .*use `readout=linear`"):
        to_nir(chain(CubaLI(N)), target="sinabs")
    assert "output" not in to_nir(chain(CubaLI(N)), target="sinabs", readout="linear").nodes
    with pytest.raises(DescriptionError, match="its reset is 'none', that of norse is 'zero'"):
        to_nir(chain(LIF(N, reset="none")), target="norse")
    with pytest.raises(DescriptionError, match="a decay of 1 has no time constant, and NIR's CubaLI needs one"):
        to_nir(chain(CubaLI(N, alpha=1.0)), dt=DT)
    with pytest.raises(DescriptionError, match="its reset is 'subtract', that of nir is 'zero'"):
        to_nir(chain(LIF(N, beta=0.0)), dt=DT)
    read_by = readers(ss.Network.chain(ss.Input(M), LIF(N, reset="none"), CubaLI(3)))
    assert [name for name, reasons in read_by.items() if not reasons] == ["nir"]


def test_a_threshold_takes_part_in_training() -> None:
    """As all imported neurons, it has a surrogate and a secondary threshold."""
    made = from_nir(
        graph("input>w>v>fire>output", v=READOUTS["LI"], fire=nir.Threshold(each(0.5))),
        source="nir",
        dt=DT,
        surrogate=ss.atan(2),
        grad_threshold=-float("inf"),
    )
    population: Any = made.network.populations["output"]
    assert (population.surrogate, population.grad_threshold) == (ss.atan(2), -float("inf"))


# ---- users' own models ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AdaptiveInNir(ss.Neuron):
    """A LIF whose threshold rises with every spike; NIR has no such neuron, so that the rest is in the node's metadata."""

    beta: ss.PerNeuron = ss.parameter(0.9, "decay of the potential", low=0, high=1)
    rho: ss.PerNeuron = ss.parameter(0.97, "decay of the adaptation", low=0, high=1)
    strength: float = 1.8
    states: ClassVar = ("x", "a")

    def arrays(self, p: Any) -> ss.NeuronArrays:
        k, b, r = self.strength, p["beta"], p["rho"]
        return ss.NeuronArrays(
            A=[[b, k * (b - r)], [0, r]], R=[[0, -k], [0, 0]], r=[-p["threshold"], 0], f=[-k * (1 - r), 1 - r], B=[1, 0]
        )

    def to_nir(self, p: Any, dt: float) -> Any:
        tau, zeros = dt / (1 - p["beta"]), np.zeros_like(p["beta"])
        more = {"model": "AdaptiveInNir", "tau_a": dt / (1 - p["rho"]), "strength": self.strength}
        return nir.LIF(tau, tau / dt, v_leak=zeros, v_threshold=p["threshold"], v_reset=zeros, metadata=more)

    @classmethod
    def from_nir(cls, node: Any, dt: float) -> Any:
        more = getattr(node, "metadata", {})
        if more.get("model") not in ("AdaptiveInNir", b"AdaptiveInNir"):
            return None
        beta, rho = 1 - dt / node.tau, 1 - dt / more["tau_a"]
        return cls(len(beta), beta=beta, rho=rho, strength=float(more["strength"]), threshold=node.v_threshold)


def own_model() -> ss.Model:
    hidden = AdaptiveInNir(N, rho=tuple(np.linspace(0.9, 0.98, N)), threshold=0.4)
    return ss.Model(ss.Network.chain(ss.Input(M), hidden, CubaLI(2)), seed=1)


def test_metadata_of_a_node_travel_through_a_file(tmp_path: Path) -> None:
    model = own_model()
    write(tmp_path / "net.nir", to_nir(model, dt=DT))
    again = from_nir(tmp_path / "net.nir", source="nir", dt=DT, neurons=[AdaptiveInNir], surrogate=ss.atan(2))
    hidden: Any = again.network.populations["hidden"]
    assert type(hidden) is AdaptiveInNir
    assert hidden.rho == pytest.approx(tuple(np.linspace(0.9, 0.98, N)))
    assert hidden.surrogate == ss.atan(2)
    with torch.no_grad():
        first, second = (run(m) for m in (model, again))
    assert first.spikes["hidden"].ids.numel() > 20  # type: ignore[union-attr]
    assert torch.equal(first.spikes["hidden"].to_dense(), second.spikes["hidden"].to_dense())  # type: ignore[union-attr]


def test_readers_that_do_not_know_the_class_see_its_node(tmp_path: Path) -> None:
    write(tmp_path / "net.nir", to_nir(own_model(), dt=DT))
    assert type(from_nir(tmp_path / "net.nir", source="nir", dt=DT).network.populations["hidden"]) is LIF


def test_a_class_of_ones_own_may_take_a_threshold() -> None:
    @dataclass(frozen=True)
    class Step(ss.Neuron):
        states: ClassVar = ("v",)

        def arrays(self, p: Any) -> ss.NeuronArrays:
            return ss.NeuronArrays(A=[[0]], B=[1])

        @classmethod
        def from_nir(cls, node: Any, dt: float) -> Any:
            return cls(node.threshold.size, threshold=node.threshold) if isinstance(node, nir.Threshold) else None

    made = from_nir(graph("input>w>fire>output", fire=nir.Threshold(each(0.5))), source="nir", dt=DT, neurons=[Step])
    assert type(made.network.populations["output"]) is Step
