"""A training step of networks of snnTorch and SpikingJelly, as they are and converted, on one thread: `./dev bench converted`.

Forward, cross-entropy of the spike counts, backward, fused Adam with a step too small to move a weight. The three take turns; weights are
scaled until the hidden layer fires at about the input's 2 %. Prints medians of the turns, and how many times as fast each is.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import sparsesnn as ss

#: inputs, hidden neurons, outputs, T
CASES = ((700, 512, 20, 100), (784, 1000, 10, 25))
BATCH, ACTIVITY = 32, 0.02


class Loop(nn.Module):
    """snnTorch, with the loop over time in forward."""

    def __init__(self, a: int, b: int, c: int) -> None:
        import snntorch

        super().__init__()
        self.fc1, self.fc2 = nn.Linear(a, b), nn.Linear(b, c)
        self.lif1, self.lif2 = snntorch.Leaky(beta=0.9), snntorch.Leaky(beta=0.9)

    def forward(self, x: Tensor) -> Tensor:
        mem1, mem2 = self.lif1.reset_mem(), self.lif2.reset_mem()
        recorded = []
        for step in x:
            spk1, mem1 = self.lif1(self.fc1(step), mem1)
            spk2, mem2 = self.lif2(self.fc2(spk1), mem2)
            recorded.append(spk2)
        return torch.stack(recorded)


def sequence(a: int, b: int, c: int) -> Any:
    """SpikingJelly's multi-step layers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from spikingjelly.activation_based import functional, layer, neuron
    options = {"tau": 10.0, "decay_input": False, "v_reset": None, "detach_reset": True}
    net: Any = nn.Sequential(
        layer.Linear(a, b), neuron.LIFNode(**options), layer.Linear(b, c), neuron.LIFNode(**options)
    )
    functional.set_step_mode(net, "m")
    net.begin_anew = lambda: functional.reset_net(net)
    return net


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds is {options.rounds}; give at least 1")
    torch.set_num_threads(1)
    ss.set_num_threads(1)
    for library, make in (("snnTorch", Loop), ("SpikingJelly", sequence)):
        for a, b, c, n_steps in CASES:
            race(f"{library} {a}-{b}-{c}", make(a, b, c), (n_steps, BATCH, a), c, options.rounds)


def race(library: str, net: Any, shape: tuple[int, int, int], n_out: int, rounds: int) -> None:
    torch.manual_seed(0)
    x, labels = (torch.rand(shape) < ACTIVITY).float(), torch.randint(n_out, (BATCH,))
    fired = scale_weights(net, x)
    nets = {
        library: net,
        "every neuron listed": ss.convert(net, x[:3]),
        "0.9": ss.convert(net, x[:3], grad_threshold=0.9),
    }
    seconds: dict[str, list[float]] = {name: [] for name in nets}
    optimizer = torch.optim.Adam(net.parameters(), 1e-12, fused=True)
    for _ in range(rounds + 2):
        for name, one in nets.items():
            getattr(net, "begin_anew", int)()
            start = time.perf_counter()
            optimizer.zero_grad()
            nn.functional.cross_entropy(one(x).sum(0), labels).backward()
            optimizer.step()
            seconds[name].append(time.perf_counter() - start)
    medians = {name: float(np.median(all_[2:])) for name, all_ in seconds.items()}
    shown = ", ".join(f"{name} {1e3 * m:.1f} ms ({medians[library] / m:.1f})" for name, m in medians.items())
    print(f"{library}, T = {shape[0]}, hidden activity {100 * fired:.1f} %: {shown}", flush=True)


def scale_weights(net: Any, x: Tensor) -> float:
    """Scales the first weights until the hidden layer fires at about ACTIVITY; its activity then."""
    linear, neurons = (net.fc1, net.lif1) if hasattr(net, "fc1") else (net[0], net[1])
    seen: list[float] = []
    hook = neurons.register_forward_hook(
        lambda m, given, made: seen.append(float((made[0] if isinstance(made, tuple) else made).mean()))
    )
    low, high = 0.0, math.log(100)
    before = linear.weight.detach().clone()
    for _ in range(12):
        factor = math.exp((low + high) / 2)
        with torch.no_grad():
            linear.weight.copy_(before * factor)
            seen.clear()
            getattr(net, "begin_anew", int)()
            net(x)
        low, high = (low, math.log(factor)) if np.mean(seen) > ACTIVITY else (math.log(factor), high)
    hook.remove()
    return float(np.mean(seen))


if __name__ == "__main__":
    main()
