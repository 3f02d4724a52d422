"""The Triton kernels of the mode "fused", on a GPU if there is one, otherwise interpreted on the CPU: against the C++ ones,
and in whole networks."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from sparsesnn.engines.dense import fused, graphs, on_cpu
from sparsesnn.engines.dense.dynamics import Dynamics, Numbers
from sparsesnn.engines.module import Layer, Model
from sparsesnn.layers import LI, LIF, AdLIF, CubaLIF, Neuron, Resonator, parameter
from sparsesnn.layers.ad_lif import ORDERS
from sparsesnn.layers.arrays import NeuronArrays
from sparsesnn.network import Connection, Network, parse_net
from sparsesnn.spikes import SpikeBatch
from sparsesnn.surrogate import KINDS, Surrogate

pytest.importorskip("triton", minversion="3.4")
RESETS = [("subtract", False), ("subtract", True), ("zero", False), ("none", False)]
#: where the kernels run
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def triton_kit(on_cuda: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of any device take the way of CUDA tensors, in chunks of three steps."""
    monkeypatch.setattr(on_cuda, "ROWS", 1)
    monkeypatch.setattr(on_cuda, "MIN_STEPS", 3)
    monkeypatch.setattr(fused, "kit_of", lambda device: on_cuda)


def run_kernels(
    kit: ModuleType, population: Neuron, dtype: torch.dtype, fresh: bool = False
) -> dict[str, torch.Tensor]:
    """Forward and backward of one chunk: everything that the kernels write. `fresh`: of the first one of a sequence,
    with some thresholds below 0."""
    n_steps, n_samples, n = 6, 3, 61
    rng, device = np.random.default_rng(0), torch.device("cpu") if kit is on_cpu else DEVICE

    def numbers(*shape: int, low: float = -1, high: float = 1) -> torch.Tensor:
        return torch.from_numpy(rng.uniform(low, high, shape)).to(device, dtype)

    dynamics, fires = Dynamics.of(population), type(population).fires
    ranges = {"threshold": -0.2 if fresh else 0.4, "turn": 0.1, "a": -0.5}
    neuron = Numbers.of(
        population,
        {p.name: numbers(n, low=ranges.get(p.name, 0.5)) for p in population.parameters},
        numbers(n, low=0, high=0.4) if fires else None,
        [p.name for p in population.parameters],
    )
    current, d_out = numbers(n_steps, n_samples, n, high=1.5), numbers(n_steps, n_samples, n)
    state = tuple(numbers(n_samples, n) * (not fresh) for _ in population.states)
    rows = tuple(torch.empty(n_steps + 1, n_samples, n, dtype=dtype, device=device) for _ in population.states)
    out = torch.empty_like(current)
    fired = torch.empty_like(current, dtype=torch.bool) if fires else None
    kit.forward(dynamics, neuron, current, fresh=fresh, state=state, rows=rows, out=out, fired=fired)
    d_state = tuple(numbers(n_samples, n) for _ in population.states)
    d_parameters = tuple(numbers(n_samples, n) for _ in population.parameters)
    d_bias = numbers(n_samples, n)
    d_current = torch.empty_like(current)
    kit.backward(
        dynamics,
        neuron,
        d_out,
        fresh=fresh,
        rows=rows,
        d_state=d_state,
        d_parameters=d_parameters,
        current=current,
        d_bias=d_bias,
        d_current=d_current,
    )
    found = {"d_bias": d_bias, "out": out, "fired": fired, "d_current": d_current}
    for name, one, kept, gradient in zip(population.states, state, rows, d_state, strict=True):
        found |= {name: one, f"{name}_rows": kept, f"d_{name}": gradient}
    found |= {f"d_{p.name}": total for p, total in zip(population.parameters, d_parameters, strict=True)}
    return {name: x.cpu() for name, x in found.items() if x is not None}


@dataclass(frozen=True)
class One(Neuron):
    """Every entry of a single state."""

    beta: Any = parameter(0.9, "decay", low=0, high=1)
    drive: Any = parameter(0.2, "constant")
    states: ClassVar[tuple[str, ...]] = ("x",)

    def arrays(self, p: Any) -> NeuronArrays:
        b, theta, k = p["beta"], p["threshold"], p["drive"]
        return NeuronArrays(A=[[b]], R=[[-b / 2]], r=[-theta / 2], f=[k * b], B=[1.5 * b], c=[k - 0.6])


