"""NeuroBench's harness measures our models as it measures the same network of snnTorch, and as `count_operations` does."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sparsesnn as ss

snn = pytest.importorskip("snntorch", reason="needs snnTorch")
pytest.importorskip("neurobench", reason="needs NeuroBench: pip install 'sparsesnn[neurobench]'")

from neurobench.benchmarks import Benchmark  # noqa: E402
from neurobench.metrics.static import ConnectionSparsity, Footprint, ParameterCount  # noqa: E402
from neurobench.metrics.workload import (  # noqa: E402
    ActivationSparsity,
    ClassificationAccuracy,
    MembraneUpdates,
    NeuronOperations,
    SynapticOperations,
)
from neurobench.models import SNNTorchModel  # noqa: E402
from neurobench.processors.postprocessors import ChooseMaxCount  # noqa: E402

from sparsesnn.neurobench import NeuroBenchModel  # noqa: E402

T, B, N_IN, N_HIDDEN, N_OUT = 11, 7, 13, 9, 4
STATIC = [Footprint, ParameterCount, ConnectionSparsity]
WORKLOAD = [ClassificationAccuracy, ActivationSparsity, SynapticOperations]
MEMBRANES = [MembraneUpdates, NeuronOperations]


@pytest.fixture(autouse=True)
def warnings_of_others() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def loader(dense: Tensor, batch: int = 3) -> DataLoader[Any]:
    """Batches [B, T, …] of all samples, the last one smaller."""
    labels = torch.arange(len(dense)) % N_OUT
    return DataLoader(TensorDataset(dense, labels), batch_size=batch)


def drawn(*shape: int, share: float = 0.3) -> Tensor:
    return (torch.rand(shape, generator=torch.Generator().manual_seed(1)) < share).float()


def measured(model: Any, dense: Tensor, workload: list[Any]) -> dict[str, Any]:
    found: dict[str, Any] = Benchmark(model, loader(dense), [], [ChooseMaxCount()], [STATIC, workload]).run(quiet=True)
    return found


class Recurrent(nn.Module):
    """input → recurrent hidden layer → spiking output, in snnTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(N_IN, N_HIDDEN, bias=False)
        self.hidden = snn.RLeaky(beta=0.9, linear_features=N_HIDDEN, init_hidden=True)
        self.second = nn.Linear(N_HIDDEN, N_OUT, bias=False)
        self.output = snn.Leaky(beta=0.9, init_hidden=True, output=True)

    def forward(self, x: Tensor) -> Any:
        return self.output(self.second(self.hidden(self.first(x))))


def same_networks() -> tuple[nn.Module, ss.Model]:
    """A network of snnTorch and ours with its weights, some of them 0."""
    theirs = Recurrent()
    ours = ss.Model(
        ss.Network.chain(ss.Input(N_IN), ss.LIF(N_HIDDEN, beta=0.9, recurrent=True), ss.LIF(N_OUT, beta=0.9))
    )
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        theirs.hidden.recurrent.bias.zero_()
        for linear, (layer, name) in {
            theirs.first: ("hidden", "input->hidden"),
            theirs.hidden.recurrent: ("hidden", "hidden->hidden"),
            theirs.second: ("output", "hidden->output"),
        }.items():
            # multiples of 1/8: sums in another order are the same
            weight = torch.randint(-4, 7, linear.weight.shape, generator=generator) / 8
            linear.weight.copy_(weight)
            ours.layers[layer].get_parameter(name).copy_(weight.T)
    return theirs, ours


@pytest.mark.parametrize("backend", ["cpu", "dense"])
def test_the_same_network_of_snntorch_has_the_same_numbers(backend: str) -> None:
    theirs, cpu = same_networks()
    ours = ss.Model(cpu.network, backend=backend)
    ours.load_state_dict(cpu.state_dict())
    dense = drawn(B, T, N_IN)
    expected = measured(SNNTorchModel(theirs), dense, [*WORKLOAD, *MEMBRANES[:1]])
    found = measured(NeuroBenchModel(ours), dense, [*WORKLOAD, *MEMBRANES[:1]])
    operations = expected["SynapticOperations"]
    assert operations["Effective_ACs"] > 100
    assert operations["Effective_MACs"] == 0
    assert 0.2 < expected["ActivationSparsity"] < 0.98
    for name in ("ClassificationAccuracy", "SynapticOperations", "ConnectionSparsity", "MembraneUpdates"):
        assert found[name] == expected[name], name
    assert found["ActivationSparsity"] == pytest.approx(expected["ActivationSparsity"], rel=1e-12)
    # ours has no bias of the recurrent layer; snnTorch's neurons hold more buffers
    assert found["ParameterCount"] == expected["ParameterCount"] - N_HIDDEN
    assert found["Footprint"] == sum(4 * x.numel() for x in (*ours.parameters(), *ours.buffers()))


