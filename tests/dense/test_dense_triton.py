"""The Triton kernels of the mode "fused", on a GPU where there is one, else interpreted on the CPU: against the C++ ones, and
in whole networks."""

from __future__ import annotations

import importlib
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from sparsesnn.engines.dense import fused, graphs, on_cpu
from sparsesnn.engines.dense.dynamics import Dynamics, Numbers
from sparsesnn.engines.module import Layer, Model
from sparsesnn.errors import DescriptionError
from sparsesnn.layers import LI, LIF, CubaLIF, Population
from sparsesnn.network import Connection, Network, parse_net
from sparsesnn.spikes import SpikeBatch
from sparsesnn.surrogate import KINDS, Surrogate

pytest.importorskip("triton")
RESETS = [("subtract", False), ("subtract", True), ("zero", False), ("none", False)]
#: where the kernels run
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(scope="module")
def on_cuda() -> ModuleType:
    """The module whose kernels are compiled for a GPU, or interpreted; Triton decides that when they are defined."""
    with pytest.MonkeyPatch.context() as patch:
        if DEVICE.type == "cpu":
            patch.setenv("TRITON_INTERPRET", "1")
        module = importlib.import_module("sparsesnn.engines.dense.on_cuda")
    from sparsesnn.engines.dense import triton_kernels

    if DEVICE.type == "cpu" and type(triton_kernels.forward_kernel).__name__ != "InterpretedFunction":
        pytest.skip("the kernels were imported before, to be compiled")
    return module


