"""The fakes of PopART, PopTorch and PopDist against public facts about the real ones, one by one.

Sources: PopART's and PopTorch's public repositories at 3.4, the PopTorch and PopRun user guides. A fake that is kinder
than the real thing would pass programs that fail on an IPU.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("fake_sdk")


# ---- PopART: rules for an op ---------------------------------------------------------------------------------------

X = torch.arange(6.0).reshape(2, 3)


def faulty(fault: str, trains: bool = True) -> Any:
    import fake_popart

    fake_popart.machine.update(tiles=4, checks="always")
    return fake_popart.Op("faulty", "Copy", 1, {"fault": fault}, [X], 2, trains)


def test_a_faultless_op_runs() -> None:
    op = faulty("none")
    assert torch.equal(op.forward([X])[0], X)
    (d,) = op.backward([2 * X, torch.ones(1)], [X])
    assert torch.equal(d, 2 * X)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        # `setup` is the inference of shapes, and `grow` must agree with it
        ("no info", r"setup left out the info of output 1"),
        ("shape", r"output 0 is a tensor of 6 elements of float; its info says FLOAT\[1\]"),
        ("no output", r"grow sets no output 1"),
        ("output twice", r"output 0 is set twice"),
        # PopART's builder calls a separate function, before there is an op
        ("inferred shape", r"output 0 is FLOAT\[2, 3\] by setup, but FLOAT\[1\] by shape inference"),
        ("inferred outputs", r"shape inference gives 3 outputs; it has 2"),
        # attributes key outlining and the cache of executables
        ("not outlined", r"does not append attribute fault: two ops that differ in it would share code"),
        ("clone that differs", r"its clone differs"),
        # gradInputInfo and gradOutToNonGradIn
        ("input twice", r"gradInputInfo names input 0 twice"),
        ("input left out", r"gradInputInfo leaves out input 1"),
        ("gradient of another shape", r"output 0 is FLOAT\[1\], but input 0 whose gradient it is is FLOAT\[2, 3\]"),
        # every variable and constant has a tile
        ("unmapped", r"variable 'copy': elements from 0 of 6 are mapped to no tile"),
    ],
)
def test_an_op_with_a_fault_is_refused(fault: str, message: str) -> None:
    import fake_popart

    with pytest.raises(fake_popart.PopartError, match=message):
        faulty(fault)


def test_an_op_without_shape_inference_is_refused() -> None:
    import fake_popart

    with pytest.raises(fake_popart.PopartError, match=r"faulty::Unshaped:1 has no shape inference function"):
        fake_popart.Op("faulty", "Unshaped", 1, {"fault": "none"}, [X], 2, False)


def test_inputs_are_not_written_in_place() -> None:
    import fake_popart

    with pytest.raises(fake_popart.PopartError, match=r"its forward pass overwrites input 0"):
        faulty("in place", trains=False).forward([X])


def test_gradients_exist_on_the_path_to_the_loss_alone() -> None:
    import fake_popart

    op = faulty("gradient of a count")
    op.forward([X])
    with pytest.raises(
        fake_popart.PopartError, match=r"wants the gradient of output 1, which is not on the path to the"
    ):
        op.backward([X, None], [X])


# ---- PopTorch: custom_op -------------------------------------------------------------------------------------------


def call(**changes: Any) -> Any:
    import poptorch

    told = {"attributes": {"fault": "none"}, "example_outputs": [X, torch.zeros(1)], **changes}
    return poptorch.custom_op([X], "Copy", "faulty", 1, **told)


def running(**changes: Any) -> Any:
    from poptorch import executor

    with executor._on_ipu(training=True):
        return call(**changes)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({1: 2}, "All attribute keys must be strings"),
        ({"a": None}, "Attribute values must be floats, ints, strings or a list/tuple"),
        ({"a": {"b": 1}}, "Attribute values must be floats, ints, strings or a list/tuple"),
        ({"a": [1, 2.0]}, "The types in a list/tuple attribute must all be the same"),
        ({"a": ["x", 2]}, "The types in a list/tuple attribute must all be the same"),
        ({"a": "θ"}, "θ contains non-ASCII characters"),
        ({"a": ["b", "θ"]}, "θ contains non-ASCII characters"),
        ({"θ": 1}, "θ contains non-ASCII characters"),
    ],
)
def test_attributes_are_checked_as_by_poptorch(attributes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(attributes=attributes)


def test_lists_of_attributes_are_not_empty() -> None:
    with pytest.raises(IndexError):
        call(attributes={"a": []})


def test_on_a_cpu_a_custom_op_puts_out_zeros() -> None:
    assert [x.abs().sum() for x in call()] == [0, 0]


def test_example_outputs_agree_with_setup() -> None:
    import fake_popart

    assert torch.equal(running()[0], X)
    with pytest.raises(fake_popart.PopartError, match=r"output 1 is torch.float32 \(1,\) by setup, but its example is"):
        running(example_outputs=[X, torch.zeros(2)])
    with pytest.raises(fake_popart.PopartError, match=r"a tensor is torch.int64; the fake supports float32 and int32"):
        running(example_outputs=[X, torch.zeros(1, dtype=torch.int64)])


def test_there_is_no_custom_op_for_inference() -> None:
    import poptorch

    assert not hasattr(poptorch, "inference_custom_op")


# ---- PopTorch: Options and DataLoader ------------------------------------------------------------------------------


def test_options_are_chained_known_typed_and_frozen_by_use() -> None:
    import poptorch

    options = poptorch.Options().deviceIterations(2).replicationFactor(3)
    options.Training.gradientAccumulation(4).accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
    assert options.n_micro_batches == 24
    with pytest.raises(AttributeError, match=r"Invalid option replicas, valid options are"):
        options.replicas = 2
    with pytest.raises(AttributeError, match=r"Invalid option useGpu"):
        options.useGpu(True)
    with pytest.raises(AssertionError, match=r"Unexpected type <class 'str'> for option device_iterations"):
        options.deviceIterations("2")
    with pytest.raises(ValueError, match=r"must be set to poptorch.ReductionType.Mean or poptorch.ReductionType.Sum"):
        options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.NoReduction)
    poptorch.DataLoader(options, torch.arange(48), batch_size=2)
    for change in (lambda: options.deviceIterations(1), lambda: options.Training.gradientAccumulation(1)):
        with pytest.raises(AttributeError, match=r"Can't modify frozen Options"):
            change()


def test_a_combined_batch_is_the_product() -> None:
    import poptorch

    options = poptorch.Options().deviceIterations(4).replicationFactor(2)
    options.Training.gradientAccumulation(3)
    loader = poptorch.DataLoader(options, torch.arange(100), batch_size=2)
    assert loader.combinedBatchSize == 48
    assert [len(batch) for batch in loader] == [48, 48]  # the rest is dropped


def test_processes_share_a_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    import poptorch

    found = []
    for rank in range(3):
        monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", str(rank))
        options = poptorch.Options()
        assert (options.Distributed.processId, options.Distributed.numProcesses) == (rank, 3)
        with pytest.raises(AssertionError, match=r"you must set poptorch.Options.randomSeed"):
            poptorch.DataLoader(options, torch.arange(20), batch_size=2, shuffle=True)
        options = poptorch.Options().randomSeed(7)
        loader = poptorch.DataLoader(options, torch.arange(20), batch_size=2, shuffle=True)
        found += [int(x) for batch in loader for x in batch]
    assert len(found) == len(set(found)) == 18  # three batches of two in each of three processes


# ---- PopTorch: models ----------------------------------------------------------------------------------------------


class Line(nn.Module):
    """(w·x)² and its mean, the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([2.0]))

    def forward(self, x: torch.Tensor) -> Any:
        import poptorch

        y = (self.w * x).square()
        return y, poptorch.identity_loss(y, reduction="mean")


