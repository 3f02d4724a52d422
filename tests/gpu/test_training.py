"""Whole training steps on the emulated device: the bits of the engine `cpu`."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from random_networks import Case, case, differences, equal, run

from sparsesnn import Model, SpikeBatch, parse_net
from sparsesnn.cli import main
from sparsesnn.engines.base import Batch, Training
from sparsesnn.engines.cpu.engine import CpuEngine
from sparsesnn.engines.dropout import Dropout
from sparsesnn.engines.gpu import passes, program
from sparsesnn.engines.gpu.choose import open_device
from sparsesnn.engines.gpu.engine import GpuEngine
from sparsesnn.engines.gpu.layout import find_leaves, make_waves, pack, unpack
from sparsesnn.engines.optimizers import Updates
from sparsesnn.errors import (
    DescriptionError,
    DeviceMemoryError,
    NotFiniteError,
    ShapeError,
    SpikeListError,
)
from sparsesnn.host.comm import Grid
from sparsesnn.layers import LI, LIF, Input
from sparsesnn.loss import CrossEntropy, cross_entropy
from sparsesnn.network import Connection, Network
from sparsesnn.surrogate import fast_sigmoid
from sparsesnn.train.prepare import DrawnDropout

pytestmark = pytest.mark.usefixtures("emulated")


def plain(text: str = "20-40r-10", n_steps: int = 7, n_samples: int = 9, rate: float = 0.2, **training: Any) -> Case:
    """A network whose neurons fire."""
    return Case(parse_net(text), n_steps, n_samples, rate, 3.0, {"n_classes": 10, "decoding": "mean", **training})


def scaled(network: Network, backend: str, factor: float = 3.0, seed: int = 1, **more: Any) -> Model:
    """A model whose parameters are this many times the initial ones, so that its neurons fire."""
    model = Model(network, backend=backend, seed=seed, **more)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)
    return model


@pytest.mark.parametrize("seed", range(8))
def test_random_networks(seed: int) -> None:
    assert differences(case(seed, most=70)) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 140))
def test_more_random_networks(seed: int) -> None:
    assert differences(case(seed)) == []


def test_a_batch_of_several_leaves() -> None:
    assert differences(plain("12-20-10", 3, 150), 2) == []


@pytest.mark.parametrize("text", ["9-1100-10", "4-1090r-10"])
def test_more_than_16_tiles(text: str) -> None:
    assert differences(plain(text, 2, 2), 1) == []


@pytest.mark.slow
@pytest.mark.parametrize("capacity", [None, 100])
def test_tiles_in_turn(capacity: int | None) -> None:
    of = replace(plain(n_steps=2, n_samples=1, rate=0.5), network=parse_net("5-4200-10", capacity=capacity))
    assert differences(of, 1) == []
    _, steps = run(of, CpuEngine, 1)
    assert (steps[0].dropped["hidden"] > 100) == (capacity is not None)


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_silent_and_full_input(rate: float) -> None:
    assert differences(plain(rate=rate), 2) == []


def test_lists_that_need_more_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step is repeated with more room; its numbers do not depend on it."""
    monkeypatch.setattr(program, "first_room", lambda n, n_steps: 3)
    made = []
    before = passes.Passes.__init__

    def count(self: Any, *arguments: Any) -> None:
        made.append(arguments)
        before(self, *arguments)

    monkeypatch.setattr(passes.Passes, "__init__", count)
    assert differences(plain("20-40r-30-10"), 2) == []
    assert len(made) > 2


def test_spikes_with_values() -> None:
    of = plain("20-40r-10")
    counts = torch.from_numpy(np.random.default_rng(0).poisson(0.3, (7, 9, 20)).astype(np.float32)) * 0.7
    batch = Batch(SpikeBatch.from_dense(counts, graded=True), of.batch().labels)
    assert batch.spikes.graded
    steps = []
    for kind in (CpuEngine, GpuEngine):
        engine, _ = run(of, kind, 1)
        steps.append([(engine.step(batch, 1e-2).loss) for _ in range(3)] + [engine.weights_sha256()])
    assert steps[0] == steps[1]


@pytest.mark.parametrize("decoding", ["mean", "softmax_sum"])
@pytest.mark.parametrize("dropout", [Dropout(neurons=0.3), Dropout(neurons=0.2, spikes=0.4)])
def test_dropout(dropout: Dropout, decoding: str) -> None:
    """Several waves of samples; recurrent connections receive all spikes."""
    network = parse_net("20-40r-30-10", grad_threshold=-math.inf).with_delays([0, 3])
    of = Case(network, 4, 130, 0.2, 3.0, {"n_classes": 10, "decoding": decoding, "dropout": dropout})
    assert differences(of, 2) == []