@dataclass(frozen=True)
class Coupled(Neuron):
    """Three states that all read one another, by new or old values; the reset reads all of them if it is detached."""

    beta: Any = parameter(0.9, "decay", low=0, high=1)
    drive: Any = parameter(0.2, "constant")
    ordered: bool = True
    states: ClassVar[tuple[str, ...]] = ("x", "y", "z")

    def arrays(self, p: Any) -> NeuronArrays:
        b, theta, k = p["beta"], p["threshold"], p["drive"]
        other = 0.2 if self.detach_reset else 0
        return NeuronArrays(
            A=[[b, 0.4, -0.3], [0.3 * k, b * b, 0.2], [0.1, k - b, 0.5]],
            R=[[-b / 2, 0, other], [-0.1, other, 0], [0, 0, 0]],
            r=[-theta, 0, 0.3 * theta],
            f=[0, k, -0.2],
            B=[0, 1, 0.5 * b],
            c=[0.1 * k, 0, -0.2],
            sequential=self.ordered,
        )


@dataclass(frozen=True)
class Chain(Neuron):
    """Four states, each of which drives the one before; few entries."""

    beta: Any = parameter(0.9, "decay", low=0, high=1)
    ordered: bool = True
    states: ClassVar[tuple[str, ...]] = ("x", "y", "z", "w")

    def arrays(self, p: Any) -> NeuronArrays:
        b = p["beta"]
        A = [[b, 1 - b, 0, 0], [0, b, 0.8, 0], [0, 0, 0.7, 0.9], [0.05, 0, 0, 0.6]]
        return NeuronArrays(
            A=A, r=[-p["threshold"], 0, 0, 0], f=[0, 0, 0, -b], B=[0.8, 0, 0, 1], sequential=self.ordered
        )


@dataclass(frozen=True)
class Filter(Neuron):
    """A readout of two states, with a constant."""

    beta: Any = parameter(0.9, "decay", low=0, high=1)
    alpha: Any = parameter(0.8, "decay of the current", low=0, high=1)
    ordered: bool = True
    fires: ClassVar[bool] = False
    states: ClassVar[tuple[str, ...]] = ("x", "y")

    def arrays(self, p: Any) -> NeuronArrays:
        b, a = p["beta"], p["alpha"]
        return NeuronArrays(A=[[b, 1 - b], [0, a]], B=[0, 1], c=[0.1 * a, 0], sequential=self.ordered)


def populations() -> list[Any]:
    """Every model, reset and surrogate; every other one differentiates through the reset."""
    made: list[Any] = [LI(61, gain=1.3), Filter(61), Filter(61, ordered=False)]
    for model in (LIF, CubaLIF):
        for k, (reset, decays) in enumerate(RESETS):
            for j, kind in enumerate(KINDS):
                slope = {"straight_through": 1.0, "triangle": 0.4, "boxcar": 0.3}.get(kind, 2.0)
                more = {"reset": reset, "reset_decays": decays, "detach_reset": (k + j) % 2 == 0, "gain": 0.9}
                made.append(model(61, surrogate=Surrogate(kind, slope), **more))
    for detach in (True, False):
        more = {"detach_reset": detach, "surrogate": Surrogate("fast_sigmoid", 2.0)}
        for order, reset in itertools.product(ORDERS, ("zero", "subtract")):
            if (order, reset) != ("sparch", "zero"):
                made.append(AdLIF(61, order=order, reset=reset, q=2.0, gain=3.0, **more))
        made += [Resonator(61, gain=0.9, **more), One(61, **more)]
        made += [model(61, ordered=ordered, **more) for model in (Coupled, Chain) for ordered in (True, False)]
    return made


@pytest.mark.parametrize("population", populations(), ids=lambda p: f"{type(p).__name__}")
def test_kernels_are_those_of_the_cpu(population: Neuron, on_cuda: ModuleType) -> None:
    """In float32 the forward pass to the bit: no spike may differ. The rest to a few roundings."""
    fresh = type(population).fires and population.detach_reset
    want, got = (run_kernels(kit, population, torch.float32, fresh) for kit in (on_cpu, on_cuda))
    assert set(got) == set(want)
    if "fired" in want:
        assert 0.05 < want["fired"].float().mean() < 0.8
    for name in ("out", "fired", *population.states, *(f"{state}_rows" for state in population.states)):
        if name in want:
            assert torch.equal(got[name], want[name]), name
    for name, x in want.items():
        largest = x.abs().max().item() if x.is_floating_point() else 0
        torch.testing.assert_close(got[name], x, rtol=1e-5, atol=1e-5 * largest, msg=name)


