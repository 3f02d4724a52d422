"""What scripts of strangers do: functions that pool, spikes side by side, dropout in eval mode, rows of steps and samples in one axis."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from comparing import compare, linear, spikes
from torch import Tensor, nn
from torch.nn import functional

import sparsesnn as ss

snn = pytest.importorskip("snntorch", reason="needs snntorch, in the extra 'test'")


def convolution(n_in: int, n: int, gain: float = 4.0, **options: Any) -> nn.Conv2d:
    layer = nn.Conv2d(n_in, n, 3, **options)
    with torch.no_grad():
        layer.weight *= gain
    return layer


# ---- functions that pool ------------------------------------------------------------------------------------------------


class Maps(nn.Module):
    """Two convolutions and a Linear; `pool` reads the spikes of both convolutions, and `late` the currents of the second."""

    def __init__(self, pool: Any, late: Any = lambda x: x, size: int = 3) -> None:
        super().__init__()
        self.first, self.second, self.last = convolution(2, 6), convolution(6, 5), linear(5 * size * size, 7)
        self.a, self.b, self.c = (snn.Leaky(beta=0.7) for _ in range(3))
        self.pool, self.late = pool, late

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b, c = self.a.init_leaky(), self.b.init_leaky(), self.c.init_leaky()
        recorded, potentials = [], []
        for step in x:
            s, a = self.a(self.first(step), a)
            s, b = self.b(self.late(self.second(self.pool(s))), b)
            s, c = self.c(self.last(self.pool(s).flatten(1)), c)
            recorded.append(s)
            potentials.append(c)
        return torch.stack(recorded), torch.stack(potentials)


POOLS = {
    "max_pool2d": lambda x: functional.max_pool2d(x, 2),
    "max_pool2d with a stride": lambda x: functional.max_pool2d(x, kernel_size=2, stride=2),
    "avg_pool2d": lambda x: functional.avg_pool2d(x, (2, 2)),
    "torch.max_pool2d": lambda x: torch.max_pool2d(x, 2),
    "adaptive": lambda x: functional.adaptive_avg_pool2d(x, (x.shape[-2] // 2, x.shape[-1] // 2)),
    "a module": nn.MaxPool2d(2),
}


@pytest.mark.parametrize("name", POOLS)
def test_pools_of_spikes(name: str) -> None:
    torch.manual_seed(1)
    _, (fired, _) = compare(Maps(POOLS[name]), spikes(9, 3, 2, 18, 18), spikes(4, 3, 2, 18, 18))
    assert 0.02 < float(fired.mean()) < 0.9


def test_an_adaptive_pool_in_a_module() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.pool, self.last = convolution(2, 6), nn.AdaptiveAvgPool2d(1), linear(6, 5, 9.0)
            self.a, self.b = snn.Leaky(beta=0.7), snn.Leaky(beta=0.7)

        def forward(self, x: Tensor) -> Tensor:
            a, b, recorded = self.a.init_leaky(), self.b.init_leaky(), []
            for step in x:
                s, a = self.a(self.first(step), a)
                s, b = self.b(self.last(self.pool(s).flatten(1)), b)
                recorded.append(s)
            return torch.stack(recorded)

    torch.manual_seed(1)
    _, (fired,) = compare(Net(), spikes(6, 3, 2, 7, 9))
    assert float(fired.mean()) > 0.02


@pytest.mark.parametrize(
    ("pool", "late", "message"),
    [
        (POOLS["avg_pool2d"], POOLS["avg_pool2d"], r"avg_pool2d \(AvgPool2d\) at test_scripts.py:\d+: pools the currents of second.*put the pool after"),
        (lambda x: functional.max_pool2d(x, 3, 2, 1), None, r"second \(Conv2d\) at .*made by max_pool2d at test_scripts.py:\d+"),
        (lambda x: functional.adaptive_avg_pool2d(x, 5), None, r"made by adaptive_avg_pool2d at test_scripts.py"),
    ],
)  # fmt: skip
def test_pools_that_have_no_equal(pool: Any, late: Any, message: str) -> None:
    network = Maps(pool, late or (lambda x: x))
    network.last = nn.LazyLinear(7)
    network(spikes(4, 3, 2, 18, 18))  # which sets the size of the last layer
    with pytest.raises(ss.errors.DescriptionError, match=message):
        ss.convert(network, spikes(4, 3, 2, 18, 18))


def test_a_pooled_current_in_front_of_the_first_neurons_stays() -> None:
    class Net(Maps):
        def forward(self, x: Tensor) -> Tensor:
            a, c, recorded = self.a.init_leaky(), self.c.init_leaky(), []
            for _ in range(5):
                s, a = self.a(functional.max_pool2d(self.first(x), 2), a)
                s, c = self.c(self.last(functional.avg_pool2d(s, 2).flatten(1)), c)
                recorded.append(s)
            return torch.stack(recorded)

    torch.manual_seed(1)
    network = Net(None)
    network.last, network.second, network.b = linear(6 * 4 * 4, 7), nn.Identity(), nn.Identity()  # type: ignore[assignment]
    compare(network, torch.rand(3, 2, 18, 18))


# ---- spikes side by side ------------------------------------------------------------------------------------------------


class Beside(nn.Module):
    """A layer that reads the spikes of two others."""

    def __init__(self, records: bool = False, order: tuple[int, int] = (0, 1)) -> None:
        super().__init__()
        self.first, self.second, self.third = linear(19, 16), linear(16, 12, 5.0), linear(28, 7)
        self.skip = linear(16, 7)
        self.a, self.b, self.c = (snn.Leaky(beta=0.8) for _ in range(3))
        self.records, self.order = records, order

    def forward(self, x: Tensor) -> Any:
        a, b, c = self.a.init_leaky(), self.b.init_leaky(), self.c.init_leaky()
        recorded, hidden = [], []
        for step in x:
            s, a = self.a(self.first(step), a)
            z, b = self.b(self.second(s), b)
            both = (s, z)
            y, c = self.c(self.third(torch.cat([both[k] for k in self.order], dim=1)) + self.skip(s), c)
            recorded.append(y)
            hidden.append(s)
        return (torch.stack(recorded), torch.stack(hidden)) if self.records else torch.stack(recorded)


@pytest.mark.parametrize("records", [False, True])  # then one of the two is read by forward, and the other is not
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_spikes_of_two_layers(records: bool, order: tuple[int, int]) -> None:
    torch.manual_seed(0)
    network = Beside(records, order)
    converted, outputs = compare(network, spikes(11, 3, 19), spikes(4, 3, 19))
    assert 0.02 < float(outputs[0].mean()) < 0.9
    assert len(converted._engine.built.model.network.incoming("c")) == 2


def test_a_sum_of_spikes_that_are_recorded_in_part() -> None:
    class Sum(Beside):
        def forward(self, x: Tensor) -> Any:
            a, b, c = self.a.init_leaky(), self.b.init_leaky(), self.c.init_leaky()
            recorded, hidden = [], []
            for step in x:
                s, a = self.a(self.first(step), a)
                z, b = self.b(self.second(s), b)
                y, c = self.c(self.skip(s + z), c)
                recorded.append(y)
                hidden.append(s)
            return torch.stack(recorded), torch.stack(hidden)

    torch.manual_seed(0)
    network = Sum()
    network.second = linear(16, 16, 5.0)
    compare(network, spikes(11, 3, 19))


@pytest.mark.parametrize("flat", [False, True])
def test_maps_of_two_layers(flat: bool) -> None:
    """Channels in front of a convolution; and in front of a Linear, in whose columns each layer has a part."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = convolution(1, 4, padding=1), convolution(4, 3, padding=1)
            self.third = linear(7 * 5 * 6, 6) if flat else convolution(7, 2, 8.0, padding=1)
            self.a, self.b, self.c = (snn.Leaky(beta=0.6) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            a, b, c = self.a.init_leaky(), self.b.init_leaky(), self.c.init_leaky()
            recorded = []
            for step in x:
                s, a = self.a(self.first(step), a)
                z, b = self.b(self.second(s), b)
                both = torch.cat((z, s), 1)
                y, c = self.c(self.third(both.flatten(1) if flat else both), c)
                recorded.append(y)
            return torch.stack(recorded)

    torch.manual_seed(0)
    _, (fired,) = compare(Net(), spikes(7, 3, 1, 5, 6))
    assert 0.02 < float(fired.mean()) < 0.9


def test_spikes_beside_other_numbers_are_refused() -> None:
    class Own(Beside):
        def forward(self, x: Tensor) -> Tensor:
            a, s, recorded = self.a.init_leaky(), torch.zeros(x.shape[1], 16), []
            for step in x:
                s, a = self.a(self.first(torch.cat([step, s], 1)), a)
                recorded.append(s)
            return torch.stack(recorded)

    network = Own()
    network.first = linear(35, 16)
    with pytest.raises(
        ss.errors.DescriptionError,
        match=r"first \(Linear\) at .*made by cat at test_scripts.py:\d+ of spikes and other numbers.*its own Linear, and add",
    ):
        ss.convert(network, spikes(4, 3, 19))


def test_the_cure_for_a_product_is_another_weight() -> None:
    class Scaled(Beside):
        def forward(self, x: Tensor) -> Tensor:
            a, b = self.a.init_leaky(), self.b.init_leaky()
            for step in x:
                s, a = self.a(self.first(step), a)
                s, b = self.b(10 * self.second(s), b)
            return s

    with pytest.raises(ss.errors.DescriptionError, match=r"b \(Leaky\).*made by \w*mul\w* at .*multiply the weights"):
        ss.convert(Scaled(), spikes(4, 3, 19))


# ---- dropout in eval mode -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_function", [False, True])
def test_dropout_in_eval_mode(as_function: bool) -> None:
    class Net(Beside):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.4)

        def forward(self, x: Tensor) -> Tensor:
            a, b, recorded = self.a.init_leaky(), self.b.init_leaky(), []
            for step in x:
                s, a = self.a(self.first(step), a)
                s = functional.dropout(s, 0.4, self.training) if as_function else self.drop(s)
                s, b = self.b(self.second(s), b)
                recorded.append(s)
            return torch.stack(recorded)

    torch.manual_seed(0)
    network = Net()
    with pytest.raises(ss.errors.DescriptionError, match="dropout"):
        ss.convert(network, spikes(4, 3, 19))
    network.eval()
    converted, (fired,) = compare(network, spikes(9, 3, 19))
    assert float(fired.mean()) > 0.02
    converted.train()
    with pytest.raises(ss.errors.DescriptionError, match="converted in eval mode.*call eval.., or remove the dropouts"):
        converted(spikes(9, 3, 19))
    assert converted.eval()(spikes(9, 3, 19)).shape == fired.shape


# ---- steps and samples in one axis --------------------------------------------------------------------------------------


def test_rows_of_steps_and_samples() -> None:
    """A part of such an example may be one step, which looks like a call for each step."""
    layers = pytest.importorskip("sinabs.layers", reason="needs sinabs")
    from sinabs.activation import SingleSpike

    def neurons() -> Any:
        return layers.IAFSqueeze(batch_size=4, spike_fn=SingleSpike)

    torch.manual_seed(0)
    network = nn.Sequential(
        convolution(2, 6),
        neurons(),
        nn.AvgPool2d(2),
        convolution(6, 5),
        neurons(),
        nn.Flatten(),
        linear(45, 6),
        neurons(),
    )

    def reset() -> None:
        for module in network.modules():
            if isinstance(module, layers.StatefulLayer):
                module.reset_states()

    reset()
    _, (fired,) = compare(network, spikes(4 * 7, 2, 12, 12), reset=reset)
    assert float(fired.mean()) > 0.02
    reset()
    with pytest.raises(ss.errors.DescriptionError, match=re.escape("the example has 1 step; allowed: 2 or more")):
        ss.convert(network, spikes(4, 2, 12, 12))
