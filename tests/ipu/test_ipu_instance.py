"""Replicas of an IPU program in one process or several: those of PopRun, which of them a process drives, and on which device."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sparsesnn import engines, ipu
from sparsesnn.engines import Training, make_engine
from sparsesnn.engines.base import Batch
from sparsesnn.engines.module import Model
from sparsesnn.errors import ConfigError
from sparsesnn.host.comm import Grid, Local, simulate
from sparsesnn.ipu.instance import Instance, find_instance
from sparsesnn.network import parse_net
from sparsesnn.partition.planner import make_plan
from sparsesnn.partition.target import parse_target
from sparsesnn.spikes import SpikeBatch
from sparsesnn.train import Config, train

TESTS = Path(__file__).parents[1]
TARGET = parse_target("ipu-mk2:1x16")
SMALL = {
    "data": {"name": "synthetic", "n_neurons": 30, "n_steps": 12, "n_classes": 3, "n_samples": 60, "n_blocks": 3},
    "net": {"text": "auto-16r-auto", "grad_threshold": 0.5},
    "optim": {"lr": 5e-3, "schedule": "constant", "clip_norm": 1.0},
    "train": {
        "epochs": 1, "batch": 14, "plots": False, "tensorboard": False, "prefetch": 0, "backend": "ipu-model",
        "target": "ipu-mk2:1x16",
    },
}  # fmt: skip
#: the variables of a logged command of PopRun: 16 replicas of 4 IPUs in one instance (EPCCed/eidf-docs, L2_multiple_IPU)
LOGGED = {
    "POPDIST_NUM_TOTAL_REPLICAS": "16",
    "POPDIST_NUM_IPUS_PER_REPLICA": "4",
    "POPDIST_NUM_LOCAL_REPLICAS": "16",
    "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE": "1",
    "POPDIST_REPLICA_INDEX_OFFSET": "0",
    "POPDIST_LOCAL_INSTANCE_INDEX": "0",
    "IPUOF_VIPU_API_HOST": "10.21.21.129",
    "IPUOF_VIPU_API_PORT": "8090",
    "IPUOF_VIPU_API_PARTITION_ID": "p-bert-poprun-64ipus-gc-dev-0",
    "IPUOF_VIPU_API_TIMEOUT": "120",
    "IPUOF_VIPU_API_GCD_ID": "0",
    "IPUOF_LOG_LEVEL": "WARN",
    "POPLAR_TARGET_OPTIONS": '{"ipuLinkDomainSize":"64","ipuLinkConfiguration":"slidingWindow",'
    '"ipuLinkTopology":"torus","gatewayMode":"true","instanceSize":"64"}',
}


def poprun(total: int, own: int | None = None, first: int = 0, ipus: int = 1) -> dict[str, str]:
    """The environment of one instance."""
    own = total if own is None else own
    changes = {
        "POPDIST_NUM_TOTAL_REPLICAS": total,
        "POPDIST_NUM_IPUS_PER_REPLICA": ipus,
        "POPDIST_NUM_LOCAL_REPLICAS": own,
        "POPDIST_REPLICA_INDEX_OFFSET": first,
        "IPUOF_VIPU_API_GCD_ID": first // own,
        "POPLAR_TARGET_OPTIONS": json.dumps({"instanceSize": str(own * ipus)}, separators=(",", ":")),
    }
    return LOGGED | {name: str(value) for name, value in changes.items()}


def under(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)


# ---- which replicas ------------------------------------------------------------------------------------------------


def test_without_poprun_replicas_are_as_asked() -> None:
    assert find_instance("ipu-model", TARGET, 0, {}) == Instance(1, 1)
    assert find_instance("ipu", TARGET, 4, {"PATH": "/bin"}) == Instance(4, 4)
    with pytest.raises(ConfigError, match=r"parallel.replicas: is 3 with backend 'ipu'.*give 2 or 4"):
        find_instance("ipu", TARGET, 3, {})


@pytest.mark.parametrize("asked", [0, 16])
def test_one_instance_has_the_replicas_of_poprun(asked: int) -> None:
    of_log = find_instance("ipu", parse_target("ipu-mk2:4"), asked, LOGGED)
    assert of_log == Instance(16, 16, 0, poprun=True)
    assert not of_log.is_part


def test_several_instances_share_them() -> None:
    found = [find_instance("ipu", TARGET, 0, poprun(8, 2, first)) for first in (0, 2, 4, 6)]
    assert found == [Instance(8, 2, first, poprun=True) for first in (0, 2, 4, 6)]
    assert all(one.is_part for one in found)
    assert [one.samples(33) for one in found] == [10] * 4  # 5 for each of 8 replicas


def test_variables_that_popdist_has_defaults_for() -> None:
    """PopDist takes one IPU a replica where PopRun says nothing."""
    environ = {k: v for k, v in poprun(2).items() if k != "POPDIST_NUM_IPUS_PER_REPLICA"}
    assert find_instance("ipu", TARGET, 0, environ) == Instance(2, 2, 0, poprun=True)


@pytest.mark.parametrize(
    ("backend", "target", "asked", "environ", "message"),
    [
        ("ipu", "ipu-mk2", 4, poprun(8), r"parallel.replicas: is 4, but PopRun has 8 replicas .*--num-replicas=4"),
        ("ipu-model", "ipu-mk2:1x16", 1, poprun(8), r"parallel.replicas: is 1, but PopRun has 8 replicas"),
        ("ipu", "ipu-mk2:2", 0, poprun(8), r"train.target .*: is 'ipu-mk2:2', a replica on 2 IPUs, .* 1 IPU .*replica=2"),
        ("ipu", "ipu-mk2", 0, LOGGED, r"1 IPU, but PopRun has 4 IPUs a replica .*give a target of 4"),
        ("ipu-model", "ipu-mk2:1x16", 0, poprun(4, 2), r"'ipu-model' in 2 instances of PopRun; .* --ranks 1.*'ipu'"),
        ("sdk-model", "ipu-mk2:1x16", 0, poprun(4, 2), r"'sdk-model' in 2 instances of PopRun"),
        ("ipu", "ipu-mk2", 0, poprun(6), r"POPDIST_NUM_TOTAL_REPLICAS: is 6 .*powers of two"),
        ("ipu", "ipu-mk2", 0, poprun(4, ipus=0), r"POPDIST_NUM_IPUS_PER_REPLICA: is 0"),
        (
            "ipu", "ipu-mk2", 0, poprun(4) | {"POPDIST_UNIFORM_REPLICAS_PER_INSTANCE": "0"}, "every process must have the same number",
        ),
    ],
)  # fmt: skip
def test_contradictions_are_refused(
    backend: str, target: str, asked: int, environ: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        find_instance(backend, parse_target(target), asked, environ)


# ---- one instance --------------------------------------------------------------------------------------------------


def test_one_instance_trains_as_so_many_replicas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_config = train(Config.resolve(SMALL, {"parallel": {"replicas": 4}}), out=tmp_path / "config")
    one = train(Config.resolve(SMALL), out=tmp_path / "one")
    under(monkeypatch, poprun(4))
    of_poprun = train(Config.resolve(SMALL), out=tmp_path / "poprun")
    assert of_poprun.weights_sha256 == of_config.weights_sha256 != one.weights_sha256
    with pytest.raises(ConfigError, match=r"parallel.replicas: is 2, but PopRun has 4 replicas"):
        train(Config.resolve(SMALL, {"parallel": {"replicas": 2}}), out=tmp_path / "refused")
    with pytest.raises(ConfigError, match=r"train.backend: is 'cpu', but PopRun gives this process 4 replicas"):
        train(Config.resolve(SMALL, {"train": {"backend": "cpu", "target": "ipu-mk2:1x64"}}), out=tmp_path / "cpu")


def test_engines_that_run_under_poprun(monkeypatch: pytest.MonkeyPatch) -> None:
    class Poprun(Local):
        launcher = "poprun"

        def __init__(self) -> None:
            super().__init__()
            self.size = 2

    under(monkeypatch, poprun(2, 1))
    for name in ("cpu", "ipu"):
        engines._check_launcher(name, Poprun())
    with pytest.raises(
        ConfigError, match="is 'dense' on 2 ranks of poprun; allowed: 'cpu' on ranks of mpirun or poprun"
    ):
        engines._check_launcher("dense", Poprun())


def test_a_device_is_free_before_the_next_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """PopDist chooses one device: a program for longer lists can attach it only once the program before is gone."""
    from sparsesnn.engines.ipu import engine as module

    engine: Any = make_engine("ipu-model", small_network(), Training(n_classes=3, decoding="mean", batch=4))
    held, build = [], module.make_program
    monkeypatch.setattr(module, "make_program", lambda *a, **k: held.append(engine.program) or build(*a, **k))
    few, labels = random_batch(4)
    spikes = SpikeBatch.from_dense(torch.ones(7, 4, 30))
    for batch in (few, spikes):
        engine.step(Batch(batch, labels), 1e-3)
    assert held == [None, None]


# ---- several instances ---------------------------------------------------------------------------------------------


def small_network() -> Any:
    return parse_net("30-16r-6", grad_threshold=0.5, capacity=6)


def random_batch(n: int, seed: int = 3) -> tuple[SpikeBatch, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    spikes = SpikeBatch.from_dense((torch.rand(7, n, 30, generator=generator) < 0.3).float())
    return spikes, torch.randint(0, 3, (n,), generator=generator)


def part_of(spikes: SpikeBatch, first: int, last: int) -> SpikeBatch:
    return SpikeBatch.from_dense(spikes.to_dense()[:, first:last])


def program_of(instance: Instance, n: int, model: Model) -> ipu.IpuProgram:
    plan = make_plan(small_network(), -(-n // instance.total), 7, TARGET, max_activity=1.0, capacity={"input": 30},
                     replicas=instance.total)  # fmt: skip
    return ipu.IpuProgram(plan, model, n_classes=3, checks="always", instance=instance)


@pytest.mark.parametrize("n", [13, 5])  # of 5 samples over 4 replicas the last instance has one
def test_instances_see_their_samples_as_one_process_does(n: int) -> None:
    """Without the sum over replicas all is the same: lists with their choice among candidates, logits, streams per replica."""
    model = Model(small_network(), seed=1)
    spikes, _ = random_batch(n)
    whole = program_of(Instance(4, 4), n, model)
    logits = whole.infer(spikes)
    lists = whole.lists(n)
    for first in (0, 2):
        instance = Instance(4, 2, first, poprun=True)
        size = instance.samples(n)
        begin, end = (min(k * size, n) for k in (first // 2, first // 2 + 1))
        program = program_of(instance, n, model)
        assert torch.equal(program.infer(part_of(spikes, begin, end)), logits[begin:end])
        own = program.lists(end - begin)
        for name, found in own.items():
            want = lists[name].to_dense()[:, begin:end]
            assert torch.equal(found.to_dense(), want), name
        assert np.array_equal(program._array("first_sample"), np.arange(first, first + 2, dtype=np.uint32) * -(-n // 4))


def test_an_instance_may_have_no_sample() -> None:
    model = Model(small_network(), seed=1)
    program = program_of(Instance(4, 2, 2, poprun=True), 12, model)
    spikes, _ = random_batch(1)
    none = part_of(spikes, 0, 0)
    assert program.infer(none).shape == (0, 3)
    assert {x.n_samples for x in program.lists(0).values()} == {0}


def test_sums_over_processes_are_not_emulated() -> None:
    """The program computes its replicas' gradients; the emulated machine reports that it cannot add the others'."""
    spikes, labels = random_batch(12)
    program = program_of(Instance(4, 2, 0, poprun=True), 12, Model(small_network(), seed=1))
    with pytest.raises(RuntimeError, match="2 of 4 replicas are in this process; sums over processes are not emulated"):
        program.train_step(part_of(spikes, 0, 6), labels[:6], n_samples=12)


def test_engines_of_several_instances_evaluate_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two instances as two threads, on emulated IPUs in the place of IPUs: loss, accuracy and activity are those of all samples."""
    import sparsesnn._ipu as emulated
    from sparsesnn.ipu import program
    from sparsesnn.ipu.backends import machine_arguments

    asked = []

    def machine(native: Any, backend: str, target: Any, checks: str, *, poprun: bool = False) -> tuple[Any, ...]:
        asked.append((backend, poprun))
        return machine_arguments(native, "ipu-model", target, checks)

    training = Training(n_classes=3, decoding="mean", batch=13)
    spikes, labels = random_batch(13)
    alone = make_engine("ipu-model", small_network(), Training(n_classes=3, decoding="mean", batch=13, replicas=4))
    want = alone.infer(Batch(spikes, labels))
    for name in ("sparsesnn.ipu.program.native_module", "sparsesnn.engines.ipu.engine.native_module"):
        monkeypatch.setattr(name, lambda _: emulated)
    monkeypatch.setattr(program, "machine_arguments", machine)
    under(monkeypatch, poprun(4, 2))
    monkeypatch.setattr(
        "sparsesnn.engines.ipu.engine.find_instance",
        lambda *_: instances.pop(),  # threads share an environment
    )
    instances = [Instance(4, 2, 0, poprun=True), Instance(4, 2, 2, poprun=True)]

    def on_rank(world: Any) -> Any:
        per_rank = engines.samples_of_rank("ipu", 13, 2)
        world.launcher = "poprun"
        engine: Any = make_engine("ipu", small_network(), training, Grid(world, Local(), world))
        own = engine.instance.first // 2
        first, last = (min(k * per_rank, 13) for k in (own, own + 1))
        assert (first, last) == [(0, 8), (8, 13)][own]
        return engine.infer(Batch(part_of(spikes, first, last), labels[first:last], first, 13))

    for found in simulate(2, on_rank):
        assert found.loss == pytest.approx(want.loss, rel=1e-6)
        assert (found.n_samples, found.n_correct, found.dropped) == (want.n_samples, want.n_correct, want.dropped)
        assert found.activity == pytest.approx(want.activity)
    assert set(asked) == {("ipu", True)}


