"""A saved model comes back with the same bits; damaged, hostile and full folders are refused by name."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.utils import parametrizations, prune

import sparsesnn as ss
from sparsesnn.errors import CheckpointError, ConfigError, DescriptionError, MissingDependencyError, SparseSnnError
from sparsesnn.layers import catalog
from sparsesnn.model_folder import FILES

T, B, N = 9, 5, 14


@dataclass(frozen=True)
class Slow(ss.Neuron):
    """Not a model of the package."""

    beta: ss.PerNeuron = ss.parameter(0.9, "decay", low=0, high=1)
    gain: float = 1.0
    states: ClassVar = ("x",)

    def arrays(self, p: Any) -> ss.NeuronArrays:
        return ss.NeuronArrays(A=[[p["beta"]]], r=[-p["threshold"]], B=[self.gain])


def spikes(n: int = N) -> ss.SpikeBatch:
    return ss.SpikeBatch.from_dense((torch.rand(T, B, n, generator=torch.Generator().manual_seed(3)) < 0.4).float())


def loud(network: ss.Network, **more: Any) -> ss.Model:
    model = ss.Model(network, seed=5, **more)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3)
    return model


def chain(*middle: Any) -> ss.Network:
    return ss.Network.chain(ss.Input(N), *middle, ss.LI(3, beta=0.9))


def trained(network: ss.Network, **more: Any) -> ss.Model:
    """A model whose numbers are none of its first ones."""
    model = loud(network, **more)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        model(spikes(network.populations["input"].n)).potentials.square().mean().backward()
        optimizer.step()
    return model


def weight_normed() -> ss.Model:
    model = loud(chain(ss.LIF(8, recurrent=True)))
    parametrizations.weight_norm(model.layers["hidden"], "input->hidden")
    return model


def pruned() -> ss.Model:
    model = loud(chain(ss.LIF(8)))
    prune.l1_unstructured(model.layers["hidden"], "input->hidden", 0.5)
    return model


MODELS: dict[str, Callable[[], ss.Model]] = {
    "learnt numbers": lambda: trained(
        chain(ss.LIF(8, recurrent=True, bias=True, learn_beta=True, learn_threshold=True))
    ),
    "capacity": lambda: trained(chain(ss.LIF(8, capacity=2, grad_threshold=-inf))),
    "own neuron": lambda: trained(chain(Slow(8, learn_beta=True, gain=0.7))),
    "delays": lambda: trained(chain(ss.CubaLIF(8)).with_axonal_delays(4, learn=True)),
    "copies": lambda: trained(chain(ss.AdLIF(8, threshold=0.05)).with_delays([0, 2])),
    "sparse": lambda: trained(
        ss.Network(
            {"input": ss.Input(N), "hidden": ss.Resonator(8), "output": ss.LI(3)},
            (ss.Connection("input", "hidden", 1, ss.Sparse(0.3)), ss.Connection("hidden", "output")),
        )
    ),
    "maps": lambda: trained(
        ss.Network.chain(
            ss.Input(shape=(6, 6, 2)), ss.Conv2d(3, 3), ss.LIF(), ss.Pool("sum", 2), ss.Conv2d(2, 2), ss.LIF(), ss.LI(3)
        )
    ),
    "int8": lambda: trained(chain(ss.LIF(8)), weight_dtype="int8"),
    "bfloat16": lambda: trained(chain(ss.LIF(8)), weight_dtype="bfloat16"),
    "dense": lambda: trained(chain(ss.LIF(8)), backend="dense", dense_mode="step"),
    "float64": lambda: loud(chain(ss.LIF(8)), backend="dense").double(),
    "per neuron": lambda: trained(
        chain(ss.LIF(3, beta=(0.8, 0.9, 0.95), surrogate=ss.boxcar(0.5), grad_threshold="exact"))
    ),
}


@pytest.mark.parametrize("kind", MODELS)
def test_the_same_bits_come_back(kind: str, tmp_path: Path) -> None:
    model = MODELS[kind]()
    x = spikes(model.network.populations["input"].n)
    model.save(tmp_path / "a")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == sorted(FILES)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    back = ss.Model.load(tmp_path / "a", neurons=[Slow])
    before, after = model.state_dict(), back.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(v, after[k]) and v.dtype == after[k].dtype for k, v in before.items())
    assert back.network == model.network
    assert (back.backend, back.dense_mode, back.weight_dtype) == (model.backend, model.dense_mode, model.weight_dtype)
    for mode in (False, True):  # with a capacity, also the candidates that a full list keeps
        model.train(mode)
        back.train(mode)
        one, other = model(x), back(x)
        assert torch.equal(one.potentials, other.potentials)
        assert one.dropped() == other.dropped()
    assert one.activity() == other.activity()
    assert max(one.activity().values()) > 0


def test_a_network_that_reads_currents(tmp_path: Path) -> None:
    model = loud(ss.Network.chain(ss.Input(6, currents=True), ss.LIF(6), ss.LI(3)))
    model.save(tmp_path / "a")
    currents = torch.rand(T, B, 6)
    assert torch.equal(ss.Model.load(tmp_path / "a")(currents).potentials, model(currents).potentials)
    assert "model(currents)  # a tensor [T, B, 6]" in (tmp_path / "a" / "README.md").read_text()


@pytest.mark.parametrize("make", [weight_normed, pruned])
def test_computed_weights_come_back_as_their_values(make: Callable[[], ss.Model], tmp_path: Path) -> None:
    model = make()
    model.save(tmp_path / "a")
    back = ss.Model.load(tmp_path / "a")
    assert torch.equal(model(spikes()).potentials, back(spikes()).potentials)
    assert "layers.hidden.input->hidden" in dict(back.named_parameters())


def test_the_weights_are_a_state_dict(tmp_path: Path) -> None:
    model = MODELS["learnt numbers"]()
    model.save_pretrained(tmp_path / "a")
    other = ss.Model(model.network, seed=9)
    other.load_state_dict(load_file(tmp_path / "a" / "model.safetensors"))
    assert torch.equal(model(spikes()).potentials, other(spikes()).potentials)
    dense = ss.Model.from_pretrained(tmp_path / "a", backend="dense")
    assert dense.backend == "dense"
    torch.testing.assert_close(dense(spikes()).potentials, model(spikes()).potentials, rtol=1e-4, atol=1e-5)


def test_the_card(tmp_path: Path) -> None:
    card = ss.ModelCard(
        name='A "model": of spikes',
        dataset="digits",
        scores={"accuracy": 0.875},
        activity={"hidden": 0.0312},
        command="sparsesnn train digits\nsecond | line",
        license="apache-2.0",
        text="More.",
    )
    model = loud(chain(ss.LIF(8, recurrent=True)))
    model.save(tmp_path / "a", card=card)
    text = (tmp_path / "a" / "README.md").read_text(encoding="utf-8")
    head, body = text.removeprefix("---\n").split("\n---\n")
    found = {key: json.loads(value) for key, value in (line.split(": ", 1) for line in head.splitlines())}
    assert found["library_name"] == "sparsesnn"
    assert (found["license"], found["datasets"], found["metrics"]) == ("apache-2.0", ["digits"], ["accuracy"])
    (result,) = found["model-index"][0]["results"]
    assert (found["model-index"][0]["name"], result["dataset"]["name"]) == (card.name, "digits")
    assert result["metrics"] == [{"type": "accuracy", "value": 0.875}]
    for row in (
        "| hidden | LIF | 8 | 0.0312 |",
        "| hidden->hidden | recurrent Dense | 64 | 1 |",
        "| accuracy | 0.875 |",
    ):
        assert row in body
    assert body.endswith("More.\n")
    model.save(tmp_path / "b")
    head = (tmp_path / "b" / "README.md").read_text(encoding="utf-8").split("---")[1]
    assert "datasets" not in head
    assert "model-index" not in head


@pytest.mark.parametrize("arguments", [{"name": 3}, {"scores": {"accuracy": "good"}}, {"activity": 0.3}])
def test_cards_of_other_types_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(DescriptionError, match=f"ModelCard: {next(iter(arguments))} is"):
        ss.ModelCard(**arguments)


# ---- folders that exist --------------------------------------------------------------------------------------------


def test_a_folder_is_never_overwritten_unasked(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    first, second = loud(chain(ss.LIF(8))), loud(chain(ss.LIF(9)))
    first.save(folder)  # an empty folder may be replaced
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"holds .*'README\.md'.*overwrite=True"):
        second.save(folder)
    assert ss.Model.load(folder).network == first.network
    second.save(folder, overwrite=True)
    assert ss.Model.load(folder).network == second.network
    assert sorted(x.name for x in folder.iterdir()) == sorted([*FILES, "notes.txt"])
    other = tmp_path / "b"
    other.mkdir()
    (other / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ConfigError, match=r"config\.json of another program"):
        first.save(other, overwrite=True)
    run = tmp_path / "run"
    run.mkdir()
    (run / "checkpoint.json").write_text("{}")
    with pytest.raises(ConfigError, match="is the folder of a run, in which no model is written"):
        first.save(run, overwrite=True)
    with pytest.raises(ConfigError, match="is a file"):
        first.save(other / "config.json", overwrite=True)


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("is_new", [True, False])
def test_a_full_disk_leaves_the_older_model(
    place: int, is_new: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, old = tmp_path / "a", loud(chain(ss.LIF(8)))
    if not is_new:
        old.save(folder)
    before = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    calls = 0

    def full(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 2 * place:  # two for each file: its content, and its folder
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="cannot be written: No space left on device; free space"):
        loud(chain(ss.LIF(9))).save(folder, overwrite=True)
    monkeypatch.undo()
    assert {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert folder.exists() is not is_new
    if not is_new:
        assert ss.Model.load(folder).network == old.network


def test_a_network_over_ranks_is_saved_by_its_run(tmp_path: Path) -> None:
    model = loud(chain(ss.LIF(8)))
    model.runner.parts = object()
    with pytest.raises(DescriptionError, match="divided over ranks.*load_run"):
        model.save(tmp_path / "a")
    assert not (tmp_path / "a").exists()


# ---- damaged and hostile folders -----------------------------------------------------------------------------------


def changed(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        document = json.loads((folder / "config.json").read_text())
        change(document)
        (folder / "config.json").write_text(json.dumps(document))

    return write


def with_tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    """Other weights, for which `config.json` vouches."""

    def write(folder: Path) -> None:
        path = folder / "model.safetensors"
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)
        data = path.read_bytes()
        vouched = {"file": path.name, "n_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        changed(lambda x: x.update(weights=vouched))(folder)

    return write


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def flip(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def link(folder: Path) -> None:
    path = folder / "model.safetensors"
    outside = folder.parent / "elsewhere"
    path.rename(outside)
    path.symlink_to(outside)


def nan(tensors: dict[str, torch.Tensor]) -> None:
    tensors["layers.hidden.input->hidden"][0, 0] = torch.nan


WEIGHT = "layers.hidden.input->hidden"
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "has no config.json"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "model.safetensors: cannot be read"),
    "not JSON": (lambda f: (f / "config.json").write_text("{"), "damaged or not JSON"),
    "a list": (lambda f: (f / "config.json").write_text("[]"), "is not a model of sparsesnn"),
    "of others": (changed(lambda x: x.update(format="bert")), "no format 'sparsesnn model'"),
    "newer": (changed(lambda x: x.update(format_version=2)), "format version is 2; this sparsesnn reads 1"),
    "cut": (cut, r"has [\d,]+ bytes, its checkpoint says"),
    "flipped": (flip, "SHA-256 does not match"),
    "link": (link, "is a link to .*outside"),
    "NaN": (with_tensors(nan), f"{WEIGHT} holds NaN"),
    "shape": (with_tensors(lambda x: x.update({WEIGHT: torch.zeros(N, 9)})), f"{WEIGHT}.*14, 9"),
    "type": (with_tensors(lambda x: x.update({WEIGHT: torch.zeros(N, 8).double()})), f"{WEIGHT} is torch.float64"),
    "missing": (with_tensors(lambda x: x.update(y=x.pop(WEIGHT))), f"{WEIGHT}' is missing"),
    "unknown neuron": (
        changed(lambda x: x["network"]["populations"]["hidden"].update(model="Absent")),
        r"'Absent'.*to load give neurons=",
    ),
    "unknown backend": (changed(lambda x: x.update(backend="tpu")), "tpu.*give another backend"),
    "huge": (
        changed(lambda x: x["network"]["populations"]["hidden"].update(n=2**28)),
        "its network has .* weights, model.safetensors only",
    ),
    "huge file": (changed(lambda x: x["weights"].update(n_bytes=2**50)), "its checkpoint says 1,125,899"),
    "other file": (changed(lambda x: x["weights"].update(file="/etc/passwd")), "settings are damaged"),
    "seeds": (changed(lambda x: x.update(rotation_seeds={"hidden": -1})), "settings are damaged"),
    "dtype": (changed(lambda x: x.update(dtype="object")), "settings are damaged"),
    "types": (changed(lambda x: x.update(weights=3)), "is damaged, or not a model"),
    "no network": (changed(lambda x: x.pop("network")), "is damaged, or not a model.*network"),
    "populations": (changed(lambda x: x["network"].update(populations=[])), "is damaged, or not a model"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_folders_are_refused(damage: str, tmp_path: Path) -> None:
    change, message = DAMAGES[damage]
    folder = tmp_path / "a"
    loud(chain(ss.LIF(8))).save(folder)
    change(folder)
    with pytest.raises(CheckpointError, match=message):
        ss.Model.load(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_every_cut_and_changed_byte_is_an_error_or_no_difference(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    model = loud(chain(ss.LIF(8)))
    model.save(folder)
    path = folder / name
    data = path.read_bytes()
    for k in range(0, len(data), 41):
        for damaged in (data[:k], data[:k] + bytes([data[k] ^ 0x11]) + data[k + 1 :]):
            path.write_bytes(damaged)
            try:
                back = ss.Model.load(folder)
            except SparseSnnError:
                continue
            assert name == "config.json"
            assert all(torch.equal(x, model.state_dict()[key]) for key, x in back.state_dict().items())


def test_another_neuron_is_given_in_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    MODELS["own neuron"]().save(tmp_path / "a")
    monkeypatch.delitem(catalog.DEFINED, "Slow")
    with pytest.raises(CheckpointError, match=r"'Slow'.*to load give neurons="):
        ss.Model.load(tmp_path / "a")
    assert type(ss.Model.load(tmp_path / "a", neurons=[Slow]).network.populations["hidden"]) is Slow


def test_a_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"holds a run: sparsesnn\.train\.load_run"):
        ss.Model.load(tmp_path)
    with pytest.raises(CheckpointError, match="nothing: is not a folder; give the folder of a saved model"):
        ss.Model.load(tmp_path / "nothing")
    loud(chain(ss.LIF(8))).save(tmp_path / "a")
    with pytest.raises(DescriptionError, match="tpu"):
        ss.Model.load(tmp_path / "a", backend="tpu")


# ---- the hub -------------------------------------------------------------------------------------------------------


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The three calls of huggingface_hub that are used, with their signatures in versions 1 and 2, on a folder."""
    root = tmp_path / "hub"

    class HfApi:
        def __init__(self, *, token: str | bool | None = None) -> None:
            assert token == "secret"

        def create_repo(self, repo_id: str, *, private: bool | None = None, exist_ok: bool = False) -> None:
            assert exist_ok
            (root / repo_id).mkdir(parents=True, exist_ok=True)

        def upload_folder(self, *, repo_id: str, folder_path: Path, commit_message: str) -> Any:
            for path in folder_path.iterdir():
                (root / repo_id / path.name).write_bytes(path.read_bytes())
            return types.SimpleNamespace(commit_url=f"https://hub/{repo_id}: {commit_message}")

    def snapshot_download(
        repo_id: str, *, revision: str | None, token: Any, cache_dir: Any, allow_patterns: Any
    ) -> str:
        assert sorted(allow_patterns) == sorted(FILES)
        assert revision == "v1"
        return str(root / repo_id)

    fake = types.ModuleType("huggingface_hub")
    fake.HfApi, fake.snapshot_download = HfApi, snapshot_download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    return root


def test_up_to_the_hub_and_back(hub: Path) -> None:
    model = MODELS["capacity"]()
    assert model.push_to_hub("me/spikes", token="secret", card=ss.ModelCard(dataset="digits")) == (
        "https://hub/me/spikes: Upload a model of sparsesnn"
    )
    assert "# spikes\n" in (hub / "me" / "spikes" / "README.md").read_text()
    back = ss.Model.from_pretrained("me/spikes", revision="v1")
    assert torch.equal(back(spikes()).potentials, model(spikes()).potentials)


def test_without_the_package_the_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.chdir(tmp_path)
    model = loud(chain(ss.LIF(8)))
    for call in (lambda: model.push_to_hub("me/x"), lambda: ss.Model.from_pretrained("me/x")):
        with pytest.raises(MissingDependencyError, match=r"huggingface_hub.*pip install 'sparsesnn\[hub\]'"):
            call()
    for name in ("/nowhere/a", "./a", "a", "a/b/c"):
        with pytest.raises(CheckpointError, match="no such folder"):
            ss.Model.from_pretrained(name)
    model.save(tmp_path / "me" / "x")
    assert ss.Model.from_pretrained("me/x").network == model.network
