"""Networks of Norse, converted: the same spikes, potentials and gradients."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from comparing import compare, linear, spikes
from torch import Tensor, nn

norse = pytest.importorskip("norse.torch", reason="needs norse")

Make = Callable[[], Any]


def _box(**options: Any) -> Any:
    return norse.LIFBoxCell(norse.LIFBoxParameters(tau_mem_inv=torch.tensor(300.0), **options))


CELLS: dict[str, Make] = {
    "LIFBoxCell": _box,
    "LIFBoxCell, subtract": lambda: _box(reset_method=norse.functional.reset.reset_subtract),
    "LIFBoxCell, threshold": lambda: _box(v_th=torch.tensor(0.6), alpha=20.0),
    "LIFCell": lambda: norse.LIFCell(norse.LIFParameters(tau_mem_inv=torch.tensor(300.0))),
    "IAFCell": norse.IAFCell,
}


class Loop(nn.Module):
    """Cells in a SequentialState, whose state a loop passes on."""

    def __init__(self, sizes: list[int], cells: Make, readout: Make | None = None) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for a, b in itertools.pairwise(sizes):
            parts += [linear(a, b, 9.0), cells()]
        if readout:
            parts += [linear(sizes[-1], 5), readout()]
        self.net = norse.SequentialState(*parts)

    def forward(self, x: Tensor) -> Tensor:
        state, made = None, []
        for step in x:
            y, state = self.net(step, state)
            made.append(y)
        return torch.stack(made)


@pytest.mark.parametrize("kind", CELLS)
def test_cells(kind: str) -> None:
    torch.manual_seed(3)
    _, (fired,) = compare(Loop([31, 23, 7], CELLS[kind]), spikes(13, 3, 31), spikes(4, 2, 31))
    assert 0.01 < float(fired.mean()) < 0.9


@pytest.mark.parametrize("readout", [norse.LICell, norse.LIBoxCell])
def test_readouts(readout: Make) -> None:
    torch.manual_seed(3)
    compare(Loop([31, 23], CELLS["LIFCell"], readout), spikes(13, 3, 31), spikes(4, 2, 31))


def test_whole_sequences() -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            cells = norse.LIF(norse.LIFParameters(tau_mem_inv=torch.tensor(300.0)))
            self.net = norse.SequentialState(linear(31, 23, 5.0), cells, linear(23, 5), norse.LI())

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.net(x)[0]
            return made

    torch.manual_seed(3)
    compare(Whole(), spikes(13, 3, 31))


def test_a_hundred_random_networks() -> None:
    choose = random.Random(2)
    for seed in range(100):
        torch.manual_seed(seed)
        sizes = [choose.randint(1, 40) for _ in range(choose.randint(2, 4))]
        x = spikes(choose.randint(2, 20), choose.randint(1, 5), sizes[0], share=choose.uniform(0.05, 0.4), seed=seed)
        compare(Loop(sizes, CELLS[choose.choice(list(CELLS))]), x)
