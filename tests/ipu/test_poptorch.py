"""sparsesnn.poptorch: the same model on the CPU engine and, through a fake PopTorch, on emulated IPUs."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sparsesnn as ss
from sparsesnn import poptorch as spt
from sparsesnn.errors import ConfigError, DescriptionError, PlanError, ShapeError, SpikeListError
from sparsesnn.partition import make_plan, parse_target
from sparsesnn.poptorch import build, library
from sparsesnn.poptorch.tile_map import connections, from_plan, spread

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("poptorch_mnist", ROOT / "examples" / "poptorch_mnist.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def dense(n_samples: int, n_steps: int, n: int, activity: float = 0.3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(n)
    return (torch.rand(n_samples, n_steps, n, generator=generator) < activity).float()


# ---- the tutorial's network ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("replicas", "accumulation", "iterations"), [(1, 1, 1), (2, 1, 1), (4, 1, 1), (2, 2, 2)])
def test_the_example_trains_like_the_cpu(
    fake_sdk: None, example: ModuleType, replicas: int, accumulation: int, iterations: int
) -> None:
    pytest.importorskip("sklearn")
    import fake_popart
    import poptorch

    fake_popart.machine.update(tiles=256, checks="never")
    batch, n_steps, lr = 32, 8, 1e-3  # later a sum rounds differently, a spike moves, and two runs part
    pixels, labels = example.images(None)
    data = example.RateCoded(pixels[: batch * n_steps], labels[: batch * n_steps], capacity=120)
    cpu, ipu = example.Net(tiles=256), example.Net(tiles=256)
    expected = list(example.on_cpu(cpu, data, batch, lr))
    assert len({round(x, 4) for x in expected}) > 4  # it learns: the outputs fire, and differently in each step
    assert expected[-1] < 2.0 < expected[0]
    options = poptorch.Options().replicationFactor(replicas).deviceIterations(iterations)
    options.Training.gradientAccumulation(accumulation)
    options.outputMode(poptorch.OutputMode.All)
    per_step = replicas * accumulation
    found = list(example.on_ipu(ipu, data, batch // per_step, lr, options))
    assert len(found) == n_steps // iterations
    means = [sum(expected[k : k + iterations]) / iterations for k in range(0, n_steps, iterations)]
    assert found == pytest.approx(means, abs=2e-6)
    for a, b in zip(cpu.parameters(), ipu.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


def test_parameters_of_neurons_train_like_on_the_cpu(fake_sdk: None) -> None:
    import fake_popart
    import poptorch

    fake_popart.machine.update(tiles=8, checks="first")
    network = ss.Network.chain(
        ss.Input(9),
        ss.LIF(20, beta=(0.7,) * 20, learn_beta=True, threshold=0.5, learn_threshold=True),
        ss.LI(4, learn_beta=True),
    )

    class Trial(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = spt.Model(network, seed=2, tiles=8)
            with torch.no_grad():
                for p in self.model.parameters():
                    p.mul_(3.0 if p.ndim == 2 else 1.0)

        def forward(self, lists: torch.Tensor, labels: torch.Tensor) -> Any:
            potentials = self.model(lists).potentials.mean(0)
            loss = torch.nn.functional.cross_entropy(potentials, labels)
            return potentials, poptorch.identity_loss(loss, reduction="none")

    cpu, ipu = Trial(), Trial()
    optimizer = torch.optim.SGD(cpu.parameters(), lr=0.05)
    training = poptorch.trainingModel(ipu, poptorch.Options(), poptorch.optim.SGD(ipu.parameters(), lr=0.05))
    before = {name: p.detach().clone() for name, p in cpu.named_parameters()}
    for k in range(4):
        lists, labels = spt.pack_dense(dense(6, 8, 9, 0.3 + 0.05 * k), 9), torch.arange(6) % 4
        optimizer.zero_grad()
        expected, loss = cpu(lists, labels)
        loss.backward()
        optimizer.step()
        found, _ = training(lists, labels)
        torch.testing.assert_close(found, expected.detach(), rtol=0, atol=1e-5)
    training.copyWeightsToHost()
    for (name, a), b in zip(cpu.named_parameters(), ipu.parameters(), strict=True):
        assert not torch.equal(a, before[name]), name
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_the_example_under_poprun(fake_sdk: None, example: ModuleType, tmp_path: Path) -> None:
    """Two processes with one replica each, their gradients summed over MPI, are one process with the samples of both."""
    pytest.importorskip("sklearn")
    pytest.importorskip("mpi4py", reason="needs mpi4py, in the extra 'mpi'")
    import fake_popart

    # a user's build: the library that registers the ops, and the codelets
    (tmp_path / library.LIBRARY).symlink_to(fake_popart.build(ROOT / "build" / "fakes"))
    (tmp_path / library.CODELETS).touch()
    environment = {
        **os.environ,
        library.FOLDER_VARIABLE: str(tmp_path),
        "PYTHONPATH": str(ROOT / "tests" / "fakes" / "python"),
        "OMP_NUM_THREADS": "1",
        "FAKE_POPART_CHECKS": "never",
    }
    program = [sys.executable, str(ROOT / "examples" / "poptorch_mnist.py"), "--device", "ipu", "--tiles", "64"]
    sizes = ["--steps", "6", "--batch", "32", "--hidden", "300"]
    poprun = [sys.executable, str(ROOT / "tests" / "fakes" / "poprun"), "--num-replicas", "2", "--num-instances", "2"]
    found = subprocess.run(
        [*poprun, "--allow-run-as-root", "1", "--", *program, *sizes],
        env=environment, capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    losses: dict[int, list[float]] = {}
    for step, loss in re.findall(r"step (\d+): loss ([\d.]+)", found.stdout):
        losses.setdefault(int(step), []).append(float(loss))
    assert [len(x) for x in losses.values()] == [2] * 6

    pixels, labels = example.images(None)
    # process 0 reads the first half in order, process 1 the second
    order = torch.arange(192).view(2, 6, 16).transpose(0, 1).reshape(-1).tolist()
    data = torch.utils.data.Subset(example.RateCoded(pixels[:192], labels[:192], capacity=196), order)
    expected = list(example.on_cpu(example.Net(300), data, 32, 1e-3))
    assert len(set(expected)) > 3
    assert [sum(x) / 2 for x in losses.values()] == pytest.approx(expected, abs=1e-4)  # printed with four digits


def test_the_example_runs_from_the_command_line(example: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    losses = example.main(["--steps", "3", "--batch", "8", "--hidden", "50"])
    assert len(losses) == 3
    assert all(math.isfinite(x) for x in losses)
    with pytest.raises(SystemExit, match=r"holds no train-images-idx3-ubyte; let torchvision"):
        example.main(["--data", str(tmp_path)])


def test_the_example_reads_mnist(example: ModuleType, tmp_path: Path) -> None:
    import gzip

    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    (folder / "train-images-idx3-ubyte").write_bytes(bytes(16) + bytes(range(256)) * 784)
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes(8) + bytes(k % 10 for k in range(256))))
    assert len(example.main(["--data", str(tmp_path), "--steps", "2", "--batch", "4", "--hidden", "20"])) == 2


# ---- the same model on the CPU -------------------------------------------------------------------------------------

NETWORK = ss.Network(
    {
        "input": ss.Input(9),
        "a": ss.LIF(12, beta=0.8, grad_threshold=0.3, recurrent=True, bias=True),
        "b": ss.CubaLIF(7, grad_threshold=-math.inf, capacity=5),
        "out": ss.LI(3, bias=True),
    },
    (
        ss.Connection("input", "a"),
        ss.Connection("a", "b", 1),
        ss.Connection("b", "out"),
        ss.Connection("a", "out", 2),
    ),
)


def test_a_model_has_the_weights_and_results_of_sparsesnn(fake_sdk: None) -> None:
    ours, theirs = spt.Model(NETWORK, seed=4), ss.Model(NETWORK, seed=4).eval()  # chooses as an op does
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    for name, value in ours.state_dict().items():
        assert torch.equal(value, theirs.state_dict()[name]), name
    x = dense(5, 6, 9)
    a, b = ours(spt.pack_dense(x)), theirs(ss.SpikeBatch.from_dense(x, batch_first=True))
    assert torch.equal(a.potentials, b.potentials)
    assert torch.equal(a.counts("a"), b.counts("a"))
    assert a.spikes["a"].values is None  # off the loss's path, as on an IPU
    a.potentials.square().sum().backward()
    b.potentials.square().sum().backward()
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad), name


def test_a_layer_has_the_weights_of_sparsesnn() -> None:
    population = ss.CubaLIF(5, bias=True, recurrent=True)
    ours = spt.Layer(population, 4, delays=[1], generator=torch.Generator().manual_seed(3))
    theirs = ss.Layer(population, 4, delays=[1], generator=torch.Generator().manual_seed(3))
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    for name, value in ours.state_dict().items():
        assert torch.equal(value, theirs.state_dict()[name]), name
    assert "n_pre=(4,)" in repr(ours)


def test_inference_equals_training(fake_sdk: None) -> None:
    import fake_popart
    import poptorch

    fake_popart.machine.update(tiles=8, checks="always")
    network = ss.Network.chain(ss.Input(9), ss.LIF(12, beta=0.8, threshold=0.3), ss.LIF(4, threshold=0.2))

    class Counts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = spt.Model(network, tiles=8)

        def forward(self, lists: torch.Tensor) -> Any:
            out = self.model(lists)
            return out.counts(), out.counts("hidden"), out.spikes["hidden"].n_dropped()

    model = Counts()
    lists = spt.pack_dense(dense(6, 5, 9))
    expected = model(lists)
    options = poptorch.Options().replicationFactor(3)
    for trains in (True, False):
        found = poptorch.inferenceModel(model.train(trains), options)(lists)
        assert torch.equal(found[0], expected[0])
        assert torch.equal(found[1], expected[1])
        assert found[2].tolist() == [0, 0, 0]
    assert expected[0].sum() > 0


# ---- spikes --------------------------------------------------------------------------------------------------------


def test_packing_keeps_who_fired() -> None:
    x = dense(3, 4, 11)
    lists = spt.pack_dense(x)
    assert lists.dtype == torch.int32
    assert lists.shape == (3, 4, 2 + int(x.sum(-1).max()))
    spikes = spt.from_data(lists, 11)
    assert torch.equal(spikes.to_dense(), x.transpose(0, 1))
    assert torch.equal(spikes.counts(), x.sum(1))
    assert int(spikes.n_dropped()) == 0
    for b in range(3):
        for t in range(4):
            n = int(lists[b, t, 0])
            assert lists[b, t, 2 : 2 + n].tolist() == torch.nonzero(x[b, t]).flatten().tolist()
            assert not lists[b, t, 2 + n :].any()
    assert spt.pack_dense(torch.zeros(2, 5)).tolist() == [[0, 0, 0]] * 2
    assert spt.pack_dense(torch.ones(1, 5, dtype=torch.bool), 5).tolist() == [[5, 5, 0, 1, 2, 3, 4]]


def test_packing_a_batch_is_packing_what_it_holds() -> None:
    x = dense(3, 4, 11)
    batch = ss.SpikeBatch.from_dense(x, batch_first=True)
    assert torch.equal(spt.pack(batch), spt.pack_dense(x))
    assert torch.equal(spt.pack(batch, 11), spt.pack_dense(x, 11))
    assert spt.pack(batch.samples([])).shape == (0, 4, 3)
    with pytest.raises(SpikeListError, match=r"pack: a list has \d spikes, but capacity is 1; raise it"):
        spt.pack(batch, 1)
    with pytest.raises(SpikeListError, match=r"pack: capacity is 12; allowed: 1 to 11"):
        spt.pack(batch, 12)


@pytest.mark.parametrize(
    ("x", "capacity", "message"),
    [
        (torch.full((2, 3), 0.5), None, r"entries must be 0 or 1"),
        (torch.full((2, 3), math.nan), None, r"entries must be 0 or 1"),
        (torch.ones(2, 3), 2, r"a list has 3 spikes, but capacity is 2; raise it"),
        (torch.ones(2, 3), 4, r"capacity is 4; allowed: 1 to 3"),
        (torch.zeros(2, 3), 0, r"capacity is 0; allowed: 1 to 3"),
    ],
)
def test_packing_refuses(x: torch.Tensor, capacity: int | None, message: str) -> None:
    with pytest.raises(SpikeListError, match=message):
        spt.pack_dense(x, capacity)


def test_data_of_another_form_is_refused() -> None:
    for lists, n in (
        (torch.zeros(2, 3, 4), 5),
        (torch.zeros(3, 4, dtype=torch.int32), 5),
        (torch.zeros(2, 3, 2, dtype=torch.int32), 5),
        (torch.zeros(2, 3, 8, dtype=torch.int32), 5),
    ):
        with pytest.raises(
            ShapeError, match=r"spikes: got torch.\w+ with shape \([\d, ]+\); give int32 \[B, T, 2 \+ K\]"
        ):
            spt.from_data(lists, n)
    layer = spt.Layer(ss.LIF(3), 4)
    with pytest.raises(ShapeError, match=r"the input has 5 neurons; the layer reads 4"):
        layer(spt.from_data(torch.zeros(2, 3, 4, dtype=torch.int32), 5))
    with pytest.raises(ShapeError, match=r"the layer got a Tensor; give Spikes"):
        layer(torch.zeros(2, 3, 4))
    bad = torch.tensor([[[2, 2, 3, 1]]], dtype=torch.int32)
    with pytest.raises(SpikeListError, match=r"list 0 does not ascend: id 1 after 3"):
        layer(spt.from_data(bad, 4))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: spt.Layer(ss.LIF(3), [4, 5]), r"2 sources with 2 delays; the op has only one"),
        (
            lambda: spt.Model(
                ss.Network(
                    {"a": ss.Input(3), "b": ss.Input(3), "c": ss.LIF(3)},
                    (ss.Connection("a", "c"), ss.Connection("b", "c")),
                )
            ),
            r"the op reads one input, listed first; the network has \['a', 'b'\]",
        ),
        (
            lambda: spt.Model(
                ss.Network(
                    {"a": ss.Input(3), "b": ss.LI(3), "c": ss.LIF(3)},
                    (ss.Connection("a", "b"), ss.Connection("a", "c")),
                )
            ),
            r"b: a second readout: the op has only one",
        ),
    ],
)
def test_what_the_op_cannot_do_is_refused_on_the_cpu_too(make: Any, message: str) -> None:
    with pytest.raises(DescriptionError, match=message):
        make()


# ---- tile maps -----------------------------------------------------------------------------------------------------


@given(
    n=st.lists(st.integers(1, 300), min_size=1, max_size=3),
    recurrent=st.booleans(),
    n_samples=st.integers(1, 40),
    tiles=st.sampled_from([1, 2, 7, 64, 1472]),
    input_gradient=st.booleans(),
)
def test_a_map_covers_everything_once(
    n: list[int], recurrent: bool, n_samples: int, tiles: int, input_gradient: bool
) -> None:
    network = ss.Network.chain(ss.Input(20), *(ss.LIF(k, recurrent=recurrent) for k in n))
    found = spread(network, n_samples, tiles, input_gradient)

    def covered(rows: list[tuple[int, int]]) -> list[int]:
        return [first + k for first, size in rows for k in range(size)]

    for index, p in enumerate(network.populations.values()):
        shards = [row[2:] for row in found.shards if row[0] == index]
        assert covered(shards) == (list(range(p.n)) if index else [])
        assert all(size % 2 == 0 for _, size in shards[:-1])
        assert len({row[1] for row in found.shards if row[0] == index}) == len(shards) <= tiles
        assert covered([row[2:] for row in found.collectors if row[0] == index]) == list(range(n_samples))
    for index, (pre, post, _) in enumerate(connections(network)):
        rows = [row for row in found.reducers if row[0] == index]
        n_shards = sum(row[0] == post for row in found.shards)
        assert bool(rows) == (n_shards > 16 and bool(pre or input_gradient))
        if rows:
            cells = [(s, b) for _, _, s0, ns, b0, nb in rows for s in range(s0, s0 + ns) for b in range(b0, b0 + nb)]
            assert sorted(cells) == [(s, b) for s in range(n_shards) for b in range(n_samples)]
    assert all(0 <= row[1] < tiles for row in [*found.shards, *found.collectors, *found.reducers])


def test_a_plan_can_place_the_neurons(fake_sdk: None) -> None:
    import fake_popart
    from poptorch import executor

    fake_popart.machine.update(tiles=64, checks="always")
    plan = make_plan(NETWORK, 5, 6, parse_target("ipu-mk2:1x64"), max_activity=1.0)
    lists = spt.pack_dense(dense(5, 6, 9))
    model = spt.Model(NETWORK, plan=plan)
    with executor._on_ipu(training=True):
        found = model(lists)
    assert torch.equal(found.potentials, model(lists).potentials)
    with pytest.raises(PlanError, match=r"the plan is for B=5, T=6 on 1 IPUs; the op has B=4, T=6 on one"):
        from_plan(plan, 4, 6)
    with pytest.raises(DescriptionError, match=r"the plan was made for another network"):
        spt.Model(ss.Network.chain(ss.Input(9), ss.LIF(2)), plan=plan)


# ---- the library of ops --------------------------------------------------------------------------------------------


def test_a_missing_library_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(library, "_loaded", None)
    monkeypatch.setenv(library.FOLDER_VARIABLE, str(tmp_path))
    with pytest.raises(ConfigError, match=r"has no libsparsesnn_popart.so; source the Poplar SDK's enable.sh and run"):
        library.codelets()
    (tmp_path / library.LIBRARY).write_bytes(b"no library")
    with pytest.raises(ConfigError, match=r"has no ipu.gp"):
        library.codelets()
    (tmp_path / library.CODELETS).write_bytes(b"")
    with pytest.raises(OSError, match=r"libsparsesnn_popart.so"):
        library.codelets()
    monkeypatch.delenv(library.FOLDER_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert library.default_folder() == tmp_path / "cache" / "sparsesnn" / "poptorch"


def test_building_calls_the_sdk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tools, folder, log = tmp_path / "bin", tmp_path / "ops", tmp_path / "log"
    tools.mkdir()
    for tool in ("popc", "g++"):
        script = f'#!/bin/sh\necho {tool} "$@" >> {log}\nwhile [ "$1" != -o ]; do shift; done\necho built > "$2"\n'
        (tools / tool).write_text(script)
        (tools / tool).chmod(0o755)
    monkeypatch.setattr("sys.argv", ["build", "--source", str(ROOT), "--folder", str(folder)])
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    assert build.main() == 0
    assert sorted(p.name for p in folder.iterdir()) == ["ipu.gp", "libsparsesnn_popart.so"]
    popc, gxx = log.read_text().splitlines()
    assert re.match(r"popc -O3 --target=ipu2,ipu21,cpu -I .*edges.cpp .*update.cpp -o .*ipu.gp$", popc)
    for part in (
        "-std=c++17",
        "-DONNX_NAMESPACE=onnx",
        "custom_op.cpp",
        "description.cpp",
        "program.cpp",
        "-lpopart",
        "-lpopops",
        "-lgcl",
    ):
        assert part in gxx
    assert [p.name for p in tmp_path.iterdir() if "new" in p.name] == []

    (tools / "g++").write_text("#!/bin/sh\nexit 3\n")
    assert build.main() == 1
    assert len(list(folder.iterdir())) == 2  # the earlier build stays
    (tools / "popc").unlink()
    monkeypatch.setenv("PATH", str(tools))
    with pytest.raises(ConfigError, match=r"no popc on PATH; source the Poplar SDK's enable.sh first"):
        build.build(ROOT, folder)
    with pytest.raises(ConfigError, match=r"has no codelets/ipu and host/src/popart; give --source"):
        build.commands(tmp_path, folder)


# ---- Python 3.8 ----------------------------------------------------------------------------------------------------

#: what `import sparsesnn.poptorch` asks of torch and NumPy
STUBS = {
    "numpy/__init__": "class ndarray: pass\n",
    "torch/__init__": (
        "from torch import nn\nfloat32 = int32 = int64 = 'dtype'\nclass Tensor: pass\nclass Generator: pass\n"
        "class device: pass\n"
        "class autograd:\n    class Function: pass\n    class function: once_differentiable = staticmethod(lambda f: f)\n"
    ),
    "torch/nn/__init__": "class Module:\n    pass\nclass Parameter: pass\nclass ParameterList(Module): pass\nModuleDict = Module\n",
}


def python38() -> str | None:
    """A Python 3.8 that runs; a shim on PATH may not."""
    for name in ("python3.8", str(Path.home() / ".pyenv/versions/3.8.18/bin/python")):
        path = shutil.which(name)
        if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return path
    return None


@pytest.mark.skipif(python38() is None, reason="needs Python 3.8")
def test_it_imports_under_python_38(tmp_path: Path) -> None:
    for name, text in STUBS.items():
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    program = """
import sys
import sparsesnn as ss
import sparsesnn.poptorch as spt
import sparsesnn.poptorch.build
from sparsesnn.poptorch.description import describe
from sparsesnn.poptorch.tile_map import spread
from sparsesnn.poptorch.backends import run_engine
network = ss.Network.chain(ss.Input(9), ss.LIF(40, recurrent=True, grad_threshold=-float("inf")), ss.LI(3))
assert len(spread(network, 5, 64, True).shards) == 22  # what `describe` computes needs NumPy, not a stub
for broken in (lambda: ss.Model, lambda: run_engine(None, [])):
    try:
        broken()
    except (ImportError, ValueError) as error:
        print(error)
