"""SpikingJelly: feed-forward layers in multi-step mode, its LIF over all steps at once; a recurrent one step by step.

Its own recurrent container multiplies by the identity too, twice the work: here the loop adds the product by hand.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from spikingjelly.activation_based import functional, neuron, surrogate
from torch import Tensor, nn

from rivals.contestants.torch_tools import integrate, linear, step_of
from rivals.task import BETA, THRESHOLD, Task


def make(task: Task) -> Callable[[], float]:
    linears = nn.ModuleList(linear(w) for w in task.weights)
    own = nn.ModuleList(nn.Identity() if w is None else linear(w) for w in task.recurrent)
    neurons = nn.ModuleList(_lif("m" if w is None else "s") for w in task.recurrent)
    spikes = torch.from_numpy(task.dense())

    def logits() -> Tensor:
        functional.reset_net(neurons)
        x = spikes
        for layer, lif, back in zip(linears[:-1], neurons, own, strict=True):
            currents = layer(x)
            x = _recurrent(currents, lif, back) if isinstance(back, nn.Linear) else lif(currents)
        return integrate(linears[-1](x)).mean(0)

    return step_of(logits, [*linears.parameters(), *own.parameters()], task.labels)


def _recurrent(currents: Tensor, lif: nn.Module, back: nn.Linear) -> Tensor:
    fired = [lif(currents[0])]
    for i in currents[1:].unbind(0):
        fired.append(lif(i + back(fired[-1])))
    return torch.stack(fired)


def _lif(step_mode: str) -> neuron.LIFNode:
    return neuron.LIFNode(
        tau=1 / (1 - BETA),
        decay_input=False,
        v_threshold=THRESHOLD,
        v_reset=None,
        surrogate_function=surrogate.ATan(),
        detach_reset=True,
        step_mode=step_mode,
    )
