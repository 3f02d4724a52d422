"""The IPU program on the emulated machine against the CPU engine and the reference."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import sparsesnn as ss
from ipu_cases import with_shards_of
from sparsesnn import ipu
from sparsesnn.errors import ConfigError, DescriptionError, PlanError, ShapeError, SpikeListError
from sparsesnn.ipu.selftest import torch_optimizer
from sparsesnn.layers.declaration import fires
from sparsesnn.loss import cross_entropy
from sparsesnn.network import Connection, Network
from sparsesnn.partition.ipu.memory import tile_bytes
from sparsesnn.partition.ipu.vertices import MAX_PER_TILE, loops_rounds, n_vertices
from sparsesnn.partition.plan import Plan
from sparsesnn.partition.planner import make_plan
from sparsesnn.partition.target import parse_target
from sparsesnn.reference import Parameters, network_forward, to_lists


def random_spikes(n_steps: int, n_samples: int, n: int, rate: float, seed: int) -> ss.SpikeBatch:
    generator = torch.Generator().manual_seed(seed)
    return ss.SpikeBatch.from_dense((torch.rand(n_steps, n_samples, n, generator=generator) < rate).float())


def make_model(network: Network, seed: int = 0, scale: float = 1.0) -> ss.Model:
    model = ss.Model(network, seed=seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                parameter.mul_(scale).add_(0.03 * scale)
            elif name.endswith("bias"):
                parameter.uniform_(-0.05, 0.05, generator=torch.Generator().manual_seed(seed))
    return model


def plan_for(
    network: Network, b: int, t: int, target: str = "ipu-mk2:1x16", optimizer: str = "adam", **more: object
) -> Plan:
    return make_plan(network, b, t, parse_target(target), optimizer=optimizer, **{"max_activity": 1.0, **more})  # type: ignore[arg-type]


def train_both(
    network: Network,
    *,
    b: int = 7,
    t: int = 9,
    n_batches: int = 20,
    target: str = "ipu-mk2:1x16",
    optimizer: ipu.Optimizer | None = None,
    decoding: str = "mean",
    n_classes: int | None = None,
    rate: float = 0.2,
    scale: float = 3.0,
    checks: str = "first",
    plan: Plan | None = None,
) -> tuple[ss.Model, ss.Model, ipu.IpuProgram]:
    """The same batches through the CPU engine with torch's optimizer and through the device; weights must agree."""
    optimizer = optimizer or ipu.Optimizer("adam", lr=1e-3)
    host, device = make_model(network, scale=scale), make_model(network, scale=scale)
    kind = "adam" if optimizer.kind == "adamw" else optimizer.kind
    plan = plan or plan_for(network, b, t, target, kind)
    program = ipu.IpuProgram(
        plan, device, optimizer, decoding=decoding, n_classes=n_classes, checks=checks, label_smoothing=0.1
    )
    classes = n_classes or network.populations[network.output].n
    on_host = torch_optimizer(host, optimizer)
    n_input = network.populations[network.inputs[0]].n
    for k in range(n_batches):
        spikes = random_spikes(t, b, n_input, rate, seed=k)
        labels = torch.randint(0, classes, (b,), generator=torch.Generator().manual_seed(k))
        on_host.zero_grad()
        output = host(spikes)
        loss = cross_entropy(output, labels, decoding, classes, label_smoothing=0.1)
        loss.backward()
        norm = float(torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in host.parameters()])))
        if optimizer.clip_norm:
            torch.nn.utils.clip_grad_norm_(host.parameters(), optimizer.clip_norm)
        on_host.step()
        trained = program.train_step(spikes, labels)
        assert trained.loss == pytest.approx(float(loss.detach()), rel=1e-5)
        assert trained.gradient_norm == pytest.approx(norm, rel=1e-4)
        if k == 0:
            assert_same_lists(program.lists(), output)
    program.save()
    return host, device, program


def assert_same_lists(found: dict[str, ss.SpikeBatch], output: ss.module.Output) -> None:
    for name, lists in found.items():
        wanted = output.spikes[name]
        assert torch.equal(lists.offsets, wanted.offsets), name
        assert torch.equal(lists.ids, wanted.ids), name
        assert torch.equal(lists.n_spikes, wanted.n_spikes), name


def assert_same_weights(host: ss.Model, device: ss.Model) -> None:
    for (name, a), b in zip(host.named_parameters(), device.parameters(), strict=True):
        worst = float((a - b).detach().abs().max() / a.detach().abs().max())
        assert worst < 1e-5, f"{name}: {worst:.2e}"


def lif(n: int, **more: object) -> ss.LIF:
    return ss.LIF(n, **{"grad_threshold": 0.3, "beta": 0.9, **more})  # type: ignore[arg-type]