"""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}:{tmp_path}", "PYTHONDONTWRITEBYTECODE": "1"}
    found = subprocess.run(
        [str(python38()), "-W", "error", "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert "sparsesnn.Model needs Python 3.10 and torch 2.6; this is Python 3.8" in found.stdout
    assert "on a CPU the layers run on sparsesnn's engine, which needs Python 3.10" in found.stdout


def test_what_python_38_reads_has_its_syntax() -> None:
    """Checked without Python 3.8, by its grammar as this Python knows it."""
    import ast

    files = [
        *(ROOT / "sparsesnn" / "poptorch").glob("*.py"),
        *(ROOT / "sparsesnn" / "layers").glob("*.py"),
        *(ROOT / "sparsesnn" / "synapses").glob("*.py"),
        *(
            ROOT / "sparsesnn" / f"{name}.py"
            for name in (
                "__init__",
                "connection",
                "delays",
                "errors",
                "map_text",
                "network",
                "options",
                "parameters",
                "selftest",
                "surrogate",
            )
        ),
        ROOT / "examples" / "poptorch_mnist.py",
    ]
    assert len(files) > 15
    for path in files:
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 8))
        for node in ast.walk(tree):
            strict = isinstance(node, ast.Call) and any(k.arg == "strict" for k in node.keywords)
            assert not strict, f"{path.name}:{getattr(node, 'lineno', 0)}: zip(strict=…) needs Python 3.10"
    assert sys.version_info >= (3, 10)
