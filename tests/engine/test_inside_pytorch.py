"""The claims of docs/pytorch.md about PyTorch's tools, besides its blocks."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator
from math import inf
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils.checkpoint import checkpoint

import sparsesnn as ss
from sparsesnn.errors import SecondDerivativeError, ShapeError, TraceError
from sparsesnn.loss import CrossEntropy, activity_regularizer, cross_entropy
from sparsesnn.tracers import recorded

T, B, N = 9, 5, 13
LABELS = torch.arange(B) % 4


def dense() -> Tensor:
    return (torch.rand(T, B, N, generator=torch.Generator().manual_seed(0)) < 0.3).float()


def spikes() -> ss.SpikeBatch:
    return ss.SpikeBatch.from_dense(dense())


def loud(network: ss.Network | None = None, **more: Any) -> ss.Model:
    model = ss.Model(network or ss.parse_net("13-11r-4"), **more)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3)
    return model


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) > 0 and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def expected() -> list[Tensor]:
    """Gradients without any tool."""
    model = loud()
    model(spikes()).potentials.square().mean().backward()
    return gradients(model)


# ---- optimizers ----------------------------------------------------------------------------------------------------

PLAIN = ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD", "Rprop"]
OPTIMIZERS = [
    *[(name, {"foreach": foreach}) for name in PLAIN for foreach in (False, True)],
    *[(name, {"fused": True}) for name in ("SGD", "Adam", "AdamW", "Adagrad")],
    ("LBFGS", {}),
]


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS)
def test_optimizers_change_parameters_as_they_change_plain_ones(name: str, options: dict[str, Any]) -> None:
    model = loud()
    before = [p.detach().clone() for p in model.parameters()]
    plain = [nn.Parameter(x.clone()) for x in before]
    pairs = list(zip(model.parameters(), plain, strict=True))
    ours, theirs = (getattr(torch.optim, name)(list(x), lr=0.01, **options) for x in (model.parameters(), plain))

    def closure() -> Tensor:
        model.zero_grad()
        loss = model(spikes()).potentials.square().mean()
        loss.backward()
        return loss.detach()

    def copied() -> Tensor:
        with torch.no_grad():
            for p, x in pairs:
                p.copy_(x)
        loss = closure()
        for p, x in pairs:
            assert p.grad is not None
            x.grad = p.grad.clone()
        return loss

    ours.step(closure)
    after = [p.detach().clone() for p in model.parameters()]
    theirs.step(copied)
    assert same(after, [x.detach() for x in plain])
    assert not same(after, before)


# ---- torch.compile -------------------------------------------------------------------------------------------------


class Around(nn.Module):
    """Spikes from a tensor, a model, and what reads its output."""

    def __init__(self, model: ss.Model) -> None:
        super().__init__()
        self.model = model
        self.head = nn.Linear(4, 3)
        nn.init.constant_(self.head.weight, 0.5)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Any:
        output = self.model(ss.SpikeBatch.from_dense(x))
        loss = cross_entropy(output, LABELS, "max", 4) + activity_regularizer(output, upper=0.01, strength_upper=10.0)
        hidden = output.spikes["hidden"]
        counts = output.counts("hidden").square().mean()
        shares = output.activity(), output.dropped() if isinstance(hidden, ss.SpikeBatch) else {}
        return loss + counts + self.head(output.potentials.amax(0)).square().mean(), shares


@pytest.fixture
def compiler() -> Iterator[None]:
    """PyTorch's compiler logs nothing and shows no warning. Warnings that it hides would end it as errors."""
    logged: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.append(record.getMessage())

    keep = Keep(level=logging.WARNING)
    logger = logging.getLogger("torch._dynamo")
    logger.addHandler(keep)
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        yield
    logger.removeHandler(keep)
    torch._dynamo.reset()
    assert [logged, [str(warning.message) for warning in shown]] == [[], []]


