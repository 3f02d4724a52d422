"""Checkpoints: whole at every instant, and damage of any kind is an error that names the file."""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from sparsesnn.config import Config
from sparsesnn.engines.cpu.engine import CpuEngine
from sparsesnn.engines.module import Model
from sparsesnn.engines.optimizers import make_optimizer
from sparsesnn.engines.tensors import (
    model_tensors,
    optimizer_tensors,
    restore_model,
    restore_optimizer,
    weights_sha256,
)
from sparsesnn.errors import CheckpointError, ConfigError
from sparsesnn.json_file import read_json, strict_json
from sparsesnn.layers import LI, LIF, Input
from sparsesnn.network import Network, parse_net
from sparsesnn.tensor_file import pieces_of
from sparsesnn.train import prepare, train
from sparsesnn.train.checkpoint import (
    FORMAT,
    Checkpoint,
    CheckpointStore,
    TensorFile,
    _digest,
)
from sparsesnn.train.files import locked
from sparsesnn.train.metrics import read_metrics
from sparsesnn.whole_file import write_atomically

ADAM_KEYS = frozenset({"step", "exp_avg", "exp_avg_sq"})


def make_model(n: int = 5, seed: int = 0) -> Model:
    return Model(Network.chain(Input(7), LIF(n, recurrent=True, bias=True), LI(3)), backend="dense", seed=seed)


def write(store: CheckpointStore, step: int = 1, seed: int = 0, **more: Any) -> Checkpoint:
    begin(store, step, seed, **more)
    made = store.end()
    assert made is not None
    return made


def begin(store: CheckpointStore, step: int = 1, seed: int = 0, **more: Any) -> None:
    values: dict[str, Any] = {
        "config": {"a": 1},
        "progress": {"epoch": step},
        "network": {},
        "data": {},
        "tensors": model_tensors(make_model(seed=seed)),
        "best": None,
        "version": "1",
    }
    store.begin(step=step, **{**values, **more})


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path)


def test_what_is_written_is_read(store: CheckpointStore) -> None:
    model = make_model()
    tensors = {**model_tensors(model), "rng/torch": torch.get_rng_state()}
    made = write(store, tensors=tensors, new_best=(3, model_tensors(model)))
    read = store.read()
    assert read == made
    assert read.best
    for file in (read.tensors, read.best):
        other = make_model(seed=1)
        assert weights_sha256(other) != weights_sha256(model)
        restore_model(other, store.tensors(file), "here")
        assert weights_sha256(other) == weights_sha256(model)


def test_only_the_newest_files_stay(store: CheckpointStore) -> None:
    write(store, 1, new_best=(1, model_tensors(make_model())))
    (store.folder / ".ckpt-000000009.safetensors.tmp").write_bytes(b"half")
    (store.folder / "ckpt-000000009.safetensors").write_bytes(b"never named")
    (store.folder / "mine.safetensors").write_bytes(b"not ours")
    write(store, 2, new_best=(2, model_tensors(make_model(seed=2))))
    assert sorted(path.name for path in store.folder.iterdir()) == [
        "best-000002.safetensors",
        "checkpoint.json",
        "ckpt-000000002.safetensors",
        "mine.safetensors",
    ]


def test_a_new_tensor_file_without_its_json_changes_nothing(store: CheckpointStore) -> None:
    made = write(store, 1)
    begin(store, 2, seed=5)
    store.close()  # killed right here
    assert (store.folder / "ckpt-000000002.safetensors").exists()
    assert store.read() == made
    assert store.tensors(made.tensors)


def test_a_full_disk_leaves_the_older_checkpoint(store: CheckpointStore) -> None:
    made = write(store, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, hard))  # writing beyond fails, as on a full disk
    try:
        with pytest.raises(CheckpointError, match=r"cannot be written: .*the checkpoint before it is intact.*--resume"):
            write(store, 2, seed=1)
        begin(store, 3, seed=1)
        with pytest.raises(CheckpointError, match=r"ckpt-000000003"):  # at the next checkpoint at the latest
            begin(store, 4, seed=1)
        assert store.end() is None
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert store.read() == made
    assert store.tensors(made.tensors)
    assert not list(store.folder.glob(".*"))


