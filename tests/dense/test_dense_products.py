"""The matrix products of the mode "fused" on the CPU: against NumPy, at odd shapes, with the same bits everywhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sparsesnn import _core, set_num_threads
from sparsesnn.engines.dense import on_cpu
from sparsesnn.errors import ShapeError

SHAPES = [(1, 1, 1), (13, 37, 45), (14, 256, 32), (15, 257, 33), (61, 700, 20), (5, 1030, 129), (130, 3, 64)]


def operands(m: int, k: int, n: int, kind: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """a [M, K] of numbers or spikes, b [K, N], and what lies in c [M, N]."""
    generator = torch.Generator().manual_seed(m + k + n)
    a = torch.randn(m, k, generator=generator)
    b, c = torch.randn(k, n, generator=generator), torch.randn(m, n, generator=generator)
    return (a > 0.5 if kind == "spikes" else a), b, c


def check(got: torch.Tensor, a: torch.Tensor, b: torch.Tensor, start: torch.Tensor | float) -> None:
    """Compares with the bound on float32's rounding in a sum of this length."""
    want = a.double() @ b.double() + start
    bound = (a.double().abs() @ b.double().abs() + abs(start)) * 2**-24 * (a.shape[1] + 2)
    worst = ((got.double() - want).abs() - bound).max().item()
    assert worst <= 0, worst


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["numbers", "spikes"])
@pytest.mark.parametrize("double", [False, True])
def test_every_product(shape: tuple[int, int, int], kind: str, double: bool, isa: str) -> None:
    """Each instruction set; "base" has no product of ours, double neither: PyTorch's."""
    a, b, c = operands(*shape, kind)
    bias = c[0].clone()
    if double:
        b, c, bias = b.double(), c.double(), bias.double()
        a = a if kind == "spikes" else a.double()
    for transposed in (False, True):
        factor = on_cpu.Factor(b.t().contiguous() if transposed else b, b.dtype, transposed=transposed)
        assert (factor.packed is None) == (double or isa == "base" or not on_cpu.products_are_ours())
        for options, start in [({}, 0.0), ({"accumulate": True}, c), ({"bias": bias}, bias)]:
            out = c.clone()
            factor.product(a, out, **options)
            check(out, a, b, start)
    at = a.t().contiguous()
    for first in (True, False):
        out = c.clone()
        on_cpu.add_outer(out, at, b, first=first)
        check(out, a, b, 0.0 if first else c)


def test_time_and_samples_are_rows(isa: str) -> None:
    a, b, _ = operands(12, 9, 5, "spikes")
    out = torch.empty(3, 4, 5)
    on_cpu.Factor(b, b.dtype).product(a.view(3, 4, 9), out)
    check(out.view(12, 5), a, b, 0.0)


def test_nothing_to_add(isa: str) -> None:
    out = torch.ones(4, 3)
    on_cpu.add_outer(out, torch.empty(0, 4, dtype=torch.bool), torch.empty(0, 3), first=False)
    assert torch.equal(out, torch.ones(4, 3))
    on_cpu.add_outer(out, torch.empty(0, 4, dtype=torch.bool), torch.empty(0, 3), first=True)
    assert torch.equal(out, torch.zeros(4, 3))


def test_bits_do_not_depend_on_threads_or_instruction_set(isa: str, threads: int) -> None:
    if not on_cpu.products_are_ours():
        pytest.skip("this instruction set has no product of ours")
    a, b, _ = operands(201, 613, 77, "numbers")

    def run() -> bytes:
        out = torch.empty(201, 77)
        on_cpu.Factor(b, b.dtype).product(a, out)
        outer = torch.empty(613, 77)
        on_cpu.add_outer(outer, a, out, first=True)
        return out.numpy().tobytes() + outer.numpy().tobytes()

    got = run()
    set_num_threads(1)
    for other in _core.build_info()["isa_supported"]:
        _core.set_isa(other)
        if on_cpu.products_are_ours():
            assert run() == got, other


def test_matrices_that_do_not_fit_are_refused() -> None:
    if not on_cpu.products_are_ours():
        pytest.skip("this machine has no product of ours")
    b = _core.PackedMatrix(np.ones((3, 4), np.float32))
    a, c = np.ones((2, 3), np.float32), np.empty((2, 4), np.float32)
    _core.dense_multiply(a, b, c)
    assert c.tolist() == [[3.0] * 4] * 2
    for wrong_a, wrong_c in [(a[:, :2].copy(), c), (a, c[:1]), (a, np.empty((2, 5), np.float32))]:
        with pytest.raises(ShapeError, match=r"b is \[3, 4\], so give a \[M, 3\] and c \[M, 4\]"):
            _core.dense_multiply(wrong_a, b, wrong_c)
    with pytest.raises(ShapeError, match=r"bias has another shape; give \[4\]"):
        _core.dense_multiply(a, b, c, bias=np.ones(3, np.float32))
    with pytest.raises(TypeError, match="incompatible function arguments"):
        _core.dense_multiply(a.astype(np.float64), b, c)
    with pytest.raises(TypeError, match="incompatible function arguments"):
        _core.dense_multiply(a, b, np.empty((4, 2), np.float32).T)
