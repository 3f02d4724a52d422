"""A training step as one CUDA graph, as far as a machine without a GPU can tell.

`Recording` (recording.py) stands in for a graph on CPU tensors. Tensors on PyTorch's device `meta`, which has no numbers, show which operations and
copies a step makes at full size.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from recording import Operations, Recording, name_of, tensors_in
from torch import Tensor
from torch.optim import adam

from sparsesnn import output, parameters
from sparsesnn.delays import Delays
from sparsesnn.engines import Batch, Objective, Training, Updates, make_engine
from sparsesnn.engines.dense import engine as dense_engine
from sparsesnn.engines.dense import fused, layer, on_cpu, parcel, step_graph
from sparsesnn.engines.dropout import Dropout
from sparsesnn.errors import NotFiniteError, ShapeError, SpikeListError
from sparsesnn.layers import LI, LIF, AdLIF, CubaLIF, Input
from sparsesnn.network import Connection, Network, parse_net
from sparsesnn.spikes import SpikeBatch
from sparsesnn.synapses import Sparse
from sparsesnn.task import Task


@pytest.fixture
def graphs_on_cpu(on_cuda: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU tensors take the way of CUDA tensors, with the kernels of the CPU in place of Triton's; a graph is a `Recording`."""

    def forward(*given: Any, fired: Tensor | None = None, **arrays: Any) -> None:
        marks = None if fired is None else torch.empty_like(fired, dtype=torch.bool)
        Recording.run(lambda: on_cpu.forward(*given, fired=marks, **arrays))
        if fired is not None and marks is not None:
            fired.copy_(marks)

    def backward(*given: Any, **arrays: Any) -> None:
        Recording.run(lambda: on_cpu.backward(*given, **arrays))

    monkeypatch.setattr(on_cuda, "forward", forward)
    monkeypatch.setattr(on_cuda, "backward", backward)
    take_the_way_of_cuda(on_cuda, monkeypatch)


def take_the_way_of_cuda(on_cuda: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "kit_of", lambda device: on_cuda)
    monkeypatch.setattr(parameters, "_in_numpy", lambda x: False)
    monkeypatch.setattr(step_graph, "DEVICES", ("cpu",))
    monkeypatch.setattr(step_graph, "apart", lambda work, stream: work())
    monkeypatch.setattr(step_graph, "capture", lambda work, stream, pool: Recording(work))


TRAINING = Training(3, "mean", batch=5, seed=4, updates=Updates(lr=0.01, clip_norm=0.5))


def batch_of(
    seed: int, *, n_samples: int = 5, n_steps: int = 6, n_input: int = 11, rate: float = 0.3, task: str = ""
) -> Batch:
    g = torch.Generator().manual_seed(seed)
    spikes = SpikeBatch.from_dense((torch.rand(n_steps, n_samples, n_input, generator=g) < rate).float())
    labels = torch.randint(0, 3, (n_samples,), generator=g)
    if task == "shares":
        labels = torch.rand(n_samples, 3, generator=g).softmax(1)
    elif task == "step":
        labels = torch.randint(-1, 3, (n_steps, n_samples), generator=g)
    elif task == "values":
        labels = torch.randn(n_samples, 3, generator=g)
        labels[0, 1] = torch.nan
    return Batch(spikes, labels)


def engine_of(network: Network, training: Training) -> Any:
    engine = make_engine("dense", network, training)
    engine.start()
    return engine


def rich_network() -> Network:
    """Delays, a skip connection, recurrence, three models, everything learned."""
    a = LIF(13, recurrent=True, grad_threshold=0.5, bias=True, learn_beta=True, learn_threshold=True)
    b = CubaLIF(7, alpha=0.7, reset="zero", grad_threshold=0.5, learn_alpha=True)
    c = AdLIF(6, q=2.0, gain=9.0, detach_reset=False, learn_rho=True)
    connections = (
        Connection("input", "a", 1),
        Connection("a", "b"),
        Connection("input", "b", 2),
        Connection("a", "c", 1),
        Connection("b", "out"),
        Connection("c", "out"),
    )
    return Network({"input": Input(11), "a": a, "b": b, "c": c, "out": LI(3, learn_beta=True)}, connections)


