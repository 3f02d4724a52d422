"""Warnings in a user's own training loop; none in ordinary use."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from sparsesnn import LI, LIF, Connection, Input, Model, Network, Output, SpikeBatch
from sparsesnn.engines import Training, make_engine
from sparsesnn.engines.watch import FIRST_PASSES, SILENT_STEPS, Watch
from sparsesnn.host.comm import Grid
from sparsesnn.loss import CrossEntropy

N = 9


def network(**hidden: Any) -> Network:
    return Network(
        {"input": Input(N), "loud": LIF(7, threshold=0.01), "still": LIF(5, **hidden), "out": LI(3)},
        [
            Connection("input", "loud"),
            Connection("input", "still"),
            Connection("loud", "out"),
            Connection("still", "out"),
        ],
    )


def spikes_of(n_steps: int = 6, n_samples: int = 4, share: float = 0.5) -> SpikeBatch:
    generator = torch.Generator().manual_seed(n_steps)
    return SpikeBatch.from_dense((torch.rand(n_steps, n_samples, N, generator=generator) < share).float())


def potentials(output: Output) -> Tensor:
    assert output.potentials is not None
    return output.potentials.square().mean()


def told(run: Callable[[], object], times: int = 1) -> list[str]:
    """The warnings of this number of calls."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(times):
            run()
    assert {warning.filename for warning in caught} <= {__file__}
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("backend", ["cpu", "dense"])
@pytest.mark.parametrize("loss", [potentials, CrossEntropy(torch.zeros(4, dtype=torch.int64), "max", 3)])
def test_a_silent_population_is_reported_once(backend: str, loss: Callable[[Output], Tensor]) -> None:
    model = Model(network(threshold=1e3), backend=backend)
    spikes = spikes_of()
    assert told(lambda: model.learn(spikes, loss), SILENT_STEPS - 1) == []
    (message,) = told(lambda: model.learn(spikes, loss), 3 * SILENT_STEPS)
    for fact in ("'still'", str(SILENT_STEPS), "threshold (now 1000)", "init_activity", "grad_threshold (now"):
        assert fact in message
    assert told(lambda: copy.deepcopy(model).learn(spikes, loss), 2) == []


def test_a_population_that_falls_silent_later_is_reported() -> None:
    model, loss = Model(network(threshold=0.01)), potentials
    assert told(lambda: model.learn(spikes_of(), loss), 3 * SILENT_STEPS) == []
    with torch.no_grad():
        model.layers["still"].threshold.fill_(1e3)  # type: ignore[union-attr, operator]
    (message,) = told(lambda: model.learn(spikes_of(), loss), 2 * SILENT_STEPS)
    assert "'still'" in message


def test_a_spike_now_and_then_is_no_silence() -> None:
    model = Model(network(threshold=0.01))
    nothing = SpikeBatch.from_dense(torch.zeros(6, 4, N))
    for k in range(4 * SILENT_STEPS):
        model.learn(spikes_of() if k % (SILENT_STEPS - 1) == 0 else nothing, potentials)


@pytest.mark.parametrize("hidden", [{"activity": "fixed", "capacity": 2, "threshold": 1e3}])
def test_full_lists_are_no_silence(hidden: dict[str, Any]) -> None:
    model = Model(network(**hidden))
    for _ in range(2 * SILENT_STEPS):
        model.learn(spikes_of(), potentials)


def test_inputs_and_readouts_are_no_populations_that_fire() -> None:
    model = Model(Network.chain(Input(N), LI(3)))
    nothing = SpikeBatch.from_dense(torch.zeros(2, 20, N))
    for _ in range(2 * SILENT_STEPS):
        model.learn(nothing, potentials)


def test_while_all_fire_few_steps_are_counted() -> None:
    counted = []
    watch = Watch(network())
    for k in range(4 * SILENT_STEPS):
        watch.learned(lambda k=k: counted.append(k) or {"loud": 0.1, "still": 0.2})  # type: ignore[misc, func-returns-value]
    assert counted == [0, 20, 40, 60]


@pytest.mark.parametrize("backend", ["cpu", "dense"])
@pytest.mark.parametrize("way", ["learn", "forward", "loss"])
def test_swapped_axes_are_reported_once(backend: str, way: str) -> None:
    model = Model(Network.chain(Input(N), LIF(7), LI(3)), backend=backend)
    spikes = spikes_of(4, 100, share=0.01)
    run: dict[str, Callable[[], object]] = {
        "learn": lambda: model.learn(spikes, CrossEntropy(torch.zeros(100, dtype=torch.int64), "max", 3)),
        "loss": lambda: model.learn(spikes, potentials),
        "forward": lambda: model(spikes),
    }
    assert told(run[way], FIRST_PASSES - 1) == []
    (message,) = told(run[way], 5)
    for fact in ("T=4", "B=100", "batch_first=True"):
        assert fact in message


def test_other_inputs_have_their_axes_in_place() -> None:
    """Networks that fire, evaluation, chunks, more steps than a quarter of the samples, and silence after the first passes."""
    busy, quiet = (Model(Network.chain(Input(N), LIF(7, threshold=x), LI(3))) for x in (0.1, 1e3))
    for _ in range(2 * FIRST_PASSES):
        busy(spikes_of(4, 64))
        quiet(spikes_of(25, 100))
    many = spikes_of(4, 100)
    for _ in range(2 * FIRST_PASSES):
        quiet(many)
    quiet = Model(quiet.network)
    with torch.no_grad():
        for _ in range(2 * FIRST_PASSES):
            quiet(many)
    quiet.eval()
    live = quiet.live()
    for _ in range(2 * FIRST_PASSES):
        quiet(many)
        live(many)
    quiet.train()
    state = quiet(spikes_of(30, 100)).state
    for _ in range(2 * FIRST_PASSES):
        state = quiet(many, state).state


def test_processes_that_share_no_gradients_are_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(network(threshold=0.01))
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 1)
    assert told(lambda: model.learn(spikes_of(), potentials)) == []
    model = Model(network(threshold=0.01))
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 3)
    (message,) = told(lambda: model.learn(spikes_of(), potentials), 3 * SILENT_STEPS)
    for fact in ("3 processes", "DistributedDataParallel", "loss(ddp(spikes)).backward()"):
        assert fact in message
    of_grid = Model(network(threshold=0.01), grid=Grid.alone())
    assert told(lambda: of_grid.learn(spikes_of(), potentials)) == []


@pytest.mark.parametrize("name", ["cpu", "dense"])
def test_engines_leave_it_to_the_trainer(name: str) -> None:
    assert make_engine(name, network(), Training(3, "max"), Grid.alone()).model.watch is None  # type: ignore[attr-defined]