def compiled(function: Any) -> Any:
    return torch.compile(function, backend="eager")


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("capacity", [None, 3])
def test_a_compiled_module_has_the_same_bits(capacity: int | None) -> None:
    network = ss.Network.chain(
        ss.Input(N), ss.LIF(11, recurrent=True, capacity=capacity, grad_threshold=-inf), ss.LI(4)
    )
    found = []
    for change in (lambda x: x, compiled):
        around = Around(loud(network))
        run = change(around)
        for _ in range(2):
            loss, shares = run(dense())
            loss.backward()
        found.append((gradients(around), loss.detach(), shares))
    (g, loss, shares), (other, *rest) = found
    assert same(g, other)
    assert rest == [loss, shares]


@pytest.mark.usefixtures("compiler")
def test_learn_live_layers_and_chains_compile() -> None:
    model, x = loud(), spikes()
    compiled(lambda: model.learn(x, lambda output: output.potentials.square().mean())[0])()
    assert same(gradients(model), expected())
    with torch.no_grad():
        live, potentials = model.live(), model.eval()(x).potentials
        assert torch.equal(compiled(lambda x: live(x).potentials)(x), potentials)
        assert torch.equal(compiled(model)(x).potentials, potentials)
    chain = ss.Sequential(ss.Layer(ss.LIF(6), n_pre=N), ss.Layer(ss.LI(3), n_pre=6))
    assert torch.equal(compiled(chain)(x)[0], chain(x)[0])


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(("mode", "least"), [("step", 15), ("hoist", 15), ("auto", 0), ("fused", 0)])
def test_dense_models_are_compiled_themselves_or_called(mode: str, least: int) -> None:
    graphs: list[int] = []

    def count(graph: Any, inputs: Any) -> Any:
        graphs.append(len(graph.graph.nodes))
        return graph.forward

    model, x = loud(backend="dense", dense_mode=mode), spikes().steps(0, 3)
    value = torch.compile(lambda x: model(x).potentials, backend=count)(x)
    torch.testing.assert_close(value, model(x).potentials)
    assert sum(graphs) > least if least else graphs == []


@pytest.mark.usefixtures("compiler")
def test_the_whole_graph_cannot_be_compiled() -> None:
    model = loud()
    with pytest.raises(Exception, match="not operations of PyTorch; leave fullgraph=True out"):
        torch.compile(model, backend="eager", fullgraph=True)(spikes())


# ---- tracers that cannot record an engine --------------------------------------------------------------------------