def sparse_network() -> Network:
    delays = Delays(3, learn=True)
    connections = (
        Connection("input", "a", 0, Sparse(0.4)),
        Connection("a", "a", 1),
        Connection("a", "out", axonal=delays),
    )
    return Network({"input": Input(11), "a": LIF(13, grad_threshold=0.5), "out": LI(3)}, connections)


CASES: dict[str, tuple[Network, Training, str]] = {
    "recurrent": (parse_net("11-13r-3", grad_threshold=0.5), TRAINING, ""),
    "rich": (rich_network(), replace(TRAINING, updates=Updates("adam", lr=0.01, ema=0.9)), ""),
    "regularized": (
        parse_net("11-13-3", bias=True),
        replace(TRAINING, decoding="max", objective=Objective(label_smoothing=0.1, lower=0.2, upper=0.05)),
        "",
    ),
    "weights of classes": (
        parse_net("11-9-3"),
        replace(TRAINING, class_weights=(0.5, 1.0, 2.0), updates=Updates("sgd", lr=0.1, weight_decay=0.1)),
        "shares",
    ),
    "spiking readout": (
        Network.chain(Input(11), LIF(9), LIF(6)),
        replace(TRAINING, decoding="count", updates=Updates("sgd", lr=0.1, momentum=0.0)),
        "",
    ),
    "label for each step": (parse_net("11-9-3"), replace(TRAINING, decoding="step", task=Task(per_step=True)), "step"),
    "values": (parse_net("11-9-3"), replace(TRAINING, task=Task(has_values=True)), "values"),
    "maps": (parse_net("1x5x5:3C2-MP2-3", grad_threshold=0.5), TRAINING, ""),
    "sparse synapses, axonal delays": (sparse_network(), TRAINING, ""),
    "whole numbers as weights": (parse_net("11-9-3"), replace(TRAINING, options={"weight_dtype": "int8"}), ""),
}


@pytest.mark.usefixtures("graphs_on_cpu")
@pytest.mark.parametrize("case", CASES)
def test_a_graph_takes_the_same_steps(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other spikes, labels and rates at each step; two shapes of batches in turn."""
    check_same_steps(*CASES[case], monkeypatch)


def test_a_graph_of_interpreted_kernels_takes_the_same_steps(
    on_cuda: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_the_way_of_cuda(on_cuda, monkeypatch)
    check_same_steps(*CASES["recurrent"], monkeypatch)


def check_same_steps(network: Network, training: Training, task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps by graphs, and steps on the CPU."""
    n_input = network.populations["input"].n
    batches = [batch_of(k, n_samples=3 if k in (4, 6) else 5, n_input=n_input, task=task) for k in range(8)]
    lrs = [0.01, 0.02, 0.005, 0.02, 0.01, 0.03, 0.02, 0.01]
    mine = engine_of(network, training)
    got = [mine.step(*given) for given in zip(batches, lrs, strict=True)]
    with monkeypatch.context() as patch:
        patch.setattr(step_graph, "DEVICES", ())
        patch.setattr(fused, "kit_of", lambda device: on_cpu)
        plain = engine_of(network, training)
        want = [plain.step(*given) for given in zip(batches, lrs, strict=True)]
    replays = [graph.replay for graph in mine.graphs.found.values()]
    assert len(replays) == 2
    assert all(isinstance(replay, Recording) and replay.operations for replay in replays)
    assert plain.graphs.found == {}
    for a, b in zip(want, got, strict=True):
        assert b.loss == pytest.approx(a.loss, rel=1e-4)
        assert b.gradient_norm == pytest.approx(a.gradient_norm, rel=1e-3)
        assert (b.n_samples, b.n_labels, b.n_correct) == (a.n_samples, a.n_labels, a.n_correct)
        assert b.activity == a.activity
        assert b.dropped == a.dropped
        if a.errors:
            assert b.errors is not None
            assert b.errors.n == a.errors.n
            assert b.errors.rmse == pytest.approx(a.errors.rmse, rel=1e-4)
    first, second = plain.state(), mine.state()
    assert set(first) == set(second)
    for key, tensor in first.items():
        torch.testing.assert_close(second[key], tensor, rtol=1e-3, atol=1e-5, msg=key)
    before = engine_of(network, training).weights()
    assert any(not torch.equal(second[key], x) for key, x in before.items())


@pytest.mark.usefixtures("graphs_on_cpu")
def test_more_spikes_and_a_loaded_checkpoint_make_a_new_graph() -> None:
    network = parse_net("11-9-3")
    engine = engine_of(network, TRAINING)
    quiet, busy = batch_of(0, n_steps=60, rate=0.1), batch_of(1, n_steps=60, rate=0.9)
    for _ in range(3):
        engine.step(quiet, 0.01)
    (first,) = engine.graphs.found.values()
    assert first.room < busy.spikes.ids.numel()
    saved = engine.state()
    want = engine.step(busy, 0.01), engine.step(quiet, 0.01), engine.weights_sha256()
    (second,) = engine.graphs.found.values()
    assert second is not first
    assert second.room >= busy.spikes.ids.numel()
    engine.load(saved, "here")  # the optimizer has other tensors now
    assert (engine.step(busy, 0.01), engine.step(quiet, 0.01), engine.weights_sha256()) == want
    (third,) = engine.graphs.found.values()
    assert third is not second


@pytest.mark.usefixtures("graphs_on_cpu")
def test_shapes_are_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_graph, "LIMIT", 2)
    engine = engine_of(parse_net("11-5-3"), TRAINING)
    for n_samples in (2, 2, 3, 2, 4):
        engine.step(batch_of(0, n_samples=n_samples, n_steps=2), 0.01)
    assert [key[0][1] for key in engine.graphs.found] == [2, 4]


