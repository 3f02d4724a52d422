"""Sparse synapses on every engine: the numbers of a masked matrix, at existing synapses, bit for bit."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from sparsesnn import (
    LI,
    LIF,
    CubaLIF,
    Dense,
    Input,
    Model,
    Network,
    Sparse,
    SpikeBatch,
    parse_net,
    reference,
    set_isa,
    set_num_threads,
)
from sparsesnn.errors import DescriptionError, NumericError
from sparsesnn.ipu.spec import check_network
from sparsesnn.partition.cpu.memory import rank_bytes
from sparsesnn.partition.planner import make_plan
from sparsesnn.partition.target import parse_target
from sparsesnn.reference import Parameters
from sparsesnn.synapses import sparse as kind_of_synapses
from sparsesnn.synapses import synapses_from_dict

N_INPUT = 71


@pytest.fixture(autouse=True)
def _small_networks_have_compressed_rows_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kind_of_synapses, "DENSEST", 1 / 32)


def network_of(synapses: list, **arguments: object) -> Network:
    """71 → 133 recurrent → 37 → 5; every connection into the hidden populations has one of `synapses`."""
    arguments = {"grad_threshold": 0.4, **arguments}
    network = Network.chain(Input(N_INPUT), LIF(133, recurrent=True, **arguments), CubaLIF(37, **arguments), LI(5))
    kinds = iter(synapses)
    changed = (c if c.post == network.output else replace(c, synapses=next(kinds)) for c in network.connections)
    return Network(network.populations, tuple(changed))


def spikes_of(seed: int, n_samples: int = 11, n_steps: int = 9, n: int = N_INPUT) -> SpikeBatch:
    generator = torch.Generator().manual_seed(seed)
    return SpikeBatch.from_dense((torch.rand(n_steps, n_samples, n, generator=generator) < 0.1).float())


def models(network: Network, gain: float = 3.0, **options: str) -> tuple[Model, Model]:
    """A sparse model and the dense one with its masked matrices."""
    sparse = Model(network, seed=3, **options)
    with torch.no_grad():
        for layer in sparse.layers.values():
            for weight in layer.weights:
                weight.mul_(gain)
    plain = Network(network.populations, tuple(replace(c, synapses=Dense()) for c in network.connections))
    masked = Model(plain, seed=3, **options)
    with torch.no_grad():
        for name, layer in masked.layers.items():
            for c, weight in zip(sparse.layers[name].incoming, layer.weights, strict=True):
                weight.copy_(sparse.layers[name].matrix(c))
    return sparse, masked


def train(model: Model, spikes: SpikeBatch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    output = model(spikes)
    (output.potentials**2).sum().backward()
    return output.potentials.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def assert_like_masked(sparse: Model, masked: Model, spikes: SpikeBatch) -> None:
    potentials, got = train(sparse, spikes)
    wanted, want = train(masked, spikes)
    assert potentials.abs().max() > 0
    assert torch.equal(potentials, wanted)
    for name, layer in sparse.layers.items():
        for c in layer.incoming:
            full = want[f"layers.{name}.{c.name}"]
            own = got[f"layers.{name}.{c.name}"]
            if layer.columns(c) is not None:
                full = full.reshape(-1)[layer.places(c)]
            assert full.abs().max() > 0, c.name
            assert torch.equal(own, full), c.name


KINDS = {
    "some": [Sparse(0.13, seed=1), Sparse(0.2), Sparse(0.5, seed=9)],
    "few": [Sparse(0.02, seed=1), Sparse(0.015), Sparse(0.02, seed=2)],
    "mixed": [Sparse(0.02, seed=1), Dense(), Dense()],
    "loop": [Dense(), Dense(), Sparse(0.02)],
    "mask": [
        Sparse(mask=np.random.default_rng(0).random((71, 133)) < 0.02),
        Sparse(mask=np.random.default_rng(1).random((133, 37)) < 0.3),
        Dense(),
    ],
}


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("weight_dtype", ["float32", "bfloat16"])
def test_gradients_are_those_of_the_masked_matrix(kinds: str, weight_dtype: str) -> None:
    network = network_of(KINDS[kinds])
    assert_like_masked(*models(network, weight_dtype=weight_dtype), spikes_of(1))


@pytest.mark.parametrize(
    "arguments",
    [{"capacity": 17}, {"learn_beta": True, "learn_threshold": True}, {"reset": "zero", "detach_reset": False}],
)
def test_neurons_of_every_form_hear_sparse_synapses(arguments: dict) -> None:
    assert_like_masked(*models(network_of(KINDS["few"], **arguments)), spikes_of(2, n_steps=140))


@pytest.mark.parametrize("delay", [0, 2])
@pytest.mark.parametrize("kinds", ["some", "few"])
def test_dense_engine_and_reference_agree(kinds: str, delay: int) -> None:
    network = network_of(KINDS[kinds]).with_delay(delay)
    spikes = spikes_of(4)
    sparse = models(network, gain=4.0)[0]
    torch_model = Model(network, backend="dense", dense_mode="hoist", seed=3)
    torch_model.load_state_dict(sparse.state_dict())
    _, got = train(sparse, spikes)
    parameters = {name: Parameters.from_layer(layer, np.float64) for name, layer in sparse.layers.items()}
    records = reference.network_forward(network, parameters, spikes.to_dense().double().numpy())
    d_out = 2 * records["output"].v[:-1]
    want = reference.network_backward(network, parameters, records, {"output": d_out})
    _, dense = train(torch_model, spikes)
    for name, layer in sparse.layers.items():
        matrices = [*want[name].weights, *want[name].loops]
        for c, matrix in zip([*layer.senders, *layer.loops], matrices, strict=True):
            if c is None:
                continue
            wanted = torch.from_numpy(matrix)
            if layer.columns(c) is not None:
                assert not wanted[layer.mask(c) == 0].any()  # at existing synapses only
                wanted = wanted.reshape(-1)[layer.places(c)]
            for found in (got, dense):
                grad = found[f"layers.{name}.{c.name}"].double()
                assert float((grad - wanted).norm() / wanted.norm()) < 1e-4, (name, c.name)


def test_a_draw_has_equal_fan_in_and_follows_from_its_seed() -> None:
    kind = Sparse(0.07, seed=5)
    offsets, senders = kind.columns(101, 200, 0, 200)
    assert (np.diff(offsets) == 7).all()
    assert all((np.diff(senders[a:b]) > 0).all() for a, b in itertools.pairwise(offsets))
    assert senders.min() >= 0
    assert senders.max() <= 100
    assert np.bincount(senders, minlength=101).std() < 1.5 * np.sqrt(14)  # no sender is favored
    part_offsets, part = kind.columns(101, 200, 63, 131)
    assert np.array_equal(part, senders[63 * 7 : 131 * 7])
    assert part_offsets[-1] == 68 * 7
    assert not np.array_equal(senders, Sparse(0.07, seed=6).columns(101, 200, 0, 200)[1])
    many = Sparse(0.6).columns(11, 70, 0, 70)
    assert (np.diff(many[0]) == 7).all()
    assert len({tuple(many[1][k * 7 : k * 7 + 7]) for k in range(70)}) > 50


def test_sparse_synapses_survive_json_and_text() -> None:
    network = parse_net("700-256rp0.1-64p0.25-20")
    assert [type(c.synapses).__name__ for c in network.connections] == ["Sparse", "Sparse", "Dense", "Sparse"]
    assert network.n_weights() == 256 * 70 + 64 * 64 + 64 * 20 + 256 * 26
    assert Network.from_json(network.to_json()) == network
    given = Sparse(mask=np.array([[0, 1, 1], [0, 0, 0]]))
    assert given.mask == ((1, 2), ())
    assert synapses_from_dict(given.to_dict()) == given == Sparse(mask=[[1, 2], []])


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ({"density": 0.0}, ["density", "0.0", "above 0", "1"]),
        ({"density": 1.5}, ["density", "1.5"]),
        ({"seed": -1}, ["seed", "-1"]),
        ({"mask": np.ones(3)}, ["mask", "(3,)"]),
        ({"mask": [[2, 1]]}, ["mask", "ascending"]),
        ({"mask": 3}, ["mask", "3"]),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict, facts: list[str]) -> None:
    with pytest.raises(DescriptionError) as error:
        Sparse(**arguments)
    assert all(fact in str(error.value) for fact in facts)


def test_a_mask_of_other_sizes_is_refused() -> None:
    with pytest.raises(DescriptionError, match=r"input->hidden.*2 senders.*3 and 4"):
        Network(
            Network.chain(Input(3), LIF(4), LI(2)).populations,
            (
                *(
                    replace(c, synapses=Sparse(mask=[[0], [1]]))
                    for c in Network.chain(Input(3), LIF(4), LI(2)).connections[:1]
                ),
                *Network.chain(Input(3), LIF(4), LI(2)).connections[1:],
            ),
        )


def test_threads_and_instruction_sets_give_the_same_bits(isa: str, threads: int) -> None:
    network = network_of(KINDS["few"], capacity=31)
    spikes = spikes_of(5, n_samples=19)
    model = models(network)[0]
    potentials, got = train(model, spikes)
    set_isa("base")
    set_num_threads(1)
    wanted, want = train(models(network)[0], spikes)
    assert torch.equal(potentials, wanted)
    assert all(torch.equal(got[name], want[name]) for name in want)


@pytest.mark.parametrize("options", [{}, {"backend": "dense"}, {"weight_dtype": "int8"}], ids=str)
def test_training_goes_on_after_inference_mode(options: dict) -> None:
    model, spikes = Model(network_of([Sparse(0.3)] * 3), **options), spikes_of(2)
    with torch.inference_mode():
        model(spikes)
    potentials = model(spikes).potentials
    assert potentials is not None
    potentials.sum().backward()


def test_a_mask_may_have_no_synapse() -> None:
    network = network_of([Sparse(mask=np.zeros((N_INPUT, 133), bool)), Dense(), Dense()])
    assert Model(network)(spikes_of(2)).potentials is not None


def test_lists_of_one_sample_and_one_step_and_none() -> None:
    network = network_of(KINDS["few"], grad_threshold=-float("inf"))
    sparse, masked = models(network, gain=9.0)
    assert_like_masked(sparse, masked, spikes_of(1, n_samples=1, n_steps=4))
    for model in (sparse, masked):
        model.zero_grad()
        (model(SpikeBatch.from_dense(torch.zeros(3, 2, N_INPUT))).potentials).sum().backward()
    assert all(not p.grad.any() for p in sparse.parameters())


def test_a_sequence_in_chunks_equals_one_call() -> None:
    model = models(network_of(KINDS["few"]))[0]
    spikes = spikes_of(7, n_steps=10).to_dense()
    whole = model(SpikeBatch.from_dense(spikes))
    first = model(SpikeBatch.from_dense(spikes[:4]))
    second = model(SpikeBatch.from_dense(spikes[4:]), first.state)
    assert torch.equal(torch.cat([first.potentials, second.potentials]), whole.potentials)


def test_weights_that_are_not_finite_are_refused_and_copies_run() -> None:
    model = models(network_of(KINDS["few"]))[0]
    spikes = spikes_of(3)
    wanted = model(spikes).potentials
    assert torch.equal(copy.deepcopy(model)(spikes).potentials, wanted)
    with torch.no_grad():
        model.layers["hidden1"].weights[1][17] = torch.nan
    with pytest.raises(NumericError, match=r"holds NaN at \[17\]"):
        model(spikes)


def test_the_plan_counts_synapses_and_ipus_refuse_them() -> None:
    dense, sparse = parse_net("700-1024-1024-20"), parse_net("700-1024p0.1-1024p0.1-20")
    target = parse_target("cpu")
    items = [rank_bytes(make_plan(network, 16, 100, target))[0] for network in (dense, sparse)]
    for item in ("weights", "gradient", "optimizer"):
        assert items[1][item] < items[0][item] / 4
    assert items[1]["weights"] == 4 * sparse.n_weights()
    plan = make_plan(sparse, 16, 100, target)
    assert type(plan).from_json(plan.to_json()) == plan
    with pytest.raises(DescriptionError, match=r"input->hidden1.*Sparse.*IPU.*Dense"):
        make_plan(sparse, 16, 100, parse_target("ipu-mk2"))
    with pytest.raises(DescriptionError, match=r"input->hidden1.*Sparse.*IPU"):
        check_network(sparse, "max")