class FromTensor(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        return self.model(ss.SpikeBatch.from_dense(x)).potentials


class FromLists(nn.Module):
    """Makes no lists from its input."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.spikes = model, spikes()

    def forward(self, x: Tensor) -> Any:
        return self.model(self.spikes).potentials + x


TRACERS: dict[str, Callable[[nn.Module], object]] = {
    r"torch\.jit\.script": torch.jit.script,
    r"torch\.jit\.trace": lambda module: torch.jit.trace(module, (dense(),)),
    r"torch\.export": lambda module: torch.export.export(module, (dense(),)),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize("around", [FromTensor, FromLists])
def test_tracers_are_refused(around: type[nn.Module], tracer: str) -> None:
    with pytest.raises(TraceError, match=rf"cannot be recorded by {tracer}.*onnx\.export.*nir\.write.*torch\.compile"):
        TRACERS[tracer](around(loud()))


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_layers_are_not_scripted() -> None:
    with pytest.raises(TraceError, match="Layer cannot be recorded"):
        torch.jit.script(ss.Sequential(ss.Layer(ss.LIF(6), n_pre=N)))


def test_vmap_is_refused_without_gradients_too() -> None:
    model = loud()
    stacked = {name: torch.stack([p.detach()] * 3) for name, p in model.named_parameters()}
    x = spikes()
    with torch.no_grad():
        with pytest.raises(SecondDerivativeError, match=r"a model cannot run within a transform of torch\.func"):
            vmap(lambda p: functional_call(model, p, (x,)).potentials)(stacked)
        with pytest.raises(SecondDerivativeError, match="from_dense cannot run within"):
            vmap(lambda d: model(ss.SpikeBatch.from_dense(d)).potentials)(dense()[None])
        # a model that the transform does not touch runs
        found = vmap(lambda a: a + model(x).potentials.sum())(torch.zeros(3))
    assert torch.equal(found, model(x).potentials.sum().expand(3))


# ---- precision -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [CrossEntropy(LABELS, "max", 4), lambda output: output.potentials.square().mean()])
def test_autocast_leaves_the_engine_in_float32(loss: Any) -> None:
    found = []
    for enabled in (False, True):
        model = loud()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            value, output = model.learn(spikes(), loss)
        assert output.potentials.dtype == value.dtype == torch.float32
        found.append((gradients(model), value))
    assert same(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]
    assert all(g.dtype == torch.float32 for g in found[1][0])


def test_modules_in_front_get_a_gradient_under_autocast() -> None:
    encoder, model = nn.Linear(N, N), loud()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        drive = encoder(dense())
        fired = (drive > 0).to(drive.dtype) + (drive - drive.detach())
        loss = model(ss.SpikeBatch.from_dense(fired, gradient="all")).potentials.square().mean()
    loss.backward()
    assert drive.dtype == torch.bfloat16
    assert float(encoder.weight.grad.abs().sum()) > 0


# ---- memory --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_has_the_same_gradients(use_reentrant: bool) -> None:
    found = []
    for saves in (False, True):
        encoder, model = nn.Linear(N, N), loud()
        nn.init.eye_(encoder.weight)
        nn.init.constant_(encoder.bias, -0.5)

        def run(drive: Tensor, model: ss.Model = model) -> Tensor:
            fired = (drive > 0).float() + (drive - drive.detach())
            potentials: Tensor = model(ss.SpikeBatch.from_dense(fired, gradient="all")).potentials
            return potentials

        drive = encoder(dense())
        value = checkpoint(run, drive, use_reentrant=use_reentrant) if saves else run(drive)
        value.square().mean().backward()
        found.append(gradients(encoder) + gradients(model))
    assert same(*found)


def test_with_a_capacity_checkpointing_counts_twice() -> None:
    network = ss.Network.chain(ss.Input(N), ss.LIF(11, capacity=3), ss.LI(4))
    model = loud(network)
    checkpoint(lambda x: model(x).potentials, spikes(), use_reentrant=False).mean().backward()
    assert int(model.layers["hidden"].training_steps) == 2


# ---- the profiler --------------------------------------------------------------------------------------------------


def names_in_profile(run: Callable[[], object]) -> set[str]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        run()
    return {event.key for event in profiled.key_averages() if "parsesnn" in event.key}


def test_the_profiler_names_passes_and_layers() -> None:
    model, x = loud(), spikes()
    loss = lambda output: output.potentials.square().mean()  # noqa: E731
    assert {"sparsesnn.forward", "SparsesnnLayer", "SparsesnnLayerBackward", "sparsesnn.backward hidden"} <= (
        names_in_profile(lambda: loss(model(x)).backward())
    )
    assert names_in_profile(lambda: model.learn(x, loss)) == {"sparsesnn.forward", "sparsesnn.backward"}
    assert recorded("a") is recorded("b"), "without a profiler nothing is made"


# ---- others --------------------------------------------------------------------------------------------------------


def test_modules_hold_and_copy_models() -> None:
    model, x = loud(), spikes()
    potentials = model(x).potentials

    class Maximum(nn.Module):
        def forward(self, output: ss.Output) -> Tensor:
            assert output.potentials is not None
            return output.potentials.amax(0)

    assert nn.Sequential(model, Maximum(), nn.Linear(4, 2))(x).shape == (B, 2)
    with pytest.raises(ShapeError, match=r"nn\.Sequential"):
        nn.Sequential(ss.Layer(ss.LIF(6), n_pre=N), ss.Layer(ss.LI(3), n_pre=6))(x)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    averaged.update_parameters(model)
    assert torch.equal(averaged(x).potentials, potentials)
    shared = copy.deepcopy(model).share_memory()
    assert torch.equal(shared(x).potentials, potentials)
    flat = nn.utils.parameters_to_vector(model.parameters())
    nn.utils.vector_to_parameters(2 * flat, shared.parameters())
    assert torch.equal(shared.layers["output"].weights[0], 2 * model.layers["output"].weights[0])
    with torch.inference_mode():
        assert torch.equal(model(x).potentials, potentials)