@pytest.mark.usefixtures("graphs_on_cpu")
@pytest.mark.parametrize("updates", [Updates(lr=0.1, ema=0.5), Updates("sgd", lr=0.1)])
def test_a_step_that_is_not_finite_changes_nothing(updates: Updates) -> None:
    engine, batch = engine_of(parse_net("11-9-3"), replace(TRAINING, updates=updates)), batch_of(0)
    for _ in range(4):
        engine.step(batch, 0.1)
    weight = engine.model.layers["output"].weights[0]
    kept = weight.detach().clone()
    weight.data.fill_(3e38)  # the potentials of all classes become infinite
    before = engine.state()
    with pytest.raises(NotFiniteError, match="the loss is nan"):
        engine.step(batch, 0.1)
    after = engine.state()
    assert all(torch.equal(after[key], x) for key, x in before.items())
    weight.data.copy_(kept)
    assert engine.step(batch, 0.1).loss < 5
    (graph,) = engine.graphs.found.values()
    assert isinstance(graph.replay, Recording)


@pytest.mark.usefixtures("graphs_on_cpu")
def test_wrong_lists_and_labels_are_refused_before_they_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, batch = engine_of(parse_net("11-9-3"), TRAINING), batch_of(0)
    for _ in range(3):
        engine.step(batch, 0.1)
    monkeypatch.setattr(parcel.Parcel, "send", lambda self: pytest.fail("nothing may be sent"))
    ids = batch.spikes.ids.clone()
    ids[0] = 11
    with pytest.raises(SpikeListError, match="11"):
        engine.step(replace(batch, spikes=replace(batch.spikes, ids=ids)), 0.1)
    with pytest.raises(ShapeError, match="labels run from 0 to 3"):
        engine.step(replace(batch, labels=torch.tensor([0, 1, 2, 3, 0])), 0.1)