def test_dropout_of_a_model() -> None:
    """Several layers read a population, and the loss reads its lists."""
    populations = {"input": Input(20), "a": LIF(30), "b": LIF(25), "output": LI(10)}
    pairs = [("input", "a"), ("a", "a"), ("a", "b"), ("a", "output"), ("b", "output")]
    network = Network(populations, [Connection(pre, post, delay=int(pre == post)) for pre, post in pairs])
    batch = plain(dropout=Dropout(neurons=0.2, spikes=0.3)).batch()
    assert batch.heard is not None
    found = []
    for backend in ("cpu", "gpu"):
        model = scaled(network, backend)
        output = model(batch.spikes, heard=batch.heard)
        loss = cross_entropy(output, batch.labels, "mean", 10) + output.spikes["a"].counts().pow(2).mean()
        model(batch.spikes)  # without dropout; the backward pass repeats the first one
        loss.backward()
        value, output = model.learn(batch.spikes, CrossEntropy(batch.labels, "mean", 10), heard=batch.heard)
        found.append({name: p.grad for name, p in model.named_parameters()})
        found[-1] |= {"loss": loss.detach(), "learn": value, "a": output.spikes["a"].ids}
    assert all(equal(x, found[1][name]) for name, x in found[0].items())


@pytest.mark.parametrize(
    "neuron",
    [
        {"detach_reset": False},
        {"reset": "zero", "detach_reset": False, "learn_beta": True, "grad_threshold": -math.inf},
        {"reset": "zero", "grad_threshold": 0.5, "learn_threshold": True},
    ],
)
def test_capacity(neuron: dict[str, Any]) -> None:
    """Full lists, whose dropped spikes still reset their neurons."""
    a, b = (LIF(n, capacity=k, surrogate=fast_sigmoid(2.0), **neuron) for n, k in ((90, 7), (30, 29)))
    pairs = [("input", "a"), ("a", "a"), ("a", "b"), ("b", "output")]
    network = Network(
        {"input": Input(20), "a": a, "b": b, "output": LI(10)},
        [Connection(pre, post, delay=int(pre == post)) for pre, post in pairs],
    )
    of = Case(network, 6, 11, 0.4, 3.0, {"n_classes": 10, "decoding": "mean", "dropout": Dropout(spikes=0.2)})
    assert differences(of) == []
    _, steps = run(of, GpuEngine, 1)
    assert steps[0].dropped["a"] > 100


def test_capacity_of_a_model() -> None:
    """Which candidates are kept depends on the training step and the number of the sample."""
    network = parse_net("20-40r-10", capacity=5)
    spikes, labels = plain().batch().spikes, plain().batch().labels
    found = []
    for backend in ("cpu", "gpu"):
        model = scaled(network, backend, 5)
        outputs = [model(spikes), model(spikes, first_sample=4)]
        lists = [output.spikes["hidden"] for output in outputs]
        cross_entropy(outputs[0], labels, "mean", 10).backward()  # repeats the first pass
        _, learned = model.learn(spikes, CrossEntropy(labels, "mean", 10))
        lists.append(learned.spikes["hidden"])
        with torch.no_grad():
            lists.append(model(spikes).spikes["hidden"])
        assert learned.dropped() == {"hidden": lists[2].n_dropped()}
        assert not torch.equal(lists[0].ids, lists[1].ids)
        found.append(model.state_dict() | {name: p.grad for name, p in model.named_parameters()})
        for k, x in enumerate(lists):
            found[-1] |= {f"ids {k}": x.ids, f"spikes {k}": x.n_spikes, f"dropped {k}": x.dropped}
    assert int(found[0]["layers.hidden.training_steps"]) == 3
    assert all(equal(x, found[1][name]) for name, x in found[0].items())


def test_batches_of_other_sizes() -> None:
    """Each shape has its buffers; the weights are the same."""
    of = plain()
    engines = [run(of, kind, 1)[0] for kind in (CpuEngine, GpuEngine)]
    for n_samples, n_steps in ((4, 7), (2, 3), (130, 2), (1, 1), (4, 7)):
        batch = replace(of, n_samples=n_samples, n_steps=n_steps).batch()
        steps = [engine.step(batch, 1e-3) for engine in engines]
        assert steps[0].loss == steps[1].loss
    assert engines[0].weights_sha256() == engines[1].weights_sha256()
    engines[1].close()


