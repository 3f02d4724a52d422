"""Networks of other libraries through NIR: the same spikes here as there, on random input, over 100 steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparsesnn as ss
from sparsesnn.nir import from_nir, to_nir

pytest.importorskip("nir", reason="needs the package nir, in the extra 'nir'")

T, B, N_IN, N_HIDDEN, N_OUT = 100, 3, 37, 53, 19
Library = Callable[[str], Any]


@pytest.fixture
def x() -> Tensor:
    return (torch.rand(T, B, N_IN, generator=torch.Generator().manual_seed(5)) < 0.12).float()


def linear(n_in: int, n_out: int, gain: float = 2.0, **options: Any) -> nn.Linear:
    layer = nn.Linear(n_in, n_out, **options)
    with torch.no_grad():
        layer.weight *= gain
    return layer


def run(net: nn.Sequential, x: Tensor, stateful: bool) -> list[Tensor]:
    """Output [T, B, N] of every neuron layer: modules at odd places. `stateful`: states go in and come out."""
    seen: list[list[Tensor]] = [[] for _ in net]
    states: list[Any] = [None] * len(net)
    with torch.no_grad():
        for t in range(len(x)):
            h = x[t]
            for k, module in enumerate(net):
                if k % 2 and stateful:
                    h, states[k] = module(h, states[k])
                else:
                    h = module(h)
                    h = h[0] if isinstance(h, tuple) else h
                seen[k].append(h)
    return [torch.stack(outputs) for outputs in seen[1::2]]


def check(model: ss.Model, x: Tensor, theirs: list[Tensor]) -> None:
    with torch.no_grad():
        out = model(ss.SpikeBatch.from_dense(x))
    for name, expected in zip(out.spikes, theirs, strict=False):
        found = out.spikes[name].to_dense()  # type: ignore[union-attr]
        assert 0.001 < float(expected.mean()) < 0.7, f"{name} says nothing: {float(expected.mean()):.3f}"
        different = int((found != expected).sum())
        assert different == 0, f"{name}: {different} of {int(expected.sum())} spikes differ"
    if out.potentials is not None:
        torch.testing.assert_close(out.potentials, theirs[-1], rtol=1e-5, atol=1e-5)


# ---- snnTorch -------------------------------------------------------------------------------------------------------

Make = Callable[..., nn.Sequential]


def snn_nets(snn: Any, **options: Any) -> dict[str, Make]:
    def of(n: int, value: float) -> Tensor:
        return torch.full((n,), value)

    def leaky() -> nn.Sequential:
        betas = torch.rand(N_HIDDEN) * 0.3 + 0.65
        return nn.Sequential(
            linear(N_IN, N_HIDDEN), snn.Leaky(beta=betas, threshold=of(N_HIDDEN, 1.0), **options),
            linear(N_HIDDEN, N_OUT, bias=False), snn.Leaky(beta=of(N_OUT, 0.9), threshold=of(N_OUT, 0.5), **options),
        )  # fmt: skip

    def synaptic() -> nn.Sequential:
        def neuron(n: int, alpha: float, beta: float) -> Any:
            return snn.Synaptic(alpha=of(n, alpha), beta=of(n, beta), threshold=of(n, 1.0), **options)

        return nn.Sequential(
            linear(N_IN, N_HIDDEN, 1.0), neuron(N_HIDDEN, 0.8, 0.9), linear(N_HIDDEN, N_OUT), neuron(N_OUT, 0.5, 0.95)
        )

    def recurrent() -> nn.Sequential:
        return nn.Sequential(
            linear(N_IN, N_HIDDEN), snn.RLeaky(beta=0.9, linear_features=N_HIDDEN, **options),
            linear(N_HIDDEN, N_OUT), snn.RLeaky(beta=0.8, all_to_all=False, V=torch.randn(N_OUT) * 0.3, **options),
        )  # fmt: skip

    def recurrent_synaptic() -> nn.Sequential:
        return nn.Sequential(
            linear(N_IN, N_HIDDEN, 1.0), snn.RSynaptic(alpha=0.6, beta=0.8, linear_features=N_HIDDEN, **options),
            linear(N_HIDDEN, N_OUT, 1.0), snn.RSynaptic(alpha=0.8, beta=0.9, linear_features=N_OUT, **options),
        )  # fmt: skip

    return {f.__name__: f for f in (leaky, synaptic, recurrent, recurrent_synaptic)}


@pytest.mark.parametrize(
    ("net", "reset"),
    [
        *((net, reset) for net in ("leaky", "synaptic", "recurrent") for reset in ("subtract", "none", "zero")),
        *(("recurrent_synaptic", reset) for reset in ("subtract", "none")),  # snnTorch cannot export "zero"
    ],
)
def test_snntorch(net: str, reset: str, x: Tensor, library: Library) -> None:
    snn, export = library("snntorch"), library("snntorch.export_nir").export_to_nir
    late = reset != "zero" or net == "leaky"  # else snnTorch drops input, and we refuse
    module = snn_nets(snn, init_hidden=True, reset_mechanism=reset, reset_delay=late)[net]()
    graph = export(module, torch.randn(1, N_IN), ignore_dims=[0])
    for layer in module[1::2]:
        layer.reset_mem()
    theirs = run(module, x, stateful=False)
    check(from_nir(graph, source="snntorch", reset=reset, reset_delay=late), x, theirs)


def test_to_snntorch(x: Tensor, library: Library) -> None:
    library("snntorch")
    bring_in = library("snntorch.import_nir").import_from_nir
    network = ss.Network.chain(
        ss.Input(N_IN),
        ss.LIF(N_HIDDEN, beta=0.9, gain=0.5, reset="zero"),
        ss.CubaLIF(N_OUT, alpha=0.8, beta=0.75, threshold=0.7, reset="zero", bias=True),
    )
    model = ss.Model(network, seed=1)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(4.0) if p.ndim == 2 else p.add_(0.02)
        out = model(ss.SpikeBatch.from_dense(x))
        module = bring_in(to_nir(model, target="snntorch"))
        theirs = []
        for t in range(T):
            h = module(x[t])
            theirs.append(h[0] if isinstance(h, tuple) else h)
    ours = out.spikes["output"].to_dense()  # type: ignore[union-attr]
    assert ours.sum() > 100
    assert torch.equal(torch.stack(theirs), ours)


def test_a_readout_is_the_membrane_of_a_neuron_that_never_fires(x: Tensor, library: Library) -> None:
    library("snntorch")
    bring_in = library("snntorch.import_nir").import_from_nir
    network = ss.Network.chain(ss.Input(N_IN), ss.LIF(N_HIDDEN, reset="zero"), ss.LI(N_OUT, beta=0.8, gain=0.5))
    model = ss.Model(network, seed=1)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(4.0)
        ours = model(ss.SpikeBatch.from_dense(x[:, :1])).potentials
        module = bring_in(to_nir(model, target="snntorch"))
        leaky = [m for m in module.modules() if type(m).__name__ == "Leaky"]
        seen, theirs = [], []
        for t in range(T):
            h = module(x[t, :1])
            theirs.append(h[0] if isinstance(h, tuple) else h)
            seen.append(leaky[-1].mem.clone())
    assert ours is not None
    torch.testing.assert_close(torch.stack(seen), ours, rtol=1e-5, atol=1e-5)
    assert not torch.stack(theirs).any()


# ---- Norse ----------------------------------------------------------------------------------------------------------


def norse_nets(norse: Any) -> dict[str, list[nn.Module]]:
    box, full = norse.LIFBoxParameters, norse.LIFParameters
    many = box(
        tau_mem_inv=torch.rand(N_HIDDEN) * 100 + 50,
        v_th=torch.full((N_HIDDEN,), 0.5),
        v_leak=torch.zeros(N_HIDDEN),
    )
    return {
        "box": [
            linear(N_IN, N_HIDDEN, 10), norse.LIFBoxCell(),
            linear(N_HIDDEN, N_OUT, 20, bias=False), norse.LIFBoxCell(box(tau_mem_inv=torch.tensor(150.0))),
        ],
        "readout": [linear(N_IN, N_HIDDEN, 8), norse.LIFBoxCell(many), linear(N_HIDDEN, N_OUT, 8), norse.LIBoxCell()],
        "current": [
            linear(N_IN, N_HIDDEN, 3), norse.LIFCell(),
            linear(N_HIDDEN, N_OUT, 4), norse.LIFCell(full(tau_syn_inv=torch.tensor(100.0), v_th=torch.tensor(0.3))),
        ],
        "integrate": [linear(N_IN, N_HIDDEN, 1), norse.IAFCell()],
    }  # fmt: skip


@pytest.mark.parametrize("net", ["box", "readout", "current", "integrate"])
def test_norse(net: str, x: Tensor, library: Library) -> None:
    norse = library("norse.torch")
    modules = norse_nets(norse)[net]
    graph = norse.to_nir(norse.SequentialState(*modules), torch.randn(1, N_IN))
    check(from_nir(graph, source="norse"), x, run(nn.Sequential(*modules), x, stateful=True))


def test_norse_subtracting_and_with_a_step_of_its_own(x: Tensor, library: Library) -> None:
    norse = library("norse.torch")
    subtract = library("norse.torch.functional.reset").reset_subtract
    cell = norse.LIFBoxCell(norse.LIFBoxParameters(reset_method=subtract), dt=2e-3)
    modules = [linear(N_IN, N_HIDDEN, 8, bias=False), cell]
    graph = norse.to_nir(norse.SequentialState(*modules), torch.randn(1, N_IN), dt=2e-3)
    theirs = run(nn.Sequential(*modules), x, stateful=True)
    check(from_nir(graph, source="norse", dt=2e-3, reset="subtract"), x, theirs)


@pytest.mark.parametrize("kind", ["lif", "cuba_lif"])
def test_to_norse(kind: str, x: Tensor, library: Library) -> None:
    norse = library("norse.torch")
    options: dict[str, Any] = {"beta": 0.9, "reset": "zero", "gain": 0.3, "bias": True}
    neuron = ss.LIF(N_HIDDEN, **options) if kind == "lif" else ss.CubaLIF(N_HIDDEN, alpha=0.8, **options)
    model = ss.Model(ss.Network.chain(ss.Input(N_IN), neuron), seed=2)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(4.0) if p.ndim == 2 else p.add_(0.05)
        ours = model(ss.SpikeBatch.from_dense(x)).spikes["output"].to_dense()  # type: ignore[union-attr]
        module, state, theirs = norse.from_nir(to_nir(model, target="norse")), None, []
        for t in range(T):
            h, state = module(x[t], state)
            theirs.append(h)
    assert ours.sum() > 100
    assert torch.equal(torch.stack(theirs), ours)


# ---- SpikingJelly, Sinabs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decay_input", [True, False])
@pytest.mark.parametrize("v_reset", [0.0, 0.1])
def test_spikingjelly(decay_input: bool, v_reset: float, x: Tensor, library: Library) -> None:
    neuron = library("spikingjelly.activation_based.neuron")
    functional = library("spikingjelly.activation_based.functional")
    export = library("spikingjelly.activation_based.nir_exchange").export_to_nir
    gain = 12.0 if decay_input else 3.0
    module = nn.Sequential(
        linear(N_IN, N_HIDDEN, gain), neuron.LIFNode(tau=5.0, decay_input=decay_input, v_reset=v_reset),
        linear(N_HIDDEN, N_OUT, gain), neuron.LIFNode(tau=3.0, decay_input=decay_input, v_reset=v_reset),
        linear(N_OUT, N_OUT), neuron.IFNode(v_reset=v_reset),
    )  # fmt: skip
    graph = export(module, torch.randn(1, N_IN))
    functional.reset_net(module)
    check(from_nir(graph, source="spikingjelly"), x, run(module, x, stateful=False))


@pytest.mark.parametrize("norm_input", [True, False])
@pytest.mark.parametrize("reset", ["subtract", "zero"])
def test_sinabs(reset: str, norm_input: bool, x: Tensor, library: Library) -> None:
    layers, activation = library("sinabs.layers"), library("sinabs.activation")
    export = library("sinabs.nir").to_nir
    how = activation.MembraneSubtract() if reset == "subtract" else activation.MembraneReset()

    def neuron(n: int, tau: float) -> Any:
        return layers.LIF(
            tau_mem=torch.full((n,), tau), spike_threshold=torch.ones(n), spike_fn=activation.SingleSpike, reset_fn=how,
            norm_input=norm_input,
        )  # fmt: skip

    gain = 20.0 if norm_input else 2.0
    module = nn.Sequential(
        linear(N_IN, N_HIDDEN, gain), neuron(N_HIDDEN, 10.0), linear(N_HIDDEN, N_OUT, gain), neuron(N_OUT, 5.0)
    )
    h, theirs = x.transpose(0, 1), []
    with torch.no_grad():
        for layer in module:
            h = layer(h)
            theirs.append(h.transpose(0, 1))
    graph = export(module, x.transpose(0, 1))
    check(from_nir(graph, source="sinabs", reset=reset, gain=None if norm_input else "unit"), x, theirs[1::2])