# ---- device, graph, engine -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """host/src/ipu/device.cpp as the SDK build compiles it, against a fake of Poplar's devices and of PopDist."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    program = tmp_path_factory.mktemp("device") / "device"
    sdk, root = TESTS / "fakes" / "sdk", TESTS.parent
    subprocess.run(
        [compiler, "-std=c++17", "-Wall", "-Wextra", "-Werror", "-DSPARSESNN_POPLAR_SDK", f"-I{root}", f"-I{sdk}",
         str(sdk / "main.cpp"), str(root / "host" / "src" / "ipu" / "device.cpp"), "-o", str(program)], check=True,
    )  # fmt: skip
    return program


def run_device(program: Path, environ: dict[str, str], *spec: int) -> list[str]:
    done = subprocess.run(
        [str(program), *map(str, spec)], capture_output=True, text=True, check=False, env=os.environ | environ
    )
    return done.stdout.splitlines()


def test_one_instance_takes_the_device_of_popdist(device: Path) -> None:
    """Of all replicas, with no communication of processes and no options of engines."""
    assert run_device(device, LOGGED, 4, 16, 0, 16) == [
        "attach 126",  # 64 single IPUs, 32 pairs, 16 of 4, 8 of 8, 4 of 16, 2 of 32: then that of all 64
        "device 64",
        "graph 64",
        "target gatewayMode=true",
        "run in step 1",
    ]