def test_weights_that_are_not_finite_change_nothing() -> None:
    of = plain()
    gpu, _ = run(of, GpuEngine, 1)
    weights = gpu.weights()
    broken = {name: x.clone() for name, x in weights.items()}
    broken["model/layers.output.hidden->output"][:, 0] = float("inf")
    gpu.load_weights(broken, "here")
    with pytest.raises(NotFiniteError, match="loss"):
        gpu.step(of.batch(), 1e-2)
    after = gpu.weights()
    assert all(equal(broken[name], after[name]) for name in broken)
    gpu.close()


@pytest.mark.parametrize(
    ("updates", "weight_dtype"),
    [
        (Updates(ema=0.9, clip_norm=0.5), "float32"),
        (Updates("sgd", clip_norm=0.5), "bfloat16"),
        (Updates("sgd", momentum=0.0, weight_decay=0.01), "float32"),
    ],
    ids=["adamw", "momentum", "sgd"],
)
def test_the_other_engine_goes_on_from_a_state(updates: Updates, weight_dtype: str) -> None:
    of = plain("20-40r-10", updates=updates, dropout=Dropout(neurons=0.2), options={"weight_dtype": weight_dtype})
    of = replace(of, network=parse_net("20-40r-10", capacity=9))
    ends = []
    for first, second in ((CpuEngine, CpuEngine), (CpuEngine, GpuEngine), (GpuEngine, CpuEngine)):
        begun, _ = run(of, first, 3)
        state = begun.state()
        other = second(
            "gpu" if second is GpuEngine else "cpu", of.network, Training(batch=9, **of.training), Grid.alone()
        )
        other.load(state, "here")
        for k in range(3, 6):
            other.step(of.batch(k), 1e-2)
        ends.append(other.state())
    for end in ends[1:]:
        assert end.keys() == ends[0].keys()
        assert all(equal(x, end[name]) for name, x in ends[0].items())


@pytest.mark.parametrize(
    ("decoding", "weight_dtype"), [("mean", "float32"), ("softmax_sum", "float32"), ("mean", "bfloat16")]
)
def test_model(decoding: str, weight_dtype: str) -> None:
    """Autograd, hidden values in the loss, and a pass in between."""
    gradients = []
    for backend in ("cpu", "gpu"):
        torch.manual_seed(0)
        model = scaled(parse_net("20-30r-25-10"), backend, weight_dtype=weight_dtype)
        first, second = (SpikeBatch.from_dense((torch.rand(7, 5, 20) < 0.3).float()) for _ in range(2))
        labels = torch.randint(0, 10, (5,))
        output, later = model(first), model(second)
        loss = cross_entropy(output, labels, decoding, 10) + cross_entropy(later, labels, "max", 10)
        (loss + output.spikes["hidden1"].counts().pow(2).mean()).backward()
        model.learn(first, CrossEntropy(labels, "mean", 10))
        gradients.append({name: p.grad for name, p in model.named_parameters()})
        with torch.no_grad():
            gradients[-1]["potentials"] = model(first).potentials
            assert model(first).activity() == {name: lists.activity() for name, lists in model(first).spikes.items()}
    assert all(torch.equal(x, gradients[1][name]) for name, x in gradients[0].items())


def test_lists_are_read_before_the_next_batch() -> None:
    """A later pass overwrites the lists on the device; lists that were read are kept."""
    of = plain()
    model = Model(of.network, backend="gpu", seed=1)
    batches = [of.batch(k) for k in range(2)]

    def learn(batch: Batch) -> Any:
        return model.learn(batch.spikes, CrossEntropy(batch.labels, "mean", 10))[1]

    first = learn(batches[0])
    kept = first.spikes["hidden"].ids.clone()
    late = learn(batches[1])
    assert torch.equal(first.spikes["hidden"].ids, kept)
    learn(batches[0])
    with pytest.raises(DescriptionError, match="hidden: the device has run another batch"):
        late.spikes["hidden"]
    assert "absent" not in late.spikes
    with pytest.raises(KeyError):
        late.spikes["absent"]


