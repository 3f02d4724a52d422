"""Networks of Sinabs, converted: the same spikes, potentials and gradients."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from comparing import compare, linear, spikes
from torch import Tensor, nn

pytest.importorskip("sinabs", reason="needs sinabs")
from sinabs import layers
from sinabs.activation import MembraneReset, SingleExponential, SingleSpike

Make = Callable[[], Any]

NEURONS: dict[str, Make] = {
    "LIF": lambda: layers.LIF(tau_mem=10.0, norm_input=False, spike_fn=SingleSpike),
    "LIF, normed": lambda: layers.LIF(tau_mem=3.0, spike_fn=SingleSpike, spike_threshold=torch.tensor(0.7)),
    "LIF, trained decays": lambda: layers.LIF(tau_mem=3.0, tau_syn=2.0, train_alphas=True, spike_fn=SingleSpike),
    "LIF, current": lambda: layers.LIF(tau_mem=3.0, tau_syn=2.0, norm_input=False, spike_fn=SingleSpike),
    "IAF": lambda: layers.IAF(spike_fn=SingleSpike, surrogate_grad_fn=SingleExponential(grad_width=0.3)),
    "IAF, reset to zero": lambda: layers.IAF(spike_fn=SingleSpike, reset_fn=MembraneReset()),
}


def chain(sizes: list[int], neurons: Make, readout: nn.Module | None = None) -> nn.Sequential:
    parts: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        parts += [linear(a, b, 5.0), neurons()]
    return nn.Sequential(*parts, *([linear(sizes[-1], 5), readout] if readout else []))


def reset(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, layers.StatefulLayer):
            for name in ("v_mem", "i_syn"):
                if isinstance(getattr(module, name, None), Tensor):
                    setattr(module, name, torch.zeros(0))


def check(network: nn.Module, x: Tensor, example: Tensor | None = None, tolerance: float = 1e-4) -> Any:
    return compare(network, x, example, reset=lambda: reset(network), tolerance=tolerance)


@pytest.mark.parametrize("kind", NEURONS)
def test_neurons(kind: str) -> None:
    torch.manual_seed(3)
    _, (fired,) = check(chain([31, 23, 7], NEURONS[kind]), spikes(3, 13, 31), spikes(2, 4, 31))
    assert 0.01 < float(fired.mean()) < 0.9


def test_a_readout() -> None:
    torch.manual_seed(3)
    check(chain([31, 23], NEURONS["LIF"], layers.ExpLeak(tau_mem=8.0)), spikes(3, 13, 31))


def test_squeezed_maps() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        layers.IAFSqueeze(batch_size=3, spike_fn=SingleSpike),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * 5 * 6, 7),
        layers.IAFSqueeze(batch_size=3, spike_fn=SingleSpike),
    )
    check(network, spikes(3 * 7, 2, 10, 12))


def test_a_hundred_random_networks() -> None:
    choose = random.Random(3)
    for seed in range(100):
        torch.manual_seed(seed)
        sizes = [choose.randint(1, 40) for _ in range(choose.randint(2, 4))]
        x = spikes(choose.randint(1, 5), choose.randint(2, 20), sizes[0], share=choose.uniform(0.05, 0.4), seed=seed)
        # gradients of time constants are small differences of sums, and Sinabs has no double precision to compare with
        check(chain(sizes, NEURONS[choose.choice(list(NEURONS))]), x, tolerance=2e-3)