@pytest.mark.usefixtures("graphs_on_cpu")
def test_steps_that_a_graph_cannot_hold_run_as_before() -> None:
    batch, network = batch_of(0), parse_net("11-9-3")
    engine = engine_of(network, TRAINING)
    assert engine.graphs.graph_of(batch) is None, "the optimizer has no state yet"
    engine.step(batch, 0.01)
    assert engine.graphs.graph_of(batch) is not None

    def heard(population: int, step: Any, sample: Any, neuron: Any) -> Any:
        return (step + sample + neuron) % 2 == 0

    graded = SpikeBatch.from_dense(batch.spikes.to_dense() * 2, graded=True)
    for other in (replace(batch, heard=heard), replace(batch, spikes=graded)):
        assert engine.graphs.graph_of(other) is None
        engine.step(other, 0.01)
    hook = engine.model.layers["hidden"].register_forward_hook(lambda *given: None)
    assert engine.graphs.graph_of(batch) is None
    hook.remove()
    hook = next(engine.model.parameters()).register_hook(lambda gradient: gradient)
    assert engine.graphs.graph_of(batch) is None
    hook.remove()
    assert engine.graphs.graph_of(batch) is not None
    for training in (
        replace(TRAINING, options={"dense_mode": "hoist"}),
        replace(TRAINING, dropout=Dropout(spikes=0.5)),
    ):
        other_engine = engine_of(network, training)
        given = replace(batch, heard=heard) if training.dropout.spikes else batch
        other_engine.step(given, 0.01)
        assert other_engine.graphs.graph_of(given) is None
    delayed = Network(
        {"input": Input(11), "hidden": LIF(9), "output": LI(3)},
        (Connection("input", "hidden"), Connection("hidden", "hidden", 2), Connection("hidden", "output")),
    )
    slow = engine_of(delayed, TRAINING)
    slow.step(batch, 0.01)
    assert slow.graphs.graph_of(batch) is None, "a recurrent delay runs in the mode hoist"


def test_on_a_cpu_there_are_no_graphs() -> None:
    engine = engine_of(parse_net("11-9-3"), TRAINING)
    for _ in range(3):
        engine.step(batch_of(0), 0.01)
    assert engine.graphs.found == {}


@pytest.mark.usefixtures("graphs_on_cpu")
@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_tf32_is_on_during_steps(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense_engine, "find_device", lambda text: torch.device("cpu"))
    seen = []

    def watched(self: Any) -> None:
        seen.append((torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32))
        work(self)

    work = step_graph.StepGraph._work
    monkeypatch.setattr(step_graph.StepGraph, "_work", watched)
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    options = {"device": "cuda", "precision": precision}
    engine = engine_of(parse_net("11-9-3"), replace(TRAINING, options=options))
    for _ in range(3):
        engine.step(batch_of(0), 0.01)
    assert seen == [(True, True) if precision == "tf32" else before] * 2
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before
    assert before[0] is False


# ---- at full size, without numbers ---------------------------------------------------------------------------------------

N_STEPS, N_SAMPLES, N_INPUT = 100, 48, 700


