"""The PopART ops, compiled against a fake PopART and run on the emulated machine, against PyTorch's autograd."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sparsesnn as ss
from sparsesnn import poptorch as spt
from sparsesnn.poptorch.description import capacity, describe
from sparsesnn.poptorch.tile_map import connections, spread

pytestmark = pytest.mark.usefixtures("fake_sdk")

SURROGATES = [ss.fast_sigmoid(7.0), ss.sigmoid(3.0), ss.atan(), ss.triangle(0.4), ss.boxcar(0.3), ss.straight_through()]


def machine(**changes: Any) -> None:
    import fake_popart

    fake_popart.machine.update({"tiles": 8, "checks": "always", **changes})


def on_ipu(model: Any, *inputs: Any) -> Any:
    """The model's output when PopTorch traces it for training."""
    from poptorch import executor

    with executor._on_ipu(training=True):
        return model(*inputs)


def data(n_samples: int, n_steps: int, n: int, activity: float = 0.4, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(n_samples, n_steps, n, generator=generator) < activity).float()


def grown(model: Any, factor: float = 2.0) -> Any:
    """Weights large enough that small layers fire; biases that are not zero."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 2:
                p.mul_(factor)
            elif "bias" in name:
                p.copy_(torch.linspace(-0.1, 0.2, p.numel()))
    return model


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-5 * max(1e-3, float(expected.abs().max())))


def gradients(model: Any, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    """The gradients of all parameters; zero if the loss does not depend on one, such as behind a delay longer than the sequence."""
    parameters = dict(model.named_parameters())
    none = [None] * len(parameters)
    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True) if loss.requires_grad else none
    return {
        name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(parameters.items(), found, strict=True)
    }


def neurons(cls: Any, n: int, reset: str, **more: Any) -> Any:
    """A population of the model; `reset` where the model has it."""
    if cls is ss.Resonator or (cls is ss.AdLIF and reset == "none"):
        reset = "subtract"
    return cls(n, reset=reset, **more)


population = st.builds(
    neurons,
    st.sampled_from([ss.LIF, ss.CubaLIF, ss.AdLIF, ss.Resonator]),
    st.integers(1, 13),
    beta=st.sampled_from([0.0, 0.7, 0.95]),
    threshold=st.sampled_from([0.3, 1.0]),
    reset=st.sampled_from(["subtract", "zero", "none"]),
    detach_reset=st.booleans(),
    recurrent=st.booleans(),
    bias=st.booleans(),
    gain=st.sampled_from([1.0, 0.5]),
    surrogate=st.sampled_from(SURROGATES),
    grad_threshold=st.just(-math.inf),
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    n_input=st.integers(1, 11),
    hidden=st.lists(population, min_size=1, max_size=3),
    readout=st.booleans(),
    delay=st.integers(0, 2),
    n_steps=st.integers(1, 5),
    n_samples=st.integers(1, 8),
    tiles=st.sampled_from([1, 3, 8, 40]),
)
def test_stack_has_the_gradient_of_autograd(
    n_input: int, hidden: Any, readout: bool, delay: int, n_steps: int, n_samples: int, tiles: int
) -> None:
    machine(tiles=tiles)
    last = [ss.LI(3, beta=0.8, bias=True)] if readout else []
    network = ss.Network.chain(ss.Input(n_input), *hidden, *last, delay=delay)
    model = grown(spt.Model(network, tiles=tiles))
    dense = ss.Model(network, backend="dense", dense_mode="step")
    dense.load_state_dict(model.state_dict())
    x = data(n_samples, n_steps, n_input)
    out, expected = on_ipu(model, spt.pack_dense(x)), dense(ss.SpikeBatch.from_dense(x, batch_first=True))
    if readout:
        a, b = out.potentials, expected.potentials
    else:
        a, b = out.spikes["output"].to_dense(), expected.spikes["output"]
        for name, spikes in out.spikes.items():
            assert torch.equal(spikes.to_dense(), expected.spikes[name]), name
    close(a.detach(), b.detach())
    d_out = torch.randn(b.shape, generator=torch.Generator().manual_seed(2))
    got, wanted = gradients(model, (a * d_out).sum()), gradients(dense, (b * d_out).sum())
    for name, g in got.items():
        close(g, wanted[name])


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    n_input=st.integers(1, 9), first=population, second=population, n_steps=st.integers(1, 4),
    n_samples=st.integers(1, 7), tiles=st.sampled_from([2, 16, 64]),
)  # fmt: skip
def test_layers_pass_gradients_to_the_lists_they_read(
    n_input: int, first: Any, second: Any, n_steps: int, n_samples: int, tiles: int
) -> None:
    machine(tiles=tiles)
    layers = [spt.Layer(first, n_input, tiles=tiles), spt.Layer(second, first.n, delays=[1], tiles=tiles)]
    model = grown(torch.nn.ModuleList(layers))
    dense = torch.nn.ModuleList(
        ss.Layer(p, n, delays=d, backend="dense", dense_mode="step")
        for p, n, d in ((first, n_input, [0]), (second, first.n, [1]))
    )
    dense.load_state_dict(model.state_dict())
    x = data(n_samples, n_steps, n_input)
    a = on_ipu(torch.nn.Sequential(*model), spt.from_data(spt.pack_dense(x), n_input)).counts()
    b = dense[1](dense[0](x.transpose(0, 1))[0])[0].sum(0)
    assert torch.equal(a, b)
    d_out = torch.randn(b.shape, generator=torch.Generator().manual_seed(2))
    got, wanted = gradients(model, (a * d_out).sum()), gradients(dense, (b * d_out).sum())
    for name, g in got.items():
        close(g, wanted[name])


def test_the_gradient_of_values_is_zero_behind_the_list() -> None:
    machine()
    x = data(3, 5, 11)
    lists = spt.from_data(spt.pack_dense(x, 9), 11).lists
    layer = grown(spt.Layer(ss.LIF(7, beta=0.7, grad_threshold=-math.inf), 11, tiles=8))
    d_out = torch.randn(3, 7)
    found = []
    for run in (on_ipu, lambda f, s: f(s)):  # the op, the engine
        values = spt.Spikes(lists, None, 11).entry_values().requires_grad_()
        (run(layer, spt.Spikes(lists, values, 11)).counts() * d_out).sum().backward()
        assert values.grad is not None
        found.append(values.grad)
    behind = torch.arange(9) >= lists[:, :, 1:2]
    assert behind.any()
    assert not found[0][behind].any()
    assert found[0][~behind].all()
    close(found[0], found[1])


@pytest.mark.parametrize("fixed", ["natural", "fixed"])
def test_lists_drop_what_the_engine_drops(fixed: str) -> None:
    def population(n: int, **more: Any) -> ss.LIF:
        return ss.LIF(n, beta=0.8, grad_threshold=0.4, capacity=4, activity=fixed, recurrent=True, **more)

    machine()
    network = ss.Network.chain(ss.Input(10), population(13, reset="zero"), population(9, detach_reset=False))
    model = grown(spt.Model(network, seed=5, tiles=8), 3.0)
    cpu = ss.Model(network, seed=5).eval()  # the op chooses as in evaluation
    cpu.load_state_dict(model.state_dict())
    x = data(7, 6, 10)
    out, expected = on_ipu(model, spt.pack_dense(x)), cpu(ss.SpikeBatch.from_dense(x, batch_first=True))
    for name, spikes in out.spikes.items():
        lists = expected.spikes[name]
        assert torch.equal(spikes.dropped.flatten(), lists.dropped), name
        assert torch.equal(spikes.lists[..., 1].flatten().long(), lists.n_listed), name
        assert torch.equal(spikes.to_dense(), lists.to_dense()), name
        assert int(spikes.n_dropped()) == lists.n_dropped()
    assert sum(lists.n_dropped() for lists in expected.spikes.values()) > 0
    d_out = torch.randn(7, 9)
    got = gradients(model, (out.counts() * d_out).sum())
    wanted = gradients(cpu, (expected.counts() * d_out).sum())
    for name, g in got.items():
        close(g, wanted[name])


def test_many_tiles_reduce_in_two_stages() -> None:
    machine(tiles=128)
    hidden = ss.LIF(130, beta=0.8, grad_threshold=0.2, recurrent=True)
    network = ss.Network.chain(ss.Input(20), hidden, ss.LIF(60, grad_threshold=-1.0))
    assert spread(network, 3, 128, False).reducers
    assert spread(network, 3, 128, True).reducers != spread(network, 3, 128, False).reducers
    model, cpu = grown(spt.Model(network, tiles=128)), ss.Model(network)
    cpu.load_state_dict(model.state_dict())
    x = data(3, 4, 20)
    d_out = torch.randn(3, 60)
    got = gradients(model, (on_ipu(model, spt.pack_dense(x)).counts() * d_out).sum())
    wanted = gradients(cpu, (cpu(ss.SpikeBatch.from_dense(x, batch_first=True)).counts() * d_out).sum())
    for name, g in got.items():
        close(g, wanted[name])


@dataclass(frozen=True)
class Chained(ss.Neuron):
    """Three states; a spike acts on two of them, and the input on two."""

    beta: ss.PerNeuron = ss.parameter(0.8, "decay of the potential", low=0, high=1)
    rho: ss.PerNeuron = ss.parameter(0.6, "decay of the others", low=0, high=1)
    learn_beta: bool = False
    learn_rho: bool = False
    sequential: bool = True
    states: ClassVar = ("v", "w", "y")

    def arrays(self, p: Any) -> ss.NeuronArrays:
        b, r = p["beta"], p["rho"]
        return ss.NeuronArrays(
            A=[[b, 1 - r, -0.2], [0, r, 0.5], [0.1 * b, 0, r]],
            R=[[-b / 2, 0, 0], [0, 0, 0], [0, 0, 0]],
            r=[-p["threshold"] / 2, 0, 0],
            f=[0, 0, 1 - r],
            B=[0.5, 0, 1],
            c=[0, 0.1 * r, 0],
            sequential=self.sequential,
        )


TRAINED = {
    "LIF": ss.LIF(5, beta=0.7, threshold=(0.3, 0.4, 0.5, 0.6, 0.7), learn_beta=True, learn_threshold=True),
    "LIF zero": ss.LIF(5, beta=0.7, reset="zero", detach_reset=False, threshold=0.4, learn_beta=True, recurrent=True),
    "CubaLIF": ss.CubaLIF(5, alpha=0.6, threshold=0.4, learn_alpha=True, bias=True),
    "AdLIF": ss.AdLIF(5, q=2.0, beta=0.6, threshold=0.3, learn_rho=True, learn_a=True, learn_b=True, learn_beta=True),
    "Resonator": ss.Resonator(5, turn=0.3, threshold=0.4, learn_turn=True, learn_beta=True),
    "three states": Chained(5, threshold=0.4, learn_beta=True, learn_rho=True, learn_threshold=True),
    "three states at once": Chained(5, threshold=0.4, sequential=False, learn_rho=True, detach_reset=False),
}


@pytest.mark.parametrize("saves_readout", [False, True], ids=["last", "before a readout"])
@pytest.mark.parametrize("name", TRAINED)
def test_trained_parameters_of_neurons_have_the_gradient_of_autograd(name: str, saves_readout: bool) -> None:
    machine(tiles=3)
    trained = replace(TRAINED[name], grad_threshold=-math.inf)
    last = [ss.LI(3, beta=0.8, learn_beta=True)] if saves_readout else []
    network = ss.Network.chain(ss.Input(7), ss.LIF(6, threshold=0.4), trained, *last)
    model = grown(spt.Model(network, tiles=3), 3.0)
    dense = ss.Model(network, backend="dense", dense_mode="step")
    dense.load_state_dict(model.state_dict())
    x = data(5, 6, 7)
    out, expected = on_ipu(model, spt.pack_dense(x)), dense(ss.SpikeBatch.from_dense(x, batch_first=True))
    a = out.potentials if saves_readout else out.spikes["output"].to_dense()
    b = expected.potentials if saves_readout else expected.spikes["output"]
    assert int(out.spikes[list(out.spikes)[-1]].counts().sum()) > 5
    close(a.detach(), b.detach())
    d_out = torch.randn(b.shape, generator=torch.Generator().manual_seed(2))
    got, wanted = gradients(model, (a * d_out).sum()), gradients(dense, (b * d_out).sum())
    assert sum(n.rpartition(".")[2] in ("beta", "rho", "threshold", "turn", "alpha", "a", "b") for n in got) >= 1
    for key, g in got.items():
        assert float(wanted[key].abs().max()) > 0, key
        torch.testing.assert_close(g, wanted[key], rtol=1e-4, atol=1e-4 * float(wanted[key].abs().max()), msg=key)


def test_a_trained_parameter_beyond_its_range_is_read_at_the_end_of_it() -> None:
    machine(tiles=3)
    network = ss.Network.chain(ss.Input(7), ss.LIF(5, beta=(0.9,) * 5, learn_beta=True, threshold=0.4), ss.LI(3))
    model, inside = grown(spt.Model(network, tiles=3)), grown(spt.Model(network, tiles=3))
    x = spt.pack_dense(data(5, 6, 7))
    with torch.no_grad():
        model.layers["hidden"].beta.copy_(torch.tensor([-0.2, 0.3, 0.9, 1.0, 1.3]))
        inside.layers["hidden"].beta.copy_(torch.tensor([0.0, 0.3, 0.9, 1.0, 1.0]))
    found, wanted = on_ipu(model, x), on_ipu(inside, x)
    assert torch.equal(found.potentials, wanted.potentials)
    got, ends = gradients(model, found.potentials.sum()), gradients(inside, wanted.potentials.sum())
    assert all(torch.equal(got[key], ends[key]) for key in got)


# ---- refusals ------------------------------------------------------------------------------------------------------

NETWORK = ss.Network.chain(ss.Input(6), ss.LIF(5, bias=True), ss.LI(3))


def described(network: ss.Network = NETWORK, n_samples: int = 2, tiles: int = 8, saves: bool = True) -> str:
    return describe(
        network,
        4,
        spread(network, n_samples, tiles, False),
        seeds=[2**64 - 1] * (len(network.populations) - 1),
        saves=saves,
        input_gradient=False,
        codelets="a folder/ipu.gp",
    )


def inputs(network: ss.Network = NETWORK, n_samples: int = 2) -> list[torch.Tensor]:
    names = list(network.populations)
    n = [network.populations[name].n for name in names]
    lists = torch.zeros(3, n_samples, 6, dtype=torch.int32)
    weights = [torch.ones(n[pre], n[post]) for pre, post, _ in connections(network)]
    biases = [torch.ones(p.n) for p in network.populations.values() if getattr(p, "bias", False)]
    return [lists, *weights, *biases]


def make(description: str, given: list[torch.Tensor], n_outputs: int = 4, name: str = "Stack") -> Any:
    import fake_popart

    machine()
    return fake_popart.Op("sparsesnn", name, 1, {"description": description}, given, n_outputs, True)


def test_the_fixture_of_refusals_is_accepted() -> None:
    make(described(), inputs())


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(hidden=st.lists(population, min_size=1, max_size=3), readout=st.booleans(), tiles=st.sampled_from([1, 8, 64]))
def test_the_op_reads_what_was_written(hidden: Any, readout: bool, tiles: int) -> None:
    import fake_popart

    last = [ss.LI(40, beta=(0.1, 0.7) * 20, bias=True)] if readout else []
    text = described(ss.Network.chain(ss.Input(6), *hidden, *last, delay=1), tiles=tiles)

    def records(of: str) -> list[list[Any]]:
        """Words as numbers where they are, floats in single precision; in an order that does not depend on the writer."""
        found = [line.split() for line in of.splitlines()]
        return sorted([[_number(word) for word in line] for line in found], key=str)

    assert records(fake_popart.library().fake_popart_read(text.encode()).decode()) == records(text)


def _number(word: str) -> Any:
    try:
        return int(word) if word.isdigit() else float(np.float32(word))
    except ValueError:
        return word


@pytest.mark.parametrize(
    ("line", "changed", "message"),
    [
        ("pass 1 0", "pass 2 0", r"line 1, pass: saves is 2; allowed: 0 to 1"),
        ("pass 1 0", "pass 1", r"line 1, pass: ends before input_gradient"),
        ("pass 1 0", "pass 1 0 7", r"pass: has '7' after its last number"),
        ("pass 1 0", "pass 0 0", r"saves is 0, so there is no gradient"),
        ("pass 1 0", "passes 1 0", r"line 1: record 'passes' is unknown or out of order"),
        ("input 6 4", "input 6 7", r"input: capacity is 7; allowed: 1 to 6"),
        ("input 6 4", "input 6.0 4", r"input: n is 6.0; allowed: 1 to 65536"),
        ("input 6 4", "", r"line 3: is empty"),
        (",threshold - - 0 5 5", ",threshold - - 0 0 5", r"population: n is 0; allowed: 1 to 65536"),
        (",threshold - - 0 5 5", ",threshold - - 64 5 5", r"population: kept is 64; allowed: 0 to 31"),
        ("A00,u0,B0,", "A00,A01,B0,", r"no shape of neurons has 1 states and these entries"),
        ("B0,threshold - -", "B0 - -", r"population1: the last entry is not the threshold"),
        ("threshold - - 0", "threshold - A00,u1 0", r"population1: trained has 'u1', which is none of its entries"),
        ("population 1 1 0", "population 5 1 0", r"states is 5; allowed: 1 to 4"),
        ("population 1 1 0", "population 1 2 0", r"fires is 2; allowed: 0 to 1"),
        (",threshold - - 0 5 5", ",threshold - - 0 5 6", r"capacity is 6; allowed: 1 to 5"),
        (
            "population 1 0 0 ",
            "population 1 0 0 A00,B0 - - 0 3 0 0 0 1 1 0 0 1 0 0 0 1 1\npopulation 1 0 0 ",
            r"only the last population may be a readout",
        ),
        (" 0 10.0 1", " 7 10.0 1", r"surrogate is 7; allowed: 0 to 6"),
        (" 0 10.0 1", " 0 0.0 1", r"slope is 0.0; allowed: "),
        (" 0 10.0 1", " 0 10.0 2", r"detach_reset is 2; allowed: 0 to 1"),
        (" 0 10.0 1", " 0 10.0 -1", r"detach_reset is -1; allowed: 0 to 1"),
        (" 0.9 0.9", " nan 0.9", r"value is nan"),
        (" 0.9 0.9", " inf 0.9", r"value is inf"),
        (" 0.9 0.9", " 1e39 0.9", r"value is 1e39"),
        (" 0.9 0.9", " 0.9", r"population: ends before value"),
        ("connection 0 1 0", "connection 0 1", r"connection: ends before delay"),
        ("connection 1 2 0", "connection 0 1 0", r"no connection reaches population 2"),
        ("connection 0 1 0", "connection 0 1 -1", r"delay is -1; allowed: 0 to 65535"),
        ("connection 0 1 0", "connection 0 3 0", r"post is 3; allowed: 1 to 2"),
        ("shard 2 3 0", "shard 2 9 0", r"population2: shards: tile 9; there are 8"),
        ("shard 1 0 0 2", "shard 1 0 0 1", r"population1: shards leave a gap or overlap at 1"),
        ("collector 2 ", "collector 0 ", r"input: collectors"),
        ("pass 1 0", "reducer 0 0 0 1 0 2", r"record 'reducer' is unknown or out of order"),
        ("collector 0", "reducer 7 0 0 1 0 2\ncollector 0", r"reducer: connection is 7; allowed: 0 to 1"),
    ],
)
def test_descriptions_are_checked(line: str, changed: str, message: str) -> None:
    import fake_popart

    assert line in described()
    with pytest.raises(fake_popart.PopartError, match=message):
        make(described().replace(line, changed), inputs(), 3 if message.startswith("saves is 0") else 4)


def test_the_op_has_one_attribute_a_text() -> None:
    import fake_popart

    machine()
    for attributes, message in (
        ({"description": 3}, r"attribute description is of another type"),
        ({"description": described(), "gamma": 1.0}, r"does not define attribute gamma"),
        ({"description": ""}, r"description: has no population"),
    ):
        with pytest.raises(fake_popart.PopartError, match=message):
            fake_popart.Op("sparsesnn", "Stack", 1, attributes, inputs(), 4, True)


def test_shapes_types_and_names_are_checked() -> None:
    import fake_popart

    refused = pytest.raises(fake_popart.PopartError, match=r"weight 1 is FLOAT \[5, 4\]; it must be FLOAT \[5, 3\]")
    with refused:
        make(described(), [*inputs()[:2], torch.ones(5, 4), inputs()[3]])
    with pytest.raises(fake_popart.PopartError, match=r"lists is FLOAT \[3, 2, 6\]; it must be INT32 \[3, 2, 6\]"):
        make(described(), [inputs()[0].float(), *inputs()[1:]])
    with pytest.raises(fake_popart.PopartError, match=r"the description has 4 inputs; connect lists, values, weights"):
        make(described(), inputs()[:-1])
    with pytest.raises(fake_popart.PopartError, match=r"no op sparsesnn::Heap:1 is registered"):
        make(described(), inputs(), name="Heap")


def test_a_gradient_is_wanted_of_the_output_alone() -> None:
    import fake_popart

    op = make(described(), inputs())
    outputs = op.forward(inputs())
    with pytest.raises(
        fake_popart.PopartError, match=r"StackGrad:1 wants the gradient of output 0, which is not on the"
    ):
        op.backward([None, None, None, torch.ones_like(outputs[3])], inputs())
    found = op.backward([torch.ones_like(outputs[0]), None, None, None], inputs())
    assert [x is None for x in found] == [True, False, False, False]


def test_inference_saves_nothing() -> None:
    network = ss.Network.chain(ss.Input(6), ss.LIF(5, grad_threshold=0.2), ss.LIF(4))
    import fake_popart

    machine()
    lean, full = (
        fake_popart.Op(
            "sparsesnn", "Stack", 1, {"description": described(network, saves=saves)}, inputs(network), n, False
        )
        for saves, n in ((False, 5), (True, 7))
    )
    for a, b in zip(lean.forward(inputs(network)), full.forward(inputs(network)), strict=False):
        assert torch.equal(a, b)
    assert [capacity(p) for p in network.populations.values()] == [6, 5, 4]


def test_lists_from_outside_cannot_lead_outside() -> None:
    """A list that claims more ids than it has slots is cut on the device, not followed."""
    op = make(described(), inputs())
    given = inputs()
    given[0][:, :, 0] = 1000
    given[0][:, :, 1] = 1000
    assert torch.isfinite(op.forward(given)[0]).all()