def test_a_checkpoint_is_written_while_its_trainer_goes_on(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = write(store, 1)
    disk = threading.Event()

    def write_slowly(path: Path, data: Any) -> int:
        assert path.name == "checkpoint.json" or disk.wait(60)
        return write_atomically(path, data)

    monkeypatch.setattr("sparsesnn.train.checkpoint.write_atomically", write_slowly)
    begin(store, 2, seed=1)
    assert not store.is_written
    assert store.read() == made  # a run killed here resumes from the older one
    disk.set()
    later = store.end()
    assert store.is_written
    assert later == store.read() != made


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool]
)
def test_files_are_those_of_safetensors(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {
        "b/x": torch.ones(3, 5).to(dtype),
        "a": torch.zeros(0, 7),
        "scalar": torch.tensor(2).to(dtype),
        "t": torch.arange(12.0).view(3, 4).T,
    }
    write_atomically(tmp_path / "x", pieces_of(tensors))
    read = load_file(tmp_path / "x")
    assert read.keys() == tensors.keys()
    for name, x in tensors.items():
        assert read[name].dtype == x.dtype
        assert torch.equal(read[name], x)


@pytest.mark.parametrize("name", ["checkpoint.json", "ckpt-000000001.safetensors"])
def test_no_damage_goes_unnoticed(store: CheckpointStore, name: str) -> None:
    made = write(store, 1)
    path = store.folder / name
    whole = path.read_bytes()
    rng = random.Random(1)

    def load() -> None:
        assert store.read() == made, "a changed checkpoint was read as another one"
        store.tensors(store.read().tensors)

    lengths = [0, 1, len(whole) // 2, len(whole) - 2, *(rng.randrange(len(whole) - 1) for _ in range(20))]
    for length in lengths:
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=name):
            load()
    harmless = 0
    for _ in range(200):
        data = bytearray(whole)
        data[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        try:
            load()  # the only harmless flips: white space between the entries of the JSON
            assert json.loads(data) == json.loads(whole)
            harmless += 1
        except CheckpointError:
            pass
    assert harmless == 0 if name.endswith("safetensors") else harmless < 60
    path.unlink()
    with pytest.raises(CheckpointError, match=r"cannot be read|has no"):
        load()


def sealed(body: Any) -> bytes:
    """A document whose digest is right, as someone who means harm would make it."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    document = {"format": FORMAT, "format_version": 1, "sha256": hashlib.sha256(text).hexdigest(), "body": body}
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "damaged or not JSON"),
        (b"\xff\xfe\x00", "damaged or not JSON"),
        (b"[" * 100_000, "damaged or not JSON"),
        (b'{"format": NaN}', "NaN is not a JSON number"),
        (b'{"n": ' + b"9" * 5000 + b"}", "damaged or not JSON"),
        (b'{"n": 1e999}', "1e999 is not a JSON number"),
        (b'{"n": ' + b"[" * 90 + b"]" * 90 + b"}", "more than 64 levels"),
        (b"[]", "is not a checkpoint"),
        (b"null", "is not a checkpoint"),
        (b'{"format": "other"}', "is not a checkpoint"),
        (json.dumps({"format": FORMAT, "format_version": 99}).encode(), "format version is 99; this sparsesnn reads 1"),
        (json.dumps({"format": FORMAT, "format_version": 1, "body": []}).encode(), "damaged"),
        (sealed({}), "config is None; it must be a dict"),
        (sealed({"config": {}, "progress": 3}), "progress is 3"),
    ],
)
def test_hostile_json(store: CheckpointStore, data: bytes, message: str) -> None:
    store.path.write_bytes(data)
    with pytest.raises(CheckpointError, match=message):
        store.read()


@pytest.mark.parametrize(
    "entry",
    [
        {"file": "../../etc/passwd", "n_bytes": 1, "sha256": ""},
        {"file": "/etc/passwd", "n_bytes": 1, "sha256": ""},
        {"file": "ckpt-1.safetensors/../x", "n_bytes": 1, "sha256": ""},
        {"file": "ckpt-1.safetensors", "n_bytes": "1", "sha256": ""},
        {"file": 3, "n_bytes": 1, "sha256": ""},
        {},
    ],
)
def test_a_checkpoint_names_only_files_beside_it(store: CheckpointStore, entry: dict[str, Any]) -> None:
    body = {"config": {}, "progress": {}, "network": {}, "data": {}, "tensors": entry, "best": None, "version": "1"}
    store.path.write_bytes(sealed(body))
    with pytest.raises(CheckpointError, match="does not name a tensor file"):
        store.read()


@pytest.mark.parametrize("name", ["checkpoint.json", "ckpt-000000001.safetensors", ".lock", "metrics.jsonl"])
def test_a_link_out_of_the_run_folder_is_neither_read_nor_written(tmp_path: Path, name: str) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    config = Config.resolve(
        {"data": {"name": "synthetic"}, "train": {"epochs": 1, "plots": False, "tensorboard": False}}
    )
    train(config, out=run)
    (run / "result.json").unlink()
    files = [path.name for path in run.iterdir()]
    (name,) = [file for file in files if file.partition("-")[0] == name.partition("-")[0]]
    (run / name).rename(outside)
    before = outside.read_bytes()
    (run / name).symlink_to(outside)
    with pytest.raises(CheckpointError, match=rf"{name}: is a link to .*outside.*outside the run folder"):
        train(config.with_values({"train": {"epochs": 2}}), out=run, resume=True)
    assert outside.read_bytes() == before
    (run / name).unlink()
    os.mkfifo(run / name)
    with pytest.raises(CheckpointError, match=rf"{name}: .*pipe"):
        train(config, out=run, resume=True)


def test_links_within_and_to_the_run_folder_are_followed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "kept.jsonl").write_text('{"epoch": 1}\n')
    (tmp_path / "run" / "metrics.jsonl").symlink_to("kept.jsonl")
    (tmp_path / "newest").symlink_to("run")
    assert read_metrics(tmp_path / "newest") == [{"epoch": 1}]


def test_a_link_under_the_temporary_name_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("mine")
    (tmp_path / ".result.json.tmp").symlink_to("outside")
    write_atomically(tmp_path / "result.json", b"new")
    assert (tmp_path / "outside").read_text() == "mine"
    assert not (tmp_path / "result.json").is_symlink()


def test_a_file_that_is_larger_than_any_checkpoint_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "big.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse: takes no room
    with pytest.raises(CheckpointError, match="larger than"):
        read_json(path, max_bytes=1000)


@pytest.mark.parametrize("data", [b"", b"x" * 7, b"\xff" * 64, (1 << 62).to_bytes(8, "little") + b"{}"])
def test_a_tensor_file_with_the_right_digest_and_no_tensors(store: CheckpointStore, data: bytes) -> None:
    made = write(store, 1)
    path = store.folder / made.tensors[0].file
    path.write_bytes(data)
    forged = [TensorFile(made.tensors[0].file, len(data), hashlib.sha256(data).hexdigest())]
    with pytest.raises(CheckpointError, match="is not a safetensors file"):
        store.tensors(forged)


def test_tensors_of_another_network() -> None:
    tensors = model_tensors(make_model())
    with pytest.raises(CheckpointError, match=r"hidden is .*the network needs"):
        restore_model(make_model(6), tensors, "here")
    with pytest.raises(CheckpointError, match=r"belongs to another network: missing \['layers.hidden.bias'\]"):
        restore_model(make_model(), {k: v for k, v in tensors.items() if not k.endswith("bias")}, "here")
    with pytest.raises(CheckpointError, match="holds NaN"):
        restore_model(make_model(), {k: v * torch.nan for k, v in tensors.items()}, "here")
    wrong = {k: v.double() for k, v in tensors.items()}
    model = make_model(seed=3)
    before = weights_sha256(model)
    with pytest.raises(CheckpointError, match="float64"):
        restore_model(model, wrong, "here")
    assert weights_sha256(model) == before, "a refused checkpoint must not change the model"


def test_an_optimizer_goes_on_as_if_nothing_had_happened() -> None:
    def step(model: Model, optimizer: torch.optim.Optimizer, k: int) -> None:
        for n, parameter in enumerate(model.parameters()):
            parameter.grad = torch.full_like(parameter, 0.1 * k - 0.03 * n)
        optimizer.step()

    model, copy = make_model(), make_model(seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for k in range(3):
        step(model, optimizer, k)
    tensors = {**model_tensors(model), **optimizer_tensors(model, optimizer)}
    assert {key.rpartition("/")[2] for key in tensors if key.startswith("optim/")} == ADAM_KEYS
    restored = torch.optim.AdamW(copy.parameters(), lr=0.01)
    restore_model(copy, tensors, "here")
    restore_optimizer(copy, restored, tensors, ADAM_KEYS, "here")
    for k in range(3):
        step(model, optimizer, k)
        step(copy, restored, k)
    assert weights_sha256(model) == weights_sha256(copy)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"optim/layers.nobody.bias/step": torch.tensor(1.0)}, "no such parameter"),
        ({"optim/layers.hidden.bias/step": torch.tensor(1.0)}, r"is \['step'\]; needed"),
        ({"optim/layers.hidden.bias/exp_avg": torch.zeros(4)}, "the network needs"),
    ],
)
def test_optimizer_state_that_does_not_fit(tensors: dict[str, torch.Tensor], message: str) -> None:
    model = make_model()
    with pytest.raises(CheckpointError, match=message):
        restore_optimizer(model, torch.optim.AdamW(model.parameters()), tensors, ADAM_KEYS, "here")


def test_the_digest_sees_the_last_bit() -> None:
    model = make_model()
    before = weights_sha256(model)
    with torch.no_grad():
        bias = model.layers["output"].weights[0]
        bias[0, 0] = torch.nextafter(bias[0, 0], torch.tensor(9.0))
    assert weights_sha256(model) != before


def test_files_are_whole_or_absent(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with pytest.raises(TypeError):
        write_atomically(path, "not bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_json_is_strict() -> None:
    with pytest.raises(ValueError, match="Out of range float"):
        strict_json({"loss": float("nan")})


def test_a_folder_is_locked_for_one_process(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(ConfigError, match=r"in use by another .*process \d+"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_pickles_are_not_read(store: CheckpointStore) -> None:
    made = write(store, 1)
    path = store.folder / made.tensors[0].file
    torch.save({"x": torch.zeros(3)}, path)
    data = path.read_bytes()
    forged = [TensorFile(made.tensors[0].file, len(data), hashlib.sha256(data).hexdigest())]
    with pytest.raises(CheckpointError, match="is not a safetensors file"):
        store.tensors(forged)


def test_a_run_of_version_0_1_is_read(tmp_path: Path) -> None:
    """Made by version 0.1.0: `sparsesnn train digits --net 128-6r-10 --set net.learn_beta=true --set net.bias=true …`."""
    old = Path(__file__).parent / "run-0.1.0"
    wanted = json.loads((old / "result.json").read_text())
    store = CheckpointStore(old)
    saved = store.read()
    network = Network.from_dict(saved.network)
    assert network.is_recurrent("hidden")
    model = Model(network, seed=5)
    updates = prepare.make_training(Config.from_dict(saved.config), network, 10).updates
    optimizer = make_optimizer(model, updates)
    tensors = store.tensors(saved.tensors)
    restore_model(model, tensors, "here")
    restore_optimizer(model, optimizer, tensors, updates.state_keys, "here")
    assert weights_sha256(model) == wanted["weights_sha256"]
    assert all(optimizer.state[p]["exp_avg"].shape == p.shape for p in model.parameters())
    other = Model(network, seed=6)  # as from a user's torch.save
    other.load_state_dict({k.removeprefix("model/"): t for k, t in tensors.items() if k.startswith("model/")})
    assert weights_sha256(other) == wanted["weights_sha256"]


def test_a_run_with_removed_options_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of earlier versions hold `train.lists`, and a tensor that says whether they trained with dense products."""
    config = Config.resolve(
        {
            "data": {"name": "synthetic", "n_neurons": 17, "n_classes": 3, "n_steps": 11, "n_samples": 40},
            "net": {"text": "auto-9r-auto"},
            "optim": {"schedule": "constant"},
            "init": {"activity": 0.0},
            "train": {"epochs": 2, "batch": 8, "plots": False, "tensorboard": False},
        }
    )
    whole, out = train(config, out=tmp_path / "whole"), tmp_path / "old"
    state = CpuEngine.state
    switch = torch.tensor([0.0, 0.3], dtype=torch.float64)
    with monkeypatch.context() as patch:
        patch.setattr(CpuEngine, "state", lambda engine: {**state(engine), "switch/state": switch})
        train(config.with_values({"train": {"epochs": 1}}), out=out)
    document = json.loads((out / "checkpoint.json").read_text())
    document["body"]["config"]["train"]["lists"] = "auto"
    document["sha256"] = _digest(document["body"])
    (out / "checkpoint.json").write_text(json.dumps(document))
    with pytest.warns(UserWarning, match="train.lists no longer exists and is ignored"):
        resumed = train(config, out=out, resume=True)
    assert resumed.weights_sha256 == whole.weights_sha256
    with pytest.warns(UserWarning, match="train.dense_mode = 'compile' no longer exists; 'auto' is used"):
        assert Config.resolve({"train": {"backend": "dense", "dense_mode": "compile"}}).train.dense_mode == "auto"


def test_a_file_from_before_layers_counted_training_steps_is_read() -> None:
    network = parse_net("4-5-2", capacity=2)
    saved, model = Model(network, seed=1), Model(network, seed=2)
    tensors = {name: x for name, x in model_tensors(saved).items() if "training_steps" not in name}
    restore_model(model, tensors, "old")
    assert torch.equal(model.layers["hidden"].weights[0], saved.layers["hidden"].weights[0])
    assert int(model.layers["hidden"].training_steps) == 0