def trained(batch: torch.Tensor, *, replicas: int = 1, accumulation: int = 1, iterations: int = 1, kind: str = "Mean",
            mode: str = "Default") -> Any:  # fmt: skip
    import poptorch

    options = poptorch.Options().replicationFactor(replicas).deviceIterations(iterations)
    options.outputMode(getattr(poptorch.OutputMode, mode))
    options.Training.gradientAccumulation(accumulation)
    options.Training.accumulationAndReplicationReductionType(getattr(poptorch.ReductionType, kind))
    line = Line()
    model = poptorch.trainingModel(line, options, poptorch.optim.SGD(line.parameters(), lr=0.01))
    return line, model(batch)


def test_gradients_are_averaged_or_summed_over_replicas_and_accumulation() -> None:
    batch = torch.arange(1.0, 9.0)
    line, _ = trained(batch)
    expected = 2 - 0.01 * 2 * 2 * float(batch.square().mean())
    assert line.w.item() == pytest.approx(expected)
    assert trained(batch, replicas=2, accumulation=2)[0].w.item() == pytest.approx(expected)
    summed = 2 - 4 * 0.01 * 2 * 2 * float(batch.square().mean())
    assert trained(batch, replicas=2, accumulation=2, kind="Sum")[0].w.item() == pytest.approx(summed)


def test_the_optimizer_steps_once_a_device_iteration() -> None:
    batch = torch.arange(1.0, 9.0)
    w = 2.0
    for half in (batch[:4], batch[4:]):
        w -= 0.01 * 2 * w * float(half.square().mean())
    assert trained(batch, iterations=2)[0].w.item() == pytest.approx(w)


