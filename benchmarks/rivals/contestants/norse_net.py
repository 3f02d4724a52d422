"""Norse: `LIFBoxCell`, which has no synaptic current; Euler steps scale the input by 1 - β, so weights undo that."""

from __future__ import annotations

from collections.abc import Callable

import torch
from norse.torch import LIFBoxCell, LIFBoxParameters
from torch import Tensor, nn

from rivals.contestants.torch_tools import integrate, linear, step_of, tensor
from rivals.task import BETA, SLOPE, THRESHOLD, Task

DT = 1e-3


def make(task: Task) -> Callable[[], float]:
    scale = 1 / (1 - BETA)
    linears = nn.ModuleList([*(linear(w, scale) for w in task.weights[:-1]), linear(task.weights[-1])])
    own = nn.ModuleList(nn.Identity() if w is None else linear(w, scale) for w in task.recurrent)
    parameters = LIFBoxParameters(
        tau_mem_inv=torch.tensor((1 - BETA) / DT), v_th=torch.tensor(THRESHOLD), method="super", alpha=SLOPE
    )
    cells = [LIFBoxCell(parameters, dt=DT) for _ in task.recurrent]
    spikes = tensor(task.dense())

    def logits() -> Tensor:
        x = spikes
        for layer, cell, back in zip(linears[:-1], cells, own, strict=True):
            state, s, fired = None, None, []
            for i in layer(x).unbind(0):
                if s is not None and isinstance(back, nn.Linear):
                    i = i + back(s)
                s, state = cell(i, state)
                fired.append(s)
            x = torch.stack(fired)
        return integrate(linears[-1](x)).mean(0)

    return step_of(logits, [*linears.parameters(), *own.parameters()], task.labels)
