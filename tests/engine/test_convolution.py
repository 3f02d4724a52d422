"""Convolution and pooling on the event-sparse engine: against PyTorch's convolution under autograd, and against dense synapses."""

from __future__ import annotations

import gc
import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from sparsesnn import (
    LI,
    LIF,
    AdLIF,
    Connection,
    Conv1d,
    Conv2d,
    CubaLIF,
    Dense,
    Input,
    Model,
    Network,
    Pool,
    Series,
    Sparse,
    SpikeBatch,
    _core,
    parse_net,
)
from sparsesnn.engines.cpu.chain_pass import ChainPass
from sparsesnn.errors import DescriptionError, NumericError
from sparsesnn.output import Output
from sparsesnn.partition import make_plan, parse_target
from sparsesnn.surrogate import Surrogate

#: a flat surrogate: a steep one magnifies the last bits of potentials
FIRES = {"threshold": 0.5, "grad_threshold": 0.1, "bias": True, "surrogate": Surrogate("fast_sigmoid", 2.0)}


@pytest.fixture(autouse=True)
def _usual_machine() -> Iterator[None]:
    yield
    _core.set_isa(_core.build_info()["isa_supported"][-1])
    _core.set_num_threads(2)


def spikes_of(n: int, n_steps: int = 9, n_samples: int = 3, rate: float = 0.3, graded: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(n)
    fired = (torch.rand(n_steps, n_samples, n, generator=generator) < rate).float()
    return fired * torch.randint(1, 4, fired.shape, generator=generator) if graded else fired


def model_of(network: Network, backend: str, scale: float = 3.0) -> Model:
    model = Model(network, backend=backend, seed=1, **({"dense_mode": "step"} if backend == "dense" else {}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "->" in name and ":" not in name:
                parameter.mul_(scale)
            if name.endswith("bias"):
                parameter.copy_(torch.linspace(-0.05, 0.1, parameter.numel()))
    return model


def loss_of(output: Output) -> torch.Tensor:
    """A loss with its own weight for every potential and count."""
    generator = torch.Generator().manual_seed(0)
    parts = [] if output.potentials is None else [output.potentials]
    parts += [output.counts(name) for name in output.spikes]
    total: torch.Tensor = sum((x * torch.randn(x.shape, generator=generator)).mean() for x in parts)  # type: ignore[assignment]
    return total


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got - want).norm() / want.norm().clamp_min(1e-12))


def compare(network: Network, dense: torch.Tensor, graded: bool = False) -> None:
    """Lists are those of PyTorch; gradients of all parameters and of the input's values to 1e-5."""
    n = network.populations["input"].n
    ours, theirs = model_of(network, "cpu"), model_of(network, "dense")
    x, y = (dense.clone().requires_grad_() for _ in range(2))
    got = ours(SpikeBatch.from_dense(x, gradient="all", graded=graded))
    want = theirs(SpikeBatch.from_dense(y, gradient="all", graded=graded))
    for name, spikes in want.spikes.items():
        assert torch.equal(got.spikes[name].to_dense().detach(), spikes.detach()), name
        assert 0.01 < spikes.mean() < 0.9, name
    loss_of(got).backward()
    loss_of(want).backward()
    assert x.grad is not None
    assert y.grad is not None
    assert x.shape[2] == n
    assert relative_error(x.grad, y.grad) <= 1e-5
    wanted = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        assert wanted[name].grad.abs().max() > 0, name
        # one number for all neurons: PyTorch's sum in float32 is not better
        assert relative_error(parameter.grad, wanted[name].grad) <= (1e-5 if parameter.ndim else 1e-4), name


#: kernel, stride, padding, dilation, groups, channels before and after, height, width: odd ones, and each side its own
SHAPES = [
    (3, 1, 0, 1, 1, 2, 5, 7, 6),
    (5, 2, 2, 1, 1, 3, 17, 9, 11),
    (1, 1, 0, 1, 1, 5, 1, 4, 3),
    (1, 3, 1, 1, 1, 1, 130, 7, 5),
    (3, 1, 2, 2, 1, 3, 4, 8, 9),
    (3, 2, 1, 2, 1, 2, 33, 9, 9),
    (3, 3, 0, 2, 1, 2, 3, 11, 12),
    (3, 1, 1, 1, 5, 5, 10, 6, 5),
    (2, 2, 0, 1, 2, 6, 4, 7, 8),
    ((2, 4), (1, 3), (0, 2), (2, 1), 3, 9, 6, 6, 13),
    ((4, 1), (3, 1), (3, 0), 1, 1, 130, 2, 5, 4),
    (7, 4, 3, 1, 1, 2, 16, 20, 3),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("channels_first", [False, True])
def test_spikes_and_gradients_are_those_of_pytorch(shape: tuple[Any, ...], channels_first: bool) -> None:
    kernel, stride, padding, dilation, groups, before, after, height, width = shape
    network = Network.chain(
        Input(shape=(height, width, before), channels_first=channels_first),
        Conv2d(after, kernel, stride, padding, dilation, groups),
        LIF(**FIRES),
        LI(3),
    )
    compare(network, spikes_of(height * width * before))


#: kernel, stride, padding, dilation, groups, channels before and after, length
LENGTHS = [(3, 1, 0, 1, 1, 2, 5, 17), (9, 4, 4, 1, 1, 1, 33, 47), (4, 1, 3, 2, 3, 6, 9, 11), (1, 2, 0, 1, 1, 3, 2, 1)]


@pytest.mark.parametrize("shape", LENGTHS, ids=str)
@pytest.mark.parametrize("channels_first", [False, True])
def test_one_axis_is_a_map_of_height_one(shape: tuple[int, ...], channels_first: bool) -> None:
    """Currents are those of `conv1d`, spikes and gradients those of the dense engine and of `Conv2d`."""
    kernel, stride, padding, dilation, groups, before, after, length = shape
    sender = Input(shape=(length, before), channels_first=channels_first)
    network = Network.chain(sender, Conv1d(after, kernel, stride, padding, dilation, groups), LIF(**FIRES), LI(3))
    x = spikes_of(length * before)
    compare(network, x)
    pairs = [(1, kernel), (1, stride), (0, padding), (1, dilation)]
    flat = Network.chain(sender, Conv2d(after, *pairs, groups), LIF(**FIRES), LI(3))
    ours, theirs = model_of(network, "cpu"), model_of(flat, "cpu")
    assert torch.equal(ours(SpikeBatch.from_dense(x)).potentials, theirs(SpikeBatch.from_dense(x)).potentials)  # type: ignore[arg-type]
    kind = network.connections[0].synapses
    weight = torch.randn(kind.weight_shape(0, 0), generator=torch.Generator().manual_seed(1))
    rows = x.flatten(0, 1)
    maps = rows.view(-1, before, length) if channels_first else rows.view(-1, length, before).transpose(1, 2)
    wanted = torch.nn.functional.conv1d(maps, weight[0].permute(2, 1, 0), None, stride, padding, dilation, groups)
    torch.testing.assert_close(kind.product(rows, weight), wanted.transpose(1, 2).flatten(1), rtol=1e-5, atol=1e-5)


def test_texts_of_one_axis() -> None:
    network = parse_net("2x47:9C8s2p-SP2-3C5d2+AP2-7r-4", beta=0.8)
    assert [network.shape(name) for name in network.populations] == [(1, 47, 2), (1, 24, 8), (1, 4, 5), None, None]
    kinds = [c.synapses for c in network.connections[:2]]
    assert kinds[0] == Conv1d(8, 9, 2, 4, shape=(47, 2), channels_first=True)
    assert [type(m) for m in kinds[1].members] == [Pool, Conv1d, Pool]  # type: ignore[attr-defined]
    assert Network.from_json(network.to_json()) == network
    runs = parse_net("2x47:9C8s2p-SP2-3C5d2-MP2-7-4", **FIRES)
    compare(runs, spikes_of(94))
    assert make_plan(runs, 3, 5, parse_target("cpu:2")).network == runs


@pytest.mark.parametrize(
    ("kind", "shape", "message"),
    [
        (Conv1d(3, 4), (5, 7, 2), r"Conv1d.*reads maps of shape \(length, channels\).*\(5, 7, 2\); use Conv2d"),
        (Conv1d(3, 4), (3, 2), r"maps of \(1, 3, 2\) become empty"),
        (Conv1d(3, 1), (0, 2), r"shape is \(0, 2\).*each at least 1"),
    ],
)
def test_what_does_not_fit_on_one_axis(kind: Conv1d, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(DescriptionError, match=message):
        Network.chain(Input(shape=shape), kind, LIF())  # type: ignore[arg-type]
    with pytest.raises(DescriptionError, match=r"Conv1d: kernel is \(2, 3\); give one number"):
        Conv1d(3, (2, 3))


@pytest.mark.parametrize(
    "neuron",
    [
        LIF(reset="zero", detach_reset=False, learn_beta=True, learn_threshold=True, **FIRES),
        CubaLIF(learn_alpha=True, learn_beta=True, **FIRES),
        AdLIF(beta=0.5, q=2.0, learn_rho=True, **FIRES),
        LIF(reset="none", threshold=0.5, grad_threshold=-math.inf),
        LIF(reset_decays=True, threshold=0.5, grad_threshold=0.5, beta=0.3),
    ],
    ids=repr,
)
def test_neuron_models(neuron: Any) -> None:
    network = Network.chain(Input(shape=(7, 6, 2)), Conv2d(5, 3, 1, 1), neuron, Conv2d(4, 3, 2), neuron, LI(3))
    compare(network, spikes_of(84))


def test_delays_several_senders_and_values() -> None:
    network = Network(
        {"input": Input(shape=(6, 5, 2)), "a": LIF(**FIRES), "b": LIF(**FIRES), "out": LI(3)},
        (
            Connection("input", "a", 2, Conv2d(3, 3)),
            Connection("input", "b", 1, Conv2d(4, 3, padding=1, stride=2)),
            Connection("input", "b", 3, Conv2d(4, (2, 3), 2, (0, 1))),
            Connection("a", "out", 1),
            Connection("b", "out"),
        ),
    )
    compare(network, spikes_of(60, graded=True), graded=True)


def test_a_quiet_map_is_that_of_pytorch() -> None:
    """In most steps no neuron receives a spike; some neurons fire by themselves, long after."""
    network = Network.chain(
        Input(shape=(12, 11, 2)),
        Conv2d(7, 3),
        LIF(beta=0.97, threshold=0.5, grad_threshold=0.3, bias=True),
        LI(3),
    )
    ours, theirs = model_of(network, "cpu"), model_of(network, "dense")
    for model in (ours, theirs):
        with torch.no_grad():
            layer = model.layers["hidden"]
            layer.bias.zero_()
            layer.bias[5::97] = 0.0153  # comes to the threshold after a hundred steps
    fired = spikes_of(264, 300, 2, 0.0007)
    lists = SpikeBatch.from_dense(fired)
    got, want = ours(lists), theirs(lists)
    assert torch.equal(got.spikes["hidden"].to_dense().detach(), want.spikes["hidden"].detach())
    assert want.spikes["hidden"][-100:].sum() > 0
    loss_of(got).backward()
    loss_of(want).backward()
    wanted = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        assert relative_error(parameter.grad, wanted[name].grad) <= 1e-5, name


# ---- next to other connections: step by step, not row by row --------------------------------------------------------------

ODD = Conv2d(6, (3, 2), (2, 1), (1, 0), (1, 2), 2)  # maps of (4, 5, 6) from (7, 7, 4)


def beside(*others: Connection, **neuron: Any) -> Network:
    """A population with a convolution of the input and other connections as inputs, and a readout with the same."""
    return Network(
        {"input": Input(shape=(7, 7, 4)), "side": LIF(9, **FIRES), "hidden": LIF(**{**FIRES, **neuron}), "out": LI()},
        (
            Connection("input", "side"),
            *others,
            Connection("input", "hidden", 2, ODD),
            Connection("hidden", "out", 0, Conv2d(2, 3, padding=1)),
            Connection("side", "out", 1),
        ),
    )


NEXT_TO = {
    "a readout alone": beside(),
    "dense": beside(Connection("side", "hidden", 1)),
    "recurrent": beside(recurrent=True),
    "sparse and a recurrent delay": beside(
        Connection("side", "hidden", 0, Sparse(0.3, seed=2)), Connection("hidden", "hidden", 3), reset="zero"
    ),
    "a pool": beside(
        Connection("input", "hidden", 0, Series((Pool("average", (2, 1)), Conv2d(6, (2, 3), padding=(1, 0))))),
        Connection("side", "hidden", 2),
    ),
    "learns": beside(Connection("side", "hidden", 1), learn_beta=True, learn_threshold=True, detach_reset=False),
}


@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("network", NEXT_TO.values(), ids=NEXT_TO)
def test_next_to_other_connections_they_are_those_of_pytorch(network: Network, graded: bool) -> None:
    compare(network, spikes_of(196, graded=graded), graded=graded)


@pytest.mark.parametrize("n_samples", [3, 80])
def test_a_readout_that_hears_a_convolution(n_samples: int) -> None:
    """More steps than a chunk of the backward pass has, and more groups of samples than are added one by one."""
    shape = Input(shape=(5, 6, 3), channels_first=True)
    network = Network.chain(shape, Conv2d(7, 2, 2), LI(learn_beta=True), delay=1)
    compare(network, spikes_of(90, 9 if n_samples > 3 else 140, n_samples))


def test_bits_of_a_mixture_do_not_depend_on_threads_and_instruction_sets() -> None:
    network = NEXT_TO["sparse and a recurrent delay"]
    model, spikes = model_of(network, "cpu"), SpikeBatch.from_dense(spikes_of(196, 21, 19, 0.2))
    same_bits(model, spikes)


def test_a_mixture_in_chunks_is_the_sequence() -> None:
    model = model_of(NEXT_TO["recurrent"], "cpu").eval()
    dense = spikes_of(196, 31, 2)
    whole, live = model(SpikeBatch.from_dense(dense)), model.live()
    assert whole.spikes["hidden"].n_spikes.sum() > 0
    parts = [live(SpikeBatch.from_dense(x)).potentials for x in dense.split(7)]
    assert torch.equal(torch.cat(parts), whole.potentials)


# ---- against dense synapses: a window as large as the maps is a matrix ---------------------------------------------------


def as_matrix(neuron: Any, before: int = 3, delay: int = 0) -> tuple[Network, Network]:
    shape = (4, 5, before)
    return tuple(
        Network(
            {"input": Input(shape=shape), "hidden": neuron, "output": LI(3)},
            (Connection("input", "hidden", delay, kind), Connection("hidden", "output")),
        )
        for kind in (Conv2d(neuron.n, (4, 5)), Dense())
    )  # type: ignore[return-value]


@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize(
    "neuron",
    [
        LIF(70, capacity=9, **FIRES),
        LIF(131, capacity=9, reset="zero", **FIRES),
        LIF(70, capacity=9, learn_beta=True, detach_reset=False, **FIRES),
        LIF(33, capacity=5, activity="fixed", **FIRES),
        LIF(33, reset="zero", detach_reset=False, learn_beta=True, learn_threshold=True, **FIRES),
        CubaLIF(65, capacity=20, **FIRES),
        AdLIF(40, beta=0.5, q=2.0, learn_a=True, **FIRES),
    ],
    ids=repr,
)
def test_a_window_as_large_as_the_maps_is_a_matrix(neuron: Any, graded: bool) -> None:
    """Lists, dropped spikes and states bit for bit, in one call and in chunks."""
    dense = spikes_of(60, graded=graded)
    results = []
    for network in as_matrix(neuron, delay=2):
        model = model_of(network, "cpu")
        with torch.no_grad():
            weight = model.layers["hidden"].weights[0]
            weight.copy_(torch.linspace(-1, 1.1, weight.numel()).mul(37).sin().mul(0.4).view_as(weight))
        x = dense.clone().requires_grad_()
        output = model(SpikeBatch.from_dense(x, gradient="all", graded=graded))
        loss_of(output).backward()
        model.eval()
        state, parts = None, []
        for begin, end in ((0, 1), (1, 1), (1, 6), (6, 9)):
            part = model(SpikeBatch.from_dense(dense[begin:end], graded=graded), state)
            state = part.state
            parts.append(part.potentials)
        results.append((model, x.grad, output, torch.cat(parts), state))
    (ours, d_x, got, chunks, state), (theirs, d_y, want, other_chunks, other_state) = results
    lists, others = got.spikes["hidden"], want.spikes["hidden"]
    assert lists.n_spikes.sum() > 0
    assert torch.equal(lists.n_spikes, others.n_spikes)
    assert torch.equal(lists.ids, others.ids)
    assert torch.equal(lists.offsets, others.offsets)
    if neuron.capacity:
        assert lists.dropped is not None
        assert others.dropped is not None
        assert lists.dropped.sum() > 0
        assert torch.equal(lists.dropped, others.dropped)
    assert torch.equal(got.potentials, want.potentials)
    assert torch.equal(chunks, other_chunks)
    for name, z in other_state["hidden"].states.items():
        assert torch.equal(state["hidden"].states[name], z), name
    assert relative_error(d_x, d_y) <= 1e-5
    wanted = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        assert relative_error(parameter.grad.view_as(wanted[name].grad), wanted[name].grad) <= 1e-5, name


# ---- bits ----------------------------------------------------------------------------------------------------------------

POOLED = "2x11x9:3C7-MP2-3C5p-AP2-20-3"


def test_bits_do_not_depend_on_threads_and_instruction_sets() -> None:
    network = parse_net(POOLED, learn_beta=True, **FIRES)
    same_bits(model_of(network, "cpu"), SpikeBatch.from_dense(spikes_of(198, 21, 19, 0.2)))


def same_bits(model: Model, spikes: SpikeBatch) -> None:
    def run() -> list[torch.Tensor]:
        model.zero_grad()
        output = model(spikes)
        loss_of(output).backward()
        lists = [t for x in output.spikes.values() for t in (x.ids, x.offsets, x.n_spikes)]
        return [*(p.grad for p in model.parameters()), *lists, output.potentials.detach()]  # type: ignore[list-item, union-attr]

    _core.set_num_threads(1)
    _core.set_isa("base")
    want = [x.clone() for x in run()]
    for isa, threads in itertools.product(_core.build_info()["isa_supported"], (1, 3)):
        _core.set_isa(isa)
        _core.set_num_threads(threads)
        for got, expected in zip(run(), want, strict=True):
            assert got.numpy().tobytes() == expected.numpy().tobytes(), (isa, threads)


@pytest.mark.parametrize("n_steps", [1, 40])
def test_a_sequence_in_chunks_is_the_sequence(n_steps: int) -> None:
    """Steps that wait, and chunks that end among them, change no bit."""
    network = parse_net("1x9x10:3C6-3C4s2-5", beta=0.9, threshold=0.4, grad_threshold=0.3)
    model = model_of(network, "cpu", 5.0).eval()
    dense = spikes_of(90, 240, 2, 0.004)
    whole = model(SpikeBatch.from_dense(dense))
    state, parts = None, []
    for begin in range(0, 240, n_steps):
        output = model(SpikeBatch.from_dense(dense[begin : begin + n_steps]), state)
        state = output.state
        parts.append(output.potentials)
    assert whole.spikes["hidden1"].n_spikes.sum() > 0
    assert torch.equal(torch.cat(parts), whole.potentials)
    live = model.live()
    assert torch.equal(
        torch.cat([live(SpikeBatch.from_dense(x[None])).potentials for x in dense[:9]]), whole.potentials[:9]
    )


# ---- pools ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("channels_first", [False, True])
@pytest.mark.parametrize(
    "pool",
    [Pool("sum", 2), Pool("average", (3, 2), stride=1), Pool("max", 3, stride=2), Pool("max", (1, 4), 3)],
    ids=repr,
)
def test_pools_are_those_of_pytorch(pool: Pool, channels_first: bool, graded: bool) -> None:
    shape = Input(shape=(9, 10, 3), channels_first=channels_first)
    at = 0.3 if pool.reduction == "average" else 1.2
    fires = {**FIRES, "threshold": at, "grad_threshold": at / 3, "beta": 0.5}
    networks = [
        Network.chain(shape, pool, LIF(**fires), LI(4)),
        Network.chain(shape, pool, Conv2d(5, 2), LIF(**FIRES), Pool("max", (2, 1)), Dense(), LIF(9, **FIRES), LI(4)),
    ]
    for network in networks:
        compare(network, spikes_of(270, rate=0.08, graded=graded), graded=graded)


@pytest.mark.parametrize("reduction", ["sum", "average", "max"])
def test_what_a_pool_keeps_for_its_gradient_goes_with_the_graph(reduction: str) -> None:
    """At once: the collector of cycles counts objects, not their megabytes."""
    network = Network.chain(
        Input(shape=(9, 10, 3)), Conv2d(2, 3), LIF(**FIRES), Pool(reduction, 2), Dense(), LIF(9, **FIRES), LI(4)
    )
    model = model_of(network, "cpu", 5.0)

    def alive() -> int:
        return sum(type(x) is ChainPass for x in gc.get_objects())

    gc.collect()
    before = alive()  # those that failed tests and their reports hold
    gc.disable()
    try:
        model(SpikeBatch.from_dense(spikes_of(270, rate=0.08))).potentials.sum().backward()
        after = alive()
    finally:
        gc.enable()
    assert after == before


# ---- refusals ------------------------------------------------------------------------------------------------------------


def test_who_does_not_run_them_says_so() -> None:
    with pytest.raises(DescriptionError, match=r"input->hidden: its synapses are Series.*'cpu'.*MP2 instead of \+MP2"):
        Model(parse_net("2x6x5:3C4+MP2-3"))
    model = Model(parse_net("2x6x5:3C4-3"))
    with torch.no_grad():
        model.layers["hidden"].weights[0][1, 2, 0, 3] = math.nan
    with pytest.raises(NumericError, match=r"hidden: weight holds NaN at \[1, 2, 0, 3\]"):
        model(SpikeBatch.from_dense(spikes_of(60)))
    assert Series((Pool("max", 2), Conv2d(3, 2))).bound((6, 5, 2)).in_lists(60) is not None