def test_operations_of_neurons_are_those_of_the_same_model_of_snntorch() -> None:
    theirs = nn.Sequential(nn.Linear(N_IN, N_OUT, bias=False), snn.Leaky(beta=0.9, init_hidden=True, output=True))
    ours = ss.Model(ss.Network.chain(ss.Input(N_IN), ss.LIF(N_OUT, beta=0.9)))
    with torch.no_grad():
        weight = torch.randint(-4, 7, (N_OUT, N_IN), generator=torch.Generator().manual_seed(0)) / 8
        theirs[0].weight.copy_(weight)
        ours.layers["output"].get_parameter("input->output").copy_(weight.T)
    dense = drawn(B, T, N_IN)
    expected = measured(SNNTorchModel(theirs), dense, MEMBRANES)
    assert expected["NeuronOperations"]["Effective Neuron Ops"] > 0
    assert measured(NeuroBenchModel(ours), dense, MEMBRANES) | STATIC_LEFT_OUT == expected | STATIC_LEFT_OUT


STATIC_LEFT_OUT = {metric.__name__: None for metric in STATIC}

MAPS = ss.Network.chain(
    ss.Input(shape=(8, 8, 2), channels_first=True),
    ss.Conv2d(3, kernel=3, stride=2, padding=1),
    ss.LIF(),
    ss.Pool("sum", 2),
    ss.Conv2d(4, kernel=2),
    ss.LIF(),
    ss.LI(N_OUT),
)
DELAYED = ss.Network(
    {"input": ss.Input(N_IN), "hidden": ss.CubaLIF(6, recurrent=True), "output": ss.LI(N_OUT)},
    (
        ss.Connection("input", "hidden", 2, ss.Sparse(0.4)),
        ss.Connection("input", "hidden", axonal=ss.Delays(5, given=tuple(m % 6 for m in range(N_IN)))),
        ss.Connection("hidden", "output", 20),
    ),
)


@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("network", [MAPS, DELAYED])
def test_the_harness_counts_as_we_do(network: ss.Network, graded: bool) -> None:
    model = ss.Model(network)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(5)
            p[torch.rand(p.shape, generator=torch.Generator().manual_seed(2)) < 0.2] = 0
    before = copy.deepcopy(model.state_dict())
    shape = (2, 8, 8) if network is MAPS else (N_IN,)
    dense = drawn(B, T, *shape) * (2.5 if graded else 1)
    wrapped = NeuroBenchModel(model)
    found = Benchmark(
        wrapped, loader(dense), [], [lambda x: x.amax(1).argmax(1)], [STATIC, [ActivationSparsity, SynapticOperations]]
    ).run(quiet=True)
    spikes = ss.SpikeBatch.from_dense(dense.flatten(2), batch_first=True, graded=graded)
    expected = ss.count_operations(model, [spikes])
    assert found["SynapticOperations"] == expected["SynapticOperations"]
    assert found["ActivationSparsity"] == pytest.approx(expected["ActivationSparsity"], rel=1e-12)
    assert (found["Footprint"], found["ParameterCount"]) == (expected["Footprint"], expected["ParameterCount"])
    if network is DELAYED:  # of maps, NeuroBench counts the weights that places share once
        assert found["ConnectionSparsity"] == round(expected["ConnectionSparsity"], 4)
    assert (found["SynapticOperations"]["Effective_MACs"] > 0) is graded
    assert model.training
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


def test_a_batch_that_does_not_fit_is_named() -> None:
    wrapped = NeuroBenchModel(ss.Model(ss.parse_net("5-3")))
    with pytest.raises(ss.errors.ShapeError, match=r"\[2, 9, 4\].*5 inputs.*\[B, T, 5\]"):
        wrapped(torch.zeros(2, 9, 4))
    assert wrapped(ss.SpikeBatch.from_dense(torch.zeros(9, 2, 5))).shape == (2, 9, 3)
