"""Modules without an equivalent here are refused with the module, the line and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from comparing import linear, spikes
from torch import Tensor, nn

import sparsesnn as ss
from sparsesnn.conversion.surrogates import match_surrogate

snn = pytest.importorskip("snntorch", reason="needs snntorch, in the extra 'test'")
from snntorch import surrogate  # noqa: E402

Change = Callable[["Two", Tensor, Tensor], tuple[Tensor, Tensor]]


class Two(nn.Module):
    """Two layers; `change` gets spikes and potential of the first in each step."""

    def __init__(
        self, change: Change = lambda net, s, v: (s, v), between: nn.Module | None = None, **options: Any
    ) -> None:
        super().__init__()
        self.first, self.last = linear(31, 23), linear(23, 7)
        self.hidden, self.output = snn.Leaky(**{"beta": 0.9, **options}), snn.Leaky(beta=0.8)
        self.between = between or nn.Identity()
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        hidden, output, recorded = self.hidden.init_leaky(), self.output.init_leaky(), []
        for step in x:
            s, hidden = self.hidden(self.first(step), hidden)
            s, hidden = self.change(self, s, hidden)
            y, output = self.output(self.last(self.between(s)), output)
            recorded.append(y)
        return torch.stack(recorded)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (
            lambda: Two(between=nn.Dropout(0.2)),
            r"last \(Linear\) at test_refusals.py:\d+.*between \(Dropout\).*allowed.*remove it",
        ),
        (lambda: Two(between=nn.BatchNorm1d(23)), r"last \(Linear\).*between \(BatchNorm1d\)"),
        (lambda: Two(lambda net, s, v: (s * 2, v)), r"last \(Linear\).*mul at test_refusals.py:\d+"),
        (lambda: Two(lambda net, s, v: (s, v * 0.5)), r"hidden \(Leaky\).*its state in step 1.*mul at test_refusals"),
        (lambda: Two(lambda net, s, v: (s, torch.zeros_like(v))), r"hidden \(Leaky\).*its state in step 1"),
        (lambda: Two(lambda net, s, v: (v, v)), r"last \(Linear\).*reads the potential of hidden.*allowed: its spikes"),
        (lambda: Two(lambda net, s, v: (s.roll(1, 0), v)), r"last \(Linear\).*roll at test_refusals"),
        (lambda: Two(lambda net, s, v: (s.detach(), v)), r"last \(Linear\).*detach at test_refusals"),
        (
            lambda: Two(reset_delay=False),
            r"hidden \(Leaky\): reset_delay is False; allowed: True; reset at the next step",
        ),
        (lambda: Two(graded_spikes_factor=2.0), r"graded_spikes_factor is 2\.0; allowed: 1"),
        (lambda: Two(inhibition=True), r"hidden \(Leaky\): state_quant or inhibition"),
        (lambda: Two(spike_grad=surrogate.triangular()), r"hidden \(Leaky\): its surrogate has the derivative"),
        (lambda: Two(spike_grad=surrogate.SFS(slope=25, B=1)), r"hidden \(Leaky\): its surrogate has the derivative"),
        (lambda: nn.Sequential(nn.Linear(3, 4)), r"Sequential has no spiking neurons of snnTorch.*but Linear"),
        (
            lambda: snn.Synaptic(alpha=0.5, beta=0.5, reset_mechanism="zero"),
            r"reset_mechanism of Synaptic is 'zero'.*allowed: 'subtract'",
        ),
        (lambda: snn.Alpha(alpha=0.8, beta=0.5), r"reset_mechanism of Alpha is 'zero'"),
        (lambda: snn.SLSTM(3, 4), r"the neuron is SLSTM; allowed: Leaky"),
    ],
)
@pytest.mark.filterwarnings("ignore:Inhibition is an unstable feature")
def test_by_module_and_line(network: Callable[[], nn.Module], message: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(ss.errors.DescriptionError, match=message):
        ss.convert(network(), spikes(4, 3, 31))


def test_pools_of_currents() -> None:
    class Maps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.pool, self.second = nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3)
            self.hidden, self.output = snn.Leaky(beta=0.5), snn.Leaky(beta=0.5)

        def forward(self, x: Tensor) -> Tensor:
            a, b = self.hidden.init_leaky(), self.output.init_leaky()
            for _ in range(4):
                s, a = self.hidden(self.pool(self.first(x)), a)  # in front of the first neurons any layer may stand
                y, b = self.output(self.pool(self.second(s)), b)
            return y

    with pytest.raises(
        ss.errors.DescriptionError,
        match=r"pool \(MaxPool2d\).*pools the currents of second.*put the pool after the neurons",
    ):
        ss.convert(Maps(), torch.rand(3, 1, 16, 16))


def test_a_whole_batch_as_example_is_traced_in_part() -> None:
    network, calls = Two(), []
    network.first.register_forward_hook(lambda module, given, made: calls.append(made.shape))
    ss.convert(network, spikes(50, 20, 31))
    assert calls == [(3, 23)] * 4


def test_a_recurrent_bias_in_some_steps() -> None:
    class Late(Two):
        def forward(self, x: Tensor) -> Tensor:
            hidden, s, recorded = self.hidden.init_leaky(), None, []
            for step in x:
                s, hidden = self.hidden(self.first(step) + (0 if s is None else self.last(s)), hidden)
                recorded.append(s)
            return torch.stack(recorded)

    network = Late()
    network.last = linear(23, 23)
    with pytest.raises(
        ss.errors.DescriptionError, match=r"last \(Linear\).*has a bias, but is not called in every step"
    ):
        ss.convert(network, spikes(4, 3, 31))
    network.last = linear(23, 23, bias=False)
    x = spikes(9, 3, 31)
    assert torch.equal(ss.convert(network, x)(x), network(x))


def test_the_example_and_options() -> None:
    network, x = Two(), spikes(4, 3, 31)
    with pytest.raises(
        ss.errors.DescriptionError, match="record has 'first'; allowed: the network's neurons, hidden, output"
    ):
        ss.convert(network, x, record=["first"])
    with pytest.raises(ss.errors.DescriptionError, match="module is Tensor; allowed: a torch.nn.Module"):
        ss.convert(x, network)
    with pytest.raises(ss.errors.DescriptionError, match="is converted already"):
        ss.convert(ss.convert(network, x), x)
    with pytest.raises(
        ss.errors.DescriptionError, match=r"first \(Linear\).*its weight is torch.float64.*allowed: float32"
    ):
        ss.convert(network.double(), x.double())


def test_a_call_with_another_input() -> None:
    converted = ss.convert(Two(), spikes(4, 3, 31))
    with pytest.raises(ss.errors.ShapeError, match="input has 20 neurons"):
        converted(spikes(4, 3, 20))
    assert converted(spikes(9, 2, 31)).shape == (9, 2, 7)


def test_spikes_with_values() -> None:
    torch.manual_seed(0)
    network, x = Two(), spikes(9, 2, 31) * torch.rand(9, 2, 31)
    assert torch.equal(ss.convert(network, spikes(4, 3, 31))(x), network(x))


def test_a_failing_forward_leaves_the_network_as_it_was() -> None:
    class Fails(Two):
        def forward(self, x: Tensor) -> Tensor:
            super().forward(x)
            raise ZeroDivisionError

    network = Fails()
    with pytest.raises(ZeroDivisionError):
        ss.convert(network, spikes(4, 3, 31))
    assert all("forward" not in vars(m) for m in network.modules())


@pytest.mark.parametrize("kind", ss.surrogate.KINDS)
@pytest.mark.parametrize("slope", [0.7, 2.0, 25.0, 100.0])
@pytest.mark.parametrize("height", [1.0, 1.7])
def test_surrogates_are_found_by_their_values(kind: str, slope: float, height: float) -> None:
    """In potentials times c the derivative is the same: dS/dv = c·σ'(c·x)."""
    given = ss.Surrogate(kind, 1.0 if kind == "straight_through" else slope)
    x = torch.linspace(-1.5, 1.5, 301)
    if height != 1 and kind in ("sigmoid", "atan", "boxcar"):
        with pytest.raises(ss.errors.DescriptionError, match="of no"):
            match_surrogate(lambda x: height * given.derivative(x), "layer")
        return
    found, c = match_surrogate(lambda x: height * given.derivative(x), "layer")
    away = (x.abs() - given.half_width).abs() > 1e-3  # of the edge of a box
    torch.testing.assert_close(
        c * found.derivative(c * x)[away], height * given.derivative(x)[away], rtol=1e-3, atol=1e-5
    )
    assert found.kind == kind
