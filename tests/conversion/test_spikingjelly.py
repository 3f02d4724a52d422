"""Networks of SpikingJelly, converted: the same spikes and gradients."""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from comparing import compare, linear, spikes
from torch import Tensor, nn

import sparsesnn as ss

pytest.importorskip("spikingjelly", reason="needs spikingjelly")
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it compiles by torch.jit when it is imported
    from spikingjelly.activation_based import functional, layer, neuron, surrogate

Make = Callable[[], Any]

NEURONS: dict[str, Make] = {
    "LIF": lambda: neuron.LIFNode(tau=2.0),
    "LIF, detached": lambda: neuron.LIFNode(tau=3.0, detach_reset=True, surrogate_function=surrogate.ATan()),
    "LIF, soft": lambda: neuron.LIFNode(tau=3.0, v_reset=None),
    "LIF, no decay of the input": lambda: neuron.LIFNode(tau=2.0, decay_input=False, v_threshold=1.3),
    "LIF, another rest": lambda: neuron.LIFNode(
        tau=2.0, v_reset=-0.2, surrogate_function=surrogate.PiecewiseQuadratic(alpha=2.0)
    ),
    "IF": lambda: neuron.IFNode(surrogate_function=surrogate.SoftSign(alpha=3.0)),
    "IF, soft": lambda: neuron.IFNode(v_reset=None),
    "ParametricLIF": lambda: neuron.ParametricLIFNode(init_tau=1.7),
    "ParametricLIF, no decay of the input": lambda: neuron.ParametricLIFNode(decay_input=False, v_reset=None),
}


def chain(sizes: list[int], neurons: Make, mode: str = "m") -> nn.Sequential:
    parts: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        made = layer.Linear(a, b)
        made.load_state_dict(linear(a, b, 12.0).state_dict())
        parts += [made, neurons()]
    network = nn.Sequential(*parts)
    functional.set_step_mode(network, mode)
    return network


def check(network: nn.Module, x: Tensor, example: Tensor | None = None, **options: Any) -> Any:
    return compare(network, x, example, reset=lambda: functional.reset_net(network), **options)


@pytest.mark.parametrize("kind", NEURONS)
def test_neurons(kind: str) -> None:
    torch.manual_seed(3)
    _, (fired,) = check(chain([31, 23, 7], NEURONS[kind]), spikes(13, 3, 31), spikes(4, 2, 31))
    assert 0.01 < float(fired.mean()) < 0.9


def test_a_hundred_random_networks() -> None:
    choose = random.Random(1)
    for seed in range(100):
        torch.manual_seed(seed)
        sizes = [choose.randint(1, 40) for _ in range(choose.randint(2, 4))]
        x = spikes(choose.randint(2, 20), choose.randint(1, 5), sizes[0], share=choose.uniform(0.05, 0.4), seed=seed)
        check(chain(sizes, NEURONS[choose.choice(list(NEURONS))]), x)


class Loop(nn.Module):
    """Single-step neurons, a loop over the same image, and a firing rate, as in SpikingJelly's first tutorial."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = chain([31, 23, 7], NEURONS["LIF"], "s")

    def forward(self, x: Tensor) -> Tensor:
        rate = torch.zeros(len(x), 7)
        for _ in range(9):
            rate = rate + self.layers(x)
        return rate / 9


def test_single_steps() -> None:
    torch.manual_seed(0)
    check(Loop(), torch.rand(3, 31) * 3)


def test_random_spikes_of_an_encoder() -> None:
    class Encoded(Loop):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([self.layers((torch.rand(x.shape) < x).float()) for _ in range(9)])

    torch.manual_seed(0)
    network, x = Encoded(), torch.rand(3, 31) * 0.5
    converted = ss.convert(network, x)
    functional.reset_net(network)
    torch.manual_seed(5)
    theirs = network(x)
    torch.manual_seed(5)
    assert torch.equal(converted(x), theirs)


class Maps(nn.Module):
    """Convolutions, pools, and a flattened end."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.Sequential(*parts)
        functional.set_step_mode(self, "m")

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.parts(x).mean(0)
        return made


def maps(pool: nn.Module) -> Maps:
    return Maps(
        layer.Conv2d(2, 5, 3, padding=1),
        neuron.IFNode(),
        pool,
        layer.Conv2d(5, 6, 3, bias=False),
        neuron.LIFNode(tau=1.5, v_threshold=0.1),
        layer.Flatten(),
        layer.Linear(6 * 3 * 3, 7),
        neuron.IFNode(v_threshold=0.2),
    )


@pytest.mark.parametrize("pool", [layer.MaxPool2d(2), layer.AvgPool2d(2), layer.Conv2d(5, 5, 2, stride=2, groups=5)])
@pytest.mark.parametrize("real", [False, True])
def test_maps(pool: nn.Module, real: bool) -> None:
    torch.manual_seed(0)
    if isinstance(pool, nn.Conv2d):
        pool = nn.Sequential(pool, neuron.IFNode(v_threshold=0.2))
    x = torch.rand(7, 3, 2, 11, 11) if real else spikes(7, 3, 2, 11, 11)
    _, (rate,) = check(maps(pool), x)
    assert 0.01 < float(rate.mean()) < 0.9


def test_a_pool_before_the_flattened_end() -> None:
    torch.manual_seed(0)
    network = Maps(
        layer.Conv2d(2, 5, 3),
        neuron.IFNode(v_threshold=0.5),
        layer.AvgPool2d(2),
        layer.Flatten(),
        layer.Linear(5 * 3 * 3, 7),
    )
    check(network, spikes(7, 3, 2, 9, 9))


def test_one_pool_for_two_layers() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.last = (
                layer.Conv2d(2, 5, 3),
                layer.Conv2d(5, 6, 3),
                layer.Linear(6 * 2 * 3, 7),
            )
            self.a, self.b, self.c = (neuron.IFNode(v_threshold=0.3) for _ in range(3))
            self.pool = layer.MaxPool2d(2)
            functional.set_step_mode(self, "m")

        def forward(self, x: Tensor) -> Tensor:
            y = self.pool(self.b(self.second(self.pool(self.a(self.first(x))))))
            made: Tensor = self.c(self.last(y.flatten(2)))
            return made

    torch.manual_seed(0)
    check(Shared(), spikes(7, 3, 2, 14, 18))


def test_maps_as_output() -> None:
    class Whole(Maps):
        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.parts(x)
            return made

    torch.manual_seed(0)
    check(Whole(layer.Conv2d(2, 5, 3), neuron.IFNode(v_threshold=0.5)), spikes(7, 3, 2, 9, 8))
