"""SpikingJelly: feed-forward layers in multi-step mode, its LIF over all steps at once; a recurrent one step by step.

Its own recurrent container also multiplies by the identity, twice the work, so the loop here adds the product. Delays are its
`layer.Delay` in multi-step mode, with an `nn.Linear` for each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np
import torch
from numpy.typing import NDArray
from spikingjelly.activation_based import functional, layer, neuron, surrogate
from torch import Tensor, nn

from rivals.contestants.torch_tools import integrate, linear, step_of, tensor
from rivals.task import BETA, THRESHOLD, Task


def make(task: Task) -> Callable[[], float]:
    inputs = [nn.ModuleList(_delayed(d, w) for d, w in task.taps(k)) for k in range(len(task.recurrent))]
    readout = linear(task.weights[-1])
    own = nn.ModuleList(nn.Identity() if w is None else linear(w) for w in task.recurrent)
    neurons = nn.ModuleList(_lif("m" if w is None else "s") for w in task.recurrent)
    layers = nn.ModuleList([*inputs, readout, own, neurons])
    spikes = tensor(task.dense())

    def logits() -> Tensor:
        functional.reset_net(layers)
        x = spikes
        for taps, lif, back in zip(inputs, neurons, own, strict=True):
            currents = reduce(torch.add, (tap(x) for tap in taps))
            x = _recurrent(currents, lif, back) if isinstance(back, nn.Linear) else lif(currents)
        return integrate(readout(x)).mean(0)

    return step_of(logits, layers.parameters(), task.labels)


def _delayed(delay: int, weight: NDArray[np.float32]) -> nn.Module:
    return nn.Sequential(layer.Delay(delay, step_mode="m"), linear(weight)) if delay else linear(weight)


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