@pytest.mark.parametrize("capacity", [None, 5])
def test_frozen_weights(capacity: int | None) -> None:
    """A layer lists spikes only, unless it or one before it learns."""
    network = parse_net("20-30-25-10", capacity=capacity, grad_threshold=0.2)
    models = [scaled(network, backend) for backend in ("cpu", "gpu")]
    spikes, labels = plain().batch().spikes, plain().batch().labels
    lists = []
    for model in models:
        model.layers["hidden1"].get_parameter("input->hidden1").requires_grad_(False)
        _, output = model.learn(spikes, CrossEntropy(labels, "mean", 10))
        assert model.layers["hidden1"].get_parameter("input->hidden1").grad is None
        lists.append(dict(output.spikes))
        assert lists[-1]["hidden1"].n_spikes.sum() == lists[-1]["hidden1"].ids.numel() > 0
        assert (output.dropped()["hidden2"] > 0) == (capacity is not None)
    for name in ("hidden1", "hidden2"):
        cpu, gpu = (found[name] for found in lists)
        assert torch.equal(cpu.ids, gpu.ids)
        assert cpu.n_dropped() == gpu.n_dropped()
    names = dict(models[0].named_parameters())
    assert all(p.grad is None or torch.equal(p.grad, names[name].grad) for name, p in models[1].named_parameters())


def test_weights_are_rounded_as_in_torch() -> None:
    """To the nearest, of two equally near ones to the even one; NaN stays NaN."""
    bits = np.random.default_rng(0).integers(0, 2**32, (37, 20), np.uint32)
    bits[0] = [
        0x3F808000,
        0x3F818000,
        0x7F7FFFFF,
        0x7F800000,
        0xFF800000,
        0x7FFFFFFF,
        0x00000001,
        0x80000000,
        0x3F80FFFF,
        0x7F7F7FFF,
    ] * 2
    model = Model(parse_net("37-20"), weight_dtype="bfloat16")
    on_device = program.Program(open_device("cuda"), model.network, model.layers._modules)
    weights = torch.from_numpy(bits.view(np.float32))
    on_device.weights.put_one("output", "input->output", weights)
    (matrix,) = on_device.weights.matrices.values()
    packed = np.empty(matrix.shape, np.uint16)
    on_device.device.download(matrix.read, packed)
    found = torch.from_numpy(unpack(packed, 20).copy()).view(torch.bfloat16)
    assert equal(found, weights.bfloat16())
    on_device.close()