def deep_network() -> Network:
    """Delays, a skip connection, recurrence, several models, everything learnt."""
    return Network(
        {
            "input": parse_net("13-2").populations["input"],
            "a": LIF(33, recurrent=True, grad_threshold=0.5, bias=True, learn_beta=True),
            "b": CubaLIF(17, alpha=0.7, reset="zero", grad_threshold=0.5, learn_threshold=True, learn_alpha=True),
            "c": AdLIF(
                9,
                q=2.0,
                gain=15.0,
                recurrent=True,
                grad_threshold=0.5,
                detach_reset=False,
                learn_beta=True,
                learn_rho=True,
                learn_a=True,
                learn_b=True,
                learn_threshold=True,
            ),
            "out": LI(3, beta=0.8, learn_beta=True),
        },
        (
            Connection("input", "a", 2),
            Connection("input", "b"),
            Connection("a", "b", 1),
            Connection("a", "out", 3),
            Connection("b", "out"),
            Connection("input", "c"),
            Connection("c", "out"),
        ),
    )


def loss_and_gradients(
    dtype: torch.dtype, precision: torch.dtype | None = None, device: torch.device = DEVICE
) -> dict[str, torch.Tensor]:
    """Of a loss on potentials and on hidden spikes, all random, with weights large enough that both layers fire."""
    model = Model(deep_network(), backend="dense", dense_mode="fused", seed=1).to(device, dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "->" in name:
                parameter.mul_(2)
    generator = torch.Generator().manual_seed(0)
    spikes = SpikeBatch.from_dense((torch.rand(17, 5, 13, generator=generator) < 0.3).to(dtype))
    with torch.autocast(device.type, precision or torch.bfloat16, enabled=precision is not None):
        output = model(spikes)
        loss = output.potentials.square().mean() + (output.counts("a") - 2).square().mean() + output.spikes["b"].mean()
    loss.backward()
    assert min(output.activity().values()) > 0.05
    return {"loss": loss.detach().cpu(), **{name: p.grad.cpu() for name, p in model.named_parameters()}}


def test_a_network_is_that_of_the_cpu(on_cuda: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    want = loss_and_gradients(torch.float64, device=torch.device("cpu"))
    monkeypatch.setattr(on_cuda, "ROWS", 1)
    monkeypatch.setattr(on_cuda, "MIN_STEPS", 3)
    monkeypatch.setattr(fused, "kit_of", lambda device: on_cuda)
    got = loss_and_gradients(torch.float64)
    for name, x in want.items():
        assert x.abs().max() > 0, name
        assert (got[name] - x).abs().max() <= 1e-10 * x.abs().max(), name


@pytest.mark.parametrize("reset_decays", [False, True])
@pytest.mark.parametrize("recurrent", [False, True])
def test_nobody_has_fired_before_the_first_step(
    recurrent: bool, reset_decays: bool, on_cuda: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This shows if a threshold is negative; tests/dense/test_dense_modes.py compares the CPU's kernels with the reference."""
    population = LIF(9, grad_threshold=-1, reset_decays=reset_decays, recurrent=recurrent,
                     learn_beta=True, learn_threshold=True)  # fmt: skip
    spikes = (torch.rand(8, 2, 7, generator=torch.Generator().manual_seed(0)) < 0.5).double()
    found = []
    for _ in range(2):
        layer = Layer(population, 7, backend="dense", dense_mode="fused", generator=torch.Generator().manual_seed(1))
        layer.to(DEVICE if found else "cpu", torch.float64)
        with torch.no_grad():
            layer.threshold.fill_(-0.3)
        out, _ = layer(spikes)
        (out.cumsum(0) / 9).square().sum().backward()
        found.append([out.detach().cpu(), *(p.grad.cpu() for p in layer.parameters())])
        monkeypatch.setattr(fused, "kit_of", lambda device: on_cuda)
    for want, got in zip(*found, strict=True):
        assert want.abs().max() > 0
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("triton_kit")
def test_a_graph_can_be_used_twice() -> None:
    layer = Layer(LIF(7, recurrent=True, grad_threshold=0.2), 9, backend="dense", dense_mode="fused").to(DEVICE)
    out, _ = layer((torch.rand(8, 2, 9, generator=torch.Generator().manual_seed(0)) < 0.5).float())
    first, second = (torch.autograd.grad(out.sum(), layer.weights[0], retain_graph=True)[0] for _ in range(2))
    assert first.abs().max() > 0
    assert torch.equal(first, second)


@pytest.mark.parametrize("detach", [True, False])
def test_a_loop_that_is_recorded_does_the_same(
    detach: bool, on_cuda: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On other data at each call; a stand-in does not record, but works on the tensors of the graph."""
    monkeypatch.setattr(on_cuda, "LOOP_STEPS", 4)
    monkeypatch.setattr(on_cuda, "_graphs", kept := graphs.Graphs())
    monkeypatch.setattr(fused, "kit_of", lambda device: on_cuda)
    if DEVICE.type == "cpu":
        monkeypatch.setattr(graphs, "stream", lambda: 0)
        monkeypatch.setattr(graphs, "record", lambda work: work)
    found: dict[str, list[torch.Tensor]] = {"hoist": [], "fused": []}
    population = CubaLIF(9, alpha=0.6, recurrent=True, bias=True, detach_reset=detach, grad_threshold=0.1, learn_beta=True,
                         learn_alpha=True, learn_threshold=True)  # fmt: skip
    layers = {
        mode: Layer(population, 7, backend="dense", dense_mode=mode, generator=torch.Generator().manual_seed(1))
        for mode in found
    }
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        spikes = (torch.rand(11, 3, 7, generator=generator) < 0.5).double()
        for mode, layer in layers.items():
            layer.to(DEVICE, torch.float64).zero_grad()
            out, state = layer(spikes)
            (out.cumsum(0) / 9).square().sum().backward()
            found[mode] += [out.detach(), *state.states.values(), *(p.grad.clone() for p in layer.parameters())]
            with torch.no_grad():
                for parameter in layer.parameters():
                    parameter.mul_(1.01)
    for want, got in zip(found["hoist"], found["fused"], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-12)
    assert sum(kind is not None for kind in kept.found.values()) >= 2


def test_recorded_loops_are_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was used last goes last."""
    monkeypatch.setattr(graphs, "stream", lambda: 0)
    monkeypatch.setattr(graphs, "record", lambda work: work)
    kept, total = graphs.Graphs(limit=2), torch.zeros(1)

    def add(read: list[torch.Tensor], written: list[torch.Tensor]) -> None:
        written[0] += read[0].sum()

    for n in (1, 2, 1, 3, 1, 2):
        kept.run(add, "add", [torch.ones(n), None], [total])
    assert total.item() == 10
    assert [key[3][0] for key in kept.found] == [(1,), (2,)]
    assert [kind is not None for kind in kept.found.values()] == [True, False]


@pytest.mark.usefixtures("triton_kit")
@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_mixed_precision(precision: torch.dtype) -> None:
    """Products in 16 bits, state and gradients of weights in float32; gradients point where they did."""
    want, got = loss_and_gradients(torch.float32), loss_and_gradients(torch.float32, precision)
    for name, x in want.items():
        assert got[name].dtype == torch.float32, name
        similar = torch.nn.functional.cosine_similarity(got[name].flatten(), x.flatten(), dim=0)
        assert similar > (0.8 if precision is torch.bfloat16 else 0.95), (name, similar)
    assert any(not torch.equal(got[name], x) for name, x in want.items())


@pytest.mark.usefixtures("triton_kit")
def test_nobody_there() -> None:
    layer = Layer(LIF(4), 3, backend="dense", dense_mode="fused").to(DEVICE)
    out, state = layer(torch.zeros(5, 0, 3))
    assert tuple(out.shape) == (5, 0, 4)
    assert tuple(state.v.shape) == (0, 4)


def test_operators_keep_what_they_promise(on_cuda: ModuleType) -> None:
    """PyTorch's own checks: written arguments are declared, and shapes are known without memory."""
    population, device = CubaLIF(3), DEVICE
    dynamics, row = Dynamics.of(population), torch.full((3,), 0.9, device=device)
    learnt = ["alpha", "beta"]
    neuron = Numbers.of(population, {p.name: row for p in population.parameters}, row, learnt)
    shape, current, checks = dynamics.shape, torch.rand(4, 2, 3, device=device), ("test_schema", "test_faketensor")
    layout = (list(shape.entries), list(shape.ones), shape.fires, shape.in_order)

    def two(*size: int) -> list[torch.Tensor]:
        return [torch.rand(size, device=device) for _ in range(2)]

    torch.library.opcheck(
        torch.ops.sparsesnn.dense_forward.default,
        (current, neuron.entries, two(2, 3), two(5, 2, 3), torch.empty_like(current), None, True, *layout),
        test_utils=checks,
    )
    torch.library.opcheck(
        torch.ops.sparsesnn.dense_backward.default,
        (
            *(two(5, 2, 3), current, current.clone(), neuron.entries, neuron.derivatives, row, two(2, 3)),
            *(torch.empty_like(current), torch.zeros(2, 3, device=device), two(2, 3), False, *layout, True, 0, 10.0),
        ),
        test_utils=checks,
    )


def test_listed_means_fired_or_above(on_cuda: ModuleType) -> None:
    """With θ_grad above θ a neuron that fired still gets its gradient."""
    one, rows = torch.ones(1, device=DEVICE), torch.tensor([0.0, 2.0], device=DEVICE).view(2, 1, 1)
    population, d_current = LIF(1, grad_threshold=-math.inf), torch.empty(1, 1, 1, device=DEVICE)
    dynamics, neuron = Dynamics.of(population), Numbers.of(population, {"beta": one, "threshold": one}, 9 * one)
    on_cuda.backward(
        dynamics, neuron, one.view(1, 1, 1), rows=(rows,), d_state=(0 * one.view(1, 1),), d_current=d_current
    )
    assert d_current.item() == pytest.approx(1 / (10 * 1 + 1) ** 2)


COMPILE = """
import inspect, itertools, re, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from sparsesnn.engines.dense import triton_kernels as k
from sparsesnn.engines.dense.triton_ops import places_of

TYPES = {"current": "*bf16", "d_out": "*bf16", "d_current": "*bf16", "fired_out": "*bf16", "fresh": "i32", "n_steps": "i32",
         "size": "i32", "n": "i32"}

def compile(kernel, **given):
    names = kernel.arg_names
    signature, constants = {}, {}
    for at, name in enumerate(names):
        if name in ("state", "d_state", "rows", "d_parameters"):
            signature[name] = ("*fp32",) * given[name]
        elif name in given:
            signature[name], constants[at,] = "constexpr", given[name]
        else:
            signature[name] = TYPES.get(name, "*fp32")
    source = ASTSource(kernel, signature, constexprs=constants)
    made = triton.compile(source, target=GPUTarget("cuda", 80, 32), options={"enable_fp_fusion": False})
    assert made.asm["cubin"]
    assert not re.search(r"\\bfma\\.", made.asm["ptx"]), "a multiply-add was contracted"

def shape(text, n_states, fires=True, in_order=False, ones=()):
    return places_of(tuple(text.split()), ones, n_states, fires, in_order)

def every(n):
    one = [str(r) for r in range(n)]
    two = [a + b for a in one for b in one]
    return " ".join([*("A" + x for x in two), *("R" + x for x in two), *(x + r for x in "urfBc" for r in one), "order threshold"])

SHAPES = {
    "readout": (1, shape("A00 B0", 1, False)),
    "zero": (1, shape("A00 R00 B0 threshold", 1)),
    "current": (2, shape("A00 A01 A11 u0 threshold", 2, True, True, ("B1",))),
    "adaptive": (2, shape("A00 A01 A10 A11 u0 u1 r1 f1 B0 threshold", 2, True, True)),
    "any 4": (4, shape(every(4), 4)),
    "any 4, readout": (4, shape(every(4), 4, False, True)),
}
for n, places in SHAPES.values():
    fires, more = places.threshold is not None, {"AT": places, "BLOCK": 128}
    compile(k.forward_kernel, state=n, rows=n, **({} if fires else {"fired_out": None}), **more)
    compile(k.forward_kernel, state=n, rows=0, out=None, **more)
    more |= {} if fires else {"grad_threshold": None}
    for detach in (True, False):
        more |= {"SLOPE": 10.0, "KIND": 0, "DETACH": detach}
        compile(k.backward_kernel, rows=n, d_state=n, d_parameters=2, **more)
        absent = dict.fromkeys(("current", "derivatives", "d_bias"))
        compile(k.backward_kernel, rows=int(fires), d_state=n, d_parameters=0, **absent, **more)
for kind in range(1, 7):
    n, places = SHAPES["zero"]
    compile(k.backward_kernel, rows=n, d_state=n, d_parameters=1, AT=places, KIND=kind, SLOPE=10.0, DETACH=True, BLOCK=128)
print("compiled")
"""


@pytest.mark.slow
def test_kernels_compile_for_a_gpu(tmp_path: Path) -> None:
    """To machine code of an A100, which needs none; without contracted multiply-adds."""
    environment = {name: x for name, x in os.environ.items() if not name.startswith("TRITON_")}
    (tmp_path / "compile.py").write_text(COMPILE.replace("\\\\", "\\"))
    done = subprocess.run(
        [sys.executable, str(tmp_path / "compile.py")],
        capture_output=True,
        text=True,
        check=False,
        env={**environment, "TRITON_CACHE_DIR": str(tmp_path)},
    )
    assert done.stdout == "compiled\n", done.stderr