CHAINS = {
    "feed-forward": Network.chain(ss.Input(11), lif(13), lif(10), ss.LI(3)),
    "recurrent, bias": Network.chain(ss.Input(11), lif(13, recurrent=True, bias=True), ss.LI(3, bias=True)),
    "cuba, zero reset": Network.chain(ss.Input(11), ss.CubaLIF(13, grad_threshold=0.2, reset="zero"), ss.LI(3)),
    "exact reset, decays, sigmoid": Network.chain(
        ss.Input(11),
        lif(13, detach_reset=False, reset_decays=True, surrogate=ss.sigmoid(5.0)),
        lif(9, detach_reset=False, reset="zero", surrogate=ss.atan()),
        ss.LI(3),
    ),
    "delay 1": Network.chain(ss.Input(11), lif(13, recurrent=True), lif(10), ss.LI(3), delay=1),
    "per-neuron decays, no reset, gain": Network.chain(
        ss.Input(11), lif(13, beta=tuple(np.linspace(0.5, 0.99, 13)), reset="none", gain=0.5), ss.LI(3, gain=2.0)
    ),
    "skip connections and delays": Network(
        {"input": ss.Input(11), "a": lif(13), "b": ss.CubaLIF(9, recurrent=True, grad_threshold=0.2), "out": ss.LI(3)},
        (
            Connection("input", "a", 1),
            Connection("input", "b", 0),
            Connection("a", "b", 2),
            Connection("a", "out", 3),
            Connection("b", "out", 0),
        ),
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_twenty_steps_leave_the_weights_of_the_cpu_engine(name: str) -> None:
    host, device, _ = train_both(CHAINS[name])
    assert_same_weights(host, device)


@pytest.mark.parametrize("per_tile", [1, 3, 5])
def test_odd_numbers_of_neurons_on_a_tile(per_tile: int) -> None:
    network = CHAINS["delay 1"]
    plan = with_shards_of(plan_for(network, 7, 9, "ipu-mk2:1x64"), per_tile)
    assert plan is not None
    host, device, _ = train_both(network, plan=plan)
    assert {s.n for s in plan.populations["hidden1"].shards} <= {per_tile, 13 % per_tile}
    assert_same_weights(host, device)


@pytest.mark.parametrize("name", CHAINS)
def test_the_machine_finds_no_fault_at_any_step(name: str) -> None:
    host, device, _ = train_both(CHAINS[name], checks="always", n_batches=2, t=4, b=8)
    assert_same_weights(host, device)


@pytest.mark.parametrize("target", ["ipu-mk2:4x5", "ipu-bow:2x9"])
def test_layers_may_span_devices(target: str) -> None:
    plan = plan_for(CHAINS["delay 1"], 7, 9, target, layout="split")
    host, device, program = train_both(CHAINS["delay 1"], plan=plan, n_batches=5)
    assert_same_weights(host, device)
    devices = {s.device for s in program.plan.populations["hidden1"].shards}
    report = program.report()
    assert len(devices) > 1
    assert sum(p.link_bytes for p in report.phases) > 0
    assert sum(p.link for p in report.phases) > 0


def placed(plan: Plan) -> dict[str, set[int]]:
    """Compute set → the tiles that must have a vertex there, from the plan alone; of a network in one round."""
    populations, spiking = plan.populations, [k for k, p in plan.network.populations.items() if fires(p)]
    shards = {k: {s.tile for s in p.shards} for k, p in populations.items()}
    collectors = {k: {c.tile for c in p.collectors} for k, p in populations.items()}
    source, output = plan.network.inputs[0], plan.network.output

    def posts(chosen: bool) -> set[int]:
        return set().union(*(shards[c.post] for c in plan.connections if (c.pre in spiking) == chosen))

    in_use = set().union(*shards.values())
    per_device = [{t for t in in_use if plan.target.device_of(t) == d} for d in range(plan.target.devices)]
    return {
        "forward/fetch": collectors[source],
        "forward/0/step": in_use,
        "forward/0/compact": set().union(*(collectors[k] for k in spiking)),
        "loss": collectors[output],
        "backward/fetch": set().union(*(collectors[k] for k in (source, *spiking))),
        "backward/0/list gradient": posts(True),
        "backward/0/reduce": {r.tile for c in plan.connections if c.pre in spiking for r in c.reducers},
        "backward/0/sum": set().union(*(collectors[k] for k in spiking)),
        "backward/0/state gradient": in_use,
        "backward/input/list gradient": posts(False),
        "square sums": in_use,
        "device norms": {1472 * d for d, tiles in enumerate(per_device) if len(tiles) > 16},
        "norm": {0},
        "update": in_use,
    }


TWO_IPUS = {
    "a neuron a tile": ("ipu-mk2:2x24", "contiguous", 19, 1),
    "layers on both": ("ipu-mk2:2x40", "split", 39, None),
    "tiles of several layers": ("ipu-mk2:2x18", "shared", 39, None),
    "four, of which two are full": ("ipu-mk2:4x20", "contiguous", 19, 1),
}


@pytest.mark.parametrize("name", TWO_IPUS)
def test_what_belongs_to_an_ipu_lies_and_stays_there(name: str) -> None:
    """More than 16 tiles of each IPU, whose sums of squares one vertex adds before they cross a link."""
    target, layout, n, per_tile = TWO_IPUS[name]
    network = Network.chain(ss.Input(11), lif(n, recurrent=True, bias=True), lif(n), ss.LI(3, bias=True), delay=1)
    plan = plan_for(network, 7, 6, target, "sgd", layout=layout)
    plan = (with_shards_of(plan, per_tile) or plan) if per_tile else plan
    host, device, program = train_both(
        network, t=6, plan=plan, n_batches=4, optimizer=ipu.Optimizer("sgd", lr=0.05, clip_norm=0.02), checks="always"
    )
    assert_same_weights(host, device)
    vertices = program._program.vertices()
    assert len(vertices) == len({(set_, tile) for set_, _, tile in vertices}) == n_vertices(plan)
    wanted = {k: tiles for k, tiles in placed(plan).items() if tiles}
    assert {k: {t for s, _, t in vertices if s == k} for k, _, _ in vertices} == wanted
    norms = wanted["device norms"]
    assert len(norms) >= 2
    links = {p.name: p.link_bytes / p.executions for p in program.report().phases}
    assert links["device norms"] == 0
    loose = {
        d: len({t for t in wanted["update"] if t // 1472 == d})
        for d in range(1, plan.target.devices)
        if 1472 * d not in norms
    }
    assert links["norm"] == 6 * 4 * (len(norms - {0}) + sum(loose.values()))


def test_another_number_of_tiles_than_the_device_has_is_refused() -> None:
    """Numbered by fewer, both halves of a plan would lie on the first IPU."""
    network = CHAINS["delay 1"]
    target = replace(parse_target("ipu-mk2:2x16"), tiles_per_device=16)
    plan = make_plan(network, 7, 9, target, max_activity=1.0, layout="split")
    with pytest.raises(DescriptionError, match="tiles of IPUs that have 16, but this device has 1472"):
        ipu.IpuProgram(plan, make_model(network))


@pytest.mark.parametrize(
    "optimizer",
    [
        ipu.Optimizer("sgd", lr=0.05, weight_decay=0.01),
        ipu.Optimizer("sgd", lr=0.05, momentum=0.9),
        ipu.Optimizer("sgd", lr=0.05, clip_norm=0.5),
        ipu.Optimizer("sgd", lr=0.05, clip_norm=1e3),  # a limit that nothing reaches
        ipu.Optimizer("adam", lr=1e-3, weight_decay=0.1, clip_norm=0.5),
        ipu.Optimizer("adamw", lr=1e-3, weight_decay=0.1),
    ],
    ids=lambda o: f"{o.kind}, momentum {o.momentum}, clip {o.clip_norm}",
)
def test_optimizers_are_those_of_torch(optimizer: ipu.Optimizer) -> None:
    host, device, _ = train_both(CHAINS["recurrent, bias"], optimizer=optimizer)
    assert_same_weights(host, device)


@pytest.mark.parametrize("decoding", ["max", "mean", "sum", "last"])
def test_decodings_of_a_readout(decoding: str) -> None:
    host, device, _ = train_both(CHAINS["feed-forward"], decoding=decoding, n_batches=5)
    assert_same_weights(host, device)


def test_a_population_code_averages_the_neurons_of_a_class() -> None:
    network = Network.chain(ss.Input(11), lif(13), ss.LI(6))
    host, device, _ = train_both(network, n_classes=2, n_batches=5)
    assert_same_weights(host, device)


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("per_tile", [1, 2, 5])
def test_the_maximum_over_time_of_a_population_code_is_that_of_its_means(per_tile: int, delay: int) -> None:
    """Neurons of a class lie on several tiles, or those of several classes on one; samples on several collectors."""
    readout = ss.LI(6, learn_beta=True, bias=True)
    network = Network.chain(ss.Input(11), lif(13), readout, delay=delay)
    plan = with_shards_of(plan_for(network, 7, 9, "ipu-mk2:1x32"), per_tile)
    assert plan is not None
    host, device, program = train_both(network, plan=plan, n_classes=2, decoding="max", checks="always", n_batches=8)
    assert_same_weights(host, device)
    assert program.report().n_vertices == n_vertices(plan)
    inference = ipu.IpuProgram(
        plan_for(network, 7, 9, optimizer="none"), host, decoding="max", n_classes=2, checks="always"
    )
    spikes = random_spikes(9, 5, 11, 0.2, seed=50)
    torch.testing.assert_close(
        inference.infer(spikes), ss.loss.decode(host(spikes), "max", 2).detach(), rtol=1e-5, atol=1e-6
    )


def test_steps_that_hold_the_same_maximum_share_its_gradient() -> None:
    """Without input and bias all potentials are 0, all steps are a maximum, and the bias gets the gradient of all."""
    network = Network.chain(ss.Input(11), lif(13), ss.LI(6, bias=True, beta=0.5))
    host, device = make_model(network), make_model(network)
    for model in (host, device):
        with torch.no_grad():
            model.layers["output"].bias.zero_()
    program = ipu.IpuProgram(plan_for(network, 7, 9), device, decoding="max", n_classes=2)
    optimizer = torch.optim.Adam(host.parameters(), lr=1e-3)
    spikes, labels = random_spikes(9, 7, 11, 0.0, 0), torch.arange(7) % 2
    cross_entropy(host(spikes), labels, "max", 2).backward()
    optimizer.step()
    program.train_step(spikes, labels)
    program.save()
    assert_same_weights(host, device)
    assert host.layers["output"].bias.detach().abs().min() > 0


@pytest.mark.parametrize("n_classes", [3, 6])
def test_a_spiking_output_is_decoded_by_counts(n_classes: int) -> None:
    output = ss.LIF(6, grad_threshold=-math.inf)
    network = Network.chain(ss.Input(11), lif(13), output)
    host, device, _ = train_both(network, decoding="count", n_classes=n_classes, n_batches=8)
    assert_same_weights(host, device)


@pytest.mark.parametrize(
    "surrogate", [ss.straight_through(), ss.triangle(2.0), ss.boxcar(2.0), ss.fast_sigmoid(3.0), ss.exponential(2.0)]
)
def test_surrogates(surrogate: ss.Surrogate) -> None:
    host, device, _ = train_both(Network.chain(ss.Input(11), lif(13, surrogate=surrogate), ss.LI(3)), n_batches=3)
    assert_same_weights(host, device)


@pytest.mark.parametrize("activity", ["natural", "fixed"])
@pytest.mark.parametrize("capacity", [1, 4, 7])
def test_full_lists_drop_what_the_reference_drops(capacity: int, activity: str) -> None:
    network = Network.chain(
        ss.Input(11), lif(40, capacity=capacity, activity=activity, recurrent=True), lif(9), ss.LI(3), delay=1
    )
    host, device, program = train_both(network, target="ipu-mk2:1x30", n_batches=4, checks="always", t=6)
    assert_same_weights(host, device)
    spikes = random_spikes(6, 7, 11, 0.3, seed=99)
    program.infer(spikes)
    found = program.lists()
    parameters = {name: Parameters.from_layer(layer, np.float32) for name, layer in device.layers.items()}
    records = network_forward(network, parameters, spikes.to_dense().numpy())
    for name, lists in found.items():
        wanted = to_lists(records[name])
        assert np.array_equal(lists.ids.numpy(), wanted.ids)
        assert np.array_equal(lists.offsets.numpy(), wanted.offsets)
        assert np.array_equal(lists.n_spikes.numpy(), wanted.n_spikes)
        assert lists.dropped is not None
        assert np.array_equal(lists.dropped.numpy(), wanted.dropped)
    assert found["hidden1"].n_dropped() > 0


def test_a_wide_shard_has_several_mask_words() -> None:
    network = Network.chain(ss.Input(11), lif(71, capacity=20), ss.LI(3))
    plan = with_shards_of(plan_for(network, 5, 6, "ipu-mk2:1x8"), 35)
    assert plan is not None
    host, device, _ = train_both(network, b=5, t=6, plan=plan, n_batches=5, checks="always")
    assert_same_weights(host, device)


def test_reducers_add_in_two_stages() -> None:
    network = Network.chain(ss.Input(11), lif(20, recurrent=True), lif(38), ss.LI(3))
    host, device, program = train_both(network, target="ipu-mk2:1x64", n_batches=3)
    assert any(c.reducers for c in program.plan.connections)
    assert_same_weights(host, device)


def test_a_smaller_last_batch_trains_as_on_the_cpu() -> None:
    network = CHAINS["recurrent, bias"]
    host, device = make_model(network, scale=3.0), make_model(network, scale=3.0)
    program = ipu.IpuProgram(plan_for(network, 8, 5), device)
    optimizer = torch.optim.Adam(host.parameters(), lr=1e-3)
    spikes, labels = random_spikes(5, 3, 11, 0.3, 0), torch.tensor([0, 2, 1])
    cross_entropy(host(spikes), labels, "mean", 3).backward()
    optimizer.step()
    assert program.train_step(spikes, labels).logits.shape == (3, 3)
    program.save()
    assert_same_weights(host, device)
    assert program.output(3).counts("hidden").shape == (3, 13)


def test_weights_and_moments_travel_both_ways() -> None:
    network = CHAINS["recurrent, bias"]
    plan = plan_for(network, 7, 5)
    whole, first, second = (make_model(network, scale=3.0) for _ in range(3))
    program, before = ipu.IpuProgram(plan, whole), ipu.IpuProgram(plan, first)
    batches = [(random_spikes(5, 7, 11, 0.3, k), torch.arange(7) % 3) for k in range(4)]
    for batch in batches:
        program.train_step(*batch)
    for batch in batches[:2]:
        before.train_step(*batch)
    optimizer = torch.optim.Adam(first.parameters(), lr=1e-3)
    before.save(optimizer)
    second.load_state_dict(first.state_dict())
    after_optimizer = torch.optim.Adam(second.parameters(), lr=1e-3)
    after_optimizer.load_state_dict(optimizer.state_dict())
    after = ipu.IpuProgram(plan, second)
    after.load(after_optimizer)
    for batch in batches[2:]:
        after.train_step(*batch)
    program.save()
    after.save()
    for a, b in zip(whole.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def test_inference_has_no_gradients_and_gives_the_same_logits() -> None:
    network = CHAINS["cuba, zero reset"]
    model = make_model(network, scale=3.0)
    program = ipu.IpuProgram(plan_for(network, 7, 9, optimizer="none"), model, checks="always")
    spikes = random_spikes(9, 7, 11, 0.3, 0)
    output = model(spikes)
    torch.testing.assert_close(program.infer(spikes), output.potentials.detach().mean(0), rtol=1e-5, atol=1e-6)
    assert_same_lists(program.lists(), output)
    with pytest.raises(ConfigError, match="the plan was made for optimizer='none'"):
        program.train_step(spikes, torch.zeros(7, dtype=torch.int64))


LEARNING = {
    "one value a population": Network.chain(
        ss.Input(11),
        lif(13, learn_beta=True, learn_threshold=True, recurrent=True, bias=True),
        ss.CubaLIF(10, grad_threshold=0.2, learn_alpha=True, learn_beta=True, learn_threshold=True),
        ss.LI(3, learn_beta=True),
        delay=1,
    ),
    "one a neuron, exact resets": Network.chain(
        ss.Input(11),
        lif(13, beta=(0.9,) * 13, learn_beta=True, threshold=(1.0,) * 13, learn_threshold=True, detach_reset=False),
        ss.CubaLIF(
            9, alpha=(0.8,) * 9, learn_alpha=True, grad_threshold=0.2, reset="zero", learn_threshold=True, bias=True
        ),
        lif(5, reset_decays=True, learn_threshold=True, learn_beta=True),
        ss.LI(3, beta=(0.9, 0.8, 1.0), learn_beta=True),
    ),
}


@pytest.mark.parametrize("optimizer", [ipu.Optimizer("adam", lr=1e-3, clip_norm=0.5), ipu.Optimizer("sgd", lr=0.02)])
@pytest.mark.parametrize("name", LEARNING)
def test_decays_and_thresholds_learn_as_on_the_cpu(name: str, optimizer: ipu.Optimizer) -> None:
    host, device, program = train_both(LEARNING[name], optimizer=optimizer, decoding="max", checks="first")
    assert_same_weights(host, device)
    assert {n for n, _ in host.named_parameters() if n.endswith(("beta", "alpha", "threshold"))}
    assert program.report().n_vertices == n_vertices(program.plan)
    train_both(LEARNING[name], optimizer=optimizer, checks="always", n_batches=2, t=4, b=8)


def test_a_decay_that_learns_stays_between_0_and_1() -> None:
    network = Network.chain(ss.Input(11), lif(13, beta=(0.999,) * 13, learn_beta=True), ss.LI(3, learn_beta=True))
    host, device, _ = train_both(
        network, optimizer=ipu.Optimizer("sgd", lr=0.5), n_batches=3, decoding="sum", scale=1.0
    )
    assert_same_weights(host, device)
    assert any(float(p.detach().max()) > 1 for n, p in device.named_parameters() if n.endswith("beta"))


@pytest.mark.parametrize("name", ["recurrent, bias", "skip connections and delays"])
def test_half_precision_weights_are_read_rounded_and_kept_as_floats(name: str) -> None:
    """As the engine with weights that are rounded before every batch."""
    network = CHAINS[name]
    host, device = make_model(network, scale=3.0), make_model(network, scale=3.0)
    plan = plan_for(network, 7, 9, weight_dtype="half")
    program = ipu.IpuProgram(plan, device, checks="always")
    optimizer = torch.optim.Adam(host.parameters(), lr=1e-3)
    for k in range(6):
        spikes, labels = random_spikes(9, 7, 11, 0.2, seed=k), torch.arange(7) % 3
        kept = {p: p.detach().clone() for p in host.parameters() if p.ndim == 2}
        optimizer.zero_grad()
        with torch.no_grad():
            for p, value in kept.items():
                p.copy_(value.half().float())
        output = host(spikes)
        loss = cross_entropy(output, labels, "mean", 3)
        loss.backward()
        with torch.no_grad():
            for p, value in kept.items():
                p.copy_(value)
        optimizer.step()
        assert program.train_step(spikes, labels).loss == pytest.approx(float(loss.detach()), rel=1e-5)
        assert_same_lists(program.lists(), output)
    program.save()
    assert_same_weights(host, device)
    weights = device.layers[network.output].weights[0]
    assert not torch.equal(weights, weights.half().float())


def test_half_precision_inference_needs_no_floats() -> None:
    network = CHAINS["feed-forward"]
    model = make_model(network, scale=3.0)
    full, half = (plan_for(network, 7, 9, optimizer="none", weight_dtype=dtype) for dtype in ("float32", "half"))
    before = [p.detach().clone() for p in model.parameters()]
    program = ipu.IpuProgram(half, model)
    logits = program.infer(random_spikes(9, 7, 11, 0.3, 0))
    program.save()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.half().float())
    assert torch.equal(logits, ipu.IpuProgram(full, model).infer(random_spikes(9, 7, 11, 0.3, 0)))
    assert "rounded.0" in program._program.names()
    assert "weights.0" not in program._program.names()


@pytest.mark.parametrize(("replicas", "devices"), [(2, 1), (4, 2)])
def test_replicas_add_their_gradients(replicas: int, devices: int) -> None:
    """Four or two programs of five samples train as one of all; also where lists are full, whose choice goes by sample."""
    network = Network.chain(
        ss.Input(11), lif(13, recurrent=True, bias=True, capacity=3, learn_beta=True), lif(10), ss.LI(3), delay=1
    )
    n = 5 * replicas
    whole, parts = make_model(network, scale=3.0), make_model(network, scale=3.0)
    optimizer = ipu.Optimizer("adam", lr=1e-3, clip_norm=0.5)
    one = ipu.IpuProgram(plan_for(network, n, 6, f"ipu-mk2:{devices}x16"), whole, optimizer)
    many = ipu.IpuProgram(
        plan_for(network, 5, 6, f"ipu-mk2:{devices}x16", replicas=replicas), parts, optimizer, checks="always"
    )
    for k in range(4):
        size = n if k else n - 2  # the last replica then idles in part
        batch = random_spikes(6, size, 11, 0.3, k), torch.arange(size) % 3
        a, b = one.train_step(*batch), many.train_step(*batch)
        assert a.loss == pytest.approx(b.loss, rel=1e-6)
        assert a.gradient_norm == pytest.approx(b.gradient_norm, rel=1e-5)
        torch.testing.assert_close(a.logits, b.logits, rtol=1e-5, atol=1e-6)
        for name, lists in one.lists(size).items():
            other = many.lists(size)[name]
            assert torch.equal(lists.ids, other.ids)
            assert torch.equal(lists.dropped, other.dropped)
    one.save(), many.save()
    assert_same_weights(whole, parts)
    reduced = next(p for p in many.report().phases if p.name == "gradients of replicas")
    assert reduced.executions == 4
    assert reduced.link_bytes > 0
    again = make_model(network, scale=3.0)
    program = ipu.IpuProgram(many.plan, again, optimizer, checks="never")
    for k in range(4):
        size = n if k else n - 2
        program.train_step(random_spikes(6, size, 11, 0.3, k), torch.arange(size) % 3)
    program.save()
    assert all(torch.equal(a, b) for a, b in zip(parts.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("every", [2, 3, 4, 8])
@pytest.mark.parametrize("name", [*CHAINS, *LEARNING])
def test_potentials_that_are_kept_in_part_run_again_to_the_same_bits(name: str, every: int) -> None:
    """9 steps: segments that divide them, or leave one step, or one segment and a step."""
    network = {**CHAINS, **LEARNING}[name]
    trained = []
    for keep_every in (1, every):
        model = make_model(network, scale=3.0)
        plan = plan_for(network, 7, 9, "ipu-mk2:1x40", keep_every=keep_every)
        program = ipu.IpuProgram(plan, model, decoding="max", checks="always" if keep_every > 1 else "never")
        for k in range(2):
            program.train_step(random_spikes(9, 7, 11, 0.3, k), torch.arange(7) % 3)
        program.save()
        trained.append((model, program))
        assert program.report().n_vertices == n_vertices(plan)
    (whole, _), (parts, program) = trained
    for (name, a), b in zip(whole.named_parameters(), parts.parameters(), strict=True):
        assert torch.equal(a, b), name
    runs = {p.name: p.executions for p in program.report().phases}
    assert runs["again/fetch"] == 2 * program.plan.n_again == 2 * ((9 - 1) // every * every)
    assert runs["forward/0/step"] == 2 * (9 + program.plan.n_again)


def test_potentials_that_are_kept_in_part_take_less_memory_and_more_cycles() -> None:
    network = Network.chain(
        ss.Input(11), lif(60, recurrent=True), ss.CubaLIF(40, grad_threshold=0.2), ss.LI(3), delay=1
    )
    found = {}
    for keep_every in (1, 7):
        plan = plan_for(network, 40, 50, "ipu-mk2:1x12", keep_every=keep_every, strategy="even", layout="shared")
        program = ipu.IpuProgram(plan, make_model(network, scale=3.0), checks="never")
        program.reset_counts()
        program.train_step(random_spikes(50, 40, 11, 0.1, 0), torch.arange(40) % 3)
        found[keep_every] = (max(program.report().tile_bytes), program.report().cycles, plan)
    (all_bytes, all_cycles, plan), (bytes_, cycles, kept) = found[1], found[7]
    saved = int(tile_bytes(plan)["history"].max() - tile_bytes(kept)["history"].max())
    assert saved > 0
    assert all_bytes - bytes_ == pytest.approx(saved, rel=0.1)
    assert all_cycles < cycles < 1.4 * all_cycles


def test_what_cannot_keep_potentials_in_part_is_refused() -> None:
    network = CHAINS["feed-forward"]
    for keep_every, more in ((0, {}), (9, {}), (3, {"optimizer": "none"})):
        with pytest.raises(ConfigError, match=f"keep_every is {keep_every}; allowed: 1, or 2 to 8 if"):
            plan_for(network, 7, 9, keep_every=keep_every, **more)
    deep = Network.chain(ss.Input(20), lif(33), lif(30, recurrent=True), lif(31), lif(20), ss.LI(5))
    with pytest.raises(
        ConfigError, match="keep_every is 2, but populations joined by delay 0 run in 5 rounds, which share"
    ):
        plan_for(deep, 5, 6, "ipu-mk2:1x3", keep_every=2, max_activity=0.5)


@pytest.mark.parametrize("replicas", [1, 4])
@pytest.mark.parametrize("bounds", [(0.2, 0.0), (0.0, 0.05), (0.3, 0.1)])
def test_the_activity_regularizer_is_that_of_the_loss(bounds: tuple[float, float], replicas: int) -> None:
    network = Network.chain(ss.Input(11), lif(13, recurrent=True, capacity=4, bias=True), ss.LIF(6, grad_threshold=0.3))
    lower, upper = bounds
    host, device, other = (make_model(network, scale=3.0) for _ in range(3))
    with torch.no_grad():
        for model in (host, device, other):
            model.layers["hidden"].bias.add_(0.4)  # so that absent samples fire; they must not count
    regularizer = ipu.Regularizer(lower, upper, 100.0, 50.0)
    plan = plan_for(network, 12 // replicas, 6, replicas=replicas, regularizes=True)
    program = ipu.IpuProgram(plan, device, decoding="count", n_classes=3, regularizer=regularizer, checks="always")
    plain = ipu.IpuProgram(plan, other, decoding="count", n_classes=3)
    optimizer = torch.optim.Adam(host.parameters(), lr=1e-3)
    for k in range(4):
        n = 12 - 7 * (k == 1)
        spikes, labels = random_spikes(6, n, 11, 0.3, k), torch.arange(n) % 3
        optimizer.zero_grad()
        output = host(spikes)
        more = ss.loss.activity_regularizer(
            output, lower=lower or None, upper=upper or None, strength_lower=100.0, strength_upper=50.0
        )
        (cross_entropy(output, labels, "count", 3) + more).backward()
        norm = float(torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in host.parameters()])))
        optimizer.step()
        assert program.train_step(spikes, labels).gradient_norm == pytest.approx(norm, rel=1e-4)
        if k == 0:
            assert plain.train_step(spikes, labels).gradient_norm != pytest.approx(norm, rel=1e-2)
        if k == 1:
            assert program.lists(12)["hidden"].n_spikes.reshape(6, 12)[:, n:].sum() > 0
    program.save()
    assert_same_weights(host, device)
    assert program.report().n_vertices == n_vertices(plan)
    with pytest.raises(ConfigError, match=r"without a regularizer; give make_plan\(…, regularizes=True\)"):
        ipu.IpuProgram(plan_for(network, 9, 6), device, decoding="count", n_classes=3, regularizer=regularizer)


def test_mixed_labels_train_as_on_the_cpu() -> None:
    network = CHAINS["feed-forward"]
    host, device = make_model(network, scale=3.0), make_model(network, scale=3.0)
    program = ipu.IpuProgram(plan_for(network, 7, 5), device, label_smoothing=0.1)
    optimizer = torch.optim.Adam(host.parameters(), lr=1e-3)
    spikes = random_spikes(5, 7, 11, 0.3, 0)
    labels = torch.rand(7, 3, generator=torch.Generator().manual_seed(1))
    labels /= labels.sum(1, keepdim=True)
    loss = cross_entropy(host(spikes), labels, "mean", 3, label_smoothing=0.1)
    loss.backward()
    optimizer.step()
    assert program.train_step(spikes, labels).loss == pytest.approx(float(loss.detach()), rel=1e-5)
    program.save()
    assert_same_weights(host, device)


@pytest.mark.parametrize("target", ["ipu-mk2:1x3", "ipu-mk2:1x7", "ipu-mk2:1x64"])
@pytest.mark.parametrize("layout", ["auto", "shared"])
@pytest.mark.parametrize("b", [5, 48])
@pytest.mark.parametrize("delay", [0, 1])
def test_vertices_grow_with_tiles_whatever_lives_on_them(layout: str, target: str, b: int, delay: int) -> None:
    network = Network.chain(ss.Input(20), lif(33), lif(30, recurrent=True), lif(31), lif(20), ss.LI(5), delay=delay)
    plan = plan_for(network, b, 3, target, max_activity=0.5, layout=layout)
    program = ipu.IpuProgram(plan, make_model(network), checks="never")
    assert program.report().n_vertices == n_vertices(plan) <= MAX_PER_TILE * plan.target.n_tiles


@pytest.mark.parametrize("reset", ["subtract", "zero"])
def test_rounds_that_share_their_vertices_give_the_same_weights(reset: str) -> None:
    """Two tiles hold four populations: too few for a set of vertices a round."""
    network = Network(
        {
            "input": ss.Input(11),
            "a": lif(13, recurrent=True, bias=True, reset=reset),
            "b": ss.CubaLIF(9, grad_threshold=0.2, reset=reset),
            "c": lif(8, recurrent=True),
            "out": ss.LI(3, bias=True),
        },
        (
            Connection("input", "a", 1),
            Connection("a", "b"),
            Connection("input", "b"),
            Connection("b", "c"),
            Connection("a", "c", 2),
            Connection("c", "out"),
        ),
    )
    plan = plan_for(network, 13, 5, "ipu-mk2:1x2")
    assert loops_rounds(plan)
    host, device, program = train_both(network, b=13, t=5, plan=plan, checks="always", n_batches=3)
    assert_same_weights(host, device)
    assert program.report().n_vertices == n_vertices(plan) <= MAX_PER_TILE * 2 < n_vertices(plan, loops=False)
    runs = {p.name: p.executions for p in program.report().phases}
    assert runs["forward/rounds/step"] == 3 * 5 * 4  # batches, steps, rounds


def test_the_report_counts_every_superstep() -> None:
    network = CHAINS["feed-forward"]
    program = ipu.IpuProgram(plan_for(network, 7, 9), make_model(network, scale=3.0))
    program.train_step(random_spikes(9, 7, 11, 0.3, 0), torch.zeros(7, dtype=torch.int64))
    first = program.report()
    runs = {p.name: p.executions for p in first.phases}
    assert runs["forward/0/step"] == runs["backward/0/state gradient"] == 9
    assert runs["update"] == runs["loss"] == 1
    assert all(p.sync > 0 for p in first.phases)
    step = next(p for p in first.phases if p.name == "forward/0/step")
    # every shard receives all 7 lists of 2 + 12 words of 2 bytes, 9 times, but the collectors on its own tile
    shards = len(program.plan.populations["hidden1"].shards)
    assert 0 < step.exchange_bytes <= 9 * shards * 7 * 2 * (2 + 12)
    assert "predicted" in first.table()
    assert max(first.tile_bytes) < first.bytes_per_tile
    program.reset_counts()
    assert program.report().cycles == 0
    program.train_step(random_spikes(9, 7, 11, 0.0, 0), torch.zeros(7, dtype=torch.int64))
    assert program.report().cycles < first.cycles  # silence costs less


def test_errors_say_what_is_wrong() -> None:
    network = CHAINS["feed-forward"]
    model = make_model(network)
    plan = plan_for(network, 7, 9)
    program = ipu.IpuProgram(plan, model)
    with pytest.raises(ShapeError, match="input has T=8, B=7, N=11; the program was built for T=9, B up to 7, N=11"):
        program.train_step(random_spikes(8, 7, 11, 0.3, 0), torch.zeros(7, dtype=torch.int64))
    with pytest.raises(ShapeError, match=r"labels are torch.int32 with shape \(7,\); give int64"):
        program.train_step(random_spikes(9, 7, 11, 0.3, 0), torch.zeros(7, dtype=torch.int32))
    with pytest.raises(ShapeError, match="labels run from 0 to 3; allowed: 0 to 2"):
        program.train_step(random_spikes(9, 7, 11, 0.3, 0), torch.tensor([0, 0, 0, 3, 0, 0, 0]))
    narrow = ipu.IpuProgram(plan_for(network, 7, 9, capacity={"input": 2}), model)
    with pytest.raises(SpikeListError, match="has [0-9]+ ids but the program was built for 2; raise the input's"):
        narrow.train_step(random_spikes(9, 7, 11, 0.9, 0), torch.zeros(7, dtype=torch.int64))
    with pytest.raises(DescriptionError, match="'count' decodes spikes, the others a readout"):
        ipu.IpuProgram(plan, model, decoding="count")
    with pytest.raises(ShapeError, match=r"shares of classes run from 0 and sum to 0 to 1 a sample; allowed: from 0"):
        program.train_step(random_spikes(9, 7, 11, 0.3, 0), torch.eye(7, 3))
    with pytest.raises(ConfigError, match="the plan was made for optimizer 'adam', but .* is 'sgd'"):
        ipu.IpuProgram(plan, model, ipu.Optimizer("sgd"))
    with pytest.raises(ConfigError, match="backend 'ipu' needs the Poplar SDK .* source the SDK's enable.sh"):
        ipu.IpuProgram(plan, model, backend="ipu")
    with pytest.raises(ConfigError, match="checks is 'often'; allowed: always, first, never"):
        ipu.IpuProgram(plan, model, checks="often")
    with pytest.raises(DescriptionError, match="the plan was made for another network"):
        ipu.IpuProgram(plan, make_model(CHAINS["delay 1"]))


def test_too_much_memory_is_refused_with_the_tile_and_the_largest_variable() -> None:
    network = CHAINS["feed-forward"]
    plan = plan_for(network, 7, 9)
    small = replace(plan, target=replace(plan.target, bytes_per_tile=50_000))
    with pytest.raises(PlanError, match=r"tile [0-9]+ needs [0-9]+ bytes of its 50000; the largest variable on it is"):
        ipu.IpuProgram(small, make_model(network))