def test_layout() -> None:
    rng = random.Random(0)
    for n, width in ((1, 16), (17, 16), (20, 32), (130, 64)):
        weight = np.random.default_rng(n).standard_normal((rng.randint(1, 9), n)).astype(np.float32)
        packed = pack(weight, width)
        assert packed.shape == (len(weight), -(-n // width), 16, width // 16)
        assert packed[0, 0, 3].tolist() == [weight[0, k * 16 + 3] if k * 16 + 3 < n else 0 for k in range(width // 16)]
        assert np.array_equal(unpack(packed, n), weight)


def test_waves_add_the_leaves_of_the_tree() -> None:
    """Each leaf once, in the order of `find_leaves`; slots are free again once they are added."""
    assert find_leaves(5) == ([(0, 5)], [])
    assert find_leaves(19) == ([(0, 5), (5, 10), (10, 15), (15, 19)], [(0, 1), (2, 3), (0, 2)])
    for n_samples in (1, 8, 64, 65, 150, 512, 1000, 3001):
        n_groups = -(-n_samples // 8)
        found, pairs = find_leaves(n_groups)
        slots: dict[int, list[Any]] = {}
        seen = []
        for wave in make_waves(n_samples):
            first = wave.first_sample // 8
            for low, high, slot in wave.leaves:
                assert slot not in slots
                slots[slot] = [(first + low, first + high)]
                seen.append((first + low, first + high))
            for to, added in wave.pairs:
                slots[to] = [slots[to], slots.pop(added)]
        wanted: list[Any] = [[leaf] for leaf in found]
        for to, added in pairs:
            wanted[to] = [wanted[to], wanted[added]]
        assert seen == found
        assert slots == {0: wanted[0]}


@pytest.mark.parametrize("weight_dtype", ["float32", "bfloat16"])
def test_a_live_network_continues_on_the_cpu(weight_dtype: str) -> None:
    model = scaled(parse_net("20-40r-10", capacity=9), "gpu", seed=3, weight_dtype=weight_dtype)
    spikes = plain().batch().spikes
    with torch.no_grad():
        whole = model.eval()(spikes)
    live = model.live()
    steps = [live(spikes.steps(t, t + 1)) for t in range(spikes.n_steps)]
    assert torch.equal(torch.cat([step.potentials for step in steps]), whole.potentials)
    assert sum(step.counts("hidden") for step in steps).sum() > 0


# ---- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (
            Network(
                {"input": Input(5), "hidden": LIF(8, capacity=3, activity="fixed"), "output": LI(2)},
                [Connection("input", "hidden"), Connection("hidden", "output")],
            ),
            "hidden: has activity 'fixed'",
        ),
        (parse_net("2x8x8:4C3-10"), "Conv2d"),
        (parse_net("5-20000-10"), "20,000 neurons.*16,384"),
    ],
)
def test_networks_that_it_does_not_run(network: Network, message: str) -> None:
    with pytest.raises(DescriptionError, match=f"(?s){message}.*backend 'cpu'"):
        Model(network, backend="gpu")


def test_constant_lists_are_refused() -> None:
    """The engine cpu sums their gradients over the steps first."""
    model = Model(parse_net("20-8-10"), backend="gpu")
    with pytest.raises(DescriptionError, match="(?s)the same at all steps.*currents=True.*backend 'cpu'"):
        model(SpikeBatch.constant(torch.ones(3, 20), 5))


def test_dropout_that_it_does_not_draw() -> None:
    model, spikes = Model(parse_net("20-8-10"), backend="gpu"), plain().batch().spikes
    with pytest.raises(DescriptionError, match="(?s)dropout.*no draws.*backend 'cpu'"):
        model(spikes, heard=lambda population, step, sample, neuron: neuron % 2 == 0)
    with pytest.raises(ShapeError, match="dropout.*3 samples.*9"):
        model(spikes, heard=DrawnDropout(Dropout(spikes=0.5), 0, 0, np.arange(3)))


def test_lists_that_break_their_invariants() -> None:
    model = Model(parse_net("5-8-2"), backend="gpu")
    wrong = SpikeBatch(
        torch.tensor([0, 2]), torch.tensor([3, 1], dtype=torch.uint16), torch.tensor([2], dtype=torch.int32), 1, 1, 5
    )
    with pytest.raises(SpikeListError, match="ascend"):
        model(wrong)


def test_a_batch_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    from sparsesnn.engines.gpu.emulated import EmulatedDevice

    def full(self: Any, n_bytes: int, what: str) -> int:
        raise DeviceMemoryError("no", needed=n_bytes, free=1_000, what=what)

    model = Model(parse_net("20-40-10"), backend="gpu")
    small = Batch(plain().batch().spikes, plain().batch().labels)
    model(small.spikes)
    monkeypatch.setattr(EmulatedDevice, "allocate", full)
    monkeypatch.setattr(EmulatedDevice, "memory", lambda self: (1_000, 1_000_000))
    large = SpikeBatch.from_dense(torch.ones(50, 400, 20))
    with pytest.raises(
        DeviceMemoryError, match=r"batch of 400 samples of 50 steps needs [\d,]+ bytes.*a batch of \d+ fits"
    ) as error:
        model(large)
    assert error.value.needed > 1_000_000


DIGITS = [
    "digits",
    "--batch",
    "64",
    "--set",
    "data.n_steps=8",
    "--set",
    "optim.schedule=constant",
    "--set",
    "train.plots=false",
    "--quiet",
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        ["--net", "auto-12r-auto", "--set", "dropout.spikes=0.2"],
        ["--net", "auto-12r-auto", "--set", "optim.name=sgd", "--set", "train.weight_dtype=bfloat16"],
        ["--net", "currents-64-auto", "--set", "data.encoding=direct"],
    ],
    ids=["adamw, dropout", "sgd, bfloat16", "currents"],
)
def test_command_line(settings: list[str], tmp_path: Path) -> None:
    """A run of each engine, and one that changes engines after an epoch, end with the same weights."""

    def go(out: str, *more: str) -> str:
        assert main(["train", *DIGITS, *settings, "--out", str(tmp_path / out), *more]) == 0
        found: str = json.loads((tmp_path / out / "result.json").read_text())["weights_sha256"]
        return found

    whole = go("cpu", "--epochs", "2")
    go("both", "--epochs", "1", "--backend", "gpu")
    assert go("both", "--epochs", "2", "--backend", "cpu", "--resume", "auto") == whole
    assert go("gpu", "--epochs", "2", "--backend", "gpu") == whole