@pytest.fixture
def meta(on_cuda: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Engines of the device "cuda" have tensors on the device meta, which refuses every look at numbers. Gives the copies between host and device."""
    library = torch.library.Library("aten", "IMPL", "Meta")
    library.impl("_fused_adamw_.tensor_lr", lambda *given, **more: None)
    library.impl("_fused_adamw_", lambda *given, **more: None)
    travels: list[str] = []
    send = parcel.Parcel.send

    def fetch(self: parcel.Parcel) -> None:  # a copy from meta is an error
        travels.append("fetch")
        for x in self.here.values():
            x.fill_(1)

    def counted(self: parcel.Parcel) -> None:
        travels.append("send")
        send(self)

    monkeypatch.setattr(parcel.Parcel, "fetch", fetch)
    monkeypatch.setattr(parcel.Parcel, "send", counted)
    monkeypatch.setattr(dense_engine, "find_device", lambda text: torch.device("meta"))
    monkeypatch.setattr(layer, "choose_mode", lambda *given: "fused")
    monkeypatch.setattr(on_cuda, "product_dtype", lambda weight: weight.dtype)
    monkeypatch.setattr(output, "plain_tensor", lambda value, what: value)  # it refuses tensors without numbers
    monkeypatch.setattr(adam, "_device_dtype_check_for_fused", lambda *given, **more: None)
    monkeypatch.setattr(step_graph, "DEVICES", ("meta",))
    monkeypatch.setattr(step_graph, "apart", lambda work, stream: work())
    monkeypatch.setattr(step_graph, "capture", lambda work, stream, pool: work)
    yield travels
    library._destroy()


def meta_engine(net: str) -> Any:
    training = Training(20, "mean", batch=N_SAMPLES, updates=Updates(clip_norm=1.0), options={"device": "cuda"})
    engine = engine_of(parse_net(net), training)
    for p in engine.model.parameters():
        p.grad = torch.empty_like(p)
    engine.optimizer.step()  # makes its state
    return engine


def full_batch(seed: int = 0) -> Batch:
    g = torch.Generator().manual_seed(seed)
    spikes = SpikeBatch.from_dense((torch.rand(N_STEPS, N_SAMPLES, N_INPUT, generator=g) < 0.015).float())
    return Batch(spikes, torch.randint(0, 20, (N_SAMPLES,), generator=g))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_a_step_does_on_the_device(
    dtype: torch.dtype, meta: list[str], on_cuda: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing waits, nothing but one copy goes to the device, no product converts spikes, and the graph is small."""
    monkeypatch.setattr(on_cuda, "product_dtype", lambda weight: dtype)
    engine, batch = meta_engine("700-1024-1024-20"), full_batch()
    engine.step(batch, 0.01)
    meta.clear()
    with Operations() as seen:
        engine.step(batch, 0.01)
    assert meta == ["send", "fetch"]
    ((operation, _, out),) = seen.between
    assert name_of(operation) == "copy_"
    assert out.numel() < 2**19, "lists, not a tensor [T, B, N]"
    kernels = [name_of(operation) for operation, *_ in seen.on("meta")]
    assert len(kernels) <= (125 if dtype == torch.float32 else 135)
    assert kernels.count("dense_forward") == 5, "two spiking populations run twice, the readout once"
    assert kernels.count("dense_backward") == 3
    n_products = sum(kernels.count(name) for name in ("mm", "addmm_", "addmm", "bmm"))
    assert n_products == 3 + 3 + 2, "currents, gradients of weights, gradients of spikes"
    rows = N_STEPS * N_SAMPLES
    for operation, args, result in seen.on("meta"):
        if name_of(operation) == "mm":
            assert {x.dtype for x in tensors_in(args)} == {dtype}
        if name_of(operation) in ("_to_copy", "copy_"):
            assert result.numel() < rows * 1024, f"{operation} converts or copies a whole population"


@pytest.mark.usefixtures("meta")
def test_a_recurrent_network_runs_without_a_look_at_numbers() -> None:
    engine, batch = meta_engine("700-128r-20"), full_batch()
    for _ in range(2):
        engine.step(batch, 0.01)
    assert len(engine.graphs.found) == 1


def test_the_host_needs_a_millisecond(meta: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Processor time of the step of 700-1024-1024-20 at batch 48 if the graph does nothing: what Python adds. On a busy machine the least counts."""
    engine, batches = meta_engine("700-1024-1024-20"), [full_batch(k) for k in range(3)]
    monkeypatch.setattr(step_graph, "capture", lambda work, stream, pool: lambda: None)
    engine.step(batches[0], 0.01)
    engine.step(batches[1], 0.01)
    took = []
    for k in range(60):
        before = time.thread_time()
        engine.step(batches[k % 3], 0.01)
        took.append(time.thread_time() - before)
    assert min(took) < 1e-3, f"{1e3 * min(took):.2f} ms"
    meta.clear()
    with Operations() as seen:
        engine.step(batches[0], 0.01)
    assert meta == ["send", "fetch"]
    assert len(seen.on("meta")) == 1, "the copy"


def test_lists_are_checked_once(meta: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    engine, batch, checks = meta_engine("700-32-20"), full_batch(), []
    validate = SpikeBatch.validate
    monkeypatch.setattr(SpikeBatch, "validate", lambda self: checks.append(self.device.type) or validate(self))
    for _ in range(2):
        checks.clear()
        engine.step(batch, 0.01)
        assert checks == ["cpu"]
    # without a graph too, as in another program's training loop
    checks.clear()
    with Operations() as seen:
        engine.model(batch.spikes)
    assert checks == ["cpu"]
    assert len(seen.between) == 1, "places of spikes"
    assert meta == ["send", "fetch"] * 2


def test_near_spikes_of_lists_are_left_out() -> None:
    spikes = SpikeBatch.from_dense(torch.tensor([[[1.0, 0, 1]], [[0, 1, 0]]]).requires_grad_(), gradient="all")
    data = replace(spikes.detach(), values=None)
    assert data.ids.numel() == 6
    read = step_graph.DenseSpikes.from_lists(data, torch.float32, torch.device("cpu"), torch.float32)
    assert read.fired.tolist() == [[[1, 0, 1]], [[0, 1, 0]]]
    assert on_cpu.spike_dtype(torch.float32) == torch.bool
