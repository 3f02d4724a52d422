"""PyTorch's defaults of dtype and device change nothing: all numbers are float32, made on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import sparsesnn as ss
from sparsesnn import encode, integers
from sparsesnn.init import init_activity
from sparsesnn.loss import activity_regularizer, cross_entropy
from sparsesnn.onnx import StepModule


@pytest.fixture(params=["float64", "float16", "meta"])
def defaults(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    """Sets them when it is called."""

    def change() -> None:
        if request.param == "meta":
            torch.set_default_device("meta")
        else:
            torch.set_default_dtype(getattr(torch, request.param))

    yield change
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)


NETWORKS = {
    "learnt": ss.parse_net("12-7r-3", bias=True, learn_beta=True, learn_threshold=True),
    "capacity": ss.Network.chain(ss.Input(12), ss.AdLIF(6, capacity=4), ss.LI(3)),
    "delays": ss.Network(
        {"input": ss.Input(12), "hidden": ss.LIF(6), "out": ss.LI(3)},
        (
            ss.Connection("input", "hidden", synapses=ss.Sparse(0.4)),
            ss.Connection("hidden", "hidden", axonal=ss.Delays(3, learn=True)),
            ss.Connection("hidden", "out", axonal=ss.Delays(2, learn=True)),
        ),
    ),
    "maps": ss.parse_net("2x9x8:3C3-4C2-4"),
    "pool": ss.Network.chain(ss.Input(shape=(4, 3, 1)), ss.Pool("average", 2), ss.LIF(), ss.LI(3)),
}
ENGINES = [("cpu", "auto"), *(("dense", mode) for mode in ("fused", "hoist", "step"))]


def all_numbers(network: ss.Network, backend: str, mode: str) -> list[Tensor]:
    """Of training, evaluation and its traces, live steps, an optimizer's step, and initial activities."""
    rng = np.random.default_rng(0)
    n = network.populations[network.inputs[0]].n
    spikes = ss.SpikeBatch.from_lists([[np.flatnonzero(rng.random(n) < 0.4) for _ in range(9)] for _ in range(4)], n)
    labels = torch.from_numpy(np.array([0, 1, 2, 1]))
    model = ss.Model(network, backend=backend, dense_mode=mode)
    n_classes = network.populations[network.output].n

    def loss(output: ss.output.Output) -> Tensor:
        return cross_entropy(output, labels, "softmax_sum", n_classes) + activity_regularizer(output, upper=0.01)

    value, output = model.learn(spikes, loss)
    found = [value, output.potentials.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]
    kind = ss.Adam if backend == "cpu" else torch.optim.SGD
    kind(model.parameters(), lr=0.01).step()
    traces = model.eval()(spikes, record=list(model.layers)).traces
    found += [p.detach() for p in model.parameters()]
    found += [trace.v for trace in traces.values()] + [model.live()(spikes).potentials]
    init_activity(model, [spikes], 0.2, tolerance=0.9)
    return [*found, model(spikes, model(spikes).state).potentials.detach()]


def check_equal(found: list[Tensor], wanted: list[Tensor]) -> None:
    for a, b in zip(found, wanted, strict=True):
        assert (a.dtype, a.device) == (b.dtype, b.device)
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("network", "backend", "mode"),
    [(name, *engine) for name in NETWORKS for engine in ENGINES if name != "capacity" or engine[0] == "cpu"],
)
@pytest.mark.filterwarnings("ignore:init_activity")
def test_models_have_the_same_bits(network: str, backend: str, mode: str, defaults: Callable[[], None]) -> None:
    wanted = all_numbers(NETWORKS[network], backend, mode)
    defaults()
    check_equal(all_numbers(NETWORKS[network], backend, mode), wanted)


def test_files_layers_and_encodings_have_the_same_bits(defaults: Callable[[], None], tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((3, 5))

    def numbers() -> list[Tensor]:
        model = ss.Model(NETWORKS["delays"])
        integers.save(model, tmp_path / "net", "int8")
        step = StepModule(model)
        generator = torch.Generator("cpu").manual_seed(1)
        spikes = torch.from_numpy(np.ones((2, 12), np.float32))
        return [
            *(p.detach() for p in integers.load(tmp_path / "net").parameters()),
            *step(spikes, *step.first_states(2)),
            encode.rate(values, 4, generator=generator).to_dense(),
            encode.latency(values, 4).to_dense(),
            ss.Layer(ss.LIF(4, bias=True), 3, generator=generator).weights[0].detach(),
        ]

    wanted = numbers()
    defaults()
    check_equal(numbers(), wanted)