@pytest.mark.parametrize("first", [0, 4])
def test_several_instances_build_one_graph_and_run_their_replicas(device: Path, first: int) -> None:
    """As PopART: irlowering.cpp (the target), engineoptionscreator.cpp (the options), devicex.cpp (popdist::run)."""
    assert run_device(device, poprun(8, 4, first, ipus=2), 2, 8, first, 4) == [
        "register",
        "initialize",
        "attach 14",  # 8 single IPUs, 4 pairs, 2 of 4: then that of the 8 IPUs of this instance
        "device 8",
        "graph 16",
        "target gatewayMode=true",
        f"engine target.firstRuntimeReplica={first}",
        "engine target.numberRuntimeReplica=4",
        "engine target.syncReplicasIndependently=true",
        "run in step 1",
        "finalize",
    ]


def test_devices_that_do_not_fit(device: Path) -> None:
    assert (
        run_device(device, poprun(8, 4, ipus=2), 1, 8, 0, 4)[-1] == "error PopRun has another number of IPUs a replica"
    )
    assert run_device(device, {}, 1, 8, 0, 4)[-1].startswith("error POPDIST_NUM_IPUS_PER_REPLICA is not set")
    found = run_device(device, poprun(8, 8), 1, 4, 0, 4)[-1]
    assert found == "error PopDist chose device 14 with 8 IPUs, but this process has 4 replicas on 4"