def test_training_returns_the_last_micro_batch_of_each_replica_by_default() -> None:
    batch = torch.arange(1.0, 9.0)
    _, (y, loss) = trained(batch, replicas=2, accumulation=2)
    assert torch.equal(y, 4 * batch[4:].square())
    assert loss.shape == (2,)
    _, (y, loss) = trained(batch, replicas=2, accumulation=2, mode="All")
    assert torch.equal(y, 4 * batch.square())
    assert loss.shape == (4,)
    _, (y, _) = trained(batch, replicas=2, accumulation=2, mode="Sum")
    assert torch.equal(y, 4 * batch.reshape(4, 2).square().sum(0))


def test_models_are_static() -> None:
    import poptorch

    line = Line()
    model = poptorch.trainingModel(line, poptorch.Options().replicationFactor(2))
    model(torch.ones(4))
    with pytest.raises(RuntimeError, match=r"shapes are static"):
        model(torch.ones(6))
    with pytest.raises(RuntimeError, match=r"the batch dimension \(\(3,\)\) must be a multiple of .* = 2"):
        poptorch.trainingModel(line, poptorch.Options().replicationFactor(2))(torch.ones(3))

    class Curious(Line):
        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x if x.sum() > 0 else -x)

    with pytest.raises(RuntimeError, match=r"Tensor.__bool__ asks for a value while the model is traced"):
        poptorch.trainingModel(Curious())(torch.ones(2))


def test_a_loss_is_marked_and_is_one_number() -> None:
    import poptorch

    class Unmarked(Line):
        def forward(self, x: torch.Tensor) -> Any:
            return (self.w * x).mean()

    class Long(Line):
        def forward(self, x: torch.Tensor) -> Any:
            return poptorch.identity_loss(self.w * x, reduction="none")

    class Dictionary(Line):
        def forward(self, x: torch.Tensor) -> Any:
            return {"loss": poptorch.identity_loss(self.w * x, reduction="sum")}

    for model, message in (
        (Unmarked(), r"a model for training marks its loss"),
        (Long(), r"the loss has 2 elements; reduce it to one"),
        (Dictionary(), r"a model returns tensors, or tuples and lists of them; it returned a dict"),
    ):
        with pytest.raises(RuntimeError, match=message):
            poptorch.trainingModel(model)(torch.ones(2))
    with pytest.raises(AssertionError, match=r"Unsupported reduction type"):
        poptorch.identity_loss(X, reduction="median")


def test_it_knows_where_it_runs() -> None:
    import poptorch

    class Where(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with poptorch.Block("stage", ipu_id=1):
                return x + float(poptorch.isRunningOnIpu())

    assert float(Where()(torch.zeros(1))) == 0
    assert float(poptorch.inferenceModel(poptorch.BeginBlock(Where(), ipu_id=0))(torch.zeros(1))) == 1
    assert not poptorch.isRunningOnIpu()
    assert not poptorch.ipuHardwareIsAvailable()


# ---- PopDist -------------------------------------------------------------------------------------------------------


def test_popdist_reads_what_poprun_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    import popdist

    assert not popdist.isPopdistEnvSet()
    with pytest.raises(RuntimeError, match=r"the environment was not set by poprun"):
        popdist.init()
    for name, value in (
        *(("NUM_TOTAL_REPLICAS", "6"), ("NUM_LOCAL_REPLICAS", "2"), ("NUM_IPUS_PER_REPLICA", "1")),
        *(("REPLICA_INDEX_OFFSET", "4"), ("LOCAL_INSTANCE_INDEX", "0")),
    ):
        monkeypatch.setenv(f"POPDIST_{name}", value)
    popdist.init()
    assert popdist.isBackendInitialized()
    with pytest.raises(RuntimeError, match=r"initialized already"):
        popdist.init()
    popdist.finalizeBackend()
    with pytest.raises(RuntimeError, match=r"not initialized"):
        popdist.finalizeBackend()
    assert (popdist.getInstanceIndex(), popdist.getNumInstances()) == (2, 3)
    assert (popdist.getNumLocalReplicas(), popdist.getNumTotalReplicas()) == (2, 6)
    assert popdist.getReplicaIndexOffset() == 4
    assert [popdist.checkNumIpusPerReplica(n) for n in (1, 2)] == [True, False]  # it raises nothing
    import popdist.poptorch

    options = popdist.poptorch.Options(ipus_per_replica=1)
    assert options.replication_factor == 2
    assert (options.Distributed.processId, options.Distributed.numProcesses) == (2, 3)
    for name, call in (
        ("useIpuId", lambda: options.useIpuId(1)),
        ("replicationFactor", lambda: options.replicationFactor(1)),
        ("Distributed.disable", lambda: options.Distributed.disable()),
        ("Distributed.setEnvVarNames", lambda: options.Distributed.setEnvVarNames("A", "B")),
        ("Distributed.configureProcessId", lambda: options.Distributed.configureProcessId(1)),
    ):
        with pytest.raises(RuntimeError, match=rf"Cannot call `{name}` with popdist\.poptorch\.Options"):
            call()
    with pytest.raises(RuntimeError, match=r"poprun was given 1 IPUs a replica; the program uses 2"):
        popdist.poptorch.Options(ipus_per_replica=2)