@pytest.fixture
def triton_kit(on_cuda: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of any device take the way of CUDA tensors, in chunks of three steps."""
    monkeypatch.setattr(on_cuda, "ROWS", 1)
    monkeypatch.setattr(on_cuda, "MIN_STEPS", 3)
    monkeypatch.setattr(fused, "kit_of", lambda device: on_cuda)


def run_kernels(
    kit: ModuleType, population: LI | Population, dtype: torch.dtype, fresh: bool = False
) -> dict[str, torch.Tensor]:
    """Forward and backward of one chunk: everything that the kernels write. `fresh`: of the first one of a sequence,
    with some thresholds below 0."""
    n_steps, n_samples, n = 6, 3, 61
    rng, device = np.random.default_rng(0), torch.device("cpu") if kit is on_cpu else DEVICE

    def numbers(*shape: int, low: float = -1, high: float = 1) -> torch.Tensor:
        return torch.from_numpy(rng.uniform(low, high, shape)).to(device, dtype)

    fires = not isinstance(population, LI)
    ranges = {"alpha": 0.5, "beta": 0.5, "threshold": -0.2 if fresh else 0.4}
    neuron = Numbers(
        tuple(numbers(n, low=ranges[parameter.name]) for parameter in population.parameters),
        numbers(n, low=0, high=0.4) if fires else None,
    )
    current, d_out = numbers(n_steps, n_samples, n, high=1.5), numbers(n_steps, n_samples, n)
    state = tuple(numbers(n_samples, n) * (not fresh) for _ in population.states)
    rows = tuple(torch.empty(n_steps + 1, n_samples, n, dtype=dtype, device=device) for _ in population.states)
    out = torch.empty_like(current)
    fired = torch.empty_like(current, dtype=torch.bool) if fires else None
    dynamics = Dynamics.of(population)
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


def populations() -> list[Any]:
    """Every model, reset and surrogate; every other one differentiates through the reset."""
    made = [LI(61, gain=1.3)]
    for model in (LIF, CubaLIF):
        for k, (reset, decays) in enumerate(RESETS):
            for j, kind in enumerate(KINDS):
                slope = {"straight_through": 1.0, "triangle": 0.4, "boxcar": 0.3}.get(kind, 2.0)
                more = {"reset": reset, "reset_decays": decays, "detach_reset": (k + j) % 2 == 0, "gain": 0.9}
                made.append(model(61, surrogate=Surrogate(kind, slope), **more))
    return made


@pytest.mark.parametrize("population", populations(), ids=lambda p: f"{type(p).__name__}")
def test_kernels_are_those_of_the_cpu(population: LI | Population, on_cuda: ModuleType) -> None:
    """In float32 the forward pass to the bit: no spike may differ. The rest to a few roundings."""
    fresh = isinstance(population, Population) and population.detach_reset
    want, got = (run_kernels(kit, population, torch.float32, fresh) for kit in (on_cpu, on_cuda))
    assert set(got) == set(want)
    if "fired" in want:
        assert 0.05 < want["fired"].float().mean() < 0.8
    for name in ("v", "i_syn", "v_rows", "i_syn_rows", "out", "fired"):
        if name in want:
            assert torch.equal(got[name], want[name]), name
    for name, x in want.items():
        largest = x.abs().max().item() if x.is_floating_point() else 0
        torch.testing.assert_close(got[name], x, rtol=1e-5, atol=1e-5 * largest, msg=name)


def deep_network() -> Network:
    """Delays, a skip connection, recurrence, both models, everything learnt."""
    return Network(
        {
            "input": parse_net("13-2").populations["input"],
            "a": LIF(33, recurrent=True, grad_threshold=0.5, bias=True, learn_beta=True),
            "b": CubaLIF(17, alpha=0.7, reset="zero", grad_threshold=0.5, learn_threshold=True, learn_alpha=True),
            "out": LI(3, beta=0.8, learn_beta=True),
        },
        (
            Connection("input", "a", 2),
            Connection("input", "b"),
            Connection("a", "b", 1),
            Connection("a", "out", 3),
            Connection("b", "out"),
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
    """Where a threshold has become negative; tests/dense/test_dense_modes.py compares the CPU's kernels with the reference."""
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
    """PyTorch's own checks: what is written is declared, and shapes are known without memory."""
    current, row, v = (x.to(DEVICE) for x in (torch.rand(4, 2, 3), torch.full((3,), 0.9), torch.zeros(2, 3)))
    rows = torch.rand(5, 2, 3, device=DEVICE)
    torch.library.opcheck(
        torch.ops.sparsesnn.dense_forward.default,
        (current, None, row, row, v, None, torch.empty_like(current), None, rows.clone(), None, 0, 0, 1.0),
        test_utils=("test_schema", "test_faketensor"),
    )
    torch.library.opcheck(
        torch.ops.sparsesnn.dense_backward.default,
        (
            *(rows, None, current, None, row, row, row, v, None, torch.empty_like(current)),
            *(v.clone(), None, None, None, 0, 0, True, 0, 10.0, 1.0),
        ),
        test_utils=("test_schema", "test_faketensor"),
    )


def test_listed_means_fired_or_above(on_cuda: ModuleType) -> None:
    """With θ_grad above θ a neuron that fired still gets its gradient."""
    one, rows = torch.ones(1, device=DEVICE), torch.tensor([0.0, 2.0], device=DEVICE).view(2, 1, 1)
    neuron, d_current = Numbers((one, one), 9 * one), torch.empty(1, 1, 1, device=DEVICE)
    dynamics = Dynamics.of(LIF(1, grad_threshold=-math.inf))
    on_cuda.backward(
        dynamics, neuron, one.view(1, 1, 1), rows=(rows,), d_state=(0 * one.view(1, 1),), d_current=d_current
    )
    assert d_current.item() == pytest.approx(1 / (10 * 1 + 1) ** 2)


def test_other_models_are_refused_by_name(on_cuda: ModuleType) -> None:
    dynamics = replace(Dynamics.of(LIF(1)), kernel="other.zero")
    with pytest.raises(DescriptionError, match=r"no kernel of the neuron model 'other.zero'; .* 'hoist'"):
        on_cuda.forward(dynamics, Numbers((), None), torch.ones(1, 1, 1), state=(torch.zeros(1, 1),))


COMPILE = """
import inspect, itertools, re, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from sparsesnn.engines.dense import triton_kernels as k

POINTERS = {"current": "*bf16", "d_out": "*bf16", "d_current": "*bf16", "out": "*fp32", "fired": "*u8"}
CONSTANTS = {"GAIN", "MODEL", "RESET", "BLOCK", "SLOPE", "KIND", "DETACH"}

def compile(kernel, absent, **constants):
    names = kernel.arg_names
    types = {name: POINTERS.get(name, "*fp32") for name in names} | dict.fromkeys(("n_steps", "size", "n"), "i32")
    values = {**dict.fromkeys(absent), **{name: x for name, x in constants.items() if name in names}}
    if "constexprs" in inspect.signature(ASTSource).parameters:
        signature = {name: "constexpr" if name in values else types[name] for name in names}
        source = ASTSource(kernel, signature, constexprs={(names.index(name),): x for name, x in values.items()})
    else:  # Triton 3.2
        source = ASTSource(kernel, {name: types[name] for name in names if name not in values}, constants=values)
    made = triton.compile(source, target=GPUTarget("cuda", 80, 32), options={"enable_fp_fusion": False})
    assert made.asm["cubin"]
    assert not re.search(r"\\\\bfma\\\\.", made.asm["ptx"]), "a multiply-add was contracted"

more = {"GAIN": 0.9, "SLOPE": 10.0, "BLOCK": 128}
for reset in range(4):
    compile(k.forward_kernel, [], MODEL=1, RESET=reset, **more)
compile(k.forward_kernel, ["alpha", "i_state", "out", "v_rows", "i_rows"], MODEL=0, RESET=0, **more)
compile(k.forward_kernel, ["alpha", "theta", "i_state", "fired", "v_rows", "i_rows"], MODEL=2, RESET=3, **more)
for reset, detach in itertools.product(range(4), (True, False)):
    compile(k.backward_kernel, [], MODEL=1, RESET=reset, KIND=0, DETACH=detach, **more)
for kind in range(1, 6):
    compile(k.backward_kernel, [], MODEL=1, RESET=0, KIND=kind, DETACH=True, **more)
sums = ["d_bias", "d_alpha", "d_beta", "d_threshold"]
compile(k.backward_kernel, ["i_rows", "alpha", "d_i_state", *sums], MODEL=0, RESET=0, KIND=0, DETACH=True, **more)
absent = ["v_rows", "i_rows", "alpha", "theta", "theta_grad", "d_i_state", *sums]
compile(k.backward_kernel, absent, MODEL=2, RESET=3, KIND=0, DETACH=True, **more)
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
