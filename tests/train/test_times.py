from __future__ import annotations

import math

import pytest

import sparsesnn as ss
from sparsesnn.datasets import EventSet
from sparsesnn.train.times import Times


def events(dt_us: float | None) -> EventSet:
    made = EventSet.from_events([([1.0, 2.0], [0, 1])], [0], n_neurons=3, n_steps=4, dt_us=dt_us or 1.0)
    return made if dt_us else EventSet(made.ids, made.n_spikes, made.labels, 3, 1)


def test_time_constants_of_a_network() -> None:
    network = ss.Network.chain(
        ss.Input(3),
        ss.LIF.from_ms(2, tau=(300, 20.0), dt=2.5),
        ss.CubaLIF.from_ms(2, tau=20, tau_syn=5, dt=2.5),
        ss.LI(1, beta=1.0),
    )
    data = events(2500.0)
    assert data.dt_us == 2500.0
    times = Times.of(network, data)
    assert times.dt_ms == 2.5
    assert times.tau_ms == {
        "hidden1": {"beta": pytest.approx([20, 300])},
        "hidden2": {"beta": pytest.approx([20, 20]), "alpha": pytest.approx([5, 5])},
        "output": {"beta": ["inf", "inf"]},
    }
    assert str(times) == (
        "2.5 ms per step; time constants: hidden1 20 to 300 ms, hidden2 20 ms (synapses 5 ms), output inf ms"
    )


def test_steps_without_a_width() -> None:
    data = events(None)
    assert data.dt_us is None
    assert Times.of(ss.parse_net("3-2-1", beta=math.exp(-1)), data) == Times(None, {})
